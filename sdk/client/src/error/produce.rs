//! Producing.

use super::{CallError, ErrorClass, TopicError, answers_of_parts, fixed_answers};
use refstream_format::batch::PushError;
use refstream_types::{PartitionId, TopicName};
use thiserror::Error;

/// A record was not taken; the others are not concerned.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the record for topic {topic} is refused: {why}")]
pub struct RecordRefused {
    /// The topic.
    pub topic: TopicName,
    /// Which limit or rule it breaks.
    pub why: PushError,
}
fixed_answers!(RecordRefused: Invalid, retryable false, no_side_effects true);

/// A record that was taken was not acked.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "the record for topic {topic} partition {partition} was not acked: {why}{}",
    if *may_have_happened { "; it may be in the topic all the same: read it back before producing it again" } else { "; it is certainly not in the topic" }
)]
pub struct NotAcked {
    /// The topic.
    pub topic: TopicName,
    /// The partition.
    pub partition: PartitionId,
    /// Why.
    pub why: String,
    /// The record may be in the topic all the same.
    pub may_have_happened: bool,
    pub(crate) class: ErrorClass,
    pub(crate) retryable: bool,
}

impl NotAcked {
    pub(crate) fn class(&self) -> ErrorClass {
        self.class
    }
    pub(crate) fn is_retryable(&self) -> bool {
        self.retryable
    }
    pub(crate) fn has_no_side_effects(&self) -> bool {
        !self.may_have_happened
    }
}

/// A record was not acked.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ProduceError {
    /// The topic is the trouble.
    #[error(transparent)]
    Topic(#[from] TopicError),
    /// A call failed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The record itself is refused.
    #[error(transparent)]
    Record(#[from] RecordRefused),
    /// It was taken but not acked.
    #[error(transparent)]
    NotAcked(Box<NotAcked>),
    /// The producer failed for good before this record was taken.
    #[error(transparent)]
    Ended(ProducerEnded),
}
answers_of_parts!(ProduceError: Topic, Call, Record, NotAcked, Ended);

/// The producer failed for good.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the producer to topic {topic} takes no more records: {why}; open a new one")]
pub struct ProducerEnded {
    /// The topic.
    pub topic: TopicName,
    /// Why.
    pub why: String,
}
fixed_answers!(ProducerEnded: Failed, retryable false, no_side_effects true);
