//! The index of one topic: which segment holds an offset, and where its batches are.

use super::{blocks::Stretch, lock};
use refstream_format::{
    cluster_log::{OpenSegment, SealedSegment, TopicState},
    journal::BatchLocation,
};
use refstream_types::{Epoch, Offset, PartitionId, PartitionRange, SegmentNumber, Slot, Timestamp, TopicId};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::sync::watch;

/// A segment's stretch of an object is read whole when it is at most this many times the segment's bytes in it ...
const SPARSE: u64 = 4;
/// ... or at most this many bytes, and in any case no more than [`LONGEST_READ`].
const SMALL_READ: u64 = 256 << 10;
/// The longest read that serves more than one batch, in bytes.
const LONGEST_READ: u64 = 8 << 20;

/// One committed batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Indexed {
    pub(super) slot: Slot,
    pub(super) bytes: (u32, u32),
    pub(super) base: u64,
    pub(super) records: u32,
    pub(super) append_time: Timestamp,
}

impl Indexed {
    fn of(location: &BatchLocation) -> Self {
        Self {
            slot: location.slot,
            bytes: location.bytes,
            base: location.base_offset.0,
            records: location.records,
            append_time: location.append_time,
        }
    }
    pub(super) fn end(&self) -> u64 {
        self.base + u64::from(self.records)
    }
}

/// Where a segment's batches are within one object.
#[derive(Clone, Copy, Debug)]
struct Span {
    from: u32,
    to: u32,
    bytes: u64,
}

#[derive(Debug)]
enum Batches {
    /// Per partition of the range, ascending.
    Known(Vec<Vec<Indexed>>),
    /// Not loaded from the journal yet.
    InJournal,
}

#[derive(Debug)]
struct Segment {
    owner: Epoch,
    range: PartitionRange,
    starts: Vec<u64>,
    batches: Batches,
    spans: BTreeMap<Slot, Span>,
    sealed: Option<SealedSegment>,
    closed_at: Option<Duration>,
    /// Held by whoever loads the batches.
    loading: Arc<tokio::sync::Mutex<()>>,
}

impl Segment {
    fn new(opened: &OpenSegment) -> Self {
        Self {
            owner: opened.owner,
            range: opened.range,
            starts: opened.start_offsets.iter().map(|offset| offset.0).collect(),
            batches: Batches::Known(vec![Vec::new(); opened.range.len()]),
            spans: BTreeMap::new(),
            sealed: None,
            closed_at: None,
            loading: Arc::default(),
        }
    }

    fn add(&mut self, index: usize, batch: Indexed) {
        let Batches::Known(batches) = &mut self.batches else { return };
        let (from, to) = (batch.bytes.0, batch.bytes.0.saturating_add(batch.bytes.1));
        let span = self.spans.entry(batch.slot).or_insert(Span { from, to, bytes: 0 });
        span.from = span.from.min(from);
        span.to = span.to.max(to);
        span.bytes += u64::from(batch.bytes.1);
        batches[index].push(batch);
    }

    fn end(&self, index: usize) -> u64 {
        match &self.batches {
            Batches::Known(batches) => batches[index].last().map_or(self.starts[index], Indexed::end),
            Batches::InJournal => self.starts[index],
        }
    }

    fn sealed_end(&self, index: usize) -> Option<u64> {
        self.sealed.as_ref()?.end_offsets.get(index).map(|end| end.0)
    }

    /// Ends it at the seal's offsets. What was collected here may be less: then another broker wrote it, and its journal tells.
    fn seal(&mut self, sealed: &SealedSegment) {
        let complete = (0..self.range.len())
            .all(|index| sealed.end_offsets.get(index).is_some_and(|end| end.0 == self.end(index)));
        if !complete {
            self.batches = Batches::InJournal;
            self.spans.clear();
        }
        self.sealed = Some(sealed.clone());
    }

    fn stretch(&self, batch: &Indexed) -> Stretch {
        let alone = (batch.bytes.0, batch.bytes.0.saturating_add(batch.bytes.1));
        let (from, to) = match self.spans.get(&batch.slot) {
            Some(span) => {
                let length = u64::from(span.to - span.from);
                let worth_it = length <= LONGEST_READ && (length <= span.bytes * SPARSE || length <= SMALL_READ);
                if worth_it { (span.from, span.to) } else { alone }
            }
            None => alone,
        };
        Stretch { epoch: self.owner, slot: batch.slot, from, to }
    }
}

/// What the index says of an offset.
#[derive(Debug)]
pub(super) enum Lookup {
    /// In this batch.
    Batch { batch: Indexed, stretch: Stretch },
    /// Somewhere in this segment, whose index must be loaded first.
    Load { sealed: Box<SealedSegment>, loading: Arc<tokio::sync::Mutex<()>> },
    /// Below what can be read here, which starts at `until`.
    InFiles { until: u64 },
    /// Nowhere, although it lies between the first offset and the end: a defect.
    Nowhere,
}

/// What the index says of a time.
#[derive(Debug)]
pub(super) enum TimeLookup {
    /// The first batch at or after it starts here. `files` when files may hold records before it that are that young too.
    At { offset: u64, files: bool },
    /// No batch here is that young; `files` may hold such records.
    None { files: bool },
    /// This segment's index must be loaded first.
    Load { sealed: Box<SealedSegment>, loading: Arc<tokio::sync::Mutex<()>> },
}

#[derive(Debug, Default)]
struct Index {
    segments: BTreeMap<SegmentNumber, Segment>,
    /// Per partition: the first offset of each of its segments. Of segments that start at one offset all but the last are
    /// empty in this partition, so the last one stands.
    chains: Vec<BTreeMap<u64, SegmentNumber>>,
}

/// The index of one topic.
#[derive(Debug)]
pub(crate) struct Topic {
    id: TopicId,
    ends: Box<[AtomicU64]>,
    ended: AtomicBool,
    /// Partitions whose open segment another broker owns.
    elsewhere: Box<[AtomicBool]>,
    changed: watch::Sender<()>,
    index: Mutex<Index>,
}

impl Topic {
    pub(super) fn new(topic: &TopicState) -> Self {
        let partitions = topic.config.partitions as usize;
        Self {
            id: topic.id,
            ends: (0..partitions).map(|_| AtomicU64::new(0)).collect(),
            ended: AtomicBool::new(false),
            elsewhere: (0..partitions).map(|_| AtomicBool::new(false)).collect(),
            changed: watch::Sender::new(()),
            index: Mutex::new(Index { segments: BTreeMap::new(), chains: vec![BTreeMap::new(); partitions] }),
        }
    }

    pub(crate) fn id(&self) -> TopicId {
        self.id
    }

    /// How many partitions.
    pub(crate) fn partitions(&self) -> usize {
        self.ends.len()
    }

    /// One past the partition's last committed record.
    pub(crate) fn latest(&self, partition: PartitionId) -> Offset {
        Offset(self.ends[partition.0 as usize].load(Ordering::Acquire))
    }

    /// Whether another broker serves the partition.
    pub(crate) fn is_elsewhere(&self, partition: PartitionId) -> bool {
        self.elsewhere.get(partition.0 as usize).is_some_and(|elsewhere| elsewhere.load(Ordering::Acquire))
    }

    /// Whether it was deleted.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Tells of every commit and of the topic's end.
    pub(super) fn subscribe(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    pub(super) fn notify(&self) {
        self.changed.send_replace(());
    }

    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.notify();
    }

    fn raise(&self, partition: PartitionId, end: u64) {
        if let Some(known) = self.ends.get(partition.0 as usize) {
            known.fetch_max(end, Ordering::AcqRel);
        }
    }

    pub(super) fn set_state(&self, state: &TopicState, mine: Option<Epoch>, now: Duration) {
        let mut index = lock(&self.index);
        let Index { segments, chains } = &mut *index;
        let mut add = |opened: &OpenSegment, sealed: Option<&SealedSegment>| {
            let number = opened.id.number;
            let segment = segments.entry(number).or_insert_with(|| {
                for (partition, start) in opened.range.iter().zip(&opened.start_offsets) {
                    if let Some(chain) = chains.get_mut(partition.0 as usize) {
                        let holder = chain.entry(start.0).or_insert(number);
                        *holder = (*holder).max(number);
                    }
                }
                Segment::new(opened)
            });
            if let Some(sealed) = sealed
                && segment.sealed.is_none()
            {
                segment.seal(sealed);
            }
        };
        for sealed in state.sealed.values() {
            add(&sealed.opened, Some(sealed));
        }
        for open in state.open.values() {
            add(open, None);
        }
        for (number, segment) in segments.iter_mut() {
            if !state.open.contains_key(number) && !state.sealed.contains_key(number) {
                segment.closed_at.get_or_insert(now);
            }
        }
        drop(index);
        for (partition, end) in (0..).map(PartitionId).zip(&state.next_offsets) {
            self.raise(partition, end.0);
        }
        // What was raised before it is still told from here.
        for open in state.open.values() {
            let elsewhere = mine.is_some_and(|mine| open.owner != mine);
            for partition in open.range.iter() {
                if let Some(known) = self.elsewhere.get(partition.0 as usize) {
                    known.store(elsewhere, Ordering::Release);
                }
            }
        }
        if state.deleted {
            self.end();
        } else {
            self.notify();
        }
    }

    /// Takes in a committed batch; its end is visible once it can be found.
    pub(super) fn committed(&self, epoch: Epoch, location: &BatchLocation) {
        {
            let mut index = lock(&self.index);
            let Some(segment) = index.segments.get_mut(&location.segment.number) else {
                tracing::error!(segment = %location.segment, "a batch was committed to a segment that the state does not name");
                return;
            };
            let Some(position) = segment.range.index_of(location.partition) else { return };
            if segment.owner != epoch || location.base_offset.0 < segment.end(position) {
                return;
            }
            segment.add(position, Indexed::of(location));
        }
        self.raise(location.partition, location.base_offset.0 + u64::from(location.records));
    }

    /// The first offset that can be read here; the end when none can.
    pub(crate) fn first(&self, partition: PartitionId) -> Offset {
        let index = lock(&self.index);
        match index.chains[partition.0 as usize].keys().next() {
            Some(first) => Offset(*first),
            None => self.latest(partition),
        }
    }

    /// Encoded bytes of a segment's batches, as far as its index is here.
    pub(crate) fn segment_bytes(&self, number: SegmentNumber) -> u64 {
        lock(&self.index).segments.get(&number).map_or(0, |segment| segment.spans.values().map(|span| span.bytes).sum())
    }

    /// What holds an offset that lies below the partition's end.
    pub(super) fn lookup(&self, partition: PartitionId, offset: u64) -> Lookup {
        let index = lock(&self.index);
        let chain = &index.chains[partition.0 as usize];
        let Some((_, number)) = chain.range(..=offset).next_back() else {
            let until = chain.keys().next().copied().unwrap_or_else(|| self.latest(partition).0);
            return Lookup::InFiles { until };
        };
        let found = index.segments.get(number).and_then(|s| Some((s, s.range.index_of(partition)?)));
        let Some((segment, position)) = found else { return Lookup::Nowhere };
        if segment.sealed_end(position).is_some_and(|end| end <= offset) {
            // The segment that follows was closed before this one.
            let next = chain.range(offset + 1..).next().map(|(start, _)| *start);
            return Lookup::InFiles { until: next.unwrap_or_else(|| self.latest(partition).0) };
        }
        match &segment.batches {
            Batches::Known(batches) => {
                let batches = &batches[position];
                let after = batches.partition_point(|batch| batch.base <= offset);
                match after.checked_sub(1).map(|at| batches[at]) {
                    Some(batch) if offset < batch.end() => Lookup::Batch { batch, stretch: segment.stretch(&batch) },
                    _ => Lookup::Nowhere,
                }
            }
            Batches::InJournal => match &segment.sealed {
                Some(sealed) => {
                    Lookup::Load { sealed: Box::new(sealed.clone()), loading: Arc::clone(&segment.loading) }
                }
                None => Lookup::Nowhere,
            },
        }
    }

    /// The first batch whose append time is at or after `at`. Append times never decrease within a partition.
    pub(super) fn lookup_time(&self, partition: PartitionId, at: Timestamp) -> TimeLookup {
        let index = lock(&self.index);
        let (mut files, mut expected) = (true, None);
        for (start, number) in &index.chains[partition.0 as usize] {
            let found = index.segments.get(number).and_then(|s| Some((s, s.range.index_of(partition)?)));
            let Some((segment, position)) = found else { continue };
            // A gap between segments that are read here is in files too.
            files |= expected.is_some_and(|expected| expected != *start);
            match &segment.batches {
                Batches::Known(batches) => {
                    let batches = &batches[position];
                    let older = batches.partition_point(|batch| batch.append_time < at);
                    files &= older == 0;
                    if let Some(batch) = batches.get(older) {
                        return TimeLookup::At { offset: batch.base, files };
                    }
                    expected = Some(segment.end(position));
                }
                Batches::InJournal => {
                    if let Some(sealed) = &segment.sealed {
                        return TimeLookup::Load {
                            sealed: Box::new(sealed.clone()),
                            loading: Arc::clone(&segment.loading),
                        };
                    }
                }
            }
        }
        TimeLookup::None { files }
    }

    /// Whether a sealed segment's batches are still to be loaded.
    pub(super) fn needs_load(&self, number: SegmentNumber) -> bool {
        let index = lock(&self.index);
        index.segments.get(&number).is_some_and(|segment| matches!(segment.batches, Batches::InJournal))
    }

    /// Takes in a sealed segment's batches, ascending by partition, then offset.
    pub(super) fn loaded(&self, number: SegmentNumber, locations: &[BatchLocation]) {
        let mut index = lock(&self.index);
        let Some(segment) = index.segments.get_mut(&number) else { return };
        segment.batches = Batches::Known(vec![Vec::new(); segment.range.len()]);
        segment.spans.clear();
        for location in locations {
            if let Some(position) = segment.range.index_of(location.partition) {
                segment.add(position, Indexed::of(location));
            }
        }
    }

    /// The end of a segment that is closed or gone, for a reader whose journal object is not there any more.
    pub(super) fn closed_until(&self, partition: PartitionId, offset: u64) -> Option<u64> {
        let index = lock(&self.index);
        let chain = &index.chains[partition.0 as usize];
        match chain.range(..=offset).next_back() {
            None => Some(chain.keys().next().copied().unwrap_or_else(|| self.latest(partition).0)),
            Some((_, number)) => {
                let segment = index.segments.get(number)?;
                segment.closed_at?;
                segment.sealed_end(segment.range.index_of(partition)?)
            }
        }
    }

    /// Drops the index of segments that were closed at or before `before`.
    pub(super) fn prune(&self, before: Duration) {
        let mut index = lock(&self.index);
        let Index { segments, chains } = &mut *index;
        segments.retain(|number, segment| {
            let drop = segment.closed_at.is_some_and(|closed| closed <= before);
            if drop {
                for (partition, start) in segment.range.iter().zip(&segment.starts) {
                    if let Some(chain) = chains.get_mut(partition.0 as usize)
                        && chain.get(start) == Some(number)
                    {
                        chain.remove(start);
                    }
                }
            }
            !drop
        });
    }
}
