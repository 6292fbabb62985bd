//! Appends that wait for the outcome of some of their batches.

use crate::{
    interface::{AppendError, Appended, Effect, Reply, Ticket},
    turn::Turn,
};
use std::collections::BTreeMap;

/// The outcome of one batch.
pub(crate) type Outcome = Result<Appended, AppendError>;

#[derive(Debug)]
struct Pending {
    outcomes: Vec<Option<Outcome>>,
    open: usize,
}

/// All appends that are not answered yet.
#[derive(Debug, Default)]
pub(crate) struct Requests(BTreeMap<Ticket, Pending>);

impl Requests {
    /// An append of so many batches arrived.
    pub(crate) fn open(&mut self, turn: &mut Turn<'_>, ticket: Ticket, batches: usize) {
        if batches == 0 {
            return turn.emit(Effect::Reply { ticket, reply: Reply::Append(Vec::new()) });
        }
        self.0.insert(ticket, Pending { outcomes: vec![None; batches], open: batches });
    }

    /// The outcome of one batch is known; answers once all are. A batch's first outcome stands.
    pub(crate) fn settle(&mut self, turn: &mut Turn<'_>, ticket: Ticket, index: usize, outcome: Outcome) {
        let Some(pending) = self.0.get_mut(&ticket) else { return };
        let Some(place @ None) = pending.outcomes.get_mut(index) else { return };
        *place = Some(outcome);
        pending.open -= 1;
        if pending.open == 0
            && let Some(pending) = self.0.remove(&ticket)
        {
            let outcomes = pending.outcomes.into_iter().flatten().collect();
            turn.emit(Effect::Reply { ticket, reply: Reply::Append(outcomes) });
        }
    }
}
