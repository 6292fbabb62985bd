//! What a segment knows of its producers: the proof that a retry is a retry.
//!
//! For each partition and producer the table remembers the producer's epoch and its last [`MAX_IN_FLIGHT`] batches with the
//! offsets they got. Sequences count records. The table changes only when a batch is placed in a journal object, so it is the
//! fold of the journal; whoever answers from it waits until the last placed slot is durable.

use crate::interface::AppendError;
use refstream_format::journal::{MAX_IN_FLIGHT, ProducerState, RememberedBatch};
use refstream_types::{Offset, PartitionId, ProducerEpoch, ProducerId, ProducerStamp, Sequence, Timestamp};
use std::{collections::BTreeMap, time::Duration};

/// A producer that comes with a segment from an earlier broker is kept for at least this part of the expiry.
const LEAST_PART_OF_EXPIRY: u32 = 7;

/// What a batch is to a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The next one of its producer.
    Fresh,
    /// It was placed before.
    Duplicate { base_offset: Offset, append_time: Timestamp },
    /// It does not follow.
    Refused(AppendError),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Known {
    epoch: ProducerEpoch,
    /// Oldest first.
    batches: Vec<RememberedBatch>,
    /// Monotonic; forgotten from then on.
    expires_at: Duration,
}

impl Known {
    fn expected(&self) -> Sequence {
        self.batches.last().map_or(Sequence(0), |b| Sequence(b.first.0.saturating_add(b.records.into())))
    }
}

/// The producers of one segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Producers(BTreeMap<(PartitionId, ProducerId), Known>);

impl Producers {
    /// Judges a batch; changes nothing.
    pub(crate) fn judge(&self, partition: PartitionId, stamp: ProducerStamp, records: u32) -> Verdict {
        let refuse = |expected| Verdict::Refused(AppendError::OutOfSequence { given: stamp.first, expected });
        let Some(known) = self.0.get(&(partition, stamp.id)) else {
            return match stamp.first {
                Sequence(0) => Verdict::Fresh,
                _ => Verdict::Refused(AppendError::UnknownProducer(stamp.id)),
            };
        };
        if stamp.epoch < known.epoch {
            return Verdict::Refused(AppendError::ProducerFenced { given: stamp.epoch, current: known.epoch });
        }
        if stamp.epoch > known.epoch {
            return if stamp.first == Sequence(0) { Verdict::Fresh } else { refuse(Sequence(0)) };
        }
        let same = |b: &&RememberedBatch| b.first == stamp.first && b.records == records;
        if let Some(earlier) = known.batches.iter().find(same) {
            return Verdict::Duplicate { base_offset: earlier.base_offset, append_time: earlier.append_time };
        }
        if stamp.first == known.expected() { Verdict::Fresh } else { refuse(known.expected()) }
    }

    /// A batch was placed.
    pub(crate) fn placed(
        &mut self,
        partition: PartitionId,
        stamp: ProducerStamp,
        batch: RememberedBatch,
        expires_at: Duration,
    ) {
        let known = self.0.entry((partition, stamp.id)).or_insert_with(|| Known {
            epoch: stamp.epoch,
            batches: Vec::with_capacity(MAX_IN_FLIGHT),
            expires_at,
        });
        if known.epoch != stamp.epoch {
            known.epoch = stamp.epoch;
            known.batches.clear();
        }
        if known.batches.len() >= MAX_IN_FLIGHT {
            known.batches.remove(0);
        }
        known.batches.push(batch);
        known.expires_at = expires_at;
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// All of them, with the time from which each is forgotten.
    pub(crate) fn expiries(&self) -> impl Iterator<Item = (Duration, (PartitionId, ProducerId))> {
        self.0.iter().map(|(key, known)| (known.expires_at, *key))
    }

    /// Forgets producers.
    pub(crate) fn forget(&mut self, producers: &[(PartitionId, ProducerId)]) {
        for producer in producers {
            self.0.remove(producer);
        }
    }

    /// Keeps the times at which those of an earlier segment of this process would have been forgotten.
    pub(crate) fn keep_expiries(&mut self, earlier: &Self) {
        for (key, known) in &mut self.0 {
            if let Some(earlier) = earlier.0.get(key) {
                known.expires_at = earlier.expires_at;
            }
        }
    }

    /// As they stand in journals, ascending.
    pub(crate) fn states(&self) -> Vec<ProducerState> {
        self.0
            .iter()
            .map(|((partition, id), known)| ProducerState {
                partition: *partition,
                id: *id,
                epoch: known.epoch,
                batches: known.batches.clone(),
            })
            .collect()
    }

    /// Takes over producers from a journal. `last` is the last append time of their segment: how long they
    /// have been silent by the brokers' own stamps counts towards the expiry.
    pub(crate) fn take_over(&mut self, states: &[ProducerState], last: Timestamp, now: Duration, expiry: Duration) {
        for state in states {
            let heard = state.batches.last().map_or(last, |batch| batch.append_time);
            let silent = last.as_micros().saturating_sub(heard.as_micros());
            let silent = Duration::from_micros(u64::try_from(silent).unwrap_or(0));
            let left = expiry.saturating_sub(silent).max(expiry / LEAST_PART_OF_EXPIRY);
            let known = Known { epoch: state.epoch, batches: state.batches.clone(), expires_at: now + left };
            self.0.insert((state.partition, state.id), known);
        }
    }
}

#[cfg(test)]
mod tests;
