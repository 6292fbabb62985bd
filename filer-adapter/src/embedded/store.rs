//! The store: opening it, its limits, and the two traits on it.

use super::{
    body::{Body, Target},
    durable::Folders,
    listing::Walk,
    note::{self, Properties},
    objects::{Condition, Extra, Failure, Outcome, Stripe},
    paths::{MAX_DIRECTORY_BYTES, Paths},
    uploads::{DirectUpload, Uploads},
};
use crate::{
    Attributes, BlobStore, ByteStream, CreateError, Created, Filer, Found, GetOptions, Listed, MultipartUpload,
    ObjectMeta, Runtime, Sent, StoreError, StoreErrorKind, Stored, TokioRuntime, store::NOTE,
};
use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, stream};
use refstream_types::{ByteRange, Crc32c, Key};
use std::{
    collections::BTreeSet,
    fs::{File, TryLockError},
    hash::{BuildHasher, RandomState},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Mode of an object's file.
pub(super) const FILE_MODE: u32 = 0o644;
/// Locks of the key space.
const STRIPES: usize = 256;
/// Bytes read from a file at once.
const READ_BYTES: u64 = 512 * 1024;
/// Disk operations under way at once, unless set otherwise.
const DEFAULT_DISK_THREADS: usize = 64;
/// Lengths of a bucket's name; S3's.
const BUCKET_NAME_BYTES: std::ops::RangeInclusive<usize> = 3..=63;

/// How a [`FileStore`] works.
#[derive(Clone, Debug)]
pub struct FileStoreOptions {
    /// Whether files and folders are fsynced before an answer. `false` is several times faster and loses answered writes when
    /// the machine (not only the process) stops: for tests and throw-away data.
    pub fsync: bool,
    /// Disk operations under way at once; each takes a thread for its time. More help only where the disk is far or wide.
    pub disk_threads: usize,
    /// Where ETags take their randomness from.
    pub runtime: Arc<dyn Runtime>,
}

impl Default for FileStoreOptions {
    fn default() -> Self {
        Self { fsync: true, disk_threads: DEFAULT_DISK_THREADS, runtime: Arc::new(TokioRuntime::new()) }
    }
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) bucket: String,
    pub(super) paths: Paths,
    pub(super) folders: Folders,
    pub(super) options: FileStoreOptions,
    /// Whether files can carry notes.
    pub(super) notes: bool,
    /// The keys of the escaped area, as bytes.
    pub(super) escaped: Mutex<BTreeSet<Vec<u8>>>,
    pub(super) uploads: Uploads,
    name: String,
    stripes: Vec<Stripe>,
    hasher: RandomState,
    threads: Arc<Semaphore>,
    _lock: File,
}

/// Objects as plain files of one directory. One process at a time has it open.
#[derive(Debug)]
pub struct FileStore {
    pub(super) inner: Arc<Inner>,
}

impl FileStore {
    /// Opens the store in `dir`, making it where it is new, with its one bucket. Removes what a crash left half-written and
    /// makes durable what is visible. Blocks for a moment.
    ///
    /// # Errors
    /// `Invalid` for a bucket name or directory that cannot be used, `Unavailable` while another process has the store open,
    /// else by what the file system said.
    pub fn open(dir: &Path, bucket: &str, options: FileStoreOptions) -> Result<Arc<Self>, StoreError> {
        let name = format!("embedded ({})", dir.display());
        let failed =
            |kind, message: String| StoreError { kind, operation: "open", store: name.clone(), key: None, message };
        let valid = BUCKET_NAME_BYTES.contains(&bucket.len())
            && bucket.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'));
        if !valid {
            let why = format!("the bucket name {bucket:?} is not 3 to 63 of a-z, 0-9 and -");
            return Err(failed(StoreErrorKind::Invalid, why));
        }
        let io_failed = |error: io::Error| failed(kind_of(&error), error.to_string());
        std::fs::create_dir_all(dir).map_err(io_failed)?;
        let dir = dir.canonicalize().map_err(io_failed)?;
        if dir.as_os_str().len() > MAX_DIRECTORY_BYTES {
            let why = format!("the directory's path is longer than {MAX_DIRECTORY_BYTES} bytes");
            return Err(failed(StoreErrorKind::Invalid, why));
        }
        let paths = Paths::new(&dir, bucket);
        for folder in [&paths.objects, &paths.private, &paths.temporary, &paths.escaped, &paths.uploads] {
            std::fs::create_dir_all(folder).map_err(io_failed)?;
        }
        let lock_file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(paths.private.join("lock"))
            .map_err(io_failed)?;
        match lock_file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let why = "another process has it open; stop that one or use another directory";
                return Err(failed(StoreErrorKind::Unavailable, why.to_owned()));
            }
            Err(TryLockError::Error(error)) => return Err(io_failed(error)),
        }
        for entry in std::fs::read_dir(&paths.temporary).map_err(io_failed)? {
            std::fs::remove_file(entry.map_err(io_failed)?.path()).map_err(io_failed)?;
        }
        let notes = note::supported(&lock_file).map_err(io_failed)?;
        if !notes {
            tracing::warn!(
                store = name,
                "the file system has no extended attributes: content types and checksums are not kept"
            );
        }
        let mut escaped = BTreeSet::new();
        index_escaped(&paths.escaped, &paths.escaped, &mut escaped).map_err(io_failed)?;
        let uploads = Uploads::load(&paths).map_err(io_failed)?;
        if options.fsync {
            // What a killed process left visible may not be durable yet.
            sync_file_system(&lock_file).map_err(io_failed)?;
        }
        let inner = Inner {
            bucket: bucket.to_owned(),
            paths,
            folders: Folders::new(options.fsync),
            notes,
            escaped: Mutex::new(escaped),
            uploads,
            name,
            stripes: (0..STRIPES).map(|_| Stripe::default()).collect(),
            hasher: RandomState::new(),
            threads: Arc::new(Semaphore::new(options.disk_threads.max(1))),
            _lock: lock_file,
            options,
        };
        Ok(Arc::new(Self { inner: Arc::new(inner) }))
    }

    /// The name of the bucket.
    pub fn bucket(&self) -> &str {
        &self.inner.bucket
    }

    /// The folder that holds the objects.
    pub fn objects(&self) -> &Path {
        &self.inner.paths.objects
    }

    async fn read_at_most(
        &self,
        operation: &'static str,
        key: &Key,
        range: Option<ByteRange>,
    ) -> Result<Option<Bytes>, StoreError> {
        let wanted = key.clone();
        let read = self.inner.run(move |inner| {
            let Some((file, properties)) = inner.open(&wanted)? else { return Ok(None) };
            let (start, end) = clip(range, properties.size);
            read_exactly(&file, start, end - start).map(Some)
        });
        read.await.map_err(|error| self.inner.error(operation, Some(key), &error))
    }

    async fn list_keys(&self, prefix: &str, after: Option<&Key>, limit: usize) -> Result<Vec<Listed>, StoreError> {
        let (prefix, after) = (prefix.to_owned(), after.map(|key| key.as_str().to_owned()));
        let listed = self.inner.run(move |inner| {
            let mut walk = Walk::new(inner, &prefix, after.as_deref())?;
            let mut listed = Vec::new();
            while listed.len() < limit {
                let Some(key) = walk.next()? else { break };
                if let Some((_, properties)) = inner.open(&key)? {
                    listed.push(Listed { key, size: properties.size, etag: Some(properties.etag), version: None });
                }
            }
            Ok(listed)
        });
        listed.await.map_err(|error| self.inner.error("list", None, &error))
    }

    async fn publish(
        &self,
        operation: &'static str,
        key: &Key,
        pieces: Vec<Bytes>,
        checksum: Option<Crc32c>,
        extra: Extra,
        condition: Condition,
    ) -> Result<Outcome, CreateError> {
        let wanted = key.clone();
        let published = self.inner.try_run(move |inner| {
            let body = Body::whole(inner.temporary(), pieces);
            inner.publish(&wanted, body, checksum, extra, &condition)
        });
        match published.await {
            Ok(Ok(outcome)) => Ok(outcome),
            Ok(Err(failure)) => Err(self.inner.create_error(operation, key, failure)),
            // The disk task died: nobody knows how far it had come.
            Err(error) => Err(CreateError::MayHaveHappened(self.inner.error(operation, Some(key), &error))),
        }
    }
}

impl Inner {
    pub(super) fn stripe(&self, key: &Key) -> &Stripe {
        &self.stripes[self.hasher.hash_one(key) as usize % STRIPES]
    }

    /// A fresh name for a body on its way in.
    pub(super) fn temporary(&self) -> PathBuf {
        self.paths.temporary.join(self.options.runtime.token().to_string())
    }

    /// A target for a body on its way in.
    pub(super) fn new_target(&self) -> Target {
        Target::New { path: self.temporary(), made: None }
    }

    pub(super) async fn permit(&self) -> io::Result<OwnedSemaphorePermit> {
        Arc::clone(&self.threads).acquire_owned().await.map_err(io::Error::other)
    }

    /// Runs a blocking operation on the disk threads. It runs to its end even if the caller goes away.
    pub(super) async fn try_run<T: Send + 'static>(
        self: &Arc<Self>,
        operation: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> io::Result<T> {
        let permit = self.permit().await?;
        let inner = Arc::clone(self);
        let task = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            operation(&inner)
        });
        task.await.map_err(io::Error::other)
    }

    pub(super) async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        operation: impl FnOnce(&Self) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        self.try_run(operation).await?
    }

    pub(super) fn error(&self, operation: &'static str, key: Option<&Key>, error: &io::Error) -> StoreError {
        self.refusal(kind_of(error), operation, key, error.to_string())
    }

    pub(super) fn refusal(
        &self,
        kind: StoreErrorKind,
        operation: &'static str,
        key: Option<&Key>,
        message: impl Into<String>,
    ) -> StoreError {
        StoreError { kind, operation, store: self.name.clone(), key: key.cloned(), message: message.into() }
    }

    pub(super) fn create_error(&self, operation: &'static str, key: &Key, failure: Failure) -> CreateError {
        match failure {
            Failure::Mismatch { arrived } => CreateError::DidNotHappen(self.refusal(
                StoreErrorKind::Corrupt,
                operation,
                Some(key),
                format!("the bytes that arrived have {arrived}"),
            )),
            Failure::Before(error) => CreateError::DidNotHappen(self.error(operation, Some(key), &error)),
            Failure::After(error) => CreateError::MayHaveHappened(self.error(operation, Some(key), &error)),
        }
    }

    /// Streams part of an open file, one piece ahead of the reader.
    pub(super) fn stream(
        self: &Arc<Self>,
        file: File,
        start: u64,
        end: u64,
    ) -> stream::BoxStream<'static, io::Result<Bytes>> {
        let (inner, file) = (Arc::clone(self), Arc::new(file));
        let pieces = (start..end).step_by(READ_BYTES as usize);
        stream::iter(pieces)
            .map(move |at| {
                let (inner, file) = (Arc::clone(&inner), Arc::clone(&file));
                async move { inner.run(move |_| read_exactly(&file, at, READ_BYTES.min(end - at))).await }
            })
            .buffered(2)
            .boxed()
    }
}

pub(super) fn kind_of(error: &io::Error) -> StoreErrorKind {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            StoreErrorKind::NoSpace
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => StoreErrorKind::AccessDenied,
        io::ErrorKind::InvalidInput | io::ErrorKind::InvalidFilename => StoreErrorKind::Invalid,
        _ => StoreErrorKind::Unavailable,
    }
}

/// The part of an object that a range covers.
fn clip(range: Option<ByteRange>, size: u64) -> (u64, u64) {
    match range {
        None => (0, size),
        Some(range) => {
            let start = range.offset.min(size);
            (start, range.end().unwrap_or(u64::MAX).clamp(start, size))
        }
    }
}

fn read_exactly(file: &File, start: u64, length: u64) -> io::Result<Bytes> {
    let length = usize::try_from(length).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
    let mut buffer = vec![0; length];
    file.read_exact_at(&mut buffer, start)?;
    Ok(buffer.into())
}

fn index_escaped(top: &Path, folder: &Path, index: &mut BTreeSet<Vec<u8>>) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            index_escaped(top, &path, index)?;
        } else if let Some(key) = path.strip_prefix(top).ok().and_then(Paths::unescape) {
            index.insert(key.as_str().into());
        }
    }
    Ok(())
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn sync_file_system(file: &File) -> io::Result<()> {
    Ok(rustix::fs::syncfs(file)?)
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn sync_file_system(_: &File) -> io::Result<()> {
    rustix::fs::sync();
    Ok(())
}

impl From<&Attributes> for Extra {
    fn from(attributes: &Attributes) -> Self {
        let content_type = attributes.content_type.clone().filter(|text| text.len() <= note::MAX_CONTENT_TYPE_BYTES);
        let metadata = attributes.note.iter().map(|note| (NOTE.to_owned(), note.clone())).collect();
        Self { content_type, metadata }
    }
}

impl From<Properties> for ObjectMeta {
    fn from(properties: Properties) -> Self {
        Self {
            size: properties.size,
            etag: Some(properties.etag),
            version: None,
            content_type: properties.content_type,
            note: properties.metadata.get(NOTE).cloned(),
        }
    }
}

#[async_trait]
impl Filer for FileStore {
    async fn create(&self, key: &Key, bytes: Bytes) -> Result<Created, CreateError> {
        match self.publish("create", key, vec![bytes], None, Extra::default(), Condition::Absent).await? {
            Outcome::Published(_) => Ok(Created::New),
            Outcome::Refused | Outcome::Missing => Ok(Created::Exists),
        }
    }

    async fn read(&self, key: &Key) -> Result<Option<Bytes>, StoreError> {
        self.read_at_most("read", key, None).await
    }

    async fn read_range(&self, key: &Key, range: ByteRange) -> Result<Option<Bytes>, StoreError> {
        self.read_at_most("read", key, Some(range)).await
    }

    async fn remove(&self, key: &Key) -> Result<(), StoreError> {
        self.delete(key).await
    }

    async fn list(&self, prefix: &str, after: Option<&Key>, limit: usize) -> Result<Vec<Listed>, StoreError> {
        self.list_keys(prefix, after, limit).await
    }
}

#[async_trait]
impl BlobStore for FileStore {
    fn uri(&self, key: &Key) -> String {
        format!("s3://{}/{key}", self.inner.bucket)
    }

    async fn put_telling(
        &self,
        key: &Key,
        body: Vec<Bytes>,
        checksum: Crc32c,
        attributes: &Attributes,
        sent: &Sent,
    ) -> Result<Stored, CreateError> {
        sent.tell();
        match self.publish("put", key, body, Some(checksum), attributes.into(), Condition::Always).await? {
            Outcome::Published(properties) => {
                Ok(Stored { key: key.clone(), size: properties.size, etag: Some(properties.etag) })
            }
            Outcome::Refused | Outcome::Missing => Err(CreateError::DidNotHappen(self.inner.refusal(
                StoreErrorKind::Unavailable,
                "put",
                Some(key),
                "refused without a condition",
            ))),
        }
    }

    async fn start_multipart(
        &self,
        key: &Key,
        attributes: &Attributes,
    ) -> Result<Box<dyn MultipartUpload>, StoreError> {
        let (wanted, extra) = (key.clone(), Extra::from(attributes));
        let upload = self.inner.run(move |inner| inner.start_upload(&wanted, extra)).await;
        let upload = upload.map_err(|error| self.inner.error("start multipart", Some(key), &error))?;
        Ok(Box::new(DirectUpload::new(Arc::clone(&self.inner), upload)))
    }

    async fn resume_multipart(&self, key: &Key, upload: &str) -> Result<Box<dyn MultipartUpload>, StoreError> {
        match self.inner.uploads.find(upload) {
            Some(upload) if upload.key() == key => Ok(Box::new(DirectUpload::new(Arc::clone(&self.inner), upload))),
            _ => Err(self.inner.refusal(
                StoreErrorKind::NotFound,
                "resume multipart",
                Some(key),
                format!("there is no upload {upload:?}"),
            )),
        }
    }

    async fn get(&self, key: &Key, options: &GetOptions) -> Result<Found, StoreError> {
        let (wanted, range) = (key.clone(), options.range);
        let opened = self.inner.run(move |inner| {
            let Some((file, properties)) = inner.open(&wanted)? else { return Ok(None) };
            let (start, end) = clip(range, properties.size);
            // What fits into one piece is read at once: one visit to the disk threads.
            let small = if end - start <= READ_BYTES { Some(read_exactly(&file, start, end - start)?) } else { None };
            Ok(Some((file, properties, start, end, small)))
        });
        let opened = opened.await.map_err(|error| self.inner.error("get", Some(key), &error))?;
        let Some((file, properties, start, end, small)) = opened else {
            return Err(self.inner.refusal(StoreErrorKind::NotFound, "get", Some(key), ""));
        };
        if options.version.is_some() {
            let why = "the embedded store keeps no versions";
            return Err(self.inner.refusal(StoreErrorKind::Invalid, "get", Some(key), why));
        }
        if options.etag.as_ref().is_some_and(|etag| *etag != properties.etag) {
            let why = format!("its etag is {}", properties.etag);
            return Err(self.inner.refusal(StoreErrorKind::Changed, "get", Some(key), why));
        }
        let body: ByteStream = match small {
            Some(bytes) => stream::iter((!bytes.is_empty()).then_some(Ok(bytes))).boxed(),
            None => {
                let (inner, key) = (Arc::clone(&self.inner), key.clone());
                self.inner
                    .stream(file, start, end)
                    .map(move |piece| piece.map_err(|error| inner.error("get", Some(&key), &error)))
                    .boxed()
            }
        };
        Ok(Found { meta: properties.into(), body })
    }

    async fn head(&self, key: &Key) -> Result<Option<ObjectMeta>, StoreError> {
        let wanted = key.clone();
        let opened = self.inner.run(move |inner| inner.open(&wanted)).await;
        let opened = opened.map_err(|error| self.inner.error("head", Some(key), &error))?;
        Ok(opened.map(|(_, properties)| properties.into()))
    }

    async fn delete(&self, key: &Key) -> Result<(), StoreError> {
        let wanted = key.clone();
        let deleted = self.inner.run(move |inner| inner.delete(&wanted)).await;
        deleted.map(drop).map_err(|error| self.inner.error("delete", Some(key), &error))
    }

    async fn list_blobs(&self, prefix: &str, after: Option<&Key>, limit: usize) -> Result<Vec<Listed>, StoreError> {
        self.list_keys(prefix, after, limit).await
    }
}
