//! The S3 operations on a [`FileStore`]. What is not here answers `NotImplemented`.
//!
//! Conditions of writes are answered after the body was read: some clients break when a 412 arrives while they are sending.

mod checks;
mod listing;
mod multipart;
mod object;

use super::{
    FileStore,
    note::{MAX_CONTENT_TYPE_BYTES, MAX_METADATA_BYTES},
    objects::{Condition, Extra, Failure},
    store::{Inner, kind_of},
};
use crate::StoreErrorKind;
use async_trait::async_trait;
use http::StatusCode;
use refstream_types::{Key, MAX_KEY_BYTES};
use s3s::{S3, S3Error, S3ErrorCode, S3Request, S3Response, S3Result, dto::*, s3_error};
use std::{collections::HashMap, io, sync::Arc};

#[cfg(test)]
pub(super) use checks::encode as checksum_text;

/// The service.
#[derive(Clone, Debug)]
pub(super) struct Service {
    inner: Arc<Inner>,
}

impl Service {
    pub(super) fn new(store: Arc<FileStore>) -> Self {
        Self { inner: Arc::clone(&store.inner) }
    }

    fn bucket(&self, bucket: &str) -> S3Result<()> {
        if bucket == self.inner.bucket {
            Ok(())
        } else {
            Err(s3_error!(NoSuchBucket, "there is no bucket {bucket:?}; this store has one, {:?}", self.inner.bucket))
        }
    }

    fn key(&self, bucket: &str, key: &str) -> S3Result<Key> {
        self.bucket(bucket)?;
        if key.len() > MAX_KEY_BYTES {
            return Err(s3_error!(KeyTooLongError));
        }
        key.parse().map_err(|error| s3_error!(InvalidArgument, "{error}"))
    }

    /// A key to read: what cannot be a key does not exist.
    fn key_to_read(&self, bucket: &str, key: &str) -> S3Result<Key> {
        self.bucket(bucket)?;
        key.parse().map_err(|_| s3_error!(NoSuchKey, "no object can have that key"))
    }

    /// Runs a blocking operation on the disk threads.
    async fn run<T: Send + 'static>(
        &self,
        operation: impl FnOnce(&Inner) -> io::Result<T> + Send + 'static,
    ) -> S3Result<T> {
        self.inner.run(operation).await.map_err(|error| service_error(&error))
    }
}

/// What the disk said, as S3 says it: 507 with the code `InsufficientStorage` when it is full.
fn service_error(error: &io::Error) -> S3Error {
    tracing::warn!(%error, "the disk of the store failed a request");
    match kind_of(error) {
        StoreErrorKind::NoSpace => {
            let mut full = S3Error::with_message(
                S3ErrorCode::Custom("InsufficientStorage".into()),
                format!("no space left on the disk of the store: {error}"),
            );
            full.set_status_code(StatusCode::INSUFFICIENT_STORAGE);
            full
        }
        StoreErrorKind::AccessDenied => s3_error!(AccessDenied, "the disk of the store refused it: {error}"),
        StoreErrorKind::Invalid => s3_error!(InvalidRequest, "{error}"),
        _ => s3_error!(InternalError, "the disk of the store failed: {error}"),
    }
}

fn publish_error(failure: &Failure) -> S3Error {
    match failure {
        Failure::Mismatch { arrived } => {
            s3_error!(BadDigest, "the CRC32C of the bytes that arrived is {}", checks::encode(*arrived))
        }
        Failure::Before(error) | Failure::After(error) => service_error(error),
    }
}

fn refused() -> S3Error {
    s3_error!(PreconditionFailed, "At least one of the pre-conditions you specified did not hold")
}

fn etag(etag: &str) -> ETag {
    ETag::Strong(etag.to_owned())
}

/// The condition of a write.
fn condition(if_match: Option<&IfMatch>, if_none_match: Option<&IfNoneMatch>) -> S3Result<Condition> {
    match (if_match, if_none_match) {
        (None, None) => Ok(Condition::Always),
        (None, Some(ETagCondition::Any)) => Ok(Condition::Absent),
        (Some(ETagCondition::ETag(etag)), None) => Ok(Condition::Matches(etag.value().to_owned())),
        _ => Err(s3_error!(NotImplemented, "writes take If-None-Match: * or If-Match with one ETag")),
    }
}

/// Content type and metadata within their limits.
fn extra(content_type: Option<String>, metadata: Option<HashMap<String, String>>) -> S3Result<Extra> {
    if content_type.as_ref().is_some_and(|text| text.len() > MAX_CONTENT_TYPE_BYTES) {
        return Err(s3_error!(InvalidArgument, "the content type is longer than {MAX_CONTENT_TYPE_BYTES} bytes"));
    }
    let metadata = metadata.unwrap_or_default();
    if metadata.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() > MAX_METADATA_BYTES {
        return Err(s3_error!(MetadataTooLarge));
    }
    Ok(Extra { content_type, metadata: metadata.into_iter().collect() })
}

/// Refuses what would be silently lost.
fn refuse_unsupported<'a>(headers: &http::HeaderMap, more: impl IntoIterator<Item = &'a str>) -> S3Result<()> {
    const UNSUPPORTED: [&str; 8] = [
        "x-amz-tagging",
        "x-amz-server-side-encryption",
        "x-amz-server-side-encryption-customer-algorithm",
        "x-amz-object-lock-mode",
        "x-amz-object-lock-legal-hold",
        "x-amz-object-lock-retain-until-date",
        "x-amz-website-redirect-location",
        "x-amz-write-offset-bytes",
    ];
    match UNSUPPORTED.into_iter().chain(more).find(|name| headers.contains_key(*name)) {
        Some(name) => Err(s3_error!(NotImplemented, "the embedded store does not support the header {name}")),
        None => Ok(()),
    }
}

#[async_trait]
impl S3 for Service {
    async fn list_buckets(&self, _: S3Request<ListBucketsInput>) -> S3Result<S3Response<ListBucketsOutput>> {
        let bucket = Bucket { name: Some(self.inner.bucket.clone()), ..Bucket::default() };
        Ok(S3Response::new(ListBucketsOutput { buckets: Some(vec![bucket]), ..ListBucketsOutput::default() }))
    }

    async fn head_bucket(&self, request: S3Request<HeadBucketInput>) -> S3Result<S3Response<HeadBucketOutput>> {
        self.bucket(&request.input.bucket)?;
        Ok(S3Response::new(HeadBucketOutput::default()))
    }

    async fn get_bucket_location(
        &self,
        request: S3Request<GetBucketLocationInput>,
    ) -> S3Result<S3Response<GetBucketLocationOutput>> {
        self.bucket(&request.input.bucket)?;
        Ok(S3Response::new(GetBucketLocationOutput::default()))
    }

    async fn create_bucket(&self, request: S3Request<CreateBucketInput>) -> S3Result<S3Response<CreateBucketOutput>> {
        if request.input.bucket == self.inner.bucket {
            return Err(s3_error!(BucketAlreadyOwnedByYou));
        }
        Err(s3_error!(NotImplemented, "the embedded store has one bucket, {:?}", self.inner.bucket))
    }

    async fn put_object(&self, request: S3Request<PutObjectInput>) -> S3Result<S3Response<PutObjectOutput>> {
        self.put(request).await
    }

    async fn get_object(&self, request: S3Request<GetObjectInput>) -> S3Result<S3Response<GetObjectOutput>> {
        self.get(request.input).await
    }

    async fn head_object(&self, request: S3Request<HeadObjectInput>) -> S3Result<S3Response<HeadObjectOutput>> {
        self.head(request.input).await
    }

    async fn delete_object(&self, request: S3Request<DeleteObjectInput>) -> S3Result<S3Response<DeleteObjectOutput>> {
        self.delete(request.input).await
    }

    async fn delete_objects(
        &self,
        request: S3Request<DeleteObjectsInput>,
    ) -> S3Result<S3Response<DeleteObjectsOutput>> {
        self.delete_many(request.input).await
    }

    async fn copy_object(&self, request: S3Request<CopyObjectInput>) -> S3Result<S3Response<CopyObjectOutput>> {
        self.copy(request).await
    }

    async fn list_objects(&self, request: S3Request<ListObjectsInput>) -> S3Result<S3Response<ListObjectsOutput>> {
        self.list(request.input).await
    }

    async fn list_objects_v2(
        &self,
        request: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        self.list_v2(request.input).await
    }

    async fn create_multipart_upload(
        &self,
        request: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
        self.start_upload(request).await
    }

    async fn upload_part(&self, request: S3Request<UploadPartInput>) -> S3Result<S3Response<UploadPartOutput>> {
        self.put_part(request).await
    }

    async fn list_parts(&self, request: S3Request<ListPartsInput>) -> S3Result<S3Response<ListPartsOutput>> {
        self.parts(request.input).await
    }

    async fn list_multipart_uploads(
        &self,
        request: S3Request<ListMultipartUploadsInput>,
    ) -> S3Result<S3Response<ListMultipartUploadsOutput>> {
        self.uploads(request.input).await
    }

    async fn complete_multipart_upload(
        &self,
        request: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        self.complete_upload(request.input).await
    }

    async fn abort_multipart_upload(
        &self,
        request: S3Request<AbortMultipartUploadInput>,
    ) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
        self.abort_upload(request.input).await
    }
}
