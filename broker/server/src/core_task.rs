//! The one task that owns the core.
//!
//! Inputs come from clients through a bounded channel (a full channel is the back-pressure that appends feel), from store
//! operations that ended, and from the clock. The effects of an input are carried out in order before the next input is taken:
//! the reader knows a committed slot before its producers are answered, and a changed state before anybody is told that it
//! changed. Store operations run as tasks of their own; their ends come back as inputs.
//!
//! When the core stops, or this task ends in any other way, every unanswered request is answered with "outcome unknown": its
//! sender is dropped. Operations under way are dropped too; what they sent to the store may still land, as after a crash.

mod operations;

use crate::{errors, metrics::Metrics, reader::Reader};
use operations::Operations;
use refstream_core::{
    Broker, Done, Effect, Identity, Input, Now, OpId, Phase, Reply, Settings, Status, StopReason, Ticket,
};
use refstream_filer_adapter::Runtime;
use refstream_format::cluster_log::ClusterState;
use refstream_proto::v1::ErrorDetail;
use refstream_types::Epoch;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::{JoinError, JoinSet},
};

/// Requests that may wait for the core.
const QUEUE: usize = 512;

struct Request {
    input: Input,
    ticket: Ticket,
    /// Where a reply goes, if there will be one.
    reply: Option<oneshot::Sender<Reply>>,
}

/// How the rest of the server speaks to the core.
#[derive(Clone, Debug)]
pub(crate) struct CoreHandle {
    requests: mpsc::Sender<Request>,
    tickets: Arc<AtomicU64>,
    /// The cluster's state, as the core sees it.
    pub(crate) state: watch::Receiver<Arc<ClusterState>>,
    /// How the core is, and when (monotonic) that was.
    pub(crate) status: watch::Receiver<(Status, Duration)>,
    /// Why it stopped, once it did.
    pub(crate) stopped: watch::Receiver<Option<StopReason>>,
}

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Request").field("ticket", &self.ticket).finish_non_exhaustive()
    }
}

impl CoreHandle {
    /// Hands a request to the core, waiting while its queue is full; the reply comes through the receiver, which fails when the
    /// broker stopped before the outcome was known.
    ///
    /// # Errors
    /// When the broker has stopped: nothing happened.
    pub(crate) async fn send(
        &self,
        input: impl FnOnce(Ticket) -> Input,
    ) -> Result<oneshot::Receiver<Reply>, ErrorDetail> {
        let ticket = Ticket(self.tickets.fetch_add(1, Ordering::Relaxed));
        let (reply, answer) = oneshot::channel();
        let request = Request { input: input(ticket), ticket, reply: Some(reply) };
        self.requests.send(request).await.map_err(|_| self.stop_detail())?;
        Ok(answer)
    }

    /// Hands a request to the core and waits for its reply.
    ///
    /// # Errors
    /// When the broker has stopped, before or after it took the request.
    pub(crate) async fn call(&self, input: impl FnOnce(Ticket) -> Input) -> Result<Reply, ErrorDetail> {
        self.send(input).await?.await.map_err(|_| errors::outcome_unknown())
    }

    /// Tells the core something that it does not answer. A core that has stopped does not mind.
    pub(crate) async fn tell(&self, input: Input) {
        let ticket = Ticket(self.tickets.fetch_add(1, Ordering::Relaxed));
        let _ = self.requests.send(Request { input, ticket, reply: None }).await;
    }

    /// Whether the core is over.
    pub(crate) fn has_stopped(&self) -> bool {
        self.stopped.borrow().is_some()
    }

    fn stop_detail(&self) -> ErrorDetail {
        match &*self.stopped.borrow() {
            Some(reason) => errors::stopped(reason),
            None => errors::unavailable("the broker is stopping; try again here once it was restarted, or elsewhere"),
        }
    }
}

/// What the core's task needs.
pub(crate) struct CoreTask {
    pub(crate) settings: Settings,
    pub(crate) identity: Identity,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) filer: Arc<dyn refstream_filer_adapter::Filer>,
    pub(crate) layout: refstream_types::Layout,
    pub(crate) reader: Arc<Reader>,
    pub(crate) metrics: Arc<Metrics>,
}

impl CoreTask {
    /// Starts the task. It ends when the core stops or every handle is dropped.
    pub(crate) fn spawn(self) -> (CoreHandle, tokio::task::JoinHandle<()>) {
        let (requests, inbox) = mpsc::channel(QUEUE);
        let starting = Status {
            phase: Phase::Starting("taking an epoch"),
            epoch: None,
            committed_slot: refstream_types::Slot(0),
            version: refstream_types::Version(0),
            leads: false,
            brokers: 0,
            absent: BTreeSet::new(),
            slots_in_flight: 0,
            pending_bytes: 0,
            stuck: None,
            damaged: BTreeMap::new(),
        };
        let (state, state_seen) = watch::channel(Arc::new(ClusterState::default()));
        let (status, status_seen) = watch::channel((starting, self.runtime.now()));
        let (stopped, stopped_seen) = watch::channel(None);
        let handle = CoreHandle {
            requests,
            tickets: Arc::new(AtomicU64::new(1)),
            state: state_seen,
            status: status_seen,
            stopped: stopped_seen,
        };
        let running = Running {
            operations: Operations {
                runtime: Arc::clone(&self.runtime),
                filer: self.filer,
                layout: self.layout,
                metrics: Arc::clone(&self.metrics),
                running: JoinSet::new(),
            },
            runtime: self.runtime,
            reader: self.reader,
            metrics: self.metrics,
            replies: HashMap::new(),
            wake_at: None,
            state,
            status,
            inbox,
        };
        let work = tokio::spawn(running.run(self.settings, self.identity));
        // Whatever ends the task, a panic included, everybody is told that it is over.
        let supervisor = tokio::spawn(async move {
            let mut work = AbortOnDrop(work);
            let reason = match (&mut work.0).await {
                Ok(reason) => reason,
                Err(error) => StopReason::Cut(format!("the broker's core failed: {}", describe(&error))),
            };
            if !matches!(reason, StopReason::Drained) {
                tracing::error!(%reason, "the broker stopped");
            }
            stopped.send_replace(Some(reason));
        });
        (handle, supervisor)
    }
}

struct AbortOnDrop<T>(tokio::task::JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn describe(error: &JoinError) -> &'static str {
    if error.is_panic() { "it panicked; please report what the log says" } else { "it was cancelled" }
}

struct Running {
    operations: Operations,
    runtime: Arc<dyn Runtime>,
    reader: Arc<Reader>,
    metrics: Arc<Metrics>,
    replies: HashMap<Ticket, oneshot::Sender<Reply>>,
    wake_at: Option<Duration>,
    state: watch::Sender<Arc<ClusterState>>,
    status: watch::Sender<(Status, Duration)>,
    inbox: mpsc::Receiver<Request>,
}

impl Running {
    fn now(&self) -> Now {
        Now { monotonic: self.runtime.now(), wall: self.runtime.wall() }
    }

    async fn run(mut self, settings: Settings, identity: Identity) -> StopReason {
        let mut effects = Vec::new();
        let mut broker = Broker::start(settings, identity, self.now(), &mut effects);
        let mut stop = self.carry_out(&mut effects);
        let runtime = Arc::clone(&self.runtime);
        let mut timer: Option<(Duration, futures::future::BoxFuture<'static, ()>)> = None;
        while stop.is_none() {
            self.publish(&broker);
            match self.wake_at {
                None => timer = None,
                Some(at) if timer.as_ref().is_some_and(|(set, _)| *set == at) => {}
                Some(at) => timer = Some((at, runtime.sleep(at.saturating_sub(runtime.now())))),
            }
            // A flood of requests must not keep the clock from being looked at: linger and liveness hang on it.
            let due = self.wake_at.is_some_and(|at| at <= runtime.now());
            let input = if due {
                self.wake_at = None;
                Input::Tick
            } else {
                tokio::select! {
                    biased;
                    ended = self.operations.next() => match ended {
                        Ok((op, done)) => Input::Done { op, done },
                        Err(error) => {
                            stop = Some(StopReason::Cut(format!("a store operation failed: {}", describe(&error))));
                            break;
                        }
                    },
                    () = wait(&mut timer) => {
                        self.wake_at = None;
                        timer = None;
                        Input::Tick
                    }
                    request = self.inbox.recv() => match request {
                        Some(request) => {
                            if let Some(reply) = request.reply {
                                self.replies.insert(request.ticket, reply);
                            }
                            request.input
                        }
                        // The server is gone: end as a crash would.
                        None => return StopReason::Drained,
                    },
                }
            };
            broker.handle(self.now(), input, &mut effects);
            stop = self.carry_out(&mut effects);
        }
        self.publish(&broker);
        self.status.send_modify(|(status, _)| status.phase = Phase::Stopped);
        self.metrics.up.set(0);
        stop.unwrap_or(StopReason::Drained)
    }

    /// Carries out effects in order; the reason when the core stopped.
    fn carry_out(&mut self, effects: &mut Vec<Effect>) -> Option<StopReason> {
        for effect in effects.drain(..) {
            match effect {
                Effect::Reply { ticket, reply } => {
                    if let Some(sender) = self.replies.remove(&ticket) {
                        // A client that went away needs no answer.
                        let _ = sender.send(reply);
                    }
                }
                Effect::Committed { epoch, batches, .. } => self.reader.committed(epoch, batches),
                Effect::State(state) => {
                    self.reader.set_state(&state);
                    self.count(&state);
                    self.state.send_replace(state);
                }
                Effect::WakeAt(at) => self.wake_at = Some(at),
                Effect::Stop(reason) => return Some(reason),
                Effect::Commit { op, chain, number, bytes } => self.operations.commit(op, chain, number, bytes),
                Effect::Read { op, chain, number } => self.operations.read(op, chain, number),
                Effect::ReadLog { op, number } => self.operations.read_log(op, number),
                Effect::Tip { op, chain, hint } => self.operations.tip(op, chain, hint),
                Effect::LatestSnapshot { op } => self.operations.latest_snapshot(op),
                Effect::StoreSnapshot { op, version, bytes } => self.operations.store_snapshot(op, version, bytes),
                Effect::Free { op, chain, below } => self.operations.free(op, chain, below),
            }
        }
        None
    }

    fn count(&self, state: &ClusterState) {
        let live = || state.topics.values().filter(|topic| !topic.deleted);
        let gauge = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.metrics.topics.set(gauge(live().count()));
        self.metrics.open_segments.set(gauge(state.topics.values().map(|topic| topic.open.len()).sum()));
        self.metrics.sealed_segments.set(gauge(state.topics.values().map(|topic| topic.sealed.len()).sum()));
    }

    fn publish(&self, broker: &Broker) {
        let now = self.now();
        let status = broker.status(now);
        let metrics = &self.metrics;
        metrics.up.set(i64::from(status.phase == Phase::Serving));
        metrics.epoch.set(status.epoch.map_or(0, |epoch| epoch.0));
        metrics.leads.set(i64::from(status.leads));
        metrics.brokers.set(i64::try_from(status.brokers).unwrap_or(i64::MAX));
        metrics.damaged_journals.set(i64::try_from(status.damaged.len()).unwrap_or(i64::MAX));
        if let Some(epoch) = status.epoch {
            self.reader.set_epoch(epoch);
        }
        metrics.committed_slot.set(status.committed_slot.0);
        metrics.slots_in_flight.set(i64::try_from(status.slots_in_flight).unwrap_or(i64::MAX));
        metrics.pending_bytes.set(i64::try_from(status.pending_bytes).unwrap_or(i64::MAX));
        self.status.send_if_modified(|(current, at)| {
            if current.leads != status.leads {
                tracing::info!(leads = status.leads, epoch = status.epoch.map(|epoch| epoch.0), "leading the cluster");
            }
            if current.phase != status.phase {
                tracing::info!(phase = ?status.phase, epoch = status.epoch.map(|epoch| epoch.0), "the broker's phase");
            }
            note_damage(&current.damaged, &status.damaged);
            *at = now.monotonic;
            // Receivers wait for phases only; the rest they look at when they are asked.
            let waking = current.phase != status.phase;
            *current = status;
            waking
        });
    }
}

/// One line for each journal that turns out to be damaged, and when it is not any more.
fn note_damage(before: &BTreeMap<Epoch, String>, now: &BTreeMap<Epoch, String>) {
    for (epoch, why) in now.iter().filter(|(epoch, _)| !before.contains_key(epoch)) {
        tracing::error!(
            %epoch, why,
            "the journal of a dead broker cannot be recovered: nobody serves its partitions until what is wrong is put right; trying again now and then"
        );
    }
    for epoch in before.keys().filter(|epoch| !now.contains_key(epoch)) {
        tracing::info!(%epoch, "the journal that seemed damaged is recovered, or another broker sees to it");
    }
}

async fn wait(timer: &mut Option<(Duration, futures::future::BoxFuture<'static, ()>)>) {
    match timer {
        Some((_, sleep)) => sleep.await,
        None => std::future::pending().await,
    }
}

/// What an ended operation tells the core.
type Ended = (OpId, Done);
