//! Changes to the set of topics.
//!
//! Each is one log entry, which any broker may write. A new topic's first segments open in the same entry. A deleted topic's name is
//! free with it; every owner of segments of it ends them once it reads the entry. What an owner acknowledges before that is
//! deleted with the topic.

use crate::{
    broker::Broker, cluster_writer::Intent, interface::Ticket, interface::TopicOperation, segment::After, turn::Turn,
};
use refstream_types::TopicId;

impl Broker {
    pub(crate) fn change_topic(&mut self, turn: &Turn<'_>, ticket: Ticket, operation: TopicOperation) {
        self.cluster.want(Intent::Topic { ticket, operation, at: turn.now.wall });
    }

    /// The log says that a topic is deleted: our segments of it end.
    pub(crate) fn topic_deleted(&mut self, topic: TopicId) {
        for id in self.segments_of(topic) {
            self.end_segment(id, After::Deletion);
        }
        // What waits is refused when it is looked at again.
        self.lanes.unpark();
    }
}
