//! Uploading payloads.

use crate::UploadError;
use bytes::Bytes;
use refstream_types::Reference;
use std::path::PathBuf;

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
#[derive(Clone, Debug)]
pub struct UploadOptions {
    /// Payloads below this many bytes share packs. 0: every payload is an object of its own.
    pub pack_below: u64,
    /// A pack is stored when it has this many bytes.
    pub pack_bytes: u64,
    /// A pack is stored when its first payload has waited this long.
    pub pack_linger: std::time::Duration,
    /// Payloads of at least this many bytes are uploaded in parts of at least this size.
    pub part_bytes: u64,
    /// Requests to the store at once, all payloads together.
    pub concurrency: usize,
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
            memory: 96 << 20,
            compression: Some(1),
        }
    }
}

/// Uploads payloads of one topic. Cheap to clone; clones share packs, memory and connections.
#[derive(Clone, Debug)]
pub struct Uploader {}

#[allow(unused_variables)]
impl Uploader {
    pub(crate) fn new(
        name: refstream_types::StoreName,
        store: std::sync::Arc<dyn refstream_filer_adapter::BlobStore>,
        layout: refstream_types::Layout,
        folder: refstream_types::TopicFolder,
        runtime: std::sync::Arc<dyn refstream_filer_adapter::Runtime>,
        options: UploadOptions,
    ) -> Self {
        todo!()
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
        todo!()
    }
    /// Stores packs that are waiting for more payloads now.
    ///
    /// # Errors
    /// When the store refuses; the uploads concerned get the error too.
    pub async fn flush(&self) -> Result<(), UploadError> {
        todo!()
    }
}
