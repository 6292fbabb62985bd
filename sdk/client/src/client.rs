//! The connection to a deployment.

use crate::{
    AlterTopic, Backfill, BackfillError, BackfillOptions, BrokerDescription, CallError, ClusterChanges, ConnectError,
    ConsumeError, Consumer, ConsumerOptions, Delivery, FetchError, Payload, ProduceError, Producer, ProducerOptions,
    Segment, TopicDescription, TopicError, UnreadableAuthorities, UploadError, UploadOptions, Uploader,
    broker::{Bearer, Brokers, Patience},
    deployment::Deployment,
    records,
    topics::calls,
};
use refstream_filer_adapter::{BlobStore, Runtime, TokioRuntime};
use refstream_proto::v1::{self, records_client::RecordsClient};
use refstream_types::{Offset, PartitionId, Reference, StoreName, Timestamp, TopicConfig, TopicFolder, TopicName};
use std::{path::PathBuf, sync::Arc, time::Duration};

/// How long to look for a broker when nothing is said.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
/// What clients call themselves.
const SOFTWARE: &str = concat!("refstream-rust/", env!("CARGO_PKG_VERSION"));

/// Keys for a store that has no other source of credentials.
#[derive(Clone)]
pub struct StoreCredentials {
    /// The access key.
    pub access_key: String,
    /// The secret key; never printed.
    pub secret_key: String,
}

impl std::fmt::Debug for StoreCredentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreCredentials").field("access_key", &self.access_key).finish_non_exhaustive()
    }
}

/// A token that a broker takes. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// A token as it was given out.
    pub fn new(token: impl Into<String>) -> Self {
        Self(token.into())
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

/// How a client reaches stores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StoreAccess {
    /// With credentials of its own where it has some, by grants of the broker where it has none.
    #[default]
    Auto,
    /// With credentials of its own, never by grants.
    Own,
    /// By grants of the broker, whatever credentials there are.
    Grants,
}

/// How to connect.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// A broker, for example `http://127.0.0.1:7400`, or several, separated by commas: any of them leads to the others.
    pub endpoint: String,
    /// How long to keep trying to reach a broker before giving up, at connect and in every retried call.
    pub timeout: Duration,
    /// Credentials for the stores. `None`: the embedded store's own file where the broker is on loopback, else the AWS chain.
    pub credentials: Option<StoreCredentials>,
    /// The token that brokers ask for, where they do; never printed.
    pub token: Option<Token>,
    /// Certificates (PEM) of authorities to trust beside the system's, for brokers with TLS.
    pub ca_file: Option<PathBuf>,
    /// How stores are reached.
    pub store_access: StoreAccess,
    /// Replaces how stores are opened; for tests and stores that the broker does not describe.
    pub stores: Vec<(StoreName, Arc<dyn BlobStore>)>,
    /// Time and randomness.
    pub runtime: Arc<dyn Runtime>,
}

/// A connection to a deployment. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Client {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    brokers: Arc<Brokers>,
    deployment: Arc<Deployment>,
    runtime: Arc<dyn Runtime>,
}

impl ClientOptions {
    /// Options for a broker at `endpoint`, with defaults: a timeout of 30 s.
    pub fn new(endpoint: impl Into<String>) -> Self {
        Self {
            endpoint: endpoint.into(),
            timeout: DEFAULT_TIMEOUT,
            credentials: None,
            token: None,
            ca_file: None,
            store_access: StoreAccess::default(),
            stores: Vec::new(),
            runtime: Arc::new(TokioRuntime::new()),
        }
    }
}

impl Client {
    /// Connects with default options.
    ///
    /// # Errors
    /// When no broker answers there in time, or it is none of ours.
    pub async fn connect(endpoint: impl Into<String>) -> Result<Self, ConnectError> {
        Self::connect_with(ClientOptions::new(endpoint)).await
    }
    /// Connects. Stores are opened when they are first needed, so a store that cannot be opened disturbs no other operation.
    ///
    /// # Errors
    /// When no broker answers there in time, or it is none of ours.
    pub async fn connect_with(options: ClientOptions) -> Result<Self, ConnectError> {
        let ClientOptions { endpoint, timeout, credentials, token, ca_file, store_access, stores, runtime } = options;
        let bearer = Bearer::new(token.as_ref().map(|token| token.0.as_str()))?;
        let authorities = ca_file.map(|path| match std::fs::read(&path) {
            Ok(pem) => Ok(pem),
            Err(error) => Err(UnreadableAuthorities { path, why: error.to_string() }),
        });
        let authorities = authorities.transpose()?;
        let brokers = Arc::new(Brokers::new(&endpoint, timeout, bearer, authorities, Arc::clone(&runtime))?);
        let request = v1::DescribeDeploymentRequest { client_software: SOFTWARE.into() };
        let answer = brokers
            .call(Patience::Timeout, |channel| {
                let request = request.clone();
                async move { RecordsClient::new(channel).describe_deployment(request).await }
            })
            .await?;
        brokers.learn(&answer.brokers);
        let deployment = Deployment::new(&brokers, answer, (store_access, credentials), stores, Arc::clone(&runtime))
            .map_err(CallError::Answer)?;
        Ok(Self { inner: Arc::new(Inner { brokers, deployment: Arc::new(deployment), runtime }) })
    }
    /// A client of what is known already.
    #[cfg(test)]
    pub(crate) fn of(brokers: Arc<Brokers>, deployment: Deployment, runtime: Arc<dyn Runtime>) -> Self {
        Self { inner: Arc::new(Inner { brokers, deployment: Arc::new(deployment), runtime }) }
    }
    pub(crate) fn brokers(&self) -> &Arc<Brokers> {
        &self.inner.brokers
    }
    pub(crate) fn deployment(&self) -> &Arc<Deployment> {
        &self.inner.deployment
    }
    /// Its time and randomness.
    pub fn runtime(&self) -> &Arc<dyn Runtime> {
        &self.inner.runtime
    }
    /// How long it keeps trying to reach a broker.
    pub fn timeout(&self) -> Duration {
        self.brokers().timeout()
    }
    /// Creates a topic.
    ///
    /// # Errors
    /// When it exists or a setting is refused.
    pub async fn create_topic(&self, name: &TopicName, config: &TopicConfig) -> Result<TopicDescription, TopicError> {
        calls::create(self.brokers(), name, config).await
    }
    /// A topic's settings and offsets.
    ///
    /// # Errors
    /// When it does not exist.
    pub async fn describe_topic(&self, name: &TopicName) -> Result<TopicDescription, TopicError> {
        calls::describe(self.brokers(), name).await
    }
    /// A topic without its offsets: any broker answers for it, also while some partitions are served by nobody.
    ///
    /// # Errors
    /// When it does not exist.
    pub async fn topic_settings(&self, name: &TopicName) -> Result<TopicDescription, TopicError> {
        calls::settings(self.brokers(), name).await
    }
    /// All topics, by name.
    ///
    /// # Errors
    /// When no broker answers.
    pub async fn list_topics(&self) -> Result<Vec<TopicDescription>, TopicError> {
        calls::list(self.brokers()).await
    }
    /// Changes settings.
    ///
    /// # Errors
    /// When the topic does not exist or a setting is refused.
    pub async fn alter_topic(&self, name: &TopicName, change: AlterTopic) -> Result<TopicDescription, TopicError> {
        calls::alter(self.brokers(), name, &change).await
    }
    /// Deletes a topic.
    ///
    /// # Errors
    /// When it does not exist.
    pub async fn delete_topic(&self, name: &TopicName) -> Result<(), TopicError> {
        calls::delete(self.brokers(), name).await
    }
    /// A topic's segments, ascending, closed ones included.
    ///
    /// # Errors
    /// When the topic does not exist.
    pub async fn segments(&self, name: &TopicName) -> Result<Vec<Segment>, TopicError> {
        calls::segments(self.brokers(), name).await
    }
    /// The brokers of the cluster, ascending by epoch.
    ///
    /// # Errors
    /// When no broker answers.
    pub async fn cluster(&self) -> Result<Vec<BrokerDescription>, CallError> {
        calls::cluster(self.brokers(), None).await.map(|(_, brokers)| brokers)
    }
    /// The brokers of the cluster, and what becomes of them.
    pub fn cluster_changes(&self) -> ClusterChanges {
        ClusterChanges::new(Arc::clone(self.brokers()))
    }
    /// Asks the broker at `endpoint` to hand over what it serves, and to end. Returns once it has begun.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn drain(&self, endpoint: &str) -> Result<(), CallError> {
        calls::drain(self.brokers(), endpoint).await
    }
    /// Seals open segments that hold records; returns their numbers.
    ///
    /// # Errors
    /// When the topic does not exist.
    pub async fn seal(&self, name: &TopicName) -> Result<Vec<u64>, TopicError> {
        calls::seal(self.brokers(), name).await
    }
    /// Compacts sealed segments into files; with `publish` all files go under `data/` whatever their size. Returns the number of
    /// segments and the files written.
    ///
    /// # Errors
    /// When the topic does not exist or the broker has no compactor.
    pub async fn compact(&self, name: &TopicName, publish: bool) -> Result<(u32, Vec<String>), TopicError> {
        calls::compact(self.brokers(), name, publish).await
    }
    /// The offset of the first record at or after `at` (append time), per partition; the end, where no record is that young.
    ///
    /// # Errors
    /// When the topic does not exist.
    pub async fn offsets_at(&self, name: &TopicName, at: Timestamp) -> Result<Vec<Offset>, TopicError> {
        let topic = calls::settings(self.brokers(), name).await?;
        let (_, offsets) = records::list_offsets(self.brokers(), topic.id, Some(at))
            .await
            .map_err(|error| TopicError::of(name, error))?;
        Ok(offsets)
    }
    /// An uploader of payloads for a topic, to the topic's store.
    ///
    /// # Errors
    /// When the topic does not exist or its store cannot be opened.
    pub async fn uploader(&self, topic: &TopicName, options: UploadOptions) -> Result<Uploader, UploadError> {
        let description = self.topic_settings(topic).await?;
        self.uploader_to(&description, None, options)
    }
    /// An uploader for a topic that is known already, to `store` or the topic's own.
    pub(crate) fn uploader_to(
        &self,
        topic: &TopicDescription,
        store: Option<&StoreName>,
        options: UploadOptions,
    ) -> Result<Uploader, UploadError> {
        let deployment = self.deployment();
        let name = store.or(topic.config.store.as_ref()).unwrap_or(&deployment.default_store);
        let store = deployment.store(name)?;
        let folder = TopicFolder::new(&topic.name, topic.id);
        Ok(Uploader::new(name.clone(), store, deployment.layout.clone(), folder, Arc::clone(self.runtime()), options))
    }
    /// A producer to a topic.
    ///
    /// # Errors
    /// When the topic does not exist.
    pub async fn producer(&self, topic: &TopicName, options: ProducerOptions) -> Result<Producer, ProduceError> {
        Producer::open(self, topic, options, None).await
    }
    /// A consumer of a topic.
    ///
    /// # Errors
    /// When the topic does not exist or the start lies outside.
    pub async fn consumer(&self, topic: &TopicName, options: ConsumerOptions) -> Result<Consumer, ConsumeError> {
        Consumer::open(self, topic, options).await
    }
    /// One record.
    ///
    /// # Errors
    /// When there is no such record.
    pub async fn record(
        &self,
        topic: &TopicName,
        partition: PartitionId,
        offset: Offset,
    ) -> Result<Delivery, ConsumeError> {
        Consumer::one(self, topic, partition, offset).await
    }
    /// A payload to be fetched and verified. With [`Payload::of`] its errors also name the record.
    pub fn payload(&self, reference: &Reference) -> Payload {
        let store = self.deployment().store(&reference.store);
        Payload::new(reference.clone(), store, Arc::clone(self.runtime()))
    }
    /// A backfill of files into a topic.
    ///
    /// # Errors
    /// When a pattern is no glob, the topic does not exist, or its store cannot be opened.
    pub async fn backfill(&self, topic: &TopicName, options: BackfillOptions) -> Result<Backfill, BackfillError> {
        Backfill::open(self, topic, options).await
    }
    /// A configured store by name.
    ///
    /// # Errors
    /// When it is not configured or cannot be opened.
    pub fn store(&self, name: &StoreName) -> Result<Arc<dyn BlobStore>, FetchError> {
        Ok(self.deployment().store(name)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorClass;

    #[tokio::test]
    async fn certificates_that_cannot_be_read_are_named() {
        let options = ClientOptions {
            ca_file: Some("/nowhere/ca.pem".into()),
            ..ClientOptions::new("https://broker.example:7400")
        };
        let error = Client::connect_with(options).await.unwrap_err();
        assert_eq!(error.class(), ErrorClass::Invalid);
        let text = error.to_string();
        assert!(text.contains("/nowhere/ca.pem") && text.contains("ca_file"), "{text}");
        assert!(!text.contains("broker.example"), "the endpoint is right: {text}");
    }
}
