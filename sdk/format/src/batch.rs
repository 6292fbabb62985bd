//! Batches: records of one partition from one producer, encoded by the client, opaque to the broker.
//!
//! The broker reads the fixed header only; base offset and append time are not in the batch but beside it, in the journal.
//!
//! | at | bytes | header field |
//! |---|---|---|
//! | 0 | 4 | magic `RFSB` |
//! | 4 | 2 | version, 1 |
//! | 6 | 1 | flags; bit 0: stamped by a producer |
//! | 7 | 1 | codec of the body: 0 none, 1 one zstd frame |
//! | 8 | 4 | records, 1 to [`MAX_BATCH_RECORDS`] |
//! | 12 | 4 | body length as stored |
//! | 16 | 4 | body length before compression, at most [`MAX_BATCH_DECODED_BYTES`] |
//! | 20 | 4 | CRC32C of the body as stored |
//! | 24 | 8 | payload bytes |
//! | 32 | 8 | producer id, 0 when not stamped |
//! | 40 | 4 | producer epoch, 0 when not stamped |
//! | 44 | 8 | sequence of the first record, 0 when not stamped |
//! | 52 | 4 | CRC32C of the 52 bytes before it |
//! | 56 | | body |
//!
//! The producer's stamp has a fixed place, so that stamping a batch writes nothing but the header. The body, before compression,
//! is three tables (store names, object keys, content types), each a varint count and that many texts, then the records. A text
//! or bytes is a varint length and the bytes; a time is a zigzag varint of microseconds.
//!
//! | record field | when |
//! |---|---|
//! | flags, 1 byte | always; bit 0 key, 1 event time, 2 headers, 3 source name, 4 source mtime, 5-6 value: 0 tombstone, 1 inline, 2 reference |
//! | key | bit 0 |
//! | event time, from the event time before it in the batch (1970 for the first) | bit 1 |
//! | headers: varint count, then name and value of each | bit 2 |
//! | source name | bit 3 |
//! | source mtime, from the source mtime before it in the batch (1970 for the first) | bit 4 |
//! | inline value: 32 bytes BLAKE3, then the bytes | inline |
//! | reference flags, 1 byte | reference; bit 0 offset, 1 checksum, 2 hash, 3 zstd, 4 content type, 5 etag, 6 version |
//! | store, varint index in its table | reference |
//! | key, varint index in its table | reference |
//! | offset, varint | bit 0 |
//! | size, varint | reference |
//! | CRC32C, 4 bytes | bit 1 |
//! | BLAKE3, 32 bytes | bit 2 |
//! | content size, varint | bit 3; otherwise it is the size |
//! | content type, varint index in its table | bit 4 |
//! | etag | bit 5 |
//! | version | bit 6 |

mod builder;
mod record;
#[cfg(test)]
mod tests;
mod view;

pub use builder::{BatchBuilder, PushError};
pub use view::{BatchDecoder, RecordView, ReferenceView, ValueView};

use crate::{
    DecodeError, crc32c,
    wire::{Reader, Writer},
};
use bytes::Bytes;
use refstream_types::{ProducerEpoch, ProducerId, ProducerStamp, Record, Sequence};

/// The most records of one batch.
pub const MAX_BATCH_RECORDS: u32 = 65_536;
/// The longest encoded batch, in bytes.
pub const MAX_BATCH_BYTES: usize = 4 << 20;
/// The most bytes of a batch's records before compression.
pub const MAX_BATCH_DECODED_BYTES: usize = 16 << 20;
/// The most memory that a batch's decoded records may take beside its bytes, by the estimate that builder and decoder share:
/// [`RECORD_COST`] a record, [`HEADER_COST`] a header, and each use of a name in one of the tables. It keeps a small batch from
/// becoming a large allocation.
pub const MAX_BATCH_MEMORY: usize = 64 << 20;
/// Estimated memory of one record without names and headers, in bytes.
pub const RECORD_COST: usize = 512;
/// Estimated memory of one header beside its value, in bytes.
pub const HEADER_COST: usize = 64;
/// The longest record, in bytes as encoded; several fit into a batch.
pub const MAX_RECORD_BYTES: usize = 2 << 20;
/// The longest inline value, in bytes.
pub const MAX_INLINE_BYTES: usize = 1 << 20;
/// The longest header name, source name, content type, etag or version, in bytes.
pub const MAX_TEXT_BYTES: usize = 32 << 10;
/// Bytes of the fixed header.
pub const BATCH_HEADER_BYTES: usize = 56;

const MAGIC: [u8; 4] = *b"RFSB";
const VERSION: u16 = 1;
const FLAG_PRODUCER: u8 = 1;
const CODEC_NONE: u8 = 0;
const CODEC_ZSTD: u8 = 1;
/// The most that zstd can make of one stored byte: a block of 128 KiB takes at least 4 bytes (RFC 8878, section 3.1.1.2).
const MAX_ZSTD_RATIO: usize = (128 << 10) / 4;

/// What the broker knows of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchHeader {
    /// Records in the batch, 1 to [`MAX_BATCH_RECORDS`].
    pub records: u32,
    /// Who produced it; `None` when the producer does not ask for idempotence.
    pub producer: Option<ProducerStamp>,
    /// Total payload bytes (as given) that its records refer to or carry: for metrics and manifests.
    pub payload_bytes: u64,
}

/// All that the header says.
#[derive(Clone, Copy, Debug)]
struct FullHeader {
    public: BatchHeader,
    codec: u8,
    stored: u32,
    decoded: u32,
    body_checksum: u32,
}

impl FullHeader {
    fn encode(&self, writer: &mut Writer) {
        let start = writer.len();
        writer.raw(&MAGIC);
        writer.u16(VERSION);
        writer.u8(if self.public.producer.is_some() { FLAG_PRODUCER } else { 0 });
        writer.u8(self.codec);
        writer.u32(self.public.records);
        writer.u32(self.stored);
        writer.u32(self.decoded);
        writer.u32(self.body_checksum);
        writer.u64(self.public.payload_bytes);
        writer.u64(self.public.producer.map_or(0, |stamp| stamp.id.0));
        writer.u32(self.public.producer.map_or(0, |stamp| stamp.epoch.0));
        writer.u64(self.public.producer.map_or(0, |stamp| stamp.first.0));
        writer.checksum_from(start);
    }

    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        reader.preamble(MAGIC, VERSION)?;
        let flags = reader.u8()?;
        let codec = reader.u8()?;
        let records = reader.u32()?;
        let stored = reader.u32()?;
        let decoded = reader.u32()?;
        let body_checksum = reader.u32()?;
        let payload_bytes = reader.u64()?;
        let (id, epoch, first) = (reader.u64()?, reader.u32()?, reader.u64()?);
        reader.verify_from(0)?;
        let producer = match flags {
            0 if id == 0 && epoch == 0 && first == 0 => None,
            FLAG_PRODUCER => {
                Some(ProducerStamp { id: ProducerId(id), epoch: ProducerEpoch(epoch), first: Sequence(first) })
            }
            _ => return Err(reader.error(format!("flags {flags:#04x} are unknown or contradict the stamp"))),
        };
        if first > i64::MAX as u64 - u64::from(MAX_BATCH_RECORDS) {
            return Err(reader.error(format!("the sequence {first} is out of range")));
        }
        if records == 0 || records > MAX_BATCH_RECORDS || records > decoded {
            return Err(reader.error(format!("{records} records in {decoded} bytes; 1 to {MAX_BATCH_RECORDS} may be")));
        }
        if decoded as usize > MAX_BATCH_DECODED_BYTES {
            return Err(reader.error(format!("{decoded} bytes of records, the limit is {MAX_BATCH_DECODED_BYTES}")));
        }
        let possible = match codec {
            CODEC_NONE => stored == decoded,
            CODEC_ZSTD => stored < decoded && decoded as usize <= (stored as usize).saturating_mul(MAX_ZSTD_RATIO),
            other => return Err(reader.error(format!("the codec {other} is unknown"))),
        };
        if !possible {
            return Err(reader.error(format!("codec {codec} cannot make {stored} bytes of {decoded}")));
        }
        Ok(Self { public: BatchHeader { records, producer, payload_bytes }, codec, stored, decoded, body_checksum })
    }
}

/// A batch whose header and checksum have been checked. Cloning shares the bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedBatch {
    header: BatchHeader,
    bytes: Bytes,
}

impl EncodedBatch {
    /// Checks length, version, limits and CRC32C of `bytes`, which must be exactly one batch. Nothing is decompressed.
    ///
    /// # Errors
    /// When any of them is wrong.
    pub fn parse(bytes: Bytes) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes.clone(), "batch header");
        if bytes.len() > MAX_BATCH_BYTES {
            return Err(reader.error(format!("{} bytes, the limit is {MAX_BATCH_BYTES}", bytes.len())));
        }
        let header = FullHeader::decode(&mut reader)?;
        if reader.remaining() != header.stored as usize {
            return Err(reader.error(format!("{} bytes of body, {} announced", reader.remaining(), header.stored)));
        }
        let actual = crc32c(&bytes[BATCH_HEADER_BYTES..]).0;
        if actual != header.body_checksum {
            return Err(DecodeError {
                what: "batch body",
                at: BATCH_HEADER_BYTES,
                why: format!(
                    "checksum mismatch: stored CRC32C:{:08x}, actual CRC32C:{actual:08x}",
                    header.body_checksum
                ),
            });
        }
        Ok(Self { header: header.public, bytes })
    }
    /// The header.
    pub fn header(&self) -> BatchHeader {
        self.header
    }
    /// The encoded batch.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }
    /// The records, in order; their number is the header's. See [`BatchDecoder`] for many batches.
    ///
    /// # Errors
    /// When the body is not what a [`BatchBuilder`] makes.
    pub fn decode(&self) -> Result<Vec<Record>, DecodeError> {
        BatchDecoder::new().records(self)
    }
    /// Stamps the batch with a producer's identity; only the header and its checksum are written again.
    #[must_use]
    pub fn with_producer(&self, stamp: ProducerStamp) -> Self {
        let mut header = match self.full_header() {
            Ok(header) => header,
            Err(error) => unreachable!("a batch's header was checked when it was made: {error}"),
        };
        header.public.producer = Some(stamp);
        let mut writer = Writer(Vec::with_capacity(self.bytes.len()));
        header.encode(&mut writer);
        writer.raw(&self.bytes[BATCH_HEADER_BYTES..]);
        Self { header: header.public, bytes: writer.0.into() }
    }
    /// The checksum of the header, which covers the body's: what tells this batch from every other.
    pub(crate) fn header_checksum(&self) -> [u8; 4] {
        let mut checksum = [0; 4];
        checksum.copy_from_slice(&self.bytes[BATCH_HEADER_BYTES - 4..BATCH_HEADER_BYTES]);
        checksum
    }

    fn full_header(&self) -> Result<FullHeader, DecodeError> {
        FullHeader::decode(&mut Reader::new(self.bytes.clone(), "batch header"))
    }
}
