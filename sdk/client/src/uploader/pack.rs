//! Packs: many small blobs in one object.

use super::{FileTag, Inner, NotedPack, store};
use crate::{Interrupted, UploadError};
use bytes::Bytes;
use refstream_filer_adapter::{Attributes, Sent};
use refstream_format::pack::{MAX_PACK_BLOBS, PackEntry, PackFooter};
use refstream_types::Key;
use std::{
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};
use tokio::sync::{Notify, OwnedSemaphorePermit};

/// A pack's fate, which all its blobs share.
#[derive(Debug)]
pub(crate) struct PackState {
    /// The key that was asked for.
    key: Key,
    /// The key under which the store has it.
    stored: OnceLock<Key>,
    outcome: OnceLock<Result<(), UploadError>>,
    wake: Notify,
}

impl PackState {
    /// The pack's object, once it is durable.
    pub(crate) fn key(&self) -> &Key {
        self.stored.get().unwrap_or(&self.key)
    }
    fn decide(&self, outcome: Result<Key, UploadError>) {
        let outcome = outcome.map(|key| {
            self.stored.get_or_init(|| key);
        });
        if self.outcome.set(outcome).is_ok() {
            self.wake.notify_waiters();
        }
    }
    /// Waits until the pack is durable.
    pub(crate) async fn durable(&self) -> Result<(), UploadError> {
        loop {
            let wake = self.wake.notified();
            tokio::pin!(wake);
            wake.as_mut().enable();
            if let Some(outcome) = self.outcome.get() {
                return outcome.clone();
            }
            wake.await;
        }
    }
}

/// Decides a pack whose task ended in any other way.
struct Decision(Arc<PackState>);

impl Drop for Decision {
    fn drop(&mut self) {
        self.0.decide(Err(UploadError::Interrupted(Interrupted)));
    }
}

/// A blob for [`add_all`]: where its stored bytes are, its entry, and the file it comes from.
pub(crate) type Blob = (Range<usize>, PackEntry, Option<Arc<FileTag>>);

/// A pack that takes blobs.
#[derive(Debug)]
struct OpenPack {
    state: Arc<PackState>,
    stored: Vec<u8>,
    entries: Vec<PackEntry>,
    /// The file of each entry, where there is one.
    tags: Vec<Option<Arc<FileTag>>>,
    room: Option<OwnedSemaphorePermit>,
}

/// The pack that is open, and those on their way.
#[derive(Debug, Default)]
pub(super) struct Packer {
    open: Mutex<Option<OpenPack>>,
    under_way: Mutex<Vec<Arc<PackState>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds one blob; returns its pack and where in it.
pub(super) fn add(
    inner: &Arc<Inner>,
    stored: &[u8],
    entry: PackEntry,
    tag: Option<Arc<FileTag>>,
    room: Option<OwnedSemaphorePermit>,
) -> (Arc<PackState>, u64) {
    let mut open = lock(&inner.packer.open);
    add_to(inner, &mut open, stored, entry, tag, room)
}

/// Adds blobs whose stored bytes are ranges of `stored`.
pub(super) fn add_all(
    inner: &Arc<Inner>,
    stored: &[u8],
    blobs: impl Iterator<Item = Blob>,
    room: OwnedSemaphorePermit,
) -> Vec<(Arc<PackState>, u64)> {
    let mut open = lock(&inner.packer.open);
    let mut room = Some(room);
    // The room of all blobs belongs to the first one's pack; the others' packs are stored soon after it.
    blobs.map(|(range, entry, tag)| add_to(inner, &mut open, &stored[range], entry, tag, room.take())).collect()
}

fn add_to(
    inner: &Arc<Inner>,
    open: &mut Option<OpenPack>,
    stored: &[u8],
    entry: PackEntry,
    tag: Option<Arc<FileTag>>,
    room: Option<OwnedSemaphorePermit>,
) -> (Arc<PackState>, u64) {
    let full = |pack: &OpenPack| {
        pack.entries.len() >= MAX_PACK_BLOBS
            || (pack.stored.len() + stored.len()) as u64 > inner.options.pack_bytes && !pack.entries.is_empty()
    };
    if let Some(pack) = open.take_if(|pack| full(pack)) {
        close(inner, pack);
    }
    let pack = open.get_or_insert_with(|| start(inner));
    let offset = pack.stored.len() as u64;
    pack.stored.extend_from_slice(stored);
    pack.entries.push(PackEntry { offset, ..entry });
    pack.tags.push(tag);
    match (&mut pack.room, room) {
        (Some(held), Some(room)) => held.merge(room),
        (held @ None, room) => *held = room,
        (Some(_), None) => {}
    }
    let place = (Arc::clone(&pack.state), offset);
    if pack.stored.len() as u64 >= inner.options.pack_bytes
        && let Some(pack) = open.take()
    {
        close(inner, pack);
    }
    place
}

/// Opens a pack and sees to it that it is stored once it has lingered.
fn start(inner: &Arc<Inner>) -> OpenPack {
    let state = Arc::new(PackState {
        key: inner.new_key(),
        stored: OnceLock::new(),
        outcome: OnceLock::new(),
        wake: Notify::new(),
    });
    let (inner, mine) = (Arc::clone(inner), Arc::clone(&state));
    tokio::spawn(async move {
        inner.runtime.sleep(inner.options.pack_linger).await;
        let lingered = lock(&inner.packer.open).take_if(|pack| Arc::ptr_eq(&pack.state, &mine));
        if let Some(pack) = lingered {
            close(&inner, pack);
        }
    });
    OpenPack { state, stored: Vec::new(), entries: Vec::new(), tags: Vec::new(), room: None }
}

/// Stores a pack that takes no more blobs.
fn close(inner: &Arc<Inner>, pack: OpenPack) {
    let OpenPack { state, stored, entries, tags, room } = pack;
    lock(&inner.packer.under_way).push(Arc::clone(&state));
    let inner = Arc::clone(inner);
    let decision = Decision(Arc::clone(&state));
    tokio::spawn(async move {
        let mut blobs = Vec::new();
        if inner.notes.is_some() {
            blobs.extend(entries.iter().zip(tags).filter_map(|(entry, tag)| Some((entry.clone(), tag?))));
        }
        let footer = PackFooter { entries }.encode();
        let body = vec![Bytes::from(stored), Bytes::from(footer)];
        let mut sum = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
        for piece in &body {
            sum.update(piece);
        }
        let checksum = refstream_types::Crc32c(sum.finalize() as u32);
        let attributes =
            Attributes { content_type: Some(refstream_format::pack::CONTENT_TYPE.to_owned()), ..Attributes::default() };
        let size = body.iter().map(|piece| piece.len() as u64).sum();
        let note = async |key: &Key| match &inner.notes {
            Some(notes) if !blobs.is_empty() => {
                notes.pack(NotedPack { store: inner.name.clone(), key: key.clone(), size, blobs }).await
            }
            _ => Ok(()),
        };
        let put = async || store::put(&inner, &state.key, body, checksum, &attributes, &Sent::default()).await;
        let outcome = async {
            if inner.store.names_objects() {
                let key = put().await?;
                note(&key).await?;
                return Ok(key);
            }
            note(&state.key).await?;
            put().await
        };
        let outcome = outcome.await;
        drop(room);
        lock(&inner.packer.under_way).retain(|other| !Arc::ptr_eq(other, &state));
        decision.0.decide(outcome);
    });
}

/// Stores the open pack now and waits for those on their way.
pub(super) async fn flush(inner: &Arc<Inner>) -> Result<(), UploadError> {
    let open = lock(&inner.packer.open).take();
    if let Some(pack) = open {
        close(inner, pack);
    }
    let under_way = lock(&inner.packer.under_way).clone();
    let mut outcome = Ok(());
    for state in under_way {
        outcome = outcome.and(state.durable().await);
    }
    outcome
}
