//! One broker: takes inputs and answers to the module they concern, and knows when to wake up and when it is over.

use crate::{
    arrivals::Arrivals,
    cluster_writer::{ClusterWriter, Intent, Proposal, Settled},
    confirm::{Confirmations, confirmed},
    interface::{
        AppendError, Effect, Identity, Input, Now, OperationError, Phase, Reply, Settings, Status, StopReason, Ticket,
    },
    journal_writer::JournalWriter,
    lanes::Lanes,
    leading::Leading,
    members::Members,
    mutation::Mutation,
    operations::{Answer, Decided, Ended, Operations, Purpose, Request},
    recovery::Recovery,
    requests::Requests,
    sealing::Sealing,
    segment::{After, OwnedSegment},
    startup::Startup,
    turn::Turn,
    upkeep::Upkeep,
};
use bytes::Bytes;
use rand::{RngCore, SeedableRng, rngs::StdRng};
use refstream_format::{
    cluster_log::{Command, LogEntry, Violation},
    journal::SegmentState,
};
use refstream_types::{Chain, Epoch, ProducerEpoch, ProducerId, SegmentId, Slot, Token};
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
    pub(crate) members: Members,
    pub(crate) leading: Leading,
    pub(crate) arrivals: Arrivals,
    pub(crate) upkeep: Upkeep,
    producers_given: u32,
    wake: Option<Duration>,
}

impl Broker {
    /// Begins to start: takes an epoch, reads the state, joins, then serves.
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
            members: Members::default(),
            leading: Leading::default(),
            arrivals: Arrivals::default(),
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
        Status {
            phase: match &self.life {
                Life::Starting(startup) => Phase::Starting(self.describe(startup)),
                Life::Serving => Phase::Serving,
                Life::Draining(_) => Phase::Draining,
                Life::Stopped => Phase::Stopped,
            },
            epoch: self.epoch,
            committed_slot: self.journal.as_ref().map_or(Slot(0), JournalWriter::released),
            version: self.cluster.state.version,
            leads: self.leads(),
            brokers: self.cluster.state.live_epochs().count(),
            absent: self.members.absent.clone(),
            slots_in_flight: self.journal.as_ref().map_or(0, JournalWriter::in_flight),
            pending_bytes: self.pending_bytes,
            stuck: self.operations.oldest().filter(|(since, _)| *since <= now.monotonic),
            damaged: self.leading.damaged(),
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
            Input::Refresh { ticket } => self.refresh(turn, ticket),
            Input::Drain { ticket } => self.drain(turn, ticket),
            Input::PeerSeen { epoch, committed, version } => self.peer_seen(turn, epoch, committed, version),
            Input::PeerGone { epoch } => self.peer_gone(epoch),
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
            (Purpose::LogWatch(number), Answer::Read(bytes)) => self.log_watched(turn, number, bytes, since),
            (Purpose::LogStill(looked), Answer::Read(Some(_))) => self.log_is_known(turn, looked),
            (Purpose::LogStill(_), Answer::Read(None))
            | (Purpose::LogWatch(_) | Purpose::LogStill(_), Answer::Freed) => self.log_freed(turn),
            (Purpose::WatchTip(epoch), Answer::Tip(tip)) => {
                self.tip_watched(turn, epoch, tip.map(|(number, _)| number), since);
                Ok(())
            }
            (Purpose::OwnFence(slot), Answer::Commit(decided)) => self.closed(slot, decided),
            (purpose, answer) if Recovery::owns(purpose) => {
                self.recovery_answered(turn, purpose, answer);
                Ok(())
            }
            (purpose @ (Purpose::TailPointer(..) | Purpose::TailWalk(..)), answer) => {
                self.tails_answered(turn, purpose, answer);
                Ok(())
            }
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
        self.watch(turn);
        self.lead_on(turn);
        self.receive(turn)?;
        self.drain_on(turn);
        self.place(turn);
        self.answer_confirmed(turn);
        self.pump(turn)?;
        // What was settled may have given the journal something to do.
        self.receive(turn)?;
        self.drain_on(turn);
        self.place(turn);
        if self.arrivals.is_empty() && self.cluster.is_idle() {
            self.finals.clear();
            self.sealing.left.clear();
        }
        self.finish_start(turn);
        self.wake_up(turn);
        Ok(())
    }

    fn wake_up(&mut self, turn: &mut Turn<'_>) {
        let wishes = [
            self.operations.next_retry(),
            self.placement_due(),
            self.upkeep_due(),
            self.members_due(),
            self.leading.due(),
        ];
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
            Life::Starting(startup) => Err(OperationError::Unavailable(self.describe(startup))),
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
            match self.cluster.propose(epoch, &self.members.absent, token).map_err(damaged)? {
                Proposal::Nothing => return Ok(()),
                Proposal::Settled(settled) => self.settled(turn, settled),
                Proposal::Commit(version, bytes) => {
                    let request =
                        Request::Commit { chain: Chain::ClusterLog, number: version.0, bytes: Bytes::from(bytes) };
                    self.operations.submit(turn, Purpose::LogCommit, request);
                    if self.mutation == Mutation::OwnBeforeNamed {
                        self.own_what_is_proposed(epoch);
                    }
                    return Ok(());
                }
            }
        }
    }

    /// A broken rule.
    fn own_what_is_proposed(&mut self, mine: Epoch) {
        let proposed = self.cluster.proposed.iter().flat_map(|proposed| &proposed.entry.commands);
        let opened: Vec<_> = proposed
            .filter_map(|command| match command {
                Command::OpenSegment(opened) if opened.owner == mine => Some(opened.clone()),
                _ => None,
            })
            .collect();
        for segment in opened {
            let known = |number: &_| {
                let predecessor = SegmentId { topic: segment.id.topic, number: *number };
                self.finals.contains_key(&predecessor) || self.cluster.state.ended_segment(predecessor).is_some()
            };
            if self.cluster.state.topics.contains_key(&segment.id.topic) && segment.predecessors.iter().all(known) {
                self.opened(segment);
            }
        }
    }

    fn log_decided(&mut self, turn: &mut Turn<'_>, decided: Decided) -> Result<(), StopReason> {
        match decided {
            Decided::Committed => match self.cluster.committed().map_err(damaged)? {
                Some((entry, settled)) => self.applied(turn, &entry, settled),
                None => Ok(()),
            },
            Decided::Taken(bytes) => self.follow_log(turn, &bytes),
            Decided::Freed => self.log_freed(turn),
        }?;
        // Looks that met this entry before we knew whose it is found out nothing.
        self.look_for_waiting(turn);
        Ok(())
    }

    /// Applies an entry that somebody else wrote.
    pub(crate) fn follow_log(&mut self, turn: &mut Turn<'_>, bytes: &[u8]) -> Result<(), StopReason> {
        let version = self.cluster.state.version.next();
        let entry = LogEntry::decode(bytes, version)
            .map_err(|error| StopReason::Damaged(format!("cluster log entry {version}: {error}")))?;
        self.cluster.follow(&entry).map_err(damaged)?;
        self.applied(turn, &entry, Vec::new())
    }

    /// An entry was applied; `settled`: what of it was ours.
    fn applied(&mut self, turn: &mut Turn<'_>, entry: &LogEntry, settled: Vec<Settled>) -> Result<(), StopReason> {
        self.state_changed(turn);
        self.check_alive()?;
        self.settled(turn, settled);
        let mut changes_owners = false;
        for command in &entry.commands {
            match command {
                Command::OpenSegment(opened) => {
                    changes_owners = true;
                    if Some(opened.owner) == self.epoch {
                        self.opened(opened.clone());
                    }
                }
                Command::PlanSegment { segment, .. } => self.end_segment(*segment, After::Successor),
                Command::SealSegment { segment, .. } => {
                    changes_owners = true;
                    let topic = self.cluster.state.topics.get(&segment.topic);
                    let is_empty = topic.is_none_or(|topic| !topic.sealed.contains_key(&segment.number));
                    self.sealing.ended(turn, *segment, is_empty);
                }
                Command::DeleteTopic { topic } => self.topic_deleted(*topic),
                Command::Lead { .. } => {
                    self.members.led();
                    self.leading.must_assign();
                }
                Command::EpochRecovered { epoch, .. } => {
                    self.members.is_settled(*epoch);
                    self.forget_recovery(*epoch);
                    self.leading.must_assign();
                }
                Command::EpochJoined { .. } => {
                    self.check_address()?;
                    self.note_replaced();
                }
                Command::EpochLeaving { .. }
                | Command::CreateTopic { .. }
                | Command::AlterTopic { .. }
                | Command::SegmentAdopted { .. }
                | Command::SegmentClosed { .. }
                | Command::EpochForgotten { .. } => {}
            }
        }
        if changes_owners {
            // They are judged anew, by what is known now.
            self.lanes.unpark();
        }
        Ok(())
    }

    /// A broker whose journal was recovered is over (invariant *the-recovered-stop*). One that left by itself is drained.
    pub(crate) fn check_alive(&self) -> Result<(), StopReason> {
        let Some(mine) = self.epoch else { return Ok(()) };
        let state = &self.cluster.state;
        let is_over = match state.epochs.get(&mine) {
            Some(epoch) => epoch.fence.is_some(),
            None => state.forgotten >= mine,
        };
        match is_over {
            false => Ok(()),
            true if self.journal.as_ref().is_some_and(JournalWriter::is_closed) => Err(StopReason::Drained),
            true => Err(StopReason::Superseded(state.leader.map_or(mine, |(_, leader)| leader))),
        }
    }

    /// The log went on without us by more than it keeps.
    pub(crate) fn outrun(&self) -> StopReason {
        StopReason::Outrun(self.cluster.state.version)
    }

    /// The log is as we know it.
    pub(crate) fn log_is_fresh(&mut self, turn: &mut Turn<'_>) -> Result<(), StopReason> {
        self.recovery_is_suspect(turn)?;
        self.arrivals_are_suspect()?;
        self.redirect_parked(turn);
        Ok(())
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
                Settled::Led => self.members.led(),
                Settled::Ended { segment } => self.segment_ended(segment),
                Settled::Recovered { rest: Some(rest), .. } => self.cluster.want(rest),
                Settled::Recovered { epoch, rest: None } => self.leading.told(epoch),
                Settled::Assigned { rest } => self.leading.assigned(rest),
                Settled::Topic { ticket, result } => {
                    turn.emit(Effect::Reply { ticket, reply: Reply::Topic(result) });
                }
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
        for ticket in self.members.take_refreshing() {
            let result = Err(OperationError::Unavailable("it has stopped"));
            turn.emit(Effect::Reply { ticket, reply: Reply::Refreshed(result) });
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
