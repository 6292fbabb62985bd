//! The task that sends batches and takes answers. See the parent module for the protocol.

use super::{
    Closed, Shared,
    batch::{BatchState, Placed},
    lock,
    log::{Decided, NotLogged},
    partition::{Attempt, Consequence, Identity, Pending, Queue, Verdict},
    stream::{Stream, StreamId},
};
use crate::{
    ErrorClass, NotAcked, ProduceError, ProducerEnded, TopicError,
    backoff::Backoff,
    broker::{Brokers, retry_after},
    records::{self, Routes},
};
use bytes::Bytes;
use refstream_proto::v1::{self, AppendRequest, AppendResponse, ErrorCode, append_result};
use refstream_types::{AckMode, Offset, PartitionId, ProducerStamp, Timestamp, TopicId};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};
use tokio::sync::{mpsc, oneshot};

/// A request is sent once its batches have this many bytes together.
const REQUEST_BYTES: usize = 1 << 20;
/// The most batches of one request.
const REQUEST_BATCHES: usize = 256;
/// Inputs that are taken before anything is sent.
const INPUTS_AT_ONCE: usize = 256;
/// A broker that has not answered for so long may be gone without a word: then it is looked up, as often, whether others serve its partitions.
const SILENCE: Duration = Duration::from_millis(400);
/// How often deadlines are looked at.
const EXPIRY_CHECK: Duration = Duration::from_millis(500);

/// What happens to the engine.
#[derive(Debug)]
pub(super) enum Input {
    /// The first record of a batch was taken.
    Opened { partition: PartitionId, number: u64, at: Duration },
    /// A batch was closed.
    Closed(Closed),
    /// Close all batches; tell which are undecided.
    Flush(oneshot::Sender<Vec<Arc<BatchState>>>),
    /// A batch is in the log, or cannot be.
    Logged { partition: PartitionId, number: u64, stamp: ProducerStamp, outcome: Result<(), NotLogged> },
    /// A broker answered.
    Answered { stream: StreamId, response: AppendResponse },
    /// A stream is gone.
    StreamEnded { stream: StreamId, endpoint: String, why: String },
    /// A look-up ended.
    LookedUp(Result<Routes, TopicError>),
    /// A new identity was asked for.
    Identified(Result<Identity, String>),
    /// The last clone of the producer was dropped.
    Close,
}

pub(super) struct Engine {
    shared: Arc<Shared>,
    brokers: Arc<Brokers>,
    inputs: mpsc::UnboundedReceiver<Input>,
    routes: Routes,
    looking_up: bool,
    stale_routes: bool,
    identifying: bool,
    queues: Vec<Queue>,
    backoffs: Vec<Backoff>,
    /// The same for partitions that change hands.
    moves: Vec<Backoff>,
    /// Spreads delays; one number for all partitions that an input concerns, so that they are looked up together.
    spread: u64,
    streams: BTreeMap<String, Stream>,
    /// Partitions that may have something to send.
    dirty: BTreeSet<u32>,
    /// Partitions that wait for a time.
    held: BTreeSet<(Duration, u32)>,
    /// Partitions that wait for a look-up or an identity.
    waiting: BTreeSet<u32>,
    /// Batches being built, by when their first record has lingered: partition and batch number. In order of time.
    lingering: VecDeque<(Duration, PartitionId, u64)>,
    /// Partitions whose batch has lingered while others of theirs wait to be sent.
    overdue: BTreeSet<u32>,
    counter: u64,
    /// Batches so far.
    batches: u64,
    next_expiry_check: Duration,
    /// When the routes were last looked up because a broker is silent.
    doubted_at: Duration,
    /// What went wrong last, for errors of batches whose time is up.
    last_trouble: Option<(String, ErrorClass)>,
    ended: Option<String>,
}

impl Engine {
    pub(super) fn new(
        shared: Arc<Shared>,
        brokers: Arc<Brokers>,
        routes: Routes,
        identity: Identity,
        inputs: mpsc::UnboundedReceiver<Input>,
    ) -> Self {
        let partitions = shared.slots.len();
        Self {
            queues: (0..partitions).map(|_| Queue::new(identity, shared.log.is_some())).collect(),
            backoffs: vec![Backoff::new(); partitions],
            moves: vec![Backoff::moving(); partitions],
            spread: 0,
            shared,
            brokers,
            inputs,
            routes,
            looking_up: false,
            stale_routes: false,
            identifying: false,
            streams: BTreeMap::new(),
            dirty: BTreeSet::new(),
            held: BTreeSet::new(),
            waiting: BTreeSet::new(),
            lingering: VecDeque::new(),
            overdue: BTreeSet::new(),
            counter: 0,
            batches: 0,
            next_expiry_check: Duration::ZERO,
            doubted_at: Duration::ZERO,
            last_trouble: None,
            ended: None,
        }
    }

    /// Runs until the producer is closed or failed for good.
    pub(super) async fn run(mut self) {
        while self.ended.is_none() {
            let input = match self.wake_at() {
                None => self.inputs.recv().await,
                Some(at) => {
                    let wait = at.saturating_sub(self.now());
                    let sleep = self.shared.runtime.sleep(wait);
                    tokio::select! {
                        biased;
                        input = self.inputs.recv() => input,
                        () = sleep => { self.turn(); continue; }
                    }
                }
            };
            let Some(input) = input else { break };
            self.take(input);
            for _ in 0..INPUTS_AT_ONCE {
                match self.inputs.try_recv() {
                    Ok(input) => self.take(input),
                    Err(_) => break,
                }
            }
            self.turn();
        }
    }

    fn now(&self) -> Duration {
        self.shared.runtime.now()
    }

    fn wake_at(&self) -> Option<Duration> {
        let linger = self.lingering.front().map(|(at, ..)| *at);
        let held = self.held.first().map(|(at, _)| *at);
        let expiry = self.queues.iter().any(|queue| !queue.is_empty()).then_some(self.next_expiry_check);
        let doubt = match self.brokers.are_several() && !self.looking_up {
            true => self.streams.values().filter_map(|stream| stream.silent_since).min(),
            false => None,
        };
        let doubt = doubt.map(|since| since.max(self.doubted_at) + SILENCE);
        [linger, held, expiry, doubt].into_iter().flatten().min()
    }

    fn take(&mut self, input: Input) {
        match input {
            Input::Opened { partition, number, at } => {
                self.lingering.push_back((at + self.shared.options.linger, partition, number));
            }
            Input::Closed(closed) => self.queue(closed),
            Input::Flush(reply) => {
                for partition in 0..self.queues.len() as u32 {
                    self.close(partition, None);
                }
                // Batches that were closed just now are inputs behind this one.
                while let Ok(input) = self.inputs.try_recv() {
                    if let Input::Flush(other) = input {
                        let _ = other.send(self.undecided());
                    } else {
                        self.take(input);
                    }
                }
                let _ = reply.send(self.undecided());
            }
            Input::Logged { partition, number, stamp, outcome } => match outcome {
                Ok(()) => {
                    self.queues[partition.0 as usize].logged(number, stamp);
                    self.dirty.insert(partition.0);
                }
                Err(error) => self.ended = Some(format!("its log cannot be written: {error}")),
            },
            Input::Answered { stream, response } => self.answered(stream, response),
            Input::StreamEnded { stream, endpoint, why } => self.stream_ended(stream, &endpoint, why),
            Input::LookedUp(outcome) => self.looked_up(outcome),
            Input::Identified(outcome) => self.identified(outcome),
            Input::Close => self.ended = Some("it was dropped before its records were acked".into()),
        }
    }

    fn undecided(&self) -> Vec<Arc<BatchState>> {
        self.queues.iter().flat_map(Queue::states).collect()
    }

    fn queue(&mut self, closed: Closed) {
        let deadline = self.now() + self.shared.options.retry_for;
        let partition = closed.partition.0;
        let queue = &mut self.queues[partition as usize];
        if queue.is_empty() {
            self.next_expiry_check = self.next_expiry_check.max(self.shared.runtime.now());
        }
        self.batches += 1;
        queue.push(closed, self.batches, deadline);
        self.dirty.insert(partition);
    }

    /// Closes the batch that is being built (number `number`, or whichever it is); it arrives as an input.
    fn close(&mut self, partition: u32, number: Option<u64>) {
        let shared = Arc::clone(&self.shared);
        let mut slot = lock(&shared.slots[partition as usize]);
        if slot.records > 0 && number.is_none_or(|number| number == slot.number) {
            shared.close(PartitionId(partition), &mut slot);
        }
    }

    /// Does what is due and sends what can be sent.
    fn turn(&mut self) {
        let now = self.now();
        while let Some((at, partition, number)) = self.lingering.front().copied()
            && at <= now
        {
            self.lingering.pop_front();
            if self.queues[partition.0 as usize].is_backed_up() {
                self.overdue.insert(partition.0);
            } else {
                self.close(partition.0, Some(number));
            }
        }
        while let Some((at, partition)) = self.held.first().copied()
            && at <= now
        {
            self.held.pop_first();
            self.dirty.insert(partition);
        }
        if now >= self.next_expiry_check {
            self.next_expiry_check = now + EXPIRY_CHECK;
            for partition in 0..self.queues.len() as u32 {
                let expired = self.queues[partition as usize].expire(now);
                if !expired.is_empty() {
                    let (trouble, class) = self
                        .last_trouble
                        .clone()
                        .unwrap_or_else(|| ("the broker did not answer".to_owned(), ErrorClass::Unreachable));
                    let why = format!("{trouble} (tried for {:.0} s)", self.shared.options.retry_for.as_secs_f64());
                    self.fail(partition, expired, &why, class, true);
                    self.dirty.insert(partition);
                }
            }
        }
        if self.is_in_doubt(now) {
            self.doubted_at = now;
            self.look_up();
        }
        self.send(now);
    }

    /// Whether a broker is silent, of several.
    fn is_in_doubt(&self, now: Duration) -> bool {
        let silent =
            |stream: &Stream| stream.silent_since.is_some_and(|since| now >= since.max(self.doubted_at) + SILENCE);
        !self.looking_up && self.brokers.are_several() && self.streams.values().any(silent)
    }

    fn look_up(&mut self) {
        self.looking_up = true;
        let (brokers, topic, id) = (Arc::clone(&self.brokers), self.shared.topic.clone(), self.shared.topic_id);
        let inputs = self.shared.inputs.clone();
        tokio::spawn(async move {
            let outcome = records::lookup(&brokers, &topic, Some(id)).await;
            let _ = inputs.send(Input::LookedUp(outcome));
        });
    }

    /// Gives up streams to silent brokers whose partitions others serve by now.
    fn leave_silent(&mut self) {
        let now = self.now();
        let is_over = |endpoint: &String, stream: &Stream| {
            let mut partitions = stream.under_way.values().flatten().map(|(partition, _)| *partition);
            stream.silent_since.is_some_and(|since| now >= since + SILENCE)
                && partitions.any(|partition| {
                    self.routes.endpoint(PartitionId(partition)).is_some_and(|route| route != endpoint)
                })
        };
        let over = self.streams.iter().filter(|(endpoint, stream)| is_over(endpoint, stream));
        let over: Vec<_> = over.map(|(endpoint, stream)| (endpoint.clone(), stream.id)).collect();
        for (endpoint, id) in over {
            self.stream_ended(id, &endpoint, "it does not answer, and others serve its partitions".into());
            // That was just looked up.
            self.stale_routes = false;
        }
    }

    fn send(&mut self, now: Duration) {
        let mut outgoing: BTreeMap<String, Vec<(u32, Attempt, Bytes)>> = BTreeMap::new();
        for partition in std::mem::take(&mut self.dirty) {
            let queue = &mut self.queues[partition as usize];
            if queue.is_empty() {
                continue;
            }
            if queue.hold > now {
                self.held.insert((queue.hold, partition));
                continue;
            }
            let endpoint = self.routes.endpoint(PartitionId(partition));
            let Some(endpoint) = endpoint.filter(|_| !self.stale_routes && !queue.needs_identity()) else {
                self.waiting.insert(partition);
                continue;
            };
            if let Some(log) = &self.shared.log {
                for batch in queue.unlogged() {
                    let (number, partition, stamp) = (batch.number, batch.partition, batch.stamp());
                    let remembered = log.remember(batch);
                    let inputs = self.shared.inputs.clone();
                    tokio::spawn(async move {
                        let outcome = remembered.await;
                        if let Some(stamp) = stamp {
                            let _ = inputs.send(Input::Logged { partition, number, stamp, outcome });
                        }
                    });
                }
            }
            loop {
                self.counter += 1;
                let attempt = Attempt(self.counter);
                let Some(batch) = queue.next(attempt) else { break };
                match outgoing.get_mut(endpoint) {
                    Some(batches) => batches.push((partition, attempt, batch)),
                    None => {
                        outgoing.insert(endpoint.to_owned(), vec![(partition, attempt, batch)]);
                    }
                }
            }
        }
        for (endpoint, batches) in outgoing {
            self.send_to(endpoint, in_turns(batches));
        }
        if !self.waiting.is_empty() {
            self.look_up_or_identify();
        }
    }

    fn send_to(&mut self, endpoint: String, batches: Vec<(u32, Attempt, Bytes)>) {
        if !self.streams.contains_key(&endpoint) {
            match self.brokers.channel(&endpoint) {
                Ok(channel) => {
                    self.counter += 1;
                    let id = StreamId(self.counter);
                    let stream = Stream::open(id, endpoint.clone(), channel, self.shared.inputs.clone());
                    self.streams.insert(endpoint.clone(), stream);
                }
                Err(error) => {
                    for (partition, attempt, _) in batches {
                        self.queues[partition as usize].answered(attempt, Verdict::Retry { in_doubt: false });
                        self.trouble(partition, error.to_string(), ErrorClass::Unreachable, None);
                    }
                    self.stale_routes = true;
                    return;
                }
            }
        }
        let Some(stream) = self.streams.get_mut(&endpoint) else { return };
        let mut batches = batches.into_iter().peekable();
        while batches.peek().is_some() {
            self.counter += 1;
            let options = &self.shared.options;
            let mut request = append_request(self.counter, self.shared.topic_id, options.ack, options.bulk);
            request.granted = self.brokers.has_granted();
            let mut attempts = Vec::new();
            let mut partitions = BTreeSet::new();
            let mut bytes = 0;
            while request.batches.len() < REQUEST_BATCHES
                && let Some((partition, attempt, batch)) = batches.next_if(|(partition, _, next)| {
                    !partitions.contains(partition) && (bytes == 0 || bytes + next.len() <= REQUEST_BYTES)
                })
            {
                partitions.insert(partition);
                bytes += batch.len();
                attempts.push((partition, attempt));
                request.batches.push(v1::PartitionBatch { partition, batch });
            }
            stream.send(request, attempts, self.shared.runtime.now());
        }
    }

    fn answered(&mut self, stream: StreamId, response: AppendResponse) {
        self.spread = self.shared.runtime.random();
        let Some(found) = self.streams.values_mut().find(|found| found.id == stream) else { return };
        let Some(attempts) = found.under_way.remove(&response.request_id) else { return };
        found.heard(self.shared.runtime.now());
        let mut results = response.results.into_iter();
        for (partition, attempt) in attempts {
            match results.next().and_then(|result| result.result) {
                Some(append_result::Result::Appended(appended)) => self.appended(partition, attempt, &appended),
                Some(append_result::Result::Error(detail)) => self.refused(partition, attempt, &detail),
                None => {
                    self.queues[partition as usize].answered(attempt, Verdict::Retry { in_doubt: true });
                    let why = "the broker's answer lacks this batch".to_owned();
                    self.trouble(partition, why, ErrorClass::Failed, None);
                }
            }
            self.dirty.insert(partition);
            if self.overdue.contains(&partition) && !self.queues[partition as usize].is_backed_up() {
                self.overdue.remove(&partition);
                self.close(partition, None);
            }
        }
    }

    fn appended(&mut self, partition: u32, attempt: Attempt, appended: &v1::Appended) {
        self.backoffs[partition as usize].reset();
        self.moves[partition as usize].reset();
        if let Consequence::Acked(pending) = self.queues[partition as usize].answered(attempt, Verdict::Appended) {
            if let Some(log) = &self.shared.log {
                let outcome = Decided::Placed { partition: PartitionId(partition), base: Offset(appended.base_offset) };
                log.decided(pending.number, outcome);
            }
            *lock(&self.shared.trouble) = None;
            pending.state.decide(Ok(Placed {
                partition: PartitionId(partition),
                base: Offset(appended.base_offset),
                append_time: Timestamp::from_micros(appended.append_time),
            }));
            self.shared.room.add_permits(pending.room);
        }
    }

    fn refused(&mut self, partition: u32, attempt: Attempt, detail: &v1::ErrorDetail) {
        let code = detail.code();
        let in_doubt = !detail.no_side_effects;
        let verdict = match code {
            ErrorCode::ProducerFenced | ErrorCode::TopicNotFound => {
                self.ended = Some(match code {
                    ErrorCode::TopicNotFound => "the topic was deleted".to_owned(),
                    _ => format!("its identity was taken over by another producer: {}", detail.message),
                });
                return;
            }
            ErrorCode::OutOfSequence => Verdict::OutOfSequence,
            ErrorCode::UnknownProducer => Verdict::UnknownProducer,
            ErrorCode::BatchCorrupt => Verdict::Damaged,
            ErrorCode::SegmentSealed => Verdict::Retry { in_doubt: false },
            ErrorCode::Throttled | ErrorCode::Unavailable | ErrorCode::OutcomeUnknown => Verdict::Retry { in_doubt },
            _ if detail.retryable => Verdict::Retry { in_doubt },
            _ => Verdict::Refused { in_doubt },
        };
        let class = match code {
            ErrorCode::NotAuthorised => ErrorClass::NotAuthorised,
            ErrorCode::TooLarge | ErrorCode::InvalidArgument => ErrorClass::Invalid,
            ErrorCode::Unavailable | ErrorCode::Throttled | ErrorCode::OutcomeUnknown => ErrorClass::Unreachable,
            _ => ErrorClass::Failed,
        };
        let known = self.queues[partition as usize].is_draining();
        match self.queues[partition as usize].answered(attempt, verdict) {
            Consequence::Nothing | Consequence::Acked(_) => {}
            Consequence::Again => {
                if !matches!(code, ErrorCode::Throttled | ErrorCode::OutOfSequence) {
                    self.stale_routes = true;
                }
                let moved =
                    matches!(code, ErrorCode::SegmentSealed | ErrorCode::Unavailable) && self.brokers.are_several();
                let delay = match retry_after(detail) {
                    // What was sent together fails together: that is one failure.
                    None if known => Some(Duration::ZERO),
                    None if moved => Some(self.moves[partition as usize].next_spread(self.spread)),
                    asked => asked,
                };
                self.trouble(partition, detail.message.clone(), class, delay);
            }
            Consequence::Failed(pending) => self.fail(partition, vec![pending], &detail.message, class, false),
            Consequence::Broken(given_up) => self.fail(partition, given_up, &detail.message, class, false),
        }
    }

    /// Notes what went wrong and lets the partition wait.
    fn trouble(&mut self, partition: u32, why: String, class: ErrorClass, delay: Option<Duration>) {
        let delay = delay.unwrap_or_else(|| self.backoffs[partition as usize].next_spread(self.spread));
        let hold = self.now() + delay;
        let queue = &mut self.queues[partition as usize];
        queue.hold = queue.hold.max(hold);
        *lock(&self.shared.trouble) = Some(why.clone());
        self.last_trouble = Some((why, class));
        self.dirty.insert(partition);
    }

    fn fail(&mut self, partition: u32, pending: Vec<Pending>, why: &str, class: ErrorClass, retryable: bool) {
        for pending in pending {
            let error = ProduceError::NotAcked(Box::new(NotAcked {
                topic: self.shared.topic.clone(),
                partition: PartitionId(partition),
                why: why.to_owned(),
                may_have_happened: pending.may_have_happened(),
                class,
                retryable,
            }));
            if let Some(log) = &self.shared.log {
                let outcome = if pending.may_have_happened() { Decided::InDoubt } else { Decided::Refused };
                log.decided(pending.number, outcome);
            }
            lock(&self.shared.failure).get_or_insert_with(|| error.clone());
            pending.state.decide(Err(error));
            self.shared.room.add_permits(pending.room);
        }
    }

    fn stream_ended(&mut self, stream: StreamId, endpoint: &str, why: String) {
        if self.streams.get(endpoint).is_none_or(|found| found.id != stream) {
            return;
        }
        let Some(ended) = self.streams.remove(endpoint) else { return };
        self.spread = self.shared.runtime.random();
        let mut partitions = BTreeSet::new();
        for (partition, attempt) in ended.under_way.values().flatten() {
            self.queues[*partition as usize].lost(*attempt);
            partitions.insert(*partition);
        }
        let why = format!("lost the connection to the broker at {endpoint}: {why}");
        for partition in partitions {
            self.trouble(partition, why.clone(), ErrorClass::Unreachable, None);
        }
        self.stale_routes = true;
    }

    fn look_up_or_identify(&mut self) {
        let unrouted = |partition: &u32| self.routes.endpoint(PartitionId(*partition)).is_none();
        if !self.looking_up && (self.stale_routes || self.waiting.iter().any(unrouted)) {
            self.look_up();
        }
        let nameless = self.waiting.iter().any(|partition| self.queues[*partition as usize].needs_identity());
        if !self.identifying && nameless {
            self.identifying = true;
            let brokers = Arc::clone(&self.brokers);
            let inputs = self.shared.inputs.clone();
            tokio::spawn(async move {
                let outcome = records::open_producer(&brokers).await.map_err(|error| error.to_string());
                let _ = inputs.send(Input::Identified(outcome));
            });
        }
    }

    fn looked_up(&mut self, outcome: Result<Routes, TopicError>) {
        self.looking_up = false;
        self.spread = self.shared.runtime.random();
        let waiting = std::mem::take(&mut self.waiting);
        match outcome {
            // A lower one is never answered: a broker that still knows it is behind, and another one was asked.
            Ok(routes) if routes.topic.id > self.shared.topic_id => {
                self.ended = Some("the topic was deleted, and another was created under its name".into());
            }
            Ok(routes) => {
                self.routes = routes;
                self.stale_routes = false;
                self.leave_silent();
                for partition in waiting {
                    if self.routes.endpoint(PartitionId(partition)).is_none() {
                        let why = format!("no broker serves partition {partition} now");
                        let several = self.brokers.are_several();
                        let delay = several.then(|| self.moves[partition as usize].next_spread(self.spread));
                        self.trouble(partition, why, ErrorClass::Unreachable, delay);
                    }
                    self.dirty.insert(partition);
                }
            }
            Err(TopicError::NotFound(error)) => self.ended = Some(error.to_string()),
            Err(error) => {
                for partition in waiting {
                    self.trouble(partition, error.to_string(), error.class(), None);
                }
            }
        }
    }

    fn identified(&mut self, outcome: Result<Identity, String>) {
        self.identifying = false;
        self.spread = self.shared.runtime.random();
        let waiting = std::mem::take(&mut self.waiting);
        match outcome {
            Ok(identity) => {
                for queue in &mut self.queues {
                    queue.set_identity(identity);
                }
                self.dirty.extend(waiting);
            }
            Err(why) => {
                for partition in waiting {
                    self.trouble(partition, why.clone(), ErrorClass::Unreachable, None);
                }
            }
        }
    }
}

/// A request without batches yet.
pub(super) fn append_request(request_id: u64, topic_id: TopicId, ack: AckMode, bulk: bool) -> AppendRequest {
    let ack_mode = match ack {
        AckMode::Durable => v1::AckMode::Durable.into(),
        AckMode::Replicated => v1::AckMode::Replicated.into(),
    };
    AppendRequest { request_id, topic_id: topic_id.0, ack_mode, bulk, batches: Vec::new(), granted: false }
}

/// A request holds at most one batch of a partition: first the first batch of each partition, then the second, and so on.
fn in_turns(mut batches: Vec<(u32, Attempt, Bytes)>) -> Vec<(u32, Attempt, Bytes)> {
    let mut turns = Vec::with_capacity(batches.len());
    let mut turn = 0_u32;
    for (at, (partition, ..)) in batches.iter().enumerate() {
        turn = if at > 0 && batches[at - 1].0 == *partition { turn + 1 } else { 0 };
        turns.push(turn);
    }
    let mut order: Vec<usize> = (0..batches.len()).collect();
    order.sort_by_key(|at| turns[*at]);
    order.into_iter().map(|at| (batches[at].0, batches[at].1, std::mem::take(&mut batches[at].2))).collect()
}

/// However the engine ends, nobody waits for ever: what is being built or undecided fails, and nothing more is taken.
impl Drop for Engine {
    fn drop(&mut self) {
        let shared = Arc::clone(&self.shared);
        let why = self.ended.take().unwrap_or_else(|| "the program is shutting down".into());
        for (partition, slot) in shared.slots.iter().enumerate() {
            let mut slot = lock(slot);
            if slot.records > 0 {
                shared.close(PartitionId(partition as u32), &mut slot);
            }
            slot.ended = Some(ProducerEnded { topic: shared.topic.clone(), why: why.clone() });
        }
        shared.room.close();
        self.inputs.close();
        while let Ok(input) = self.inputs.try_recv() {
            if let Input::Closed(closed) = input {
                self.queue(closed);
            }
        }
        for partition in 0..self.queues.len() as u32 {
            let abandoned = self.queues[partition as usize].abandon();
            self.fail(partition, abandoned, &format!("the producer ended: {why}"), ErrorClass::Failed, false);
        }
    }
}

#[cfg(test)]
mod tests;
