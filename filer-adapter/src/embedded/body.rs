//! Bodies on their way to disk, in pieces, one pass: written and checksummed together, while the next pieces arrive.
//!
//! Small bodies stay in memory until they are published, so that a small create is one visit to the disk threads.

use super::{store::Inner, uploads::Claim};
use bytes::Bytes;
use refstream_types::Crc32c;
use std::{
    fs::File,
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};
use tokio::task::JoinHandle;

/// Bytes that are gathered before they go to the disk together.
const WRITE_BYTES: usize = 1024 * 1024;

pub(super) fn crc32c(bytes: &[u8]) -> Crc32c {
    Crc32c(crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32)
}

/// The CRC32C of two runs of bytes together, `length` being that of the second.
pub(super) fn combine(first: Crc32c, second: Crc32c, length: u64) -> Crc32c {
    let combined =
        crc_fast::checksum_combine(crc_fast::CrcAlgorithm::Crc32Iscsi, u64::from(first.0), u64::from(second.0), length);
    Crc32c(combined as u32)
}

/// A file that is removed unless it was renamed.
#[derive(Debug)]
pub(super) struct Temporary {
    path: PathBuf,
    file: Arc<File>,
    kept: bool,
}

impl Temporary {
    pub(super) fn create(path: PathBuf) -> io::Result<Self> {
        let file = File::options().read(true).write(true).create_new(true).mode(super::store::FILE_MODE).open(&path)?;
        Ok(Self { path, file: Arc::new(file), kept: false })
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The file has a name of its own now.
    pub(super) fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.kept {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Where a body is written.
#[derive(Debug)]
pub(super) enum Target {
    /// A file of its own, made with its first piece.
    New { path: PathBuf, made: Option<Temporary> },
    /// A place within a file, ours until the claim is dropped: a write under way keeps it though its caller went away.
    Within { file: Arc<File>, offset: u64, size: u64, _claim: Arc<Claim> },
}

/// A body, part of which is written.
#[derive(Debug)]
pub(super) struct Body {
    target: Target,
    digest: crc_fast::Digest,
    written: u64,
    waiting: Vec<Bytes>,
    waiting_bytes: usize,
}

impl Body {
    pub(super) fn new(target: Target) -> Self {
        Self {
            target,
            digest: crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi),
            written: 0,
            waiting: Vec::new(),
            waiting_bytes: 0,
        }
    }

    pub(super) fn whole(path: PathBuf, pieces: Vec<Bytes>) -> Self {
        let mut body = Self::new(Target::New { path, made: None });
        body.waiting_bytes = pieces.iter().map(Bytes::len).sum();
        body.waiting = pieces;
        body
    }

    /// Bytes so far.
    pub(super) fn size(&self) -> u64 {
        self.written + self.waiting_bytes as u64
    }

    /// Writes what waits. Blocks.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        let (file, start, limit) = match &mut self.target {
            Target::New { path, made } => {
                if made.is_none() {
                    *made = Some(Temporary::create(std::mem::take(path))?);
                }
                let Some(made) = made else { return Err(io::ErrorKind::NotFound.into()) };
                (made.file(), 0, u64::MAX)
            }
            Target::Within { file, offset, size, .. } => (&**file, *offset, *size),
        };
        for piece in self.waiting.drain(..) {
            // What lies behind belongs to the next part.
            if piece.len() as u64 > limit - self.written {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "the body is longer than was announced"));
            }
            self.digest.update(&piece);
            file.write_all_at(&piece, start + self.written)?;
            self.written += piece.len() as u64;
        }
        self.waiting_bytes = 0;
        Ok(())
    }

    /// Writes what is left; the file (a temporary one where the target was new), the size and the checksum. Blocks.
    pub(super) fn finish(mut self) -> io::Result<(Option<Temporary>, u64, Crc32c)> {
        self.flush()?;
        let checksum = Crc32c(self.digest.finalize() as u32);
        let made = match self.target {
            Target::New { made, .. } => made,
            Target::Within { .. } => None,
        };
        Ok((made, self.written, checksum))
    }
}

/// Takes a body piece by piece from a task, writing behind it on the disk threads: at most two times [`WRITE_BYTES`] and a
/// piece are in memory.
#[derive(Debug)]
pub(super) struct Receiver {
    inner: Arc<Inner>,
    body: Option<Body>,
    flight: Option<JoinHandle<io::Result<Body>>>,
    gathered: Vec<Bytes>,
    gathered_bytes: usize,
}

impl Receiver {
    pub(super) fn new(inner: Arc<Inner>, target: Target) -> Self {
        Self { inner, body: Some(Body::new(target)), flight: None, gathered: Vec::new(), gathered_bytes: 0 }
    }

    async fn land(&mut self) -> io::Result<()> {
        if let Some(flight) = self.flight.take() {
            self.body = Some(flight.await.map_err(io::Error::other)??);
        }
        Ok(())
    }

    /// Takes the next piece; waits while the disk is behind.
    pub(super) async fn push(&mut self, piece: Bytes) -> io::Result<()> {
        self.gathered_bytes += piece.len();
        self.gathered.push(piece);
        if self.gathered_bytes < WRITE_BYTES {
            return Ok(());
        }
        self.land().await?;
        let mut body = self.hand_over()?;
        let permit = self.inner.permit().await?;
        self.flight = Some(tokio::task::spawn_blocking(move || {
            let _permit = permit;
            body.flush()?;
            Ok(body)
        }));
        Ok(())
    }

    fn hand_over(&mut self) -> io::Result<Body> {
        let Some(mut body) = self.body.take() else {
            return Err(io::Error::other("an earlier write of this body failed"));
        };
        body.waiting.append(&mut self.gathered);
        body.waiting_bytes += std::mem::take(&mut self.gathered_bytes);
        Ok(body)
    }

    /// The body: written but for its last pieces.
    pub(super) async fn finish(mut self) -> io::Result<Body> {
        self.land().await?;
        self.hand_over()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_combine() {
        assert_eq!(crc32c(b"123456789"), Crc32c(0xe306_9283));
        assert_eq!(combine(crc32c(b"1234"), crc32c(b"56789"), 5), crc32c(b"123456789"));
        assert_eq!(combine(crc32c(b""), crc32c(b"56"), 2), crc32c(b"56"));
    }
}
