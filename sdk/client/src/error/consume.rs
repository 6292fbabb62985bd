//! Consuming.

use super::{CallError, ErrorClass, OpenStoreError, TopicError, answers_of_parts, fixed_answers};
use refstream_types::{Offset, PartitionId, TopicName};
use thiserror::Error;

/// A start that lies outside of what the partition holds.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("topic {topic} partition {partition} has no offset {offset}: it holds {earliest}..{latest}; start within")]
pub struct StartOutOfRange {
    /// The topic.
    pub topic: TopicName,
    /// The partition.
    pub partition: PartitionId,
    /// What was asked for.
    pub offset: Offset,
    /// The first offset.
    pub earliest: Offset,
    /// One past the last.
    pub latest: Offset,
}
fixed_answers!(StartOutOfRange: Invalid, retryable false, no_side_effects true);

/// There is no such record.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("topic {topic} partition {partition} has no record at offset {offset}{}", held.map_or_else(|| ": there is no such partition".to_owned(), |(from, to)| format!(": it holds {from}..{to}")))]
pub struct NoSuchRecord {
    /// The topic.
    pub topic: TopicName,
    /// The partition.
    pub partition: PartitionId,
    /// The offset.
    pub offset: Offset,
    /// What the partition holds; `None` when there is no such partition.
    pub held: Option<(Offset, Offset)>,
}
fixed_answers!(NoSuchRecord: NotFound, retryable false, no_side_effects true);

/// Records whose bytes are damaged. Consuming goes on behind them.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("topic {topic} partition {partition}: the records from offset {offset}{} on are damaged: {why}; they are passed over", until.map_or_else(String::new, |until| format!(" to {until}")))]
pub struct DamagedRecords {
    /// The topic.
    pub topic: TopicName,
    /// The partition.
    pub partition: PartitionId,
    /// The first offset that cannot be had.
    pub offset: Offset,
    /// The offset after the last one, where it is known.
    pub until: Option<Offset>,
    /// What is wrong.
    pub why: String,
}
fixed_answers!(DamagedRecords: VerificationFailed, retryable false, no_side_effects true);

/// Records that are not there: deleted by retention while they were being read, or lost. Consuming goes on behind them.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("topic {topic} partition {partition}: the records {from}..{to} are not there: {why}; reading goes on at {to}")]
pub struct LostRecords {
    /// The topic.
    pub topic: TopicName,
    /// The partition.
    pub partition: PartitionId,
    /// The first offset.
    pub from: Offset,
    /// The offset after the last one.
    pub to: Offset,
    /// Why.
    pub why: String,
}
fixed_answers!(LostRecords: VerificationFailed, retryable false, no_side_effects true);

/// The records are in closed files, which this build cannot read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "topic {topic} partition {partition}: the records {from}..{until} are in closed Parquet files, which this build cannot read; build with the feature \"parquet\" of the crate refstream, or start at offset {until}"
)]
pub struct RecordsInFiles {
    /// The topic.
    pub topic: TopicName,
    /// The partition.
    pub partition: PartitionId,
    /// The first offset.
    pub from: Offset,
    /// The offset after the last one.
    pub until: Offset,
}
fixed_answers!(RecordsInFiles: Failed, retryable false, no_side_effects true);

/// Closed files could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "topic {topic} partition {partition}: the records from offset {offset} on are in closed files, which cannot be read: {why}"
)]
pub struct UnreadableFiles {
    /// The topic.
    pub topic: TopicName,
    /// The partition.
    pub partition: PartitionId,
    /// The first offset that cannot be had.
    pub offset: Offset,
    /// What the store or the file says.
    pub why: String,
    pub(crate) class: ErrorClass,
    pub(crate) retryable: bool,
}

impl UnreadableFiles {
    pub(crate) fn class(&self) -> ErrorClass {
        self.class
    }
    pub(crate) fn is_retryable(&self) -> bool {
        self.retryable
    }
    pub(crate) fn has_no_side_effects(&self) -> bool {
        true
    }
}

/// Consuming failed. After an error that names a partition, [`crate::Consumer::next`] goes on with the others.
#[derive(Clone, Debug, Error)]
pub enum ConsumeError {
    /// The topic is the trouble.
    #[error(transparent)]
    Topic(#[from] TopicError),
    /// A call failed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The start lies outside.
    #[error(transparent)]
    Start(#[from] StartOutOfRange),
    /// There is no such record.
    #[error(transparent)]
    NoSuchRecord(#[from] NoSuchRecord),
    /// Records are damaged.
    #[error(transparent)]
    Damaged(Box<DamagedRecords>),
    /// Records are not there.
    #[error(transparent)]
    Lost(Box<LostRecords>),
    /// Records are in closed files, which this build cannot read.
    #[error(transparent)]
    InFiles(#[from] RecordsInFiles),
    /// Closed files cannot be read.
    #[error(transparent)]
    Files(Box<UnreadableFiles>),
    /// The store of the closed files cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenStoreError),
}
answers_of_parts!(ConsumeError: Topic, Call, Start, NoSuchRecord, Damaged, Lost, InFiles, Files, Open);

impl ConsumeError {
    /// Whether only certain records are concerned: the consumer has passed them over, and `next` goes on with the others.
    pub fn is_about_records(&self) -> bool {
        matches!(self, Self::Damaged(_) | Self::Lost(_))
    }
}
