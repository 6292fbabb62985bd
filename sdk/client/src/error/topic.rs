//! Operations on topics and segments.

use super::{CallError, answers_of_parts, fixed_answers};
use refstream_types::{InvalidTopicConfig, TopicName};
use thiserror::Error;

/// There is no such topic.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "the topic {topic} does not exist; `refstream topic list` shows those that do, `refstream topic create {topic}` creates it"
)]
pub struct TopicNotFound {
    /// The topic.
    pub topic: TopicName,
}
fixed_answers!(TopicNotFound: NotFound, retryable false, no_side_effects true);

/// The topic exists already.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "the topic {topic} exists already; choose another name, or change its settings with `refstream topic alter {topic}`"
)]
pub struct TopicExists {
    /// The topic.
    pub topic: TopicName,
}
fixed_answers!(TopicExists: Exists, retryable false, no_side_effects true);

/// A setting that is out of bounds.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(transparent)]
pub struct RefusedConfig(pub InvalidTopicConfig);
fixed_answers!(RefusedConfig: Invalid, retryable false, no_side_effects true);

/// An operation on topics or segments failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TopicError {
    /// There is no such topic.
    #[error(transparent)]
    NotFound(TopicNotFound),
    /// It exists already.
    #[error(transparent)]
    Exists(TopicExists),
    /// A setting is out of bounds.
    #[error(transparent)]
    Config(RefusedConfig),
    /// The call failed.
    #[error(transparent)]
    Call(CallError),
}
answers_of_parts!(TopicError: NotFound, Exists, Config, Call);

impl TopicError {
    /// The call's error, in this topic's words.
    pub(crate) fn of(topic: &TopicName, error: CallError) -> Self {
        use refstream_proto::v1::ErrorCode;
        match error.code() {
            Some(ErrorCode::TopicNotFound) => Self::NotFound(TopicNotFound { topic: topic.clone() }),
            Some(ErrorCode::TopicExists) => Self::Exists(TopicExists { topic: topic.clone() }),
            _ => Self::Call(error),
        }
    }
}
