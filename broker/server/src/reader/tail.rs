//! One tail: several partitions of a topic, as a stream that is pulled.
//!
//! The stream does nothing ahead of its consumer but a few reads of journals: a slow consumer holds its positions, at most
//! [`READS`] batches, and what HTTP/2 has taken of it. Partitions take turns; a turn is the batches of one slot, so that partitions which are
//! behind go through the journal side by side and share what is read of it. Those whose batches must be read from the store do
//! not hold up those whose batches are in memory. A partition that another broker serves by then leaves the stream at the end of what is
//! known here.

use super::{Next, Reader, Topic, fetch::Delivered};
use crate::{errors, metrics::Counted};
use futures::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use refstream_proto::{
    into_status,
    v1::{self, ErrorDetail, TailBatch, TailResponse, tail_response},
};
use refstream_types::{Offset, PartitionId, Slot};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio_util::sync::CancellationToken;
use tonic::Status;

/// Batches of one tail that are read from journals at once, each of another partition.
const READS: usize = 4;
/// A partition's turn ends after this many bytes even within a slot.
const TURN_BYTES: usize = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Delivering what is in memory, or waiting for more.
    Here,
    /// A read is under way.
    Reading,
    /// Over.
    Done,
}

#[derive(Debug)]
struct Position {
    partition: PartitionId,
    offset: Offset,
    /// Where it ends when not following.
    until: Offset,
    stage: Stage,
    /// The consumer was told that it is at the end.
    told: bool,
}

/// A partition's turn under way.
#[derive(Clone, Copy, Debug)]
struct Run {
    at: usize,
    slot: Slot,
    bytes: usize,
}

type ReadBatch = (usize, Result<Option<Delivered>, ErrorDetail>);

/// One tail.
pub(crate) struct Tail {
    reader: Arc<Reader>,
    topic: Arc<Topic>,
    positions: Vec<Position>,
    follow: bool,
    turn: usize,
    run: Option<Run>,
    live: usize,
    reads: FuturesUnordered<BoxFuture<'static, ReadBatch>>,
    changed: watch::Receiver<()>,
    closing: CancellationToken,
    over: bool,
    _room: OwnedSemaphorePermit,
    _counted: Counted,
}

impl Tail {
    /// A tail from these positions on (partitions that exist, none twice).
    ///
    /// # Errors
    /// When the broker serves as many as it takes.
    pub(crate) fn new(
        reader: Arc<Reader>,
        topic: Arc<Topic>,
        positions: impl IntoIterator<Item = (PartitionId, Offset)>,
        follow: bool,
        closing: CancellationToken,
    ) -> Result<Self, ErrorDetail> {
        let room = reader.room_for_tail()?;
        let changed = topic.subscribe();
        let positions: Vec<Position> = positions
            .into_iter()
            .map(|(partition, offset)| Position {
                partition,
                offset,
                until: topic.latest(partition),
                stage: Stage::Here,
                told: false,
            })
            .collect();
        let counted = Counted::new(&reader.metrics.tail_streams);
        let live = positions.len();
        Ok(Self {
            reader,
            topic,
            positions,
            follow,
            turn: 0,
            run: None,
            live,
            reads: FuturesUnordered::new(),
            changed,
            closing,
            over: false,
            _room: room,
            _counted: counted,
        })
    }

    /// What to send next; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<Result<TailResponse, Status>> {
        loop {
            if self.over || self.live == 0 {
                return None;
            }
            if self.topic.has_ended() {
                self.over = true;
                return Some(Err(into_status(errors::no_such_topic_id(self.topic.id()))));
            }
            if self.closing.is_cancelled() {
                self.over = true;
                return Some(Err(into_status(errors::unavailable(
                    "the broker is stopping; go on from the last offset once it was restarted, or elsewhere",
                ))));
            }
            // Marked as seen before the look at the partitions: what is committed meanwhile wakes the wait below.
            self.changed.mark_unchanged();
            if let Some(Some(read)) = self.reads.next().now_or_never()
                && let Some(response) = self.take_read(read)
            {
                return Some(Ok(response));
            }
            if let Some(response) = self.turns() {
                return Some(Ok(response));
            }
            if self.live == 0 {
                return None;
            }
            tokio::select! {
                Some(read) = self.reads.next(), if !self.reads.is_empty() => {
                    if let Some(response) = self.take_read(read) {
                        return Some(Ok(response));
                    }
                }
                _ = self.changed.changed() => {}
                () = self.closing.cancelled() => {}
            }
        }
    }

    /// Gives every partition its turn, until one has something to send.
    fn turns(&mut self) -> Option<TailResponse> {
        if let Some(Run { at, slot, bytes }) = self.run.take()
            && bytes < TURN_BYTES
            && let position = &self.positions[at]
            && position.stage == Stage::Here
            && (self.follow || position.offset < position.until)
            && let Next::Batch(batch) = self.reader.next(&self.topic, position.partition, position.offset)
            && batch.slot == slot
        {
            let bytes = bytes + batch.bytes.len();
            let response = self.deliver(at, batch);
            self.run = Some(Run { at, slot, bytes });
            return Some(response);
        }
        let count = self.positions.len();
        for _ in 0..count {
            let at = self.turn;
            self.turn = (self.turn + 1) % count;
            if self.positions[at].stage == Stage::Here
                && let Some(response) = self.turn_of(at)
            {
                return Some(response);
            }
        }
        None
    }

    fn turn_of(&mut self, at: usize) -> Option<TailResponse> {
        let position = &self.positions[at];
        let (partition, offset) = (position.partition, position.offset);
        // In this order: what was committed here before it moved is found.
        let elsewhere = self.topic.is_elsewhere(partition);
        let latest = self.topic.latest(partition);
        if elsewhere && offset >= latest {
            return Some(self.fail(at, errors::moved(partition.0)));
        }
        let finished = !self.follow && position.until <= offset && offset <= latest;
        if finished || offset == latest {
            return self.at_end(at, finished);
        }
        match self.reader.next(&self.topic, partition, offset) {
            Next::Batch(batch) => Some(self.deliver(at, batch)),
            Next::Failed(error) => Some(self.fail(at, error)),
            Next::End => None,
            Next::Read => {
                if self.reads.len() < READS {
                    let (reader, topic) = (Arc::clone(&self.reader), Arc::clone(&self.topic));
                    self.positions[at].stage = Stage::Reading;
                    self.reads.push(async move { (at, reader.fetch(&topic, partition, offset).await) }.boxed());
                }
                None
            }
        }
    }

    fn take_read(&mut self, (at, read): ReadBatch) -> Option<TailResponse> {
        self.positions[at].stage = Stage::Here;
        match read {
            Ok(Some(batch)) => Some(self.deliver(at, batch)),
            Ok(None) => None,
            Err(error) => Some(self.fail(at, error)),
        }
    }

    /// Tells once that a partition is at its end; again only after it was behind.
    fn at_end(&mut self, at: usize, finished: bool) -> Option<TailResponse> {
        let position = &mut self.positions[at];
        if finished {
            position.stage = Stage::Done;
            self.live -= 1;
        }
        if std::mem::replace(&mut position.told, true) {
            return None;
        }
        let caught_up = v1::PartitionPosition { partition: position.partition.0, offset: position.offset.0 };
        Some(TailResponse { event: Some(tail_response::Event::CaughtUp(caught_up)) })
    }

    fn deliver(&mut self, at: usize, batch: Delivered) -> TailResponse {
        let position = &mut self.positions[at];
        let latest = self.topic.latest(position.partition);
        position.offset = batch.end();
        if position.offset < latest {
            position.told = false;
        }
        self.run = Some(Run { at, slot: batch.slot, bytes: batch.bytes.len() });
        let metrics = &self.reader.metrics;
        metrics.delivered_records.inc_by(u64::from(batch.records));
        metrics.delivered_bytes.inc_by(batch.bytes.len() as u64);
        let batch = TailBatch {
            partition: position.partition.0,
            base_offset: batch.base_offset.0,
            append_time: batch.append_time.as_micros(),
            batch: batch.bytes,
            latest: latest.0,
        };
        TailResponse { event: Some(tail_response::Event::Batch(batch)) }
    }

    fn fail(&mut self, at: usize, error: ErrorDetail) -> TailResponse {
        let position = &mut self.positions[at];
        position.stage = Stage::Done;
        self.live -= 1;
        let error = v1::PartitionError { partition: position.partition.0, error: Some(error) };
        TailResponse { event: Some(tail_response::Event::Error(error)) }
    }
}
