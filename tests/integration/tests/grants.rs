//! Clients without credentials: the whole path by grants, and what a grant is not good for.

#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use refstream_filer_adapter::{
    Attributes, BlobStore, Runtime, TokioRuntime, crc32c,
    grant::{Grants, NeedleGrant, ReadAsk, ReadGrant, SignedRequest, UploadAsk, UploadGrant, UploadKind},
    s3::S3Granter,
    seaweed::{SeaweedConfig, SeaweedGranter, SeaweedStore},
};
use refstream_format::batch::BatchBuilder;
use refstream_integration_tests::{
    Files, Said, Up, binary, lines,
    seaweed::{ACCESS_KEY, BUCKET, Options, SECRET_KEY, Weed, cluster::tls},
};
use refstream_proto::{
    error_detail,
    v1::{self, ErrorCode, grants_client::GrantsClient, records_client::RecordsClient},
};
use refstream_types::{
    ContentEncoding, ContentHash, Key, Layout, Record, Reference, Timestamp, Token, TopicFolder, TopicId,
    Value as RecordValue,
};
use reqwest::Method;
use serde_json::Value;
use std::{path::PathBuf, process::Command, sync::Arc, time::Duration};
use tempfile::TempDir;

const LIFE: Duration = Duration::from_secs(300);
const SECURITY: &str = r#"
[jwt.signing]
key = "write-secret"
[jwt.signing.read]
key = "read-secret"
"#;

/// Somebody who knows where a broker is, and nothing else: an empty environment and an empty home.
struct Stranger {
    home: TempDir,
    endpoint: String,
    environment: Vec<(&'static str, &'static str)>,
}

impl Stranger {
    fn of(up: &Up, environment: Vec<(&'static str, &'static str)>) -> Self {
        let endpoint = format!("http://{}", up.addresses[0]);
        Self { home: TempDir::new().unwrap(), endpoint, environment }
    }
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command
            .env_clear()
            .env("REFSTREAM_ENDPOINT", &self.endpoint)
            .env("HOME", self.home.path())
            .envs(self.environment.iter().copied())
            .current_dir(self.home.path())
            .args(arguments);
        command
    }
    fn run(&self, arguments: &[&str]) -> Said {
        Said::by(self.command(arguments))
    }
    fn records(&self, topic: &str) -> Vec<Value> {
        let mut records = self.run(&["tail", topic, "--from", "earliest", "--no-follow"]).lines();
        records.sort_by_key(|record| record["partition"].as_u64());
        records
    }
    fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.home.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }
}

/// Backfill with packs and a file in parts, tail, get, seal, compact, verify.
fn the_whole_path(stranger: &Stranger) {
    let mut files = Files::generate(120, 20_000, 21);
    files.add("large", 20_000_000, 22);
    files.add("medium", 3_500_000, 23);
    let folder = files.path().to_str().unwrap();
    stranger.run(&["topic", "create", "t", "--partitions", "4"]).ok();
    let tail = stranger.command(&["tail", "t", "--from", "earliest", "--max", "122"]);
    let tail = std::thread::spawn(|| Said::by(tail));
    let summary = stranger.run(&["--output", "json", "backfill", "t", folder]).json();
    assert_eq!((&summary["files_done"], &summary["files_failed"]), (&122.into(), &0.into()), "{summary}");
    assert_eq!(lines(&tail.join().unwrap().ok()).len(), 122, "as they are committed");
    let before = stranger.records("t");
    files.check(&before);
    let large = std::fs::read(files.path().join("large")).unwrap();
    let record = before.iter().find(|record| record["key"] == "large").unwrap();
    let place = [record["partition"].to_string(), record["offset"].to_string()];
    let get = |more: &[&str]| stranger.run(&[&["get", "t", &place[0], &place[1]], more].concat()).ok();
    assert!(get(&[]) == large, "the payload comes back equal");
    assert!(get(&["--range", "9000000-9000100"]) == large[9_000_000..=9_000_100]);
    stranger.run(&["seal", "t"]).ok();
    stranger.run(&["compact", "t"]).ok();
    assert_eq!(stranger.records("t"), before, "the same records, now from files");
    let segments = stranger.run(&["--output", "jsonl", "segments", "t"]).lines();
    assert!(segments.iter().any(|segment| segment["state"] == "published"), "{segments:?}");
    assert!(get(&[]) == large);
    stranger.run(&["verify", "--deep"]).ok();
}

const BY_GRANTS: (&str, &str) = ("REFSTREAM_STORE_ACCESS", "grants");

#[test]
fn the_embedded_store_by_grants() {
    let up = Up::start();
    the_whole_path(&Stranger::of(&up, vec![BY_GRANTS]));
}

fn weed_credentials() -> Vec<(&'static str, String)> {
    vec![("AWS_ACCESS_KEY_ID", ACCESS_KEY.into()), ("AWS_SECRET_ACCESS_KEY", SECRET_KEY.into())]
}

/// Nothing says that grants are to be used: there are no credentials.
#[test]
fn the_s3_gateway_without_credentials() {
    let weed = Weed::start();
    let up = Up::start_on(&format!("s3://{BUCKET}/deep/root?endpoint={}", weed.s3()), weed_credentials());
    // Services of a cloud's machine need not be asked for keys.
    let stranger = Stranger::of(&up, vec![("AWS_EC2_METADATA_DISABLED", "true")]);
    the_whole_path(&stranger);
    let said = stranger.run(&["verify"]);
    assert!(!said.stderr.contains("WARN"), "{}", said.stderr);
    let folder = stranger.home.path().to_str().unwrap().to_owned();
    stranger.file("one", b"one");
    let own = Stranger {
        environment: vec![("REFSTREAM_STORE_ACCESS", "own"), ("AWS_EC2_METADATA_DISABLED", "true")],
        ..stranger
    };
    own.run(&["put", "t", &format!("{folder}/one")]).fails(3, &["access denied"]);
}

#[test]
fn volume_servers_that_ask_for_permissions() {
    let weed = Weed::start_with(Options { security: SECURITY.into(), ..Options::default() });
    let keys = [("WEED_JWT_SIGNING_KEY", "write-secret"), ("WEED_JWT_SIGNING_READ_KEY", "read-secret")];
    let keys = keys.map(|(name, key)| (name, key.to_owned())).to_vec();
    let up = Up::start_on(&format!("seaweedfs://{}", weed.master()), keys);
    let stranger = Stranger::of(&up, Vec::new());
    the_whole_path(&stranger);
    let uris: Vec<_> = stranger.records("t").iter().map(|record| record["payload"]["uri"].to_string()).collect();
    assert!(uris.iter().all(|uri| uri.contains("seaweedfs://main/")), "{uris:?}");
    // A payload that one needle does not hold, and whose master signs.
    drop(up);
    let config = format!(
        "[stores.disk]\nkind = \"embedded\"\n[stores.volumes]\nkind = \"seaweedfs\"\nmasters = \"{}\"\nblob_bytes = 1000000\n\
         [broker]\nmetadata_store = \"disk\"\ndefault_store = \"volumes\"\ns3 = \"127.0.0.1:0\"\n",
        weed.master()
    );
    let folder = TempDir::new().unwrap();
    let config = format!("{config}data = {:?}\n", folder.path().join("data"));
    let up = Up::broker(&config, Vec::new());
    the_whole_path(&Stranger::of(&up, vec![BY_GRANTS]));
}

#[test]
fn a_backfill_by_grants_outlives_its_broker() {
    let weed = Weed::start();
    let mut up = Up::start_on(&format!("s3://{BUCKET}?endpoint={}", weed.s3()), weed_credentials());
    let stranger = Stranger::of(&up, vec![BY_GRANTS]);
    let files = Files::generate(150, 20_000, 31);
    stranger.run(&["topic", "create", "t", "--partitions", "2"]).ok();
    let folder = files.path().to_str().unwrap();
    let one_by_one = ["--pack-below", "0", "--concurrency", "2"];
    let arguments = [&["--timeout", "120s", "--output", "json", "backfill", "t", folder], &one_by_one[..]].concat();
    let backfill = stranger.command(&arguments);
    let backfill = std::thread::spawn(|| Said::by(backfill));
    while up.committed("t").is_none_or(|committed| committed == 0) {
        assert!(!backfill.is_finished(), "it ends too early to be disturbed");
    }
    up.kill();
    up.restart();
    let summary = backfill.join().unwrap().json();
    assert_eq!(summary["files_failed"], 0, "{summary}");
    files.check(&stranger.records("t"));
    stranger.run(&["verify", "--deep"]).ok();
}

#[test]
fn calls_need_the_right_token() {
    let made = Command::new(binary()).args(["--output", "json", "token", "ana"]).output().unwrap();
    let made: Value = serde_json::from_slice(&made.stdout).unwrap();
    let (token, hash) = (made["token"].as_str().unwrap(), made["hash"].as_str().unwrap());
    let folder = TempDir::new().unwrap();
    let config = format!(
        "[stores.disk]\nkind = \"embedded\"\n[broker]\ns3 = \"127.0.0.1:0\"\ndata = {:?}\n[auth.tokens]\nana = \"{hash}\"\n",
        folder.path().join("data")
    );
    let up = Up::broker(&config, Vec::new());
    let stranger = Stranger::of(&up, vec![BY_GRANTS]);
    for call in [&["topic", "list"][..], &["tail", "t"], &["verify"], &["seal", "t"]] {
        stranger.run(call).fails(3, &["asks for a token", "REFSTREAM_TOKEN"]);
        let said = stranger.run(&[&["--token", "rst-wrong"], call].concat()).fails(3, &["token", "REFSTREAM_TOKEN"]);
        assert!(!said.stderr.contains("rst-wrong"), "{}", said.stderr);
    }
    stranger.run(&["--token", "not one", "topic", "list"]).fails(2, &["token"]);
    let Stranger { home, endpoint, environment } = stranger;
    let token: &'static str = Box::leak(token.to_owned().into_boxed_str());
    let known = Stranger { home, endpoint, environment: [environment, vec![("REFSTREAM_TOKEN", token)]].concat() };
    the_whole_path(&known);
    assert!(!String::from_utf8(known.run(&["config", "show"]).ok()).unwrap().contains(token));
    let bad = config.replace("sha256:", "md5:");
    let path = folder.path().join("bad.toml");
    std::fs::write(&path, bad).unwrap();
    known.run(&["broker", "--config", path.to_str().unwrap()]).fails(2, &["auth.tokens", "ana", "sha256"]);
}

#[test]
fn the_whole_path_by_tls_with_an_authority_of_ones_own() {
    let made = Command::new(binary()).args(["--output", "json", "token", "ana"]).output().unwrap();
    let made: Value = serde_json::from_slice(&made.stdout).unwrap();
    let (token, hash) = (made["token"].as_str().unwrap(), made["hash"].as_str().unwrap());
    let folder = TempDir::new().unwrap();
    let config = format!(
        "[stores.disk]\nkind = \"embedded\"\n[broker]\ns3 = \"127.0.0.1:0\"\ndata = {:?}\ntls_certificate = {:?}\ntls_key = {:?}\n\
         [auth.tokens]\nana = \"{hash}\"\n",
        folder.path().join("data"),
        tls("server.pem"),
        tls("server.key"),
    );
    let up = Up::broker(&config, Vec::new());
    let leaked = |text: String| -> &'static str { Box::leak(text.into_boxed_str()) };
    let trusted = ("REFSTREAM_CA_FILE", leaked(tls("ca.pem").display().to_string()));
    let token = ("REFSTREAM_TOKEN", leaked(token.to_owned()));
    let stranger = |environment: &[(&'static str, &'static str)]| {
        let stranger = Stranger::of(&up, [&[BY_GRANTS], environment].concat());
        Stranger { endpoint: stranger.endpoint.replace("http://", "https://"), ..stranger }
    };
    the_whole_path(&stranger(&[trusted, token]));
    stranger(&[trusted]).run(&["topic", "list"]).fails(3, &["asks for a token"]);
    let doubtful = stranger(&[token]);
    let said = doubtful.run(&["--timeout", "1s", "topic", "list"]);
    assert!(said.code != Some(0) && said.stderr.contains("certificate"), "{}", said.stderr);
    let plain = Stranger::of(&up, vec![BY_GRANTS]);
    assert_ne!(plain.run(&["--timeout", "1s", "topic", "list"]).code, Some(0));
    // The same broker may listen everywhere; not without a token, and clients must be told where it is.
    let path = folder.path().join("everywhere.toml");
    let everywhere = |config: &str| {
        std::fs::write(&path, config).unwrap();
        let arguments =
            ["broker", "--config", path.to_str().unwrap(), "--listen", "0.0.0.0:0", "--http", "127.0.0.1:0"];
        plain.run(&arguments)
    };
    let elsewhere = config.replace("/data", "/other");
    everywhere(&elsewhere).fails(1, &["broker.advertise"]);
    everywhere(elsewhere.split("[auth.tokens]").next().unwrap()).fails(1, &["--listen", "refstream token"]);
    everywhere(&elsewhere.replace("tls_", "# tls_")).fails(1, &["--listen", "broker.tls_certificate"]);
    everywhere(&elsewhere.replace("tls_key", "# tls_key")).fails(2, &["broker.tls_key"]);
}

/// Objects that were attached in place are no payloads of a topic: their prefix has to be let in.
#[test]
fn attached_objects_are_read_where_their_prefix_is_let_in() {
    let weed = Weed::start();
    let config = |grants: &str| {
        format!(
            "[stores.main]\nkind = \"s3\"\nbucket = \"{BUCKET}\"\nendpoint = \"{}\"\n[broker]\nroot = \"r\"\n{grants}",
            weed.s3()
        )
    };
    let up = Up::broker(&config("[grants]\nread_prefixes = [\"photos/\"]\n"), weed_credentials());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for (key, bytes) in [("photos/cat.jpg", b"a cat"), ("secret/key", b"a key")] {
        let put = async {
            let bytes = Bytes::from_static(bytes);
            let sum = crc32c(std::slice::from_ref(&bytes));
            weed.gateway().await.put(&key.parse().unwrap(), vec![bytes], sum, &Attributes::default()).await.unwrap();
        };
        runtime.block_on(put);
    }
    up.run(&["topic", "create", "t", "--partitions", "1"]).ok();
    for prefix in ["photos/", "secret/"] {
        up.run(&["backfill", "t", &format!("s3://{BUCKET}/{prefix}"), "--in-place"]).ok();
    }
    let stranger = Stranger::of(&up, vec![BY_GRANTS]);
    assert_eq!(stranger.run(&["get", "t", "0", "0"]).ok(), b"a cat");
    stranger.run(&["get", "t", "0", "1"]).fails(3, &["secret/key", "grants.read_prefixes"]);
    // Attaching lists, which takes credentials.
    stranger.run(&["backfill", "t", &format!("s3://{BUCKET}/photos/"), "--in-place"]).fails(1, &["--store-access own"]);
    drop(up);
    let up = Up::broker(&config("[grants]\nenabled = false\n"), weed_credentials());
    let stranger = Stranger::of(&up, vec![BY_GRANTS]);
    stranger.run(&["get", "t", "0", "0"]).fails(1, &["gives none"]);
}

/// Whoever uploads by grants may refer to what is in the store, and to nothing else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_that_refer_to_nothing_are_refused() {
    let up = Up::start();
    up.run(&["topic", "create", "t", "--partitions", "1"]).ok();
    let content = b"a payload that is there".repeat(10);
    let file = up.data().join("payload");
    std::fs::write(&file, &content).unwrap();
    up.run(&["put", "t", file.to_str().unwrap()]).ok();
    let good = up.records("t")[0].clone();
    let uri = good["payload"]["uri"].as_str().unwrap();
    let size = good["payload"]["size"].as_u64().unwrap();
    let key = uri.strip_prefix("s3://refstream/").unwrap();
    let reference = |key: &str, offset: Option<u64>, size: u64| Reference {
        store: "embedded".parse().unwrap(),
        key: key.parse().unwrap(),
        offset,
        size,
        checksum: None,
        content_hash: Some(ContentHash([7; 32])),
        content_size: size,
        encoding: ContentEncoding::Identity,
        content_type: None,
        etag: None,
        version: None,
    };
    let mut client = RecordsClient::connect(format!("http://{}", up.addresses[0])).await.unwrap();
    let mut append = async |granted: bool, references: Vec<Reference>| {
        let mut batch = BatchBuilder::new();
        for reference in references {
            batch.push(&Record::new(RecordValue::Reference(Box::new(reference)))).unwrap();
        }
        let batch = batch.finish(None).unwrap().bytes().clone();
        let batches = vec![v1::PartitionBatch { partition: 0, batch }];
        let request = v1::AppendRequest { topic_id: 1, granted, batches, ..v1::AppendRequest::default() };
        let mut answers = client.append(futures::stream::iter([request])).await.unwrap().into_inner();
        match answers.message().await.unwrap().unwrap().results.remove(0).result.unwrap() {
            v1::append_result::Result::Appended(_) => Ok(()),
            v1::append_result::Result::Error(error) => Err((error.code(), error.message)),
        }
    };
    append(true, vec![reference(key, None, size), reference(key, Some(1), size - 1)]).await.unwrap();
    let absent = key.replace(&key[key.len() - 8..], "00000000");
    for (bad, why) in [
        (reference(&absent, None, size), "is not in the store"),
        (reference(key, Some(1), size), "which has"),
        (reference(key, Some(1 << 62), size), "which has"),
        (reference(key, None, size - 1), "which has"),
        (Reference { store: "elsewhere".parse().unwrap(), ..reference(key, None, size) }, "not configured"),
    ] {
        let (code, said) = append(true, vec![reference(key, None, size), bad.clone()]).await.unwrap_err();
        assert!(code == ErrorCode::InvalidArgument && said.contains("record 1") && said.contains(why), "{said}");
    }
    assert_eq!(up.committed("t"), Some(3), "what was refused does not appear");
    // The SDK's own receipts are believed.
    append(false, vec![reference(&absent, None, size)]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn brokers_grant_keys_of_existing_topics_only() {
    let up = Up::start();
    up.run(&["topic", "create", "t", "--partitions", "1"]).ok();
    up.run(&["topic", "create", "gone", "--partitions", "1"]).ok();
    up.run(&["topic", "delete", "gone"]).ok();
    let mut grants = GrantsClient::connect(format!("http://{}", up.addresses[0])).await.unwrap();
    let layout = Layout::new("").unwrap();
    let folder = |name: &str, id| TopicFolder::new(&name.parse().unwrap(), TopicId(id));
    let payload = |name: &str, id| layout.payload(&folder(name, id), Token([7; 16])).to_string();
    let good = payload("t", 1);
    let writes = [
        (good.clone(), true),
        (format!("{good}.blocks"), true),
        (payload("t", 2), false),
        (payload("u", 1), false),
        (payload("gone", 2), false),
        (good.replace("payloads/", "topics/"), false),
        (good.replace("07/", "08/"), false),
        (format!("{good}/x"), false),
        (good.replace("payloads/t-1", "payloads/t-1/../t-1"), false),
        (good.replace("payloads/t-1", "payloads/./t-1"), false),
        (format!("/{good}"), false),
        (good.to_uppercase(), false),
        ("payloads/t-1/x".into(), false),
        ("topics/t-1/data/x.parquet".into(), false),
        ("topics/t-1/manifest/00000000000000000001".into(), false),
        ("cluster/log/00000000000000000002".into(), false),
        ("journals/00000000000000000001/00000000000000000001".into(), false),
        (String::new(), false),
    ];
    let ask = |key: &str| v1::UploadAsk { key: key.into(), size: 1, checksum: 0, kind: None };
    let asks = writes.iter().map(|(key, _)| ask(key)).collect();
    let request = v1::GrantUploadsRequest { store: "embedded".into(), asks };
    let answer = grants.grant_uploads(request).await.unwrap().into_inner();
    assert_eq!(answer.grants.len(), writes.len());
    for ((key, expected), grant) in writes.iter().zip(&answer.grants) {
        let granted = matches!(grant.result, Some(v1::upload_grant::Result::Request(_)));
        assert_eq!(granted, *expected, "{key}: {grant:?}");
        if !granted && !key.is_empty() {
            let start = v1::StartUploadRequest { store: "embedded".into(), key: key.clone(), attributes: None };
            assert!(grants.start_upload(start).await.is_err(), "{key}");
            let upload = "x".to_owned();
            let abort =
                v1::AbortUploadRequest { store: "embedded".into(), key: key.clone(), upload, parts: Vec::new() };
            assert!(grants.abort_upload(abort).await.is_err(), "{key}");
        }
    }
    let reads = [
        (good.clone(), true),
        ("topics/t-1/data/ingest_date=2026-11-30/x.parquet".into(), true),
        ("topics/t-1/_fresh/x.parquet".into(), true),
        ("topics/t-1/manifest/00000000000000000001".into(), true),
        ("topics/t-1/pages/00000000000000000001".into(), true),
        ("topics/t-1/x".into(), false),
        ("topics/u-1/data/x.parquet".into(), false),
        ("topics/gone-2/data/x.parquet".into(), false),
        (payload("gone", 2), false),
        ("cluster/log/00000000000000000001".into(), false),
        ("journals/00000000000000000001/00000000000000000001".into(), false),
        ("topics/t-1/data/../../../cluster/log/1".into(), false),
        ("x".into(), false),
    ];
    let asks = reads.iter().map(|(key, _)| v1::ReadAsk { key: key.clone(), version: None, head: false }).collect();
    let request = v1::GrantReadsRequest { store: "embedded".into(), asks };
    let answer = grants.grant_reads(request).await.unwrap().into_inner();
    for ((key, expected), grant) in reads.iter().zip(&answer.grants) {
        assert_eq!(matches!(grant.result, Some(v1::read_grant::Result::Request(_))), *expected, "{key}: {grant:?}");
    }
    for (prefix, expected) in [
        ("topics/t-1/manifest/", true),
        ("topics/t-1/", true),
        ("topics/t-1", false),
        ("topics/", false),
        ("topics/u-1/", false),
        ("payloads/t-1/", false),
        ("cluster/", false),
        ("", false),
    ] {
        let request =
            v1::ListObjectsRequest { store: "embedded".into(), prefix: prefix.into(), after: None, limit: 10 };
        assert_eq!(grants.list_objects(request).await.is_ok(), expected, "{prefix}");
    }
    // Limits.
    let many = v1::GrantUploadsRequest { store: "embedded".into(), asks: vec![ask(&good); 1_001] };
    assert_eq!(error_detail(&grants.grant_uploads(many).await.unwrap_err()).code(), ErrorCode::InvalidArgument);
    let odd = |note: &str, size| v1::UploadAsk {
        size,
        kind: Some(v1::upload_ask::Kind::Object(v1::ObjectAttributes { content_type: None, note: Some(note.into()) })),
        ..ask(&good)
    };
    let asks = vec![odd("a b", 1), odd("a\r\nb", 1), odd(&"x".repeat(1_025), 1), odd("x", 6 << 30), odd("x", 1)];
    let request = v1::GrantUploadsRequest { store: "embedded".into(), asks };
    let answer = grants.grant_uploads(request).await.unwrap().into_inner().grants;
    let granted: Vec<_> =
        answer.iter().map(|g| matches!(g.result, Some(v1::upload_grant::Result::Request(_)))).collect();
    assert_eq!(granted, [false, false, false, false, true]);
}

/// A clock that is late, so that what is signed by it has expired.
#[derive(Debug)]
struct Late(TokioRuntime, Duration);

impl Runtime for Late {
    fn now(&self) -> Duration {
        self.0.now()
    }
    fn wall(&self) -> Timestamp {
        Timestamp::from_micros(self.0.wall().as_micros() - self.1.as_micros() as i64)
    }
    fn sleep(&self, duration: Duration) -> futures::future::BoxFuture<'static, ()> {
        self.0.sleep(duration)
    }
    fn random(&self) -> u64 {
        self.0.random()
    }
}

fn late(by: Duration) -> Arc<dyn Runtime> {
    Arc::new(Late(TokioRuntime::new(), by))
}

fn ask(key: &str, body: &'static str) -> UploadAsk {
    let body = [Bytes::from_static(body.as_bytes())];
    let kind = UploadKind::Object(Attributes::default());
    UploadAsk { key: key.parse().unwrap(), size: body[0].len() as u64, checksum: crc32c(&body), kind }
}

async fn granted(granter: &dyn Grants, ask: UploadAsk) -> SignedRequest {
    match granter.upload(&ask).await.unwrap() {
        UploadGrant::Request(request) => request,
        other => panic!("{other:?}"),
    }
}

/// Sends a request as anybody can; its status and body.
async fn send(method: Method, request: &SignedRequest, more: &[(&str, &str)], body: &'static str) -> (u16, String) {
    let mut sent = reqwest::Client::new().request(method, &request.url).body(body);
    let given = request.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    for (name, value) in given.chain(more.iter().copied()) {
        sent = sent.header(name, value);
    }
    let answer = sent.send().await.unwrap();
    (answer.status().as_u16(), answer.text().await.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_of_the_s3_gateway_is_good_for_nothing_else() {
    let weed = Weed::start();
    let store = weed.gateway().await;
    let secret: Key = "secret".parse().unwrap();
    let hidden = Bytes::from_static(b"not yours");
    let sum = crc32c(std::slice::from_ref(&hidden));
    store.put(&secret, vec![hidden], sum, &Attributes::default()).await.unwrap();
    let granter = S3Granter::new(store.clone(), LIFE, late(Duration::ZERO));
    let good = granted(&granter, ask("p/a", "first")).await;
    let elsewhere = |to: &str| SignedRequest { url: good.url.replace("/p/a", to), ..good.clone() };
    let without = |name: &str| SignedRequest {
        headers: good.headers.iter().filter(|(other, _)| other != name).cloned().collect(),
        ..good.clone()
    };
    assert!(good.headers.iter().any(|(name, _)| name == "if-none-match"), "{good:?}");
    let put = Method::PUT;
    for (attack, request, body) in [
        ("another key", elsewhere("/p/b"), "first"),
        ("a key that is taken", elsewhere("/secret"), "first"),
        ("without the condition", without("if-none-match"), "first"),
        ("without the sum", without("x-amz-checksum-crc32c"), "first"),
        ("more bytes", good.clone(), "first and more"),
        ("other bytes", good.clone(), "other"),
    ] {
        let (status, answer) = send(put.clone(), &request, &[], body).await;
        assert!((400..500).contains(&status), "{attack}: {status} {answer}");
    }
    let copy = format!("/{BUCKET}/secret");
    let (status, answer) = send(put.clone(), &good, &[("x-amz-copy-source", &copy)], "first").await;
    assert!((400..500).contains(&status), "a copy: {status} {answer}");
    assert_eq!(send(Method::DELETE, &good, &[], "").await.0, 403);
    assert!(!send(Method::GET, &good, &[], "").await.1.contains("not yours"));
    assert_eq!(store.head(&"p/b".parse().unwrap()).await.unwrap(), None);
    assert_eq!(store.head(&secret).await.unwrap().unwrap().size, 9);
    let (status, answer) = send(put.clone(), &good, &[], "first").await;
    assert_eq!(status, 200, "it was good all the time: {answer}");
    assert_eq!(send(put.clone(), &good, &[], "first").await.0, 412, "once");
    // Its time.
    for (by, expected) in [(LIFE - Duration::from_secs(60), 200), (LIFE + Duration::from_secs(60), 403)] {
        let granter = S3Granter::new(store.clone(), LIFE, late(by));
        let request = granted(&granter, ask(&format!("p/{}", by.as_secs()), "x")).await;
        assert_eq!(send(put.clone(), &request, &[], "x").await.0, expected);
        let read = ReadAsk { key: secret.clone(), version: None, head: false };
        let ReadGrant::Request(read) = granter.read(&read).await.unwrap() else { panic!() };
        assert_eq!(send(Method::GET, &read, &[], "").await.0, expected);
    }
}

async fn needle(granter: &dyn Grants, ask: UploadAsk) -> NeedleGrant {
    match granter.upload(&ask).await.unwrap() {
        UploadGrant::Needle(needle) => *needle,
        other => panic!("{other:?}"),
    }
}

/// Puts a body under a file id with the permission for another one, or its own.
async fn put_needle(grant: &NeedleGrant, path: &str, token: Option<&str>, body: &'static str) -> u16 {
    let url = format!("http://{}/{path}", grant.server);
    let headers = token.map(|token| ("authorization".to_owned(), format!("BEARER {token}"))).into_iter().collect();
    let request = SignedRequest { url, headers, life: LIFE };
    send(Method::PUT, &request, &[("content-type", "application/octet-stream")], body).await.0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_of_a_volume_server_is_good_for_its_needle_alone() {
    let weed = Weed::start_with(Options { security: SECURITY.into(), ..Options::default() });
    let store = |keys: bool, by: Duration| {
        let key = |key: &str| Some(key.to_owned()).filter(|_| keys);
        let config = SeaweedConfig {
            masters: vec![weed.master()],
            signing_key: key("write-secret"),
            read_signing_key: key("read-secret"),
            ..SeaweedConfig::default()
        };
        SeaweedStore::open("weed", config, late(by)).unwrap()
    };
    // With the cluster's keys at the broker, and with permissions that the master gives.
    for keys in [true, false] {
        let granter = SeaweedGranter::new(store(keys, Duration::ZERO), LIFE);
        let mine = needle(&granter, ask("p/a", "mine")).await;
        let theirs = needle(&granter, ask("p/b", "theirs")).await;
        let token = mine.place.token.as_deref();
        assert_eq!(put_needle(&theirs, &theirs.place.path, theirs.place.token.as_deref(), "theirs").await, 201);
        for path in [&theirs.place.path, &theirs.beside.path] {
            assert_eq!(put_needle(&theirs, path, token, "mine").await, 401, "{path}");
        }
        assert_eq!(put_needle(&mine, &mine.place.path, None, "mine").await, 401);
        assert_eq!(put_needle(&mine, &mine.place.path, token, "mine").await, 201);
        assert_eq!(put_needle(&mine, &mine.beside.path, mine.beside.token.as_deref(), "sums").await, 201);
        // What counts from my file id has my cookie, so no needle of theirs is reached.
        let id = |key: &Key| u64::from_str_radix(key.as_str().split_once(',').unwrap().1, 16).unwrap() >> 32;
        if mine.key.as_str().split(',').next() == theirs.key.as_str().split(',').next()
            && id(&theirs.key) > id(&mine.key)
        {
            let counted = format!("{}_{}", mine.place.path, id(&theirs.key) - id(&mine.key));
            assert!(put_needle(&mine, &counted, token, "mine").await >= 400, "{counted}");
        }
        let read = async |key: &Key, of: &Key| {
            let ask = ReadAsk { key: of.clone(), version: None, head: false };
            let ReadGrant::Needle { servers, token, .. } = granter.read(&ask).await.unwrap() else { panic!() };
            let headers = vec![("authorization".to_owned(), format!("BEARER {}", token.unwrap()))];
            let request = SignedRequest { url: format!("http://{}/{key}", servers[0]), headers, life: LIFE };
            send(Method::GET, &request, &[], "").await
        };
        assert_eq!(read(&mine.key, &mine.key).await, (200, "mine".to_owned()));
        assert_eq!(read(&theirs.key, &theirs.key).await, (200, "theirs".to_owned()));
        assert_eq!(read(&theirs.key, &mine.key).await.0, 401);

        // Parts of one upload cannot be completed into another one, nor can needles that were no parts.
        let uploads = [granter.start_upload(&mine.key, &Attributes::default()).await.unwrap(), "granted-x".to_owned()];
        let kind = UploadKind::Part { upload: uploads[0].clone(), number: 1 };
        let grant = needle(&granter, UploadAsk { kind, ..ask("p/c", "part") }).await;
        assert_eq!(put_needle(&grant, &grant.place.path, grant.place.token.as_deref(), "part").await, 201);
        let part = |etag: String| refstream_filer_adapter::Part { number: 1, etag, size: 4, checksum: None };
        let proof = grant.proof.as_deref().unwrap();
        let proven = part(format!("{}~{proof}", grant.key));
        for (upload, part) in [
            (&uploads[1], proven.clone()),
            (&uploads[0], part(format!("{}~{proof}", theirs.key))),
            (&uploads[0], part(theirs.key.to_string())),
            (&uploads[0], part(format!("{}~", grant.key))),
        ] {
            assert!(
                granter.complete_upload(&mine.key, upload, std::slice::from_ref(&part), None).await.is_err(),
                "{part:?}"
            );
            assert!(granter.abort_upload(&mine.key, upload, std::slice::from_ref(&part)).await.is_err(), "{part:?}");
        }
        let done = granter.complete_upload(&mine.key, &uploads[0], &[proven], Some("our-note")).await.unwrap();
        let stored = store(keys, Duration::ZERO);
        assert_eq!(stored.head(&done.stored.key).await.unwrap().unwrap().note.as_deref(), Some("our-note"));
        assert_eq!(read(&theirs.key, &theirs.key).await, (200, "theirs".to_owned()));
    }
    // Its time.
    let granter = SeaweedGranter::new(store(true, LIFE + Duration::from_secs(60)), LIFE);
    let late = needle(&granter, ask("p/d", "late")).await;
    assert_eq!(put_needle(&late, &late.place.path, late.place.token.as_deref(), "late").await, 401);
    assert_eq!(put_needle(&late, &late.beside.path, late.beside.token.as_deref(), "late").await, 401);
}
