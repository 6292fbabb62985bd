//! Packs: one stored object that holds many small blobs of one topic, with a footer that lists them, so that a pack explains
//! itself without any record.

use crate::DecodeError;
use refstream_types::{ContentEncoding, ContentHash, Crc32c};

/// The most blobs of one pack.
pub const MAX_PACK_BLOBS: usize = 65_536;
/// Bytes at the end of a pack from which the footer's length is read.
pub const TRAILER_BYTES: usize = 16;

/// One blob of a pack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackEntry {
    /// Where its stored bytes start.
    pub offset: u64,
    /// Stored bytes.
    pub size: u64,
    /// CRC32C of the stored bytes.
    pub checksum: Crc32c,
    /// BLAKE3 of the payload as given.
    pub content_hash: ContentHash,
    /// Bytes of the payload as given.
    pub content_size: u64,
    /// How the stored bytes encode it.
    pub encoding: ContentEncoding,
    /// The file's original name, when there was one.
    pub source_name: Option<String>,
}

/// The footer of a pack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PackFooter {
    /// The blobs, ascending by offset.
    pub entries: Vec<PackEntry>,
}

impl PackFooter {
    /// The bytes to append after the last blob, trailer included.
    pub fn encode(&self) -> Vec<u8> {
        todo!()
    }
    /// From a pack's last [`TRAILER_BYTES`]: how many bytes the footer has, trailer included.
    ///
    /// # Errors
    /// When they are no pack's trailer.
    pub fn encoded_len(trailer: &[u8]) -> Result<u64, DecodeError> {
        let _ = trailer;
        todo!()
    }
    /// Reads the footer from exactly its own bytes, at the end of an object of `object_bytes`.
    ///
    /// # Errors
    /// When it is damaged or lists ranges outside the object or overlapping ones.
    pub fn decode(bytes: &[u8], object_bytes: u64) -> Result<Self, DecodeError> {
        let _ = (bytes, object_bytes);
        todo!()
    }
}
