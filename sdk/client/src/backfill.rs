//! Backfilling folders of files.

use crate::{BackfillError, UploadOptions};
use refstream_types::StoreName;
use serde::Serialize;
use std::path::PathBuf;

/// What to backfill. The default is nothing: give at least one path.
#[derive(Clone, Debug, Default)]
pub struct BackfillOptions {
    /// Files and folders; folders are walked. Symbolic links are not followed.
    pub paths: Vec<PathBuf>,
    /// Only files whose relative path matches one of these globs; empty: all.
    pub include: Vec<String>,
    /// Not files whose relative path matches one of these globs.
    pub exclude: Vec<String>,
    /// Only say what would be done.
    pub dry_run: bool,
    /// Values of at most this many bytes travel inside their record.
    pub inline_max: u32,
    /// How to upload.
    pub upload: UploadOptions,
    /// Store of the payloads; `None` means the topic's.
    pub store: Option<StoreName>,
    /// Attributes of every record.
    pub attributes: Vec<(String, String)>,
    /// End the walk after this many files.
    pub max_files: Option<u64>,
    /// End the walk before the file that would exceed this many bytes in all.
    pub max_bytes: Option<u64>,
}

/// A file that was not backfilled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileFailure {
    /// Its path.
    pub path: String,
    /// Why, and what to do.
    pub error: String,
}

/// What happens during a backfill, as it happens.
#[derive(Clone, Debug)]
pub enum BackfillEvent {
    /// Files and bytes found so far, and whether the walk has ended.
    Found {
        /// Files.
        files: u64,
        /// Bytes.
        bytes: u64,
        /// The walk has ended.
        complete: bool,
    },
    /// A file's record is durable (in a dry run: would be made).
    Done {
        /// Its path relative to the walked folder.
        name: String,
        /// Its size.
        bytes: u64,
    },
    /// A file failed; the others go on.
    Failed(FileFailure),
}

/// The end of a backfill.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct BackfillSummary {
    /// Files found.
    pub files_found: u64,
    /// Files whose record is durable.
    pub files_done: u64,
    /// Files that failed.
    pub files_failed: u64,
    /// Bytes of the files done.
    pub bytes_done: u64,
    /// Bytes that were stored for them.
    pub bytes_stored: u64,
    /// Objects that were stored for them.
    pub objects: u64,
    /// Duration in seconds.
    pub seconds: f64,
    /// The first 1,000 failures.
    pub failures: Vec<FileFailure>,
}

/// Backfills files into a topic: each file a record whose key is its relative path.
#[derive(Debug)]
pub struct Backfill {}

#[allow(unused_variables)]
impl Backfill {
    pub(crate) async fn open(
        client: &crate::Client,
        topic: &refstream_types::TopicName,
        options: BackfillOptions,
    ) -> Result<Self, BackfillError> {
        todo!()
    }
    /// Runs to the end. Uploading starts before the walk ends; memory does not grow with the number of files.
    ///
    /// # Errors
    /// When it could not go on at all; files that failed alone are in the summary.
    pub async fn run(self, on_event: impl FnMut(BackfillEvent) + Send) -> Result<BackfillSummary, BackfillError> {
        todo!()
    }
}
