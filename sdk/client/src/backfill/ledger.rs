//! What a backfill remembers of its files, if anything does: see the module `job`.

use super::walk::Found;
use crate::{
    JobState,
    uploader::{Begun, FileTag, UploadNotes},
};
use futures::future::BoxFuture;
use refstream_types::{ContentHash, Header, Reference, Timestamp};
use std::{fmt::Debug, sync::Arc};

/// What is known of a file that was found.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Known {
    /// Nothing that would help.
    New,
    /// Its record is durable.
    Done,
    /// Its record is durable, but the file has changed since.
    Changed,
    /// Its payload may be durable, in an object of this size; it certainly is if the object exists.
    Stored { reference: Box<Reference>, object_size: u64 },
    /// Its upload was begun.
    Begun(Begun),
}

/// Finds out what is known of files. Blocks.
pub(super) type Lookup = Arc<dyn Fn(&[Found]) -> Result<Vec<Known>, JobState> + Send + Sync>;

/// What became of a file's payload.
#[derive(Clone, Debug)]
pub(super) enum Payload<'a> {
    /// It is durable: an object of its own, or one that is known already.
    Stored { reference: &'a Reference, object_size: u64 },
    /// It travels in its record.
    Inline(ContentHash),
}

/// Remembers files. Calls take effect in their order.
pub(super) trait Ledger: Debug + Send + Sync + 'static {
    /// What is known of these files. Blocks.
    fn known(&self, files: &[Found]) -> Result<Vec<Known>, JobState>;
    /// A file's payload needs no more uploading. To be called before its record is produced.
    fn payload(&self, row: &[u8], size: u64, modified: Option<Timestamp>, payload: &Payload<'_>);
    /// A file failed. Unless `go_on`, what was begun of it is forgotten.
    fn failed(&self, found: &Found, error: &str, go_on: bool);
    /// The notes of a file's upload.
    fn upload_notes(self: Arc<Self>, found: &Found, tag: Arc<FileTag>, earlier: Option<Begun>) -> Arc<dyn UploadNotes>;
    /// Waits until everything that was told so far is known.
    fn written(&self) -> BoxFuture<'static, Result<(), JobState>>;
    /// The header by which the job's records are known.
    fn header(&self) -> Header;
}
