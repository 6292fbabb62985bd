//! Uploading payloads.
//!
//! A payload's bytes are read once. From them come its BLAKE3, its compressed form where a sample shows that it pays, and the sums of what
//! will be stored (CRC32C of each MiB, from which the sums of parts and of the whole follow). The BLAKE3 of a payload that is stored as given,
//! in one PUT, is computed once they are with the network, while the store makes them durable: only the receipt needs it, and until then sending
//! needs the processor more. What happens next depends on the stored size:
//!
//! * **Small** (below `pack_below`): the bytes join the pack that is open. A pack is one object with a footer that lists its blobs. It is
//!   stored when it is full or its first blob has lingered; then all uploads that wait for it have their receipts. An empty payload is an
//!   empty range of a pack (with `pack_below` = 0: an empty object).
//! * **Medium**: one PUT.
//! * **Large** (at least two parts): parts, in parallel, within the memory limit.
//!
//! An object over 1 MiB that holds one blob has the CRC32C of each stored MiB, so that ranges can be verified: in the note that the store keeps with
//! an object of one PUT, which makes it durable with the object itself, or in a sidecar object where there are parts, or too many for a note.
//!
//! **Order of writes**: object and sidecar are both durable before there is a receipt, and only a receipt makes a reference. Keys are
//! random and used once, so a retry writes the same bytes to the same key, also in a later process (`notes`). **A crash** at any point leaves objects that nothing refers to;
//! garbage collection removes them. A failed multipart upload is aborted.

mod bandwidth;
mod encode;
mod large;
#[cfg_attr(not(feature = "jobs"), allow(dead_code))]
mod notes;
mod pack;
mod source;
mod store;
mod turns;

pub(crate) use encode::prepare_small;
use encode::{ForObject, Prepared, prepare, prepare_object};
#[cfg_attr(not(feature = "jobs"), allow(unused_imports))]
pub(crate) use notes::{Begun, BegunHow, FileTag, NotedPack, PackNotes, UploadNotes};
pub(crate) use pack::PackState;
pub(crate) use source::{OpenFile, is_compressed_type};

use crate::{SourceUnreadable, UploadError};
use bandwidth::Bandwidth;
use bytes::Bytes;
use large::Content;
use pack::Packer;
use refstream_filer_adapter::{Attributes, BlobStore, Runtime, Sent};
use refstream_format::blocks::BLOCK_BYTES;
use refstream_types::{Crc32c, Key, Layout, Reference, StoreName, TopicFolder};
use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    sync::{OwnedSemaphorePermit, Semaphore},
};
use turns::Turns;

/// Payloads up to this size are encoded where they are; larger ones on a thread that may block.
const ENCODE_INLINE: usize = 64 << 10;
/// The smallest part of a multipart upload.
const MIN_PART_BYTES: u64 = 5 << 20;
/// Files that are uploaded at once when the number of requests is adaptive.
const FILES_WHEN_ADAPTIVE: usize = 16;
/// Bytes that are read from a stream at once.
const READ_BYTES: usize = 1 << 20;
/// Objects in a row whose keys share a folder: in a store on a file system each new folder costs a wait for the disk.
const KEYS_PER_FOLDER: u64 = 64;

/// The most requests to a store at once.
pub const MAX_CONCURRENCY: usize = 1_024;
/// The most that [`UploadOptions::pack_below`] can be, in bytes: what is larger is no small payload.
pub const MAX_PACK_BELOW: u64 = BLOCK_BYTES;

/// Proof that a payload is durable; the only thing from which a record with a reference can be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    pub(crate) reference: Reference,
}

impl Receipt {
    /// What was stored, and where.
    pub fn reference(&self) -> &Reference {
        &self.reference
    }
    /// The reference, to put into a record.
    pub fn into_reference(self) -> Reference {
        self.reference
    }
}

/// Where a payload comes from.
pub enum Source {
    /// Memory.
    Bytes(Bytes),
    /// A file, read once. Refused when it changes while it is read.
    File(PathBuf),
    /// A stream of unknown length.
    Reader(Box<dyn tokio::io::AsyncRead + Send + Unpin>),
}

/// How to upload.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct UploadOptions {
    /// Payloads below this many stored bytes share packs; at most 1 MiB counts. 0: every payload is an object of its own.
    pub pack_below: u64,
    /// A pack is stored when it has this many bytes.
    pub pack_bytes: u64,
    /// A pack is stored when its first payload has waited this long.
    pub pack_linger: std::time::Duration,
    /// Payloads of at least twice this many bytes are uploaded in parts of at least this size (5 MiB or more).
    pub part_bytes: u64,
    /// Requests to the store at once, all payloads together; 1 to [`MAX_CONCURRENCY`].
    pub concurrency: usize,
    /// Instead of a fixed number, as many requests at once as bring more bytes: 2 to 64.
    pub adaptive: bool,
    /// Bytes a second to the store, all payloads together; `None`: no limit.
    pub bandwidth: Option<u64>,
    /// Read every object back once it is stored and compare its checksum, before anything refers to it. Costs as many bytes again.
    pub verify: bool,
    /// Payload bytes in memory at once, all payloads together.
    pub memory: usize,
    /// Compress where a sample shows that it pays. zstd level; `None` stores everything as given.
    pub compression: Option<i32>,
}

impl Default for UploadOptions {
    fn default() -> Self {
        Self {
            pack_below: 1 << 20,
            pack_bytes: 8 << 20,
            pack_linger: std::time::Duration::from_millis(50),
            part_bytes: 8 << 20,
            concurrency: 8,
            adaptive: false,
            bandwidth: None,
            verify: false,
            memory: 64 << 20,
            compression: Some(1),
        }
    }
}

/// Uploads payloads of one topic. Cheap to clone; clones share packs, memory and connections.
#[derive(Clone, Debug)]
pub struct Uploader {
    inner: Arc<Inner>,
}

/// How one payload is to be stored.
struct Task {
    /// zstd level; `None`: as given.
    compression: Option<i32>,
    content_type: Option<String>,
    /// For a pack's footer.
    name: Option<String>,
    notes: Option<Arc<dyn UploadNotes>>,
}

/// What was stored so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StoredTotals {
    pub(crate) objects: u64,
    pub(crate) bytes: u64,
}

#[derive(Debug)]
struct Inner {
    name: StoreName,
    store: Arc<dyn BlobStore>,
    layout: Layout,
    folder: TopicFolder,
    runtime: Arc<dyn Runtime>,
    options: UploadOptions,
    memory: Arc<Semaphore>,
    requests: Turns,
    bandwidth: Option<Bandwidth>,
    packer: Packer,
    /// Keys made so far, and the folder of the first.
    keys: AtomicU64,
    first_folder: u8,
    notes: Option<Arc<dyn PackNotes>>,
    /// What goes wrong now; `None` while everything goes well.
    trouble: Mutex<Option<String>>,
    objects: AtomicU64,
    bytes: AtomicU64,
    /// Bytes that the store has taken, of parts of unfinished objects too.
    taken: AtomicU64,
}

impl Inner {
    /// A random key, in the folder of its neighbours in time.
    fn new_key(&self) -> Key {
        let mut name = self.runtime.token();
        let before = self.keys.fetch_add(1, Ordering::Relaxed);
        name.0[0] = self.first_folder.wrapping_add((before / KEYS_PER_FOLDER) as u8);
        self.layout.payload(&self.folder, name)
    }
    /// Waits for room for this many bytes; more than there can ever be means all of it.
    async fn room(&self, bytes: u64) -> OwnedSemaphorePermit {
        let bytes = bytes.min(self.options.memory as u64).max(1) as u32;
        match Arc::clone(&self.memory).acquire_many_owned(bytes).await {
            Ok(room) => room,
            Err(_) => unreachable!("the semaphore is never closed"),
        }
    }
    fn is_small(&self, stored: u64) -> bool {
        stored < self.options.pack_below
    }
    fn is_large(&self, content: u64) -> bool {
        content >= 2 * self.options.part_bytes
    }
    fn set_trouble(&self, trouble: Option<String>) {
        let mut slot = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        if slot.is_some() || trouble.is_some() {
            *slot = trouble;
        }
    }
    fn note_taken(&self, bytes: u64) {
        self.taken.fetch_add(bytes, Ordering::Relaxed);
        self.requests.succeeded(self.runtime.now(), bytes);
    }
    /// A turn for a request with this many payload bytes.
    async fn turn(&self, bytes: u64) -> Option<tokio::sync::SemaphorePermit<'_>> {
        if let Some(bandwidth) = &self.bandwidth {
            bandwidth.turn(&*self.runtime, bytes).await;
        }
        self.requests.acquire().await
    }
    fn note_stored(&self, bytes: u64) {
        self.objects.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl Uploader {
    pub(crate) fn new(
        name: StoreName,
        store: Arc<dyn BlobStore>,
        layout: Layout,
        folder: TopicFolder,
        runtime: Arc<dyn Runtime>,
        options: UploadOptions,
    ) -> Self {
        let memory = options.memory.clamp(READ_BYTES, u32::MAX as usize);
        let part_bytes = options.part_bytes.max(MIN_PART_BYTES).next_multiple_of(BLOCK_BYTES);
        let options = UploadOptions {
            pack_below: options.pack_below.min(MAX_PACK_BELOW),
            pack_bytes: options.pack_bytes.clamp(1, memory as u64 / 2),
            part_bytes: part_bytes.min((memory as u64 / 2).max(MIN_PART_BYTES).next_multiple_of(BLOCK_BYTES)),
            concurrency: if options.adaptive {
                FILES_WHEN_ADAPTIVE
            } else {
                options.concurrency.clamp(1, MAX_CONCURRENCY)
            },
            memory,
            ..options
        };
        Self {
            inner: Arc::new(Inner {
                name,
                store,
                layout,
                folder,
                memory: Arc::new(Semaphore::new(memory)),
                requests: if options.adaptive { Turns::adaptive() } else { Turns::fixed(options.concurrency) },
                bandwidth: options.bandwidth.map(Bandwidth::new),
                packer: Packer::default(),
                keys: AtomicU64::new(0),
                first_folder: runtime.random() as u8,
                runtime,
                notes: None,
                trouble: Mutex::new(None),
                objects: AtomicU64::new(0),
                bytes: AtomicU64::new(0),
                taken: AtomicU64::new(0),
                options,
            }),
        }
    }

    /// The same uploader, which notes its packs. To be called before the first clone is made.
    #[cfg_attr(not(feature = "jobs"), allow(dead_code))]
    pub(crate) fn noting(mut self, notes: Arc<dyn PackNotes>) -> Self {
        if let Some(inner) = Arc::get_mut(&mut self.inner) {
            inner.notes = Some(notes);
        }
        self
    }

    /// What goes wrong now, although it is still tried; `None` while everything goes well.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.inner.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Bytes that the store has taken so far, of parts of unfinished objects too.
    pub(crate) fn taken(&self) -> u64 {
        self.inner.taken.load(Ordering::Relaxed)
    }

    /// Gives up an upload in parts that an earlier process began.
    #[cfg_attr(not(feature = "jobs"), allow(dead_code))]
    pub(crate) async fn give_up(&self, begun: &Begun) -> Result<(), UploadError> {
        large::give_up(&self.inner, begun).await
    }

    /// Whether there is an object of this size.
    #[cfg_attr(not(feature = "jobs"), allow(dead_code))]
    pub(crate) async fn has(&self, key: &Key, size: u64) -> Result<bool, UploadError> {
        store::has(&self.inner, key, size).await
    }

    /// Stores a payload in one pass over its bytes. Waits while memory or requests are at their limit. `name` is kept in a
    /// pack's footer.
    ///
    /// # Errors
    /// When the source cannot be read or the store refuses; nothing refers to what may have been stored.
    pub async fn upload(
        &self,
        source: Source,
        content_type: Option<String>,
        name: Option<String>,
    ) -> Result<Receipt, UploadError> {
        self.upload_noted(source, content_type, name, None).await
    }

    /// As [`Uploader::upload`], noting how far it is, and going on where an earlier process was ended.
    pub(crate) async fn upload_noted(
        &self,
        source: Source,
        content_type: Option<String>,
        name: Option<String>,
        notes: Option<Arc<dyn UploadNotes>>,
    ) -> Result<Receipt, UploadError> {
        let compression = self.inner.options.compression.filter(|_| !is_compressed_type(content_type.as_deref()));
        self.carry_out(source, Task { compression, content_type, name, notes }).await
    }

    /// As [`Uploader::upload_noted`], never compressed.
    pub(crate) async fn upload_as_given(
        &self,
        source: Source,
        content_type: Option<String>,
        name: Option<String>,
        notes: Option<Arc<dyn UploadNotes>>,
    ) -> Result<Receipt, UploadError> {
        self.carry_out(source, Task { compression: None, content_type, name, notes }).await
    }

    async fn carry_out(&self, source: Source, task: Task) -> Result<Receipt, UploadError> {
        let inner = &self.inner;
        match source {
            Source::Bytes(bytes) if inner.is_large(bytes.len() as u64) => {
                let size = Some(bytes.len() as u64);
                large::upload(inner, Content::memory(bytes), size, None, task).await
            }
            Source::Bytes(bytes) => {
                let room = inner.room(bytes.len() as u64).await;
                self.store_content(vec![bytes], room, task).await
            }
            Source::File(path) => {
                let file = blocking(move || OpenFile::open(&path)).await??;
                if file.size() == 0 {
                    return self.upload_unsized(file, task).await;
                }
                if inner.is_large(file.size()) {
                    let size = Some(file.size());
                    return large::upload(inner, Content::file(file), size, None, task).await;
                }
                let room = inner.room(file.size()).await;
                let content = blocking(move || file.read_whole()).await??;
                self.store_content(content, room, task).await
            }
            Source::Reader(reader) => self.upload_stream(reader, task).await,
        }
    }

    /// Stores a file that says it is empty. Most are; those of /proc and the like have bytes and do not tell how many.
    async fn upload_unsized(&self, file: OpenFile, task: Task) -> Result<Receipt, UploadError> {
        let path = file.path().to_owned();
        let mut reader = file.into_reader();
        let mut first = [0];
        let read = reader.read(&mut first).await;
        match read.map_err(|error| SourceUnreadable { path: Some(path), why: error.to_string() })? {
            // It takes no more room than it has bytes, so that many of them go at once.
            0 => self.store_content(Vec::new(), self.inner.room(0).await, task).await,
            _ => self.upload_stream(Box::new(std::io::Cursor::new(first).chain(reader)), task).await,
        }
    }

    /// Stores what a stream gives until its end; how long it is is not known.
    async fn upload_stream(
        &self,
        mut reader: Box<dyn AsyncRead + Send + Unpin>,
        task: Task,
    ) -> Result<Receipt, UploadError> {
        let inner = &self.inner;
        // There is room for a payload that is not large, and for the start of one that is.
        let most = (2 * inner.options.part_bytes).min(inner.options.memory as u64);
        let room = inner.room(most).await;
        let (pieces, ended) = source::read_up_to(&mut reader, most).await?;
        if !ended {
            return large::upload(inner, Content::stream(reader), None, Some((pieces, room)), task).await;
        }
        self.store_content(pieces, room, task).await
    }

    /// Stores a payload that is in memory.
    async fn store_content(
        &self,
        content: Vec<Bytes>,
        room: OwnedSemaphorePermit,
        task: Task,
    ) -> Result<Receipt, UploadError> {
        let inner = &self.inner;
        let compression = task.compression;
        let length: usize = content.iter().map(Bytes::len).sum();
        if length <= ENCODE_INLINE {
            return self.store_whole(prepare(content, compression), room, task).await;
        }
        if inner.is_small(length as u64) {
            let prepared = blocking(move || prepare(content, compression)).await?;
            return self.store_whole(prepared, room, task).await;
        }
        let given = match blocking(move || prepare_object(content, compression)).await? {
            ForObject::Compressed(prepared) => return self.store_whole(prepared, room, task).await,
            ForObject::AsGiven(given) => given,
        };
        let Task { content_type, notes, .. } = task;
        let (key, there) = self.begin_whole(given.size, given.checksum, notes.as_deref()).await?;
        let (content, sent) = (given.content.clone(), Sent::default());
        let hash = async {
            sent.told().await;
            blocking(move || encode::hash(&content)).await
        };
        let attributes = Attributes { content_type: content_type.clone(), ..Attributes::default() };
        let blob = (given.size, given.checksum, &given.blocks[..]);
        let object = async {
            let stored = match there {
                true => self.completed_whole(&key, given.size, &given.blocks).await.map(|()| key.clone()),
                false => store::put_blob(inner, &key, given.content.clone(), blob, &attributes, &sent).await,
            };
            sent.tell();
            stored
        };
        let (hash, key) = futures::try_join!(hash, object)?;
        drop(room);
        Ok(Receipt { reference: given.with_hash(hash).reference(&inner.name, &key, None, content_type) })
    }

    /// Stores a payload whose stored bytes are in memory.
    async fn store_whole(
        &self,
        prepared: Prepared,
        room: OwnedSemaphorePermit,
        task: Task,
    ) -> Result<Receipt, UploadError> {
        let inner = &self.inner;
        let Task { content_type, name, notes, .. } = task;
        if inner.is_small(prepared.size) {
            let stored = crate::payload::joined(prepared.stored.clone());
            let (pack, offset) =
                pack::add(inner, &stored, prepared.pack_entry(name), notes.map(|notes| notes.tag()), Some(room));
            pack.durable().await?;
            return Ok(Receipt { reference: prepared.reference(&inner.name, pack.key(), Some(offset), content_type) });
        }
        let (key, there) = self.begin_whole(prepared.size, prepared.checksum, notes.as_deref()).await?;
        let attributes =
            Attributes { content_type: prepared.stored_type(content_type.as_deref()), ..Attributes::default() };
        let blob = (prepared.size, prepared.checksum, &prepared.blocks[..]);
        let key = match there {
            true => self.completed_whole(&key, prepared.size, &prepared.blocks).await.map(|()| key)?,
            false => store::put_blob(inner, &key, prepared.stored.clone(), blob, &attributes, &Sent::default()).await?,
        };
        drop(room);
        Ok(Receipt { reference: prepared.reference(&inner.name, &key, None, content_type) })
    }

    /// The key of an object with these bytes, and whether an earlier process has stored it already.
    async fn begin_whole(
        &self,
        size: u64,
        checksum: Crc32c,
        notes: Option<&dyn UploadNotes>,
    ) -> Result<(Key, bool), UploadError> {
        let inner = &self.inner;
        // Where the store chooses the key, nothing can be noted before it has.
        let Some(notes) = notes.filter(|_| !inner.store.names_objects()) else { return Ok((inner.new_key(), false)) };
        let how = BegunHow::Whole { size, checksum };
        if let Some(earlier) = notes.earlier().filter(|earlier| earlier.how == how) {
            let there = store::has(inner, &earlier.key, size).await?;
            return Ok((earlier.key, there));
        }
        let key = inner.new_key();
        notes.begun(&Begun { key: key.clone(), how }).await?;
        Ok((key, false))
    }

    /// Sees to it that an object which an earlier process stored in one request has the sums of its blocks.
    async fn completed_whole(&self, key: &Key, size: u64, blocks: &[Crc32c]) -> Result<(), UploadError> {
        match store::note_of(size, blocks) {
            Some(_) => Ok(()),
            None => store::put_sidecar(&self.inner, key, size, blocks).await,
        }
    }

    /// Stores packs that are waiting for more payloads now.
    ///
    /// # Errors
    /// When the store refuses; the uploads concerned get the error too.
    pub async fn flush(&self) -> Result<(), UploadError> {
        pack::flush(&self.inner).await
    }

    /// Room for this many payload bytes.
    pub(crate) async fn room(&self, bytes: u64) -> OwnedSemaphorePermit {
        self.inner.room(bytes).await
    }
    /// Puts small blobs, whose stored bytes are ranges of `stored`, into packs. Returns the pack of each, and where in it.
    pub(crate) fn pack_all(
        &self,
        stored: &[u8],
        blobs: impl Iterator<Item = pack::Blob>,
        room: OwnedSemaphorePermit,
    ) -> Vec<(Arc<PackState>, u64)> {
        pack::add_all(&self.inner, stored, blobs, room)
    }
    pub(crate) fn store_name(&self) -> &StoreName {
        &self.inner.name
    }
    /// Payloads below this many bytes share packs.
    pub(crate) fn options(&self) -> &UploadOptions {
        &self.inner.options
    }
    pub(crate) fn totals(&self) -> StoredTotals {
        StoredTotals {
            objects: self.inner.objects.load(Ordering::Relaxed),
            bytes: self.inner.bytes.load(Ordering::Relaxed),
        }
    }
}

/// Runs on a thread that may block.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, UploadError> {
    tokio::task::spawn_blocking(work).await.map_err(|_| UploadError::Interrupted(crate::Interrupted))
}

#[cfg(test)]
pub(crate) mod tests;
