//! What goes into the core and what comes out of it.

use bytes::Bytes;
use refstream_format::{
    batch::EncodedBatch,
    cluster_log::{ClusterState, TopicState},
    journal::{BatchLocation, PlacedBatch},
};
use refstream_types::{
    AckMode, Chain, Epoch, Offset, PartitionId, ProducerEpoch, ProducerId, SegmentId, SegmentNumber, Sequence, Slot,
    StoreName, Timestamp, TopicConfig, TopicId, TopicName, Version,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use thiserror::Error;

/// The time, as the shell sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Monotonic, since some fixed moment of this process.
    pub monotonic: Duration,
    /// The wall clock: only stamped on records and shown to people.
    pub wall: Timestamp,
}

/// Names a request of a client until it is answered. Given by the shell, unique within the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// Names an operation that the core asked of the shell. Given by the core, unique within the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u64);

/// Who this broker is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Where clients reach it, for example `http://127.0.0.1:7400`.
    ///
    /// Each broker of a cluster has one of its own: whoever joins with it later has replaced this one.
    pub endpoint: String,
    /// The last epoch of an earlier broker in this process, if there was one.
    pub former: Option<Epoch>,
    /// Name and version of the software.
    pub software: String,
    /// Random; different for every process that ever runs. Tokens are drawn from it.
    pub seed: [u8; 32],
}

/// Settings of the core. The defaults are those of a local store; docs/CONFIGURATION.md has the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// W: journal creates in flight. More hides a store's latency; recovery reads and fences W further slots.
    pub slots_in_flight: u32,
    /// K: slots between checkpoints. More means smaller journals and a longer recovery.
    pub checkpoint_slots: u64,
    /// How long a batch may wait for company before its journal object is created.
    pub linger: Duration,
    /// The same while no create is in flight. Less than `linger` makes single acks faster by it, and more and smaller objects.
    pub linger_when_idle: Duration,
    /// A journal object is created at once when its batches exceed this many bytes.
    pub object_bytes: usize,
    /// D: a broker whose journal stood still this long is presumed dead. Something is written every D/3.
    pub death_after: Duration,
    /// A writer confirms at least this often that it is not fenced, and before any ack after a longer gap.
    pub fence_check: Duration,
    /// Producers unheard of for this long are forgotten. At least 7 days.
    pub producer_expiry: Duration,
    /// Batch bytes that may wait or be in flight; more is refused with `Throttled`.
    pub pending_bytes: usize,
    /// Cluster-log entries between snapshots.
    pub snapshot_entries: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            slots_in_flight: 8,
            checkpoint_slots: 256,
            linger: Duration::from_millis(5),
            linger_when_idle: Duration::ZERO,
            object_bytes: 4 << 20,
            death_after: Duration::from_millis(1_500),
            fence_check: Duration::from_secs(60),
            producer_expiry: Duration::from_secs(7 * 86_400),
            pending_bytes: 64 << 20,
            snapshot_entries: 256,
        }
    }
}

/// A change to the set of topics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopicOperation {
    /// Create it.
    Create {
        /// Its name.
        name: TopicName,
        /// Its settings, valid.
        config: TopicConfig,
    },
    /// Change some of its settings; the others stay as they are then, whoever set them.
    Alter {
        /// The topic.
        topic: TopicId,
        /// What is to change.
        change: TopicChange,
    },
    /// End it.
    Delete {
        /// The topic.
        topic: TopicId,
    },
}

/// Settings of a topic that are to change: those that are named. Partitions stay for ever, since keys are bound to them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicChange {
    /// See [`TopicConfig::retention`]; `Some(None)` keeps records for ever.
    pub retention: Option<Option<Duration>>,
    /// See [`TopicConfig::store`]; `Some(None)` is the cluster's default store.
    pub store: Option<Option<StoreName>>,
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

impl TopicChange {
    /// What settings become by it.
    pub(crate) fn of(&self, config: &TopicConfig) -> TopicConfig {
        let Self { retention, store, inline_max, seal_bytes, seal_age, file_bytes, publish_lag } = self.clone();
        TopicConfig {
            partitions: config.partitions,
            retention: retention.unwrap_or(config.retention),
            store: store.unwrap_or_else(|| config.store.clone()),
            inline_max: inline_max.unwrap_or(config.inline_max),
            seal_bytes: seal_bytes.unwrap_or(config.seal_bytes),
            seal_age: seal_age.unwrap_or(config.seal_age),
            file_bytes: file_bytes.unwrap_or(config.file_bytes),
            publish_lag: publish_lag.unwrap_or(config.publish_lag),
        }
    }
}

/// What happened outside.
#[derive(Clone, Debug)]
pub enum Input {
    /// A client appends batches, at most one a partition.
    Append {
        /// Answered with [`Reply::Append`].
        ticket: Ticket,
        /// The topic.
        topic: TopicId,
        /// The batches.
        batches: Vec<(PartitionId, EncodedBatch)>,
        /// When to answer.
        ack: AckMode,
        /// Yields to other traffic.
        bulk: bool,
    },
    /// A client wants a producer id.
    OpenProducer {
        /// Answered with [`Reply::Producer`].
        ticket: Ticket,
    },
    /// A client changes topics.
    Topic {
        /// Answered with [`Reply::Topic`].
        ticket: Ticket,
        /// The change.
        operation: TopicOperation,
    },
    /// Somebody wants a topic's open segments that hold records sealed.
    Seal {
        /// Answered with [`Reply::Sealed`].
        ticket: Ticket,
        /// The topic.
        topic: TopicId,
    },
    /// The compactor committed these segments' records to their topic's manifest.
    Closed {
        /// Answered with [`Reply::Closed`].
        ticket: Ticket,
        /// The segments.
        segments: Vec<SegmentId>,
    },
    /// Somebody wants an answer that a fenced broker must not give, like the latest offset of a partition.
    Confirm {
        /// Answered with [`Reply::Confirmed`].
        ticket: Ticket,
    },
    /// Somebody wants to be sure that the state includes everything that was in the log when the request came.
    Refresh {
        /// Answered with [`Reply::Refreshed`].
        ticket: Ticket,
    },
    /// Hand everything over, commit, and stop.
    Drain {
        /// Answered with [`Reply::Drained`].
        ticket: Ticket,
    },
    /// Another broker gave a sign of life.
    PeerSeen {
        /// Its epoch.
        epoch: Epoch,
        /// The last slot of its journal that it knows to be committed.
        committed: Slot,
        /// The last entry of the log that it knows.
        version: Version,
    },
    /// The connection to another broker ended and the next one was refused: nobody listens there. If that is wrong, the broker is
    /// fenced all the same, and has to join anew.
    PeerGone {
        /// Its epoch.
        epoch: Epoch,
    },
    /// A moment asked for by [`Effect::WakeAt`] has come.
    Tick,
    /// An operation ended.
    Done {
        /// Which.
        op: OpId,
        /// How.
        done: Done,
    },
}

/// How an operation of the shell ended.
#[derive(Clone, Debug)]
pub enum Done {
    /// [`Effect::Commit`].
    Commit(CommitOutcome),
    /// [`Effect::Read`], [`Effect::ReadLog`]: the number's bytes, `None` when it is not there now; or what the store said.
    Read(Result<Option<Bytes>, String>),
    /// [`Effect::ReadLog`]: the log does not reach back so far any more.
    Freed,
    /// [`Effect::Tip`]: the highest number and its bytes.
    Tip(Result<Option<(u64, Bytes)>, String>),
    /// [`Effect::LatestSnapshot`].
    Snapshot(Result<Option<(Version, Bytes)>, String>),
    /// [`Effect::StoreSnapshot`], [`Effect::Free`].
    Stored(Result<(), String>),
}

/// The outcome of committing a number of a chain; see `refstream_filer_adapter::chain`.
#[derive(Clone, Debug)]
pub enum CommitOutcome {
    /// It holds our bytes.
    Committed,
    /// It holds these other bytes.
    Taken(Bytes),
    /// It was freed long ago.
    Freed,
    /// Not known; what the store said.
    Unknown(String),
}

/// What the shell must do.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Commit `bytes` as `number` of `chain`.
    Commit {
        /// Answered with [`Done::Commit`].
        op: OpId,
        /// The chain.
        chain: Chain,
        /// The number.
        number: u64,
        /// The bytes; frozen.
        bytes: Bytes,
    },
    /// Read `number` of `chain`.
    Read {
        /// Answered with [`Done::Read`].
        op: OpId,
        /// The chain.
        chain: Chain,
        /// The number.
        number: u64,
    },
    /// Read entry `number` of the cluster log, and prove that it is the log's, not what a sleeper left below the boundary.
    ReadLog {
        /// Answered with [`Done::Read`] or [`Done::Freed`].
        op: OpId,
        /// The entry's version.
        number: u64,
    },
    /// Find the highest number of `chain`.
    Tip {
        /// Answered with [`Done::Tip`].
        op: OpId,
        /// The chain.
        chain: Chain,
        /// A number that existed, or 0.
        hint: u64,
    },
    /// Find the newest snapshot of the cluster's state.
    LatestSnapshot {
        /// Answered with [`Done::Snapshot`].
        op: OpId,
    },
    /// Store a snapshot; one that is there already has the same bytes.
    StoreSnapshot {
        /// Answered with [`Done::Stored`].
        op: OpId,
        /// The last log entry it includes.
        version: Version,
        /// Its bytes.
        bytes: Bytes,
    },
    /// Raise the boundary of `chain` to `below` and delete what lies lower (for the cluster log: older snapshots too).
    Free {
        /// Answered with [`Done::Stored`].
        op: OpId,
        /// The chain.
        chain: Chain,
        /// The lowest number to keep.
        below: u64,
    },
    /// Answer a client.
    Reply {
        /// Whom.
        ticket: Ticket,
        /// With what.
        reply: Reply,
    },
    /// This slot is committed: its batches may be read from now on. Comes before the replies of their producers.
    Committed {
        /// The journal.
        epoch: Epoch,
        /// The slot, one more than the one before.
        slot: Slot,
        /// Its batches, in order.
        batches: Vec<(PlacedBatch, BatchLocation)>,
    },
    /// The cluster's state changed.
    State(Arc<ClusterState>),
    /// Call [`Input::Tick`] at this monotonic time; replaces an earlier wish.
    WakeAt(Duration),
    /// The broker is over: no answer and no effect follows.
    Stop(StopReason),
}

/// An answer to a client.
#[derive(Clone, Debug)]
pub enum Reply {
    /// To [`Input::Append`]: one result for each batch, in order.
    Append(Vec<Result<Appended, AppendError>>),
    /// To [`Input::OpenProducer`].
    Producer(Result<(ProducerId, ProducerEpoch), OperationError>),
    /// To [`Input::Topic`]: the topic after the change.
    Topic(Result<Arc<TopicState>, OperationError>),
    /// To [`Input::Seal`].
    Sealed(Result<Vec<SegmentNumber>, OperationError>),
    /// To [`Input::Closed`].
    Closed(Result<(), OperationError>),
    /// To [`Input::Confirm`]: when the request came, nobody had taken over, and readers were told of everything that was acked.
    Confirmed(Result<(), OperationError>),
    /// To [`Input::Refresh`].
    Refreshed(Result<(), OperationError>),
    /// To [`Input::Drain`].
    Drained(Result<(), OperationError>),
}

/// Where a batch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// The offset of its first record.
    pub base_offset: Offset,
    /// Its append time.
    pub append_time: Timestamp,
    /// It was appended by an earlier try.
    pub duplicate: bool,
}

/// Why a batch was not appended. All but `OutcomeUnknown` are certain: nothing happened.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AppendError {
    /// No such topic.
    #[error("topic {0} does not exist")]
    UnknownTopic(TopicId),
    /// No such partition.
    #[error("partition {partition} does not exist: the topic has {partitions}")]
    UnknownPartition {
        /// What was asked.
        partition: PartitionId,
        /// How many there are.
        partitions: u32,
    },
    /// The partition's segment is sealed or served elsewhere.
    #[error("partition {0} is not served here now: look up again")]
    NotServed(PartitionId),
    /// A newer producer of the same name.
    #[error("the producer's epoch {given} is fenced by epoch {current}")]
    ProducerFenced {
        /// The batch's.
        given: ProducerEpoch,
        /// The partition's.
        current: ProducerEpoch,
    },
    /// Not the next sequence.
    #[error("sequence {given} does not follow: expected {expected}")]
    OutOfSequence {
        /// The batch's.
        given: Sequence,
        /// The next one.
        expected: Sequence,
    },
    /// No state, and not a first batch.
    #[error(
        "producer {0} is not known here and its sequence does not start at 0; it may have been idle for longer than the expiry"
    )]
    UnknownProducer(ProducerId),
    /// Too much is pending.
    #[error("the broker has too much in flight; try again after {0:?}")]
    Throttled(Duration),
    /// Starting or draining.
    #[error("the broker is not serving: {0}")]
    Unavailable(&'static str),
    /// It stopped with the batch in flight: it may be committed.
    #[error("the broker stopped before the outcome was known; send the same batch again")]
    OutcomeUnknown,
}

/// Why an operation was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum OperationError {
    /// The name is taken.
    #[error("topic {0} exists already")]
    TopicExists(TopicName),
    /// No such topic.
    #[error("topic {0} does not exist")]
    UnknownTopic(TopicId),
    /// The request contradicts the state.
    #[error("{0}")]
    Invalid(String),
    /// Starting or draining: nothing happened.
    #[error("the broker is not serving: {0}")]
    Unavailable(&'static str),
    /// It stopped before the outcome was known.
    #[error("the broker stopped before the outcome was known")]
    OutcomeUnknown,
}

/// Why a broker ended.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StopReason {
    /// It was drained.
    #[error("drained")]
    Drained,
    /// Another broker took over.
    #[error(
        "another broker took over: it ended this one's journal at slot {slot}, since it took this broker for dead. Was the process paused, the machine \
         overloaded, or the store or the network out of reach for longer than broker.death_after? Nothing that was acknowledged is lost"
    )]
    Fenced {
        /// Where.
        slot: Slot,
    },
    /// It was presumed dead, and its journal recovered.
    #[error(
        "presumed dead, and its journal recovered, by the leader (now the broker of epoch {0}). Was the process paused, the machine overloaded, or the \
         store or the network out of reach for longer than broker.death_after? Nothing that was acknowledged is lost"
    )]
    Superseded(Epoch),
    /// Another broker joined later with this one's own address, which this process had all the time: two brokers have one address, and each
    /// would take the other for its own dead predecessor, for ever.
    #[error(
        "the broker of epoch {by} joined with this broker's own address, {endpoint}: each broker of a cluster needs an address at which the others \
         and clients reach it and no other; set broker.advertise of both, to different addresses, and to none of a load balancer"
    )]
    AddressTaken {
        /// The other broker.
        by: Epoch,
        /// The address.
        endpoint: String,
    },
    /// It was asked to drain while it was starting: it has taken no records. What it may have been given, another broker takes over.
    #[error("stopped before it served: it has taken no records")]
    NotBegun,
    /// It slept for so long that the cluster log has gone on by more than it keeps.
    #[error("entry {0} of the cluster log, the last one that it knows, is not kept any more: it slept for too long")]
    Outrun(Version),
    /// What is stored contradicts itself: going on could lose data.
    #[error("the stored state is damaged: {0}")]
    Damaged(String),
    /// It was stopped otherwise. Nothing that was acknowledged is lost: the next start recovers what is committed.
    #[error("stopped before it was drained: {0}; nothing that was acknowledged is lost")]
    Cut(String),
}

/// How far a broker is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Taking its epoch, reading the state, recovering the epochs before.
    Starting(&'static str),
    /// Appending and answering.
    Serving,
    /// Sealing and committing what is left.
    Draining,
    /// Over.
    Stopped,
}

/// For people, health checks and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// How far it is.
    pub phase: Phase,
    /// Its epoch, once taken.
    pub epoch: Option<Epoch>,
    /// The last committed slot.
    pub committed_slot: Slot,
    /// The last entry of the log that it knows.
    pub version: Version,
    /// It leads.
    pub leads: bool,
    /// Brokers that joined and were not recovered, itself among them.
    pub brokers: usize,
    /// Those of them that it presumes dead. A leader knows of all.
    pub absent: BTreeSet<Epoch>,
    /// Slots created and not yet answered.
    pub slots_in_flight: usize,
    /// Batch bytes waiting or in flight.
    pub pending_bytes: usize,
    /// Since when the oldest operation is unanswered or failing, and what the store said last.
    pub stuck: Option<(Duration, String)>,
    /// Journals of dead brokers that it cannot recover, since what is stored contradicts itself, and what is wrong; tried again now and
    /// then. Known to the leader only.
    pub damaged: BTreeMap<Epoch, String>,
}
