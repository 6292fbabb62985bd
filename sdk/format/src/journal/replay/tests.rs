//! What a replay accepts, what it adds up to, and each contradiction by name.

use super::*;
use crate::{
    batch::{BatchBuilder, EncodedBatch},
    journal::{HEADER_BYTES, JournalIndex},
};
use refstream_types::{ProducerStamp, Record, SegmentNumber, Token, TopicId, Value};

const EPOCH: Epoch = Epoch(4);

fn id(number: u64) -> SegmentId {
    SegmentId { topic: TopicId(1), number: SegmentNumber(number) }
}

fn range(lo: u32, hi: u32) -> PartitionRange {
    PartitionRange::new(PartitionId(lo), PartitionId(hi)).unwrap()
}

fn batch(records: u32, producer: Option<(u64, u32, u64)>) -> EncodedBatch {
    let mut builder = BatchBuilder::new();
    for _ in 0..records {
        builder.push(&Record::new(Value::Tombstone)).unwrap();
    }
    let stamp =
        |(id, epoch, first)| ProducerStamp { id: ProducerId(id), epoch: ProducerEpoch(epoch), first: Sequence(first) };
    builder.finish(producer.map(stamp)).unwrap()
}

fn open(number: u64, range: PartitionRange, starts: &[u64], predecessors: &[u64]) -> OpenSegment {
    OpenSegment {
        id: id(number),
        range,
        owner: EPOCH,
        start_offsets: starts.iter().copied().map(Offset).collect(),
        predecessors: predecessors.iter().copied().map(SegmentNumber).collect(),
    }
}

fn placed(number: u64, partition: u32, base: u64, batch: EncodedBatch) -> Entry {
    Entry::Batch(PlacedBatch {
        segment: id(number),
        partition: PartitionId(partition),
        base_offset: Offset(base),
        append_time: Timestamp::from_micros(100),
        batch,
    })
}

/// A journal under way; every object goes through its encoding.
struct Journal {
    replay: Replay,
    objects: Vec<JournalObject>,
    listed: usize,
}

impl Journal {
    /// Segment 1 over partitions 0 and 1 is adopted in slot 1.
    fn new() -> Self {
        let mut journal = Self { replay: Replay::new(EPOCH), objects: Vec::new(), listed: 0 };
        let state = SegmentState::adopt(&open(1, range(0, 2), &[0, 0], &[]), &[], Slot(1)).unwrap();
        journal.write([Entry::Adopt(state)]);
        journal
    }
    fn object(&self, entries: impl IntoIterator<Item = Entry>) -> JournalObject {
        let object = JournalObject::Entries {
            in_flight: 0,
            epoch: EPOCH,
            slot: self.slot(),
            token: Token([1; 16]),
            checkpoint: self.replay.checkpoint(),
            entries: entries.into_iter().collect(),
        };
        JournalObject::decode(object.encode(), (EPOCH, self.slot())).unwrap()
    }
    fn slot(&self) -> Slot {
        self.replay.next_slot().unwrap_or(Slot(1))
    }
    fn write(&mut self, entries: impl IntoIterator<Item = Entry>) {
        let object = self.object(entries);
        self.replay.feed(&object).unwrap();
        self.objects.push(object);
    }
    fn checkpoint(&self) -> Checkpoint {
        Checkpoint {
            previous: self.replay.checkpoint(),
            segments: self.replay.open().collect(),
            batches: self.replay.batches()[self.listed..].to_vec(),
        }
    }
    fn write_checkpoint(&mut self, entries: impl IntoIterator<Item = Entry>) {
        let (checkpoint, listed) = (self.checkpoint(), self.replay.batches().len());
        self.write([Entry::Checkpoint(checkpoint)].into_iter().chain(entries));
        self.listed = listed;
    }
    fn state(&self) -> SegmentState {
        self.replay.open_segment(id(1)).unwrap()
    }
    /// The invariant that the entries would break.
    fn refuse(&self, entries: impl IntoIterator<Item = Entry>) -> &'static str {
        let contradiction = self.replay.clone().feed(&self.object(entries)).unwrap_err();
        assert_eq!(contradiction.slot, self.slot());
        contradiction.invariant
    }
}

/// A longer journal: batches of two producers, checkpoints, a second segment that is sealed, an expiry.
fn long() -> Journal {
    let mut journal = Journal::new();
    for step in 0..8 {
        journal.write([placed(1, 0, step, batch(1, Some((7, 0, step)))), placed(1, 1, 2 * step, batch(2, None))]);
    }
    journal.write_checkpoint([placed(1, 0, 8, batch(3, Some((8, 2, 0))))]);
    let second = SegmentState::adopt(&open(2, range(2, 3), &[0], &[]), &[], journal.slot()).unwrap();
    journal.write([Entry::Adopt(second), placed(2, 2, 0, batch(5, None)), placed(1, 0, 11, batch(1, None))]);
    journal.write([]);
    let end = journal.replay.open_segment(id(2)).unwrap();
    journal.write([Entry::Seal(end), placed(1, 1, 16, batch(1, Some((7, 1, 0))))]);
    journal.write([Entry::Expire { segment: id(1), producers: vec![(PartitionId(0), ProducerId(8))] }]);
    journal.write_checkpoint([]);
    journal.write([placed(1, 0, 12, batch(1, Some((7, 0, 8))))]);
    journal
}

#[test]
fn states_are_what_the_entries_add_up_to() {
    let journal = long();
    let state = journal.state();
    assert_eq!(state.next_offsets, [Offset(13), Offset(17)]);
    assert_eq!(state.adopted, Slot(1));
    let bytes: u64 = journal.replay.batches().iter().filter(|b| b.segment == id(1)).map(|b| u64::from(b.bytes.1)).sum();
    assert_eq!(state.bytes, bytes);
    let known: Vec<_> = state.producers.iter().map(|p| (p.partition.0, p.id.0, p.epoch.0, p.batches.len())).collect();
    assert_eq!(known, [(0, 7, 0, MAX_IN_FLIGHT), (1, 7, 1, 1)]);
    let last = state.producers[0].batches.last().unwrap();
    assert_eq!((last.first, last.records, last.base_offset), (Sequence(8), 1, Offset(12)));
    let (slot, sealed) = &journal.replay.sealed()[&id(2)];
    assert_eq!((*slot, &*sealed.next_offsets), (Slot(13), &[Offset(5)][..]));
    assert_eq!(journal.replay.open().count(), 1);
}

#[test]
fn every_checkpoint_leads_to_the_same_state() {
    let journal = long();
    for from in [9, 14] {
        let mut replay = Replay::new(EPOCH);
        journal.objects[from..].iter().for_each(|object| replay.feed(object).unwrap());
        assert_eq!(replay.open().collect::<Vec<_>>(), journal.replay.open().collect::<Vec<_>>());
        let all = journal.replay.batches();
        assert_eq!(replay.batches(), &all[all.len() - replay.batches().len()..]);
        assert_eq!(replay.checkpoint(), Some(Slot(15)));
    }
    let mut replay = Replay::new(EPOCH);
    assert_eq!(replay.feed(&journal.objects[3]).unwrap_err().invariant, "replays-start-at-a-checkpoint");
}

#[test]
fn one_segment_is_followed_from_anywhere_before_its_adoption() {
    let journal = long();
    for from in 0..=10 {
        let mut replay = Replay::of(EPOCH, id(2));
        journal.objects[from..].iter().for_each(|object| replay.feed(object).unwrap());
        assert_eq!(replay.sealed(), journal.replay.sealed(), "from object {from}");
        assert!(replay.batches().iter().all(|b| b.segment == id(2)) && replay.batches().len() == 1);
    }
    for from in [0, 9, 14] {
        let mut replay = Replay::of(EPOCH, id(1));
        journal.objects[from..].iter().for_each(|object| replay.feed(object).unwrap());
        assert_eq!(replay.open_segment(id(1)).unwrap(), journal.state());
    }
    let mut replay = Replay::of(EPOCH, id(1));
    assert_eq!(replay.feed(&journal.objects[3]).unwrap_err().invariant, "entries-belong-to-open-segments");
}

#[test]
fn slots_follow_each_other_up_to_the_fence() {
    let mut journal = Journal::new();
    let object = |epoch, slot| JournalObject::Entries {
        in_flight: 0,
        epoch: Epoch(epoch),
        slot: Slot(slot),
        token: Token([0; 16]),
        checkpoint: None,
        entries: vec![],
    };
    for wrong in [object(4, 1), object(4, 3), object(5, 2)] {
        assert_eq!(journal.replay.clone().feed(&wrong).unwrap_err().invariant, "slots-are-contiguous");
    }
    let fence = JournalObject::Fence { epoch: EPOCH, slot: Slot(2), token: Token([0; 16]), by: Epoch(5) };
    journal.replay.feed(&fence).unwrap();
    assert_eq!(journal.replay.fence(), Some(Slot(2)));
    assert_eq!(journal.replay.feed(&object(4, 3)).unwrap_err().invariant, "nothing-follows-a-fence");
}

#[test]
fn contradictions_have_names() {
    let mut journal = Journal::new();
    journal.write([placed(1, 0, 0, batch(2, Some((7, 3, 0))))]);
    let append = |base, producer| [placed(1, 0, base, batch(1, producer))];
    assert_eq!(journal.refuse(append(1, None)), "offsets-are-dense");
    assert_eq!(journal.refuse(append(3, None)), "offsets-are-dense");
    assert_eq!(journal.refuse(append(2, Some((7, 3, 0)))), "sequences-are-dense");
    assert_eq!(journal.refuse(append(2, Some((7, 3, 3)))), "sequences-are-dense");
    assert_eq!(journal.refuse(append(2, Some((9, 0, 1)))), "sequences-are-dense");
    assert_eq!(journal.refuse(append(2, Some((7, 4, 2)))), "sequences-are-dense");
    assert_eq!(journal.refuse(append(2, Some((7, 2, 0)))), "fenced-producers-append-nothing");
    assert_eq!(journal.refuse([placed(1, 2, 0, batch(1, None))]), "states-fit-their-range");
    assert_eq!(journal.refuse([placed(3, 0, 0, batch(1, None))]), "entries-belong-to-open-segments");
    let mut early = placed(1, 0, 2, batch(1, None));
    if let Entry::Batch(placed) = &mut early {
        placed.append_time = Timestamp::from_micros(99);
    }
    assert_eq!(journal.refuse([early]), "append-times-never-fall");

    let state = journal.state();
    assert_eq!(journal.refuse([Entry::Adopt(state.clone())]), "adopted-once");
    let mut wrong = state.clone();
    wrong.next_offsets[1] = Offset(1);
    assert_eq!(journal.refuse([Entry::Seal(wrong.clone())]), "seals-state-the-truth");
    let after_seal = [Entry::Seal(state.clone()), placed(1, 0, 2, batch(1, None))];
    assert_eq!(journal.refuse(after_seal), "entries-belong-to-open-segments");
    let stranger = Entry::Expire { segment: id(1), producers: vec![(PartitionId(1), ProducerId(7))] };
    assert_eq!(journal.refuse([stranger]), "only-known-producers-expire");

    let truth = journal.checkpoint();
    let with = |change: &dyn Fn(&mut Checkpoint)| {
        let mut checkpoint = truth.clone();
        change(&mut checkpoint);
        [Entry::Checkpoint(checkpoint)]
    };
    assert_eq!(journal.refuse(with(&|c| c.segments[0] = wrong.clone())), "checkpoints-state-the-truth");
    assert_eq!(journal.refuse(with(&|c| c.segments.clear())), "checkpoints-state-the-truth");
    assert_eq!(journal.refuse(with(&|c| c.batches.clear())), "checkpoints-list-every-batch");
    assert_eq!(journal.refuse(with(&|c| c.previous = Some(Slot(1)))), "checkpoints-form-a-chain");
    let twice = [Entry::Checkpoint(truth.clone()), Entry::Checkpoint(truth.clone())];
    assert_eq!(journal.refuse(twice), "one-checkpoint-an-object");
    journal.write_checkpoint([]);
    let silent = JournalObject::Entries {
        in_flight: 0,
        epoch: EPOCH,
        slot: journal.slot(),
        token: Token([0; 16]),
        checkpoint: None,
        entries: vec![],
    };
    assert_eq!(journal.replay.feed(&silent).unwrap_err().invariant, "headers-name-the-latest-checkpoint");
}

#[test]
fn a_successor_takes_each_partitions_newest_state() {
    let producer = |partition, id| ProducerState {
        partition: PartitionId(partition),
        id: ProducerId(id),
        epoch: ProducerEpoch(0),
        batches: vec![],
    };
    let state = |number, range: PartitionRange, ends: &[u64], time, producers| SegmentState {
        segment: id(number),
        range,
        adopted: Slot(3),
        bytes: 50,
        next_offsets: ends.iter().copied().map(Offset).collect(),
        last_append_time: Timestamp::from_micros(time),
        producers,
    };
    // Segment 2 came after segment 1 in partition 0.
    let old = state(1, range(0, 3), &[5, 6, 7], 90, vec![producer(2, 20), producer(1, 10), producer(0, 1)]);
    let new = state(2, range(0, 1), &[9], 80, vec![producer(0, 2)]);
    let next = open(3, range(0, 2), &[9, 6], &[1, 2]);
    for finals in [[old.clone(), new.clone()], [new.clone(), old.clone()]] {
        let adopted = SegmentState::adopt(&next, &finals, Slot(8)).unwrap();
        assert_eq!(
            adopted,
            SegmentState {
                segment: id(3),
                adopted: Slot(8),
                bytes: 0,
                ..state(3, range(0, 2), &[9, 6], 90, vec![producer(0, 2), producer(1, 10)])
            }
        );
    }
    assert!(
        SegmentState::adopt(&next, std::slice::from_ref(&old), Slot(8))
            .unwrap_err()
            .contains("segment 2, which is not given")
    );
    let wrong = open(3, range(0, 2), &[9, 7], &[1, 2]);
    assert!(SegmentState::adopt(&wrong, &[old, new], Slot(8)).unwrap_err().contains("starts at 7"));
    let orphan = open(3, range(0, 2), &[0, 7], &[]);
    assert!(SegmentState::adopt(&orphan, &[], Slot(8)).unwrap_err().contains("has no predecessor"));
}

#[test]
fn an_index_says_what_the_whole_object_says() {
    let mut objects = long().objects;
    objects.push(JournalObject::Fence { epoch: EPOCH, slot: Slot(17), token: Token([2; 16]), by: Epoch(9) });
    for object in objects {
        let (JournalObject::Entries { slot, .. } | JournalObject::Fence { slot, .. }) = object;
        let bytes = object.encode();
        let length = JournalIndex::encoded_len(&bytes.slice(..HEADER_BYTES), (EPOCH, slot)).unwrap();
        let prefix = bytes.slice(..length);
        let index = JournalIndex::decode(&prefix, (EPOCH, slot)).unwrap();
        assert_eq!(JournalIndex::decode(&bytes, (EPOCH, slot)).as_ref(), Ok(&index));
        assert_eq!(index.batches, object.locations());
        match &object {
            JournalObject::Fence { .. } => assert!(index.fence && index.latest_checkpoint().is_none()),
            JournalObject::Entries { checkpoint, entries, .. } => {
                let own = entries.iter().find_map(|entry| match entry {
                    Entry::Checkpoint(checkpoint) => Some(checkpoint.clone()),
                    _ => None,
                });
                assert_eq!(index.latest_checkpoint(), if own.is_some() { Some(slot) } else { *checkpoint });
                assert_eq!((index.fence, index.previous, index.checkpoint), (false, *checkpoint, own));
            }
        }
        for cut in 0..length {
            assert!(JournalIndex::decode(&prefix.slice(..cut), (EPOCH, slot)).is_err(), "{slot} cut to {cut}");
        }
        for bit in 0..length * 8 {
            let mut damaged = prefix.to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(JournalIndex::decode(&damaged.into(), (EPOCH, slot)).is_err(), "{slot}, bit {bit}");
        }
        assert!(JournalIndex::decode(&prefix, (EPOCH, slot.next())).is_err());
    }
}
