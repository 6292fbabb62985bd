use super::*;
use crate::doubles::Clock;
use std::sync::atomic::Ordering;

#[tokio::test]
async fn topics_are_created_listed_altered_and_refused() {
    let server = serve(config(&Arc::default())).await;
    let mut client = Client::to(&server).await;
    client.create("images", 3).await;
    client.create("documents", 0).await;
    let create =
        |name: &str, config: v1::TopicConfig| v1::CreateTopicRequest { name: name.into(), config: Some(config) };
    let code = |status: &tonic::Status| error_detail(status).code();
    let default = v1::TopicConfig::default;
    let status = client.topics.create_topic(create("images", default())).await.unwrap_err();
    assert_eq!((code(&status), status.code()), (ErrorCode::TopicExists, tonic::Code::AlreadyExists));
    for (name, config) in [
        ("../x", default()),
        ("x".repeat(300).as_str(), default()),
        ("good", v1::TopicConfig { partitions: 1 << 20, ..default() }),
        ("good", v1::TopicConfig { store: Some("elsewhere".into()), ..default() }),
    ] {
        let status = client.topics.create_topic(create(name, config)).await.unwrap_err();
        let detail = error_detail(&status);
        assert_eq!(detail.code(), ErrorCode::InvalidArgument);
        assert!(detail.no_side_effects && !detail.message.is_empty());
    }
    let listed = client.topics.list_topics(v1::ListTopicsRequest {}).await.unwrap().into_inner().topics;
    assert_eq!(listed.iter().map(|topic| topic.name.as_str()).collect::<Vec<_>>(), ["documents", "images"]);
    assert_eq!(listed[0].config.as_ref().unwrap().partitions, refstream_types::DEFAULT_PARTITIONS);

    let alter = v1::AlterTopicRequest { name: "images".into(), inline_max: Some(512), ..Default::default() };
    let altered = client.topics.alter_topic(alter).await.unwrap().into_inner().topic.unwrap().config.unwrap();
    assert_eq!((altered.inline_max, altered.partitions), (512, 3));
    let describe = v1::DescribeTopicRequest { name: "nothing".into(), with_offsets: false };
    assert_eq!(code(&client.topics.describe_topic(describe).await.unwrap_err()), ErrorCode::TopicNotFound);

    let lookup = client
        .records
        .lookup(v1::LookupRequest { topic: "images".into(), ..Default::default() })
        .await
        .unwrap()
        .into_inner();
    assert_eq!(lookup.assignments.iter().map(|a| (a.lo, a.hi)).collect::<Vec<_>>(), [(0, 3)]);
    assert_eq!(lookup.assignments[0].endpoint, format!("http://{}", server.grpc_address()));
    let request = v1::DescribeDeploymentRequest::default();
    let deployment = client.records.describe_deployment(request).await.unwrap().into_inner();
    assert_eq!((deployment.default_store.as_str(), deployment.root.as_str()), ("main", "test"));
    assert_eq!(deployment.epoch, lookup.assignments[0].epoch);
}

#[tokio::test]
async fn health_says_why_it_does_not_serve() {
    let shelf: Arc<Shelf> = Arc::default();
    let server = Server::start(config(&shelf)).await.unwrap();
    assert_eq!(http(&server, "/livez").await.0, 200);
    server.serving().await.unwrap();
    let (code, body) = http(&server, "/readyz").await;
    assert_eq!(code, 200, "{body}");
    let mut client = Client::to(&server).await;
    let topic = client.create("images", 1).await;
    client.appender(topic).await.append_one(0, bytes(&["a", "b"])).await;
    let (_, metrics) = http(&server, "/metrics").await;
    for line in ["refstream_up 1", "refstream_appended_records_total 2", "refstream_topics 1", "# EOF"] {
        assert!(metrics.contains(line), "{line} is missing in\n{metrics}");
    }
    assert!(http(&server, "/").await.1.contains("topics  1"));
    // Another broker takes it for dead, since it has its endpoint: this one stops, and says so.
    let endpoint = format!("http://{}", server.grpc_address());
    let second = serve(ServerConfig { advertise: Some(endpoint), ..config(&shelf) }).await;
    let reason = server.stopped().await;
    assert!(matches!(reason, StopReason::Fenced { .. } | StopReason::AddressTaken { .. }), "{reason}");
    let (code, body) = http(&server, "/readyz").await;
    assert_eq!(code, 503);
    assert!(body.contains(r#""ready":false"#) && body.contains("stopped"), "{body}");
    let status = client.topics.list_topics(v1::ListTopicsRequest {}).await.unwrap_err();
    let detail = error_detail(&status);
    assert!(detail.code() == ErrorCode::Unavailable && detail.retryable && detail.no_side_effects);
    assert_eq!(Client::to(&second).await.latest(topic).await, [2]);
}

/// Asks until the answer is as wanted.
pub(super) async fn http_until(server: &Server, path: &str, wanted: impl Fn(u16, &str) -> bool) -> String {
    loop {
        let (code, body) = http(server, path).await;
        if wanted(code, &body) {
            return body;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_broker_that_starts_or_waits_for_its_store_is_not_ready() {
    let shelf: Arc<Shelf> = Arc::default();
    shelf.hold.send_replace(Some("/epochs/"));
    let settings = ServerSettings { stuck_after: Duration::from_millis(20), ..ServerSettings::default() };
    let server = Server::start(ServerConfig { settings, ..config(&shelf) }).await.unwrap();
    let body = http_until(&server, "/readyz", |code, _| code == 503).await;
    assert!(body.contains("starting"), "{body}");
    let mut client = Client::to(&server).await;
    let detail = error_detail(&client.topics.list_topics(v1::ListTopicsRequest {}).await.unwrap_err());
    assert!(detail.code() == ErrorCode::Unavailable && detail.retryable && detail.no_side_effects, "{detail:?}");
    shelf.hold.send_replace(None);
    server.serving().await.unwrap();
    let topic = client.create("images", 1).await;
    let mut appender = client.appender(topic).await;
    appender.append_one(0, bytes(&["a"])).await;

    shelf.hold.send_replace(Some("journals/"));
    appender.send(vec![(0, bytes(&["b"]))]).await;
    let body = http_until(&server, "/readyz", |code, _| code == 503).await;
    assert!(body.contains("store") && body.contains(r#""phase":"serving""#), "{body}");
    // Readers are not kept from what is committed.
    assert_eq!(client.latest(topic).await, [1]);
    shelf.hold.send_replace(None);
    let response = appender.responses.message().await.unwrap().unwrap();
    assert_eq!(appended(&response.results[0]).base_offset, 1);
    http_until(&server, "/readyz", |code, _| code == 200).await;
}

#[tokio::test]
async fn a_broker_that_does_not_serve_yet_is_stopped_at_once() {
    let shelf: Arc<Shelf> = Arc::default();
    shelf.hold.send_replace(Some("/epochs/"));
    let server = Server::start(config(&shelf)).await.unwrap();
    assert_eq!(server.drain().await, StopReason::NotBegun);
}

#[tokio::test]
async fn a_broker_waits_for_a_store_that_is_down_at_its_start() {
    let shelf: Arc<Shelf> = Arc::default();
    shelf.failing.store(5, Ordering::Relaxed);
    let patient = || ServerConfig { runtime: Arc::new(Clock::default()), ..config(&shelf) };
    Server::start(patient()).await.unwrap();
    shelf.failing.store(u64::MAX, Ordering::Relaxed);
    let error = Server::start(patient()).await.unwrap_err();
    assert!(matches!(error, StartError::Probe(_)) && error.to_string().contains("503"), "{error}");
}

#[tokio::test]
async fn a_broker_that_dies_leaves_the_outcome_open() {
    let shelf: Arc<Shelf> = Arc::default();
    let server = serve(config(&shelf)).await;
    let mut client = Client::to(&server).await;
    let topic = client.create("images", 1).await;
    let mut appender = client.appender(topic).await;
    shelf.hold.send_replace(Some("journals/"));
    appender.send(vec![(0, bytes(&["a"]))]).await;
    http_until(&server, "/metrics", |_, body| {
        body.lines().any(|line| line.starts_with("refstream_pending_bytes ") && line != "refstream_pending_bytes 0")
    })
    .await;
    drop(server);
    let response = appender.responses.message().await.unwrap().unwrap();
    let detail = refused(&response.results[0]);
    assert!(detail.code() == ErrorCode::OutcomeUnknown && detail.retryable && !detail.no_side_effects);
}

#[tokio::test]
async fn draining_answers_what_is_in_flight_and_ends_the_streams() {
    let shelf = Arc::default();
    let server = serve(config(&shelf)).await;
    let mut client = Client::to(&server).await;
    let topic = client.create("images", 1).await;
    let mut tail = client.tail(topic, &[(0, 0)], true).await;
    assert!(matches!(tail.message().await.unwrap().unwrap().event.unwrap(), Event::CaughtUp(_)));
    let mut appender = client.appender(topic).await;
    appender.send(vec![(0, bytes(&["a"]))]).await;
    let (reason, response) = tokio::join!(server.drain(), appender.responses.message());
    assert_eq!(reason, StopReason::Drained);
    let mut acked = 0;
    if let Ok(Some(response)) = response {
        match response.results[0].result.as_ref().unwrap() {
            append_result::Result::Appended(appended) => {
                assert_eq!(appended.base_offset, 0);
                acked = 1;
            }
            append_result::Result::Error(error) => assert!(error.retryable, "{error:?}"),
        }
        let status = appender.responses.message().await.unwrap_err();
        assert_eq!(error_detail(&status).code(), ErrorCode::Unavailable);
    }
    loop {
        match tail.message().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("a tail that follows does not end without a reason"),
            Err(status) => break assert!(error_detail(&status).retryable),
        }
    }
    let server = serve(config(&shelf)).await;
    assert!(Client::to(&server).await.latest(topic).await[0] >= acked);
}

#[tokio::test]
async fn addresses_that_cannot_be_had_are_named_with_their_flag() {
    let taken = tokio::net::TcpListener::bind(LOOPBACK).await.unwrap();
    let address = taken.local_addr().unwrap();
    let shelf = Arc::default();
    let error = Server::start(ServerConfig { listen: address, ..config(&shelf) }).await.unwrap_err();
    assert!(matches!(error, StartError::Listen { flag: "listen", .. }), "{error}");
    let error = Server::start(ServerConfig { http: address, ..config(&shelf) }).await.unwrap_err();
    assert!(error.to_string().contains(&address.to_string()) && error.to_string().contains("--http"), "{error}");
}

fn tls_file(name: &str) -> Vec<u8> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/integration/tls");
    std::fs::read(folder.join(name)).unwrap()
}

#[tokio::test]
async fn beyond_loopback_it_listens_with_tls_and_a_token_only() {
    let shelf = Arc::default();
    let everywhere = "0.0.0.0:0".parse().unwrap();
    let tokens = || crate::Tokens::new(&[("ana".to_owned(), crate::Tokens::hash("t"))].into()).unwrap();
    let tls = || Some(crate::TlsIdentity { certificates: tls_file("server.pem"), key: tls_file("server.key") });
    let refused = async |change: &dyn Fn(&mut ServerConfig)| {
        let mut config = config(&shelf);
        change(&mut config);
        Server::start(config).await.unwrap_err().to_string()
    };
    let said = refused(&|config| config.listen = everywhere).await;
    assert!(said.contains("--listen") && said.contains("broker.tls_certificate"), "{said}");
    let said = refused(&|config| (config.listen, config.access.tls) = (everywhere, tls())).await;
    assert!(said.contains("refstream token"), "{said}");
    let open = |config: &mut ServerConfig| {
        (config.listen, config.access.tls, config.access.tokens) = (everywhere, tls(), tokens());
    };
    let said = refused(&open).await;
    assert!(said.contains("broker.advertise"), "{said}");
    let said = refused(&|config| config.http = everywhere).await;
    assert!(said.contains("--http") && said.contains("proxy"), "{said}");
    let said = refused(&|config| {
        open(config);
        config.advertise = Some("https://localhost:1".into());
        config.access.tls = Some(crate::TlsIdentity { certificates: tls_file("server.pem"), key: b"no key".to_vec() });
    })
    .await;
    assert!(said.contains("certificate or its key"), "{said}");
}
