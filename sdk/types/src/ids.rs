//! Numbers that name things. Each is its own type, so that an offset can never be passed where a slot is meant.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl $name {
            /// The number itself.
            pub const fn get(self) -> $inner {
                self.0
            }
            /// The number that follows.
            ///
            /// # Panics
            /// When the number space is exhausted, which no deployment reaches.
            #[must_use]
            pub const fn next(self) -> Self {
                Self(self.0.checked_add(1).expect("number space exhausted"))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl From<$inner> for $name {
            fn from(value: $inner) -> Self {
                Self(value)
            }
        }
    };
}

number!(
    /// A topic's identity: given once by the catalogue and never reused, unlike its name.
    TopicId(u64)
);
number!(
    /// A partition's number within its topic, from 0.
    PartitionId(u32)
);
number!(
    /// A record's position within its partition: dense from 0, never reused. At most `i64::MAX`, as in Kafka.
    Offset(u64)
);
number!(
    /// A segment's number within its topic, from 1, in order of opening.
    SegmentNumber(u64)
);
number!(
    /// Taken by a broker when it starts: unique, increasing, from 1. The owner of the journal of the same number.
    Epoch(u64)
);
number!(
    /// A position in a journal, from 1.
    Slot(u64)
);
number!(
    /// A position in a numbered chain of immutable versions (cluster log, manifest), from 1. 0 means "before the first".
    Version(u64)
);
number!(
    /// The term of a leader: a lower term never builds on a higher one.
    LeaderTerm(u64)
);
number!(
    /// A producer: `epoch << 32 | counter` of the broker that gave it out.
    ProducerId(u64)
);
number!(
    /// Raised when a named producer is opened again, so that its predecessor is fenced.
    ProducerEpoch(u32)
);
number!(
    /// A record's position in its producer's sequence to one partition, from 0; counts records, not batches.
    Sequence(u64)
);

impl Offset {
    /// The largest offset: offsets are `i64` in Kafka and Parquet.
    pub const MAX: Self = Self(i64::MAX as u64);

    /// The offset `records` further on; `None` past [`Offset::MAX`].
    pub fn checked_add(self, records: u64) -> Option<Self> {
        self.0.checked_add(records).map(Self).filter(|o| *o <= Self::MAX)
    }
}

impl ProducerId {
    /// The id number `counter` that the broker of `epoch` gives out.
    pub const fn new(epoch: Epoch, counter: u32) -> Self {
        Self(epoch.0 << 32 | counter as u64)
    }
}

/// A segment: a contiguous range of one topic's partitions over a stretch of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SegmentId {
    /// The topic it belongs to.
    pub topic: TopicId,
    /// Its number within the topic.
    pub number: SegmentNumber,
}

impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/s{:012}", self.topic, self.number.0)
    }
}

/// The partitions `lo..hi` of a topic; never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PartitionRange {
    lo: PartitionId,
    hi: PartitionId,
}

impl PartitionRange {
    /// The range `lo..hi`; `None` when it would be empty.
    pub fn new(lo: PartitionId, hi: PartitionId) -> Option<Self> {
        (lo < hi).then_some(Self { lo, hi })
    }
    /// The first partition.
    pub const fn lo(self) -> PartitionId {
        self.lo
    }
    /// The partition after the last one.
    pub const fn hi(self) -> PartitionId {
        self.hi
    }
    /// How many partitions: at least 1.
    #[allow(clippy::len_without_is_empty)]
    pub const fn len(self) -> usize {
        (self.hi.0 - self.lo.0) as usize
    }
    /// Whether the partition lies within.
    pub fn contains(self, partition: PartitionId) -> bool {
        self.lo <= partition && partition < self.hi
    }
    /// Whether the two share a partition.
    pub fn overlaps(self, other: Self) -> bool {
        self.lo < other.hi && other.lo < self.hi
    }
    /// What is left of it without the partitions of `taken`, ascending: none, one or two ranges.
    pub fn without(self, taken: Self) -> impl Iterator<Item = Self> {
        let below = Self::new(self.lo, self.hi.min(taken.lo));
        let above = Self::new(self.lo.max(taken.hi), self.hi);
        below.into_iter().chain(above)
    }
    /// The partitions, ascending.
    pub fn iter(self) -> impl ExactSizeIterator<Item = PartitionId> + DoubleEndedIterator {
        (self.lo.0..self.hi.0).map(PartitionId)
    }
    /// The partition's position within the range.
    pub fn index_of(self, partition: PartitionId) -> Option<usize> {
        self.contains(partition).then(|| (partition.0 - self.lo.0) as usize)
    }
}

impl fmt::Display for PartitionRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}, {})", self.lo, self.hi)
    }
}

/// Who produced a batch, and where it stands in that producer's sequence: what makes a retry recognisable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ProducerStamp {
    /// The producer.
    pub id: ProducerId,
    /// Its epoch.
    pub epoch: ProducerEpoch,
    /// The sequence of the batch's first record, in the batch's partition.
    pub first: Sequence,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_without_another_is_what_the_other_does_not_have() {
        let ranges = || {
            let ends = (0..6).flat_map(|lo| (0..6).map(move |hi| (PartitionId(lo), PartitionId(hi))));
            ends.filter_map(|(lo, hi)| PartitionRange::new(lo, hi))
        };
        for range in ranges() {
            for taken in ranges() {
                let left: Vec<_> = range.without(taken).flat_map(PartitionRange::iter).collect();
                let expected: Vec<_> = range.iter().filter(|partition| !taken.contains(*partition)).collect();
                assert_eq!(left, expected, "{range} without {taken}");
                assert!(range.without(taken).count() <= 2);
            }
        }
    }
}
