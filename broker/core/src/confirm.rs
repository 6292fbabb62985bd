//! Proof, for answers that are no journal entries, that nobody has taken over.
//!
//! A broker that was fenced without noticing knows offsets that are too low. So an answer about the latest offset waits for a look
//! at the journal, begun after the request came (invariant *fenced-brokers-are-silent*): whoever takes over has fenced the lowest
//! slot that is missing, which is one of those in flight or the next one, before anybody else acknowledges anything. If none of
//! these holds a fence, nobody had taken over when the request came.
//!
//! A hand-over takes a partition away without a fence: the entry of ours that names the next owner may be in the log before we know.
//! While such an entry is under way nothing is answered (invariant *givers-are-silent*).
//!
//! Looking costs reads only: a full disk or a store that refuses writes does not keep readers from what is committed. Requests that
//! come during a look share the next one.

use crate::{
    broker::{Broker, Life},
    interface::{Effect, OperationError, Reply, StopReason, Ticket},
    mutation::Mutation,
    operations::{Purpose, Request},
    turn::Turn,
};
use bytes::Bytes;
use refstream_format::journal::{JournalHead, JournalKind};
use refstream_types::{Chain, Slot};
use std::collections::BTreeSet;

/// Requests that wait for a look.
#[derive(Debug, Default)]
pub(crate) struct Confirmations {
    /// Those that wait for the next look.
    waiting: Vec<Ticket>,
    /// Those that the look under way answers.
    asked: Vec<Ticket>,
    /// Those that are proven, and wait until it is known what we have given away.
    proven: Vec<Ticket>,
    /// Slots that were not read yet.
    left: BTreeSet<Slot>,
}

impl Confirmations {
    /// All that wait; nobody else will answer them.
    pub(crate) fn take(&mut self) -> Vec<Ticket> {
        self.left.clear();
        self.proven.drain(..).chain(self.asked.drain(..)).chain(self.waiting.drain(..)).collect()
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
                self.confirmations.waiting.push(ticket);
                self.look(turn);
            }
        }
    }

    fn look(&mut self, turn: &mut Turn<'_>) {
        let Some(journal) = self.journal.as_ref() else { return };
        if self.confirmations.waiting.is_empty() || !self.confirmations.left.is_empty() {
            return;
        }
        self.confirmations.asked = std::mem::take(&mut self.confirmations.waiting);
        let chain = Chain::Journal(journal.epoch());
        for slot in (journal.released().next().0..=journal.next().0).map(Slot) {
            self.confirmations.left.insert(slot);
            let request = Request::Read { chain: chain.clone(), number: slot.0 };
            self.operations.submit(turn, Purpose::Confirm(slot), request);
        }
    }

    pub(crate) fn looked(&mut self, turn: &mut Turn<'_>, slot: Slot, bytes: Option<Bytes>) -> Result<(), StopReason> {
        if let Some(bytes) = bytes {
            match JournalHead::peek(&bytes).map(|head| head.kind) {
                // The fence of a drain is our own: what was ours has been handed over before it.
                Ok(JournalKind::Fence { by }) if Some(by) == self.epoch => {}
                Ok(JournalKind::Fence { .. }) => return Err(StopReason::Fenced { slot }),
                Ok(JournalKind::Entries { .. }) => {}
                Err(error) => {
                    let journal = self.epoch.unwrap_or_default();
                    return Err(StopReason::Damaged(format!("slot {slot} of journal {journal}: {error}")));
                }
            }
        }
        self.confirmations.left.remove(&slot);
        if self.confirmations.left.is_empty() {
            let proven = std::mem::take(&mut self.confirmations.asked);
            self.confirmations.proven.extend(proven);
            self.answer_confirmed(turn);
            self.look(turn);
        }
        Ok(())
    }

    /// Answers what is proven, unless something may have been given away without our knowing yet.
    pub(crate) fn answer_confirmed(&mut self, turn: &mut Turn<'_>) {
        let must_wait = self.cluster.may_have_given_away(self.epoch) && self.mutation != Mutation::AnswerWhileGiving;
        if !must_wait {
            for ticket in std::mem::take(&mut self.confirmations.proven) {
                confirmed(turn, ticket, Ok(()));
            }
        }
    }
}

/// Answers one of them.
pub(crate) fn confirmed(turn: &mut Turn<'_>, ticket: Ticket, result: Result<(), OperationError>) {
    turn.emit(Effect::Reply { ticket, reply: Reply::Confirmed(result) });
}
