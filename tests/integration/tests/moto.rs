//! Stores against moto, an S3 server of other make. It is no oracle for races, but it is strict about requests.

#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use refstream_filer_adapter::{
    Attributes, BlobStore as _, Filer as _, Runtime, TokioRuntime,
    conformance::{Store, run_filer},
    crc32c,
    probe::probe,
    s3::{S3Config, S3Store},
};
use refstream_integration_tests::{
    Up,
    moto::{BUCKET, Moto},
};
use refstream_types::{Key, Layout};
use std::sync::Arc;

fn at(moto: &Moto) -> S3Config {
    S3Config {
        endpoint: Some(moto.endpoint()),
        bucket: BUCKET.into(),
        credentials: Some(("access".into(), "secret".into())),
        ..S3Config::default()
    }
}

#[tokio::test]
async fn a_bucket_is_reached_by_its_own_host_name() {
    let moto = Moto::start();
    let port = moto.endpoint().rsplit(':').next().unwrap().to_owned();
    let by_host = S3Config { endpoint: Some(format!("http://localhost:{port}")), path_style: false, ..at(&moto) };
    let by_host = S3Store::open("host", by_host).await.unwrap();
    let key: Key = "folder/ä and more".parse().unwrap();
    by_host.create(&key, "hello".into()).await.unwrap();
    // It is the same bucket, and the key has no bucket's name in it.
    let by_path = S3Store::open("path", at(&moto)).await.unwrap();
    assert_eq!(by_path.read(&key).await.unwrap().as_deref(), Some(&b"hello"[..]));
    let listed = by_host.list_blobs("", None, 10).await.unwrap();
    assert_eq!(listed.iter().map(|found| found.key.as_str()).collect::<Vec<_>>(), [key.as_str()]);
    by_host.delete(&key).await.unwrap();
    assert_eq!(by_path.read(&key).await.unwrap(), None);
}

/// What is attached from a bucket that keeps versions stays what it was, whatever is written over it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attached_objects_are_pinned_by_their_version() {
    let moto = Moto::start();
    let on = r#"<VersioningConfiguration xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Status>Enabled</Status></VersioningConfiguration>"#;
    let http = reqwest::Client::new();
    let bucket = format!("{}/{BUCKET}", moto.endpoint());
    http.put(format!("{bucket}?versioning")).body(on).send().await.unwrap().error_for_status().unwrap();
    let store = S3Store::open("moto", at(&moto)).await.unwrap();
    let key = |name: &str| -> Key { name.parse().unwrap() };
    let put = async |name: &str, content: &'static str| {
        let body = vec![Bytes::from_static(content.as_bytes())];
        let sum = crc32c(&body);
        store.put(&key(name), body, sum, &Attributes::default()).await.unwrap();
    };
    for (name, content) in [("photos/a", "older"), ("photos/a", "old"), ("photos/b", "b"), ("photos/gone", "gone")] {
        put(name, content).await;
    }
    store.delete(&key("photos/gone")).await.unwrap();
    let listed = store.list_blobs("photos/", None, 10).await.unwrap();
    let told: Vec<_> = listed.iter().map(|found| (found.key.as_str(), found.size, found.version.is_some())).collect();
    assert_eq!(told, [("photos/a", 3, true), ("photos/b", 1, true)]);
    let after = store.list_blobs("photos/", Some(&listed[0].key), 10).await.unwrap();
    assert_eq!(after, listed[1..]);

    let config = format!(
        "[broker]\nmetadata_store = \"disk\"\n[stores.disk]\nkind = \"embedded\"\n\
         [stores.bucket]\nkind = \"s3\"\nbucket = \"{BUCKET}\"\nendpoint = \"{}\"\n",
        moto.endpoint()
    );
    let keys = vec![("AWS_ACCESS_KEY_ID", "access".to_owned()), ("AWS_SECRET_ACCESS_KEY", "secret".to_owned())];
    let up = tokio::task::spawn_blocking(move || {
        let data = tempfile::tempdir().unwrap();
        let config = config
            .replace("[broker]", &format!("[broker]\ndata = \"{}\"\ns3 = \"127.0.0.1:0\"", data.path().display()));
        (Up::broker(&config, keys), data)
    });
    let (up, _data) = up.await.unwrap();
    up.run(&["topic", "create", "t"]).ok();
    up.run(&["backfill", "t", &format!("s3://{BUCKET}/photos/"), "--in-place"]).ok();
    put("photos/a", "something else").await;
    let records = up.records("t");
    let of = |key: &str| records.iter().find(|record| record["key"] == *key).unwrap().clone();
    assert_eq!(records.len(), 2);
    let a = of("a");
    assert_eq!(a["payload_version"].as_str(), listed[0].version.as_deref(), "{a}");
    let (partition, offset) = (a["partition"].to_string(), a["offset"].to_string());
    assert_eq!(up.run(&["get", "t", &partition, &offset]).ok(), b"old");
    up.run(&["verify", "t", "--deep"]).ok();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_second_s3_server_holds_metadata() {
    let moto = Moto::start();
    let runtime: Arc<dyn Runtime> = Arc::new(TokioRuntime::new());
    let store = Store::new(Arc::new(S3Store::open("moto", at(&moto)).await.unwrap()));
    probe(&*store.filer, &*runtime, &Layout::new("probed").unwrap()).await.unwrap();
    // Not the part about payloads: it stores bodies whose checksum is wrong.
    run_filer(store, runtime).await;
}
