//! What a journal's objects add up to: the one definition of their meaning, shared by the broker's recovery, offline tools and
//! the simulator.
//!
//! [`Replay`] is fed the objects of one journal by ascending slots, from slot 1 or from an object with a checkpoint, and says
//! which segments are open with which state, which were sealed, and where the batches are. Each object is checked against what
//! came before: a contradiction means that the journal is damaged or its writer was wrong, and is never papered over.
//!
//! Within an object the checkpoint, wherever it stands among the entries, describes what was before all of them.

use super::{
    BatchLocation, Checkpoint, Entry, JournalObject, MAX_IN_FLIGHT, PlacedBatch, ProducerState, RememberedBatch,
    SegmentState,
};
use crate::cluster_log::OpenSegment;
use refstream_types::{
    Epoch, Offset, PartitionId, PartitionRange, ProducerEpoch, ProducerId, SegmentId, Sequence, Slot, Timestamp,
};
use std::collections::BTreeMap;

/// A journal that contradicts itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("journal {epoch}, slot {slot}: {invariant}: {detail}")]
pub struct Contradiction {
    /// The journal.
    pub epoch: Epoch,
    /// The slot that contradicts the ones before.
    pub slot: Slot,
    /// The invariant's name, for example `offsets-are-dense`.
    pub invariant: &'static str,
    /// What does not fit.
    pub detail: String,
}

type Refusal = (&'static str, String);

fn ensure(holds: bool, invariant: &'static str, detail: impl FnOnce() -> String) -> Result<(), Refusal> {
    if holds { Ok(()) } else { Err((invariant, detail())) }
}

impl SegmentState {
    /// The state of a segment without records and producers: adopted in slot `adopted`, its append times not before `at`.
    pub fn empty(segment: &OpenSegment, adopted: Slot, at: Timestamp) -> Self {
        Self {
            segment: segment.id,
            range: segment.range,
            adopted,
            bytes: 0,
            next_offsets: segment.start_offsets.clone(),
            last_append_time: at,
            producers: Vec::new(),
        }
    }

    /// The state with which the owner of `segment` adopts it at `slot`, from the final states of its predecessors: for each
    /// partition the newest of them that has it.
    ///
    /// # Errors
    /// Says which predecessor is missing or does not end where the segment starts.
    pub fn adopt(segment: &OpenSegment, finals: &[Self], slot: Slot) -> Result<Self, String> {
        let mut newest: BTreeMap<PartitionId, &Self> = BTreeMap::new();
        for number in &segment.predecessors {
            let Some(state) = finals.iter().find(|s| s.segment.number == *number) else {
                return Err(format!("segment {} carries on from segment {number}, which is not given", segment.id));
            };
            // Predecessors ascend, so that newer ones replace older ones.
            newest.extend(state.range.iter().filter(|p| segment.range.contains(*p)).map(|p| (p, state)));
        }
        for (partition, start) in segment.range.iter().zip(&segment.start_offsets) {
            let before =
                newest.get(&partition).and_then(|s| Some((s, *s.next_offsets.get(s.range.index_of(partition)?)?)));
            match before {
                Some((state, end)) if end != *start => {
                    return Err(format!(
                        "partition {partition} of segment {} starts at {start}, but segment {} ended at {end}",
                        segment.id, state.segment
                    ));
                }
                None if *start != Offset(0) => {
                    return Err(format!("partition {partition} of segment {} has no predecessor", segment.id));
                }
                _ => {}
            }
        }
        let mut producers = Vec::new();
        for state in finals {
            let mine = |p: &&ProducerState| newest.get(&p.partition).is_some_and(|s| s.segment == state.segment);
            producers.extend(state.producers.iter().filter(mine).cloned());
        }
        producers.sort_by_key(|p| (p.partition, p.id));
        Ok(Self {
            segment: segment.id,
            range: segment.range,
            adopted: slot,
            bytes: 0,
            next_offsets: segment.start_offsets.clone(),
            last_append_time: newest.values().map(|s| s.last_append_time).max().unwrap_or_default(),
            producers,
        })
    }
}

/// One partition's memory of a producer.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Remembered {
    epoch: ProducerEpoch,
    batches: Vec<RememberedBatch>,
}

/// A segment as replayed so far.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Running {
    segment: SegmentId,
    range: PartitionRange,
    adopted: Slot,
    bytes: u64,
    next_offsets: Vec<Offset>,
    last_append_time: Timestamp,
    producers: BTreeMap<(PartitionId, ProducerId), Remembered>,
}

impl Running {
    fn new(state: &SegmentState) -> Result<Self, Refusal> {
        let SegmentState { segment, range, adopted, bytes, next_offsets, last_append_time, producers } = state;
        ensure(next_offsets.len() == range.len(), "states-fit-their-range", || {
            format!("segment {segment} over {range} has {} offsets", next_offsets.len())
        })?;
        let mut remembered = BTreeMap::new();
        for ProducerState { partition, id, epoch, batches } in producers {
            let (epoch, batches) = (*epoch, batches.clone());
            let earlier = remembered.insert((*partition, *id), Remembered { epoch, batches });
            ensure(range.contains(*partition) && earlier.is_none(), "states-fit-their-range", || {
                format!("segment {segment} over {range} knows producer {id} of partition {partition} twice or wrongly")
            })?;
        }
        Ok(Self {
            segment: *segment,
            range: *range,
            adopted: *adopted,
            bytes: *bytes,
            next_offsets: next_offsets.clone(),
            last_append_time: *last_append_time,
            producers: remembered,
        })
    }

    fn state(&self) -> SegmentState {
        let producers = self.producers.iter().map(|((partition, id), remembered)| ProducerState {
            partition: *partition,
            id: *id,
            epoch: remembered.epoch,
            batches: remembered.batches.clone(),
        });
        SegmentState {
            segment: self.segment,
            range: self.range,
            adopted: self.adopted,
            bytes: self.bytes,
            next_offsets: self.next_offsets.clone(),
            last_append_time: self.last_append_time,
            producers: producers.collect(),
        }
    }

    fn append(&mut self, placed: &PlacedBatch) -> Result<(), Refusal> {
        let PlacedBatch { segment, partition, base_offset, append_time, batch } = placed;
        let Some(next) = self.range.index_of(*partition).and_then(|at| self.next_offsets.get_mut(at)) else {
            let detail = format!("a batch of partition {partition} is in segment {segment} over {}", self.range);
            return Err(("states-fit-their-range", detail));
        };
        ensure(*base_offset == *next, "offsets-are-dense", || {
            format!("a batch of partition {partition} has offset {base_offset}, the next one is {next}")
        })?;
        ensure(*append_time >= self.last_append_time, "append-times-never-fall", || {
            format!("a batch of segment {segment} has append time {append_time}, after {}", self.last_append_time)
        })?;
        let header = batch.header();
        let Some(end) = next.checked_add(header.records.into()) else {
            return Err(("offsets-are-dense", format!("partition {partition} has no offset left after {next}")));
        };
        *next = end;
        self.last_append_time = *append_time;
        self.bytes += batch.bytes().len() as u64;
        let Some(stamp) = header.producer else { return Ok(()) };
        let memory = RememberedBatch {
            first: stamp.first,
            records: header.records,
            base_offset: *base_offset,
            append_time: *append_time,
        };
        let known =
            self.producers.entry((*partition, stamp.id)).or_insert(Remembered { epoch: stamp.epoch, batches: vec![] });
        ensure(stamp.epoch >= known.epoch, "fenced-producers-append-nothing", || {
            format!("a batch of producer {} has epoch {}, below {}", stamp.id, stamp.epoch, known.epoch)
        })?;
        if stamp.epoch > known.epoch {
            *known = Remembered { epoch: stamp.epoch, batches: vec![] };
        }
        let expected =
            known.batches.last().map_or(Sequence(0), |b| Sequence(b.first.0.saturating_add(b.records.into())));
        ensure(stamp.first == expected, "sequences-are-dense", || {
            format!(
                "a batch of producer {} in partition {partition} starts at sequence {}, expected {expected}",
                stamp.id, stamp.first
            )
        })?;
        if known.batches.len() >= MAX_IN_FLIGHT {
            known.batches.remove(0);
        }
        known.batches.push(memory);
        Ok(())
    }
}

/// Says what a journal's objects add up to. See the module's head.
#[derive(Clone, Debug)]
pub struct Replay {
    epoch: Epoch,
    /// Follows only this segment, from anywhere at or before its adoption.
    only: Option<SegmentId>,
    next: Option<Slot>,
    fence: Option<Slot>,
    checkpoint: Option<Slot>,
    open: BTreeMap<SegmentId, Running>,
    sealed: BTreeMap<SegmentId, (Slot, SegmentState)>,
    batches: Vec<BatchLocation>,
    /// How many of `batches` precede the latest checkpoint, when its own list can be compared with them.
    since_checkpoint: Option<usize>,
}

impl Replay {
    /// A replay of everything in the journal of `epoch`. The first object fed is that of slot 1, or one with a checkpoint.
    pub fn new(epoch: Epoch) -> Self {
        Self {
            epoch,
            only: None,
            next: None,
            fence: None,
            checkpoint: None,
            open: BTreeMap::new(),
            sealed: BTreeMap::new(),
            batches: Vec::new(),
            since_checkpoint: None,
        }
    }

    /// A replay of one segment alone. The first object fed is any one that is not above the segment's adoption, or one with a
    /// checkpoint.
    pub fn of(epoch: Epoch, segment: SegmentId) -> Self {
        Self { only: Some(segment), ..Self::new(epoch) }
    }

    /// Takes the next object.
    ///
    /// # Errors
    /// When it contradicts the objects before. The replay is of no use then.
    pub fn feed(&mut self, object: &JournalObject) -> Result<(), Contradiction> {
        let (JournalObject::Entries { slot, .. } | JournalObject::Fence { slot, .. }) = object;
        self.take(object).map_err(|(invariant, detail)| Contradiction {
            epoch: self.epoch,
            slot: *slot,
            invariant,
            detail,
        })
    }

    /// The slot of the object to feed next; `None` before the first.
    pub fn next_slot(&self) -> Option<Slot> {
        self.next
    }

    /// The lowest fence, once fed: what the journal adds up to is final.
    pub fn fence(&self) -> Option<Slot> {
        self.fence
    }

    /// The latest slot fed that carries a checkpoint.
    pub fn checkpoint(&self) -> Option<Slot> {
        self.checkpoint
    }

    /// The segments that are adopted and not sealed, ascending, as they stand after the last object; producers ascend by
    /// partition and id.
    pub fn open(&self) -> impl Iterator<Item = SegmentState> {
        self.open.values().map(Running::state)
    }

    /// The state of one open segment.
    pub fn open_segment(&self, segment: SegmentId) -> Option<SegmentState> {
        self.open.get(&segment).map(Running::state)
    }

    /// The segments whose seal entries were fed, with their slots and final states.
    pub fn sealed(&self) -> &BTreeMap<SegmentId, (Slot, SegmentState)> {
        &self.sealed
    }

    /// The batches of the objects that were fed, in order.
    pub fn batches(&self) -> &[BatchLocation] {
        &self.batches
    }

    fn take(&mut self, object: &JournalObject) -> Result<(), Refusal> {
        let (JournalObject::Entries { epoch, slot, .. } | JournalObject::Fence { epoch, slot, .. }) = object;
        ensure(*epoch == self.epoch, "slots-are-contiguous", || format!("the object is of journal {epoch}"))?;
        if let Some(fence) = self.fence {
            return Err(("nothing-follows-a-fence", format!("the lowest fence is at slot {fence}")));
        }
        if let Some(next) = self.next {
            ensure(*slot == next, "slots-are-contiguous", || format!("slot {slot} follows, expected {next}"))?;
        }
        let first = self.next.is_none();
        self.next = Some(slot.next());
        let JournalObject::Entries { checkpoint: named, entries, .. } = object else {
            self.fence = Some(*slot);
            return Ok(());
        };
        if first && *slot == Slot(1) {
            self.since_checkpoint = Some(0);
        }
        if self.checkpoint.is_some() || self.since_checkpoint.is_some() {
            ensure(*named == self.checkpoint, "headers-name-the-latest-checkpoint", || {
                format!("the header names {named:?}, the latest is {:?}", self.checkpoint)
            })?;
        }
        let mut checkpoints = entries.iter().filter_map(|entry| match entry {
            Entry::Checkpoint(checkpoint) => Some(checkpoint),
            _ => None,
        });
        match (checkpoints.next(), checkpoints.next()) {
            (Some(checkpoint), None) => self.check(*slot, checkpoint, *named, first)?,
            (Some(_), Some(_)) => return Err(("one-checkpoint-an-object", "there are several".into())),
            (None, _) => {
                ensure(!first || *slot == Slot(1) || self.only.is_some(), "replays-start-at-a-checkpoint", || {
                    "the first object is not that of slot 1 and has no checkpoint".into()
                })?
            }
        }
        for entry in entries {
            self.entry(*slot, entry)?;
        }
        if entries.iter().any(|entry| matches!(entry, Entry::Batch(_))) {
            let follows = |segment| self.only.is_none_or(|only| only == segment);
            self.batches.extend(object.locations().into_iter().filter(|batch| follows(batch.segment)));
        }
        Ok(())
    }

    fn follows(&self, segment: SegmentId) -> bool {
        self.only.is_none_or(|only| only == segment)
    }

    fn check(&mut self, slot: Slot, checkpoint: &Checkpoint, named: Option<Slot>, first: bool) -> Result<(), Refusal> {
        ensure(checkpoint.previous == named, "checkpoints-form-a-chain", || {
            format!("the checkpoint names {:?} as the one before, its header {named:?}", checkpoint.previous)
        })?;
        let mut stated = BTreeMap::new();
        for state in checkpoint.segments.iter().filter(|state| self.follows(state.segment)) {
            ensure(
                stated.insert(state.segment, Running::new(state)?).is_none(),
                "checkpoints-state-the-truth",
                || format!("segment {} is stated twice", state.segment),
            )?;
        }
        if first || self.only.is_some() && self.open.is_empty() && self.sealed.is_empty() {
            self.open = stated;
        } else {
            let differing = self.open.keys().chain(stated.keys()).find(|id| self.open.get(id) != stated.get(id));
            if let Some(id) = differing {
                let (replayed, stated) = (self.open.get(id).map(Running::state), stated.get(id).map(Running::state));
                let detail = format!("segment {id} is stated as {stated:?}, but was replayed as {replayed:?}");
                return Err(("checkpoints-state-the-truth", detail));
            }
        }
        if let Some(from) = self.since_checkpoint {
            let listed = checkpoint.batches.iter().filter(|batch| self.follows(batch.segment));
            ensure(listed.eq(self.batches.get(from..).unwrap_or_default()), "checkpoints-list-every-batch", || {
                format!("{} batches are listed, {} were replayed", checkpoint.batches.len(), self.batches.len() - from)
            })?;
        }
        self.checkpoint = Some(slot);
        self.since_checkpoint = Some(self.batches.len());
        Ok(())
    }

    fn entry(&mut self, slot: Slot, entry: &Entry) -> Result<(), Refusal> {
        match entry {
            Entry::Batch(placed) if self.follows(placed.segment) => {
                self.running(placed.segment, "a batch")?.append(placed)
            }
            Entry::Adopt(state) if self.follows(state.segment) => {
                let id = state.segment;
                ensure(!self.open.contains_key(&id) && !self.sealed.contains_key(&id), "adopted-once", || {
                    format!("segment {id} was adopted before")
                })?;
                ensure(state.adopted == slot && state.bytes == 0, "adopted-once", || {
                    format!("segment {id} is adopted as of slot {} with {} bytes", state.adopted, state.bytes)
                })?;
                self.open.insert(id, Running::new(state)?);
                Ok(())
            }
            Entry::Seal(state) if self.follows(state.segment) => {
                let stated = Running::new(state)?;
                let running = self.running(state.segment, "a seal entry")?;
                let replayed = running.state();
                ensure(stated == *running, "seals-state-the-truth", || {
                    format!("segment {} ends as {state:?}, but was replayed as {replayed:?}", state.segment)
                })?;
                self.open.remove(&state.segment);
                self.sealed.insert(state.segment, (slot, replayed));
                Ok(())
            }
            Entry::Expire { segment, producers } if self.follows(*segment) => {
                let running = self.running(*segment, "an expiry")?;
                for (partition, id) in producers {
                    ensure(
                        running.producers.remove(&(*partition, *id)).is_some(),
                        "only-known-producers-expire",
                        || format!("producer {id} of partition {partition} is not known"),
                    )?;
                }
                Ok(())
            }
            Entry::Batch(_) | Entry::Adopt(_) | Entry::Seal(_) | Entry::Expire { .. } | Entry::Checkpoint(_) => Ok(()),
        }
    }

    fn running(&mut self, segment: SegmentId, what: &str) -> Result<&mut Running, Refusal> {
        let sealed = self.sealed.contains_key(&segment);
        self.open.get_mut(&segment).ok_or_else(|| {
            let why = if sealed { "follows its seal entry" } else { "precedes its adoption" };
            ("entries-belong-to-open-segments", format!("{what} of segment {segment} {why}"))
        })
    }
}

#[cfg(test)]
mod tests;
