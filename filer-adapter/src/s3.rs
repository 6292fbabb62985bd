//! Any S3-compatible store, by aws-sdk-s3.
//!
//! What the SDK would do by itself and must not: its retries are off (a create that was retried inside could not say whether a 412
//! was its own earlier success), its stalled-stream protection is off (it gave up healthy uploads under load; the timeouts here replace it),
//! and bodies are neither hashed nor copied on their way: they are sent as the pieces they are, with the CRC32C that the
//! caller knows already, so the store checks what arrived.

mod body;
mod failure;
mod multipart;

use crate::{
    Attributes, BlobStore, ByteStream, CreateError, Created, Filer, Found, GetOptions, Listed, MultipartUpload,
    ObjectMeta, StoreError, StoreErrorKind, Stored,
};
use async_trait::async_trait;
use aws_sdk_s3::{
    Client,
    config::{
        BehaviorVersion, Region, RequestChecksumCalculation, ResponseChecksumValidation, StalledStreamProtectionConfig,
        retry::RetryConfig, timeout::TimeoutConfig,
    },
};
use aws_smithy_http_client::tls;
use backon::{ExponentialBuilder, Retryable as _};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::{Bytes, BytesMut};
use failure::Failed;
use futures::{StreamExt as _, TryStreamExt as _};
use multipart::Multipart;
use refstream_types::{ByteRange, Crc32c, Key};
use std::{fmt, sync::Arc, time::Duration};

/// Objects per listing call; S3's limit.
const PAGE: usize = 1_000;

/// How to reach a bucket.
#[derive(Clone)]
pub struct S3Config {
    /// `http://host:port`; `None`: the provider's own endpoint of the region.
    pub endpoint: Option<String>,
    /// The bucket, which must exist.
    pub bucket: String,
    /// The region.
    pub region: String,
    /// `endpoint/bucket/key` rather than `bucket.endpoint/key`.
    pub path_style: bool,
    /// Access key and secret key; `None`: `AWS_*` variables, profiles, roles.
    pub credentials: Option<(String, String)>,
    /// Send and check CRC32C with each object. Some older servers refuse the header.
    pub checksums: bool,
    /// The longest wait for a connection.
    pub connect_timeout: Duration,
    /// The longest time without an answer's beginning, for one request.
    pub request_timeout: Duration,
    /// Tries of a request that may be repeated, the first one included.
    pub attempts: usize,
}

impl Default for S3Config {
    fn default() -> Self {
        Self {
            endpoint: None,
            bucket: String::new(),
            region: "us-east-1".into(),
            path_style: true,
            credentials: None,
            checksums: true,
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(60),
            attempts: 6,
        }
    }
}

impl fmt::Debug for S3Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("S3Config")
            .field("endpoint", &self.endpoint)
            .field("bucket", &self.bucket)
            .field("region", &self.region)
            .field("path_style", &self.path_style)
            .field("credentials", &self.credentials.as_ref().map(|_| "given"))
            .finish_non_exhaustive()
    }
}

/// What requests have in common.
#[derive(Clone)]
struct Shared {
    client: Client,
    /// For errors: the store's name and where it is.
    name: Arc<str>,
    config: Arc<S3Config>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("S3Store").field(&self.name).finish()
    }
}

impl Shared {
    fn backoff(&self) -> ExponentialBuilder {
        ExponentialBuilder::default()
            .with_min_delay(Duration::from_millis(50))
            .with_max_delay(Duration::from_secs(5))
            .with_max_times(self.config.attempts.saturating_sub(1))
            .with_jitter()
    }

    fn checksum(&self, checksum: Crc32c) -> Option<String> {
        self.config.checksums.then(|| encode_checksum(checksum))
    }

    /// A store that answers with another checksum than the one sent holds other bytes.
    fn check(
        &self,
        operation: &'static str,
        key: &Key,
        sent: Crc32c,
        answered: Option<&str>,
    ) -> Result<(), StoreError> {
        match answered.and_then(decode_checksum) {
            Some(other) if other != sent => Err(StoreError {
                kind: StoreErrorKind::Corrupt,
                operation,
                store: self.name.to_string(),
                key: Some(key.clone()),
                message: format!("sent {sent}, the store has {other}"),
            }),
            _ => Ok(()),
        }
    }
}

fn encode_checksum(checksum: Crc32c) -> String {
    STANDARD.encode(checksum.0.to_be_bytes())
}

fn decode_checksum(text: &str) -> Option<Crc32c> {
    let bytes: [u8; 4] = STANDARD.decode(text).ok()?.try_into().ok()?;
    Some(Crc32c(u32::from_be_bytes(bytes)))
}

fn bare_etag(etag: Option<&str>) -> Option<String> {
    etag.map(|etag| etag.trim_matches('"').to_owned())
}

/// A bucket as a store of payloads and as a filer. Cheap to clone.
#[derive(Clone, Debug)]
pub struct S3Store {
    shared: Shared,
}

impl S3Store {
    /// Opens a bucket; nothing is sent yet. `name` is the store's name in the configuration, for errors.
    ///
    /// # Errors
    /// When the configuration cannot be used.
    pub async fn open(name: &str, config: S3Config) -> Result<Self, StoreError> {
        let place = config.endpoint.as_deref().unwrap_or("the provider's endpoint");
        let full_name: Arc<str> = format!("{name} (bucket {} at {place})", config.bucket).into();
        if config.bucket.len() < 3 {
            return Err(StoreError {
                kind: StoreErrorKind::Invalid,
                operation: "open",
                store: full_name.to_string(),
                key: None,
                message: "a bucket's name has at least 3 characters".into(),
            });
        }
        let http = aws_smithy_http_client::Builder::new()
            .tls_provider(tls::Provider::Rustls(tls::rustls_provider::CryptoMode::Ring))
            .build_https();
        let timeouts = TimeoutConfig::builder()
            .connect_timeout(config.connect_timeout)
            .read_timeout(config.request_timeout)
            .build();
        let mut builder = aws_sdk_s3::config::Builder::new()
            .behavior_version(BehaviorVersion::latest())
            .http_client(http.clone())
            .region(Region::new(config.region.clone()))
            .force_path_style(config.path_style)
            .retry_config(RetryConfig::disabled())
            .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
            .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
            .response_checksum_validation(ResponseChecksumValidation::WhenRequired)
            .timeout_config(timeouts);
        if let Some(endpoint) = &config.endpoint {
            builder = builder.endpoint_url(endpoint);
        }
        builder = match &config.credentials {
            Some((access_key, secret_key)) => builder.credentials_provider(aws_credential_types::Credentials::new(
                access_key,
                secret_key,
                None,
                None,
                "refstream",
            )),
            None => {
                let loaded = aws_config::defaults(BehaviorVersion::latest())
                    .http_client(http)
                    .region(Region::new(config.region.clone()))
                    .load()
                    .await;
                match loaded.credentials_provider() {
                    Some(provider) => builder.credentials_provider(provider),
                    None => builder,
                }
            }
        };
        let shared = Shared { client: Client::from_conf(builder.build()), name: full_name, config: Arc::new(config) };
        Ok(Self { shared })
    }

    fn bucket(&self) -> &str {
        &self.shared.config.bucket
    }

    async fn put_once(
        &self,
        key: &Key,
        body: &[Bytes],
        checksum: Crc32c,
        attributes: &Attributes,
    ) -> Result<Stored, Failed> {
        let size: usize = body.iter().map(Bytes::len).sum();
        let answer = self
            .shared
            .client
            .put_object()
            .bucket(self.bucket())
            .key(key.as_str())
            .content_length(size as i64)
            .set_content_type(attributes.content_type.clone())
            .set_checksum_crc32_c(self.shared.checksum(checksum))
            .body(body::pieces(body))
            .customize()
            .disable_payload_signing()
            .send()
            .await
            .map_err(|error| self.shared.failed("put", Some(key), error))?;
        self.shared.check("put", key, checksum, answer.checksum_crc32_c()).map_err(|error| Failed {
            error,
            happened: true,
            status: None,
        })?;
        Ok(Stored { key: key.clone(), size: size as u64, etag: bare_etag(answer.e_tag()) })
    }

    async fn get_once(&self, key: &Key, options: &GetOptions) -> Result<Found, StoreError> {
        let failed = |error| self.shared.failed("get", Some(key), error).error;
        let range = options.range.filter(|range| range.length > 0);
        let end = |range: ByteRange| range.end().map_or(u64::MAX, |end| end) - 1;
        let answer = self
            .shared
            .client
            .get_object()
            .bucket(self.bucket())
            .key(key.as_str())
            .set_range(range.map(|range| format!("bytes={}-{}", range.offset, end(range))))
            .set_if_match(options.etag.as_ref().map(|etag| format!("\"{etag}\"")))
            .set_version_id(options.version.clone())
            .send()
            .await
            .map_err(failed)?;
        let invalid = |message: String| StoreError {
            kind: StoreErrorKind::Invalid,
            operation: "get",
            store: self.shared.name.to_string(),
            key: Some(key.clone()),
            message,
        };
        let length = answer.content_length().and_then(|n| u64::try_from(n).ok());
        let size = match range {
            None => length.ok_or_else(|| invalid("the store does not say how long the object is".into()))?,
            Some(asked) => {
                let said = answer.content_range().unwrap_or("nothing");
                let (first, last, size) = content_range(said)
                    .ok_or_else(|| invalid(format!("a range was asked for, the store answered with {said}")))?;
                if first != asked.offset || last > end(asked) {
                    return Err(invalid(format!(
                        "bytes {}-{} were asked for, the store sent {said}",
                        first,
                        end(asked)
                    )));
                }
                size
            }
        };
        let meta = ObjectMeta {
            size,
            etag: bare_etag(answer.e_tag()),
            version: answer.version_id().map(str::to_owned),
            content_type: answer.content_type().map(str::to_owned),
        };
        let (name, key) = (Arc::clone(&self.shared.name), key.clone());
        let body: ByteStream = if options.range.is_some_and(|range| range.length == 0) {
            futures::stream::empty().boxed()
        } else {
            futures::stream::try_unfold(answer.body, |mut body| async move {
                Ok(body.try_next().await?.map(|piece| (piece, body)))
            })
            .map_err(move |error: aws_sdk_s3::primitives::ByteStreamError| StoreError {
                kind: StoreErrorKind::Unavailable,
                operation: "get",
                store: name.to_string(),
                key: Some(key.clone()),
                message: failure::chain(&error),
            })
            .boxed()
        };
        Ok(Found { meta, body })
    }

    async fn list_all(&self, prefix: &str, after: Option<&Key>, limit: usize) -> Result<Vec<Listed>, StoreError> {
        let mut found = Vec::new();
        let mut after = after.map(|key| key.as_str().to_owned());
        while found.len() < limit {
            let page = (limit - found.len()).min(PAGE);
            let answer = (|| async {
                self.shared
                    .client
                    .list_objects_v2()
                    .bucket(self.bucket())
                    .prefix(prefix)
                    .set_start_after(after.clone())
                    .max_keys(page as i32)
                    .send()
                    .await
                    .map_err(|error| self.shared.failed("list", None, error).error)
            })
            .retry(self.shared.backoff())
            .when(StoreError::is_retryable)
            .await?;
            for object in answer.contents() {
                let Some(key) = object.key() else { continue };
                after = Some(key.to_owned());
                // Objects that others put beside ours may have names that no key of ours has.
                if let Ok(key) = key.parse() {
                    found.push(Listed { key, size: object.size().and_then(|n| u64::try_from(n).ok()).unwrap_or(0) });
                }
            }
            if !answer.is_truncated().unwrap_or(false) || answer.contents().is_empty() {
                break;
            }
        }
        Ok(found)
    }

    async fn remove_object(&self, key: &Key) -> Result<(), StoreError> {
        let removed = (|| async {
            self.shared
                .client
                .delete_object()
                .bucket(self.bucket())
                .key(key.as_str())
                .send()
                .await
                .map_err(|error| self.shared.failed("delete", Some(key), error).error)
        })
        .retry(self.shared.backoff())
        .when(StoreError::is_retryable)
        .await;
        match removed {
            Ok(_) => Ok(()),
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn read_all(&self, key: &Key, range: Option<ByteRange>) -> Result<Option<Bytes>, StoreError> {
        let options = GetOptions { range, ..GetOptions::default() };
        let read = (|| async {
            let mut found = self.get_once(key, &options).await?;
            let mut whole = BytesMut::new();
            while let Some(piece) = found.body.try_next().await? {
                whole.extend_from_slice(&piece);
            }
            Ok::<_, StoreError>(whole.freeze())
        })
        .retry(self.shared.backoff())
        .when(StoreError::is_retryable)
        .await;
        match read {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// `bytes FIRST-LAST/SIZE`.
fn content_range(text: &str) -> Option<(u64, u64, u64)> {
    let (range, size) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    Some((first.parse().ok()?, last.parse().ok()?, size.parse().ok()?))
}

#[async_trait]
impl Filer for S3Store {
    async fn create(&self, key: &Key, bytes: Bytes) -> Result<Created, CreateError> {
        let size = bytes.len();
        let answer = self
            .shared
            .client
            .put_object()
            .bucket(self.bucket())
            .key(key.as_str())
            .if_none_match("*")
            .content_length(size as i64)
            .content_type("application/octet-stream")
            .body(body::pieces(&[bytes]))
            .customize()
            .disable_payload_signing()
            .send()
            .await;
        match answer {
            Ok(_) => Ok(Created::New),
            Err(error) => {
                let failed = self.shared.failed("create", Some(key), error);
                if failed.status == Some(412) { Ok(Created::Exists) } else { Err(failed.into()) }
            }
        }
    }

    async fn read(&self, key: &Key) -> Result<Option<Bytes>, StoreError> {
        self.read_all(key, None).await
    }

    async fn read_range(&self, key: &Key, range: ByteRange) -> Result<Option<Bytes>, StoreError> {
        if range.length == 0 {
            return Ok(self.head(key).await?.map(|_| Bytes::new()));
        }
        match self.read_all(key, Some(range)).await {
            // 416: the range starts at or beyond the end of an object that is there.
            Err(error) if error.kind == StoreErrorKind::Invalid && error.message.starts_with("416") => {
                Ok(Some(Bytes::new()))
            }
            other => other,
        }
    }

    async fn remove(&self, key: &Key) -> Result<(), StoreError> {
        self.remove_object(key).await
    }

    async fn list(&self, prefix: &str, after: Option<&Key>, limit: usize) -> Result<Vec<Listed>, StoreError> {
        self.list_all(prefix, after, limit).await
    }
}

#[async_trait]
impl BlobStore for S3Store {
    fn uri(&self, key: &Key) -> String {
        format!("s3://{}/{key}", self.bucket())
    }

    async fn put(
        &self,
        key: &Key,
        body: Vec<Bytes>,
        checksum: Crc32c,
        attributes: &Attributes,
    ) -> Result<Stored, CreateError> {
        // Repeating is safe: the same bytes under the same key. Once one try may have happened, that stays true.
        let may_have_happened = std::sync::atomic::AtomicBool::new(false);
        let put = (|| async {
            self.put_once(key, &body, checksum, attributes).await.inspect_err(|failed| {
                if failed.happened {
                    may_have_happened.store(true, std::sync::atomic::Ordering::Relaxed);
                }
            })
        })
        .retry(self.shared.backoff())
        .when(|failed| failed.error.is_retryable())
        .adjust(failure::patience)
        .await;
        put.map_err(|failed| {
            Failed { happened: may_have_happened.load(std::sync::atomic::Ordering::Relaxed), ..failed }.into()
        })
    }

    async fn start_multipart(
        &self,
        key: &Key,
        attributes: &Attributes,
    ) -> Result<Box<dyn MultipartUpload>, StoreError> {
        Ok(Box::new(Multipart::start(&self.shared, key, attributes).await?))
    }

    async fn resume_multipart(&self, key: &Key, upload: &str) -> Result<Box<dyn MultipartUpload>, StoreError> {
        Ok(Box::new(Multipart::resume(&self.shared, key, upload).await?))
    }

    async fn get(&self, key: &Key, options: &GetOptions) -> Result<Found, StoreError> {
        let got = (|| self.get_once(key, options)).retry(self.shared.backoff()).when(StoreError::is_retryable).await;
        match got {
            // 416: the range starts at or beyond the end of an object that is there, and is the one that was meant.
            Err(error) if error.kind == StoreErrorKind::Invalid && error.message.starts_with("416") => {
                let meta = BlobStore::head(self, key).await?;
                let meta =
                    meta.ok_or(StoreError { kind: StoreErrorKind::NotFound, message: String::new(), ..error })?;
                Ok(Found { meta, body: futures::stream::empty().boxed() })
            }
            other => other,
        }
    }

    async fn head(&self, key: &Key) -> Result<Option<ObjectMeta>, StoreError> {
        let answer = (|| async {
            self.shared
                .client
                .head_object()
                .bucket(self.bucket())
                .key(key.as_str())
                .send()
                .await
                .map_err(|error| self.shared.failed("head", Some(key), error).error)
        })
        .retry(self.shared.backoff())
        .when(StoreError::is_retryable)
        .await;
        match answer {
            Ok(answer) => Ok(Some(ObjectMeta {
                size: answer.content_length().and_then(|n| u64::try_from(n).ok()).unwrap_or(0),
                etag: bare_etag(answer.e_tag()),
                version: answer.version_id().map(str::to_owned),
                content_type: answer.content_type().map(str::to_owned),
            })),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn delete(&self, key: &Key) -> Result<(), StoreError> {
        self.remove_object(key).await
    }

    async fn list_blobs(&self, prefix: &str, after: Option<&Key>, limit: usize) -> Result<Vec<Listed>, StoreError> {
        self.list_all(prefix, after, limit).await
    }
}
