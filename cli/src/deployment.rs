//! Puts a broker together: stores, compactor, server.

use crate::{
    compactor::InProcess,
    config::{BrokerSettings, Settings, StoreSettings},
    exit::{Exit, Failure},
};
use refstream::{
    stores::{
        BlobStore, Filer, Runtime, TokioRuntime,
        embedded::{EmbeddedKeys, FileStore, FileStoreOptions, S3Server},
        s3::{S3Config, S3Store},
    },
    types::{Layout, StoreName},
};
use refstream_journal::Metadata;
use refstream_proto::v1;
use refstream_segments::Compactor;
use refstream_server::{Server, ServerConfig, ServerSettings, StartError, StoreDescription};
use std::{collections::BTreeMap, net::SocketAddr, path::Path, sync::Arc};

/// The embedded store's bucket.
pub(crate) const BUCKET: &str = "refstream";

/// A broker with the embedded store behind it.
#[derive(Debug)]
pub(crate) struct Embedded {
    pub(crate) server: Server,
    pub(crate) s3: S3Server,
    pub(crate) keys: EmbeddedKeys,
    /// Nobody else may open the folder while this lives.
    _lock: std::fs::File,
}

fn start_failure(error: StartError) -> Failure {
    match error {
        StartError::Probe(_) => Failure::new(Exit::Unreachable, error),
        _ => Failure::failed(error),
    }
}

fn lock(folder: &Path) -> Result<std::fs::File, Failure> {
    let path = folder.join("lock");
    let file = std::fs::File::create(&path)
        .map_err(|error| Failure::failed(format!("cannot write to the data folder {}: {error}", folder.display())))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(Failure::failed(format!(
            "the data folder {} is in use by another refstream; stop that one or choose another folder with --data",
            folder.display()
        ))),
        Err(std::fs::TryLockError::Error(error)) => {
            Err(Failure::failed(format!("cannot lock {}: {error}", path.display())))
        }
    }
}

fn store_description(name: &StoreName, prefix: String, s3: v1::S3Store) -> StoreDescription {
    StoreDescription {
        name: name.clone(),
        description: v1::Store { name: name.to_string(), kind: Some(v1::store::Kind::S3(s3)), uri_prefix: prefix },
    }
}

/// Starts store, broker and compactor on a folder.
pub(crate) async fn embedded(settings: &BrokerSettings) -> Result<Embedded, Failure> {
    let folder = &settings.data;
    std::fs::create_dir_all(folder)
        .map_err(|error| Failure::failed(format!("cannot create the data folder {}: {error}", folder.display())))?;
    let folder = folder
        .canonicalize()
        .map_err(|error| Failure::failed(format!("cannot open the data folder {}: {error}", folder.display())))?;
    let lock = lock(&folder)?;
    let options = FileStoreOptions { fsync: settings.fsync, ..FileStoreOptions::default() };
    let store = FileStore::open(&folder, BUCKET, options).map_err(Failure::failed)?;
    let keys = EmbeddedKeys::load_or_generate(&folder).map_err(|error| {
        Failure::failed(format!("cannot read or write the embedded store's keys in {}: {error}", folder.display()))
    })?;
    let s3 = S3Server::start(Arc::clone(&store), keys.clone(), settings.s3)
        .await
        .map_err(|error| start_failure(StartError::Listen { address: settings.s3, flag: "s3", error }))?;
    let name: StoreName = "embedded".parse()?;
    let description = store_description(
        &name,
        format!("s3://{BUCKET}/"),
        v1::S3Store {
            endpoint: format!("http://{}", s3.address()),
            bucket: BUCKET.into(),
            region: "us-east-1".into(),
            path_style: true,
            credentials_file: Some(folder.join("credentials.toml").to_string_lossy().into_owned()),
        },
    );
    let blobs: Arc<dyn BlobStore> = Arc::clone(&store) as _;
    let server = broker(
        settings,
        true,
        store,
        Arc::clone(&blobs),
        name.clone(),
        vec![description],
        BTreeMap::from([(name, blobs)]),
    )
    .await?;
    Ok(Embedded { server, s3, keys, _lock: lock })
}

/// Starts a broker on configured stores.
pub(crate) async fn configured(settings: &Settings) -> Result<Server, Failure> {
    let broker_settings = &settings.broker;
    if settings.stores.is_empty() {
        return Err(Failure::usage(
            "no store is configured: add a section such as [stores.main] with kind = \"s3\" and bucket = \"...\" to the configuration file",
        ));
    }
    let only = || match settings.stores.keys().collect::<Vec<_>>()[..] {
        [one] => Some(one.clone()),
        _ => None,
    };
    let metadata = broker_settings.metadata_store.clone().or_else(only).ok_or_else(|| {
        Failure::usage(
            "several stores are configured: say with broker.metadata_store which one holds metadata and files",
        )
    })?;
    let default = broker_settings.default_store.clone().unwrap_or_else(|| metadata.clone());
    for name in [&metadata, &default] {
        if !settings.stores.contains_key(name) {
            return Err(Failure::usage(format!(
                "the store {name} is not configured: there is no section [stores.{name}]"
            )));
        }
    }
    let mut opened = BTreeMap::new();
    let mut descriptions = Vec::new();
    for (name, store) in &settings.stores {
        let StoreSettings::S3 { endpoint, bucket, region, path_style } = store;
        let config = S3Config {
            endpoint: Some(endpoint.clone()).filter(|e| !e.is_empty()),
            bucket: bucket.clone(),
            region: region.clone(),
            path_style: *path_style,
            ..S3Config::default()
        };
        let store =
            S3Store::open(name.as_str(), config).await.map_err(|error| Failure::new(Exit::Unreachable, error))?;
        opened.insert(name.clone(), Arc::new(store));
        let description = store_description(
            name,
            format!("s3://{bucket}/"),
            v1::S3Store {
                endpoint: endpoint.clone(),
                bucket: bucket.clone(),
                region: region.clone(),
                path_style: *path_style,
                credentials_file: None,
            },
        );
        // The first one is the default for new payloads.
        if *name == default {
            descriptions.insert(0, description);
        } else {
            descriptions.push(description);
        }
    }
    let filer = Arc::clone(&opened[&metadata]);
    let blobs: BTreeMap<StoreName, Arc<dyn BlobStore>> =
        opened.into_iter().map(|(name, store)| (name, store as Arc<dyn BlobStore>)).collect();
    let files = Arc::clone(&blobs[&metadata]);
    broker(broker_settings, false, filer, files, metadata, descriptions, blobs).await
}

async fn broker(
    settings: &BrokerSettings,
    local: bool,
    filer: Arc<dyn Filer>,
    files: Arc<dyn BlobStore>,
    metadata_store: StoreName,
    stores: Vec<StoreDescription>,
    blobs: BTreeMap<StoreName, Arc<dyn BlobStore>>,
) -> Result<Server, Failure> {
    let layout = Layout::new(&settings.root).map_err(|error| Failure::usage(format!("broker.root: {error}")))?;
    let runtime: Arc<dyn Runtime> = Arc::new(TokioRuntime::new());
    let metadata = Metadata::new(Arc::clone(&filer), layout.clone());
    let compactor = Compactor::new(metadata, files, blobs, Arc::clone(&runtime));
    let config = ServerConfig {
        listen: settings.listen,
        http: settings.http,
        advertise: Some(settings.advertise.clone()).filter(|a| !a.is_empty()),
        core: settings.core(local),
        filer,
        layout,
        stores,
        metadata_store,
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
            eprintln!("refstream: stopping: sealing and committing what is open (a second signal ends at once)");
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
