//! How segments end and their successors begin.
//!
//! # Order of steps
//!
//! 1. *Wanted.* Age, size, a new UTC day, a client, a deletion or a drain ends a segment: it takes no batch any more. Those that
//!    arrive wait aside.
//! 2. *Seal entry* in the journal, behind everything that was placed in the segment, with its final state.
//! 3. *Log.* Once that slot is released: one entry says that it ended and opens what was planned to follow it, or its successor with
//!    the same range.
//! 4. *Adopt entry* of the successor by its owner, then the waiting batches, maybe in the same object.
//! 5. *Log.* Once that slot is released: the predecessors' journals are no longer needed for the producers' state.
//!
//! A crash after 2 leaves an open segment with a seal entry: recovery finds it. A crash after 3 leaves an open segment without
//! `Adopt` entry: it holds nothing.

use crate::{
    broker::Broker,
    cluster_writer::{EndedSegment, Intent},
    interface::{Effect, OperationError, Reply, Ticket},
    ledger::Ledger,
    mutation::Mutation,
    producers::Producers,
    segment::{After, OwnedSegment, Stage},
    turn::Turn,
};
use refstream_format::{
    cluster_log::{OpenSegment, Planned, SealedBy},
    journal::SegmentState,
};
use refstream_types::{PartitionId, ProducerId, SegmentId, SegmentNumber, Slot, TopicId};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

/// A client that waits for segments to end.
#[derive(Debug)]
struct Waiting {
    ticket: Ticket,
    numbers: Vec<SegmentNumber>,
    open: BTreeSet<SegmentId>,
}

/// What must be written about segments, and who waits for it.
#[derive(Debug, Default)]
pub(crate) struct Sealing {
    pub(crate) to_adopt: VecDeque<SegmentId>,
    pub(crate) to_end: VecDeque<SegmentId>,
    pub(crate) to_expire: BTreeMap<SegmentId, Vec<(PartitionId, ProducerId)>>,
    /// Segments whose seal entry is placed and whose end is not in the log.
    pub(crate) unlogged: usize,
    /// The producers of segments that ended here, with the times at which they would have been forgotten, until successors began.
    pub(crate) left: BTreeMap<SegmentId, Producers>,
    waiting: Vec<Waiting>,
}

impl Sealing {
    /// Everybody who waits.
    pub(crate) fn take_waiting(&mut self) -> Vec<Ticket> {
        std::mem::take(&mut self.waiting).into_iter().map(|waiting| waiting.ticket).collect()
    }

    /// A segment has ended, somewhere; `is_empty`: without records.
    pub(crate) fn ended(&mut self, turn: &mut Turn<'_>, segment: SegmentId, is_empty: bool) {
        for waiting in &mut self.waiting {
            if waiting.open.remove(&segment) && is_empty {
                waiting.numbers.retain(|number| *number != segment.number);
            }
        }
        let (done, open) = std::mem::take(&mut self.waiting).into_iter().partition(|w| w.open.is_empty());
        self.waiting = open;
        let done: Vec<Waiting> = done;
        for Waiting { ticket, numbers, .. } in done {
            turn.emit(Effect::Reply { ticket, reply: Reply::Sealed(Ok(numbers)) });
        }
    }
}

impl Broker {
    /// A client wants a topic's open segments that hold records sealed: ours end, the owners of others are asked.
    pub(crate) fn seal(&mut self, turn: &mut Turn<'_>, ticket: Ticket, topic: TopicId) {
        let state = Arc::clone(&self.cluster.state);
        let Some(state) = state.topics.get(&topic).filter(|topic| !topic.deleted) else {
            let result = Err(OperationError::UnknownTopic(topic));
            return turn.emit(Effect::Reply { ticket, reply: Reply::Sealed(result) });
        };
        let mine = self.segments_of(topic);
        let mut open: BTreeSet<_> = mine.into_iter().filter(|id| self.segments[id].holds_records()).collect();
        for id in &open {
            self.end_segment(*id, After::Successor);
        }
        for other in state.open.values().filter(|open| Some(open.owner) != self.epoch) {
            let successors = vec![Planned { range: other.range, owner: other.owner }];
            self.cluster.want(Intent::Plan { segment: other.id, successors });
            open.insert(other.id);
        }
        let numbers: Vec<_> = open.iter().map(|id| id.number).collect();
        if open.is_empty() {
            return turn.emit(Effect::Reply { ticket, reply: Reply::Sealed(Ok(numbers)) });
        }
        self.sealing.waiting.push(Waiting { ticket, numbers, open });
    }

    /// Our segments of a topic.
    pub(crate) fn segments_of(&self, topic: TopicId) -> Vec<SegmentId> {
        let numbers = |number| SegmentId { topic, number };
        self.segments.range(numbers(SegmentNumber(0))..=numbers(SegmentNumber(u64::MAX))).map(|(id, _)| *id).collect()
    }

    /// Ends a segment, unless it ends already.
    pub(crate) fn end_segment(&mut self, id: SegmentId, after: After) {
        let Some(segment) = self.segments.get_mut(&id) else { return };
        let first = segment.ending.is_none();
        segment.end(after);
        if first && segment.stage == Stage::Open {
            self.sealing.to_end.push_back(id);
        }
    }

    /// A segment's seal entry is durable.
    pub(crate) fn seal_released(&mut self, id: SegmentId) {
        let Some(segment) = self.segments.get_mut(&id) else { return };
        let after = segment.ending.unwrap_or(After::Successor);
        if !segment.end_is_told
            && let Some(ended) = ended(segment)
        {
            segment.end_is_told = true;
            self.cluster.want(Intent::End { ended, after });
        }
    }

    /// The log says that a segment of ours ended.
    pub(crate) fn segment_ended(&mut self, id: SegmentId) {
        if let Some(segment) = self.segments.remove(&id) {
            self.sealing.unlogged = self.sealing.unlogged.saturating_sub(1);
            self.finals.insert(id, segment.state());
            self.sealing.left.insert(id, segment.ledger.producers);
        }
    }

    /// Begins with a segment whose predecessors' final states are known, or whose topic is deleted.
    pub(crate) fn take_over(&mut self, turn: &Turn<'_>, opened: OpenSegment, deleted: bool) {
        let id = opened.id;
        let predecessor = |number: &SegmentNumber| SegmentId { topic: id.topic, number: *number };
        let finals: Vec<_> =
            opened.predecessors.iter().filter_map(|number| self.finals.get(&predecessor(number)).cloned()).collect();
        let state = match SegmentState::adopt(&opened, &finals, Slot(0)) {
            Ok(state) => Ok(state),
            // Of a deleted topic nobody needs to know its producers.
            Err(_) if deleted => Ok(SegmentState::empty(&opened, Slot(0), turn.now.wall)),
            Err(why) => Err(why),
        };
        let mut state = match state {
            Ok(state) => state,
            Err(why) => {
                self.upkeep.damage = Some(why);
                return;
            }
        };
        if self.mutation == Mutation::ForgetProducers {
            state.producers.clear();
        }
        let mut ledger = Ledger::new(&state, turn.now.monotonic, self.settings.producer_expiry);
        for number in &opened.predecessors {
            if let Some(earlier) = self.sealing.left.get(&predecessor(number)) {
                ledger.producers.keep_expiries(earlier);
            }
        }
        let mut segment = OwnedSegment::new(opened, ledger, turn.now.monotonic);
        let planned = self.cluster.state.topics.get(&id.topic).is_some_and(|t| t.planned.contains_key(&id.number));
        if deleted {
            segment.end(After::Deletion);
        } else if planned {
            segment.end(After::Successor);
        }
        self.segments.insert(id, segment);
        self.sealing.to_adopt.push_back(id);
    }
}

/// How a segment ended, once its seal entry is placed.
pub(crate) fn ended(segment: &OwnedSegment) -> Option<EndedSegment> {
    let Stage::Ended(slot) = segment.stage else { return None };
    Some(EndedSegment { state: segment.state(), by: SealedBy::Owner { slot }, last_slot: segment.last_slot })
}
