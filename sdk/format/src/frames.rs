//! Compressed payloads: independent zstd frames of at most 1 MiB of content each, and a seek table in the form of zstd's
//! seekable format (a skippable frame with magic `0x184D2A5E`, footer magic `0x8F92EAB1`; zstd's
//! `contrib/seekable_format/zstd_seekable_compression_format.md`). Any zstd tool decompresses the whole.

use crate::DecodeError;
use bytes::Bytes;
use refstream_types::ByteRange;

/// Content bytes per frame.
pub const FRAME_BYTES: usize = 1 << 20;

/// Compresses one frame of at most [`FRAME_BYTES`] of content.
///
/// # Panics
/// When `content` is longer.
pub fn compress_frame(content: &[u8], level: i32) -> Vec<u8> {
    let _ = (content, level);
    todo!()
}

/// Where the frames of a compressed payload are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeekTable {
    /// Stored and content length of each frame, in order.
    pub frames: Vec<(u32, u32)>,
}

/// The part of a payload's stored bytes that a range of its content needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameSpan {
    /// Stored bytes of the whole frames that cover the range, relative to the blob's start.
    pub stored: ByteRange,
    /// Content bytes to skip at the start of what they decompress to.
    pub skip: u64,
}

impl SeekTable {
    /// The longest tail of a blob that must be read to see the table of a payload of `content_size` bytes.
    pub fn max_encoded_len(content_size: u64) -> u64 {
        let _ = content_size;
        todo!()
    }
    /// The skippable frame to append after the last frame. A payload of one frame needs none.
    pub fn encode(&self) -> Vec<u8> {
        todo!()
    }
    /// Reads the table from the last bytes of a blob.
    ///
    /// # Errors
    /// When the tail holds no intact table.
    pub fn decode_tail(tail: &[u8]) -> Result<Self, DecodeError> {
        let _ = tail;
        todo!()
    }
    /// Which frames hold content bytes `range`; `None` when it reaches past the end.
    pub fn span(&self, range: ByteRange) -> Option<FrameSpan> {
        let _ = range;
        todo!()
    }
}

/// Decompresses whole frames (a skippable frame at the end is passed over) to exactly `content_size` bytes.
///
/// # Errors
/// When the bytes are no zstd frames or decompress to another size; no more than `content_size` bytes are allocated.
pub fn decompress(stored: &[u8], content_size: usize) -> Result<Bytes, DecodeError> {
    let _ = (stored, content_size);
    todo!()
}
