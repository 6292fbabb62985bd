//! One call of [`Broker::handle`](crate::Broker::handle): the time, and where the effects go.

use crate::interface::{Effect, Now};

/// The time and the effects of one call.
pub(crate) struct Turn<'a> {
    pub(crate) now: Now,
    pub(crate) effects: &'a mut Vec<Effect>,
}

impl Turn<'_> {
    pub(crate) fn emit(&mut self, effect: Effect) {
        self.effects.push(effect);
    }
}
