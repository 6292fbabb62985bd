//! What others use of this crate.

use futures::stream::BoxStream;
use refstream_filer_adapter::{BlobStore, Runtime};
use refstream_format::{
    cluster_log::{SealedSegment, TopicState},
    manifest::{DataFile, Manifest},
};
use refstream_journal::{Metadata, ReadError};
use refstream_types::{Offset, PartitionId, ProducerStamp, Record, SegmentNumber, StoreName, Timestamp};
use std::{collections::BTreeMap, sync::Arc};
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
    /// Another compactor keeps winning.
    #[error("another compactor is at work on topic {0}")]
    Contended(String),
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

/// Turns sealed segments into files and keeps the topic's manifest.
#[derive(Clone, Debug)]
pub struct Compactor {}

#[allow(unused_variables)]
impl Compactor {
    /// A compactor that reads `metadata` and writes files to `files` (the metadata store's objects). `stores` give the URIs of
    /// payloads.
    pub fn new(
        metadata: Metadata,
        files: Arc<dyn BlobStore>,
        stores: BTreeMap<StoreName, Arc<dyn BlobStore>>,
        runtime: Arc<dyn Runtime>,
    ) -> Self {
        todo!()
    }
    /// Compacts `segments` into fresh files, then publishes what is due (with `publish`: everything). Idempotent; safe beside
    /// other compactors.
    ///
    /// # Errors
    /// See [`CompactError`].
    pub async fn compact(
        &self,
        topic: &TopicState,
        segments: &[SealedSegment],
        publish: bool,
    ) -> Result<Compaction, CompactError> {
        todo!()
    }
    /// The newest manifest.
    ///
    /// # Errors
    /// See [`CompactError`].
    pub async fn manifest(&self, topic: &TopicState) -> Result<Option<Manifest>, CompactError> {
        todo!()
    }
}

/// Reads rows of closed files straight from the store.
#[derive(Clone, Debug)]
pub struct ClosedReader {}

#[allow(unused_variables)]
impl ClosedReader {
    /// A reader of files in `files`; `stores` are those that references may name.
    pub fn new(files: Arc<dyn BlobStore>, stores: BTreeMap<StoreName, Arc<dyn BlobStore>>) -> Self {
        todo!()
    }
    /// The rows of one file in order: all, or those of one partition from an offset on, for which only the pages concerned are
    /// fetched.
    pub fn rows(
        &self,
        file: &DataFile,
        from: Option<(PartitionId, Offset)>,
    ) -> BoxStream<'static, Result<Row, CompactError>> {
        todo!()
    }
}
