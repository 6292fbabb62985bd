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

/// How long anything may take that is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// The broker of each partition, by number, as one of them knows it, once that is newer than `after`; and how new it is. Those that nobody
/// serves apart.
async fn look(client: &mut Client, servers: &[Server], after: Option<u64>) -> (u64, BTreeMap<u32, usize>) {
    let request = v1::LookupRequest { topic: "images".into(), after, wait_micros: 0 };
    let answer = client.records.lookup(request).await.unwrap().into_inner();
    let number = |endpoint: &str| {
        servers.iter().position(|server| endpoint == format!("http://{}", server.grpc_address())).unwrap_or(usize::MAX)
    };
    let served = answer.assignments.iter().flat_map(|a| (a.lo..a.hi).map(|partition| (partition, number(&a.endpoint))));
    (answer.version, served.collect())
}

async fn owners(client: &mut Client, servers: &[Server]) -> BTreeMap<u32, usize> {
    look(client, servers, None).await.1
}

/// Waits until the partitions are served as wanted.
async fn until(client: &mut Client, servers: &[Server], wanted: impl Fn(&BTreeMap<u32, usize>) -> bool) {
    let mut after = None;
    let waited = async {
        loop {
            let (version, owners) = look(client, servers, after).await;
            if wanted(&owners) {
                return;
            }
            after = Some(version);
        }
    };
    tokio::time::timeout(PATIENCE, waited).await.expect("the partitions are served as wanted");
}

async fn cluster_of(server: &Server) -> ClusterClient<Channel> {
    let endpoint = Channel::from_shared(format!("http://{}", server.grpc_address())).unwrap();
    ClusterClient::new(endpoint.connect().await.unwrap())
}

/// Waits until the brokers, as one of them knows them, are as wanted.
async fn brokers_until(server: &Server, wanted: impl Fn(&[v1::BrokerState]) -> bool) -> Vec<v1::BrokerState> {
    let mut cluster = cluster_of(server).await;
    let mut after = None;
    let waited = async {
        loop {
            let request = v1::DescribeClusterRequest { after, wait_micros: 0 };
            let answer = cluster.describe_cluster(request).await.unwrap().into_inner();
            if wanted(&answer.brokers) {
                return answer.brokers;
            }
            after = Some(answer.version);
        }
    };
    tokio::time::timeout(PATIENCE, waited).await.expect("the brokers are as wanted")
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
async fn a_drained_broker_hands_over_what_it_serves() {
    let (mut servers, mut clients) = three().await;
    let topic = clients[0].create("images", 3).await;
    for (partition, owner) in owners(&mut clients[0], &servers).await {
        clients[owner].appender(topic).await.append_one(partition, bytes(&["a"])).await;
    }
    let first = servers.remove(0);
    cluster_of(&first).await.drain(v1::DrainRequest {}).await.unwrap();
    first.asked_to_drain().await;
    clients.remove(0);
    assert_eq!(first.drain().await, StopReason::Drained);
    until(&mut clients[0], &servers, |owners| owners.len() == 3 && owners.values().all(|owner| *owner < 2)).await;
    assert_eq!(clients[1].latest(topic).await, [1, 1, 1]);
    let brokers = brokers_until(&servers[0], |brokers| brokers.len() == 2).await;
    assert_eq!(brokers.iter().filter(|broker| broker.leads).count(), 1);
    assert_eq!(brokers.iter().map(|broker| broker.open_segments).sum::<u64>(), 3);
}

#[tokio::test]
async fn a_broker_that_joins_gets_its_share() {
    let shelf = Arc::default();
    let first = serve(config(&shelf)).await;
    let mut client = Client::to(&first).await;
    let mut topics = Vec::new();
    for name in ["a", "b", "c", "d"] {
        let topic = client.create(name, 1).await;
        client.appender(topic).await.append_one(0, bytes(&["x"])).await;
        topics.push(topic);
    }
    let second = serve(config(&shelf)).await;
    let shared = |brokers: &[v1::BrokerState]| brokers.len() == 2 && brokers.iter().all(|b| b.open_segments == 2);
    brokers_until(&second, shared).await;
    for topic in topics {
        assert_eq!(client.latest(topic).await, [1]);
    }
}

#[tokio::test]
async fn who_asks_for_a_change_is_answered_when_there_is_one_or_time_is_up_or_the_broker_ends() {
    let shelf = Arc::default();
    let server = serve(config(&shelf)).await;
    let mut client = Client::to(&server).await;
    client.create("images", 1).await;
    let (version, _) = look(&mut client, &[], None).await;
    let request = |wait_micros| v1::DescribeClusterRequest { after: Some(version), wait_micros };
    let mut cluster = cluster_of(&server).await;
    let unchanged = cluster.describe_cluster(request(1)).await.unwrap().into_inner();
    assert!(unchanged.version >= version);
    let after = Some(unchanged.version);
    let mut waiting = cluster_of(&server).await;
    let change = v1::DescribeClusterRequest { after, wait_micros: 0 };
    let (changed, ()) = tokio::join!(waiting.describe_cluster(change), async {
        client.create("more", 1).await;
    });
    let changed = changed.unwrap().into_inner();
    assert!(Some(changed.version) > after);
    // One that waits does not keep a broker from ending.
    let change = v1::DescribeClusterRequest { after: Some(u64::MAX), wait_micros: 0 };
    let (answer, reason) = tokio::join!(waiting.describe_cluster(change), server.drain());
    assert_eq!(reason, StopReason::Drained);
    let detail = error_detail(&answer.unwrap_err());
    assert!(detail.code() == ErrorCode::Unavailable && detail.retryable, "{detail:?}");
}

#[tokio::test]
async fn a_token_that_another_broker_refuses_is_not_the_clients() {
    let shelf = Arc::default();
    let open = serve(config(&shelf)).await;
    let tokens = crate::Tokens::new(&[("ana".to_owned(), crate::Tokens::hash("t"))].into()).unwrap();
    let access = crate::Access { tokens, ..crate::Access::default() };
    let guarded = serve(ServerConfig { access, ..config(&shelf) }).await;
    let mut client = Client::to(&open).await;
    let topic = client.create("images", 2).await;
    let request = v1::ListOffsetsRequest { topic_id: topic, at: None, own: false };
    let detail = error_detail(&client.records.list_offsets(request).await.unwrap_err());
    assert_eq!((detail.code(), detail.no_side_effects), (ErrorCode::Internal, true));
    for named in [open.grpc_address().to_string(), guarded.grpc_address().to_string(), "REFSTREAM_TOKEN".into()] {
        assert!(detail.message.contains(&named), "{}", detail.message);
    }
}

#[tokio::test]
async fn open_segments_of_others_are_shown_with_their_bytes() {
    let (servers, mut clients) = three().await;
    let topic = clients[0].create("images", 3).await;
    for (partition, owner) in owners(&mut clients[0], &servers).await {
        clients[owner].appender(topic).await.append_one(partition, bytes(&["a"])).await;
    }
    let mut seen = Vec::new();
    for client in &mut clients {
        let request = v1::ListSegmentsRequest { topic: "images".into() };
        let segments = client.segments.list_segments(request).await.unwrap().into_inner().segments;
        assert!(segments.len() == 3 && segments.iter().all(|segment| segment.bytes > 0), "{segments:?}");
        seen.push(segments);
    }
    assert!(seen[0] == seen[1] && seen[1] == seen[2]);
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
    let lookup =
        late.lookup(v1::LookupRequest { topic: "images".into(), ..Default::default() }).await.unwrap().into_inner();
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
    let request = v1::LookupRequest { topic: "images".into(), ..Default::default() };
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
