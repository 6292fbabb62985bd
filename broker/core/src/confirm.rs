//! Proof, for answers that are no journal entries, that nobody has taken over.
//!
//! A broker that was fenced without noticing knows offsets that are too low. So an answer about the latest offset waits for a slot
//! that was placed after the request came and committed since (invariant *fenced-brokers-are-silent*). All requests that wait
//! share one slot, like batches: it is due when the oldest of them has lingered, and costs nothing beside traffic.

use crate::{
    broker::{Broker, Life},
    interface::{Effect, OperationError, Reply, Ticket},
    mutation::Mutation,
    turn::Turn,
};
use std::time::Duration;

/// Requests that wait for a slot to be placed.
#[derive(Debug, Default)]
pub(crate) struct Confirmations {
    waiting: Vec<Ticket>,
    oldest: Option<Duration>,
}

impl Confirmations {
    /// When the first of those that wait came.
    pub(crate) fn oldest(&self) -> Option<Duration> {
        self.oldest
    }

    /// All that wait: the slot that is being placed will answer them.
    pub(crate) fn take(&mut self) -> Vec<Ticket> {
        self.oldest = None;
        std::mem::take(&mut self.waiting)
    }
}

impl Broker {
    pub(crate) fn confirm(&mut self, turn: &mut Turn<'_>, ticket: Ticket) {
        let refusal = match &self.life {
            Life::Draining(_) => None,
            _ => self.available().err(),
        };
        match refusal {
            Some(error) => confirmed(turn, ticket, Err(error)),
            None if self.mutation == Mutation::StaleAnswers => confirmed(turn, ticket, Ok(())),
            None => {
                self.confirmations.oldest.get_or_insert(turn.now.monotonic);
                self.confirmations.waiting.push(ticket);
            }
        }
    }
}

/// Answers one of them.
pub(crate) fn confirmed(turn: &mut Turn<'_>, ticket: Ticket, result: Result<(), OperationError>) {
    turn.emit(Effect::Reply { ticket, reply: Reply::Confirmed(result) });
}
