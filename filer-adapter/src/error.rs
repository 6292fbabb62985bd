//! What can go wrong at a store, by what the caller can do about it.

use refstream_types::Key;
use std::{fmt, time::Duration};
use thiserror::Error;

/// Why a store did not do what it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreErrorKind {
    /// The object does not exist.
    NotFound,
    /// The object is not the one that was pinned by etag or version.
    Changed,
    /// The store asked for patience (429, 503), maybe for this long.
    Throttled(Option<Duration>),
    /// Not reached, no answer in time, connection lost, or an answer of 5xx.
    Unavailable,
    /// The credentials do not permit it.
    AccessDenied,
    /// The bucket or cluster does not exist.
    NoSuchStore,
    /// The disk or quota is full.
    NoSpace,
    /// The bytes that arrived are not the bytes that were meant.
    Corrupt,
    /// The request is wrong, and would be again.
    Invalid,
}

/// A failed operation on a store.
#[derive(Clone, Debug, Error)]
pub struct StoreError {
    /// The class.
    pub kind: StoreErrorKind,
    /// What was asked, for example `get`.
    pub operation: &'static str,
    /// The store, as its configuration names it, and where it is.
    pub store: String,
    /// The object, where it was about one.
    pub key: Option<Key>,
    /// What the store or the network said.
    pub message: String,
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "store {}: {}", self.store, self.operation)?;
        if let Some(key) = &self.key {
            write!(f, " of {key}")?;
        }
        let what = match self.kind {
            StoreErrorKind::NotFound => "the object does not exist",
            StoreErrorKind::Changed => "the object was overwritten since it was pinned",
            StoreErrorKind::Throttled(_) => "the store asks to slow down",
            StoreErrorKind::Unavailable => "the store is unavailable",
            StoreErrorKind::AccessDenied => "access denied",
            StoreErrorKind::NoSuchStore => "no such bucket",
            StoreErrorKind::NoSpace => "no space left",
            StoreErrorKind::Corrupt => "the bytes are damaged",
            StoreErrorKind::Invalid => "the request was refused",
        };
        write!(f, " failed: {what}")?;
        if !self.message.is_empty() {
            write!(f, " ({})", self.message)?;
        }
        Ok(())
    }
}

impl StoreError {
    /// Whether the same request may succeed later.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self.kind,
            StoreErrorKind::Throttled(_)
                | StoreErrorKind::Unavailable
                | StoreErrorKind::NoSpace
                | StoreErrorKind::Corrupt
        )
    }
    /// Whether this says that the object is not there.
    pub fn is_not_found(&self) -> bool {
        self.kind == StoreErrorKind::NotFound
    }
}

/// A create or put that did not succeed: whether it happened is part of the type.
#[derive(Clone, Debug, Error)]
pub enum CreateError {
    /// Certainly nothing was stored, now or later.
    #[error(transparent)]
    DidNotHappen(StoreError),
    /// The object may be there, or may still appear.
    #[error("{0}; it may have happened all the same")]
    MayHaveHappened(StoreError),
}

impl CreateError {
    /// The store's error.
    pub fn error(&self) -> &StoreError {
        match self {
            Self::DidNotHappen(error) | Self::MayHaveHappened(error) => error,
        }
    }
}
