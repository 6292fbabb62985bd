//! A segment that this broker owns, from its opening to the log entry that ends it.
//!
//! ```text
//! Opened      the cluster log names us; the `Adopt` entry goes into the next journal object
//! Open        batches may be placed, behind the `Adopt` entry; once somebody wants its end, no more
//! Ended       the `Seal` entry is placed, behind all its batches; once it is released the log says so
//! ```
//!
//! Placing follows the order of slots, and only contiguous slots are ever committed, so none of these steps needs to wait for
//! the one before to be durable (invariant *seal-behind-all*). The log is told only what is.

use crate::ledger::Ledger;
use refstream_format::{cluster_log::OpenSegment, journal::SegmentState};
use refstream_types::{Slot, Timestamp};
use std::time::Duration;

/// How far a segment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Opened,
    Open,
    Ended(Slot),
}

/// What follows an ended segment, where nothing was planned; a later one wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum After {
    /// A successor over the same range at the same broker.
    Successor,
    /// A successor over the same range, at whichever broker has the least.
    Anybody,
    /// Nothing: the topic is deleted.
    Deletion,
}

/// A segment of ours.
#[derive(Debug)]
pub(crate) struct OwnedSegment {
    pub(crate) opened: OpenSegment,
    pub(crate) ledger: Ledger,
    pub(crate) stage: Stage,
    /// Whether its end is wanted, and what follows.
    pub(crate) ending: Option<After>,
    /// The last slot with a batch of it, or of its `Adopt` entry.
    pub(crate) last_slot: Slot,
    /// When it was given to us. Monotonic.
    pub(crate) since: Duration,
    /// When its first batch was placed: monotonic, and its append time.
    pub(crate) first_batch: Option<(Duration, Timestamp)>,
    /// Its `Seal` entry is durable, and its end on the way to the log.
    pub(crate) end_is_told: bool,
}

impl OwnedSegment {
    pub(crate) fn new(opened: OpenSegment, ledger: Ledger, now: Duration) -> Self {
        Self {
            opened,
            ledger,
            stage: Stage::Opened,
            ending: None,
            last_slot: Slot(0),
            since: now,
            first_batch: None,
            end_is_told: false,
        }
    }

    /// Whether a batch was placed in it.
    pub(crate) fn holds_records(&self) -> bool {
        self.first_batch.is_some()
    }

    /// Whether batches may be placed in it.
    pub(crate) fn takes_batches(&self) -> bool {
        self.stage == Stage::Open && self.ending.is_none()
    }

    /// Asks for its end; what follows can only become less.
    pub(crate) fn end(&mut self, after: After) {
        self.ending = self.ending.max(Some(after));
    }

    /// Its state as it stands in journals.
    pub(crate) fn state(&self) -> SegmentState {
        self.ledger.state(self.opened.id)
    }
}
