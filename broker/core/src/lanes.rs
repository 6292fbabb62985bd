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
    /// Bulk batches wait, and the object that was begun took none.
    bulk_waited: bool,
    /// The object that was begun takes a bulk batch before all others.
    bulk_first: bool,
}

impl Lanes {
    pub(crate) fn push(&mut self, queued: Queued) {
        self.ready += queued.len();
        if queued.bulk { self.bulk.push_back(queued) } else { self.live.push_back(queued) }
    }

    /// Begins an object: if the one before took no bulk batch though some waited, this one takes one first.
    pub(crate) fn begin(&mut self) {
        self.bulk_first = self.bulk_waited && !self.bulk.is_empty();
        self.bulk_waited = !self.bulk.is_empty();
    }

    /// The next batch for the object that was begun and holds `used` of at most `limit` bytes; it takes at least one batch.
    pub(crate) fn next(&mut self, used: usize, limit: usize) -> Option<Queued> {
        let kept = if self.bulk.is_empty() { 0 } else { limit / BULK_SHARE };
        let fits = |lane: &VecDeque<Queued>, limit: usize| {
            lane.front().is_some_and(|first| used == 0 || used + first.len() <= limit)
        };
        let live = !self.bulk_first && fits(&self.live, limit - kept);
        let queued = if live {
            self.live.pop_front()
        } else if fits(&self.bulk, limit) {
            self.bulk_first = false;
            self.bulk_waited = false;
            self.bulk.pop_front()
        } else {
            None
        }?;
        self.ready -= queued.len();
        Some(queued)
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

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use refstream_format::batch::BatchBuilder;
    use refstream_types::{ContentHash, Record, Value};

    fn queued(index: usize, bulk: bool) -> Queued {
        let mut builder = BatchBuilder::new();
        let value = Value::Inline { bytes: Bytes::from_static(b"value"), content_hash: ContentHash([0; 32]) };
        builder.push(&Record::new(value)).unwrap();
        let batch = builder.finish(None).unwrap();
        let (ticket, topic, partition) = (Ticket(0), TopicId(1), PartitionId(0));
        Queued { ticket, index, topic, partition, batch, bulk, arrived: Duration::ZERO }
    }

    fn object(lanes: &mut Lanes, limit: usize) -> Vec<usize> {
        let (mut used, mut taken) = (0, Vec::new());
        lanes.begin();
        while let Some(queued) = lanes.next(used, limit) {
            used += queued.len();
            taken.push(queued.index);
        }
        taken
    }

    #[test]
    fn live_batches_go_first_and_bulk_keeps_its_share() {
        let mut lanes = Lanes::default();
        let length = queued(0, false).len();
        (0..40).for_each(|n| lanes.push(queued(100 + n, true)));
        (0..40).for_each(|n| lanes.push(queued(n, false)));
        let first = object(&mut lanes, length * 16);
        assert_eq!(first, (0..14).chain(100..102).collect::<Vec<_>>());
    }

    #[test]
    fn a_flood_of_large_live_batches_does_not_starve_bulk() {
        let mut lanes = Lanes::default();
        (0..4).for_each(|n| lanes.push(queued(n, false)));
        (0..4).for_each(|n| lanes.push(queued(100 + n, true)));
        let objects: Vec<_> = (0..4).flat_map(|_| object(&mut lanes, 1)).collect();
        assert_eq!(objects, [0, 100, 1, 101]);
    }

    #[test]
    fn parked_batches_return_in_order_before_later_ones() {
        let mut lanes = Lanes::default();
        (0..4).for_each(|n| lanes.push(queued(n, false)));
        lanes.begin();
        for _ in 0..2 {
            let queued = lanes.next(0, 1).unwrap();
            lanes.park(queued);
        }
        assert!(lanes.oldest_parked().is_some());
        lanes.unpark();
        assert_eq!(object(&mut lanes, usize::MAX), [0, 1, 2, 3]);
        assert_eq!((lanes.ready_bytes(), lanes.is_idle()), (0, true));
    }
}
