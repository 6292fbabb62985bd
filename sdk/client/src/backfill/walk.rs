//! Finding files.

use super::FileFailure;
use crate::InvalidGlob;
use globset::{Glob, GlobSet, GlobSetBuilder};
use ignore::WalkBuilder;
use percent_encoding::{AsciiSet, CONTROLS, percent_encode};
use refstream_types::Timestamp;
use std::{
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};
use tokio::sync::mpsc;

/// Files of a chunk, and their bytes together (more only when a single file has more).
const CHUNK_FILES: usize = 64;
const CHUNK_BYTES: u64 = 1 << 20;
/// What is escaped in names that are not UTF-8, besides the bytes that are not ASCII.
const ESCAPED: &AsciiSet = &CONTROLS.add(b'%');

/// A file that was found.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) path: PathBuf,
    /// The path below the folder that was given.
    pub(super) name: String,
    pub(super) size: u64,
    pub(super) modified: Option<Timestamp>,
}

/// Files that were found together, and what was not.
#[derive(Debug, Default)]
pub(super) struct Walked {
    pub(super) files: Vec<Found>,
    /// All of them are small.
    pub(super) small: bool,
    pub(super) failures: Vec<FileFailure>,
    pub(super) skipped: u64,
    /// Nothing comes after this.
    pub(super) complete: bool,
}

/// Where a walk ends at the latest.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// After this many files.
    pub(super) files: u64,
    /// Before the file that would exceed this many bytes in all.
    pub(super) bytes: u64,
}

/// Which files are wanted.
#[derive(Debug)]
pub(super) struct Patterns {
    include: Option<GlobSet>,
    exclude: GlobSet,
}

impl Patterns {
    pub(super) fn new(include: &[String], exclude: &[String]) -> Result<Self, InvalidGlob> {
        let include = (!include.is_empty()).then(|| set(include)).transpose()?;
        Ok(Self { include, exclude: set(exclude)? })
    }
    fn want(&self, name: &str) -> bool {
        self.include.as_ref().is_none_or(|include| include.is_match(name)) && !self.exclude.is_match(name)
    }
}

fn set(patterns: &[String]) -> Result<GlobSet, InvalidGlob> {
    let mut builder = GlobSetBuilder::new();
    for pattern in patterns {
        let invalid = |error: globset::Error| InvalidGlob { pattern: pattern.clone(), why: error.kind().to_string() };
        builder.add(Glob::new(pattern).map_err(invalid)?);
    }
    builder.build().map_err(|error| InvalidGlob { pattern: patterns.join(" "), why: error.kind().to_string() })
}

/// The name of `path` below `root`: UTF-8 as it is, anything else percent-encoded.
pub(super) fn name(root: &Path, path: &Path) -> String {
    let below = match path.strip_prefix(root) {
        Ok(below) if !below.as_os_str().is_empty() => below,
        _ => path.file_name().map_or(path, Path::new),
    };
    let bytes = below.as_os_str().as_bytes();
    match std::str::from_utf8(bytes) {
        Ok(name) => name.to_owned(),
        Err(_) => percent_encode(bytes, ESCAPED).to_string(),
    }
}

/// Walks until everything is found or nobody listens.
pub(super) fn walk(
    paths: &[PathBuf],
    patterns: &Patterns,
    mut limits: Limits,
    small_below: u64,
    chunks: &mpsc::Sender<Walked>,
) {
    let mut small = Walked { small: true, ..Walked::default() };
    let mut small_bytes = 0;
    'walk: for root in paths {
        for entry in WalkBuilder::new(root).standard_filters(false).follow_links(false).build() {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    let path = path_of(&error).map_or_else(|| root.clone(), Path::to_path_buf);
                    small.failures.push(failure(root, &path, &io_text(&error)));
                    continue;
                }
            };
            let kind = entry.file_type();
            let at_root = entry.depth() == 0;
            if kind.is_some_and(|kind| kind.is_dir()) || at_root && entry.path().is_dir() {
                continue;
            }
            let name = name(root, entry.path());
            if !patterns.want(&name) {
                continue;
            }
            // A link that was given by itself is followed.
            let metadata =
                if at_root { std::fs::metadata(entry.path()) } else { std::fs::symlink_metadata(entry.path()) };
            let metadata = match metadata {
                Ok(metadata) => metadata,
                Err(error) => {
                    small.failures.push(failure(root, entry.path(), &error.to_string()));
                    continue;
                }
            };
            if !metadata.is_file() {
                small.skipped += 1;
                continue;
            }
            let size = metadata.len();
            if limits.files == 0 || size > limits.bytes {
                break 'walk;
            }
            limits.files -= 1;
            limits.bytes -= size;
            let modified = metadata.modified().ok().map(Timestamp::from);
            let found = Found { path: entry.into_path(), name, size, modified };
            if size >= small_below {
                if chunks.blocking_send(Walked { files: vec![found], ..Walked::default() }).is_err() {
                    return;
                }
                continue;
            }
            if !small.files.is_empty() && small_bytes + size > CHUNK_BYTES || small.files.len() >= CHUNK_FILES {
                small_bytes = 0;
                let chunk = std::mem::replace(&mut small, Walked { small: true, ..Walked::default() });
                if chunks.blocking_send(chunk).is_err() {
                    return;
                }
            }
            small_bytes += size;
            small.files.push(found);
        }
    }
    small.complete = true;
    let _ = chunks.blocking_send(small);
}

fn failure(root: &Path, path: &Path, error: &str) -> FileFailure {
    FileFailure { path: name(root, path), error: format!("cannot read {}: {error}", path.display()) }
}

fn path_of(error: &ignore::Error) -> Option<&Path> {
    match error {
        ignore::Error::WithPath { path, .. } => Some(path),
        ignore::Error::WithDepth { err, .. } | ignore::Error::WithLineNumber { err, .. } => path_of(err),
        ignore::Error::Loop { child, .. } => Some(child),
        _ => None,
    }
}

fn io_text(error: &ignore::Error) -> String {
    error.io_error().map_or_else(|| error.to_string(), ToString::to_string)
}
