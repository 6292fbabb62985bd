//! The batches of one partition on their way: a pure state machine, without I/O or clock.

use super::{Closed, MAX_IN_FLIGHT, batch::BatchState, log::ToLog};
use bytes::Bytes;
use refstream_format::batch::EncodedBatch;
use refstream_types::{PartitionId, ProducerEpoch, ProducerId, ProducerStamp, Sequence};
use std::{collections::VecDeque, sync::Arc, time::Duration};

/// A producer's identity.
pub(super) type Identity = (ProducerId, ProducerEpoch);

/// One attempt to append one batch; unique within the producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Attempt(pub(super) u64);

/// A closed batch that is not decided yet.
#[derive(Debug)]
pub(super) struct Pending {
    batch: EncodedBatch,
    pub(super) state: Arc<BatchState>,
    pub(super) room: usize,
    /// Unique within the producer.
    pub(super) number: u64,
    partition: PartitionId,
    tags: Vec<Bytes>,
    /// The stamp under which the log has it, or is about to.
    logged: Option<Logged>,
    /// When its records fail.
    deadline: Duration,
    /// The attempt that is under way.
    attempt: Option<Attempt>,
    /// An attempt ended without a definite answer.
    in_doubt: bool,
    /// How often a broker found it damaged on arrival.
    damaged: u32,
}

impl Pending {
    /// It may have been appended.
    pub(super) fn may_have_happened(&self) -> bool {
        self.in_doubt || self.attempt.is_some()
    }
}

/// How far the log is with a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Logged {
    stamp: ProducerStamp,
    durable: bool,
}

/// A batch in the order of its sequences. `None` once it is acked while an earlier one is still undecided: its records count.
#[derive(Debug)]
struct Entry {
    records: u32,
    pending: Option<Pending>,
}

impl Entry {
    fn attempt(&self) -> Option<Attempt> {
        self.pending.as_ref()?.attempt
    }
}

/// What a broker said of an attempt, as far as the queue is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is in the topic.
    Appended,
    /// Try again later. `in_doubt`: it may be in the topic.
    Retry { in_doubt: bool },
    /// Damaged on arrival.
    Damaged,
    /// The sequence does not follow on what the broker has.
    OutOfSequence,
    /// The broker does not know the identity.
    UnknownProducer,
    /// Refused for good. `in_doubt`: it may be in the topic.
    Refused { in_doubt: bool },
}

/// What follows from a verdict.
#[derive(Debug)]
pub(super) enum Consequence {
    /// The attempt is no longer of interest.
    Nothing,
    /// The batch is decided: acked.
    Acked(Pending),
    /// Wait, then send again from the earliest undecided batch on.
    Again,
    /// The batch is decided: refused, certainly not appended. The others go on.
    Failed(Pending),
    /// These may have been appended and nobody will find out: they fail. The rest goes on under a new identity.
    Broken(Vec<Pending>),
}

/// A partition's undecided batches, in order.
#[derive(Debug, Default)]
pub(super) struct Queue {
    entries: VecDeque<Entry>,
    /// `None`: a new one is needed before anything is sent.
    identity: Option<Identity>,
    /// The sequence of the first record of the first undecided batch.
    base: u64,
    /// An attempt failed: nothing is sent before everything under way has been answered.
    draining: bool,
    /// Nothing is sent before this time.
    pub(super) hold: Duration,
    /// Batches are sent once they are in the log.
    logs: bool,
}

/// The highest number of attempts that may be damaged on arrival before the batch itself must be at fault.
const MAX_DAMAGED: u32 = 3;

impl Queue {
    pub(super) fn new(identity: Identity, logs: bool) -> Self {
        Self { identity: Some(identity), logs, ..Self::default() }
    }
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
    pub(super) fn needs_identity(&self) -> bool {
        self.identity.is_none()
    }
    pub(super) fn set_identity(&mut self, identity: Identity) {
        if self.identity.is_none() {
            self.identity = Some(identity);
            self.base = 0;
        }
    }
    pub(super) fn push(&mut self, closed: Closed, number: u64, deadline: Duration) {
        let Closed { partition, batch, state, records, tags, room } = closed;
        let pending = Pending {
            batch,
            state,
            room,
            number,
            partition,
            tags,
            logged: None,
            deadline,
            attempt: None,
            in_doubt: false,
            damaged: 0,
        };
        self.entries.push_back(Entry { records, pending: Some(pending) });
    }
    /// The undecided batches.
    pub(super) fn states(&self) -> impl Iterator<Item = Arc<BatchState>> {
        self.entries.iter().filter_map(|entry| Some(Arc::clone(&entry.pending.as_ref()?.state)))
    }
    /// When the first undecided batch fails.
    pub(super) fn deadline(&self) -> Option<Duration> {
        Some(self.entries.front()?.pending.as_ref()?.deadline)
    }
    fn under_way(&self) -> usize {
        self.entries.iter().take(2 * MAX_IN_FLIGHT).filter(|entry| entry.attempt().is_some()).count()
    }
    /// An attempt has failed, and what was sent with it is not answered yet or not sent again yet.
    pub(super) fn is_draining(&self) -> bool {
        self.draining
    }
    /// Batches wait for their turn, so another need not be closed early.
    pub(super) fn is_backed_up(&self) -> bool {
        self.entries.len() > MAX_IN_FLIGHT
    }

    /// Batches that would be sent next but are not in the log under their stamp; it is told with [`Queue::logged`] once they are.
    pub(super) fn unlogged(&mut self) -> Vec<ToLog> {
        let Some((id, epoch)) = self.identity.filter(|_| self.logs && !(self.draining && self.under_way() > 0)) else {
            return Vec::new();
        };
        let mut wanted = Vec::new();
        let mut first = self.base;
        for entry in self.entries.iter_mut().take(MAX_IN_FLIGHT) {
            let stamp = ProducerStamp { id, epoch, first: Sequence(first) };
            if let Some(pending) = &mut entry.pending
                && pending.attempt.is_none()
                && pending.logged.is_none_or(|logged| logged.stamp != stamp)
            {
                if pending.batch.header().producer != Some(stamp) {
                    pending.batch = pending.batch.with_producer(stamp);
                }
                pending.logged = Some(Logged { stamp, durable: false });
                wanted.push(ToLog {
                    number: pending.number,
                    partition: pending.partition,
                    batch: pending.batch.clone(),
                    tags: pending.tags.clone(),
                });
            }
            first += u64::from(entry.records);
        }
        wanted
    }

    /// A batch is in the log under this stamp.
    pub(super) fn logged(&mut self, number: u64, stamp: ProducerStamp) {
        let pending = self.entries.iter_mut().filter_map(|entry| entry.pending.as_mut()).find(|p| p.number == number);
        if let Some(logged) = pending.and_then(|pending| pending.logged.as_mut())
            && logged.stamp == stamp
        {
            logged.durable = true;
        }
    }

    /// The next batch to send, stamped; call until `None`. The caller has checked `hold` and found a broker.
    pub(super) fn next(&mut self, attempt: Attempt) -> Option<Bytes> {
        let (id, epoch) = self.identity?;
        let under_way = self.under_way();
        if self.draining {
            if under_way > 0 {
                return None;
            }
            self.draining = false;
        }
        let mut first = self.base;
        for entry in self.entries.iter_mut().take(MAX_IN_FLIGHT) {
            if let Some(pending) = &mut entry.pending
                && pending.attempt.is_none()
            {
                let stamp = ProducerStamp { id, epoch, first: Sequence(first) };
                if self.logs && pending.logged != Some(Logged { stamp, durable: true }) {
                    return None;
                }
                if pending.batch.header().producer != Some(stamp) {
                    pending.batch = pending.batch.with_producer(stamp);
                }
                pending.attempt = Some(attempt);
                return Some(pending.batch.bytes().clone());
            }
            first += u64::from(entry.records);
        }
        None
    }

    /// An attempt was answered.
    pub(super) fn answered(&mut self, attempt: Attempt, verdict: Verdict) -> Consequence {
        let Some(at) = self.entries.iter().position(|entry| entry.attempt() == Some(attempt)) else {
            return Consequence::Nothing;
        };
        let Some(pending) = &mut self.entries[at].pending else { return Consequence::Nothing };
        pending.attempt = None;
        match verdict {
            Verdict::Appended => self.acked(at),
            Verdict::Retry { in_doubt } => {
                pending.in_doubt |= in_doubt;
                self.again()
            }
            Verdict::Damaged => {
                pending.damaged += 1;
                if pending.damaged < MAX_DAMAGED { self.again() } else { self.refused(at) }
            }
            // An earlier batch is still undecided, or an earlier attempt failed since this one was made: it waits for that.
            Verdict::OutOfSequence | Verdict::UnknownProducer if at > 0 || self.draining => self.again(),
            Verdict::UnknownProducer if !pending.in_doubt => {
                self.renew();
                Consequence::Again
            }
            Verdict::Refused { in_doubt: false } if !pending.in_doubt => self.refused(at),
            Verdict::OutOfSequence | Verdict::UnknownProducer | Verdict::Refused { .. } => {
                pending.in_doubt = true;
                Consequence::Broken(self.break_off(None))
            }
        }
    }

    fn again(&mut self) -> Consequence {
        self.draining = true;
        Consequence::Again
    }

    /// The batch was certainly not appended and never will be. Those behind it cannot have been taken either, since their
    /// sequences come later: they use its sequences.
    fn refused(&mut self, at: usize) -> Consequence {
        self.draining = true;
        match self.entries.remove(at).and_then(|entry| entry.pending) {
            Some(pending) => Consequence::Failed(pending),
            None => Consequence::Nothing,
        }
    }

    fn acked(&mut self, at: usize) -> Consequence {
        let acked = self.entries[at].pending.take();
        while let Some(front) = self.entries.front()
            && front.pending.is_none()
        {
            self.base += u64::from(front.records);
            self.entries.pop_front();
        }
        acked.map_or(Consequence::Nothing, Consequence::Acked)
    }

    /// What is sent next needs a new identity.
    fn renew(&mut self) {
        self.identity = None;
        self.base = 0;
        self.draining = true;
        self.entries.retain(|entry| entry.pending.is_some());
    }

    /// Everything that may have been appended, and what is past its deadline at `now`, is given up; the rest goes on, under a new
    /// identity where that is needed.
    fn break_off(&mut self, now: Option<Duration>) -> Vec<Pending> {
        let mut given_up = Vec::new();
        let mut kept = VecDeque::new();
        for entry in self.entries.drain(..) {
            match entry.pending {
                Some(pending) if pending.may_have_happened() || now.is_some_and(|now| pending.deadline <= now) => {
                    given_up.push(pending);
                }
                pending => kept.push_back(Entry { records: entry.records, pending }),
            }
        }
        self.entries = kept;
        if given_up.iter().any(Pending::may_have_happened) {
            self.renew();
        }
        given_up
    }

    /// Gives up what is past its deadline, and with it what may have been appended behind it.
    pub(super) fn expire(&mut self, now: Duration) -> Vec<Pending> {
        if self.deadline().is_none_or(|deadline| deadline > now) { Vec::new() } else { self.break_off(Some(now)) }
    }

    /// The connection on which an attempt was made is gone.
    pub(super) fn lost(&mut self, attempt: Attempt) {
        let entry = self.entries.iter_mut().find(|entry| entry.attempt() == Some(attempt));
        if let Some(pending) = entry.and_then(|entry| entry.pending.as_mut()) {
            pending.attempt = None;
            pending.in_doubt = true;
            self.draining = true;
        }
    }

    /// Gives up everything.
    pub(super) fn abandon(&mut self) -> Vec<Pending> {
        self.entries.drain(..).filter_map(|entry| entry.pending).collect()
    }
}

#[cfg(test)]
mod tests;
