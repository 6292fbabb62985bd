//! Puts a broker together: stores, compactor, server.

use crate::{
    compactor::InProcess,
    config::{BrokerSettings, Settings},
    exit::{Exit, Failure},
    output,
    stores::{Embedded, Stores},
};
use refstream::{
    stores::{BlobStore, Runtime, TokioRuntime},
    types::{Epoch, Layout, StoreName},
};
use refstream_core::StopReason;
use refstream_journal::Metadata;
use refstream_segments::Compactor;
use refstream_server::{Access, PeerToken, Server, ServerConfig, ServerSettings, StartError, TlsIdentity, Tokens};
use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};

/// Between attempts to start a broker again that was presumed dead.
const AGAIN: Duration = Duration::from_millis(100);
/// How long it is tried.
const PATIENCE: Duration = Duration::from_secs(10);

/// A broker with what it needs behind it.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) server: Server,
    deployment: Deployment,
}

impl Running {
    /// The embedded store, if there is one.
    pub(crate) fn embedded(&self) -> Option<&Embedded> {
        self.deployment.stores.embedded.as_ref().map(|(_, embedded)| embedded)
    }

    /// Drains the broker, and stops the store behind it.
    pub(crate) async fn drain(self) -> StopReason {
        let reason = self.server.drain().await;
        if let Some((_, embedded)) = self.deployment.stores.embedded {
            embedded.s3.stop().await;
        }
        reason
    }
}

/// What a broker is made of, and made of again.
#[derive(Debug)]
struct Deployment {
    settings: Settings,
    tokens: Tokens,
    peer_token: Option<PeerToken>,
    stores: Stores,
    metadata: StoreName,
    default: StoreName,
}

fn start_failure(error: StartError) -> Failure {
    match error {
        StartError::Probe(_) => Failure::new(Exit::Unreachable, error),
        _ => Failure::failed(error),
    }
}

/// The failure of a server that cannot listen at `address`, which the flag `flag` gave.
pub(crate) fn cannot_listen(address: SocketAddr, flag: &'static str, error: std::io::Error) -> Failure {
    start_failure(StartError::Listen { address, flag, error })
}

/// Refuses what is no loopback address for the embedded store.
pub(crate) fn only_loopback(address: SocketAddr) -> Result<(), Failure> {
    let missing = "the embedded store has no TLS; use a loopback address such as 127.0.0.1, or a store of its own for clients elsewhere";
    let refused = StartError::NotLoopback { address, flag: "s3", missing };
    if address.ip().is_loopback() { Ok(()) } else { Err(start_failure(refused)) }
}

/// The broker's certificate and key.
fn identity(settings: &BrokerSettings) -> Result<Option<TlsIdentity>, Failure> {
    let read = |setting: &str, path: &Path| {
        std::fs::read(path).map_err(|error| {
            Failure::usage(format!("the setting broker.{setting} is refused: cannot read {}: {error}", path.display()))
        })
    };
    match (&settings.tls_certificate, &settings.tls_key) {
        (None, None) => Ok(None),
        (Some(certificates), Some(key)) => {
            Ok(Some(TlsIdentity { certificates: read("tls_certificate", certificates)?, key: read("tls_key", key)? }))
        }
        _ => Err(Failure::usage("set both broker.tls_certificate and broker.tls_key, or neither")),
    }
}

/// Which stores hold metadata and new payloads.
fn roles(settings: &Settings) -> Result<(StoreName, StoreName), Failure> {
    let only = || match settings.stores.keys().collect::<Vec<_>>()[..] {
        [one] => Some(one.clone()),
        _ => None,
    };
    let metadata = settings.broker.metadata_store.clone().or_else(only).ok_or_else(|| {
        Failure::usage(
            "several stores are configured: say with broker.metadata_store which one holds metadata and files",
        )
    })?;
    let default = settings.broker.default_store.clone().unwrap_or_else(|| metadata.clone());
    for name in [&metadata, &default] {
        if !settings.stores.contains_key(name) {
            return Err(Failure::usage(format!(
                "the store {name} is not configured: there is no section [stores.{name}]"
            )));
        }
    }
    Ok((metadata, default))
}

/// Starts stores, broker and compactor.
pub(crate) async fn start(settings: &Settings, token: Option<String>) -> Result<Running, Failure> {
    if settings.stores.is_empty() {
        return Err(Failure::usage(
            "no store is configured: add a section such as [stores.main] with kind = \"s3\" and bucket = \"...\" to the configuration file",
        ));
    }
    let (metadata, default) = roles(settings)?;
    let tokens = Tokens::new(&settings.auth.tokens)
        .map_err(|error| Failure::usage(format!("the setting auth.tokens is refused: {error}")))?;
    let stores = Stores::open(settings).await?;
    let settings = settings.clone();
    let deployment = Deployment { settings, tokens, peer_token: token.map(PeerToken), stores, metadata, default };
    let server = broker(&deployment, None).await?;
    Ok(Running { server, deployment })
}

/// The authorities that are trusted where other brokers are called.
fn authorities(settings: &Settings) -> Result<Option<Vec<u8>>, Failure> {
    let read = |file: &std::path::PathBuf| {
        std::fs::read(file)
            .map_err(|error| Failure::usage(format!("the setting ca_file is refused: {}: {error}", file.display())))
    };
    settings.ca_file.as_ref().map(read).transpose()
}

/// `former`: the epoch of the broker that this process was before.
async fn broker(deployment: &Deployment, former: Option<Epoch>) -> Result<Server, Failure> {
    let Deployment { settings, tokens, peer_token, stores, metadata, default } = deployment;
    let metadata_store = metadata.clone();
    let access = Access {
        tokens: tokens.clone(),
        grants: stores.grants.clone(),
        read_prefixes: settings.grants.read_prefixes.clone(),
        peer_token: peer_token.clone(),
        peer_authorities: authorities(settings)?,
        receipts: if settings.grants.check_receipts { stores.blobs.clone() } else { Default::default() },
        tls: identity(&settings.broker)?,
    };
    let settings = &settings.broker;
    let layout = Layout::new(&settings.root).map_err(|error| Failure::usage(format!("broker.root: {error}")))?;
    let runtime: Arc<dyn Runtime> = Arc::new(TokioRuntime::new());
    let Some(filer) = stores.filers.get(&metadata_store).map(Arc::clone) else {
        return Err(Failure::usage(format!(
            "the store {metadata_store} cannot hold metadata, only payloads: name another with broker.metadata_store"
        )));
    };
    let metadata = Metadata::new(Arc::clone(&filer), layout.clone());
    let files: Arc<dyn BlobStore> = Arc::clone(&stores.blobs[&metadata_store]);
    let compactor = Compactor::new(metadata, files, stores.blobs.clone(), Arc::clone(&runtime));
    // The first one is the default for new payloads.
    let mut descriptions: Vec<_> = stores.descriptions.values().cloned().collect();
    descriptions.sort_by_key(|described| described.name != *default);
    let local = stores.embedded.as_ref().is_some_and(|(name, _)| *name == metadata_store);
    let config = ServerConfig {
        listen: settings.listen,
        http: settings.http,
        advertise: Some(settings.advertise.clone()).filter(|a| !a.is_empty()),
        former,
        core: settings.core(local),
        filer,
        layout,
        stores: descriptions,
        metadata_store,
        access,
        read_cache_bytes: settings.read_cache_bytes,
        compactor: Some(Arc::new(InProcess(compactor))),
        runtime,
        settings: ServerSettings::default(),
    };
    Server::start(config).await.map_err(start_failure)
}

/// Waits for Ctrl-C or SIGTERM.
pub(crate) async fn asked_to_stop() {
    let mut terminate = match tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
        Ok(signal) => signal,
        Err(error) => {
            tracing::warn!(%error, "cannot listen to SIGTERM");
            let _ = tokio::signal::ctrl_c().await;
            return;
        }
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
}

/// Serves until asked to stop, or until `until`, then drains. A broker that was presumed dead and fenced, since the process or its store stood still for too long,
/// joins anew; one that stops for another reason is a failure.
pub(crate) async fn serve(running: Running, until: impl Future<Output = ()>) -> Result<(), Failure> {
    let Running { mut server, mut deployment } = running;
    // Where clients and the other brokers know it.
    (deployment.settings.broker.listen, deployment.settings.broker.http) = addresses(&server);
    // One wish for all the time: what is asked while the broker joins anew counts too.
    let stop_asked = async {
        tokio::select! {
            () = asked_to_stop() => {}
            () = until => {}
        }
    };
    tokio::pin!(stop_asked);
    let mut former = None;
    let result = loop {
        let reason = tokio::select! {
            () = &mut stop_asked => break stop(server).await,
            () = server.asked_to_drain() => break stop(server).await,
            reason = server.stopped() => reason,
        };
        if !joins_anew(&reason) {
            break Err(Failure::failed(format!("the broker stopped: {reason}")));
        }
        output::notice(format_args!("refstream: {reason}; joining anew"));
        former = server.epoch().or(former);
        drop(server);
        tokio::select! {
            // It has nothing now, neither open nor to be recovered.
            () = &mut stop_asked => break Ok(()),
            started = again(&deployment, former) => match started {
                Ok(started) => server = started,
                Err(failure) => break Err(failure),
            },
        }
    };
    if let Some((_, embedded)) = deployment.stores.embedded {
        embedded.s3.stop().await;
    }
    result
}

/// Whether a broker that ended so may begin again: it was given up by others, who may have been wrong.
fn joins_anew(reason: &StopReason) -> bool {
    match reason {
        StopReason::Fenced { .. } | StopReason::Superseded(_) | StopReason::Outrun(_) => true,
        StopReason::Drained
        | StopReason::AddressTaken { .. }
        | StopReason::NotBegun
        | StopReason::Damaged(_)
        | StopReason::Cut(_) => false,
    }
}

/// Starts a broker again. Its ports are free once the tasks of the one before have ended.
async fn again(deployment: &Deployment, former: Option<Epoch>) -> Result<Server, Failure> {
    let runtime = TokioRuntime::new();
    let began = runtime.now();
    loop {
        match broker(deployment, former).await {
            Ok(server) => return Ok(server),
            Err(failure) if runtime.now().saturating_sub(began) >= PATIENCE => return Err(failure),
            Err(_) => runtime.sleep(AGAIN).await,
        }
    }
}

async fn stop(server: Server) -> Result<(), Failure> {
    output::notice(format_args!(
        "refstream: stopping: handing over and committing what is open (a second signal ends at once)"
    ));
    tokio::select! {
        reason = server.drain() => match reason {
            StopReason::Drained | StopReason::NotBegun => Ok(()),
            other => Err(Failure::failed(format!("the broker stopped: {other}"))),
        },
        () = asked_to_stop() => Err(Failure::interrupted()),
    }
}

/// The addresses that a broker got.
pub(crate) fn addresses(server: &Server) -> (SocketAddr, SocketAddr) {
    (server.grpc_address(), server.http_address())
}
