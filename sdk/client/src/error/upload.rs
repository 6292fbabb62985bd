//! Uploads and backfills.

use super::{ErrorClass, OpenStoreError, TopicError, answers_of_parts, fixed_answers, store_class};
use crate::{ConsumeError, ProduceError};
use refstream_filer_adapter::{CreateError, StoreError};
use refstream_types::{Key, StoreName, TopicName};
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
    /// An object that an earlier process completed is not what its file holds now.
    pub(crate) fn of_other_size(name: &StoreName, key: &Key) -> Self {
        let error = StoreError {
            kind: refstream_filer_adapter::StoreErrorKind::Corrupt,
            operation: "head",
            store: name.to_string(),
            key: Some(key.clone()),
            message: "the object that was uploaded earlier has another size than the file's encoding now".into(),
        };
        Self { name: name.clone(), key: key.clone(), tried_for: Duration::ZERO, error, may_have_left_object: true }
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

/// The state of a job cannot be read or written.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the state of the job in {} {why}", path.display())]
pub struct JobState {
    /// Its file.
    pub path: PathBuf,
    /// What is wrong with it, and what to do.
    pub why: String,
}
fixed_answers!(JobState: Failed, retryable false, no_side_effects false);

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
    /// The state of the job cannot be written.
    #[error(transparent)]
    State(#[from] JobState),
    /// Given up.
    #[error(transparent)]
    Interrupted(Interrupted),
}
answers_of_parts!(UploadError: Topic, Open, Source, Changed, NotStored, State, Interrupted);

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

/// A template that is none.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the key template {template:?} is wrong: {why}")]
pub struct InvalidTemplate {
    /// The template.
    pub template: String,
    /// What is wrong.
    pub why: String,
}
fixed_answers!(InvalidTemplate: Invalid, retryable false, no_side_effects true);

/// Larger values are to travel inside their records than the topic permits.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "values of up to {asked} bytes cannot travel inside the records of topic {topic}: its inline_max is {permitted} bytes; ask for no more, or permit it with refstream topic alter {topic} --inline-max {asked}"
)]
pub struct InlineRefused {
    /// The topic.
    pub topic: TopicName,
    /// Bytes of the largest value that was asked for.
    pub asked: u32,
    /// The topic's [`refstream_types::TopicConfig::inline_max`].
    pub permitted: u32,
}
fixed_answers!(InlineRefused: Invalid, retryable false, no_side_effects true);

/// A job cannot be run as it was asked.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the job {job:?} cannot be run: {why}")]
pub struct JobMismatch {
    /// Its name.
    pub job: String,
    /// Why, and what to do.
    pub why: String,
}
fixed_answers!(JobMismatch: Invalid, retryable false, no_side_effects true);

/// A job was cancelled while it ran. Records that were acked before stay.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the job {job:?} was cancelled; records that were made stay")]
pub struct JobCancelled {
    /// Its name.
    pub job: String,
}
fixed_answers!(JobCancelled: Failed, retryable false, no_side_effects false);

/// A backfill could not go on. Files whose record was acked before stay backfilled.
#[derive(Clone, Debug, Error)]
pub enum BackfillError {
    /// A pattern is no glob.
    #[error(transparent)]
    Glob(#[from] InvalidGlob),
    /// The key template is wrong.
    #[error(transparent)]
    Template(#[from] InvalidTemplate),
    /// The topic does not permit values of that size inside its records.
    #[error(transparent)]
    Inline(#[from] InlineRefused),
    /// A path that was given cannot be read.
    #[error(transparent)]
    Source(#[from] SourceUnreadable),
    /// Uploads cannot work.
    #[error(transparent)]
    Upload(#[from] UploadError),
    /// Records cannot be produced.
    #[error(transparent)]
    Produce(#[from] ProduceError),
    /// What an earlier process left undecided could not be read back.
    #[error(transparent)]
    Consume(#[from] ConsumeError),
    /// The state of the job cannot be read or written.
    #[error(transparent)]
    State(#[from] JobState),
    /// The job cannot be run as it was asked.
    #[error(transparent)]
    Job(#[from] JobMismatch),
    /// It was cancelled.
    #[error(transparent)]
    Cancelled(JobCancelled),
}
answers_of_parts!(BackfillError: Glob, Template, Inline, Source, Upload, Produce, Consume, State, Job, Cancelled);
