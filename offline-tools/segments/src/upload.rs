//! A file on its way to the store: one request when it is small, parts of equal size otherwise, so that memory stays bounded.
//! Nothing is visible before the end.

use bytes::{Bytes, BytesMut};
use refstream_filer_adapter::{Attributes, BlobStore, MultipartUpload, Part, StoreError};
use refstream_format::crc32c;
use refstream_types::Key;
use std::sync::Arc;

/// Bytes of a part; 10,000 parts of it are more than any file has.
const PART_BYTES: usize = 8 << 20;
const CONTENT_TYPE: &str = "application/vnd.apache.parquet";

pub(crate) struct Upload {
    store: Arc<dyn BlobStore>,
    key: Key,
    buffer: BytesMut,
    multipart: Option<Box<dyn MultipartUpload>>,
    parts: Vec<Part>,
    bytes: u64,
}

impl Upload {
    pub(crate) fn new(store: Arc<dyn BlobStore>, key: Key) -> Self {
        Self { store, key, buffer: BytesMut::new(), multipart: None, parts: Vec::new(), bytes: 0 }
    }

    fn attributes() -> Attributes {
        Attributes { content_type: Some(CONTENT_TYPE.into()), ..Attributes::default() }
    }

    pub(crate) async fn push(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.buffer.extend_from_slice(bytes);
        self.bytes += bytes.len() as u64;
        while self.buffer.len() > PART_BYTES {
            let part = self.buffer.split_to(PART_BYTES).freeze();
            self.put_part(part).await?;
        }
        Ok(())
    }

    async fn put_part(&mut self, body: Bytes) -> Result<(), StoreError> {
        if self.multipart.is_none() {
            self.multipart = Some(self.store.start_multipart(&self.key, &Self::attributes()).await?);
        }
        if let Some(upload) = &self.multipart {
            let checksum = crc32c(&body);
            let part = upload.put_part(self.parts.len() as u32 + 1, vec![body], checksum).await?;
            self.parts.push(part);
        }
        Ok(())
    }

    /// Makes the file visible; returns its size.
    pub(crate) async fn finish(&mut self) -> Result<u64, StoreError> {
        let rest = self.buffer.split().freeze();
        if self.multipart.is_none() {
            let checksum = crc32c(&rest);
            let put = self.store.put(&self.key, vec![rest], checksum, &Self::attributes()).await;
            return put.map(|_| self.bytes).map_err(|error| error.error().clone());
        }
        if !rest.is_empty() {
            self.put_part(rest).await?;
        }
        if let Some(upload) = &self.multipart {
            upload.complete(&self.parts).await.map_err(|error| error.error().clone())?;
        }
        Ok(self.bytes)
    }

    /// Gives up what was not finished; a part that stays behind costs space only.
    pub(crate) async fn abandon(&mut self) {
        if let Some(upload) = self.multipart.take()
            && let Err(error) = upload.abort().await
        {
            tracing::debug!(key = %self.key, %error, "an unfinished upload was left behind");
        }
    }
}
