//! Carries out the core's store operations with the real chains, each as a task.

use crate::executor::{Clock, Executor};
use bytes::Bytes;
use refstream_core::{CommitOutcome, Done, Effect, OpId};
use refstream_filer_adapter::{Filer, Runtime, StoreError, chain, memory::MemoryStore};
use refstream_types::{Chain, Key, Layout, Version};
use std::{cell::RefCell, rc::Rc};

/// Operations that ended, of which process of which broker.
pub(crate) type Ended = Rc<RefCell<Vec<(usize, OpId, Done)>>>;

/// What operations need.
#[derive(Clone)]
pub(crate) struct Outside {
    pub(crate) store: MemoryStore,
    pub(crate) clock: Clock,
    pub(crate) layout: Layout,
    pub(crate) ended: Ended,
    /// Which process asks.
    pub(crate) process: usize,
}

impl Outside {
    /// Starts an operation; gives other effects back.
    pub(crate) fn start(&self, executor: &mut Executor, effect: Effect) -> Option<Effect> {
        let outside = self.clone();
        match effect {
            Effect::Commit { op, chain, number, bytes } => executor.spawn(async move {
                let Self { store, clock, layout, .. } = &outside;
                let runtime: &dyn Runtime = clock;
                let outcome = match chain::commit(store, runtime, layout, &chain, number, bytes).await {
                    chain::Commit::Committed => CommitOutcome::Committed,
                    chain::Commit::Taken(bytes) => CommitOutcome::Taken(bytes),
                    chain::Commit::Freed => CommitOutcome::Freed,
                    chain::Commit::Unknown(error) => CommitOutcome::Unknown(error.to_string()),
                };
                outside.end(op, Done::Commit(outcome));
            }),
            Effect::Read { op, chain, number } => executor.spawn(async move {
                let read = chain::read(&outside.store, &outside.layout, &chain, number).await;
                outside.end(op, Done::Read(read.map_err(text)));
            }),
            Effect::ReadLog { op, number } => executor.spawn(async move {
                let Self { store, layout, .. } = &outside;
                let done = match chain::link(store, layout, &Chain::ClusterLog, number).await {
                    Ok(chain::Link::Present(bytes)) => Done::Read(Ok(Some(bytes))),
                    Ok(chain::Link::Missing) => Done::Read(Ok(None)),
                    Ok(chain::Link::Freed) => Done::Freed,
                    Err(error) => Done::Read(Err(text(error))),
                };
                outside.end(op, done);
            }),
            Effect::Tip { op, chain, hint } => executor.spawn(async move {
                let tip = chain::tip(&outside.store, &outside.layout, &chain, hint).await;
                outside.end(op, Done::Tip(tip.map_err(text)));
            }),
            Effect::LatestSnapshot { op } => executor.spawn(async move {
                let latest = latest_snapshot(&outside.store, &outside.layout).await;
                outside.end(op, Done::Snapshot(latest.map_err(text)));
            }),
            Effect::StoreSnapshot { op, version, bytes } => executor.spawn(async move {
                let created = outside.store.create(&outside.layout.snapshot(version), bytes).await;
                outside.end(op, Done::Stored(created.map(|_| ()).map_err(|error| error.to_string())));
            }),
            Effect::Free { op, chain, below } => executor.spawn(async move {
                let freed = free(&outside.store, &outside.layout, &chain, below).await;
                outside.end(op, Done::Stored(freed.map_err(text)));
            }),
            effect => return Some(effect),
        }
        None
    }

    fn end(&self, op: OpId, done: Done) {
        self.ended.borrow_mut().push((self.process, op, done));
    }
}

fn text(error: StoreError) -> String {
    error.to_string()
}

async fn snapshots(store: &MemoryStore, layout: &Layout) -> Result<Vec<Key>, StoreError> {
    let listed = store.list(&layout.snapshot_prefix(), None, usize::MAX).await?;
    Ok(listed.into_iter().map(|listed| listed.key).filter(|key| Layout::number_of(key).is_some()).collect())
}

async fn latest_snapshot(store: &MemoryStore, layout: &Layout) -> Result<Option<(Version, Bytes)>, StoreError> {
    for key in snapshots(store, layout).await?.iter().rev() {
        if let (Some(version), Some(bytes)) = (Layout::number_of(key), store.read(key).await?) {
            return Ok(Some((Version(version), bytes)));
        }
    }
    Ok(None)
}

async fn free(store: &MemoryStore, layout: &Layout, chain: &Chain, below: u64) -> Result<(), StoreError> {
    chain::free_below(store, layout, chain, below).await?;
    if *chain == Chain::ClusterLog {
        for key in snapshots(store, layout).await? {
            if Layout::number_of(&key).is_some_and(|version| version < below) {
                store.remove(&key).await?;
            }
        }
    }
    Ok(())
}
