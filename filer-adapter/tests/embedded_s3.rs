//! The same suite once more, from the S3 adapter through the embedded server to the files.

use refstream_filer_adapter::{
    Runtime, TokioRuntime,
    conformance::{Store, run_all},
    embedded::{EmbeddedKeys, FileStore, FileStoreOptions, S3Server},
    probe::probe,
    s3::{S3Config, S3Store},
};
use refstream_types::Layout;
use std::sync::Arc;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_s3_adapter_on_the_embedded_server_conforms() {
    let dir = tempfile::tempdir().unwrap();
    let files = FileStore::open(dir.path(), "bucket", FileStoreOptions::default()).unwrap();
    let keys = EmbeddedKeys::load_or_generate(dir.path()).unwrap();
    let server = S3Server::start(files, keys.clone(), "127.0.0.1:0".parse().unwrap()).await.unwrap();
    let config = S3Config {
        endpoint: Some(server.endpoint()),
        bucket: "bucket".to_owned(),
        credentials: Some((keys.access_key().to_owned(), keys.secret_key().to_owned())),
        ..S3Config::default()
    };
    let store = Store::new(Arc::new(S3Store::open("embedded", config).await.unwrap()));
    let runtime: Arc<dyn Runtime> = Arc::new(TokioRuntime::new());
    probe(&*store.filer, &*runtime, &Layout::new("probed").unwrap()).await.unwrap();
    run_all(|| std::future::ready(store.clone()), runtime).await;
    server.stop().await;
}
