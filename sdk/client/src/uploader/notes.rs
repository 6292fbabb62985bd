//! Noting uploads as they go, so that a later process can go on where this one was ended.
//!
//! Whole objects: key, size and sum are noted before the first byte goes out. Whoever finds the note and an object of that size under that key has
//! nothing to upload, since keys are random and used once. Uploads in parts: the store's id is noted before the first part, each part when the store
//! has it. Packs: the places of all blobs are noted before the pack goes out.
//!
//! A store that names objects itself tells the key with its answer: there whole objects and packs are noted once they are stored, and what was
//! stored without its answer being noted is stored again.

use crate::UploadError;
use async_trait::async_trait;
use bytes::Bytes;
use futures::future::BoxFuture;
use refstream_filer_adapter::Part;
use refstream_format::pack::PackEntry;
use refstream_types::{Crc32c, Key, StoreName, Timestamp};
use std::{fmt::Debug, sync::Arc};

/// The file that a blob comes from.
#[derive(Debug)]
pub(crate) struct FileTag {
    /// What the notes know it by.
    pub(crate) row: Bytes,
    /// When it was modified last, as it was read.
    pub(crate) modified: Option<Timestamp>,
    pub(crate) content_type: Option<String>,
}

/// A pack that is about to be stored.
#[derive(Debug)]
pub(crate) struct NotedPack {
    pub(crate) store: StoreName,
    pub(crate) key: Key,
    /// Bytes of the whole object.
    pub(crate) size: u64,
    /// Its blobs, as far as they come from files.
    pub(crate) blobs: Vec<(PackEntry, Arc<FileTag>)>,
}

/// Where packs are noted.
pub(crate) trait PackNotes: Debug + Send + Sync + 'static {
    /// Notes a pack, durably.
    fn pack(&self, pack: NotedPack) -> BoxFuture<'static, Result<(), UploadError>>;
}

/// An upload that was begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Begun {
    pub(crate) key: Key,
    pub(crate) how: BegunHow,
}

/// One request, or parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BegunHow {
    /// One request, with these stored bytes.
    Whole { size: u64, checksum: Crc32c },
    /// Parts.
    Parts {
        /// The store's id of the upload.
        upload: String,
        part_bytes: u64,
        compressed: bool,
        /// Parts that the store has.
        parts: Vec<Part>,
    },
}

/// The notes of one file's upload.
#[async_trait]
pub(crate) trait UploadNotes: Send + Sync + 'static {
    /// What an earlier process noted of the same bytes.
    fn earlier(&self) -> Option<Begun>;
    /// Notes that the upload begins, durably.
    async fn begun(&self, begun: &Begun) -> Result<(), UploadError>;
    /// Notes a part that the store has.
    fn part(&self, part: &Part);
    /// The file, for the notes of the pack that it may end up in.
    fn tag(&self) -> Arc<FileTag>;
}
