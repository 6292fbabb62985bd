use super::*;
use crate::interface::{Effect, Now};
use refstream_types::Timestamp;

const SECOND: Duration = Duration::from_secs(1);
const CHECK: Duration = Duration::from_secs(60);

struct Rig {
    journal: JournalWriter,
    operations: Operations,
}

impl Rig {
    fn new(window: u32) -> Self {
        Self { journal: JournalWriter::new(Epoch(5), window, CHECK, SECOND), operations: Operations::default() }
    }
    fn place(&mut self, at: Duration) -> Slot {
        let now = Now { monotonic: at, wall: Timestamp::from_micros(0) };
        let mut effects = Vec::<Effect>::new();
        let mut turn = Turn { now, effects: &mut effects };
        self.journal.place(&mut turn, &mut self.operations, Token([7; 16]), Placement::default())
    }
    /// The slots that a commit releases.
    fn commit(&mut self, slot: u64, since: Duration, now: Duration) -> Vec<u64> {
        let released = self.journal.decided(Slot(slot), Decided::Committed, since, now).unwrap();
        released.into_iter().map(|(slot, _)| slot.0).collect()
    }
}

#[test]
fn the_window_is_bounded_by_what_is_committed_in_a_row() {
    let mut rig = Rig::new(3);
    (1..=3).for_each(|slot| assert_eq!(rig.place(SECOND), Slot(slot)));
    assert!(!rig.journal.has_room());
    assert!(rig.commit(2, SECOND, SECOND).is_empty());
    assert!(!rig.journal.has_room(), "a slot above a gap makes no room");
    assert_eq!(rig.commit(1, SECOND, SECOND), [1, 2]);
    assert!(rig.journal.has_room());
    assert_eq!(rig.journal.in_flight(), 1);
}

#[test]
fn larger_windows_are_cut() {
    let mut rig = Rig::new(1_000);
    (0..MAX_SLOTS_IN_FLIGHT).for_each(|_| _ = rig.place(SECOND));
    assert!(!rig.journal.has_room());
}

#[test]
fn after_a_gap_nothing_is_released_without_a_fresh_proof() {
    let mut rig = Rig::new(4);
    rig.place(SECOND);
    rig.place(SECOND);
    // The process slept; both slots were committed meanwhile, or so it seems.
    let late = SECOND + CHECK * 10;
    assert!(rig.commit(1, SECOND, late).is_empty());
    assert!(rig.commit(2, SECOND, late).is_empty());
    assert!(rig.journal.needs_proof());
    assert_eq!(rig.place(late), Slot(3));
    assert!(!rig.journal.needs_proof());
    // The proof took too long itself: another one is needed.
    let later = late + CHECK * 2;
    assert!(rig.commit(3, late, later).is_empty());
    assert!(rig.journal.needs_proof());
    assert_eq!(rig.place(later), Slot(4));
    assert_eq!(rig.commit(4, later, later + SECOND), [1, 2, 3, 4]);
    rig.place(later + SECOND);
    assert_eq!(rig.commit(5, later + SECOND, later + SECOND), [5]);
}

#[test]
fn a_fence_ends_the_writer_and_foreign_entries_are_damage() {
    let fence = |slot| JournalObject::Fence { epoch: Epoch(5), slot, token: Token([1; 16]), by: Epoch(6) };
    let mut rig = Rig::new(4);
    let slot = rig.place(SECOND);
    let taken = Decided::Taken(fence(slot).encode());
    assert_eq!(rig.journal.decided(slot, taken, SECOND, SECOND).unwrap_err(), StopReason::Fenced { slot });
    let freed = rig.journal.decided(slot, Decided::Freed, SECOND, SECOND).unwrap_err();
    assert_eq!(freed, StopReason::Fenced { slot });
    let entries = JournalObject::Entries {
        in_flight: 0,
        epoch: Epoch(5),
        slot,
        token: Token([2; 16]),
        checkpoint: None,
        entries: vec![],
    };
    let taken = Decided::Taken(entries.encode());
    assert!(matches!(rig.journal.decided(slot, taken, SECOND, SECOND), Err(StopReason::Damaged(_))));
}

#[test]
fn a_checkpoint_is_kept_until_enough_slots_stand_above_a_later_one() {
    let mut rig = Rig::new(4);
    let checkpoint_at = |rig: &mut Rig, checkpoint: bool| {
        let now = Now { monotonic: SECOND, wall: Timestamp::from_micros(0) };
        let mut effects = Vec::new();
        let mut turn = Turn { now, effects: &mut effects };
        let placement = Placement { has_checkpoint: checkpoint, ..Placement::default() };
        let slot = rig.journal.place(&mut turn, &mut rig.operations, Token([7; 16]), placement);
        rig.commit(slot.0, SECOND, SECOND);
        slot
    };
    checkpoint_at(&mut rig, true);
    (0..9).for_each(|_| _ = checkpoint_at(&mut rig, false));
    let second = checkpoint_at(&mut rig, true);
    (0..CHECKPOINT_MARGIN - 1).for_each(|_| _ = checkpoint_at(&mut rig, false));
    assert_eq!(rig.journal.needed_by_recovery(), Slot(1));
    checkpoint_at(&mut rig, false);
    assert_eq!(rig.journal.needed_by_recovery(), second);
    assert_eq!(rig.journal.checkpoint(), Some(second));
}
