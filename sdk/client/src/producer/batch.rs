//! The outcome that the tickets of a batch share.

use crate::ProduceError;
use refstream_types::{Offset, PartitionId, Timestamp};
use std::sync::OnceLock;
use tokio::sync::Notify;

/// Where a batch was placed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placed {
    pub(super) partition: PartitionId,
    pub(super) base: Offset,
    pub(super) append_time: Timestamp,
}

/// Undecided, or decided once and for all.
#[derive(Debug, Default)]
pub(super) struct BatchState {
    outcome: OnceLock<Result<Placed, ProduceError>>,
    wake: Notify,
}

impl BatchState {
    /// Decides; the first decision stands.
    pub(super) fn decide(&self, outcome: Result<Placed, ProduceError>) {
        if self.outcome.set(outcome).is_ok() {
            self.wake.notify_waiters();
        }
    }
    /// Waits for the decision.
    pub(super) async fn decided(&self) -> Result<Placed, ProduceError> {
        loop {
            let wake = self.wake.notified();
            tokio::pin!(wake);
            wake.as_mut().enable();
            if let Some(outcome) = self.outcome.get() {
                return outcome.clone();
            }
            wake.await;
        }
    }
}
