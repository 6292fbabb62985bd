use super::*;
use crate::{batch::BatchBuilder, crc32c};
use bytes::Bytes;
use proptest::prelude::*;
use refstream_types::{ContentHash, Record, SegmentNumber, TopicId, Value};

fn batch(n: u8) -> EncodedBatch {
    let mut builder = BatchBuilder::new();
    for i in 0..=n % 3 {
        let value = Value::Inline { bytes: vec![i; n as usize].into(), content_hash: ContentHash([n; 32]) };
        builder.push(&Record::new(value)).unwrap();
    }
    builder.finish(None).unwrap()
}

fn segment(n: u8) -> SegmentId {
    SegmentId { topic: TopicId(u64::from(n) * 1_000 + 1), number: SegmentNumber(n.into()) }
}

fn state(n: u8) -> SegmentState {
    let range = PartitionRange::new(PartitionId(n.into()), PartitionId(u32::from(n) + 1 + u32::from(n % 4))).unwrap();
    SegmentState {
        segment: segment(n),
        range,
        adopted: Slot(1),
        bytes: u64::from(n) * 99,
        next_offsets: range.iter().map(|p| Offset(u64::from(p.0) << 33)).collect(),
        last_append_time: Timestamp::from_micros(-5),
        producers: (0..n % 3)
            .map(|i| ProducerState {
                partition: range.lo(),
                id: ProducerId(i.into()),
                epoch: ProducerEpoch(3),
                batches: vec![
                    RememberedBatch {
                        first: Sequence(7),
                        records: 2,
                        base_offset: Offset(9),
                        append_time: Timestamp::from_micros(1),
                    };
                    usize::from(i)
                ],
            })
            .collect(),
    }
}

fn entry() -> impl Strategy<Value = Entry> {
    prop_oneof![
        any::<u8>().prop_map(|n| Entry::Batch(PlacedBatch {
            segment: segment(n),
            partition: PartitionId(n.into()),
            base_offset: Offset(u64::from(n) << 40),
            append_time: Timestamp::from_micros(n.into()),
            batch: batch(n),
        })),
        any::<u8>().prop_map(|n| Entry::Adopt(state(n))),
        any::<u8>().prop_map(|n| Entry::Seal(state(n))),
        any::<u8>().prop_map(|n| Entry::Expire {
            segment: segment(n),
            producers: vec![(PartitionId(1), ProducerId(u64::MAX))]
        }),
        any::<u8>().prop_map(|n| Entry::Checkpoint(Checkpoint {
            previous: (n > 9).then_some(Slot(n.into())),
            segments: (0..n % 4).map(state).collect(),
            batches: vec![
                BatchLocation {
                    slot: Slot(4),
                    bytes: (64, 200),
                    segment: segment(n),
                    partition: PartitionId(2),
                    base_offset: Offset(n.into()),
                    records: 1,
                    append_time: Timestamp::from_micros(0),
                };
                usize::from(n % 5)
            ],
        })),
    ]
}

const PLACE: (Epoch, Slot) = (Epoch(3), Slot(300));

fn object(entries: Vec<Entry>) -> JournalObject {
    JournalObject::Entries {
        epoch: PLACE.0,
        slot: PLACE.1,
        token: Token([5; 16]),
        checkpoint: Some(Slot(256)),
        entries,
    }
}

proptest! {
    #[test]
    fn objects_come_back_equal(entries in proptest::collection::vec(entry(), 0..8)) {
        let object = object(entries);
        let bytes = object.encode();
        prop_assert_eq!(&JournalObject::decode(bytes.clone(), PLACE).unwrap(), &object);
        for location in object.locations() {
            let (at, length) = (location.bytes.0 as usize, location.bytes.1 as usize);
            let batch = EncodedBatch::parse(bytes.slice(at..at + length)).unwrap();
            prop_assert_eq!(batch.header().records, location.records);
        }
    }

    #[test]
    fn damage_is_found(entries in proptest::collection::vec(entry(), 0..4), at in any::<prop::sample::Index>(), bit in 0..8) {
        let mut bytes = object(entries).encode().to_vec();
        let at = at.index(bytes.len());
        bytes[at] ^= 1_u8 << bit;
        prop_assert!(JournalObject::decode(bytes.clone().into(), PLACE).is_err());
        bytes.truncate(at);
        prop_assert!(JournalObject::decode(bytes.into(), PLACE).is_err());
    }

    #[test]
    fn a_forged_index_does_not_panic(index in proptest::collection::vec(any::<u8>(), 0..200), count in 0..20_u32) {
        let mut bytes = object(Vec::new()).encode()[..HEADER_BYTES].to_vec();
        bytes[48..52].copy_from_slice(&count.to_le_bytes());
        bytes[52..56].copy_from_slice(&(index.len() as u32).to_le_bytes());
        let checksum = crc32c(&bytes[..60]);
        bytes[60..64].copy_from_slice(&checksum.0.to_le_bytes());
        bytes.extend_from_slice(&index);
        bytes.extend_from_slice(&crc32c(&index).0.to_le_bytes());
        let _ = JournalObject::decode(Bytes::from(bytes), PLACE);
    }
}

#[test]
fn a_fence_comes_back_equal() {
    let fence = JournalObject::Fence { epoch: PLACE.0, slot: PLACE.1, token: Token([1; 16]), by: Epoch(9) };
    assert_eq!(JournalObject::decode(fence.encode(), PLACE).unwrap(), fence);
}

#[test]
fn an_object_at_the_wrong_place_is_refused() {
    let error = JournalObject::decode(object(Vec::new()).encode(), (Epoch(3), Slot(301))).unwrap_err();
    assert!(error.to_string().contains("slot 300"), "{error}");
}
