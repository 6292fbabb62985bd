use super::*;

#[tokio::test]
async fn what_is_appended_is_read_in_order_and_live() {
    let server = serve(config(&Arc::default())).await;
    let mut client = Client::to(&server).await;
    let topic = client.create("images", 2).await;
    let mut tail = client.tail(topic, &[(0, 0), (1, 0)], true).await;
    for _ in 0..2 {
        assert!(matches!(tail.message().await.unwrap().unwrap().event.unwrap(), Event::CaughtUp(_)));
    }
    let mut appender = client.appender(topic).await;
    let results = appender.append(vec![(0, bytes(&["a", "b"])), (1, bytes(&["c"]))]).await;
    assert_eq!(results.iter().map(|result| appended(result).base_offset).collect::<Vec<_>>(), [0, 0]);
    assert_eq!(appender.append_one(0, bytes(&["d"])).await.base_offset, 2);

    let mut live = Vec::new();
    while live.len() < 3 {
        if let Event::Batch(batch) = tail.message().await.unwrap().unwrap().event.unwrap() {
            live.push((batch.partition, batch.base_offset));
        }
    }
    live.sort_unstable();
    assert_eq!(live, [(0, 0), (0, 2), (1, 0)]);
    let read = client.read(topic, &[(0, 1)]).await;
    assert_eq!(read.iter().map(|batch| batch.base_offset).collect::<Vec<_>>(), [0, 2]);
    assert_eq!(read[0].batch, bytes(&["a", "b"]), "the broker keeps a batch as it was given");
    assert_eq!(client.latest(topic).await, [3, 1]);
    let described = client
        .topics
        .describe_topic(v1::DescribeTopicRequest { name: "images".into(), with_offsets: true })
        .await
        .unwrap();
    assert_eq!(
        described.into_inner().partitions.iter().map(|p| (p.earliest, p.latest)).collect::<Vec<_>>(),
        [(0, 3), (0, 1)]
    );
    assert_eq!(server.drain().await, StopReason::Drained);
}

#[tokio::test]
async fn one_bad_batch_is_refused_alone() {
    let server = serve(config(&Arc::default())).await;
    let mut client = Client::to(&server).await;
    let topic = client.create("images", 2).await;
    let mut appender = client.appender(topic).await;
    let mut corrupt = bytes(&["x"]).to_vec();
    *corrupt.last_mut().unwrap() ^= 1;
    let results = appender
        .append(vec![
            (0, Bytes::from(corrupt)),
            (1, bytes(&["good"])),
            (1, bytes(&["again"])),
            (9, bytes(&["nowhere"])),
            (0, Bytes::from(vec![0; MAX_BATCH_BYTES + 1])),
        ])
        .await;
    assert_eq!(refused(&results[0]).code(), ErrorCode::BatchCorrupt);
    assert_eq!(appended(&results[1]).base_offset, 0);
    assert_eq!(refused(&results[2]).code(), ErrorCode::InvalidArgument);
    assert_eq!(refused(&results[3]).code(), ErrorCode::PartitionNotFound);
    assert_eq!(refused(&results[4]).code(), ErrorCode::TooLarge);
    for at in [0, 2, 3, 4] {
        assert!(refused(&results[at]).no_side_effects);
    }
    assert_eq!(appender.append_one(0, bytes(&["the stream goes on"])).await.base_offset, 0);
    let mut appender = client.appender(999).await;
    let results = appender.append(vec![(0, bytes(&["x"]))]).await;
    assert_eq!(refused(&results[0]).code(), ErrorCode::TopicNotFound);
}

#[tokio::test]
async fn pipelined_requests_keep_the_order_of_the_stream() {
    let server = serve(config(&Arc::default())).await;
    let mut client = Client::to(&server).await;
    let topic = client.create("images", 1).await;
    let producer = client.records.open_producer(v1::OpenProducerRequest {}).await.unwrap().into_inner();
    let mut appender = client.appender(topic).await;
    // The core remembers the last five batches of a producer; more may not be undecided.
    for sequence in 0..5 {
        appender.send(vec![(0, stamped(&["x"], &producer, sequence))]).await;
    }
    for _ in 0..5 {
        let response = appender.responses.message().await.unwrap().unwrap();
        assert_eq!(appended(&response.results[0]).base_offset, response.request_id - 1);
    }
    drop(appender.requests);
    assert!(appender.responses.message().await.unwrap().is_none(), "the stream ends when the client's side ended");
}

#[tokio::test]
async fn a_retry_on_a_new_connection_is_recognised() {
    let shelf = Arc::default();
    let server = serve(config(&shelf)).await;
    let mut client = Client::to(&server).await;
    let topic = client.create("images", 1).await;
    let producer = client.records.open_producer(v1::OpenProducerRequest {}).await.unwrap().into_inner();
    let mut appender = client.appender(topic).await;
    let first = appender.append_one(0, stamped(&["a"], &producer, 0)).await;
    drop(appender);
    let mut client = Client::to(&server).await;
    let again = client.appender(topic).await.append_one(0, stamped(&["a"], &producer, 0)).await;
    assert_eq!(again, v1::Appended { duplicate: true, ..first });

    // After a crash too, and the sequence is checked.
    drop(server);
    let server = serve(config(&shelf)).await;
    let mut client = Client::to(&server).await;
    let mut appender = client.appender(topic).await;
    let again = appender.append_one(0, stamped(&["a"], &producer, 0)).await;
    assert_eq!(again, v1::Appended { duplicate: true, ..first });
    let results = appender.append(vec![(0, stamped(&["c"], &producer, 2))]).await;
    assert_eq!(
        (refused(&results[0]).code(), refused(&results[0]).expected_sequence),
        (ErrorCode::OutOfSequence, Some(1))
    );
    assert_eq!(appender.append_one(0, stamped(&["b"], &producer, 1)).await.base_offset, 1);
}

#[tokio::test]
async fn restarts_keep_records_and_offsets() {
    let shelf = Arc::default();
    let mut server = serve(config(&shelf)).await;
    let mut client = Client::to(&server).await;
    let topic = client.create("images", 2).await;
    for round in 0..4_u64 {
        let mut appender = client.appender(topic).await;
        assert_eq!(appender.append_one(0, bytes(&["a", "b"])).await.base_offset, round * 3);
        assert_eq!(appender.append_one(0, bytes(&["c"])).await.base_offset, round * 3 + 2);
        if round % 2 == 0 {
            assert_eq!(server.drain().await, StopReason::Drained);
        } else {
            drop(server);
        }
        server = serve(config(&shelf)).await;
        client = Client::to(&server).await;
        assert_eq!(client.latest(topic).await, [(round + 1) * 3, 0]);
        let read = client.read(topic, &[(0, 0), (1, 0)]).await;
        let bases: Vec<u64> = read.iter().map(|batch| batch.base_offset).collect();
        assert_eq!(bases, (0..=round).flat_map(|round| [round * 3, round * 3 + 2]).collect::<Vec<_>>());
        let past = client.tail_error(topic, 0, 1_000).await;
        assert_eq!((past.code(), past.until), (ErrorCode::OffsetOutOfRange, Some((round + 1) * 3)));
    }
}

#[tokio::test]
async fn times_lead_to_offsets() {
    let server = serve(config(&Arc::default())).await;
    let mut client = Client::to(&server).await;
    let topic = client.create("images", 1).await;
    let mut appender = client.appender(topic).await;
    let first = appender.append_one(0, bytes(&["a", "b"])).await;
    let mut at = async |at| {
        let request = v1::ListOffsetsRequest { topic_id: topic, at: Some(at), own: false };
        client.records.list_offsets(request).await.unwrap().into_inner().at
    };
    assert_eq!(at(0).await, [0]);
    assert_eq!(at(first.append_time).await, [0]);
    assert_eq!(at(first.append_time + 3_600_000_000).await, [2], "the latest offset where no record is that young");
}
