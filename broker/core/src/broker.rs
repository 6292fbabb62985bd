//! One broker: takes inputs and answers to the module they concern, and knows when to wake up and when it is over.

use crate::{
    cluster_writer::{ClusterWriter, Intent, Proposal, Settled},
    confirm::{Confirmations, confirmed},
    interface::{
        AppendError, Effect, Identity, Input, Now, OperationError, Phase, Reply, Settings, Status, StopReason, Ticket,
    },
    journal_writer::JournalWriter,
    lanes::Lanes,
    mutation::Mutation,
    operations::{Answer, Decided, Ended, Operations, Purpose, Request},
    requests::Requests,
    sealing::Sealing,
    segment::OwnedSegment,
    startup::Startup,
    topics::Deletion,
    turn::Turn,
    upkeep::Upkeep,
};
use bytes::Bytes;
use rand::{RngCore, SeedableRng, rngs::StdRng};
use refstream_format::{
    cluster_log::{ClusterState, LogEntry, Violation},
    journal::SegmentState,
};
use refstream_types::{Chain, Epoch, ProducerEpoch, ProducerId, SegmentId, Slot, Token, TopicId, Version};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// What a broker is doing.
#[derive(Debug)]
pub(crate) enum Life {
    Starting(Startup),
    Serving,
    Draining(Vec<Ticket>),
    Stopped,
}

/// One broker.
#[derive(Debug)]
pub struct Broker {
    pub(crate) settings: Settings,
    pub(crate) identity: Identity,
    pub(crate) mutation: Mutation,
    random: StdRng,
    pub(crate) operations: Operations,
    pub(crate) life: Life,
    pub(crate) epoch: Option<Epoch>,
    pub(crate) cluster: ClusterWriter,
    pub(crate) journal: Option<JournalWriter>,
    pub(crate) segments: BTreeMap<SegmentId, OwnedSegment>,
    /// Final states of ended segments, until their successors have taken over.
    pub(crate) finals: BTreeMap<SegmentId, SegmentState>,
    pub(crate) lanes: Lanes,
    pub(crate) requests: Requests,
    /// Batch bytes waiting or in flight.
    pub(crate) pending_bytes: usize,
    pub(crate) confirmations: Confirmations,
    pub(crate) sealing: Sealing,
    pub(crate) deletions: BTreeMap<TopicId, Deletion>,
    pub(crate) upkeep: Upkeep,
    producers_given: u32,
    wake: Option<Duration>,
}

impl Broker {
    /// Begins to start: takes an epoch, reads the state, recovers, then serves.
    pub fn start(settings: Settings, identity: Identity, now: Now, effects: &mut Vec<Effect>) -> Self {
        Self::begin(settings, identity, Mutation::None, now, effects)
    }

    /// A broker that breaks a rule.
    #[cfg(feature = "mutations")]
    pub fn start_mutated(
        settings: Settings,
        identity: Identity,
        mutation: Mutation,
        now: Now,
        effects: &mut Vec<Effect>,
    ) -> Self {
        Self::begin(settings, identity, mutation, now, effects)
    }

    fn begin(settings: Settings, identity: Identity, mutation: Mutation, now: Now, effects: &mut Vec<Effect>) -> Self {
        let mut broker = Self {
            random: StdRng::from_seed(identity.seed),
            settings,
            identity,
            mutation,
            operations: Operations::default(),
            life: Life::Starting(Startup::default()),
            epoch: None,
            cluster: ClusterWriter::new(),
            journal: None,
            segments: BTreeMap::new(),
            finals: BTreeMap::new(),
            lanes: Lanes::default(),
            requests: Requests::default(),
            pending_bytes: 0,
            confirmations: Confirmations::default(),
            sealing: Sealing::default(),
            deletions: BTreeMap::new(),
            upkeep: Upkeep::default(),
            producers_given: 0,
            wake: None,
        };
        let mut turn = Turn { now, effects };
        broker.operations.submit(&mut turn, Purpose::EpochTip, Request::Tip { chain: Chain::Epochs, hint: 0 });
        broker.wake_up(&mut turn);
        broker
    }

    /// Takes one input; appends what must follow to `effects`, to be carried out in order.
    pub fn handle(&mut self, now: Now, input: Input, effects: &mut Vec<Effect>) {
        if matches!(self.life, Life::Stopped) {
            return;
        }
        let mut turn = Turn { now, effects };
        if let Err(reason) = self.input(&mut turn, input).and_then(|()| self.follow_up(&mut turn)) {
            self.stop(&mut turn, reason);
        }
    }

    /// How it is.
    pub fn status(&self, now: Now) -> Status {
        let stuck = self.operations.oldest().filter(|(since, _)| *since <= now.monotonic);
        Status {
            phase: match &self.life {
                Life::Starting(startup) => Phase::Starting(startup.describe()),
                Life::Serving => Phase::Serving,
                Life::Draining(_) => Phase::Draining,
                Life::Stopped => Phase::Stopped,
            },
            epoch: self.epoch,
            committed_slot: self.journal.as_ref().map_or(Slot(0), JournalWriter::released),
            slots_in_flight: self.journal.as_ref().map_or(0, JournalWriter::in_flight),
            pending_bytes: self.pending_bytes,
            stuck,
        }
    }

    fn input(&mut self, turn: &mut Turn<'_>, input: Input) -> Result<(), StopReason> {
        match input {
            Input::Append { ticket, topic, batches, bulk, ack: _ } => {
                self.append(turn, ticket, topic, batches, bulk);
            }
            Input::OpenProducer { ticket } => {
                let reply = Reply::Producer(self.available().and_then(|()| self.open_producer()));
                turn.emit(Effect::Reply { ticket, reply });
            }
            Input::Topic { ticket, operation } => match self.available() {
                Ok(()) => self.change_topic(turn, ticket, operation),
                Err(error) => turn.emit(Effect::Reply { ticket, reply: Reply::Topic(Err(error)) }),
            },
            Input::Seal { ticket, topic } => match self.available() {
                Ok(()) => self.seal(turn, ticket, topic),
                Err(error) => turn.emit(Effect::Reply { ticket, reply: Reply::Sealed(Err(error)) }),
            },
            Input::Closed { ticket, segments } => match self.available() {
                Ok(()) => self.cluster.want(Intent::Closed { ticket, segments }),
                Err(error) => turn.emit(Effect::Reply { ticket, reply: Reply::Closed(Err(error)) }),
            },
            Input::Confirm { ticket } => self.confirm(turn, ticket),
            Input::Drain { ticket } => self.drain(turn, ticket),
            // The wish is spent, even if it came early.
            Input::Tick => self.wake = None,
            Input::Done { op, done } => {
                if let Some(ended) = self.operations.done(turn, op, done) {
                    self.answered(turn, ended)?;
                }
            }
        }
        Ok(())
    }

    fn answered(&mut self, turn: &mut Turn<'_>, ended: Ended) -> Result<(), StopReason> {
        let Ended { purpose, answer, since } = ended;
        match (purpose, answer) {
            (Purpose::Journal(slot), Answer::Commit(decided)) => self.slot_decided(turn, slot, decided, since),
            (Purpose::LogCommit, Answer::Commit(decided)) => self.log_decided(turn, decided),
            (Purpose::LogWatch, Answer::Read(bytes)) => self.log_watched(turn, bytes),
            (Purpose::Usurper, Answer::Snapshot(snapshot)) => Err(self.usurped(snapshot)),
            (Purpose::StoreSnapshot(version), Answer::Stored) => {
                self.snapshot_stored(turn, version);
                Ok(())
            }
            (Purpose::Confirm(slot), Answer::Read(bytes)) => self.looked(turn, slot, bytes),
            (Purpose::FreeLog, Answer::Stored) => Ok(()),
            (Purpose::FreeJournal(epoch, below), Answer::Stored) => {
                self.journal_freed(epoch, below);
                Ok(())
            }
            (purpose, answer) => self.startup_answered(turn, purpose, answer),
        }
    }

    /// Everything that may follow from an input or from the passing of time.
    fn follow_up(&mut self, turn: &mut Turn<'_>) -> Result<(), StopReason> {
        self.operations.retry(turn);
        self.keep_up(turn)?;
        self.drain_on(turn)?;
        self.place(turn);
        self.pump(turn)?;
        // What was settled may have given the journal something to do.
        self.drain_on(turn)?;
        self.place(turn);
        self.finish_start(turn);
        self.wake_up(turn);
        Ok(())
    }

    fn wake_up(&mut self, turn: &mut Turn<'_>) {
        let wishes = [self.operations.next_retry(), self.placement_due(), self.upkeep_due()];
        let Some(at) = wishes.into_iter().flatten().min() else { return };
        if self.wake != Some(at) || at <= turn.now.monotonic {
            self.wake = Some(at);
            turn.emit(Effect::WakeAt(at));
        }
    }

    pub(crate) fn token(&mut self) -> Token {
        let mut bytes = [0; 16];
        self.random.fill_bytes(&mut bytes);
        Token(bytes)
    }

    /// Whether requests are taken.
    pub(crate) fn available(&self) -> Result<(), OperationError> {
        match &self.life {
            Life::Serving => Ok(()),
            Life::Starting(startup) => Err(OperationError::Unavailable(startup.describe())),
            Life::Draining(_) => Err(OperationError::Unavailable("it is draining")),
            Life::Stopped => Err(OperationError::Unavailable("it has stopped")),
        }
    }

    fn open_producer(&mut self) -> Result<(ProducerId, ProducerEpoch), OperationError> {
        let Some(epoch) = self.epoch else { return Err(OperationError::Unavailable("it is starting")) };
        let counter = self.producers_given;
        let next = counter.checked_add(1);
        self.producers_given =
            next.ok_or(OperationError::Unavailable("it has given out all its producer ids; restart it"))?;
        Ok((ProducerId::new(epoch, counter), ProducerEpoch(0)))
    }

    // The cluster log.

    /// Proposes entries as long as there is something to decide.
    pub(crate) fn pump(&mut self, turn: &mut Turn<'_>) -> Result<(), StopReason> {
        let Some(epoch) = self.epoch else { return Ok(()) };
        loop {
            let random = &mut self.random;
            let token = || {
                let mut bytes = [0; 16];
                random.fill_bytes(&mut bytes);
                Token(bytes)
            };
            match self.cluster.propose(epoch, token).map_err(damaged)? {
                Proposal::Nothing => return Ok(()),
                Proposal::Settled(settled) => self.settled(turn, settled),
                Proposal::Commit(version, bytes) => {
                    let request =
                        Request::Commit { chain: Chain::ClusterLog, number: version.0, bytes: Bytes::from(bytes) };
                    self.operations.submit(turn, Purpose::LogCommit, request);
                    return Ok(());
                }
            }
        }
    }

    fn log_decided(&mut self, turn: &mut Turn<'_>, decided: Decided) -> Result<(), StopReason> {
        match decided {
            Decided::Committed => {
                let settled = self.cluster.committed().map_err(damaged)?;
                self.state_changed(turn);
                self.settled(turn, settled);
                Ok(())
            }
            Decided::Taken(bytes) => self.follow_log(turn, &bytes),
            // The log has moved on by more than a snapshot.
            Decided::Freed => self.log_freed(turn),
        }
    }

    /// Applies an entry that somebody else wrote.
    pub(crate) fn follow_log(&mut self, turn: &mut Turn<'_>, bytes: &[u8]) -> Result<(), StopReason> {
        let version = self.cluster.state.version.next();
        let entry = LogEntry::decode(bytes, version)
            .map_err(|error| StopReason::Damaged(format!("cluster log entry {version}: {error}")))?;
        self.cluster.follow(&entry).map_err(damaged)?;
        self.state_changed(turn);
        self.check_leader()
    }

    /// A broker yields to any newer epoch that led, and once it led, to anybody else (invariant *one-leader*).
    pub(crate) fn check_leader(&self) -> Result<(), StopReason> {
        let Some(mine) = self.epoch else { return Ok(()) };
        match self.cluster.state.leader {
            Some((_, leader)) if leader > mine || self.cluster.term.is_some() && leader != mine => {
                Err(StopReason::Superseded(leader))
            }
            _ if self.cluster.term.is_none() && self.cluster.state.forgotten >= mine => {
                Err(StopReason::Superseded(self.cluster.state.forgotten))
            }
            _ => Ok(()),
        }
    }

    fn usurped(&self, snapshot: Option<(Version, Bytes)>) -> StopReason {
        let state = snapshot.and_then(|(version, bytes)| ClusterState::decode(&bytes, version).ok());
        match state.and_then(|state| state.leader) {
            Some((_, leader)) if Some(leader) != self.epoch => StopReason::Superseded(leader),
            _ => StopReason::Damaged(format!(
                "cluster log entry {} was freed, but no snapshot says who went on",
                self.cluster.state.version.next()
            )),
        }
    }

    pub(crate) fn state_changed(&mut self, turn: &mut Turn<'_>) {
        self.upkeep.note_fences(&self.cluster.state, turn.now.monotonic);
        turn.emit(Effect::State(Arc::clone(&self.cluster.state)));
    }

    fn settled(&mut self, turn: &mut Turn<'_>, settled: Vec<Settled>) {
        for settled in settled {
            match settled {
                Settled::Nothing => {}
                Settled::Joined => self.joined(turn),
                Settled::Ended { segment, successor } => self.segment_ended(turn, segment, successor),
                Settled::Serving { opened } => opened.into_iter().for_each(|segment| self.take_over(turn, segment)),
                Settled::Topic { result, deletion: Some(topic), ended, .. } => {
                    self.topic_deleted(turn, topic, result, ended);
                }
                Settled::Topic { ticket, result, deletion: None, .. } => self.topic_changed(turn, ticket, result),
                Settled::Closed { ticket } => turn.emit(Effect::Reply { ticket, reply: Reply::Closed(Ok(())) }),
            }
        }
    }

    // The end.

    /// Ends the broker. What was placed or proposed may have happened; what was not certainly did not.
    fn stop(&mut self, turn: &mut Turn<'_>, reason: StopReason) {
        let draining = match std::mem::replace(&mut self.life, Life::Stopped) {
            Life::Draining(tickets) => tickets,
            _ => Vec::new(),
        };
        let flights = self.journal.as_mut().map(JournalWriter::take_flights).unwrap_or_default();
        for answered in flights.into_iter().flat_map(|flight| flight.answers) {
            let unknown = Err(AppendError::OutcomeUnknown);
            self.requests.settle(turn, answered.ticket, answered.index, unknown);
        }
        for ticket in self.confirmations.take() {
            confirmed(turn, ticket, Err(OperationError::Unavailable("it has stopped")));
        }
        for queued in self.lanes.take_all() {
            let error = AppendError::Unavailable("it has stopped");
            self.requests.settle(turn, queued.ticket, queued.index, Err(error));
        }
        let unknown = |proposed| match proposed {
            true => OperationError::OutcomeUnknown,
            false => OperationError::Unavailable("it has stopped"),
        };
        for (intent, proposed) in self.cluster.take_unsettled() {
            let (ticket, reply) = match intent {
                Intent::Topic { ticket, .. } => (ticket, Reply::Topic(Err(unknown(proposed)))),
                Intent::Closed { ticket, .. } => (ticket, Reply::Closed(Err(unknown(proposed)))),
                _ => continue,
            };
            turn.emit(Effect::Reply { ticket, reply });
        }
        for ticket in std::mem::take(&mut self.deletions).into_values().flat_map(|deletion| deletion.waiting()) {
            turn.emit(Effect::Reply { ticket, reply: Reply::Topic(Err(unknown(false))) });
        }
        for ticket in self.sealing.take_waiting() {
            turn.emit(Effect::Reply { ticket, reply: Reply::Sealed(Err(OperationError::OutcomeUnknown)) });
        }
        for ticket in draining {
            let result = match &reason {
                StopReason::Drained => Ok(()),
                _ => Err(OperationError::OutcomeUnknown),
            };
            turn.emit(Effect::Reply { ticket, reply: Reply::Drained(result) });
        }
        turn.emit(Effect::Stop(reason));
    }
}

#[cfg(test)]
impl Broker {
    /// The operation that commits the lowest slot in flight.
    fn first_slot_in_flight(&self) -> Option<(crate::interface::OpId, Slot)> {
        let slot = self.journal.as_ref()?.released().next();
        Some((self.operations.find(|purpose| purpose == Purpose::Journal(slot))?, slot))
    }
}

pub(crate) fn damaged(violation: Violation) -> StopReason {
    StopReason::Damaged(violation.to_string())
}

#[cfg(test)]
mod tests;
