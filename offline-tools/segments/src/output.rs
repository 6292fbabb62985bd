//! A file that is being written: columns in, bytes to the store. Encoding has a blocking thread of its own, so that a broker which
//! compacts beside serving keeps answering, and so that reading, encoding and uploading go on at once.
//!
//! Nothing is visible before the end. Where the input stops without an [`Step::End`], or a stage fails, the upload is given up.

use crate::{
    CompactError, spans,
    upload::Upload,
    writer::{Description, FileWriter, properties_for},
};
use arrow::array::RecordBatch;
use parquet::errors::ParquetError;
use refstream_filer_adapter::BlobStore;
use refstream_format::manifest::{DataFile, SegmentSpan, Tier};
use refstream_types::{Key, Timestamp, TopicId, TopicName};
use std::sync::Arc;
use tokio::sync::mpsc;

/// Finished pieces of a file (row groups at most) that wait for their upload.
const PIECES_AHEAD: usize = 1;

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

/// What a file is made of, in order.
pub(crate) enum Step {
    /// Its next rows.
    Columns(Columns),
    /// There are no more: these are the totals of all of them.
    End(Totals),
}

/// The file to be.
pub(crate) struct Output {
    pub(crate) key: Key,
    pub(crate) tier: Tier,
    pub(crate) topic: (TopicName, TopicId),
    pub(crate) segments: Vec<SegmentSpan>,
    /// Bytes of a row group's rows at most, before any encoding.
    pub(crate) group_bytes: usize,
}

impl Output {
    /// Writes `input` and makes the file visible; `None` when `input` ended too early, of which its other end knows why.
    pub(crate) async fn write(
        self,
        files: &Arc<dyn BlobStore>,
        input: mpsc::Receiver<Step>,
    ) -> Result<Option<DataFile>, CompactError> {
        let (uri, key, tier) = (files.uri(&self.key), self.key.clone(), self.tier);
        let (finished, mut pieces) = mpsc::channel(PIECES_AHEAD);
        let encode = tokio::task::spawn_blocking(move || self.encode(input, &finished));
        let mut upload = Upload::new(Arc::clone(files), key.clone());
        let written = async {
            while let Some(piece) = pieces.recv().await {
                upload.push(&piece).await?;
            }
            let failed = |why: String| CompactError::Write { uri: uri.clone(), why };
            let encoded = encode.await.map_err(|error| failed(error.to_string()))?;
            let Some(description) = encoded.map_err(|error| failed(error.to_string()))? else { return Ok(None) };
            let bytes = upload.finish().await?;
            Ok(Some(description.into_file(key, tier, bytes)))
        };
        let written = written.await;
        if !matches!(written, Ok(Some(_))) {
            upload.abandon().await;
        }
        written
    }

    /// The blocking stage.
    fn encode(
        self,
        mut input: mpsc::Receiver<Step>,
        finished: &mpsc::Sender<Vec<u8>>,
    ) -> Result<Option<Description>, ParquetError> {
        let expected = self.segments.iter().map(spans::rows).sum();
        let mut writer = FileWriter::new(properties_for(expected), self.group_bytes)?;
        let mut rows = 0;
        while let Some(step) = input.blocking_recv() {
            let piece = match step {
                Step::Columns(columns) => {
                    rows += columns.batch.num_rows() as u64;
                    writer.write(&columns.batch, columns.raw)?;
                    writer.take_bytes()?
                }
                Step::End(totals) => {
                    if expected != rows || expected != totals.rows || expected == 0 {
                        let found = totals.rows;
                        let why = format!("{found} rows were read, {rows} written, the segments have {expected}");
                        return Err(ParquetError::General(why));
                    }
                    let description = Description {
                        topic: self.topic.0,
                        topic_id: self.topic.1,
                        segments: self.segments,
                        rows,
                        payload_bytes: totals.payload_bytes,
                        append_times: totals.append_times,
                        digest: totals.digest,
                    };
                    let last = writer.finish(&description)?;
                    return Ok(finished.blocking_send(last).is_ok().then_some(description));
                }
            };
            if !piece.is_empty() && finished.blocking_send(piece).is_err() {
                break;
            }
        }
        Ok(None)
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
