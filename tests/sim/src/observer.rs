//! Reads the store alone, without faults: follows the cluster log and checks its invariants, and plays the compactor, which
//! reads sealed segments and has them closed.

use crate::{
    executor::{Clock, Executor},
    history::{History, Place},
};
use refstream_filer_adapter::{Filer, Runtime, memory::MemoryStore};
use refstream_format::{
    cluster_log::{ClusterState, Command, LogEntry, SealedSegment},
    journal::{JournalObject, PlacedBatch},
};
use refstream_journal::{Metadata, ReadError};
use refstream_types::{Chain, Epoch, Layout, Offset, SegmentId, Slot};
use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
    sync::Arc,
    time::Duration,
};

type Archive = BTreeMap<SegmentId, Result<Vec<PlacedBatch>, String>>;

/// Follows everything.
pub(crate) struct Observer {
    store: MemoryStore,
    layout: Layout,
    every: Duration,
    next: Duration,
    pub(crate) state: ClusterState,
    /// Every sealed segment, as it was first seen.
    sealed: BTreeMap<SegmentId, SealedSegment>,
    /// What the sealed segments hold.
    archive: Rc<RefCell<Archive>>,
    reading: BTreeSet<SegmentId>,
}

impl Observer {
    pub(crate) fn new(store: MemoryStore, layout: Layout, every: Duration) -> Self {
        Self {
            store,
            layout,
            every,
            next: Duration::ZERO,
            state: ClusterState::default(),
            sealed: BTreeMap::new(),
            archive: Rc::default(),
            reading: BTreeSet::new(),
        }
    }

    pub(crate) fn next_look(&self) -> Duration {
        self.next
    }

    /// Applies what the log has that is new.
    pub(crate) fn follow(&mut self, history: &mut History) {
        loop {
            let version = self.state.version.next();
            let Some(bytes) = self.store.peek(&self.layout.link(&Chain::ClusterLog, version.0)) else { break };
            let entry = match LogEntry::decode(&bytes, version) {
                Ok(entry) => entry,
                Err(error) => return history.violation(format!("cluster log entry {version}: {error}")),
            };
            if let Err(violation) = self.state.apply(&entry) {
                return history.violation(violation.to_string());
            }
            if let Err(violation) = self.state.check() {
                return history.violation(violation.to_string());
            }
            for command in &entry.commands {
                if let Command::EpochRecovered { epoch, fence } = command {
                    self.check_fence(*epoch, *fence, history);
                }
            }
            self.note_sealed(history);
        }
    }

    /// What is recovered is fenced: nothing can be committed in it any more.
    fn check_fence(&self, epoch: Epoch, fence: Slot, history: &mut History) {
        let bytes = self.store.peek(&self.layout.link(&Chain::Journal(epoch), fence.0));
        let object = bytes.map(|bytes| JournalObject::decode(bytes, (epoch, fence)));
        if !matches!(object, Some(Ok(JournalObject::Fence { .. }))) {
            history.violation(format!("epoch {epoch} is said to be recovered at {fence}, where there is no fence"));
        }
    }

    fn note_sealed(&mut self, history: &mut History) {
        for topic in self.state.topics.values() {
            for segment in topic.sealed.values() {
                let first = self.sealed.entry(segment.opened.id).or_insert_with(|| segment.clone());
                if first != segment {
                    history.violation(format!("sealed segment {} has changed", segment.opened.id));
                }
            }
        }
    }

    /// Follows the log, reads newly sealed segments, and returns those that were read and are not closed.
    pub(crate) fn look(&mut self, executor: &mut Executor, clock: &Clock, history: &mut History) -> Vec<SegmentId> {
        self.next = clock.now() + self.every;
        self.follow(history);
        self.read_sealed(executor);
        let archive = self.archive.borrow();
        let open = self.state.topics.values().flat_map(|topic| topic.sealed.values());
        let ids = open.filter(|segment| !segment.is_empty()).map(|segment| segment.opened.id);
        ids.filter(|id| matches!(archive.get(id), Some(Ok(_)))).collect()
    }

    fn read_sealed(&mut self, executor: &mut Executor) {
        for topic in self.state.topics.values() {
            for segment in topic.sealed.values().filter(|segment| !segment.is_empty()) {
                let id = segment.opened.id;
                if !self.reading.insert(id) {
                    continue;
                }
                let filer: Arc<dyn Filer> = Arc::new(self.store.clone());
                let metadata = Metadata::new(filer, self.layout.clone());
                let (segment, archive) = (segment.clone(), Rc::clone(&self.archive));
                executor.spawn(async move {
                    let batches = read_segment(&metadata, &segment).await.map_err(|error| error.to_string());
                    archive.borrow_mut().insert(id, batches);
                });
            }
        }
    }

    /// Everything that sealed segments held, closed ones included.
    pub(crate) fn read_all(
        &mut self,
        executor: &mut Executor,
        clock: &Clock,
        history: &mut History,
    ) -> BTreeMap<(Place, Offset), PlacedBatch> {
        self.read_sealed(executor);
        executor.run();
        // The observer's client has no latency, but what others have under way does.
        while self.archive.borrow().len() < self.reading.len()
            && let Some(at) = clock.next_timer()
        {
            clock.advance(at);
            executor.run();
        }
        if self.state.open_segments().next().is_some() {
            history.violation("segments are open after the drain");
        }
        let mut read = BTreeMap::new();
        for (id, batches) in self.archive.borrow().iter() {
            match batches {
                Err(error) => history.violation(format!("sealed segment {id} cannot be read: {error}")),
                Ok(batches) => {
                    for placed in batches {
                        let at = ((placed.segment.topic, placed.partition), placed.base_offset);
                        if read.insert(at, placed.clone()).is_some() {
                            history.violation(format!("two segments hold {at:?}"));
                        }
                    }
                }
            }
        }
        read
    }
}

async fn read_segment(metadata: &Metadata, segment: &SealedSegment) -> Result<Vec<PlacedBatch>, ReadError> {
    let mut batches = Vec::new();
    for location in metadata.segment_batches(segment).await? {
        batches.push(metadata.batch(segment.opened.owner, &location).await?);
    }
    Ok(batches)
}
