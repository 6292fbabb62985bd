//! Reading a large blob in blocks, each verified before it is used.

use super::{
    FETCHES,
    fetch::{Object, RangeStream},
};
use crate::FetchError;
use bytes::{Bytes, BytesMut};
use refstream_format::blocks::{BLOCK_BYTES, Blocks};
use refstream_types::ByteRange;

/// Reads an object of its own from a block on.
pub(super) struct BlockReader<'o, 'a> {
    object: &'o Object<'a>,
    blocks: &'o Blocks,
    /// The next block.
    at: usize,
    stream: Option<RangeStream<'o, 'a>>,
    /// Verified bytes that were not taken.
    kept: BytesMut,
}

impl<'o, 'a> BlockReader<'o, 'a> {
    pub(super) fn new(object: &'o Object<'a>, blocks: &'o Blocks) -> Self {
        Self { object, blocks, at: 0, stream: None, kept: BytesMut::new() }
    }

    fn range_of(&self, block: usize) -> ByteRange {
        let offset = block as u64 * BLOCK_BYTES;
        ByteRange { offset, length: BLOCK_BYTES.min(self.blocks.size - offset) }
    }

    /// The next block; `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, FetchError> {
        self.next_before(self.blocks.size).await
    }

    /// The next block; asks the store for nothing from `end` on.
    async fn next_before(&mut self, end: u64) -> Result<Option<Bytes>, FetchError> {
        let Some(expected) = self.blocks.checksums.get(self.at).copied() else { return Ok(None) };
        let range = self.range_of(self.at);
        let mut fetched = match &mut self.stream {
            Some(stream) => stream.take_up_to(range.length as usize).await?,
            None => {
                let length = end.max(range.offset + range.length) - range.offset;
                let stream = self.object.stream(ByteRange { offset: range.offset, length });
                self.stream.insert(stream).take_up_to(range.length as usize).await?
            }
        };
        for _ in 1..FETCHES {
            if fetched.as_deref().map(refstream_format::crc32c) == Some(expected) {
                break;
            }
            fetched = Some(self.object.read(range).await?);
        }
        let block = fetched.unwrap_or_default();
        let actual = refstream_format::crc32c(&block);
        if actual != expected {
            let what = format!("the checksum of its MiB {}", self.at);
            return Err(self.object.damaged(&what, expected, actual));
        }
        self.at += 1;
        Ok(Some(block))
    }

    /// The next `bytes` bytes; fewer only at the end.
    pub(super) async fn take(&mut self, bytes: usize) -> Result<Bytes, FetchError> {
        while self.kept.len() < bytes
            && let Some(block) = self.next().await?
        {
            self.kept.extend_from_slice(&block);
        }
        Ok(self.kept.split_to(bytes.min(self.kept.len())).freeze())
    }

    /// Bytes `range` of the blob, by the whole blocks that hold them.
    pub(super) async fn read(mut self, range: ByteRange) -> Result<Bytes, FetchError> {
        let end = (range.offset + range.length).min(self.blocks.size);
        self.at = (range.offset / BLOCK_BYTES) as usize;
        let until = end.next_multiple_of(BLOCK_BYTES).min(self.blocks.size);
        let first = self.at as u64 * BLOCK_BYTES;
        let mut pieces = Vec::new();
        while (self.at as u64) * BLOCK_BYTES < end
            && let Some(block) = self.next_before(until).await?
        {
            pieces.push(block);
        }
        let bytes = super::joined(pieces);
        let (from, to) = ((range.offset - first) as usize, (end - first) as usize);
        Ok(bytes.slice(from.min(bytes.len())..to.min(bytes.len())))
    }
}
