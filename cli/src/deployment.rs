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
    types::{Layout, StoreName},
};
use refstream_journal::Metadata;
use refstream_segments::Compactor;
use refstream_server::{Access, Server, ServerConfig, ServerSettings, StartError, TlsIdentity, Tokens};
use std::{net::SocketAddr, path::Path, sync::Arc};

/// A broker with what it needs behind it.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) server: Server,
    pub(crate) embedded: Option<Embedded>,
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
pub(crate) async fn start(settings: &Settings) -> Result<Running, Failure> {
    if settings.stores.is_empty() {
        return Err(Failure::usage(
            "no store is configured: add a section such as [stores.main] with kind = \"s3\" and bucket = \"...\" to the configuration file",
        ));
    }
    let (metadata, default) = roles(settings)?;
    let tokens = Tokens::new(&settings.auth.tokens)
        .map_err(|error| Failure::usage(format!("the setting auth.tokens is refused: {error}")))?;
    let stores = Stores::open(settings).await?;
    let server = broker(settings, tokens, &stores, metadata, &default).await?;
    Ok(Running { server, embedded: stores.embedded.map(|(_, embedded)| embedded) })
}

async fn broker(
    settings: &Settings,
    tokens: Tokens,
    stores: &Stores,
    metadata_store: StoreName,
    default: &StoreName,
) -> Result<Server, Failure> {
    let access = Access {
        tokens,
        grants: stores.grants.clone(),
        read_prefixes: settings.grants.read_prefixes.clone(),
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

/// Serves until asked to stop, then drains; a broker that stops by itself is a failure.
pub(crate) async fn serve(server: Server) -> Result<(), Failure> {
    tokio::select! {
        () = asked_to_stop() => {
            output::notice(format_args!("refstream: stopping: sealing and committing what is open (a second signal ends at once)"));
            tokio::select! {
                reason = server.drain() => match reason {
                    refstream_core::StopReason::Drained => Ok(()),
                    other => Err(Failure::failed(format!("the broker stopped: {other}"))),
                },
                () = asked_to_stop() => Err(Failure::interrupted()),
            }
        }
        reason = server.stopped() => Err(Failure::failed(format!("the broker stopped: {reason}"))),
    }
}

/// The addresses that a broker got.
pub(crate) fn addresses(server: &Server) -> (SocketAddr, SocketAddr) {
    (server.grpc_address(), server.http_address())
}
