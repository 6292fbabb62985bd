//! Batches that wait for their place in a journal object.
//!
//! Live traffic goes first, but a share of each object is kept for bulk traffic (invariant *bulk-moves-on*), so a flood delays
//! live batches by at most one object and is never starved. Priority is decided before offsets are given. A batch whose
//! partition has no segment to go to is parked; parked batches return to the front, in their order, once a segment opens, so
//! batches of one lane and partition never overtake each other (invariant *lane-order*).

use crate::interface::Ticket;
use refstream_format::batch::EncodedBatch;
use refstream_types::{PartitionId, TopicId};
use std::{collections::VecDeque, time::Duration};

/// One part in this many of an object is kept for bulk batches while some wait.
const BULK_SHARE: usize = 8;

/// A batch that waits.
#[derive(Debug)]
pub(crate) struct Queued {
    pub(crate) ticket: Ticket,
    /// Its position in the request.
    pub(crate) index: usize,
    pub(crate) topic: TopicId,
    pub(crate) partition: PartitionId,
    pub(crate) batch: EncodedBatch,
    pub(crate) bulk: bool,
    /// Monotonic.
    pub(crate) arrived: Duration,
}

impl Queued {
    pub(crate) fn len(&self) -> usize {
        self.batch.bytes().len()
    }
}

/// The waiting batches.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    live: VecDeque<Queued>,
    bulk: VecDeque<Queued>,
    parked: VecDeque<Queued>,
    /// Bytes in `live` and `bulk`.
    ready: usize,
}

impl Lanes {
    pub(crate) fn push(&mut self, queued: Queued) {
        self.ready += queued.len();
        if queued.bulk { self.bulk.push_back(queued) } else { self.live.push_back(queued) }
    }

    /// The batches for an object of at most `limit` bytes (at least one batch), live ones first.
    pub(crate) fn take(&mut self, limit: usize) -> Vec<Queued> {
        let kept = if self.bulk.is_empty() { 0 } else { limit / BULK_SHARE };
        let mut taken = Vec::new();
        let mut bytes = 0;
        for (lane, limit) in [(&mut self.live, limit - kept), (&mut self.bulk, limit)] {
            while let Some(first) = lane.front()
                && (taken.is_empty() || bytes + first.len() <= limit)
                && let Some(queued) = lane.pop_front()
            {
                bytes += queued.len();
                self.ready -= queued.len();
                taken.push(queued);
            }
        }
        taken
    }

    /// There is no segment for it now.
    pub(crate) fn park(&mut self, queued: Queued) {
        self.parked.push_back(queued);
    }

    /// A segment opened: parked batches try again, before all others.
    pub(crate) fn unpark(&mut self) {
        while let Some(queued) = self.parked.pop_back() {
            self.ready += queued.len();
            if queued.bulk { self.bulk.push_front(queued) } else { self.live.push_front(queued) }
        }
    }

    /// Takes out the parked batches that `chosen` wants.
    pub(crate) fn take_parked(&mut self, chosen: impl Fn(&Queued) -> bool) -> Vec<Queued> {
        let (taken, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut self.parked).into_iter().partition(chosen);
        self.parked = kept.into();
        taken
    }

    /// Takes out everything.
    pub(crate) fn take_all(&mut self) -> Vec<Queued> {
        self.unpark();
        self.ready = 0;
        self.live.drain(..).chain(self.bulk.drain(..)).collect()
    }

    /// Whether nothing waits but parked batches.
    pub(crate) fn is_idle(&self) -> bool {
        self.live.is_empty() && self.bulk.is_empty()
    }

    /// Bytes that wait for an object.
    pub(crate) fn ready_bytes(&self) -> usize {
        self.ready
    }

    /// When the batch that waits longest (parked ones apart) arrived.
    pub(crate) fn oldest(&self) -> Option<Duration> {
        [self.live.front(), self.bulk.front()].into_iter().flatten().map(|q| q.arrived).min()
    }

    /// When the batch that is parked longest arrived.
    pub(crate) fn oldest_parked(&self) -> Option<Duration> {
        self.parked.front().map(|q| q.arrived)
    }
}
