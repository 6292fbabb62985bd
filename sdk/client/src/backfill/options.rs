//! What a backfill is told, and what it tells.

use super::BackfillProgress;
#[cfg(feature = "jobs")]
use super::JobOptions;
use crate::UploadOptions;
use refstream_types::StoreName;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What to backfill. The default is nothing: give at least one path.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct BackfillOptions {
    /// Files and folders; folders are walked. Symbolic links below them are not followed.
    #[serde(with = "paths")]
    pub paths: Vec<PathBuf>,
    /// Lists of files, one path a line; `-` is standard input. A file's name is its path as it is listed, without `/`, `.` and `..`.
    #[serde(with = "paths")]
    pub lists: Vec<PathBuf>,
    /// The paths of lists end with a zero byte instead of a line end.
    pub null_separated: bool,
    /// Tar archives (not compressed) that are uploaded whole; each member that is a regular file is a record that refers to its range.
    #[serde(with = "paths")]
    pub archives: Vec<PathBuf>,
    /// Prefixes of objects (`s3://bucket/prefix`) in configured stores, which are attached where they are: no payload byte moves.
    pub in_place: Vec<String>,
    /// Lists of objects to attach: CSV, JSONL or (feature `parquet`) Parquet with `uri`, and optionally `size`, `checksum`, `key`, `etag`,
    /// `version`.
    #[serde(with = "paths")]
    pub manifests: Vec<PathBuf>,
    /// Only files whose relative path matches one of these globs; empty: all. `*` also matches slashes.
    pub include: Vec<String>,
    /// Not files whose relative path matches one of these globs.
    pub exclude: Vec<String>,
    /// Leave out what the `.gitignore` and `.ignore` files below the given folders say.
    pub gitignore: bool,
    /// Files of patterns in `.gitignore` syntax, relative to the given folders, of what to leave out.
    #[serde(with = "paths")]
    pub exclude_from: Vec<PathBuf>,
    /// What records' keys are made of; `None`: the relative path. See [`crate::KeyTemplate`].
    pub key: Option<String>,
    /// Only say what would be done.
    pub dry_run: bool,
    /// Values of at most this many bytes travel inside their record; at most the topic's
    /// [`inline_max`](refstream_types::TopicConfig::inline_max). 0: none does.
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
    /// Remember each file in a job, so that the backfill can be ended at any moment and go on where it was.
    #[cfg(feature = "jobs")]
    #[serde(skip)]
    pub job: Option<JobOptions>,
    /// Only the files of the job that failed before; nothing is walked.
    #[serde(skip)]
    pub retry_failed: bool,
}

/// Paths as the system's own strings, since not all of them are UTF-8.
mod paths {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::{ffi::OsString, path::PathBuf};

    pub(super) fn serialize<S: Serializer>(paths: &[PathBuf], serializer: S) -> Result<S::Ok, S::Error> {
        paths.iter().map(|path| path.as_os_str()).collect::<Vec<_>>().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<PathBuf>, D::Error> {
        Ok(Vec::<OsString>::deserialize(deserializer)?.into_iter().map(PathBuf::from).collect())
    }
}

/// A file that was not backfilled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileFailure {
    /// Its path relative to the folder that was given.
    pub path: String,
    /// Why, and what to do.
    pub error: String,
}

/// How a payload is stored, in a dry run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// In its record.
    Inline,
    /// In a pack with others.
    Pack,
    /// As an object.
    Object,
    /// As an object, uploaded in parts.
    Parts,
    /// Where it is.
    Attached,
}

/// What happens during a backfill, as it happens.
#[derive(Clone, Debug)]
#[non_exhaustive]
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
    /// A file's record is durable.
    Done {
        /// Its path relative to the walked folder.
        name: String,
        /// Its size.
        bytes: u64,
    },
    /// In a dry run: what would be done with a file.
    Would {
        /// Its path relative to the walked folder.
        name: String,
        /// The record's key.
        key: String,
        /// Its size.
        bytes: u64,
        /// How it would be stored.
        placement: Placement,
    },
    /// A file failed; the others go on.
    Failed(FileFailure),
    /// A file whose record is durable has changed since; it is left alone.
    Changed {
        /// Its path relative to the walked folder.
        name: String,
    },
    /// How far the backfill is, twice a second.
    Progress(BackfillProgress),
}

/// The end of a backfill.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct BackfillSummary {
    /// The job, where there is one.
    pub job: Option<String>,
    /// Files found, those that an earlier run has done included.
    pub files_found: u64,
    /// Files whose record is durable (in a dry run: would be made).
    pub files_done: u64,
    /// Files that an earlier run of the job has done.
    pub files_already: u64,
    /// Files that have changed since their record was made, and were left alone.
    pub files_changed: u64,
    /// Files that failed.
    pub files_failed: u64,
    /// Symbolic links, sockets, pipes and devices, which are passed over.
    pub files_skipped: u64,
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
