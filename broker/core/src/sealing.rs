//! How segments end and their successors begin.
//!
//! # Order of steps
//!
//! 1. *Wanted.* Age, size, a new UTC day, a client, a deletion or a drain ends a segment: it takes no batch any more. Those that
//!    arrive wait aside.
//! 2. *Seal entry* in the journal, behind everything that was placed in the segment, with its final state.
//! 3. *Log.* Once that slot is released: one entry says that it ended and opens its successor with the same range.
//! 4. *Adopt entry* of the successor, then the waiting batches, maybe in the same object.
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
    segment::{After, OwnedSegment, Stage},
    turn::Turn,
};
use refstream_format::{
    cluster_log::{OpenSegment, SealedBy},
    journal::SegmentState,
};
use refstream_types::{PartitionId, ProducerId, SegmentId, SegmentNumber, Slot, TopicId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

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
    waiting: Vec<Waiting>,
}

impl Sealing {
    /// Everybody who waits.
    pub(crate) fn take_waiting(&mut self) -> Vec<Ticket> {
        std::mem::take(&mut self.waiting).into_iter().map(|waiting| waiting.ticket).collect()
    }

    fn ended(&mut self, turn: &mut Turn<'_>, segment: SegmentId) {
        for waiting in &mut self.waiting {
            waiting.open.remove(&segment);
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
    /// A client wants a topic's open segments that hold records sealed.
    pub(crate) fn seal(&mut self, turn: &mut Turn<'_>, ticket: Ticket, topic: TopicId) {
        let known = self.cluster.state.topics.get(&topic).is_some_and(|topic| !topic.deleted);
        if !known || self.deletions.contains_key(&topic) {
            let result = Err(OperationError::UnknownTopic(topic));
            return turn.emit(Effect::Reply { ticket, reply: Reply::Sealed(result) });
        }
        let mine = self.segments_of(topic);
        let open: BTreeSet<_> = mine.into_iter().filter(|id| self.segments[id].holds_records()).collect();
        let numbers: Vec<_> = open.iter().map(|id| id.number).collect();
        if open.is_empty() {
            return turn.emit(Effect::Reply { ticket, reply: Reply::Sealed(Ok(numbers)) });
        }
        for id in &open {
            self.end_segment(*id, After::Successor);
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
        if segment.end_is_durable {
            return;
        }
        segment.end_is_durable = true;
        if after == After::Deletion {
            return self.advance_deletion(id.topic);
        }
        if let Some(ended) = ended(segment) {
            segment.end_is_told = true;
            self.cluster.want(Intent::End { ended, after });
        }
    }

    /// The log says that a segment of ours ended, and what follows.
    pub(crate) fn segment_ended(&mut self, turn: &mut Turn<'_>, id: SegmentId, successor: Option<OpenSegment>) {
        if let Some(segment) = self.segments.remove(&id) {
            self.sealing.unlogged = self.sealing.unlogged.saturating_sub(1);
            if let Some(successor) = successor {
                let next = successor.id;
                self.finals.insert(id, segment.state());
                self.take_over(turn, successor);
                self.finals.remove(&id);
                if let Some(next) = self.segments.get_mut(&next) {
                    next.ledger.producers.keep_expiries(&segment.ledger.producers);
                }
            }
        }
        self.sealing.ended(turn, id);
        self.advance_deletion(id.topic);
    }

    /// The log names us as a segment's owner.
    pub(crate) fn take_over(&mut self, turn: &Turn<'_>, opened: OpenSegment) {
        let id = opened.id;
        let finals = opened.predecessors.iter().filter_map(|number| {
            let predecessor = SegmentId { topic: id.topic, number: *number };
            self.finals.get(&predecessor).cloned()
        });
        let finals: Vec<_> = finals.collect();
        let mut state = match SegmentState::adopt(&opened, &finals, Slot(0)) {
            Ok(state) => state,
            Err(why) => {
                self.upkeep.damage = Some(why);
                return;
            }
        };
        if self.mutation == Mutation::ForgetProducers {
            state.producers.clear();
        }
        let ledger = Ledger::new(&state, turn.now.monotonic, self.settings.producer_expiry);
        let mut segment = OwnedSegment::new(opened, ledger);
        if self.deletions.contains_key(&id.topic) {
            segment.end(After::Deletion);
        }
        self.segments.insert(id, segment);
        self.sealing.to_adopt.push_back(id);
    }

    /// A segment of ours ended with its topic.
    pub(crate) fn segment_deleted(&mut self, turn: &mut Turn<'_>, id: SegmentId) {
        if self.segments.remove(&id).is_some() {
            self.sealing.unlogged = self.sealing.unlogged.saturating_sub(1);
        }
        self.sealing.ended(turn, id);
    }
}

/// How a segment ended, once its seal entry is placed.
pub(crate) fn ended(segment: &OwnedSegment) -> Option<EndedSegment> {
    let Stage::Ended(slot) = segment.stage else { return None };
    Some(EndedSegment { state: segment.state(), by: SealedBy::Owner { slot }, last_slot: segment.last_slot })
}
