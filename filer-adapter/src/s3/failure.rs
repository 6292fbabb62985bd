//! What the SDK's errors mean.

use super::Shared;
use crate::{
    StoreError, StoreErrorKind,
    attempt::{Failed, cause, chain, is_untrusted},
};
use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use refstream_types::Key;
use std::{error::Error, io, time::Duration};

impl Shared {
    pub(super) fn failed<E>(
        &self,
        operation: &'static str,
        key: Option<&Key>,
        error: SdkError<E, HttpResponse>,
    ) -> Failed
    where
        E: ProvideErrorMetadata + Error + Send + Sync + 'static,
    {
        let status = error.raw_response().map(|response| response.status().as_u16());
        let retry_after = error
            .raw_response()
            .and_then(|response| response.headers().get("retry-after"))
            .and_then(|text| text.parse().ok())
            .map(Duration::from_secs);
        let (kind, happened, message) = match &error {
            SdkError::ConstructionFailure(_) => (StoreErrorKind::Invalid, false, chain(&error)),
            SdkError::DispatchFailure(failure) if failure.is_user() => (StoreErrorKind::Invalid, false, chain(&error)),
            // Without credentials nothing was sent.
            SdkError::DispatchFailure(_) if cause::<CredentialsError>(&error).is_some() => {
                (StoreErrorKind::AccessDenied, false, chain(&error))
            }
            SdkError::DispatchFailure(_) if is_untrusted(&chain(&error)) => {
                (StoreErrorKind::Invalid, false, chain(&error))
            }
            // Nobody listens: nothing was sent. Any other end of a connection may have come after the request.
            SdkError::DispatchFailure(_)
                if cause::<io::Error>(&error).is_some_and(|e| e.kind() == io::ErrorKind::ConnectionRefused) =>
            {
                (StoreErrorKind::Unavailable, false, chain(&error))
            }
            SdkError::ServiceError(service) => {
                let code = service.err().code().unwrap_or_default();
                let said = service.err().message().unwrap_or_default();
                let status = status.unwrap_or_default();
                let kind = classify(status, code, retry_after);
                // A clear refusal changes nothing; a 409 or 5xx may have been applied.
                let happened = !(400..500).contains(&status) || status == 409 || status == 408;
                (kind, happened, format!("{status} {code} {said}").trim_end().to_owned())
            }
            _ => (StoreErrorKind::Unavailable, true, chain(&error)),
        };
        let error = StoreError { kind, operation, store: self.name.to_string(), key: key.cloned(), message };
        Failed { error, happened, status }
    }
}

fn classify(status: u16, code: &str, retry_after: Option<Duration>) -> StoreErrorKind {
    match (status, code) {
        (_, "NoSuchBucket") => StoreErrorKind::NoSuchStore,
        (_, "SlowDown" | "RequestLimitExceeded" | "Throttling" | "ThrottlingException") | (429 | 503, _) => {
            StoreErrorKind::Throttled(retry_after)
        }
        (507, _) | (_, "XMinioStorageFull" | "InsufficientStorage" | "QuotaExceeded") => StoreErrorKind::NoSpace,
        (_, "BadDigest" | "InvalidDigest" | "XAmzContentChecksumMismatch" | "XAmzContentSHA256Mismatch") => {
            StoreErrorKind::Corrupt
        }
        (404, _) | (_, "NoSuchKey" | "NoSuchUpload" | "NotFound" | "NoSuchVersion") => StoreErrorKind::NotFound,
        (412, _) => StoreErrorKind::Changed,
        (401 | 403, _) => StoreErrorKind::AccessDenied,
        (408 | 409, _) => StoreErrorKind::Unavailable,
        (_, "RequestTimeout") | (500.., _) => StoreErrorKind::Unavailable,
        // A 200 whose body is an error.
        (..300, _) => StoreErrorKind::Unavailable,
        _ => StoreErrorKind::Invalid,
    }
}
