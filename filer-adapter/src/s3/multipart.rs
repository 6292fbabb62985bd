//! Uploads in parts.

use super::{Shared, bare_etag, body, decode_checksum, encode_checksum, failure};
use crate::{Attributes, CreateError, MultipartUpload, Part, StoreError, StoreErrorKind, Stored};
use async_trait::async_trait;
use aws_sdk_s3::types::{ChecksumAlgorithm, ChecksumType, CompletedMultipartUpload, CompletedPart};
use backon::Retryable as _;
use bytes::Bytes;
use refstream_types::{Crc32c, Key};

#[derive(Debug)]
pub(super) struct Multipart {
    shared: Shared,
    key: Key,
    upload: String,
}

impl Multipart {
    pub(super) async fn start(shared: &Shared, key: &Key, attributes: &Attributes) -> Result<Self, StoreError> {
        let answer = (|| async {
            let request = shared
                .client
                .create_multipart_upload()
                .bucket(&shared.config.bucket)
                .key(key.as_str())
                .set_content_type(attributes.content_type.clone());
            let request = if shared.config.checksums {
                request.checksum_algorithm(ChecksumAlgorithm::Crc32C).checksum_type(ChecksumType::Composite)
            } else {
                request
            };
            request.send().await.map_err(|error| shared.failed("start multipart upload", Some(key), error).error)
        })
        .retry(shared.backoff())
        .when(StoreError::is_retryable)
        .await?;
        let upload = answer.upload_id().ok_or_else(|| StoreError {
            kind: StoreErrorKind::Invalid,
            operation: "start multipart upload",
            store: shared.name.to_string(),
            key: Some(key.clone()),
            message: "the store gave no upload id".into(),
        })?;
        Ok(Self { shared: shared.clone(), key: key.clone(), upload: upload.to_owned() })
    }

    pub(super) async fn resume(shared: &Shared, key: &Key, upload: &str) -> Result<Self, StoreError> {
        let resumed = Self { shared: shared.clone(), key: key.clone(), upload: upload.to_owned() };
        // An upload that does not exist is found out now, not at the first part.
        resumed.parts().await?;
        Ok(resumed)
    }

    fn error(&self, operation: &'static str, message: &str) -> StoreError {
        StoreError {
            kind: StoreErrorKind::Invalid,
            operation,
            store: self.shared.name.to_string(),
            key: Some(self.key.clone()),
            message: message.into(),
        }
    }
}

#[async_trait]
impl MultipartUpload for Multipart {
    fn id(&self) -> &str {
        &self.upload
    }

    async fn put_part(&self, number: u32, body: Vec<Bytes>, checksum: Crc32c) -> Result<Part, StoreError> {
        let size: usize = body.iter().map(Bytes::len).sum();
        let answer = (|| async {
            let answer = self
                .shared
                .client
                .upload_part()
                .bucket(&self.shared.config.bucket)
                .key(self.key.as_str())
                .upload_id(&self.upload)
                .part_number(number as i32)
                .content_length(size as i64)
                .set_checksum_crc32_c(self.shared.checksum(checksum))
                .body(body::pieces(&body))
                .customize()
                .disable_payload_signing()
                .send()
                .await
                .map_err(|error| self.shared.failed("put part", Some(&self.key), error))?;
            self.shared
                .check("put part", &self.key, checksum, answer.checksum_crc32_c())
                .map_err(|error| failure::Failed { error, happened: true, status: None })?;
            Ok(answer)
        })
        .retry(self.shared.backoff())
        .when(|failed: &failure::Failed| failed.error.is_retryable())
        .adjust(failure::patience)
        .await
        .map_err(|failed| failed.error)?;
        let etag = bare_etag(answer.e_tag()).ok_or_else(|| self.error("put part", "the store gave no ETag"))?;
        Ok(Part { number, etag, size: size as u64, checksum })
    }

    async fn parts(&self) -> Result<Vec<Part>, StoreError> {
        let mut parts = Vec::new();
        let mut marker: Option<String> = None;
        loop {
            let answer = (|| async {
                self.shared
                    .client
                    .list_parts()
                    .bucket(&self.shared.config.bucket)
                    .key(self.key.as_str())
                    .upload_id(&self.upload)
                    .set_part_number_marker(marker.clone())
                    .send()
                    .await
                    .map_err(|error| self.shared.failed("list parts", Some(&self.key), error).error)
            })
            .retry(self.shared.backoff())
            .when(StoreError::is_retryable)
            .await?;
            for part in answer.parts() {
                let (Some(number), Some(etag)) = (part.part_number(), bare_etag(part.e_tag())) else { continue };
                parts.push(Part {
                    number: u32::try_from(number).unwrap_or(0),
                    etag,
                    size: part.size().and_then(|n| u64::try_from(n).ok()).unwrap_or(0),
                    checksum: part.checksum_crc32_c().and_then(decode_checksum).unwrap_or(Crc32c(0)),
                });
            }
            match answer.next_part_number_marker() {
                Some(next) if answer.is_truncated().unwrap_or(false) => marker = Some(next.to_owned()),
                _ => return Ok(parts),
            }
        }
    }

    async fn complete(&self, parts: &[Part]) -> Result<Stored, CreateError> {
        let completed: Vec<_> = parts
            .iter()
            .map(|part| {
                CompletedPart::builder()
                    .part_number(part.number as i32)
                    .e_tag(format!("\"{}\"", part.etag))
                    .set_checksum_crc32_c(self.shared.config.checksums.then(|| encode_checksum(part.checksum)))
                    .build()
            })
            .collect();
        let answer = (|| async {
            self.shared
                .client
                .complete_multipart_upload()
                .bucket(&self.shared.config.bucket)
                .key(self.key.as_str())
                .upload_id(&self.upload)
                .multipart_upload(CompletedMultipartUpload::builder().set_parts(Some(completed.clone())).build())
                .send()
                .await
                .map_err(|error| self.shared.failed("complete multipart upload", Some(&self.key), error))
        })
        .retry(self.shared.backoff())
        .when(|failed: &failure::Failed| failed.error.is_retryable())
        .adjust(failure::patience)
        .await;
        let size = parts.iter().map(|part| part.size).sum();
        match answer {
            Ok(answer) => Ok(Stored { key: self.key.clone(), size, etag: bare_etag(answer.e_tag()) }),
            Err(mut failed) => {
                // An earlier try whose answer was lost ends the upload, so that a later one finds none.
                failed.happened |= failed.error.is_not_found();
                Err(failed.into())
            }
        }
    }

    async fn abort(&self) -> Result<(), StoreError> {
        let aborted = (|| async {
            self.shared
                .client
                .abort_multipart_upload()
                .bucket(&self.shared.config.bucket)
                .key(self.key.as_str())
                .upload_id(&self.upload)
                .send()
                .await
                .map_err(|error| self.shared.failed("abort multipart upload", Some(&self.key), error).error)
        })
        .retry(self.shared.backoff())
        .when(StoreError::is_retryable)
        .await;
        match aborted {
            Ok(_) => Ok(()),
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(error),
        }
    }
}
