//! Compressed payloads: independent zstd frames of at most 1 MiB of content each, and a seek table in the form of zstd's
//! seekable format (zstd's `contrib/seekable_format/zstd_seekable_compression_format.md`, version 0.1.0). Any zstd tool
//! decompresses the whole.
//!
//! Every frame but the last holds exactly [`FRAME_BYTES`] of content and says in its header how much it holds. The table is a
//! skippable frame (RFC 8878, section 3.1.2) after the last one:
//!
//! | bytes | field |
//! |---|---|
//! | 4 | skippable magic `0x184D2A5E` |
//! | 4 | bytes that follow: 8 a frame, and 9 |
//! | 4 + 4 a frame | stored length, content length |
//! | 4 | number of frames |
//! | 1 | descriptor: 0, no checksum a frame |
//! | 4 | seekable magic `0x8F92EAB1` |
//!
//! This form leaves no room for a checksum of its own: a blob's stored bytes, the table among them, are covered by the checksum of
//! its reference or by its [`blocks`](crate::blocks).

use crate::{
    DecodeError,
    wire::{Reader, Writer},
};
use bytes::Bytes;
use refstream_types::ByteRange;
use std::cell::RefCell;
use zstd::bulk::{Compressor, Decompressor};

/// Content bytes per frame.
pub const FRAME_BYTES: usize = 1 << 20;

const SKIPPABLE_MAGIC: u32 = 0x184D_2A5E;
const SEEKABLE_MAGIC: u32 = 0x8F92_EAB1;
const SKIPPABLE_HEADER_BYTES: usize = 8;
const ENTRY_BYTES: usize = 8;
const FOOTER_BYTES: usize = 9;
const WHAT_TABLE: &str = "seek table";
const WHAT_FRAMES: &str = "compressed payload";

thread_local! {
    /// Setting one up costs more than compressing a small payload does.
    static COMPRESSOR: RefCell<Option<Compressor<'static>>> = const { RefCell::new(None) };
    static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

/// Compresses one frame of at most [`FRAME_BYTES`] of content.
///
/// # Panics
/// When `content` is longer.
pub fn compress_frame(content: &[u8], level: i32) -> Vec<u8> {
    assert!(content.len() <= FRAME_BYTES, "{} bytes in one frame of at most {FRAME_BYTES}", content.len());
    let compressed = COMPRESSOR.with_borrow_mut(|kept| {
        let compressor = match kept {
            Some(compressor) => compressor,
            none => none.insert(Compressor::new(level)?),
        };
        compressor.set_compression_level(level)?;
        compressor.compress(content)
    });
    compressed.expect("zstd has room for its worst case and clamps the level")
}

/// Where the frames of a compressed payload are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeekTable {
    /// Stored and content length of each frame, in order. Every content length but the last is [`FRAME_BYTES`].
    pub frames: Vec<(u32, u32)>,
}

/// The part of a payload's stored bytes that a range of its content needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameSpan {
    /// Stored bytes of the whole frames that cover the range, relative to the blob's start.
    pub stored: ByteRange,
    /// Content bytes to skip at the start of what they decompress to.
    pub skip: u64,
    /// Content bytes that the frames decompress to.
    pub content: u64,
}

impl SeekTable {
    /// The longest tail of a blob that must be read to see the table of a payload of `content_size` bytes; 0 where there is none.
    pub fn max_encoded_len(content_size: u64) -> u64 {
        let frames = content_size.div_ceil(FRAME_BYTES as u64);
        if frames <= 1 { 0 } else { frames * ENTRY_BYTES as u64 + (SKIPPABLE_HEADER_BYTES + FOOTER_BYTES) as u64 }
    }
    /// The skippable frame to append after the last frame. A payload of one frame needs none.
    pub fn encode(&self) -> Vec<u8> {
        let following = self.frames.len() * ENTRY_BYTES + FOOTER_BYTES;
        let mut writer = Writer(Vec::with_capacity(SKIPPABLE_HEADER_BYTES + following));
        writer.u32(SKIPPABLE_MAGIC);
        writer.u32(following as u32);
        for (stored, content) in &self.frames {
            writer.u32(*stored);
            writer.u32(*content);
        }
        writer.u32(self.frames.len() as u32);
        writer.u8(0);
        writer.u32(SEEKABLE_MAGIC);
        writer.0
    }
    /// Reads the table from the last bytes of a blob.
    ///
    /// # Errors
    /// When the tail holds no intact table.
    pub fn decode_tail(tail: &[u8]) -> Result<Self, DecodeError> {
        let error = |at: usize, why: String| DecodeError { what: WHAT_TABLE, at, why };
        let footer_at = tail
            .len()
            .checked_sub(FOOTER_BYTES)
            .ok_or_else(|| error(0, format!("truncated: {} bytes hold no footer", tail.len())))?;
        let mut footer = Reader::new(Bytes::copy_from_slice(&tail[footer_at..]), WHAT_TABLE);
        let (count, descriptor, magic) = (footer.u32()? as usize, footer.u8()?, footer.u32()?);
        if magic != SEEKABLE_MAGIC {
            return Err(error(footer_at, format!("magic is {magic:08x}, expected {SEEKABLE_MAGIC:08x}")));
        }
        if descriptor != 0 {
            return Err(error(footer_at, format!("the descriptor {descriptor:#04x} is not what this program writes")));
        }
        let start = count
            .checked_mul(ENTRY_BYTES)
            .and_then(|entries| footer_at.checked_sub(entries))
            .and_then(|start| start.checked_sub(SKIPPABLE_HEADER_BYTES))
            .ok_or_else(|| error(footer_at, format!("{count} frames cannot stand in {} bytes", tail.len())))?;
        let mut reader = Reader::new(Bytes::copy_from_slice(&tail[start..footer_at]), WHAT_TABLE);
        let (magic, following) = (reader.u32()?, reader.u32()? as usize);
        if magic != SKIPPABLE_MAGIC || following != count * ENTRY_BYTES + FOOTER_BYTES {
            return Err(reader.error(format!("no skippable frame of {count} entries starts here")));
        }
        let most_stored = zstd::zstd_safe::compress_bound(FRAME_BYTES);
        let mut frames = Vec::with_capacity(count);
        for frame in 1..=count {
            let (stored, content) = (reader.u32()?, reader.u32()?);
            let full = content as usize == FRAME_BYTES;
            if !(full || frame == count && (1..FRAME_BYTES).contains(&(content as usize)))
                || stored == 0
                || stored as usize > most_stored
            {
                return Err(reader.error(format!("frame {frame} of {count} has {stored} bytes for {content}")));
            }
            frames.push((stored, content));
        }
        Ok(Self { frames })
    }
    /// Stored bytes of all frames, without the table.
    pub fn stored_bytes(&self) -> u64 {
        self.frames.iter().map(|(stored, _)| u64::from(*stored)).sum()
    }
    /// Content bytes of all frames: the payload's.
    pub fn content_bytes(&self) -> u64 {
        self.frames.iter().map(|(_, content)| u64::from(*content)).sum()
    }
    /// Which frames hold content bytes `range`; `None` when it reaches past the end.
    pub fn span(&self, range: ByteRange) -> Option<FrameSpan> {
        let end = range.end()?;
        let (mut stored_at, mut content_at) = (0_u64, 0_u64);
        let mut first = None;
        let mut last = (0, 0);
        for (stored, content) in &self.frames {
            let (stored_end, content_end) = (stored_at + u64::from(*stored), content_at + u64::from(*content));
            if content_end > range.offset && content_at < end {
                first.get_or_insert((stored_at, content_at));
                last = (stored_end, content_end);
            }
            (stored_at, content_at) = (stored_end, content_end);
        }
        if end > content_at {
            return None;
        }
        let (offset, content_start) = match first {
            Some(first) if range.length > 0 => first,
            _ => return Some(FrameSpan { stored: ByteRange { offset: 0, length: 0 }, skip: 0, content: 0 }),
        };
        Some(FrameSpan {
            stored: ByteRange { offset, length: last.0 - offset },
            skip: range.offset - content_start,
            content: last.1 - content_start,
        })
    }
}

fn decompress_frame(stored: &[u8], content_size: usize) -> std::io::Result<Vec<u8>> {
    DECOMPRESSOR.with_borrow_mut(|kept| {
        let decompressor = match kept {
            Some(decompressor) => decompressor,
            none => none.insert(Decompressor::new()?),
        };
        decompressor.decompress(stored, content_size)
    })
}

/// Decompresses whole frames (a skippable frame at the end is passed over) to exactly `content_size` bytes.
///
/// # Errors
/// When the bytes are no zstd frames or decompress to another size; no more than `content_size` bytes are allocated, and those
/// only when the frames' headers say together that they hold so many.
pub fn decompress(stored: &[u8], content_size: usize) -> Result<Bytes, DecodeError> {
    let error = |at: usize, why: String| DecodeError { what: WHAT_FRAMES, at, why };
    let announced = announced_bytes(stored)?;
    if announced != content_size as u64 {
        return Err(error(0, format!("the frames hold {announced} bytes, expected {content_size}")));
    }
    let content = decompress_frame(stored, content_size).map_err(|why| error(0, format!("zstd: {why}")))?;
    if content.len() != content_size {
        return Err(error(0, format!("the frames gave {} bytes, expected {content_size}", content.len())));
    }
    Ok(content.into())
}

/// The content bytes that the frames' headers announce. zstd needs at least 4 stored bytes for 128 KiB of content, so this
/// is bounded by what is there.
fn announced_bytes(stored: &[u8]) -> Result<u64, DecodeError> {
    let mut at = 0;
    let mut announced = 0;
    while at < stored.len() {
        let rest = &stored[at..];
        let error = |why: String| DecodeError { what: WHAT_FRAMES, at, why };
        let length = zstd::zstd_safe::find_frame_compressed_size(rest)
            .map_err(|code| error(format!("no whole zstd frame: {}", zstd::zstd_safe::get_error_name(code))))?;
        let skippable = rest.first_chunk().is_some_and(|magic| u32::from_le_bytes(*magic) & !0xf == 0x184D_2A50);
        if !skippable {
            match zstd::zstd_safe::get_frame_content_size(rest) {
                Ok(Some(content)) if content <= FRAME_BYTES as u64 => announced += content,
                other => return Err(error(format!("a frame that holds {other:?} bytes, the limit is {FRAME_BYTES}"))),
            }
        }
        if length == 0 || length > rest.len() {
            return Err(error(format!("a frame of {length} bytes where {} are", rest.len())));
        }
        at += length;
    }
    Ok(announced)
}

#[cfg(test)]
mod tests;
