//! Several brokers on one store.

use super::{living::http_until, *};
use refstream_proto::v1::cluster_client::ClusterClient;

/// Three brokers on one store, each with a client.
async fn three() -> (Vec<Server>, Vec<Client>) {
    let shelf = Arc::default();
    let (mut servers, mut clients) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let server = serve(config(&shelf)).await;
        clients.push(Client::to(&server).await);
        servers.push(server);
    }
    (servers, clients)
}

/// The broker of each partition, by number, as one of them knows it; those that nobody serves apart.
async fn owners(client: &mut Client, servers: &[Server]) -> BTreeMap<u32, usize> {
    let request = v1::LookupRequest { topic: "images".into() };
    let answer = client.records.lookup(request).await.unwrap().into_inner();
    let number = |endpoint: &str| {
        servers.iter().position(|server| endpoint == format!("http://{}", server.grpc_address())).unwrap_or(usize::MAX)
    };
    let served = answer.assignments.iter().flat_map(|a| (a.lo..a.hi).map(|partition| (partition, number(&a.endpoint))));
    served.collect()
}

/// Waits until the partitions are served as wanted.
async fn until(client: &mut Client, servers: &[Server], wanted: impl Fn(&BTreeMap<u32, usize>) -> bool) {
    for _ in 0..3_000 {
        if wanted(&owners(client, servers).await) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{:?}", owners(client, servers).await);
}

fn evenly(owners: &BTreeMap<u32, usize>) -> bool {
    owners.len() == 3 && owners.values().collect::<std::collections::BTreeSet<_>>().len() == 3
}

#[tokio::test]
async fn any_broker_answers_for_all_and_a_topic_is_known_to_all_at_once() {
    let (servers, mut clients) = three().await;
    let topic = clients[2].create("images", 3).await;
    for client in &mut clients {
        assert!(evenly(&owners(client, &servers).await));
    }
    let owners = owners(&mut clients[0], &servers).await;
    for (partition, owner) in &owners {
        let mut appender = clients[*owner].appender(topic).await;
        appender.append_one(*partition, bytes(&["a", "b"])).await;
        let elsewhere = (*owner + 1) % 3;
        let mut appender = clients[elsewhere].appender(topic).await;
        let refused = refused(&appender.append(vec![(*partition, bytes(&["c"]))]).await[0]);
        assert_eq!((refused.code(), refused.no_side_effects), (ErrorCode::SegmentSealed, true));
        let error = clients[elsewhere].tail_error(topic, *partition, 0).await;
        assert_eq!(error.code(), ErrorCode::SegmentSealed);
        assert_eq!(clients[*owner].read(topic, &[(*partition, 0)]).await.len(), 1);
    }
    for client in &mut clients {
        assert_eq!(client.latest(topic).await, [2, 2, 2]);
    }
}

#[tokio::test]
async fn what_a_dead_broker_served_goes_on_elsewhere_with_its_producers() {
    let (mut servers, mut clients) = three().await;
    let topic = clients[0].create("images", 3).await;
    let producer = clients[1].records.open_producer(v1::OpenProducerRequest {}).await.unwrap().into_inner();
    for (partition, owner) in owners(&mut clients[0], &servers).await {
        clients[owner].appender(topic).await.append_one(partition, stamped(&["a", "b"], &producer, 0)).await;
    }
    // The first one leads.
    servers.remove(0);
    clients.remove(0);
    until(&mut clients[0], &servers, |owners| owners.len() == 3 && owners.values().all(|owner| *owner < 2)).await;
    for (partition, owner) in owners(&mut clients[1], &servers).await {
        let mut appender = clients[owner].appender(topic).await;
        let again = appender.append_one(partition, stamped(&["a", "b"], &producer, 0)).await;
        assert!(again.duplicate && again.base_offset == 0, "{again:?}");
        assert_eq!(appender.append_one(partition, stamped(&["c"], &producer, 2)).await.base_offset, 2);
        let records: usize = clients[owner].read(topic, &[(partition, 0)]).await.len();
        assert_eq!(records, 2);
    }
    assert_eq!(clients[0].latest(topic).await, [3, 3, 3]);
}

#[tokio::test]
async fn a_drained_broker_hands_over_and_a_new_one_gets_its_share() {
    let (mut servers, mut clients) = three().await;
    let topic = clients[0].create("images", 3).await;
    for (partition, owner) in owners(&mut clients[0], &servers).await {
        clients[owner].appender(topic).await.append_one(partition, bytes(&["a"])).await;
    }
    let first = servers.remove(0);
    let mut cluster =
        ClusterClient::new(Channel::from_shared(format!("http://{}", first.grpc_address())).unwrap().connect_lazy());
    cluster.drain(v1::DrainRequest {}).await.unwrap();
    first.asked_to_drain().await;
    clients.remove(0);
    assert_eq!(first.drain().await, StopReason::Drained);
    until(&mut clients[0], &servers, |owners| owners.len() == 3 && owners.values().all(|owner| *owner < 2)).await;
    assert_eq!(clients[1].latest(topic).await, [1, 1, 1]);
    let mut cluster = ClusterClient::new(
        Channel::from_shared(format!("http://{}", servers[0].grpc_address())).unwrap().connect_lazy(),
    );
    let brokers = cluster.describe_cluster(v1::DescribeClusterRequest {}).await.unwrap().into_inner().brokers;
    assert_eq!(brokers.len(), 2);
    assert_eq!(brokers.iter().filter(|broker| broker.leads).count(), 1);
    assert_eq!(brokers.iter().map(|broker| broker.open_segments).sum::<u64>(), 3);
}

#[tokio::test]
async fn a_replacement_that_starts_during_a_drain_does_not_take_it_for_dead() {
    let shelf: Arc<Shelf> = Arc::default();
    let first = serve(config(&shelf)).await;
    let mut client = Client::to(&first).await;
    let topic = client.create("images", 2).await;
    client.appender(topic).await.append_one(0, bytes(&["a"])).await;
    // What it would end with cannot be written yet.
    shelf.hold.send_replace(Some("journals/00000000000000000001/"));
    let endpoint = format!("http://{}", first.grpc_address());
    let drained = tokio::spawn(first.drain());
    // It serves once it has heard of the first one.
    let second = serve(config(&shelf)).await;
    let channel = Channel::from_shared(endpoint).unwrap().connect().await.expect("the first one still listens");
    let mut late = RecordsClient::new(channel);
    let detail = error_detail(&late.open_producer(v1::OpenProducerRequest {}).await.unwrap_err());
    assert!(detail.code() == ErrorCode::Unavailable && detail.retryable && detail.no_side_effects, "{detail:?}");
    let lookup = late.lookup(v1::LookupRequest { topic: "images".into() }).await.unwrap().into_inner();
    assert_eq!(lookup.brokers.len(), 2);
    shelf.hold.send_replace(None);
    assert_eq!(drained.await.unwrap(), StopReason::Drained);
    let mut client = Client::to(&second).await;
    assert_eq!(client.latest(topic).await, [1, 0]);
    assert_eq!(client.appender(topic).await.append_one(0, bytes(&["b"])).await.base_offset, 1);
}

#[tokio::test]
async fn a_damaged_journal_is_told_by_the_leader_until_it_is_put_right() {
    let shelf: Arc<Shelf> = Arc::default();
    let leader = serve(config(&shelf)).await;
    let dead = serve(config(&shelf)).await;
    let mut client = Client::to(&leader).await;
    let topic = client.create("images", 2).await;
    let request = v1::LookupRequest { topic: "images".into() };
    let assignments = client.records.lookup(request).await.unwrap().into_inner().assignments;
    let endpoint = format!("http://{}", dead.grpc_address());
    let partition = assignments.iter().find(|assigned| assigned.endpoint == endpoint).unwrap().lo;
    let mut appender = Client::to(&dead).await.appender(topic).await;
    for _ in 0..8 {
        appender.append_one(partition, bytes(&["a"])).await;
    }
    let (healthy, _) = http(&leader, "/readyz").await;
    assert_eq!(healthy, 200);
    let lost = "test/journals/00000000000000000002/00000000000000000003";
    shelf.objects.lock().unwrap().remove(lost).unwrap();
    drop(dead);
    let body = http_until(&leader, "/readyz", |_, body| body.contains("cannot be recovered")).await;
    assert!(body.contains(r#""ready":true"#) && body.contains("epoch 2") && body.contains("slot 3"), "{body}");
    let (_, metrics) = http(&leader, "/metrics").await;
    assert!(metrics.contains("refstream_damaged_journals 1"), "{metrics}");
    // What is not concerned goes on.
    client.appender(topic).await.append_one(1 - partition, bytes(&["b"])).await;
}

#[tokio::test]
async fn segments_of_others_are_sealed_through_any_broker() {
    let (servers, mut clients) = three().await;
    let topic = clients[0].create("images", 3).await;
    let owners = owners(&mut clients[0], &servers).await;
    for partition in [0, 1] {
        clients[owners[&partition]].appender(topic).await.append_one(partition, bytes(&["a"])).await;
    }
    let request = v1::SealRequest { topic: "images".into() };
    let sealed = clients[0].segments.seal(request).await.unwrap().into_inner().sealed;
    assert_eq!(sealed, [1, 2], "the third holds nothing");
}
