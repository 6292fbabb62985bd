//! Any S3-compatible store, by aws-sdk-s3.
//!
//! What the SDK would do by itself and must not: its retries are off (a create that was retried inside could not say whether a 412
//! was its own earlier success), its stalled-stream protection is off (it gave up healthy uploads under load; the timeouts here replace it),
//! and bodies are neither hashed nor copied on their way: they are sent as the pieces they are, with the CRC32C that the
//! caller knows already, so the store checks what arrived.

mod config;
mod failure;
mod grants;
mod multipart;
mod names;
mod tree;
mod versions;

use crate::{
    Attributes, BlobStore, ByteStream, CreateError, Created, Filer, Found, GetOptions, Listed, MultipartUpload,
    ObjectMeta, Sent, StoreError, StoreErrorKind, Stored,
    attempt::{self, Failed},
    content_range::content_range,
    crc32c,
    grant::{Grants, UploadAsk, UploadKind},
    pieces::Pieces,
    store::NOTE,
    trust,
};
use async_trait::async_trait;
use aws_credential_types::provider::{ProvideCredentials as _, SharedCredentialsProvider};
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_s3::types::{Object, ServerSideEncryption, StorageClass};
use aws_sdk_s3::{
    Client,
    config::{
        BehaviorVersion, Region, RequestChecksumCalculation, ResponseChecksumValidation, StalledStreamProtectionConfig,
        retry::RetryConfig, timeout::TimeoutConfig,
    },
};
use aws_smithy_http_client::tls;
use aws_smithy_runtime_api::{
    box_error::BoxError,
    client::{
        interceptors::{Intercept, context::BeforeDeserializationInterceptorContextRef},
        orchestrator::HttpResponse,
        runtime_components::RuntimeComponents,
    },
};
use aws_smithy_types::{body::SdkBody, config_bag::ConfigBag};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::{Bytes, BytesMut};
use config::DEFAULT_REGION;
pub use config::S3Config;
use futures::{StreamExt as _, TryStreamExt as _};
pub use grants::S3Granter;
use multipart::Multipart;
use refstream_types::{ByteRange, Crc32c, Key};
use std::{collections::HashMap, fmt, future::Future, sync::Arc};

/// What is said of an answer without a size.
const NO_SIZE: &str = "the store does not say how long the object is";
/// Objects per listing call; S3's limit.
const PAGE: usize = 1_000;

/// What requests have in common.
#[derive(Clone)]
struct Shared {
    client: Client,
    /// For errors: the store's name and where it is.
    name: Arc<str>,
    config: Arc<S3Config>,
    order: Arc<tree::Order>,
    versioned: versions::Versioned,
    /// Instead of credentials.
    grants: Option<Arc<dyn Grants>>,
}

/// Learns who the store is from its answers.
#[derive(Debug)]
struct Acquaintance(Arc<tree::Order>);

impl Intercept for Acquaintance {
    fn name(&self) -> &'static str {
        "Acquaintance"
    }
    fn read_before_deserialization(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        self.0.learn(context.response().headers().get("server"));
        Ok(())
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("S3Store").field(&self.name).finish()
    }
}

impl Shared {
    /// Sends one request whose body has `bytes` bytes.
    async fn send<T, E>(
        &self,
        operation: &'static str,
        key: Option<&Key>,
        bytes: u64,
        request: impl Future<Output = Result<T, SdkError<E, HttpResponse>>>,
    ) -> Result<T, Failed>
    where
        E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
    {
        let limit = attempt::time_limit(self.config.request_timeout, bytes);
        match tokio::time::timeout(limit, Box::pin(request)).await {
            Ok(answer) => answer.map_err(|error| self.failed(operation, key, error)),
            Err(_) => {
                let message = format!("no answer within {} s", limit.as_secs());
                let error = self.error(StoreErrorKind::Unavailable, operation, key, message);
                Err(Failed { error, happened: true, status: None })
            }
        }
    }

    /// Repeats what may be repeated. Once a try may have happened, that stays true of the whole.
    async fn retried<T, Fut>(&self, operation: impl FnMut() -> Fut) -> Result<T, Failed>
    where
        Fut: Future<Output = Result<T, Failed>>,
    {
        attempt::retried(self.config.attempts, operation).await
    }

    fn error(
        &self,
        kind: StoreErrorKind,
        operation: &'static str,
        key: Option<&Key>,
        message: impl Into<String>,
    ) -> StoreError {
        StoreError { kind, operation, store: self.name.to_string(), key: key.cloned(), message: message.into() }
    }

    fn storage_class(&self) -> Option<StorageClass> {
        Some(self.config.storage_class.as_str()).filter(|class| !class.is_empty()).map(StorageClass::from)
    }
    fn encryption(&self) -> Option<ServerSideEncryption> {
        Some(self.config.encryption.as_str()).filter(|kind| !kind.is_empty()).map(ServerSideEncryption::from)
    }
    fn kms_key(&self) -> Option<String> {
        Some(self.config.kms_key.clone()).filter(|key| !key.is_empty())
    }

    fn checksum(&self, checksum: Crc32c) -> Option<String> {
        self.config.checksums.then(|| encode_checksum(checksum))
    }

    /// A store that answers with another checksum than the one sent holds other bytes.
    fn check(&self, operation: &'static str, key: &Key, sent: Crc32c, answered: Option<&str>) -> Result<(), Failed> {
        match answered.and_then(decode_checksum) {
            Some(other) if other != sent => {
                let message = format!("sent {sent}, the store has {other}");
                let error = self.error(StoreErrorKind::Corrupt, operation, Some(key), message);
                Err(Failed { error, happened: true, status: None })
            }
            _ => Ok(()),
        }
    }
}

/// A body of these pieces; nothing is copied.
fn payload(pieces: &[Bytes], sent: Option<&Sent>) -> aws_sdk_s3::primitives::ByteStream {
    if let Some(sent) = sent {
        return SdkBody::from_body_1_x(Pieces::telling(pieces, sent.clone())).into();
    }
    match pieces {
        [one] => SdkBody::from(one.clone()).into(),
        many => SdkBody::from_body_1_x(Pieces::new(many)).into(),
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
    credentials: Option<SharedCredentialsProvider>,
}

impl S3Store {
    /// Opens a bucket; nothing is sent yet. `name` is the store's name in the configuration, for errors.
    ///
    /// # Errors
    /// When the configuration cannot be used.
    pub async fn open(name: &str, config: S3Config) -> Result<Self, StoreError> {
        Self::open_with(name, config, None).await
    }

    /// Opens a bucket without credentials: for each request a grant is asked for. Nothing can be deleted.
    ///
    /// # Errors
    /// When the configuration cannot be used.
    pub async fn granted(name: &str, config: S3Config, grants: Arc<dyn Grants>) -> Result<Self, StoreError> {
        Self::open_with(name, config, Some(grants)).await
    }

    /// Whether there are credentials, of whatever worth. The first call may ask services of the machine that it runs on.
    pub async fn has_credentials(&self) -> bool {
        match &self.credentials {
            Some(provider) => provider.provide_credentials().await.is_ok(),
            None => false,
        }
    }

    async fn open_with(name: &str, config: S3Config, grants: Option<Arc<dyn Grants>>) -> Result<Self, StoreError> {
        let place = config.endpoint.as_deref().unwrap_or("the provider's endpoint");
        let full_name: Arc<str> = format!("{name} (bucket {} at {place})", config.bucket).into();
        let refuse = |message: String| StoreError {
            kind: StoreErrorKind::Invalid,
            operation: "open",
            store: full_name.to_string(),
            key: None,
            message,
        };
        if config.bucket.len() < 3 {
            return Err(refuse("a bucket's name has at least 3 characters".into()));
        }
        let mut http = aws_smithy_http_client::Builder::new()
            .tls_provider(tls::Provider::Rustls(tls::rustls_provider::CryptoMode::Ring));
        if let Some(pem) = trust::certificates(config.ca_file.as_deref()).map_err(refuse)? {
            let trusted = tls::TrustStore::default().with_pem_certificate(pem);
            let context = tls::TlsContext::builder().with_trust_store(trusted).build();
            http = http.tls_context(context.map_err(|error| refuse(attempt::chain(&error)))?);
        }
        let http = match config.endpoint.as_deref().is_some_and(names::is_local_endpoint) {
            true => http.build_with_resolver(names::Loopback),
            false => http.build_https(),
        };
        let timeouts = TimeoutConfig::builder().connect_timeout(config.connect_timeout).build();
        let mut builder = aws_sdk_s3::config::Builder::new()
            .behavior_version(BehaviorVersion::latest())
            .http_client(http.clone())
            .force_path_style(config.path_style)
            .retry_config(RetryConfig::disabled())
            .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
            .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
            .response_checksum_validation(ResponseChecksumValidation::WhenRequired)
            .timeout_config(timeouts);
        if let Some(endpoint) = &config.endpoint {
            builder = builder.endpoint_url(endpoint);
        }
        let mut region = (!config.region.is_empty()).then(|| Region::new(config.region.clone()));
        let mut credentials = None;
        if grants.is_some() {
            builder = builder.allow_no_auth();
            region = region.or(Some(Region::from_static(DEFAULT_REGION)));
        } else if let Some((access_key, secret_key)) = &config.credentials {
            let keys = aws_credential_types::Credentials::new(access_key, secret_key, None, None, "refstream");
            credentials = Some(SharedCredentialsProvider::new(keys));
        }
        let wanted = grants.is_none() && credentials.is_none();
        if wanted || region.is_none() {
            let mut loader = aws_config::defaults(BehaviorVersion::latest()).http_client(http);
            if let Some(region) = region.clone() {
                loader = loader.region(region);
            }
            let loaded = loader.load().await;
            region = loaded.region().cloned();
            if wanted {
                credentials = loaded.credentials_provider();
            }
        }
        if let Some(provider) = credentials.clone() {
            builder = builder.credentials_provider(provider);
        }
        let builder = builder.region(region.unwrap_or(Region::from_static(DEFAULT_REGION)));
        let order = Arc::new(tree::Order::default());
        let builder = builder.interceptor(Acquaintance(Arc::clone(&order)));
        let client = Client::from_conf(builder.build());
        let versioned = versions::Versioned::default();
        let shared = Shared { client, name: full_name, config: Arc::new(config), order, versioned, grants };
        Ok(Self { shared, credentials })
    }

    fn bucket(&self) -> &str {
        &self.shared.config.bucket
    }

    /// Refuses to write a key that the store would confuse with another one.
    async fn check_key(&self, operation: &'static str, key: &Key) -> Result<(), StoreError> {
        if !key.as_str().contains('\\') {
            return Ok(());
        }
        if self.shared.order.is_tree().is_none() {
            // Any answer tells who the store is.
            let options = GetOptions::default();
            optional(self.shared.retried(|| self.head_once(key, &options)).await)?;
        }
        if self.shared.order.is_tree() == Some(true) {
            let message = "this store takes a backslash in a key for a slash; use a key without one";
            return Err(self.shared.error(StoreErrorKind::Invalid, operation, Some(key), message));
        }
        Ok(())
    }

    async fn put_once(
        &self,
        key: &Key,
        body: &[Bytes],
        checksum: Crc32c,
        attributes: &Attributes,
        sent: &Sent,
    ) -> Result<Stored, Failed> {
        let size: usize = body.iter().map(Bytes::len).sum();
        let ask = || UploadAsk {
            key: key.clone(),
            size: size as u64,
            checksum,
            kind: UploadKind::Object(attributes.clone()),
        };
        let permit = self.shared.permit_upload(ask).await?;
        let mut request = self
            .shared
            .client
            .put_object()
            .bucket(self.bucket())
            .key(key.as_str())
            .content_length(size as i64)
            .set_content_type(attributes.content_type.clone())
            .set_metadata(attributes.note.clone().map(|note| HashMap::from([(NOTE.to_owned(), note)])))
            .set_storage_class(self.shared.storage_class())
            .set_server_side_encryption(self.shared.encryption())
            .set_ssekms_key_id(self.shared.kms_key())
            .set_checksum_crc32_c(self.shared.checksum(checksum))
            .body(payload(body, Some(sent)))
            .customize()
            .disable_payload_signing();
        if let Some(permit) = permit {
            request = request.interceptor(permit);
        }
        let answer = self.shared.send("put", Some(key), size as u64, request.send()).await?;
        self.shared.check("put", key, checksum, answer.checksum_crc32_c())?;
        Ok(Stored { key: key.clone(), size: size as u64, etag: bare_etag(answer.e_tag()) })
    }

    /// A granted put never overwrites. The object that is there is that of an earlier try whose answer was lost, if it has its size: keys are
    /// random and used once.
    async fn stored_before(&self, key: &Key, body: &[Bytes], refused: Failed) -> Result<Stored, Failed> {
        let size = body.iter().map(|piece| piece.len() as u64).sum();
        let options = GetOptions::default();
        let meta = self.shared.retried(|| self.head_once(key, &options)).await?;
        if meta.size != size {
            let message = format!("there is another object with that key, of {} bytes", meta.size);
            let error = self.shared.error(StoreErrorKind::Invalid, "put", Some(key), message);
            return Err(Failed { error, ..refused });
        }
        Ok(Stored { key: key.clone(), size, etag: meta.etag })
    }

    async fn head_once(&self, key: &Key, options: &GetOptions) -> Result<ObjectMeta, Failed> {
        let permit = self.shared.permit_read(key, options.version.as_deref(), true).await?;
        let mut request = self
            .shared
            .client
            .head_object()
            .bucket(self.bucket())
            .key(key.as_str())
            .set_if_match(quoted_etag(options))
            .set_version_id(options.version.clone())
            .customize();
        if let Some(permit) = permit {
            request = request.interceptor(permit);
        }
        let answer = self.shared.send("head", Some(key), 0, request.send()).await?;
        let size = answer.content_length().and_then(|n| u64::try_from(n).ok());
        let unknown = || self.shared.error(StoreErrorKind::Invalid, "head", Some(key), NO_SIZE);
        Ok(ObjectMeta {
            size: size.ok_or_else(|| Failed { error: unknown(), happened: false, status: None })?,
            etag: bare_etag(answer.e_tag()),
            version: answer.version_id().map(str::to_owned),
            content_type: answer.content_type().map(str::to_owned),
            note: answer.metadata().and_then(|metadata| metadata.get(NOTE)).cloned(),
        })
    }

    async fn get_once(&self, key: &Key, options: &GetOptions) -> Result<Found, Failed> {
        let nothing = async || {
            let meta = self.head_once(key, options).await?;
            Ok(Found { meta, body: futures::stream::empty().boxed() })
        };
        let range = match options.range {
            Some(range) if range.length == 0 => return nothing().await,
            Some(range) => Some((range.offset, range.end().unwrap_or(u64::MAX) - 1)),
            None => None,
        };
        let permit = self.shared.permit_read(key, options.version.as_deref(), false).await?;
        let mut request = self
            .shared
            .client
            .get_object()
            .bucket(self.bucket())
            .key(key.as_str())
            .set_range(range.map(|(first, last)| format!("bytes={first}-{last}")))
            .set_if_match(quoted_etag(options))
            .set_version_id(options.version.clone())
            .customize();
        if let Some(permit) = permit {
            request = request.interceptor(permit);
        }
        let answer = match self.shared.send("get", Some(key), 0, request.send()).await {
            // The range starts at or beyond the end of an object that is there.
            Err(failed) if failed.status == Some(416) && range.is_some() => return nothing().await,
            answer => answer?,
        };
        let refuse = |message: String| {
            let error = self.shared.error(StoreErrorKind::Invalid, "get", Some(key), message);
            Failed { error, happened: false, status: None }
        };
        let length = answer.content_length().and_then(|n| u64::try_from(n).ok());
        let size = match range {
            None => length.ok_or_else(|| refuse(NO_SIZE.into()))?,
            // A store that ignores the range answers 200 and everything: those would be wrong bytes.
            Some((first, last)) => match answer.content_range().and_then(content_range) {
                Some((from, to, size)) if from == first && to <= last => size,
                _ => {
                    let said = answer.content_range().unwrap_or("no range at all");
                    return Err(refuse(format!("bytes {first}-{last} were asked for, the store sent {said}")));
                }
            },
        };
        let meta = ObjectMeta {
            size,
            etag: bare_etag(answer.e_tag()),
            version: answer.version_id().map(str::to_owned),
            content_type: answer.content_type().map(str::to_owned),
            note: answer.metadata().and_then(|metadata| metadata.get(NOTE)).cloned(),
        };
        Ok(Found { meta, body: self.pieces(key, answer.body) })
    }

    /// An answer's body, given up when its next bytes do not come.
    fn pieces(&self, key: &Key, body: aws_sdk_s3::primitives::ByteStream) -> ByteStream {
        let (shared, key) = (self.shared.clone(), key.clone());
        futures::stream::try_unfold(body, move |mut body| {
            let (shared, key) = (shared.clone(), key.clone());
            async move {
                let failed = |message| shared.error(StoreErrorKind::Unavailable, "get", Some(&key), message);
                let limit = shared.config.request_timeout;
                match tokio::time::timeout(limit, body.try_next()).await {
                    Ok(Ok(piece)) => Ok(piece.map(|piece| (piece, body))),
                    Ok(Err(error)) => Err(failed(attempt::chain(&error))),
                    Err(_) => Err(failed(format!("no bytes within {} s", limit.as_secs()))),
                }
            }
        })
        .boxed()
    }

    async fn list_all(&self, prefix: &str, first: Option<&Key>, limit: usize) -> Result<Vec<Listed>, StoreError> {
        if let Some(grants) = &self.shared.grants {
            return grants.list(prefix, first, limit).await;
        }
        if self.shared.order.is_tree() == Some(true) {
            return tree::list(self, prefix, first, limit).await;
        }
        let mut found = Vec::new();
        let mut after = first.map(|key| key.as_str().to_owned());
        while found.len() < limit {
            let page = (limit - found.len()).min(PAGE);
            let list = async || {
                let request = self
                    .shared
                    .client
                    .list_objects_v2()
                    .bucket(self.bucket())
                    .prefix(prefix)
                    .set_start_after(after.clone())
                    .max_keys(page as i32)
                    .send();
                self.shared.send("list", None, 0, request).await
            };
            let answer = self.shared.retried(list).await.map_err(|failed| failed.error)?;
            if self.shared.order.is_tree() == Some(true) {
                return tree::list(self, prefix, first, limit).await;
            }
            for object in answer.contents() {
                let Some(key) = object.key() else { continue };
                after = Some(key.to_owned());
                // Objects that others put beside ours may have names that no key of ours has.
                if let Ok(key) = key.parse() {
                    found.push(listed(key, object));
                }
            }
            if !answer.is_truncated().unwrap_or(false) || answer.contents().is_empty() {
                break;
            }
        }
        Ok(found)
    }

    async fn remove_object(&self, key: &Key) -> Result<(), StoreError> {
        self.shared.needs_credentials("delete", Some(key))?;
        let removed = self.shared.retried(async || {
            let request = self.shared.client.delete_object().bucket(self.bucket()).key(key.as_str()).send();
            self.shared.send("delete", Some(key), 0, request).await
        });
        match removed.await {
            Ok(_) => Ok(()),
            Err(failed) if failed.error.is_not_found() => Ok(()),
            Err(failed) => Err(failed.error),
        }
    }

    async fn read_all(&self, key: &Key, range: Option<ByteRange>) -> Result<Option<Bytes>, StoreError> {
        let options = GetOptions { range, ..GetOptions::default() };
        let read = self.shared.read(key, async || {
            let mut found = self.get_once(key, &options).await?;
            let mut whole = BytesMut::new();
            let cut = |error| Failed { error, happened: false, status: None };
            while let Some(piece) = found.body.try_next().await.map_err(cut)? {
                whole.extend_from_slice(&piece);
            }
            Ok(whole.freeze())
        });
        optional(read.await)
    }
}

/// What a listing tells of an object.
fn listed(key: Key, object: &Object) -> Listed {
    let size = object.size().and_then(|n| u64::try_from(n).ok()).unwrap_or(0);
    Listed { key, size, etag: bare_etag(object.e_tag()), version: None }
}

/// `None` for what is not there.
fn optional<T>(result: Result<T, Failed>) -> Result<Option<T>, StoreError> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(failed) if failed.error.is_not_found() => Ok(None),
        Err(failed) => Err(failed.error),
    }
}

fn quoted_etag(options: &GetOptions) -> Option<String> {
    options.etag.as_ref().map(|etag| format!("\"{etag}\""))
}

#[async_trait]
impl Filer for S3Store {
    async fn create(&self, key: &Key, bytes: Bytes) -> Result<Created, CreateError> {
        self.shared.needs_credentials("create", Some(key)).map_err(CreateError::DidNotHappen)?;
        self.check_key("create", key).await.map_err(CreateError::DidNotHappen)?;
        let (size, checksum) = (bytes.len() as u64, crc32c(std::slice::from_ref(&bytes)));
        let request = self
            .shared
            .client
            .put_object()
            .bucket(self.bucket())
            .key(key.as_str())
            .if_none_match("*")
            .content_length(size as i64)
            .content_type("application/octet-stream")
            .set_server_side_encryption(self.shared.encryption())
            .set_ssekms_key_id(self.shared.kms_key())
            .set_checksum_crc32_c(self.shared.checksum(checksum))
            .body(payload(&[bytes], None))
            .customize()
            .disable_payload_signing()
            .send();
        match self.shared.send("create", Some(key), size, request).await {
            Ok(answer) => {
                self.shared.check("create", key, checksum, answer.checksum_crc32_c())?;
                Ok(Created::New)
            }
            Err(failed) if failed.status == Some(412) => Ok(Created::Exists),
            Err(failed) => Err(failed.into()),
        }
    }

    async fn read(&self, key: &Key) -> Result<Option<Bytes>, StoreError> {
        self.read_all(key, None).await
    }

    async fn read_range(&self, key: &Key, range: ByteRange) -> Result<Option<Bytes>, StoreError> {
        self.read_all(key, Some(range)).await
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

    async fn put_telling(
        &self,
        key: &Key,
        body: Vec<Bytes>,
        checksum: Crc32c,
        attributes: &Attributes,
        sent: &Sent,
    ) -> Result<Stored, CreateError> {
        self.check_key("put", key).await.map_err(CreateError::DidNotHappen)?;
        // Repeating is safe: the same bytes under the same key.
        let put = self.shared.retried(|| self.put_once(key, &body, checksum, attributes, sent)).await;
        // An empty body is never asked for.
        sent.tell();
        match put {
            Err(failed) if failed.status == Some(412) && self.shared.grants.is_some() => {
                Ok(self.stored_before(key, &body, failed).await?)
            }
            stored => Ok(stored?),
        }
    }

    async fn start_multipart(
        &self,
        key: &Key,
        attributes: &Attributes,
    ) -> Result<Box<dyn MultipartUpload>, StoreError> {
        self.check_key("start multipart upload", key).await?;
        Ok(Box::new(Multipart::start(&self.shared, key, attributes).await?))
    }

    async fn resume_multipart(&self, key: &Key, upload: &str) -> Result<Box<dyn MultipartUpload>, StoreError> {
        Ok(Box::new(Multipart::resume(&self.shared, key, upload).await?))
    }

    async fn get(&self, key: &Key, options: &GetOptions) -> Result<Found, StoreError> {
        self.shared.read(key, || self.get_once(key, options)).await.map_err(|failed| failed.error)
    }

    async fn head(&self, key: &Key) -> Result<Option<ObjectMeta>, StoreError> {
        let options = GetOptions::default();
        optional(self.shared.read(key, || self.head_once(key, &options)).await)
    }

    async fn delete(&self, key: &Key) -> Result<(), StoreError> {
        self.remove_object(key).await
    }

    async fn list_blobs(&self, prefix: &str, after: Option<&Key>, limit: usize) -> Result<Vec<Listed>, StoreError> {
        if self.is_versioned().await
            && let Some(listed) = self.list_newest(prefix, after, limit).await?
        {
            return Ok(listed);
        }
        self.list_all(prefix, after, limit).await
    }
}
