//! Ending a dead epoch's journal: where does it end, and what does it add up to?
//!
//! # Order of steps
//!
//! 1. *Tip.* Find an object near the end. It may stand above a gap, so nothing follows from it but this: its writer created it
//!    only when everything up to [`MAX_SLOTS_IN_FLIGHT`] slots below was committed.
//! 2. *Base.* From an object that low or lower take the pointer to the latest checkpoint: replay starts there (or at slot 1).
//!    Writers keep that checkpoint (invariant *checkpoint-margin* in `journal_writer`).
//! 3. *High fence.* Fence far above the tip, where a live writer arrives only after this walk saw it coming: nobody is chased
//!    for ever.
//! 4. *Walk* upward from the base. An object that is there is committed truth, since everything below it is. Where a read
//!    misses, nothing is decided (invariant *a-miss-decides-nothing*): a fence is created there. If the slot turns out to be
//!    taken, its object is truth and the walk goes on. The lowest fence, ours or an earlier recoverer's, is the end (invariant
//!    *only-a-fence-ends*). What lies above is void.
//!
//! 5. *Above.* Entries above the end are void, unless they prove that the slot where the end seems to be was committed (invariant
//!    *no-hole-is-an-end*): then an object is gone that held acked records, and the journal is damaged. Read only now, since
//!    with the fence in place no such proof can arise any more.
//!
//! A crash at any step leaves fences that the next recoverer meets as it meets objects. Two recoverers at once come to the same
//! end. If the journal moves away below the walk (its live writer frees it, or it was recovered and freed long ago), the walk
//! says so and its owner looks at the cluster log before it starts again.

use crate::{
    cluster_writer::EndedSegment,
    journal_writer::{CHECKPOINT_MARGIN, MAX_SLOTS_IN_FLIGHT},
    mutation::Mutation,
    operations::{Answer, Decided, Operations, Purpose, Request},
    turn::Turn,
    walk::{Walk, Whose},
};
use bytes::Bytes;
use refstream_format::{
    cluster_log::SealedBy,
    journal::{JournalObject, Replay},
};
use refstream_types::{Chain, Epoch, SegmentId, Slot, Token};
use std::collections::{BTreeMap, BTreeSet};

/// How far above the tip the high fence stands.
const HIGH_FENCE: u64 = CHECKPOINT_MARGIN;

/// How far a recovery is.
#[derive(Debug)]
enum Stage {
    Tip,
    /// Looks at this slot, below a fence at `fence`, for an object.
    Below {
        fence: u64,
        at: u64,
    },
    /// Looks at this slot, low enough to be committed, for the pointer to a checkpoint.
    Base {
        top: u64,
        at: u64,
    },
    HighFence {
        base: u64,
        top: u64,
    },
    Walking(Box<Walking>),
    Above {
        recovered: Box<Recovered>,
        /// Slots that were not read yet.
        left: BTreeSet<u64>,
    },
}

#[derive(Debug)]
struct Walking {
    walk: Walk,
    base: u64,
    replay: Replay,
    end: u64,
    /// A fence is being created at this slot.
    fencing: Option<u64>,
}

/// What a recovery came to.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// Not yet.
    Going,
    /// The end and the sum of the journal.
    Ended(Box<Recovered>),
    /// The journal is not what it was when the recovery began.
    Moved,
    /// It contradicts itself.
    Damaged(String),
}

/// A journal that has ended.
#[derive(Debug)]
pub(crate) struct Recovered {
    pub(crate) epoch: Epoch,
    /// Its lowest fence.
    pub(crate) fence: Slot,
    /// Where the replay started.
    pub(crate) base: Slot,
    pub(crate) replay: Replay,
}

impl Recovered {
    /// The last slot with a batch, of every segment that has one in what was replayed.
    pub(crate) fn last_slots(&self) -> BTreeMap<SegmentId, Slot> {
        self.replay.batches().iter().map(|batch| (batch.segment, batch.slot)).collect()
    }

    /// How a segment that the dead epoch owned ended; `None` when it was never adopted.
    pub(crate) fn ended(&self, segment: SegmentId, last_slots: &BTreeMap<SegmentId, Slot>) -> Option<EndedSegment> {
        let (by, state) = match self.replay.sealed().get(&segment) {
            Some((slot, state)) => (SealedBy::Owner { slot: *slot }, state.clone()),
            None => (SealedBy::Recovery { fence: self.fence }, self.replay.open_segment(segment)?),
        };
        // What came before the replay came before its base.
        let last_slot = last_slots.get(&segment).copied().unwrap_or(self.base).max(state.adopted);
        Some(EndedSegment { state, by, last_slot })
    }
}

/// The recovery of one journal.
#[derive(Debug)]
pub(crate) struct Recovery {
    pub(crate) epoch: Epoch,
    by: Epoch,
    mutation: Mutation,
    stage: Stage,
}

impl Recovery {
    /// Begins. `hint`: a slot that existed, or 0.
    pub(crate) fn begin(
        turn: &mut Turn<'_>,
        operations: &mut Operations,
        epoch: Epoch,
        by: Epoch,
        hint: u64,
        mutation: Mutation,
    ) -> Self {
        let request = Request::Tip { chain: Chain::Journal(epoch), hint };
        operations.submit(turn, Purpose::RecoveryTip, request);
        Self { epoch, by, mutation, stage: Stage::Tip }
    }

    /// Whether an operation serves recoveries.
    pub(crate) fn owns(purpose: Purpose) -> bool {
        matches!(
            purpose,
            Purpose::RecoveryTip
                | Purpose::RecoveryProbe(_)
                | Purpose::RecoveryHighFence(_)
                | Purpose::RecoveryWalk(_)
                | Purpose::RecoveryFence(_)
                | Purpose::RecoveryAbove(_)
        )
    }

    /// Takes an answer.
    pub(crate) fn answered(
        &mut self,
        turn: &mut Turn<'_>,
        operations: &mut Operations,
        token: Token,
        purpose: Purpose,
        answer: Answer,
    ) -> Outcome {
        match (&mut self.stage, purpose, answer) {
            (Stage::Tip, Purpose::RecoveryTip, Answer::Tip(tip)) => match tip {
                None => self.base(turn, operations, token, 1, 0),
                Some((number, bytes)) => match self.decode(number, bytes) {
                    Err(outcome) => outcome,
                    Ok(JournalObject::Entries { checkpoint, .. }) => {
                        self.choose(turn, operations, token, number, checkpoint)
                    }
                    Ok(JournalObject::Fence { .. }) => self.below(turn, operations, token, number, number),
                },
            },
            (Stage::Below { fence, at }, Purpose::RecoveryProbe(number), Answer::Read(bytes)) if number == *at => {
                let (fence, at) = (*fence, *at);
                match bytes.map(|bytes| self.decode(at, bytes)) {
                    Some(Err(outcome)) => outcome,
                    Some(Ok(JournalObject::Entries { checkpoint, .. })) => {
                        self.choose(turn, operations, token, at, checkpoint)
                    }
                    Some(Ok(JournalObject::Fence { .. })) | None => self.below(turn, operations, token, fence, at),
                }
            }
            (Stage::Base { top, at }, Purpose::RecoveryProbe(number), Answer::Read(bytes)) if number == *at => {
                let (top, at) = (*top, *at);
                match bytes.map(|bytes| self.decode(at, bytes)) {
                    Some(Err(outcome)) => outcome,
                    Some(Ok(JournalObject::Entries { checkpoint, .. })) => {
                        self.base(turn, operations, token, checkpoint.map_or(1, |c| c.0), top)
                    }
                    // A fence so low, or nothing: somebody else was here.
                    Some(Ok(JournalObject::Fence { .. })) | None => Outcome::Moved,
                }
            }
            (Stage::HighFence { base, top }, Purpose::RecoveryHighFence(number), Answer::Commit(decided)) => {
                let (base, top) = (*base, *top);
                match decided {
                    Decided::Committed => self.walk(turn, operations, base, top),
                    Decided::Freed => Outcome::Moved,
                    Decided::Taken(bytes) => match self.decode(number, bytes) {
                        Err(outcome) => outcome,
                        Ok(JournalObject::Fence { .. }) => self.walk(turn, operations, base, top),
                        // The writer is alive and has come here meanwhile.
                        Ok(JournalObject::Entries { checkpoint, .. }) => {
                            self.choose(turn, operations, token, number, checkpoint)
                        }
                    },
                }
            }
            (Stage::Walking(walking), Purpose::RecoveryWalk(number), Answer::Read(bytes)) => {
                walking.walk.arrived(number, bytes);
                self.step(turn, operations, token)
            }
            (Stage::Walking(walking), Purpose::RecoveryFence(number), Answer::Commit(decided)) => {
                walking.fencing = None;
                match decided {
                    Decided::Committed => self.ended(turn, operations, Slot(number)),
                    Decided::Freed => Outcome::Moved,
                    Decided::Taken(bytes) => match self.object(turn, operations, number, bytes) {
                        Outcome::Going => self.step(turn, operations, token),
                        outcome => outcome,
                    },
                }
            }
            (Stage::Above { .. }, Purpose::RecoveryAbove(number), Answer::Read(bytes)) => {
                self.looked_above(number, bytes)
            }
            _ => Outcome::Going,
        }
    }

    fn decode(&self, slot: u64, bytes: Bytes) -> Result<JournalObject, Outcome> {
        JournalObject::decode(bytes, (self.epoch, Slot(slot)))
            .map_err(|error| Outcome::Damaged(format!("slot {slot} of journal {}: {error}", self.epoch)))
    }

    /// Looks for an object below a fence: next to it where the fence is the lowest, else below the gap that an earlier
    /// recoverer left when it put a high fence there.
    fn below(
        &mut self,
        turn: &mut Turn<'_>,
        operations: &mut Operations,
        token: Token,
        fence: u64,
        looked: u64,
    ) -> Outcome {
        let at = if looked == fence {
            fence - 1
        } else if looked == fence - 1 && fence > HIGH_FENCE {
            fence - HIGH_FENCE
        } else if looked + HIGH_FENCE == fence {
            fence - 2
        } else {
            looked - 1
        };
        if at == 0 || fence <= HIGH_FENCE && looked != fence {
            return self.base(turn, operations, token, 1, fence);
        }
        self.stage = Stage::Below { fence, at };
        let request = Request::Read { chain: Chain::Journal(self.epoch), number: at };
        operations.submit(turn, Purpose::RecoveryProbe(at), request);
        Outcome::Going
    }

    /// Chooses where to start, from an object at `top` that names a checkpoint.
    fn choose(
        &mut self,
        turn: &mut Turn<'_>,
        operations: &mut Operations,
        token: Token,
        top: u64,
        checkpoint: Option<Slot>,
    ) -> Outcome {
        match checkpoint {
            None => self.base(turn, operations, token, 1, top),
            Some(checkpoint) if checkpoint.0 + MAX_SLOTS_IN_FLIGHT <= top => {
                self.base(turn, operations, token, checkpoint.0, top)
            }
            Some(_) if top <= MAX_SLOTS_IN_FLIGHT => self.base(turn, operations, token, 1, top),
            Some(_) => {
                let at = top - MAX_SLOTS_IN_FLIGHT;
                self.stage = Stage::Base { top, at };
                let request = Request::Read { chain: Chain::Journal(self.epoch), number: at };
                operations.submit(turn, Purpose::RecoveryProbe(at), request);
                Outcome::Going
            }
        }
    }

    fn base(&mut self, turn: &mut Turn<'_>, operations: &mut Operations, token: Token, base: u64, top: u64) -> Outcome {
        if self.mutation == Mutation::SkipFencing {
            return self.walk(turn, operations, base, top);
        }
        self.stage = Stage::HighFence { base, top };
        let number = top + HIGH_FENCE;
        self.fence(turn, operations, token, number, Purpose::RecoveryHighFence(number));
        Outcome::Going
    }

    fn fence(&self, turn: &mut Turn<'_>, operations: &mut Operations, token: Token, number: u64, purpose: Purpose) {
        let fence = JournalObject::Fence { epoch: self.epoch, slot: Slot(number), token, by: self.by };
        let request = Request::Commit { chain: Chain::Journal(self.epoch), number, bytes: fence.encode() };
        operations.submit(turn, purpose, request);
    }

    fn walk(&mut self, turn: &mut Turn<'_>, operations: &mut Operations, base: u64, top: u64) -> Outcome {
        let mut walk = Walk::new(Chain::Journal(self.epoch), base, Whose::Recovery);
        let end = top + HIGH_FENCE + 1;
        walk.ask(turn, operations, end);
        let replay = Replay::new(self.epoch);
        self.stage = Stage::Walking(Box::new(Walking { walk, base, replay, end, fencing: None }));
        Outcome::Going
    }

    /// Goes as far as the arrived objects reach.
    fn step(&mut self, turn: &mut Turn<'_>, operations: &mut Operations, token: Token) -> Outcome {
        loop {
            let Stage::Walking(walking) = &mut self.stage else { return Outcome::Going };
            if walking.fencing.is_some() {
                return Outcome::Going;
            }
            let Some((number, bytes)) = walking.walk.take() else {
                walking.walk.ask(turn, operations, walking.end);
                return Outcome::Going;
            };
            match bytes {
                Some(bytes) => match self.object(turn, operations, number, bytes) {
                    Outcome::Going => {}
                    outcome => return outcome,
                },
                None if matches!(self.mutation, Mutation::SkipFencing | Mutation::TrustMissingRead) => {
                    return self.concluded(Slot(number));
                }
                None => {
                    walking.fencing = Some(number);
                    self.fence(turn, operations, token, number, Purpose::RecoveryFence(number));
                    return Outcome::Going;
                }
            }
        }
    }

    /// The next object of the walk.
    fn object(&mut self, turn: &mut Turn<'_>, operations: &mut Operations, number: u64, bytes: Bytes) -> Outcome {
        let object = match self.decode(number, bytes) {
            Ok(object) => object,
            Err(outcome) => return outcome,
        };
        let Stage::Walking(walking) = &mut self.stage else { return Outcome::Going };
        if let JournalObject::Fence { .. } = object {
            return self.ended(turn, operations, Slot(number));
        }
        match walking.replay.feed(&object) {
            Ok(()) => Outcome::Going,
            Err(contradiction) => Outcome::Damaged(contradiction.to_string()),
        }
    }

    /// The journal ends at `fence`, unless what lies above says otherwise.
    fn ended(&mut self, turn: &mut Turn<'_>, operations: &mut Operations, fence: Slot) -> Outcome {
        match self.concluded(fence) {
            Outcome::Ended(recovered) => {
                let left: BTreeSet<u64> = (fence.0 + 1..=fence.0 + MAX_SLOTS_IN_FLIGHT).collect();
                for number in &left {
                    let request = Request::Read { chain: Chain::Journal(self.epoch), number: *number };
                    operations.submit(turn, Purpose::RecoveryAbove(*number), request);
                }
                self.stage = Stage::Above { recovered, left };
                Outcome::Going
            }
            outcome => outcome,
        }
    }

    fn looked_above(&mut self, number: u64, bytes: Option<Bytes>) -> Outcome {
        let Stage::Above { recovered, left } = &mut self.stage else { return Outcome::Going };
        left.remove(&number);
        let (fence, is_last) = (recovered.fence, left.is_empty());
        // What cannot be read proves nothing, and is void anyhow.
        let object = bytes.and_then(|bytes| JournalObject::decode(bytes, (self.epoch, Slot(number))).ok());
        if let Some(JournalObject::Entries { in_flight, .. }) = object
            && in_flight > 0
            && number - u64::from(in_flight) >= fence.0
        {
            return Outcome::Damaged(format!(
                "slot {fence} of journal {} is missing: it was committed before slot {number} was written, which is there. Records \
                 that were acknowledged are in it; put the object back from a copy of the store",
                self.epoch
            ));
        }
        match std::mem::replace(&mut self.stage, Stage::Tip) {
            Stage::Above { recovered, .. } if is_last => Outcome::Ended(recovered),
            stage => {
                self.stage = stage;
                Outcome::Going
            }
        }
    }

    fn concluded(&mut self, fence: Slot) -> Outcome {
        match std::mem::replace(&mut self.stage, Stage::Tip) {
            Stage::Walking(walking) => {
                let Walking { base, replay, .. } = *walking;
                Outcome::Ended(Box::new(Recovered { epoch: self.epoch, fence, base: Slot(base), replay }))
            }
            _ => Outcome::Going,
        }
    }
}

#[cfg(test)]
mod tests;
