//! Stores against the real SeaweedFS.

#![allow(clippy::unwrap_used)]

use rand::{RngCore as _, SeedableRng as _};
use refstream_filer_adapter::{
    Runtime, TokioRuntime,
    conformance::{Store, run_all},
    probe::probe,
    s3::{S3Config, S3Store},
};
use refstream_integration_tests::{
    Files, Up,
    seaweed::{ACCESS_KEY, BUCKET, SECRET_KEY, Weed},
};
use refstream_types::Layout;
use std::sync::Arc;

fn runtime() -> Arc<dyn Runtime> {
    Arc::new(TokioRuntime::new())
}

async fn gateway(weed: &Weed) -> S3Store {
    let config = S3Config {
        endpoint: Some(weed.s3()),
        bucket: BUCKET.into(),
        credentials: Some((ACCESS_KEY.into(), SECRET_KEY.into())),
        ..S3Config::default()
    };
    S3Store::open("weed", config).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_s3_gateway_conforms() {
    let weed = Weed::start();
    let store = Store::new(Arc::new(gateway(&weed).await));
    probe(&*store.filer, &*runtime(), &Layout::new("probed").unwrap()).await.unwrap();
    run_all(|| std::future::ready(store.clone()), runtime()).await;
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
