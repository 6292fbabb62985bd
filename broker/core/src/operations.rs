//! What was asked of the shell and is not yet answered.
//!
//! A store that says nothing, or not whether it happened, is asked again with the very same request, for ever: bytes and token
//! of a commit are frozen before its first attempt (invariant *frozen-bytes*), so a repetition can only confirm it. Nothing is
//! ever concluded from a failure. [`Operations::done`] hands out definite answers only.

use crate::{
    interface::{CommitOutcome, Done, Effect, OpId},
    turn::Turn,
};
use bytes::Bytes;
use refstream_types::{Chain, Epoch, Slot, Version};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// The pause before the first repetition; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// The longest pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Why something was asked: says who takes the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    EpochTip,
    EpochClaim,
    Snapshot,
    LogWalk(u64),
    LogAbove(u64),
    RecoveryTip,
    RecoveryProbe(u64),
    RecoveryHighFence(u64),
    RecoveryWalk(u64),
    RecoveryFence(u64),
    RecoveryAbove(u64),
    TailPointer(Epoch, Slot),
    TailWalk(Epoch, u64),
    LogCommit,
    /// Whether the log has this entry by now.
    LogWatch(u64),
    /// Whether an epoch's journal moves.
    WatchTip(Epoch),
    /// Whether the log's last known entry is still there, asked after a look that began then found nothing behind it.
    LogStill(Duration),
    Journal(Slot),
    /// The fence at the end of our own journal.
    OwnFence(Slot),
    Confirm(Slot),
    StoreSnapshot(Version),
    FreeLog,
    FreeJournal(Epoch, Slot),
}

/// What is asked.
#[derive(Clone, Debug)]
pub(crate) enum Request {
    Commit { chain: Chain, number: u64, bytes: Bytes },
    Read { chain: Chain, number: u64 },
    ReadLog { number: u64 },
    Tip { chain: Chain, hint: u64 },
    LatestSnapshot,
    StoreSnapshot { version: Version, bytes: Bytes },
    Free { chain: Chain, below: u64 },
}

impl Request {
    fn effect(&self, op: OpId) -> Effect {
        match self.clone() {
            Self::Commit { chain, number, bytes } => Effect::Commit { op, chain, number, bytes },
            Self::Read { chain, number } => Effect::Read { op, chain, number },
            Self::ReadLog { number } => Effect::ReadLog { op, number },
            Self::Tip { chain, hint } => Effect::Tip { op, chain, hint },
            Self::LatestSnapshot => Effect::LatestSnapshot { op },
            Self::StoreSnapshot { version, bytes } => Effect::StoreSnapshot { op, version, bytes },
            Self::Free { chain, below } => Effect::Free { op, chain, below },
        }
    }
}

/// What became of a commit, for certain.
#[derive(Clone, Debug)]
pub(crate) enum Decided {
    Committed,
    Taken(Bytes),
    Freed,
}

/// A definite answer.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Commit(Decided),
    Read(Option<Bytes>),
    Freed,
    Tip(Option<(u64, Bytes)>),
    Snapshot(Option<(Version, Bytes)>),
    Stored,
}

#[derive(Debug)]
struct Operation {
    purpose: Purpose,
    request: Request,
    since: Duration,
    attempts: u32,
    failure: Option<String>,
}

/// An operation that ended.
pub(crate) struct Ended {
    pub(crate) purpose: Purpose,
    pub(crate) answer: Answer,
    /// When its first attempt began.
    pub(crate) since: Duration,
}

/// All operations under way.
#[derive(Debug, Default)]
pub(crate) struct Operations {
    next: u64,
    running: BTreeMap<OpId, Operation>,
    /// Those of `running` that wait for their next attempt.
    pauses: BTreeSet<(Duration, OpId)>,
}

impl Operations {
    pub(crate) fn submit(&mut self, turn: &mut Turn<'_>, purpose: Purpose, request: Request) {
        let operation = Operation { purpose, request, since: turn.now.monotonic, attempts: 0, failure: None };
        self.attempt(turn, operation);
    }

    fn attempt(&mut self, turn: &mut Turn<'_>, mut operation: Operation) {
        self.next += 1;
        let op = OpId(self.next);
        operation.attempts += 1;
        turn.emit(operation.request.effect(op));
        self.running.insert(op, operation);
    }

    /// Takes the shell's answer; `None` when there is nothing definite, or nobody waits for it any more.
    pub(crate) fn done(&mut self, turn: &Turn<'_>, op: OpId, done: Done) -> Option<Ended> {
        if self.pauses.iter().any(|(_, paused)| *paused == op) {
            return None;
        }
        let operation = self.running.get_mut(&op)?;
        let failure = match definite(done) {
            Ok(answer) if answer.fits(&operation.request) => {
                let operation = self.running.remove(&op)?;
                return Some(Ended { purpose: operation.purpose, answer, since: operation.since });
            }
            Ok(_) => "the answer is of another kind than the request".into(),
            Err(failure) => failure,
        };
        operation.failure = Some(failure);
        let pause = FIRST_PAUSE.saturating_mul(1 << operation.attempts.min(10).saturating_sub(1)).min(LONGEST_PAUSE);
        self.pauses.insert((turn.now.monotonic + pause, op));
        None
    }

    /// Repeats what has paused long enough.
    pub(crate) fn retry(&mut self, turn: &mut Turn<'_>) {
        while let Some(&(at, op)) = self.pauses.first()
            && at <= turn.now.monotonic
        {
            self.pauses.pop_first();
            if let Some(operation) = self.running.remove(&op) {
                self.attempt(turn, operation);
            }
        }
    }

    /// Nobody waits any more for what serves such a purpose.
    pub(crate) fn abandon(&mut self, purposes: impl Fn(Purpose) -> bool) {
        self.running.retain(|_, operation| !purposes(operation.purpose));
        let running = &self.running;
        self.pauses.retain(|(_, op)| running.contains_key(op));
    }

    /// An operation that serves such a purpose.
    #[cfg(test)]
    pub(crate) fn find(&self, purpose: impl Fn(Purpose) -> bool) -> Option<OpId> {
        self.running.iter().find(|(_, operation)| purpose(operation.purpose)).map(|(op, _)| *op)
    }

    /// When [`Operations::retry`] has something to do next.
    pub(crate) fn next_retry(&self) -> Option<Duration> {
        self.pauses.first().map(|(at, _)| *at)
    }

    /// Since when the oldest one is unanswered, and what the store said of it last.
    pub(crate) fn oldest(&self) -> Option<(Duration, String)> {
        let oldest = self.running.values().min_by_key(|operation| operation.since)?;
        Some((oldest.since, oldest.failure.clone().unwrap_or_else(|| "no answer yet".into())))
    }
}

fn definite(done: Done) -> Result<Answer, String> {
    match done {
        Done::Commit(CommitOutcome::Committed) => Ok(Answer::Commit(Decided::Committed)),
        Done::Commit(CommitOutcome::Taken(bytes)) => Ok(Answer::Commit(Decided::Taken(bytes))),
        Done::Commit(CommitOutcome::Freed) => Ok(Answer::Commit(Decided::Freed)),
        Done::Commit(CommitOutcome::Unknown(why)) => Err(why),
        Done::Read(read) => read.map(Answer::Read),
        Done::Freed => Ok(Answer::Freed),
        Done::Tip(tip) => tip.map(Answer::Tip),
        Done::Snapshot(snapshot) => snapshot.map(Answer::Snapshot),
        Done::Stored(stored) => stored.map(|()| Answer::Stored),
    }
}

impl Answer {
    fn fits(&self, request: &Request) -> bool {
        matches!(
            (self, request),
            (Self::Commit(_), Request::Commit { .. })
                | (Self::Read(_), Request::Read { .. } | Request::ReadLog { .. })
                | (Self::Freed, Request::ReadLog { .. })
                | (Self::Tip(_), Request::Tip { .. })
                | (Self::Snapshot(_), Request::LatestSnapshot)
                | (Self::Stored, Request::StoreSnapshot { .. } | Request::Free { .. })
        )
    }
}
