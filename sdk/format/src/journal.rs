//! Journal objects: what one broker epoch commits, slot by slot.
//!
//! An object is a fixed header, an index that describes each entry, and a body with the batches one after the other. The header
//! and the index carry their own CRC32C, each batch carries its own, so a reader can fetch the index first and then single
//! batches by byte range. A *fence* is an object of the same slot space with kind `fence` and no entries.

mod codec;
mod replay;

pub use replay::{Contradiction, Replay};

use crate::batch::EncodedBatch;
use refstream_types::{
    ByteRange, Epoch, Offset, PartitionId, PartitionRange, ProducerEpoch, ProducerId, SegmentId, Sequence, Slot,
    Timestamp, Token,
};

/// Bytes of the fixed header.
pub const HEADER_BYTES: usize = 64;
/// The longest journal object, in bytes.
pub const MAX_OBJECT_BYTES: usize = 64 << 20;
/// The most entries of one object. Batches reach [`MAX_OBJECT_BYTES`] before that.
pub const MAX_OBJECT_ENTRIES: usize = 1 << 20;
/// Batches of one producer and partition that may be undecided at once, and that a snapshot remembers; as in Kafka.
pub const MAX_IN_FLIGHT: usize = 5;

/// A batch where it was placed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedBatch {
    /// The segment that took it.
    pub segment: SegmentId,
    /// Its partition.
    pub partition: PartitionId,
    /// The offset of its first record.
    pub base_offset: Offset,
    /// When the broker placed it; never decreases within a partition.
    pub append_time: Timestamp,
    /// The batch.
    pub batch: EncodedBatch,
}

/// One batch that a producer's state remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RememberedBatch {
    /// Sequence of its first record.
    pub first: Sequence,
    /// Records in it.
    pub records: u32,
    /// The offset it got.
    pub base_offset: Offset,
    /// Its append time.
    pub append_time: Timestamp,
}

/// What one partition knows of one producer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProducerState {
    /// The partition.
    pub partition: PartitionId,
    /// The producer.
    pub id: ProducerId,
    /// The highest epoch seen.
    pub epoch: ProducerEpoch,
    /// Its last batches, oldest first, 0 to [`MAX_IN_FLIGHT`].
    pub batches: Vec<RememberedBatch>,
}

/// All that a segment's next owner needs to carry on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentState {
    /// The segment.
    pub segment: SegmentId,
    /// Its partitions.
    pub range: PartitionRange,
    /// The slot of the owner's own [`Entry::Adopt`]: no batch of the segment is below it.
    pub adopted: Slot,
    /// Encoded bytes of the batches that the segment holds; 0 in [`Entry::Adopt`].
    pub bytes: u64,
    /// The next offset of each partition of `range`.
    pub next_offsets: Vec<Offset>,
    /// The last append time given.
    pub last_append_time: Timestamp,
    /// Producers with a live sequence, in any order.
    pub producers: Vec<ProducerState>,
}

/// Where one batch of an earlier slot is; in checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchLocation {
    /// The journal object.
    pub slot: Slot,
    /// The batch's bytes within the object.
    pub bytes: (u32, u32),
    /// The segment that took it.
    pub segment: SegmentId,
    /// Its partition.
    pub partition: PartitionId,
    /// The offset of its first record.
    pub base_offset: Offset,
    /// Records in it.
    pub records: u32,
    /// Its append time.
    pub append_time: Timestamp,
}

impl BatchLocation {
    /// The batch's bytes within its object.
    pub fn range(&self) -> ByteRange {
        ByteRange { offset: self.bytes.0.into(), length: self.bytes.1.into() }
    }
}

/// A summary of the journal so far, written every K slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// The slot of the checkpoint before this one; `None` for the first.
    pub previous: Option<Slot>,
    /// The open segments as they stand *before* this object's own batches.
    pub segments: Vec<SegmentState>,
    /// The batches of the slots from `previous` (inclusive) up to this object (exclusive).
    pub batches: Vec<BatchLocation>,
}

/// One entry of a journal object, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Records.
    Batch(PlacedBatch),
    /// The owner took over the segment with this state; precedes its first batch.
    Adopt(SegmentState),
    /// The owner ended the segment: this is its final state, and none of its batches follows in any slot.
    Seal(SegmentState),
    /// A summary.
    Checkpoint(Checkpoint),
    /// These producers, unheard of for the expiry time, were forgotten in a segment.
    Expire {
        /// The segment.
        segment: SegmentId,
        /// Partition and producer.
        producers: Vec<(PartitionId, ProducerId)>,
    },
}

/// What stands in a journal's slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JournalObject {
    /// Entries that the journal's owner committed; none in a heartbeat.
    Entries {
        /// The journal.
        epoch: Epoch,
        /// The slot.
        slot: Slot,
        /// The writer's token for this slot.
        token: Token,
        /// The latest slot that carries a checkpoint and is below this one.
        checkpoint: Option<Slot>,
        /// How many slots, this one included, were not known to be committed when it was made: the slot so far below it was.
        /// Proves that a slot which is missing now was there. 0: not told.
        in_flight: u8,
        /// What it holds.
        entries: Vec<Entry>,
    },
    /// The end: whoever wrote it, nothing at this slot or above was ever committed.
    Fence {
        /// The journal.
        epoch: Epoch,
        /// The slot.
        slot: Slot,
        /// The fencer's token.
        token: Token,
        /// Who fenced.
        by: Epoch,
    },
}

/// What kind of object stands in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JournalKind {
    /// Entries of the journal's owner.
    Entries {
        /// The latest slot that carries a checkpoint and is below this one.
        checkpoint: Option<Slot>,
    },
    /// The end of the journal.
    Fence {
        /// Who fenced.
        by: Epoch,
    },
}

/// What an object's first [`HEADER_BYTES`] bytes say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalHead {
    /// The journal.
    pub epoch: Epoch,
    /// The slot.
    pub slot: Slot,
    /// The writer's or fencer's token.
    pub token: Token,
    /// What it is.
    pub kind: JournalKind,
}

/// What an object's index says, read without its batches: for readers that fetch single batches later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalIndex {
    /// The slot.
    pub slot: Slot,
    /// Whether it is a fence: there is nothing in it.
    pub fence: bool,
    /// The latest slot that carries a checkpoint and is below this one.
    pub previous: Option<Slot>,
    /// The checkpoint that it carries itself.
    pub checkpoint: Option<Checkpoint>,
    /// Where its batches are, in order; equal to [`JournalObject::locations`].
    pub batches: Vec<BatchLocation>,
}

impl JournalIndex {
    /// The highest slot up to this one that carries a checkpoint.
    pub fn latest_checkpoint(&self) -> Option<Slot> {
        if self.checkpoint.is_some() { Some(self.slot) } else { self.previous }
    }
}

#[cfg(test)]
mod tests;
