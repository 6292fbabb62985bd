//! Sealed segments, from their owners' journals.

use crate::{Metadata, ReadError, damaged};
use futures::{StreamExt, TryStreamExt, stream};
use refstream_format::{
    DecodeError,
    batch::EncodedBatch,
    cluster_log::{SealedBy, SealedSegment},
    journal::{BatchLocation, Entry, JournalIndex, JournalObject, PlacedBatch, Replay, SegmentState},
};
use refstream_types::{ByteRange, Epoch, Offset, PartitionId, Slot};
use std::collections::BTreeMap;

/// Journal objects that are read at once. Each has up to 64 MiB, and some 4 MiB by default.
const READ_AHEAD: usize = 4;
/// Indexes that are read at once.
const INDEX_READ_AHEAD: usize = 16;
/// Bytes of an object that are read for its index, before its length is known: enough for some thousand batches.
const INDEX_BYTES: usize = 64 << 10;

impl Metadata {
    /// One journal object.
    ///
    /// # Errors
    /// `Gone` when the slot is not there.
    pub async fn journal_object(&self, epoch: Epoch, slot: Slot) -> Result<JournalObject, ReadError> {
        let key = self.layout.journal(epoch, slot);
        let bytes = self.object(&key).await?;
        JournalObject::decode(bytes, (epoch, slot)).map_err(damaged(&key))
    }

    /// One journal object without its batches: most often a single read of its first bytes.
    ///
    /// # Errors
    /// `Gone` when the slot is not there.
    pub async fn journal_index(&self, epoch: Epoch, slot: Slot) -> Result<JournalIndex, ReadError> {
        let key = self.layout.journal(epoch, slot);
        let mut length = INDEX_BYTES;
        loop {
            let range = ByteRange { offset: 0, length: length as u64 };
            let Some(bytes) = self.filer.read_range(&key, range).await? else { return Err(ReadError::Gone(key)) };
            let needed = JournalIndex::encoded_len(&bytes, (epoch, slot)).map_err(damaged(&key))?;
            if needed > length {
                length = needed;
                continue;
            }
            return JournalIndex::decode(&bytes, (epoch, slot)).map_err(damaged(&key));
        }
    }

    /// Where a sealed segment's batches are, ascending by partition, then offset; read from checkpoints, bounded reads.
    ///
    /// # Errors
    /// When an object of the journal is gone or damaged, or the batches do not cover exactly the segment's offsets.
    pub async fn segment_batches(&self, segment: &SealedSegment) -> Result<Vec<BatchLocation>, ReadError> {
        if segment.is_empty() {
            return Ok(Vec::new());
        }
        let (id, epoch) = (segment.opened.id, segment.opened.owner);
        let (first, last) = segment.slots;
        let mut batches: Vec<BatchLocation> = Vec::new();
        let mut take = |found: &[BatchLocation]| {
            batches.extend(found.iter().filter(|batch| batch.segment == id && batch.slot >= first));
        };
        // The slots behind the last checkpoint, that one's own included.
        let mut newest = self.journal_index(epoch, last).await?;
        let mut checkpoint = newest.latest_checkpoint().filter(|slot| *slot > first);
        take(&newest.batches);
        let read = move |slot| self.journal_index(epoch, Slot(slot));
        let mut behind =
            stream::iter(checkpoint.unwrap_or(first).0..last.0).map(read).buffered(INDEX_READ_AHEAD).boxed();
        let mut at_checkpoint = None;
        while let Some(index) = behind.try_next().await? {
            take(&index.batches);
            if Some(index.slot) == checkpoint {
                at_checkpoint = index.checkpoint;
            }
        }
        drop(behind);
        if checkpoint == Some(last) {
            at_checkpoint = newest.checkpoint.take();
        }
        // Then from checkpoint to checkpoint, each of which lists the slots from the one before on.
        while let Some(slot) = checkpoint {
            let refuse = |why| Err(ReadError::Segment { segment: id, why });
            let carried = match at_checkpoint.take() {
                None => self.journal_index(epoch, slot).await?.checkpoint,
                carried => carried,
            };
            let Some(summary) = carried else {
                return refuse(format!("slot {slot} of journal {epoch} should carry a checkpoint"));
            };
            take(&summary.batches);
            if summary.previous.is_some_and(|previous| previous >= slot) {
                return refuse(format!(
                    "the checkpoint of slot {slot} of journal {epoch} is not preceded by a lower one"
                ));
            }
            checkpoint = summary.previous.filter(|previous| *previous > first);
        }
        batches.sort_unstable_by_key(|batch| (batch.partition, batch.base_offset));
        covers(segment, &batches).map_err(|why| ReadError::Segment { segment: id, why })?;
        Ok(batches)
    }

    /// The bytes of one batch, checked.
    ///
    /// # Errors
    /// When the object is gone or damaged.
    pub async fn batch(&self, epoch: Epoch, location: &BatchLocation) -> Result<PlacedBatch, ReadError> {
        let key = self.layout.journal(epoch, location.slot);
        let Some(bytes) = self.filer.read_range(&key, location.range()).await? else {
            return Err(ReadError::Gone(key));
        };
        let batch = EncodedBatch::parse(bytes).map_err(damaged(&key))?;
        if batch.header().records != location.records {
            let why = format!("{} records, its journal says {}", batch.header().records, location.records);
            let error = DecodeError { what: "batch", at: location.bytes.0 as usize, why };
            return Err(ReadError::Damaged { key, error });
        }
        let BatchLocation { segment, partition, base_offset, append_time, .. } = *location;
        Ok(PlacedBatch { segment, partition, base_offset, append_time, batch })
    }

    /// The final state of a sealed segment, producers included.
    ///
    /// # Errors
    /// When an object of the journal is gone or damaged, or the segment was never adopted: its predecessors have its state.
    pub async fn final_state(&self, segment: &SealedSegment) -> Result<SegmentState, ReadError> {
        let (id, epoch) = (segment.opened.id, segment.opened.owner);
        let state = match segment.by {
            SealedBy::Owner { slot } => match self.journal_object(epoch, slot).await? {
                JournalObject::Entries { entries, .. } => entries.into_iter().find_map(|entry| match entry {
                    Entry::Seal(state) if state.segment == id => Some(state),
                    _ => None,
                }),
                JournalObject::Fence { .. } => None,
            },
            SealedBy::Recovery { fence } => self.replayed(segment, fence).await?,
        };
        let fits =
            |state: &SegmentState| state.range == segment.opened.range && state.next_offsets == segment.end_offsets;
        state.filter(fits).ok_or_else(|| {
            let why = format!("journal {epoch} has no final state of it ({:?}) that ends where it does", segment.by);
            ReadError::Segment { segment: id, why }
        })
    }

    /// A segment's state at the fence, from the last checkpoint below it or the segment's adoption, whichever is later.
    async fn replayed(&self, segment: &SealedSegment, fence: Slot) -> Result<Option<SegmentState>, ReadError> {
        let (id, epoch) = (segment.opened.id, segment.opened.owner);
        let Some(last) = fence.0.checked_sub(1).filter(|last| *last >= segment.slots.0.0).map(Slot) else {
            return Ok(None);
        };
        let newest = self.journal_index(epoch, last).await?;
        let from = newest.latest_checkpoint().unwrap_or(Slot(1)).max(segment.slots.0);
        let mut replay = Replay::of(epoch, id);
        let read = move |slot| self.journal_object(epoch, Slot(slot));
        let mut objects = stream::iter(from.0..=last.0).map(read).buffered(READ_AHEAD).boxed();
        while let Some(object) = objects.try_next().await? {
            replay.feed(&object)?;
        }
        drop(objects);
        Ok(replay.open_segment(id).or_else(|| replay.sealed().get(&id).map(|(_, state)| state.clone())))
    }
}

/// Whether `batches`, ascending, hold every offset of the segment exactly once.
fn covers(segment: &SealedSegment, batches: &[BatchLocation]) -> Result<(), String> {
    let starts = segment.opened.range.iter().zip(segment.opened.start_offsets.iter().copied());
    let mut reached: BTreeMap<PartitionId, Offset> = starts.collect();
    for batch in batches {
        let BatchLocation { slot, partition, base_offset, records, .. } = batch;
        let Some(next) = reached.get_mut(partition) else {
            return Err(format!("slot {slot} has a batch of partition {partition}, which is not the segment's"));
        };
        if *base_offset != *next {
            return Err(format!("partition {partition} goes on at offset {next}, but slot {slot} has {base_offset}"));
        }
        *next = next
            .checked_add((*records).into())
            .ok_or_else(|| format!("partition {partition} exceeds the last offset in slot {slot}"))?;
    }
    for (partition, end) in segment.opened.range.iter().zip(&segment.end_offsets) {
        let found = reached.get(&partition);
        if found != Some(end) {
            return Err(format!(
                "partition {partition} ends at {end}, its batches at {}",
                found.copied().unwrap_or_default()
            ));
        }
    }
    Ok(())
}
