use super::*;
use crate::{
    arbitrary::{self, detects_damage},
    batch::{EncodedBatch, MAX_BATCH_RECORDS},
    wire::Writer,
};
use bytes::Bytes;
use proptest::{collection::vec, option, prelude::*};
use refstream_types::{SegmentNumber, TopicId};

fn segment() -> impl Strategy<Value = SegmentId> {
    (any::<u64>(), any::<u64>())
        .prop_map(|(topic, number)| SegmentId { topic: TopicId(topic), number: SegmentNumber(number) })
}

fn offset() -> impl Strategy<Value = Offset> {
    (0..Offset::MAX.0 - u64::from(u32::MAX)).prop_map(Offset)
}

fn placed() -> impl Strategy<Value = PlacedBatch> {
    (segment(), any::<u32>(), offset(), arbitrary::time(), arbitrary::batch(1..3)).prop_map(
        |(segment, partition, base_offset, append_time, (batch, _))| PlacedBatch {
            segment,
            partition: PartitionId(partition),
            base_offset,
            append_time,
            batch,
        },
    )
}

fn state() -> impl Strategy<Value = SegmentState> {
    let remembered = (0_u64..1 << 62, 1..=MAX_BATCH_RECORDS, offset(), arbitrary::time()).prop_map(
        |(first, records, base_offset, append_time)| RememberedBatch {
            first: Sequence(first),
            records,
            base_offset,
            append_time,
        },
    );
    let producer = (any::<u64>(), any::<u32>(), vec(remembered, 0..=MAX_IN_FLIGHT));
    (segment(), 0_u32..100, vec(offset(), 1..5), arbitrary::time(), vec(producer, 0..3)).prop_map(
        |(segment, lo, next_offsets, last_append_time, producers)| {
            let hi = PartitionId(lo + next_offsets.len() as u32);
            let producers = producers.into_iter().map(|(id, epoch, batches)| ProducerState {
                partition: PartitionId(lo),
                id: ProducerId(id),
                epoch: ProducerEpoch(epoch),
                batches,
            });
            SegmentState {
                segment,
                adopted: Slot(u64::from(lo)),
                bytes: u64::from(lo) << 33,
                range: PartitionRange::new(PartitionId(lo), hi).unwrap(),
                producers: producers.collect(),
                next_offsets,
                last_append_time,
            }
        },
    )
}

/// For slot 100 and above.
fn checkpoint() -> impl Strategy<Value = Checkpoint> {
    let location = (50_u64..100, 64_u32..1 << 20, 1_u32..1 << 20, segment(), offset(), 1_u32..1_000, arbitrary::time())
        .prop_map(|(slot, start, length, segment, base_offset, records, append_time)| BatchLocation {
            slot: Slot(slot),
            bytes: (start, length),
            segment,
            partition: PartitionId(3),
            base_offset,
            records,
            append_time,
        });
    (option::of(1_u64..=50), vec(state(), 0..2), vec(location, 0..4))
        .prop_map(|(previous, segments, batches)| Checkpoint { previous: previous.map(Slot), segments, batches })
}

fn entry() -> impl Strategy<Value = Entry> {
    prop_oneof![
        4 => placed().prop_map(Entry::Batch),
        1 => state().prop_map(Entry::Adopt),
        1 => state().prop_map(Entry::Seal),
        1 => checkpoint().prop_map(Entry::Checkpoint),
        1 => (segment(), vec((any::<u32>(), any::<u64>()), 0..3)).prop_map(|(segment, producers)| Entry::Expire {
            segment,
            producers: producers.into_iter().map(|(p, id)| (PartitionId(p), ProducerId(id))).collect(),
        }),
    ]
}

fn object(entries: std::ops::Range<usize>) -> impl Strategy<Value = JournalObject> {
    let common = (1..u64::MAX, 100..u64::MAX, arbitrary::token());
    prop_oneof![
        4 => (common.clone(), option::of(1_u64..100), vec(entry(), entries)).prop_map(
            |((epoch, slot, token), checkpoint, entries)| JournalObject::Entries { in_flight: 0,
                epoch: Epoch(epoch),
                slot: Slot(slot),
                token,
                checkpoint: checkpoint.map(Slot),
                entries,
            }
        ),
        1 => (common, any::<u64>()).prop_map(|((epoch, slot, token), by)| JournalObject::Fence {
            epoch: Epoch(epoch),
            slot: Slot(slot),
            token,
            by: Epoch(by),
        }),
    ]
}

fn place(object: &JournalObject) -> (Epoch, Slot) {
    match object {
        JournalObject::Entries { epoch, slot, .. } | JournalObject::Fence { epoch, slot, .. } => (*epoch, *slot),
    }
}

fn batches(object: &JournalObject) -> impl Iterator<Item = &PlacedBatch> {
    let entries = match object {
        JournalObject::Entries { entries, .. } => &entries[..],
        JournalObject::Fence { .. } => &[],
    };
    entries.iter().filter_map(|entry| if let Entry::Batch(placed) = entry { Some(placed) } else { None })
}

fn heartbeat() -> JournalObject {
    JournalObject::Entries {
        in_flight: 0,
        epoch: Epoch(3),
        slot: Slot(7),
        token: Token([9; 16]),
        checkpoint: Some(Slot(5)),
        entries: Vec::new(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn objects_round_trip(object in object(0..6)) {
        let encoded = object.encode();
        prop_assert_eq!(JournalObject::decode(encoded.clone(), place(&object)).unwrap(), object.clone());
        let head = JournalHead::peek(&encoded).unwrap();
        prop_assert_eq!((head.epoch, head.slot), place(&object));
        prop_assert_eq!(head.token, object.token());
    }

    #[test]
    fn single_batches_can_be_read_by_range(object in object(0..6)) {
        let encoded = object.encode();
        let length = JournalIndex::encoded_len(&encoded.slice(..HEADER_BYTES), place(&object)).unwrap();
        let index = JournalIndex::decode(&encoded.slice(..length), place(&object)).unwrap();
        let locations = index.batches;
        prop_assert_eq!(&locations, &object.locations());
        for (location, placed) in locations.iter().zip(batches(&object)) {
            let range = location.range();
            let bytes = encoded.slice(range.offset as usize..range.end().unwrap() as usize);
            prop_assert_eq!(&EncodedBatch::parse(bytes).unwrap(), &placed.batch);
        }
    }

    #[test]
    fn random_bytes_are_refused(bytes in vec(any::<u8>(), 0..200)) {
        JournalHead::peek(&bytes).unwrap_err();
        JournalObject::decode(bytes.into(), (Epoch(1), Slot(1))).unwrap_err();
    }

    #[test]
    fn random_indexes_do_not_panic(entries in 1_u32..4, index in vec(prop_oneof![any::<u8>(), 0_u8..6], 5..100)) {
        let mut content = Writer(index);
        content.checksum_from(0);
        let mut object = Writer(heartbeat().encode()[..HEADER_BYTES].to_vec());
        object.0.truncate(48);
        object.u32(entries);
        object.u32(content.len() as u32 - 4);
        object.u32(0);
        object.checksum_from(0);
        object.raw(&content.0);
        let _ = JournalObject::decode(object.0.into(), (Epoch(3), Slot(7)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4))]

    #[test]
    fn damage_is_detected(object in object(0..3)) {
        detects_damage(&object.encode(), |bytes| {
            JournalObject::decode(Bytes::copy_from_slice(bytes), place(&object))
        });
    }
}

#[test]
fn an_object_in_the_wrong_place_is_refused() {
    let encoded = heartbeat().encode();
    for place in [(Epoch(3), Slot(8)), (Epoch(4), Slot(7))] {
        let error = JournalObject::decode(encoded.clone(), place).unwrap_err();
        assert!(error.why.contains("slot 7 of epoch 3"), "{error}");
    }
}

#[test]
fn a_heartbeat_is_small_and_names_the_checkpoint() {
    let encoded = heartbeat().encode();
    assert_eq!(encoded.len(), HEADER_BYTES + 4);
    let head = JournalHead::peek(&encoded).unwrap();
    assert_eq!(head.kind, JournalKind::Entries { checkpoint: Some(Slot(5)) });
}

#[test]
fn swapped_batches_are_detected() {
    let batch = |n| {
        let mut builder = crate::batch::BatchBuilder::new();
        builder.push(&arbitrary::packed(n)).unwrap();
        builder.finish(None).unwrap()
    };
    let placed = |n, base| {
        Entry::Batch(PlacedBatch {
            segment: SegmentId { topic: TopicId(1), number: SegmentNumber(1) },
            partition: PartitionId(0),
            base_offset: Offset(base),
            append_time: Timestamp::default(),
            batch: batch(n),
        })
    };
    let object = JournalObject::Entries {
        in_flight: 0,
        epoch: Epoch(1),
        slot: Slot(1),
        token: Token([0; 16]),
        checkpoint: None,
        entries: vec![placed(1, 0), placed(2, 1)],
    };
    let encoded = object.encode();
    let [first, second] = object.locations()[..] else { unreachable!() };
    let part = |location: BatchLocation| &encoded[location.bytes.0 as usize..][..location.bytes.1 as usize];
    let swapped = [&encoded[..first.bytes.0 as usize], part(second), part(first)].concat();
    let error = JournalObject::decode(swapped.into(), (Epoch(1), Slot(1))).unwrap_err();
    assert!(error.why.contains("not the batch"), "{error}");
}
