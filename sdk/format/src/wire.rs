//! Reading and writing primitive values, with bounds.

use refstream_types::Crc32c;
use thiserror::Error;

/// Bytes that are not what they should be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{what} at byte {at}: {why}")]
pub struct DecodeError {
    /// The format and field, for example `journal object header`.
    pub what: &'static str,
    /// Where, in bytes from the start of what was decoded.
    pub at: usize,
    /// What is wrong: truncated, checksum mismatch with both values, unknown version with the highest one known, ...
    pub why: String,
}

/// CRC32C (Castagnoli, RFC 3720) of `bytes`.
pub fn crc32c(bytes: &[u8]) -> Crc32c {
    Crc32c(crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32)
}
