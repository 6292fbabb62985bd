//! Where payloads come from.

use super::READ_BYTES;
use crate::{SourceChanged, SourceUnreadable, UploadError};
use bytes::Bytes;
use std::{
    fs::{File, Metadata},
    io::Read,
    path::{Path, PathBuf},
    time::SystemTime,
};
use tokio::io::{AsyncRead, AsyncReadExt};

/// MIME types whose content is compressed already.
const COMPRESSED: &[&str] = &[
    "image/jpeg",
    "image/png",
    "image/gif",
    "image/webp",
    "image/avif",
    "image/heic",
    "image/jxl",
    "video/",
    "audio/mpeg",
    "audio/ogg",
    "audio/flac",
    "audio/aac",
    "audio/mp4",
    "audio/opus",
    "audio/webm",
    "application/zip",
    "application/gzip",
    "application/zstd",
    "application/x-bzip2",
    "application/x-xz",
    "application/x-7z-compressed",
    "application/vnd.rar",
    "application/java-archive",
    "application/epub+zip",
    "application/vnd.openxmlformats",
    "application/vnd.oasis.opendocument",
    "application/vnd.debian.binary-package",
    "font/woff",
];

/// Whether content of this type is compressed already.
pub(crate) fn is_compressed_type(content_type: Option<&str>) -> bool {
    content_type.is_some_and(|given| COMPRESSED.iter().any(|prefix| given.starts_with(prefix)))
}

/// What must not change while a file is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    size: u64,
    modified: Option<SystemTime>,
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        Self { size: metadata.len(), modified: metadata.modified().ok() }
    }
}

/// A regular file that is being read.
#[derive(Debug)]
pub(crate) struct OpenFile {
    path: PathBuf,
    file: File,
    stamp: Stamp,
    read: u64,
}

impl OpenFile {
    /// Opens a regular file. Others are refused without being opened, since that could block for ever.
    pub(crate) fn open(path: &Path) -> Result<Self, UploadError> {
        let unreadable = |why: String| SourceUnreadable { path: Some(path.to_owned()), why };
        let metadata = std::fs::metadata(path).map_err(|error| unreadable(error.to_string()))?;
        if !metadata.is_file() {
            let what = if metadata.is_dir() { "a folder" } else { "no regular file" };
            return Err(unreadable(format!("it is {what}")).into());
        }
        let file = File::open(path).map_err(|error| unreadable(error.to_string()))?;
        let metadata = file.metadata().map_err(|error| unreadable(error.to_string()))?;
        Ok(Self { path: path.to_owned(), file, stamp: Stamp::of(&metadata), read: 0 })
    }
    /// Where it was opened.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
    /// Bytes when it was opened.
    pub(crate) fn size(&self) -> u64 {
        self.stamp.size
    }
    /// When it was modified last, as of its opening.
    pub(crate) fn modified(&self) -> Option<SystemTime> {
        self.stamp.modified
    }
    /// Its bytes as a stream, from where reading stands.
    pub(crate) fn into_reader(self) -> tokio::fs::File {
        tokio::fs::File::from_std(self.file)
    }
    fn unreadable(&self, error: &std::io::Error) -> UploadError {
        SourceUnreadable { path: Some(self.path.clone()), why: error.to_string() }.into()
    }

    /// Up to `limit` further bytes; none at the end, where it is checked that the file is still what it was.
    pub(crate) fn read_some(&mut self, limit: usize) -> Result<Bytes, UploadError> {
        let left = usize::try_from(self.stamp.size - self.read).unwrap_or(usize::MAX);
        let mut buffer = vec![0; limit.min(left)];
        let mut filled = 0;
        while filled < buffer.len() {
            match self.file.read(&mut buffer[filled..]) {
                Ok(0) => break,
                Ok(bytes) => filled += bytes,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.unreadable(&error)),
            }
        }
        self.read += filled as u64;
        if filled == 0 || filled < buffer.len() {
            self.check_unchanged()?;
        }
        buffer.truncate(filled);
        Ok(buffer.into())
    }

    /// The whole file, appended to `buffer`.
    pub(crate) fn read_into(mut self, buffer: &mut Vec<u8>) -> Result<(), UploadError> {
        let start = buffer.len();
        buffer.reserve(self.stamp.size as usize + 1);
        // One byte more than there should be shows growth without another read.
        let mut limited = (&mut self.file).take(self.stamp.size + 1);
        let read = limited.read_to_end(buffer);
        self.read = (buffer.len() - start) as u64;
        read.map_err(|error| self.unreadable(&error))?;
        self.check_unchanged()
    }

    /// The whole file, in pieces.
    pub(crate) fn read_whole(mut self) -> Result<Vec<Bytes>, UploadError> {
        let mut pieces = Vec::new();
        loop {
            let piece = self.read_some(READ_BYTES)?;
            if piece.is_empty() {
                return Ok(pieces);
            }
            pieces.push(piece);
        }
    }

    /// Checks that the file at its path is still the one that was opened, as it was.
    pub(crate) fn check_same(&self) -> Result<(), UploadError> {
        let now = std::fs::metadata(&self.path).map_err(|error| self.unreadable(&error))?;
        if Stamp::of(&now) == self.stamp {
            return Ok(());
        }
        let what =
            format!("it had {} bytes, now it has {}, or its modification time moved", self.stamp.size, now.len());
        Err(SourceChanged { path: self.path.clone(), what }.into())
    }

    fn check_unchanged(&self) -> Result<(), UploadError> {
        let metadata = self.file.metadata().map_err(|error| self.unreadable(&error))?;
        let (before, now) = (self.stamp, Stamp::of(&metadata));
        let what = if (before.size, now.size) == (0, 0) && self.read > 0 {
            "the system says that it is empty, but it has bytes, as files of /proc have: store it with refstream put"
                .to_owned()
        } else if now.size != before.size {
            format!("it had {} bytes, now it has {}", before.size, now.size)
        } else if self.read != before.size {
            format!("it has {} bytes, but {} were read", before.size, self.read)
        } else if now.modified != before.modified {
            "its modification time moved".to_owned()
        } else {
            return Ok(());
        };
        Err(SourceChanged { path: self.path.clone(), what }.into())
    }
}

/// The next bytes of a stream, up to `limit`, in pieces; and whether the stream has ended.
pub(super) async fn read_up_to(
    reader: &mut (dyn AsyncRead + Send + Unpin),
    limit: u64,
) -> Result<(Vec<Bytes>, bool), UploadError> {
    let mut pieces = Vec::new();
    let mut left = limit;
    while left > 0 {
        let want = (READ_BYTES as u64).min(left);
        let mut buffer = Vec::new();
        let mut limited = (&mut *reader).take(want);
        limited
            .read_to_end(&mut buffer)
            .await
            .map_err(|error| SourceUnreadable { path: None, why: error.to_string() })?;
        let short = (buffer.len() as u64) < want;
        left -= buffer.len() as u64;
        if !buffer.is_empty() {
            pieces.push(buffer.into());
        }
        if short {
            return Ok((pieces, true));
        }
    }
    Ok((pieces, false))
}
