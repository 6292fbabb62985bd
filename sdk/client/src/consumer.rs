//! Consuming records.
//!
//! A task (the `reader`) fetches ahead and hands encoded batches over a queue of bounded bytes; [`Consumer::next`] decodes them. Where a
//! partition's records are depends on its age:
//!
//! 1. In closed files: the broker answers "in files until offset u", and the reader takes the records from the Parquet files that
//!    the topic's manifest names, straight from the store (feature `parquet`). A file that holds several of the partitions concerned is read
//!    once for all of them.
//! 2. At a broker: one Tail stream for each broker that serves partitions. Streams that end are opened again at the positions reached,
//!    after a new look-up, for ever when following and for as long as the client's timeout without any progress otherwise.
//!
//! Nothing is skipped in silence: a batch whose bytes are damaged, and offsets that are neither in files nor at a broker, are
//! reported once by partition and offset and then passed over.

mod files;
mod reader;

use crate::{
    Client, ConsumeError, DamagedRecords, NoSuchRecord, PartitionOffsets, StartOutOfRange, TopicError, records,
};
use reader::{Chunk, Item, Reader, Target};
use refstream_format::batch::EncodedBatch;
use refstream_types::{Offset, PartitionId, ProducerStamp, Record, Sequence, Timestamp, TopicName};
use std::collections::BTreeMap;
use tokio::{
    sync::{OwnedSemaphorePermit, mpsc},
    task::JoinHandle,
};

/// Where to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum From {
    /// The oldest record.
    Earliest,
    /// The next record to come.
    Latest,
    /// This offset in every partition (or the end, where a partition is shorter; or the oldest record, where it was deleted).
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
pub struct Consumer {
    topic: TopicName,
    positions: BTreeMap<PartitionId, Offset>,
    chunks: mpsc::Receiver<Item>,
    /// Records that are decoded, in order, and the room they hold.
    decoded: std::vec::IntoIter<Delivery>,
    room: Option<OwnedSemaphorePermit>,
    reader: JoinHandle<()>,
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl Consumer {
    pub(crate) async fn open(
        client: &Client,
        topic: &TopicName,
        options: ConsumerOptions,
    ) -> Result<Self, ConsumeError> {
        Self::open_up_to(client, topic, options, u64::MAX).await
    }

    /// A consumer that reads at most `limit` offsets of each partition, when it does not follow.
    async fn open_up_to(
        client: &Client,
        topic: &TopicName,
        options: ConsumerOptions,
        limit: u64,
    ) -> Result<Self, ConsumeError> {
        let routes = records::lookup(client.brokers(), topic, None).await?;
        let at = match options.from {
            From::Time(at) => Some(at),
            _ => None,
        };
        let (held, at) = records::list_offsets(client.brokers(), routes.topic.id, at)
            .await
            .map_err(|error| TopicError::of(topic, error))?;
        let mut targets = BTreeMap::new();
        for (index, held) in held.iter().enumerate() {
            if let Some(start) = start(topic, &options.from, held, at.get(index).copied())? {
                let last = start.checked_add(limit).unwrap_or(Offset::MAX);
                let end = (!options.follow).then_some(held.latest.min(last));
                targets.insert(held.partition, Target::new(start, end));
            }
        }
        if let From::Offsets(offsets) = &options.from
            && let Some((partition, offset)) = offsets.iter().find(|(partition, _)| !targets.contains_key(partition))
        {
            let (topic, partition, offset) = (topic.clone(), *partition, *offset);
            return Err(NoSuchRecord { topic, partition, offset, held: None }.into());
        }
        let positions = targets.iter().map(|(partition, target)| (*partition, target.position)).collect();
        let (queue, chunks) = mpsc::channel(reader::QUEUED_CHUNKS);
        let reader = tokio::spawn(Reader::new(client, routes, targets, options.follow, queue).run());
        Ok(Self { topic: topic.clone(), positions, chunks, decoded: Vec::new().into_iter(), room: None, reader })
    }

    /// One record.
    pub(crate) async fn one(
        client: &Client,
        topic: &TopicName,
        partition: PartitionId,
        offset: Offset,
    ) -> Result<Delivery, ConsumeError> {
        let missing = |held| NoSuchRecord { topic: topic.clone(), partition, offset, held };
        let from = From::Offsets(BTreeMap::from([(partition, offset)]));
        let mut consumer = match Self::open_up_to(client, topic, ConsumerOptions { from, follow: false }, 1).await {
            Err(ConsumeError::Start(out)) => return Err(missing(Some((out.earliest, out.latest))).into()),
            other => other?,
        };
        match consumer.next().await? {
            Some(delivery) if delivery.offset == offset => Ok(delivery),
            _ => {
                let described = client.describe_topic(topic).await?;
                let held = described.partitions.iter().find(|held| held.partition == partition);
                Err(missing(held.map(|held| (held.earliest, held.latest))).into())
            }
        }
    }

    /// The next record; `None` at the end when not following. In order within a partition. Cancelling it loses nothing.
    ///
    /// # Errors
    /// Names topic, partition and offset. A damaged record is reported once and then passed over; other partitions go on.
    pub async fn next(&mut self) -> Result<Option<Delivery>, ConsumeError> {
        loop {
            if let Some(delivery) = self.decoded.next() {
                self.positions.insert(delivery.partition, delivery.offset.next());
                return Ok(Some(delivery));
            }
            self.room = None;
            match self.chunks.recv().await {
                None => return Ok(None),
                Some(Err(error)) => {
                    self.pass_over(&error);
                    return Err(error);
                }
                Some(Ok(Chunk::Batch { partition, base, append_time, from, until, batch, room })) => {
                    let decoded = decode(&self.topic, partition, base, append_time, &batch);
                    match decoded {
                        Ok(records) => {
                            let wanted: Vec<_> =
                                records.filter(|found| from <= found.offset && found.offset < until).collect();
                            self.decoded = wanted.into_iter();
                            self.room = Some(room);
                        }
                        Err(damaged) => {
                            let error = ConsumeError::Damaged(Box::new(damaged));
                            self.pass_over(&error);
                            return Err(error);
                        }
                    }
                }
                Some(Ok(Chunk::Rows { rows, room })) => {
                    self.decoded = rows.into_iter();
                    self.room = Some(room);
                }
            }
        }
    }

    /// The offset of the next record to be delivered, per partition.
    pub fn positions(&self) -> BTreeMap<PartitionId, Offset> {
        self.positions.clone()
    }

    fn pass_over(&mut self, error: &ConsumeError) {
        let behind = match error {
            ConsumeError::Damaged(damaged) => damaged.until.map(|until| (damaged.partition, until)),
            ConsumeError::Lost(lost) => Some((lost.partition, lost.to)),
            _ => None,
        };
        if let Some((partition, until)) = behind {
            self.positions.entry(partition).and_modify(|position| *position = (*position).max(until));
        }
    }
}

/// Where to start in a partition; `None`: it is not read.
fn start(
    topic: &TopicName,
    from: &From,
    held: &PartitionOffsets,
    at: Option<Offset>,
) -> Result<Option<Offset>, StartOutOfRange> {
    let PartitionOffsets { partition, earliest, latest } = *held;
    Ok(match from {
        From::Earliest => Some(earliest),
        From::Latest => Some(latest),
        From::Offset(offset) => Some((*offset).clamp(earliest, latest)),
        From::Time(_) => Some(at.unwrap_or(latest).clamp(earliest, latest)),
        From::Offsets(offsets) => match offsets.get(&partition) {
            None => None,
            Some(offset) if (earliest..=latest).contains(offset) => Some(*offset),
            Some(offset) => {
                return Err(StartOutOfRange { topic: topic.clone(), partition, offset: *offset, earliest, latest });
            }
        },
    })
}

/// The records of a batch with their places.
fn decode(
    topic: &TopicName,
    partition: PartitionId,
    base: Offset,
    append_time: Timestamp,
    batch: &EncodedBatch,
) -> Result<impl Iterator<Item = Delivery> + use<>, DamagedRecords> {
    let header = batch.header();
    let records = batch.decode().map_err(|error| DamagedRecords {
        topic: topic.clone(),
        partition,
        offset: base,
        until: base.checked_add(u64::from(header.records)),
        why: error.to_string(),
    })?;
    let topic = topic.clone();
    Ok(records.into_iter().zip(0_u64..).map(move |(record, index)| Delivery {
        topic: topic.clone(),
        partition,
        offset: Offset(base.0 + index),
        append_time,
        producer: header.producer.map(|stamp| ProducerStamp { first: Sequence(stamp.first.0 + index), ..stamp }),
        record,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held() -> PartitionOffsets {
        PartitionOffsets { partition: PartitionId(1), earliest: Offset(10), latest: Offset(20) }
    }

    fn start_of(from: &From) -> Result<Option<Offset>, StartOutOfRange> {
        start(&"t".parse().unwrap(), from, &held(), Some(Offset(15)))
    }

    #[test]
    fn starts_are_clamped_or_refused() {
        assert_eq!(start_of(&From::Earliest).unwrap(), Some(Offset(10)));
        assert_eq!(start_of(&From::Latest).unwrap(), Some(Offset(20)));
        assert_eq!(start_of(&From::Offset(Offset(3))).unwrap(), Some(Offset(10)));
        assert_eq!(start_of(&From::Offset(Offset(99))).unwrap(), Some(Offset(20)));
        assert_eq!(start_of(&From::Time(Timestamp::from_micros(0))).unwrap(), Some(Offset(15)));
        let offsets = |partition, offset| From::Offsets(BTreeMap::from([(PartitionId(partition), Offset(offset))]));
        assert_eq!(start_of(&offsets(0, 12)).unwrap(), None);
        assert_eq!(start_of(&offsets(1, 20)).unwrap(), Some(Offset(20)));
        let text = start_of(&offsets(1, 21)).unwrap_err().to_string();
        assert!(text.contains("partition 1") && text.contains("21") && text.contains("10..20"), "{text}");
    }
}
