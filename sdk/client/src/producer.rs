//! Producing records: permit -> ticket -> ack.
//!
//! # How a record becomes durable exactly once
//!
//! A *permit* is room for a record in bounded memory. With it a record is put into the batch that is being built for its partition
//! and becomes a *ticket*; the order of these calls is the order in the partition. A batch is closed when it is full or its first record
//! has lingered, and from then on it is the [`engine`]'s, a task that owns all sending:
//!
//! 1. When it is first sent, the batch is stamped with the producer's identity and the sequence of its first record (sequences
//!    count records, per partition). Its bytes are then the same in every attempt, so that a broker recognises a repetition and answers
//!    with the offset that it gave before.
//! 2. Up to [`MAX_IN_FLIGHT`] batches of a partition are under way at once, in order, on one stream a broker.
//! 3. An attempt that ends without a definite answer (connection lost, broker stopped, segment moved, throttled) leaves the batch
//!    *undecided*. When nothing of that partition is under way any more, everything undecided is sent again from the earliest on, in the
//!    same order with the same sequences, after a new look-up, until `retry_for` is over. Later batches that a broker refused as out of
//!    sequence because an earlier one is missing are part of that.
//! 4. A definite refusal of one batch (too large, for example) fails its records alone; its sequences are used by the next ones, which
//!    cannot have been taken.
//! 5. When time is up for a batch that may have been taken, its records fail with an error that says so, and the partition goes on under
//!    a new identity from sequence 0: what comes later cannot be held up by what is unknown. If the broker no longer knows the identity,
//!    batches that were certainly not taken go on under a new one; others fail as above.
//!
//! A producer with a [`BatchLog`] has a step more: a stamped batch is remembered there, durably, before its first attempt, and again whenever its
//! stamp changes. Whoever reads the log later can repeat exactly what may be under way and gets the offset that it has.
//!
//! **A crash** of this program loses what was not acked; a record whose ack had not arrived may be there. **Dropping** the last
//! clone of a [`Producer`] aborts what is not acked: tickets resolve to an error that says whether their record may be there. Call
//! [`Producer::flush`] first.

mod batch;
mod engine;
#[cfg_attr(not(feature = "jobs"), allow(dead_code))]
mod log;
mod partition;
#[cfg(feature = "jobs")]
mod replay;
mod stream;

#[cfg_attr(not(feature = "jobs"), allow(unused_imports))]
pub(crate) use log::{BatchLog, Decided, NotLogged, ToLog};
#[cfg(feature = "jobs")]
pub(crate) use replay::replay;

use crate::{Client, NotAcked, ProduceError, ProducerEnded, RecordRefused, records};
use batch::BatchState;
use bytes::Bytes;
use engine::{Engine, Input};
use refstream_filer_adapter::Runtime;
use refstream_format::batch::{BatchBuilder, EncodedBatch, PushError};
use refstream_types::{AckMode, Offset, PartitionId, Record, Timestamp, TopicId, TopicName, Value, partition_for_key};
use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};
use tokio::sync::{Semaphore, mpsc, oneshot};

/// Undecided batches of one partition at a time. A broker remembers at least as many.
const MAX_IN_FLIGHT: usize = 5;
/// What a record costs in memory besides its key, headers and value.
const RECORD_OVERHEAD: usize = 160;
/// The smallest batch that is worth a request.
const MIN_BATCH_BYTES: usize = 1 << 10;

/// How to produce.
#[derive(Clone, Debug)]
pub struct ProducerOptions {
    /// When an ack is given.
    pub ack: AckMode,
    /// How long a record may wait for company.
    pub linger: Duration,
    /// A batch is sent when its records have this many bytes.
    pub batch_bytes: usize,
    /// Bytes of records not yet acked; permits wait above it.
    pub memory: usize,
    /// How long to retry before a record fails; shorter than the producer expiry.
    pub retry_for: Duration,
    /// Yields to other traffic.
    pub bulk: bool,
}

impl Default for ProducerOptions {
    fn default() -> Self {
        Self {
            ack: AckMode::Durable,
            linger: Duration::from_millis(2),
            batch_bytes: 256 << 10,
            memory: 32 << 20,
            retry_for: Duration::from_secs(300),
            bulk: false,
        }
    }
}

/// Submits records to a topic: in order per partition, each exactly once whatever is retried. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Producer {
    handle: Arc<Handle>,
}

/// Ends the engine when the last clone of the producer is dropped.
#[derive(Debug)]
struct Handle {
    shared: Arc<Shared>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        let _ = self.shared.inputs.send(Input::Close);
    }
}

/// What callers and the engine share.
struct Shared {
    topic: TopicName,
    topic_id: TopicId,
    options: ProducerOptions,
    runtime: Arc<dyn Runtime>,
    slots: Vec<Mutex<Slot>>,
    /// The partition that keyless records go to until its batch is full.
    sticky: AtomicU32,
    room: Semaphore,
    inputs: mpsc::UnboundedSender<Input>,
    log: Option<Arc<dyn BatchLog>>,
    /// What goes wrong now; `None` while everything goes well.
    trouble: Mutex<Option<String>>,
    /// The first failure since the last flush.
    failure: Mutex<Option<ProduceError>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("topic", &self.topic).field("options", &self.options).finish_non_exhaustive()
    }
}

/// The batch that is being built for a partition.
#[derive(Debug, Default)]
struct Slot {
    builder: BatchBuilder,
    state: Arc<BatchState>,
    records: u32,
    tags: Vec<Bytes>,
    /// Room that the records hold.
    room: usize,
    /// How many batches were built before.
    number: u64,
    /// Why no more records are taken.
    ended: Option<ProducerEnded>,
}

/// A closed batch on its way to the engine.
#[derive(Debug)]
struct Closed {
    partition: PartitionId,
    batch: EncodedBatch,
    state: Arc<BatchState>,
    records: u32,
    tags: Vec<Bytes>,
    room: usize,
}

/// Room for one record.
#[derive(Debug)]
pub struct Permit {
    shared: Arc<Shared>,
    _producer: Arc<Handle>,
    room: usize,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.shared.room.add_permits(self.room);
    }
}

/// A record that was taken; resolves to its ack.
#[derive(Debug)]
pub struct Ticket {
    state: Arc<BatchState>,
    index: u32,
}

/// Where a record is, durably.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    /// Its partition.
    pub partition: PartitionId,
    /// Its offset.
    pub offset: Offset,
    /// Its append time.
    pub append_time: Timestamp,
}

impl Producer {
    pub(crate) async fn open(
        client: &Client,
        topic: &TopicName,
        options: ProducerOptions,
        log: Option<Arc<dyn BatchLog>>,
    ) -> Result<Self, ProduceError> {
        let routes = records::lookup(client.brokers(), topic, None).await?;
        let identity = records::open_producer(client.brokers()).await?;
        let limit = client.deployment().max_batch_bytes;
        let options = ProducerOptions {
            batch_bytes: options.batch_bytes.clamp(MIN_BATCH_BYTES, limit.max(MIN_BATCH_BYTES)),
            memory: options.memory.clamp(MIN_BATCH_BYTES, Semaphore::MAX_PERMITS.min(u32::MAX as usize)),
            ..options
        };
        let partitions = routes.topic.config.partitions;
        let (inputs, queue) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            topic: topic.clone(),
            topic_id: routes.topic.id,
            runtime: Arc::clone(client.runtime()),
            slots: (0..partitions).map(|_| Mutex::default()).collect(),
            sticky: AtomicU32::new((client.runtime().random() % u64::from(partitions.max(1))) as u32),
            room: Semaphore::new(options.memory),
            inputs,
            log,
            trouble: Mutex::new(None),
            failure: Mutex::new(None),
            options,
        });
        let engine = Engine::new(Arc::clone(&shared), Arc::clone(client.brokers()), routes, identity, queue);
        tokio::spawn(engine.run());
        Ok(Self { handle: Arc::new(Handle { shared }) })
    }

    /// Waits for room for a record of about `bytes` bytes (key, headers and inline value).
    ///
    /// # Errors
    /// When the producer failed for good.
    pub async fn reserve(&self, bytes: usize) -> Result<Permit, ProduceError> {
        let shared = &self.handle.shared;
        let room = shared.room_for(bytes);
        shared.acquire(room).await?;
        Ok(Permit { shared: Arc::clone(shared), _producer: Arc::clone(&self.handle), room })
    }

    /// Waits for room and takes the record.
    ///
    /// # Errors
    /// When the record is refused or the producer failed for good.
    pub async fn send(&self, record: Record) -> Result<Ticket, ProduceError> {
        self.send_tagged(record, None).await
    }

    /// Sends a record of which the log, if there is one, learns `tag` as well.
    pub(crate) async fn send_tagged(&self, record: Record, tag: Option<Bytes>) -> Result<Ticket, ProduceError> {
        let shared = &self.handle.shared;
        let room = shared.room_for(size_of(&record) + tag.as_ref().map_or(0, Bytes::len));
        shared.acquire(room).await?;
        shared.take(&record, tag, room).inspect_err(|_| shared.room.add_permits(room))
    }

    /// What goes wrong now, although it is still tried; `None` while everything goes well.
    pub(crate) fn trouble(&self) -> Option<String> {
        lock(&self.handle.shared.trouble).clone()
    }

    /// Sends what lingers and waits until every record taken so far is acked or failed.
    ///
    /// # Errors
    /// The first failure since the last flush.
    pub async fn flush(&self) -> Result<(), ProduceError> {
        let shared = &self.handle.shared;
        let (reply, undecided) = oneshot::channel();
        if shared.inputs.send(Input::Flush(reply)).is_ok()
            && let Ok(undecided) = undecided.await
        {
            for state in undecided {
                let _ = state.decided().await;
            }
        }
        match lock(&shared.failure).take() {
            None => Ok(()),
            Some(error) => Err(error),
        }
    }
}

impl Permit {
    /// Takes the record. The order of these calls is the order within a partition.
    ///
    /// # Errors
    /// When the record is refused (too large, an invalid reference).
    pub fn send(mut self, record: Record) -> Result<Ticket, ProduceError> {
        let ticket = self.shared.take(&record, None, self.room)?;
        self.room = 0;
        Ok(ticket)
    }
}

impl Ticket {
    /// Waits for the ack.
    ///
    /// # Errors
    /// Says whether the record may be there all the same.
    pub async fn ack(self) -> Result<Ack, ProduceError> {
        let placed = self.state.decided().await?;
        let offset = Offset(placed.base.0 + u64::from(self.index));
        Ok(Ack { partition: placed.partition, offset, append_time: placed.append_time })
    }
}

impl Shared {
    fn room_for(&self, bytes: usize) -> usize {
        bytes.saturating_add(RECORD_OVERHEAD).min(self.options.memory)
    }

    async fn acquire(&self, room: usize) -> Result<(), ProduceError> {
        match self.room.acquire_many(room as u32).await {
            Ok(permit) => {
                permit.forget();
                Ok(())
            }
            Err(_) => Err(self.ended()),
        }
    }

    /// Why the producer ended.
    fn ended(&self) -> ProduceError {
        let why = self.slots.iter().find_map(|slot| lock(slot).ended.clone());
        ProduceError::Ended(
            why.unwrap_or_else(|| ProducerEnded { topic: self.topic.clone(), why: "it is closed".into() }),
        )
    }

    /// Puts the record into its partition's batch. `room` is the batch's from here on, if this succeeds.
    fn take(&self, record: &Record, tag: Option<Bytes>, room: usize) -> Result<Ticket, ProduceError> {
        let partition = match &record.key {
            Some(key) => partition_for_key(key, self.slots.len() as u32),
            None => PartitionId(self.sticky.load(Ordering::Relaxed)),
        };
        let mut slot = lock(&self.slots[partition.0 as usize]);
        if let Some(ended) = &slot.ended {
            return Err(ProduceError::Ended(ended.clone()));
        }
        match slot.builder.push(record) {
            Ok(()) => {}
            Err(PushError::Full) if slot.records > 0 => {
                self.close(partition, &mut slot);
                slot.builder.push(record).map_err(|why| self.refused(why))?;
            }
            Err(why) => return Err(self.refused(why)),
        }
        let index = slot.records;
        slot.records += 1;
        slot.tags.extend(tag);
        slot.room += room;
        let ticket = Ticket { state: Arc::clone(&slot.state), index };
        if slot.builder.bytes() >= self.options.batch_bytes {
            self.close(partition, &mut slot);
        } else if index == 0 {
            let opened = Input::Opened { partition, number: slot.number, at: self.runtime.now() };
            let _ = self.inputs.send(opened);
        }
        Ok(ticket)
    }

    fn refused(&self, why: PushError) -> ProduceError {
        ProduceError::Record(RecordRefused { topic: self.topic.clone(), why })
    }

    /// Hands the batch that is being built to the engine. Called with the partition's lock held, so that batches arrive in order.
    fn close(&self, partition: PartitionId, slot: &mut Slot) {
        let state = std::mem::take(&mut slot.state);
        let records = std::mem::take(&mut slot.records);
        let tags = std::mem::take(&mut slot.tags);
        let room = std::mem::take(&mut slot.room);
        slot.number += 1;
        let next = (partition.0 + 1) % self.slots.len() as u32;
        let _ = self.sticky.compare_exchange(partition.0, next, Ordering::Relaxed, Ordering::Relaxed);
        let Some(batch) = slot.builder.finish(None) else { return };
        let closed = Closed { partition, batch, state, records, tags, room };
        if let Err(mpsc::error::SendError(Input::Closed(closed))) = self.inputs.send(Input::Closed(closed)) {
            closed.state.decide(Err(self.never_sent(closed.partition)));
        }
    }

    fn never_sent(&self, partition: PartitionId) -> ProduceError {
        ProduceError::NotAcked(Box::new(NotAcked {
            topic: self.topic.clone(),
            partition,
            why: "the producer was closed before the record was sent".into(),
            may_have_happened: false,
            class: crate::ErrorClass::Failed,
            retryable: false,
        }))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// About how many bytes a record has in memory and on the wire.
fn size_of(record: &Record) -> usize {
    let headers: usize = record.headers.iter().map(|header| header.name.len() + header.value.len() + 8).sum();
    let value = match &record.value {
        Value::Inline { bytes, .. } => bytes.len(),
        Value::Reference(_) | Value::Tombstone => 0,
    };
    record.key.as_ref().map_or(0, |key| key.len())
        + record.source_name.as_ref().map_or(0, String::len)
        + headers
        + value
}
