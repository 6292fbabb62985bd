//! One committed batch: from memory at once, or by a read of its journal.

use super::{
    Reader, Topic,
    blocks::Stretch,
    lock,
    topic::{Indexed, Lookup, TimeLookup},
};
use crate::errors;
use bytes::Bytes;
use refstream_filer_adapter::StoreError;
use refstream_format::{batch::EncodedBatch, cluster_log::SealedSegment};
use refstream_journal::ReadError;
use refstream_proto::v1::ErrorDetail;
use refstream_types::{ByteRange, Offset, PartitionId, Slot, Timestamp};
use std::{sync::Arc, time::Duration};

/// How often a read that may succeed later is tried.
const TRIES: u32 = 4;
/// The wait before the second try; it doubles.
const FIRST_WAIT: Duration = Duration::from_millis(50);

/// A committed batch with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Delivered {
    pub(crate) base_offset: Offset,
    pub(crate) records: u32,
    pub(crate) append_time: Timestamp,
    pub(crate) slot: Slot,
    pub(crate) bytes: Bytes,
}

impl Delivered {
    fn new(batch: &Indexed, bytes: Bytes) -> Self {
        Self {
            base_offset: Offset(batch.base),
            records: batch.records,
            append_time: batch.append_time,
            slot: batch.slot,
            bytes,
        }
    }
    /// The offset after its last record.
    pub(crate) fn end(&self) -> Offset {
        Offset(self.base_offset.0 + u64::from(self.records))
    }
}

/// What can be had at an offset without waiting.
#[derive(Debug)]
pub(crate) enum Next {
    /// This batch.
    Batch(Delivered),
    /// Nothing is committed there yet.
    End,
    /// It must be read: [`Reader::fetch`].
    Read,
    /// It cannot be had here.
    Failed(ErrorDetail),
}

/// Why a read of a journal failed.
enum Failure {
    /// The object is not there (any more).
    Gone(String),
    /// The store did not say.
    Store(StoreError),
    /// What was read is not what must be there.
    Damaged(String),
}

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Store(error) => Self::Store(error),
            ReadError::Gone(_) => Self::Gone(error.to_string()),
            error => Self::Damaged(error.to_string()),
        }
    }
}

impl Reader {
    /// What there is at an offset, as far as it can be told without waiting.
    pub(crate) fn next(&self, topic: &Topic, partition: PartitionId, offset: Offset) -> Next {
        let latest = topic.latest(partition);
        if offset == latest {
            return Next::End;
        }
        if offset > latest {
            return Next::Failed(errors::out_of_range(partition.0, offset.0, latest.0));
        }
        match topic.lookup(partition, offset.0) {
            Lookup::Batch { batch, stretch } => match self.cached(topic, partition, &batch, &stretch) {
                Some(Ok(delivered)) => Next::Batch(delivered),
                Some(Err(why)) => Next::Failed(errors::unreadable(partition.0, offset.0, why, false)),
                None => Next::Read,
            },
            Lookup::Load { .. } => Next::Read,
            Lookup::InFiles { until } => Next::Failed(errors::in_files(partition.0, offset.0, until)),
            Lookup::Nowhere => Next::Failed(self.nowhere(topic, partition, offset)),
        }
    }

    fn nowhere(&self, topic: &Topic, partition: PartitionId, offset: Offset) -> ErrorDetail {
        tracing::error!(topic = %topic.id(), %partition, %offset, "a committed offset is in no segment");
        let why = "no segment of the broker's index holds it; restarting the broker builds the index anew";
        errors::unreadable(partition.0, offset.0, why, false)
    }

    fn cached(
        &self,
        topic: &Topic,
        partition: PartitionId,
        batch: &Indexed,
        stretch: &Stretch,
    ) -> Option<Result<Delivered, String>> {
        if let Some(bytes) = lock(&self.recent).get(&(topic.id(), partition, Offset(batch.base))) {
            return Some(Ok(Delivered::new(batch, bytes)));
        }
        self.blocks.peek(stretch).map(|block| self.cut(batch, stretch, &block))
    }

    /// One batch of a stretch that was read, checked.
    fn cut(&self, batch: &Indexed, stretch: &Stretch, block: &Bytes) -> Result<Delivered, String> {
        let damaged = |why: String| {
            let object = self.metadata.layout().journal(stretch.epoch, stretch.slot);
            format!("the journal object {object} is damaged at byte {}: {why}", batch.bytes.0)
        };
        let from = (batch.bytes.0 - stretch.from) as usize;
        let to = from + batch.bytes.1 as usize;
        if to > block.len() {
            return Err(damaged("it ends too early".into()));
        }
        let parsed = EncodedBatch::parse(block.slice(from..to)).map_err(|error| damaged(error.to_string()))?;
        if parsed.header().records != batch.records {
            return Err(damaged(format!("{} records, expected {}", parsed.header().records, batch.records)));
        }
        Ok(Delivered::new(batch, parsed.bytes().clone()))
    }

    /// The batch that holds an offset, read from its journal where it is not in memory; `None` at the end. Tries again where that
    /// may help.
    ///
    /// # Errors
    /// As the client is to see it.
    pub(crate) async fn fetch(
        &self,
        topic: &Topic,
        partition: PartitionId,
        offset: Offset,
    ) -> Result<Option<Delivered>, ErrorDetail> {
        let mut wait = FIRST_WAIT;
        for attempt in 1.. {
            let failure = match self.next(topic, partition, offset) {
                Next::Batch(delivered) => return Ok(Some(delivered)),
                Next::End => return Ok(None),
                Next::Failed(detail) => return Err(detail),
                Next::Read => match self.read_once(topic, partition, offset).await {
                    Ok(Some(delivered)) => return Ok(Some(delivered)),
                    Ok(None) => continue,
                    Err(failure) => failure,
                },
            };
            match failure {
                Failure::Gone(what) => {
                    // Freed since its segment is in files; or lost.
                    return Err(match topic.closed_until(partition, offset.0) {
                        Some(until) => errors::in_files(partition.0, offset.0, until),
                        None => errors::unreadable(partition.0, offset.0, what, false),
                    });
                }
                Failure::Damaged(what) => return Err(errors::unreadable(partition.0, offset.0, what, false)),
                Failure::Store(error) => {
                    self.metrics.store_error("read_range");
                    if attempt >= TRIES || !error.is_retryable() {
                        return Err(errors::unreadable(partition.0, offset.0, &error, error.is_retryable()));
                    }
                }
            }
            self.runtime.sleep(wait).await;
            wait *= 2;
        }
        Ok(None)
    }

    /// One step towards the batch: loads the segment's index (`None`: look again), or reads the batch.
    async fn read_once(
        &self,
        topic: &Topic,
        partition: PartitionId,
        offset: Offset,
    ) -> Result<Option<Delivered>, Failure> {
        match topic.lookup(partition, offset.0) {
            Lookup::Load { sealed, loading } => {
                self.load(topic, &sealed, &loading).await?;
                Ok(None)
            }
            Lookup::Batch { batch, stretch } => {
                let block = self.blocks.get(stretch, self.read_stretch(stretch)).await?;
                self.cut(&batch, &stretch, &block).map(Some).map_err(Failure::Damaged)
            }
            Lookup::InFiles { .. } | Lookup::Nowhere => Ok(None),
        }
    }

    async fn read_stretch(&self, stretch: Stretch) -> Result<Bytes, Failure> {
        let key = self.metadata.layout().journal(stretch.epoch, stretch.slot);
        let range = ByteRange { offset: stretch.from.into(), length: (stretch.to - stretch.from).into() };
        let read = self.metadata.filer().read_range(&key, range).await.map_err(Failure::Store)?;
        let bytes = read.ok_or_else(|| Failure::Gone(format!("the object {key} does not exist (any more)")))?;
        self.metrics.journal_reads.inc();
        self.metrics.journal_read_bytes.inc_by(bytes.len() as u64);
        Ok(bytes)
    }

    /// Loads a sealed segment's index from its journal; whoever comes meanwhile waits for it.
    async fn load(
        &self,
        topic: &Topic,
        sealed: &SealedSegment,
        loading: &Arc<tokio::sync::Mutex<()>>,
    ) -> Result<(), Failure> {
        let _loading = loading.lock().await;
        let number = sealed.opened.id.number;
        if topic.needs_load(number) {
            let locations = self.metadata.segment_batches(sealed).await?;
            topic.loaded(number, &locations);
        }
        Ok(())
    }

    /// The offset of the first record here whose append time is at or after `at`, if any; and whether files may hold an earlier one.
    ///
    /// # Errors
    /// As the client is to see it.
    pub(crate) async fn offset_at(
        &self,
        topic: &Topic,
        partition: PartitionId,
        at: Timestamp,
    ) -> Result<(Option<Offset>, bool), ErrorDetail> {
        loop {
            match topic.lookup_time(partition, at) {
                TimeLookup::At { offset, files } => return Ok((Some(Offset(offset)), files)),
                TimeLookup::None { files } => return Ok((None, files)),
                TimeLookup::Load { sealed, loading } => {
                    if let Err(failure) = self.load(topic, &sealed, &loading).await {
                        let first = topic.first(partition).0;
                        return Err(match failure {
                            Failure::Store(error) => {
                                errors::unreadable(partition.0, first, &error, error.is_retryable())
                            }
                            Failure::Gone(what) | Failure::Damaged(what) => {
                                errors::unreadable(partition.0, first, what, false)
                            }
                        });
                    }
                }
            }
        }
    }
}
