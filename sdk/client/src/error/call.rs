//! Calls to brokers.

use super::{ErrorClass, answers_of_parts, fixed_answers};
use refstream_proto::v1::{ErrorCode, ErrorDetail};
use std::{path::PathBuf, time::Duration};
use thiserror::Error;

/// Nothing answered in time.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "no broker answers at {endpoint} (tried for {:.1} s): {why}; is it running, and is the endpoint right (--endpoint, REFSTREAM_ENDPOINT)?",
    tried_for.as_secs_f64()
)]
pub struct Unreachable {
    /// Where.
    pub endpoint: String,
    /// For how long.
    pub tried_for: Duration,
    /// What the network said last.
    pub why: String,
    /// A request may have arrived all the same.
    pub may_have_arrived: bool,
}

impl Unreachable {
    pub(crate) fn class(&self) -> ErrorClass {
        ErrorClass::Unreachable
    }
    pub(crate) fn is_retryable(&self) -> bool {
        true
    }
    pub(crate) fn has_no_side_effects(&self) -> bool {
        !self.may_have_arrived
    }
}

/// A broker said no.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the broker at {endpoint} refused: {message}")]
pub struct Refusal {
    /// Which broker.
    pub endpoint: String,
    /// What it said: what, where, what to do.
    pub message: String,
    pub(crate) code: ErrorCode,
    pub(crate) retryable: bool,
    pub(crate) no_side_effects: bool,
    /// An earlier attempt of the same call may have happened.
    pub(crate) repeated_in_doubt: bool,
}

impl Refusal {
    pub(crate) fn new(endpoint: &str, detail: &ErrorDetail) -> Self {
        let message =
            if detail.message.is_empty() { detail.code().as_str_name().to_owned() } else { detail.message.clone() };
        Self {
            endpoint: endpoint.to_owned(),
            message,
            code: detail.code(),
            retryable: detail.retryable,
            no_side_effects: detail.no_side_effects,
            repeated_in_doubt: false,
        }
    }
    pub(crate) fn class(&self) -> ErrorClass {
        match self.code {
            ErrorCode::InvalidArgument | ErrorCode::TooLarge | ErrorCode::OffsetOutOfRange => ErrorClass::Invalid,
            ErrorCode::TopicNotFound | ErrorCode::PartitionNotFound => ErrorClass::NotFound,
            ErrorCode::TopicExists => ErrorClass::Exists,
            ErrorCode::NotAuthorised => ErrorClass::NotAuthorised,
            ErrorCode::Unavailable | ErrorCode::Throttled => ErrorClass::Unreachable,
            ErrorCode::PayloadNotFound | ErrorCode::BatchCorrupt => ErrorClass::VerificationFailed,
            _ => ErrorClass::Failed,
        }
    }
    pub(crate) fn is_retryable(&self) -> bool {
        self.retryable
    }
    pub(crate) fn has_no_side_effects(&self) -> bool {
        self.no_side_effects
    }
}

/// A broker's answer does not say what it must.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "the broker at {endpoint} gave an answer that makes no sense: {why}; do client and broker have the same version?"
)]
pub struct InvalidAnswer {
    /// Which broker.
    pub endpoint: String,
    /// What is wrong with it.
    pub why: String,
}
fixed_answers!(InvalidAnswer: Failed, retryable false, no_side_effects false);

/// A call to a broker failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CallError {
    /// Nothing answered in time.
    #[error(transparent)]
    Unreachable(#[from] Unreachable),
    /// The broker said no.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The answer makes no sense.
    #[error(transparent)]
    Answer(#[from] InvalidAnswer),
}
answers_of_parts!(CallError: Unreachable, Refused, Answer);

impl CallError {
    pub(crate) fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Refused(refusal) => Some(refusal.code),
            _ => None,
        }
    }
    /// Whether the broker refused a repetition of an attempt that may have happened.
    pub(crate) fn repeated_in_doubt(&self) -> bool {
        matches!(self, Self::Refused(refusal) if refusal.repeated_in_doubt)
    }
}

/// An endpoint that cannot be one.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{endpoint:?} is no broker's endpoint: {why}; use the form http://HOST:PORT")]
pub struct InvalidEndpoint {
    /// What was given.
    pub endpoint: String,
    /// What is wrong with it.
    pub why: String,
}
fixed_answers!(InvalidEndpoint: Invalid, retryable false, no_side_effects true);

/// A token that cannot be one. What it is is not said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the given token is none: it is not empty, and of printable ASCII characters without blanks")]
pub struct InvalidToken;
fixed_answers!(InvalidToken: Invalid, retryable false, no_side_effects true);

/// The certificates to trust cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "the certificates to trust cannot be read from {}: {why}; name a file of certificates in PEM form (the setting ca_file, REFSTREAM_CA_FILE)",
    path.display()
)]
pub struct UnreadableAuthorities {
    /// The file.
    pub path: PathBuf,
    /// Why not.
    pub why: String,
}
fixed_answers!(UnreadableAuthorities: Invalid, retryable false, no_side_effects true);

/// Connecting failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConnectError {
    /// The endpoint cannot be one.
    #[error(transparent)]
    Endpoint(#[from] InvalidEndpoint),
    /// The token cannot be one.
    #[error(transparent)]
    Token(#[from] InvalidToken),
    /// The certificates to trust cannot be read.
    #[error(transparent)]
    Authorities(#[from] UnreadableAuthorities),
    /// No broker answered there in time, or what answers is none.
    #[error(transparent)]
    Call(#[from] CallError),
}
answers_of_parts!(ConnectError: Endpoint, Token, Authorities, Call);
