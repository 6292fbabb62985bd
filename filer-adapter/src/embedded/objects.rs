//! Publishing, opening and deleting single objects. Everything here blocks.

use super::{
    body::{Body, Temporary},
    durable::lock,
    note::{Note, Properties},
    store::Inner,
};
use refstream_types::{Crc32c, Key};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::{
    collections::{BTreeMap, HashMap},
    fs::File,
    io,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
};

/// How often a publication begins again because its folder was removed under it.
const MAX_ATTEMPTS: usize = 100;

/// When to publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    /// Whatever is there.
    Always,
    /// Only if there is nothing.
    Absent,
    /// Only if there is an object with this ETag.
    Matches(String),
}

/// What became of a publication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The object is there and durable.
    Published(Properties),
    /// The condition does not hold: there is an object, or another one than was meant.
    Refused,
    /// There is no object that the condition could match.
    Missing,
}

/// Why a publication failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// The bytes that arrived have this checksum, not the one that was promised. Nothing was published.
    Mismatch { arrived: Crc32c },
    /// Nothing was published.
    Before(io::Error),
    /// Published, but perhaps not durable.
    After(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Before(error)
    }
}

/// What goes with the bytes.
#[derive(Clone, Debug, Default)]
pub(super) struct Extra {
    pub(super) content_type: Option<String>,
    pub(super) metadata: BTreeMap<String, String>,
}

#[derive(Debug, Default)]
struct Unsettled {
    writers: usize,
    failed: bool,
}

/// Keys of one share of the key space: its lock decides between writers of a key, its map says which are not durable yet.
#[derive(Debug, Default)]
pub(super) struct Stripe {
    unsettled: Mutex<HashMap<Key, Unsettled>>,
    changed: Condvar,
}

impl Stripe {
    /// Waits until what is visible of `key` is durable.
    fn settle<'a>(
        &self,
        mut guard: MutexGuard<'a, HashMap<Key, Unsettled>>,
        key: &Key,
    ) -> io::Result<MutexGuard<'a, HashMap<Key, Unsettled>>> {
        loop {
            match guard.get(key) {
                None => return Ok(guard),
                Some(entry) if entry.failed => {
                    return Err(io::Error::other("its folder could not be synced to the disk; restart the store"));
                }
                Some(_) => guard = self.changed.wait(guard).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    pub(super) fn wait(&self, key: &Key) -> io::Result<()> {
        self.settle(lock(&self.unsettled), key).map(drop)
    }

    fn begin(guard: &mut HashMap<Key, Unsettled>, key: &Key) {
        guard.entry(key.clone()).or_default().writers += 1;
    }

    fn end(&self, key: &Key, failed: bool) {
        let mut guard = lock(&self.unsettled);
        if let Some(entry) = guard.get_mut(key) {
            entry.writers -= 1;
            entry.failed |= failed;
            if entry.writers == 0 && !entry.failed {
                guard.remove(key);
            }
        }
        self.changed.notify_all();
    }
}

/// What is at a path, as far as objects go.
enum Occupant {
    Nothing,
    Object,
    Folder,
}

fn occupant(path: &Path) -> io::Result<Occupant> {
    match std::fs::symlink_metadata(path) {
        Ok(stat) if stat.is_file() => Ok(Occupant::Object),
        Ok(_) => Ok(Occupant::Folder),
        Err(error) if is_absent(&error) => Ok(Occupant::Nothing),
        Err(error) => Err(error),
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Opens an object's file, if that is what is there.
fn open_file(path: &Path) -> io::Result<Option<(File, std::fs::Metadata)>> {
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::CLOEXEC;
    match File::options().read(true).custom_flags(flags.bits() as i32).open(path) {
        Ok(file) => {
            let stat = file.metadata()?;
            Ok(stat.is_file().then_some((file, stat)))
        }
        Err(error) if is_absent(&error) || error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Renames, unless there is something already.
fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Ok(()) => Ok(()),
        // File systems without it (NFS, some FUSE ones) have atomic links.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS | rustix::io::Errno::NOTSUP) => {
            std::fs::hard_link(from, to)?;
            let _ = std::fs::remove_file(from);
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

impl Inner {
    /// The files that may hold a key, the plain one first.
    fn candidates(&self, key: &Key) -> impl Iterator<Item = PathBuf> {
        self.paths.plain(key).into_iter().chain(std::iter::once(self.paths.escaped(key)))
    }

    /// The path of a key's object.
    pub(super) fn locate(&self, key: &Key) -> io::Result<Option<PathBuf>> {
        for path in self.candidates(key) {
            if let Occupant::Object = occupant(&path)? {
                return Ok(Some(path));
            }
        }
        Ok(None)
    }

    /// Opens a key's object, once it is durable. The open file stays what it is, whatever happens to the key.
    pub(super) fn open(&self, key: &Key) -> io::Result<Option<(File, Properties)>> {
        for path in self.candidates(key) {
            if let Some((file, stat)) = open_file(&path)? {
                self.stripe(key).wait(key)?;
                let properties = Properties::of(&file, &stat)?;
                return Ok(Some((file, properties)));
            }
        }
        Ok(None)
    }

    /// Whether there is a durable object.
    pub(super) fn exists(&self, key: &Key) -> io::Result<bool> {
        let there = self.locate(key)?.is_some();
        if there {
            self.stripe(key).wait(key)?;
        }
        Ok(there)
    }

    /// Publishes a body whose checksum should be `expected`.
    pub(super) fn publish(
        &self,
        key: &Key,
        body: Body,
        expected: Option<Crc32c>,
        extra: Extra,
        condition: &Condition,
    ) -> Result<Outcome, Failure> {
        if *condition == Condition::Absent && self.exists(key)? {
            return Ok(Outcome::Refused);
        }
        let (file, _, arrived) = body.finish()?;
        if expected.is_some_and(|expected| expected != arrived) {
            return Err(Failure::Mismatch { arrived });
        }
        let Some(temporary) = file else {
            return Err(Failure::Before(io::ErrorKind::InvalidInput.into()));
        };
        self.publish_file(key, temporary, arrived, extra, condition)
    }

    /// Publishes a file that is complete.
    pub(super) fn publish_file(
        &self,
        key: &Key,
        temporary: Temporary,
        checksum: Crc32c,
        extra: Extra,
        condition: &Condition,
    ) -> Result<Outcome, Failure> {
        let properties = self.seal(temporary.file(), checksum, extra)?;
        let outcome = self.install(temporary.path(), key, condition, properties);
        if matches!(outcome, Ok(Outcome::Published(_)) | Err(Failure::After(_))) {
            temporary.keep();
        }
        outcome
    }

    /// Notes an object's properties on its file and makes both durable.
    pub(super) fn seal(&self, file: &File, checksum: Crc32c, extra: Extra) -> io::Result<Properties> {
        let note = Note {
            checksum,
            nonce: self.options.runtime.random(),
            content_type: extra.content_type,
            metadata: extra.metadata,
        };
        if self.notes {
            note.write(file)?;
        }
        if self.options.fsync {
            file.sync_all()?;
        }
        Properties::of(file, &file.metadata()?)
    }

    /// The folder that must be made before an object of this key can be there.
    pub(super) fn missing_folder(&self, key: &Key) -> Option<PathBuf> {
        let path = self.paths.plain(key)?;
        path.parent().filter(|folder| !self.folders.is_known(folder)).map(Path::to_owned)
    }

    /// Gives a durable file the name of `key`: the moment of publication.
    pub(super) fn install(
        &self,
        from: &Path,
        key: &Key,
        condition: &Condition,
        properties: Properties,
    ) -> Result<Outcome, Failure> {
        let stripe = self.stripe(key);
        for _ in 0..MAX_ATTEMPTS {
            let plain = match self.paths.plain(key) {
                Some(path) => match self.folders.ensure(path.parent().unwrap_or(&self.paths.objects)) {
                    Ok(()) => Some(path),
                    // A part of the key is another object's file.
                    Err(error) if error.kind() == io::ErrorKind::NotADirectory => None,
                    Err(error) => return Err(error.into()),
                },
                None => None,
            };
            let mut guard = lock(&stripe.unsettled);
            let there = self.locate(key)?;
            let replace = there.is_some();
            let target = match there {
                Some(path) => {
                    match condition {
                        Condition::Always => {}
                        Condition::Absent => {
                            drop(stripe.settle(guard, key)?);
                            return Ok(Outcome::Refused);
                        }
                        Condition::Matches(etag) => {
                            guard = stripe.settle(guard, key)?;
                            match open_file(&path)? {
                                Some((file, stat)) if Properties::of(&file, &stat)?.etag == *etag => {}
                                Some(_) => return Ok(Outcome::Refused),
                                None => continue,
                            }
                        }
                    }
                    path
                }
                None if matches!(condition, Condition::Matches(_)) => return Ok(Outcome::Missing),
                None => match plain {
                    Some(path) if !matches!(occupant(&path)?, Occupant::Folder) => path,
                    _ => {
                        let path = self.paths.escaped(key);
                        self.folders.ensure(path.parent().unwrap_or(&self.paths.escaped))?;
                        lock(&self.escaped).insert(key.as_str().into());
                        path
                    }
                },
            };
            let folder = target.parent().unwrap_or(&self.paths.objects);
            Stripe::begin(&mut guard, key);
            let renamed = if replace { std::fs::rename(from, &target) } else { rename_new(from, &target) };
            drop(guard);
            if let Err(error) = renamed {
                stripe.end(key, false);
                match error.kind() {
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => {
                        self.folders.forget(folder);
                        continue;
                    }
                    _ => return Err(error.into()),
                }
            }
            // Again: the folder may have been removed and made anew since, which is durable only when this returns.
            let durable = self.folders.ensure(folder).and_then(|()| self.folders.sync(folder));
            stripe.end(key, durable.is_err());
            return match durable {
                Ok(()) => Ok(Outcome::Published(properties)),
                Err(error) => Err(Failure::After(error)),
            };
        }
        Err(Failure::Before(io::Error::other("the folder is removed again and again while it is written to")))
    }

    /// Deletes a key's object, durably; whether there was one.
    pub(super) fn delete(&self, key: &Key) -> io::Result<bool> {
        let stripe = self.stripe(key);
        let guard = lock(&stripe.unsettled);
        let Some(path) = self.locate(key)? else { return Ok(false) };
        match std::fs::remove_file(&path) {
            Ok(()) => {}
            Err(error) if is_absent(&error) => return Ok(false),
            Err(error) => return Err(error),
        }
        let escaped = path.starts_with(&self.paths.escaped);
        if escaped {
            lock(&self.escaped).remove(key.as_str().as_bytes());
        }
        drop(guard);
        let top = if escaped { &self.paths.escaped } else { &self.paths.objects };
        let folder = path.parent().unwrap_or(top);
        self.folders.sync(folder)?;
        self.folders.prune(folder, top);
        Ok(true)
    }
}
