//! One error type per operation, composed of small named parts.
//!
//! Each error answers three questions a caller has: [`ErrorClass`] (what kind of trouble, for exit codes and alarms), `is_retryable()`
//! (may the same call succeed later) and `has_no_side_effects()` (is it certain that nothing happened). The texts say what, where and
//! what to do.

mod call;
mod consume;
mod fetch;
mod produce;
mod topic;
mod upload;

pub use call::{
    CallError, ConnectError, InvalidAnswer, InvalidEndpoint, InvalidToken, Refusal, Unreachable, UnreadableAuthorities,
};
pub use consume::{
    ConsumeError, DamagedRecords, LostRecords, NoSuchRecord, RecordsInFiles, StartOutOfRange, UnreadableFiles,
};
pub use fetch::{
    DamagedObject, FetchError, FetchedObject, MissingObject, OpenStoreError, OverwrittenObject, SinkFailed,
    TooLargeForMemory, UnreadableObject,
};
pub use produce::{NotAcked, ProduceError, ProducerEnded, RecordRefused};
pub use topic::{RefusedConfig, TopicError, TopicExists, TopicNotFound};
pub use upload::{
    BackfillError, InlineRefused, Interrupted, InvalidGlob, InvalidTemplate, JobCancelled, JobMismatch, JobState,
    NotStored, SourceChanged, SourceUnreadable, UploadError,
};

/// The kind of trouble, for exit codes and alarms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorClass {
    /// The request itself is wrong, and would be again.
    Invalid,
    /// What was asked for does not exist.
    NotFound,
    /// What was to be created exists.
    Exists,
    /// A broker or store could not be reached, or did not serve in time.
    Unreachable,
    /// The credentials are missing or do not permit it.
    NotAuthorised,
    /// Bytes are not what they should be, or gone although they are referred to.
    VerificationFailed,
    /// Anything else.
    Failed,
}

pub(crate) fn store_class(kind: refstream_filer_adapter::StoreErrorKind) -> ErrorClass {
    use refstream_filer_adapter::StoreErrorKind as Kind;
    match kind {
        Kind::NotFound | Kind::NoSuchStore => ErrorClass::NotFound,
        Kind::Changed | Kind::Corrupt => ErrorClass::VerificationFailed,
        Kind::Throttled(_) | Kind::Unavailable => ErrorClass::Unreachable,
        Kind::AccessDenied => ErrorClass::NotAuthorised,
        Kind::NoSpace => ErrorClass::Failed,
        Kind::Invalid => ErrorClass::Invalid,
    }
}

/// Implements the three questions for an error whose variants all hold a part that answers them.
macro_rules! answers_of_parts {
    ($name:ident: $($variant:ident),+) => {
        impl $name {
            /// The kind of trouble.
            pub fn class(&self) -> $crate::ErrorClass {
                match self { $(Self::$variant(part) => part.class()),+ }
            }
            /// Whether the same call may succeed later.
            pub fn is_retryable(&self) -> bool {
                match self { $(Self::$variant(part) => part.is_retryable()),+ }
            }
            /// Whether it is certain that nothing happened.
            pub fn has_no_side_effects(&self) -> bool {
                match self { $(Self::$variant(part) => part.has_no_side_effects()),+ }
            }
        }
    };
}

/// Implements the three questions for a part whose answers are fixed.
macro_rules! fixed_answers {
    ($name:ident: $class:ident, retryable $retryable:literal, no_side_effects $clean:literal) => {
        impl $name {
            pub(crate) fn class(&self) -> $crate::ErrorClass {
                $crate::ErrorClass::$class
            }
            pub(crate) fn is_retryable(&self) -> bool {
                $retryable
            }
            pub(crate) fn has_no_side_effects(&self) -> bool {
                $clean
            }
        }
    };
}

pub(crate) use {answers_of_parts, fixed_answers};
