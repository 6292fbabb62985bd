//! How a broker starts.
//!
//! # Order of steps
//!
//! 1. *Epoch.* Create the number after the highest one under `cluster/epochs/`; if it is taken, the next one.
//! 2. *State.* The newest snapshot, then the log to its end.
//! 3. *Join.* One log entry: we joined, we lead with the next term. Whoever led before finds it and stops; if somebody newer
//!    leads already, we stop (invariant *one-leader*). From here on nobody else writes to the log.
//! 4. *Recover.* End the journal of every other live epoch, see `recovery`.
//! 5. *Tails.* Read the final states that the segments to come carry on from, see `tails`.
//! 6. *Take over.* Log entries: the dead epochs' segments ended, the epochs are recovered, every partition of every topic has a
//!    segment of ours.
//! 7. *Adopt.* The `Adopt` entries go into our journal. Once they are durable, we serve, and the log learns of them.
//!
//! A crash before 3 leaves an epoch that nobody knows; after 3 one with an empty journal, which the next start recovers like any
//! other; within 6 or after it segments without `Adopt` entries, which hold nothing and pass their tails on.

use crate::{
    broker::{Broker, Life, damaged},
    cluster_writer::{Draft, Intent},
    interface::StopReason,
    journal_writer::JournalWriter,
    mutation::Mutation,
    operations::{Answer, Decided, Purpose, Request},
    recovery::{Outcome, Recovered, Recovery},
    segment::Stage,
    tails::Tails,
    turn::Turn,
    walk::{Walk, Whose},
};
use bytes::Bytes;
use refstream_format::{
    cluster_log::{ClusterState, LogEntry, SealedSegment},
    epoch::EpochClaim,
};
use refstream_types::{Chain, Epoch, LeaderTerm, SegmentId, Slot};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

/// How often a recovery that finds its journal moved begins again before that is called damage.
const MOST_MOVES: u32 = 20;
/// Entries that are looked for above the end of the cluster log.
const LOOK_ABOVE: u64 = 8;

#[derive(Debug, Default)]
enum Step {
    #[default]
    Epoch,
    Snapshot,
    Log(Box<Walk>),
    /// The log seems to end before `end`; these numbers above it were not read yet.
    Above {
        end: u64,
        left: BTreeSet<u64>,
    },
    Joining,
    Recovering(Box<Recovery>),
    Tails(Tails),
    TakingOver,
    Adopting,
}

/// A start under way.
#[derive(Debug, Default)]
pub(crate) struct Startup {
    step: Step,
    /// The epoch that is being claimed.
    claiming: Epoch,
    dead: VecDeque<Epoch>,
    recovered: Vec<Recovered>,
    /// What the take-over will write.
    intents: Vec<Intent>,
    moves: u32,
    /// Where the log had a hole when it was read before.
    hole: Option<u64>,
    /// The slot with the last `Adopt` entry of what was taken over.
    adopted_by: Option<Slot>,
    /// The recovery under way found its journal moved, and waits for a look at the log.
    has_moved: bool,
    /// Damage that may be no more than our own being outdated.
    suspicion: Option<String>,
}

impl Startup {
    pub(crate) fn describe(&self) -> &'static str {
        match &self.step {
            Step::Epoch => "it is taking an epoch",
            Step::Snapshot | Step::Log(_) | Step::Above { .. } => "it is reading the cluster's state",
            Step::Joining => "it is joining the cluster",
            Step::Recovering(_) => "it is recovering the journal of an earlier broker",
            Step::Tails(_) => "it is reading the final states of ended segments",
            Step::TakingOver => "it is taking segments over",
            Step::Adopting => "it is writing the first slot of its journal",
        }
    }
}

impl Broker {
    fn startup(&mut self) -> Option<&mut Startup> {
        match &mut self.life {
            Life::Starting(startup) => Some(startup),
            _ => None,
        }
    }

    pub(crate) fn startup_answered(
        &mut self,
        turn: &mut Turn<'_>,
        purpose: Purpose,
        answer: Answer,
    ) -> Result<(), StopReason> {
        match (purpose, answer) {
            (Purpose::EpochTip, Answer::Tip(tip)) => {
                self.claim(turn, Epoch(tip.map_or(0, |(number, _)| number)).next());
                Ok(())
            }
            (Purpose::EpochClaim, Answer::Commit(decided)) => {
                self.claimed(turn, decided);
                Ok(())
            }
            (Purpose::Snapshot, Answer::Snapshot(snapshot)) => {
                let state = match snapshot {
                    None => ClusterState::default(),
                    Some((version, bytes)) => ClusterState::decode(&bytes, version).map_err(|error| {
                        StopReason::Damaged(format!("the snapshot of the cluster's state at {version}: {error}"))
                    })?,
                };
                let mut walk = Walk::new(Chain::ClusterLog, state.version.0 + 1, Whose::Start);
                walk.ask(turn, &mut self.operations, u64::MAX);
                self.upkeep.loaded(state.version);
                self.cluster.state = Arc::new(state);
                if let Some(startup) = self.startup() {
                    startup.step = Step::Log(Box::new(walk));
                }
                Ok(())
            }
            (Purpose::LogWalk(number), Answer::Read(bytes)) => self.log_read(turn, number, bytes),
            (Purpose::LogAbove(number), Answer::Read(bytes)) => self.log_looked_above(turn, number, bytes.is_some()),
            (purpose, answer) if Recovery::owns(purpose) => {
                let token = self.token();
                let Life::Starting(Startup { step: Step::Recovering(recovery), .. }) = &mut self.life else {
                    return Ok(());
                };
                match recovery.answered(turn, &mut self.operations, token, purpose, answer) {
                    Outcome::Going => Ok(()),
                    Outcome::Ended(recovered) => {
                        self.operations.abandon(Recovery::owns);
                        if let Some(startup) = self.startup() {
                            startup.recovered.push(*recovered);
                            startup.moves = 0;
                        }
                        self.recover_next(turn)
                    }
                    Outcome::Moved => {
                        self.operations.abandon(Recovery::owns);
                        if let Some(startup) = self.startup() {
                            startup.has_moved = true;
                        }
                        self.watch_log(turn);
                        Ok(())
                    }
                    Outcome::Damaged(why) => {
                        self.operations.abandon(Recovery::owns);
                        self.suspect(turn, why);
                        Ok(())
                    }
                }
            }
            (purpose @ (Purpose::TailPointer(..) | Purpose::TailWalk(..)), answer) => {
                let Life::Starting(Startup { step: Step::Tails(tails), .. }) = &mut self.life else { return Ok(()) };
                if let Err(why) = tails.answered(turn, &mut self.operations, purpose, answer) {
                    self.suspect(turn, why);
                } else if tails.is_complete() {
                    let found = std::mem::take(&mut tails.found);
                    self.finals.extend(found.into_iter().map(|state| (state.segment, state)));
                    self.take_over_all();
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn claim(&mut self, turn: &mut Turn<'_>, epoch: Epoch) {
        let claim = EpochClaim {
            epoch,
            token: self.token(),
            endpoint: self.identity.endpoint.clone(),
            claimed_at: turn.now.wall,
            software: self.identity.software.clone(),
        };
        if let Some(startup) = self.startup() {
            startup.claiming = epoch;
        }
        let request = Request::Commit { chain: Chain::Epochs, number: epoch.0, bytes: Bytes::from(claim.encode()) };
        self.operations.submit(turn, Purpose::EpochClaim, request);
    }

    fn claimed(&mut self, turn: &mut Turn<'_>, decided: Decided) {
        let Some(epoch) = self.startup().map(|startup| startup.claiming) else { return };
        match decided {
            Decided::Committed => {
                self.epoch = Some(epoch);
                self.load_state(turn);
            }
            Decided::Taken(_) => self.claim(turn, epoch.next()),
            Decided::Freed => {
                self.operations.submit(turn, Purpose::EpochTip, Request::Tip { chain: Chain::Epochs, hint: epoch.0 });
            }
        }
    }

    fn load_state(&mut self, turn: &mut Turn<'_>) {
        self.cluster = crate::cluster_writer::ClusterWriter::new();
        self.operations.submit(turn, Purpose::Snapshot, Request::LatestSnapshot);
        if let Some(startup) = self.startup() {
            startup.step = Step::Snapshot;
        }
    }

    fn log_read(&mut self, turn: &mut Turn<'_>, number: u64, bytes: Option<Bytes>) -> Result<(), StopReason> {
        let Life::Starting(Startup { step: Step::Log(walk), .. }) = &mut self.life else { return Ok(()) };
        walk.arrived(number, bytes);
        while let Some((end, bytes)) = walk.take() {
            let Some(bytes) = bytes else {
                self.operations.abandon(|purpose| matches!(purpose, Purpose::LogWalk(_)));
                let left: BTreeSet<u64> = (end + 1..=end + LOOK_ABOVE).collect();
                for number in &left {
                    let request = Request::Read { chain: Chain::ClusterLog, number: *number };
                    self.operations.submit(turn, Purpose::LogAbove(*number), request);
                }
                if let Some(startup) = self.startup() {
                    startup.step = Step::Above { end, left };
                }
                return Ok(());
            };
            let version = self.cluster.state.version.next();
            let entry = LogEntry::decode(&bytes, version)
                .map_err(|error| StopReason::Damaged(format!("cluster log entry {version}: {error}")))?;
            self.cluster.follow(&entry).map_err(damaged)?;
        }
        walk.ask(turn, &mut self.operations, u64::MAX);
        Ok(())
    }

    /// Where an entry is missing the log ends, unless there are entries above: each was written by somebody who knew the one before
    /// (invariant *no-hole-is-an-end*). Perhaps they were written since; if the same one is still missing then, it is gone.
    fn log_looked_above(&mut self, turn: &mut Turn<'_>, number: u64, is_there: bool) -> Result<(), StopReason> {
        let Life::Starting(startup) = &mut self.life else { return Ok(()) };
        let Step::Above { end, left } = &mut startup.step else { return Ok(()) };
        let end = *end;
        left.remove(&number);
        if is_there {
            if startup.hole.replace(end) == Some(end) {
                return Err(StopReason::Damaged(format!(
                    "entry {end} of the cluster log is missing, though entry {number} is there; put the object back from a copy of the store"
                )));
            }
            self.operations.abandon(|purpose| matches!(purpose, Purpose::LogAbove(_)));
            self.load_state(turn);
        } else if left.is_empty() {
            // Most likely the end. If not, the commit there finds out.
            startup.step = Step::Joining;
            self.check_leader()?;
            self.state_changed(turn);
            self.cluster.want(Intent::Join { endpoint: self.identity.endpoint.clone() });
        }
        Ok(())
    }

    /// The log moved on under us by more than a snapshot: before we joined, read it again; afterwards somebody else leads.
    pub(crate) fn log_freed(&mut self, turn: &mut Turn<'_>) -> Result<(), StopReason> {
        if self.cluster.term.is_none() {
            self.load_state(turn);
        } else {
            self.operations.submit(turn, Purpose::Usurper, Request::LatestSnapshot);
        }
        Ok(())
    }

    pub(crate) fn joined(&mut self, turn: &mut Turn<'_>) {
        let Some(epoch) = self.epoch else { return };
        let (window, check) = (self.settings.slots_in_flight, self.settings.fence_check);
        let mut journal = JournalWriter::new(epoch, window, check, turn.now.monotonic);
        journal.ignores_gaps = self.mutation == Mutation::AckAboveGap;
        self.journal = Some(journal);
        self.upkeep.begin(turn.now.monotonic);
        let dead = self.cluster.state.live_epochs().filter(|other| *other != epoch).collect();
        if let Some(startup) = self.startup() {
            startup.dead = dead;
        }
        // Nothing is read yet, so nothing can be found damaged.
        let _ = self.recover_next(turn);
    }

    fn recover_next(&mut self, turn: &mut Turn<'_>) -> Result<(), StopReason> {
        let Some(by) = self.epoch else { return Ok(()) };
        let mutation = self.mutation;
        let Life::Starting(startup) = &mut self.life else { return Ok(()) };
        if let Some(epoch) = startup.dead.pop_front() {
            let hint = known_slot(&self.cluster.state, epoch);
            let recovery = Recovery::begin(turn, &mut self.operations, epoch, by, hint, mutation);
            startup.step = Step::Recovering(Box::new(recovery));
            return Ok(());
        }
        self.plan(turn)
    }

    /// All dead journals have ended: what follows from them?
    fn plan(&mut self, turn: &mut Turn<'_>) -> Result<(), StopReason> {
        let Some(by) = self.epoch else { return Ok(()) };
        let term = self.cluster.term.unwrap_or(LeaderTerm(0));
        let state = Arc::clone(&self.cluster.state);
        let reuse_offsets = self.mutation == Mutation::ReuseOffsets;
        let Life::Starting(startup) = &mut self.life else { return Ok(()) };
        let mut draft = Draft::new(&state, term, by);
        let mut intents = Vec::new();
        let mut decide = |intent: Intent| {
            let decided = draft.decide(&intent).map_err(damaged);
            intents.push(intent);
            decided.map(|_| ())
        };
        for recovered in std::mem::take(&mut startup.recovered) {
            let last_slots = recovered.last_slots();
            for segment in state.owned_by(recovered.epoch) {
                let Some(mut ended) = recovered.ended(segment.id, &last_slots) else {
                    let topic = state.topics.get(&segment.id.topic);
                    if topic.is_some_and(|topic| topic.adopted.contains_key(&segment.id.number)) {
                        return Err(StopReason::Damaged(format!(
                            "segment {} was adopted in journal {}, which knows nothing of it",
                            segment.id, recovered.epoch
                        )));
                    }
                    decide(Intent::EndUnadopted { segment: segment.id, fence: recovered.fence })?;
                    continue;
                };
                if reuse_offsets {
                    ended.state.next_offsets.clone_from(&segment.start_offsets);
                }
                self.finals.insert(segment.id, ended.state.clone());
                decide(Intent::End { ended, after: crate::segment::After::Nothing })?;
            }
            decide(Intent::Recovered { epoch: recovered.epoch, fence: recovered.fence })?;
        }
        let missing = missing_tails(draft.scratch(), &self.finals);
        startup.intents = intents;
        if missing.is_empty() {
            self.take_over_all();
        } else {
            startup.step = Step::Tails(Tails::begin(turn, &mut self.operations, &missing));
        }
        Ok(())
    }

    /// Everything is known: write it to the log.
    fn take_over_all(&mut self) {
        let Life::Starting(startup) = &mut self.life else { return };
        startup.step = Step::TakingOver;
        for intent in std::mem::take(&mut startup.intents) {
            self.cluster.want(intent);
        }
        let state = Arc::clone(&self.cluster.state);
        for topic in state.topics.values().filter(|topic| !topic.deleted) {
            self.cluster.want(Intent::Serve { topic: topic.id });
        }
    }

    /// Serves, once everything that was taken over is adopted.
    pub(crate) fn finish_start(&mut self, turn: &mut Turn<'_>) {
        let idle = self.cluster.is_idle();
        let Life::Starting(startup) = &mut self.life else { return };
        if matches!(startup.step, Step::TakingOver) && idle {
            startup.step = Step::Adopting;
            self.finals.clear();
        }
        let Some(journal) = self.journal.as_ref().filter(|_| matches!(startup.step, Step::Adopting)) else { return };
        if startup.adopted_by.is_none() && self.segments.values().all(|segment| segment.stage != Stage::Opened) {
            startup.adopted_by = Some(Slot(journal.next().0 - 1).max(Slot(1)));
        }
        if startup.adopted_by.is_some_and(|slot| slot <= journal.released()) {
            self.life = Life::Serving;
            self.place(turn);
        }
    }

    /// Whether the first slot must be written now.
    pub(crate) fn is_adopting(&self) -> bool {
        matches!(&self.life, Life::Starting(Startup { step: Step::Adopting, .. }))
    }

    fn suspect(&mut self, turn: &mut Turn<'_>, why: String) {
        if let Some(startup) = self.startup() {
            startup.suspicion = Some(why);
        }
        self.watch_log(turn);
    }

    /// The log was looked at during the start: nobody else leads, or we stop.
    pub(crate) fn watched_at_start(&mut self, turn: &mut Turn<'_>) -> Result<(), StopReason> {
        let Some(by) = self.epoch else { return Ok(()) };
        let mutation = self.mutation;
        let Life::Starting(startup) = &mut self.life else { return Ok(()) };
        if let Some(why) = startup.suspicion.take() {
            return Err(StopReason::Damaged(why));
        }
        if let Step::Recovering(recovery) = &mut startup.step
            && std::mem::take(&mut startup.has_moved)
        {
            startup.moves += 1;
            let epoch = recovery.epoch;
            if startup.moves > MOST_MOVES {
                return Err(StopReason::Damaged(format!(
                    "journal {epoch} has no end that could be found, and nobody else leads"
                )));
            }
            let hint = known_slot(&self.cluster.state, epoch);
            **recovery = Recovery::begin(turn, &mut self.operations, epoch, by, hint, mutation);
        }
        Ok(())
    }
}

/// A slot that existed in the journal of `epoch`, as far as the state knows; or 0.
fn known_slot(state: &ClusterState, epoch: Epoch) -> u64 {
    let open = state.topics.values().flat_map(|topic| {
        let mine = topic.open.values().filter(move |segment| segment.owner == epoch);
        mine.filter_map(|segment| topic.adopted.get(&segment.id.number).map(|slot| slot.0))
    });
    let sealed = state.topics.values().flat_map(|topic| {
        let mine = topic.sealed.values().filter(move |segment| segment.opened.owner == epoch);
        mine.filter(|segment| !segment.is_empty()).map(|segment| segment.slots.1.0)
    });
    open.chain(sealed).max().unwrap_or(0)
}

/// The ended segments whose final states are needed for what nobody serves, and are not known yet.
fn missing_tails(
    state: &ClusterState,
    known: &BTreeMap<SegmentId, refstream_format::journal::SegmentState>,
) -> Vec<SealedSegment> {
    let mut missing = BTreeMap::new();
    for topic in state.topics.values() {
        for number in topic.unserved().into_iter().flat_map(|unserved| unserved.predecessors) {
            let id = SegmentId { topic: topic.id, number };
            if let Some(segment) = topic.ended(number)
                && !known.contains_key(&id)
            {
                missing.insert(id, segment.clone());
            }
        }
    }
    missing.into_values().collect()
}
