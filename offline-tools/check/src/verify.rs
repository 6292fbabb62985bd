//! Verifying a topic.
//!
//! All records are read as any consumer reads them, up to what was committed at the start. Their offsets must be dense. Their references are
//! checked in large groups: each object is asked for once, and in a deep check the blobs of a pack that lie close together are read
//! together. Memory is bounded by the group, not by the topic.
//!
//! Findings are what is damaged or absent. A broker or store that cannot be reached, or permits no access, says nothing of the records:
//! it ends the verification, which then tells how far it came.

use crate::objects::{self, Objects};
use refstream::{Client, ConsumeError, Consumer, ConsumerOptions, Delivery, ErrorClass, FetchError, From};
use refstream_types::{ContentHash, Offset, PartitionId, TopicName, Value};
use serde::Serialize;
use std::collections::BTreeMap;
use thiserror::Error;

/// References that are checked together.
const GROUP: usize = 16_384;
/// Findings that are listed.
pub(crate) const LISTED: usize = 10_000;

/// One thing that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// `gap`, `unreadable`, `missing`, `size`, `damaged`, `overwritten`, `store`; of what helps readers of an object, named with one of its
    /// records: `block-sums`, `footer`.
    pub kind: &'static str,
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: u32,
    /// The offset.
    pub offset: u64,
    /// The object concerned; empty where there is none.
    pub object: String,
    /// What is wrong and what can be done.
    pub detail: String,
}

/// What a verification saw.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Verification {
    /// Records read.
    pub records: u64,
    /// References checked.
    pub references: u64,
    /// Payload bytes hashed (deep only).
    pub bytes: u64,
    /// How many findings there are in all.
    pub wrong: u64,
    /// What is wrong: the first 10,000 findings.
    pub findings: Vec<Finding>,
}

impl Verification {
    pub(crate) fn add(&mut self, finding: Finding) {
        self.wrong += 1;
        if self.findings.len() < LISTED {
            self.findings.push(finding);
        }
    }
}

/// Why a verification could not go on.
#[derive(Clone, Debug, Error)]
pub enum Stopped {
    /// Records could not be read.
    #[error(transparent)]
    Records(#[from] ConsumeError),
    /// Payloads could not be looked at.
    #[error(transparent)]
    Payloads(#[from] FetchError),
}

impl Stopped {
    /// The kind of trouble.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Records(error) => error.class(),
            Self::Payloads(error) => error.class(),
        }
    }
}

/// A verification that broke off.
#[derive(Clone, Debug, Error)]
#[error(
    "the verification could not be finished; {} records were checked, {} findings so far: {why}",
    seen.records, seen.wrong
)]
pub struct Unfinished {
    /// What was seen of it: only records whose references were checked are counted.
    pub seen: Verification,
    /// Why it broke off.
    pub why: Stopped,
}

/// Checks each record of a topic: offsets dense, its object there and large enough; with `deep` each payload fetched and hashed, and
/// the block checksums of each large object and the footer of each pack read.
///
/// # Errors
/// When the topic cannot be read, or a broker or store is out of reach for as long as the client's timeout.
pub async fn verify(
    client: &Client,
    topic: &TopicName,
    deep: bool,
    mut on_progress: impl FnMut(&Verification) + Send,
) -> Result<Verification, Box<Unfinished>> {
    let options = ConsumerOptions { from: From::Earliest, follow: false };
    let mut consumer = match client.consumer(topic, options).await {
        Ok(consumer) => consumer,
        Err(error) => return Err(Box::new(Unfinished { seen: Verification::default(), why: error.into() })),
    };
    let mut check = Check {
        topic: topic.clone(),
        seen: Verification::default(),
        expected: consumer.positions(),
        objects: Objects::new(client.clone(), deep),
        group: Vec::new(),
    };
    match check.run(&mut consumer, &mut on_progress).await {
        Ok(()) => Ok(check.seen),
        Err(why) => {
            // What waits in the group was read, not checked.
            check.seen.records -= check.group.len() as u64;
            Err(Box::new(Unfinished { seen: check.seen, why }))
        }
    }
}

struct Check {
    topic: TopicName,
    seen: Verification,
    /// The offset that comes next in each partition.
    expected: BTreeMap<PartitionId, Offset>,
    objects: Objects,
    /// References that wait to be checked.
    group: Vec<Delivery>,
}

impl Check {
    async fn run(
        &mut self,
        consumer: &mut Consumer,
        on_progress: &mut (impl FnMut(&Verification) + Send),
    ) -> Result<(), Stopped> {
        while let Some(delivery) = self.next(consumer).await? {
            self.take(delivery);
            if self.group.len() >= GROUP {
                self.resolve().await?;
                on_progress(&self.seen);
            }
        }
        self.resolve().await?;
        on_progress(&self.seen);
        Ok(())
    }

    /// The next record; what cannot be read is a finding where the consumer goes on behind it.
    async fn next(&mut self, consumer: &mut Consumer) -> Result<Option<Delivery>, ConsumeError> {
        loop {
            let error = match consumer.next().await {
                Ok(next) => return Ok(next),
                Err(error) => error,
            };
            let (kind, partition, offset, behind) = match &error {
                ConsumeError::Damaged(damaged) => ("unreadable", damaged.partition, damaged.offset, damaged.until),
                ConsumeError::Lost(lost) => ("gap", lost.partition, lost.from, Some(lost.to)),
                ConsumeError::Files(files) if error.class() == ErrorClass::VerificationFailed => {
                    ("unreadable", files.partition, files.offset, None)
                }
                _ => return Err(error),
            };
            self.find(kind, partition, offset, error.to_string());
            match behind {
                Some(behind) => {
                    self.expected.insert(partition, behind);
                }
                // Nobody knows where the partition goes on: the next record tells.
                None => {
                    self.expected.remove(&partition);
                }
            }
        }
    }

    fn find(&mut self, kind: &'static str, partition: PartitionId, offset: Offset, detail: String) {
        self.seen.add(Finding {
            kind,
            topic: self.topic.to_string(),
            partition: partition.0,
            offset: offset.0,
            object: String::new(),
            detail,
        });
    }

    fn take(&mut self, delivery: Delivery) {
        self.seen.records += 1;
        let (partition, offset) = (delivery.partition, delivery.offset);
        if let Some(expected) = self.expected.insert(partition, offset.next())
            && expected != offset
        {
            let detail = format!("offset {expected} was to come, {offset} came: offsets must be dense");
            self.find("gap", partition, expected, detail);
        }
        match &delivery.record.value {
            Value::Reference(_) => self.group.push(delivery),
            Value::Inline { bytes, content_hash } => {
                let actual = ContentHash(*blake3::hash(bytes).as_bytes());
                if actual != *content_hash {
                    let detail = format!("the hash of its inline value is {actual}, expected {content_hash}");
                    self.find("damaged", partition, offset, detail);
                }
            }
            Value::Tombstone => {}
        }
    }

    async fn resolve(&mut self) -> Result<(), Stopped> {
        let objects::Resolved { bytes, findings, stopped } = self.objects.resolve(self.group.clone()).await;
        self.seen.bytes += bytes;
        for finding in findings {
            self.seen.add(finding);
        }
        if let Some(error) = stopped {
            return Err(error.into());
        }
        self.seen.references += self.group.len() as u64;
        self.group.clear();
        Ok(())
    }
}
