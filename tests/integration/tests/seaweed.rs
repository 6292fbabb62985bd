//! Stores against the real SeaweedFS.

#![allow(clippy::unwrap_used)]

use refstream_filer_adapter::{
    Runtime, TokioRuntime,
    conformance::{Store, run_all},
    probe::probe,
    s3::{S3Config, S3Store},
};
use refstream_integration_tests::seaweed::{ACCESS_KEY, BUCKET, SECRET_KEY, Weed};
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
