//! One record, as bytes of a batch's body.

use super::builder::{Places, Times};
use crate::wire::Writer;
use refstream_types::{ContentEncoding, Record, Reference, Value};

pub(super) const KEY: u8 = 1;
pub(super) const EVENT_TIME: u8 = 1 << 1;
pub(super) const HEADERS: u8 = 1 << 2;
pub(super) const SOURCE_NAME: u8 = 1 << 3;
pub(super) const SOURCE_MTIME: u8 = 1 << 4;
pub(super) const VALUE_SHIFT: u8 = 5;
pub(super) const TOMBSTONE: u8 = 0;
pub(super) const INLINE: u8 = 1;
pub(super) const REFERENCE: u8 = 2;

pub(super) const OFFSET: u8 = 1;
pub(super) const CHECKSUM: u8 = 1 << 1;
pub(super) const HASH: u8 = 1 << 2;
pub(super) const ZSTD: u8 = 1 << 3;
pub(super) const CONTENT_TYPE: u8 = 1 << 4;
pub(super) const ETAG: u8 = 1 << 5;
pub(super) const OBJECT_VERSION: u8 = 1 << 6;
pub(super) const UNKNOWN: u8 = 1 << 7;

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
