//! Stretches of journal objects that were read for tails.

use super::lock;
use bytes::Bytes;
use refstream_types::{Epoch, Slot};
use std::{
    collections::{HashMap, VecDeque},
    future::Future,
    sync::{Arc, Mutex},
};
use tokio::sync::{OnceCell, Semaphore};

/// Reads of journal objects under way at once, for all tails together.
const READS: usize = 32;

/// Bytes `from..to` of a journal object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Stretch {
    pub(super) epoch: Epoch,
    pub(super) slot: Slot,
    pub(super) from: u32,
    pub(super) to: u32,
}

#[derive(Debug, Default)]
struct Kept {
    blocks: HashMap<Stretch, Arc<OnceCell<Bytes>>>,
    order: VecDeque<Stretch>,
    bytes: usize,
}

/// Keeps what was read lately, up to a limit; two readers of one stretch share the read.
#[derive(Debug)]
pub(super) struct Blocks {
    kept: Mutex<Kept>,
    reads: Semaphore,
    limit: usize,
}

impl Blocks {
    pub(super) fn new(limit: usize) -> Self {
        Self { kept: Mutex::default(), reads: Semaphore::new(READS), limit }
    }

    /// The stretch, when it is here.
    pub(super) fn peek(&self, stretch: &Stretch) -> Option<Bytes> {
        lock(&self.kept).blocks.get(stretch).and_then(|cell| cell.get().cloned())
    }

    /// The stretch, by `read` unless it is here or being read.
    pub(super) async fn get<E>(
        &self,
        stretch: Stretch,
        read: impl Future<Output = Result<Bytes, E>>,
    ) -> Result<Bytes, E> {
        let cell = Arc::clone(lock(&self.kept).blocks.entry(stretch).or_default());
        let _forget = Forget { blocks: self, stretch };
        let mut fresh = false;
        let result = cell
            .get_or_try_init(|| async {
                let _permit = self.reads.acquire().await;
                fresh = true;
                read.await
            })
            .await
            .cloned();
        if fresh && let Ok(bytes) = &result {
            self.keep(stretch, bytes.len());
        }
        result
    }

    fn keep(&self, stretch: Stretch, bytes: usize) {
        let mut kept = lock(&self.kept);
        kept.order.push_back(stretch);
        kept.bytes += bytes;
        while kept.bytes > self.limit {
            let Some(oldest) = kept.order.pop_front() else { break };
            if let Some(bytes) = kept.blocks.remove(&oldest).and_then(|cell| cell.get().map(Bytes::len)) {
                kept.bytes -= bytes;
            }
        }
    }
}

/// Forgets a stretch whose read failed or was given up, unless somebody else reads it.
struct Forget<'a> {
    blocks: &'a Blocks,
    stretch: Stretch,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        let mut kept = lock(&self.blocks.kept);
        // Two hold the cell: the map, and the reader that goes.
        if kept.blocks.get(&self.stretch).is_some_and(|cell| cell.get().is_none() && Arc::strong_count(cell) <= 2) {
            kept.blocks.remove(&self.stretch);
        }
    }
}
