//! Columns to a Parquet file, with the properties that docs/SEGMENT_FILE.md states.
//!
//! The bytes are a function of the rows, the row group limits and the program's version. Encodings are chosen so that a row
//! costs little more than what cannot be compressed (its hash, its checksum, a random object key): hashes, checksums, URIs, keys
//! and paths are DELTA_BYTE_ARRAY (the common `BLAKE3:` or bucket prefix vanishes and zstd packs hexadecimal digits to four
//! bits), numbers and times DELTA_BINARY_PACKED, and only what truly repeats has a dictionary.

use crate::{
    Row,
    encode::RowEncoder,
    pages::{Pages, Recorder},
    schema::{FORMAT_VERSION, schema},
    stores::Stores,
};
use arrow::array::{Array, RecordBatch};
use parquet::{
    arrow::{
        ArrowSchemaConverter,
        arrow_writer::{ArrowColumnWriter, ArrowRowGroupWriterFactory, compute_leaves},
    },
    basic::{Compression, Encoding, ZstdLevel},
    errors::Result,
    file::{
        metadata::{KeyValue, SortingColumn},
        properties::{EnabledStatistics, WriterProperties, WriterVersion},
        writer::SerializedFileWriter,
    },
    schema::types::ColumnPath,
};
use refstream_filer_adapter::BlobStore;
use refstream_format::manifest::SegmentSpan;
use refstream_types::{StoreName, Timestamp, TopicId, TopicName};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

/// Rows of a row group at most.
pub const ROW_GROUP_ROWS: usize = 131_072;
/// Bytes of a row group's rows at most, before any encoding.
pub const ROW_GROUP_BYTES: usize = 128 << 20;
/// The same for a fresh file: a merge holds one row group of each of its inputs.
pub(crate) const FRESH_ROW_GROUP_BYTES: usize = 8 << 20;
/// Rows of a data page at most: what the reader of a single row fetches of each column.
const PAGE_ROWS: usize = 8_192;
const STATISTICS_BYTES: usize = 64;
const BLOOM_FALSE_POSITIVES: f64 = 0.01;
const ZSTD_LEVEL: i32 = 3;
/// Rows, and bytes before encoding, that are turned into columns at a time.
pub(crate) const BATCH_ROWS: usize = 4_096;
pub(crate) const BATCH_BYTES: usize = 8 << 20;

/// Names of the file's key-value metadata.
pub mod metadata {
    /// The format's version.
    pub const FORMAT_VERSION: &str = "refstream.format_version";
    /// The topic's name.
    pub const TOPIC: &str = "refstream.topic";
    /// The topic's id.
    pub const TOPIC_ID: &str = "refstream.topic_id";
    /// The numbers of the segments, ascending, with commas between.
    pub const SEGMENTS: &str = "refstream.segments";
    /// First and last offsets: `<partition>:<first>-<last>` for every run of dense offsets, with commas between.
    pub const OFFSETS: &str = "refstream.offsets";
    /// Rows.
    pub const ROW_COUNT: &str = "refstream.row_count";
    /// Payload bytes as given.
    pub const PAYLOAD_BYTES: &str = "refstream.payload_bytes";
    /// The earliest append time, RFC 3339.
    pub const FIRST_APPEND_TIME: &str = "refstream.first_append_time";
    /// The latest append time, RFC 3339.
    pub const LAST_APPEND_TIME: &str = "refstream.last_append_time";
    /// The digest over the rows, 64 hexadecimal digits.
    pub const DIGEST: &str = "refstream.digest";
    /// The program that wrote the file.
    pub const WRITER: &str = "refstream.writer";
}

/// The standard `created_by` form: `refstream version X (build Y)`.
pub fn created_by() -> String {
    let build = option_env!("REFSTREAM_BUILD").unwrap_or("release");
    format!("refstream version {} (build {build})", env!("CARGO_PKG_VERSION"))
}

fn path(text: &str) -> ColumnPath {
    ColumnPath::new(text.split('.').map(str::to_owned).collect())
}

/// The writer properties of every file.
pub fn properties() -> WriterProperties {
    properties_for(ROW_GROUP_ROWS as u64)
}

/// The same for a file of so many rows: bloom filters start no larger than they need to be.
pub(crate) fn properties_for(rows: u64) -> WriterProperties {
    let mut builder = WriterProperties::builder()
        .set_writer_version(WriterVersion::PARQUET_1_0)
        .set_created_by(created_by())
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(ZSTD_LEVEL).unwrap_or_default()))
        .set_max_row_group_row_count(Some(ROW_GROUP_ROWS))
        .set_max_row_group_bytes(Some(ROW_GROUP_BYTES))
        .set_data_page_row_count_limit(PAGE_ROWS)
        .set_statistics_enabled(EnabledStatistics::Page)
        .set_statistics_truncate_length(Some(STATISTICS_BYTES))
        .set_column_index_truncate_length(Some(STATISTICS_BYTES))
        .set_dictionary_enabled(false)
        .set_sorting_columns(Some(vec![
            SortingColumn { column_idx: 1, descending: false, nulls_first: false },
            SortingColumn { column_idx: 2, descending: false, nulls_first: false },
        ]));
    for column in ["topic", "partition_id", "payload.content_type", "producer_id", "attributes.list.element.key"] {
        builder = builder.set_column_dictionary_enabled(path(column), true);
    }
    for column in [
        "log_offset",
        "append_time",
        "event_time",
        "payload.offset",
        "payload.size",
        "content_size",
        "source_mtime",
        "producer_seq",
        "producer_epoch",
    ] {
        builder = builder.set_column_encoding(path(column), Encoding::DELTA_BINARY_PACKED);
    }
    for column in [
        "key",
        "payload.uri",
        "payload.checksum",
        "content_hash",
        "content_encoding",
        "source_name",
        "store",
        "payload_etag",
        "payload_version",
    ] {
        builder = builder.set_column_encoding(path(column), Encoding::DELTA_BYTE_ARRAY);
    }
    for column in ["key", "content_hash"] {
        builder = builder
            .set_column_bloom_filter_fpp(path(column), BLOOM_FALSE_POSITIVES)
            .set_column_bloom_filter_max_ndv(path(column), rows.clamp(1, ROW_GROUP_ROWS as u64));
    }
    builder.build()
}

/// What a file says of itself in its key-value metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Description {
    pub(crate) topic: TopicName,
    pub(crate) topic_id: TopicId,
    pub(crate) segments: Vec<SegmentSpan>,
    pub(crate) rows: u64,
    pub(crate) payload_bytes: u64,
    pub(crate) append_times: (Timestamp, Timestamp),
    pub(crate) digest: [u8; 32],
}

impl Description {
    /// The numbers and offsets of the segments as text.
    pub(crate) fn segments_and_offsets(&self) -> (String, String) {
        let numbers = self.segments.iter().map(|s| s.number.to_string()).collect::<Vec<_>>().join(",");
        let mut runs = self
            .segments
            .iter()
            .flat_map(|s| s.range.iter().zip(s.start_offsets.iter().zip(&s.end_offsets)))
            .filter(|(_, (start, end))| start < end)
            .map(|(partition, (start, end))| (partition.0, start.0, end.0))
            .collect::<Vec<_>>();
        runs.sort_unstable();
        runs.dedup_by(|next, run| {
            let dense = run.0 == next.0 && run.2 == next.1;
            if dense {
                run.2 = next.2;
            }
            dense
        });
        let offsets =
            runs.iter().map(|(p, start, end)| format!("{p}:{start}-{}", end - 1)).collect::<Vec<_>>().join(",");
        (numbers, offsets)
    }

    fn pairs(&self) -> Vec<(&'static str, String)> {
        let (segments, offsets) = self.segments_and_offsets();
        vec![
            (metadata::FORMAT_VERSION, FORMAT_VERSION.to_string()),
            (metadata::TOPIC, self.topic.to_string()),
            (metadata::TOPIC_ID, self.topic_id.to_string()),
            (metadata::SEGMENTS, segments),
            (metadata::OFFSETS, offsets),
            (metadata::ROW_COUNT, self.rows.to_string()),
            (metadata::PAYLOAD_BYTES, self.payload_bytes.to_string()),
            (metadata::FIRST_APPEND_TIME, self.append_times.0.to_string()),
            (metadata::LAST_APPEND_TIME, self.append_times.1.to_string()),
            (metadata::DIGEST, hex::encode(self.digest)),
            (metadata::WRITER, env!("CARGO_PKG_VERSION").to_owned()),
        ]
    }
}

struct RowGroup {
    columns: Vec<(ArrowColumnWriter, Arc<Mutex<Pages>>)>,
    rows: usize,
    raw: usize,
}

/// Writes one file, row group by row group; finished bytes are taken out as they come.
pub(crate) struct FileWriter {
    writer: SerializedFileWriter<Vec<u8>>,
    factory: ArrowRowGroupWriterFactory,
    recorder: Arc<Recorder>,
    group: Option<RowGroup>,
    groups: usize,
    group_bytes: usize,
}

impl FileWriter {
    /// A file whose row groups hold at most [`ROW_GROUP_ROWS`] rows and about `group_bytes` bytes of rows before encoding.
    pub(crate) fn new(properties: WriterProperties, group_bytes: usize) -> Result<Self> {
        let columns = ArrowSchemaConverter::new().schema_root("refstream").convert(&schema())?;
        let writer = SerializedFileWriter::new(Vec::new(), columns.root_schema_ptr(), Arc::new(properties))?;
        let recorder = Arc::new(Recorder::default());
        let factory =
            ArrowRowGroupWriterFactory::new(&writer, schema()).with_page_store_factory(Arc::clone(&recorder) as _);
        Ok(Self { writer, factory, recorder, group: None, groups: 0, group_bytes })
    }

    /// Writes rows whose size before encoding is about `raw`.
    pub(crate) fn write(&mut self, batch: &RecordBatch, raw: usize) -> Result<()> {
        let rows = batch.num_rows();
        let mut done = 0;
        while done < rows {
            let group = self.group()?;
            let fit = (ROW_GROUP_ROWS - group.rows).min(rows - done);
            let part = batch.slice(done, fit);
            let mut columns = group.columns.iter_mut();
            for (field, array) in schema().fields().iter().zip(part.columns()) {
                for leaf in compute_leaves(field, array)? {
                    if let Some((column, _)) = columns.next() {
                        column.write(&leaf)?;
                    }
                }
            }
            group.rows += fit;
            group.raw += raw / rows * fit;
            let full = group.rows >= ROW_GROUP_ROWS || group.raw >= self.group_bytes;
            if full {
                self.flush()?;
            }
            done += fit;
        }
        Ok(())
    }

    fn group(&mut self) -> Result<&mut RowGroup> {
        if self.group.is_none() {
            let columns = self.factory.create_column_writers(self.groups)?;
            let pages = self.recorder.take();
            self.groups += 1;
            self.group = Some(RowGroup { columns: columns.into_iter().zip(pages).collect(), rows: 0, raw: 0 });
        }
        self.group.as_mut().ok_or_else(|| parquet::errors::ParquetError::General("no row group".into()))
    }

    fn flush(&mut self) -> Result<()> {
        let Some(group) = self.group.take() else { return Ok(()) };
        let mut writer = self.writer.next_row_group()?;
        for (column, pages) in group.columns {
            let mut chunk = column.close()?;
            let bloom = chunk.close_mut().bloom_filter.take();
            let mut close = chunk.close().clone();
            close.bloom_filter = bloom;
            drop(chunk);
            let (bytes, close) = Recorder::finish(&pages, close)?;
            writer.append_column(&bytes, close)?;
        }
        writer.close()?;
        Ok(())
    }

    /// The bytes that are finished since the last call.
    pub(crate) fn take_bytes(&mut self) -> Result<Vec<u8>> {
        self.writer.flush()?;
        Ok(std::mem::take(self.writer.inner_mut()))
    }

    /// Ends the file; returns its last bytes.
    pub(crate) fn finish(&mut self, description: &Description) -> Result<Vec<u8>> {
        self.flush()?;
        for (key, value) in description.pairs() {
            self.writer.append_key_value_metadata(KeyValue::new(key.to_owned(), value));
        }
        self.writer.finish()?;
        self.take_bytes()
    }
}

/// Bytes that the rows of a batch take in memory.
pub(crate) fn raw_bytes(batch: &RecordBatch) -> usize {
    batch.columns().iter().map(|column| column.to_data().get_slice_memory_size().unwrap_or(0)).sum()
}

/// The rows as columns, as the compactor makes them. `stores` give the URIs of payloads.
///
/// # Errors
/// When the rows exceed what Arrow arrays can hold.
pub fn record_batches(
    topic: &TopicName,
    rows: &[Row],
    stores: &BTreeMap<StoreName, Arc<dyn BlobStore>>,
) -> Result<Vec<RecordBatch>> {
    let mut encoder = RowEncoder::new(topic.clone(), Stores::new(stores.clone()));
    let mut batches = Vec::new();
    for row in rows {
        encoder.push(&row.view(&mut Vec::new()));
        if encoder.is_full() {
            batches.push(encoder.finish()?);
        }
    }
    if encoder.rows() > 0 {
        batches.push(encoder.finish()?);
    }
    Ok(batches)
}

/// A whole file of `rows`, in memory: what the compactor's writer makes of them, for comparisons with other writers.
///
/// # Errors
/// When the rows cannot be encoded.
pub fn write_rows(
    topic: &TopicName,
    rows: &[Row],
    stores: &BTreeMap<StoreName, Arc<dyn BlobStore>>,
    properties: WriterProperties,
) -> Result<Vec<u8>> {
    let mut writer = FileWriter::new(properties, ROW_GROUP_BYTES)?;
    for batch in record_batches(topic, rows, stores)? {
        writer.write(&batch, raw_bytes(&batch))?;
    }
    let times = rows.iter().map(|row| row.append_time);
    writer.finish(&Description {
        topic: topic.clone(),
        topic_id: TopicId(0),
        segments: Vec::new(),
        rows: rows.len() as u64,
        payload_bytes: 0,
        append_times: (times.clone().min().unwrap_or_default(), times.max().unwrap_or_default()),
        digest: crate::RowsDigest::of(rows).to_bytes(),
    })
}

#[cfg(test)]
mod tests;
