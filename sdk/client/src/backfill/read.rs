//! Reading a chunk of small files in one go.

use super::{FileFailure, content_type, walk::Found};
use crate::{
    UploadError,
    uploader::{OpenFile, is_compressed_type, prepare_small},
};
use bytes::Bytes;
use refstream_format::pack::PackEntry;
use refstream_types::Timestamp;
use std::ops::Range;

/// A small file that was read.
#[derive(Debug)]
pub(super) struct SmallFile {
    pub(super) name: String,
    pub(super) size: u64,
    pub(super) modified: Option<Timestamp>,
    pub(super) content_type: Option<&'static str>,
    pub(super) value: SmallValue,
}

/// What becomes of its bytes.
#[derive(Debug)]
pub(super) enum SmallValue {
    /// They travel in the record.
    Inline(Bytes),
    /// They go into a pack: where they stand in [`Read::stored`].
    Packed(Range<usize>, PackEntry),
}

/// A chunk that was read.
#[derive(Debug, Default)]
pub(super) struct Read {
    /// The stored bytes of all packed files.
    pub(super) stored: Vec<u8>,
    pub(super) small: Vec<SmallFile>,
    /// Files that are not small (any more).
    pub(super) grown: Vec<Found>,
    pub(super) failures: Vec<FileFailure>,
}

/// Reads, hashes and compresses. Files of at least `below` bytes that do not fit in their record either are left for others.
pub(super) fn read(files: Vec<Found>, compression: Option<i32>, below: u64, inline_max: u64) -> Read {
    let mut all = Read::default();
    let mut content = Vec::new();
    all.stored.reserve(files.iter().map(|found| found.size as usize).sum());
    for found in files {
        let outcome = match read_one(&found, below, inline_max, &mut content) {
            Err(UploadError::Changed(_)) => read_one(&found, below, inline_max, &mut content),
            other => other,
        };
        let modified = match outcome {
            Ok(Some(modified)) => modified,
            Ok(None) => {
                all.grown.push(found);
                continue;
            }
            Err(error) => {
                all.failures.push(FileFailure { path: found.name, error: error.to_string() });
                continue;
            }
        };
        let size = content.len() as u64;
        let content_type = content_type::of(&found.name);
        let value = if inline_max > 0 && size <= inline_max {
            SmallValue::Inline(Bytes::copy_from_slice(&content))
        } else {
            let start = all.stored.len();
            let compression = compression.filter(|_| !is_compressed_type(content_type));
            let entry = prepare_small(&content, compression, Some(found.name.clone()), &mut all.stored);
            SmallValue::Packed(start..all.stored.len(), entry)
        };
        all.small.push(SmallFile { name: found.name, size, modified, content_type, value });
    }
    all
}

/// Reads one file into `content`; `None` when it is not small. Its modification time is that of what was read.
fn read_one(
    found: &Found,
    below: u64,
    inline_max: u64,
    content: &mut Vec<u8>,
) -> Result<Option<Option<Timestamp>>, UploadError> {
    let file = OpenFile::open(&found.path)?;
    if file.size() >= below && (inline_max == 0 || file.size() > inline_max) {
        return Ok(None);
    }
    content.clear();
    let modified = file.modified().map(Timestamp::from);
    file.read_into(content)?;
    Ok(Some(modified))
}
