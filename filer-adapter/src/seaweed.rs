//! SeaweedFS, natively: payloads go straight to its volume servers as needles, with no filer in between. A payload costs no filer entry; any tool
//! reads it by its file id (`curl http://VOLUME-SERVER/3,01637037d6`).
//!
//! **Names.** The master names objects: a key of this store is a file id such as `3,01637037d6`, given at the put; the key that is asked for is not
//! used. The sums of a blob's blocks (`<key>.blocks`) are the needle after the payload's own, which is assigned with it, so a reference leads
//! to them without a name.
//!
//! **Writing.** 1. An id from a batch that the master assigned. 2. `PUT` to the volume server with the content type `application/octet-stream` (any
//! other makes it interpret, or compress, the body) and `fsync=true`. 3. The answer's size and its ETag, a CRC32C, must be those that were sent. After
//! any failure the id is not used again: a replica may hold the bytes, or part of them. What may be there is deleted as well as can be; a crash before
//! that leaves a needle that nothing names.
//!
//! **Large objects** are SeaweedFS' own chunk manifests: the parts are needles, the object is a needle that lists them, written last and with
//! `cm=true`. Volume servers hand it out as one object, in ranges too, and delete its parts with it. A part's ETag is its file id, so whoever noted
//! the parts of an upload can go on with it in another process; the store itself lists none.
//!
//! **Reading.** Volume servers check a needle's sum when they read it whole, not when they read a range of more than 1 MiB: a damaged needle is
//! answered with 500, with a connection that is closed, or with wrong bytes and 206. The first two are told apart from an outage here and
//! reported as damage; the third is found by the sums of blocks. Locations are remembered until a server does not have the volume any more.

mod fid;
mod grants;
mod http;
mod jwt;
mod master;
mod upload;
mod volume;

use crate::{
    Attributes, BlobStore, CreateError, Found, GetOptions, Listed, MultipartUpload, ObjectMeta, Runtime, Sent,
    StoreError, StoreErrorKind, Stored, attempt::chain, grant::Grants, trust,
};
use async_trait::async_trait;
use bytes::Bytes;
use fid::Fid;
pub use grants::SeaweedGranter;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use refstream_types::{Crc32c, Key};
use std::{
    collections::HashMap,
    fmt,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize},
    },
    time::Duration,
};
use volume::Needle;

/// How to reach a cluster.
#[derive(Clone)]
pub struct SeaweedConfig {
    /// `HOST:PORT` of each master.
    pub masters: Vec<String>,
    /// Replication such as `001`; empty: the master's default.
    pub replication: String,
    /// Collection of new payloads; empty: the default one.
    pub collection: String,
    /// Time to live of new payloads such as `7d`; empty: for ever. A payload that expires before its record is lost.
    pub ttl: String,
    /// Wait until the volume server's disk holds what it acknowledges. Without, a crash of the machine loses acknowledged payloads.
    pub fsync: bool,
    /// The key of `[jwt.signing]` in the cluster's `security.toml`. `None`: permissions are those that the master gives.
    pub signing_key: Option<String>,
    /// The key of `[jwt.signing.read]`.
    pub read_signing_key: Option<String>,
    /// Objects over this size are stored in parts of it; the volume servers' own limit is 256 MiB unless they say otherwise.
    pub blob_bytes: u64,
    /// Masters and volume servers are reached by HTTPS.
    pub https: bool,
    /// Certificates (PEM) of authorities to trust beside the system's own; `None`: the file that `AWS_CA_BUNDLE` names, if it does.
    pub ca_file: Option<PathBuf>,
    /// The longest wait for a connection.
    pub connect_timeout: Duration,
    /// The longest time without the answer's beginning or its next bytes, for one request. A request with a body gets a second more
    /// for each 256 KiB of it.
    pub request_timeout: Duration,
    /// Tries of a request that may be repeated, the first one included.
    pub attempts: usize,
}

impl Default for SeaweedConfig {
    fn default() -> Self {
        Self {
            masters: Vec::new(),
            replication: String::new(),
            collection: String::new(),
            ttl: String::new(),
            fsync: true,
            signing_key: None,
            read_signing_key: None,
            blob_bytes: 64 << 20,
            https: false,
            ca_file: None,
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(60),
            attempts: 6,
        }
    }
}

impl SeaweedConfig {
    /// Defaults, with the signing keys from the variables by which SeaweedFS itself takes them: `WEED_JWT_SIGNING_KEY` and
    /// `WEED_JWT_SIGNING_READ_KEY`.
    pub fn from_env() -> Self {
        let key = |name| std::env::var(name).ok().filter(|key| !key.is_empty());
        Self {
            signing_key: key("WEED_JWT_SIGNING_KEY"),
            read_signing_key: key("WEED_JWT_SIGNING_READ_KEY"),
            ..Self::default()
        }
    }
}

impl fmt::Debug for SeaweedConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SeaweedConfig")
            .field("masters", &self.masters)
            .field("replication", &self.replication)
            .field("collection", &self.collection)
            .field("fsync", &self.fsync)
            .field("signing_key", &self.signing_key.as_ref().map(|_| "given"))
            .finish_non_exhaustive()
    }
}

/// What requests have in common.
struct Shared {
    client: reqwest::Client,
    runtime: Arc<dyn Runtime>,
    /// For URIs: the store's name in the configuration.
    label: Box<str>,
    /// For errors: the store's name and where it is.
    name: Box<str>,
    config: SeaweedConfig,
    /// The master that answered last.
    leader: AtomicUsize,
    pool: master::Pool,
    known: Mutex<HashMap<u32, master::Known>>,
    /// The volume servers want permissions, and the master gives them: to write, to read.
    guarded: [AtomicBool; 2],
    /// Instead of the master, whom only brokers reach.
    grants: Option<Arc<dyn Grants>>,
    /// Of needles that were written by a grant.
    neighbours: Mutex<grants::Neighbours>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SeaweedStore").field(&self.name).finish()
    }
}

impl Shared {
    fn known(&self) -> MutexGuard<'_, HashMap<u32, master::Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The URL of a path, which has no slash before it, at a master or volume server.
    fn url(&self, server: &str, path: &str) -> String {
        let scheme = if self.config.https { "https" } else { "http" };
        format!("{scheme}://{server}/{path}")
    }

    /// The fid that a key stands for.
    fn fid(&self, operation: &'static str, key: &Key) -> Result<Fid, StoreError> {
        Fid::of_key(key).ok_or_else(|| {
            let message = "it is no file id of SeaweedFS, such as 3,01637037d6";
            self.error(StoreErrorKind::NotFound, operation, Some(key), message)
        })
    }
}

/// A value of a query.
fn escaped(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// A SeaweedFS cluster as a store of payloads. Cheap to clone.
#[derive(Clone, Debug)]
pub struct SeaweedStore {
    shared: Arc<Shared>,
}

impl SeaweedStore {
    /// Opens a cluster; nothing is sent yet. `name` is the store's name in the configuration.
    ///
    /// # Errors
    /// When the configuration cannot be used.
    pub fn open(name: &str, config: SeaweedConfig, runtime: Arc<dyn Runtime>) -> Result<Self, StoreError> {
        Self::open_with(name, config, runtime, None)
    }

    /// Opens a cluster whose master is not asked: for each payload a grant is asked for. Nothing can be deleted.
    ///
    /// # Errors
    /// When the configuration cannot be used.
    pub fn granted(
        name: &str,
        config: SeaweedConfig,
        runtime: Arc<dyn Runtime>,
        grants: Arc<dyn Grants>,
    ) -> Result<Self, StoreError> {
        let config = SeaweedConfig { signing_key: None, read_signing_key: None, ..config };
        Self::open_with(name, config, runtime, Some(grants))
    }

    fn open_with(
        name: &str,
        config: SeaweedConfig,
        runtime: Arc<dyn Runtime>,
        grants: Option<Arc<dyn Grants>>,
    ) -> Result<Self, StoreError> {
        let full_name = format!("{name} (SeaweedFS at {})", config.masters.join(", "));
        let refuse = |message: String| StoreError {
            kind: StoreErrorKind::Invalid,
            operation: "open",
            store: full_name.clone(),
            key: None,
            message,
        };
        if config.masters.is_empty() && grants.is_none() {
            return Err(refuse("no master is given; use HOST:PORT".into()));
        }
        if let Some(bad) = config.masters.iter().find(|m| m.contains('/') || !m.contains(':')) {
            return Err(refuse(format!("the master {bad:?} is no HOST:PORT")));
        }
        if config.blob_bytes == 0 {
            return Err(refuse("blob_bytes must be more than 0".into()));
        }
        let mut client = reqwest::Client::builder();
        if config.https {
            if let Some(pem) = trust::certificates(config.ca_file.as_deref()).map_err(refuse)? {
                let trusted = reqwest::Certificate::from_pem_bundle(&pem).map_err(|error| refuse(chain(&error)))?;
                client = trusted.into_iter().fold(client, reqwest::ClientBuilder::add_root_certificate);
            }
        } else {
            // Reading the system's certificates takes a while, for nothing.
            client = client.tls_built_in_root_certs(false);
        }
        let client = client
            .connect_timeout(config.connect_timeout)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .build()
            .map_err(|error| refuse(chain(&error)))?;
        let shared = Shared {
            client,
            runtime,
            label: name.into(),
            name: full_name.into(),
            config,
            leader: AtomicUsize::new(0),
            pool: master::Pool::default(),
            known: Mutex::default(),
            guarded: Default::default(),
            grants,
            neighbours: Mutex::default(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }
}

#[async_trait]
impl BlobStore for SeaweedStore {
    fn uri(&self, key: &Key) -> String {
        format!("seaweedfs://{}/{key}", self.shared.label)
    }

    fn names_objects(&self) -> bool {
        true
    }

    async fn put_telling(
        &self,
        key: &Key,
        body: Vec<Bytes>,
        checksum: Crc32c,
        attributes: &Attributes,
        sent: &Sent,
    ) -> Result<Stored, CreateError> {
        let size: u64 = body.iter().map(|piece| piece.len() as u64).sum();
        if key.as_str().ends_with(".blocks")
            && let Some(fid) = Fid::of_key(key)
        {
            sent.tell();
            self.shared.put_beside(fid, key, &body, checksum).await?;
            return Ok(Stored { key: key.clone(), size, etag: Some(format!("{:08x}", checksum.0)) });
        }
        if size > self.shared.config.blob_bytes {
            sent.tell();
            return upload::put_in_parts(&self.shared, key, &body, checksum, attributes.note.clone()).await;
        }
        let what = Needle::Object { note: attributes.note.as_deref(), sent };
        let (fid, _) = self.shared.put(key, &body, checksum, what).await?;
        // An empty body is never asked for.
        sent.tell();
        let key = self.shared.key_of(fid).map_err(CreateError::MayHaveHappened)?;
        Ok(Stored { key, size, etag: Some(format!("{:08x}", checksum.0)) })
    }

    async fn start_multipart(
        &self,
        key: &Key,
        attributes: &Attributes,
    ) -> Result<Box<dyn MultipartUpload>, StoreError> {
        let id = match &self.shared.grants {
            Some(grants) => grants.start_upload(key, attributes).await?,
            None => self.shared.runtime.token().to_string(),
        };
        Ok(Box::new(upload::Upload::new(&self.shared, key, &id)))
    }

    async fn resume_multipart(&self, key: &Key, upload: &str) -> Result<Box<dyn MultipartUpload>, StoreError> {
        // Parts of an upload that was not granted cannot be proven.
        if self.shared.grants.is_some() != grants::is_granted(upload) {
            let message = "the upload was begun with other permissions; it starts anew";
            return Err(self.shared.error(StoreErrorKind::NotFound, "resume upload", Some(key), message));
        }
        Ok(Box::new(upload::Upload::new(&self.shared, key, upload)))
    }

    async fn get(&self, key: &Key, options: &GetOptions) -> Result<Found, StoreError> {
        let fid = self.shared.fid("get", key)?;
        self.shared.get(fid, key, options).await.map_err(|failed| failed.error)
    }

    async fn head(&self, key: &Key) -> Result<Option<ObjectMeta>, StoreError> {
        let plain = grants::without_proof(key.as_str());
        let fid = if plain == key.as_str() { Fid::of_key(key) } else { plain.parse().ok() };
        let Some(fid) = fid else { return Ok(None) };
        match self.shared.head(fid, key).await {
            Ok(meta) => Ok(Some(meta)),
            Err(failed) if failed.error.is_not_found() => Ok(None),
            Err(failed) => Err(failed.error),
        }
    }

    async fn delete(&self, key: &Key) -> Result<(), StoreError> {
        let Some(fid) = Fid::of_key(key) else { return Ok(()) };
        self.shared.delete(fid, key).await.map_err(|failed| failed.error)
    }

    async fn list_blobs(&self, _: &str, _: Option<&Key>, _: usize) -> Result<Vec<Listed>, StoreError> {
        let message = "SeaweedFS keeps no list of needles by name";
        Err(self.shared.error(StoreErrorKind::Invalid, "list", None, message))
    }
}
