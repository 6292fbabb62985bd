//! A segment's running state: next offsets, last append time, producers. It changes only when something is placed in a journal
//! object, so that it always equals what a replay of the journal (`refstream_format::journal::Replay`) comes to.

use crate::{
    interface::AppendError,
    producers::{Producers, Verdict},
};
use refstream_format::{
    batch::{BatchHeader, EncodedBatch},
    journal::{RememberedBatch, SegmentState},
};
use refstream_types::{Offset, PartitionId, PartitionRange, SegmentId, Slot, Timestamp};
use std::time::Duration;

/// The running state of one segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ledger {
    pub(crate) range: PartitionRange,
    /// The slot of the `Adopt` entry.
    pub(crate) adopted: Slot,
    /// Encoded bytes of its batches.
    pub(crate) bytes: u64,
    pub(crate) next_offsets: Vec<Offset>,
    pub(crate) last_append_time: Timestamp,
    pub(crate) producers: Producers,
}

/// Where a batch goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) base_offset: Offset,
    pub(crate) append_time: Timestamp,
}

impl Ledger {
    /// Goes on from a state that stands in a journal.
    pub(crate) fn new(state: &SegmentState, now: Duration, expiry: Duration) -> Self {
        let mut producers = Producers::default();
        producers.take_over(&state.producers, state.last_append_time, now, expiry);
        Self {
            range: state.range,
            adopted: state.adopted,
            bytes: state.bytes,
            next_offsets: state.next_offsets.clone(),
            last_append_time: state.last_append_time,
            producers,
        }
    }

    /// As it stands in journals.
    pub(crate) fn state(&self, segment: SegmentId) -> SegmentState {
        SegmentState {
            segment,
            range: self.range,
            adopted: self.adopted,
            bytes: self.bytes,
            next_offsets: self.next_offsets.clone(),
            last_append_time: self.last_append_time,
            producers: self.producers.states(),
        }
    }

    /// Judges a batch by its producer; changes nothing.
    pub(crate) fn judge(&self, partition: PartitionId, header: &BatchHeader) -> Verdict {
        match header.producer {
            Some(stamp) => self.producers.judge(partition, stamp, header.records),
            None => Verdict::Fresh,
        }
    }

    /// The append time of a batch placed now: it never decreases (invariant *append-time-rises*).
    pub(crate) fn append_time(&self, wall: Timestamp) -> Timestamp {
        self.last_append_time.max(wall)
    }

    /// Gives a fresh batch its place (invariant *offsets-at-placement*: this is the only way to get one).
    pub(crate) fn place(
        &mut self,
        partition: PartitionId,
        batch: &EncodedBatch,
        wall: Timestamp,
        producer_expires_at: Duration,
    ) -> Result<Place, AppendError> {
        let header = batch.header();
        let append_time = self.append_time(wall);
        let next = self.range.index_of(partition).and_then(|at| self.next_offsets.get_mut(at));
        let next = next.ok_or(AppendError::NotServed(partition))?;
        let base_offset = *next;
        let after = base_offset.checked_add(header.records.into());
        *next = after.ok_or(AppendError::Unavailable("the partition's offsets are exhausted"))?;
        self.last_append_time = append_time;
        self.bytes += batch.bytes().len() as u64;
        if let Some(stamp) = header.producer {
            let batch = RememberedBatch { first: stamp.first, records: header.records, base_offset, append_time };
            self.producers.placed(partition, stamp, batch, producer_expires_at);
        }
        Ok(Place { base_offset, append_time })
    }
}
