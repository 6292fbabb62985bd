//! The task that fetches ahead. See the parent module.

use super::{Delivery, files};
use crate::{
    CallError, Client, ConsumeError, DamagedRecords, LostRecords, PartitionOffsets, Refusal, TopicError,
    backoff::Backoff,
    broker::{Brokers, Failure, MAX_ANSWER_BYTES},
    deployment::Deployment,
    records::{self, Routes},
};
use bytes::Bytes;
use refstream_filer_adapter::Runtime;
use refstream_format::batch::EncodedBatch;
use refstream_proto::v1::{self, ErrorCode, records_client::RecordsClient, tail_response};
use refstream_types::{Offset, PartitionId, Timestamp};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    task::{AbortHandle, JoinSet},
};

/// The most chunks that are fetched ahead.
pub(super) const QUEUED_CHUNKS: usize = 256;
/// The most encoded bytes that are fetched ahead.
const QUEUED_BYTES: usize = 16 << 20;
/// Answers of streams that wait to be looked at.
const QUEUED_ANSWERS: usize = 8;

/// How often it is looked up, of several brokers, whether the one that is read from still serves what is read: it may be gone without a
/// word.
const DOUBT: Duration = Duration::from_secs(1);

/// What the consumer gets.
pub(super) type Item = Result<Chunk, ConsumeError>;

/// Records of one partition, in order.
pub(super) enum Chunk {
    /// As a broker hands them out.
    Batch {
        partition: PartitionId,
        base: Offset,
        append_time: Timestamp,
        /// Records before this offset were delivered before.
        from: Offset,
        /// Records from this offset on are not wanted.
        until: Offset,
        batch: EncodedBatch,
        room: OwnedSemaphorePermit,
    },
    /// As they stand in a file.
    #[cfg_attr(not(feature = "parquet"), allow(dead_code))]
    Rows { rows: Vec<Delivery>, room: OwnedSemaphorePermit },
}

/// Bounds what is fetched ahead.
#[derive(Clone)]
pub(super) struct Outlet {
    queue: mpsc::Sender<Item>,
    room: Arc<Semaphore>,
}

/// The consumer is gone.
pub(super) struct Closed;

impl Outlet {
    pub(super) async fn room(&self, bytes: usize) -> Result<OwnedSemaphorePermit, Closed> {
        let bytes = bytes.clamp(1, QUEUED_BYTES) as u32;
        Arc::clone(&self.room).acquire_many_owned(bytes).await.map_err(|_| Closed)
    }
    pub(super) async fn send(&self, item: Item) -> Result<(), Closed> {
        self.queue.send(item).await.map_err(|_| Closed)
    }
}

/// How far a partition is read.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) position: Offset,
    /// Where to stop.
    pub(super) end: Option<Offset>,
    /// The base offset of a batch that was reported as damaged.
    damaged: Option<Offset>,
}

impl Target {
    pub(super) fn new(position: Offset, end: Option<Offset>) -> Self {
        Self { position, end, damaged: None }
    }
    pub(super) fn is_done(&self) -> bool {
        self.end.is_some_and(|end| self.position >= end)
    }
}

/// Identifies a stream among all that a reader ever had.
type SessionId = u64;

enum Event {
    Answer(SessionId, v1::TailResponse),
    Ended(SessionId, Option<tonic::Status>),
    LookedUp(Result<(Routes, Vec<PartitionOffsets>), TopicError>),
    /// Where partitions are served by now, while everything seems well.
    Checked(Result<Routes, TopicError>),
    Files(files::Outcome),
}

struct Session {
    endpoint: String,
    partitions: BTreeSet<PartitionId>,
    abort: AbortHandle,
}

/// What reading needs of the client.
#[derive(Clone)]
pub(super) struct Context {
    pub(super) brokers: Arc<Brokers>,
    #[cfg_attr(not(feature = "parquet"), allow(dead_code))]
    pub(super) deployment: Arc<Deployment>,
    pub(super) runtime: Arc<dyn Runtime>,
    pub(super) topic: crate::TopicDescription,
    pub(super) outlet: Outlet,
}

pub(super) struct Reader {
    context: Context,
    routes: Routes,
    stale_routes: bool,
    looking_up: bool,
    /// Partitions have changed hands since the last look-up, and nothing else is wrong.
    moved: bool,
    checking: bool,
    check_at: Duration,
    follow: bool,
    targets: BTreeMap<PartitionId, Target>,
    /// Partitions that no stream and no file reader has.
    idle: BTreeSet<PartitionId>,
    /// Partitions whose next records are in files, up to these offsets.
    in_files: BTreeMap<PartitionId, Offset>,
    reading_files: bool,
    sessions: BTreeMap<SessionId, Session>,
    next_session: SessionId,
    tasks: JoinSet<()>,
    sender: mpsc::Sender<Event>,
    events: mpsc::Receiver<Event>,
    backoff: Backoff,
    /// How long to wait for partitions that change hands; gone once something of them has arrived.
    moves: BTreeMap<PartitionId, Backoff>,
    /// Nothing is opened before this time.
    hold: Duration,
    /// The last thing that went wrong, and since when nothing went right.
    trouble: Option<(ConsumeError, Duration)>,
}

impl Reader {
    pub(super) fn new(
        client: &Client,
        routes: Routes,
        targets: BTreeMap<PartitionId, Target>,
        follow: bool,
        queue: mpsc::Sender<Item>,
    ) -> Self {
        let runtime = Arc::clone(client.runtime());
        let (sender, events) = mpsc::channel(QUEUED_ANSWERS);
        Self {
            idle: targets.keys().copied().collect(),
            context: Context {
                brokers: Arc::clone(client.brokers()),
                deployment: Arc::clone(client.deployment()),
                runtime,
                topic: routes.topic.clone(),
                outlet: Outlet { queue, room: Arc::new(Semaphore::new(QUEUED_BYTES)) },
            },
            routes,
            stale_routes: false,
            looking_up: false,
            moved: false,
            checking: false,
            check_at: Duration::ZERO,
            follow,
            targets,
            in_files: BTreeMap::new(),
            reading_files: false,
            sessions: BTreeMap::new(),
            next_session: 0,
            tasks: JoinSet::new(),
            sender,
            events,
            backoff: Backoff::new(),
            moves: BTreeMap::new(),
            hold: Duration::ZERO,
            trouble: None,
        }
    }

    /// Runs until everything is read or nobody listens.
    pub(super) async fn run(mut self) {
        loop {
            self.targets.retain(|_, target| !target.is_done());
            if self.targets.is_empty() {
                return;
            }
            self.idle.retain(|partition| self.targets.contains_key(partition));
            if let Some(error) = self.gave_up() {
                let _ = self.context.outlet.send(Err(error)).await;
                return;
            }
            let now = self.context.runtime.now();
            let wait = self.hold.saturating_sub(now);
            if wait.is_zero() {
                self.start();
            }
            let sleep = self.context.runtime.sleep(wait);
            let doubt = self.context.brokers.are_several() && !self.checking && !self.sessions.is_empty();
            let check = self.context.runtime.sleep(self.check_at.saturating_sub(now));
            let event = tokio::select! {
                event = self.events.recv() => event,
                () = sleep, if !wait.is_zero() => continue,
                () = check, if doubt => {
                    self.check();
                    continue;
                }
                () = self.context.outlet.queue.closed() => return,
            };
            let Some(event) = event else { return };
            if self.handle(event).await.is_err() {
                return;
            }
            while self.tasks.try_join_next().is_some() {}
        }
    }

    /// The error to end with when there was no progress for too long; a reader that follows never gives up.
    fn gave_up(&mut self) -> Option<ConsumeError> {
        let (_, since) = self.trouble.as_ref()?;
        let troubled = self.context.runtime.now().saturating_sub(*since);
        if self.follow || troubled < self.context.brokers.timeout() { None } else { Some(self.trouble.take()?.0) }
    }

    /// Opens what can be opened.
    fn start(&mut self) {
        if !self.reading_files && !self.in_files.is_empty() {
            self.reading_files = true;
            let wanted = std::mem::take(&mut self.in_files);
            let wanted = wanted
                .into_iter()
                .filter_map(|(partition, until)| Some((partition, (self.targets.get(&partition)?.clone(), until))));
            let (context, sender, wanted) = (self.context.clone(), self.sender.clone(), wanted.collect());
            self.tasks.spawn(async move {
                let outcome = files::read(context, wanted).await;
                let _ = sender.send(Event::Files(outcome)).await;
            });
        }
        if self.idle.is_empty() || self.looking_up {
            return;
        }
        let unrouted = self.idle.iter().any(|partition| self.routes.endpoint(*partition).is_none());
        if self.stale_routes || unrouted {
            self.looking_up = true;
            let (context, sender) = (self.context.clone(), self.sender.clone());
            let moved = std::mem::take(&mut self.moved);
            self.tasks.spawn(async move {
                let _ = sender.send(Event::LookedUp(look_up(&context, !moved).await)).await;
            });
            return;
        }
        let mut by_endpoint: BTreeMap<String, BTreeSet<PartitionId>> = BTreeMap::new();
        for partition in std::mem::take(&mut self.idle) {
            if let Some(endpoint) = self.routes.endpoint(partition) {
                by_endpoint.entry(endpoint.to_owned()).or_default().insert(partition);
            }
        }
        for (endpoint, partitions) in by_endpoint {
            self.open(endpoint, partitions);
        }
    }

    /// Looks up who serves what is being read.
    fn check(&mut self) {
        self.checking = true;
        let (context, sender) = (self.context.clone(), self.sender.clone());
        self.tasks.spawn(async move {
            let outcome = records::lookup(&context.brokers, &context.topic.name, Some(context.topic.id)).await;
            let _ = sender.send(Event::Checked(outcome)).await;
        });
    }

    /// Leaves brokers that do not serve any more what is read from them.
    fn checked(&mut self, outcome: Result<Routes, TopicError>) {
        self.checking = false;
        self.check_at = self.context.runtime.now() + DOUBT;
        let Ok(routes) = outcome else { return };
        if routes.topic.id != self.context.topic.id {
            return;
        }
        for session in self.sessions.values_mut() {
            let endpoint = session.endpoint.clone();
            let moved = |partition: &PartitionId| routes.endpoint(*partition).is_some_and(|route| route != endpoint);
            let (gone, left) = std::mem::take(&mut session.partitions).into_iter().partition(|p| moved(p));
            session.partitions = left;
            let gone: BTreeSet<PartitionId> = gone;
            self.idle.extend(gone);
        }
        self.sessions.retain(|_, session| {
            let stays = !session.partitions.is_empty();
            if !stays {
                session.abort.abort();
            }
            stays
        });
        self.routes = routes;
    }

    fn open(&mut self, endpoint: String, partitions: BTreeSet<PartitionId>) {
        let request = v1::TailRequest {
            topic_id: self.context.topic.id.0,
            positions: partitions
                .iter()
                .filter_map(|partition| {
                    let offset = self.targets.get(partition)?.position.0;
                    Some(v1::PartitionPosition { partition: partition.0, offset })
                })
                .collect(),
            follow: self.follow,
        };
        self.next_session += 1;
        let id = self.next_session;
        let (brokers, sender, to) = (Arc::clone(&self.context.brokers), self.sender.clone(), endpoint.clone());
        let abort = self.tasks.spawn(async move {
            let status = tail(id, &brokers, &to, request, &sender).await.err();
            let _ = sender.send(Event::Ended(id, status)).await;
        });
        self.sessions.insert(id, Session { endpoint, partitions, abort });
    }

    async fn handle(&mut self, event: Event) -> Result<(), Closed> {
        match event {
            Event::Answer(session, answer) => {
                let Some(answer) = answer.event else { return Ok(()) };
                let partition = PartitionId(match &answer {
                    tail_response::Event::Batch(batch) => batch.partition,
                    tail_response::Event::CaughtUp(at) => at.partition,
                    tail_response::Event::Error(error) => error.partition,
                });
                // A stream may have answers under way about partitions that were taken from it: somebody else reads them by now, from where
                // they were then.
                if !self.has(session, partition) {
                    return Ok(());
                }
                if !matches!(answer, tail_response::Event::Error(_)) {
                    self.moves.remove(&partition);
                }
                match answer {
                    tail_response::Event::Batch(batch) => self.batch(batch).await,
                    tail_response::Event::CaughtUp(at) => {
                        self.progress();
                        self.caught_up(partition, Offset(at.offset)).await
                    }
                    tail_response::Event::Error(error) => self.partition_error(session, error).await,
                }
            }
            Event::Ended(session, status) => self.ended(session, status).await,
            Event::LookedUp(outcome) => self.looked_up(outcome).await,
            Event::Checked(outcome) => {
                self.checked(outcome);
                Ok(())
            }
            Event::Files(outcome) => self.files_read(outcome).await,
        }
    }

    /// Whether a stream reads a partition, by now.
    fn has(&self, session: SessionId, partition: PartitionId) -> bool {
        self.sessions.get(&session).is_some_and(|session| session.partitions.contains(&partition))
    }

    fn progress(&mut self) {
        self.backoff.reset();
        self.trouble = None;
    }

    fn trouble(&mut self, error: ConsumeError) {
        let delay = self.backoff.next(&*self.context.runtime);
        self.trouble_for(error, delay);
    }

    /// Notes what goes wrong, and opens nothing for a time.
    fn trouble_for(&mut self, error: ConsumeError, delay: Duration) {
        let now = self.context.runtime.now();
        let since = self.trouble.as_ref().map_or(now, |(_, since)| *since);
        self.trouble = Some((error, since));
        self.hold = now + delay;
    }

    /// How long to wait for a partition that changes hands.
    fn move_of(&mut self, partition: PartitionId) -> Duration {
        self.moves.entry(partition).or_insert_with(Backoff::moving).next(&*self.context.runtime)
    }

    async fn batch(&mut self, batch: v1::TailBatch) -> Result<(), Closed> {
        let partition = PartitionId(batch.partition);
        let base = Offset(batch.base_offset);
        let parsed = parse(batch.batch, base);
        self.progress();
        let (parsed, behind) = match parsed {
            Ok(parsed) => parsed,
            Err(why) => return self.damaged(partition, base, None, why).await,
        };
        // What lies before the batch is lost, unless it was reported as damaged.
        self.caught_up(partition, base).await?;
        let Some(target) = self.targets.get_mut(&partition) else { return Ok(()) };
        if target.is_done() || behind <= target.position {
            return Ok(());
        }
        let from = std::mem::replace(&mut target.position, behind);
        let until = target.end.unwrap_or(Offset::MAX);
        target.damaged = None;
        let room = self.context.outlet.room(parsed.bytes().len()).await?;
        let append_time = Timestamp::from_micros(batch.append_time);
        let chunk = Chunk::Batch { partition, base, append_time, from, until, batch: parsed, room };
        self.context.outlet.send(Ok(chunk)).await
    }

    /// Everything of the partition before `offset` has arrived or never will.
    async fn caught_up(&mut self, partition: PartitionId, offset: Offset) -> Result<(), Closed> {
        let Some(target) = self.targets.get_mut(&partition) else { return Ok(()) };
        if offset <= target.position {
            return Ok(());
        }
        let from = std::mem::replace(&mut target.position, offset);
        if target.damaged.take().is_some() {
            return Ok(());
        }
        self.lost(partition, from, offset, "the broker passed them over").await
    }

    async fn lost(&mut self, partition: PartitionId, from: Offset, to: Offset, why: &str) -> Result<(), Closed> {
        let topic = self.context.topic.name.clone();
        let lost = LostRecords { topic, partition, from, to, why: why.to_owned() };
        self.context.outlet.send(Err(ConsumeError::Lost(Box::new(lost)))).await
    }

    async fn damaged(
        &mut self,
        partition: PartitionId,
        base: Offset,
        until: Option<Offset>,
        why: String,
    ) -> Result<(), Closed> {
        let Some(target) = self.targets.get_mut(&partition) else { return Ok(()) };
        let known = target.damaged.replace(base) == Some(base);
        let offset = base.max(target.position);
        if let Some(until) = until {
            target.position = target.position.max(until);
            target.damaged = None;
        }
        if known {
            return Ok(());
        }
        let topic = self.context.topic.name.clone();
        let damaged = DamagedRecords { topic, partition, offset, until, why };
        self.context.outlet.send(Err(ConsumeError::Damaged(Box::new(damaged)))).await
    }

    /// One partition failed at its broker; it leaves the stream.
    async fn partition_error(&mut self, session: SessionId, error: v1::PartitionError) -> Result<(), Closed> {
        let partition = PartitionId(error.partition);
        let Some(session) = self.sessions.get_mut(&session) else { return Ok(()) };
        session.partitions.remove(&partition);
        let detail = error.error.unwrap_or_default();
        let refusal = Refusal::new(&session.endpoint, &detail);
        let Some(target) = self.targets.get(&partition) else { return Ok(()) };
        let position = target.position;
        match detail.code() {
            ErrorCode::InFiles => {
                self.progress();
                self.in_files.insert(partition, detail.until.map_or(position.next(), Offset));
                return Ok(());
            }
            ErrorCode::BatchCorrupt => {
                self.progress();
                let base = detail.offset.map_or(position, Offset);
                let until = detail.until.map_or(base.next(), Offset).max(position.next());
                self.damaged(partition, base, Some(until), detail.message).await?;
            }
            ErrorCode::NotAuthorised
            | ErrorCode::InvalidArgument
            | ErrorCode::PartitionNotFound
            | ErrorCode::Unsupported => {
                self.targets.remove(&partition);
                return self.context.outlet.send(Err(CallError::Refused(refusal).into())).await;
            }
            ErrorCode::SegmentSealed => {
                // Another broker goes on with it.
                self.moved = !self.stale_routes || self.moved;
                self.stale_routes = true;
                let delay = self.move_of(partition);
                self.trouble_for(CallError::Refused(refusal).into(), delay);
            }
            // Anything else may be over after a new look-up, which also finds out what retention has deleted.
            _ => {
                self.stale_routes = true;
                self.trouble(CallError::Refused(refusal).into());
            }
        }
        self.idle.insert(partition);
        Ok(())
    }

    async fn ended(&mut self, session: SessionId, status: Option<tonic::Status>) -> Result<(), Closed> {
        let Some(session) = self.sessions.remove(&session) else { return Ok(()) };
        if let Some(status) = status {
            self.stale_routes = true;
            let since = self.trouble.as_ref().map_or(Duration::ZERO, |(_, since)| self.context.runtime.now() - *since);
            let error = Failure::of(&session.endpoint, &status).into_error(&session.endpoint, since, false);
            self.trouble(error.into());
        } else {
            for partition in &session.partitions {
                // A damaged batch was the last one.
                if let Some(target) = self.targets.get_mut(partition)
                    && let (Some(_), Some(end)) = (target.damaged, target.end)
                {
                    target.position = end;
                }
            }
            let unfinished = |partition: &PartitionId| self.targets.get(partition).is_some_and(|t| !t.is_done());
            if session.partitions.iter().any(unfinished) {
                self.stale_routes = true;
                let why = "it ended the stream before the end of the topic";
                let error = self.context.brokers.invalid_answer(why);
                self.trouble(error.into());
            }
        }
        self.idle.extend(session.partitions);
        Ok(())
    }

    async fn looked_up(&mut self, outcome: Result<(Routes, Vec<PartitionOffsets>), TopicError>) -> Result<(), Closed> {
        self.looking_up = false;
        match outcome {
            Ok((routes, held)) => {
                // A lower one is never answered: a broker that still knows it is behind, and another one was asked.
                let deleted = routes.topic.id > self.context.topic.id;
                if deleted {
                    return self.end(TopicError::NotFound(crate::TopicNotFound { topic: routes.topic.name })).await;
                }
                self.routes = routes;
                self.stale_routes = false;
                let unserved = |partition: &&PartitionId| self.routes.endpoint(**partition).is_none();
                let unserved: Vec<_> = self.idle.iter().filter(unserved).copied().collect();
                if !unserved.is_empty() {
                    let error = self.context.brokers.invalid_answer("no broker serves some partitions now");
                    if self.context.brokers.are_several() {
                        let delay = unserved.into_iter().map(|partition| self.move_of(partition)).min();
                        self.trouble_for(error.into(), delay.unwrap_or_default());
                    } else {
                        self.trouble(error.into());
                    }
                }
                for held in held {
                    let idle = self.idle.contains(&held.partition);
                    if let Some(target) = self.targets.get_mut(&held.partition)
                        && idle
                        && target.position < held.earliest
                    {
                        let from = std::mem::replace(&mut target.position, held.earliest);
                        let why = "retention deleted them before they were read";
                        self.lost(held.partition, from, held.earliest, why).await?;
                    }
                }
                Ok(())
            }
            Err(error @ TopicError::NotFound(_)) => self.end(error).await,
            Err(error) => {
                self.trouble(error.into());
                Ok(())
            }
        }
    }

    /// Reports an error after which nothing can be read.
    async fn end(&mut self, error: TopicError) -> Result<(), Closed> {
        self.context.outlet.send(Err(error.into())).await?;
        Err(Closed)
    }

    async fn files_read(&mut self, outcome: files::Outcome) -> Result<(), Closed> {
        self.reading_files = false;
        let files::Outcome { reached, failed } = outcome;
        for (partition, position) in reached {
            if let Some(target) = self.targets.get_mut(&partition) {
                if position > target.position {
                    target.position = position;
                    target.damaged = None;
                }
                self.idle.insert(partition);
            }
        }
        self.progress();
        for (partition, error) in failed {
            if self.follow && error.is_retryable() {
                self.trouble(error);
                self.idle.insert(partition);
            } else {
                self.targets.remove(&partition);
                self.idle.remove(&partition);
                self.context.outlet.send(Err(error)).await?;
            }
        }
        Ok(())
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        for session in self.sessions.values() {
            session.abort.abort();
        }
    }
}

/// Who serves the topic, and, if wanted, which offsets there are.
async fn look_up(context: &Context, offsets: bool) -> Result<(Routes, Vec<PartitionOffsets>), TopicError> {
    let name = &context.topic.name;
    let routes = records::lookup(&context.brokers, name, Some(context.topic.id)).await?;
    if !offsets {
        return Ok((routes, Vec::new()));
    }
    let (held, _) = records::list_offsets(&context.brokers, context.topic.id, None)
        .await
        .map_err(|error| TopicError::of(name, error))?;
    Ok((routes, held))
}

/// Passes on a stream's answers until it ends.
async fn tail(
    id: SessionId,
    brokers: &Brokers,
    endpoint: &str,
    request: v1::TailRequest,
    sender: &mpsc::Sender<Event>,
) -> Result<(), tonic::Status> {
    let channel = brokers.channel(endpoint).map_err(|error| tonic::Status::unavailable(error.to_string()))?;
    let mut client = RecordsClient::new(channel).max_decoding_message_size(MAX_ANSWER_BYTES);
    let mut answers = client.tail(request).await?.into_inner();
    while let Some(answer) = answers.message().await? {
        if sender.send(Event::Answer(id, answer)).await.is_err() {
            break;
        }
    }
    Ok(())
}

/// A batch and the offset behind it.
fn parse(bytes: Bytes, base: Offset) -> Result<(EncodedBatch, Offset), String> {
    let batch = EncodedBatch::parse(bytes).map_err(|error| error.to_string())?;
    let behind = base.checked_add(u64::from(batch.header().records)).ok_or("its offsets exceed 2^63 - 1")?;
    Ok((batch, behind))
}

#[cfg(test)]
mod tests;
