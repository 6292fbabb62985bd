//! Every store runs the same suite, and the start-up probe accepts every one of them.

use refstream_filer_adapter::{
    Runtime, TokioRuntime,
    conformance::{Store, run_all},
    embedded::{FileStore, FileStoreOptions},
    memory::MemoryStore,
    probe::probe,
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
