//! Reading committed records: the index of what the broker can serve, and where the bytes are.
//!
//! **What is indexed.** Every batch that was committed and is in no file yet: those of this broker's own epoch as
//! [`refstream_core::Effect::Committed`] names them, those of earlier epochs' sealed segments loaded from their journals the first time
//! somebody reads there. The *end* of a partition is the end of that index; it only ever grows, and it grows after the batch can be
//! found, so a reader that sees an end can read up to it.
//!
//! **Where the bytes are.** The newest committed batches in memory (bounded, oldest out first); all others by ranged reads of journal
//! objects. One read fetches the stretch of an object that holds a segment's batches, so that the partitions of a topic share
//! it; two readers of one stretch share the read.
//!
//! **Whose.** A partition's end is told by the broker that owns its open segment, and by no other: a tail that comes to the end of what is
//! known here of a partition that somebody else serves is sent there.
//!
//! **What leaves.** A segment whose records are in files leaves the cluster's state; it stays readable here for a grace period, so that
//! a reader in its midst reaches its end, then its index is dropped. Reading an offset below what is left is answered with
//! "in files", and with the first offset that can be read here. Should the journal be freed earlier, the read that misses its
//! object gives that same answer.

mod blocks;
mod fetch;
mod recent;
mod tail;
mod topic;

#[cfg(test)]
mod tests;

pub(crate) use fetch::Next;
pub(crate) use tail::Tail;
pub(crate) use topic::Topic;

use crate::{errors, metrics::Metrics};
use blocks::Blocks;
use recent::Recent;
use refstream_filer_adapter::Runtime;
use refstream_format::{
    cluster_log::ClusterState,
    journal::{BatchLocation, PlacedBatch},
};
use refstream_journal::Metadata;
use refstream_proto::v1::ErrorDetail;
use refstream_types::{Epoch, TopicId};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
    time::Duration,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Tails at once.
pub(crate) const MOST_TAILS: usize = 1_024;

/// The lock's content; a panic elsewhere while it was held leaves nothing half done here.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The index of all topics.
#[derive(Debug)]
pub(crate) struct Reader {
    metadata: Metadata,
    runtime: Arc<dyn Runtime>,
    metrics: Arc<Metrics>,
    topics: RwLock<HashMap<TopicId, Arc<Topic>>>,
    seen: Mutex<Arc<ClusterState>>,
    /// This broker's epoch, once taken: others' open segments are not read here.
    epoch: Mutex<Option<Epoch>>,
    recent: Mutex<Recent>,
    blocks: Blocks,
    grace: Duration,
    tails: Arc<Semaphore>,
}

impl Reader {
    /// A reader that keeps up to `cache_bytes` in memory: three quarters for the newest batches, the rest for what was read
    /// from journals.
    pub(crate) fn new(
        metadata: Metadata,
        runtime: Arc<dyn Runtime>,
        metrics: Arc<Metrics>,
        cache_bytes: usize,
        grace: Duration,
    ) -> Self {
        Self {
            metadata,
            runtime,
            metrics,
            topics: RwLock::default(),
            seen: Mutex::default(),
            epoch: Mutex::default(),
            recent: Mutex::new(Recent::new(cache_bytes / 4 * 3)),
            blocks: Blocks::new(cache_bytes / 4),
            grace,
            tails: Arc::new(Semaphore::new(MOST_TAILS)),
        }
    }

    /// Room for one more tail, until it is dropped.
    ///
    /// # Errors
    /// When there are as many as a broker serves: a tail whose client does not read holds up to two megabytes, and there is no telling it
    /// from one that reads slowly.
    pub(crate) fn room_for_tail(&self) -> Result<OwnedSemaphorePermit, ErrorDetail> {
        Arc::clone(&self.tails).try_acquire_owned().map_err(|_| {
            errors::unavailable(format!(
                "this broker serves {MOST_TAILS} tails already, as many as it takes; close some, or add brokers"
            ))
        })
    }

    /// A topic that exists.
    pub(crate) fn topic(&self, topic: TopicId) -> Option<Arc<Topic>> {
        self.topics.read().unwrap_or_else(PoisonError::into_inner).get(&topic).cloned()
    }

    /// Says who this broker is.
    pub(crate) fn set_epoch(&self, epoch: Epoch) {
        *lock(&self.epoch) = Some(epoch);
    }

    /// Takes over the cluster's state: new topics and segments, ends of sealed ones, segments that were closed.
    pub(crate) fn set_state(&self, state: &Arc<ClusterState>) {
        let now = self.runtime.now();
        let before = std::mem::replace(&mut *lock(&self.seen), Arc::clone(state));
        let epoch = *lock(&self.epoch);
        for (id, topic) in &state.topics {
            if before.topics.get(id).is_some_and(|known| Arc::ptr_eq(known, topic) || known == topic) {
                continue;
            }
            let indexed = self.topic(*id).unwrap_or_else(|| {
                let made = Arc::new(Topic::new(topic));
                let mut topics = self.topics.write().unwrap_or_else(PoisonError::into_inner);
                Arc::clone(topics.entry(*id).or_insert(made))
            });
            indexed.set_state(topic, epoch, now);
        }
        let ended: Vec<TopicId> = before.topics.keys().filter(|id| !state.topics.contains_key(id)).copied().collect();
        for id in ended {
            let topic = self.topics.write().unwrap_or_else(PoisonError::into_inner).remove(&id);
            if let Some(topic) = topic {
                topic.end();
            }
        }
        self.prune();
    }

    /// Takes in a committed slot's batches.
    pub(crate) fn committed(&self, epoch: Epoch, batches: Vec<(PlacedBatch, BatchLocation)>) {
        let mut touched: Vec<Arc<Topic>> = Vec::new();
        {
            let mut recent = lock(&self.recent);
            for (placed, _) in &batches {
                recent
                    .insert((placed.segment.topic, placed.partition, placed.base_offset), placed.batch.bytes().clone());
            }
            self.metrics.read_cache_bytes.set(i64::try_from(recent.bytes()).unwrap_or(i64::MAX));
        }
        for (placed, location) in &batches {
            let id = placed.segment.topic;
            let position = touched.iter().rposition(|topic| topic.id() == id);
            let topic = match position {
                Some(position) => &touched[position],
                None => match self.topic(id) {
                    Some(topic) => {
                        touched.push(topic);
                        &touched[touched.len() - 1]
                    }
                    None => continue,
                },
            };
            topic.committed(epoch, location);
        }
        for topic in touched {
            topic.notify();
        }
    }

    /// Drops the index of segments that have been closed for longer than the grace period.
    pub(crate) fn prune(&self) {
        let Some(before) = self.runtime.now().checked_sub(self.grace) else { return };
        let topics: Vec<Arc<Topic>> =
            self.topics.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        for topic in topics {
            topic.prune(before);
        }
    }
}
