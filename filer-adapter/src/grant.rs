//! Grants: permissions for single requests, for clients that have no credentials of a store.
//!
//! A client hashes a body that it holds in memory and asks for permission to store exactly that: key, size and CRC32C are part of the
//! permission. It sends the body to the store itself. Both sides of this are one trait, [`Grants`]: whoever has credentials implements it
//! by signing ([`crate::s3::S3Granter`], [`crate::seaweed::SeaweedGranter`]), whoever has none by asking (the SDK, of a broker); a store that
//! was opened with a `Grants` instead of credentials ([`crate::s3::S3Store::granted`], [`crate::seaweed::SeaweedStore::granted`]) is a
//! [`crate::BlobStore`] like any other. Which keys somebody may be granted is not decided here.
//!
//! **S3.** A presigned `PUT` with signed `If-None-Match: *`, `Content-Length` and `x-amz-checksum-crc32c`: it stores those bytes under that key
//! when there is no object yet, and nothing else. An upload in parts is started, completed (with `If-None-Match: *` too) and given up by whoever
//! signs; the parts are presigned. Reading is a presigned `GET` or `HEAD` of one key, in any ranges.
//!
//! **SeaweedFS.** Whoever signs has the master assign a file id of its own for each grant, and gives a JWT for that id alone. Until it
//! expires a JWT also permits to overwrite or delete *that* needle, and no other that exists: needles of other grants have other
//! cookies. A part carries a proof (a MAC over upload, id and size) without which it cannot be completed into an object, since an object's
//! deletion deletes its parts.
//!
//! **A crash** at any step leaves at most an object or parts that nothing refers to, as with credentials. A grant that is not used costs
//! nothing.

use crate::{Attributes, CreateError, Listed, Part, StoreError, Stored};
use async_trait::async_trait;
use refstream_types::{Crc32c, Key};
use std::{
    fmt::{self, Debug},
    time::Duration,
};

/// A request that the store accepts as it is until it expires.
#[derive(Clone, PartialEq, Eq)]
pub struct SignedRequest {
    /// Where to; whoever knows it may send the request.
    pub url: String,
    /// Headers that it must have with these values, in lower case; `host` and `content-length` follow from address and body.
    pub headers: Vec<(String, String)>,
    /// How long it is accepted, from when it was made.
    pub life: Duration,
}

impl Debug for SignedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = self.url.split('?').next().unwrap_or_default();
        f.debug_struct("SignedRequest").field("place", &place).field("life", &self.life).finish_non_exhaustive()
    }
}

/// A place at a volume server, and the permission to write there.
#[derive(Clone, PartialEq, Eq)]
pub struct NeedlePlace {
    /// The file id as it stands in the URL.
    pub path: String,
    /// The JWT; `None` where the cluster asks for none.
    pub token: Option<String>,
}

impl Debug for NeedlePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NeedlePlace").field("path", &self.path).finish_non_exhaustive()
    }
}

/// A needle that was assigned to one grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NeedleGrant {
    /// The file id: the key of what will be stored.
    pub key: Key,
    /// `HOST:PORT` of the volume server.
    pub server: String,
    /// Where it is written.
    pub place: NeedlePlace,
    /// Where the sums of its blocks are written.
    pub beside: NeedlePlace,
    /// Of a part: without it the part cannot be completed into an object.
    pub proof: Option<String>,
    /// How long it is accepted, from when it was made.
    pub life: Duration,
}

/// Permission to store one body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UploadGrant {
    /// S3.
    Request(SignedRequest),
    /// SeaweedFS.
    Needle(Box<NeedleGrant>),
}

/// Permission to read one object.
#[derive(Clone, PartialEq, Eq)]
pub enum ReadGrant {
    /// S3.
    Request(SignedRequest),
    /// SeaweedFS.
    Needle {
        /// `HOST:PORT` of the volume servers that have it.
        servers: Vec<String>,
        /// The JWT; `None` where the cluster asks for none.
        token: Option<String>,
        /// How long it is accepted, from when it was made.
        life: Duration,
    },
}

impl ReadGrant {
    /// How long it is accepted, from when it was made.
    pub fn life(&self) -> Duration {
        match self {
            Self::Request(request) => request.life,
            Self::Needle { life, .. } => *life,
        }
    }
}

impl Debug for ReadGrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request(request) => request.fmt(f),
            Self::Needle { servers, life, .. } => {
                f.debug_struct("Needle").field("servers", servers).field("life", life).finish_non_exhaustive()
            }
        }
    }
}

/// A body that is about to be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UploadAsk {
    /// The object's key. Where the store names objects it is only the name that is asked for.
    pub key: Key,
    /// Bytes of the body.
    pub size: u64,
    /// Its CRC32C.
    pub checksum: Crc32c,
    /// The whole of the object or a part of it.
    pub kind: UploadKind,
}

/// What a body is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UploadKind {
    /// An object.
    Object(Attributes),
    /// A part of an upload that was started.
    Part {
        /// The upload's id.
        upload: String,
        /// The part's number, from 1.
        number: u32,
    },
}

/// An object that is about to be read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ReadAsk {
    /// Its key.
    pub key: Key,
    /// Its version, where it is pinned.
    pub version: Option<String>,
    /// Only its properties.
    pub head: bool,
}

/// An object that was completed from its parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completed {
    /// The object.
    pub stored: Stored,
    /// Where the sums of its blocks are written, on SeaweedFS: server and place.
    pub beside: Option<(String, NeedlePlace)>,
}

/// Gives grants, or asks for them.
#[async_trait]
pub trait Grants: Debug + Send + Sync + 'static {
    /// Permission to store one body.
    ///
    /// # Errors
    /// When it is refused or nobody can be asked.
    async fn upload(&self, ask: &UploadAsk) -> Result<UploadGrant, StoreError>;

    /// Permission to read one object. It is not looked whether there is one.
    ///
    /// # Errors
    /// When it is refused or nobody can be asked.
    async fn read(&self, ask: &ReadAsk) -> Result<ReadGrant, StoreError>;

    /// Forgets what was granted for reading an object: it did not work.
    fn forget(&self, _key: &Key) {}

    /// Starts an upload in parts of an object that does not exist yet; its id.
    ///
    /// # Errors
    /// When it is refused, there is such an object, or nobody can be asked.
    async fn start_upload(&self, key: &Key, attributes: &Attributes) -> Result<String, StoreError>;

    /// The parts that the store has of an upload; none where the store knows nothing of uploads.
    ///
    /// # Errors
    /// `NotFound` when there is no such upload.
    async fn parts(&self, key: &Key, upload: &str) -> Result<Vec<Part>, StoreError>;

    /// Makes an object of the parts, unless there is one. `note` is kept with it on SeaweedFS alone.
    ///
    /// # Errors
    /// Says whether it may have happened.
    async fn complete_upload(
        &self,
        key: &Key,
        upload: &str,
        parts: &[Part],
        note: Option<&str>,
    ) -> Result<Completed, CreateError>;

    /// Gives an upload up. `parts` are those to be freed where the store knows nothing of uploads.
    ///
    /// # Errors
    /// When the store did not say.
    async fn abort_upload(&self, key: &Key, upload: &str, parts: &[Part]) -> Result<(), StoreError>;

    /// Objects, as [`crate::BlobStore::list_blobs`] lists them.
    ///
    /// # Errors
    /// When it is refused or nobody can be asked.
    async fn list(&self, prefix: &str, after: Option<&Key>, limit: usize) -> Result<Vec<Listed>, StoreError>;
}
