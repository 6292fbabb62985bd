//! CRC32C of bodies.

use bytes::Bytes;
use crc_fast::{CrcAlgorithm, Digest};
use refstream_types::Crc32c;

/// The CRC32C (Castagnoli, RFC 3720) of `pieces` one after the other.
pub fn crc32c(pieces: &[Bytes]) -> Crc32c {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    for piece in pieces {
        digest.update(piece);
    }
    // The algorithm has 32 bits; the crate speaks of all its widths in u64.
    Crc32c(digest.finalize() as u32)
}
