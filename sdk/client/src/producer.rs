//! Producing records: permit -> ticket -> ack.

use crate::ProduceError;
use refstream_types::{AckMode, Offset, PartitionId, Record, Timestamp};
use std::time::Duration;

/// How to produce.
#[derive(Clone, Debug)]
pub struct ProducerOptions {
    /// When an ack is given.
    pub ack: AckMode,
    /// How long a record may wait for company.
    pub linger: Duration,
    /// A batch is sent when its records have this many bytes.
    pub batch_bytes: usize,
    /// Bytes of records not yet acked; permits wait above it.
    pub memory: usize,
    /// How long to retry before a record fails; shorter than the producer expiry.
    pub retry_for: Duration,
    /// Yields to other traffic.
    pub bulk: bool,
}

impl Default for ProducerOptions {
    fn default() -> Self {
        Self {
            ack: AckMode::Durable,
            linger: Duration::from_millis(2),
            batch_bytes: 256 << 10,
            memory: 32 << 20,
            retry_for: Duration::from_secs(300),
            bulk: false,
        }
    }
}

/// Submits records to a topic: in order per partition, each exactly once whatever is retried. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Producer {}

/// Room for one record.
#[derive(Debug)]
pub struct Permit {}

/// A record that was taken; resolves to its ack.
#[derive(Debug)]
pub struct Ticket {}

/// Where a record is, durably.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    /// Its partition.
    pub partition: PartitionId,
    /// Its offset.
    pub offset: Offset,
    /// Its append time.
    pub append_time: Timestamp,
}

#[allow(unused_variables)]
impl Producer {
    /// Waits for room for a record of about `bytes` bytes.
    ///
    /// # Errors
    /// When the producer failed for good.
    pub async fn reserve(&self, bytes: usize) -> Result<Permit, ProduceError> {
        todo!()
    }
    /// Waits for room and takes the record.
    ///
    /// # Errors
    /// When the record is refused or the producer failed for good.
    pub async fn send(&self, record: Record) -> Result<Ticket, ProduceError> {
        todo!()
    }
    /// Sends what lingers and waits until every record taken so far is acked or failed.
    ///
    /// # Errors
    /// The first failure since the last flush.
    pub async fn flush(&self) -> Result<(), ProduceError> {
        todo!()
    }
}

#[allow(unused_variables)]
impl Permit {
    /// Takes the record. The order of these calls is the order within a partition.
    ///
    /// # Errors
    /// When the record is refused (too large, an invalid reference).
    pub fn send(self, record: Record) -> Result<Ticket, ProduceError> {
        todo!()
    }
}

impl Ticket {
    /// Waits for the ack.
    ///
    /// # Errors
    /// Says whether the record may be there all the same.
    pub async fn ack(self) -> Result<Ack, ProduceError> {
        todo!()
    }
}
