//! A segment's running state: next offsets, last append time, producers. A pure fold over the segment's journal entries, so that
//! the broker that writes them and the one that reads them after a crash come to the same state.

use crate::{
    interface::AppendError,
    producers::{Producers, Verdict},
};
use refstream_format::{
    batch::BatchHeader,
    journal::{PlacedBatch, RememberedBatch, SegmentState},
};
use refstream_types::{Offset, PartitionId, PartitionRange, SegmentId, Timestamp};
use std::time::Duration;

/// The running state of one segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ledger {
    pub(crate) range: PartitionRange,
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
    /// A ledger that begins at these offsets, without producers.
    pub(crate) fn new(range: PartitionRange, next_offsets: Vec<Offset>) -> Self {
        Self {
            range,
            next_offsets,
            last_append_time: Timestamp::from_micros(i64::MIN),
            producers: Producers::default(),
        }
    }

    /// Carries on from a final state, for the partitions that both have.
    pub(crate) fn carry_on(&mut self, state: &SegmentState, over: PartitionRange, now: Duration, expiry: Duration) {
        self.last_append_time = self.last_append_time.max(state.last_append_time);
        self.producers.take_over(&state.producers, over, state.last_append_time, now, expiry);
    }

    /// As it stands in journals.
    pub(crate) fn state(&self, segment: SegmentId) -> SegmentState {
        SegmentState {
            segment,
            range: self.range,
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
        header: &BatchHeader,
        wall: Timestamp,
        producer_expires_at: Duration,
    ) -> Result<Place, AppendError> {
        let append_time = self.append_time(wall);
        let next = self.range.index_of(partition).and_then(|at| self.next_offsets.get_mut(at));
        let next = next.ok_or(AppendError::NotServed(partition))?;
        let base_offset = *next;
        let after = base_offset.checked_add(header.records.into());
        *next = after.ok_or(AppendError::Unavailable("the partition's offsets are exhausted"))?;
        self.last_append_time = append_time;
        if let Some(stamp) = header.producer {
            let batch = RememberedBatch { first: stamp.first, records: header.records, base_offset, append_time };
            self.producers.placed(partition, stamp, batch, producer_expires_at);
        }
        Ok(Place { base_offset, append_time })
    }

    /// Follows a batch that another broker placed; what is wrong when it does not fit.
    pub(crate) fn follow(&mut self, placed: &PlacedBatch) -> Result<(), String> {
        let header = placed.batch.header();
        let place = self.place(placed.partition, &header, placed.append_time, Duration::ZERO);
        let expected = Place { base_offset: placed.base_offset, append_time: placed.append_time };
        match place {
            Ok(place) if place == expected => Ok(()),
            Ok(place) => Err(format!(
                "segment {}, partition {}: a batch stands at offset {}, expected {}",
                placed.segment, placed.partition, placed.base_offset, place.base_offset
            )),
            Err(error) => Err(format!("segment {}, partition {}: {error}", placed.segment, placed.partition)),
        }
    }
}
