//! Reading a chain upward, several numbers at once, handing them out in order.
//!
//! Starts with one read and doubles with each hit, so that a short chain costs few reads beyond its end.

use crate::{
    operations::{Operations, Purpose, Request},
    turn::Turn,
};
use bytes::Bytes;
use refstream_types::{Chain, Epoch};
use std::collections::BTreeMap;

/// The most reads of one walk under way.
const MOST_AHEAD: u64 = 16;

/// A walk along a chain.
#[derive(Debug)]
pub(crate) struct Walk {
    chain: Chain,
    /// The next number to hand out.
    at: u64,
    /// The next number to ask for.
    ask: u64,
    ahead: u64,
    arrived: BTreeMap<u64, Option<Bytes>>,
    whose: Whose,
}

/// Who walks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    /// A starting broker, along the cluster log.
    Start,
    /// The recovery of a journal.
    Recovery,
    /// The search for the final states of ended segments in a journal.
    Tails(Epoch),
}

impl Whose {
    fn purpose(self, number: u64) -> Purpose {
        match self {
            Self::Start => Purpose::LogWalk(number),
            Self::Recovery => Purpose::RecoveryWalk(number),
            Self::Tails(epoch) => Purpose::TailWalk(epoch, number),
        }
    }
}

impl Walk {
    /// A walk from number `from` on.
    pub(crate) fn new(chain: Chain, from: u64, whose: Whose) -> Self {
        Self { chain, at: from, ask: from, ahead: 1, arrived: BTreeMap::new(), whose }
    }

    /// The next number that will be handed out.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    /// Asks for as many numbers as may be under way, below `end`.
    pub(crate) fn ask(&mut self, turn: &mut Turn<'_>, operations: &mut Operations, end: u64) {
        while self.ask < end && self.ask < self.at + self.ahead {
            let request = match self.chain {
                Chain::ClusterLog => Request::ReadLog { number: self.ask },
                _ => Request::Read { chain: self.chain.clone(), number: self.ask },
            };
            operations.submit(turn, self.whose.purpose(self.ask), request);
            self.ask += 1;
        }
    }

    /// A number was read.
    pub(crate) fn arrived(&mut self, number: u64, bytes: Option<Bytes>) {
        self.arrived.insert(number, bytes);
    }

    /// The next number in order, once it was read.
    pub(crate) fn take(&mut self) -> Option<(u64, Option<Bytes>)> {
        let bytes = self.arrived.remove(&self.at)?;
        let number = self.at;
        self.at += 1;
        if bytes.is_some() {
            self.ahead = (self.ahead * 2).min(MOST_AHEAD);
        }
        Some((number, bytes))
    }
}
