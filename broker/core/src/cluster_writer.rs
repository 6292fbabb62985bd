//! What this broker writes to the cluster log.
//!
//! Changes arrive as [`Intent`]s: what is wanted, not yet how. One log entry is under way at a time; the intents that arrive
//! meanwhile wait and go together into the next one (group commit), many topics an entry, bounded by [`MOST_COMMANDS`] and
//! [`MOST_BYTES`].
//!
//! # Decide, commit, or decide again
//!
//! An entry is decided against the state up to the number before it: each intent becomes commands, tried on a scratch copy with
//! the same [`ClusterState::apply`] that every reader of the log uses, so nothing is committed that a reader would refuse
//! (invariant *only-valid-entries*). If somebody else took the number, his entry is applied and all intents are decided afresh
//! (invariant *losers-decide-again*). A refusal relies on the undecided commands before it in the same entry, so it is told only
//! when the entry is committed (invariant *refusals-rely-on-the-durable*).
//!
//! An entry whose commit is unknown is committed again, same bytes, until it is known.

use crate::{
    interface::{OperationError, Ticket, TopicOperation},
    segment::After,
};
use refstream_format::{
    cluster_log::{ClusterState, Command, LogEntry, OpenSegment, SealedBy, TopicState, Violation},
    journal::SegmentState,
};
use refstream_types::{
    Epoch, LeaderTerm, PartitionId, PartitionRange, SegmentId, Slot, Timestamp, Token, TopicId, Version,
};
use std::{collections::VecDeque, sync::Arc};

/// The most commands of one entry, unless a single intent has more.
pub(crate) const MOST_COMMANDS: usize = 4_096;
/// The most bytes of one entry, roughly, unless a single intent has more.
pub(crate) const MOST_BYTES: usize = 1 << 20;

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
    /// This broker joins and leads.
    Join { endpoint: String },
    /// A segment ended; what follows it, if anything, is ours.
    End { ended: EndedSegment, after: After },
    /// A dead epoch's segment that never was adopted, hence holds nothing.
    EndUnadopted { segment: SegmentId, fence: Slot },
    /// All segments of a dead epoch have ended.
    Recovered { epoch: Epoch, fence: Slot },
    /// Every partition of the topic gets a segment of ours.
    Serve { topic: TopicId },
    /// A client's change. For a deletion the segments have ended.
    Topic { ticket: Ticket, operation: TopicOperation, at: Timestamp, ended: Vec<EndedSegment> },
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
    /// It ended; its successor.
    Ended {
        segment: SegmentId,
        successor: Option<OpenSegment>,
    },
    /// These are open now.
    Serving {
        opened: Vec<OpenSegment>,
    },
    /// The topic after the change; `deletion` where that was wanted, of a topic whose segments had `ended`.
    Topic {
        ticket: Ticket,
        result: Result<Arc<TopicState>, OperationError>,
        deletion: Option<TopicId>,
        ended: Vec<EndedSegment>,
    },
    Closed {
        ticket: Ticket,
    },
    Nothing,
}

/// An entry being made.
pub(crate) struct Draft {
    scratch: ClusterState,
    term: LeaderTerm,
    writer: Epoch,
    commands: Vec<Command>,
    bytes: usize,
}

impl Draft {
    pub(crate) fn new(state: &ClusterState, term: LeaderTerm, writer: Epoch) -> Self {
        Self { scratch: state.clone(), term, writer, commands: Vec::new(), bytes: 0 }
    }

    /// The state with what was drafted so far.
    pub(crate) fn scratch(&self) -> &ClusterState {
        &self.scratch
    }

    fn is_full(&self) -> bool {
        self.commands.len() >= MOST_COMMANDS || self.bytes >= MOST_BYTES
    }

    fn push(&mut self, commands: Vec<Command>) -> Result<(), Violation> {
        if commands.is_empty() {
            return Ok(());
        }
        let trial = LogEntry {
            version: self.scratch.version.next(),
            token: Token([0; 16]),
            term: self.term,
            writer: self.writer,
            commands,
        };
        self.scratch.apply(&trial)?;
        self.bytes += trial.commands.iter().map(size).sum::<usize>();
        self.commands.extend(trial.commands);
        Ok(())
    }

    /// Turns an intent into commands.
    ///
    /// An error means that the state contradicts what this broker knows for certain.
    pub(crate) fn decide(&mut self, intent: &Intent) -> Result<Settled, Violation> {
        match intent {
            Intent::Join { endpoint } => {
                let epoch = self.writer;
                let joined = Command::EpochJoined { epoch, endpoint: endpoint.clone() };
                self.push(vec![joined, Command::Lead { epoch, term: self.term }])?;
                Ok(Settled::Joined)
            }
            Intent::End { ended, after } => {
                let segment = ended.state.segment;
                let range = ended.state.range;
                self.push(end(ended))?;
                self.close_if_empty(segment)?;
                let topic = self.scratch.topics.get(&segment.topic).filter(|t| !t.deleted);
                let successor = match after {
                    After::Successor => topic.and_then(|topic| topic.successor(range, self.writer)),
                    After::Nothing | After::Deletion => None,
                };
                self.push(successor.iter().cloned().map(Command::OpenSegment).collect())?;
                Ok(Settled::Ended { segment, successor })
            }
            Intent::EndUnadopted { segment, fence } => {
                let Some(opened) = self.scratch.open_segment(*segment) else { return Ok(Settled::Nothing) };
                let end_offsets = opened.start_offsets.clone();
                let by = SealedBy::Recovery { fence: *fence };
                let slots = (Slot(1), Slot(1));
                self.push(vec![Command::SealSegment { segment: *segment, end_offsets, by, slots, bytes: 0 }])?;
                self.close_if_empty(*segment)?;
                Ok(Settled::Nothing)
            }
            Intent::Recovered { epoch, fence } => {
                self.push(vec![Command::EpochRecovered { epoch: *epoch, fence: *fence }])?;
                Ok(Settled::Nothing)
            }
            Intent::Serve { topic } => {
                let unserved = self.scratch.topics.get(topic).map(|t| t.unserved()).unwrap_or_default();
                let mut opened = Vec::new();
                for unserved in unserved {
                    opened.extend(self.open(*topic, unserved.range)?);
                }
                Ok(Settled::Serving { opened })
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
            Intent::Topic { ticket, operation, at, ended } => {
                let result = self.topic(operation, *at, ended)?;
                let deletion = match operation {
                    TopicOperation::Delete { topic } => Some(*topic),
                    TopicOperation::Create { .. } | TopicOperation::Alter { .. } => None,
                };
                Ok(Settled::Topic { ticket: *ticket, result, deletion, ended: ended.clone() })
            }
        }
    }

    fn open(&mut self, topic: TopicId, range: PartitionRange) -> Result<Option<OpenSegment>, Violation> {
        let Some(segment) = self.scratch.topics.get(&topic).and_then(|t| t.successor(range, self.writer)) else {
            return Ok(None);
        };
        self.push(vec![Command::OpenSegment(segment.clone())])?;
        Ok(Some(segment))
    }

    /// An ended segment without records needs no file.
    fn close_if_empty(&mut self, segment: SegmentId) -> Result<(), Violation> {
        let sealed = self.scratch.topics.get(&segment.topic).and_then(|t| t.sealed.get(&segment.number));
        if sealed.is_some_and(|sealed| sealed.is_empty()) {
            self.push(vec![Command::SegmentClosed { segment }])?;
        }
        Ok(())
    }

    fn topic(
        &mut self,
        operation: &TopicOperation,
        at: Timestamp,
        ended: &[EndedSegment],
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
                let range = PartitionRange::new(PartitionId(0), PartitionId(config.partitions));
                self.push(vec![Command::CreateTopic { topic, name, config, created_at: at }])?;
                if let Some(range) = range {
                    self.open(topic, range)?;
                }
                topic
            }
            TopicOperation::Alter { topic: id, config } => {
                let Some(topic) = self.scratch.topics.get(id).filter(|t| !t.deleted) else {
                    return Ok(Err(OperationError::UnknownTopic(*id)));
                };
                if config.partitions != topic.config.partitions {
                    let (has, given) = (topic.config.partitions, config.partitions);
                    let why = format!("the topic has {has} partitions for ever, not {given}: keys are bound to them");
                    return Ok(Err(OperationError::Invalid(why)));
                }
                if let Err(error) = config.validate() {
                    return Ok(Err(OperationError::Invalid(error.to_string())));
                }
                self.push(vec![Command::AlterTopic { topic: *id, config: config.clone() }])?;
                *id
            }
            TopicOperation::Delete { topic: id } => return self.delete(*id, ended),
        };
        Ok(self.scratch.topics.get(&id).cloned().ok_or(OperationError::UnknownTopic(id)))
    }

    /// All at once: its segments end, none waits for a file any more, its name is free.
    fn delete(
        &mut self,
        id: TopicId,
        ended: &[EndedSegment],
    ) -> Result<Result<Arc<TopicState>, OperationError>, Violation> {
        let Some(topic) = self.scratch.topics.get(&id).filter(|t| !t.deleted) else {
            return Ok(Err(OperationError::UnknownTopic(id)));
        };
        let mut last = TopicState::clone(topic);
        last.deleted = true;
        let still_open = last.open.keys().filter(|n| !ended.iter().any(|e| e.state.segment.number == **n)).count();
        if still_open > 0 {
            let why = format!("{still_open} of its segments are open at another broker: try again");
            return Ok(Err(OperationError::Invalid(why)));
        }
        let mut commands: Vec<_> = ended.iter().flat_map(end).collect();
        let numbers = last.sealed.keys().copied().chain(ended.iter().map(|e| e.state.segment.number));
        commands.extend(
            numbers
                .map(|number| Command::SegmentClosed { segment: SegmentId { topic: id, number } })
                .collect::<Vec<_>>(),
        );
        // Last, since the topic leaves the state with its last segment.
        commands.push(Command::DeleteTopic { topic: id });
        self.push(commands)?;
        Ok(Ok(Arc::new(last)))
    }
}

fn end(ended: &EndedSegment) -> Vec<Command> {
    let EndedSegment { state, by, last_slot } = ended;
    vec![Command::SealSegment {
        segment: state.segment,
        end_offsets: state.next_offsets.clone(),
        by: *by,
        slots: (state.adopted, *last_slot),
        bytes: state.bytes,
    }]
}

/// About how many bytes a command takes.
fn size(command: &Command) -> usize {
    const OFFSET: usize = 5;
    match command {
        Command::OpenSegment(segment) => 40 + OFFSET * segment.start_offsets.len() + 4 * segment.predecessors.len(),
        Command::SealSegment { end_offsets, .. } => 40 + OFFSET * end_offsets.len(),
        Command::CreateTopic { .. } | Command::AlterTopic { .. } => 400,
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
    /// Our term, once we lead.
    pub(crate) term: Option<LeaderTerm>,
    queue: VecDeque<Intent>,
    pub(crate) proposed: Option<Proposed>,
}

impl ClusterWriter {
    pub(crate) fn new() -> Self {
        Self { state: Arc::new(ClusterState::default()), term: None, queue: VecDeque::new(), proposed: None }
    }

    pub(crate) fn want(&mut self, intent: Intent) {
        self.queue.push_back(intent);
    }

    /// Whether nothing waits and nothing is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.proposed.is_none()
    }

    /// Decides the next entry, unless one is under way or nothing is wanted. What needs no entry is settled at once.
    pub(crate) fn propose(&mut self, writer: Epoch, mut token: impl FnMut() -> Token) -> Result<Proposal, Violation> {
        if self.proposed.is_some() || self.queue.is_empty() {
            return Ok(Proposal::Nothing);
        }
        let term = self.term.unwrap_or_else(|| self.state.leader.map_or(LeaderTerm(1), |(term, _)| term.next()));
        let mut draft = Draft::new(&self.state, term, writer);
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
        let version = self.state.version.next();
        let entry = LogEntry { version, token: token(), term, writer, commands: draft.commands };
        let bytes = entry.encode();
        self.proposed = Some(Proposed { entry, intents });
        Ok(Proposal::Commit(version, bytes))
    }

    /// Our entry is committed.
    pub(crate) fn committed(&mut self) -> Result<Vec<Settled>, Violation> {
        let Some(Proposed { entry, intents }) = self.proposed.take() else { return Ok(Vec::new()) };
        Arc::make_mut(&mut self.state).apply(&entry)?;
        if let Some((term, leader)) = self.state.leader
            && leader == entry.writer
        {
            self.term = Some(term);
        }
        Ok(intents.into_iter().map(|(_, settled)| settled).collect())
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
