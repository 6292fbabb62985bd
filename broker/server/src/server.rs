//! A running broker.
//!
//! Start: both addresses are checked and bound, the store is probed (once it can be reached), the core starts; the ports answer while it recovers (reads and
//! appends with "starting"), so that health checks can tell why it does not serve yet.
//!
//! Drain: the core refuses new appends, hands over, commits and answers what it has. Meanwhile the ports go on answering: clients are told
//! where to go on, and to the other brokers a port that refuses is a sign of death. Then no new connections are taken, the streams are ended,
//! with every response sent, and the ports close. Dropping a [`Server`] instead ends it as a crash would: nothing is sealed, nobody is
//! answered, and creates under way may still land in the store.

use crate::{
    Access, ServerConfig, StartError, TlsIdentity,
    auth::Door,
    compaction::Compaction,
    connection::Connection,
    core_task::{CoreHandle, CoreTask},
    http,
    metrics::Metrics,
    node::{Node, SOFTWARE},
    peers::Peers,
    reader::Reader,
    receipts::Receipts,
    rpc::{MAX_CALL_BYTES, Services},
};
use futures::stream;
use refstream_core::{Identity, Input, OperationError, Phase, Reply, StopReason};
use refstream_filer_adapter::{
    Runtime,
    probe::{self, ProbeError},
};
use refstream_journal::Metadata;
use refstream_proto::v1::{
    cluster_server::ClusterServer, grants_server::GrantsServer, peers_server::PeersServer,
    records_server::RecordsServer, segments_server::SegmentsServer, topics_server::TopicsServer,
};
use refstream_types::Epoch;
use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::sync::CancellationToken;
use tonic::service::interceptor::InterceptedService;

/// Bytes that a client may send on one stream, and on one connection, before the broker has taken them: enough for hundreds
/// of MB/s at a few milliseconds of delay.
const STREAM_WINDOW: u32 = 8 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;
/// Larger frames cost less each; HTTP/2's default is 16 KiB.
const FRAME: u32 = 256 << 10;
/// Calls that one connection may have under way; tails and appends last.
const CALLS: u32 = 4_096;
/// Silent connections are asked this often whether they live, and dropped after as long.
const KEEPALIVE: Duration = Duration::from_secs(20);

/// Between attempts to reach the store at the start, doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A running broker.
#[derive(Debug)]
pub struct Server {
    grpc_address: SocketAddr,
    scheme: &'static str,
    http_address: SocketAddr,
    core: CoreHandle,
    runtime: Arc<dyn Runtime>,
    drain_timeout: Duration,
    /// A client wants it to drain.
    drain_asked: CancellationToken,
    /// No new connections.
    refusing: CancellationToken,
    /// Streams end.
    closing: CancellationToken,
    /// The HTTP port closes.
    over: CancellationToken,
    grpc: Task,
    http: Task,
    _core_task: Task,
    _compaction: Task,
    _peers: Task,
}

/// A task that ends with its owner.
#[derive(Debug)]
struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn bind(address: SocketAddr, flag: &'static str) -> Result<(TcpListener, SocketAddr), StartError> {
    let failed = |error| StartError::Listen { address, flag, error };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok((listener, address))
}

/// Other machines are let in by TLS and a token only; and only to gRPC.
fn check_addresses(config: &ServerConfig) -> Result<(), StartError> {
    let refuse = |address, flag, missing| Err(StartError::NotLoopback { address, flag, missing });
    let (listen, http, access) = (config.listen, config.http, &config.access);
    if !http.ip().is_loopback() {
        let missing = "metrics and health are plain HTTP and ask for no token; let them listen on loopback, such as 127.0.0.1:7401, and put a proxy \
                       that has TLS before them where others must reach them";
        return refuse(http, "http", missing);
    }
    if listen.ip().is_loopback() {
        return Ok(());
    }
    if access.tls.is_none() {
        return refuse(
            listen,
            "listen",
            "set broker.tls_certificate and broker.tls_key, or use a loopback address such as 127.0.0.1",
        );
    }
    if access.tokens.is_empty() {
        return refuse(listen, "listen", "make one with refstream token NAME and put its hash under [auth.tokens]");
    }
    if listen.ip().is_unspecified() && config.advertise.is_none() {
        return Err(StartError::NothingToAdvertise { address: listen });
    }
    Ok(())
}

fn grpc_builder(tls: Option<&TlsIdentity>) -> Result<tonic::transport::Server, StartError> {
    let builder = tonic::transport::Server::builder()
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME)
        .max_concurrent_streams(CALLS)
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE));
    let Some(TlsIdentity { certificates, key }) = tls else { return Ok(builder) };
    let identity = tonic::transport::Identity::from_pem(certificates, key);
    let config = tonic::transport::ServerTlsConfig::new().identity(identity);
    builder.tls_config(config).map_err(|error| {
        let why = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
        StartError::Tls { why }
    })
}

/// Probes the metadata's store, again and again while it is unavailable: a broker that starts before its store waits for it.
async fn probe(config: &ServerConfig) -> Result<(), StartError> {
    let runtime = &*config.runtime;
    let began = runtime.now();
    let mut pause = FIRST_PAUSE;
    loop {
        match probe::probe(&*config.filer, runtime, &config.layout).await {
            Err(ProbeError::Store(error))
                if error.is_retryable() && runtime.now().saturating_sub(began) < config.settings.store_patience =>
            {
                tracing::warn!(%error, "the store cannot be reached yet; trying again");
                runtime.sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            probed => return Ok(probed?),
        }
    }
}

impl Server {
    /// Probes the store, listens, and starts the core. Returns once both ports listen; `/readyz` tells when it serves.
    ///
    /// # Errors
    /// When a port cannot be had or the store is unfit.
    pub async fn start(config: ServerConfig) -> Result<Self, StartError> {
        check_addresses(&config)?;
        let builder = grpc_builder(config.access.tls.as_ref())?;
        let (grpc_listener, grpc_address) = bind(config.listen, "listen").await?;
        let (http_listener, http_address) = bind(config.http, "http").await?;
        probe(&config).await?;
        let runtime = config.runtime;
        let Access { tokens, grants, read_prefixes, peer_token, peer_authorities, receipts, tls } = config.access;
        let death_after = config.core.death_after;
        let metrics = Arc::new(Metrics::new());
        let metadata = Metadata::new(Arc::clone(&config.filer), config.layout.clone());
        let reader = Arc::new(Reader::new(
            metadata.clone(),
            Arc::clone(&runtime),
            Arc::clone(&metrics),
            config.read_cache_bytes,
            config.settings.closed_grace,
        ));
        let scheme = if tls.is_some() { "https" } else { "http" };
        let endpoint = config.advertise.unwrap_or_else(|| format!("{scheme}://{grpc_address}"));
        tracing::info!(software = SOFTWARE, %endpoint, http = %http_address, "the broker starts");
        let task = CoreTask {
            settings: config.core,
            identity: Identity { endpoint, former: config.former, software: SOFTWARE.into(), seed: seed(&*runtime) },
            runtime: Arc::clone(&runtime),
            filer: config.filer,
            layout: config.layout.clone(),
            reader: Arc::clone(&reader),
            metrics: Arc::clone(&metrics),
        };
        let (core, core_task) = task.spawn();
        let compaction = Arc::new(Compaction {
            compactor: config.compactor,
            core: core.clone(),
            reader: Arc::clone(&reader),
            metadata: metadata.clone(),
            metrics: Arc::clone(&metrics),
            runtime: Arc::clone(&runtime),
            publish_every: config.settings.publish_every,
            topics: std::sync::Mutex::default(),
        });
        let drain_asked = CancellationToken::new();
        let (refusing, closing, over) = (CancellationToken::new(), CancellationToken::new(), CancellationToken::new());
        let token = peer_token.as_ref().map(|token| token.0.as_str());
        let peers =
            Arc::new(Peers::new(core.clone(), Arc::clone(&runtime), metadata, token, peer_authorities, death_after));
        let following = tokio::spawn(Arc::clone(&peers).run(closing.clone()));
        let compacting = tokio::spawn(Arc::clone(&compaction).run(closing.clone()));
        let node = Arc::new(Node {
            core: core.clone(),
            reader,
            metrics,
            compaction,
            peers,
            stores: config.stores,
            metadata_store: config.metadata_store,
            grants,
            read_prefixes,
            receipts: Receipts::new(receipts),
            layout: config.layout,
            runtime: Arc::clone(&runtime),
            stuck_after: config.settings.stuck_after,
            drain_asked: drain_asked.clone(),
            closing: closing.clone(),
        });
        let door = Door::new(tokens, Arc::clone(&node.metrics));
        let grpc =
            tokio::spawn(serve_grpc(builder, grpc_listener, Services(Arc::clone(&node)), door, refusing.clone()));
        let http = tokio::spawn(serve_http(http_listener, node, over.clone()));
        Ok(Self {
            grpc_address,
            scheme,
            http_address,
            core,
            runtime,
            drain_timeout: config.settings.drain_timeout,
            drain_asked,
            refusing,
            closing,
            over,
            grpc: Task(grpc),
            http: Task(http),
            _core_task: Task(core_task),
            _compaction: Task(compacting),
            _peers: Task(following),
        })
    }

    /// Where gRPC listens.
    pub fn grpc_address(&self) -> SocketAddr {
        self.grpc_address
    }

    /// How URLs of gRPC begin: `https`, or `http` without TLS.
    pub fn grpc_scheme(&self) -> &'static str {
        self.scheme
    }

    /// Where HTTP listens.
    pub fn http_address(&self) -> SocketAddr {
        self.http_address
    }

    /// The epoch that it took, once it has.
    pub fn epoch(&self) -> Option<Epoch> {
        self.core.status.borrow().0.epoch
    }

    /// Waits until it serves, or says why it stopped before.
    ///
    /// # Errors
    /// When it stopped.
    pub async fn serving(&self) -> Result<(), StopReason> {
        let mut status = self.core.status.clone();
        tokio::select! {
            biased;
            reason = self.stopped() => Err(reason),
            Ok(_) = status.wait_for(|(status, _)| status.phase == Phase::Serving) => Ok(()),
        }
    }

    /// Waits until it stops by itself.
    pub async fn stopped(&self) -> StopReason {
        let mut stopped = self.core.stopped.clone();
        match stopped.wait_for(Option::is_some).await {
            Ok(reason) => reason.clone().unwrap_or(StopReason::Drained),
            Err(_) => StopReason::Cut("its tasks were cancelled".into()),
        }
    }

    /// Waits until a client wants it to drain; then [`Server::drain`] it.
    pub async fn asked_to_drain(&self) {
        self.drain_asked.cancelled().await;
    }

    /// Drains: refuses new appends, seals and commits, answers what is in flight, closes the ports. One that does not serve yet has nothing
    /// to hand over and ends at once, with [`StopReason::NotBegun`].
    pub async fn drain(mut self) -> StopReason {
        tracing::info!("draining");
        let deadline = self.runtime.sleep(self.drain_timeout);
        let drained = async {
            match self.core.call(|ticket| Input::Drain { ticket }).await {
                Ok(Reply::Drained(Err(OperationError::Unavailable(_)))) if !self.core.has_stopped() => {
                    StopReason::NotBegun
                }
                // Whatever the answer: it is over when the core has stopped.
                _ => self.stopped().await,
            }
        };
        let reason = tokio::select! {
            reason = drained => reason,
            () = deadline => {
                tracing::warn!("the broker could not seal and commit in time; what is committed is recovered by the next start");
                StopReason::Cut("the store did not let it seal and commit in time".into())
            }
        };
        self.refusing.cancel();
        self.closing.cancel();
        self.over.cancel();
        let (runtime, timeout) = (Arc::clone(&self.runtime), self.drain_timeout);
        tokio::select! {
            () = async {
                // Both end by themselves once their last connection has.
                let _ = (&mut self.grpc.0).await;
                let _ = (&mut self.http.0).await;
            } => {}
            () = runtime.sleep(timeout) => tracing::warn!("connections that did not end in time are cut"),
        }
        tracing::info!(%reason, "the broker has ended");
        reason
    }
}

impl Drop for Server {
    /// Connections outlive the task that accepted them; their streams end here.
    fn drop(&mut self) {
        self.closing.cancel();
        self.over.cancel();
    }
}

fn seed(runtime: &dyn Runtime) -> [u8; 32] {
    let mut seed = [0; 32];
    for chunk in seed.chunks_exact_mut(8) {
        chunk.copy_from_slice(&runtime.random().to_le_bytes());
    }
    seed
}

async fn serve_grpc(
    mut builder: tonic::transport::Server,
    listener: TcpListener,
    services: Services,
    door: Door,
    refusing: CancellationToken,
) {
    let node = Arc::clone(&services.0);
    let connections = stream::unfold((listener, node), |(listener, node)| async move {
        let connection = Connection::accept(&listener, &node.metrics, &*node.runtime).await;
        Some((Ok::<_, Infallible>(connection), (listener, node)))
    });
    let records = RecordsServer::new(services.clone())
        .max_decoding_message_size(MAX_CALL_BYTES)
        .max_encoding_message_size(MAX_CALL_BYTES);
    let segments = SegmentsServer::new(services.clone()).max_encoding_message_size(MAX_CALL_BYTES);
    let served = builder
        .add_service(InterceptedService::new(TopicsServer::new(services.clone()), door.clone()))
        .add_service(InterceptedService::new(records, door.clone()))
        .add_service(InterceptedService::new(segments, door.clone()))
        .add_service(InterceptedService::new(ClusterServer::new(services.clone()), door.clone()))
        .add_service(InterceptedService::new(PeersServer::new(services.clone()), door.clone()))
        .add_service(InterceptedService::new(GrantsServer::new(services), door))
        .serve_with_incoming_shutdown(connections, refusing.cancelled_owned())
        .await;
    if let Err(error) = served {
        tracing::error!(%error, "gRPC ended");
    }
}

async fn serve_http(listener: TcpListener, node: Arc<Node>, over: CancellationToken) {
    let served = axum::serve(listener, http::router(node)).with_graceful_shutdown(over.cancelled_owned()).await;
    if let Err(error) = served {
        tracing::error!(%error, "HTTP ended");
    }
}
