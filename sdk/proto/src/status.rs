//! Errors as gRPC statuses.

use crate::v1::{ErrorCode, ErrorDetail};
use prost::Message as _;
use tonic::{Code, Status};

/// The status that carries an error: a gRPC code for generic clients, the detail for ours.
pub fn into_status(detail: ErrorDetail) -> Status {
    let code = match detail.code() {
        ErrorCode::InvalidArgument | ErrorCode::BatchCorrupt | ErrorCode::TooLarge => Code::InvalidArgument,
        ErrorCode::TopicNotFound | ErrorCode::PartitionNotFound | ErrorCode::PayloadNotFound => Code::NotFound,
        ErrorCode::TopicExists => Code::AlreadyExists,
        ErrorCode::SegmentSealed
        | ErrorCode::ProducerFenced
        | ErrorCode::OutOfSequence
        | ErrorCode::UnknownProducer
        | ErrorCode::InFiles => Code::FailedPrecondition,
        ErrorCode::OffsetOutOfRange => Code::OutOfRange,
        ErrorCode::Throttled => Code::ResourceExhausted,
        ErrorCode::Unavailable | ErrorCode::OutcomeUnknown => Code::Unavailable,
        ErrorCode::NotAuthorised => Code::PermissionDenied,
        ErrorCode::Unsupported => Code::Unimplemented,
        ErrorCode::Internal | ErrorCode::Unspecified => Code::Internal,
    };
    Status::with_details(code, detail.message.clone(), detail.encode_to_vec().into())
}

/// The error that a status carries. A status that is not ours (a proxy's, the transport's) becomes `UNAVAILABLE` where a
/// retry makes sense and `INTERNAL` elsewhere, never with a claim that nothing happened.
pub fn error_detail(status: &Status) -> ErrorDetail {
    if let Ok(detail) = ErrorDetail::decode(status.details())
        && detail.code() != ErrorCode::Unspecified
    {
        return detail;
    }
    let retryable = matches!(
        status.code(),
        Code::Unavailable | Code::Unknown | Code::Cancelled | Code::DeadlineExceeded | Code::Aborted
    );
    let code = match status.code() {
        Code::Unauthenticated | Code::PermissionDenied => ErrorCode::NotAuthorised,
        Code::Unimplemented => ErrorCode::Unsupported,
        _ if retryable => ErrorCode::Unavailable,
        _ => ErrorCode::Internal,
    };
    ErrorDetail {
        code: code.into(),
        message: format!("{}: {}", status.code(), status.message()),
        retryable,
        ..ErrorDetail::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_survive_the_status() {
        let detail = ErrorDetail {
            code: ErrorCode::OutOfSequence.into(),
            message: "sequence 7 is not the next one".into(),
            expected_sequence: Some(5),
            ..ErrorDetail::default()
        };
        let status = into_status(detail.clone());
        assert_eq!(status.code(), Code::FailedPrecondition);
        assert_eq!(error_detail(&status), detail);
    }

    #[test]
    fn foreign_statuses_claim_nothing() {
        let detail = error_detail(&Status::unknown("h2 protocol error"));
        assert!(detail.retryable && !detail.no_side_effects);
    }
}
