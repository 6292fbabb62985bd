//! Encoded batches to columns: the middle stage of a compaction, on a blocking thread of its own.

use crate::{
    CompactError,
    digest::RowsHasher,
    encode::RowEncoder,
    interface::RowView,
    output::{Columns, Step, Totals},
    source::Placed,
    spans::Run,
    stores::Stores,
};
use arrow::error::ArrowError;
use refstream_format::{
    DecodeError,
    batch::{BatchDecoder, EncodedBatch, RecordView, ValueView},
};
use refstream_journal::ReadError;
use refstream_types::{Layout, Offset, ProducerStamp, Sequence, Timestamp, TopicName};
use tokio::sync::mpsc;

/// Why the stage ends before its input does.
enum Stop {
    /// The batch at hand is damaged.
    Damaged(DecodeError),
    Columns(ArrowError),
    /// Nobody takes the columns any more: the stage behind has failed, and says why.
    Closed,
}

impl From<DecodeError> for Stop {
    fn from(error: DecodeError) -> Self {
        Self::Damaged(error)
    }
}

/// Turns batches into columns and sums up what a file says of its rows.
pub(crate) struct Decoding {
    layout: Layout,
    /// The file's, for errors.
    uri: String,
    decoder: BatchDecoder,
    rows: Rows,
    out: mpsc::Sender<Step>,
}

/// What was made of the rows so far.
struct Rows {
    encoder: RowEncoder,
    hasher: RowsHasher,
    count: u64,
    payload_bytes: u64,
    append_times: Option<(Timestamp, Timestamp)>,
}

impl Decoding {
    /// For a file of these runs; columns go to `out`.
    pub(crate) fn new(
        layout: Layout,
        uri: String,
        runs: Vec<Run>,
        (topic, stores): (TopicName, Stores),
        out: mpsc::Sender<Step>,
    ) -> Self {
        let rows = Rows {
            encoder: RowEncoder::new(topic, stores),
            hasher: RowsHasher::new(runs),
            count: 0,
            payload_bytes: 0,
            append_times: None,
        };
        Self { layout, uri, decoder: BatchDecoder::new(), rows, out }
    }

    /// Decodes passes until there are no more of them, then sends the end; stops early, without an error, when nobody takes the
    /// columns any more.
    pub(crate) fn run(mut self, mut passes: mpsc::Receiver<Vec<(Placed, EncodedBatch)>>) -> Result<(), CompactError> {
        while let Some(pass) = passes.blocking_recv() {
            for (placed, batch) in pass {
                let done = self.batch(&placed, &batch);
                if let Err(stop) = done {
                    return self.stopped(stop, &placed);
                }
            }
        }
        match self.rows.end(&self.out) {
            Err(Stop::Columns(error)) => Err(self.failed(&error)),
            _ => Ok(()),
        }
    }

    fn stopped(&self, stop: Stop, placed: &Placed) -> Result<(), CompactError> {
        match stop {
            Stop::Closed => Ok(()),
            Stop::Columns(error) => Err(self.failed(&error)),
            Stop::Damaged(error) => {
                Err(ReadError::Damaged { key: self.layout.journal(placed.0, placed.1.slot), error }.into())
            }
        }
    }

    fn failed(&self, error: &ArrowError) -> CompactError {
        CompactError::Write { uri: self.uri.clone(), why: error.to_string() }
    }

    fn batch(&mut self, (_, location): &Placed, batch: &EncodedBatch) -> Result<(), Stop> {
        let producer = batch.header().producer;
        let mut at = 0;
        self.decoder.each(batch, |record| {
            let row = RowView {
                partition: location.partition,
                offset: Offset(location.base_offset.0 + at),
                append_time: location.append_time,
                producer: producer.map(|stamp| ProducerStamp { first: Sequence(stamp.first.0 + at), ..stamp }),
                record,
            };
            at += 1;
            self.rows.push(&row);
            if self.rows.encoder.is_full() { self.rows.send(&self.out) } else { Ok(()) }
        })
    }
}

impl Rows {
    fn push(&mut self, row: &RowView<'_>) {
        self.hasher.add(row);
        self.count += 1;
        self.payload_bytes += payload_bytes(&row.record);
        let (first, last) = self.append_times.get_or_insert((row.append_time, row.append_time));
        *first = row.append_time.min(*first);
        *last = row.append_time.max(*last);
        self.encoder.push(row);
    }

    fn send(&mut self, out: &mpsc::Sender<Step>) -> Result<(), Stop> {
        if self.encoder.rows() == 0 {
            return Ok(());
        }
        let raw = self.encoder.raw();
        let batch = self.encoder.finish().map_err(Stop::Columns)?;
        out.blocking_send(Step::Columns(Columns { batch, raw })).map_err(|_| Stop::Closed)
    }

    fn end(&mut self, out: &mpsc::Sender<Step>) -> Result<(), Stop> {
        self.send(out)?;
        let totals = Totals {
            rows: self.count,
            payload_bytes: self.payload_bytes,
            append_times: self.append_times.unwrap_or_default(),
            digest: self.hasher.finish().to_bytes(),
        };
        out.blocking_send(Step::End(totals)).map_err(|_| Stop::Closed)
    }
}

/// Bytes of a payload as given.
fn payload_bytes(record: &RecordView<'_>) -> u64 {
    match &record.value {
        ValueView::Reference(reference) => reference.content_size,
        ValueView::Inline { bytes, .. } => bytes.len() as u64,
        ValueView::Tombstone => 0,
    }
}
