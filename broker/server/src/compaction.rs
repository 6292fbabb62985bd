//! Closing segments: sealed ones become files, then leave the cluster's state.
//!
//! For each topic, never twice at once: the compactor puts sealed segments into files and commits those to the topic's manifest; then
//! the core is told, which takes the segments out of the state. A crash between the two is repeated: the compactor finds the segments in
//! its manifest and writes nothing twice. Segments without records are closed without it, and so are those of a deleted topic.
//!
//! The automatic part wakes when the state changes, tries again with growing waits where a compaction failed, and looks regularly for
//! topics with files that became due to be published.

use crate::{
    Compacted, Compactor, CompactorError,
    core_task::CoreHandle,
    errors,
    metrics::Metrics,
    node::unexpected,
    reader::{Reader, lock},
};
use futures::{StreamExt, stream};
use refstream_core::{Input, Phase, Reply};
use refstream_filer_adapter::Runtime;
use refstream_format::{
    cluster_log::{SealedSegment, TopicState},
    manifest::{DataFile, Manifest, Tier},
};
use refstream_journal::{Metadata, ReadError};
use refstream_proto::v1::ErrorDetail;
use refstream_types::{SegmentId, TopicId};
use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio_util::sync::CancellationToken;

/// Topics compacted at once.
const COMPACTIONS: usize = 2;
/// The wait after a compaction that failed; it doubles up to [`LONGEST_WAIT`].
const FIRST_WAIT: Duration = Duration::from_millis(500);
/// The longest wait between tries.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// How often the reader drops the index of segments that were closed.
const PRUNE_EVERY: Duration = Duration::from_secs(5);

/// Compacts on request and by itself.
#[derive(Debug)]
pub(crate) struct Compaction {
    pub(crate) compactor: Option<Arc<dyn Compactor>>,
    pub(crate) core: CoreHandle,
    pub(crate) reader: Arc<Reader>,
    pub(crate) metadata: Metadata,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) publish_every: Duration,
    pub(crate) topics: Mutex<Topics>,
}

/// What is remembered of topics.
#[derive(Debug, Default)]
pub(crate) struct Topics {
    /// Held while a topic is compacted.
    gates: HashMap<TopicId, Arc<tokio::sync::Mutex<()>>>,
    /// Nothing of these waits to be published.
    quiet: HashSet<TopicId>,
}

/// Tries that failed in a row, and when to try again.
type Failures = HashMap<TopicId, (u32, Duration)>;

impl Compaction {
    /// Whether there is a compactor.
    pub(crate) fn is_available(&self) -> bool {
        self.compactor.is_some()
    }

    /// The broker whose turn it is to compact a topic, if that is another one. Topics take turns among the brokers; while the brokers
    /// change, two may be at one topic: the manifest's numbers decide between them, and nothing is written twice. For one that is presumed dead
    /// and cannot be recovered, the leader does it.
    pub(crate) fn elsewhere(&self, topic: TopicId) -> Option<String> {
        let (mine, absent) = {
            let status = self.core.status.borrow();
            (status.0.epoch, status.0.absent.clone())
        };
        let state = self.core.state.borrow();
        let takers: Vec<_> = state.epochs.iter().filter(|(_, broker)| broker.takes_segments()).collect();
        let at = usize::try_from(topic.0 % u64::try_from(takers.len().max(1)).unwrap_or(1)).unwrap_or(0);
        let (turn, _) = takers.get(at)?;
        let leader = state.leader.map(|(_, leader)| leader).filter(|_| absent.contains(turn));
        let epoch = leader.unwrap_or(**turn);
        if Some(epoch) == mine {
            return None;
        }
        state.epochs.get(&epoch).map(|broker| broker.endpoint.clone())
    }

    /// The files of a topic's closed segments, oldest first.
    ///
    /// # Errors
    /// When the store failed or what it holds is damaged.
    pub(crate) async fn files(&self, topic: &TopicState) -> Result<Vec<DataFile>, ErrorDetail> {
        let manifest = match &self.compactor {
            Some(compactor) => compactor.manifest(topic).await.map_err(|error| errors::compactor(&error))?,
            None => self.metadata.manifest(topic, 0).await.map_err(|error| read_error(&error))?,
        };
        let Some(manifest) = manifest else { return Ok(Vec::new()) };
        let mut files = Vec::new();
        for (key, _) in &manifest.pages {
            let page = self.metadata.object(key).await.map_err(|error| read_error(&error))?;
            files.extend(
                Manifest::decode_page(&page)
                    .map_err(|error| errors::internal(format!("the manifest page {key} is damaged: {error}")))?,
            );
        }
        files.extend(manifest.files);
        Ok(files)
    }

    /// Compacts a topic's sealed segments and closes them; waits while the topic is being compacted.
    ///
    /// # Errors
    /// As a client is to see it; what was committed stands.
    pub(crate) async fn compact_topic(&self, id: TopicId, publish: bool) -> Result<Compacted, ErrorDetail> {
        let gate = Arc::clone(lock(&self.topics).gates.entry(id).or_default());
        let _gate = gate.lock().await;
        // Looked at behind the gate: what the one before has closed is not there any more.
        let topic = self.core.state.borrow().topics.get(&id).cloned().ok_or_else(|| errors::no_such_topic_id(id))?;
        let mut close: Vec<SegmentId> = Vec::new();
        let (without, full): (Vec<_>, Vec<_>) =
            topic.sealed.values().partition(|segment| topic.deleted || segment.is_empty());
        close.extend(without.iter().map(|segment| segment.opened.id));
        let full: Vec<SealedSegment> = full.into_iter().cloned().collect();
        let mut done = Compacted::default();
        if let Some(compactor) = &self.compactor
            && !topic.deleted
        {
            done = self.run_compactor(&**compactor, &topic, &full, publish).await.map_err(|error| {
                self.metrics.compaction_failures.inc();
                errors::compactor(&error)
            })?;
            close.extend(done.segments.iter().map(|number| SegmentId { topic: id, number: *number }));
            close.retain(|segment| topic.sealed.contains_key(&segment.number));
        }
        if !close.is_empty() {
            close.sort_unstable();
            match self.core.call(|ticket| Input::Closed { ticket, segments: close }).await? {
                Reply::Closed(result) => result.map_err(|error| errors::operation(&error))?,
                other => return Err(unexpected(&other)),
            }
        }
        Ok(done)
    }

    async fn run_compactor(
        &self,
        compactor: &dyn Compactor,
        topic: &TopicState,
        segments: &[SealedSegment],
        publish: bool,
    ) -> Result<Compacted, CompactorError> {
        let started = self.runtime.now();
        let done = compactor.compact(topic, segments, publish).await?;
        let took = self.runtime.now().saturating_sub(started);
        self.metrics.compactions.inc();
        self.metrics.compaction_rows.inc_by(done.rows);
        self.metrics.compaction_bytes.inc_by(done.bytes);
        self.metrics.compaction_latency.observe(took.as_secs_f64());
        if !done.segments.is_empty() || !done.files.is_empty() {
            lock(&self.topics).quiet.remove(&topic.id);
            tracing::info!(
                topic = %topic.name, segments = done.segments.len(), files = done.files.len(), rows = done.rows,
                bytes = done.bytes, ?took, "compacted"
            );
        }
        Ok(done)
    }

    /// The automatic part; runs until `closing`.
    pub(crate) async fn run(self: Arc<Self>, closing: CancellationToken) {
        let mut state = self.core.state.clone();
        let mut status = self.core.status.clone();
        tokio::select! {
            () = closing.cancelled() => return,
            serving = status.wait_for(|(status, _)| status.phase == Phase::Serving) => {
                if serving.is_err() {
                    return;
                }
            }
        }
        let mut failures = Failures::new();
        let mut publish_at = self.runtime.now() + self.publish_every;
        loop {
            let now = self.runtime.now();
            let sealed = self.sealed(&state.borrow_and_update().topics, &failures, now);
            let publish = now >= publish_at;
            let mut topics = sealed;
            if publish {
                publish_at = now + self.publish_every;
                topics.extend(self.unpublished());
                topics.sort_unstable();
                topics.dedup();
            }
            let this = &*self;
            let work = async {
                stream::iter(topics)
                    .map(|id| async move { (id, this.compact_topic(id, false).await) })
                    .buffer_unordered(COMPACTIONS)
                    .collect::<Vec<_>>()
                    .await
            };
            let results = tokio::select! {
                () = closing.cancelled() => return,
                results = work => results,
            };
            for (id, result) in results {
                self.after(id, result, &mut failures).await;
            }
            self.reader.prune();
            let now = self.runtime.now();
            let retry = failures.values().map(|(_, at)| *at).min();
            let wake = retry.into_iter().chain([publish_at, now + PRUNE_EVERY]).min().unwrap_or(publish_at);
            tokio::select! {
                () = closing.cancelled() => return,
                changed = state.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
                () = self.runtime.sleep(wake.saturating_sub(now)) => {}
            }
        }
    }

    /// Topics with something to close that need not wait.
    fn sealed(
        &self,
        topics: &std::collections::BTreeMap<TopicId, Arc<TopicState>>,
        failures: &Failures,
        now: Duration,
    ) -> Vec<TopicId> {
        let closable = |topic: &TopicState| {
            topic.sealed.values().any(|segment| self.is_available() || topic.deleted || segment.is_empty())
        };
        topics
            .values()
            .filter(|topic| self.elsewhere(topic.id).is_none())
            .filter(|topic| closable(topic) && failures.get(&topic.id).is_none_or(|(_, at)| *at <= now))
            .map(|topic| topic.id)
            .collect()
    }

    /// Topics that may have files to publish.
    fn unpublished(&self) -> Vec<TopicId> {
        if !self.is_available() {
            return Vec::new();
        }
        let state = Arc::clone(&self.core.state.borrow());
        let quiet = &lock(&self.topics).quiet;
        state
            .topics
            .values()
            .filter(|topic| !topic.deleted && !quiet.contains(&topic.id) && self.elsewhere(topic.id).is_none())
            .map(|topic| topic.id)
            .collect()
    }

    async fn after(&self, id: TopicId, result: Result<Compacted, ErrorDetail>, failures: &mut Failures) {
        let topic = self.core.state.borrow().topics.get(&id).cloned();
        match result {
            Ok(done) => {
                failures.remove(&id);
                if done.segments.is_empty()
                    && done.files.is_empty()
                    && let (Some(compactor), Some(topic)) = (&self.compactor, &topic)
                    && let Ok(manifest) = compactor.manifest(topic).await
                {
                    let waiting = manifest.is_some_and(|manifest| {
                        manifest.plan.is_some() || manifest.files.iter().any(|file| file.tier == Tier::Fresh)
                    });
                    if !waiting {
                        lock(&self.topics).quiet.insert(id);
                    }
                }
            }
            // It ended meanwhile.
            Err(_) if topic.is_none() => {
                failures.remove(&id);
            }
            Err(error) => {
                let (count, at) = failures.entry(id).or_default();
                let wait = FIRST_WAIT.saturating_mul(1 << (*count).min(16)).min(LONGEST_WAIT);
                *count += 1;
                *at = self.runtime.now() + wait;
                tracing::warn!(topic = %id, attempt = *count, ?wait, error = error.message, "the compaction failed; trying again");
            }
        }
        if topic.is_none() {
            let mut topics = lock(&self.topics);
            topics.gates.remove(&id);
            topics.quiet.remove(&id);
        }
    }
}

fn read_error(error: &ReadError) -> ErrorDetail {
    match error {
        ReadError::Store(error) if error.is_retryable() => errors::unavailable(error),
        error => errors::internal(error),
    }
}
