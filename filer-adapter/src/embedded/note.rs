//! What is kept of an object beside its bytes: an extended attribute of its file.
//!
//! Layout: version (1 byte, 1), CRC32C (4, big-endian), nonce (8), length of the content type (2), the content type, and the
//! user's metadata as JSON where there is any. Files put into the folder by others have none; their ETag comes from inode,
//! size and time of change. On a file system without extended attributes that is so for all.

use refstream_types::Crc32c;
use rustix::fs::{XattrFlags, fgetxattr, fsetxattr};
use std::{collections::BTreeMap, fs::File, io, os::unix::fs::MetadataExt, time::SystemTime};

const NAME: &str = "user.refstream";
const VERSION: u8 = 1;
const FIXED_BYTES: usize = 15;
/// Larger attributes are not ours; ext4 stores at most one block.
const MAX_BYTES: usize = 4_096;
/// The longest content type that is kept.
pub(super) const MAX_CONTENT_TYPE_BYTES: usize = 255;
/// The most bytes of user metadata (names and values) that are kept; S3's limit.
pub(super) const MAX_METADATA_BYTES: usize = 2_048;

/// The note of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Note {
    pub(super) checksum: Crc32c,
    /// Makes the ETags of two writes of a key differ.
    pub(super) nonce: u64,
    pub(super) content_type: Option<String>,
    pub(super) metadata: BTreeMap<String, String>,
}

impl Note {
    fn encode(&self) -> Vec<u8> {
        let content_type = self.content_type.as_deref().unwrap_or_default();
        let mut bytes = Vec::with_capacity(FIXED_BYTES + content_type.len());
        bytes.push(VERSION);
        bytes.extend_from_slice(&self.checksum.0.to_be_bytes());
        bytes.extend_from_slice(&self.nonce.to_be_bytes());
        bytes.extend_from_slice(&(content_type.len() as u16).to_be_bytes());
        bytes.extend_from_slice(content_type.as_bytes());
        if !self.metadata.is_empty()
            && let Ok(json) = serde_json::to_vec(&self.metadata)
        {
            bytes.extend_from_slice(&json);
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (fixed, rest) = bytes.split_at_checked(FIXED_BYTES)?;
        if fixed[0] != VERSION {
            return None;
        }
        let length = usize::from(u16::from_be_bytes(fixed[13..15].try_into().ok()?));
        let (content_type, metadata) = rest.split_at_checked(length)?;
        let content_type = std::str::from_utf8(content_type).ok()?;
        Some(Self {
            checksum: Crc32c(u32::from_be_bytes(fixed[1..5].try_into().ok()?)),
            nonce: u64::from_be_bytes(fixed[5..13].try_into().ok()?),
            // A damaged one cannot be a header.
            content_type: Some(content_type).filter(|text| is_header(text) && !text.is_empty()).map(str::to_owned),
            metadata: if metadata.is_empty() { BTreeMap::new() } else { serde_json::from_slice(metadata).ok()? },
        })
    }

    /// The ETag: opaque, and never of the form of an MD5.
    pub(super) fn etag(checksum: Crc32c, nonce: u64) -> String {
        format!("{:08x}-{nonce:016x}", checksum.0)
    }

    pub(super) fn write(&self, file: &File) -> io::Result<()> {
        Ok(fsetxattr(file, NAME, &self.encode(), XattrFlags::empty())?)
    }
}

/// Whether a text can be the value of an HTTP header.
fn is_header(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, 0x20..0x7f))
}

/// Whether files of this file system can carry notes.
pub(super) fn supported(file: &File) -> io::Result<bool> {
    match fsetxattr(file, NAME, b"", XattrFlags::empty()) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::NOTSUP) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// An object's properties.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Properties {
    pub(super) size: u64,
    pub(super) etag: String,
    pub(super) checksum: Option<Crc32c>,
    pub(super) content_type: Option<String>,
    pub(super) metadata: BTreeMap<String, String>,
    pub(super) modified: SystemTime,
}

impl Properties {
    pub(super) fn of(file: &File, stat: &std::fs::Metadata) -> io::Result<Self> {
        let mut buffer = [0_u8; MAX_BYTES];
        let note = match fgetxattr(file, NAME, &mut buffer) {
            Ok(length) => Note::decode(&buffer[..length]),
            Err(rustix::io::Errno::NODATA | rustix::io::Errno::NOTSUP | rustix::io::Errno::RANGE) => None,
            Err(error) => return Err(error.into()),
        };
        let size = stat.len();
        let modified = stat.modified()?;
        Ok(match note {
            Some(note) => Self {
                size,
                etag: Note::etag(note.checksum, note.nonce),
                checksum: Some(note.checksum),
                content_type: note.content_type,
                metadata: note.metadata,
                modified,
            },
            None => Self {
                size,
                etag: format!("{:x}-{size:x}-{:x}-{:x}", stat.ino(), stat.mtime(), stat.mtime_nsec()),
                checksum: None,
                content_type: None,
                metadata: BTreeMap::new(),
                modified,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_round_trip_and_damage_is_no_panic() {
        for (content_type, metadata) in [
            (None, BTreeMap::new()),
            (Some("image/png".to_owned()), BTreeMap::new()),
            (Some("x/y".to_owned()), BTreeMap::from([("k".to_owned(), "v".to_owned())])),
        ] {
            let note = Note { checksum: Crc32c(7), nonce: u64::MAX, content_type, metadata };
            let bytes = note.encode();
            assert_eq!(Note::decode(&bytes), Some(note));
            for end in 0..bytes.len() {
                let _ = Note::decode(&bytes[..end]);
            }
        }
        assert_eq!(Note::decode(&[9; 40]), None);
    }
}
