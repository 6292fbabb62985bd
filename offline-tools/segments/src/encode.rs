//! Rows to Arrow: straight from views of encoded batches into column builders; a row allocates nothing of its own.

use crate::{
    interface::RowView,
    schema::{instant, schema},
    stores::Stores,
    writer::{BATCH_BYTES, BATCH_ROWS},
};
use arrow::{
    array::{
        Array, ArrayRef, GenericByteArray, GenericByteBuilder, ListArray, PrimitiveArray, PrimitiveBuilder,
        RecordBatch, StringArray, StringBuilder, StructArray,
    },
    buffer::{NullBuffer, OffsetBuffer},
    datatypes::{
        ArrowPrimitiveType, BinaryType, ByteArrayType, DataType, Fields, Int32Type, Int64Type,
        TimestampMicrosecondType, Utf8Type,
    },
    error::ArrowError,
};
use refstream_format::batch::{ReferenceView, ValueView};
use refstream_types::{ContentEncoding, Crc32c, Timestamp, TopicName};
use std::sync::Arc;

/// How [`ContentEncoding::Zstd`] stands in a file.
pub(crate) const ZSTD: &str = "zstd";

/// A column of texts or bytes. Nulls are counted and written at once: most columns of most topics have nothing else.
struct Bytes<T: ByteArrayType> {
    builder: GenericByteBuilder<T>,
    nulls: usize,
}

impl<T: ByteArrayType> Default for Bytes<T> {
    fn default() -> Self {
        Self { builder: GenericByteBuilder::with_capacity(0, 0), nulls: 0 }
    }
}

impl<T: ByteArrayType> Bytes<T> {
    fn value(&mut self, value: &T::Native) {
        self.write_nulls();
        self.builder.append_value(value);
    }
    fn null(&mut self) {
        self.nulls += 1;
    }
    fn option(&mut self, value: Option<&T::Native>) {
        match value {
            Some(value) => self.value(value),
            None => self.null(),
        }
    }
    fn write_nulls(&mut self) {
        if self.nulls > 0 {
            self.builder.append_nulls(std::mem::take(&mut self.nulls));
        }
    }
    /// The column; the next one starts with room for as much.
    fn finish(&mut self) -> Arc<GenericByteArray<T>> {
        self.write_nulls();
        let array = self.builder.finish();
        self.builder = GenericByteBuilder::with_capacity(array.offsets().len(), array.value_data().len());
        Arc::new(array)
    }
}

/// A column of numbers or times; nulls as in [`Bytes`].
struct Numbers<T: ArrowPrimitiveType> {
    builder: PrimitiveBuilder<T>,
    nulls: usize,
}

impl<T: ArrowPrimitiveType> Numbers<T> {
    fn new(kind: DataType) -> Self {
        Self { builder: PrimitiveBuilder::with_capacity(0).with_data_type(kind), nulls: 0 }
    }
    fn value(&mut self, value: T::Native) {
        self.write_nulls();
        self.builder.append_value(value);
    }
    fn null(&mut self) {
        self.nulls += 1;
    }
    fn write_nulls(&mut self) {
        if self.nulls > 0 {
            self.builder.append_nulls(std::mem::take(&mut self.nulls));
        }
    }
    fn option(&mut self, value: Option<T::Native>) {
        match value {
            Some(value) => self.value(value),
            None => self.null(),
        }
    }
    fn finish(&mut self) -> Arc<PrimitiveArray<T>> {
        self.write_nulls();
        let array = self.builder.finish();
        let kind = array.data_type().clone();
        self.builder = PrimitiveBuilder::with_capacity(array.values().len()).with_data_type(kind);
        Arc::new(array)
    }
}

/// Collects rows into a batch of columns.
pub(crate) struct RowEncoder {
    topic: TopicName,
    stores: Stores,
    /// Bytes of the rows since the last [`RowEncoder::finish`], before any encoding.
    raw: usize,
    rows: usize,
    partition_id: Numbers<Int32Type>,
    log_offset: Numbers<Int64Type>,
    append_time: Numbers<TimestampMicrosecondType>,
    event_time: Numbers<TimestampMicrosecondType>,
    key: Bytes<Utf8Type>,
    key_bytes: Bytes<BinaryType>,
    payload: Vec<bool>,
    uri: Bytes<Utf8Type>,
    offset: Numbers<Int64Type>,
    size: Numbers<Int64Type>,
    content_type: Bytes<Utf8Type>,
    checksum: Bytes<Utf8Type>,
    content_hash: Bytes<Utf8Type>,
    content_encoding: Bytes<Utf8Type>,
    content_size: Numbers<Int64Type>,
    value: Bytes<BinaryType>,
    source_name: Bytes<Utf8Type>,
    source_mtime: Numbers<TimestampMicrosecondType>,
    attributes: Pairs,
    attribute_values: Bytes<Utf8Type>,
    headers: Pairs,
    header_values: Bytes<BinaryType>,
    producer_id: Numbers<Int64Type>,
    producer_seq: Numbers<Int64Type>,
    store: Bytes<Utf8Type>,
    payload_etag: Bytes<Utf8Type>,
    payload_version: Bytes<Utf8Type>,
    producer_epoch: Numbers<Int32Type>,
    /// The URI of the row that had one last: store name and URI without the key.
    prefix: (String, String),
    /// Room for a URI.
    text: String,
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

/// A hash or a checksum as text: `PREFIX`, then two digits a byte. `T` bytes of text.
fn hexadecimal<const T: usize>(prefix: &[u8], bytes: &[u8], append: impl FnOnce(&str)) {
    let mut text = [0_u8; T];
    let (start, digits) = text.split_at_mut(prefix.len());
    start.copy_from_slice(prefix);
    for (pair, byte) in digits.chunks_exact_mut(2).zip(bytes) {
        pair.copy_from_slice(&DIGITS[usize::from(*byte)]);
    }
    if let Ok(text) = std::str::from_utf8(&text) {
        append(text);
    }
}

/// The two hexadecimal digits of every byte.
const DIGITS: [[u8; 2]; 256] = {
    let digits = b"0123456789abcdef";
    let mut table = [[0; 2]; 256];
    let mut byte = 0;
    while byte < table.len() {
        table[byte] = [digits[byte >> 4], digits[byte & 15]];
        byte += 1;
    }
    table
};

impl RowEncoder {
    pub(crate) fn new(topic: TopicName, stores: Stores) -> Self {
        Self {
            topic,
            stores,
            raw: 0,
            rows: 0,
            partition_id: Numbers::new(DataType::Int32),
            log_offset: Numbers::new(DataType::Int64),
            append_time: Numbers::new(instant()),
            event_time: Numbers::new(instant()),
            key: Bytes::default(),
            key_bytes: Bytes::default(),
            payload: Vec::new(),
            uri: Bytes::default(),
            offset: Numbers::new(DataType::Int64),
            size: Numbers::new(DataType::Int64),
            content_type: Bytes::default(),
            checksum: Bytes::default(),
            content_hash: Bytes::default(),
            content_encoding: Bytes::default(),
            content_size: Numbers::new(DataType::Int64),
            value: Bytes::default(),
            source_name: Bytes::default(),
            source_mtime: Numbers::new(instant()),
            attributes: Pairs::default(),
            attribute_values: Bytes::default(),
            headers: Pairs::default(),
            header_values: Bytes::default(),
            producer_id: Numbers::new(DataType::Int64),
            producer_seq: Numbers::new(DataType::Int64),
            store: Bytes::default(),
            payload_etag: Bytes::default(),
            payload_version: Bytes::default(),
            producer_epoch: Numbers::new(DataType::Int32),
            prefix: (String::new(), String::new()),
            text: String::new(),
        }
    }

    pub(crate) fn push(&mut self, row: &RowView<'_>) {
        let record = &row.record;
        self.rows += 1;
        self.raw += raw_bytes(row);
        self.partition_id.value(row.partition.0 as i32);
        self.log_offset.value(row.offset.0 as i64);
        self.append_time.value(row.append_time.as_micros());
        self.event_time.option(record.event_time.map(Timestamp::as_micros));
        match record.key.map(|key| std::str::from_utf8(key).map_err(|_| key)) {
            None => {
                self.key.null();
                self.key_bytes.null();
            }
            Some(Ok(text)) => {
                self.key.value(text);
                self.key_bytes.null();
            }
            Some(Err(bytes)) => {
                self.key.null();
                self.key_bytes.value(bytes);
            }
        }
        self.source_name.option(record.source_name);
        self.source_mtime.option(record.source_mtime.map(Timestamp::as_micros));
        self.push_headers(record.headers);
        self.producer_id.option(row.producer.map(|p| p.id.0 as i64));
        self.producer_epoch.option(row.producer.map(|p| p.epoch.0 as i32));
        self.producer_seq.option(row.producer.map(|p| p.first.0 as i64));
        match record.value {
            ValueView::Reference(reference) => self.push_reference(&reference),
            ValueView::Inline { bytes, content_hash } => {
                self.push_no_reference();
                self.push_hash(Some(content_hash));
                self.content_size.value(bytes.len() as i64);
                self.value.value(bytes);
            }
            ValueView::Tombstone => {
                self.push_no_reference();
                self.push_hash(None);
                self.content_size.null();
                self.value.null();
            }
        }
    }

    /// `attributes` has every header whose value is UTF-8. `headers` starts at the first one whose value is not and has all from
    /// there on, so that the order of a mixed list can be told.
    fn push_headers(&mut self, headers: &[(&str, &[u8])]) {
        let (attributes, binary) = (self.attributes.names_len(), self.headers.names_len());
        let mut mixed = false;
        for (name, value) in headers {
            if let Ok(text) = std::str::from_utf8(value) {
                self.attributes.names.append_value(name);
                self.attribute_values.value(text);
            } else {
                mixed = true;
            }
            if mixed {
                self.headers.names.append_value(name);
                self.header_values.value(value);
            }
        }
        self.attributes.end_row(attributes);
        self.headers.end_row(binary);
    }

    fn push_hash(&mut self, hash: Option<&[u8; 32]>) {
        match hash {
            None => self.content_hash.null(),
            Some(hash) => hexadecimal::<71>(b"BLAKE3:", hash, |text| self.content_hash.value(text)),
        }
    }

    fn push_checksum(&mut self, checksum: Option<Crc32c>) {
        match checksum {
            None => self.checksum.null(),
            Some(crc) => hexadecimal::<15>(b"CRC32C:", &crc.0.to_be_bytes(), |text| self.checksum.value(text)),
        }
    }

    fn push_reference(&mut self, reference: &ReferenceView<'_>) {
        if self.prefix.0 != reference.store {
            self.prefix = (reference.store.to_owned(), self.stores.uri_prefix(reference.store));
        }
        self.text.clear();
        self.text.push_str(&self.prefix.1);
        self.text.push_str(reference.key);
        self.uri.value(&self.text);
        self.payload.push(true);
        self.offset.option(reference.offset.map(|offset| offset as i64));
        self.size.value(reference.size as i64);
        self.content_type.option(reference.content_type);
        self.push_checksum(reference.checksum);
        self.push_hash(reference.content_hash);
        self.content_encoding.option(match reference.encoding {
            ContentEncoding::Identity => None,
            ContentEncoding::Zstd => Some(ZSTD),
        });
        self.content_size.value(reference.content_size as i64);
        self.store.value(reference.store);
        self.payload_etag.option(reference.etag);
        self.payload_version.option(reference.version);
        self.value.null();
    }

    fn push_no_reference(&mut self) {
        self.payload.push(false);
        self.uri.null();
        self.offset.null();
        self.size.null();
        self.content_type.null();
        self.checksum.null();
        self.content_encoding.null();
        self.store.null();
        self.payload_etag.null();
        self.payload_version.null();
    }

    /// Rows since the last batch.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Whether it is time for [`RowEncoder::finish`].
    pub(crate) fn is_full(&self) -> bool {
        self.rows >= BATCH_ROWS || self.raw >= BATCH_BYTES
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
                self.uri.finish(),
                self.offset.finish(),
                self.size.finish(),
                self.content_type.finish(),
                self.checksum.finish(),
            ],
            Some(NullBuffer::from(std::mem::take(&mut self.payload))),
        )?;
        let attribute_values = self.attribute_values.finish();
        let header_values = self.header_values.finish();
        let columns: Vec<ArrayRef> = vec![
            Arc::new(StringArray::from_iter_values(std::iter::repeat_n(self.topic.as_str(), self.rows))),
            self.partition_id.finish(),
            self.log_offset.finish(),
            self.append_time.finish(),
            self.event_time.finish(),
            self.key.finish(),
            self.key_bytes.finish(),
            Arc::new(payload),
            self.content_hash.finish(),
            self.content_encoding.finish(),
            self.content_size.finish(),
            self.value.finish(),
            self.source_name.finish(),
            self.source_mtime.finish(),
            Arc::new(self.attributes.finish(kind(crate::schema::column::ATTRIBUTES), attribute_values)?),
            Arc::new(self.headers.finish(kind(crate::schema::column::HEADERS), header_values)?),
            self.producer_id.finish(),
            self.producer_seq.finish(),
            self.store.finish(),
            self.payload_etag.finish(),
            self.payload_version.finish(),
            self.producer_epoch.finish(),
        ];
        self.raw = 0;
        self.rows = 0;
        RecordBatch::try_new(schema, columns)
    }
}

/// Bytes of a row before any encoding, about.
fn raw_bytes(row: &RowView<'_>) -> usize {
    const FIXED: usize = 160;
    let record = &row.record;
    let headers: usize = record.headers.iter().map(|(name, value)| name.len() + value.len() + 16).sum();
    let value = match &record.value {
        ValueView::Reference(reference) => 72 + reference.key.len(),
        ValueView::Inline { bytes, .. } => bytes.len() + 71,
        ValueView::Tombstone => 0,
    };
    FIXED + record.key.map_or(0, <[u8]>::len) + record.source_name.map_or(0, str::len) + headers + value
}
