//! The cluster log: one numbered chain that says which topics, segments and epochs exist. What is not in it does not exist.
//!
//! Every few hundred entries a snapshot of the state after an entry is stored beside the log, so that nobody replays from the
//! start. Closed segments leave the state once their topic's manifest names their files.

use crate::DecodeError;
use refstream_types::{
    Epoch, LeaderTerm, Offset, PartitionRange, SegmentId, SegmentNumber, Slot, Timestamp, Token, TopicConfig, TopicId,
    TopicName, Version,
};
use std::collections::BTreeMap;

/// How a segment ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SealedBy {
    /// Its owner's seal entry, at this slot of its journal.
    Owner {
        /// The slot of the seal entry.
        slot: Slot,
    },
    /// Recovery, after the owner's journal was fenced at this slot.
    Recovery {
        /// The lowest fence.
        fence: Slot,
    },
}

/// An open segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenSegment {
    /// The segment.
    pub id: SegmentId,
    /// Its partitions.
    pub range: PartitionRange,
    /// Who may append.
    pub owner: Epoch,
    /// The first offset of each partition of `range`.
    pub start_offsets: Vec<Offset>,
    /// The segments it carries on from; their seals hold the producers' state. Empty for a topic's first segments.
    pub predecessors: Vec<SegmentNumber>,
}

/// A segment that ended and is not yet in its topic's manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedSegment {
    /// As it was opened.
    pub opened: OpenSegment,
    /// The offset after the last record, of each partition.
    pub end_offsets: Vec<Offset>,
    /// How it ended; the journal is `opened.owner`'s.
    pub by: SealedBy,
    /// The first and last slot of the owner's journal that can hold its batches.
    pub slots: (Slot, Slot),
    /// Encoded bytes of its batches.
    pub bytes: u64,
}

impl SealedSegment {
    /// Whether it holds no record.
    pub fn is_empty(&self) -> bool {
        self.opened.start_offsets == self.end_offsets
    }
}

/// One change of the cluster's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// `epoch` leads from here on, with a term above all before.
    Lead {
        /// The new leader.
        epoch: Epoch,
        /// Its term.
        term: LeaderTerm,
    },
    /// A new topic. Its id is the state's next one.
    CreateTopic {
        /// Its identity.
        topic: TopicId,
        /// Its name, free until now.
        name: TopicName,
        /// Its settings.
        config: TopicConfig,
        /// When, for people.
        created_at: Timestamp,
    },
    /// New settings; the number of partitions stays.
    AlterTopic {
        /// The topic.
        topic: TopicId,
        /// All its settings.
        config: TopicConfig,
    },
    /// The topic takes no more records and its name is free again; its segments are sealed without successors.
    DeleteTopic {
        /// The topic.
        topic: TopicId,
    },
    /// A segment that nothing precedes, or the successor of sealed ones: starts where they ended.
    OpenSegment(OpenSegment),
    /// A segment ended.
    SealSegment {
        /// Which.
        segment: SegmentId,
        /// The offset after the last record, of each partition.
        end_offsets: Vec<Offset>,
        /// How.
        by: SealedBy,
        /// The first and last slot that can hold its batches.
        slots: (Slot, Slot),
        /// Encoded bytes of its batches.
        bytes: u64,
    },
    /// The segment's records are in files that the topic's manifest names (or it holds none): it leaves the state.
    SegmentClosed {
        /// Which.
        segment: SegmentId,
    },
    /// The journal ends at this fence and every segment its owner had open has been sealed.
    EpochRecovered {
        /// The dead epoch.
        epoch: Epoch,
        /// Its lowest fence.
        fence: Slot,
    },
    /// A broker joined.
    EpochJoined {
        /// Its epoch.
        epoch: Epoch,
        /// Where clients reach it.
        endpoint: String,
    },
}

/// One object of the cluster log: changes that take effect together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// Its number.
    pub version: Version,
    /// Its writer's token.
    pub token: Token,
    /// The leader term it was decided under.
    pub term: LeaderTerm,
    /// Who wrote it.
    pub writer: Epoch,
    /// The changes, in order.
    pub commands: Vec<Command>,
}

impl LogEntry {
    /// The object's bytes.
    pub fn encode(&self) -> Vec<u8> {
        todo!()
    }
    /// Reads an entry.
    ///
    /// # Errors
    /// When it is damaged, of an unknown version, or not number `expected`.
    pub fn decode(bytes: &[u8], expected: Version) -> Result<Self, DecodeError> {
        let _ = (bytes, expected);
        todo!()
    }
}

/// A log entry that would break an invariant of the state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cluster log entry {version}: {invariant}: {detail}")]
pub struct Violation {
    /// The entry.
    pub version: Version,
    /// The invariant's name, for example `segments-form-chains`.
    pub invariant: &'static str,
    /// What would break it.
    pub detail: String,
}

/// A topic in the cluster's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicState {
    /// Its identity.
    pub id: TopicId,
    /// Its name.
    pub name: TopicName,
    /// Its settings.
    pub config: TopicConfig,
    /// When it was created.
    pub created_at: Timestamp,
    /// Deleted, but still with segments.
    pub deleted: bool,
    /// The number of the next segment.
    pub next_segment: SegmentNumber,
    /// Open segments by number.
    pub open: BTreeMap<SegmentNumber, OpenSegment>,
    /// Sealed segments that no file holds yet, by number.
    pub sealed: BTreeMap<SegmentNumber, SealedSegment>,
}

/// A broker in the cluster's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpochState {
    /// Where clients reach it.
    pub endpoint: String,
    /// Its lowest fence, once recovered.
    pub fence: Option<Slot>,
}

/// The cluster's state: the fold of the log. See [`ClusterState::apply`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterState {
    /// The last log entry it includes.
    pub version: Version,
    /// The highest leader term, and who holds it.
    pub leader: Option<(LeaderTerm, Epoch)>,
    /// The id of the next topic.
    pub next_topic: TopicId,
    /// Topics by id.
    pub topics: BTreeMap<TopicId, TopicState>,
    /// Epochs that joined and whose journals may still be needed.
    pub epochs: BTreeMap<Epoch, EpochState>,
}

impl ClusterState {
    /// A snapshot's bytes; the same state gives the same bytes.
    pub fn encode(&self) -> Vec<u8> {
        todo!()
    }
    /// Reads a snapshot.
    ///
    /// # Errors
    /// When it is damaged, of an unknown version, or not of entry `expected`.
    pub fn decode(bytes: &[u8], expected: Version) -> Result<Self, DecodeError> {
        let _ = (bytes, expected);
        todo!()
    }
    /// Folds one log entry into the state: the only way in which the state changes, the same for everybody who reads the log.
    /// The state is unchanged when it refuses.
    ///
    /// # Errors
    /// Names the invariant that the entry would break.
    pub fn apply(&mut self, entry: &LogEntry) -> Result<(), Violation> {
        let _ = entry;
        todo!()
    }
    /// The live topic of that name.
    pub fn topic_by_name(&self, name: &TopicName) -> Option<&TopicState> {
        self.topics.values().find(|t| !t.deleted && t.name == *name)
    }
}
