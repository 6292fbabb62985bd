//! Checksums of the blocks of a large blob, so that ranged reads are verified: the sidecar object `<key>.blocks`.

use crate::DecodeError;
use refstream_types::Crc32c;

/// Stored bytes per checksum. Blobs of at most this size have no sidecar: their reference's checksum serves.
pub const BLOCK_BYTES: u64 = 1 << 20;

/// CRC32C of each [`BLOCK_BYTES`] of a blob's stored bytes; the last block may be shorter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// Stored bytes of the blob.
    pub size: u64,
    /// One checksum a block.
    pub checksums: Vec<Crc32c>,
}

impl Blocks {
    /// The sidecar's bytes.
    pub fn encode(&self) -> Vec<u8> {
        todo!()
    }
    /// Reads a sidecar.
    ///
    /// # Errors
    /// When it is damaged, or the number of checksums does not fit the size.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let _ = bytes;
        todo!()
    }
}
