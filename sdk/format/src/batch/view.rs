//! Decoding of batches: records as views of the batch's bytes, so that whoever needs them only once allocates nothing for them.

use super::{
    BATCH_HEADER_BYTES, BatchHeader, CODEC_ZSTD, EncodedBatch, HEADER_COST, MAX_BATCH_DECODED_BYTES, MAX_BATCH_MEMORY,
    MAX_BATCH_RECORDS, MAX_INLINE_BYTES, MAX_RECORD_BYTES, MAX_TEXT_BYTES, RECORD_COST,
    builder::Times,
    record::{
        CHECKSUM, CONTENT_TYPE, ETAG, EVENT_TIME, HASH, HEADERS, INLINE, KEY, OBJECT_VERSION, OFFSET, REFERENCE,
        SOURCE_MTIME, SOURCE_NAME, TOMBSTONE, UNKNOWN, VALUE_SHIFT, ZSTD,
    },
};
use crate::{DecodeError, wire::Reader};
use bytes::Bytes;
use refstream_types::{
    ByteRange, ContentEncoding, ContentHash, Crc32c, Header, Key, MAX_HEADERS, MAX_KEY_BYTES, MAX_KEY_LENGTH,
    MAX_STORE_NAME_BYTES, Record, Reference, StoreName, Timestamp, Value,
};
use std::fmt;

/// A record whose texts and bytes belong to somebody else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordView<'a> {
    /// See [`Record::key`].
    pub key: Option<&'a [u8]>,
    /// See [`Record::event_time`].
    pub event_time: Option<Timestamp>,
    /// Names and values, in order; see [`Record::headers`].
    pub headers: &'a [(&'a str, &'a [u8])],
    /// See [`Record::source_name`].
    pub source_name: Option<&'a str>,
    /// See [`Record::source_mtime`].
    pub source_mtime: Option<Timestamp>,
    /// See [`Record::value`].
    pub value: ValueView<'a>,
}

/// What a [`RecordView`] carries; see [`Value`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueView<'a> {
    /// A stored payload.
    Reference(ReferenceView<'a>),
    /// A small value in the record itself.
    Inline {
        /// The bytes as given.
        bytes: &'a [u8],
        /// BLAKE3 of the bytes.
        content_hash: &'a [u8; 32],
    },
    /// Nothing.
    Tombstone,
}

/// A valid reference; its fields are those of [`Reference`], `store` and `key` checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are documented at Reference")]
pub struct ReferenceView<'a> {
    pub store: &'a str,
    pub key: &'a str,
    pub offset: Option<u64>,
    pub size: u64,
    pub checksum: Option<Crc32c>,
    pub content_hash: Option<&'a [u8; 32]>,
    pub content_size: u64,
    pub encoding: ContentEncoding,
    pub content_type: Option<&'a str>,
    pub etag: Option<&'a str>,
    pub version: Option<&'a str>,
}

impl<'a> RecordView<'a> {
    /// A view of `record`; `headers` is room for the list of its headers.
    pub fn of(record: &'a Record, headers: &'a mut Vec<(&'a str, &'a [u8])>) -> Self {
        headers.clear();
        headers.extend(record.headers.iter().map(|header| (header.name.as_str(), header.value.as_ref())));
        Self {
            key: record.key.as_deref(),
            event_time: record.event_time,
            headers,
            source_name: record.source_name.as_deref(),
            source_mtime: record.source_mtime,
            value: match &record.value {
                Value::Reference(reference) => ValueView::Reference(ReferenceView::of(reference)),
                Value::Inline { bytes, content_hash } => ValueView::Inline { bytes, content_hash: &content_hash.0 },
                Value::Tombstone => ValueView::Tombstone,
            },
        }
    }
}

impl<'a> ReferenceView<'a> {
    fn of(reference: &'a Reference) -> Self {
        Self {
            store: reference.store.as_str(),
            key: reference.key.as_str(),
            offset: reference.offset,
            size: reference.size,
            checksum: reference.checksum,
            content_hash: reference.content_hash.as_ref().map(|hash| &hash.0),
            content_size: reference.content_size,
            encoding: reference.encoding,
            content_type: reference.content_type.as_deref(),
            etag: reference.etag.as_deref(),
            version: reference.version.as_deref(),
        }
    }
}

/// Decodes one batch after another in the same memory: at most [`MAX_BATCH_DECODED_BYTES`] and the tables of a batch.
#[derive(Default)]
pub struct BatchDecoder {
    decompressor: Option<zstd::bulk::Decompressor<'static>>,
    body: Vec<u8>,
}

impl fmt::Debug for BatchDecoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BatchDecoder")
    }
}

impl BatchDecoder {
    /// A decoder that has not allocated anything yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Hands the records of `batch` to `take`, in order; their number is the header's. Stops at the first error. Whether the batch
    /// as a whole is right is known only at the end: `take` may have seen records of one that is not.
    ///
    /// # Errors
    /// When the body is not what a [`BatchBuilder`](super::BatchBuilder) makes, and what `take` returned.
    pub fn each<E: From<DecodeError>>(
        &mut self,
        batch: &EncodedBatch,
        take: impl FnMut(RecordView<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let header = batch.full_header()?;
        let stored = &batch.bytes()[BATCH_HEADER_BYTES..];
        let body = if header.codec == CODEC_ZSTD {
            self.decompress(stored, header.decoded as usize)?;
            self.body.as_slice()
        } else {
            stored
        };
        each(body, &header.public, take)
    }

    /// Decompresses one zstd frame that says itself that it holds `length` bytes, into `body`.
    fn decompress(&mut self, stored: &[u8], length: usize) -> Result<(), DecodeError> {
        debug_assert!(length <= MAX_BATCH_DECODED_BYTES, "checked with the header");
        let error = |why: String| DecodeError { what: "batch body", at: BATCH_HEADER_BYTES, why };
        match zstd::zstd_safe::get_frame_content_size(stored) {
            Ok(Some(size)) if size == length as u64 => {}
            Ok(size) => return Err(error(format!("the zstd frame holds {size:?} bytes, {length} announced"))),
            Err(_) => return Err(error("no zstd frame".into())),
        }
        let decompressor = match &mut self.decompressor {
            Some(made) => made,
            none => none.insert(zstd::bulk::Decompressor::new().map_err(|why| error(format!("zstd: {why}")))?),
        };
        self.body.clear();
        self.body.reserve(length);
        let decoded =
            decompressor.decompress_to_buffer(stored, &mut self.body).map_err(|why| error(format!("zstd: {why}")))?;
        if decoded != length {
            return Err(error(format!("the zstd frame gave {decoded} bytes, {length} announced")));
        }
        Ok(())
    }

    /// The records of `batch` on their own.
    pub(super) fn records(&mut self, batch: &EncodedBatch) -> Result<Vec<Record>, DecodeError> {
        let header = batch.full_header()?;
        let stored = batch.bytes().slice(BATCH_HEADER_BYTES..);
        let body = if header.codec == CODEC_ZSTD {
            self.decompress(&stored, header.decoded as usize)?;
            std::mem::take(&mut self.body).into()
        } else {
            stored
        };
        let mut records = Vec::new();
        each(&body, &header.public, |view| {
            if records.is_empty() {
                records.reserve_exact(header.public.records as usize);
            }
            records.push(owned(&view, &body)?);
            Ok::<_, DecodeError>(())
        })?;
        Ok(records)
    }
}

/// The record that a view of `body` shows.
fn owned(view: &RecordView<'_>, body: &Bytes) -> Result<Record, DecodeError> {
    /// A small value must not keep its whole batch in memory; a large one is shared rather than copied.
    const SHARED_BYTES: usize = 4_096;
    let own = |bytes: &[u8]| {
        if bytes.len() < SHARED_BYTES { Bytes::copy_from_slice(bytes) } else { body.slice_ref(bytes) }
    };
    fn parsed<T: std::str::FromStr<Err: fmt::Display>>(text: &str) -> Result<T, DecodeError> {
        text.parse().map_err(|error: T::Err| DecodeError { what: "batch body", at: 0, why: error.to_string() })
    }
    let value = match view.value {
        ValueView::Tombstone => Value::Tombstone,
        ValueView::Inline { bytes, content_hash } => {
            Value::Inline { bytes: own(bytes), content_hash: ContentHash(*content_hash) }
        }
        ValueView::Reference(reference) => Value::Reference(Box::new(Reference {
            store: parsed(reference.store)?,
            key: parsed(reference.key)?,
            offset: reference.offset,
            size: reference.size,
            checksum: reference.checksum,
            content_hash: reference.content_hash.map(|hash| ContentHash(*hash)),
            content_size: reference.content_size,
            encoding: reference.encoding,
            content_type: reference.content_type.map(str::to_owned),
            etag: reference.etag.map(str::to_owned),
            version: reference.version.map(str::to_owned),
        })),
    };
    Ok(Record {
        key: view.key.map(own),
        event_time: view.event_time,
        headers: view
            .headers
            .iter()
            .map(|(name, value)| Header { name: (*name).to_owned(), value: own(value) })
            .collect(),
        source_name: view.source_name.map(str::to_owned),
        source_mtime: view.source_mtime,
        value,
    })
}

/// The tables of a body, and what may still be allocated for its records.
struct Decoder<'a> {
    body: &'a [u8],
    reader: Reader<&'a [u8]>,
    stores: Vec<&'a str>,
    keys: Vec<&'a str>,
    types: Vec<&'a str>,
    times: Times,
    memory: usize,
    payload_bytes: u64,
}

fn each<E: From<DecodeError>>(
    body: &[u8],
    header: &BatchHeader,
    mut take: impl FnMut(RecordView<'_>) -> Result<(), E>,
) -> Result<(), E> {
    let mut decoder = Decoder::new(body)?;
    if header.records as usize > decoder.reader.remaining() {
        let left = decoder.reader.remaining();
        return Err(decoder.reader.error(format!("{} records cannot stand in {left} bytes", header.records)).into());
    }
    let mut headers = Vec::new();
    for _ in 0..header.records {
        let start = decoder.reader.at();
        let record = decoder.record(&mut headers)?;
        if decoder.reader.at() - start > MAX_RECORD_BYTES {
            return Err(decoder.reader.error(format!("a record of more than {MAX_RECORD_BYTES} bytes")).into());
        }
        take(RecordView { headers: &headers, ..record })?;
    }
    decoder.reader.end()?;
    if decoder.payload_bytes != header.payload_bytes {
        let why = format!(
            "the records have {} payload bytes, the header says {}",
            decoder.payload_bytes, header.payload_bytes
        );
        return Err(decoder.reader.error(why).into());
    }
    Ok(())
}

impl<'a> Decoder<'a> {
    fn new(body: &'a [u8]) -> Result<Self, DecodeError> {
        let mut decoder = Self {
            body,
            reader: Reader::new(body, "batch body"),
            stores: Vec::new(),
            keys: Vec::new(),
            types: Vec::new(),
            times: Times::default(),
            memory: MAX_BATCH_MEMORY,
            payload_bytes: 0,
        };
        decoder.stores = decoder.table(MAX_STORE_NAME_BYTES, StoreName::check)?;
        decoder.keys = decoder.table(MAX_KEY_BYTES, Key::check)?;
        decoder.types = decoder.table(MAX_TEXT_BYTES, |_| Ok::<_, std::convert::Infallible>(()))?;
        Ok(decoder)
    }

    fn table<E: fmt::Display>(
        &mut self,
        limit: usize,
        check: impl Fn(&str) -> Result<(), E>,
    ) -> Result<Vec<&'a str>, DecodeError> {
        let body = self.body;
        self.reader.list(MAX_BATCH_RECORDS as usize, |reader| {
            let name = text(body, reader, limit)?;
            check(name).map_err(|error| reader.error(error.to_string()))?;
            Ok(name)
        })
    }

    fn bytes(&mut self, limit: usize) -> Result<&'a [u8], DecodeError> {
        Ok(&self.body[self.reader.skip_bytes(limit)?])
    }

    fn text(&mut self, limit: usize) -> Result<&'a str, DecodeError> {
        text(self.body, &mut self.reader, limit)
    }

    fn hash(&mut self) -> Result<&'a [u8; 32], DecodeError> {
        let at = self.reader.skip(32)?;
        self.body[at..].first_chunk().ok_or_else(|| self.reader.error("truncated"))
    }

    /// What is left of the memory after `bytes` of it.
    fn charge(&mut self, bytes: usize) -> Result<(), DecodeError> {
        self.memory = self.memory.checked_sub(bytes).ok_or_else(|| {
            self.reader.error(format!("the records need more than {MAX_BATCH_MEMORY} bytes of memory"))
        })?;
        Ok(())
    }

    fn payload(&mut self, bytes: u64) -> Result<(), DecodeError> {
        self.payload_bytes = self
            .payload_bytes
            .checked_add(bytes)
            .ok_or_else(|| self.reader.error("the payload bytes exceed 64 bits"))?;
        Ok(())
    }

    /// The next record but for its headers, which are put into `headers`.
    fn record(&mut self, headers: &mut Vec<(&'a str, &'a [u8])>) -> Result<RecordView<'a>, DecodeError> {
        self.charge(RECORD_COST)?;
        let flags = self.reader.u8()?;
        let has = |bit| flags & bit != 0;
        let key = if has(KEY) { Some(self.bytes(MAX_KEY_LENGTH)?) } else { None };
        let event_time = if has(EVENT_TIME) { Some(self.reader.time(self.times.event)?) } else { None };
        self.times.event = event_time.unwrap_or(self.times.event);
        headers.clear();
        if has(HEADERS) {
            for _ in 0..self.reader.count(MAX_HEADERS)? {
                self.charge(HEADER_COST)?;
                headers.push((self.text(MAX_TEXT_BYTES)?, self.bytes(MAX_RECORD_BYTES)?));
            }
            if headers.is_empty() {
                return Err(self.reader.error("headers announced, none given"));
            }
        }
        let source_name = if has(SOURCE_NAME) { Some(self.text(MAX_TEXT_BYTES)?) } else { None };
        let source_mtime = if has(SOURCE_MTIME) { Some(self.reader.time(self.times.mtime)?) } else { None };
        self.times.mtime = source_mtime.unwrap_or(self.times.mtime);
        let value = match flags >> VALUE_SHIFT {
            TOMBSTONE => ValueView::Tombstone,
            INLINE => {
                let content_hash = self.hash()?;
                let bytes = self.bytes(MAX_INLINE_BYTES)?;
                self.payload(bytes.len() as u64)?;
                ValueView::Inline { bytes, content_hash }
            }
            REFERENCE => ValueView::Reference(self.reference()?),
            other => return Err(self.reader.error(format!("the kind of value {other} is unknown"))),
        };
        Ok(RecordView { key, event_time, headers: &[], source_name, source_mtime, value })
    }

    fn reference(&mut self) -> Result<ReferenceView<'a>, DecodeError> {
        let flags = self.reader.u8()?;
        if flags & UNKNOWN != 0 {
            return Err(self.reader.error(format!("the reference flags {flags:#04x} are unknown")));
        }
        let has = |bit| flags & bit != 0;
        let store = name(&mut self.reader, &self.stores, "store")?;
        let key = name(&mut self.reader, &self.keys, "key")?;
        self.charge(store.len() + key.len())?;
        let offset = if has(OFFSET) { Some(self.reader.varint()?) } else { None };
        let size = self.reader.varint()?;
        let checksum = if has(CHECKSUM) { Some(Crc32c(self.reader.u32()?)) } else { None };
        let content_hash = if has(HASH) { Some(self.hash()?) } else { None };
        let (encoding, content_size) =
            if has(ZSTD) { (ContentEncoding::Zstd, self.reader.varint()?) } else { (ContentEncoding::Identity, size) };
        let mut content_type = None;
        if has(CONTENT_TYPE) {
            let text = name(&mut self.reader, &self.types, "content type")?;
            self.charge(text.len())?;
            content_type = Some(text);
        }
        let etag = if has(ETAG) { Some(self.text(MAX_TEXT_BYTES)?) } else { None };
        let version = if has(OBJECT_VERSION) { Some(self.text(MAX_TEXT_BYTES)?) } else { None };
        self.payload(content_size)?;
        let range = ByteRange { offset: offset.unwrap_or(0), length: size };
        let verifiable = content_hash.is_some() || etag.is_some() || version.is_some();
        if let Some(why) = Reference::contradiction(range, content_size, encoding, verifiable) {
            return Err(self.reader.error(format!("the reference to {key} in store {store} is invalid: {why}")));
        }
        Ok(ReferenceView {
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
        })
    }
}

fn text<'a>(body: &'a [u8], reader: &mut Reader<&[u8]>, limit: usize) -> Result<&'a str, DecodeError> {
    let range = reader.skip_bytes(limit)?;
    std::str::from_utf8(&body[range]).map_err(|_| reader.error("text is not UTF-8"))
}

/// The name that the next index stands for.
fn name<'a>(reader: &mut Reader<&[u8]>, names: &[&'a str], what: &str) -> Result<&'a str, DecodeError> {
    let index = reader.varint()?;
    usize::try_from(index)
        .ok()
        .and_then(|index| names.get(index).copied())
        .ok_or_else(|| reader.error(format!("{what} {index} of {}", names.len())))
}
