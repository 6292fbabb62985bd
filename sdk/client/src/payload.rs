//! Fetching payloads, verified.
//!
//! What verifies a payload depends on its size. Blobs of at most 1 MiB are fetched whole: their CRC32C and the BLAKE3 of what they decode to
//! must be right. Of larger ones the store keeps the CRC32C of each stored MiB, with the object or in a sidecar: a range is fetched in whole blocks,
//! each verified before it is used. When these sums are gone, they are computed afresh from one pass over the whole object, whose CRC32C must be right.
//! Bytes that are wrong are fetched once more, in case they were damaged on the way, before the object is called damaged.
//!
//! Objects attached in place have no hash; the store is asked for exactly the pinned etag or version.

mod blocks;
mod fetch;

use crate::{Delivery, FetchError, FetchedObject, OpenStoreError, SinkFailed, TooLargeForMemory};
use blocks::BlockReader;
use bytes::Bytes;
use fetch::Object;
use refstream_filer_adapter::{BlobStore, Runtime};
use refstream_format::{
    blocks::{BLOCK_BYTES, Blocks},
    frames::{FRAME_BYTES, SeekTable, decompress},
};
use refstream_types::{ByteRange, ContentEncoding, ContentHash, Key, Layout, Reference};
use std::{sync::Arc, time::Duration};
use tokio::io::{AsyncWrite, AsyncWriteExt};

/// The longest payload that [`Payload::bytes`] holds in memory.
const MAX_IN_MEMORY: u64 = 4 << 30;
/// How often an object is fetched before its bytes are called damaged.
const FETCHES: u32 = 2;
/// How long a store that does not answer is asked again, when nothing is said.
const PATIENCE: Duration = Duration::from_secs(60);

/// A payload to be fetched. Nothing unverified is ever handed out.
#[derive(Clone, Debug)]
pub struct Payload {
    reference: Reference,
    store: Result<Arc<dyn BlobStore>, OpenStoreError>,
    runtime: Arc<dyn Runtime>,
    object: FetchedObject,
    patience: Duration,
}

/// What became of the checksums of each stored MiB of a payload, which the store keeps with its object or beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlockSums {
    /// The payload has none: it is small, lies in a pack, or was attached in place.
    NotNeeded,
    /// They are there and fit the payload's size.
    Intact,
    /// They are gone or damaged, and how. Ranges of the payload are read whole, to verify them.
    Unusable {
        /// The object that has them or should: the payload's own, or its sidecar.
        key: Key,
        /// What is wrong.
        why: String,
    },
}

/// The pieces as one; without a copy where there is only one.
pub(crate) fn joined(mut pieces: Vec<Bytes>) -> Bytes {
    match pieces.len() {
        1 => pieces.swap_remove(0),
        _ => pieces.concat().into(),
    }
}

impl Payload {
    pub(crate) fn new(
        reference: Reference,
        store: Result<Arc<dyn BlobStore>, OpenStoreError>,
        runtime: Arc<dyn Runtime>,
    ) -> Self {
        let object = FetchedObject {
            store: reference.store.clone(),
            key: reference.key.clone(),
            uri: store.as_ref().ok().map(|store| store.uri(&reference.key)),
            place: None,
        };
        Self { reference, store, runtime, object, patience: PATIENCE }
    }

    /// Lets errors name the record that refers to this payload.
    #[must_use]
    pub fn of(mut self, delivery: &Delivery) -> Self {
        self.object.place = Some((delivery.topic.clone(), delivery.partition, delivery.offset));
        self
    }

    /// How long a store that does not answer is asked again before fetching fails; a minute when not set.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Reads the checksums of the payload's blocks and says whether they can be used.
    ///
    /// # Errors
    /// When the store is out of reach.
    pub async fn block_sums(&self) -> Result<BlockSums, FetchError> {
        if !self.has_block_sums() {
            return Ok(BlockSums::NotNeeded);
        }
        let (key, why) = match self.opened()?.sums().await? {
            None => (Layout::blocks(&self.reference.key), "they do not exist".to_owned()),
            Some((key, Err(error))) => (key, error.to_string()),
            Some((_, Ok(blocks))) if self.fit(&blocks) => return Ok(BlockSums::Intact),
            Some((key, Ok(blocks))) => {
                let (of, size) = (blocks.size, self.reference.size);
                (key, format!("they are of other bytes: {of} with {}, the payload has {size}", blocks.whole()))
            }
        };
        Ok(BlockSums::Unusable { key, why })
    }

    /// Whether these are the sums of this payload's blocks, not of other bytes: their combination is the sum that the reference has.
    fn fit(&self, blocks: &Blocks) -> bool {
        blocks.size == self.reference.size && self.reference.checksum == Some(blocks.whole())
    }

    /// What is fetched.
    pub fn reference(&self) -> &Reference {
        &self.reference
    }

    fn opened(&self) -> Result<Object<'_>, FetchError> {
        match &self.store {
            Ok(store) => Ok(Object {
                store: &**store,
                runtime: &*self.runtime,
                reference: &self.reference,
                object: &self.object,
                patience: self.patience,
            }),
            Err(error) => Err(error.clone().into()),
        }
    }

    /// Whether the store keeps the sums of the blob's blocks, as of one that has an object over 1 MiB to itself.
    fn has_block_sums(&self) -> bool {
        self.reference.size > BLOCK_BYTES && self.reference.offset.is_none() && self.reference.content_hash.is_some()
    }

    /// The whole payload, its BLAKE3 verified.
    ///
    /// # Errors
    /// When it is gone, damaged or out of reach; names the object.
    pub async fn bytes(&self) -> Result<Bytes, FetchError> {
        let object = self.opened()?;
        let content_size = self.reference.content_size;
        let in_memory =
            usize::try_from(content_size).ok().filter(|_| content_size.max(self.reference.size) <= MAX_IN_MEMORY);
        let Some(in_memory) = in_memory else {
            let object = self.object.clone();
            return Err(FetchError::TooLarge(Box::new(TooLargeForMemory { object, bytes: content_size })));
        };
        let mut attempt = 1;
        loop {
            let stored = object.read(self.reference.range()).await?;
            match self.verified(&object, stored, in_memory) {
                Err(FetchError::Damaged(_)) if attempt < FETCHES => attempt += 1,
                other => return other,
            }
        }
    }

    /// Checks stored bytes that were read by other means (as part of a whole pack, for example) and decodes them.
    ///
    /// # Errors
    /// When they are damaged, or the payload is too large to be held in memory.
    pub fn verify_stored(&self, stored: Bytes) -> Result<Bytes, FetchError> {
        let object = self.opened()?;
        match usize::try_from(self.reference.content_size) {
            Ok(content_size) if self.reference.content_size <= MAX_IN_MEMORY => {
                self.verified(&object, stored, content_size)
            }
            _ => {
                let object = self.object.clone();
                let bytes = self.reference.content_size;
                Err(FetchError::TooLarge(Box::new(TooLargeForMemory { object, bytes })))
            }
        }
    }

    /// Checks the whole blob and decodes it.
    fn verified(&self, object: &Object<'_>, stored: Bytes, content_size: usize) -> Result<Bytes, FetchError> {
        if let Some(expected) = self.reference.checksum {
            let actual = refstream_format::crc32c(&stored);
            if actual != expected {
                return Err(object.damaged("the checksum of its stored bytes", expected, actual));
            }
        }
        let content = match self.reference.encoding {
            ContentEncoding::Identity => stored,
            ContentEncoding::Zstd => decompress(&stored, content_size)
                .map_err(|error| object.damaged("its encoding", "zstd frames", error))?,
        };
        if let Some(expected) = self.reference.content_hash {
            let actual = ContentHash(*blake3::hash(&content).as_bytes());
            if actual != expected {
                return Err(object.damaged("its content hash", expected, actual));
            }
        }
        Ok(content)
    }

    /// Bytes `range` of the payload as given (clamped to its end), verified by block.
    ///
    /// # Errors
    /// As [`Payload::bytes`].
    pub async fn range(&self, range: ByteRange) -> Result<Bytes, FetchError> {
        let content_size = self.reference.content_size;
        let offset = range.offset.min(content_size);
        let range = ByteRange { offset, length: range.length.min(content_size - offset) };
        if range.length > MAX_IN_MEMORY {
            let object = self.object.clone();
            return Err(FetchError::TooLarge(Box::new(TooLargeForMemory { object, bytes: range.length })));
        }
        let object = self.opened()?;
        if self.reference.content_hash.is_none() && self.reference.encoding == ContentEncoding::Identity {
            let start = self.reference.range().offset;
            return object.read(ByteRange { offset: start + range.offset, length: range.length }).await;
        }
        if !self.has_block_sums() {
            let content = self.bytes().await?;
            return Ok(content.slice(range.offset as usize..(range.offset + range.length) as usize));
        }
        if range.length == 0 {
            return Ok(Bytes::new());
        }
        let blocks = self.blocks(&object).await?;
        match self.reference.encoding {
            ContentEncoding::Identity => BlockReader::new(&object, &blocks).read(range).await,
            ContentEncoding::Zstd => {
                let table = self.seek_table(&object, &blocks).await?;
                let Some(span) = table.span(range) else {
                    return Err(object.damaged("its seek table", format!("{content_size} bytes of content"), "fewer"));
                };
                let stored = BlockReader::new(&object, &blocks).read(span.stored).await?;
                let frames = stored_frames(&table, span.stored);
                let length: u64 = frames.iter().map(|(_, content)| u64::from(*content)).sum();
                let content = decompress(&stored, length as usize)
                    .map_err(|error| object.damaged("its encoding", "zstd frames", error))?;
                let (from, to) = (span.skip as usize, (span.skip + range.length) as usize);
                if to > content.len() {
                    return Err(object.damaged("its seek table", format!("{to} bytes"), content.len()));
                }
                Ok(content.slice(from..to))
            }
        }
    }

    /// Writes the whole payload to `sink` as it arrives; each block is verified before it is written, the whole at the end. Bounded
    /// memory for any size. Returns the number of bytes.
    ///
    /// # Errors
    /// As [`Payload::bytes`]; the sink may have received verified blocks before a later one failed.
    pub async fn copy_to(&self, sink: &mut (dyn AsyncWrite + Send + Unpin)) -> Result<u64, FetchError> {
        let mut written = 0;
        match self.copy(sink, &mut written).await {
            Ok(()) => Ok(written),
            Err(FetchError::Damaged(mut damaged)) => {
                damaged.handed_out = written;
                Err(FetchError::Damaged(damaged))
            }
            Err(error) => Err(error),
        }
    }

    async fn copy(&self, sink: &mut (dyn AsyncWrite + Send + Unpin), written: &mut u64) -> Result<(), FetchError> {
        let object = self.opened()?;
        if self.reference.content_hash.is_some() && !self.has_block_sums() {
            let content = self.bytes().await?;
            self.write(sink, &content, written).await?;
            return self.finish(sink).await;
        }
        let mut hasher = blake3::Hasher::new();
        if self.reference.content_hash.is_none() {
            return self.copy_pinned(&object, sink, written).await;
        }
        let blocks = self.blocks(&object).await?;
        let mut reader = BlockReader::new(&object, &blocks);
        match self.reference.encoding {
            ContentEncoding::Identity => {
                while let Some(block) = reader.next().await? {
                    hasher.update(&block);
                    self.write(sink, &block, written).await?;
                }
            }
            ContentEncoding::Zstd => {
                let table = self.seek_table(&object, &blocks).await?;
                for (stored, content) in &table.frames {
                    let frame = reader.take(*stored as usize).await?;
                    let content = decompress(&frame, *content as usize)
                        .map_err(|error| object.damaged("its encoding", "zstd frames", error))?;
                    hasher.update(&content);
                    self.write(sink, &content, written).await?;
                }
            }
        }
        let actual = ContentHash(*hasher.finalize().as_bytes());
        if let Some(expected) = self.reference.content_hash
            && actual != expected
        {
            return Err(object.damaged("its content hash", expected, actual));
        }
        self.finish(sink).await
    }

    /// An object attached in place: as the store hands out the pinned version.
    async fn copy_pinned(
        &self,
        object: &Object<'_>,
        sink: &mut (dyn AsyncWrite + Send + Unpin),
        written: &mut u64,
    ) -> Result<(), FetchError> {
        let mut stream = object.stream(self.reference.range());
        while let Some(piece) = stream.next().await? {
            self.write(sink, &piece, written).await?;
        }
        self.finish(sink).await
    }

    async fn write(
        &self,
        sink: &mut (dyn AsyncWrite + Send + Unpin),
        bytes: &[u8],
        written: &mut u64,
    ) -> Result<(), FetchError> {
        sink.write_all(bytes).await.map_err(|error| self.sink_failed(&error))?;
        *written += bytes.len() as u64;
        Ok(())
    }
    async fn finish(&self, sink: &mut (dyn AsyncWrite + Send + Unpin)) -> Result<(), FetchError> {
        sink.flush().await.map_err(|error| self.sink_failed(&error))
    }
    fn sink_failed(&self, error: &std::io::Error) -> FetchError {
        FetchError::Sink(Box::new(SinkFailed { object: self.object.clone(), why: error.to_string() }))
    }

    /// The sums of the blob's blocks: as the store keeps them, or from a pass over the whole.
    async fn blocks(&self, object: &Object<'_>) -> Result<Blocks, FetchError> {
        if let Some((_, Ok(blocks))) = object.sums().await?
            && self.fit(&blocks)
        {
            return Ok(blocks);
        }
        let mut attempt = 1;
        loop {
            match self.computed_blocks(object).await {
                Err(FetchError::Damaged(_)) if attempt < FETCHES => attempt += 1,
                other => return other,
            }
        }
    }

    /// Reads the whole blob to sum its blocks; they are trusted only when the CRC32C of the whole is right.
    async fn computed_blocks(&self, object: &Object<'_>) -> Result<Blocks, FetchError> {
        let crc = crc_fast::CrcAlgorithm::Crc32Iscsi;
        let mut whole = crc_fast::Digest::new(crc);
        let mut checksums = Vec::new();
        let mut stream = object.stream(self.reference.range());
        while let Some(block) = stream.take_up_to(BLOCK_BYTES as usize).await? {
            whole.update(&block);
            checksums.push(refstream_format::crc32c(&block));
        }
        let actual = refstream_types::Crc32c(whole.finalize() as u32);
        match self.reference.checksum {
            Some(expected) if expected != actual => {
                Err(object.damaged("the checksum of its stored bytes", expected, actual))
            }
            _ => Ok(Blocks { size: self.reference.size, checksums }),
        }
    }

    async fn seek_table(&self, object: &Object<'_>, blocks: &Blocks) -> Result<SeekTable, FetchError> {
        let size = self.reference.size;
        if self.reference.content_size <= FRAME_BYTES as u64 {
            let frames = vec![(size as u32, self.reference.content_size as u32)];
            return Ok(SeekTable { frames });
        }
        let length = SeekTable::max_encoded_len(self.reference.content_size).min(size);
        let tail = BlockReader::new(object, blocks).read(ByteRange { offset: size - length, length }).await?;
        let table =
            SeekTable::decode_tail(&tail).map_err(|error| object.damaged("its seek table", "an intact one", error))?;
        let (expected, actual) = (self.reference.content_size, table.content_bytes());
        if actual != expected || table.stored_bytes() > size {
            return Err(object.damaged("the content in its seek table", expected, actual));
        }
        Ok(table)
    }
}

/// The frames whose stored bytes make up exactly `stored`.
fn stored_frames(table: &SeekTable, stored: ByteRange) -> Vec<(u32, u32)> {
    let mut at = 0;
    let mut frames = Vec::new();
    for frame in &table.frames {
        if at >= stored.offset && at < stored.offset + stored.length {
            frames.push(*frame);
        }
        at += u64::from(frame.0);
    }
    frames
}

impl Delivery {
    /// The payload that the record refers to, to be fetched; `None` when it carries its value itself or none.
    pub fn payload(&self, client: &crate::Client) -> Option<Payload> {
        match &self.record.value {
            refstream_types::Value::Reference(reference) => Some(client.payload(reference).of(self)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
