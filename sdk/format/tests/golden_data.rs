//! Golden files of batches, journals, epochs and payload formats: each is read and compared with what it was made of, then
//! written again to equal bytes. `REFSTREAM_WRITE_GOLDEN=1` writes them.

#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use refstream_format::{
    batch::{BatchBuilder, EncodedBatch},
    blocks::Blocks,
    epoch::EpochClaim,
    frames::{FRAME_BYTES, SeekTable, decompress},
    journal::{
        BatchLocation, Checkpoint, Entry, JournalHead, JournalObject, PlacedBatch, ProducerState, RememberedBatch,
        SegmentState,
    },
    pack::{PackEntry, PackFooter},
};
use refstream_types::{
    ContentEncoding, ContentHash, Crc32c, Epoch, Header, Offset, PartitionId, PartitionRange, ProducerEpoch,
    ProducerId, ProducerStamp, Record, Reference, SegmentId, SegmentNumber, Sequence, Slot, Timestamp, Token, TopicId,
    Value,
};
use std::path::PathBuf;

fn golden(name: &str, written: &[u8]) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("REFSTREAM_WRITE_GOLDEN").is_some() {
        std::fs::write(&path, written).unwrap();
    }
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The stored bytes, which are those that this program writes.
fn pinned(name: &str, written: &[u8]) -> Bytes {
    let stored = golden(name, written);
    assert!(stored == written, "{name}: the format changed; raise its version");
    stored.into()
}

fn time(micros: i64) -> Timestamp {
    Timestamp::from_micros(1_795_939_800_000_000 + micros)
}

fn hash(n: u8) -> ContentHash {
    ContentHash(std::array::from_fn(|i| n.wrapping_mul(31).wrapping_add((i as u8).wrapping_mul(73))))
}

fn stamp() -> ProducerStamp {
    ProducerStamp { id: ProducerId::new(Epoch(3), 1), epoch: ProducerEpoch(2), first: Sequence(700) }
}

/// One record of each kind, every field used and left out.
fn records() -> Vec<Record> {
    let packed = Reference {
        store: "main".parse().unwrap(),
        key: "payloads/images.raw-1/ab/0123456789abcdef0123456789abcdef".parse().unwrap(),
        offset: Some(8_192),
        size: 4_000,
        checksum: Some(Crc32c(0xdead_beef)),
        content_hash: Some(hash(1)),
        content_size: 9_000,
        encoding: ContentEncoding::Zstd,
        content_type: Some("image/svg+xml".into()),
        etag: None,
        version: None,
    };
    let attached = Reference {
        store: "lake".parse().unwrap(),
        key: "raw/ä/1.tif".parse().unwrap(),
        offset: None,
        size: 5 << 30,
        checksum: None,
        content_hash: None,
        content_size: 5 << 30,
        encoding: ContentEncoding::Identity,
        content_type: None,
        etag: Some("\"d41d8cd9\"".into()),
        version: Some("v7".into()),
    };
    let inline = Value::Inline { bytes: b"a small value"[..].into(), content_hash: hash(2) };
    let second = Reference { offset: Some(0), ..packed.clone() };
    vec![
        Record {
            key: Some(b"camera-1"[..].into()),
            event_time: Some(time(0)),
            headers: vec![
                Header { name: "site".into(), value: b"north"[..].into() },
                Header { name: "raw".into(), value: vec![0, 255].into() },
            ],
            source_name: Some("icons/a.svg".into()),
            source_mtime: Some(time(-86_400_000_000)),
            value: Value::Reference(Box::new(packed)),
        },
        Record { event_time: Some(time(-5)), ..Record::new(Value::Reference(Box::new(second))) },
        Record { source_mtime: Some(time(1)), ..Record::new(Value::Reference(Box::new(attached))) },
        Record { key: Some(Bytes::new()), ..Record::new(inline) },
        Record::new(Value::Tombstone),
    ]
}

fn batch(records: &[Record], producer: Option<ProducerStamp>) -> EncodedBatch {
    let mut builder = BatchBuilder::new();
    records.iter().for_each(|record| builder.push(record).unwrap());
    builder.finish(producer).unwrap()
}

/// Few enough to be stored without compression, whose bytes belong to zstd's version and not to the format.
fn plain_batch() -> EncodedBatch {
    batch(&[records().swap_remove(2)], Some(stamp()))
}

#[test]
fn batches() {
    let plain = pinned("batch.v1.bin", plain_batch().bytes());
    let plain = EncodedBatch::parse(plain).unwrap();
    assert_eq!(plain, plain_batch());
    assert_eq!(plain.decode().unwrap(), [records().swap_remove(2)]);
    let compressed = golden("batch_zstd.v1.bin", batch(&records(), None).bytes());
    let compressed = EncodedBatch::parse(compressed.into()).unwrap();
    assert_eq!(compressed.header(), batch(&records(), None).header());
    assert_eq!(compressed.decode().unwrap(), records());
}

fn journal() -> JournalObject {
    let segment = |number| SegmentId { topic: TopicId(1), number: SegmentNumber(number) };
    let state = |number, lo: u32, next: &[u64]| SegmentState {
        segment: segment(number),
        range: PartitionRange::new(PartitionId(lo), PartitionId(lo + next.len() as u32)).unwrap(),
        adopted: Slot(40),
        bytes: 123_456,
        next_offsets: next.iter().copied().map(Offset).collect(),
        last_append_time: time(10),
        producers: vec![
            ProducerState {
                partition: PartitionId(lo),
                id: ProducerId::new(Epoch(3), 1),
                epoch: ProducerEpoch(2),
                batches: vec![
                    RememberedBatch {
                        first: Sequence(600),
                        records: 50,
                        base_offset: Offset(1 << 33),
                        append_time: time(8),
                    },
                    RememberedBatch {
                        first: Sequence(650),
                        records: 50,
                        base_offset: Offset((1 << 33) + 50),
                        append_time: time(10),
                    },
                ],
            },
            ProducerState {
                partition: PartitionId(lo),
                id: ProducerId(9),
                epoch: ProducerEpoch(0),
                batches: Vec::new(),
            },
        ],
    };
    let location = |slot, start, base| BatchLocation {
        slot: Slot(slot),
        bytes: (start, 300),
        segment: segment(4),
        partition: PartitionId(2),
        base_offset: Offset(base),
        records: 50,
        append_time: time(slot as i64),
    };
    let placed = |partition, base| {
        Entry::Batch(PlacedBatch {
            segment: segment(4),
            partition: PartitionId(partition),
            base_offset: Offset(base),
            append_time: time(20),
            batch: plain_batch(),
        })
    };
    JournalObject::Entries {
        in_flight: 0,
        epoch: Epoch(3),
        slot: Slot(300),
        token: Token([0xa5; 16]),
        checkpoint: Some(Slot(256)),
        entries: vec![
            Entry::Adopt(state(4, 2, &[1 << 40, 0, 7])),
            placed(2, 1 << 40),
            Entry::Expire { segment: segment(4), producers: vec![(PartitionId(2), ProducerId(9))] },
            placed(3, 0),
            Entry::Seal(state(5, 0, &[12])),
            Entry::Checkpoint(Checkpoint {
                previous: Some(Slot(256)),
                segments: vec![state(4, 2, &[1 << 40, 0, 7])],
                batches: vec![location(256, 500, 0), location(299, 64, 50)],
            }),
        ],
    }
}

#[test]
fn journal_objects() {
    let fence = JournalObject::Fence { epoch: Epoch(3), slot: Slot(301), token: Token([0x5a; 16]), by: Epoch(4) };
    for (name, object, slot) in [("journal.v1.bin", journal(), 300), ("fence.v1.bin", fence, 301)] {
        let stored = pinned(name, &object.encode());
        assert_eq!(JournalHead::peek(&stored).unwrap().token, object.token());
        let decoded = JournalObject::decode(stored, (Epoch(3), Slot(slot))).unwrap();
        assert_eq!(decoded, object, "{name}");
    }
}

#[test]
fn epoch_claims() {
    let claim = EpochClaim {
        epoch: Epoch(3),
        token: Token([0xa5; 16]),
        endpoint: "http://127.0.0.1:7400".into(),
        claimed_at: time(1),
        software: "refstream 0.1.0".into(),
    };
    let stored = pinned("epoch_claim.v1.bin", &claim.encode());
    assert_eq!(EpochClaim::decode(&stored).unwrap(), claim);
}

#[test]
fn seek_tables_and_frames() {
    let table =
        SeekTable { frames: vec![(400_000, FRAME_BYTES as u32), (500_000, FRAME_BYTES as u32), (70_000, 99_999)] };
    let stored = pinned("seek_table.v1.bin", &table.encode());
    assert_eq!(SeekTable::decode_tail(&stored).unwrap(), table);
    let content: Vec<u8> = (0..3_000_u32).flat_map(|n| (n / 7).to_le_bytes()).collect();
    let frame = golden("frame.v1.bin", &refstream_format::frames::compress_frame(&content, 3));
    assert_eq!(decompress(&frame, content.len()).unwrap(), content);
}

#[test]
fn block_checksums() {
    let blocks = Blocks { size: (2 << 20) + 1, checksums: vec![Crc32c(1), Crc32c(0xffff_ffff), Crc32c(0xdead_beef)] };
    let stored = pinned("blocks.v1.bin", &blocks.encode());
    assert_eq!(Blocks::decode(&stored).unwrap(), blocks);
}

#[test]
fn pack_footers() {
    let entry = |offset, size, content: Option<u64>, name: Option<&str>| PackEntry {
        offset,
        size,
        checksum: Crc32c(offset as u32 ^ 0x0102_0304),
        content_hash: hash(size as u8),
        content_size: content.unwrap_or(size),
        encoding: if content.is_some() { ContentEncoding::Zstd } else { ContentEncoding::Identity },
        source_name: name.map(Into::into),
    };
    let footer = PackFooter {
        entries: vec![
            entry(0, 300, None, Some("icons/a.svg")),
            entry(300, 0, None, None),
            entry(300, 4_000, Some(9_000), Some("ä")),
        ],
    };
    let stored = pinned("pack_footer.v1.bin", &footer.encode());
    assert_eq!(PackFooter::decode(&stored, 4_300 + stored.len() as u64).unwrap(), footer);
}
