//! A file that is being written: columns in, bytes to the store. Encoding runs on blocking threads, so that a broker
//! which compacts beside serving keeps answering.

use crate::{
    CompactError,
    upload::Upload,
    writer::{Description, FileWriter, properties_for},
};
use arrow::array::RecordBatch;
use refstream_filer_adapter::BlobStore;
use refstream_format::manifest::{DataFile, SegmentSpan, Tier};
use refstream_types::{Key, Timestamp, TopicId, TopicName};
use std::sync::Arc;

struct Encoding {
    writer: FileWriter,
    rows: u64,
}

/// Rows as columns.
pub(crate) struct Columns {
    pub(crate) batch: RecordBatch,
    /// Bytes of the rows before any encoding, about.
    pub(crate) raw: usize,
}

/// What a file says of its rows: summed up while they are decoded, or over the inputs of a merge.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Totals {
    pub(crate) rows: u64,
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
            encoding: Some(Box::new(Encoding { writer, rows: 0 })),
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

    /// Writes rows.
    pub(crate) async fn columns(&mut self, columns: Columns) -> Result<(), CompactError> {
        self.encode(move |encoding| {
            encoding.rows += columns.batch.num_rows() as u64;
            encoding.writer.write(&columns.batch, columns.raw)?;
            encoding.writer.take_bytes()
        })
        .await
    }

    /// Ends the file and makes it visible.
    pub(crate) async fn finish(mut self, segments: Vec<SegmentSpan>, totals: Totals) -> Result<DataFile, CompactError> {
        let Some(encoding) = &self.encoding else {
            return Err(self.failed("an earlier step failed"));
        };
        let expected: u64 = segments.iter().map(crate::spans::rows).sum();
        if expected != encoding.rows || expected != totals.rows || expected == 0 {
            let why = format!(
                "{} rows were decoded and {} written, the segments have {expected}",
                totals.rows, encoding.rows
            );
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
        self.encode(move |encoding| encoding.writer.finish(&said)).await?;
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
