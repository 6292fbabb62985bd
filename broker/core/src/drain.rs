//! How a broker leaves.
//!
//! It refuses new requests, places what has arrived, ends all its segments without successors, and writes that to the log. Then
//! nothing of it is open any more, so the next broker opens the partitions again with nothing to recover. A crash on the way is
//! a crash like any other.

use crate::{
    broker::{Broker, Life},
    interface::{AppendError, Effect, OperationError, Reply, StopReason, Ticket},
    segment::After,
    turn::Turn,
};

impl Broker {
    pub(crate) fn drain(&mut self, turn: &mut Turn<'_>, ticket: Ticket) {
        match &mut self.life {
            Life::Draining(tickets) => tickets.push(ticket),
            Life::Serving => self.life = Life::Draining(vec![ticket]),
            Life::Starting(_) | Life::Stopped => {
                let error = OperationError::Unavailable("it is starting: nothing is open here, it may just be stopped");
                turn.emit(Effect::Reply { ticket, reply: Reply::Drained(Err(error)) });
            }
        }
    }

    /// Goes on with a drain, and ends the broker at its end.
    pub(crate) fn drain_on(&mut self, turn: &mut Turn<'_>) -> Result<(), StopReason> {
        if !matches!(self.life, Life::Draining(_)) {
            return Ok(());
        }
        for queued in self.lanes.take_parked(|_| true) {
            self.refuse(turn, queued, AppendError::Unavailable("it is draining"));
        }
        if !self.lanes.is_idle() {
            return Ok(());
        }
        let open: Vec<_> = self.segments.keys().copied().collect();
        for id in open {
            self.end_segment(id, After::Nothing);
        }
        let written = self.journal.as_ref().is_none_or(|journal| journal.is_idle());
        if self.segments.is_empty() && self.cluster.is_idle() && written && self.deletions.is_empty() {
            return Err(StopReason::Drained);
        }
        Ok(())
    }
}
