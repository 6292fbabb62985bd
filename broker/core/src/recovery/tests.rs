use super::*;
use crate::interface::{CommitOutcome, Done, Effect, Now};
use refstream_format::journal::{Checkpoint, Entry};
use refstream_types::Timestamp;
use std::{collections::VecDeque, time::Duration};

/// A journal in a store, and what a recoverer does to it.
#[derive(Default)]
struct Journal {
    slots: BTreeMap<u64, Bytes>,
    below: u64,
    reads: usize,
}

const EPOCH: Epoch = Epoch(3);

impl Journal {
    /// Slots as a writer makes them, with a checkpoint every `every` slots.
    fn written(slots: u64, every: u64) -> Self {
        let mut journal = Self::default();
        let mut checkpoint = None;
        for slot in 1..=slots {
            let mut entries = Vec::new();
            if slot % every == 1 {
                entries.push(Entry::Checkpoint(Checkpoint { previous: checkpoint, segments: vec![], batches: vec![] }));
            }
            let is_checkpoint = !entries.is_empty();
            let token = Token([slot as u8; 16]);
            let object =
                JournalObject::Entries { in_flight: 0, epoch: EPOCH, slot: Slot(slot), token, checkpoint, entries };
            journal.slots.insert(slot, object.encode());
            if is_checkpoint {
                checkpoint = Some(Slot(slot));
            }
        }
        journal
    }

    fn fence(&mut self, slot: u64) {
        let fence = JournalObject::Fence { epoch: EPOCH, slot: Slot(slot), token: Token([9; 16]), by: Epoch(8) };
        self.slots.insert(slot, fence.encode());
    }

    fn free_below(&mut self, below: u64) {
        self.below = below;
        self.slots.retain(|slot, _| *slot >= below);
    }

    /// Recovers; `meanwhile` happens before each answer. `tip`: what the search for the tip finds.
    fn recover(&mut self, tip: Option<u64>, mut meanwhile: impl FnMut(&mut Self, &Effect)) -> Outcome {
        let mut operations = Operations::default();
        let mut effects = Vec::new();
        let now = Now { monotonic: Duration::ZERO, wall: Timestamp::from_micros(0) };
        let mut turn = Turn { now, effects: &mut effects };
        let mut recovery = Recovery::begin(&mut turn, &mut operations, EPOCH, Epoch(4), 0, Mutation::None);
        let mut queue = VecDeque::from(effects);
        while let Some(effect) = queue.pop_front() {
            meanwhile(self, &effect);
            let (op, done) = match effect {
                Effect::Tip { op, .. } => (op, Done::Tip(Ok(tip.map(|tip| (tip, self.slots[&tip].clone()))))),
                Effect::Read { op, number, .. } => {
                    self.reads += 1;
                    (op, Done::Read(Ok(self.slots.get(&number).cloned())))
                }
                Effect::Commit { op, number, bytes, .. } => {
                    let outcome = match self.slots.get(&number) {
                        _ if number < self.below => CommitOutcome::Freed,
                        Some(there) => CommitOutcome::Taken(there.clone()),
                        None => {
                            self.slots.insert(number, bytes);
                            CommitOutcome::Committed
                        }
                    };
                    (op, Done::Commit(outcome))
                }
                other => panic!("{other:?}"),
            };
            let mut effects = Vec::new();
            let mut turn = Turn { now, effects: &mut effects };
            let Some(ended) = operations.done(&turn, op, done) else { panic!() };
            let token = Token([4; 16]);
            match recovery.answered(&mut turn, &mut operations, token, ended.purpose, ended.answer) {
                Outcome::Going => queue.extend(effects),
                outcome => return outcome,
            }
        }
        panic!("it went nowhere");
    }
}

fn fence_of(outcome: Outcome) -> (u64, u64) {
    match outcome {
        Outcome::Ended(recovered) => (recovered.fence.0, recovered.base.0),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_empty_journal_ends_at_slot_one() {
    let mut journal = Journal::default();
    assert_eq!(fence_of(journal.recover(None, |_, _| {})), (1, 1));
    assert!(journal.slots.contains_key(&1));
}

#[test]
fn recovery_is_bounded_by_the_checkpoint() {
    let mut journal = Journal::written(1_000, 100);
    let (fence, base) = fence_of(journal.recover(Some(1_000), |_, _| {}));
    assert_eq!((fence, base), (1_001, 901));
    // From the checkpoint to the end, a look ahead, and a look above the end.
    assert!(journal.reads <= 100 + 16 + MAX_SLOTS_IN_FLIGHT as usize, "{} reads", journal.reads);
    // Whoever comes later finds the same end, from whatever he finds first.
    for tip in [1_000, 1_001, 1_000 + HIGH_FENCE, 990] {
        assert_eq!(fence_of(journal.recover(Some(tip), |_, _| {})).0, 1_001, "from {tip}");
    }
}

#[test]
fn a_checkpoint_that_may_be_void_is_not_trusted() {
    // Slot 905 is missing: the checkpoint of slot 921 and everything from 906 on is void.
    let mut journal = Journal::written(930, 20);
    journal.slots.remove(&905);
    let (fence, base) = fence_of(journal.recover(Some(930), |_, _| {}));
    assert_eq!(fence, 905);
    assert!(base <= 881, "{base}");
}

#[test]
fn a_late_create_wins_over_the_fence_or_loses_to_it() {
    let whole = Journal::written(12, 100);
    let late = whole.slots[&12].clone();
    // It lands between the read that missed it and the fence: it is truth.
    let mut journal = Journal::written(11, 100);
    let outcome = journal.recover(Some(11), |journal, effect| {
        if matches!(effect, Effect::Commit { number: 12, .. }) {
            journal.slots.insert(12, late.clone());
        }
    });
    assert_eq!(fence_of(outcome).0, 13);
    // A gap below it: void, though it is there.
    let mut journal = whole;
    journal.slots.remove(&11);
    assert_eq!(fence_of(journal.recover(Some(12), |_, _| {})).0, 11);
}

#[test]
fn a_live_writer_is_not_chased() {
    let all = Journal::written(400, 1_000);
    let mut journal = Journal::written(10, 1_000);
    let mut next = 11;
    // It writes three slots for each answer that the recoverer gets, until it meets a fence.
    let outcome = journal.recover(Some(10), |journal, _| {
        for _ in 0..3 {
            if let std::collections::btree_map::Entry::Vacant(free) = journal.slots.entry(next) {
                free.insert(all.slots[&next].clone());
                next += 1;
            }
        }
    });
    let (fence, _) = fence_of(outcome);
    assert!(fence <= 400, "{fence}");
    assert_eq!(next, fence);
}

#[test]
fn fences_of_others_are_met_like_objects() {
    let mut journal = Journal::written(50, 20);
    journal.fence(51);
    journal.fence(50 + HIGH_FENCE);
    for tip in [50, 51, 50 + HIGH_FENCE] {
        assert_eq!(fence_of(journal.recover(Some(tip), |_, _| {})).0, 51, "from {tip}");
    }
    // A crash after the high fence: nothing is decided yet.
    let mut journal = Journal::written(50, 20);
    journal.fence(50 + HIGH_FENCE);
    assert_eq!(fence_of(journal.recover(Some(50 + HIGH_FENCE), |_, _| {})).0, 51);
    let mut journal = Journal::default();
    journal.fence(HIGH_FENCE);
    assert_eq!(fence_of(journal.recover(Some(HIGH_FENCE), |_, _| {})).0, 1);
}

#[test]
fn a_journal_that_was_freed_meanwhile_has_moved() {
    let mut journal = Journal::written(300, 100);
    let outcome = journal.recover(Some(300), |journal, effect| {
        if matches!(effect, Effect::Read { .. }) {
            journal.free_below(290);
        }
    });
    assert!(matches!(outcome, Outcome::Moved), "{outcome:?}");
}

#[test]
fn contradictions_are_damage() {
    let mut journal = Journal::written(50, 20);
    let wrong = JournalObject::Entries {
        in_flight: 0,
        epoch: EPOCH,
        slot: Slot(45),
        token: Token([1; 16]),
        checkpoint: Some(Slot(21)),
        entries: vec![],
    };
    journal.slots.insert(45, wrong.encode());
    assert!(matches!(journal.recover(Some(50), |_, _| {}), Outcome::Damaged(_)));
}
