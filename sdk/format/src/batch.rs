//! Batches: records of one partition from one producer, encoded by the client, opaque to the broker.
//!
//! The broker reads the fixed header only; base offset and append time are not in the batch but beside it, in the journal.

use crate::DecodeError;
use bytes::Bytes;
use refstream_types::{ProducerStamp, Record};

/// The most records of one batch.
pub const MAX_BATCH_RECORDS: u32 = 65_536;
/// The longest encoded batch, in bytes.
pub const MAX_BATCH_BYTES: usize = 4 << 20;
/// The most bytes of a batch's records before compression.
pub const MAX_BATCH_DECODED_BYTES: usize = 16 << 20;

/// What the broker knows of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchHeader {
    /// Records in the batch, 1 to [`MAX_BATCH_RECORDS`].
    pub records: u32,
    /// Who produced it; `None` when the producer does not ask for idempotence.
    pub producer: Option<ProducerStamp>,
    /// Total payload bytes (as given) that its records refer to or carry: for metrics and manifests.
    pub payload_bytes: u64,
}

/// A batch whose header and checksum have been checked. Cloning shares the bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedBatch {
    header: BatchHeader,
    bytes: Bytes,
}

impl EncodedBatch {
    /// Checks length, version, limits and CRC32C of `bytes`, which must be exactly one batch.
    ///
    /// # Errors
    /// When any of them is wrong.
    pub fn parse(bytes: Bytes) -> Result<Self, DecodeError> {
        let _ = bytes;
        todo!()
    }
    /// The header.
    pub fn header(&self) -> BatchHeader {
        self.header
    }
    /// The encoded batch.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }
    /// The records, in order; their number is the header's.
    ///
    /// # Errors
    /// When the body is not what a [`BatchBuilder`] makes.
    pub fn decode(&self) -> Result<Vec<Record>, DecodeError> {
        todo!()
    }
    /// Stamps the batch with a producer's identity; only the header and its checksum are written again.
    #[must_use]
    pub fn with_producer(&self, stamp: ProducerStamp) -> Self {
        let _ = stamp;
        todo!()
    }
}

/// Why a record was not taken into a batch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// The batch is full: finish it and push again.
    #[error("the batch is full")]
    Full,
    /// The record alone exceeds a limit.
    #[error("the record's {what} has {given}, the limit is {limit}")]
    TooLarge {
        /// Key, headers, value, ...
        what: &'static str,
        /// Its size.
        given: usize,
        /// The limit.
        limit: usize,
    },
    /// Its reference contradicts itself.
    #[error(transparent)]
    Reference(#[from] refstream_types::InvalidReference),
}

/// Collects records into a batch. Store names, object keys and content types repeat, so each is written once a batch.
#[derive(Debug, Default)]
pub struct BatchBuilder {}

impl BatchBuilder {
    /// An empty builder.
    pub fn new() -> Self {
        Self::default()
    }
    /// Takes one record.
    ///
    /// # Errors
    /// [`PushError::Full`] when the batch must be finished first; otherwise the record itself is at fault. The builder is
    /// unchanged in both cases.
    pub fn push(&mut self, record: &Record) -> Result<(), PushError> {
        let _ = record;
        todo!()
    }
    /// Records so far.
    pub fn records(&self) -> u32 {
        todo!()
    }
    /// Bytes so far, before compression.
    pub fn bytes(&self) -> usize {
        todo!()
    }
    /// The batch, and an empty builder again; `None` when no record was pushed. Compresses where that makes it smaller.
    pub fn finish(&mut self, producer: Option<ProducerStamp>) -> Option<EncodedBatch> {
        let _ = producer;
        todo!()
    }
}
