//! One record within a batch.
//!
//! A byte of flags says which optional fields follow: key 1, event time 2, headers 4, source name 8, source mtime 16; bits 5 and 6 are
//! the kind of value: 0 tombstone, 1 inline, 2 reference. Then the fields in that order. Times are deltas to the last event time of the batch.

use crate::{
    DecodeError,
    wire::{Reader, Writer},
};
use bytes::Bytes;
use refstream_types::{
    ContentEncoding, ContentHash, Crc32c, Header, Key, MAX_HEADERS, MAX_KEY_BYTES, MAX_KEY_LENGTH,
    MAX_STORE_NAME_BYTES, Record, Reference, StoreName, Timestamp, Value,
};
use std::collections::HashMap;

/// The longest name of a header or source, in bytes.
pub(super) const MAX_NAME_BYTES: usize = 32 << 10;
/// The longest value of a header, and the longest inline value, in bytes.
pub(super) const MAX_VALUE_BYTES: usize = 2 << 20;
/// The longest content type or etag, in bytes.
pub(super) const MAX_TAG_BYTES: usize = 1_024;
const MAX_TABLE: usize = super::MAX_BATCH_RECORDS as usize;

const KEY: u8 = 1;
const EVENT_TIME: u8 = 2;
const HEADERS: u8 = 4;
const SOURCE_NAME: u8 = 8;
const SOURCE_MTIME: u8 = 16;
const KIND_SHIFT: u32 = 5;
const TOMBSTONE: u8 = 0;
const INLINE: u8 = 1;
const REFERENCE: u8 = 2;

const OFFSET: u8 = 1;
const CHECKSUM: u8 = 2;
const CONTENT_HASH: u8 = 4;
const ZSTD: u8 = 8;
const CONTENT_TYPE: u8 = 16;
const ETAG: u8 = 32;
const OBJECT_VERSION: u8 = 64;

/// Texts that are written once a batch.
#[derive(Debug, Default)]
pub(super) struct Table {
    order: Vec<Box<str>>,
    positions: HashMap<Box<str>, u32>,
    bytes: usize,
}

impl Table {
    fn position(&mut self, text: &str) -> u32 {
        // Neighbours mostly share what repeats.
        if let Some(last) = self.order.last()
            && &**last == text
        {
            return self.order.len() as u32 - 1;
        }
        if let Some(position) = self.positions.get(text) {
            return *position;
        }
        let position = self.order.len() as u32;
        self.bytes += text.len() + if text.len() < 0x80 { 1 } else { 2 };
        self.order.push(text.into());
        self.positions.insert(text.into(), position);
        position
    }
    pub(super) fn mark(&self) -> (usize, usize) {
        (self.order.len(), self.bytes)
    }
    pub(super) fn reset(&mut self, (count, bytes): (usize, usize)) {
        for text in self.order.drain(count..) {
            self.positions.remove(&text);
        }
        self.bytes = bytes;
    }
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
    pub(super) fn write(&self, writer: &mut Writer) {
        writer.list(&self.order, |writer, text| writer.bytes(text.as_bytes()));
    }
}

/// The tables of a batch that is read.
pub(super) struct Tables {
    stores: Vec<StoreName>,
    keys: Vec<Key>,
    types: Vec<String>,
}

impl Tables {
    pub(super) fn read(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self {
            stores: reader.list(MAX_TABLE, |r| r.parsed(MAX_STORE_NAME_BYTES))?,
            keys: reader.list(MAX_TABLE, |r| r.parsed(MAX_KEY_BYTES))?,
            types: reader.list(MAX_TABLE, |r| r.text(MAX_TAG_BYTES))?,
        })
    }
}

pub(super) fn write(
    writer: &mut Writer,
    record: &Record,
    stores: &mut Table,
    keys: &mut Table,
    types: &mut Table,
    time: &mut i64,
) {
    let bit = |set: bool, bit: u8| if set { bit } else { 0 };
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
        | kind << KIND_SHIFT);
    if let Some(key) = &record.key {
        writer.bytes(key);
    }
    if let Some(event) = record.event_time {
        writer.signed(event.as_micros() - *time);
        *time = event.as_micros();
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
    if let Some(mtime) = record.source_mtime {
        writer.signed(mtime.as_micros() - *time);
    }
    match &record.value {
        Value::Tombstone => {}
        Value::Inline { bytes, content_hash } => {
            writer.raw(&content_hash.0);
            writer.bytes(bytes);
        }
        Value::Reference(reference) => {
            writer.u8(bit(reference.offset.is_some(), OFFSET)
                | bit(reference.checksum.is_some(), CHECKSUM)
                | bit(reference.content_hash.is_some(), CONTENT_HASH)
                | bit(reference.encoding == ContentEncoding::Zstd, ZSTD)
                | bit(reference.content_type.is_some(), CONTENT_TYPE)
                | bit(reference.etag.is_some(), ETAG)
                | bit(reference.version.is_some(), OBJECT_VERSION));
            writer.varint(stores.position(reference.store.as_str()).into());
            writer.varint(keys.position(reference.key.as_str()).into());
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
            if reference.encoding == ContentEncoding::Zstd {
                writer.varint(reference.content_size);
            }
            if let Some(content_type) = &reference.content_type {
                writer.varint(types.position(content_type).into());
            }
            if let Some(etag) = &reference.etag {
                writer.bytes(etag.as_bytes());
            }
            if let Some(version) = &reference.version {
                writer.bytes(version.as_bytes());
            }
        }
    }
}

fn entry<T: Clone>(reader: &mut Reader, table: &[T]) -> Result<T, DecodeError> {
    let position = reader.varint()?;
    usize::try_from(position)
        .ok()
        .and_then(|position| table.get(position))
        .cloned()
        .ok_or_else(|| reader.error(format!("entry {position} of a table of {}", table.len())))
}

fn time_after(reader: &mut Reader, time: i64) -> Result<Timestamp, DecodeError> {
    let delta = reader.signed()?;
    let micros = time.checked_add(delta).ok_or_else(|| reader.error("a time overflows"))?;
    let timestamp = Timestamp::from_micros(micros);
    if timestamp.as_micros() == micros { Ok(timestamp) } else { Err(reader.error("a time is out of range")) }
}

pub(super) fn read(reader: &mut Reader, tables: &Tables, time: &mut i64) -> Result<Record, DecodeError> {
    let flags = reader.u8()?;
    if flags & 0x80 != 0 {
        return Err(reader.error("an unknown flag of a record"));
    }
    let key = if flags & KEY != 0 { Some(own(reader.bytes(MAX_KEY_LENGTH)?)) } else { None };
    let event_time = if flags & EVENT_TIME != 0 {
        let event = time_after(reader, *time)?;
        *time = event.as_micros();
        Some(event)
    } else {
        None
    };
    let headers = if flags & HEADERS != 0 {
        reader.list(MAX_HEADERS, |reader| {
            let name = reader.text(MAX_NAME_BYTES)?;
            Ok(Header { name, value: own(reader.bytes(MAX_VALUE_BYTES)?) })
        })?
    } else {
        Vec::new()
    };
    let source_name = if flags & SOURCE_NAME != 0 { Some(reader.text(MAX_NAME_BYTES)?) } else { None };
    let source_mtime = if flags & SOURCE_MTIME != 0 { Some(time_after(reader, *time)?) } else { None };
    let value = match flags >> KIND_SHIFT & 3 {
        TOMBSTONE => Value::Tombstone,
        INLINE => {
            let content_hash = ContentHash(reader.array()?);
            Value::Inline { content_hash, bytes: own(reader.bytes(MAX_VALUE_BYTES)?) }
        }
        REFERENCE => Value::Reference(Box::new(reference(reader, tables)?)),
        other => return Err(reader.error(format!("kind {other} of a value is unknown"))),
    };
    Ok(Record { key, event_time, headers, source_name, source_mtime, value })
}

/// A small value must not keep its whole batch in memory; a large one is shared rather than copied.
fn own(bytes: Bytes) -> Bytes {
    if bytes.len() < 4_096 { Bytes::copy_from_slice(&bytes) } else { bytes }
}

fn reference(reader: &mut Reader, tables: &Tables) -> Result<Reference, DecodeError> {
    let flags = reader.u8()?;
    if flags & 0x80 != 0 {
        return Err(reader.error("an unknown flag of a reference"));
    }
    let store = entry(reader, &tables.stores)?;
    let key = entry(reader, &tables.keys)?;
    let offset = if flags & OFFSET != 0 { Some(reader.varint()?) } else { None };
    let size = reader.varint()?;
    let checksum = if flags & CHECKSUM != 0 { Some(Crc32c(reader.u32()?)) } else { None };
    let content_hash = if flags & CONTENT_HASH != 0 { Some(ContentHash(reader.array()?)) } else { None };
    let (encoding, content_size) =
        if flags & ZSTD != 0 { (ContentEncoding::Zstd, reader.varint()?) } else { (ContentEncoding::Identity, size) };
    let content_type = if flags & CONTENT_TYPE != 0 { Some(entry(reader, &tables.types)?) } else { None };
    let etag = if flags & ETAG != 0 { Some(reader.text(MAX_TAG_BYTES)?) } else { None };
    let version = if flags & OBJECT_VERSION != 0 { Some(reader.text(MAX_KEY_BYTES)?) } else { None };
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
