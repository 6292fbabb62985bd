//! Writes a folder for tests/compat: a topic with every kind of row, over two days, in several segments and merged files.
//!
//! ```text
//! cargo run -p refstream-segments --example compat_samples -- DIR
//! ```
//!
//! Makes `DIR/topics/samples-1/data/**`, early files in `_fresh/` beside it that a glob over `data/` never reads, and
//! `DIR/expected.jsonl` with every published row by column name: binary values in base64, times in microseconds.

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use futures::future::BoxFuture;
use refstream_filer_adapter::{BlobStore, Filer, Runtime, TokioRuntime, memory::MemoryStore};
use refstream_format::{
    batch::BatchBuilder,
    cluster_log::{OpenSegment, SealedBy, SealedSegment, TopicState},
    crc32c,
    journal::{Entry, JournalObject, PlacedBatch},
};
use refstream_journal::Metadata;
use refstream_segments::Compactor;
use refstream_types::{
    ContentEncoding, ContentHash, Epoch, Header, Layout, Offset, PartitionId, PartitionRange, ProducerEpoch,
    ProducerId, ProducerStamp, Record, Reference, SegmentId, SegmentNumber, Sequence, Slot, Timestamp, TopicConfig,
    TopicId, Value,
};
use serde_json::{Value as Json, json};
use std::{collections::BTreeMap, error::Error, path::PathBuf, sync::Arc, time::Duration};

/// The machine's clock, but for the wall's: by it no day is over yet.
#[derive(Debug)]
struct Early(TokioRuntime);

impl Runtime for Early {
    fn now(&self) -> Duration {
        self.0.now()
    }
    fn wall(&self) -> Timestamp {
        Timestamp::from_micros(0)
    }
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.0.sleep(duration)
    }
    fn random(&self) -> u64 {
        self.0.random()
    }
}

const PARTITIONS: u32 = 3;
const EPOCH: Epoch = Epoch(1);
/// Append times of the segments; the second segment crosses midnight.
const TIMES: [[&str; 2]; 4] = [
    ["2026-11-28T10:00:00.000001Z", "2026-11-28T11:00:00Z"],
    ["2026-11-28T23:59:59.999999Z", "2026-11-29T00:00:00Z"],
    ["2026-11-29T08:00:00Z", "2026-11-29T09:30:00Z"],
    ["2026-11-30T08:00:00Z", "2026-11-30T08:00:00Z"],
];
const RECORDS: u64 = 200;

fn record(n: u64) -> Result<Record, Box<dyn Error>> {
    let body = Bytes::from(format!("payload number {n} ").repeat(1 + n as usize % 5));
    let content_hash = ContentHash(*blake3::hash(&body).as_bytes());
    let plain = Reference {
        store: "main".parse()?,
        key: format!("payloads/samples-1/{:02x}/{}", content_hash.0[0], hex::encode(&content_hash.0[..16])).parse()?,
        offset: None,
        size: body.len() as u64,
        checksum: Some(crc32c(&body)),
        content_hash: Some(content_hash),
        content_size: body.len() as u64,
        encoding: ContentEncoding::Identity,
        content_type: Some("text/plain".into()),
        etag: None,
        version: None,
    };
    let packed = Reference {
        key: format!("payloads/samples-1/00/pack-{}", n / 64).parse()?,
        offset: Some(n * 100),
        ..plain.clone()
    };
    let reference = |reference| Value::Reference(Box::new(reference));
    let mut record = Record::new(match n % 7 {
        0 => reference(plain),
        1 => reference(packed),
        2 => reference(Reference { size: 40, encoding: ContentEncoding::Zstd, content_type: None, ..packed }),
        3 => Value::Inline { bytes: body, content_hash },
        4 => Value::Inline { bytes: Bytes::new(), content_hash: ContentHash(*blake3::hash(b"").as_bytes()) },
        5 => Value::Tombstone,
        _ => reference(Reference {
            checksum: None,
            content_hash: None,
            etag: Some("9b2cf535f27731c974343645a3985328".into()),
            version: Some("3HL4kqtJlcpXroDTDmJ+rmSpXd3dIbrHY+MTRCxf3vjVBH40Nr8X8gdRQBpUMLUo".into()),
            ..plain
        }),
    });
    record.key = match n % 5 {
        0 => None,
        1 => Some(Bytes::new()),
        2 => Some(Bytes::from_static(&[0, 0xff, 0xfe])),
        _ => Some(Bytes::from(format!("clé-{n}"))),
    };
    let text = |name: &str, value: &str| Header { name: name.into(), value: Bytes::copy_from_slice(value.as_bytes()) };
    record.headers = match n % 4 {
        0 => Vec::new(),
        1 => vec![text("job", "import-1"), text("job", "")],
        2 => vec![Header { name: "raw".into(), value: Bytes::from_static(&[0xff, 0]) }],
        _ => vec![text("sprache", "größe"), Header { name: "raw".into(), value: Bytes::from_static(&[0x80]) }],
    };
    if n.is_multiple_of(3) {
        record.event_time = Some(Timestamp::from_micros(1_764_000_000_000_001 + n as i64));
        record.source_name = Some(format!("pictures/größe/{n}.txt"));
        record.source_mtime = Some(Timestamp::from_micros(-1));
    }
    Ok(record)
}

fn pairs<'a>(headers: impl Iterator<Item = &'a Header>, value: impl Fn(&Bytes) -> Json) -> Json {
    let pairs: Vec<Json> = headers.map(|header| json!({"key": header.name, "value": value(&header.value)})).collect();
    if pairs.is_empty() { Json::Null } else { Json::Array(pairs) }
}

/// The row as every reader must see it.
fn expected(
    store: &dyn BlobStore,
    partition: u32,
    offset: u64,
    at: Timestamp,
    record: &Record,
    seq: Option<u64>,
) -> Json {
    let base64 = |bytes: &Bytes| Json::from(BASE64_STANDARD.encode(bytes));
    let text = |bytes: &Bytes| std::str::from_utf8(bytes).map_or(Json::Null, Json::from);
    let is_text = |header: &&Header| std::str::from_utf8(&header.value).is_ok();
    let binary = record.headers.iter().skip_while(is_text);
    let key = record.key.as_ref();
    let (reference, value, hash, size) = match &record.value {
        Value::Reference(r) => (Some(r), None, r.content_hash, Some(r.content_size)),
        Value::Inline { bytes, content_hash } => (None, Some(bytes), Some(*content_hash), Some(bytes.len() as u64)),
        Value::Tombstone => (None, None, None, None),
    };
    let payload = reference.map_or(Json::Null, |r| {
        json!({
            "uri": store.uri(&r.key), "offset": r.offset, "size": r.size, "content_type": r.content_type,
            "checksum": r.checksum.map(|c| c.to_string()),
        })
    });
    json!({
        "ingest_date": at.date().to_string(), "topic": "samples", "partition_id": partition, "log_offset": offset,
        "append_time": at.as_micros(), "event_time": record.event_time.map(Timestamp::as_micros),
        "key": key.map(text), "key_bytes": key.filter(|k| std::str::from_utf8(k).is_err()).map(base64),
        "payload": payload, "content_hash": hash.map(|h| h.to_string()),
        "content_encoding": reference.filter(|r| r.encoding == ContentEncoding::Zstd).map(|_| "zstd"),
        "content_size": size, "value": value.map(base64), "source_name": record.source_name,
        "source_mtime": record.source_mtime.map(Timestamp::as_micros),
        "attributes": pairs(record.headers.iter().filter(is_text), text),
        "headers": pairs(binary, base64),
        "producer_id": seq.map(|_| ProducerId::new(EPOCH, 1).0), "producer_seq": seq, "producer_epoch": seq.map(|_| 0),
        "store": reference.map(|r| r.store.as_str()), "payload_etag": reference.map(|r| r.etag.clone()),
        "payload_version": reference.map(|r| r.version.clone()),
    })
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = PathBuf::from(std::env::args_os().nth(1).ok_or("usage: compat_samples DIR")?);
    let runtime: Arc<dyn Runtime> = Arc::new(Early(TokioRuntime::new()));
    let store = Arc::new(MemoryStore::new(Arc::clone(&runtime)));
    let (filer, blobs): (Arc<dyn Filer>, Arc<dyn BlobStore>) = (Arc::clone(&store) as _, Arc::clone(&store) as _);
    let layout = Layout::new("")?;
    let topic = TopicState {
        id: TopicId(1),
        name: "samples".parse()?,
        config: TopicConfig { partitions: PARTITIONS, ..TopicConfig::default() },
        created_at: Timestamp::default(),
        deleted: false,
        next_segment: SegmentNumber(1),
        next_offsets: Vec::new(),
        open: BTreeMap::new(),
        adopted: BTreeMap::new(),
        sealed: BTreeMap::new(),
        tails: BTreeMap::new(),
        planned: BTreeMap::new(),
    };
    let metadata = Metadata::new(Arc::clone(&filer), layout.clone());
    let stores = [("main".parse()?, Arc::clone(&blobs))].into();
    let compactor = Compactor::new(metadata, Arc::clone(&blobs), stores, runtime);
    let range = PartitionRange::new(PartitionId(0), PartitionId(PARTITIONS)).ok_or("no partitions")?;
    let (mut next, mut n, mut slot) = (vec![0_u64; PARTITIONS as usize], 0, 1);
    let mut lines = String::new();
    for (number, times) in (1..).zip(TIMES) {
        let id = SegmentId { topic: topic.id, number: SegmentNumber(number) };
        let start_offsets = next.iter().copied().map(Offset).collect();
        let (first, mut bytes) = (slot, 0);
        for time in times {
            let append_time: Timestamp = time.parse()?;
            let mut entries = Vec::new();
            for partition in range.iter() {
                let base = next[partition.0 as usize];
                let mut batch = BatchBuilder::new();
                for at in 0..RECORDS / 6 {
                    let record = record(n)?;
                    n += 1;
                    batch.push(&record)?;
                    let seq = (number != 3).then_some(base + at);
                    // The last segment stays in an early file.
                    if number < TIMES.len() as u64 {
                        let row = expected(blobs.as_ref(), partition.0, base + at, append_time, &record, seq);
                        lines += &format!("{row}\n");
                    }
                }
                let producer =
                    ProducerStamp { id: ProducerId::new(EPOCH, 1), epoch: ProducerEpoch(0), first: Sequence(base) };
                next[partition.0 as usize] += u64::from(batch.records());
                let batch = batch.finish((number != 3).then_some(producer)).ok_or("an empty batch")?;
                bytes += batch.bytes().len() as u64;
                let base_offset = Offset(base);
                entries.push(Entry::Batch(PlacedBatch { segment: id, partition, base_offset, append_time, batch }));
            }
            let token = refstream_types::Token([1; 16]);
            let object = JournalObject::Entries {
                in_flight: 0,
                epoch: EPOCH,
                slot: Slot(slot),
                token,
                checkpoint: None,
                entries,
            };
            filer.create(&layout.journal(EPOCH, Slot(slot)), object.encode()).await?;
            slot += 1;
        }
        let sealed = SealedSegment {
            opened: OpenSegment { id, range, owner: EPOCH, start_offsets, predecessors: Vec::new() },
            end_offsets: next.iter().copied().map(Offset).collect(),
            by: SealedBy::Recovery { fence: Slot(slot) },
            slots: (Slot(first), Slot(slot - 1)),
            bytes,
        };
        // The first two segments are merged; the third is published alone; the last stays early.
        compactor.compact(&topic, &[sealed], number == 2 || number == 3).await?;
    }
    for key in store.keys().into_iter().filter(|key| key.as_str().starts_with("topics/")) {
        let Some(bytes) = store.peek(&key) else { continue };
        let path = folder.join(key.as_str());
        std::fs::create_dir_all(path.parent().ok_or("no folder")?)?;
        std::fs::write(path, bytes)?;
    }
    std::fs::write(folder.join("expected.jsonl"), lines)?;
    Ok(())
}
