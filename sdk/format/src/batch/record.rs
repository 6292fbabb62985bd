//! One record, as bytes of a batch's body.

use super::{
    BatchHeader, HEADER_COST, MAX_BATCH_MEMORY, MAX_BATCH_RECORDS, MAX_INLINE_BYTES, MAX_RECORD_BYTES, MAX_TEXT_BYTES,
    RECORD_COST,
    builder::{Places, Times},
};
use crate::{
    DecodeError,
    wire::{Reader, Writer},
};
use bytes::Bytes;
use refstream_types::{
    ContentEncoding, ContentHash, Crc32c, Header, Key, MAX_HEADERS, MAX_KEY_BYTES, MAX_KEY_LENGTH,
    MAX_STORE_NAME_BYTES, Record, Reference, StoreName, Value,
};

const KEY: u8 = 1;
const EVENT_TIME: u8 = 1 << 1;
const HEADERS: u8 = 1 << 2;
const SOURCE_NAME: u8 = 1 << 3;
const SOURCE_MTIME: u8 = 1 << 4;
const VALUE_SHIFT: u8 = 5;
const TOMBSTONE: u8 = 0;
const INLINE: u8 = 1;
const REFERENCE: u8 = 2;

const OFFSET: u8 = 1;
const CHECKSUM: u8 = 1 << 1;
const HASH: u8 = 1 << 2;
const ZSTD: u8 = 1 << 3;
const CONTENT_TYPE: u8 = 1 << 4;
const ETAG: u8 = 1 << 5;
const OBJECT_VERSION: u8 = 1 << 6;
const UNKNOWN: u8 = 1 << 7;

fn bit(present: bool, bit: u8) -> u8 {
    if present { bit } else { 0 }
}

/// Appends one record; returns the times from which the next record's are told.
pub(super) fn encode(writer: &mut Writer, record: &Record, places: Places, mut times: Times) -> Times {
    let kind = match &record.value {
        Value::Tombstone => TOMBSTONE,
        Value::Inline { .. } => INLINE,
        Value::Reference(_) => REFERENCE,
    };
    writer.u8(bit(record.key.is_some(), KEY)
        | bit(record.event_time.is_some(), EVENT_TIME)
        | bit(!record.headers.is_empty(), HEADERS)
        | bit(record.source_name.is_some(), SOURCE_NAME)
        | bit(record.source_mtime.is_some(), SOURCE_MTIME)
        | kind << VALUE_SHIFT);
    if let Some(key) = &record.key {
        writer.bytes(key);
    }
    if let Some(time) = record.event_time {
        writer.time(times.event, time);
        times.event = time;
    }
    if !record.headers.is_empty() {
        writer.list(&record.headers, |writer, header| {
            writer.bytes(header.name.as_bytes());
            writer.bytes(&header.value);
        });
    }
    if let Some(name) = &record.source_name {
        writer.bytes(name.as_bytes());
    }
    if let Some(time) = record.source_mtime {
        writer.time(times.mtime, time);
        times.mtime = time;
    }
    match &record.value {
        Value::Tombstone => {}
        Value::Inline { bytes, content_hash } => {
            writer.raw(&content_hash.0);
            writer.bytes(bytes);
        }
        Value::Reference(reference) => encode_reference(writer, reference, places),
    }
    times
}

fn encode_reference(writer: &mut Writer, reference: &Reference, places: Places) {
    let zstd = reference.encoding == ContentEncoding::Zstd;
    writer.u8(bit(reference.offset.is_some(), OFFSET)
        | bit(reference.checksum.is_some(), CHECKSUM)
        | bit(reference.content_hash.is_some(), HASH)
        | bit(zstd, ZSTD)
        | bit(reference.content_type.is_some(), CONTENT_TYPE)
        | bit(reference.etag.is_some(), ETAG)
        | bit(reference.version.is_some(), OBJECT_VERSION));
    writer.varint(places.store.index.into());
    writer.varint(places.key.index.into());
    if let Some(offset) = reference.offset {
        writer.varint(offset);
    }
    writer.varint(reference.size);
    if let Some(checksum) = reference.checksum {
        writer.u32(checksum.0);
    }
    if let Some(hash) = reference.content_hash {
        writer.raw(&hash.0);
    }
    if zstd {
        writer.varint(reference.content_size);
    }
    if reference.content_type.is_some() {
        writer.varint(places.content_type.index.into());
    }
    for text in [&reference.etag, &reference.version].into_iter().flatten() {
        writer.bytes(text.as_bytes());
    }
}

/// The tables of a body, and what may still be allocated for its records.
struct Decoder {
    stores: Vec<StoreName>,
    keys: Vec<Key>,
    types: Vec<String>,
    times: Times,
    memory: usize,
    payload_bytes: u64,
}

/// Reads a whole body.
pub(super) fn decode_body(body: Bytes, header: &BatchHeader) -> Result<Vec<Record>, DecodeError> {
    let mut reader = Reader::new(body, "batch body");
    let names = MAX_BATCH_RECORDS as usize;
    let mut decoder = Decoder {
        stores: reader.list(names, |reader| reader.parsed(MAX_STORE_NAME_BYTES))?,
        keys: reader.list(names, |reader| reader.parsed(MAX_KEY_BYTES))?,
        types: reader.list(names, |reader| reader.text(MAX_TEXT_BYTES))?,
        times: Times::default(),
        memory: MAX_BATCH_MEMORY,
        payload_bytes: 0,
    };
    if header.records as usize > reader.remaining() {
        return Err(reader.error(format!("{} records cannot stand in {} bytes", header.records, reader.remaining())));
    }
    let mut records = Vec::with_capacity(header.records as usize);
    for _ in 0..header.records {
        let start = reader.at();
        records.push(decoder.record(&mut reader)?);
        if reader.at() - start > MAX_RECORD_BYTES {
            return Err(reader.error(format!("a record of more than {MAX_RECORD_BYTES} bytes")));
        }
    }
    reader.end()?;
    if decoder.payload_bytes != header.payload_bytes {
        return Err(reader.error(format!(
            "the records have {} payload bytes, the header says {}",
            decoder.payload_bytes, header.payload_bytes
        )));
    }
    Ok(records)
}

impl Decoder {
    fn payload(&mut self, reader: &Reader, bytes: u64) -> Result<(), DecodeError> {
        self.payload_bytes =
            self.payload_bytes.checked_add(bytes).ok_or_else(|| reader.error("the payload bytes exceed 64 bits"))?;
        Ok(())
    }

    fn record(&mut self, reader: &mut Reader) -> Result<Record, DecodeError> {
        self.memory = charged(reader, self.memory, RECORD_COST)?;
        let flags = reader.u8()?;
        let has = |bit| flags & bit != 0;
        let key = if has(KEY) { Some(own(reader.bytes(MAX_KEY_LENGTH)?)) } else { None };
        let event_time = if has(EVENT_TIME) { Some(reader.time(self.times.event)?) } else { None };
        self.times.event = event_time.unwrap_or(self.times.event);
        let mut headers = Vec::new();
        if has(HEADERS) {
            headers = reader.list(MAX_HEADERS, |reader| {
                self.memory = charged(reader, self.memory, HEADER_COST)?;
                Ok(Header { name: reader.text(MAX_TEXT_BYTES)?, value: own(reader.bytes(MAX_RECORD_BYTES)?) })
            })?;
            if headers.is_empty() {
                return Err(reader.error("headers announced, none given"));
            }
        }
        let source_name = if has(SOURCE_NAME) { Some(reader.text(MAX_TEXT_BYTES)?) } else { None };
        let source_mtime = if has(SOURCE_MTIME) { Some(reader.time(self.times.mtime)?) } else { None };
        self.times.mtime = source_mtime.unwrap_or(self.times.mtime);
        let value = match flags >> VALUE_SHIFT {
            TOMBSTONE => Value::Tombstone,
            INLINE => {
                let content_hash = ContentHash(reader.array()?);
                let bytes = own(reader.bytes(MAX_INLINE_BYTES)?);
                self.payload(reader, bytes.len() as u64)?;
                Value::Inline { bytes, content_hash }
            }
            REFERENCE => Value::Reference(Box::new(self.reference(reader)?)),
            other => return Err(reader.error(format!("the kind of value {other} is unknown"))),
        };
        Ok(Record { key, event_time, headers, source_name, source_mtime, value })
    }

    fn reference(&mut self, reader: &mut Reader) -> Result<Reference, DecodeError> {
        let flags = reader.u8()?;
        if flags & UNKNOWN != 0 {
            return Err(reader.error(format!("the reference flags {flags:#04x} are unknown")));
        }
        let has = |bit| flags & bit != 0;
        let store = name(reader, &self.stores, "store")?.clone();
        let key = name(reader, &self.keys, "key")?;
        self.memory = charged(reader, self.memory, store.as_str().len() + key.as_str().len())?;
        let key = key.clone();
        let offset = if has(OFFSET) { Some(reader.varint()?) } else { None };
        let size = reader.varint()?;
        let checksum = if has(CHECKSUM) { Some(Crc32c(reader.u32()?)) } else { None };
        let content_hash = if has(HASH) { Some(ContentHash(reader.array()?)) } else { None };
        let (encoding, content_size) =
            if has(ZSTD) { (ContentEncoding::Zstd, reader.varint()?) } else { (ContentEncoding::Identity, size) };
        let mut content_type = None;
        if has(CONTENT_TYPE) {
            let text = name(reader, &self.types, "content type")?;
            self.memory = charged(reader, self.memory, text.len())?;
            content_type = Some(text.clone());
        }
        let etag = if has(ETAG) { Some(reader.text(MAX_TEXT_BYTES)?) } else { None };
        let version = if has(OBJECT_VERSION) { Some(reader.text(MAX_TEXT_BYTES)?) } else { None };
        self.payload(reader, content_size)?;
        let reference = Reference {
            store,
            key,
            offset,
            size,
            checksum,
            content_hash,
            content_size,
            encoding,
            content_type,
            etag,
            version,
        };
        reference.validate().map_err(|error| reader.error(error.to_string()))?;
        Ok(reference)
    }
}

/// A small value must not keep its whole batch in memory; a large one is shared rather than copied.
fn own(bytes: Bytes) -> Bytes {
    if bytes.len() < 4_096 { Bytes::copy_from_slice(&bytes) } else { bytes }
}

/// The name that the next index stands for.
fn name<'a, T>(reader: &mut Reader, names: &'a [T], what: &str) -> Result<&'a T, DecodeError> {
    let index = reader.varint()?;
    usize::try_from(index)
        .ok()
        .and_then(|index| names.get(index))
        .ok_or_else(|| reader.error(format!("{what} {index} of {}", names.len())))
}

/// What is left of `memory` after `bytes` of it.
fn charged(reader: &Reader, memory: usize, bytes: usize) -> Result<usize, DecodeError> {
    memory
        .checked_sub(bytes)
        .ok_or_else(|| reader.error(format!("the records need more than {MAX_BATCH_MEMORY} bytes of memory")))
}
