//! Fetching payloads.

use super::{ErrorClass, answers_of_parts, fixed_answers, store_class};
use refstream_filer_adapter::StoreError;
use refstream_types::{Key, Offset, PartitionId, StoreName, TopicName};
use std::fmt;
use thiserror::Error;

/// A store cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum OpenStoreError {
    /// The deployment has no store of this name.
    #[error(
        "the store {store} is not configured in this deployment, which has: {configured}; references name configured stores only"
    )]
    Unknown {
        /// The name.
        store: StoreName,
        /// The names that exist.
        configured: String,
    },
    /// It is described, but cannot be used from here.
    #[error("the store {store} cannot be opened: {why}")]
    Unusable {
        /// The name.
        store: StoreName,
        /// Why, and what to do.
        why: String,
    },
    /// Its credentials cannot be had.
    #[error(
        "the credentials of store {store} cannot be read from {file}: {why}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY instead, or run as the broker's user"
    )]
    Credentials {
        /// The name.
        store: StoreName,
        /// The file.
        file: String,
        /// Why.
        why: String,
    },
}

impl OpenStoreError {
    pub(crate) fn class(&self) -> ErrorClass {
        match self {
            Self::Unknown { .. } => ErrorClass::NotFound,
            Self::Unusable { .. } => ErrorClass::Failed,
            Self::Credentials { .. } => ErrorClass::NotAuthorised,
        }
    }
    pub(crate) fn is_retryable(&self) -> bool {
        false
    }
    pub(crate) fn has_no_side_effects(&self) -> bool {
        true
    }
}

/// The object that a fetch was about, and the record that refers to it where that is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchedObject {
    /// The store.
    pub store: StoreName,
    /// The object.
    pub key: Key,
    /// Its absolute address, where the store is known.
    pub uri: Option<String>,
    /// The record that refers to it.
    pub place: Option<(TopicName, PartitionId, Offset)>,
}

impl fmt::Display for FetchedObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((topic, partition, offset)) = &self.place {
            write!(f, "topic {topic} partition {partition} offset {offset}: ")?;
        }
        match &self.uri {
            Some(uri) => write!(f, "the object {uri} (store {})", self.store),
            None => write!(f, "the object {} in store {}", self.key, self.store),
        }
    }
}

/// The object does not exist.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0} does not exist; it was deleted behind the deployment's back, or the bucket is another one")]
pub struct MissingObject(pub FetchedObject);
fixed_answers!(MissingObject: VerificationFailed, retryable false, no_side_effects true);

/// The bytes that the store handed out are not the bytes that were stored.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{object} is damaged: {what} is {actual}, expected {expected}; {}; restore it from a copy",
    match handed_out {
        0 => "none of its bytes were handed out as good".to_owned(),
        bytes => format!("{bytes} bytes before it, each block verified, were handed out"),
    }
)]
pub struct DamagedObject {
    /// The object.
    pub object: FetchedObject,
    /// What was compared, for example `the content hash`.
    pub what: String,
    /// What it should be.
    pub expected: String,
    /// What it is.
    pub actual: String,
    /// Bytes of the payload, from its start on, that were verified by block and handed out before the damage was found.
    pub handed_out: u64,
}
fixed_answers!(DamagedObject: VerificationFailed, retryable false, no_side_effects true);

/// An object attached in place was overwritten after it was attached.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0} was overwritten after the record was made: its etag or version is not the pinned one")]
pub struct OverwrittenObject(pub FetchedObject);
fixed_answers!(OverwrittenObject: VerificationFailed, retryable false, no_side_effects true);

/// The store did not hand the object out.
#[derive(Clone, Debug, Error)]
#[error("{object} could not be read: {error}")]
pub struct UnreadableObject {
    /// The object.
    pub object: FetchedObject,
    /// What the store said.
    pub error: StoreError,
}

impl UnreadableObject {
    pub(crate) fn class(&self) -> ErrorClass {
        store_class(self.error.kind)
    }
    pub(crate) fn is_retryable(&self) -> bool {
        self.error.is_retryable()
    }
    pub(crate) fn has_no_side_effects(&self) -> bool {
        true
    }
}

/// What was fetched could not be written where it should go.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{object} was read, but its bytes could not be written: {why}")]
pub struct SinkFailed {
    /// The object.
    pub object: FetchedObject,
    /// What the system said.
    pub why: String,
}
fixed_answers!(SinkFailed: Failed, retryable false, no_side_effects false);

/// The payload is too large to be held in memory at once.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{object} has {bytes} bytes, which cannot be held in memory here; stream it or read ranges")]
pub struct TooLargeForMemory {
    /// The object.
    pub object: FetchedObject,
    /// Bytes of the payload.
    pub bytes: u64,
}
fixed_answers!(TooLargeForMemory: Invalid, retryable false, no_side_effects true);

/// A payload could not be fetched and verified.
#[derive(Clone, Debug, Error)]
pub enum FetchError {
    /// Its store cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenStoreError),
    /// The object does not exist.
    #[error(transparent)]
    Missing(Box<MissingObject>),
    /// The bytes are wrong.
    #[error(transparent)]
    Damaged(Box<DamagedObject>),
    /// The object was overwritten.
    #[error(transparent)]
    Overwritten(Box<OverwrittenObject>),
    /// The store did not hand it out.
    #[error(transparent)]
    Store(Box<UnreadableObject>),
    /// The sink failed.
    #[error(transparent)]
    Sink(Box<SinkFailed>),
    /// Too large to be held in memory.
    #[error(transparent)]
    TooLarge(Box<TooLargeForMemory>),
}
answers_of_parts!(FetchError: Open, Missing, Damaged, Overwritten, Store, Sink, TooLarge);

impl FetchError {
    pub(crate) fn of_store(object: &FetchedObject, error: StoreError) -> Self {
        use refstream_filer_adapter::StoreErrorKind as Kind;
        let object = object.clone();
        match error.kind {
            Kind::NotFound => Self::Missing(Box::new(MissingObject(object))),
            Kind::Changed => Self::Overwritten(Box::new(OverwrittenObject(object))),
            Kind::Corrupt => Self::Damaged(Box::new(DamagedObject {
                object,
                what: "what the store reads of it".into(),
                expected: "bytes with the right checksum".into(),
                actual: format!("an error ({})", error.message),
                handed_out: 0,
            })),
            _ => Self::Store(Box::new(UnreadableObject { object, error })),
        }
    }
}
