//! The core's operations on the store, each a task of its own.

use super::Ended;
use crate::metrics::Metrics;
use bytes::Bytes;
use refstream_core::{CommitOutcome, Done, OpId};
use refstream_filer_adapter::{Filer, Runtime, StoreError, chain};
use refstream_format::{cluster_log::LogEntry, journal::JournalObject};
use refstream_types::{Chain, Key, Layout, Slot, Version};
use std::{future::Future, sync::Arc, time::Duration};
use tokio::task::{JoinError, JoinSet};

/// Names asked for in one listing of snapshots.
const SNAPSHOT_PAGE: usize = 1_000;

pub(super) struct Operations {
    pub(super) runtime: Arc<dyn Runtime>,
    pub(super) filer: Arc<dyn Filer>,
    pub(super) layout: Layout,
    pub(super) metrics: Arc<Metrics>,
    pub(super) running: JoinSet<Ended>,
}

/// Pauses before an object is read again that does not decode: a store, or something on the way to it, may give wrong bytes for a
/// moment, and what the core calls damaged it never asks for again.
const DOUBTS: [Duration; 3] = [Duration::from_millis(50), Duration::from_millis(500), Duration::from_secs(2)];

/// What must be known of a number that is read.
#[derive(Clone, Copy)]
enum Proof {
    None,
    /// That it was not freed before.
    NotFreed,
}

/// Whether the bytes are what a writer of this chain could have written.
fn is_whole(chain: &Chain, number: u64, bytes: &Bytes) -> bool {
    match chain {
        Chain::Journal(epoch) => JournalObject::decode(bytes.clone(), (*epoch, Slot(number))).is_ok(),
        Chain::ClusterLog => LogEntry::decode(bytes, Version(number)).is_ok(),
        _ => true,
    }
}

/// What an operation's task works with.
struct Outside {
    runtime: Arc<dyn Runtime>,
    filer: Arc<dyn Filer>,
    layout: Layout,
    metrics: Arc<Metrics>,
}

impl Outside {
    fn failed(&self, operation: &'static str, error: &StoreError) -> String {
        self.metrics.store_error(operation);
        error.to_string()
    }

    /// Reads a number; what is not whole is read again before it is handed out.
    async fn read(&self, chain: &Chain, number: u64, proof: Proof) -> Done {
        let mut pauses = DOUBTS.into_iter();
        loop {
            let read = match proof {
                Proof::None => chain::read(&*self.filer, &self.layout, chain, number)
                    .await
                    .map(|found| found.map_or(chain::Link::Missing, chain::Link::Present)),
                Proof::NotFreed => chain::link(&*self.filer, &self.layout, chain, number).await,
            };
            match read {
                Ok(chain::Link::Present(bytes)) => match pauses.next().filter(|_| !is_whole(chain, number, &bytes)) {
                    Some(pause) => self.doubt(chain, number, pause).await,
                    None => return Done::Read(Ok(Some(bytes))),
                },
                Ok(chain::Link::Missing) => return Done::Read(Ok(None)),
                Ok(chain::Link::Freed) => return Done::Freed,
                Err(error) => return Done::Read(Err(self.failed("read", &error))),
            }
        }
    }

    /// Waits before an object is read again whose bytes are not what was written.
    async fn doubt(&self, chain: &Chain, number: u64, pause: Duration) {
        let key = self.layout.link(chain, number);
        tracing::warn!(%key, "what the store gave is not whole; reading it again before it is called damaged");
        self.metrics.store_error("read");
        self.runtime.sleep(pause).await;
    }
}

impl Operations {
    /// The next operation that ended; waits for ever while none runs. Safe to cancel.
    pub(super) async fn next(&mut self) -> Result<Ended, JoinError> {
        match self.running.join_next().await {
            Some(ended) => ended,
            None => std::future::pending().await,
        }
    }

    fn spawn<F>(&mut self, op: OpId, work: impl FnOnce(Outside) -> F)
    where
        F: Future<Output = Done> + Send + 'static,
    {
        let work = work(Outside {
            runtime: Arc::clone(&self.runtime),
            filer: Arc::clone(&self.filer),
            layout: self.layout.clone(),
            metrics: Arc::clone(&self.metrics),
        });
        self.running.spawn(async move { (op, work.await) });
    }

    pub(super) fn commit(&mut self, op: OpId, chain: Chain, number: u64, bytes: Bytes) {
        self.spawn(op, |outside| async move {
            let (started, length) = (outside.runtime.now(), bytes.len() as u64);
            let outcome =
                chain::commit(&*outside.filer, &*outside.runtime, &outside.layout, &chain, number, bytes).await;
            Done::Commit(match outcome {
                chain::Commit::Committed => {
                    if matches!(chain, Chain::Journal(_)) {
                        outside.metrics.commit_latency.observe((outside.runtime.now() - started).as_secs_f64());
                        outside.metrics.commit_bytes.inc_by(length);
                    }
                    CommitOutcome::Committed
                }
                chain::Commit::Taken(bytes) => CommitOutcome::Taken(bytes),
                chain::Commit::Freed => CommitOutcome::Freed,
                chain::Commit::Unknown(error) => CommitOutcome::Unknown(outside.failed("commit", &error)),
            })
        });
    }

    pub(super) fn read(&mut self, op: OpId, chain: Chain, number: u64) {
        self.spawn(op, |outside| async move { outside.read(&chain, number, Proof::None).await });
    }

    pub(super) fn read_log(&mut self, op: OpId, number: u64) {
        self.spawn(op, |outside| async move { outside.read(&Chain::ClusterLog, number, Proof::NotFreed).await });
    }

    pub(super) fn tip(&mut self, op: OpId, chain: Chain, hint: u64) {
        self.spawn(op, |outside| async move {
            let tip = chain::tip(&*outside.filer, &outside.layout, &chain, hint).await;
            Done::Tip(tip.map_err(|error| outside.failed("tip", &error)))
        });
    }

    pub(super) fn latest_snapshot(&mut self, op: OpId) {
        self.spawn(op, |outside| async move {
            Done::Snapshot(match latest_snapshot(&*outside.filer, &outside.layout).await {
                Ok(found) => Ok(found),
                Err(error) => Err(outside.failed("latest_snapshot", &error)),
            })
        });
    }

    pub(super) fn store_snapshot(&mut self, op: OpId, version: Version, bytes: Bytes) {
        self.spawn(op, |outside| async move {
            let key = outside.layout.snapshot(version);
            Done::Stored(match outside.filer.create(&key, bytes).await {
                // One that is there already has the same bytes: a state is a function of its version.
                Ok(_) => Ok(()),
                Err(error) => Err(outside.failed("store_snapshot", error.error())),
            })
        });
    }

    pub(super) fn free(&mut self, op: OpId, chain: Chain, below: u64) {
        self.spawn(op, |outside| async move {
            Done::Stored(match free(&*outside.filer, &outside.layout, &chain, below).await {
                Ok(()) => Ok(()),
                Err(error) => Err(outside.failed("free", &error)),
            })
        });
    }
}

async fn snapshots(filer: &dyn Filer, layout: &Layout) -> Result<Vec<Key>, StoreError> {
    let (prefix, mut keys) = (layout.snapshot_prefix(), Vec::<Key>::new());
    loop {
        let page = filer.list(&prefix, keys.last(), SNAPSHOT_PAGE).await?;
        let full = page.len() >= SNAPSHOT_PAGE;
        keys.extend(page.into_iter().map(|listed| listed.key));
        if !full {
            keys.retain(|key| Layout::number_of(key).is_some());
            return Ok(keys);
        }
    }
}

/// The newest snapshot. A listing may be stale: the log that follows an older snapshot tells the core so.
async fn latest_snapshot(filer: &dyn Filer, layout: &Layout) -> Result<Option<(Version, Bytes)>, StoreError> {
    for key in snapshots(filer, layout).await?.iter().rev() {
        // One that was listed and is gone was pruned: an older one would be older than the log.
        if let (Some(version), Some(bytes)) = (Layout::number_of(key), filer.read(key).await?) {
            return Ok(Some((Version(version), bytes)));
        }
    }
    Ok(None)
}

/// Frees a chain below a number. Snapshots of freed log entries go after their entries, the newest never: from it the log is read.
async fn free(filer: &dyn Filer, layout: &Layout, chain: &Chain, below: u64) -> Result<(), StoreError> {
    chain::free_below(filer, layout, chain, below).await?;
    if *chain == Chain::ClusterLog {
        let keys = snapshots(filer, layout).await?;
        let older = keys.len().saturating_sub(1);
        for key in keys.into_iter().take(older) {
            if Layout::number_of(&key).is_some_and(|version| version < below) {
                filer.remove(&key).await?;
            }
        }
    }
    Ok(())
}
