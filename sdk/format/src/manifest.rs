//! Topic manifests: the numbered versions of which files hold a topic's closed segments. Only compactors write them.

mod codec;

use refstream_types::{
    Key, Offset, PartitionId, PartitionRange, SegmentNumber, Timestamp, Token, TopicId, TopicName, Version,
};
use std::collections::BTreeMap;

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

/// A segment's rows in one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held<'a> {
    /// The segment, or the part of it that the file holds.
    pub span: &'a SegmentSpan,
    /// The file.
    pub file: &'a DataFile,
}

/// The file among `files` that holds the record; a published one before a fresh one.
pub fn file_of(files: &[DataFile], partition: PartitionId, offset: Offset) -> Option<&DataFile> {
    let mut holding = files.iter().filter(|file| file.contains(partition, offset));
    let first = holding.next()?;
    if first.tier == Tier::Data { Some(first) } else { holding.find(|f| f.tier == Tier::Data).or(Some(first)) }
}

/// For each partition that `files` hold rows of, the offset after the last one.
pub fn end_offsets(files: &[DataFile]) -> BTreeMap<PartitionId, Offset> {
    let mut ends = BTreeMap::new();
    for span in files.iter().flat_map(|file| &file.segments) {
        for ((partition, start), end) in span.range.iter().zip(&span.start_offsets).zip(&span.end_offsets) {
            if start < end {
                let reached = ends.entry(partition).or_insert(*end);
                *reached = (*end).max(*reached);
            }
        }
    }
    ends
}

/// The segments that `files` hold, ascending by number; one entry for each file that has a part of it.
pub fn segments(files: &[DataFile]) -> Vec<Held<'_>> {
    let mut held: Vec<_> =
        files.iter().flat_map(|file| file.segments.iter().map(move |span| Held { span, file })).collect();
    held.sort_by_key(|held| (held.span.number, held.file.append_times.0));
    held
}

impl Manifest {
    /// A topic's manifest before its first version: number 0, without files.
    pub fn empty(topic: TopicId, name: TopicName, token: Token) -> Self {
        let (pages, files, replaced) = (Vec::new(), Vec::new(), Vec::new());
        Self { topic, name, version: Version(0), token, pages, files, plan: None, replaced }
    }
    /// The file that holds the record, unless it is one that a page lists; see [`file_of`].
    pub fn file_of(&self, partition: PartitionId, offset: Offset) -> Option<&DataFile> {
        file_of(&self.files, partition, offset)
    }
    /// For each partition that files outside pages hold rows of, the offset after the last one.
    pub fn end_offsets(&self) -> BTreeMap<PartitionId, Offset> {
        end_offsets(&self.files)
    }
    /// The segments in files outside pages, ascending by number; one entry for each file that has a part of it.
    pub fn segments(&self) -> Vec<Held<'_>> {
        segments(&self.files)
    }
    /// Files that pages list, and that files outside pages are.
    pub fn file_count(&self) -> u64 {
        self.pages.iter().map(|(_, files)| u64::from(*files)).sum::<u64>() + self.files.len() as u64
    }
}
