//! Producers: each lane sends batches of one producer to one partition, a few at once, and sends them again until they are
//! acked. This is what the client library promises, in its smallest form.

use crate::history::{BatchId, Place};
use bytes::Bytes;
use refstream_format::batch::{BatchBuilder, EncodedBatch};
use refstream_types::{ContentHash, ProducerEpoch, ProducerId, ProducerStamp, Record, Sequence, Value};
use std::{collections::VecDeque, time::Duration};

/// A batch that is not acked yet.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) id: BatchId,
    pub(crate) batch: EncodedBatch,
    /// The request under way.
    pub(crate) ticket: Option<u64>,
    /// When the lane stops waiting for it.
    pub(crate) patience: Duration,
    pub(crate) failed: bool,
    pub(crate) acked: bool,
}

/// One producer's batches to one partition.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) place: Place,
    /// Index of the producer; `None` without idempotence.
    pub(crate) producer: Option<usize>,
    pub(crate) next_sequence: u64,
    /// Batches to make.
    pub(crate) left: u32,
    pub(crate) depth: usize,
    pub(crate) bulk: bool,
    pub(crate) pending: VecDeque<Pending>,
    pub(crate) pause: Duration,
    /// When it does something next.
    pub(crate) at: Duration,
}

impl Lane {
    pub(crate) fn is_done(&self) -> bool {
        self.left == 0 && self.pending.is_empty()
    }

    /// Whether something failed and everything must be sent again, in order.
    pub(crate) fn must_repeat(&self) -> bool {
        self.pending.iter().any(|pending| pending.failed)
    }

    /// Whether the batch of this request is the first one that is not acked.
    pub(crate) fn is_first(&self, ticket: u64) -> bool {
        self.pending.iter().find(|pending| !pending.acked).is_some_and(|pending| pending.ticket == Some(ticket))
    }
}

/// A batch that is like no other.
pub(crate) fn batch(number: usize, records: u32, stamp: Option<(ProducerId, u64)>) -> EncodedBatch {
    let mut builder = BatchBuilder::new();
    for n in 0..records {
        let bytes = Bytes::from(format!("batch {number} record {n}"));
        let record = Record::new(Value::Inline { bytes, content_hash: ContentHash([0; 32]) });
        if builder.push(&record).is_err() {
            break;
        }
    }
    let stamp = stamp.map(|(id, first)| ProducerStamp { id, epoch: ProducerEpoch(0), first: Sequence(first) });
    match builder.finish(stamp) {
        Some(batch) => batch,
        None => unreachable!("at least one record was pushed"),
    }
}
