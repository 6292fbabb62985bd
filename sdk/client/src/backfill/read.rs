//! Reading a chunk of small files in one go.

use super::{content_type, progress::Phases, walk::Found};
use crate::{
    UploadError,
    uploader::{FileTag, OpenFile, is_compressed_type, prepare_small},
};
use bytes::Bytes;
use refstream_format::pack::PackEntry;
use refstream_types::Timestamp;
use std::{ops::Range, sync::Arc};

/// A small file that was read.
#[derive(Debug)]
pub(super) struct SmallFile {
    /// With the size and time of what was read.
    pub(super) found: Found,
    pub(super) value: SmallValue,
}

/// What becomes of its bytes.
#[derive(Debug)]
pub(super) enum SmallValue {
    /// They travel in the record.
    Inline(Bytes),
    /// They go into a pack: where they stand in [`Read::stored`].
    Packed(Range<usize>, PackEntry, Arc<FileTag>),
}

/// A chunk that was read.
#[derive(Debug, Default)]
pub(super) struct Read {
    /// The stored bytes of all packed files.
    pub(super) stored: Vec<u8>,
    pub(super) small: Vec<SmallFile>,
    /// Files that are not small (any more).
    pub(super) grown: Vec<Found>,
    pub(super) failures: Vec<(Found, UploadError)>,
}

/// How to read.
#[derive(Clone, Copy, Debug)]
pub(super) struct How {
    pub(super) compression: Option<i32>,
    /// Files of at least this many bytes that do not fit in their record either are left for others.
    pub(super) below: u64,
    pub(super) inline_max: u64,
}

/// The file a blob comes from.
pub(super) fn tag(found: &Found, modified: Option<Timestamp>) -> Arc<FileTag> {
    let content_type = content_type::of(&found.name).map(str::to_owned);
    Arc::new(FileTag { row: Bytes::copy_from_slice(found.row()), modified, content_type })
}

/// Reads, hashes and compresses.
pub(super) fn read(files: Vec<Found>, how: How, phases: &Phases) -> Read {
    let mut all = Read::default();
    let mut content = Vec::new();
    all.stored.reserve(files.iter().map(|found| found.size as usize).sum());
    if let Some(first) = files.first() {
        phases.reads(&first.name);
    }
    for mut found in files {
        let outcome = match read_one(&found, how, &mut content) {
            Err(UploadError::Changed(_)) => read_one(&found, how, &mut content),
            other => other,
        };
        match outcome {
            Ok(Some(modified)) => found.modified = modified,
            Ok(None) => {
                all.grown.push(found);
                continue;
            }
            Err(error) => {
                all.failures.push((found, error));
                continue;
            }
        }
        found.size = content.len() as u64;
        let value = if how.inline_max > 0 && found.size <= how.inline_max {
            SmallValue::Inline(Bytes::copy_from_slice(&content))
        } else {
            let start = all.stored.len();
            let tag = tag(&found, found.modified);
            let compression = how.compression.filter(|_| !is_compressed_type(tag.content_type.as_deref()));
            let entry = prepare_small(&content, compression, Some(found.name.clone()), &mut all.stored);
            SmallValue::Packed(start..all.stored.len(), entry, tag)
        };
        all.small.push(SmallFile { found, value });
    }
    all
}

/// Reads one file into `content`; `None` when it is not small. Its modification time is that of what was read.
fn read_one(found: &Found, how: How, content: &mut Vec<u8>) -> Result<Option<Option<Timestamp>>, UploadError> {
    let file = OpenFile::open(&found.path)?;
    if file.size() >= how.below && (how.inline_max == 0 || file.size() > how.inline_max) {
        return Ok(None);
    }
    content.clear();
    let modified = file.modified().map(Timestamp::from);
    file.read_into(content)?;
    Ok(Some(modified))
}
