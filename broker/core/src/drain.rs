//! How a broker leaves.
//!
//! # Order of steps
//!
//! 1. *Leaving.* A log entry says so: nobody gives it segments any more, and if it leads, somebody else stands.
//! 2. *Hand over.* New requests are refused; what has arrived is placed; each of its segments ends, and the entry that says so opens the
//!    successor at another broker. Where there is no other, nothing follows, and the next broker opens the partitions again.
//! 3. *Fence.* Once everything is committed it fences its own journal, and a log entry says that the epoch is recovered: there is nothing
//!    that anybody would have to recover.
//!
//! A crash on the way is a crash like any other.

use crate::{
    broker::{Broker, Life},
    cluster_writer::Intent,
    interface::{AppendError, Effect, OperationError, Reply, StopReason, Ticket},
    operations::Decided,
    segment::After,
    turn::Turn,
};
use refstream_format::journal::{JournalHead, JournalKind};
use refstream_types::Slot;

impl Broker {
    pub(crate) fn drain(&mut self, turn: &mut Turn<'_>, ticket: Ticket) {
        match &mut self.life {
            Life::Draining(tickets) => tickets.push(ticket),
            Life::Serving => {
                self.life = Life::Draining(vec![ticket]);
                self.cluster.want(Intent::Leaving);
            }
            Life::Starting(_) | Life::Stopped => {
                let error =
                    OperationError::Unavailable("it is starting: it has taken no records, and may just be stopped");
                turn.emit(Effect::Reply { ticket, reply: Reply::Drained(Err(error)) });
            }
        }
    }

    /// Goes on with a drain.
    pub(crate) fn drain_on(&mut self, turn: &mut Turn<'_>) {
        if !matches!(self.life, Life::Draining(_)) {
            return;
        }
        for queued in self.lanes.take_parked(|_| true) {
            self.refuse(turn, queued, AppendError::Unavailable("it is draining"));
        }
        let leaves = self.epoch.and_then(|mine| self.cluster.state.epochs.get(&mine)).is_some_and(|e| e.leaving);
        if !leaves || !self.lanes.is_idle() {
            return;
        }
        let open: Vec<_> = self.segments.keys().copied().collect();
        for id in open {
            self.end_segment(id, After::Anybody);
        }
        let written = self.journal.as_ref().is_some_and(|journal| journal.is_idle() && journal.has_none_in_flight());
        if self.segments.is_empty() && self.arrivals.is_empty() && self.cluster.is_idle() && written {
            let token = self.token();
            if let Some(journal) = self.journal.as_mut().filter(|journal| !journal.is_closed()) {
                journal.close(turn, &mut self.operations, token);
            }
        }
    }

    /// The fence at the end of our own journal is decided.
    pub(crate) fn closed(&mut self, slot: Slot, decided: Decided) -> Result<(), StopReason> {
        match decided {
            Decided::Committed => {
                self.cluster.want(Intent::Left { fence: slot });
                Ok(())
            }
            // Somebody took us for dead, and finds that nothing is left.
            Decided::Taken(bytes)
                if JournalHead::peek(&bytes).is_ok_and(|head| matches!(head.kind, JournalKind::Fence { .. })) =>
            {
                Err(StopReason::Drained)
            }
            Decided::Taken(_) => {
                Err(StopReason::Damaged(format!("slot {slot} of our journal holds what this broker did not write")))
            }
            Decided::Freed => Err(StopReason::Fenced { slot }),
        }
    }
}
