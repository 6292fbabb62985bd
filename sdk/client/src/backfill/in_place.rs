//! Attaching objects that are in a configured store already: no payload byte moves.
//!
//! A reference pins the etag (or version) that its object had: a later overwrite is detected when it is read. Attached objects belong to the user and
//! are never deleted.
//!
//! The store's own listing tells size and etag (of a bucket that keeps versions the version, too) of a thousand objects in one request, and the next page is on its way while one is handed on. A list
//! may bring size and etag, version or BLAKE3 itself. Only objects of which that is not known are looked at by themselves, many at the same time;
//! with `--checksum verify` all of them are, and those of which the list tells a checksum are read and compared.

use super::{
    FileFailure, content_type, manifest,
    walk::{Chunks, Ended, Found},
};
use crate::{BackfillError, Client, SourceUnreadable, backoff::Backoff};
use futures::{StreamExt as _, TryStreamExt as _, future::Either, stream};
use refstream_filer_adapter::{BlobStore, GetOptions, Listed, Runtime, StoreError};
use refstream_types::{ContentEncoding, ContentHash, Crc32c, Key, Reference, StoreName};
use std::{ops::ControlFlow, path::PathBuf, sync::Arc, time::Duration};
use tokio::task::JoinHandle;

/// Objects that are looked at at the same time.
const LOOKS: usize = 64;
/// Objects of one page of a listing, and of one group of a list.
const PAGE: usize = 1_000;
/// How a content hash begins, as opposed to a CRC32C.
const HASH_PREFIX: &str = "BLAKE3:";
/// How long a request is repeated while the store is unavailable.
const RETRY_FOR: Duration = Duration::from_secs(120);

/// Configured stores by the URIs of their objects.
#[derive(Clone, Debug)]
pub(super) struct Stores {
    stores: Vec<(StoreName, Arc<dyn BlobStore>, String)>,
    /// Prefixes of keys below which a deployment keeps what is its own.
    own: Vec<String>,
    /// Every object is looked at, and read where there is a checksum to compare.
    verify: bool,
    runtime: Arc<dyn Runtime>,
}

impl Stores {
    pub(super) fn of(client: &Client, verify: bool) -> Self {
        let deployment = client.deployment();
        let mut stores = Vec::new();
        if let Ok(probe) = "x".parse::<Key>() {
            for (name, store) in deployment.stores() {
                let uri = store.uri(&probe);
                stores.extend(uri.strip_suffix('x').map(|prefix| (name, Arc::clone(&store), prefix.to_owned())));
            }
        }
        let root = deployment.layout.root();
        let own = ["cluster/", "journals/", "topics/", "payloads/"].map(|folder| format!("{root}{folder}"));
        Self { stores, own: own.into(), verify, runtime: Arc::clone(client.runtime()) }
    }

    /// The store that a URI is in, and the rest of the URI.
    fn resolve<'u>(&self, uri: &'u str) -> Result<(&StoreName, &Arc<dyn BlobStore>, &'u str), String> {
        let found = self.stores.iter().find_map(|(name, store, prefix)| {
            // A bucket may be named without the slash behind it.
            let rest =
                uri.strip_prefix(prefix.as_str()).or_else(|| (uri == prefix.trim_end_matches('/')).then_some(""));
            Some((name, store, rest?))
        });
        found.ok_or_else(|| {
            let known: Vec<_> = self.stores.iter().map(|(name, _, prefix)| format!("{prefix} ({name})")).collect();
            format!(
                "{uri} is in no configured store, and references name configured stores only; there are: {}",
                known.join(", ")
            )
        })
    }

    /// Checks that a prefix is in a configured store.
    pub(super) fn check(&self, uri: &str) -> Result<(), BackfillError> {
        let why = self.resolve(uri).err();
        why.map_or(Ok(()), |why| Err(SourceUnreadable { path: Some(PathBuf::from(uri)), why }.into()))
    }

    /// Repeats a request while the store is unavailable.
    async fn retried<T, Attempt: Future<Output = Result<T, StoreError>>>(
        &self,
        mut request: impl FnMut() -> Attempt,
    ) -> Result<T, StoreError> {
        let start = self.runtime.now();
        let mut backoff = Backoff::new();
        loop {
            let error = match request().await {
                Ok(done) => return Ok(done),
                Err(error) => error,
            };
            let delay = backoff.next(&*self.runtime);
            if !error.is_retryable() || self.runtime.now() - start + delay > RETRY_FOR {
                return Err(error);
            }
            self.runtime.sleep(delay).await;
        }
    }

    /// What is known of an object, made into a file that was found.
    async fn attach(&self, row: manifest::Row, name: String) -> Result<Found, FileFailure> {
        let failed = |error: String| FileFailure { path: row.uri.clone(), error };
        let (store_name, store, key) = self.resolve(&row.uri).map_err(failed)?;
        let key: Key = key.parse().map_err(|error: refstream_types::KeyError| failed(error.to_string()))?;
        let (mut checksum, mut content_hash) = (None, None);
        match row.checksum.as_deref() {
            None => {}
            Some(given) if given.starts_with(HASH_PREFIX) => {
                content_hash = Some(given.parse().map_err(|error| failed(format!("{error}")))?);
            }
            Some(given) => checksum = Some(given.parse().map_err(|error| failed(format!("{error}")))?),
        }
        let (size, etag, version, kind) = match row.size.filter(|_| !self.must_look(&row)) {
            Some(size) => (size, row.etag.clone(), row.version.clone(), None),
            None => {
                let meta = self.retried(|| store.head(&key)).await.map_err(|error| failed(error.to_string()))?;
                let meta = meta.ok_or_else(|| failed("the object does not exist".into()))?;
                if let Some(listed) = row.size.filter(|listed| *listed != meta.size) {
                    return Err(failed(format!("the object has {} bytes, the list says {listed}", meta.size)));
                }
                if row.etag.is_some() && row.etag != meta.etag {
                    return Err(failed("the object's etag is not the one in the list: it was overwritten".into()));
                }
                let version = row.version.clone().or(meta.version);
                (meta.size, meta.etag, version, meta.content_type)
            }
        };
        let kind = kind.filter(|kind| kind != "application/octet-stream" && kind != "binary/octet-stream");
        let reference = Reference {
            store: store_name.clone(),
            key,
            offset: None,
            size,
            checksum,
            content_hash,
            content_size: size,
            encoding: ContentEncoding::Identity,
            content_type: kind.or_else(|| content_type::of(&name).map(str::to_owned)),
            etag,
            version,
        };
        reference.validate().map_err(|error| failed(error.to_string()))?;
        if self.verify && (reference.checksum.is_some() || reference.content_hash.is_some()) {
            self.compare(store, &reference).await.map_err(failed)?;
        }
        // An object that was overwritten is another one. What the list tells comes first, so that it is the same one whether or not it was looked at.
        let pins = [&row.version, &row.etag, &row.checksum, &reference.etag, &reference.version];
        let pin = pins.into_iter().flatten().next().map_or("", String::as_str);
        let identity = PathBuf::from(format!("{}\0{pin}", row.uri));
        let mut found = Found::new(identity, name, size, None);
        found.key = row.key;
        found.placed = Some(Box::new(reference));
        Ok(found)
    }

    /// Whether an object has to be looked at.
    fn must_look(&self, row: &manifest::Row) -> bool {
        // A CRC32C alone does not tell two versions of an object apart.
        let hashed = row.checksum.as_deref().is_some_and(|checksum| checksum.starts_with(HASH_PREFIX));
        let pinned = row.etag.is_some() || row.version.is_some() || hashed;
        self.verify || row.size.is_none() || !pinned
    }

    /// Reads an object and compares its sums.
    async fn compare(&self, store: &Arc<dyn BlobStore>, reference: &Reference) -> Result<(), String> {
        let options = GetOptions { range: None, etag: reference.etag.clone(), version: reference.version.clone() };
        let sums = self.retried(|| async {
            let mut body = store.get(&reference.key, &options).await?.body;
            let mut hasher = blake3::Hasher::new();
            let mut sum = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
            while let Some(piece) = body.try_next().await? {
                hasher.update(&piece);
                sum.update(&piece);
            }
            Ok((Crc32c(sum.finalize() as u32), ContentHash(*hasher.finalize().as_bytes())))
        });
        let (checksum, hash) = sums.await.map_err(|error| error.to_string())?;
        if let Some(listed) = reference.checksum.filter(|listed| *listed != checksum) {
            return Err(format!("the object has {checksum}, the list says {listed}"));
        }
        if let Some(listed) = reference.content_hash.filter(|listed| *listed != hash) {
            return Err(format!("the object has {hash}, the list says {listed}"));
        }
        Ok(())
    }

    /// Hands a group of objects on in their order; those that must be looked at are, many at the same time.
    fn hand_on(self: &Arc<Self>, group: Vec<(manifest::Row, String)>, chunks: &mut Chunks<'_>) -> ControlFlow<Ended> {
        // On all threads, since looking costs more of the processor than of the network.
        let look = |(row, name): (manifest::Row, String)| {
            if !self.must_look(&row) {
                return Either::Left(self.attach(row, name));
            }
            let (this, uri) = (Arc::clone(self), row.uri.clone());
            Either::Right(async move {
                let attached = tokio::spawn(async move { this.attach(row, name).await }).await;
                attached.unwrap_or_else(|error| Err(FileFailure { path: uri, error: error.to_string() }))
            })
        };
        let looks = stream::iter(group).map(look).buffered(LOOKS).collect::<Vec<_>>();
        for attached in tokio::runtime::Handle::current().block_on(looks) {
            match attached {
                Ok(found) => chunks.found(found)?,
                Err(failure) => chunks.failed(failure)?,
            }
        }
        ControlFlow::Continue(())
    }

    /// Asks for the objects behind `after`.
    fn page(
        self: &Arc<Self>,
        store: &Arc<dyn BlobStore>,
        start: &str,
        after: Option<Key>,
    ) -> JoinHandle<Result<Vec<Listed>, StoreError>> {
        let (this, store, start) = (Arc::clone(self), Arc::clone(store), start.to_owned());
        tokio::spawn(async move { this.retried(|| store.list_blobs(&start, after.as_ref(), PAGE)).await })
    }

    /// All objects whose URI starts with `prefix`. Blocks.
    pub(super) fn find_prefix(self: &Arc<Self>, prefix: &str, chunks: &mut Chunks<'_>) -> ControlFlow<Ended> {
        let (_, store, start) = match self.resolve(prefix) {
            Ok(resolved) => resolved,
            Err(error) => return chunks.failed(FileFailure { path: prefix.to_owned(), error }),
        };
        // Names are relative to the prefix's last folder.
        let base = start.rfind('/').map_or(0, |slash| slash + 1);
        let mut coming = self.page(store, start, None);
        let mut any = false;
        loop {
            let failed = |error: String| FileFailure { path: prefix.to_owned(), error };
            let page = match tokio::runtime::Handle::current().block_on(coming) {
                Ok(Ok(page)) => page,
                Ok(Err(error)) => return chunks.failed(failed(error.to_string())),
                Err(error) => return chunks.failed(failed(error.to_string())),
            };
            let Some(last) = page.last() else {
                return match any {
                    true => ControlFlow::Continue(()),
                    false => chunks.failed(failed("no object's URI starts so".into())),
                };
            };
            any = true;
            coming = self.page(store, start, Some(last.key.clone()));
            let mut group = Vec::with_capacity(page.len());
            for listed in page {
                let key = listed.key.as_str();
                let name = key.get(base..).unwrap_or(key).to_owned();
                if self.own.iter().any(|own| key.starts_with(own.as_str())) {
                    chunks.skipped();
                } else if chunks.want(&name) {
                    let (uri, size) = (store.uri(&listed.key), Some(listed.size));
                    let (etag, version) = (listed.etag, listed.version);
                    group.push((manifest::Row { uri, size, etag, version, ..manifest::Row::default() }, name));
                }
            }
            self.hand_on(group, chunks)?;
        }
    }

    /// All objects that a list names. Blocks.
    pub(super) fn find_listed(self: &Arc<Self>, list: &std::path::Path, chunks: &mut Chunks<'_>) -> ControlFlow<Ended> {
        let failure =
            |error: &SourceUnreadable| FileFailure { path: list.display().to_string(), error: error.to_string() };
        let rows = match manifest::open(list) {
            Ok(rows) => rows,
            Err(error) => return chunks.failed(failure(&error)),
        };
        let mut group = Vec::new();
        for row in rows {
            match row {
                Err(error) => chunks.failed(failure(&error))?,
                Ok(row) => {
                    let name = self.resolve(&row.uri).map_or(row.uri.as_str(), |(.., key)| key).to_owned();
                    if chunks.want(&name) {
                        group.push((row, name));
                    }
                }
            }
            if group.len() >= PAGE {
                self.hand_on(std::mem::take(&mut group), chunks)?;
            }
        }
        self.hand_on(group, chunks)
    }
}
