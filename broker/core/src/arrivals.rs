//! Segments that the log gave to this broker, until it can begin with them.
//!
//! 1. *Opened*: an entry of the log names us as the owner (invariant *the-log-names-the-owner*: nothing else makes one).
//! 2. *Tails*: the final states of its predecessors are read from the journals in which they ended, unless they ended here.
//! 3. *Adopted*: the segment takes batches; those that came too early have waited aside.
//!
//! A crash at any step leaves an open segment without `Adopt` entry: it holds nothing, and its own predecessors' states pass to its
//! successor.

use crate::{
    broker::Broker,
    interface::StopReason,
    operations::{Answer, Purpose},
    tails::Tails,
    turn::Turn,
};
use refstream_format::cluster_log::{OpenSegment, SealedSegment};
use refstream_types::SegmentId;
use std::collections::BTreeMap;

/// What was given to us and not begun.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    waiting: BTreeMap<SegmentId, OpenSegment>,
    tails: Option<Box<Tails>>,
    /// There may be something to begin with.
    look: bool,
    /// Damage that may be no more than our own being outdated.
    suspicion: Option<String>,
    /// There was a suspicion before, and all of the log that was known then is known now.
    is_doubted: bool,
}

impl Arrivals {
    /// Whether something waits until all of the log is known.
    pub(crate) fn waits_for_log(&self) -> bool {
        self.suspicion.is_some()
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

impl Broker {
    /// The log names us as a segment's owner.
    pub(crate) fn opened(&mut self, segment: OpenSegment) {
        self.arrivals.waiting.insert(segment.id, segment);
        self.arrivals.look = true;
    }

    /// Begins with what has all it needs, and reads what the rest needs.
    pub(crate) fn receive(&mut self, turn: &mut Turn<'_>) -> Result<(), StopReason> {
        if !std::mem::take(&mut self.arrivals.look) {
            return Ok(());
        }
        let mut missing: BTreeMap<SegmentId, SealedSegment> = BTreeMap::new();
        for (id, segment) in std::mem::take(&mut self.arrivals.waiting) {
            let mut complete = true;
            for number in &segment.predecessors {
                let predecessor = SegmentId { topic: id.topic, number: *number };
                if self.finals.contains_key(&predecessor) {
                    continue;
                }
                complete = false;
                match self.cluster.state.ended_segment(predecessor) {
                    Some(ended) => {
                        missing.insert(predecessor, ended.clone());
                    }
                    // Deleted topics forget.
                    None if self.cluster.state.topics.get(&id.topic).is_none_or(|topic| topic.deleted) => {}
                    None => {
                        let why = format!(
                            "segment {id} carries on from segment {predecessor}, of which the log knows nothing"
                        );
                        return Err(StopReason::Damaged(why));
                    }
                }
            }
            let deleted = self.cluster.state.topics.get(&id.topic).is_none_or(|topic| topic.deleted);
            if complete || deleted {
                self.take_over(turn, segment, deleted);
            } else {
                self.arrivals.waiting.insert(id, segment);
            }
        }
        if self.arrivals.tails.is_none() && self.arrivals.suspicion.is_none() && !missing.is_empty() {
            let missing: Vec<_> = missing.into_values().collect();
            self.arrivals.tails = Some(Box::new(Tails::begin(turn, &mut self.operations, &missing)));
        }
        Ok(())
    }

    pub(crate) fn tails_answered(&mut self, turn: &mut Turn<'_>, purpose: Purpose, answer: Answer) {
        let Some(tails) = self.arrivals.tails.as_mut() else { return };
        match tails.answered(turn, &mut self.operations, purpose, answer) {
            Err(why) => {
                self.operations.abandon(|purpose| matches!(purpose, Purpose::TailPointer(..) | Purpose::TailWalk(..)));
                self.arrivals.tails = None;
                self.arrivals.suspicion = Some(why);
                self.watch_log(turn);
            }
            Ok(()) if tails.is_complete() => {
                let found = std::mem::take(&mut tails.found);
                self.finals.extend(found.into_iter().map(|state| (state.segment, state)));
                self.arrivals.tails = None;
                self.arrivals.is_doubted = false;
                self.arrivals.look = true;
            }
            Ok(()) => {}
        }
    }

    /// The log is as we know it: what still seems wrong is wrong. A topic that was deleted meanwhile explains what is missing, so
    /// it is looked for once more.
    pub(crate) fn arrivals_are_suspect(&mut self) -> Result<(), StopReason> {
        match self.arrivals.suspicion.take() {
            Some(why) if self.arrivals.is_doubted => Err(StopReason::Damaged(why)),
            Some(_) => {
                self.arrivals.is_doubted = true;
                self.arrivals.look = true;
                Ok(())
            }
            None => Ok(()),
        }
    }
}
