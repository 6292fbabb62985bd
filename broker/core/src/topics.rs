//! Changes to the set of topics.
//!
//! Creating and altering are a log entry each; a new topic's first segment, over all its partitions, opens in the same entry.
//!
//! Deleting: from the request on nothing is appended; the topic's segments end; once all their seal entries are durable one log
//! entry says that they ended, closes them and the ones that waited for their files, and deletes the topic. Its name is free
//! from then on. A crash before that entry leaves the topic as it was.

use crate::{
    broker::Broker,
    cluster_writer::{EndedSegment, Intent},
    interface::{Effect, OperationError, Reply, Ticket, TopicOperation},
    sealing::ended,
    segment::{After, Stage},
    turn::Turn,
};
use refstream_format::cluster_log::TopicState;
use refstream_types::{Timestamp, TopicId};
use std::sync::Arc;

/// A topic whose segments must end before it can go.
#[derive(Debug)]
pub(crate) struct Deletion {
    tickets: Vec<Ticket>,
    at: Timestamp,
    /// The log entry is wanted.
    told: bool,
}

impl Deletion {
    /// Those whose answer no log entry carries.
    pub(crate) fn waiting(self) -> Vec<Ticket> {
        let told = usize::from(self.told);
        self.tickets.into_iter().skip(told).collect()
    }
}

impl Broker {
    pub(crate) fn change_topic(&mut self, turn: &mut Turn<'_>, ticket: Ticket, operation: TopicOperation) {
        let at = turn.now.wall;
        let TopicOperation::Delete { topic } = operation else {
            return self.cluster.want(Intent::Topic { ticket, operation, at, ended: Vec::new() });
        };
        if self.cluster.state.topics.get(&topic).is_none_or(|topic| topic.deleted) {
            let result = Err(OperationError::UnknownTopic(topic));
            return turn.emit(Effect::Reply { ticket, reply: Reply::Topic(result) });
        }
        if let Some(deletion) = self.deletions.get_mut(&topic) {
            return deletion.tickets.push(ticket);
        }
        self.deletions.insert(topic, Deletion { tickets: vec![ticket], at, told: false });
        for id in self.segments_of(topic) {
            self.end_segment(id, After::Deletion);
            if self.segments.get(&id).is_some_and(|s| matches!(s.stage, Stage::Ended(_)) && s.end_is_durable) {
                self.advance_deletion(topic);
            }
        }
        self.lanes.unpark();
        self.advance_deletion(topic);
    }

    /// Writes the deletion to the log once every segment of the topic has ended.
    pub(crate) fn advance_deletion(&mut self, topic: TopicId) {
        let Some(deletion) = self.deletions.get(&topic).filter(|deletion| !deletion.told) else { return };
        let mine: Vec<_> = self.segments_of(topic).into_iter().filter_map(|id| self.segments.get(&id)).collect();
        if mine.iter().any(|segment| !segment.end_is_durable || segment.end_is_told) {
            return;
        }
        let ended = mine.into_iter().filter_map(ended).collect();
        let (Some(&ticket), at) = (deletion.tickets.first(), deletion.at) else { return };
        let operation = TopicOperation::Delete { topic };
        self.cluster.want(Intent::Topic { ticket, operation, at, ended });
        if let Some(deletion) = self.deletions.get_mut(&topic) {
            deletion.told = true;
        }
    }

    /// A topic was created or altered, or not.
    pub(crate) fn topic_changed(
        &mut self,
        turn: &mut Turn<'_>,
        ticket: Ticket,
        result: Result<Arc<TopicState>, OperationError>,
    ) {
        if let Ok(topic) = &result {
            // Of a new topic, the segment that opened with it.
            let mine = topic.open.values().filter(|opened| Some(opened.owner) == self.epoch);
            let new: Vec<_> = mine.filter(|opened| !self.segments.contains_key(&opened.id)).cloned().collect();
            new.into_iter().for_each(|opened| self.take_over(turn, opened));
        }
        turn.emit(Effect::Reply { ticket, reply: Reply::Topic(result) });
    }

    /// A deletion is decided. If it was refused, the segments that ended for it get successors.
    pub(crate) fn topic_deleted(
        &mut self,
        turn: &mut Turn<'_>,
        topic: TopicId,
        result: Result<Arc<TopicState>, OperationError>,
        ended: Vec<EndedSegment>,
    ) {
        let tickets = self.deletions.remove(&topic).map(|deletion| deletion.tickets).unwrap_or_default();
        for ended in ended {
            let id = ended.state.segment;
            if result.is_ok() {
                self.segment_deleted(turn, id);
            } else if let Some(segment) = self.segments.get_mut(&id) {
                segment.end_is_told = true;
                self.cluster.want(Intent::End { ended, after: After::Successor });
            }
        }
        for ticket in tickets {
            turn.emit(Effect::Reply { ticket, reply: Reply::Topic(result.clone()) });
        }
    }
}
