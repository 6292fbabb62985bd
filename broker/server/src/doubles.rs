//! Stand-ins for the outside world in unit tests.

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::BoxFuture;
use refstream_filer_adapter::{CreateError, Created, Filer, Listed, Runtime, StoreError, StoreErrorKind};
use refstream_types::{ByteRange, Key, Timestamp};
use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::sync::watch;

/// Objects in memory, with counted reads of ranges and failures on demand.
#[derive(Debug, Default)]
pub(crate) struct Shelf {
    pub(crate) objects: Mutex<BTreeMap<Key, Bytes>>,
    pub(crate) range_reads: AtomicU64,
    /// So many of the next creates and reads of ranges fail as unavailable.
    pub(crate) failing: AtomicU64,
    /// Creates of keys that contain this wait until it changes.
    pub(crate) hold: watch::Sender<Option<&'static str>>,
}

impl Shelf {
    fn fails(&self, operation: &'static str, key: &Key) -> Result<(), StoreError> {
        match self.failing.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)) {
            Ok(_) => Err(StoreError {
                kind: StoreErrorKind::Unavailable,
                operation,
                store: "shelf".into(),
                key: Some(key.clone()),
                message: "503".into(),
            }),
            Err(_) => Ok(()),
        }
    }
}

#[async_trait]
impl Filer for Shelf {
    async fn create(&self, key: &Key, bytes: Bytes) -> Result<Created, CreateError> {
        let free = |held: &Option<&'static str>| held.is_none_or(|part| !key.as_str().contains(part));
        self.hold.subscribe().wait_for(free).await.unwrap();
        self.fails("create", key).map_err(CreateError::DidNotHappen)?;
        let mut objects = self.objects.lock().unwrap();
        if objects.contains_key(key) {
            return Ok(Created::Exists);
        }
        objects.insert(key.clone(), bytes);
        Ok(Created::New)
    }
    async fn read(&self, key: &Key) -> Result<Option<Bytes>, StoreError> {
        Ok(self.objects.lock().unwrap().get(key).cloned())
    }
    async fn read_range(&self, key: &Key, range: ByteRange) -> Result<Option<Bytes>, StoreError> {
        self.range_reads.fetch_add(1, Ordering::Relaxed);
        self.fails("read_range", key)?;
        Ok(self.objects.lock().unwrap().get(key).map(|bytes| {
            let end = (range.offset + range.length).min(bytes.len() as u64);
            bytes.slice(range.offset.min(end) as usize..end as usize)
        }))
    }
    async fn remove(&self, key: &Key) -> Result<(), StoreError> {
        self.objects.lock().unwrap().remove(key);
        Ok(())
    }
    async fn list(&self, prefix: &str, after: Option<&Key>, limit: usize) -> Result<Vec<Listed>, StoreError> {
        let objects = self.objects.lock().unwrap();
        let found = objects.iter().filter(|(key, _)| key.as_str().starts_with(prefix) && after.is_none_or(|a| a < key));
        Ok(found.take(limit).map(|(key, bytes)| Listed::new(key.clone(), bytes.len() as u64)).collect())
    }
}

/// A clock that only sleepers move.
#[derive(Debug, Default)]
pub(crate) struct Clock(pub(crate) AtomicU64);

impl Runtime for Clock {
    fn now(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
    }
    fn wall(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::Relaxed) as i64)
    }
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.0.fetch_add(duration.as_micros() as u64, Ordering::Relaxed);
        Box::pin(std::future::ready(()))
    }
    fn random(&self) -> u64 {
        4
    }
}
