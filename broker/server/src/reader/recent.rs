//! The newest committed batches, in memory.

use bytes::Bytes;
use refstream_types::{Offset, PartitionId, TopicId};
use std::collections::{HashMap, VecDeque};

/// A batch by where it starts: offsets are never reused, so this names one batch for ever.
pub(super) type BatchKey = (TopicId, PartitionId, Offset);

/// What one batch costs beside its bytes: its key twice, the map's and the queue's slots.
const OVERHEAD: usize = 160;

/// Batches in the order they were committed; the oldest leave first.
#[derive(Debug)]
pub(super) struct Recent {
    batches: HashMap<BatchKey, Bytes>,
    order: VecDeque<BatchKey>,
    bytes: usize,
    limit: usize,
}

impl Recent {
    pub(super) fn new(limit: usize) -> Self {
        Self { batches: HashMap::new(), order: VecDeque::new(), bytes: 0, limit }
    }
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
    pub(super) fn get(&self, key: &BatchKey) -> Option<Bytes> {
        self.batches.get(key).cloned()
    }
    pub(super) fn insert(&mut self, key: BatchKey, batch: Bytes) {
        let cost = batch.len() + OVERHEAD;
        if cost > self.limit {
            return;
        }
        while self.bytes + cost > self.limit {
            let Some(oldest) = self.order.pop_front() else { break };
            if let Some(batch) = self.batches.remove(&oldest) {
                self.bytes -= batch.len() + OVERHEAD;
            }
        }
        self.bytes += cost;
        match self.batches.insert(key, batch) {
            Some(replaced) => self.bytes -= replaced.len() + OVERHEAD,
            None => self.order.push_back(key),
        }
    }
}
