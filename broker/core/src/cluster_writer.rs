//! What this broker writes to the cluster log.
//!
//! Every broker of the cluster writes to it. Changes arrive as [`Intent`]s: what is wanted, not yet how. One log entry is under
//! way at a time; the intents that arrive meanwhile wait and go together into the next one (group commit), many topics an entry,
//! bounded by [`MOST_COMMANDS`] and [`MOST_BYTES`].
//!
//! # Decide, commit, or decide again
//!
//! An entry is decided against the state up to the number before it: each intent becomes commands, tried on a scratch copy with
//! the same [`ClusterState::apply`] that every reader of the log uses, so nothing is committed that a reader would refuse
//! (invariant *only-valid-entries*). If somebody else took the number, his entry is applied and all intents are decided afresh
//! (invariant *losers-decide-again*): whatever an intent supposed may be over by then, so each looks again at what it concerns. A
//! refusal relies on the undecided commands before it in the same entry, so it is told only when the entry is committed
//! (invariant *refusals-rely-on-the-durable*).
//!
//! An entry whose commit is unknown is committed again, same bytes, until it is known.
//!
//! # Who owns what opens
//!
//! What was planned for a segment follows it. Where nothing was, a successor stays with its owner if that is who writes; everything else
//! goes to the broker with the fewest open segments, of those that neither leave nor are presumed dead.

use crate::{
    interface::{OperationError, Ticket, TopicOperation},
    recovery::Recovered,
    segment::After,
};
use refstream_format::{
    cluster_log::{ClusterState, Command, EpochState, LogEntry, OpenSegment, Planned, SealedBy, TopicState, Violation},
    journal::SegmentState,
};
use refstream_types::{
    Epoch, LeaderTerm, PartitionId, PartitionRange, SegmentId, SegmentNumber, Slot, Timestamp, Token, TopicConfig,
    TopicId, Version,
};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

/// The most commands of one entry, unless a single intent has more.
pub(crate) const MOST_COMMANDS: usize = 4_096;
/// The most bytes of one entry, roughly, unless a single intent has more.
pub(crate) const MOST_BYTES: usize = 1 << 20;
/// While there are fewer topics than this, a new one begins with a segment for each broker; later ones with one segment.
const SPREAD_TOPICS: usize = 256;

/// An ended segment, as its owner or a recovery found it.
#[derive(Clone, Debug)]
pub(crate) struct EndedSegment {
    pub(crate) state: SegmentState,
    pub(crate) by: SealedBy,
    pub(crate) last_slot: Slot,
}

/// A wanted change.
#[derive(Clone, Debug)]
pub(crate) enum Intent {
    /// This broker joins, and leads where nobody does.
    Join { endpoint: String },
    /// This broker leads, unless somebody else does by then.
    Lead,
    /// A segment of ours ended.
    End { ended: EndedSegment, after: After },
    /// The journal of a dead epoch has ended: so have its segments. `reuse_offsets` is a broken rule.
    Recovered { recovered: Arc<Recovered>, reuse_offsets: bool },
    /// Every partition of every topic gets an owner, if we lead.
    Assign,
    /// The owner of a segment is asked to end it, if that still is as it was.
    Plan { segment: SegmentId, successors: Vec<Planned> },
    /// This broker takes no more segments.
    Leaving,
    /// This broker has fenced its own journal and owns nothing.
    Left { fence: Slot },
    /// A client's change.
    Topic { ticket: Ticket, operation: TopicOperation, at: Timestamp },
    /// A segment's `Adopt` entry is durable.
    Adopted { segment: SegmentId, slot: Slot },
    /// Files hold these segments.
    Closed { ticket: Ticket, segments: Vec<SegmentId> },
    /// Nothing in the journal of a dead epoch is needed.
    Forget { epoch: Epoch },
}

/// What became of an intent when its entry was committed.
#[derive(Clone, Debug)]
pub(crate) enum Settled {
    Joined,
    /// Somebody leads.
    Led,
    /// A segment of ours ended.
    Ended {
        segment: SegmentId,
    },
    /// A dead epoch is recovered, or not all of it yet.
    Recovered {
        epoch: Epoch,
        rest: Option<Intent>,
    },
    /// Everything has an owner, or not all of it yet.
    Assigned {
        rest: bool,
    },
    Topic {
        ticket: Ticket,
        result: Result<Arc<TopicState>, OperationError>,
    },
    Closed {
        ticket: Ticket,
    },
    Nothing,
}

/// An entry being made.
pub(crate) struct Draft<'a> {
    scratch: ClusterState,
    writer: Epoch,
    absent: &'a BTreeSet<Epoch>,
    commands: Vec<Command>,
    bytes: usize,
    /// Open segments of every broker that takes some; counted when it is first asked for.
    loads: Option<BTreeMap<Epoch, usize>>,
}

impl<'a> Draft<'a> {
    /// `absent`: brokers that the writer presumes dead.
    pub(crate) fn new(state: &ClusterState, writer: Epoch, absent: &'a BTreeSet<Epoch>) -> Self {
        Self { scratch: state.clone(), writer, absent, commands: Vec::new(), bytes: 0, loads: None }
    }

    /// Whether nothing more is to come in: for its size, or since its writer ends with it.
    fn is_full(&self) -> bool {
        let ends = self.scratch.epochs.get(&self.writer).is_some_and(|writer| writer.fence.is_some());
        ends || self.commands.len() >= MOST_COMMANDS || self.bytes >= MOST_BYTES
    }

    fn term(&self) -> LeaderTerm {
        self.scratch.leader.map_or(LeaderTerm(0), |(term, _)| term)
    }

    fn push(&mut self, commands: Vec<Command>) -> Result<(), Violation> {
        if commands.is_empty() {
            return Ok(());
        }
        let trial = LogEntry {
            version: self.scratch.version.next(),
            token: Token([0; 16]),
            term: self.term(),
            writer: self.writer,
            commands,
        };
        let before = self.scratch.version;
        self.scratch.apply(&trial)?;
        // Of one entry there are many trials.
        self.scratch.version = before;
        self.bytes += trial.commands.iter().map(size).sum::<usize>();
        self.commands.extend(trial.commands);
        Ok(())
    }

    /// The broker with the fewest open segments.
    fn least_loaded(&mut self) -> Option<Epoch> {
        let (scratch, absent) = (&self.scratch, self.absent);
        let loads = self.loads.get_or_insert_with(|| loads(scratch, absent));
        loads.iter().min_by_key(|(epoch, load)| (**load, **epoch)).map(|(epoch, _)| *epoch)
    }

    fn takes_segments(&self, epoch: Epoch) -> bool {
        takes_segments(&self.scratch, self.absent, epoch)
    }

    /// Turns an intent into commands.
    ///
    /// An error means that the state contradicts what this broker knows for certain.
    pub(crate) fn decide(&mut self, intent: &Intent) -> Result<Settled, Violation> {
        match intent {
            Intent::Join { endpoint } => {
                let epoch = self.writer;
                if self.scratch.epochs.contains_key(&epoch) {
                    // An answer was lost, and the entry with it was freed before it was asked again.
                    return Ok(Settled::Joined);
                }
                let joined = Command::EpochJoined { epoch, endpoint: endpoint.clone() };
                let mut commands = vec![joined];
                if self.is_vacant() {
                    commands.push(Command::Lead { epoch, term: self.term().next() });
                }
                self.push(commands)?;
                self.loads = None;
                Ok(Settled::Joined)
            }
            Intent::Lead => {
                if self.is_vacant() {
                    self.push(vec![Command::Lead { epoch: self.writer, term: self.term().next() }])?;
                }
                Ok(Settled::Led)
            }
            Intent::End { ended, after } => {
                let segment = ended.state.segment;
                self.end(ended.clone(), *after)?;
                Ok(Settled::Ended { segment })
            }
            Intent::Recovered { recovered, reuse_offsets } => self.recovered(recovered, *reuse_offsets, intent),
            Intent::Assign => Ok(Settled::Assigned { rest: self.assign()? }),
            Intent::Plan { segment, successors } => {
                let topic = self.scratch.topics.get(&segment.topic).filter(|topic| !topic.deleted);
                if topic
                    .is_some_and(|t| t.open.contains_key(&segment.number) && !t.planned.contains_key(&segment.number))
                {
                    self.push(vec![Command::PlanSegment { segment: *segment, successors: successors.clone() }])?;
                }
                Ok(Settled::Nothing)
            }
            Intent::Leaving => {
                if self.scratch.epochs.get(&self.writer).is_some_and(EpochState::takes_segments) {
                    self.push(vec![Command::EpochLeaving { epoch: self.writer }])?;
                    self.loads = None;
                }
                Ok(Settled::Nothing)
            }
            Intent::Left { fence } => {
                self.push(vec![Command::EpochRecovered { epoch: self.writer, fence: *fence }])?;
                self.loads = None;
                Ok(Settled::Nothing)
            }
            Intent::Adopted { segment, slot } => {
                // It may have ended by now; then the end said it.
                if self.scratch.open_segment(*segment).is_some() {
                    self.push(vec![Command::SegmentAdopted { segment: *segment, slot: *slot }])?;
                }
                Ok(Settled::Nothing)
            }
            Intent::Closed { ticket, segments } => {
                for segment in segments {
                    let topic = self.scratch.topics.get(&segment.topic);
                    if topic.is_some_and(|t| t.sealed.contains_key(&segment.number)) {
                        self.push(vec![Command::SegmentClosed { segment: *segment }])?;
                    }
                }
                Ok(Settled::Closed { ticket: *ticket })
            }
            Intent::Forget { epoch } => {
                let dead = self.scratch.epochs.get(epoch).is_some_and(|e| e.fence.is_some());
                if dead && self.scratch.journal_needed(*epoch, Slot(1)).is_none() {
                    self.push(vec![Command::EpochForgotten { epoch: *epoch }])?;
                }
                Ok(Settled::Nothing)
            }
            Intent::Topic { ticket, operation, at } => {
                Ok(Settled::Topic { ticket: *ticket, result: self.topic(operation, *at)? })
            }
        }
    }

    /// Whether nobody leads who could.
    fn is_vacant(&self) -> bool {
        is_vacant(&self.scratch, self.absent)
    }

    /// Ends a segment, unless somebody else did, and opens what follows.
    fn end(&mut self, ended: EndedSegment, after: After) -> Result<(), Violation> {
        let segment = ended.state.segment;
        let Some((opened, topic)) =
            self.scratch.open_segment(segment).cloned().zip(self.scratch.topics.get(&segment.topic))
        else {
            return Ok(());
        };
        let (plan, deleted) = (topic.planned.get(&segment.number).cloned(), topic.deleted);
        self.push(vec![Command::SealSegment {
            segment,
            end_offsets: ended.state.next_offsets,
            by: ended.by,
            slots: (ended.state.adopted, ended.last_slot),
            bytes: ended.state.bytes,
        }])?;
        self.has_ended(&opened)?;
        if deleted || after == After::Deletion {
            return Ok(());
        }
        let natural = match after {
            After::Successor => Some(self.writer),
            _ => None,
        };
        match plan {
            Some(plan) => plan.into_iter().try_for_each(|next| self.open(segment.topic, next.range, Some(next.owner))),
            None => self.open(segment.topic, opened.range, natural),
        }
    }

    /// An ended segment without records needs no file, and one of a deleted topic gets none.
    fn has_ended(&mut self, opened: &OpenSegment) -> Result<(), Violation> {
        if let Some(load) = self.loads.as_mut().and_then(|loads| loads.get_mut(&opened.owner)) {
            *load = load.saturating_sub(1);
        }
        let segment = opened.id;
        let Some(topic) = self.scratch.topics.get(&segment.topic) else { return Ok(()) };
        if topic.sealed.get(&segment.number).is_some_and(|sealed| sealed.is_empty() || topic.deleted) {
            self.push(vec![Command::SegmentClosed { segment }])?;
        }
        Ok(())
    }

    /// Opens a segment over `range` where none is open; with no broker to take it, or while a part of it is still open, nobody
    /// gets it now.
    fn open(&mut self, topic: TopicId, range: PartitionRange, owner: Option<Epoch>) -> Result<(), Violation> {
        let owner = match owner.filter(|owner| self.takes_segments(*owner)) {
            Some(owner) => owner,
            None => match self.least_loaded() {
                Some(owner) => owner,
                None => return Ok(()),
            },
        };
        let Some(state) = self.scratch.topics.get(&topic).filter(|topic| !topic.deleted) else { return Ok(()) };
        if state.open.values().any(|open| open.range.overlaps(range)) {
            return Ok(());
        }
        let Some(segment) = state.successor(range, owner) else { return Ok(()) };
        self.push(vec![Command::OpenSegment(segment)])?;
        if let Some(load) = self.loads.as_mut().and_then(|loads| loads.get_mut(&owner)) {
            *load += 1;
        }
        Ok(())
    }

    /// All segments that a dead epoch owns have ended with its journal. If they do not fit into this entry, the rest follows.
    fn recovered(
        &mut self,
        recovered: &Arc<Recovered>,
        reuse_offsets: bool,
        intent: &Intent,
    ) -> Result<Settled, Violation> {
        let epoch = recovered.epoch;
        if self.scratch.epochs.get(&epoch).is_none_or(|state| state.fence.is_some()) {
            return Ok(Settled::Recovered { epoch, rest: None });
        }
        let last_slots = recovered.last_slots();
        let owned: Vec<OpenSegment> = self.scratch.owned_by(epoch).cloned().collect();
        for opened in owned {
            if self.is_full() {
                return Ok(Settled::Recovered { epoch, rest: Some(intent.clone()) });
            }
            let segment = opened.id;
            match recovered.ended(segment, &last_slots) {
                Some(mut ended) => {
                    if reuse_offsets {
                        ended.state.next_offsets.clone_from(&opened.start_offsets);
                    }
                    self.end(ended, After::Anybody)?;
                }
                None => {
                    if self.scratch.topics.get(&segment.topic).is_some_and(|t| t.adopted.contains_key(&segment.number))
                    {
                        return Err(Violation {
                            version: self.scratch.version,
                            invariant: "adopted-segments-are-in-their-journals",
                            detail: format!("segment {segment} was adopted in journal {epoch}, which does not know it"),
                        });
                    }
                    // It never was adopted, hence holds nothing.
                    let state = SegmentState::empty(&opened, Slot(1), Timestamp::default());
                    let by = SealedBy::Recovery { fence: recovered.fence };
                    self.end(EndedSegment { state, by, last_slot: Slot(1) }, After::Anybody)?;
                }
            }
        }
        self.push(vec![Command::EpochRecovered { epoch, fence: recovered.fence }])?;
        self.loads = None;
        Ok(Settled::Recovered { epoch, rest: None })
    }

    /// Opens what nobody serves and no plan waits for; whether some is left.
    fn assign(&mut self) -> Result<bool, Violation> {
        if self.scratch.leader.is_none_or(|(_, leader)| leader != self.writer) {
            return Ok(false);
        }
        let mut wanted = Vec::new();
        for topic in self.scratch.topics.values().filter(|topic| !topic.deleted) {
            for unserved in topic.unserved() {
                let mut left = vec![unserved];
                let planned = topic.planned.iter().filter_map(|(number, plan)| Some((topic.open.get(number)?, plan)));
                for (open, plan) in planned {
                    for next in plan.iter().filter(|next| next.range.overlaps(open.range)) {
                        left = left.into_iter().flat_map(|range| range.without(next.range)).collect();
                    }
                }
                wanted.extend(left.into_iter().map(|range| (topic.id, range)));
            }
        }
        for (topic, range) in wanted {
            if self.is_full() {
                return Ok(true);
            }
            self.open(topic, range, None)?;
        }
        Ok(false)
    }

    fn topic(
        &mut self,
        operation: &TopicOperation,
        at: Timestamp,
    ) -> Result<Result<Arc<TopicState>, OperationError>, Violation> {
        let id = match operation {
            TopicOperation::Create { name, config } => {
                if self.scratch.topic_by_name(name).is_some() {
                    return Ok(Err(OperationError::TopicExists(name.clone())));
                }
                if let Err(error) = config.validate() {
                    return Ok(Err(OperationError::Invalid(error.to_string())));
                }
                let topic = self.scratch.next_topic;
                let (name, config) = (name.clone(), config.clone());
                let ranges = self.first_ranges(&config);
                self.push(vec![Command::CreateTopic { topic, name, config, created_at: at }])?;
                for range in ranges {
                    self.open(topic, range, None)?;
                }
                topic
            }
            TopicOperation::Alter { topic: id, change } => {
                let Some(topic) = self.scratch.topics.get(id).filter(|t| !t.deleted) else {
                    return Ok(Err(OperationError::UnknownTopic(*id)));
                };
                let config = change.of(&topic.config);
                if let Err(error) = config.validate() {
                    return Ok(Err(OperationError::Invalid(error.to_string())));
                }
                self.push(vec![Command::AlterTopic { topic: *id, config }])?;
                *id
            }
            TopicOperation::Delete { topic: id } => {
                let Some(topic) = self.scratch.topics.get(id).filter(|t| !t.deleted) else {
                    return Ok(Err(OperationError::UnknownTopic(*id)));
                };
                let mut last = TopicState::clone(topic);
                last.deleted = true;
                let closed = last.sealed.keys().map(|number| SegmentId { topic: *id, number: *number });
                let mut commands: Vec<_> = closed.map(|segment| Command::SegmentClosed { segment }).collect();
                // Last, since a topic without segments leaves the state with it.
                commands.push(Command::DeleteTopic { topic: *id });
                self.push(commands)?;
                return Ok(Ok(Arc::new(last)));
            }
        };
        Ok(self.scratch.topics.get(&id).cloned().ok_or(OperationError::UnknownTopic(id)))
    }

    /// The ranges of a new topic's first segments.
    fn first_ranges(&mut self, config: &TopicConfig) -> Vec<PartitionRange> {
        let (scratch, absent) = (&self.scratch, self.absent);
        let brokers = self.loads.get_or_insert_with(|| loads(scratch, absent)).len();
        let partitions = config.partitions;
        let count = if scratch.topics.len() < SPREAD_TOPICS { brokers.max(1) as u32 } else { 1 }.min(partitions);
        let at = |part: u32| PartitionId((u64::from(partitions) * u64::from(part) / u64::from(count)) as u32);
        (0..count).filter_map(|part| PartitionRange::new(at(part), at(part + 1))).collect()
    }
}

/// Whether nobody leads who could.
pub(crate) fn is_vacant(state: &ClusterState, absent: &BTreeSet<Epoch>) -> bool {
    state.leader.is_none_or(|(_, leader)| !takes_segments(state, absent, leader))
}

/// Whether a broker may be given segments.
pub(crate) fn takes_segments(state: &ClusterState, absent: &BTreeSet<Epoch>, epoch: Epoch) -> bool {
    !absent.contains(&epoch) && state.epochs.get(&epoch).is_some_and(EpochState::takes_segments)
}

/// Open segments of every broker that takes some.
pub(crate) fn loads(state: &ClusterState, absent: &BTreeSet<Epoch>) -> BTreeMap<Epoch, usize> {
    let takers = state.epochs.keys().filter(|epoch| takes_segments(state, absent, **epoch));
    let mut loads: BTreeMap<Epoch, usize> = takers.map(|epoch| (*epoch, 0)).collect();
    for open in state.open_segments() {
        if let Some(load) = loads.get_mut(&open.owner) {
            *load += 1;
        }
    }
    loads
}

/// As [`loads`], with what is about to change hands counted where it goes.
pub(crate) fn loads_to_come(state: &ClusterState, absent: &BTreeSet<Epoch>) -> BTreeMap<Epoch, usize> {
    let mut loads = loads(state, absent);
    for topic in state.topics.values() {
        for (open, plan) in topic.planned.iter().filter_map(|(number, plan)| Some((topic.open.get(number)?, plan))) {
            if let Some(load) = loads.get_mut(&open.owner) {
                *load = load.saturating_sub(1);
            }
            for next in plan {
                if let Some(load) = loads.get_mut(&next.owner) {
                    *load += 1;
                }
            }
        }
    }
    loads
}

/// About how many bytes a command takes.
fn size(command: &Command) -> usize {
    const OFFSET: usize = 5;
    match command {
        Command::OpenSegment(segment) => 40 + OFFSET * segment.start_offsets.len() + 4 * segment.predecessors.len(),
        Command::SealSegment { end_offsets, .. } => 40 + OFFSET * end_offsets.len(),
        Command::CreateTopic { .. } | Command::AlterTopic { .. } => 400,
        Command::PlanSegment { successors, .. } => 32 + 12 * successors.len(),
        _ => 32,
    }
}

/// An entry whose commit is under way.
#[derive(Debug)]
pub(crate) struct Proposed {
    pub(crate) entry: LogEntry,
    /// In order, each with what it comes to.
    pub(crate) intents: Vec<(Intent, Settled)>,
}

/// The log as this broker knows and writes it.
#[derive(Debug)]
pub(crate) struct ClusterWriter {
    pub(crate) state: Arc<ClusterState>,
    queue: VecDeque<Intent>,
    pub(crate) proposed: Option<Proposed>,
}

impl ClusterWriter {
    pub(crate) fn new() -> Self {
        Self { state: Arc::new(ClusterState::default()), queue: VecDeque::new(), proposed: None }
    }

    pub(crate) fn want(&mut self, intent: Intent) {
        self.queue.push_back(intent);
    }

    /// Whether nothing waits and nothing is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.proposed.is_none()
    }

    /// Whether an entry under way names others as owners: it may be in the log already.
    pub(crate) fn may_have_given_away(&self, mine: Option<Epoch>) -> bool {
        let commands = self.proposed.iter().flat_map(|proposed| &proposed.entry.commands);
        commands
            .into_iter()
            .any(|command| matches!(command, Command::OpenSegment(opened) if Some(opened.owner) != mine))
    }

    /// Decides the next entry, unless one is under way or nothing is wanted. What needs no entry is settled at once.
    pub(crate) fn propose(
        &mut self,
        writer: Epoch,
        absent: &BTreeSet<Epoch>,
        mut token: impl FnMut() -> Token,
    ) -> Result<Proposal, Violation> {
        if self.proposed.is_some() || self.queue.is_empty() {
            return Ok(Proposal::Nothing);
        }
        let mut draft = Draft::new(&self.state, writer, absent);
        let mut intents = Vec::new();
        while !draft.is_full()
            && let Some(intent) = self.queue.pop_front()
        {
            let settled = draft.decide(&intent)?;
            intents.push((intent, settled));
        }
        if draft.commands.is_empty() {
            return Ok(Proposal::Settled(intents.into_iter().map(|(_, settled)| settled).collect()));
        }
        let (version, term) = (self.state.version.next(), draft.term());
        let entry = LogEntry { version, token: token(), term, writer, commands: draft.commands };
        let bytes = entry.encode();
        self.proposed = Some(Proposed { entry, intents });
        Ok(Proposal::Commit(version, bytes))
    }

    /// Our entry is committed.
    pub(crate) fn committed(&mut self) -> Result<Option<(LogEntry, Vec<Settled>)>, Violation> {
        let Some(Proposed { entry, intents }) = self.proposed.take() else { return Ok(None) };
        Arc::make_mut(&mut self.state).apply(&entry)?;
        Ok(Some((entry, intents.into_iter().map(|(_, settled)| settled).collect())))
    }

    /// Somebody else wrote the entry that follows.
    pub(crate) fn follow(&mut self, entry: &LogEntry) -> Result<(), Violation> {
        Arc::make_mut(&mut self.state).apply(entry)?;
        if let Some(Proposed { intents, .. }) = self.proposed.take() {
            for (intent, _) in intents.into_iter().rev() {
                self.queue.push_front(intent);
            }
        }
        Ok(())
    }

    /// Everything that is not settled: whether each was in the entry under way.
    pub(crate) fn take_unsettled(&mut self) -> Vec<(Intent, bool)> {
        let proposed = self.proposed.take().map(|p| p.intents).unwrap_or_default();
        let proposed = proposed.into_iter().map(|(intent, _)| (intent, true));
        proposed.chain(self.queue.drain(..).map(|intent| (intent, false))).collect()
    }

    /// How many segments' owners are asked to end them.
    pub(crate) fn plans(&self) -> usize {
        self.state.topics.values().map(|topic| topic.planned.len()).sum()
    }

    /// The number of an open segment of a topic over a partition, and its owner.
    pub(crate) fn owner_of(&self, topic: TopicId, partition: PartitionId) -> Option<(SegmentNumber, Epoch)> {
        let open = self.state.topics.get(&topic)?.open_segment(partition)?;
        Some((open.id.number, open.owner))
    }
}

/// What [`ClusterWriter::propose`] came to.
pub(crate) enum Proposal {
    Nothing,
    /// There was nothing to write.
    Settled(Vec<Settled>),
    /// This entry must be committed.
    Commit(Version, Vec<u8>),
}

#[cfg(test)]
mod tests;
