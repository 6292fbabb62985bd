//! Arrow back to rows.

use crate::{
    Row,
    encode::ZSTD,
    schema::{column, schema},
    stores::Stores,
};
use arrow::{
    array::{
        Array, AsArray, BinaryArray, GenericByteArray, Int32Array, Int64Array, ListArray, RecordBatch, StringArray,
        StructArray, TimestampMicrosecondArray,
    },
    datatypes::{ByteArrayType, Int32Type, Int64Type, TimestampMicrosecondType},
};
use bytes::Bytes;
use refstream_types::{
    ContentEncoding, Header, Offset, PartitionId, ProducerEpoch, ProducerId, ProducerStamp, Record, Reference,
    Sequence, StoreName, Timestamp, Value,
};

fn text(array: &StringArray, row: usize) -> Option<&str> {
    array.is_valid(row).then(|| array.value(row))
}

fn owned(array: &StringArray, row: usize) -> Option<String> {
    text(array, row).map(str::to_owned)
}

fn int(array: &Int64Array, row: usize) -> Option<u64> {
    array.is_valid(row).then(|| array.value(row) as u64)
}

fn instant(array: &TimestampMicrosecondArray, row: usize) -> Option<Timestamp> {
    array.is_valid(row).then(|| Timestamp::from_micros(array.value(row)))
}

fn parsed<T: std::str::FromStr<Err: std::fmt::Display>>(text: Option<&str>) -> Result<Option<T>, String> {
    text.map(|text| text.parse().map_err(|error: T::Err| error.to_string())).transpose()
}

/// The typed columns of a batch.
struct Columns<'a> {
    partition_id: &'a Int32Array,
    log_offset: &'a Int64Array,
    append_time: &'a TimestampMicrosecondArray,
    event_time: &'a TimestampMicrosecondArray,
    key: &'a StringArray,
    key_bytes: &'a BinaryArray,
    payload: &'a StructArray,
    uri: &'a StringArray,
    offset: &'a Int64Array,
    size: &'a Int64Array,
    content_type: &'a StringArray,
    checksum: &'a StringArray,
    content_hash: &'a StringArray,
    content_encoding: &'a StringArray,
    content_size: &'a Int64Array,
    value: &'a BinaryArray,
    source_name: &'a StringArray,
    source_mtime: &'a TimestampMicrosecondArray,
    attributes: &'a ListArray,
    headers: &'a ListArray,
    producer_id: &'a Int64Array,
    producer_seq: &'a Int64Array,
    store: &'a StringArray,
    payload_etag: &'a StringArray,
    payload_version: &'a StringArray,
    producer_epoch: &'a Int32Array,
}

impl<'a> Columns<'a> {
    /// The caller has checked that the batch has the documented schema.
    fn new(batch: &'a RecordBatch) -> Self {
        let string = |at: usize| batch.column(at).as_string::<i32>();
        let int = |at: usize| batch.column(at).as_primitive::<Int64Type>();
        let instant = |at: usize| batch.column(at).as_primitive::<TimestampMicrosecondType>();
        let payload = batch.column(column::PAYLOAD).as_struct();
        Self {
            partition_id: batch.column(column::PARTITION_ID).as_primitive::<Int32Type>(),
            log_offset: int(column::LOG_OFFSET),
            append_time: instant(column::APPEND_TIME),
            event_time: instant(column::EVENT_TIME),
            key: string(column::KEY),
            key_bytes: batch.column(column::KEY_BYTES).as_binary(),
            payload,
            uri: payload.column(0).as_string(),
            offset: payload.column(1).as_primitive(),
            size: payload.column(2).as_primitive(),
            content_type: payload.column(3).as_string(),
            checksum: payload.column(4).as_string(),
            content_hash: string(column::CONTENT_HASH),
            content_encoding: string(column::CONTENT_ENCODING),
            content_size: int(column::CONTENT_SIZE),
            value: batch.column(column::VALUE).as_binary(),
            source_name: string(column::SOURCE_NAME),
            source_mtime: instant(column::SOURCE_MTIME),
            attributes: batch.column(column::ATTRIBUTES).as_list(),
            headers: batch.column(column::HEADERS).as_list(),
            producer_id: int(column::PRODUCER_ID),
            producer_seq: int(column::PRODUCER_SEQ),
            store: string(column::STORE),
            payload_etag: string(column::PAYLOAD_ETAG),
            payload_version: string(column::PAYLOAD_VERSION),
            producer_epoch: batch.column(column::PRODUCER_EPOCH).as_primitive::<Int32Type>(),
        }
    }

    fn reference(&self, row: usize, stores: &Stores) -> Result<Reference, String> {
        let store: StoreName = parsed(text(self.store, row))?.ok_or("a payload without its store")?;
        let uri = text(self.uri, row).ok_or("a payload without its uri")?;
        let key = stores.key(&store, uri).ok_or_else(|| format!("the uri {uri:?} has no key of store {store}"))?;
        Ok(Reference {
            store,
            key,
            offset: int(self.offset, row),
            size: int(self.size, row).ok_or("a payload without its size")?,
            checksum: parsed(text(self.checksum, row))?,
            content_hash: parsed(text(self.content_hash, row))?,
            content_size: int(self.content_size, row).ok_or("a payload without its content_size")?,
            encoding: match text(self.content_encoding, row) {
                None => ContentEncoding::Identity,
                Some(ZSTD) => ContentEncoding::Zstd,
                Some(other) => return Err(format!("content_encoding {other:?} is unknown: update this program")),
            },
            content_type: owned(self.content_type, row),
            etag: owned(self.payload_etag, row),
            version: owned(self.payload_version, row),
        })
    }

    /// See `RowEncoder::push_headers`.
    fn headers(&self, row: usize) -> Vec<Header> {
        let mixed = pairs::<arrow::datatypes::GenericBinaryType<i32>>(self.headers, row);
        let mut headers = pairs::<arrow::datatypes::GenericStringType<i32>>(self.attributes, row);
        let again = mixed.iter().filter(|header| std::str::from_utf8(&header.value).is_ok()).count();
        headers.truncate(headers.len().saturating_sub(again));
        headers.extend(mixed);
        headers
    }

    fn row(&self, row: usize, stores: &Stores) -> Result<Row, String> {
        let value = if self.payload.is_valid(row) {
            Value::Reference(Box::new(self.reference(row, stores)?))
        } else if self.value.is_valid(row) {
            Value::Inline {
                bytes: Bytes::copy_from_slice(self.value.value(row)),
                content_hash: parsed(text(self.content_hash, row))?.ok_or("a value without its content_hash")?,
            }
        } else {
            Value::Tombstone
        };
        let key = if self.key.is_valid(row) {
            Some(Bytes::copy_from_slice(self.key.value(row).as_bytes()))
        } else {
            self.key_bytes.is_valid(row).then(|| Bytes::copy_from_slice(self.key_bytes.value(row)))
        };
        let producer = match (int(self.producer_id, row), int(self.producer_seq, row)) {
            (Some(id), Some(first)) => Some(ProducerStamp {
                id: ProducerId(id),
                epoch: ProducerEpoch(self.producer_epoch.value(row) as u32),
                first: Sequence(first),
            }),
            _ => None,
        };
        Ok(Row {
            partition: PartitionId(self.partition_id.value(row) as u32),
            offset: Offset(self.log_offset.value(row) as u64),
            append_time: Timestamp::from_micros(self.append_time.value(row)),
            producer,
            record: Record {
                key,
                event_time: instant(self.event_time, row),
                headers: self.headers(row),
                source_name: owned(self.source_name, row),
                source_mtime: instant(self.source_mtime, row),
                value,
            },
        })
    }
}

fn pairs<V: ByteArrayType<Offset = i32>>(lists: &ListArray, row: usize) -> Vec<Header> {
    if lists.is_null(row) {
        return Vec::new();
    }
    let offsets = lists.value_offsets();
    let pairs = lists.values().as_struct();
    let names = pairs.column(0).as_string::<i32>();
    let values: &GenericByteArray<V> = pairs.column(1).as_bytes();
    (offsets[row] as usize..offsets[row + 1] as usize)
        .map(|at| Header {
            name: names.value(at).to_owned(),
            value: Bytes::copy_from_slice(AsRef::<[u8]>::as_ref(values.value(at))),
        })
        .collect()
}

/// The rows of a batch.
///
/// # Errors
/// Says what in it is not as this program writes it.
pub(crate) fn rows(batch: &RecordBatch, stores: &Stores) -> Result<Vec<Row>, String> {
    let expected = schema();
    for (position, field) in expected.fields().iter().enumerate() {
        let found = batch.schema_ref().fields().get(position);
        if found
            .is_none_or(|found| found.name() != field.name() || !found.data_type().equals_datatype(field.data_type()))
        {
            return Err(format!("column {} is not {} of type {}", position + 1, field.name(), field.data_type()));
        }
    }
    let columns = Columns::new(batch);
    (0..batch.num_rows()).map(|row| columns.row(row, stores)).collect()
}
