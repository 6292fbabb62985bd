//! The columns of a file, exactly as docs/SEGMENT_FILE.md lists them.
//!
//! Field ids are written in every file: readers that go by id (Iceberg) return NULL silently where they are wrong. Types are
//! only those that every tool reads: no unsigned integers, nanoseconds, UUIDs, maps, view or dictionary *types*.

use arrow::datatypes::{DataType, Field, Fields, Schema, SchemaRef, TimeUnit};
use parquet::arrow::PARQUET_FIELD_ID_META_KEY;
use std::sync::{Arc, LazyLock};

/// The version of the file format.
pub const FORMAT_VERSION: u32 = 1;

/// The positions of the top-level columns, in the order of the file.
pub(crate) mod column {
    #[cfg(test)]
    pub(crate) const TOPIC: usize = 0;
    pub(crate) const PARTITION_ID: usize = 1;
    pub(crate) const LOG_OFFSET: usize = 2;
    pub(crate) const APPEND_TIME: usize = 3;
    pub(crate) const EVENT_TIME: usize = 4;
    pub(crate) const KEY: usize = 5;
    pub(crate) const KEY_BYTES: usize = 6;
    pub(crate) const PAYLOAD: usize = 7;
    pub(crate) const CONTENT_HASH: usize = 8;
    pub(crate) const CONTENT_ENCODING: usize = 9;
    pub(crate) const CONTENT_SIZE: usize = 10;
    pub(crate) const VALUE: usize = 11;
    pub(crate) const SOURCE_NAME: usize = 12;
    pub(crate) const SOURCE_MTIME: usize = 13;
    pub(crate) const ATTRIBUTES: usize = 14;
    pub(crate) const HEADERS: usize = 15;
    pub(crate) const PRODUCER_ID: usize = 16;
    pub(crate) const PRODUCER_SEQ: usize = 17;
    pub(crate) const STORE: usize = 18;
    pub(crate) const PAYLOAD_ETAG: usize = 19;
    pub(crate) const PAYLOAD_VERSION: usize = 20;
    pub(crate) const PRODUCER_EPOCH: usize = 21;
}

fn field(id: u32, name: &str, kind: DataType, nullable: bool) -> Field {
    Field::new(name, kind, nullable)
        .with_metadata([(PARQUET_FIELD_ID_META_KEY.to_owned(), id.to_string())].into_iter().collect())
}

/// Microseconds, UTC.
pub(crate) fn instant() -> DataType {
    DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))
}

fn pairs(element: u32, key: u32, value: u32, value_type: DataType) -> DataType {
    let fields = Fields::from(vec![field(key, "key", DataType::Utf8, true), field(value, "value", value_type, true)]);
    DataType::List(Arc::new(field(element, "element", DataType::Struct(fields), true)))
}

/// The columns of every file.
pub fn schema() -> SchemaRef {
    static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
        let payload = Fields::from(vec![
            field(16, "uri", DataType::Utf8, true),
            field(17, "offset", DataType::Int64, true),
            field(18, "size", DataType::Int64, true),
            field(19, "content_type", DataType::Utf8, true),
            field(20, "checksum", DataType::Utf8, true),
        ]);
        Arc::new(Schema::new(vec![
            field(1, "topic", DataType::Utf8, false),
            field(2, "partition_id", DataType::Int32, false),
            field(3, "log_offset", DataType::Int64, false),
            field(4, "append_time", instant(), false),
            field(5, "event_time", instant(), true),
            field(6, "key", DataType::Utf8, true),
            field(7, "key_bytes", DataType::Binary, true),
            field(8, "payload", DataType::Struct(payload), true),
            field(9, "content_hash", DataType::Utf8, true),
            field(10, "content_encoding", DataType::Utf8, true),
            field(11, "content_size", DataType::Int64, true),
            field(12, "value", DataType::Binary, true),
            field(13, "source_name", DataType::Utf8, true),
            field(14, "source_mtime", instant(), true),
            field(15, "attributes", pairs(21, 22, 23, DataType::Utf8), true),
            field(24, "headers", pairs(25, 26, 27, DataType::Binary), true),
            field(28, "producer_id", DataType::Int64, true),
            field(29, "producer_seq", DataType::Int64, true),
            field(30, "store", DataType::Utf8, true),
            field(31, "payload_etag", DataType::Utf8, true),
            field(32, "payload_version", DataType::Utf8, true),
            field(33, "producer_epoch", DataType::Int32, true),
        ]))
    });
    Arc::clone(&SCHEMA)
}

#[cfg(test)]
mod tests {
    use super::*;
    use parquet::arrow::ArrowSchemaConverter;

    #[test]
    fn positions_are_those_of_the_names() {
        let schema = schema();
        for (position, name) in [
            (column::TOPIC, "topic"),
            (column::PARTITION_ID, "partition_id"),
            (column::LOG_OFFSET, "log_offset"),
            (column::APPEND_TIME, "append_time"),
            (column::EVENT_TIME, "event_time"),
            (column::KEY, "key"),
            (column::KEY_BYTES, "key_bytes"),
            (column::PAYLOAD, "payload"),
            (column::CONTENT_HASH, "content_hash"),
            (column::CONTENT_ENCODING, "content_encoding"),
            (column::CONTENT_SIZE, "content_size"),
            (column::VALUE, "value"),
            (column::SOURCE_NAME, "source_name"),
            (column::SOURCE_MTIME, "source_mtime"),
            (column::ATTRIBUTES, "attributes"),
            (column::HEADERS, "headers"),
            (column::PRODUCER_ID, "producer_id"),
            (column::PRODUCER_SEQ, "producer_seq"),
            (column::STORE, "store"),
            (column::PAYLOAD_ETAG, "payload_etag"),
            (column::PAYLOAD_VERSION, "payload_version"),
            (column::PRODUCER_EPOCH, "producer_epoch"),
        ] {
            assert_eq!(schema.field(position).name(), name);
        }
        assert_eq!(schema.fields().len(), 22);
    }

    #[test]
    fn the_parquet_schema_is_the_documented_one() {
        let parquet = ArrowSchemaConverter::new().schema_root("refstream").convert(&schema()).unwrap();
        let mut text = Vec::new();
        parquet::schema::printer::print_schema(&mut text, parquet.root_schema());
        let text = String::from_utf8(text).unwrap();
        assert_eq!(text.trim(), include_str!("../tests/golden/schema.txt").trim(), "\n{text}");
    }
}
