//! What others use of this crate, beside [`Compactor`](crate::Compactor) and [`ClosedReader`](crate::ClosedReader).

use refstream_format::batch::RecordView;
use refstream_journal::ReadError;
use refstream_types::{
    Offset, PartitionId, ProducerStamp, Record, SegmentId, SegmentNumber, Timestamp, TopicName, Version,
};
use thiserror::Error;

/// A record with its place, as a file holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its partition.
    pub partition: PartitionId,
    /// Its offset.
    pub offset: Offset,
    /// Its append time.
    pub append_time: Timestamp,
    /// Its producer's identity and its own sequence.
    pub producer: Option<ProducerStamp>,
    /// The record.
    pub record: Record,
}

impl Row {
    /// A view of it; `headers` is room for the list of its headers.
    pub(crate) fn view<'a>(&'a self, headers: &'a mut Vec<(&'a str, &'a [u8])>) -> RowView<'a> {
        RowView {
            partition: self.partition,
            offset: self.offset,
            append_time: self.append_time,
            producer: self.producer,
            record: RecordView::of(&self.record, headers),
        }
    }
}

/// A [`Row`] whose texts and bytes belong to somebody else.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowView<'a> {
    pub(crate) partition: PartitionId,
    pub(crate) offset: Offset,
    pub(crate) append_time: Timestamp,
    pub(crate) producer: Option<ProducerStamp>,
    pub(crate) record: RecordView<'a>,
}

/// Why a compaction or a read of closed files failed; what was committed stands, trying again is safe.
#[derive(Debug, Error)]
pub enum CompactError {
    /// Reading the deployment failed.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A store failed.
    #[error(transparent)]
    Store(#[from] refstream_filer_adapter::StoreError),
    /// A file is not what its manifest says.
    #[error("the file {uri} is damaged: {why}")]
    File {
        /// Which.
        uri: String,
        /// How.
        why: String,
    },
    /// A file could not be made.
    #[error("writing the file {uri} failed: {why}")]
    Write {
        /// Which.
        uri: String,
        /// Why.
        why: String,
    },
    /// A segment's batches are not what the cluster log says of it.
    #[error("the segment {segment} is damaged: {why}")]
    Segment {
        /// Which.
        segment: SegmentId,
        /// How.
        why: String,
    },
    /// Records between those that are to be published are in no file and no segment that waits for one.
    #[error(
        "topic {topic} partition {partition}: the records {from}..{to} are in a closed segment, but no file of the manifest \
         (version {version}) holds them; nothing is published across this hole; a newer version of the manifest was lost, restore \
         it from a copy"
    )]
    Hole {
        /// The topic.
        topic: TopicName,
        /// The partition.
        partition: PartitionId,
        /// The first offset that no file holds.
        from: Offset,
        /// The offset after the last one.
        to: Offset,
        /// The manifest's version.
        version: Version,
    },
    /// Another compactor keeps winning.
    #[error("another compactor is at work on topic {0}")]
    Contended(String),
}

impl CompactError {
    /// Whether something that is stored is damaged or missing. What is missing may have been collected meanwhile; then the same call
    /// succeeds later.
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Store(error) | Self::Read(ReadError::Store(error)) => {
                error.is_not_found() || error.kind == refstream_filer_adapter::StoreErrorKind::Corrupt
            }
            Self::Read(_) | Self::File { .. } | Self::Segment { .. } | Self::Hole { .. } => true,
            Self::Write { .. } | Self::Contended(_) => false,
        }
    }
    /// Whether the same call may succeed later, with nothing done about it.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Store(error) | Self::Read(ReadError::Store(error)) => error.is_retryable() || error.is_not_found(),
            Self::Read(ReadError::Gone(_)) | Self::Contended(_) => true,
            Self::Read(_) | Self::File { .. } | Self::Write { .. } | Self::Segment { .. } | Self::Hole { .. } => false,
        }
    }
}

/// What a compaction did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compaction {
    /// Segments whose records the manifest's files now hold.
    pub segments: Vec<SegmentNumber>,
    /// URIs of files written.
    pub files: Vec<String>,
    /// Rows written.
    pub rows: u64,
    /// Bytes written.
    pub bytes: u64,
}
