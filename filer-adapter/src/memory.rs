//! A store in memory that behaves like a real one on its worst days.
//!
//! It implements [`Filer`] and [`BlobStore`](crate::BlobStore) and can lose answers, fail after the write, answer 409 without effect, ignore the
//! condition, let a create land long after it was given up, list the past, flip stored bits, run out of space and be cut off.
//! Faults come at random ([`Faults`], under a seed) or on cue ([`MemoryStore::script`]). Clients made by
//! [`MemoryStore::client`] share the objects and have their own faults, so that one of them can be cut off alone.
//!
//! Nothing here needs an executor: futures wait only in [`Runtime::sleep`], and what lands later does so when the store is
//! next used at or after that time. With a deterministic [`Runtime`] everything is.

mod blob;
mod faults;

pub use faults::{Fault, Faults, Operation};

use crate::{Attributes, CreateError, Created, Filer, Listed, Runtime, StoreError, StoreErrorKind};
use async_trait::async_trait;
use bytes::Bytes;
use faults::{Client, Outcome};
use refstream_types::{ByteRange, Key};
use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    ops::Bound,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// Changes that a stale listing can look back on.
const HISTORY: usize = 1_000;

#[derive(Clone, Debug)]
struct Object {
    bytes: Bytes,
    etag: String,
    attributes: Attributes,
}

/// A write that was given up by its client and has not reached the objects yet.
#[derive(Debug)]
struct Stalled {
    due: Duration,
    key: Key,
    object: Object,
    /// Only if the key is free then.
    conditional: bool,
}

#[derive(Debug)]
struct Change {
    at: Duration,
    key: Key,
    /// Size before the change; `None`: there was no object.
    before: Option<u64>,
}

#[derive(Debug, Default)]
struct Objects {
    objects: BTreeMap<Key, Object>,
    uploads: BTreeMap<String, blob::Upload>,
    stalled: Vec<Stalled>,
    history: VecDeque<Change>,
    counter: u64,
    capacity: Option<u64>,
    used: u64,
}

impl Objects {
    fn insert(&mut self, at: Duration, key: Key, object: Object) {
        self.used += object.bytes.len() as u64;
        let before = self.objects.insert(key.clone(), object).map(|old| old.bytes.len() as u64);
        self.used -= before.unwrap_or(0);
        self.remember(Change { at, key, before });
    }

    fn remove(&mut self, at: Duration, key: &Key) -> Option<Object> {
        let old = self.objects.remove(key)?;
        self.used -= old.bytes.len() as u64;
        self.remember(Change { at, key: key.clone(), before: Some(old.bytes.len() as u64) });
        Some(old)
    }

    fn remember(&mut self, change: Change) {
        if self.history.len() == HISTORY {
            self.history.pop_front();
        }
        self.history.push_back(change);
    }

    /// Lets everything land whose time has come, in the order of their times.
    fn land(&mut self, now: Duration) {
        if self.stalled.iter().all(|stalled| stalled.due > now) {
            return;
        }
        let (mut due, rest): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.stalled).into_iter().partition(|s| s.due <= now);
        self.stalled = rest;
        due.sort_by_key(|stalled| stalled.due);
        for Stalled { due, key, object, conditional } in due {
            if !(conditional && self.objects.contains_key(&key)) {
                self.insert(due, key, object);
            }
        }
    }

    fn has_space(&self, bytes: usize) -> bool {
        self.capacity.is_none_or(|capacity| self.used + bytes as u64 <= capacity)
    }

    fn object(&mut self, bytes: Bytes, attributes: Attributes) -> Object {
        self.counter += 1;
        Object { bytes, etag: format!("{:016x}", self.counter.wrapping_mul(0x9e37_79b9_7f4a_7c15)), attributes }
    }
}

/// The store, or one client's view of it. Clones are the same client.
#[derive(Clone)]
pub struct MemoryStore {
    name: Arc<str>,
    runtime: Arc<dyn Runtime>,
    objects: Arc<Mutex<Objects>>,
    client: Arc<Mutex<Client>>,
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").field("name", &self.name).field("objects", &self.objects().objects.len()).finish()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MemoryStore {
    /// An empty store without faults.
    pub fn new(runtime: Arc<dyn Runtime>) -> Self {
        Self::with_faults(runtime, 0, Faults::default())
    }

    /// An empty store whose faults are drawn under `seed`.
    pub fn with_faults(runtime: Arc<dyn Runtime>, seed: u64, faults: Faults) -> Self {
        let client = Client::new(seed, faults);
        Self { name: "memory".into(), runtime, objects: Arc::default(), client: Arc::new(Mutex::new(client)) }
    }

    /// Another client of the same objects, with its own faults, seed and clock.
    pub fn client(&self, name: &str, runtime: Arc<dyn Runtime>, seed: u64, faults: Faults) -> Self {
        let client = Arc::new(Mutex::new(Client::new(seed, faults)));
        Self { name: name.into(), runtime, objects: Arc::clone(&self.objects), client }
    }

    /// Replaces this client's faults; the seed goes on.
    pub fn set_faults(&self, faults: Faults) {
        lock(&self.client).faults = faults;
    }

    /// Cuts this client off from the store, or connects it again.
    pub fn set_cut_off(&self, cut_off: bool) {
        lock(&self.client).cut_off = cut_off;
    }

    /// The client's next `operation` on a key that starts with `prefix` meets `fault`. Scripts wait in the order given.
    pub fn script(&self, operation: Operation, prefix: &str, fault: Fault) {
        lock(&self.client).scripts.push((operation, prefix.into(), fault));
    }

    /// Scripts that were not met yet.
    pub fn scripts_left(&self) -> usize {
        lock(&self.client).scripts.len()
    }

    /// Operations that this client has asked for, faulty ones included.
    pub fn operations(&self, operation: Operation) -> u64 {
        lock(&self.client).counts.get(&operation).copied().unwrap_or(0)
    }

    /// The store is full at `bytes`; `None`: never.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.objects().capacity = bytes;
    }

    /// Flips the lowest bit of a stored byte, as a bad disk does. False when there is no such byte.
    pub fn flip_bit(&self, key: &Key, offset: u64) -> bool {
        let mut objects = self.objects();
        let Some(object) = objects.objects.get_mut(key) else { return false };
        let mut bytes = object.bytes.to_vec();
        let Some(byte) = usize::try_from(offset).ok().and_then(|at| bytes.get_mut(at)) else { return false };
        *byte ^= 1;
        object.bytes = bytes.into();
        true
    }

    /// All keys, ascending, without faults or latency.
    pub fn keys(&self) -> Vec<Key> {
        self.objects().objects.keys().cloned().collect()
    }

    /// An object's bytes, without faults or latency.
    pub fn peek(&self, key: &Key) -> Option<Bytes> {
        self.objects().objects.get(key).map(|object| object.bytes.clone())
    }

    /// Loses an object, as a bad disk does. False when there is none.
    pub fn lose(&self, key: &Key) -> bool {
        let now = self.runtime.now();
        self.objects().remove(now, key).is_some()
    }

    /// The objects, after everything landed that is due.
    fn objects(&self) -> MutexGuard<'_, Objects> {
        let mut objects = lock(&self.objects);
        objects.land(self.runtime.now());
        objects
    }

    fn error(
        &self,
        kind: StoreErrorKind,
        operation: &'static str,
        key: Option<&Key>,
        message: impl Into<String>,
    ) -> StoreError {
        StoreError { kind, operation, store: self.name.to_string(), key: key.cloned(), message: message.into() }
    }

    /// Waits as a request on its way does, and says what will become of it.
    async fn arrive(&self, operation: Operation, key: &str) -> Outcome {
        let (outcome, latency) = lock(&self.client).draw(operation, key);
        if !latency.is_zero() {
            self.runtime.sleep(latency).await;
        }
        outcome
    }

    /// Waits as an answer on its way does.
    async fn answer(&self) {
        let latency = lock(&self.client).latency();
        if !latency.is_zero() {
            self.runtime.sleep(latency).await;
        }
    }

    /// An operation that changes nothing, or may be repeated without harm.
    async fn simple<T>(
        &self,
        operation: Operation,
        key: &Key,
        apply: impl FnOnce(&mut Objects, Duration) -> Result<T, StoreError> + Send,
    ) -> Result<T, StoreError> {
        let outcome = self.arrive(operation, key.as_str()).await;
        let now = self.runtime.now();
        let result = match outcome.never_arrives() {
            None => apply(&mut self.objects(), now),
            Some(why) => Err(self.error(StoreErrorKind::Unavailable, operation.name(), Some(key), why)),
        };
        self.answer().await;
        match outcome.answer_is_lost() {
            None => result,
            Some(why) => Err(self.error(StoreErrorKind::Unavailable, operation.name(), Some(key), why)),
        }
    }

    /// A write whose faults matter: whether it happened is part of the answer.
    async fn write(
        &self,
        operation: Operation,
        key: &Key,
        bytes: Bytes,
        attributes: Attributes,
        conditional: bool,
    ) -> Result<(Created, Object), CreateError> {
        let name = operation.name();
        let outcome = self.arrive(operation, key.as_str()).await;
        let now = self.runtime.now();
        let result = {
            let mut objects = self.objects();
            let mut object = objects.object(bytes, attributes);
            let unavailable = |why| self.error(StoreErrorKind::Unavailable, name, Some(key), why);
            match outcome {
                Outcome::Fault(Fault::Refused) | Outcome::CutOff => {
                    Err(CreateError::DidNotHappen(unavailable("connection refused")))
                }
                Outcome::Fault(Fault::Dropped) => Err(CreateError::MayHaveHappened(unavailable("no answer in time"))),
                Outcome::Fault(Fault::Conflict) => {
                    Err(CreateError::MayHaveHappened(unavailable("409 ConditionalRequestConflict")))
                }
                Outcome::Fault(Fault::Stall(delay)) => {
                    objects.stalled.push(Stalled { due: now + delay, key: key.clone(), object, conditional });
                    Err(CreateError::MayHaveHappened(unavailable("no answer in time")))
                }
                _ if outcome == Outcome::Fault(Fault::NoSpace) || !objects.has_space(object.bytes.len()) => {
                    let error = self.error(StoreErrorKind::NoSpace, name, Some(key), "507 the store is full");
                    Err(CreateError::DidNotHappen(error))
                }
                _ if conditional
                    && outcome != Outcome::Fault(Fault::ConditionIgnored)
                    && objects.objects.contains_key(key) =>
                {
                    Ok((Created::Exists, object))
                }
                _ => {
                    if outcome == Outcome::Fault(Fault::BitRot) && !object.bytes.is_empty() {
                        let mut bytes = object.bytes.to_vec();
                        let at = lock(&self.client).random() as usize % bytes.len();
                        bytes[at] ^= 1;
                        object.bytes = bytes.into();
                    }
                    objects.insert(now, key.clone(), object.clone());
                    Ok((Created::New, object))
                }
            }
        };
        self.answer().await;
        match outcome.answer_is_lost() {
            Some(why) if result.is_ok() => {
                Err(CreateError::MayHaveHappened(self.error(StoreErrorKind::Unavailable, name, Some(key), why)))
            }
            _ => result,
        }
    }

    async fn list_objects(&self, prefix: &str, after: Option<&Key>, limit: usize) -> Result<Vec<Listed>, StoreError> {
        let outcome = self.arrive(Operation::List, prefix).await;
        let now = self.runtime.now();
        let stale = match outcome {
            Outcome::Fault(Fault::StaleList(age)) => Some(now.saturating_sub(age)),
            _ => None,
        };
        let listed = {
            let objects = self.objects();
            let mut found: BTreeMap<&Key, (u64, Option<&str>)> = objects
                .objects
                .range::<str, _>((Bound::Included(prefix), Bound::Unbounded))
                .take_while(|(key, _)| key.as_str().starts_with(prefix))
                .map(|(key, object)| (key, (object.bytes.len() as u64, Some(object.etag.as_str()))))
                .collect();
            for change in objects.history.iter().rev() {
                if stale.is_none_or(|stale| change.at <= stale) {
                    break;
                }
                match change.before {
                    Some(size) if change.key.as_str().starts_with(prefix) => found.insert(&change.key, (size, None)),
                    _ => found.remove(&change.key),
                };
            }
            found
                .into_iter()
                .filter(|(key, _)| after.is_none_or(|after| *key > after))
                .take(limit)
                .map(|(key, (size, etag))| Listed {
                    key: key.clone(),
                    size,
                    etag: etag.map(str::to_owned),
                    version: None,
                })
                .collect()
        };
        self.answer().await;
        match outcome.never_arrives().or(outcome.answer_is_lost()) {
            None => Ok(listed),
            Some(why) => Err(self.error(StoreErrorKind::Unavailable, "list", None, format!("{why}, prefix {prefix}"))),
        }
    }
}

/// The part of `bytes` that lies in `range`.
fn slice(bytes: &Bytes, range: ByteRange) -> Bytes {
    let length = bytes.len() as u64;
    let start = range.offset.min(length);
    let end = range.end().unwrap_or(u64::MAX).min(length);
    bytes.slice(start as usize..end as usize)
}

#[async_trait]
impl Filer for MemoryStore {
    async fn create(&self, key: &Key, bytes: Bytes) -> Result<Created, CreateError> {
        self.write(Operation::Create, key, bytes, Attributes::default(), true).await.map(|(created, _)| created)
    }

    async fn read(&self, key: &Key) -> Result<Option<Bytes>, StoreError> {
        self.simple(Operation::Read, key, |objects, _| Ok(objects.objects.get(key).map(|object| object.bytes.clone())))
            .await
    }

    async fn read_range(&self, key: &Key, range: ByteRange) -> Result<Option<Bytes>, StoreError> {
        self.simple(Operation::Read, key, |objects, _| {
            Ok(objects.objects.get(key).map(|object| slice(&object.bytes, range)))
        })
        .await
    }

    async fn remove(&self, key: &Key) -> Result<(), StoreError> {
        self.simple(Operation::Remove, key, |objects, now| {
            objects.remove(now, key);
            Ok(())
        })
        .await
    }

    async fn list(&self, prefix: &str, after: Option<&Key>, limit: usize) -> Result<Vec<Listed>, StoreError> {
        self.list_objects(prefix, after, limit).await
    }
}

#[cfg(test)]
mod tests;
