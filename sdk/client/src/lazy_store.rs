//! A store that is opened when it is first used, since opening looks for credentials and may have to wait for them.

use async_trait::async_trait;
use bytes::Bytes;
use refstream_filer_adapter::{
    Attributes, BlobStore, CreateError, Found, GetOptions, Listed, MultipartUpload, ObjectMeta, StoreError, Stored,
    s3::{S3Config, S3Store},
};
use refstream_types::{Crc32c, Key, StoreName};
use tokio::sync::OnceCell;

/// An S3 store by its description.
#[derive(Debug)]
pub(crate) struct LazyS3 {
    name: StoreName,
    uri_prefix: String,
    config: S3Config,
    opened: OnceCell<S3Store>,
}

impl LazyS3 {
    pub(crate) fn new(name: StoreName, uri_prefix: String, config: S3Config) -> Self {
        Self { name, uri_prefix, config, opened: OnceCell::new() }
    }
    async fn opened(&self) -> Result<&S3Store, StoreError> {
        self.opened.get_or_try_init(|| Box::pin(S3Store::open(self.name.as_str(), self.config.clone()))).await
    }
}

#[async_trait]
impl BlobStore for LazyS3 {
    fn uri(&self, key: &Key) -> String {
        format!("{}{key}", self.uri_prefix)
    }
    async fn put(
        &self,
        key: &Key,
        body: Vec<Bytes>,
        checksum: Crc32c,
        attributes: &Attributes,
    ) -> Result<Stored, CreateError> {
        let store = self.opened().await.map_err(CreateError::DidNotHappen)?;
        store.put(key, body, checksum, attributes).await
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
