//! Grants for S3: made by whoever has credentials, used by whoever has none.
//!
//! A granted request is the SDK's own request as to its body and answer; address and headers are those that were signed.

use super::{S3Store, Shared, encode_checksum, multipart::Multipart};
use crate::{
    Attributes, BlobStore, CreateError, Listed, MultipartUpload as _, Part, Runtime, StoreError, StoreErrorKind,
    Stored,
    attempt::Failed,
    grant::{Completed, Grants, ReadAsk, ReadGrant, SignedRequest, UploadAsk, UploadGrant, UploadKind},
    store::NOTE,
};
use async_trait::async_trait;
use aws_sdk_s3::{
    error::{ProvideErrorMetadata, SdkError},
    presigning::{PresignedRequest, PresigningConfig},
    types::{CompletedMultipartUpload, CompletedPart},
};
use aws_smithy_runtime_api::{
    box_error::BoxError,
    client::{
        interceptors::{Intercept, context::BeforeTransmitInterceptorContextMut},
        orchestrator::HttpResponse,
        runtime_components::RuntimeComponents,
    },
};
use aws_smithy_types::config_bag::ConfigBag;
use refstream_types::Key;
use std::{collections::HashMap, future::Future, sync::Arc, time::Duration};

/// What a granted request keeps of the SDK's headers: what belongs to its body, and to the way it is read.
const KEPT: [&str; 5] = ["host", "content-length", "range", "if-match", "user-agent"];

/// Gives grants for a bucket by presigning.
#[derive(Clone, Debug)]
pub struct S3Granter {
    store: S3Store,
    life: Duration,
    runtime: Arc<dyn Runtime>,
}

impl S3Granter {
    /// Grants that are accepted for `life`, at most a week. `store` has credentials of its own.
    pub fn new(store: S3Store, life: Duration, runtime: Arc<dyn Runtime>) -> Self {
        Self { store, life, runtime }
    }

    fn presigning(&self, operation: &'static str, key: &Key) -> Result<PresigningConfig, StoreError> {
        let config = PresigningConfig::builder().start_time(self.runtime.wall().into()).expires_in(self.life);
        config.build().map_err(|error| {
            self.store.shared.error(StoreErrorKind::Invalid, operation, Some(key), format!("cannot sign: {error}"))
        })
    }

    fn signed<E>(
        &self,
        operation: &'static str,
        key: &Key,
        presigned: Result<PresignedRequest, SdkError<E, HttpResponse>>,
    ) -> Result<SignedRequest, StoreError>
    where
        E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
    {
        let presigned = presigned.map_err(|error| self.store.shared.failed(operation, Some(key), error).error)?;
        let headers = presigned.headers().filter(|(name, _)| !matches!(*name, "host" | "content-length"));
        Ok(SignedRequest {
            url: presigned.uri().to_owned(),
            headers: headers.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
            life: self.life,
        })
    }

    /// Refuses what would replace an object. Keys are random and used once: there is none unless somebody guesses at names.
    async fn absent(&self, operation: &'static str, key: &Key) -> Result<(), StoreError> {
        match self.store.head(key).await? {
            None => Ok(()),
            Some(_) => Err(self.exists(operation, key)),
        }
    }

    fn exists(&self, operation: &'static str, key: &Key) -> StoreError {
        let message = "there is such an object already, and grants never overwrite";
        self.store.shared.error(StoreErrorKind::Invalid, operation, Some(key), message)
    }

    fn resumed(&self, key: &Key, upload: &str) -> Multipart {
        Multipart::known(&self.store.shared, key, upload)
    }

    async fn complete_once(&self, key: &Key, upload: &str, parts: &[CompletedPart]) -> Result<Option<String>, Failed> {
        let shared = &self.store.shared;
        let request = shared
            .client
            .complete_multipart_upload()
            .bucket(&shared.config.bucket)
            .key(key.as_str())
            .upload_id(upload)
            .if_none_match("*")
            .multipart_upload(CompletedMultipartUpload::builder().set_parts(Some(parts.to_vec())).build())
            .send();
        let answer = shared.send("complete multipart upload", Some(key), 0, request).await?;
        Ok(super::bare_etag(answer.e_tag()))
    }
}

#[async_trait]
impl Grants for S3Granter {
    async fn upload(&self, ask: &UploadAsk) -> Result<UploadGrant, StoreError> {
        const OPERATION: &str = "grant upload";
        let UploadAsk { key, size, checksum, kind } = ask;
        let shared = &self.store.shared;
        let presigning = self.presigning(OPERATION, key)?;
        let length = i64::try_from(*size)
            .map_err(|_| shared.error(StoreErrorKind::Invalid, OPERATION, Some(key), "no object is that large"))?;
        let request = match kind {
            UploadKind::Object(attributes) => {
                let request = shared
                    .client
                    .put_object()
                    .bucket(&shared.config.bucket)
                    .key(key.as_str())
                    .if_none_match("*")
                    .content_length(length)
                    .set_content_type(attributes.content_type.clone())
                    .set_metadata(attributes.note.clone().map(|note| HashMap::from([(NOTE.to_owned(), note)])))
                    .set_storage_class(shared.storage_class())
                    .set_server_side_encryption(shared.encryption())
                    .set_ssekms_key_id(shared.kms_key())
                    .set_checksum_crc32_c(shared.checksum(*checksum));
                self.signed(OPERATION, key, Box::pin(request.presigned(presigning)).await)
            }
            UploadKind::Part { upload, number } => {
                let request = shared
                    .client
                    .upload_part()
                    .bucket(&shared.config.bucket)
                    .key(key.as_str())
                    .upload_id(upload)
                    .part_number(i32::try_from(*number).unwrap_or(i32::MAX))
                    .content_length(length)
                    .set_checksum_crc32_c(shared.checksum(*checksum));
                self.signed(OPERATION, key, Box::pin(request.presigned(presigning)).await)
            }
        };
        Ok(UploadGrant::Request(request?))
    }

    async fn read(&self, ask: &ReadAsk) -> Result<ReadGrant, StoreError> {
        const OPERATION: &str = "grant read";
        let ReadAsk { key, version, head } = ask;
        let shared = &self.store.shared;
        let presigning = self.presigning(OPERATION, key)?;
        let (bucket, version) = (shared.config.bucket.as_str(), version.clone());
        let request = if *head {
            let request = shared.client.head_object().bucket(bucket).key(key.as_str()).set_version_id(version);
            self.signed(OPERATION, key, Box::pin(request.presigned(presigning)).await)
        } else {
            let request = shared.client.get_object().bucket(bucket).key(key.as_str()).set_version_id(version);
            self.signed(OPERATION, key, Box::pin(request.presigned(presigning)).await)
        };
        Ok(ReadGrant::Request(request?))
    }

    async fn start_upload(&self, key: &Key, attributes: &Attributes) -> Result<String, StoreError> {
        self.absent("start multipart upload", key).await?;
        Ok(self.store.start_multipart(key, attributes).await?.id().to_owned())
    }

    async fn parts(&self, key: &Key, upload: &str) -> Result<Vec<Part>, StoreError> {
        self.resumed(key, upload).parts().await
    }

    async fn complete_upload(
        &self,
        key: &Key,
        upload: &str,
        parts: &[Part],
        _: Option<&str>,
    ) -> Result<Completed, CreateError> {
        let shared = &self.store.shared;
        let completed: Vec<_> = parts.iter().map(|part| self.resumed(key, upload).completed(part)).collect();
        let size = parts.iter().map(|part| part.size).sum();
        let done = |etag| Completed { stored: Stored { key: key.clone(), size, etag }, beside: None };
        let failed = match shared.retried(|| self.complete_once(key, upload, &completed)).await {
            Ok(etag) => return Ok(done(etag)),
            Err(failed) => failed,
        };
        if !failed.error.is_not_found() && failed.status != Some(412) {
            return Err(failed.into());
        }
        // An earlier try whose answer was lost has made the object, and ended the upload: look for it.
        match self.store.head(key).await {
            Ok(Some(meta)) if meta.size == size => Ok(done(meta.etag)),
            Ok(Some(_)) => Err(CreateError::DidNotHappen(self.exists("complete multipart upload", key))),
            Ok(None) => Err(CreateError::MayHaveHappened(failed.error)),
            Err(error) => Err(CreateError::MayHaveHappened(error)),
        }
    }

    async fn abort_upload(&self, key: &Key, upload: &str, _: &[Part]) -> Result<(), StoreError> {
        self.resumed(key, upload).abort().await
    }

    async fn list(&self, prefix: &str, after: Option<&Key>, limit: usize) -> Result<Vec<Listed>, StoreError> {
        self.store.list_blobs(prefix, after, limit).await
    }
}

/// Makes a request of the SDK the one that was granted.
#[derive(Debug)]
pub(super) struct Permit(SignedRequest);

impl Intercept for Permit {
    fn name(&self) -> &'static str {
        "Permit"
    }
    fn modify_before_transmit(
        &self,
        context: &mut BeforeTransmitInterceptorContextMut<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let request = context.request_mut();
        request.set_uri(self.0.url.as_str())?;
        let headers = request.headers_mut();
        // Anything that is not signed would be refused, or would mean something.
        let others: Vec<String> =
            headers.iter().map(|(name, _)| name.to_owned()).filter(|name| !KEPT.contains(&name.as_str())).collect();
        for name in others {
            headers.remove(name);
        }
        for (name, value) in &self.0.headers {
            headers.try_insert(name.clone(), value.clone())?;
        }
        Ok(())
    }
}

impl Shared {
    fn not_granted(&self, operation: &'static str, key: Option<&Key>, message: &str) -> StoreError {
        self.error(StoreErrorKind::AccessDenied, operation, key, message)
    }

    /// Refuses what is never granted, where there are no credentials.
    pub(super) fn needs_credentials(&self, operation: &'static str, key: Option<&Key>) -> Result<(), StoreError> {
        match self.grants {
            None => Ok(()),
            Some(_) => Err(self.not_granted(
                operation,
                key,
                "this client has no credentials of the store, and grants do not cover this; give it credentials",
            )),
        }
    }

    /// Repeats what only reads. A grant that is refused may have ended before its time, with the credentials that signed it: it is asked for once more.
    pub(super) async fn read<T, Fut>(&self, key: &Key, mut operation: impl FnMut() -> Fut) -> Result<T, Failed>
    where
        Fut: Future<Output = Result<T, Failed>>,
    {
        match (self.retried(&mut operation).await, &self.grants) {
            (Err(failed), Some(grants)) if failed.status == Some(403) => {
                grants.forget(key);
                self.retried(&mut operation).await
            }
            (outcome, _) => outcome,
        }
    }

    /// The permission to store a body, where one is needed.
    pub(super) async fn permit_upload(&self, ask: impl FnOnce() -> UploadAsk) -> Result<Option<Permit>, Failed> {
        let Some(grants) = &self.grants else { return Ok(None) };
        let ask = ask();
        match grants.upload(&ask).await.map_err(before)? {
            UploadGrant::Request(request) => Ok(Some(Permit(request))),
            UploadGrant::Needle(_) => Err(before(self.not_granted("put", Some(&ask.key), NOT_S3))),
        }
    }

    /// The permission to read an object, where one is needed.
    pub(super) async fn permit_read(
        &self,
        key: &Key,
        version: Option<&str>,
        head: bool,
    ) -> Result<Option<Permit>, Failed> {
        let Some(grants) = &self.grants else { return Ok(None) };
        let ask = ReadAsk { key: key.clone(), version: version.map(str::to_owned), head };
        match grants.read(&ask).await.map_err(before)? {
            ReadGrant::Request(request) => Ok(Some(Permit(request))),
            ReadGrant::Needle { .. } => Err(before(self.not_granted("get", Some(key), NOT_S3))),
        }
    }
}

const NOT_S3: &str =
    "the broker gave a grant of another kind of store; client and broker disagree about the configuration";

/// A failure before anything was sent to the store.
fn before(error: StoreError) -> Failed {
    Failed { error, happened: false, status: None }
}

impl Multipart {
    /// A part as it stands in the list of a completion.
    pub(super) fn completed(&self, part: &Part) -> CompletedPart {
        CompletedPart::builder()
            .part_number(part.number as i32)
            .e_tag(format!("\"{}\"", part.etag))
            .set_checksum_crc32_c(part.checksum.filter(|_| self.shared.config.checksums).map(encode_checksum))
            .build()
    }
}
