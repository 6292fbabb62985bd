//! Where files come from: folders, lists, archives, and objects in a store.

use super::{
    BackfillOptions, FileFailure, absolute, content_type,
    in_place::Stores,
    ledger::{Ledger, Payload},
    tar,
    walk::{self, Chunks, Ended, Found},
};
use crate::{
    BackfillError, Client, SourceUnreadable, UploadError, Uploader,
    uploader::{OpenFile, Source},
};
use refstream_types::{ContentEncoding, ContentHash, Crc32c, Reference, Timestamp};
use std::{
    fs::File,
    io::{BufRead, BufReader, Read as _},
    ops::ControlFlow,
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

/// The longest path of a list, in bytes.
const MAX_PATH: u64 = 64 << 10;
/// The most bytes of an archive's member: a range of an object is verified as a whole, in memory.
const MAX_MEMBER: u64 = 4 << 30;
/// Bytes of a member that are hashed at once.
const HASH_BYTES: usize = 256 << 10;
/// What a list on standard input is called.
const STDIN: &str = "-";

/// Everything that is to be found.
#[derive(Debug)]
pub(super) struct Sources {
    paths: Vec<PathBuf>,
    lists: Vec<PathBuf>,
    null_separated: bool,
    archives: Vec<PathBuf>,
    prefixes: Vec<String>,
    manifests: Vec<PathBuf>,
    stores: Option<Arc<Stores>>,
}

/// What archives need: they are uploaded while files are still being found.
pub(super) struct Upload {
    /// `None` in a dry run.
    pub(super) uploader: Option<Uploader>,
    pub(super) ledger: Option<Arc<dyn Ledger>>,
}

impl Sources {
    /// Whether the same file may be found twice.
    pub(super) fn may_repeat(&self) -> bool {
        !self.lists.is_empty() || !self.manifests.is_empty() || self.prefixes.len() > 1
    }

    pub(super) fn new(client: &Client, options: &BackfillOptions) -> Result<Self, BackfillError> {
        let in_place = !options.in_place.is_empty() || !options.manifests.is_empty();
        let stores = in_place.then(|| Arc::new(Stores::of(client, options.upload.verify)));
        for prefix in &options.in_place {
            if let Some(stores) = &stores {
                stores.check(prefix)?;
            }
        }
        for file in options.lists.iter().filter(|list| list.as_os_str() != STDIN).chain(&options.manifests) {
            std::fs::metadata(file)
                .map_err(|error| SourceUnreadable { path: Some(file.clone()), why: error.to_string() })?;
        }
        Ok(Self {
            paths: absolute(&options.paths)?,
            lists: options.lists.clone(),
            null_separated: options.null_separated,
            archives: absolute(&options.archives)?,
            prefixes: options.in_place.clone(),
            manifests: options.manifests.clone(),
            stores,
        })
    }

    /// Finds everything, or until nobody listens. Blocks.
    pub(super) fn find(&self, upload: &Upload, chunks: &mut Chunks<'_>) -> ControlFlow<Ended> {
        walk::walk(&self.paths, chunks)?;
        for list in &self.lists {
            self.find_listed(list, chunks)?;
        }
        for archive in &self.archives {
            find_members(archive, upload, chunks)?;
        }
        if let Some(stores) = &self.stores {
            for prefix in &self.prefixes {
                stores.find_prefix(prefix, chunks)?;
            }
            for manifest in &self.manifests {
                stores.find_listed(manifest, chunks)?;
            }
        }
        ControlFlow::Continue(())
    }

    /// The files of a list, one path a line (or between zero bytes).
    fn find_listed(&self, list: &Path, chunks: &mut Chunks<'_>) -> ControlFlow<Ended> {
        let failed = |error: std::io::Error| {
            let error = SourceUnreadable { path: Some(list.to_owned()), why: error.to_string() };
            FileFailure { path: list.display().to_string(), error: error.to_string() }
        };
        let mut reader: Box<dyn BufRead> = match list.as_os_str() == STDIN {
            true => Box::new(BufReader::new(std::io::stdin())),
            false => match File::open(list) {
                Ok(file) => Box::new(BufReader::new(file)),
                Err(error) => return chunks.failed(failed(error)),
            },
        };
        let end = if self.null_separated { 0 } else { b'\n' };
        let mut number = 0_u64;
        loop {
            let mut line = Vec::new();
            number += 1;
            match (&mut reader).take(MAX_PATH + 1).read_until(end, &mut line) {
                Ok(0) => return ControlFlow::Continue(()),
                Ok(_) => {}
                Err(error) => return chunks.failed(failed(error)),
            }
            if line.last() == Some(&end) {
                line.pop();
            } else if line.len() as u64 > MAX_PATH {
                // What the rest of it would name is nothing that was listed.
                if let Err(error) = skip_until(&mut reader, end) {
                    return chunks.failed(failed(error));
                }
                let hint = if self.null_separated {
                    "is the list one path a line, without --null?"
                } else {
                    "did find -print0 make the list? then add --null"
                };
                let error = format!("path {number} of the list is longer than {MAX_PATH} bytes: it is no path; {hint}");
                chunks.failed(FileFailure { path: list.display().to_string(), error })?;
                continue;
            }
            if !self.null_separated && line.last() == Some(&b'\r') {
                line.pop();
            }
            if line.is_empty() {
                continue;
            }
            let given = PathBuf::from(std::ffi::OsString::from_vec(line));
            let path = std::path::absolute(&given).unwrap_or_else(|_| given.clone()).components().collect::<PathBuf>();
            // The path as it was given, without what does not name anything.
            let below: PathBuf =
                given.components().filter(|part| matches!(part, std::path::Component::Normal(_))).collect();
            let name = walk::encoded(below.as_os_str().as_bytes());
            if chunks.want(&name) {
                walk::look(path, name, true, chunks)?;
            }
        }
    }
}

/// Reads up to the next `end`, or to the end of all.
fn skip_until(reader: &mut dyn BufRead, end: u8) -> std::io::Result<()> {
    loop {
        let buffer = reader.fill_buf()?;
        let (bytes, found) = match buffer.iter().position(|byte| *byte == end) {
            Some(at) => (at + 1, true),
            None => (buffer.len(), buffer.is_empty()),
        };
        reader.consume(bytes);
        if found {
            return Ok(());
        }
    }
}

/// Uploads an archive whole; its members are ranges of that object.
fn find_members(archive: &Path, upload: &Upload, chunks: &mut Chunks<'_>) -> ControlFlow<Ended> {
    match try_members(archive, upload, chunks) {
        Ok(flow) => flow,
        Err(error) => chunks.failed(FileFailure { path: walk::name(archive, archive), error: error.to_string() }),
    }
}

fn try_members(archive: &Path, upload: &Upload, chunks: &mut Chunks<'_>) -> Result<ControlFlow<Ended>, UploadError> {
    let unreadable =
        |error: std::io::Error| SourceUnreadable { path: Some(archive.to_owned()), why: error.to_string() };
    // What is no archive is not uploaded.
    let mut reader = tar::Reader::new(BufReader::new(File::open(archive).map_err(unreadable)?));
    reader.entry().map_err(unreadable)?;
    let file = OpenFile::open(archive)?;
    let whole = whole(archive, &file, upload)?;
    let mut reader = tar::Reader::new(BufReader::with_capacity(HASH_BYTES, File::open(archive).map_err(unreadable)?));
    let mut buffer = vec![0; HASH_BYTES];
    loop {
        let member = match reader.entry().map_err(unreadable)? {
            None => break,
            Some(tar::Entry::Other) => {
                chunks.skipped();
                continue;
            }
            Some(tar::Entry::File(member)) => member,
        };
        let name = walk::encoded(&member.path);
        if !chunks.want(&name) {
            continue;
        }
        if member.size > MAX_MEMBER {
            let error = format!(
                "it has {} bytes, and members of archives that are uploaded whole may have {MAX_MEMBER} (4 GiB), since a range is verified as a whole; \
                 unpack this member and backfill it as a file: tar -xf {} -C FOLDER -- {}",
                member.size,
                archive.display(),
                name
            );
            if let flow @ ControlFlow::Break(_) = chunks.failed(FileFailure { path: name, error }) {
                return Ok(flow);
            }
            continue;
        }
        let mut identity = archive.as_os_str().as_bytes().to_vec();
        identity.extend_from_slice(format!("\0{}\0", member.offset).as_bytes());
        identity.extend_from_slice(&member.path);
        let identity = PathBuf::from(std::ffi::OsString::from_vec(identity));
        let modified = member.modified.map(Timestamp::from_micros);
        let mut found = Found::new(identity, name, member.size, modified);
        if let Some(whole) = &whole {
            let (content_hash, checksum) = sums(&mut reader, member.size, &mut buffer).map_err(unreadable)?;
            found.placed = Some(Box::new(Reference {
                offset: Some(whole.offset.unwrap_or(0) + member.offset),
                size: member.size,
                checksum: Some(checksum),
                content_hash: Some(content_hash),
                content_size: member.size,
                content_type: content_type::of(&found.name).map(str::to_owned),
                ..whole.clone()
            }));
        }
        // A member of an archive that changes meanwhile is not what was uploaded.
        file.check_same()?;
        if let flow @ ControlFlow::Break(_) = chunks.found(found) {
            return Ok(flow);
        }
    }
    Ok(ControlFlow::Continue(()))
}

fn sums(
    reader: &mut tar::Reader<BufReader<File>>,
    size: u64,
    buffer: &mut [u8],
) -> std::io::Result<(ContentHash, Crc32c)> {
    let mut hasher = blake3::Hasher::new();
    let mut sum = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    let mut left = size;
    while left > 0 {
        let piece = &mut buffer[..(left as usize).min(HASH_BYTES)];
        reader.read(piece)?;
        hasher.update(piece);
        sum.update(piece);
        left -= piece.len() as u64;
    }
    Ok((ContentHash(*hasher.finalize().as_bytes()), Crc32c(sum.finalize() as u32)))
}

/// The archive's object: as an earlier process has noted it, or uploaded now. `None` in a dry run.
fn whole(archive: &Path, file: &OpenFile, upload: &Upload) -> Result<Option<Reference>, UploadError> {
    use super::ledger::Known;
    let Some(uploader) = &upload.uploader else { return Ok(None) };
    let handle = tokio::runtime::Handle::current();
    let modified = file.modified().map(Timestamp::from);
    let found = Found::new(archive.to_owned(), walk::name(archive, archive), file.size(), modified);
    let mut begun = None;
    let mut notes = None;
    if let Some(ledger) = &upload.ledger {
        match ledger.known(std::slice::from_ref(&found))?.pop() {
            Some(Known::Stored { reference, object_size }) => {
                let there = handle.block_on(uploader.has(&reference.key, object_size))?;
                if there {
                    return Ok(Some(*reference));
                }
            }
            Some(Known::Begun(earlier)) => begun = Some(earlier),
            _ => {}
        }
        let tag = super::read::tag(&found, modified);
        notes = Some(Arc::clone(ledger).upload_notes(&found, tag, begun));
    }
    // Ranges of it must be what the members are, so it is stored as it is.
    let kind = Some("application/x-tar".to_owned());
    let uploading = uploader.upload_as_given(Source::File(archive.to_owned()), kind, Some(found.name.clone()), notes);
    let reference = handle.block_on(uploading)?.into_reference();
    debug_assert_eq!(reference.encoding, ContentEncoding::Identity);
    if let Some(ledger) = &upload.ledger
        && reference.offset.is_none()
    {
        let payload = Payload::Stored { reference: &reference, object_size: reference.size };
        ledger.payload(found.row(), found.size, found.modified, &payload);
    }
    Ok(Some(reference))
}
