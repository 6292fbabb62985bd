//! One pass over a payload's bytes: hash, compress, sum.

use bytes::Bytes;
use refstream_format::{
    blocks::{BLOCK_BYTES, combined},
    frames::{FRAME_BYTES, SeekTable, compress_frame},
    pack::PackEntry,
};
use refstream_types::{ContentEncoding, ContentHash, Crc32c, Key, Reference, StoreName};
use std::collections::VecDeque;

const CRC: crc_fast::CrcAlgorithm = crc_fast::CrcAlgorithm::Crc32Iscsi;
/// Payloads below this many bytes are stored as given: a frame's header would eat the gain.
const MIN_COMPRESSED: usize = 256;
/// Payloads up to this size are compressed to see whether it pays; of larger ones a sample is.
const SAMPLE_ALL: usize = 128 << 10;
/// Places that a sample is taken from, and bytes from each.
const SAMPLES: usize = 4;
const SAMPLE_BYTES: usize = 16 << 10;
/// Bytes that are hashed before the processor is offered to others: tens of microseconds' worth.
const HASH_RUN: usize = 128 << 10;

/// Whether compressing `from` bytes to `to` bytes pays: it must save a tenth.
fn pays(from: usize, to: usize) -> bool {
    to < from - from / 10
}

/// CRC32C of each MiB that goes by, and of any run of whole blocks.
#[derive(Debug)]
struct BlockSums {
    current: crc_fast::Digest,
    filled: u64,
    sums: Vec<(Crc32c, u64)>,
}

impl BlockSums {
    fn new() -> Self {
        Self { current: crc_fast::Digest::new(CRC), filled: 0, sums: Vec::new() }
    }
    fn add(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = (BLOCK_BYTES - self.filled) as usize;
            let (now, later) = bytes.split_at(bytes.len().min(room));
            self.current.update(now);
            self.filled += now.len() as u64;
            bytes = later;
            if self.filled == BLOCK_BYTES {
                self.end_block();
            }
        }
    }
    fn end_block(&mut self) {
        if self.filled > 0 {
            self.sums.push((Crc32c(self.current.finalize_reset() as u32), self.filled));
            self.filled = 0;
        }
    }
    /// The sum of the bytes of some blocks in a row.
    fn combined(sums: &[(Crc32c, u64)]) -> Crc32c {
        sums.iter().fold(Crc32c(0), |sum, (block, length)| combined(sum, *block, *length))
    }
}

/// A payload that was encoded as a whole.
#[derive(Debug)]
pub(crate) struct Prepared {
    /// The stored bytes, in pieces.
    pub(crate) stored: Vec<Bytes>,
    /// Stored bytes.
    pub(crate) size: u64,
    pub(crate) checksum: Crc32c,
    /// CRC32C of each stored MiB.
    pub(crate) blocks: Vec<Crc32c>,
    pub(crate) hash: ContentHash,
    pub(crate) content_size: u64,
    pub(crate) encoding: ContentEncoding,
}

impl Prepared {
    pub(crate) fn reference(
        &self,
        store: &StoreName,
        key: &Key,
        offset: Option<u64>,
        content_type: Option<String>,
    ) -> Reference {
        Reference {
            store: store.clone(),
            key: key.clone(),
            offset,
            size: self.size,
            checksum: Some(self.checksum),
            content_hash: Some(self.hash),
            content_size: self.content_size,
            encoding: self.encoding,
            content_type,
            etag: None,
            version: None,
        }
    }
    /// The entry in a pack's footer; the packer knows the offset.
    pub(crate) fn pack_entry(&self, source_name: Option<String>) -> PackEntry {
        PackEntry {
            offset: 0,
            size: self.size,
            checksum: self.checksum,
            content_hash: self.hash,
            content_size: self.content_size,
            encoding: self.encoding,
            source_name,
        }
    }
    /// The MIME type of the object: that of its content only where it is stored as given.
    pub(crate) fn stored_type(&self, content_type: Option<&str>) -> Option<String> {
        stored_type(self.encoding, content_type)
    }
}

pub(super) fn stored_type(encoding: ContentEncoding, content_type: Option<&str>) -> Option<String> {
    match encoding {
        ContentEncoding::Identity => content_type.map(str::to_owned),
        ContentEncoding::Zstd => Some("application/zstd".to_owned()),
    }
}

/// Encodes a whole payload.
pub(crate) fn prepare(mut content: Vec<Bytes>, compression: Option<i32>) -> Prepared {
    compressed(&mut content, compression).unwrap_or_else(|| encode(content, None))
}

/// Encodes a whole payload that gets an object of its own, but leaves the hash of one that is stored as given to the caller.
pub(crate) fn prepare_object(mut content: Vec<Bytes>, compression: Option<i32>) -> ForObject {
    match compressed(&mut content, compression) {
        Some(prepared) => ForObject::Compressed(prepared),
        None => ForObject::AsGiven(AsGiven::new(content)),
    }
}

/// A payload on its way to an object of its own.
#[derive(Debug)]
pub(crate) enum ForObject {
    /// Compressing pays.
    Compressed(Prepared),
    /// It does not.
    AsGiven(AsGiven),
}

/// A payload that is stored as given and whose hash is not known yet. The store needs the sums first and the hash never, so the hash
/// is computed while the bytes are on their way.
#[derive(Debug)]
pub(crate) struct AsGiven {
    pub(crate) content: Vec<Bytes>,
    pub(crate) size: u64,
    pub(crate) checksum: Crc32c,
    /// CRC32C of each MiB.
    pub(crate) blocks: Vec<Crc32c>,
}

impl AsGiven {
    fn new(content: Vec<Bytes>) -> Self {
        let mut sums = BlockSums::new();
        for piece in &content {
            sums.add(piece);
        }
        sums.end_block();
        Self {
            size: content.iter().map(|piece| piece.len() as u64).sum(),
            checksum: BlockSums::combined(&sums.sums),
            blocks: sums.sums.iter().map(|(sum, _)| *sum).collect(),
            content,
        }
    }
    /// With its hash, once that is known.
    pub(crate) fn with_hash(self, hash: ContentHash) -> Prepared {
        Prepared {
            stored: self.content,
            size: self.size,
            checksum: self.checksum,
            blocks: self.blocks,
            hash,
            content_size: self.size,
            encoding: ContentEncoding::Identity,
        }
    }
}

/// The BLAKE3 of a payload. Gives way to whoever waits for the processor: to what sends the payload, and to a store on the same machine.
pub(crate) fn hash(content: &[Bytes]) -> ContentHash {
    let mut hasher = blake3::Hasher::new();
    for run in content.iter().flat_map(|piece| piece.chunks(HASH_RUN)) {
        hasher.update(run);
        std::thread::yield_now();
    }
    ContentHash(*hasher.finalize().as_bytes())
}

/// The payload compressed, where that pays. May join the content's pieces.
fn compressed(content: &mut Vec<Bytes>, compression: Option<i32>) -> Option<Prepared> {
    let length: usize = content.iter().map(Bytes::len).sum();
    let level = compression.filter(|_| length >= MIN_COMPRESSED)?;
    if length <= FRAME_BYTES {
        *content = vec![crate::payload::joined(std::mem::take(content))];
    }
    if length <= SAMPLE_ALL {
        let frame = compress_frame(&content[0], level);
        return pays(length, frame.len()).then(|| one_frame(&content[0], frame));
    }
    if !sample_pays(content, level) {
        return None;
    }
    let prepared = encode(content.clone(), Some(level));
    pays(length, prepared.size as usize).then_some(prepared)
}

/// Encodes a payload that fits in one frame, its stored bytes appended to `stored`. The packer knows the entry's offset.
pub(crate) fn prepare_small(
    content: &[u8],
    compression: Option<i32>,
    source_name: Option<String>,
    stored: &mut Vec<u8>,
) -> PackEntry {
    let start = stored.len();
    let frame = compression
        .filter(|_| (MIN_COMPRESSED..=FRAME_BYTES).contains(&content.len()))
        .map(|level| compress_frame(content, level))
        .filter(|frame| pays(content.len(), frame.len()));
    stored.extend_from_slice(frame.as_deref().unwrap_or(content));
    let blob = &stored[start..];
    PackEntry {
        offset: 0,
        size: blob.len() as u64,
        checksum: refstream_format::crc32c(blob),
        content_hash: ContentHash(*blake3::hash(content).as_bytes()),
        content_size: content.len() as u64,
        encoding: if frame.is_some() { ContentEncoding::Zstd } else { ContentEncoding::Identity },
        source_name,
    }
}

fn one_frame(content: &[u8], frame: Vec<u8>) -> Prepared {
    let checksum = refstream_format::crc32c(&frame);
    Prepared {
        size: frame.len() as u64,
        checksum,
        blocks: vec![checksum],
        stored: vec![frame.into()],
        hash: ContentHash(*blake3::hash(content).as_bytes()),
        content_size: content.len() as u64,
        encoding: ContentEncoding::Zstd,
    }
}

fn encode(content: Vec<Bytes>, level: Option<i32>) -> Prepared {
    let mut encoder = Encoder::new(level);
    for piece in content {
        encoder.push(piece);
    }
    encoder.finish();
    let stored = encoder.take_all();
    let finished = encoder.finished();
    Prepared {
        stored,
        size: finished.size,
        checksum: finished.checksum,
        blocks: finished.blocks,
        hash: finished.hash,
        content_size: finished.content_size,
        encoding: finished.encoding,
    }
}

/// Whether a sample of the content shows that compressing pays.
pub(super) fn sample_pays(content: &[Bytes], level: i32) -> bool {
    let length: usize = content.iter().map(Bytes::len).sum();
    let stride = (length / SAMPLES).max(SAMPLE_BYTES);
    let (mut from, mut to) = (0, 0);
    for start in (0..length).step_by(stride).take(SAMPLES) {
        let (mut skip, mut sample) = (start, &[][..]);
        for piece in content {
            if skip < piece.len() {
                sample = &piece[skip..piece.len().min(skip + SAMPLE_BYTES)];
                break;
            }
            skip -= piece.len();
        }
        if !sample.is_empty() {
            from += sample.len();
            to += compress_frame(sample, level).len();
        }
    }
    pays(from, to)
}

/// What is known once all content went by.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) size: u64,
    pub(super) checksum: Crc32c,
    pub(super) blocks: Vec<Crc32c>,
    pub(super) hash: ContentHash,
    pub(super) content_size: u64,
    pub(super) encoding: ContentEncoding,
}

/// Encodes content as it comes. Stored bytes queue up until they are taken.
#[derive(Debug)]
pub(super) struct Encoder {
    level: Option<i32>,
    hasher: blake3::Hasher,
    content_size: u64,
    /// Content of the frame that is not full yet.
    frame: Vec<u8>,
    table: SeekTable,
    sums: BlockSums,
    /// How many of the sums belong to bytes that were taken.
    taken_sums: usize,
    queue: VecDeque<Bytes>,
    queued: u64,
    size: u64,
}

impl Encoder {
    /// Compresses with `level`, or keeps the content as given.
    pub(super) fn new(level: Option<i32>) -> Self {
        Self {
            level,
            hasher: blake3::Hasher::new(),
            content_size: 0,
            frame: Vec::new(),
            table: SeekTable::default(),
            sums: BlockSums::new(),
            taken_sums: 0,
            queue: VecDeque::new(),
            queued: 0,
            size: 0,
        }
    }
    /// Stored bytes that wait to be taken.
    pub(super) fn queued(&self) -> u64 {
        self.queued
    }
    pub(super) fn encoding(&self) -> ContentEncoding {
        if self.level.is_some() { ContentEncoding::Zstd } else { ContentEncoding::Identity }
    }
    /// Takes content.
    pub(super) fn push(&mut self, content: Bytes) {
        self.content_size += content.len() as u64;
        let Some(level) = self.level else {
            // In steps that stay in the cache between the hash and the sum.
            for step in content.chunks(256 << 10) {
                self.hasher.update(step);
                self.sums.add(step);
            }
            self.enqueue(content);
            return;
        };
        self.hasher.update(&content);
        let mut rest = &content[..];
        while !rest.is_empty() {
            if self.frame.is_empty() && rest.len() >= FRAME_BYTES {
                let (whole, later) = rest.split_at(FRAME_BYTES);
                self.store_frame(whole, level);
                rest = later;
                continue;
            }
            let (now, later) = rest.split_at(rest.len().min(FRAME_BYTES - self.frame.len()));
            self.frame.extend_from_slice(now);
            rest = later;
            if self.frame.len() == FRAME_BYTES {
                self.end_frame(level);
            }
        }
    }
    fn end_frame(&mut self, level: i32) {
        let mut frame = std::mem::take(&mut self.frame);
        self.store_frame(&frame, level);
        frame.clear();
        self.frame = frame;
    }
    fn store_frame(&mut self, content: &[u8], level: i32) {
        let stored = compress_frame(content, level);
        self.table.frames.push((stored.len() as u32, content.len() as u32));
        self.sums.add(&stored);
        self.enqueue(stored.into());
    }
    fn enqueue(&mut self, stored: Bytes) {
        self.queued += stored.len() as u64;
        self.size += stored.len() as u64;
        if !stored.is_empty() {
            self.queue.push_back(stored);
        }
    }
    /// All content went by.
    pub(super) fn finish(&mut self) {
        if let Some(level) = self.level {
            if !self.frame.is_empty() || self.table.frames.is_empty() {
                self.end_frame(level);
            }
            if self.table.frames.len() > 1 {
                let table = self.table.encode();
                self.sums.add(&table);
                self.enqueue(table.into());
            }
        }
        self.sums.end_block();
    }
    /// Takes exactly `bytes` stored bytes, a whole number of blocks, with their CRC32C; or all that is left, after [`Encoder::finish`].
    pub(super) fn take_part(&mut self, bytes: u64) -> (Vec<Bytes>, Crc32c) {
        let wanted = bytes.min(self.queued);
        let mut left = wanted;
        let mut pieces = Vec::new();
        while left > 0
            && let Some(mut piece) = self.queue.pop_front()
        {
            if piece.len() as u64 > left {
                let rest = piece.split_off(left as usize);
                self.queue.push_front(rest);
            }
            left -= piece.len() as u64;
            pieces.push(piece);
        }
        self.queued -= wanted;
        let until = self.taken_sums + wanted.div_ceil(BLOCK_BYTES) as usize;
        let sums = &self.sums.sums[self.taken_sums..until.min(self.sums.sums.len())];
        let checksum = BlockSums::combined(sums);
        self.taken_sums = until;
        (pieces, checksum)
    }
    fn take_all(&mut self) -> Vec<Bytes> {
        self.queued = 0;
        std::mem::take(&mut self.queue).into()
    }
    /// What is known after [`Encoder::finish`].
    pub(super) fn finished(&self) -> Finished {
        Finished {
            size: self.size,
            checksum: BlockSums::combined(&self.sums.sums),
            blocks: self.sums.sums.iter().map(|(sum, _)| *sum).collect(),
            hash: ContentHash(*self.hasher.finalize().as_bytes()),
            content_size: self.content_size,
            encoding: self.encoding(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(bytes: usize) -> Bytes {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        (0..bytes)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state as u8
            })
            .collect::<Vec<_>>()
            .into()
    }

    #[test]
    fn sums_of_blocks_add_up_to_the_sum_of_the_whole() {
        for bytes in [0, 1, 1 << 20, (1 << 20) + 1, 5_000_000] {
            let content = noise(bytes);
            let prepared = prepare(vec![content.slice(..bytes / 3), content.slice(bytes / 3..)], None);
            assert_eq!(prepared.checksum, refstream_format::crc32c(&content), "{bytes}");
            assert_eq!(prepared.hash.0, *blake3::hash(&content).as_bytes());
            assert_eq!(prepared.blocks.len(), bytes.div_ceil(1 << 20));
            assert_eq!(prepared.encoding, ContentEncoding::Identity);
            let ForObject::AsGiven(given) =
                prepare_object(vec![content.slice(..bytes / 2), content.slice(bytes / 2..)], None)
            else {
                panic!("nothing was to be compressed");
            };
            assert_eq!(
                (given.size, given.checksum, &given.blocks),
                (prepared.size, prepared.checksum, &prepared.blocks)
            );
            assert_eq!(hash(&given.content), prepared.hash);
        }
    }

    #[test]
    fn text_is_compressed_and_noise_is_not() {
        let text = Bytes::from("all work and no play makes jack a dull boy. ".repeat(100_000));
        let prepared = prepare(vec![text.clone()], Some(1));
        assert_eq!(prepared.encoding, ContentEncoding::Zstd);
        assert!(prepared.size < text.len() as u64 / 10);
        let stored = crate::payload::joined(prepared.stored.clone());
        assert_eq!(refstream_format::crc32c(&stored), prepared.checksum);
        assert_eq!(refstream_format::frames::decompress(&stored, text.len()).unwrap(), text);
        for bytes in [10_000, 3_000_000] {
            assert_eq!(prepare(vec![noise(bytes)], Some(1)).encoding, ContentEncoding::Identity);
        }
        assert_eq!(prepare(vec![Bytes::from("x".repeat(100))], Some(1)).encoding, ContentEncoding::Identity);
    }

    #[test]
    fn parts_carry_the_sums_of_their_own_bytes() {
        let content = noise(11 << 20);
        let mut encoder = Encoder::new(None);
        encoder.push(content.slice(..7 << 20));
        let (first, sum) = encoder.take_part(5 << 20);
        assert_eq!(sum, refstream_format::crc32c(&first.concat()));
        encoder.push(content.slice(7 << 20..));
        encoder.finish();
        let (second, sum) = encoder.take_part(5 << 20);
        assert_eq!(sum, refstream_format::crc32c(&second.concat()));
        let (third, sum) = encoder.take_part(5 << 20);
        assert_eq!(sum, refstream_format::crc32c(&third.concat()));
        assert_eq!([first.concat(), second.concat(), third.concat()].concat(), content);
        assert_eq!(encoder.finished().checksum, refstream_format::crc32c(&content));
    }
}
