//! Uploads in parts.

use super::{S3Store, Shared, bare_etag, decode_checksum, payload};
use crate::{
    Attributes, BlobStore, CreateError, MultipartUpload, Part, StoreError, StoreErrorKind, Stored,
    attempt::Failed,
    grant::{UploadAsk, UploadKind},
};
use async_trait::async_trait;
use aws_sdk_s3::types::{ChecksumAlgorithm, ChecksumType, CompletedMultipartUpload, CompletedPart};
use bytes::Bytes;
use refstream_types::{Crc32c, Key};

#[derive(Debug)]
pub(super) struct Multipart {
    pub(super) shared: Shared,
    key: Key,
    upload: String,
}

impl Multipart {
    /// An upload that is known to exist, or found not to when it is used.
    pub(super) fn known(shared: &Shared, key: &Key, upload: &str) -> Self {
        Self { shared: shared.clone(), key: key.clone(), upload: upload.to_owned() }
    }

    pub(super) async fn start(shared: &Shared, key: &Key, attributes: &Attributes) -> Result<Self, StoreError> {
        if let Some(grants) = &shared.grants {
            return Ok(Self::known(shared, key, &grants.start_upload(key, attributes).await?));
        }
        let start = async || {
            let mut request = shared
                .client
                .create_multipart_upload()
                .bucket(&shared.config.bucket)
                .key(key.as_str())
                .set_content_type(attributes.content_type.clone())
                .set_storage_class(shared.storage_class())
                .set_server_side_encryption(shared.encryption())
                .set_ssekms_key_id(shared.kms_key());
            if shared.config.checksums {
                request = request.checksum_algorithm(ChecksumAlgorithm::Crc32C).checksum_type(ChecksumType::Composite);
            }
            shared.send("start multipart upload", Some(key), 0, request.send()).await
        };
        let answer = shared.retried(start).await.map_err(|failed| failed.error)?;
        let upload = answer.upload_id().ok_or_else(|| {
            shared.error(StoreErrorKind::Invalid, "start multipart upload", Some(key), "the store gave no upload id")
        })?;
        Ok(Self::known(shared, key, upload))
    }

    pub(super) async fn resume(shared: &Shared, key: &Key, upload: &str) -> Result<Self, StoreError> {
        let resumed = Self::known(shared, key, upload);
        // An upload that does not exist is found out now, not at the first part.
        resumed.parts().await?;
        Ok(resumed)
    }

    async fn complete_once(&self, parts: &[CompletedPart]) -> Result<Option<String>, Failed> {
        let request = self
            .shared
            .client
            .complete_multipart_upload()
            .bucket(&self.shared.config.bucket)
            .key(self.key.as_str())
            .upload_id(&self.upload)
            .multipart_upload(CompletedMultipartUpload::builder().set_parts(Some(parts.to_vec())).build())
            .send();
        let answer = self.shared.send("complete multipart upload", Some(&self.key), 0, request).await?;
        Ok(bare_etag(answer.e_tag()))
    }
}

#[async_trait]
impl MultipartUpload for Multipart {
    fn id(&self) -> &str {
        &self.upload
    }

    async fn put_part(&self, number: u32, body: Vec<Bytes>, checksum: Crc32c) -> Result<Part, StoreError> {
        let size: usize = body.iter().map(Bytes::len).sum();
        let put = async || {
            let ask = || UploadAsk {
                key: self.key.clone(),
                size: size as u64,
                checksum,
                kind: UploadKind::Part { upload: self.upload.clone(), number },
            };
            let permit = self.shared.permit_upload(ask).await?;
            let mut request = self
                .shared
                .client
                .upload_part()
                .bucket(&self.shared.config.bucket)
                .key(self.key.as_str())
                .upload_id(&self.upload)
                .part_number(number as i32)
                .content_length(size as i64)
                .set_checksum_crc32_c(self.shared.checksum(checksum))
                .body(payload(&body, None))
                .customize()
                .disable_payload_signing();
            if let Some(permit) = permit {
                request = request.interceptor(permit);
            }
            let answer = self.shared.send("put part", Some(&self.key), size as u64, request.send()).await?;
            self.shared.check("put part", &self.key, checksum, answer.checksum_crc32_c())?;
            Ok(answer)
        };
        let answer = self.shared.retried(put).await.map_err(|failed| failed.error)?;
        let etag = bare_etag(answer.e_tag()).ok_or_else(|| {
            self.shared.error(StoreErrorKind::Invalid, "put part", Some(&self.key), "the store gave no ETag")
        })?;
        Ok(Part { number, etag, size: size as u64, checksum: Some(checksum) })
    }

    async fn parts(&self) -> Result<Vec<Part>, StoreError> {
        if let Some(grants) = &self.shared.grants {
            return grants.parts(&self.key, &self.upload).await;
        }
        let mut parts = Vec::new();
        let mut marker: Option<String> = None;
        loop {
            let list = async || {
                let request = self
                    .shared
                    .client
                    .list_parts()
                    .bucket(&self.shared.config.bucket)
                    .key(self.key.as_str())
                    .upload_id(&self.upload)
                    .set_part_number_marker(marker.clone())
                    .send();
                self.shared.send("list parts", Some(&self.key), 0, request).await
            };
            let answer = self.shared.retried(list).await.map_err(|failed| failed.error)?;
            for part in answer.parts() {
                let checksum = part.checksum_crc32_c().and_then(decode_checksum);
                let (Some(number), Some(etag), Some(size)) = (
                    part.part_number().and_then(|n| u32::try_from(n).ok()),
                    bare_etag(part.e_tag()),
                    part.size().and_then(|n| u64::try_from(n).ok()),
                ) else {
                    continue;
                };
                parts.push(Part { number, etag, size, checksum });
            }
            match answer.next_part_number_marker() {
                Some(next) if answer.is_truncated().unwrap_or(false) => marker = Some(next.to_owned()),
                _ => return Ok(parts),
            }
        }
    }

    async fn complete(&self, parts: &[Part]) -> Result<Stored, CreateError> {
        if let Some(grants) = &self.shared.grants {
            return Ok(grants.complete_upload(&self.key, &self.upload, parts, None).await?.stored);
        }
        let completed: Vec<_> = parts.iter().map(|part| self.completed(part)).collect();
        let size = parts.iter().map(|part| part.size).sum();
        let stored = |etag| Stored { key: self.key.clone(), size, etag };
        match self.shared.retried(|| self.complete_once(&completed)).await {
            Ok(etag) => Ok(stored(etag)),
            // An earlier try whose answer was lost ends the upload, so that a later one finds none: look for its object.
            Err(failed) if failed.error.is_not_found() => {
                let store = S3Store { shared: self.shared.clone(), credentials: None };
                match store.head(&self.key).await {
                    Ok(Some(meta)) if meta.size == size => Ok(stored(meta.etag)),
                    Ok(_) => Err(CreateError::MayHaveHappened(failed.error)),
                    Err(error) => Err(CreateError::MayHaveHappened(error)),
                }
            }
            Err(failed) => Err(failed.into()),
        }
    }

    async fn abort(&self) -> Result<(), StoreError> {
        if let Some(grants) = &self.shared.grants {
            return grants.abort_upload(&self.key, &self.upload, &[]).await;
        }
        let abort = async || {
            let request = self
                .shared
                .client
                .abort_multipart_upload()
                .bucket(&self.shared.config.bucket)
                .key(self.key.as_str())
                .upload_id(&self.upload)
                .send();
            self.shared.send("abort multipart upload", Some(&self.key), 0, request).await
        };
        match self.shared.retried(abort).await {
            Ok(_) => Ok(()),
            Err(failed) if failed.error.is_not_found() => Ok(()),
            Err(failed) => Err(failed.error),
        }
    }
}
