//! A file that is being written: rows or columns in, bytes to the store. Encoding runs on blocking threads, so that a broker
//! which compacts beside serving keeps answering.

use crate::{
    CompactError, Row,
    digest::RowsDigest,
    encode::RowEncoder,
    stores::Stores,
    upload::Upload,
    writer::{BATCH_BYTES, BATCH_ROWS, Description, FileWriter, properties_for, raw_bytes},
};
use arrow::array::RecordBatch;
use refstream_filer_adapter::BlobStore;
use refstream_format::manifest::{DataFile, SegmentSpan, Tier};
use refstream_types::{Key, Timestamp, TopicId, TopicName, Value};
use std::sync::Arc;

struct Encoding {
    encoder: RowEncoder,
    writer: FileWriter,
    digest: RowsDigest,
    scratch: Vec<u8>,
    rows: u64,
    payload_bytes: u64,
    append_times: Option<(Timestamp, Timestamp)>,
}

impl Encoding {
    fn rows(&mut self, rows: &[Row]) -> parquet::errors::Result<()> {
        for row in rows {
            self.digest.add_row(row, &mut self.scratch);
            self.rows += 1;
            self.payload_bytes += match &row.record.value {
                Value::Reference(reference) => reference.content_size,
                Value::Inline { bytes, .. } => bytes.len() as u64,
                Value::Tombstone => 0,
            };
            let (first, last) = self.append_times.get_or_insert((row.append_time, row.append_time));
            *first = row.append_time.min(*first);
            *last = row.append_time.max(*last);
            self.encoder.push(row);
            if self.encoder.rows() >= BATCH_ROWS || self.encoder.raw() >= BATCH_BYTES {
                self.columns()?;
            }
        }
        Ok(())
    }

    fn columns(&mut self) -> parquet::errors::Result<()> {
        if self.encoder.rows() > 0 {
            let raw = self.encoder.raw();
            let batch = self.encoder.finish()?;
            self.writer.write(&batch, raw)?;
        }
        Ok(())
    }
}

/// What a merge knows of its rows beforehand: the sums over its inputs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Totals {
    pub(crate) payload_bytes: u64,
    pub(crate) append_times: (Timestamp, Timestamp),
    pub(crate) digest: [u8; 32],
}

pub(crate) struct Output {
    uri: String,
    key: Key,
    tier: Tier,
    topic: TopicName,
    topic_id: TopicId,
    upload: Upload,
    encoding: Option<Box<Encoding>>,
}

impl Output {
    pub(crate) fn new(
        files: &Arc<dyn BlobStore>,
        key: Key,
        tier: Tier,
        topic: (&TopicName, TopicId),
        stores: Stores,
        (rows, group_bytes): (u64, usize),
    ) -> Result<Self, CompactError> {
        let uri = files.uri(&key);
        let writer = FileWriter::new(properties_for(rows), group_bytes)
            .map_err(|error| CompactError::Write { uri: uri.clone(), why: error.to_string() })?;
        Ok(Self {
            uri,
            key: key.clone(),
            tier,
            topic: topic.0.clone(),
            topic_id: topic.1,
            upload: Upload::new(Arc::clone(files), key),
            encoding: Some(Box::new(Encoding {
                encoder: RowEncoder::new(topic.0.clone(), stores),
                writer,
                digest: RowsDigest::default(),
                scratch: Vec::new(),
                rows: 0,
                payload_bytes: 0,
                append_times: None,
            })),
        })
    }

    pub(crate) fn uri(&self) -> &str {
        &self.uri
    }

    fn failed(&self, why: impl ToString) -> CompactError {
        CompactError::Write { uri: self.uri.clone(), why: why.to_string() }
    }

    /// Runs `work` on a blocking thread and uploads the bytes that it finished.
    async fn encode(
        &mut self,
        work: impl FnOnce(&mut Encoding) -> parquet::errors::Result<Vec<u8>> + Send + 'static,
    ) -> Result<(), CompactError> {
        let Some(mut encoding) = self.encoding.take() else {
            return Err(self.failed("an earlier step failed"));
        };
        let ran = tokio::task::spawn_blocking(move || {
            let bytes = work(&mut encoding);
            (encoding, bytes)
        });
        let (encoding, bytes) = ran.await.map_err(|error| self.failed(error))?;
        let bytes = bytes.map_err(|error| self.failed(error))?;
        self.encoding = Some(encoding);
        if let Err(error) = self.upload.push(&bytes).await {
            self.upload.abandon().await;
            return Err(error.into());
        }
        Ok(())
    }

    pub(crate) async fn rows(&mut self, rows: Vec<Row>) -> Result<(), CompactError> {
        self.encode(move |encoding| {
            encoding.rows(&rows)?;
            encoding.writer.take_bytes()
        })
        .await
    }

    pub(crate) async fn columns(&mut self, batch: RecordBatch) -> Result<(), CompactError> {
        self.encode(move |encoding| {
            encoding.rows += batch.num_rows() as u64;
            encoding.writer.write(&batch, raw_bytes(&batch))?;
            encoding.writer.take_bytes()
        })
        .await
    }

    /// Ends the file and makes it visible. `totals` where columns were written.
    pub(crate) async fn finish(
        mut self,
        segments: Vec<SegmentSpan>,
        totals: Option<Totals>,
    ) -> Result<DataFile, CompactError> {
        let Some(encoding) = &self.encoding else {
            return Err(self.failed("an earlier step failed"));
        };
        let expected: u64 = segments.iter().map(crate::spans::rows).sum();
        let totals = totals.unwrap_or(Totals {
            payload_bytes: encoding.payload_bytes,
            append_times: encoding.append_times.unwrap_or_default(),
            digest: encoding.digest.to_bytes(),
        });
        // Rows that the encoder still holds are counted already.
        if expected != encoding.rows || expected == 0 {
            let why = format!("{} rows were written, the segments have {expected}", encoding.rows);
            self.upload.abandon().await;
            return Err(self.failed(why));
        }
        let description = Description {
            topic: self.topic.clone(),
            topic_id: self.topic_id,
            segments,
            rows: expected,
            payload_bytes: totals.payload_bytes,
            append_times: totals.append_times,
            digest: totals.digest,
        };
        let said = description.clone();
        self.encode(move |encoding| {
            encoding.columns()?;
            encoding.writer.finish(&said)
        })
        .await?;
        let bytes = match self.upload.finish().await {
            Ok(bytes) => bytes,
            Err(error) => {
                self.upload.abandon().await;
                return Err(error.into());
            }
        };
        Ok(description.into_file(self.key, self.tier, bytes))
    }

    /// Gives the file up.
    pub(crate) async fn abandon(mut self) {
        self.upload.abandon().await;
    }
}

impl Description {
    /// The manifest's entry for a file of this description.
    pub(crate) fn into_file(self, key: Key, tier: Tier, bytes: u64) -> DataFile {
        DataFile {
            key,
            tier,
            segments: self.segments,
            rows: self.rows,
            bytes,
            payload_bytes: self.payload_bytes,
            append_times: self.append_times,
            digest: self.digest,
        }
    }
}
