//! Fresh files that no version of the manifest names: what a compactor left that was stopped between steps 1 and 2.
//!
//! They are not told from files that a live compactor is about to commit, and need not be: a version that lists them as *replaced* is
//! committed first, and only then are they deleted, as all replaced files are. Why that loses nothing, for a compactor C that wrote
//! such a file after it had read version v:
//!
//! - C commits v + 1 or nothing. If C was first, the file is named in v + 1, and whoever collects from an earlier version loses its commit.
//! - Otherwise C reads a later version and may use its file again only if that version does not list it as replaced and the store
//!   still has it. A version that no longer lists it was committed after it was deleted, so then the store does not have it.
//!
//! The grace is told by the chain, not by clocks of several machines: a file is collected once it has been seen without a name while
//! the chain grew by [`GRACE_VERSIONS`]; and to spare a slow compactor its work twice, after [`GRACE`] by this process's own clock.
//! So a topic that is quiet keeps its orphans until it is not. Parts of uploads that were never completed are left to the store.

use crate::{CompactError, Compactor, compactor::GRACE};
use refstream_format::{cluster_log::TopicState, manifest::Manifest};
use refstream_types::{Key, TopicFolder};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// Versions by which a topic's chain grows before an unnamed file is collected.
const GRACE_VERSIONS: u64 = 2;
/// How often this process looks for orphans of a topic.
const INTERVAL: Duration = Duration::from_secs(900);
/// Files that are listed with one request.
const LISTED: usize = 1_000;
/// Files that are collected with one version at most.
const COLLECTED: usize = 1_000;

/// What this process has seen of a topic's unnamed files.
#[derive(Debug, Default)]
pub(crate) struct Orphans {
    looked: Option<Duration>,
    /// The version, and when, at which each was first seen.
    seen: BTreeMap<Key, (u64, Duration)>,
}

impl Orphans {
    /// Whether it is time to look.
    fn is_due(&mut self, now: Duration) -> bool {
        let due = self.looked.is_none_or(|before| now.saturating_sub(before) >= INTERVAL);
        if due {
            self.looked = Some(now);
        }
        due
    }

    /// Takes note of all unnamed files that there are at `version`; returns those whose grace is over.
    fn ripe(&mut self, unnamed: Vec<Key>, version: u64, now: Duration) -> Vec<Key> {
        let before = std::mem::take(&mut self.seen);
        self.seen = unnamed
            .into_iter()
            .map(|key| {
                let first = before.get(&key).copied().unwrap_or((version, now));
                (key, first)
            })
            .collect();
        let over = |(_, (first, at)): &(&Key, &(u64, Duration))| {
            version >= first + GRACE_VERSIONS && now.saturating_sub(*at) >= GRACE
        };
        self.seen.iter().filter(over).map(|(key, _)| key.clone()).take(COLLECTED).collect()
    }
}

/// Files that a version names or has given up.
fn known(manifest: &Manifest) -> BTreeSet<&Key> {
    manifest.files.iter().map(|file| &file.key).chain(&manifest.replaced).collect()
}

impl Compactor {
    /// Commits a version that gives orphans up, where there are any; they are deleted as replaced files are.
    pub(crate) async fn give_up_orphans(&self, topic: &TopicState) -> Result<(), CompactError> {
        let now = self.runtime.now();
        if !self.orphans(topic, |orphans| orphans.is_due(now)) {
            return Ok(());
        }
        let Some(current) = self.manifest(topic).await? else { return Ok(()) };
        let prefix = self.metadata.layout().fresh_prefix(&TopicFolder::new(&topic.name, topic.id));
        let known = known(&current);
        let mut unnamed = Vec::new();
        let mut after = None;
        loop {
            let listed = self.files.list_blobs(&prefix, after.as_ref(), LISTED).await?;
            unnamed.extend(listed.iter().map(|file| &file.key).filter(|key| !known.contains(key)).cloned());
            match listed.last() {
                Some(last) if listed.len() >= LISTED => after = Some(last.key.clone()),
                _ => break,
            }
        }
        let ripe = self.orphans(topic, |orphans| orphans.ripe(unnamed, current.version.0, now));
        if ripe.is_empty() {
            return Ok(());
        }
        tracing::info!(topic = %topic.name, files = ripe.len(), "early files that no manifest names are given up");
        let mut next = self.successor(topic, Some(&current));
        next.replaced.extend(ripe);
        // Whoever was first has perhaps named one of them: another look, another time.
        self.commit(topic, &mut next).await?;
        Ok(())
    }
}
