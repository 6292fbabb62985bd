//! The cluster's state.

use crate::{Metadata, ReadError, damaged};
use refstream_filer_adapter::chain;
use refstream_format::cluster_log::{ClusterState, LogEntry};
use refstream_types::{Chain, Key, Layout, Version};

/// Keys asked for in one listing.
const LIST_PAGE: usize = 1_000;
/// Log entries that are read before their trust is checked and they are applied.
const ENTRIES_AT_ONCE: usize = 64;
/// Snapshots and logs that may vanish under our eyes before we give up.
const ATTEMPTS: usize = 5;

impl Metadata {
    /// The newest state: newest snapshot, then the log to its end.
    ///
    /// # Errors
    /// When the store did not say, or what it holds is damaged.
    pub async fn cluster_state(&self) -> Result<ClusterState, ReadError> {
        let mut attempt = 1;
        loop {
            match self.load().await {
                Err(ReadError::Gone(key)) if attempt < ATTEMPTS => {
                    tracing::debug!(%key, attempt, "the cluster log moved on while it was read");
                    attempt += 1;
                }
                result => return result,
            }
        }
    }

    async fn load(&self) -> Result<ClusterState, ReadError> {
        let mut state = self.snapshot().await?;
        self.follow(&mut state).await?;
        Ok(state)
    }

    /// The newest snapshot that is listed and can be read; the state before the log when there is none.
    async fn snapshot(&self) -> Result<ClusterState, ReadError> {
        let prefix = self.layout.snapshot_prefix();
        let mut keys: Vec<Key> = Vec::new();
        loop {
            let page = self.filer.list(&prefix, keys.last(), LIST_PAGE).await?;
            let full = page.len() == LIST_PAGE;
            keys.extend(page.into_iter().map(|listed| listed.key));
            if !full {
                break;
            }
        }
        let mut unreadable = None;
        for key in keys.iter().rev() {
            let Some(version) = Layout::number_of(key).map(Version) else { continue };
            // A snapshot that is listed and not there was removed for a newer one, which is listed too or will be.
            let Some(bytes) = self.filer.read(key).await? else { continue };
            match ClusterState::decode(&bytes, version) {
                Ok(state) => return Ok(state),
                Err(error) => {
                    tracing::warn!(%key, %error, "a snapshot is damaged; an older one and more of the log must do");
                    unreadable.get_or_insert(ReadError::Damaged { key: key.clone(), error });
                }
            }
        }
        let untouched = chain::boundary(self.filer.as_ref(), &self.layout, &Chain::ClusterLog).await? <= 1;
        match unreadable {
            Some(error) if !untouched => Err(error),
            _ => Ok(ClusterState::default()),
        }
    }

    /// Applies the log entries after `state`'s version; whether there were any.
    ///
    /// # Errors
    /// `Gone` when the log no longer reaches back so far: load the state afresh. `state` is then unchanged, or as of some
    /// later entry.
    pub async fn follow(&self, state: &mut ClusterState) -> Result<bool, ReadError> {
        let from = state.version;
        loop {
            let mut entries = Vec::new();
            let mut version = state.version.next();
            while entries.len() < ENTRIES_AT_ONCE {
                let key = self.layout.link(&Chain::ClusterLog, version.0);
                let Some(bytes) = self.filer.read(&key).await? else { break };
                entries.push(LogEntry::decode(&bytes, version).map_err(damaged(&key))?);
                version = version.next();
            }
            self.trust_after(state.version, !entries.is_empty()).await?;
            let more = entries.len() == ENTRIES_AT_ONCE;
            for entry in &entries {
                state.apply(entry)?;
            }
            if !more {
                return Ok(state.version > from);
            }
        }
    }

    /// Checks that the numbers after `version` that were just read (`found`), or found missing, had not been freed by then. Since
    /// freeing ascends, it is enough that `version` is still there, or that the boundary is its successor. What was found may have been
    /// left by writers that slept, and `version` with it: then the boundary says so.
    async fn trust_after(&self, version: Version, found: bool) -> Result<(), ReadError> {
        let chain = Chain::ClusterLog;
        let is_there =
            version > Version(0) && chain::read(self.filer.as_ref(), &self.layout, &chain, version.0).await?.is_some();
        if is_there && !found {
            return Ok(());
        }
        let boundary = chain::boundary(self.filer.as_ref(), &self.layout, &chain).await?;
        // Without `version` itself a boundary below its successor's cannot be the newest: a listing that lags.
        if boundary == version.next().0 || boundary <= version.0 && is_there || version == Version(0) && boundary == 0 {
            return Ok(());
        }
        Err(ReadError::Gone(self.layout.link(&chain, version.0.max(1))))
    }
}
