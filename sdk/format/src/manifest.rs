//! Topic manifests: the numbered versions of which files hold a topic's closed segments. Only compactors write them.

use crate::DecodeError;
use refstream_types::{
    Key, Offset, PartitionId, PartitionRange, SegmentNumber, Timestamp, Token, TopicId, TopicName, Version,
};

/// A segment, or the part of it that one UTC day holds, as it stands in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentSpan {
    /// The segment.
    pub number: SegmentNumber,
    /// Its partitions.
    pub range: PartitionRange,
    /// The first offset of each partition.
    pub start_offsets: Vec<Offset>,
    /// The offset after the last one, of each partition.
    pub end_offsets: Vec<Offset>,
}

/// Which readers a file is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tier {
    /// Early and small, under `_fresh/`, for readers of the manifest; replaced by a published file later.
    Fresh,
    /// Under `data/`, for everybody; never rewritten.
    Data,
}

/// One Parquet file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataFile {
    /// Its object.
    pub key: Key,
    /// Whom it is for.
    pub tier: Tier,
    /// What it holds, ascending by number.
    pub segments: Vec<SegmentSpan>,
    /// Rows.
    pub rows: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// Payload bytes as given that its rows refer to or carry.
    pub payload_bytes: u64,
    /// The earliest and latest append time, both of one UTC day.
    pub append_times: (Timestamp, Timestamp),
    /// The digest over the ordered rows, as in the file's metadata.
    pub digest: [u8; 32],
}

impl DataFile {
    /// Whether the file holds the record.
    pub fn contains(&self, partition: PartitionId, offset: Offset) -> bool {
        self.segments.iter().any(|s| {
            s.range.index_of(partition).is_some_and(|i| s.start_offsets[i] <= offset && offset < s.end_offsets[i])
        })
    }
}

/// A file under `data/` that is being made: committed before the file exists, so that whoever finds the plan completes
/// that file and no other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishPlan {
    /// The file's object.
    pub key: Key,
    /// The fresh files it replaces, in order.
    pub inputs: Vec<Key>,
}

/// One version of a topic's manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The topic.
    pub topic: TopicId,
    /// Its name.
    pub name: TopicName,
    /// The number of this version.
    pub version: Version,
    /// Its writer's token.
    pub token: Token,
    /// Immutable pages of older published files, oldest first: key and number of files.
    pub pages: Vec<(Key, u32)>,
    /// Files that no page holds yet: published ones first, then fresh ones.
    pub files: Vec<DataFile>,
    /// A file that is being made.
    pub plan: Option<PublishPlan>,
    /// Objects of earlier versions that may be deleted once nobody reads those versions.
    pub replaced: Vec<Key>,
}

impl Manifest {
    /// The object's bytes.
    pub fn encode(&self) -> Vec<u8> {
        todo!()
    }
    /// Reads a version.
    ///
    /// # Errors
    /// When it is damaged, of an unknown version, or not of that topic and number.
    pub fn decode(bytes: &[u8], expected: (TopicId, Version)) -> Result<Self, DecodeError> {
        let _ = (bytes, expected);
        todo!()
    }
    /// The bytes of a history page.
    pub fn encode_page(files: &[DataFile]) -> Vec<u8> {
        let _ = files;
        todo!()
    }
    /// Reads a history page.
    ///
    /// # Errors
    /// When it is damaged.
    pub fn decode_page(bytes: &[u8]) -> Result<Vec<DataFile>, DecodeError> {
        let _ = bytes;
        todo!()
    }
}
