//! The cluster log: one numbered chain that says which topics, segments and epochs exist. What is not in it does not exist.
//!
//! Every few hundred entries a snapshot of the state after an entry is stored beside the log, so that nobody replays from the
//! start. Closed segments leave the state once their topic's manifest names their files.
//!
//! # A partition's chain
//!
//! For one partition the segments form one chain: each starts where the one before ended. [`TopicState::next_offsets`] keeps
//! that place even when no segment is open and the last one is closed, so a topic can always be reopened.
//!
//! Besides the offset, a segment's first owner needs the producers' state that its predecessors ended with, or a retry across
//! the seam would be taken for news. That state is in the predecessors' journals, not here; a [`Tail`] says where, and keeps
//! those journals from being freed:
//!
//! 1. `SealSegment` makes the ended segment the tail of its partitions.
//! 2. `OpenSegment` names as predecessors exactly the tails that overlap its range. The tails stay.
//! 3. The owner reads the tails' final states and journals its own `Adopt` entry.
//! 4. `SegmentAdopted` says that this entry is durable: the tails are released for that range.
//!
//! A crash before 4 loses nothing: the tails are still there. A segment that ends without having been adopted holds no record
//! (an `Adopt` entry precedes the first batch), so it becomes no tail, and its own predecessors' tails serve its successor.
//! An end by its owner, or with records, proves the adoption, whether or not 4 was written.

mod apply;
mod check;
mod codec;
mod queries;

pub use codec::{MAX_COMMANDS, MAX_ENDPOINT_BYTES};

use refstream_types::{
    Epoch, LeaderTerm, Offset, PartitionRange, SegmentId, SegmentNumber, Slot, Timestamp, Token, TopicConfig, TopicId,
    TopicName, Version,
};
use std::{collections::BTreeMap, sync::Arc};

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
    /// The segments whose final states it carries on from, ascending: exactly the tails that overlap `range`. Empty for a
    /// topic's first segments.
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
    /// The slot of the `Adopt` entry and the last slot that can hold its batches, in the owner's journal. Without meaning
    /// when it was never adopted.
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
        /// The slot of the `Adopt` entry and the last slot that can hold its batches. Any when it was never adopted.
        slots: (Slot, Slot),
        /// Encoded bytes of its batches.
        bytes: u64,
    },
    /// The owner's journal durably holds the segment's `Adopt` entry: its predecessors' journals are no longer needed for the
    /// producers' state of its range.
    SegmentAdopted {
        /// Which; open.
        segment: SegmentId,
        /// The slot of the `Adopt` entry.
        slot: Slot,
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
    /// The epoch was recovered and nothing in its journal is needed any more: it leaves the state.
    EpochForgotten {
        /// Its epoch.
        epoch: Epoch,
    },
    /// The owner of an open segment is asked to end it, and these are to follow. A later plan replaces an earlier one.
    PlanSegment {
        /// Which; open.
        segment: SegmentId,
        /// What follows; ascending, disjoint, and together at least the segment's partitions.
        successors: Vec<Planned>,
    },
    /// A broker is about to leave: it is given no more segments.
    EpochLeaving {
        /// Its epoch.
        epoch: Epoch,
    },
}

/// A segment to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    /// Its partitions. They may be those of several open segments: it opens once all of these have ended.
    pub range: PartitionRange,
    /// Who is to own it, if he is there by then.
    pub owner: Epoch,
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

/// Where the newest producers' state of some partitions is: an ended segment whose successor has not adopted it yet. Outlives
/// the segment's closing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tail {
    /// The segment, as it ended.
    pub segment: SealedSegment,
    /// The partitions for which it is needed: ascending, disjoint, not adjoining, within the segment's range.
    pub uncovered: Vec<PartitionRange>,
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
    /// For each partition the offset after the last record of all ended segments: where the open segment starts, or the
    /// next one will.
    pub next_offsets: Vec<Offset>,
    /// Open segments by number.
    pub open: BTreeMap<SegmentNumber, OpenSegment>,
    /// Those open segments whose adoption the log knows, with the slot of the `Adopt` entry.
    pub adopted: BTreeMap<SegmentNumber, Slot>,
    /// Sealed segments that no file holds yet, by number.
    pub sealed: BTreeMap<SegmentNumber, SealedSegment>,
    /// Where the producers' state is of partitions that no open segment has adopted, by number. Empty once deleted.
    pub tails: BTreeMap<SegmentNumber, Tail>,
    /// Open segments whose owners are asked to end them, and what is to follow.
    pub planned: BTreeMap<SegmentNumber, Vec<Planned>>,
}

/// A broker in the cluster's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpochState {
    /// Where clients reach it.
    pub endpoint: String,
    /// Its lowest fence, once recovered.
    pub fence: Option<Slot>,
    /// It is about to leave and is given no more segments.
    pub leaving: bool,
}

impl EpochState {
    /// Whether segments may be given to it.
    pub fn takes_segments(&self) -> bool {
        self.fence.is_none() && !self.leaving
    }
}

/// The cluster's state: the fold of the log. See [`ClusterState::apply`]. Cloning shares the topics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterState {
    /// The last log entry it includes.
    pub version: Version,
    /// The highest leader term, and who holds it.
    pub leader: Option<(LeaderTerm, Epoch)>,
    /// The id of the next topic; ids start at 1.
    pub next_topic: TopicId,
    /// Topics by id.
    pub topics: BTreeMap<TopicId, Arc<TopicState>>,
    /// Epochs that joined and whose journals may still be needed.
    pub epochs: BTreeMap<Epoch, EpochState>,
    /// The highest epoch that left the state: none up to it may still join.
    pub forgotten: Epoch,
    /// Live topics by name; follows from `topics`.
    names: BTreeMap<TopicName, TopicId>,
}

impl Default for ClusterState {
    fn default() -> Self {
        Self {
            version: Version(0),
            leader: None,
            next_topic: TopicId(1),
            topics: BTreeMap::new(),
            epochs: BTreeMap::new(),
            forgotten: Epoch(0),
            names: BTreeMap::new(),
        }
    }
}

#[cfg(test)]
mod tests;
