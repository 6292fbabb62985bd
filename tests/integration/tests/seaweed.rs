//! Stores against the real SeaweedFS.

#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use futures::TryStreamExt as _;
use rand::{RngCore as _, SeedableRng as _};
use refstream_filer_adapter::{
    Attributes, BlobStore, GetOptions, Runtime, StoreErrorKind, TokioRuntime,
    conformance::{Store, run_all, run_blobs},
    crc32c,
    probe::probe,
    seaweed::{SeaweedConfig, SeaweedStore},
};
use refstream_integration_tests::{
    Files, Up,
    seaweed::{ACCESS_KEY, BUCKET, Options, SECRET_KEY, Weed},
};
use refstream_types::{ByteRange, Layout};
use std::{os::unix::fs::FileExt as _, sync::Arc};

fn runtime() -> Arc<dyn Runtime> {
    Arc::new(TokioRuntime::new())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_s3_gateway_conforms() {
    let weed = Weed::start();
    let store = Store::new(Arc::new(weed.gateway().await));
    probe(&*store.filer, &*runtime(), &Layout::new("probed").unwrap()).await.unwrap();
    run_all(|| std::future::ready(store.clone()), runtime()).await;
}

fn native(weed: &Weed, config: SeaweedConfig) -> Arc<SeaweedStore> {
    let config = SeaweedConfig { masters: vec![weed.master()], ..config };
    Arc::new(SeaweedStore::open("weed", config, runtime()).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_native_store_conforms() {
    let weed = Weed::start();
    run_blobs(native(&weed, SeaweedConfig::default()), runtime()).await;
    // Objects over the limit are stored in parts.
    let config = SeaweedConfig { blob_bytes: 100_000, collection: "small".into(), ..SeaweedConfig::default() };
    run_blobs(native(&weed, config), runtime()).await;
}

const SECURITY: &str = r#"
[jwt.signing]
key = "write-secret"
[jwt.signing.read]
key = "read-secret"
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn permissions_are_the_masters_or_signed_here() {
    let weed = Weed::start_with(Options { security: SECURITY.into(), ..Options::default() });
    // Without keys the master gives permissions.
    run_blobs(native(&weed, SeaweedConfig { blob_bytes: 1 << 20, ..SeaweedConfig::default() }), runtime()).await;
    let keys = |write: &str, read: &str| SeaweedConfig {
        signing_key: Some(write.into()),
        read_signing_key: Some(read.into()),
        blob_bytes: 100,
        attempts: 2,
        ..SeaweedConfig::default()
    };
    let key = "asked".parse().unwrap();
    let body = vec![Bytes::from(vec![7; 250])];
    let store = native(&weed, keys("write-secret", "read-secret"));
    let stored = store.put(&key, body.clone(), crc32c(&body), &Attributes::default()).await.unwrap();
    let found = store.get(&stored.key, &GetOptions::default()).await.unwrap();
    let pieces: Vec<Bytes> = found.body.try_collect().await.unwrap();
    assert_eq!(pieces.concat(), body[0]);
    let range = Some(ByteRange { offset: 95, length: 110 });
    let found = store.get(&stored.key, &GetOptions { range, ..GetOptions::default() }).await.unwrap();
    let pieces: Vec<Bytes> = found.body.try_collect().await.unwrap();
    assert_eq!((found.meta.size, pieces.concat()), (250, vec![7; 110]));
    let stranger = native(&weed, keys("wrong", "wrong"));
    let error = stranger.put(&key, body.clone(), crc32c(&body), &Attributes::default()).await.unwrap_err();
    assert_eq!(error.error().kind, StoreErrorKind::AccessDenied, "{error}");
    let error = stranger.get(&stored.key, &GetOptions::default()).await.err().unwrap();
    assert_eq!(error.kind, StoreErrorKind::AccessDenied, "{error}");
    assert!(!format!("{stranger:?} {error}").contains("secret"));
    store.delete(&stored.key).await.unwrap();
    assert_eq!(store.head(&stored.key).await.unwrap(), None);

    let upload = store.start_multipart(&key, &Attributes::default()).await.unwrap();
    let part = upload.put_part(1, body.clone(), crc32c(&body)).await.unwrap();
    let stored = upload.complete(std::slice::from_ref(&part)).await.unwrap();
    store.delete(&stored.key).await.unwrap();
    assert_eq!(store.head(&part.etag.parse().unwrap()).await.unwrap(), None, "its parts go with it");
}

fn credentials() -> Vec<(&'static str, String)> {
    vec![("AWS_ACCESS_KEY_ID", ACCESS_KEY.into()), ("AWS_SECRET_ACCESS_KEY", SECRET_KEY.into())]
}

/// Backfill, tail, seal, compact, fetch, verify, restart.
fn the_whole_path(up: &mut Up) {
    let files = Files::generate(300, 20_000, 7);
    // Noise of several parts, so that it is stored as given.
    let mut large = vec![0; 17_000_000];
    rand::rngs::StdRng::seed_from_u64(9).fill_bytes(&mut large);
    let path = up.data().join("large");
    std::fs::write(&path, &large).unwrap();
    up.run(&["topic", "create", "t", "--partitions", "4"]).ok();
    let tail = up.spawn(&["tail", "t", "--from", "earliest", "--max", "300"]);
    let summary = up.run(&["--output", "json", "backfill", "t", files.path().to_str().unwrap()]).json();
    assert_eq!((&summary["files_done"], &summary["files_failed"]), (&300.into(), &0.into()), "{summary}");
    assert_eq!(refstream_integration_tests::lines(&tail.wait().ok()).len(), 300);
    let records = up.records("t");
    files.check(&records);

    let put = up.run(&["--output", "json", "put", "t", path.to_str().unwrap(), "--key", "large"]).json();
    let place = [put["partition"].to_string(), put["offset"].to_string()];
    let get = |range: &[&str]| {
        let mut arguments = vec!["get", "t", &place[0], &place[1]];
        arguments.extend(range);
        up.run(&arguments).ok()
    };
    assert!(get(&[]) == large, "the payload comes back equal");
    assert!(get(&["--range", "9000000-9000100"]) == large[9_000_000..=9_000_100]);

    let before = up.records("t");
    up.run(&["seal", "t"]).ok();
    up.run(&["compact", "t"]).ok();
    assert_eq!(up.records("t"), before, "the same records, now from files");
    let segments = up.run(&["--output", "jsonl", "segments", "t"]).lines();
    assert!(segments.iter().any(|segment| segment["state"] == "published"), "{segments:?}");
    assert!(get(&[]) == large);
    up.run(&["verify", "--deep"]).ok();

    assert_eq!(up.stop(), Some(0));
    up.restart();
    assert_eq!(up.records("t"), before, "a restart changes nothing");
    up.run(&["verify", "--deep"]).ok();
}

#[test]
fn everything_on_the_s3_gateway() {
    let weed = Weed::start();
    let uri = format!("s3://{BUCKET}/deep/root?endpoint={}", weed.s3());
    the_whole_path(&mut Up::start_on(&uri, credentials()));
}

/// The native store beside an embedded one for everything else.
#[test]
fn payloads_on_volume_servers() {
    let weed = Weed::start();
    let mut up = Up::start_on(&format!("seaweedfs://{}", weed.master()), Vec::new());
    the_whole_path(&mut up);
    let records = up.records("t");
    let uris: std::collections::BTreeSet<_> =
        records.iter().map(|record| record["payload"]["uri"].as_str().unwrap().to_owned()).collect();
    assert!(uris.iter().all(|uri| uri.starts_with("seaweedfs://main/")), "{uris:?}");
    assert!(records.iter().all(|record| record["store"] == "main"));
}

/// Flips a bit in the middle of `contents` in a volume's file.
fn flip_in_volume(weed: &Weed, contents: &[u8]) {
    for entry in std::fs::read_dir(weed.data()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "dat") {
            continue;
        }
        let bytes = std::fs::read(&path).unwrap();
        let start = &contents[..64];
        let found = bytes.windows(start.len()).position(|window| window == start);
        if let Some(at) = found.filter(|at| bytes[*at..].starts_with(contents)) {
            let at = at + contents.len() / 2;
            let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
            file.write_all_at(&[bytes[at] ^ 1], at as u64).unwrap();
            return;
        }
    }
    panic!("no volume holds these bytes");
}

#[test]
fn damage_in_a_volume_is_named_and_never_handed_out() {
    let weed = Weed::start();
    let up = Up::start_on(&format!("seaweedfs://{}", weed.master()), Vec::new());
    up.run(&["topic", "create", "t", "--partitions", "1"]).ok();
    let mut random = rand::rngs::StdRng::seed_from_u64(10);
    // Below and above 1 MiB volume servers behave differently; the last is in parts.
    for (number, size) in [3_000, 200_000, 3_000_000, 9_500_000, 20_000_000, 4_000].into_iter().enumerate() {
        let mut contents = vec![0; size];
        random.fill_bytes(&mut contents);
        let path = up.data().join(format!("{number}"));
        std::fs::write(&path, &contents).unwrap();
        up.run(&["put", "t", path.to_str().unwrap(), "--key", &number.to_string()]).ok();
        if number < 5 {
            // Of the one in parts, bytes in the middle of its first part.
            flip_in_volume(&weed, &contents[..size.min(8_000_000)]);
        }
    }
    let records = up.records("t");
    assert_eq!(records.len(), 6);
    let said = up.run(&["--output", "jsonl", "verify", "t", "--deep"]).fails(5, &[]);
    let mut findings = refstream_integration_tests::lines(&said.stdout);
    let summary = findings.pop().unwrap();
    assert_eq!((&summary["event"], &summary["findings"]), (&"summary".into(), &findings.len().into()));
    let named: Vec<_> = findings.iter().map(|finding| finding["offset"].as_u64().unwrap()).collect();
    assert_eq!(named, [0, 1, 2, 3, 4], "{findings:?}");
    for (offset, record) in records.iter().enumerate().take(5) {
        let fid = record["payload"]["uri"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
        assert!(findings[offset]["object"].as_str().unwrap().contains(&fid), "{findings:?}");
        assert_eq!(findings[offset]["kind"], "damaged", "{findings:?}");
        let target = up.data().join("out");
        let offset = offset.to_string();
        up.run(&["get", "t", "0", &offset, "-o", target.to_str().unwrap()]).fails(5, &["topic t", &offset, &fid]);
        assert!(!target.exists(), "no file is left behind");
    }
    // A range of whole blocks beside the damage is served, the damaged block is not.
    assert_eq!(up.run(&["get", "t", "0", "3", "--range", "0-99"]).ok().len(), 100);
    let said = up.run(&["get", "t", "0", "3", "--range", "3999990-4000010"]).fails(5, &["topic t"]);
    assert!(said.stdout.is_empty());
    assert_eq!(up.run(&["get", "t", "0", "5"]).ok().len(), 4_000, "others are not disturbed");
}

#[test]
fn verify_says_which_records_a_deleted_payload_concerns() {
    let weed = Weed::start();
    let up = Up::start_on(&format!("seaweedfs://{}", weed.master()), Vec::new());
    let files = Files::generate(60, 2_000, 11);
    up.run(&["topic", "create", "t", "--partitions", "2"]).ok();
    up.run(&["backfill", "t", files.path().to_str().unwrap(), "--pack-below", "0"]).ok();
    let records = up.records("t");
    let victim = &records[17];
    let fid = victim["payload"]["uri"].as_str().unwrap().rsplit('/').next().unwrap();
    assert!(weed.delete(fid), "by any tool, here plain HTTP");
    let said = up.run(&["--output", "jsonl", "verify", "t"]).fails(5, &[]);
    let mut findings = refstream_integration_tests::lines(&said.stdout);
    findings.retain(|line| line["event"] != "summary");
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert_eq!(findings[0]["kind"], "missing");
    assert_eq!((&findings[0]["partition"], &findings[0]["offset"]), (&victim["partition"], &victim["offset"]));
    assert_eq!(up.records("t"), records, "references still flow");
}

/// Metadata and files on the S3 gateway, payloads there or on the volume servers, as the topic says.
#[test]
fn a_topic_moves_to_another_store_and_keeps_what_it_had() {
    let weed = Weed::start();
    let config = format!(
        r#"
        [broker]
        metadata_store = "bucket"
        root = "refstream"
        [stores.bucket]
        kind = "s3"
        bucket = "{BUCKET}"
        endpoint = "{}"
        [stores.volumes]
        kind = "seaweedfs"
        masters = "{}"
        collection = "payloads"
        "#,
        weed.s3(),
        weed.master()
    );
    let mut up = Up::broker(&config, credentials());
    up.run(&["topic", "create", "t", "--store", "nowhere"]).fails(1, &["nowhere", "bucket, volumes"]);
    up.run(&["topic", "create", "t", "--partitions", "1"]).ok();
    let path = up.data().join("payload");
    std::fs::write(&path, "the payload").unwrap();
    let put = || up.run(&["--output", "json", "put", "t", path.to_str().unwrap()]).json();
    let uri = |put: &serde_json::Value| put["payload"]["uri"].as_str().unwrap().to_owned();
    let first = uri(&put());
    assert!(first.starts_with(&format!("s3://{BUCKET}/refstream/payloads/t-")), "{first}");
    up.run(&["topic", "alter", "t", "--store", "volumes"]).ok();
    let second = uri(&put());
    assert!(second.starts_with("seaweedfs://volumes/"), "{second}");
    up.run(&["seal", "t"]).ok();
    up.run(&["compact", "t"]).ok();
    assert_eq!(up.stop(), Some(0));
    up.restart();
    for offset in ["0", "1"] {
        assert_eq!(up.run(&["get", "t", "0", offset]).ok(), b"the payload");
    }
    up.run(&["verify", "--deep"]).ok();
    let uris: Vec<_> = up.records("t").iter().map(|record| record["payload"]["uri"].clone()).collect();
    assert_eq!(uris, [first, second], "as the Parquet files have them");
}
