//! Encoding of batches.

use super::{
    BATCH_HEADER_BYTES, CODEC_NONE, CODEC_ZSTD, EncodedBatch, FullHeader, HEADER_COST, MAX_BATCH_BYTES,
    MAX_BATCH_MEMORY, MAX_BATCH_RECORDS, MAX_INLINE_BYTES, MAX_RECORD_BYTES, MAX_TEXT_BYTES, RECORD_COST, record,
};
use crate::{batch::BatchHeader, crc32c, wire::Writer};
use refstream_types::{MAX_HEADERS, MAX_KEY_LENGTH, ProducerStamp, Record, Reference, Timestamp, Value};
use std::{collections::HashMap, fmt};

/// Hashes and checksums do not compress; this level takes what names and numbers repeat at next to no cost.
const ZSTD_LEVEL: i32 = 1;
/// Bodies below this are stored as they are.
const MIN_COMPRESSED: usize = 128;
/// Room for the counts of the three tables.
const TABLE_COUNTS: usize = 3 * 3;

/// Why a record was not taken into a batch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// The batch is full: finish it and push again.
    #[error("the batch is full")]
    Full,
    /// The record alone exceeds a limit.
    #[error("the record's {what} is {given}{unit}, the limit is {limit}{unit}", unit = if *what == HEADERS { "" } else { " bytes" })]
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

/// The one limit that counts no bytes.
const HEADERS: &str = "number of headers";

/// Where a name stands in its table, or will stand.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Place {
    pub(super) index: u32,
    start: usize,
    end: usize,
}

/// Names, each written once.
#[derive(Debug, Default)]
struct Table {
    encoded: Writer,
    places: HashMap<Box<str>, Place>,
    /// The name used last: most records of a batch share it.
    last: Place,
}

impl Table {
    fn count(&self) -> u32 {
        self.places.len() as u32
    }
    /// The name's place, or the next free one.
    fn find(&self, name: &str) -> Place {
        if self.last.end > 0 && &self.encoded.0[self.last.start..self.last.end] == name.as_bytes() {
            return self.last;
        }
        let next = Place { index: self.count(), start: 0, end: 0 };
        self.places.get(name).copied().unwrap_or(next)
    }
    /// Bytes by which the table grows when a name is put at `place`.
    fn growth(&self, name: &str, place: Place) -> usize {
        if place.index < self.count() { 0 } else { name.len() + 5 }
    }
    fn put(&mut self, name: &str, mut place: Place) {
        if place.index == self.count() {
            self.encoded.bytes(name.as_bytes());
            place.end = self.encoded.len();
            place.start = place.end - name.len();
            self.places.insert(name.into(), place);
        }
        self.last = place;
    }
    fn clear(&mut self) {
        self.encoded.0.clear();
        self.places.clear();
        self.last = Place::default();
    }
}

/// The compressor is kept from batch to batch: its tables are larger than most batches.
#[derive(Default)]
struct Compressor(Option<zstd::bulk::Compressor<'static>>);

impl Compressor {
    /// `None` where compression fails or does not pay.
    fn compress(&mut self, body: &[u8]) -> Option<Vec<u8>> {
        if body.len() < MIN_COMPRESSED {
            return None;
        }
        if self.0.is_none() {
            self.0 = zstd::bulk::Compressor::new(ZSTD_LEVEL).ok();
        }
        self.0.as_mut()?.compress(body).ok().filter(|compressed| compressed.len() < body.len())
    }
}

impl fmt::Debug for Compressor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Compressor")
    }
}

/// Collects records into a batch. Store names, object keys and content types repeat, so each is written once a batch.
#[derive(Debug, Default)]
pub struct BatchBuilder {
    records: u32,
    rows: Writer,
    stores: Table,
    keys: Table,
    types: Table,
    times: Times,
    payload_bytes: u64,
    memory: usize,
    compressor: Compressor,
}

/// The times of the last record that had them, from which the next are told.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times {
    pub(super) event: Timestamp,
    pub(super) mtime: Timestamp,
}

/// Where a reference's names are.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Places {
    pub(super) store: Place,
    pub(super) key: Place,
    pub(super) content_type: Place,
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
        let mut places = Places::default();
        let mut growth = 0;
        let mut memory = RECORD_COST + record.headers.len() * HEADER_COST;
        let payload;
        let reference = match &record.value {
            Value::Reference(reference) => {
                let reference: &Reference = reference;
                let (store, key) = (reference.store.as_str(), reference.key.as_str());
                places.store = self.stores.find(store);
                places.key = self.keys.find(key);
                growth += self.stores.growth(store, places.store) + self.keys.growth(key, places.key);
                memory += store.len() + key.len();
                if let Some(content_type) = &reference.content_type {
                    places.content_type = self.types.find(content_type);
                    growth += self.types.growth(content_type, places.content_type);
                    memory += content_type.len();
                }
                payload = reference.content_size;
                Some(reference)
            }
            Value::Inline { bytes, .. } => {
                payload = bytes.len() as u64;
                None
            }
            Value::Tombstone => {
                payload = 0;
                None
            }
        };
        let payload_bytes = self.payload_bytes.checked_add(payload).ok_or(PushError::Full)?;
        let start = self.rows.len();
        let times = record::encode(&mut self.rows, record, places, self.times);
        let length = self.rows.len() - start;
        let full =
            self.bytes() + growth + BATCH_HEADER_BYTES > MAX_BATCH_BYTES || self.memory + memory > MAX_BATCH_MEMORY;
        if length > MAX_RECORD_BYTES || full {
            self.rows.0.truncate(start);
            return Err(if length > MAX_RECORD_BYTES {
                PushError::TooLarge { what: "encoded form", given: length, limit: MAX_RECORD_BYTES }
            } else {
                PushError::Full
            });
        }
        if let Some(reference) = reference {
            self.stores.put(reference.store.as_str(), places.store);
            self.keys.put(reference.key.as_str(), places.key);
            if let Some(content_type) = &reference.content_type {
                self.types.put(content_type, places.content_type);
            }
        }
        self.records += 1;
        self.times = times;
        self.payload_bytes = payload_bytes;
        self.memory += memory;
        Ok(())
    }
    /// Records so far.
    pub fn records(&self) -> u32 {
        self.records
    }
    /// Bytes so far, before compression.
    pub fn bytes(&self) -> usize {
        if self.rows.len() == 0 {
            return 0;
        }
        TABLE_COUNTS + self.stores.encoded.len() + self.keys.encoded.len() + self.types.encoded.len() + self.rows.len()
    }
    /// The batch, and an empty builder again; `None` when no record was pushed. Compresses where that makes it smaller.
    pub fn finish(&mut self, producer: Option<ProducerStamp>) -> Option<EncodedBatch> {
        if self.records == 0 {
            return None;
        }
        let mut body = Writer(Vec::with_capacity(self.bytes()));
        for table in [&mut self.stores, &mut self.keys, &mut self.types] {
            body.varint(table.count().into());
            body.raw(&table.encoded.0);
            table.clear();
        }
        body.raw(&self.rows.0);
        let (codec, stored) = match self.compressor.compress(&body.0) {
            Some(compressed) => (CODEC_ZSTD, compressed),
            None => (CODEC_NONE, Vec::new()),
        };
        let decoded = body.len() as u32;
        let stored = if codec == CODEC_NONE { &body.0 } else { &stored };
        let header = FullHeader {
            public: BatchHeader { records: self.records, producer, payload_bytes: self.payload_bytes },
            codec,
            stored: stored.len() as u32,
            decoded,
            body_checksum: crc32c(stored).0,
        };
        let mut batch = Writer(Vec::with_capacity(BATCH_HEADER_BYTES + stored.len()));
        header.encode(&mut batch);
        batch.raw(stored);
        self.rows.0.clear();
        (self.records, self.payload_bytes, self.memory) = (0, 0, 0);
        self.times = Times::default();
        Some(EncodedBatch { header: header.public, bytes: batch.0.into() })
    }
}

/// Checks the limits of each part of a record.
fn check(record: &Record) -> Result<(), PushError> {
    let within = |what, given, limit| {
        if given > limit { Err(PushError::TooLarge { what, given, limit }) } else { Ok(()) }
    };
    within("key", record.key.as_ref().map_or(0, |key| key.len()), MAX_KEY_LENGTH)?;
    within(HEADERS, record.headers.len(), MAX_HEADERS)?;
    let mut headers = 0;
    for header in &record.headers {
        within("header name", header.name.len(), MAX_TEXT_BYTES)?;
        headers += header.name.len() + header.value.len();
    }
    within("headers", headers, MAX_RECORD_BYTES)?;
    within("source name", record.source_name.as_ref().map_or(0, String::len), MAX_TEXT_BYTES)?;
    match &record.value {
        Value::Reference(reference) => {
            reference.validate()?;
            for (what, text) in
                [("content type", &reference.content_type), ("etag", &reference.etag), ("version", &reference.version)]
            {
                within(what, text.as_ref().map_or(0, String::len), MAX_TEXT_BYTES)?;
            }
            Ok(())
        }
        Value::Inline { bytes, .. } => within("value", bytes.len(), MAX_INLINE_BYTES),
        Value::Tombstone => Ok(()),
    }
}
