//! A store that is opened when it is first used, since opening looks for credentials and may have to wait for them.

use async_trait::async_trait;
use bytes::Bytes;
use refstream_filer_adapter::{
    Attributes, BlobStore, CreateError, Found, GetOptions, Listed, MultipartUpload, ObjectMeta, Runtime, Sent,
    StoreError, Stored,
    grant::Grants,
    s3::{S3Config, S3Store},
};
use refstream_types::{Crc32c, Key, StoreName};
use std::{sync::Arc, time::Duration};
use tokio::sync::OnceCell;

/// An S3 store by its description.
#[derive(Debug)]
pub(crate) struct LazyS3 {
    name: StoreName,
    uri_prefix: String,
    config: S3Config,
    access: Access,
    runtime: Arc<dyn Runtime>,
    opened: OnceCell<S3Store>,
}

/// How it is reached.
#[derive(Debug)]
pub(crate) enum Access {
    /// With credentials.
    Own,
    /// By grants.
    Granted(Arc<dyn Grants>),
    /// With the credentials of environment, profile or machine where there are some, else by grants.
    GrantedUnlessCredentials(Arc<dyn Grants>),
}

/// How long to look for credentials before grants are used: a service of the machine may be asked that is not there.
const LOOK_FOR: Duration = Duration::from_secs(3);

impl LazyS3 {
    pub(crate) fn new(
        name: StoreName,
        uri_prefix: String,
        config: S3Config,
        access: Access,
        runtime: Arc<dyn Runtime>,
    ) -> Self {
        Self { name, uri_prefix, config, access, runtime, opened: OnceCell::new() }
    }
    async fn opened(&self) -> Result<&S3Store, StoreError> {
        self.opened.get_or_try_init(|| Box::pin(self.open())).await
    }
    async fn open(&self) -> Result<S3Store, StoreError> {
        let own = || S3Store::open(self.name.as_str(), self.config.clone());
        let granted = |grants| S3Store::granted(self.name.as_str(), self.config.clone(), Arc::clone(grants));
        match &self.access {
            Access::Own => own().await,
            Access::Granted(grants) => granted(grants).await,
            Access::GrantedUnlessCredentials(grants) => {
                let store = own().await?;
                let has = tokio::select! {
                    has = store.has_credentials() => has,
                    () = self.runtime.sleep(LOOK_FOR) => false,
                };
                if has { Ok(store) } else { granted(grants).await }
            }
        }
    }
}

#[async_trait]
impl BlobStore for LazyS3 {
    fn uri(&self, key: &Key) -> String {
        format!("{}{key}", self.uri_prefix)
    }
    async fn put_telling(
        &self,
        key: &Key,
        body: Vec<Bytes>,
        checksum: Crc32c,
        attributes: &Attributes,
        sent: &Sent,
    ) -> Result<Stored, CreateError> {
        let store = self.opened().await.map_err(CreateError::DidNotHappen)?;
        store.put_telling(key, body, checksum, attributes, sent).await
    }
    async fn start_multipart(
        &self,
        key: &Key,
        attributes: &Attributes,
    ) -> Result<Box<dyn MultipartUpload>, StoreError> {
        self.opened().await?.start_multipart(key, attributes).await
    }
    async fn resume_multipart(&self, key: &Key, upload: &str) -> Result<Box<dyn MultipartUpload>, StoreError> {
        self.opened().await?.resume_multipart(key, upload).await
    }
    async fn get(&self, key: &Key, options: &GetOptions) -> Result<Found, StoreError> {
        self.opened().await?.get(key, options).await
    }
    async fn head(&self, key: &Key) -> Result<Option<ObjectMeta>, StoreError> {
        self.opened().await?.head(key).await
    }
    async fn delete(&self, key: &Key) -> Result<(), StoreError> {
        self.opened().await?.delete(key).await
    }
    async fn list_blobs(&self, prefix: &str, after: Option<&Key>, limit: usize) -> Result<Vec<Listed>, StoreError> {
        self.opened().await?.list_blobs(prefix, after, limit).await
    }
}
