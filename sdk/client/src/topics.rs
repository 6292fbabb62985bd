//! Topics and segments as clients see them.

use crate::{CallError, broker::Brokers};
use refstream_types::{
    Epoch, Offset, PartitionId, PartitionRange, SegmentNumber, StoreName, Timestamp, TopicConfig, TopicId, TopicName,
};
use std::{sync::Arc, time::Duration};

pub(crate) mod calls;

/// A topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicDescription {
    /// Its identity.
    pub id: TopicId,
    /// Its name.
    pub name: TopicName,
    /// Its settings.
    pub config: TopicConfig,
    /// When it was created.
    pub created_at: Timestamp,
    /// Offsets of each partition; empty where only the list was asked for.
    pub partitions: Vec<PartitionOffsets>,
}

/// What a partition holds: the records `earliest..latest`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionOffsets {
    /// The partition.
    pub partition: PartitionId,
    /// The first offset.
    pub earliest: Offset,
    /// One past the last committed record.
    pub latest: Offset,
}

/// Settings to change; `None` leaves one as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AlterTopic {
    /// `Some(None)` keeps records for ever.
    pub retention: Option<Option<Duration>>,
    /// Store of new payloads.
    pub store: Option<StoreName>,
    /// See [`TopicConfig::inline_max`].
    pub inline_max: Option<u32>,
    /// See [`TopicConfig::seal_bytes`].
    pub seal_bytes: Option<u64>,
    /// See [`TopicConfig::seal_age`].
    pub seal_age: Option<Duration>,
    /// See [`TopicConfig::file_bytes`].
    pub file_bytes: Option<u64>,
    /// See [`TopicConfig::publish_lag`].
    pub publish_lag: Option<Duration>,
}

/// How far a segment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentState {
    /// Takes records.
    Open,
    /// Ended, in its journal.
    Sealed,
    /// In early files.
    Compacted,
    /// In files under `data/`.
    Published,
}

/// A segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its number.
    pub number: SegmentNumber,
    /// Its partitions.
    pub range: PartitionRange,
    /// How far it is.
    pub state: SegmentState,
    /// The epoch of the broker that owns or owned it; `None` once it is closed.
    pub owner: Option<Epoch>,
    /// The first offset of each partition.
    pub start_offsets: Vec<Offset>,
    /// The offset after the last one, of each partition.
    pub end_offsets: Vec<Offset>,
    /// Bytes: of its batches, or of its files once compacted.
    pub bytes: u64,
    /// URIs of its files.
    pub files: Vec<String>,
}

/// A broker of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerDescription {
    /// Its epoch.
    pub epoch: Epoch,
    /// Where it is reached.
    pub endpoint: String,
    /// It leads.
    pub leads: bool,
    /// It is about to end.
    pub leaving: bool,
    /// How many open segments it serves.
    pub open_segments: u64,
}

/// What the brokers of a cluster are, each time that changes. Made by [`Client::cluster_changes`](crate::Client::cluster_changes).
#[derive(Debug)]
pub struct ClusterChanges {
    brokers: Arc<Brokers>,
    seen: Option<(u64, Vec<BrokerDescription>)>,
}

impl ClusterChanges {
    pub(crate) fn new(brokers: Arc<Brokers>) -> Self {
        Self { brokers, seen: None }
    }

    /// The brokers, ascending by epoch: at first as they are, then as they are after they changed. What changes and changes back at once may
    /// be missed.
    ///
    /// # Errors
    /// When no broker answers for as long as the client's timeout.
    pub async fn next(&mut self) -> Result<Vec<BrokerDescription>, CallError> {
        loop {
            let after = self.seen.as_ref().map(|(version, _)| *version);
            let (version, described) = calls::cluster(&self.brokers, after).await?;
            // A broker that lags tells what is old.
            if after.is_some_and(|after| version <= after) {
                continue;
            }
            let known = self.seen.replace((version, described.clone()));
            if known.is_none_or(|(_, known)| known != described) {
                return Ok(described);
            }
        }
    }
}
