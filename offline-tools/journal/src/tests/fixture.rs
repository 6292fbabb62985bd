//! A store that counts reads and whose listings can lag, and a journal's owner that writes to it.

use crate::Metadata;
use async_trait::async_trait;
use bytes::Bytes;
use refstream_filer_adapter::{CreateError, Created, Filer, Listed, StoreError};
use refstream_format::{
    batch::BatchBuilder,
    cluster_log::{ClusterState, Command, LogEntry, OpenSegment, TopicState},
    journal::{BatchLocation, Checkpoint, Entry, JournalObject, PlacedBatch, Replay, SegmentState},
};
use refstream_types::{
    ByteRange, Epoch, Key, Layout, LeaderTerm, Offset, PartitionId, PartitionRange, ProducerEpoch, ProducerId,
    ProducerStamp, Record, SegmentId, SegmentNumber, Sequence, Slot, Timestamp, Token, TopicConfig, TopicFolder,
    TopicId, Value, Version,
};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

pub(crate) const EPOCH: Epoch = Epoch(4);

pub(crate) fn id(number: u64) -> SegmentId {
    SegmentId { topic: TopicId(1), number: SegmentNumber(number) }
}

pub(crate) fn range(lo: u32, hi: u32) -> PartitionRange {
    PartitionRange::new(PartitionId(lo), PartitionId(hi)).unwrap()
}

pub(crate) fn metadata() -> (Arc<Shelf>, Metadata) {
    let shelf = Arc::new(Shelf::default());
    let filer: Arc<dyn Filer> = Arc::<Shelf>::clone(&shelf);
    (shelf, Metadata::new(filer, Layout::new("deployment").unwrap()))
}

/// Topic 1, `images`, and its folder.
pub(crate) fn topic() -> (TopicState, TopicFolder) {
    let mut state = ClusterState::default();
    let (topic, name, config) = (TopicId(1), "images".parse().unwrap(), TopicConfig::default());
    let create = Command::CreateTopic { topic, name, config, created_at: Timestamp::default() };
    let (version, token, term, writer) = (Version(1), Token([0; 16]), LeaderTerm(0), Epoch(1));
    state.apply(&LogEntry { version, token, term, writer, commands: vec![create] }).unwrap();
    let topic = state.topics[&TopicId(1)].as_ref().clone();
    let folder = TopicFolder::new(&topic.name, topic.id);
    (topic, folder)
}

#[derive(Debug, Default)]
struct Contents {
    objects: BTreeMap<Key, Bytes>,
    /// What listings of snapshots show, when they lag.
    listed: Option<BTreeMap<Key, Bytes>>,
}

/// A store in memory.
#[derive(Debug, Default)]
pub(crate) struct Shelf {
    contents: Mutex<Contents>,
    reads: AtomicU64,
}

impl Shelf {
    pub(crate) fn put(&self, key: &Key, bytes: impl Into<Bytes>) {
        self.contents.lock().unwrap().objects.insert(key.clone(), bytes.into());
    }
    pub(crate) fn take(&self, key: &Key) {
        self.contents.lock().unwrap().objects.remove(key);
    }
    /// Flips a bit of byte `at`.
    pub(crate) fn flip(&self, key: &Key, at: usize) {
        let mut contents = self.contents.lock().unwrap();
        let bytes = contents.objects.get_mut(key).unwrap();
        let mut damaged = bytes.to_vec();
        damaged[at] ^= 0x10;
        *bytes = damaged.into();
    }
    /// Objects read so far.
    pub(crate) fn reads(&self) -> u64 {
        self.reads.load(Ordering::SeqCst)
    }
    /// From here on listings of snapshots show what is there now.
    pub(crate) fn freeze_list(&self) {
        let mut contents = self.contents.lock().unwrap();
        contents.listed = Some(contents.objects.clone());
    }
    /// Listings tell the truth again.
    pub(crate) fn thaw_list(&self) {
        self.contents.lock().unwrap().listed = None;
    }
}

#[async_trait]
impl Filer for Shelf {
    async fn create(&self, key: &Key, bytes: Bytes) -> Result<Created, CreateError> {
        let mut contents = self.contents.lock().unwrap();
        if contents.objects.contains_key(key) {
            return Ok(Created::Exists);
        }
        contents.objects.insert(key.clone(), bytes);
        Ok(Created::New)
    }
    async fn read(&self, key: &Key) -> Result<Option<Bytes>, StoreError> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        Ok(self.contents.lock().unwrap().objects.get(key).cloned())
    }
    async fn read_range(&self, key: &Key, range: ByteRange) -> Result<Option<Bytes>, StoreError> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        Ok(self.contents.lock().unwrap().objects.get(key).map(|bytes| {
            let end = (range.end().unwrap() as usize).min(bytes.len());
            bytes.slice((range.offset as usize).min(end)..end)
        }))
    }
    async fn remove(&self, key: &Key) -> Result<(), StoreError> {
        self.take(key);
        Ok(())
    }
    async fn list(&self, prefix: &str, after: Option<&Key>, limit: usize) -> Result<Vec<Listed>, StoreError> {
        let contents = self.contents.lock().unwrap();
        let lagging = contents.listed.as_ref().filter(|_| prefix.contains("snapshots"));
        let matching = lagging
            .unwrap_or(&contents.objects)
            .iter()
            .filter(|(key, _)| key.as_str().starts_with(prefix) && after.is_none_or(|after| *key > after));
        Ok(matching.take(limit).map(|(key, bytes)| Listed::new(key.clone(), bytes.len() as u64)).collect())
    }
}

/// Writes journal 4, with a checkpoint every so many slots.
pub(crate) struct Owner {
    shelf: Arc<Shelf>,
    layout: Layout,
    every: u64,
    replay: Replay,
    /// How many batches the checkpoints so far list.
    listed: usize,
    opened: BTreeMap<u64, OpenSegment>,
    sequences: BTreeMap<PartitionId, u64>,
}

impl Owner {
    pub(crate) fn new(shelf: Arc<Shelf>, layout: Layout, every: u64) -> Self {
        let (opened, sequences) = (BTreeMap::new(), BTreeMap::new());
        Self { shelf, layout, every, replay: Replay::new(EPOCH), listed: 0, opened, sequences }
    }
    fn slot(&self) -> Slot {
        self.replay.next_slot().unwrap_or(Slot(1))
    }
    fn write(&mut self, mut entries: Vec<Entry>) -> Slot {
        let slot = self.slot();
        let before = self.replay.batches().len();
        let due = slot.0.is_multiple_of(self.every);
        if due {
            let checkpoint = Checkpoint {
                previous: self.replay.checkpoint(),
                segments: self.replay.open().collect(),
                batches: self.replay.batches()[self.listed..].to_vec(),
            };
            entries.insert(0, Entry::Checkpoint(checkpoint));
        }
        let token = Token([slot.0 as u8; 16]);
        let object = JournalObject::Entries {
            in_flight: 0,
            epoch: EPOCH,
            slot,
            token,
            checkpoint: self.replay.checkpoint(),
            entries,
        };
        self.replay.feed(&object).unwrap();
        self.shelf.put(&self.layout.journal(EPOCH, slot), object.encode());
        if due {
            self.listed = before;
        }
        slot
    }
    pub(crate) fn heartbeats(&mut self, slots: u64) {
        for _ in 0..slots {
            self.write(vec![]);
        }
    }
    pub(crate) fn adopt(&mut self, number: u64, range: PartitionRange) {
        let start_offsets = vec![Offset(0); range.len()];
        let opened = OpenSegment { id: id(number), range, owner: EPOCH, start_offsets, predecessors: vec![] };
        let state = SegmentState::adopt(&opened, &[], self.slot()).unwrap();
        self.opened.insert(number, opened);
        self.write(vec![Entry::Adopt(state)]);
    }
    /// One slot with these batches: segment, partition, records. Batches of one slot are of different partitions.
    pub(crate) fn append(&mut self, batches: &[(u64, u32, u32)]) {
        let mut entries = Vec::new();
        for (segment, partition, records) in batches {
            let partition = PartitionId(*partition);
            let state = self.state(*segment);
            let base_offset = state.next_offsets[state.range.index_of(partition).unwrap()];
            let mut builder = BatchBuilder::new();
            for _ in 0..*records {
                builder.push(&Record::new(Value::Tombstone)).unwrap();
            }
            let sequence = self.sequences.entry(partition).or_default();
            let (id, epoch, first) = (ProducerId(7), ProducerEpoch(0), Sequence(*sequence));
            *sequence += u64::from(*records);
            let batch = builder.finish(Some(ProducerStamp { id, epoch, first })).unwrap();
            let append_time = Timestamp::from_micros(self.slot().0 as i64);
            let segment = SegmentId { topic: TopicId(1), number: SegmentNumber(*segment) };
            entries.push(Entry::Batch(PlacedBatch { segment, partition, base_offset, append_time, batch }));
        }
        self.write(entries);
    }
    pub(crate) fn seal(&mut self, number: u64) -> Slot {
        let state = self.state(number);
        self.write(vec![Entry::Seal(state)])
    }
    pub(crate) fn fence(&mut self) -> Slot {
        let slot = self.slot();
        let fence = JournalObject::Fence { epoch: EPOCH, slot, token: Token([0xff; 16]), by: Epoch(5) };
        self.shelf.put(&self.layout.journal(EPOCH, slot), fence.encode());
        slot
    }
    pub(crate) fn state(&self, number: u64) -> SegmentState {
        self.replay.open_segment(id(number)).unwrap()
    }
    pub(crate) fn opened(&self, number: u64) -> OpenSegment {
        self.opened[&number].clone()
    }
    pub(crate) fn batches(&self) -> &[BatchLocation] {
        self.replay.batches()
    }
}
