//! Remembering batches before they are sent, so that a later process can settle what this one leaves undecided.

use futures::future::BoxFuture;
use refstream_format::batch::EncodedBatch;
use refstream_types::{Offset, PartitionId, ProducerStamp};
use std::fmt::Debug;
use thiserror::Error;

/// The log could not be written.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub(crate) struct NotLogged(pub(crate) String);

/// A batch that is about to be sent for the first time under its stamp.
#[derive(Debug)]
pub(crate) struct ToLog {
    /// Unique within the producer. Logged again under another stamp, it replaces what was logged before.
    pub(crate) number: u64,
    pub(crate) partition: PartitionId,
    /// Stamped: exactly what is sent, in every attempt.
    pub(crate) batch: EncodedBatch,
    /// What [`super::Producer::send_tagged`] was given, one for each record.
    pub(crate) tags: Vec<bytes::Bytes>,
}

impl ToLog {
    /// The stamp under which it is sent.
    pub(crate) fn stamp(&self) -> Option<ProducerStamp> {
        self.batch.header().producer
    }
}

/// What became of a logged batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decided {
    /// It is in the topic.
    Placed {
        partition: PartitionId,
        /// The offset of its first record.
        base: Offset,
    },
    /// It is certainly not in the topic, and never will be.
    Refused,
    /// It may be in the topic.
    InDoubt,
}

/// Where batches are remembered.
pub(crate) trait BatchLog: Debug + Send + Sync + 'static {
    /// Remembers a batch; it is sent once this has resolved. Calls take effect in their order.
    fn remember(&self, batch: ToLog) -> BoxFuture<'static, Result<(), NotLogged>>;
    /// A batch that was given to [`BatchLog::remember`], or was about to be, is decided.
    fn decided(&self, number: u64, outcome: Decided);
}
