//! How a binary runs a broker.

use async_trait::async_trait;
use refstream_core::{Settings, StopReason};
use refstream_filer_adapter::{Filer, Runtime, probe::ProbeError};
use refstream_format::{
    cluster_log::{SealedSegment, TopicState},
    manifest::Manifest,
};
use refstream_types::{Layout, SegmentNumber, StoreName};
use std::{fmt::Debug, net::SocketAddr, sync::Arc};
use thiserror::Error;

/// What a compaction did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compacted {
    /// Segments whose records are now in files that the manifest names: they may be closed.
    pub segments: Vec<SegmentNumber>,
    /// URIs of files written.
    pub files: Vec<String>,
    /// Rows written.
    pub rows: u64,
    /// Bytes written.
    pub bytes: u64,
}

/// A compaction failed; what was committed before stands, and trying again is safe.
#[derive(Clone, Debug, Error)]
#[error("{message}")]
pub struct CompactorError {
    /// What, where, what to do.
    pub message: String,
    /// Whether it may succeed later.
    pub retryable: bool,
}

/// Turns sealed segments into files. Filled in by the binary, so that Arrow stays out of this crate.
#[async_trait]
pub trait Compactor: Debug + Send + Sync + 'static {
    /// Puts these sealed segments of a topic (ascending; maybe none) into files and commits them to its manifest; then publishes
    /// files under `data/` where they are due, or all of them with `publish`.
    ///
    /// # Errors
    /// When the store failed or the manifest could not be committed.
    async fn compact(
        &self,
        topic: &TopicState,
        segments: &[SealedSegment],
        publish: bool,
    ) -> Result<Compacted, CompactorError>;

    /// The topic's newest manifest.
    ///
    /// # Errors
    /// When the store failed.
    async fn manifest(&self, topic: &TopicState) -> Result<Option<Manifest>, CompactorError>;
}

/// A store as clients are told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreDescription {
    /// Its name.
    pub name: StoreName,
    /// What clients need to open it.
    pub description: refstream_proto::v1::Store,
}

/// How to run a broker.
#[derive(Debug)]
pub struct ServerConfig {
    /// Where gRPC listens.
    pub listen: SocketAddr,
    /// Where HTTP (health, metrics) listens.
    pub http: SocketAddr,
    /// How clients reach gRPC; `None`: at the address it got.
    pub advertise: Option<String>,
    /// Settings of the core.
    pub core: Settings,
    /// The metadata's store.
    pub filer: Arc<dyn Filer>,
    /// Where in it.
    pub layout: Layout,
    /// Stores that references may name; the first is the default one.
    pub stores: Vec<StoreDescription>,
    /// The name of the store that holds metadata and files.
    pub metadata_store: StoreName,
    /// Committed batches kept in memory for readers, in bytes.
    pub read_cache_bytes: usize,
    /// Files from segments.
    pub compactor: Option<Arc<dyn Compactor>>,
    /// Time and randomness.
    pub runtime: Arc<dyn Runtime>,
}

/// Why a broker did not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// A port is in use or not permitted.
    #[error("cannot listen on {address}: {error}; is another broker running? choose another address with --{flag}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The flag that changes it.
        flag: &'static str,
        /// What the system said.
        error: std::io::Error,
    },
    /// The store is unfit.
    #[error(transparent)]
    Probe(#[from] ProbeError),
}

/// A running broker.
#[derive(Debug)]
pub struct Server {}

#[allow(unused_variables)]
impl Server {
    /// Probes the store, listens, and starts the core. Returns once both ports listen; `/readyz` tells when it serves.
    ///
    /// # Errors
    /// When a port cannot be had or the store is unfit.
    pub async fn start(config: ServerConfig) -> Result<Self, StartError> {
        todo!()
    }
    /// Where gRPC listens.
    pub fn grpc_address(&self) -> SocketAddr {
        todo!()
    }
    /// Where HTTP listens.
    pub fn http_address(&self) -> SocketAddr {
        todo!()
    }
    /// Waits until it serves, or says why it stopped before.
    ///
    /// # Errors
    /// When it stopped.
    pub async fn serving(&self) -> Result<(), StopReason> {
        todo!()
    }
    /// Waits until it stops by itself.
    pub async fn stopped(&self) -> StopReason {
        todo!()
    }
    /// Drains: refuses new appends, seals and commits, answers what is in flight, closes the ports.
    pub async fn drain(self) -> StopReason {
        todo!()
    }
}
