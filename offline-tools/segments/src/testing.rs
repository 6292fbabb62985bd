//! A store that fails on command, and a deployment with sealed segments in it.

use crate::{Compactor, Row};
use async_trait::async_trait;
use bytes::Bytes;
use futures::{FutureExt, StreamExt, future::BoxFuture, stream};
use refstream_filer_adapter::{
    Attributes, BlobStore, CreateError, Created, Filer, Found, GetOptions, Listed, MultipartUpload, ObjectMeta, Part,
    Runtime, Sent, StoreError, StoreErrorKind, Stored,
};
use refstream_format::{
    batch::{BatchBuilder, EncodedBatch},
    cluster_log::{OpenSegment, SealedBy, SealedSegment, TopicState},
    crc32c,
    journal::{Entry, JournalObject, PlacedBatch},
};
use refstream_journal::Metadata;
use refstream_types::{
    ByteRange, ContentEncoding, ContentHash, Crc32c, Epoch, Header, Key, Layout, Offset, PartitionId, PartitionRange,
    ProducerEpoch, ProducerId, ProducerStamp, Record, Reference, SegmentId, SegmentNumber, Sequence, Slot, Timestamp,
    TopicConfig, TopicId, Value,
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

/// What becomes of a store operation that changes something or reads, and of all after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It does not happen.
    Before,
    /// It happens, its answer is lost.
    After,
}

#[derive(Debug, Default)]
struct Inner {
    objects: BTreeMap<Key, Bytes>,
    operations: u64,
    fault: Option<(u64, Fault)>,
    /// Those of them that change something.
    writes: Vec<u64>,
    reads: Vec<(Key, u64)>,
    seed: u64,
}

/// Objects in memory. From a scripted operation on nothing works any more, as after a crash, until [`MapStore::revive`].
#[derive(Clone, Debug, Default)]
pub(crate) struct MapStore(Arc<Mutex<Inner>>);

impl MapStore {
    pub(crate) fn crash_at(&self, operation: u64, fault: Fault) {
        let mut inner = self.0.lock().unwrap();
        inner.fault = Some((operation, fault));
        inner.operations = 0;
    }
    /// Works again; returns how many operations there were since the last call, and which of them change something.
    pub(crate) fn revive(&self) -> (u64, Vec<u64>) {
        let mut inner = self.0.lock().unwrap();
        inner.fault = None;
        (std::mem::take(&mut inner.operations), std::mem::take(&mut inner.writes))
    }
    pub(crate) fn keys(&self, prefix: &str) -> Vec<Key> {
        self.0.lock().unwrap().objects.keys().filter(|key| key.as_str().starts_with(prefix)).cloned().collect()
    }
    pub(crate) fn bytes(&self, key: &Key) -> Option<Bytes> {
        self.0.lock().unwrap().objects.get(key).cloned()
    }
    pub(crate) fn overwrite(&self, key: &Key, bytes: Bytes) {
        self.0.lock().unwrap().objects.insert(key.clone(), bytes);
    }
    /// Bytes handed out since the last call, by key.
    pub(crate) fn take_reads(&self) -> Vec<(Key, u64)> {
        std::mem::take(&mut self.0.lock().unwrap().reads)
    }
    fn snapshot(&self) -> BTreeMap<Key, Bytes> {
        self.0.lock().unwrap().objects.clone()
    }
    /// An independent copy.
    pub(crate) fn fork(&self) -> Self {
        Self(Arc::new(Mutex::new(Inner { objects: self.snapshot(), ..Inner::default() })))
    }

    /// Lets other tasks run first, now and then: interleavings differ with the seed.
    async fn pause(&self) {
        let turns = {
            let mut inner = self.0.lock().unwrap();
            inner.seed = inner.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            inner.seed >> 61
        };
        for _ in 0..turns {
            tokio::task::yield_now().await;
        }
    }

    /// Chooses the interleaving.
    pub(crate) fn seed(&self, seed: u64) {
        self.0.lock().unwrap().seed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn run<T>(&self, key: &Key, operation: &'static str, act: impl FnOnce(&mut Inner) -> T) -> Result<T, StoreError> {
        let mut inner = self.0.lock().unwrap();
        inner.operations += 1;
        if !matches!(operation, "read" | "get" | "head" | "list") {
            let at = inner.operations;
            inner.writes.push(at);
        }
        let error = || StoreError {
            kind: StoreErrorKind::Unavailable,
            operation,
            store: "test".into(),
            key: Some(key.clone()),
            message: "scripted".into(),
        };
        match inner.fault {
            Some((at, Fault::After)) if inner.operations == at => {
                act(&mut inner);
                Err(error())
            }
            Some((at, _)) if inner.operations >= at => Err(error()),
            _ => Ok(act(&mut inner)),
        }
    }

    fn missing(key: &Key) -> StoreError {
        StoreError {
            kind: StoreErrorKind::NotFound,
            operation: "get",
            store: "test".into(),
            key: Some(key.clone()),
            message: String::new(),
        }
    }
}

fn part_of(bytes: &Bytes, range: ByteRange) -> Bytes {
    let end = (range.offset + range.length).min(bytes.len() as u64);
    bytes.slice(range.offset.min(end) as usize..end as usize)
}

#[async_trait]
impl Filer for MapStore {
    async fn create(&self, key: &Key, bytes: Bytes) -> Result<Created, CreateError> {
        self.pause().await;
        let created = self.run(key, "create", |inner| {
            let absent = !inner.objects.contains_key(key);
            if absent {
                inner.objects.insert(key.clone(), bytes);
            }
            if absent { Created::New } else { Created::Exists }
        });
        created.map_err(CreateError::MayHaveHappened)
    }
    async fn read(&self, key: &Key) -> Result<Option<Bytes>, StoreError> {
        self.pause().await;
        self.run(key, "read", |inner| inner.objects.get(key).cloned())
    }
    async fn read_range(&self, key: &Key, range: ByteRange) -> Result<Option<Bytes>, StoreError> {
        self.pause().await;
        self.run(key, "read", |inner| {
            inner.reads.push((key.clone(), range.length));
            inner.objects.get(key).map(|bytes| part_of(bytes, range))
        })
    }
    async fn remove(&self, key: &Key) -> Result<(), StoreError> {
        self.pause().await;
        self.run(key, "remove", |inner| {
            inner.objects.remove(key);
        })
    }
    async fn list(&self, prefix: &str, after: Option<&Key>, limit: usize) -> Result<Vec<Listed>, StoreError> {
        self.run(&"list".parse().unwrap(), "list", |inner| {
            let listed = inner.objects.iter().filter(|(key, _)| key.as_str().starts_with(prefix) && Some(*key) > after);
            listed.take(limit).map(|(key, bytes)| Listed::new(key.clone(), bytes.len() as u64)).collect()
        })
    }
}

#[async_trait]
impl BlobStore for MapStore {
    fn uri(&self, key: &Key) -> String {
        format!("s3://bucket/{key}")
    }
    async fn put_telling(
        &self,
        key: &Key,
        body: Vec<Bytes>,
        checksum: Crc32c,
        _: &Attributes,
        sent: &Sent,
    ) -> Result<Stored, CreateError> {
        sent.tell();
        self.pause().await;
        let bytes = Bytes::from(body.concat());
        assert_eq!(crc32c(&bytes), checksum);
        let size = bytes.len() as u64;
        self.run(key, "put", |inner| inner.objects.insert(key.clone(), bytes)).map_err(CreateError::MayHaveHappened)?;
        Ok(Stored { key: key.clone(), size, etag: None })
    }
    async fn start_multipart(&self, key: &Key, _: &Attributes) -> Result<Box<dyn MultipartUpload>, StoreError> {
        self.run(key, "start", |_| ())?;
        Ok(Box::new(MapUpload { store: self.clone(), key: key.clone(), parts: Mutex::default() }))
    }
    async fn resume_multipart(&self, key: &Key, _: &str) -> Result<Box<dyn MultipartUpload>, StoreError> {
        Err(Self::missing(key))
    }
    async fn get(&self, key: &Key, options: &GetOptions) -> Result<Found, StoreError> {
        self.pause().await;
        let bytes = self.run(key, "get", |inner| inner.objects.get(key).cloned())?.ok_or_else(|| Self::missing(key))?;
        let meta = ObjectMeta { size: bytes.len() as u64, ..ObjectMeta::default() };
        let bytes = options.range.map_or(bytes.clone(), |range| part_of(&bytes, range));
        self.0.lock().unwrap().reads.push((key.clone(), bytes.len() as u64));
        // Two pieces, as a network might deliver them.
        let middle = bytes.len() / 2;
        let pieces = [bytes.slice(..middle), bytes.slice(middle..)];
        Ok(Found { meta, body: stream::iter(pieces.map(Ok)).boxed() })
    }
    async fn head(&self, key: &Key) -> Result<Option<ObjectMeta>, StoreError> {
        self.pause().await;
        let size = self.run(key, "head", |inner| inner.objects.get(key).map(Bytes::len))?;
        Ok(size.map(|size| ObjectMeta { size: size as u64, ..ObjectMeta::default() }))
    }
    async fn delete(&self, key: &Key) -> Result<(), StoreError> {
        self.remove(key).await
    }
    async fn list_blobs(&self, prefix: &str, after: Option<&Key>, limit: usize) -> Result<Vec<Listed>, StoreError> {
        self.list(prefix, after, limit).await
    }
}

#[derive(Debug)]
struct MapUpload {
    store: MapStore,
    key: Key,
    parts: Mutex<BTreeMap<u32, Bytes>>,
}

#[async_trait]
impl MultipartUpload for MapUpload {
    fn id(&self) -> &str {
        "upload"
    }
    async fn put_part(&self, number: u32, body: Vec<Bytes>, checksum: Crc32c) -> Result<Part, StoreError> {
        let bytes = Bytes::from(body.concat());
        assert_eq!(crc32c(&bytes), checksum);
        let size = bytes.len() as u64;
        self.store.run(&self.key, "part", |_| self.parts.lock().unwrap().insert(number, bytes))?;
        Ok(Part { number, etag: number.to_string(), size, checksum: Some(checksum) })
    }
    async fn parts(&self) -> Result<Vec<Part>, StoreError> {
        Ok(Vec::new())
    }
    async fn complete(&self, parts: &[Part]) -> Result<Stored, CreateError> {
        let held = self.parts.lock().unwrap();
        let bytes = Bytes::from(parts.iter().map(|part| held[&part.number].clone()).collect::<Vec<_>>().concat());
        let size = bytes.len() as u64;
        let stored = self.store.run(&self.key, "complete", |inner| inner.objects.insert(self.key.clone(), bytes));
        stored.map_err(CreateError::MayHaveHappened)?;
        Ok(Stored { key: self.key.clone(), size, etag: None })
    }
    async fn abort(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

/// Time that stands still unless it is moved; counting numbers for random ones.
#[derive(Debug)]
pub(crate) struct TestRuntime {
    state: Mutex<(Duration, Timestamp, u64)>,
}

impl TestRuntime {
    pub(crate) fn new(wall: &str, seed: u64) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new((Duration::from_secs(1_000), wall.parse().unwrap(), seed)) })
    }
    pub(crate) fn advance(&self, by: Duration) {
        let mut state = self.state.lock().unwrap();
        state.0 += by;
        state.1 = Timestamp::from_micros(state.1.as_micros() + by.as_micros() as i64);
    }
}

impl Runtime for TestRuntime {
    fn now(&self) -> Duration {
        self.state.lock().unwrap().0
    }
    fn wall(&self) -> Timestamp {
        self.state.lock().unwrap().1
    }
    fn sleep(&self, by: Duration) -> BoxFuture<'static, ()> {
        self.advance(by);
        tokio::task::yield_now().boxed()
    }
    fn random(&self) -> u64 {
        let mut state = self.state.lock().unwrap();
        state.2 = state.2.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.2
    }
}

/// A topic whose segments are written by [`Deployment::segment`].
pub(crate) struct Deployment {
    pub(crate) store: MapStore,
    pub(crate) layout: Layout,
    pub(crate) topic: TopicState,
    next_offsets: Vec<u64>,
    next_slot: u64,
    /// Every row that was sealed, in no order.
    pub(crate) rows: Vec<Row>,
}

pub(crate) const PARTITIONS: u32 = 4;

impl Deployment {
    pub(crate) fn new() -> Self {
        let config = TopicConfig { partitions: PARTITIONS, ..TopicConfig::default() };
        Self {
            store: MapStore::default(),
            layout: Layout::new("root").unwrap(),
            topic: TopicState {
                id: TopicId(7),
                name: "images".parse().unwrap(),
                config,
                created_at: Timestamp::default(),
                deleted: false,
                next_segment: SegmentNumber(1),
                next_offsets: Vec::new(),
                adopted: BTreeMap::new(),
                tails: BTreeMap::new(),
                planned: BTreeMap::new(),
                open: BTreeMap::new(),
                sealed: BTreeMap::new(),
            },
            next_offsets: vec![0; PARTITIONS as usize],
            next_slot: 1,
            rows: Vec::new(),
        }
    }

    pub(crate) fn compactor_on(&self, store: &MapStore, runtime: Arc<TestRuntime>) -> Compactor {
        let blobs: Arc<dyn BlobStore> = Arc::new(store.clone());
        let stores = [("main".parse().unwrap(), Arc::clone(&blobs))].into();
        Compactor::new(Metadata::new(Arc::new(store.clone()), self.layout.clone()), blobs, stores, runtime)
    }

    pub(crate) fn compactor(&self, runtime: Arc<TestRuntime>) -> Compactor {
        self.compactor_on(&self.store, runtime)
    }

    /// Seals a segment of `range` with these batches: partition, append time, records. It joins the topic's sealed segments.
    pub(crate) async fn segment(&mut self, range: (u32, u32), batches: &[(u32, &str, Vec<Record>)]) -> SealedSegment {
        let range = PartitionRange::new(PartitionId(range.0), PartitionId(range.1)).unwrap();
        let number = self.topic.next_segment;
        self.topic.next_segment = number.next();
        let id = SegmentId { topic: self.topic.id, number };
        let start_offsets: Vec<Offset> = range.iter().map(|p| Offset(self.next_offsets[p.0 as usize])).collect();
        let epoch = Epoch(3);
        let first = self.next_slot;
        let mut bytes = 0;
        for (at, pair) in batches.chunks(2).enumerate() {
            let mut entries = Vec::new();
            for (partition, time, records) in pair {
                let partition = PartitionId(*partition);
                let base = self.next_offsets[partition.0 as usize];
                let append_time: Timestamp = time.parse().unwrap();
                // Every other object has batches of a producer without identity.
                let producer = (at % 2 == 0).then_some(ProducerStamp {
                    id: ProducerId::new(epoch, 1),
                    epoch: ProducerEpoch(2),
                    first: Sequence(base),
                });
                let batch = encoded(records, producer);
                bytes += batch.bytes().len() as u64;
                for (i, record) in (0_u64..).zip(records) {
                    self.rows.push(Row {
                        partition,
                        offset: Offset(base + i),
                        append_time,
                        producer: producer.map(|p| ProducerStamp { first: Sequence(p.first.0 + i), ..p }),
                        record: record.clone(),
                    });
                }
                self.next_offsets[partition.0 as usize] += records.len() as u64;
                entries.push(Entry::Batch(PlacedBatch {
                    segment: id,
                    partition,
                    base_offset: Offset(base),
                    append_time,
                    batch,
                }));
            }
            let slot = Slot(self.next_slot);
            self.next_slot += 1;
            let object = JournalObject::Entries {
                in_flight: 0,
                epoch,
                slot,
                token: refstream_types::Token([9; 16]),
                checkpoint: None,
                entries,
            };
            self.store.overwrite(&self.layout.journal(epoch, slot), object.encode());
        }
        let sealed = SealedSegment {
            opened: OpenSegment { id, range, owner: epoch, start_offsets, predecessors: Vec::new() },
            end_offsets: range.iter().map(|p| Offset(self.next_offsets[p.0 as usize])).collect(),
            by: SealedBy::Recovery { fence: Slot(self.next_slot) },
            slots: (Slot(first), Slot((self.next_slot - 1).max(first))),
            bytes,
        };
        self.topic.sealed.insert(number, sealed.clone());
        sealed
    }

    /// The rows in the order of a file.
    pub(crate) fn sorted_rows(&self) -> Vec<Row> {
        sorted(self.rows.clone())
    }
}

pub(crate) fn sorted(mut rows: Vec<Row>) -> Vec<Row> {
    rows.sort_by_key(|row| (row.partition, row.offset));
    rows
}

fn encoded(records: &[Record], producer: Option<ProducerStamp>) -> EncodedBatch {
    let mut builder = BatchBuilder::new();
    for record in records {
        builder.push(record).unwrap();
    }
    builder.finish(producer).unwrap()
}

/// A record of each kind there is, by number.
pub(crate) fn record(n: u64) -> Record {
    let hash = ContentHash(*blake3::hash(&n.to_le_bytes()).as_bytes());
    let reference = Reference {
        store: "main".parse().unwrap(),
        key: format!("payloads/images-7/{:02x}/{}", n % 256, hex::encode(&hash.0[..16])).parse().unwrap(),
        offset: None,
        size: 1_000 + n,
        checksum: Some(Crc32c(n as u32 ^ 0xdead_beef)),
        content_hash: Some(hash),
        content_size: 1_000 + n,
        encoding: ContentEncoding::Identity,
        content_type: Some("image/png".into()),
        etag: None,
        version: None,
    };
    let text = |name: &str, value: &str| Header { name: name.into(), value: Bytes::copy_from_slice(value.as_bytes()) };
    let binary = |name: &str| Header { name: name.into(), value: Bytes::from_static(&[0xff, 0, 0x80]) };
    let mut record = Record::new(match n % 8 {
        0 => Value::Reference(Box::new(reference)),
        1 => Value::Reference(Box::new(Reference {
            key: "payloads/images-7/pack".parse().unwrap(),
            offset: Some(n * 512),
            encoding: ContentEncoding::Zstd,
            size: 300,
            content_type: None,
            ..reference
        })),
        2 => Value::Inline { bytes: Bytes::from(format!("value {n}")), content_hash: hash },
        3 => Value::Inline { bytes: Bytes::new(), content_hash: hash },
        4 => Value::Tombstone,
        5 => Value::Reference(Box::new(Reference {
            store: "elsewhere".parse().unwrap(),
            checksum: None,
            content_hash: None,
            etag: Some("\"abc\"".into()),
            version: Some("v1".into()),
            ..reference
        })),
        6 => Value::Reference(Box::new(Reference { offset: Some(0), ..reference })),
        _ => Value::Reference(Box::new(reference)),
    });
    record.key = match n % 5 {
        0 => None,
        1 => Some(Bytes::new()),
        2 => Some(Bytes::from_static(&[0, 0xff, 0xfe])),
        _ => Some(Bytes::from(format!("key-{n}"))),
    };
    record.headers = match n % 6 {
        0 => Vec::new(),
        1 => vec![text("a", "1"), text("a", "2"), text("empty", "")],
        2 => vec![binary("b")],
        3 => vec![text("a", "1"), binary("b"), text("c", "3"), binary("b"), text("a", "4")],
        4 => vec![binary("b"), text("ä", "ö")],
        _ => vec![text("job", "import-1")],
    };
    if n.is_multiple_of(3) {
        record.event_time = Some(Timestamp::from_micros(-1_000_000 * n as i64));
        record.source_name = Some(format!("pictures/2026/ü{n}.png"));
        record.source_mtime = Some(Timestamp::from_micros(1_700_000_000_000_001 + n as i64));
    }
    record
}

/// Records `from..from + count`.
pub(crate) fn records(from: u64, count: u64) -> Vec<Record> {
    (from..from + count).map(record).collect()
}
