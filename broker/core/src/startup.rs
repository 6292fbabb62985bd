//! How a broker starts.
//!
//! # Order of steps
//!
//! 1. *Epoch.* Create the number after the highest one under `cluster/epochs/`; if it is taken, the next one.
//! 2. *State.* The newest snapshot, then the log to its end.
//! 3. *Join.* One log entry: we joined. If nobody leads who could, we do, with the next term.
//! 4. *Settle.* Until it is known of the leader that he lives, or, if we lead, until those that are presumed dead are recovered and
//!    everything has an owner: see `members`, `leading`, `arrivals`. Where the leader is silent, that takes D.
//! 5. *Adopt.* The first slot goes into our journal, with the `Adopt` entries of what we were given. Once it is durable, we serve.
//!
//! A crash before 3 leaves an epoch that nobody knows; after it one with a short journal, which is recovered like any other.

use crate::{
    broker::{Broker, Life, damaged},
    cluster_writer::{Intent, is_vacant},
    interface::StopReason,
    journal_writer::JournalWriter,
    mutation::Mutation,
    operations::{Answer, Decided, Purpose, Request},
    segment::Stage,
    turn::Turn,
    walk::{Walk, Whose},
};
use bytes::Bytes;
use refstream_format::{
    cluster_log::{ClusterState, LogEntry},
    epoch::EpochClaim,
};
use refstream_types::{Chain, Epoch, Slot};
use std::{collections::BTreeSet, sync::Arc};

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
    Settling,
    Adopting,
}

/// A start under way.
#[derive(Debug, Default)]
pub(crate) struct Startup {
    step: Step,
    /// The epoch that is being claimed.
    claiming: Epoch,
    /// Where the log had a hole when it was read before.
    hole: Option<u64>,
    /// The slot with the last `Adopt` entry of what was taken over.
    adopted_by: Option<Slot>,
}

impl Broker {
    /// What a start is busy with.
    pub(crate) fn describe(&self, startup: &Startup) -> &'static str {
        match &startup.step {
            Step::Epoch => "it is taking an epoch",
            Step::Snapshot | Step::Log(_) | Step::Above { .. } => "it is reading the cluster's state",
            Step::Joining => "it is joining the cluster",
            Step::Settling => match self.leading.describe() {
                Some(described) => described,
                None if self.arrivals.is_empty() => "it waits for a sign of life of the leader",
                None => "it is reading the final states of ended segments",
            },
            Step::Adopting => "it is writing the first slot of its journal",
        }
    }

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
            (Purpose::LogWalk(_), Answer::Freed) => {
                self.operations.abandon(|purpose| matches!(purpose, Purpose::LogWalk(_)));
                self.log_freed(turn)
            }
            (Purpose::LogAbove(number), Answer::Read(bytes)) => self.log_looked_above(turn, number, bytes.is_some()),
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
            self.check_alive()?;
            self.check_address()?;
            self.note_replaced();
            self.state_changed(turn);
            self.cluster.want(Intent::Join { endpoint: self.identity.endpoint.clone() });
        }
        Ok(())
    }

    /// The log moved on under us by more than it keeps: before we joined, read it again.
    pub(crate) fn log_freed(&mut self, turn: &mut Turn<'_>) -> Result<(), StopReason> {
        if self.journal.is_some() {
            return Err(self.outrun());
        }
        self.load_state(turn);
        Ok(())
    }

    pub(crate) fn joined(&mut self, turn: &mut Turn<'_>) {
        let Some(epoch) = self.epoch else { return };
        let (window, check) = (self.settings.slots_in_flight, self.settings.fence_check);
        let mut journal = JournalWriter::new(epoch, window, check, turn.now.monotonic);
        journal.ignores_gaps = self.mutation == Mutation::AckAboveGap;
        self.journal = Some(journal);
        self.upkeep.begin(turn.now.monotonic);
        // An entry that we read instead of hearing of its commit has let others give us something already.
        let given: Vec<_> = self.cluster.state.owned_by(epoch).cloned().collect();
        given.into_iter().for_each(|segment| self.opened(segment));
        if self.leads() {
            self.leading.must_assign();
        }
        if let Some(startup) = self.startup() {
            startup.step = Step::Settling;
        }
    }

    /// Serves, once it is known who leads, and everything that we were given by then is adopted.
    pub(crate) fn finish_start(&mut self, turn: &mut Turn<'_>) {
        let settled = self.arrivals.is_empty()
            && self.members.all_heard()
            && !is_vacant(&self.cluster.state, &self.members.absent)
            && (!self.leads() || self.leading.is_idle() && self.cluster.is_idle());
        let Life::Starting(startup) = &mut self.life else { return };
        if matches!(startup.step, Step::Settling) && settled {
            startup.step = Step::Adopting;
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
}
