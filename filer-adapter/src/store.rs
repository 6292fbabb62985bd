//! The two traits.

use crate::{CreateError, StoreError};
use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use refstream_types::{ByteRange, Crc32c, Key};
use std::{fmt::Debug, sync::Arc};
use tokio::sync::Notify;

/// Bytes as they arrive.
pub type ByteStream = BoxStream<'static, Result<Bytes, StoreError>>;

/// The outcome of an atomic create-if-absent that the store answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Created {
    /// This call created it.
    New,
    /// There was an object already. After a retry inside the adapter or below it, it may be this call's own.
    Exists,
}

/// Whether the bytes of a body were handed to the network. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Sent(Arc<Notify>);

impl Sent {
    /// Says that they were.
    pub fn tell(&self) {
        self.0.notify_one();
    }
    /// Waits until somebody says so; for one caller.
    pub async fn told(&self) {
        self.0.notified().await;
    }
}

/// A listed object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its key.
    pub key: Key,
    /// Its size in bytes.
    pub size: u64,
    /// Its ETag without quotes, the one that `head` answers; `None` where the listing does not tell it.
    pub etag: Option<String>,
    /// Its version, where the bucket keeps versions and the listing tells it.
    pub version: Option<String>,
}

impl Listed {
    /// An object of which no more is told than its size.
    pub fn new(key: Key, size: u64) -> Self {
        Self { key, size, etag: None, version: None }
    }
}

/// The small-object namespace that all coordination rests on.
///
/// The contract, which [`crate::probe`] checks at start-up and the conformance suite in full: of any number of concurrent
/// creates of a key at most one is answered [`Created::New`]; a later read anywhere returns that one's bytes until the
/// object is deleted; an object is never seen in part; what was answered survives a crash of the store.
#[async_trait]
pub trait Filer: Debug + Send + Sync + 'static {
    /// Creates the object unless there is one. A single request, never a multipart upload. Not retried inside.
    ///
    /// # Errors
    /// Says whether it may have happened; a 409 is [`CreateError::MayHaveHappened`] with a retryable error.
    async fn create(&self, key: &Key, bytes: Bytes) -> Result<Created, CreateError>;

    /// Reads a whole object; `None` when there is none now, which decides nothing about a create under way.
    ///
    /// # Errors
    /// When the store did not say.
    async fn read(&self, key: &Key) -> Result<Option<Bytes>, StoreError>;

    /// Reads part of an object; shorter when the object ends within the range.
    ///
    /// # Errors
    /// When the store did not say.
    async fn read_range(&self, key: &Key, range: ByteRange) -> Result<Option<Bytes>, StoreError>;

    /// Deletes the object; succeeds when there is none.
    ///
    /// # Errors
    /// When the store did not say; it may have happened.
    async fn remove(&self, key: &Key) -> Result<(), StoreError>;

    /// Up to `limit` objects whose keys start with `prefix` and are greater than `after`, ascending by key.
    ///
    /// # Errors
    /// When the store did not say.
    async fn list(&self, prefix: &str, after: Option<&Key>, limit: usize) -> Result<Vec<Listed>, StoreError>;
}

/// What a store keeps of an object besides its bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// MIME type.
    pub content_type: Option<String>,
    /// A text of ours that comes back with each `head` and `get`, so that it costs no object of its own: 1 to [`MAX_NOTE_BYTES`] printable ASCII
    /// characters, no spaces. S3 keeps it as user metadata, SeaweedFS with the needle. Objects in parts have none.
    pub note: Option<String>,
}

/// The longest [`Attributes::note`]: half of what S3 allows of user metadata.
pub const MAX_NOTE_BYTES: usize = 1_024;

/// The name of a note in HTTP headers, behind the store's own prefix.
#[cfg(any(feature = "s3", feature = "embedded", feature = "seaweedfs"))]
pub(crate) const NOTE: &str = "refstream-note";

/// What a store says of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectMeta {
    /// Bytes.
    pub size: u64,
    /// Its ETag without quotes: opaque, not a checksum.
    pub etag: Option<String>,
    /// Its version, where the store keeps versions.
    pub version: Option<String>,
    /// MIME type.
    pub content_type: Option<String>,
    /// What was put as [`Attributes::note`]; `None` where the store lost it.
    pub note: Option<String>,
}

/// An object that is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Its key: the one asked for, or one that the store gave.
    pub key: Key,
    /// Its size in bytes.
    pub size: u64,
    /// Its ETag.
    pub etag: Option<String>,
}

/// What to read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GetOptions {
    /// Only these bytes.
    pub range: Option<ByteRange>,
    /// Only if the object still has this ETag.
    pub etag: Option<String>,
    /// This version.
    pub version: Option<String>,
}

/// An object that was found.
pub struct Found {
    /// The whole object's properties.
    pub meta: ObjectMeta,
    /// The bytes that were asked for.
    pub body: ByteStream,
}

/// One uploaded part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its number, from 1.
    pub number: u32,
    /// Its ETag as the store gave it.
    pub etag: String,
    /// Its size in bytes.
    pub size: u64,
    /// CRC32C of its bytes; `None` where the store lists parts without it. Then the ETag tells whether it is the part that was put.
    pub checksum: Option<Crc32c>,
}

/// A home of payloads and files. Objects are immutable: a key is written once.
#[async_trait]
pub trait BlobStore: Debug + Send + Sync + 'static {
    /// The absolute URI of an object, as it stands in Parquet files, for example `s3://bucket/key`: what all URIs of the store
    /// start with, then the key as it is.
    fn uri(&self, key: &Key) -> String;

    /// Whether the store gives objects names of its own. Then the key in [`Stored`] is the one to keep, not the one that was asked for; an object's
    /// sidecar can be put only once its key is known; content types are not kept, and nothing can be listed, parts of uploads
    /// neither: each is an object of its own, whose key is the part's ETag.
    fn names_objects(&self) -> bool {
        false
    }

    /// Stores an object in one request; `body` is its pieces in order, whose CRC32C is `checksum`. Durable when answered.
    /// Retries inside are idempotent since the bytes are the same.
    ///
    /// # Errors
    /// Says whether it may have happened.
    async fn put(
        &self,
        key: &Key,
        body: Vec<Bytes>,
        checksum: Crc32c,
        attributes: &Attributes,
    ) -> Result<Stored, CreateError> {
        self.put_telling(key, body, checksum, attributes, &Sent::default()).await
    }

    /// As [`BlobStore::put`], telling when the body is on its way: from then on the caller's processor time is the caller's own. A store
    /// that cannot tell says so at once. Repeated requests tell once.
    ///
    /// # Errors
    /// As [`BlobStore::put`].
    async fn put_telling(
        &self,
        key: &Key,
        body: Vec<Bytes>,
        checksum: Crc32c,
        attributes: &Attributes,
        sent: &Sent,
    ) -> Result<Stored, CreateError>;

    /// Starts an upload in parts.
    ///
    /// # Errors
    /// When the store refuses; nothing is visible then.
    async fn start_multipart(&self, key: &Key, attributes: &Attributes)
    -> Result<Box<dyn MultipartUpload>, StoreError>;

    /// Goes on with an upload that was started earlier, by the id it had.
    ///
    /// # Errors
    /// When there is no such upload.
    async fn resume_multipart(&self, key: &Key, upload: &str) -> Result<Box<dyn MultipartUpload>, StoreError>;

    /// Reads an object or a range of it. The bytes are not verified here.
    ///
    /// # Errors
    /// `NotFound`, `Changed`, or what prevented it; errors of the body arrive in its stream.
    async fn get(&self, key: &Key, options: &GetOptions) -> Result<Found, StoreError>;

    /// An object's properties; `None` when there is none.
    ///
    /// # Errors
    /// When the store did not say.
    async fn head(&self, key: &Key) -> Result<Option<ObjectMeta>, StoreError>;

    /// Deletes an object; succeeds when there is none.
    ///
    /// # Errors
    /// When the store did not say; it may have happened.
    async fn delete(&self, key: &Key) -> Result<(), StoreError>;

    /// Up to `limit` objects whose keys start with `prefix` and are greater than `after`, ascending by key.
    ///
    /// # Errors
    /// When the store did not say.
    async fn list_blobs(&self, prefix: &str, after: Option<&Key>, limit: usize) -> Result<Vec<Listed>, StoreError>;
}

/// An upload in parts. Parts may be uploaded in parallel and in any order; nothing is visible until `complete`.
#[async_trait]
pub trait MultipartUpload: Debug + Send + Sync {
    /// The store's id of the upload, by which it can be resumed.
    fn id(&self) -> &str;

    /// Uploads part `number` (from 1; all but the last have the same size, at least 5 MiB). Uploading a number again
    /// replaces it.
    ///
    /// # Errors
    /// When it failed after the adapter's retries.
    async fn put_part(&self, number: u32, body: Vec<Bytes>, checksum: Crc32c) -> Result<Part, StoreError>;

    /// The parts that the store has, ascending by number, each with the ETag that [`MultipartUpload::put_part`] answered.
    /// Some stores also list a part that was replaced.
    ///
    /// # Errors
    /// When the store did not say.
    async fn parts(&self) -> Result<Vec<Part>, StoreError>;

    /// Makes the object of the parts, ascending by number, with their checksums. Durable when answered.
    ///
    /// # Errors
    /// Says whether it may have happened.
    async fn complete(&self, parts: &[Part]) -> Result<Stored, CreateError>;

    /// Gives the upload up and frees its parts.
    ///
    /// # Errors
    /// When the store did not say.
    async fn abort(&self) -> Result<(), StoreError>;
}
