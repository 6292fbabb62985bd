//! The slots of this broker's own journal.
//!
//! # Order of writes
//!
//! 1. An object is *placed*: its entries get their offsets, its bytes and token are frozen, it takes the next slot, and its
//!    commit begins. At most W slots are created and not committed: slot k is created only once k - W is committed (invariant
//!    *bounded-window*; recovery relies on it with the fixed bound [`MAX_SLOTS_IN_FLIGHT`]).
//! 2. It is *committed* when the store holds our bytes in its slot and in every lower one (invariant *contiguous-acks*): what
//!    lands above a gap may still be void.
//! 3. It is *released*: readers are told, then producers. Normally at once.
//!
//! A crash between any two steps leaves slots that the next broker finds or fences. A broker that leaves ends its journal with a fence of its own, behind all slots; nothing
//! else is written by this module.
//!
//! # Not fenced?
//!
//! A commit of the lowest open slot proves that we were not fenced when it landed, hence not before its attempt began. When the
//! last such proof is older than `fence_check` (the process was paused, the store hung), our journal may have been fenced and
//! even freed meanwhile, and a late create of a freed number would look like success. So nothing is released then until a slot
//! that was placed after the gap is committed without another one (invariant *fresh-proof*): the fence is still there, and that
//! slot runs into it.

use crate::{
    interface::StopReason,
    operations::{Decided, Operations, Purpose, Request},
    requests::Outcome,
    turn::Turn,
};
use refstream_format::journal::{BatchLocation, Entry, JournalObject, PlacedBatch};
use refstream_types::{Chain, Epoch, SegmentId, Slot, Token};
use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

/// The most slots that any writer may have created and not committed; larger settings are cut to it. Recovery assumes it of
/// every writer, whatever its settings were. Twice this is the widest gap of a journal (the chain's `MAX_GAP`).
pub const MAX_SLOTS_IN_FLIGHT: u64 = 32;
/// Slots below a checkpoint are freed only once this many slots above it are committed, so that recovery, which knows the tip
/// only to within [`MAX_SLOTS_IN_FLIGHT`], finds a checkpoint that it can trust (invariant *checkpoint-margin*).
pub(crate) const CHECKPOINT_MARGIN: u64 = 2 * MAX_SLOTS_IN_FLIGHT;

/// An answer that waits for its slot.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) ticket: crate::interface::Ticket,
    pub(crate) index: usize,
    pub(crate) outcome: Outcome,
}

/// What becomes true of a segment when a slot is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    Adopted(SegmentId),
    Sealed(SegmentId),
}

impl Mark {
    /// The segment, if it was sealed.
    pub(crate) fn sealed(&self) -> Option<SegmentId> {
        match self {
            Self::Sealed(segment) => Some(*segment),
            Self::Adopted(_) => None,
        }
    }
}

/// What goes into the next slot.
#[derive(Debug, Default)]
pub(crate) struct Placement {
    pub(crate) entries: Vec<Entry>,
    pub(crate) answers: Vec<Answered>,
    pub(crate) marks: Vec<Mark>,
    pub(crate) has_checkpoint: bool,
    /// It is written even without entries.
    pub(crate) needs_slot: bool,
}

/// A slot that was placed and is not released.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) batches: Vec<(PlacedBatch, BatchLocation)>,
    pub(crate) answers: Vec<Answered>,
    pub(crate) marks: Vec<Mark>,
    /// Bytes of its batches.
    pub(crate) bytes: usize,
    /// When its first attempt began, once it is committed.
    committed: Option<Duration>,
}

/// The writer of one journal.
#[derive(Debug)]
pub(crate) struct JournalWriter {
    epoch: Epoch,
    window: u64,
    fence_check: Duration,
    next: Slot,
    committed: Slot,
    released: Slot,
    flights: BTreeMap<Slot, Flight>,
    /// We were not fenced then.
    confirmed_at: Duration,
    /// Nothing is released before this slot is committed.
    barrier: Option<Slot>,
    placed_at: Duration,
    /// Slots with checkpoints, ascending; the last one is the latest placed.
    checkpoints: VecDeque<Slot>,
    since_checkpoint: Vec<BatchLocation>,
    /// Its own fence is placed.
    closed: bool,
    /// Whether gaps are ignored: a broken rule for the simulator to catch.
    pub(crate) ignores_gaps: bool,
}

impl JournalWriter {
    pub(crate) fn new(epoch: Epoch, slots_in_flight: u32, fence_check: Duration, now: Duration) -> Self {
        Self {
            epoch,
            window: u64::from(slots_in_flight).clamp(1, MAX_SLOTS_IN_FLIGHT),
            fence_check,
            next: Slot(1),
            committed: Slot(0),
            released: Slot(0),
            flights: BTreeMap::new(),
            confirmed_at: now,
            barrier: None,
            placed_at: now,
            checkpoints: VecDeque::new(),
            since_checkpoint: Vec::new(),
            closed: false,
            ignores_gaps: false,
        }
    }

    /// Whose journal it is.
    pub(crate) fn epoch(&self) -> Epoch {
        self.epoch
    }
    /// The slot that would be placed next.
    pub(crate) fn next(&self) -> Slot {
        self.next
    }
    /// The last slot of which everything was told.
    pub(crate) fn released(&self) -> Slot {
        self.released
    }
    /// Slots placed and not committed.
    pub(crate) fn in_flight(&self) -> usize {
        self.flights.values().filter(|f| f.committed.is_none()).count()
    }
    /// Whether nobody waits for a placed slot.
    pub(crate) fn is_idle(&self) -> bool {
        self.flights.values().all(|flight| flight.answers.is_empty() && flight.marks.is_empty())
    }
    /// Whether another slot may be created now.
    pub(crate) fn has_room(&self) -> bool {
        !self.closed && self.next.0 <= self.committed.0 + self.window
    }
    /// Whether it has its own fence.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }
    /// Whether every slot that was placed is committed.
    pub(crate) fn has_none_in_flight(&self) -> bool {
        self.next.0 == self.committed.0 + 1
    }
    /// When the last slot was placed.
    pub(crate) fn placed_at(&self) -> Duration {
        self.placed_at
    }
    /// Whether a slot must be placed to prove that we are not fenced.
    pub(crate) fn needs_proof(&self) -> bool {
        self.barrier.is_some_and(|barrier| barrier >= self.next)
    }
    /// The latest checkpoint placed.
    pub(crate) fn checkpoint(&self) -> Option<Slot> {
        self.checkpoints.back().copied()
    }
    /// Slots since the latest checkpoint.
    pub(crate) fn slots_since_checkpoint(&self) -> u64 {
        self.next.0 - self.checkpoint().map_or(0, |slot| slot.0)
    }
    /// Batches since the latest checkpoint.
    pub(crate) fn batches_since_checkpoint(&self) -> usize {
        self.since_checkpoint.len()
    }
    /// The batches of a slot in flight.
    pub(crate) fn batches_in(&self, slot: Slot) -> Vec<(PlacedBatch, BatchLocation)> {
        self.flights.get(&slot).map(|flight| flight.batches.clone()).unwrap_or_default()
    }
    /// The batches for a checkpoint in the next slot.
    pub(crate) fn take_locations(&mut self) -> Vec<BatchLocation> {
        std::mem::take(&mut self.since_checkpoint)
    }
    /// The lowest slot that recovery may need (invariant *checkpoint-margin*).
    pub(crate) fn needed_by_recovery(&mut self) -> Slot {
        while let Some(second) = self.checkpoints.get(1)
            && second.0 + CHECKPOINT_MARGIN <= self.released.0
        {
            self.checkpoints.pop_front();
        }
        match self.checkpoints.front() {
            Some(first) if first.0 + CHECKPOINT_MARGIN <= self.released.0 => *first,
            _ => Slot(1),
        }
    }

    /// Places an object in the next slot and begins its commit. There must be room.
    pub(crate) fn place(
        &mut self,
        turn: &mut Turn<'_>,
        operations: &mut Operations,
        token: Token,
        placement: Placement,
    ) -> Slot {
        let slot = self.next;
        let Placement { entries, answers, marks, has_checkpoint, needs_slot: _ } = placement;
        // At most the window, which is less than 256.
        let in_flight = u8::try_from(slot.0 - self.committed.0).unwrap_or(0);
        let checkpoint = self.checkpoint();
        let object = JournalObject::Entries { epoch: self.epoch, slot, token, checkpoint, in_flight, entries };
        let locations = object.locations();
        let bytes = object.encode();
        let JournalObject::Entries { entries, .. } = object else { return slot };
        let batches = entries.into_iter().filter_map(|e| if let Entry::Batch(b) = e { Some(b) } else { None });
        let batches: Vec<_> = batches.zip(locations.iter().copied()).collect();
        self.since_checkpoint.extend(locations);
        if has_checkpoint {
            self.checkpoints.push_back(slot);
        }
        let batch_bytes = batches.iter().map(|(placed, _)| placed.batch.bytes().len()).sum();
        self.flights.insert(slot, Flight { batches, answers, marks, bytes: batch_bytes, committed: None });
        self.next = slot.next();
        self.placed_at = turn.now.monotonic;
        let request = Request::Commit { chain: Chain::Journal(self.epoch), number: slot.0, bytes };
        operations.submit(turn, Purpose::Journal(slot), request);
        slot
    }

    /// Ends the journal with a fence of our own. Nothing may be in flight; nothing is placed from here on.
    pub(crate) fn close(&mut self, turn: &mut Turn<'_>, operations: &mut Operations, token: Token) {
        self.closed = true;
        let (epoch, slot) = (self.epoch, self.next);
        let fence = JournalObject::Fence { epoch, slot, token, by: epoch };
        let request = Request::Commit { chain: Chain::Journal(epoch), number: slot.0, bytes: fence.encode() };
        operations.submit(turn, Purpose::OwnFence(slot), request);
    }

    /// Lets an answer wait until everything that it relies on is durable; gives it back when it is.
    pub(crate) fn wait(&mut self, answered: Answered) -> Option<Answered> {
        match self.flights.values_mut().next_back() {
            Some(flight) => {
                flight.answers.push(answered);
                None
            }
            None => Some(answered),
        }
    }

    /// The commit of a slot is decided; `since` is when its first attempt began. Returns what is released by it, ascending.
    pub(crate) fn decided(
        &mut self,
        slot: Slot,
        decided: Decided,
        since: Duration,
        now: Duration,
    ) -> Result<Vec<(Slot, Flight)>, StopReason> {
        match decided {
            Decided::Committed => {}
            Decided::Freed => return Err(StopReason::Fenced { slot }),
            Decided::Taken(bytes) => {
                return Err(match JournalObject::decode(bytes, (self.epoch, slot)) {
                    Ok(JournalObject::Fence { .. }) => StopReason::Fenced { slot },
                    Ok(JournalObject::Entries { .. }) => StopReason::Damaged(format!(
                        "slot {slot} of journal {} holds entries that this broker did not write",
                        self.epoch
                    )),
                    Err(error) => StopReason::Damaged(format!("slot {slot} of journal {}: {error}", self.epoch)),
                });
            }
        }
        if let Some(flight) = self.flights.get_mut(&slot) {
            flight.committed = Some(since);
        }
        if self.ignores_gaps {
            let flight = self.flights.remove(&slot);
            self.committed = self.committed.max(slot);
            self.released = self.committed;
            return Ok(flight.map(|flight| (slot, flight)).into_iter().collect());
        }
        let before = self.confirmed_at;
        while let Some(since) = self.flights.get(&self.committed.next()).and_then(|f| f.committed) {
            self.committed = self.committed.next();
            if self.barrier == Some(self.committed) && now.saturating_sub(since) <= self.fence_check {
                self.barrier = None;
                self.confirmed_at = self.confirmed_at.max(since);
            } else if self.barrier.is_none_or(|barrier| barrier > self.committed) {
                if now.saturating_sub(before) > self.fence_check && self.barrier.is_none() {
                    self.barrier = Some(self.next);
                }
                if self.barrier.is_none() {
                    self.confirmed_at = self.confirmed_at.max(since);
                }
            } else {
                self.barrier = Some(self.next);
            }
        }
        Ok(if self.barrier.is_none() { self.release() } else { Vec::new() })
    }

    fn release(&mut self) -> Vec<(Slot, Flight)> {
        let mut released = Vec::new();
        while self.released < self.committed
            && let Some(flight) = self.flights.remove(&self.released.next())
        {
            self.released = self.released.next();
            released.push((self.released, flight));
        }
        released
    }

    /// Everything that was placed and not released, ascending: its outcome is not known.
    pub(crate) fn take_flights(&mut self) -> Vec<Flight> {
        std::mem::take(&mut self.flights).into_values().collect()
    }
}

#[cfg(test)]
mod tests;
