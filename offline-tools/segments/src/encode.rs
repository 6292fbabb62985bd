//! Rows to Arrow.

use crate::{
    Row,
    schema::{instant, schema},
    stores::Stores,
};
use arrow::{
    array::{
        ArrayRef, BinaryBuilder, Int32Builder, Int64Builder, ListArray, RecordBatch, StringBuilder, StructArray,
        TimestampMicrosecondBuilder,
    },
    buffer::{NullBuffer, OffsetBuffer},
    datatypes::{DataType, Fields},
    error::ArrowError,
};
use refstream_types::{
    ContentEncoding, ContentHash, Crc32c, Header, Key, Reference, StoreName, Timestamp, TopicName, Value,
};
use std::sync::Arc;

/// How [`ContentEncoding::Zstd`] stands in a file.
pub(crate) const ZSTD: &str = "zstd";

/// Collects rows into a batch of columns.
pub(crate) struct RowEncoder {
    topic: TopicName,
    stores: Stores,
    /// Bytes of the rows since the last [`RowEncoder::finish`], before any encoding.
    raw: usize,
    rows: usize,
    topics: StringBuilder,
    partition_id: Int32Builder,
    log_offset: Int64Builder,
    append_time: TimestampMicrosecondBuilder,
    event_time: TimestampMicrosecondBuilder,
    key: StringBuilder,
    key_bytes: BinaryBuilder,
    payload: Vec<bool>,
    uri: StringBuilder,
    offset: Int64Builder,
    size: Int64Builder,
    content_type: StringBuilder,
    checksum: StringBuilder,
    content_hash: StringBuilder,
    content_encoding: StringBuilder,
    content_size: Int64Builder,
    value: BinaryBuilder,
    source_name: StringBuilder,
    source_mtime: TimestampMicrosecondBuilder,
    attributes: Pairs,
    attribute_values: StringBuilder,
    headers: Pairs,
    header_values: BinaryBuilder,
    producer_id: Int64Builder,
    producer_seq: Int64Builder,
    store: StringBuilder,
    payload_etag: StringBuilder,
    payload_version: StringBuilder,
    producer_epoch: Int32Builder,
    /// The object of the row before and its URI: rows of one pack follow each other.
    last: Option<(StoreName, Key, String)>,
}

/// The names of a list of named values, and where each row's list ends.
#[derive(Default)]
struct Pairs {
    names: StringBuilder,
    ends: Vec<i32>,
    present: Vec<bool>,
}

impl Pairs {
    fn end_row(&mut self, from: i32) {
        let end = self.names_len();
        self.present.push(end > from);
        self.ends.push(end);
    }
    fn names_len(&self) -> i32 {
        use arrow::array::ArrayBuilder;
        self.names.len() as i32
    }
    fn finish(&mut self, list: &DataType, values: ArrayRef) -> Result<ListArray, ArrowError> {
        let DataType::List(element) = list else {
            return Err(ArrowError::SchemaError("not a list".into()));
        };
        let DataType::Struct(fields) = element.data_type() else {
            return Err(ArrowError::SchemaError("not a list of pairs".into()));
        };
        let names: ArrayRef = Arc::new(self.names.finish());
        let pairs = StructArray::try_new(fields.clone(), vec![names, values], None)?;
        let offsets = std::iter::once(0).chain(std::mem::take(&mut self.ends)).collect::<Vec<i32>>();
        let nulls = NullBuffer::from(std::mem::take(&mut self.present));
        ListArray::try_new(Arc::clone(element), OffsetBuffer::new(offsets.into()), Arc::new(pairs), Some(nulls))
    }
}

fn instants() -> TimestampMicrosecondBuilder {
    TimestampMicrosecondBuilder::new().with_data_type(instant())
}

/// Hash and checksum as text without allocation.
fn hexadecimal<const N: usize>(prefix: &[u8], bytes: &[u8], buffer: &mut [u8; N]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    buffer[..prefix.len()].copy_from_slice(prefix);
    for (pair, byte) in buffer[prefix.len()..].chunks_exact_mut(2).zip(bytes) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
    }
}

impl RowEncoder {
    pub(crate) fn new(topic: TopicName, stores: Stores) -> Self {
        Self {
            topic,
            stores,
            raw: 0,
            rows: 0,
            topics: StringBuilder::new(),
            partition_id: Int32Builder::new(),
            log_offset: Int64Builder::new(),
            append_time: instants(),
            event_time: instants(),
            key: StringBuilder::new(),
            key_bytes: BinaryBuilder::new(),
            payload: Vec::new(),
            uri: StringBuilder::new(),
            offset: Int64Builder::new(),
            size: Int64Builder::new(),
            content_type: StringBuilder::new(),
            checksum: StringBuilder::new(),
            content_hash: StringBuilder::new(),
            content_encoding: StringBuilder::new(),
            content_size: Int64Builder::new(),
            value: BinaryBuilder::new(),
            source_name: StringBuilder::new(),
            source_mtime: instants(),
            attributes: Pairs::default(),
            attribute_values: StringBuilder::new(),
            headers: Pairs::default(),
            header_values: BinaryBuilder::new(),
            producer_id: Int64Builder::new(),
            producer_seq: Int64Builder::new(),
            store: StringBuilder::new(),
            payload_etag: StringBuilder::new(),
            payload_version: StringBuilder::new(),
            producer_epoch: Int32Builder::new(),
            last: None,
        }
    }

    pub(crate) fn push(&mut self, row: &Row) {
        let record = &row.record;
        self.rows += 1;
        self.raw += raw_bytes(row);
        self.topics.append_value(self.topic.as_str());
        self.partition_id.append_value(row.partition.0 as i32);
        self.log_offset.append_value(row.offset.0 as i64);
        self.append_time.append_value(row.append_time.as_micros());
        self.event_time.append_option(record.event_time.map(Timestamp::as_micros));
        let text = record.key.as_deref().map(std::str::from_utf8);
        self.key.append_option(text.and_then(Result::ok));
        self.key_bytes.append_option(text.and_then(|text| text.is_err().then_some(record.key.as_deref()).flatten()));
        self.source_name.append_option(record.source_name.as_deref());
        self.source_mtime.append_option(record.source_mtime.map(Timestamp::as_micros));
        self.push_headers(&record.headers);
        self.producer_id.append_option(row.producer.map(|p| p.id.0 as i64));
        self.producer_epoch.append_option(row.producer.map(|p| p.epoch.0 as i32));
        self.producer_seq.append_option(row.producer.map(|p| p.first.0 as i64));
        match &record.value {
            Value::Reference(reference) => self.push_reference(reference),
            Value::Inline { bytes, content_hash } => {
                self.push_no_reference();
                self.push_hash(Some(content_hash));
                self.content_size.append_value(bytes.len() as i64);
                self.value.append_value(bytes);
            }
            Value::Tombstone => {
                self.push_no_reference();
                self.push_hash(None);
                self.content_size.append_null();
                self.value.append_null();
            }
        }
    }

    /// `attributes` has every header whose value is UTF-8. `headers` starts at the first one whose value is not and has all from
    /// there on, so that the order of a mixed list can be told.
    fn push_headers(&mut self, headers: &[Header]) {
        let (attributes, binary) = (self.attributes.names_len(), self.headers.names_len());
        let mut mixed = false;
        for header in headers {
            let text = std::str::from_utf8(&header.value);
            if let Ok(text) = text {
                self.attributes.names.append_value(&header.name);
                self.attribute_values.append_value(text);
            } else {
                mixed = true;
            }
            if mixed {
                self.headers.names.append_value(&header.name);
                self.header_values.append_value(&header.value);
            }
        }
        self.attributes.end_row(attributes);
        self.headers.end_row(binary);
    }

    fn push_hash(&mut self, hash: Option<&ContentHash>) {
        match hash {
            None => self.content_hash.append_null(),
            Some(hash) => {
                let mut text = [0; 71];
                hexadecimal(b"BLAKE3:", &hash.0, &mut text);
                self.content_hash.append_value(std::str::from_utf8(&text).unwrap_or_default());
            }
        }
    }

    fn push_checksum(&mut self, checksum: Option<Crc32c>) {
        match checksum {
            None => self.checksum.append_null(),
            Some(checksum) => {
                let mut text = [0; 15];
                hexadecimal(b"CRC32C:", &checksum.0.to_be_bytes(), &mut text);
                self.checksum.append_value(std::str::from_utf8(&text).unwrap_or_default());
            }
        }
    }

    fn push_reference(&mut self, reference: &Reference) {
        match &self.last {
            Some((store, key, uri)) if *store == reference.store && *key == reference.key => self.uri.append_value(uri),
            _ => {
                let uri = self.stores.uri(&reference.store, &reference.key);
                self.uri.append_value(&uri);
                self.last = Some((reference.store.clone(), reference.key.clone(), uri));
            }
        }
        self.payload.push(true);
        self.offset.append_option(reference.offset.map(|offset| offset as i64));
        self.size.append_value(reference.size as i64);
        self.content_type.append_option(reference.content_type.as_deref());
        self.push_checksum(reference.checksum);
        self.push_hash(reference.content_hash.as_ref());
        self.content_encoding.append_option(match reference.encoding {
            ContentEncoding::Identity => None,
            ContentEncoding::Zstd => Some(ZSTD),
        });
        self.content_size.append_value(reference.content_size as i64);
        self.store.append_value(reference.store.as_str());
        self.payload_etag.append_option(reference.etag.as_deref());
        self.payload_version.append_option(reference.version.as_deref());
        self.value.append_null();
    }

    fn push_no_reference(&mut self) {
        self.payload.push(false);
        self.uri.append_null();
        self.offset.append_null();
        self.size.append_null();
        self.content_type.append_null();
        self.checksum.append_null();
        self.content_encoding.append_null();
        self.store.append_null();
        self.payload_etag.append_null();
        self.payload_version.append_null();
    }

    /// Rows since the last batch.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Bytes of those rows, before any encoding.
    pub(crate) fn raw(&self) -> usize {
        self.raw
    }

    /// The rows since the last batch.
    pub(crate) fn finish(&mut self) -> Result<RecordBatch, ArrowError> {
        let schema = schema();
        let kind = |column: usize| schema.field(column).data_type();
        let payload_fields = match kind(crate::schema::column::PAYLOAD) {
            DataType::Struct(fields) => fields.clone(),
            _ => Fields::empty(),
        };
        let payload = StructArray::try_new(
            payload_fields,
            vec![
                Arc::new(self.uri.finish()),
                Arc::new(self.offset.finish()),
                Arc::new(self.size.finish()),
                Arc::new(self.content_type.finish()),
                Arc::new(self.checksum.finish()),
            ],
            Some(NullBuffer::from(std::mem::take(&mut self.payload))),
        )?;
        let attribute_values = Arc::new(self.attribute_values.finish());
        let header_values = Arc::new(self.header_values.finish());
        let columns: Vec<ArrayRef> = vec![
            Arc::new(self.topics.finish()),
            Arc::new(self.partition_id.finish()),
            Arc::new(self.log_offset.finish()),
            Arc::new(self.append_time.finish()),
            Arc::new(self.event_time.finish()),
            Arc::new(self.key.finish()),
            Arc::new(self.key_bytes.finish()),
            Arc::new(payload),
            Arc::new(self.content_hash.finish()),
            Arc::new(self.content_encoding.finish()),
            Arc::new(self.content_size.finish()),
            Arc::new(self.value.finish()),
            Arc::new(self.source_name.finish()),
            Arc::new(self.source_mtime.finish()),
            Arc::new(self.attributes.finish(kind(crate::schema::column::ATTRIBUTES), attribute_values)?),
            Arc::new(self.headers.finish(kind(crate::schema::column::HEADERS), header_values)?),
            Arc::new(self.producer_id.finish()),
            Arc::new(self.producer_seq.finish()),
            Arc::new(self.store.finish()),
            Arc::new(self.payload_etag.finish()),
            Arc::new(self.payload_version.finish()),
            Arc::new(self.producer_epoch.finish()),
        ];
        self.raw = 0;
        self.rows = 0;
        RecordBatch::try_new(schema, columns)
    }
}

/// Bytes of a row before any encoding, about.
fn raw_bytes(row: &Row) -> usize {
    const FIXED: usize = 160;
    let record = &row.record;
    let headers: usize = record.headers.iter().map(|h| h.name.len() + h.value.len() + 16).sum();
    let value = match &record.value {
        Value::Reference(reference) => 72 + reference.key.as_str().len(),
        Value::Inline { bytes, .. } => bytes.len() + 71,
        Value::Tombstone => 0,
    };
    FIXED
        + record.key.as_ref().map_or(0, |k| k.len())
        + record.source_name.as_ref().map_or(0, String::len)
        + headers
        + value
}
