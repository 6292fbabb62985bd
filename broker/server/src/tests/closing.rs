use super::*;

/// A compactor whose files exist in its manifest only.
#[derive(Debug, Default)]
struct Paper {
    files: Mutex<Vec<DataFile>>,
    failures: Mutex<u32>,
}

#[async_trait]
impl Compactor for Paper {
    async fn compact(
        &self,
        topic: &TopicState,
        segments: &[SealedSegment],
        publish: bool,
    ) -> Result<Compacted, CompactorError> {
        assert!(segments.iter().all(|segment| !segment.is_empty()), "empty segments need no file");
        if !segments.is_empty()
            && let mut failures = self.failures.lock().unwrap()
            && *failures > 0
        {
            *failures -= 1;
            return Err(CompactorError { message: "the disk is full".into(), retryable: true, damaged: false });
        }
        let mut files = self.files.lock().unwrap();
        let mut done = Compacted::default();
        for segment in segments {
            let opened = &segment.opened;
            let key: refstream_types::Key = format!("{}/{}", topic.name, opened.id.number).parse().unwrap();
            done.segments.push(opened.id.number);
            done.files.push(key.to_string());
            files.push(DataFile {
                key,
                tier: Tier::Fresh,
                segments: vec![SegmentSpan {
                    number: opened.id.number,
                    range: opened.range,
                    start_offsets: opened.start_offsets.clone(),
                    end_offsets: segment.end_offsets.clone(),
                }],
                rows: 3,
                bytes: 300,
                payload_bytes: 0,
                append_times: (Timestamp::from_micros(0), Timestamp::from_micros(i64::MAX)),
                digest: [0; 32],
            });
        }
        if publish {
            for file in files.iter_mut() {
                file.tier = Tier::Data;
            }
        }
        Ok(done)
    }
    async fn manifest(&self, topic: &TopicState) -> Result<Option<Manifest>, CompactorError> {
        Ok(Some(Manifest {
            topic: topic.id,
            name: topic.name.clone(),
            version: Version(1),
            token: Token([0; 16]),
            pages: Vec::new(),
            files: self.files.lock().unwrap().clone(),
            plan: None,
            replaced: Vec::new(),
        }))
    }
}

async fn segments(client: &mut Client) -> Vec<v1::Segment> {
    let request = v1::ListSegmentsRequest { topic: "images".into() };
    client.segments.list_segments(request).await.unwrap().into_inner().segments
}

/// Waits until the broker has closed the segment: its records are in files only.
async fn closed(client: &mut Client, topic: u64) -> v1::ErrorDetail {
    loop {
        let mut tail = client.tail(topic, &[(0, 0)], true).await;
        if let Event::Error(error) = tail.message().await.unwrap().unwrap().event.unwrap() {
            return error.error.unwrap();
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn sealed_segments_are_compacted_and_then_answered_with_in_files() {
    let paper = Arc::new(Paper { failures: Mutex::new(1), ..Paper::default() });
    let shelf = Arc::default();
    let with_paper = || ServerConfig { compactor: Some(Arc::<Paper>::clone(&paper)), ..config(&shelf) };
    let server = serve(with_paper()).await;
    let mut client = Client::to(&server).await;
    let topic = client.create("images", 2).await;
    let mut appender = client.appender(topic).await;
    appender.append_one(0, bytes(&["a", "b"])).await;
    appender.append_one(1, bytes(&["c"])).await;
    let open = segments(&mut client).await;
    assert_eq!(open.len(), 1);
    assert_eq!((open[0].state(), open[0].end_offsets.as_slice()), (v1::SegmentState::Open, [2, 1].as_slice()));
    let sealed = client.segments.seal(v1::SealRequest { topic: "images".into() }).await.unwrap().into_inner().sealed;
    assert_eq!(sealed, [open[0].number]);
    // The first try fails and is repeated by itself.
    let detail = closed(&mut client, topic).await;
    assert_eq!((detail.code(), detail.offset, detail.until), (ErrorCode::InFiles, Some(0), Some(2)));

    let listed = segments(&mut client).await;
    assert_eq!(listed[0].state(), v1::SegmentState::Compacted);
    assert_eq!((listed[0].files.as_slice(), listed[0].bytes), (["s3://bucket/images/1".to_owned()].as_slice(), 300));
    assert_eq!((listed[1].state(), listed[1].start_offsets.as_slice()), (v1::SegmentState::Open, [2, 1].as_slice()));
    assert_eq!(client.latest(topic).await, [2, 1]);
    assert_eq!(appender.append_one(0, bytes(&["d"])).await.base_offset, 2);
    assert_eq!(client.read(topic, &[(0, 2), (1, 1)]).await.len(), 1);
    let request = v1::ListOffsetsRequest { topic_id: topic, at: Some(1), own: false };
    let at = client.records.list_offsets(request).await.unwrap().into_inner().at;
    assert_eq!(at, [0, 0], "files may hold the time: their first offset");

    let compact = v1::CompactRequest { topic: "images".into(), publish: true, own: false };
    client.segments.compact(compact).await.unwrap();
    assert_eq!(segments(&mut client).await[0].state(), v1::SegmentState::Published);

    // A restart knows what is in files and what is not.
    drop(server);
    let server = serve(with_paper()).await;
    let mut client = Client::to(&server).await;
    assert_eq!(client.latest(topic).await, [3, 1]);
    assert_eq!(client.tail_error(topic, 0, 0).await.code(), ErrorCode::InFiles);
}

#[tokio::test]
async fn without_a_compactor_compaction_is_unsupported() {
    let server = serve(config(&Arc::default())).await;
    let mut client = Client::to(&server).await;
    client.create("images", 1).await;
    let request = v1::CompactRequest { topic: "images".into(), publish: false, own: false };
    let status = client.segments.compact(request).await.unwrap_err();
    assert_eq!(error_detail(&status).code(), ErrorCode::Unsupported);
}

#[tokio::test]
async fn a_deleted_topic_ends_its_tails_and_frees_its_name() {
    let server = serve(config(&Arc::default())).await;
    let mut client = Client::to(&server).await;
    let topic = client.create("images", 1).await;
    let mut appender = client.appender(topic).await;
    appender.append_one(0, bytes(&["a"])).await;
    let mut tail = client.tail(topic, &[(0, 1)], true).await;
    assert!(matches!(tail.message().await.unwrap().unwrap().event.unwrap(), Event::CaughtUp(_)));
    client.topics.delete_topic(v1::DeleteTopicRequest { name: "images".into() }).await.unwrap();
    let status = tail.message().await.unwrap_err();
    assert_eq!(error_detail(&status).code(), ErrorCode::TopicNotFound);
    let results = appender.append(vec![(0, bytes(&["b"]))]).await;
    assert!(refused(&results[0]).no_side_effects);
    let again = client.create("images", 1).await;
    assert_ne!(again, topic, "ids are never used again");
    assert_eq!(client.latest(again).await, [0]);
}
