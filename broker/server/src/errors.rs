//! Errors as clients get them: what happened, where, what to do; whether to retry; whether anything may have happened.

use refstream_core::{AppendError, OperationError, StopReason};
use refstream_filer_adapter::{StoreError, StoreErrorKind};
use refstream_proto::v1::{ErrorCode, ErrorDetail};
use refstream_types::TopicId;
use std::{fmt::Display, time::Duration};

/// Nothing happened, and the same request fails again.
fn refused(code: ErrorCode, text: impl Display) -> ErrorDetail {
    ErrorDetail { code: code.into(), message: text.to_string(), no_side_effects: true, ..ErrorDetail::default() }
}

/// Nothing happened, and the same request may succeed later.
fn later(code: ErrorCode, text: impl Display) -> ErrorDetail {
    ErrorDetail { retryable: true, ..refused(code, text) }
}

pub(crate) fn invalid(text: impl Display) -> ErrorDetail {
    refused(ErrorCode::InvalidArgument, text)
}

pub(crate) fn not_authorised(text: impl Display) -> ErrorDetail {
    refused(ErrorCode::NotAuthorised, text)
}

pub(crate) fn unsupported(text: impl Display) -> ErrorDetail {
    refused(ErrorCode::Unsupported, text)
}

pub(crate) fn unavailable(text: impl Display) -> ErrorDetail {
    later(ErrorCode::Unavailable, text)
}

pub(crate) fn no_such_topic(name: impl Display) -> ErrorDetail {
    refused(
        ErrorCode::TopicNotFound,
        format!(
            "topic {name} does not exist; `refstream topic list` shows the topics, `refstream topic create` makes one"
        ),
    )
}

pub(crate) fn no_such_topic_id(topic: TopicId) -> ErrorDetail {
    refused(
        ErrorCode::TopicNotFound,
        format!("the topic with id {topic} does not exist (any more); look the topic up by its name again"),
    )
}

pub(crate) fn no_such_partition(partition: u32, partitions: usize) -> ErrorDetail {
    refused(
        ErrorCode::PartitionNotFound,
        format!("partition {partition} does not exist: the topic has partitions 0 to {}", partitions.saturating_sub(1)),
    )
}

pub(crate) fn corrupt_batch(partition: u32, why: impl Display) -> ErrorDetail {
    refused(
        ErrorCode::BatchCorrupt,
        format!(
            "the batch for partition {partition} is damaged or malformed ({why}); nothing of it was appended, build it again"
        ),
    )
}

pub(crate) fn too_large(partition: u32, given: usize, limit: usize) -> ErrorDetail {
    refused(
        ErrorCode::TooLarge,
        format!(
            "the batch for partition {partition} has {given} bytes, the limit is {limit}; send fewer records in one batch"
        ),
    )
}

pub(crate) fn in_files(partition: u32, offset: u64, until: u64) -> ErrorDetail {
    ErrorDetail {
        offset: Some(offset),
        until: Some(until),
        ..refused(
            ErrorCode::InFiles,
            format!(
                "partition {partition}: the records from offset {offset} up to {until} are in closed files; read them from the \
                 store, then go on here from offset {until}"
            ),
        )
    }
}

/// Another broker serves the partition.
pub(crate) fn moved(partition: u32) -> ErrorDetail {
    later(
        ErrorCode::SegmentSealed,
        format!("partition {partition} is served by another broker now: look the topic up again and go on there"),
    )
}

pub(crate) fn out_of_range(partition: u32, offset: u64, latest: u64) -> ErrorDetail {
    ErrorDetail {
        offset: Some(offset),
        until: Some(latest),
        ..refused(
            ErrorCode::OffsetOutOfRange,
            format!(
                "partition {partition}: offset {offset} lies past the end, the next record will have offset {latest}"
            ),
        )
    }
}

pub(crate) fn unreadable(partition: u32, offset: u64, why: impl Display, retryable: bool) -> ErrorDetail {
    let code = if retryable { ErrorCode::Unavailable } else { ErrorCode::Internal };
    ErrorDetail {
        offset: Some(offset),
        retryable,
        ..refused(code, format!("partition {partition}: the record at offset {offset} cannot be read: {why}"))
    }
}

/// The broker stopped with the request under way.
pub(crate) fn outcome_unknown() -> ErrorDetail {
    ErrorDetail {
        code: ErrorCode::OutcomeUnknown.into(),
        message: "the broker stopped before the outcome was known; send the same request again".into(),
        retryable: true,
        ..ErrorDetail::default()
    }
}

pub(crate) fn stopped(reason: &StopReason) -> ErrorDetail {
    unavailable(format!("the broker has stopped: {reason}; look the topic up again or try again once it was restarted"))
}

/// What went wrong inside; whatever was committed stands.
pub(crate) fn internal(text: impl Display) -> ErrorDetail {
    ErrorDetail { code: ErrorCode::Internal.into(), message: text.to_string(), ..ErrorDetail::default() }
}

/// What a store answered to a request that was made for a client. Whether it happened is for the caller to say.
pub(crate) fn store(error: &StoreError) -> ErrorDetail {
    let text = &error.message;
    match error.kind {
        StoreErrorKind::NotFound => refused(ErrorCode::PayloadNotFound, text),
        StoreErrorKind::Throttled(after) => {
            ErrorDetail { retry_after_micros: after.map(micros), ..later(ErrorCode::Throttled, text) }
        }
        StoreErrorKind::Unavailable | StoreErrorKind::NoSpace => later(ErrorCode::Unavailable, error),
        StoreErrorKind::AccessDenied => {
            not_authorised(format!("the store does not permit it to the broker itself: {text}"))
        }
        StoreErrorKind::Invalid | StoreErrorKind::Changed => invalid(text),
        StoreErrorKind::NoSuchStore | StoreErrorKind::Corrupt => refused(ErrorCode::Internal, error),
    }
}

/// A compaction that did not end: what it committed stands, trying again is safe.
pub(crate) fn compactor(error: &crate::CompactorError) -> ErrorDetail {
    let code = match (error.damaged, error.retryable) {
        (true, _) => ErrorCode::BatchCorrupt,
        (false, true) => ErrorCode::Unavailable,
        (false, false) => ErrorCode::Internal,
    };
    ErrorDetail {
        code: code.into(),
        message: error.message.clone(),
        retryable: error.retryable && !error.damaged,
        ..ErrorDetail::default()
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// The core's answer about one batch.
pub(crate) fn append(error: &AppendError) -> ErrorDetail {
    match error {
        AppendError::UnknownTopic(topic) => no_such_topic_id(*topic),
        AppendError::UnknownPartition { partition, partitions } => no_such_partition(partition.0, *partitions as usize),
        AppendError::NotServed(_) => later(ErrorCode::SegmentSealed, error),
        AppendError::ProducerFenced { .. } => refused(
            ErrorCode::ProducerFenced,
            format!("{error}: the producer was opened again elsewhere; close this one"),
        ),
        AppendError::OutOfSequence { expected, .. } => ErrorDetail {
            expected_sequence: Some(expected.0),
            ..refused(
                ErrorCode::OutOfSequence,
                format!("{error}; an earlier batch of this producer is missing, send it first"),
            )
        },
        AppendError::UnknownProducer(_) => {
            refused(ErrorCode::UnknownProducer, format!("{error}; open a new producer and check which records arrived"))
        }
        AppendError::Throttled(after) => {
            ErrorDetail { retry_after_micros: Some(micros(*after)), ..later(ErrorCode::Throttled, error) }
        }
        AppendError::Unavailable(_) => unavailable(error),
        AppendError::OutcomeUnknown => outcome_unknown(),
    }
}

/// The core's answer about another operation.
pub(crate) fn operation(error: &OperationError) -> ErrorDetail {
    match error {
        OperationError::TopicExists(name) => refused(
            ErrorCode::TopicExists,
            format!("topic {name} exists already; use another name, or `refstream topic alter` to change its settings"),
        ),
        OperationError::UnknownTopic(topic) => no_such_topic_id(*topic),
        OperationError::Invalid(why) => invalid(why),
        OperationError::Unavailable(_) => unavailable(error),
        OperationError::OutcomeUnknown => outcome_unknown(),
    }
}
