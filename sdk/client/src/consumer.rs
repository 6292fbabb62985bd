//! Consuming records.

use crate::ConsumeError;
use refstream_types::{Offset, PartitionId, ProducerStamp, Record, Timestamp, TopicName};
use std::collections::BTreeMap;

/// Where to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum From {
    /// The oldest record.
    Earliest,
    /// The next record to come.
    Latest,
    /// This offset in every partition (or the end, where a partition is shorter).
    Offset(Offset),
    /// The first record with this append time or a later one.
    Time(Timestamp),
    /// An offset for each partition; others are not read.
    Offsets(BTreeMap<PartitionId, Offset>),
}

/// How to consume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerOptions {
    /// Where to start.
    pub from: From,
    /// Go on with new records; otherwise end at what was committed at the start.
    pub follow: bool,
}

/// One record with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The topic.
    pub topic: TopicName,
    /// The partition.
    pub partition: PartitionId,
    /// The offset.
    pub offset: Offset,
    /// When the broker placed it.
    pub append_time: Timestamp,
    /// The producer's identity and this record's own sequence.
    pub producer: Option<ProducerStamp>,
    /// The record.
    pub record: Record,
}

/// Reads a topic: closed segments straight from the store, the rest from the broker; reconnects by itself.
#[derive(Debug)]
pub struct Consumer {}

impl Consumer {
    /// The next record; `None` at the end when not following. In order within a partition.
    ///
    /// # Errors
    /// Names topic, partition and offset. A damaged record is reported once and then passed over; other partitions go on.
    pub async fn next(&mut self) -> Result<Option<Delivery>, ConsumeError> {
        todo!()
    }
    /// The offset of the next record to be delivered, per partition.
    pub fn positions(&self) -> BTreeMap<PartitionId, Offset> {
        todo!()
    }
}
