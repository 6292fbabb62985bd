//! Uploads and backfills.

use super::{ErrorClass, OpenStoreError, TopicError, answers_of_parts, fixed_answers, store_class};
use crate::ProduceError;
use refstream_filer_adapter::{CreateError, StoreError};
use refstream_types::{Key, StoreName};
use std::{path::PathBuf, time::Duration};
use thiserror::Error;

/// The source of a payload cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("cannot read {}: {why}", path.as_ref().map_or_else(|| "the stream".to_owned(), |path| path.display().to_string()))]
pub struct SourceUnreadable {
    /// The file; `None` for a stream.
    pub path: Option<PathBuf>,
    /// What the system said.
    pub why: String,
}
fixed_answers!(SourceUnreadable: Failed, retryable false, no_side_effects true);

/// A file changed while it was read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{} changed while it was read ({what}); nothing refers to what was stored; try again when nobody writes to it", path.display())]
pub struct SourceChanged {
    /// The file.
    pub path: PathBuf,
    /// What changed.
    pub what: String,
}
fixed_answers!(SourceChanged: Failed, retryable true, no_side_effects true);

/// The store did not take a payload. Bytes may have been stored, but nothing refers to them.
#[derive(Clone, Debug, Error)]
#[error("the payload could not be stored as {key} in store {name} (tried for {:.1} s): {error}", tried_for.as_secs_f64())]
pub struct NotStored {
    /// The store.
    pub name: StoreName,
    /// The object.
    pub key: Key,
    /// For how long it was tried.
    pub tried_for: Duration,
    /// What the store said last.
    pub error: StoreError,
    /// Whether an object that nothing refers to may be left behind.
    pub may_have_left_object: bool,
}

impl NotStored {
    pub(crate) fn of_create(name: &StoreName, key: &Key, tried_for: Duration, error: CreateError) -> Self {
        let may_have_left_object = matches!(error, CreateError::MayHaveHappened(_));
        let (CreateError::DidNotHappen(error) | CreateError::MayHaveHappened(error)) = error;
        Self { name: name.clone(), key: key.clone(), tried_for, error, may_have_left_object }
    }
    pub(crate) fn class(&self) -> ErrorClass {
        store_class(self.error.kind)
    }
    pub(crate) fn is_retryable(&self) -> bool {
        self.error.is_retryable()
    }
    pub(crate) fn has_no_side_effects(&self) -> bool {
        !self.may_have_left_object
    }
}

/// The uploader was dropped, or its runtime is shutting down, before the payload was stored.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the upload was given up before it was durable: the program is shutting down")]
pub struct Interrupted;
fixed_answers!(Interrupted: Failed, retryable true, no_side_effects false);

/// An upload failed. Nothing refers to what may have been stored.
#[derive(Clone, Debug, Error)]
pub enum UploadError {
    /// The topic is the trouble.
    #[error(transparent)]
    Topic(#[from] TopicError),
    /// The store cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenStoreError),
    /// The source cannot be read.
    #[error(transparent)]
    Source(#[from] SourceUnreadable),
    /// The source changed while it was read.
    #[error(transparent)]
    Changed(#[from] SourceChanged),
    /// The store did not take it.
    #[error(transparent)]
    NotStored(Box<NotStored>),
    /// Given up.
    #[error(transparent)]
    Interrupted(Interrupted),
}
answers_of_parts!(UploadError: Topic, Open, Source, Changed, NotStored, Interrupted);

/// A pattern that is no glob.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the pattern {pattern:?} is no glob: {why}")]
pub struct InvalidGlob {
    /// The pattern.
    pub pattern: String,
    /// What is wrong.
    pub why: String,
}
fixed_answers!(InvalidGlob: Invalid, retryable false, no_side_effects true);

/// A backfill could not go on. Files whose record was acked before stay backfilled.
#[derive(Clone, Debug, Error)]
pub enum BackfillError {
    /// A pattern is no glob.
    #[error(transparent)]
    Glob(#[from] InvalidGlob),
    /// A path that was given cannot be read.
    #[error(transparent)]
    Source(#[from] SourceUnreadable),
    /// Uploads cannot work.
    #[error(transparent)]
    Upload(#[from] UploadError),
    /// Records cannot be produced.
    #[error(transparent)]
    Produce(#[from] ProduceError),
}
answers_of_parts!(BackfillError: Glob, Source, Upload, Produce);
