//! Batches: records of one partition from one producer, encoded by the client, opaque to the broker.
//!
//! The broker reads the fixed header only; base offset and append time are not in the batch but beside it, in the journal.
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | magic `RFSB` |
//! | 4..6 | version, `u16` |
//! | 6 | codec of the body: 0 none, 1 zstd |
//! | 7 | 1 where a producer stamp is present, else 0 |
//! | 8..12 | records, `u32` |
//! | 12..16 | bytes of the body as stored, `u32` |
//! | 16..20 | bytes of the body decoded, `u32` |
//! | 20..24 | CRC32C of the stored body |
//! | 24..32 | payload bytes that the records refer to or carry, `u64` |
//! | 32..40, 40..44, 44..52 | producer: id `u64`, epoch `u32`, sequence of the first record `u64`; zeros without a stamp |
//! | 52..56 | CRC32C of bytes 0..52 |
//! | 56.. | the body |
//!
//! The decoded body is three tables (store names, object keys, content types: each a count and so many texts), then the records. A
//! record names entries of the tables by position, so what repeats within a batch is written once.

mod record;

use crate::{
    DecodeError, crc32c,
    wire::{Reader, Writer},
};
use bytes::Bytes;
use record::{Table, Tables};
use refstream_types::{MAX_HEADERS, MAX_KEY_BYTES, MAX_KEY_LENGTH, ProducerStamp, Record, Value};

/// The most records of one batch.
pub const MAX_BATCH_RECORDS: u32 = 65_536;
/// The longest encoded batch, in bytes.
pub const MAX_BATCH_BYTES: usize = 4 << 20;
/// The most bytes of a batch's records before compression.
pub const MAX_BATCH_DECODED_BYTES: usize = 16 << 20;
/// Bytes of the header.
pub const BATCH_HEADER_BYTES: usize = 56;

const MAGIC: [u8; 4] = *b"RFSB";
const VERSION: u16 = 1;
const WHAT: &str = "batch";
const CODEC_NONE: u8 = 0;
const CODEC_ZSTD: u8 = 1;
/// Bodies below this are not worth compressing.
const COMPRESS_FROM: usize = 512;
/// Everything before compression must also fit when it does not compress.
const BUILDER_BYTES: usize = MAX_BATCH_BYTES - BATCH_HEADER_BYTES;

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

/// A batch whose header and checksum have been checked. Cloning shares the bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedBatch {
    header: BatchHeader,
    bytes: Bytes,
}

impl EncodedBatch {
    /// Checks length, version, limits and CRC32C of `bytes`, which must be exactly one batch.
    ///
    /// # Errors
    /// When any of them is wrong.
    pub fn parse(bytes: Bytes) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes.clone(), WHAT);
        if bytes.len() > MAX_BATCH_BYTES {
            return Err(reader.error(format!("{} bytes, the limit is {MAX_BATCH_BYTES}", bytes.len())));
        }
        reader.preamble(MAGIC, VERSION)?;
        let codec = reader.u8()?;
        let stamped = reader.flag()?;
        let records = reader.u32()?;
        let stored = reader.u32()? as usize;
        let decoded = reader.u32()? as usize;
        let body_checksum = reader.u32()?;
        let payload_bytes = reader.u64()?;
        let stamp =
            ProducerStamp { id: reader.u64()?.into(), epoch: reader.u32()?.into(), first: reader.u64()?.into() };
        reader.verify_from(0)?;
        if codec > CODEC_ZSTD {
            return Err(reader.error(format!("codec {codec} is unknown")));
        }
        if records == 0 || records > MAX_BATCH_RECORDS {
            return Err(reader.error(format!("{records} records: a batch has 1 to {MAX_BATCH_RECORDS}")));
        }
        if decoded > MAX_BATCH_DECODED_BYTES || (codec == CODEC_NONE && decoded != stored) {
            return Err(reader.error(format!("a body of {stored} bytes cannot decode to {decoded}")));
        }
        let body = reader.take(stored)?;
        reader.end()?;
        let actual = crc32c(&body);
        if actual.0 != body_checksum {
            return Err(
                reader.error(format!("checksum mismatch of the body: stored {body_checksum:08x}, actual {actual}"))
            );
        }
        let producer = stamped.then_some(stamp);
        if !stamped && stamp != (ProducerStamp { id: 0.into(), epoch: 0.into(), first: 0.into() }) {
            return Err(reader.error("an absent producer stamp is not zero"));
        }
        if stamp.first.0.checked_add(u64::from(records)).is_none() {
            return Err(reader.error("the sequence overflows"));
        }
        Ok(Self { header: BatchHeader { records, producer, payload_bytes }, bytes })
    }

    /// The header.
    pub fn header(&self) -> BatchHeader {
        self.header
    }

    /// The encoded batch.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The records, in order; their number is the header's.
    ///
    /// # Errors
    /// When the body is not what a [`BatchBuilder`] makes.
    pub fn decode(&self) -> Result<Vec<Record>, DecodeError> {
        let stored = self.bytes.slice(BATCH_HEADER_BYTES..);
        let decoded = u32::from_le_bytes([self.bytes[16], self.bytes[17], self.bytes[18], self.bytes[19]]) as usize;
        let body = if self.bytes[6] == CODEC_ZSTD {
            let failed = |why: String| DecodeError { what: WHAT, at: BATCH_HEADER_BYTES, why };
            // The capacity is bounded by `parse`; zstd never writes beyond it.
            let body = zstd::bulk::decompress(&stored, decoded).map_err(|error| failed(format!("zstd: {error}")))?;
            if body.len() != decoded {
                return Err(failed(format!("the body decompresses to {} bytes, not {decoded}", body.len())));
            }
            Bytes::from(body)
        } else {
            stored
        };
        let mut reader = Reader::new(body, "batch body");
        let tables = Tables::read(&mut reader)?;
        // Each record takes at least a byte.
        if self.header.records as usize > reader.remaining() {
            return Err(reader.error(format!("{} records do not fit", self.header.records)));
        }
        let mut records = Vec::with_capacity(self.header.records as usize);
        let mut time = 0;
        for _ in 0..self.header.records {
            records.push(record::read(&mut reader, &tables, &mut time)?);
        }
        reader.end()?;
        Ok(records)
    }

    /// Stamps the batch with a producer's identity; only the header and its checksum are written again.
    #[must_use]
    pub fn with_producer(&self, stamp: ProducerStamp) -> Self {
        let mut bytes = self.bytes.to_vec();
        write_stamp(&mut bytes, Some(stamp));
        Self { header: BatchHeader { producer: Some(stamp), ..self.header }, bytes: bytes.into() }
    }
}

fn write_stamp(bytes: &mut [u8], stamp: Option<ProducerStamp>) {
    bytes[7] = stamp.is_some().into();
    let stamp = stamp.unwrap_or(ProducerStamp { id: 0.into(), epoch: 0.into(), first: 0.into() });
    bytes[32..40].copy_from_slice(&stamp.id.0.to_le_bytes());
    bytes[40..44].copy_from_slice(&stamp.epoch.0.to_le_bytes());
    bytes[44..52].copy_from_slice(&stamp.first.0.to_le_bytes());
    let checksum = crc32c(&bytes[..52]);
    bytes[52..56].copy_from_slice(&checksum.0.to_le_bytes());
}

/// Why a record was not taken into a batch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// The batch is full: finish it and push again.
    #[error("the batch is full")]
    Full,
    /// The record alone exceeds a limit.
    #[error("the record's {what} has {given}, the limit is {limit}")]
    TooLarge {
        /// Key, headers, value, ...
        what: &'static str,
        /// Its size.
        given: usize,
        /// The limit.
        limit: usize,
    },
    /// Its reference contradicts itself.
    #[error(transparent)]
    Reference(#[from] refstream_types::InvalidReference),
}

/// Collects records into a batch. Store names, object keys and content types repeat, so each is written once a batch.
#[derive(Debug, Default)]
pub struct BatchBuilder {
    stores: Table,
    keys: Table,
    types: Table,
    body: Writer,
    records: u32,
    payload_bytes: u64,
    time: i64,
}

impl BatchBuilder {
    /// An empty builder.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes one record.
    ///
    /// # Errors
    /// [`PushError::Full`] when the batch must be finished first; otherwise the record itself is at fault. The builder is
    /// unchanged in both cases.
    pub fn push(&mut self, record: &Record) -> Result<(), PushError> {
        check(record)?;
        if self.records == MAX_BATCH_RECORDS {
            return Err(PushError::Full);
        }
        let before = (self.body.len(), self.stores.mark(), self.keys.mark(), self.types.mark(), self.time);
        record::write(&mut self.body, record, &mut self.stores, &mut self.keys, &mut self.types, &mut self.time);
        if self.bytes() > BUILDER_BYTES {
            self.body.0.truncate(before.0);
            self.stores.reset(before.1);
            self.keys.reset(before.2);
            self.types.reset(before.3);
            self.time = before.4;
            if self.records > 0 {
                return Err(PushError::Full);
            }
            return Err(PushError::TooLarge { what: "encoded form", given: BUILDER_BYTES + 1, limit: BUILDER_BYTES });
        }
        self.records += 1;
        self.payload_bytes = self.payload_bytes.saturating_add(match &record.value {
            Value::Reference(reference) => reference.content_size,
            Value::Inline { bytes, .. } => bytes.len() as u64,
            Value::Tombstone => 0,
        });
        Ok(())
    }

    /// Records so far.
    pub fn records(&self) -> u32 {
        self.records
    }

    /// Bytes so far, before compression.
    pub fn bytes(&self) -> usize {
        // Three counts of at most three bytes each.
        self.body.len() + self.stores.bytes() + self.keys.bytes() + self.types.bytes() + 9
    }

    /// The batch, and an empty builder again; `None` when no record was pushed. Compresses where that makes it smaller.
    pub fn finish(&mut self, producer: Option<ProducerStamp>) -> Option<EncodedBatch> {
        if self.records == 0 {
            return None;
        }
        let built = std::mem::take(self);
        let mut body = Writer(Vec::with_capacity(built.bytes()));
        built.stores.write(&mut body);
        built.keys.write(&mut body);
        built.types.write(&mut body);
        body.raw(&built.body.0);
        let body = body.0;
        let compressed = (body.len() >= COMPRESS_FROM)
            .then(|| zstd::bulk::compress(&body, 1).ok())
            .flatten()
            // A few bytes saved are not worth decompressing for every reader.
            .filter(|compressed| compressed.len() < body.len() - body.len() / 16);
        let (codec, stored) = match &compressed {
            Some(compressed) => (CODEC_ZSTD, compressed),
            None => (CODEC_NONE, &body),
        };
        let mut writer = Writer(Vec::with_capacity(BATCH_HEADER_BYTES + stored.len()));
        writer.raw(&MAGIC);
        writer.u16(VERSION);
        writer.u8(codec);
        writer.u8(0);
        writer.u32(built.records);
        writer.u32(stored.len() as u32);
        writer.u32(body.len() as u32);
        writer.u32(crc32c(stored).0);
        writer.u64(built.payload_bytes);
        writer.raw(&[0; BATCH_HEADER_BYTES - 32]);
        writer.raw(stored);
        write_stamp(&mut writer.0, producer);
        let header = BatchHeader { records: built.records, producer, payload_bytes: built.payload_bytes };
        Some(EncodedBatch { header, bytes: writer.0.into() })
    }
}

fn check(record: &Record) -> Result<(), PushError> {
    let limit = |what, given: usize, limit: usize| {
        if given > limit { Err(PushError::TooLarge { what, given, limit }) } else { Ok(()) }
    };
    limit("key", record.key.as_ref().map_or(0, Bytes::len), MAX_KEY_LENGTH)?;
    limit("list of headers", record.headers.len(), MAX_HEADERS)?;
    limit("source name", record.source_name.as_ref().map_or(0, String::len), record::MAX_NAME_BYTES)?;
    for header in &record.headers {
        limit("header name", header.name.len(), record::MAX_NAME_BYTES)?;
        limit("header value", header.value.len(), record::MAX_VALUE_BYTES)?;
    }
    match &record.value {
        Value::Reference(reference) => {
            limit("content type", reference.content_type.as_ref().map_or(0, String::len), record::MAX_TAG_BYTES)?;
            limit("etag", reference.etag.as_ref().map_or(0, String::len), record::MAX_TAG_BYTES)?;
            limit("version", reference.version.as_ref().map_or(0, String::len), MAX_KEY_BYTES)?;
            reference.validate()?;
        }
        Value::Inline { bytes, .. } => limit("inline value", bytes.len(), record::MAX_VALUE_BYTES)?,
        Value::Tombstone => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests;
