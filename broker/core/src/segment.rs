//! A segment that this broker owns, from its opening to the log entry that ends it.
//!
//! ```text
//! Opened      the cluster log names us; the `Adopt` entry goes into the next journal object
//! Open        batches may be placed, behind the `Adopt` entry
//! Ending      somebody wants its end: no batch is placed any more; the `Seal` entry goes into the next object
//! Ended       the `Seal` entry is placed, behind all its batches; once it is released the log says so
//! ```
//!
//! Placing follows the order of slots, and only contiguous slots are ever committed, so none of these steps needs to wait for
//! the one before to be durable (invariant *seal-behind-all*). The log is told only what is.

use crate::ledger::Ledger;
use refstream_format::cluster_log::OpenSegment;
use refstream_types::{Slot, Timestamp};
use std::time::Duration;

/// How far a segment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Opened,
    Open,
    Ending,
    Ended(Slot),
}

/// What follows an ended segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// A successor over the same range.
    Successor,
    /// Nothing: the broker is drained.
    Nothing,
    /// Nothing: the topic is deleted.
    Deletion,
}

/// A segment of ours.
#[derive(Debug)]
pub(crate) struct OwnedSegment {
    pub(crate) opened: OpenSegment,
    pub(crate) ledger: Ledger,
    pub(crate) stage: Stage,
    pub(crate) after: After,
    /// Where its `Adopt` entry was placed.
    pub(crate) adopt_slot: Slot,
    /// Whether the log knows.
    pub(crate) adoption_logged: bool,
    /// The last slot with a batch of it, or of its `Adopt` entry.
    pub(crate) last_slot: Slot,
    /// Encoded bytes of its batches.
    pub(crate) bytes: u64,
    /// When its first batch was placed: monotonic, and its append time.
    pub(crate) first_batch: Option<(Duration, Timestamp)>,
}

impl OwnedSegment {
    pub(crate) fn new(opened: OpenSegment, ledger: Ledger) -> Self {
        Self {
            opened,
            ledger,
            stage: Stage::Opened,
            after: After::Successor,
            adopt_slot: Slot(0),
            adoption_logged: false,
            last_slot: Slot(0),
            bytes: 0,
            first_batch: None,
        }
    }

    /// Whether a batch was placed in it.
    pub(crate) fn holds_records(&self) -> bool {
        self.first_batch.is_some()
    }

    /// Asks for its end, unless it ends already; what follows can only become less.
    pub(crate) fn end(&mut self, after: After) {
        if after != After::Successor {
            self.after = after;
        }
        if matches!(self.stage, Stage::Opened | Stage::Open) {
            self.stage = if self.stage == Stage::Open { Stage::Ending } else { Stage::Opened };
            self.wants_end = true;
        }
    }
}
