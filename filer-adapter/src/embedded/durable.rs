//! Folders that are durable before they are relied on.
//!
//! A folder that exists while `making` is held is durable: it was there when the file system was synced at start, or its maker
//! fsynced its parent before letting go. `known` remembers such folders, so that the common case takes no lock of others.
//! One fsync of a folder serves everybody who began to wait before it started.

use rustix::io::Errno;
use std::{
    collections::{HashMap, HashSet},
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock},
    time::Duration,
};

/// Folders remembered before all are forgotten (forgetting costs one `mkdir` each).
const MAX_KNOWN: usize = 65_536;
/// Between two attempts to open a folder while there is no file descriptor for it.
const WAIT: Duration = Duration::from_millis(50);
/// Such attempts: for ten minutes.
const MOST_WAITS: u32 = 12_000;

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug, Default)]
struct Turns {
    running: bool,
    asked: u64,
    done: u64,
    failures: HashMap<u64, io::ErrorKind>,
}

#[derive(Debug, Default)]
struct Group {
    turns: Mutex<Turns>,
    changed: Condvar,
}

#[derive(Debug)]
pub(super) struct Folders {
    fsync: bool,
    known: RwLock<HashSet<PathBuf>>,
    making: Mutex<()>,
    groups: Mutex<HashMap<PathBuf, Arc<Group>>>,
}

impl Folders {
    pub(super) fn new(fsync: bool) -> Self {
        Self { fsync, known: RwLock::default(), making: Mutex::default(), groups: Mutex::default() }
    }

    /// Makes `folder` and its parents, durably.
    ///
    /// # Errors
    /// `NotADirectory` when a file is in the way.
    pub(super) fn ensure(&self, folder: &Path) -> io::Result<()> {
        if self.is_known(folder) {
            return Ok(());
        }
        let _making = lock(&self.making);
        self.make(folder)?;
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MAX_KNOWN {
            known.clear();
        }
        known.insert(folder.to_path_buf());
        Ok(())
    }

    /// Whether `folder` was found to exist.
    pub(super) fn is_known(&self, folder: &Path) -> bool {
        self.known.read().unwrap_or_else(PoisonError::into_inner).contains(folder)
    }

    fn make(&self, folder: &Path) -> io::Result<()> {
        match std::fs::create_dir(folder) {
            Ok(()) => self.sync_parent_of(folder),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let Some(parent) = folder.parent() else { return Err(error) };
                self.make(parent)?;
                match std::fs::create_dir(folder) {
                    Ok(()) => self.sync_parent_of(folder),
                    Err(error) => Err(error),
                }
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                if std::fs::metadata(folder)?.is_dir() {
                    Ok(())
                } else {
                    Err(io::ErrorKind::NotADirectory.into())
                }
            }
            Err(error) => Err(error),
        }
    }

    fn sync_parent_of(&self, folder: &Path) -> io::Result<()> {
        folder.parent().map_or(Ok(()), |parent| self.sync_now(parent))
    }

    fn sync_now(&self, folder: &Path) -> io::Result<()> {
        if self.fsync { open(folder)?.sync_all() } else { Ok(()) }
    }

    /// Forgets that a folder exists, after it was found missing.
    pub(super) fn forget(&self, folder: &Path) {
        self.known.write().unwrap_or_else(PoisonError::into_inner).remove(folder);
    }

    /// Makes the entries of `folder` durable; where it is gone by now, that of the nearest parent that is left.
    pub(super) fn sync(&self, folder: &Path) -> io::Result<()> {
        if !self.fsync {
            return Ok(());
        }
        let group = Arc::clone(lock(&self.groups).entry(folder.to_path_buf()).or_default());
        let result = Self::sync_in_turn(&group, folder);
        let mut groups = lock(&self.groups);
        // Ours and the map's: nobody else waits, and nobody can begin to while the map is locked.
        if Arc::strong_count(&group) == 2 {
            groups.remove(folder);
        }
        result
    }

    fn sync_in_turn(group: &Group, folder: &Path) -> io::Result<()> {
        let mut turns = lock(&group.turns);
        turns.asked += 1;
        let mine = turns.asked;
        while turns.done < mine {
            if turns.running {
                turns = group.changed.wait(turns).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            turns.running = true;
            let (from, to) = (turns.done + 1, turns.asked);
            drop(turns);
            let result = sync_nearest(folder);
            turns = lock(&group.turns);
            turns.running = false;
            turns.done = to;
            if let Err(error) = &result {
                for turn in from..=to {
                    turns.failures.insert(turn, error.kind());
                }
            }
            group.changed.notify_all();
        }
        turns.failures.remove(&mine).map_or(Ok(()), |kind| Err(kind.into()))
    }

    /// Removes `folder` and its parents up to, not including, `top` as far as they are empty.
    pub(super) fn prune(&self, folder: &Path, top: &Path) {
        let mut folder = folder;
        while folder != top && folder.starts_with(top) {
            {
                let _making = lock(&self.making);
                if std::fs::remove_dir(folder).is_err() {
                    return;
                }
                self.forget(folder);
            }
            let Some(parent) = folder.parent() else { return };
            folder = parent;
        }
    }
}

/// Opens a folder to fsync it. Where the process has no file descriptor left it waits: that passes, and what was published and never
/// synced would have to be refused for good.
fn open(folder: &Path) -> io::Result<File> {
    let mut waited = 0;
    loop {
        match File::open(folder) {
            Err(error) if is_scarcity(&error) && waited < MOST_WAITS => {
                waited += 1;
                std::thread::park_timeout(WAIT);
            }
            opened => return opened,
        }
    }
}

/// Whether there was no room for one more open file.
fn is_scarcity(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOMEM | Errno::NFILE | Errno::MFILE))
}

fn sync_nearest(folder: &Path) -> io::Result<()> {
    let mut folder = folder;
    loop {
        match open(folder) {
            Ok(file) => return file.sync_all(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => match folder.parent() {
                Some(parent) => folder = parent,
                None => return Err(error),
            },
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_made_and_pruned() {
        let dir = tempfile::tempdir().unwrap();
        let folders = Folders::new(true);
        let deep = dir.path().join("a/b/c");
        folders.ensure(&deep).unwrap();
        assert!(deep.is_dir());
        std::fs::write(dir.path().join("a/file"), b"x").unwrap();
        let error = folders.ensure(&dir.path().join("a/file/d")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotADirectory);
        folders.prune(&deep, dir.path());
        assert!(!dir.path().join("a/b").exists());
        assert!(dir.path().join("a/file").exists());
        folders.sync(&deep).unwrap();
        folders.ensure(&deep).unwrap();
        assert!(deep.is_dir());
    }

    #[test]
    fn concurrent_syncs_all_return() {
        let dir = tempfile::tempdir().unwrap();
        let folders = Folders::new(true);
        std::thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| folders.sync(dir.path()).unwrap());
            }
        });
        assert!(lock(&folders.groups).is_empty());
    }
}
