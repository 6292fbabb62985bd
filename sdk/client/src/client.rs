//! The connection to a deployment.

use crate::{
    AlterTopic, Backfill, BackfillOptions, ConnectError, ConsumeError, Consumer, ConsumerOptions, Delivery, FetchError,
    Payload, ProduceError, Producer, ProducerOptions, Segment, TopicDescription, TopicError, UploadError,
    UploadOptions, Uploader,
};
use refstream_filer_adapter::{BlobStore, Runtime};
use refstream_types::{Offset, PartitionId, Reference, StoreName, Timestamp, TopicConfig, TopicName};
use std::{sync::Arc, time::Duration};

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

/// How to connect.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// A broker, for example `http://127.0.0.1:7400`.
    pub endpoint: String,
    /// How long to keep trying to reach a broker before giving up, at connect and in every retried call.
    pub timeout: Duration,
    /// Credentials for the stores. `None`: the embedded store's own file where the broker is on loopback, else the AWS chain.
    pub credentials: Option<StoreCredentials>,
    /// Replaces how stores are opened; for tests and stores that the broker does not describe.
    pub stores: Vec<(StoreName, Arc<dyn BlobStore>)>,
    /// Time and randomness.
    pub runtime: Arc<dyn Runtime>,
}

/// A connection to a deployment. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Client {}

impl ClientOptions {
    /// Options for a broker at `endpoint`, with defaults: a timeout of 30 s.
    pub fn new(endpoint: impl Into<String>) -> Self {
        let _ = endpoint.into();
        todo!()
    }
}

#[allow(unused_variables)]
impl Client {
    /// Connects with default options.
    ///
    /// # Errors
    /// When no broker answers there in time, or it is none of ours.
    pub async fn connect(endpoint: impl Into<String>) -> Result<Self, ConnectError> {
        Self::connect_with(ClientOptions::new(endpoint)).await
    }
    /// Connects.
    ///
    /// # Errors
    /// When no broker answers there in time, or it is none of ours.
    pub async fn connect_with(options: ClientOptions) -> Result<Self, ConnectError> {
        todo!()
    }
    /// Creates a topic.
    ///
    /// # Errors
    /// When it exists or a setting is refused.
    pub async fn create_topic(&self, name: &TopicName, config: &TopicConfig) -> Result<TopicDescription, TopicError> {
        todo!()
    }
    /// A topic's settings and offsets.
    ///
    /// # Errors
    /// When it does not exist.
    pub async fn describe_topic(&self, name: &TopicName) -> Result<TopicDescription, TopicError> {
        todo!()
    }
    /// All topics, by name.
    ///
    /// # Errors
    /// When no broker answers.
    pub async fn list_topics(&self) -> Result<Vec<TopicDescription>, TopicError> {
        todo!()
    }
    /// Changes settings.
    ///
    /// # Errors
    /// When the topic does not exist or a setting is refused.
    pub async fn alter_topic(&self, name: &TopicName, change: AlterTopic) -> Result<TopicDescription, TopicError> {
        todo!()
    }
    /// Deletes a topic.
    ///
    /// # Errors
    /// When it does not exist.
    pub async fn delete_topic(&self, name: &TopicName) -> Result<(), TopicError> {
        todo!()
    }
    /// A topic's segments, ascending, closed ones included.
    ///
    /// # Errors
    /// When the topic does not exist.
    pub async fn segments(&self, name: &TopicName) -> Result<Vec<Segment>, TopicError> {
        todo!()
    }
    /// Seals open segments that hold records; returns their numbers.
    ///
    /// # Errors
    /// When the topic does not exist.
    pub async fn seal(&self, name: &TopicName) -> Result<Vec<u64>, TopicError> {
        todo!()
    }
    /// Compacts sealed segments into files; with `publish` all files go under `data/` whatever their size. Returns the number of
    /// segments and the files written.
    ///
    /// # Errors
    /// When the topic does not exist or the broker has no compactor.
    pub async fn compact(&self, name: &TopicName, publish: bool) -> Result<(u32, Vec<String>), TopicError> {
        todo!()
    }
    /// The offset of the first record at or after `at` (append time), per partition.
    ///
    /// # Errors
    /// When the topic does not exist.
    pub async fn offsets_at(&self, name: &TopicName, at: Timestamp) -> Result<Vec<Offset>, TopicError> {
        todo!()
    }
    /// An uploader of payloads for a topic.
    ///
    /// # Errors
    /// When the topic does not exist or its store cannot be opened.
    pub async fn uploader(&self, topic: &TopicName, options: UploadOptions) -> Result<Uploader, UploadError> {
        todo!()
    }
    /// A producer to a topic.
    ///
    /// # Errors
    /// When the topic does not exist.
    pub async fn producer(&self, topic: &TopicName, options: ProducerOptions) -> Result<Producer, ProduceError> {
        todo!()
    }
    /// A consumer of a topic.
    ///
    /// # Errors
    /// When the topic does not exist or the start lies outside.
    pub async fn consumer(&self, topic: &TopicName, options: ConsumerOptions) -> Result<Consumer, ConsumeError> {
        todo!()
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
        todo!()
    }
    /// A payload to be fetched and verified.
    pub fn payload(&self, reference: &Reference) -> Payload {
        todo!()
    }
    /// A backfill of files into a topic.
    ///
    /// # Errors
    /// When the topic does not exist or its store cannot be opened.
    pub async fn backfill(
        &self,
        topic: &TopicName,
        options: BackfillOptions,
    ) -> Result<Backfill, crate::BackfillError> {
        todo!()
    }
    /// A configured store by name.
    ///
    /// # Errors
    /// When it is not configured or cannot be opened.
    pub fn store(&self, name: &StoreName) -> Result<Arc<dyn BlobStore>, FetchError> {
        todo!()
    }
}
