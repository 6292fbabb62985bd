//! Stores against moto, an S3 server of other make. It is no oracle for races, but it is strict about requests.

#![allow(clippy::unwrap_used)]

use refstream_filer_adapter::{
    Runtime, TokioRuntime,
    conformance::{Store, run_filer},
    probe::probe,
    s3::{S3Config, S3Store},
};
use refstream_integration_tests::moto::{BUCKET, Moto};
use refstream_types::Layout;
use std::sync::Arc;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_second_s3_server_holds_metadata() {
    let moto = Moto::start();
    let runtime: Arc<dyn Runtime> = Arc::new(TokioRuntime::new());
    let config = S3Config {
        endpoint: Some(moto.endpoint()),
        bucket: BUCKET.into(),
        credentials: Some(("access".into(), "secret".into())),
        ..S3Config::default()
    };
    let store = Store::new(Arc::new(S3Store::open("moto", config).await.unwrap()));
    probe(&*store.filer, &*runtime, &Layout::new("probed").unwrap()).await.unwrap();
    // Not the part about payloads: it stores bodies whose checksum is wrong.
    run_filer(store, runtime).await;
}
