//! Finding files.

use super::{FileFailure, KeyTemplate};
use crate::{InvalidGlob, SourceUnreadable};
use globset::{Glob, GlobSet, GlobSetBuilder};
use ignore::{WalkBuilder, gitignore::Gitignore};
use percent_encoding::{AsciiSet, CONTROLS, percent_encode};
use refstream_types::{Reference, Timestamp};
use std::{
    ops::ControlFlow,
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
    /// Absolute.
    pub(super) path: PathBuf,
    /// The path below the folder that was given.
    pub(super) name: String,
    /// The record's key, where it is not the name.
    pub(super) key: Option<String>,
    pub(super) size: u64,
    pub(super) modified: Option<Timestamp>,
    /// Where its payload is already.
    pub(super) placed: Option<Box<Reference>>,
    #[cfg(test)]
    #[allow(dead_code)]
    pub(super) alive: super::tests::Alive,
}

impl Found {
    pub(super) fn new(path: PathBuf, name: String, size: u64, modified: Option<Timestamp>) -> Self {
        Self {
            path,
            name,
            key: None,
            size,
            modified,
            placed: None,
            #[cfg(test)]
            alive: super::tests::Alive::new(),
        }
    }
    /// What a job knows it by.
    pub(super) fn row(&self) -> &[u8] {
        self.path.as_os_str().as_bytes()
    }
    /// The record's key.
    pub(super) fn key(&self) -> &str {
        self.key.as_deref().unwrap_or(&self.name)
    }
}

/// Files that were found together, and what was not.
#[derive(Debug, Default)]
pub(super) struct Walked {
    pub(super) files: Vec<Found>,
    /// All of them are small.
    pub(super) small: bool,
    /// What cannot be read; with the file, where it is one that can be tried again by itself.
    pub(super) failures: Vec<(Option<Found>, FileFailure)>,
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
    exclude_from: Vec<Gitignore>,
    gitignore: bool,
}

impl Patterns {
    pub(super) fn new(include: &[String], exclude: &[String]) -> Result<Self, InvalidGlob> {
        let include = (!include.is_empty()).then(|| set(include)).transpose()?;
        Ok(Self { include, exclude: set(exclude)?, exclude_from: Vec::new(), gitignore: false })
    }
    /// Everything is wanted.
    pub(super) fn none() -> Self {
        Self { include: None, exclude: GlobSet::empty(), exclude_from: Vec::new(), gitignore: false }
    }
    /// Also leaves out what these files of `.gitignore` syntax say, and those that are found on the way.
    pub(super) fn ignoring(mut self, files: &[PathBuf], gitignore: bool) -> Result<Self, SourceUnreadable> {
        for file in files {
            let unreadable = |why: String| SourceUnreadable { path: Some(file.clone()), why };
            std::fs::metadata(file).map_err(|error| unreadable(error.to_string()))?;
            let mut builder = ignore::gitignore::GitignoreBuilder::new("");
            if let Some(error) = builder.add(file) {
                return Err(unreadable(error.to_string()));
            }
            self.exclude_from.push(builder.build().map_err(|error| unreadable(error.to_string()))?);
        }
        self.gitignore = gitignore;
        Ok(self)
    }
    fn want(&self, name: &str) -> bool {
        self.include.as_ref().is_none_or(|include| include.is_match(name))
            && !self.exclude.is_match(name)
            && !self.exclude_from.iter().any(|ignored| ignored.matched_path_or_any_parents(name, false).is_ignore())
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
    encoded(below.as_os_str().as_bytes())
}

/// UTF-8 as it is, anything else percent-encoded.
pub(super) fn encoded(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(name) => name.to_owned(),
        Err(_) => percent_encode(bytes, ESCAPED).to_string(),
    }
}

/// Nobody listens any more, or the limit is reached.
pub(super) struct Ended;

/// Hands on what is found, in chunks. Small files go together, others alone.
pub(super) struct Chunks<'a> {
    small: Walked,
    small_bytes: u64,
    small_below: u64,
    patterns: &'a Patterns,
    key: Option<&'a KeyTemplate>,
    limits: Limits,
    sender: &'a mpsc::Sender<Walked>,
}

impl<'a> Chunks<'a> {
    pub(super) fn new(
        patterns: &'a Patterns,
        key: Option<&'a KeyTemplate>,
        limits: Limits,
        small_below: u64,
        sender: &'a mpsc::Sender<Walked>,
    ) -> Self {
        let small = Walked { small: true, ..Walked::default() };
        Self { small, small_bytes: 0, small_below, patterns, key, limits, sender }
    }

    /// Whether a file of this name is wanted.
    pub(super) fn want(&self, name: &str) -> bool {
        self.patterns.want(name)
    }

    /// A wanted file was found.
    pub(super) fn found(&mut self, mut found: Found) -> ControlFlow<Ended> {
        if self.limits.files == 0 || found.size > self.limits.bytes {
            return ControlFlow::Break(Ended);
        }
        self.limits.files -= 1;
        self.limits.bytes -= found.size;
        if found.key.is_none() {
            found.key = self.key.map(|template| template.key(&found.name));
        }
        let to_read = if found.placed.is_some() { 0 } else { found.size };
        if to_read >= self.small_below {
            return self.send(Walked { files: vec![found], ..Walked::default() });
        }
        let full = self.small_bytes + to_read > CHUNK_BYTES || self.small.files.len() >= CHUNK_FILES;
        if full && !self.small.files.is_empty() {
            self.flush()?;
        }
        self.small_bytes += to_read;
        self.small.files.push(found);
        ControlFlow::Continue(())
    }

    /// Something that is no regular file was found.
    pub(super) fn skipped(&mut self) {
        self.small.skipped += 1;
    }

    /// Something cannot be read.
    pub(super) fn failed(&mut self, failure: FileFailure) -> ControlFlow<Ended> {
        self.push_failed(None, failure)
    }

    /// A file cannot be read, which is found out before it is opened.
    fn file_failed(&mut self, path: PathBuf, name: String, error: String) -> ControlFlow<Ended> {
        let failure = FileFailure { path: name.clone(), error };
        self.push_failed(Some(Found::new(path, name, 0, None)), failure)
    }

    fn push_failed(&mut self, file: Option<Found>, failure: FileFailure) -> ControlFlow<Ended> {
        self.small.failures.push((file, failure));
        if self.small.failures.len() >= CHUNK_FILES { self.flush() } else { ControlFlow::Continue(()) }
    }

    fn flush(&mut self) -> ControlFlow<Ended> {
        self.small_bytes = 0;
        let chunk = std::mem::replace(&mut self.small, Walked { small: true, ..Walked::default() });
        self.send(chunk)
    }

    fn send(&self, chunk: Walked) -> ControlFlow<Ended> {
        match self.sender.blocking_send(chunk) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(Ended),
        }
    }

    /// That was all.
    pub(super) fn finish(mut self) {
        self.small.complete = true;
        let _ = self.flush();
    }
}

/// Walks until everything is found or nobody listens.
pub(super) fn walk(paths: &[PathBuf], chunks: &mut Chunks<'_>) -> ControlFlow<Ended> {
    for root in paths {
        let mut builder = WalkBuilder::new(root);
        builder.standard_filters(false).follow_links(false);
        if chunks.patterns.gitignore {
            builder.git_ignore(true).ignore(true).require_git(false);
        }
        for entry in builder.build() {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    let path = path_of(&error).map_or_else(|| root.clone(), Path::to_path_buf);
                    chunks.failed(failure(root, &path, &io_text(&error)))?;
                    continue;
                }
            };
            let kind = entry.file_type();
            let at_root = entry.depth() == 0;
            if kind.is_some_and(|kind| kind.is_dir()) || at_root && entry.path().is_dir() {
                continue;
            }
            let name = name(root, entry.path());
            if chunks.want(&name) {
                look(entry.into_path(), name, at_root, chunks)?;
            }
        }
    }
    ControlFlow::Continue(())
}

/// Takes a path as it is now. A link that was given by itself is followed.
pub(super) fn look(path: PathBuf, name: String, follow: bool, chunks: &mut Chunks<'_>) -> ControlFlow<Ended> {
    let metadata = if follow { std::fs::metadata(&path) } else { std::fs::symlink_metadata(&path) };
    match metadata {
        Ok(metadata) if metadata.is_file() => {
            let modified = metadata.modified().ok().map(Timestamp::from);
            chunks.found(Found::new(path, name, metadata.len(), modified))
        }
        Ok(_) => {
            chunks.skipped();
            ControlFlow::Continue(())
        }
        Err(error) => {
            let error = format!("cannot read {}: {error}", path.display());
            chunks.file_failed(path, name, error)
        }
    }
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
