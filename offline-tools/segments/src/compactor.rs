//! Sealed segments to files, and the topic's manifest.
//!
//! A segment's rows pass through two kinds of file. *Fresh* files appear as soon as a segment is sealed, under `_fresh/`, for
//! readers of the manifest. Files under `data/`, for everybody's glob, are made of fresh files once: at the target size, when the
//! day is over, when rows have waited for the topic's `publish_lag`, or on request; they are never rewritten.
//!
//! Order of writes, for a group of sealed segments: (1) fresh files, under random names; (2) the manifest version that names them;
//! (3) the segments are reported, after which their journal objects may go. To publish: (4) the manifest version with the plan,
//! which names the file and its inputs; (5) that file, complete or not at all, under `data/`; (6) the manifest version in which it
//! stands in place of its inputs; (7) after a grace, the inputs are deleted; (8) and old versions of the manifest.
//!
//! | crash after | what is left | what the next run does |
//! |---|---|---|
//! | part of 1 | fresh files that no manifest names, parts of an upload | writes the segments again, under other names |
//! | 2 | segments in the manifest, not reported | finds them there and reports them |
//! | 4 | a plan without its file | completes the plan: the same file from the same inputs |
//! | 5 | a file under `data/` that the manifest does not name, beside the plan | finds it, compares its digest and segments with the plan's inputs, accepts it |
//! | 6 | nothing | goes on |
//! | part of 7 | some inputs deleted, all of them listed as replaced | deletes the rest |
//! | part of 8 | some versions deleted below the boundary | deletes the rest |
//!
//! At each point a row is in exactly one file that the manifest names, and in at most one under `data/`; a glob over `data/` may be
//! ahead of the manifest by the one file of step 5. A fresh file that no version names costs space only until it is given up
//! (`orphans`): a version lists it as replaced, upon which a compactor that was stopped before its commit loses it and writes
//! its files again.
//!
//! A manifest that lost a version (a store that was restored to an older state) lacks closed segments that were reported. Nothing is
//! published across such a hole: [`CompactError::Hole`].
//!
//! Two compactors: a version is created by one of them. The loser reads the manifest again and decides again: segments that are
//! in it by now are done (its own files for them, which no version can name any more, are deleted); a plan of the other is
//! completed by both, to the same bytes. Nothing is cleaned up after a commit of unknown outcome.

use crate::{
    CompactError, Compaction,
    fresh::first_group,
    orphans::Orphans,
    publish::{self, Clock},
    source::PASS_BYTES,
    stores::Stores,
};
use refstream_filer_adapter::{
    BlobStore, CreateError, Created, Runtime, StoreError,
    chain::{self, Commit},
};
use refstream_format::{
    cluster_log::{SealedSegment, TopicState},
    manifest::{DataFile, Manifest, Tier},
};
use refstream_journal::Metadata;
use refstream_types::{Chain, Key, SegmentNumber, StoreName, TopicFolder, TopicId, Version};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// Lost races in one call before it gives up.
const MAX_LOST: u32 = 32;
/// Attempts to learn what became of a commit.
const COMMIT_ATTEMPTS: u32 = 6;
const COMMIT_PAUSE: Duration = Duration::from_millis(200);
/// How long replaced files and old manifests stay for readers that still use them, by this process's clock.
pub(crate) const GRACE: Duration = Duration::from_secs(600);

/// Sizes that tests make small.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Published files that a manifest lists itself at most.
    pub(crate) listed: usize,
    /// Published files of a page.
    pub(crate) page: usize,
    /// Versions of the manifest that are kept.
    pub(crate) versions: u64,
    /// Encoded bytes of the batches that are read at a time.
    pub(crate) pass_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { listed: 1_000, page: 500, versions: 64, pass_bytes: PASS_BYTES }
    }
}

/// What this process remembers; all of it can be found again.
#[derive(Debug, Default)]
struct Memory {
    /// The newest version seen.
    hints: BTreeMap<TopicId, u64>,
    /// Segments by page.
    pages: BTreeMap<Key, Arc<BTreeSet<SegmentNumber>>>,
    /// When a replaced object was first seen to be so.
    replaced: BTreeMap<Key, Duration>,
    /// Versions by the time at which they were seen, oldest first, and below which all were freed.
    versions: BTreeMap<TopicId, (Vec<(Duration, u64)>, u64)>,
    /// Fresh files that nothing names.
    orphans: BTreeMap<TopicId, Orphans>,
}

/// Turns sealed segments into files and keeps the topic's manifest.
#[derive(Clone, Debug)]
pub struct Compactor {
    pub(crate) metadata: Metadata,
    pub(crate) files: Arc<dyn BlobStore>,
    pub(crate) stores: Stores,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) limits: Limits,
    memory: Arc<Mutex<Memory>>,
}

/// Fresh files whose commit was lost for certain, by the segments they hold.
type Lost = BTreeMap<Vec<SegmentNumber>, Vec<DataFile>>;

impl Compactor {
    /// A compactor that reads `metadata` and writes files to `files` (the metadata store's objects). `stores` give the URIs of
    /// payloads.
    pub fn new(
        metadata: Metadata,
        files: Arc<dyn BlobStore>,
        stores: BTreeMap<StoreName, Arc<dyn BlobStore>>,
        runtime: Arc<dyn Runtime>,
    ) -> Self {
        let (stores, limits) = (Stores::new(stores), Limits::default());
        Self { metadata, files, stores, runtime, limits, memory: Arc::default() }
    }

    /// Compacts `segments` into fresh files, then publishes what is due (with `publish`: everything). Idempotent; safe beside
    /// other compactors.
    ///
    /// # Errors
    /// See [`CompactError`].
    pub async fn compact(
        &self,
        topic: &TopicState,
        segments: &[SealedSegment],
        publish: bool,
    ) -> Result<Compaction, CompactError> {
        let mut done = Compaction::default();
        self.take_in(topic, segments, &mut done).await?;
        self.publish(topic, publish, &mut done).await?;
        if let Err(error) = self.give_up_orphans(topic).await {
            tracing::warn!(topic = %topic.name, %error, "early files that no manifest names could not be given up");
        }
        self.delete_replaced(topic).await;
        self.free_versions(topic).await;
        Ok(done)
    }

    /// The newest manifest.
    ///
    /// # Errors
    /// See [`CompactError`].
    pub async fn manifest(&self, topic: &TopicState) -> Result<Option<Manifest>, CompactError> {
        let hint = self.remember(|memory| memory.hints.get(&topic.id).copied().unwrap_or(0));
        let found = self.metadata.manifest(topic, hint).await?;
        if let Some(manifest) = &found {
            let now = self.runtime.now();
            self.remember(|memory| {
                memory.hints.insert(topic.id, manifest.version.0);
                let seen = &mut memory.versions.entry(topic.id).or_default().0;
                if seen.last().is_none_or(|(_, version)| *version < manifest.version.0) {
                    seen.push((now, manifest.version.0));
                }
            });
        }
        Ok(found)
    }

    pub(crate) fn orphans<T>(&self, topic: &TopicState, use_them: impl FnOnce(&mut Orphans) -> T) -> T {
        self.remember(|memory| use_them(memory.orphans.entry(topic.id).or_default()))
    }

    fn remember<T>(&self, use_it: impl FnOnce(&mut Memory) -> T) -> T {
        use_it(&mut self.memory.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The version that would follow `current`, equal to it but for number and token.
    pub(crate) fn successor(&self, topic: &TopicState, current: Option<&Manifest>) -> Manifest {
        Manifest {
            topic: topic.id,
            name: topic.name.clone(),
            version: current.map_or(Version(1), |manifest| manifest.version.next()),
            token: self.runtime.token(),
            pages: current.map(|manifest| manifest.pages.clone()).unwrap_or_default(),
            files: current.map(|manifest| manifest.files.clone()).unwrap_or_default(),
            plan: current.and_then(|manifest| manifest.plan.clone()),
            replaced: current.map(|manifest| manifest.replaced.clone()).unwrap_or_default(),
        }
    }

    /// Steps 1 to 3.
    async fn take_in(
        &self,
        topic: &TopicState,
        segments: &[SealedSegment],
        done: &mut Compaction,
    ) -> Result<(), CompactError> {
        let mut wanted: Vec<&SealedSegment> = segments.iter().collect();
        wanted.sort_unstable_by_key(|segment| segment.opened.id.number);
        let mut lost = Lost::new();
        let mut losses = 0;
        loop {
            let current = self.manifest(topic).await?;
            let held = self.held(current.as_ref(), &wanted).await?;
            let missing: Vec<&SealedSegment> = wanted
                .iter()
                .filter(|segment| !segment.is_empty() && !held.contains(&segment.opened.id.number))
                .copied()
                .collect();
            let group = first_group(&missing);
            if group.is_empty() {
                break;
            }
            let numbers: Vec<SegmentNumber> = group.iter().map(|segment| segment.opened.id.number).collect();
            let files = match lost.remove(&numbers) {
                Some(files) if !given_up(current.as_ref(), &files) && self.all_there(&files).await? => files,
                _ => self.write_fresh(topic, &group).await?,
            };
            let mut next = self.successor(topic, current.as_ref());
            next.files.extend(files.iter().cloned());
            if self.commit(topic, &mut next).await? {
                for file in &files {
                    self.wrote(done, file);
                }
            } else {
                losses += 1;
                lost.insert(numbers, files);
                if losses > MAX_LOST {
                    return Err(CompactError::Contended(topic.name.to_string()));
                }
            }
        }
        for file in lost.into_values().flatten() {
            self.delete(&file.key).await;
        }
        done.segments.extend(wanted.iter().map(|segment| segment.opened.id.number));
        Ok(())
    }

    /// Steps 4 to 6, as often as something is due.
    async fn publish(&self, topic: &TopicState, everything: bool, done: &mut Compaction) -> Result<(), CompactError> {
        let mut losses = 0;
        let mut gone_at = None;
        while losses <= MAX_LOST {
            let Some(current) = self.manifest(topic).await? else { return Ok(()) };
            let mut next = self.successor(topic, Some(&current));
            let mut written = None;
            if let Some(plan) = &current.plan {
                let inputs = publish::inputs(&current, plan).ok_or_else(|| CompactError::File {
                    uri: self.files.uri(&plan.key),
                    why: format!(
                        "version {} of the manifest plans it from files that it does not name",
                        current.version
                    ),
                })?;
                let (file, new) = match self.complete(topic, &plan.key, inputs).await {
                    Ok(completed) => completed,
                    // An input is gone: another compactor has published the file since.
                    Err(CompactError::Store(error)) if error.is_not_found() && gone_at != Some(current.version) => {
                        gone_at = Some(current.version);
                        continue;
                    }
                    Err(error) => return Err(error),
                };
                written = new.then(|| file.clone());
                next.plan = None;
                next.files.retain(|file| !plan.inputs.contains(&file.key));
                let at = next.files.iter().take_while(|file| file.tier == Tier::Data).count();
                next.files.insert(at, file);
                next.replaced.extend(plan.inputs.iter().cloned());
            } else {
                let clock = Clock { now: self.runtime.wall(), everything };
                let Some(due) = publish::due(topic, &current, clock) else { return Ok(()) };
                self.refuse_hole(topic, &current, &due).await?;
                next.plan = self.plan(topic, &due);
            }
            if self.commit(topic, &mut next).await? {
                if let Some(file) = written {
                    self.wrote(done, &file);
                }
            } else {
                losses += 1;
            }
        }
        Err(CompactError::Contended(topic.name.to_string()))
    }

    fn wrote(&self, done: &mut Compaction, file: &DataFile) {
        done.files.push(self.files.uri(&file.key));
        done.rows += file.rows;
        done.bytes += file.bytes;
    }

    /// Which of `wanted` the manifest holds, pages included.
    async fn held(
        &self,
        current: Option<&Manifest>,
        wanted: &[&SealedSegment],
    ) -> Result<BTreeSet<SegmentNumber>, CompactError> {
        let Some(current) = current else { return Ok(BTreeSet::new()) };
        let mut held = numbers(&current.files);
        for page in current.pages.iter().rev() {
            if wanted.iter().all(|segment| held.contains(&segment.opened.id.number)) {
                break;
            }
            held.extend(self.page(page).await?.iter());
        }
        Ok(held)
    }

    async fn page(&self, page: &(Key, u32)) -> Result<Arc<BTreeSet<SegmentNumber>>, CompactError> {
        if let Some(known) = self.remember(|memory| memory.pages.get(&page.0).cloned()) {
            return Ok(known);
        }
        let segments = Arc::new(numbers(&self.metadata.manifest_page(page).await?));
        self.remember(|memory| memory.pages.insert(page.0.clone(), Arc::clone(&segments)));
        Ok(segments)
    }

    async fn all_there(&self, files: &[DataFile]) -> Result<bool, CompactError> {
        for file in files {
            if self.files.head(&file.key).await?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Commits `next`; `false` when its number went to somebody else: read the manifest again and decide again.
    pub(crate) async fn commit(&self, topic: &TopicState, next: &mut Manifest) -> Result<bool, CompactError> {
        let folder = TopicFolder::new(&topic.name, topic.id);
        self.page_out(&folder, next).await?;
        self.forget_deleted(next);
        let chain = Chain::Manifest(folder);
        let bytes = bytes::Bytes::from(next.encode());
        let mut attempt = 0;
        loop {
            let (filer, layout) = (self.metadata.filer(), self.metadata.layout());
            let outcome =
                chain::commit(filer.as_ref(), self.runtime.as_ref(), layout, &chain, next.version.0, bytes.clone())
                    .await;
            match outcome {
                Commit::Committed => return Ok(true),
                Commit::Taken(_) | Commit::Freed => return Ok(false),
                Commit::Unknown(error) => {
                    attempt += 1;
                    if attempt >= COMMIT_ATTEMPTS {
                        return Err(error.into());
                    }
                    self.runtime.sleep(COMMIT_PAUSE * attempt).await;
                }
            }
        }
    }

    /// Moves the oldest published files of a version to be into an immutable page, when it lists too many. A page carries the
    /// number of its version; one that a lost race left behind has that name for ever, then the move waits for another version.
    async fn page_out(&self, folder: &TopicFolder, next: &mut Manifest) -> Result<(), CompactError> {
        let published = next.files.iter().take_while(|file| file.tier == Tier::Data).count();
        if published <= self.limits.listed {
            return Ok(());
        }
        let moved = &next.files[..self.limits.page.min(published)];
        let key = self.metadata.layout().manifest_page(folder, next.version);
        let bytes = bytes::Bytes::from(Manifest::encode_page(moved));
        let filer = self.metadata.filer();
        let ours = match filer.create(&key, bytes.clone()).await {
            Ok(Created::New) => true,
            Ok(Created::Exists) | Err(CreateError::MayHaveHappened(_)) => {
                filer.read(&key).await?.is_some_and(|found| found == bytes)
            }
            Err(CreateError::DidNotHappen(error)) => return Err(error.into()),
        };
        if ours {
            let count = moved.len();
            next.pages.push((key, count as u32));
            next.files.drain(..count);
        }
        Ok(())
    }

    /// Step 7. Deletes replaced files that this process has known as such for [`GRACE`]; the next version leaves them out.
    /// Failures are only reported: the next call tries again.
    async fn delete_replaced(&self, topic: &TopicState) {
        let Ok(Some(current)) = self.manifest(topic).await else { return };
        let now = self.runtime.now();
        let ripe: Vec<Key> = self.remember(|memory| {
            let ripe = |key: &&Key| {
                let first = *memory.replaced.entry((*key).clone()).or_insert(now);
                now.saturating_sub(first) >= GRACE
            };
            current.replaced.iter().filter(ripe).cloned().collect()
        });
        for key in ripe {
            if self.delete(&key).await {
                self.remember(|memory| memory.replaced.insert(key, Duration::MAX));
            }
        }
    }

    /// Takes what was deleted off the list of what is to be deleted.
    fn forget_deleted(&self, next: &mut Manifest) {
        self.remember(|memory| next.replaced.retain(|key| memory.replaced.get(key) != Some(&Duration::MAX)));
    }

    async fn delete(&self, key: &Key) -> bool {
        match self.files.delete(key).await {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(%key, %error, "a file that is no longer needed could not be deleted");
                false
            }
        }
    }

    /// Step 8. Frees versions of the manifest but the newest ones, and none that this process saw within [`GRACE`].
    async fn free_versions(&self, topic: &TopicState) {
        let now = self.runtime.now();
        let keep = self.limits.versions;
        let below = self.remember(|memory| {
            let (seen, freed) = memory.versions.entry(topic.id).or_default();
            let newest = seen.last().map_or(0, |(_, version)| *version);
            let old = seen.iter().rposition(|(at, _)| now.saturating_sub(*at) >= GRACE)?;
            let below = seen[old].1.min(newest.saturating_sub(keep));
            seen.drain(..old);
            (below >= *freed + keep).then_some(below)
        });
        let Some(below) = below else { return };
        let chain = Chain::Manifest(TopicFolder::new(&topic.name, topic.id));
        let freed: Result<u64, StoreError> =
            chain::free_below(self.metadata.filer().as_ref(), self.metadata.layout(), &chain, below).await;
        match freed {
            Ok(_) => self.remember(|memory| memory.versions.entry(topic.id).or_default().1 = below),
            Err(error) => {
                tracing::warn!(topic = %topic.name, %error, "old versions of the manifest could not be freed")
            }
        }
    }
}

/// Whether a version has given up one of `files`: whoever lists a file as replaced deletes it.
fn given_up(current: Option<&Manifest>, files: &[DataFile]) -> bool {
    current.is_some_and(|manifest| files.iter().any(|file| manifest.replaced.contains(&file.key)))
}

fn numbers(files: &[DataFile]) -> BTreeSet<SegmentNumber> {
    files.iter().flat_map(|file| &file.segments).map(|span| span.number).collect()
}

#[cfg(test)]
mod tests;
