//! Every store runs the same suite, and the start-up probe accepts every one of them.

#![allow(clippy::unwrap_used, reason = "tests")]

use refstream_filer_adapter::{
    Runtime, TokioRuntime,
    conformance::{Store, run_all},
    embedded::{EmbeddedKeys, FileStore, FileStoreOptions, S3Server},
    memory::MemoryStore,
    probe::probe,
    s3::{S3Config, S3Store},
};
use refstream_types::Layout;
use std::sync::Arc;

fn runtime() -> Arc<dyn Runtime> {
    Arc::new(TokioRuntime::new())
}

async fn conforms(store: Store) {
    probe(&*store.filer, &*runtime(), &Layout::new("probed").unwrap()).await.unwrap();
    run_all(|| std::future::ready(store.clone()), runtime()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn memory() {
    conforms(Store::new(Arc::new(MemoryStore::new(runtime())))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn files() {
    let dir = tempfile::tempdir().unwrap();
    let store = FileStore::open(dir.path(), "bucket", FileStoreOptions::default()).unwrap();
    conforms(Store::new(store)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn s3_of_the_embedded_server() {
    let dir = tempfile::tempdir().unwrap();
    let store = FileStore::open(dir.path(), "bucket", FileStoreOptions::default()).unwrap();
    let keys = EmbeddedKeys::generate(&*runtime());
    let credentials = Some((keys.access_key().to_owned(), keys.secret_key().to_owned()));
    let server = S3Server::start(store, keys, "127.0.0.1:0".parse().unwrap()).await.unwrap();
    let config =
        S3Config { endpoint: Some(server.endpoint()), bucket: "bucket".into(), credentials, ..S3Config::default() };
    conforms(Store::new(Arc::new(S3Store::open("test", config).await.unwrap()))).await;
    server.stop().await;
}
