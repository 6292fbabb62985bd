//! How a binary runs a broker.

use crate::Tokens;
use async_trait::async_trait;
use refstream_core::Settings;
use refstream_filer_adapter::{BlobStore, Filer, Runtime, grant::Grants, probe::ProbeError};
use refstream_format::{
    cluster_log::{SealedSegment, TopicState},
    manifest::Manifest,
};
use refstream_types::{Epoch, Layout, SegmentNumber, StoreName};
use std::{
    collections::BTreeMap,
    fmt::{self, Debug},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};
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
    /// Whether something that is stored is damaged or missing.
    pub damaged: bool,
}

/// Turns sealed segments into files. Filled in by the binary, so that Arrow stays out of this crate.
#[async_trait]
pub trait Compactor: Debug + Send + Sync + 'static {
    /// Puts these sealed segments of a topic (ascending; maybe none) into files and commits them to its manifest; then publishes
    /// files under `data/` where they are due, or all of them with `publish`. Never called twice at once for one topic.
    ///
    /// Runs on the broker's own threads: what is heavy on the CPU belongs on blocking threads, or appends wait for it.
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

/// Settings of the shell around the core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerSettings {
    /// How often files that became due are published when nothing is sealed meanwhile. Each turn reads the manifests of topics that
    /// have unpublished files.
    pub publish_every: Duration,
    /// How long a closed segment is still served from its journal, so that readers in the midst of it get to its end.
    pub closed_grace: Duration,
    /// How long [`Server::drain`](crate::Server::drain) waits for the core, and then for connections to end.
    pub drain_timeout: Duration,
    /// A broker whose oldest operation on the store has been without success for this long is not ready.
    pub stuck_after: Duration,
    /// How long a start goes on trying to reach a store that is unavailable.
    pub store_patience: Duration,
}

impl Default for ServerSettings {
    fn default() -> Self {
        Self {
            publish_every: Duration::from_secs(30),
            closed_grace: Duration::from_secs(30),
            drain_timeout: Duration::from_secs(30),
            stuck_after: Duration::from_secs(5),
            store_patience: Duration::from_secs(120),
        }
    }
}

/// Who may call a broker, and what it signs for those who have no credentials of the stores.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// The tokens of which every call needs one; none: whoever reaches the broker may call it.
    pub tokens: Tokens,
    /// Who signs grants, by store; clients of the others need credentials.
    pub grants: BTreeMap<StoreName, Arc<dyn Grants>>,
    /// Key prefixes that grants to read are given for besides topics' own objects.
    pub read_prefixes: Vec<String>,
    /// The token with which this broker calls the others of its cluster, where they ask for one.
    pub peer_token: Option<PeerToken>,
    /// Authorities (PEM) that are trusted beside the system's when the others are called by TLS.
    pub peer_authorities: Option<Vec<u8>>,
    /// The stores in which references of clients that upload by grants are looked up before they are taken; empty: none are looked up.
    pub receipts: BTreeMap<StoreName, Arc<dyn BlobStore>>,
    /// gRPC is TLS with this identity; `None`: it is plain, and listens on loopback only.
    pub tls: Option<TlsIdentity>,
}

/// A token that is not printed.
#[derive(Clone)]
pub struct PeerToken(pub String);

impl fmt::Debug for PeerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PeerToken")
    }
}

/// A server's certificate, with those that lead to an authority, and its key; both PEM.
#[derive(Clone)]
pub struct TlsIdentity {
    /// The chain of certificates, the server's own first.
    pub certificates: Vec<u8>,
    /// The key of the first certificate.
    pub key: Vec<u8>,
}

impl fmt::Debug for TlsIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsIdentity")
    }
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
    /// The last epoch of an earlier broker in this process, if there was one: see [`StopReason::AddressTaken`](refstream_core::StopReason::AddressTaken).
    pub former: Option<Epoch>,
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
    /// Who may call, and what is signed for those who have no credentials of the stores.
    pub access: Access,
    /// Committed batches kept in memory for readers, in bytes.
    pub read_cache_bytes: usize,
    /// Files from segments.
    pub compactor: Option<Arc<dyn Compactor>>,
    /// Time and randomness.
    pub runtime: Arc<dyn Runtime>,
    /// Settings of the shell.
    pub settings: ServerSettings,
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
    /// The address can be reached from other machines, which needs TLS and a token.
    #[error(
        "refusing to listen on {address}, which --{flag} gave: it is no loopback address, and listening beyond loopback requires TLS and a \
         token: {missing}"
    )]
    NotLoopback {
        /// The address.
        address: SocketAddr,
        /// The flag that changes it.
        flag: &'static str,
        /// What is missing, and what to do.
        missing: &'static str,
    },
    /// Clients could not tell where to reach it.
    #[error(
        "listening on {address} means all interfaces, and clients must be told one address: set broker.advertise to https://HOST:PORT, with a host \
         that the certificate names"
    )]
    NothingToAdvertise {
        /// The address.
        address: SocketAddr,
    },
    /// The certificate or its key cannot be used.
    #[error(
        "the TLS certificate or its key cannot be used (PEM is needed, the key that of the first certificate): {why}"
    )]
    Tls {
        /// What is wrong.
        why: String,
    },
    /// The store is unfit.
    #[error(transparent)]
    Probe(#[from] ProbeError),
}
