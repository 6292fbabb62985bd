//! The process that is measured: an embedded store with a broker on it.
//!
//! By default this program starts itself once more with `--serve`; the `refstream` binary can be measured instead. Both
//! print one JSON line with their addresses when they serve. Data is in a temporary folder; the store waits for the disk (fsync), as
//! in production.

use crate::{Outcome, Plan, numbers};
use async_trait::async_trait;
use refstream::{
    Client, ClientOptions, StoreAccess, StoreCredentials,
    types::{Layout, StoreName, TopicConfig, TopicName},
};
use refstream_filer_adapter::{
    BlobStore, Runtime, TokioRuntime,
    embedded::{EmbeddedKeys, FileStore, FileStoreOptions, S3Server},
    grant::Grants,
    s3::{S3Config, S3Granter, S3Store},
};
use refstream_format::{
    cluster_log::{SealedSegment, TopicState},
    manifest::Manifest,
};
use refstream_journal::Metadata;
use refstream_proto::v1;
use refstream_segments::CompactError;
use refstream_server::{
    Access, Compacted, Compactor, CompactorError, Server, ServerConfig, ServerSettings, StoreDescription,
};
use serde::Deserialize;
use std::{collections::BTreeMap, net::SocketAddr, path::Path, process::Stdio, sync::Arc, time::Duration};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
};

const BUCKET: &str = "refstream";
const STORE: &str = "embedded";
/// Volume servers of SeaweedFS.
const VOLUMES: &str = "volumes";
/// Committed batches that the broker keeps in memory for readers, as `refstream up` does.
const READ_CACHE_BYTES: usize = 64 << 20;
/// How long a grant is accepted.
const GRANT_LIFE: Duration = Duration::from_secs(300);
const STARTS_WITHIN: Duration = Duration::from_secs(60);

/// Where a process can be reached.
#[derive(Debug, Deserialize)]
struct Addresses {
    grpc: String,
    http: String,
    s3: S3Address,
}

/// How to reach the embedded store.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct S3Address {
    pub(crate) endpoint: String,
    pub(crate) bucket: String,
    pub(crate) access_key: String,
    pub(crate) secret_key: String,
}

/// A running process, killed at the end.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    addresses: Addresses,
    _folder: TempDir,
}

impl Process {
    /// Starts it and waits until it serves.
    pub(crate) async fn start(plan: &Plan) -> Outcome<Self> {
        Self::start_with(plan, None).await
    }

    /// The same, with new payloads on the volume servers of the SeaweedFS whose master is at `HOST:PORT`.
    pub(crate) async fn start_on(plan: &Plan, master: &str) -> Outcome<Self> {
        Self::start_with(plan, Some(master)).await
    }

    async fn start_with(plan: &Plan, master: Option<&str>) -> Outcome<Self> {
        let folder = plan.temporary()?;
        let mut command = match &plan.refstream {
            None => {
                let mut command = Command::new(std::env::current_exe()?);
                command.arg("--serve").arg(folder.path());
                command.args(master.iter().flat_map(|master| ["--master", master]));
                command
            }
            Some(binary) => {
                let mut command = Command::new(binary);
                command.args(["--output", "json", "up", "--data"]).arg(folder.path().join("data"));
                command.args(["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--s3", "127.0.0.1:0"]);
                if let Some(master) = master {
                    command.args(["--store", &format!("seaweedfs://{master}")]);
                }
                command
            }
        };
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
        let stdout = child.stdout.take().ok_or("the broker's output is not piped")?;
        let mut line = String::new();
        tokio::time::timeout(STARTS_WITHIN, BufReader::new(stdout).read_line(&mut line))
            .await
            .map_err(|_| "the broker did not start within a minute")??;
        let addresses = serde_json::from_str(&line).map_err(|error| format!("the broker said {line:?}: {error}"))?;
        Ok(Self { child, addresses, _folder: folder })
    }

    pub(crate) fn s3(&self) -> &S3Address {
        &self.addresses.s3
    }

    pub(crate) fn grpc(&self) -> &str {
        &self.addresses.grpc
    }

    /// CPU seconds it has used.
    pub(crate) fn cpu_seconds(&self) -> f64 {
        self.child.id().map_or(0.0, numbers::cpu_seconds)
    }

    /// A client without credentials of the store.
    pub(crate) async fn client_by_grants(&self) -> Outcome<Client> {
        let mut options = ClientOptions::new(self.grpc());
        options.store_access = StoreAccess::Grants;
        Ok(Client::connect_with(options).await?)
    }

    pub(crate) async fn client(&self) -> Outcome<Client> {
        let mut options = ClientOptions::new(self.grpc());
        let S3Address { access_key, secret_key, .. } = self.s3().clone();
        options.credentials = Some(StoreCredentials { access_key, secret_key });
        Ok(Client::connect_with(options).await?)
    }

    /// Creates a topic with default settings but for the partitions.
    pub(crate) async fn topic(&self, client: &Client, name: &str, partitions: u32) -> Outcome<TopicName> {
        let name: TopicName = name.parse()?;
        client.create_topic(&name, &TopicConfig { partitions, ..TopicConfig::default() }).await?;
        Ok(name)
    }

    /// The broker's metrics without labels, by name.
    pub(crate) async fn metrics(&self) -> Outcome<BTreeMap<String, f64>> {
        let text = reqwest::get(format!("{}/metrics", self.addresses.http)).await?.error_for_status()?.text().await?;
        let metric = |line: &str| {
            let (name, value) = line.split_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        };
        Ok(text.lines().filter(|line| !line.starts_with('#')).filter_map(metric).collect())
    }
}

/// [`refstream_segments::Compactor`] as the broker sees it.
#[derive(Debug)]
struct InProcess(refstream_segments::Compactor);

fn failed(error: &CompactError) -> CompactorError {
    CompactorError { message: error.to_string(), retryable: error.is_retryable(), damaged: error.is_damage() }
}

#[async_trait]
impl Compactor for InProcess {
    async fn compact(
        &self,
        topic: &TopicState,
        segments: &[SealedSegment],
        publish: bool,
    ) -> Result<Compacted, CompactorError> {
        let done = self.0.compact(topic, segments, publish).await.map_err(|error| failed(&error))?;
        Ok(Compacted { segments: done.segments, files: done.files, rows: done.rows, bytes: done.bytes })
    }
    async fn manifest(&self, topic: &TopicState) -> Result<Option<Manifest>, CompactorError> {
        self.0.manifest(topic).await.map_err(|error| failed(&error))
    }
}

/// A SeaweedFS, as clients are told of it.
fn volumes(master: String) -> Outcome<StoreDescription> {
    let kind = v1::SeaweedStore { masters: vec![master], fsync: true, ..v1::SeaweedStore::default() };
    let description = v1::Store {
        name: VOLUMES.into(),
        kind: Some(v1::store::Kind::Seaweed(kind)),
        uri_prefix: format!("seaweedfs://{VOLUMES}/"),
        grants: false,
    };
    Ok(StoreDescription { name: VOLUMES.parse()?, description })
}

/// Is the measured process: serves from `folder` until it is killed. With a master of SeaweedFS, new payloads go there.
pub(crate) async fn serve(folder: &Path, master: Option<String>) -> Outcome<()> {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let runtime: Arc<dyn Runtime> = Arc::new(TokioRuntime::new());
    let store = FileStore::open(folder, BUCKET, FileStoreOptions::default())?;
    let keys = EmbeddedKeys::load_or_generate(folder)?;
    let s3 = S3Server::start(Arc::clone(&store), keys.clone(), any).await?;
    let name: StoreName = STORE.parse()?;
    let layout = Layout::new("")?;
    let blobs: Arc<dyn BlobStore> = Arc::clone(&store) as _;
    let stores = BTreeMap::from([(name.clone(), Arc::clone(&blobs))]);
    let metadata = Metadata::new(Arc::clone(&store) as _, layout.clone());
    let compactor = refstream_segments::Compactor::new(metadata, Arc::clone(&blobs), stores, Arc::clone(&runtime));
    let description = v1::Store {
        name: STORE.into(),
        kind: Some(v1::store::Kind::S3(v1::S3Store {
            endpoint: s3.endpoint(),
            bucket: BUCKET.into(),
            region: "us-east-1".into(),
            path_style: true,
            ..v1::S3Store::default()
        })),
        uri_prefix: format!("s3://{BUCKET}/"),
        grants: true,
    };
    let reached = S3Config {
        endpoint: Some(s3.endpoint()),
        bucket: BUCKET.into(),
        credentials: Some((keys.access_key().into(), keys.secret_key().into())),
        ..S3Config::default()
    };
    let signing = S3Store::open(STORE, reached).await?;
    let granter: Arc<dyn Grants> = Arc::new(S3Granter::new(signing, GRANT_LIFE, Arc::clone(&runtime)));
    let access = Access {
        grants: [(name.clone(), granter)].into(),
        receipts: [(name.clone(), blobs)].into(),
        ..Access::default()
    };
    // The first one is that of new payloads.
    let mut described: Vec<_> = master.map(volumes).transpose()?.into_iter().collect();
    described.push(StoreDescription { name: name.clone(), description });
    let server = Server::start(ServerConfig {
        listen: any,
        http: any,
        advertise: None,
        former: None,
        core: refstream_core::Settings::default(),
        filer: store,
        layout,
        stores: described,
        metadata_store: name,
        access,
        read_cache_bytes: READ_CACHE_BYTES,
        compactor: Some(Arc::new(InProcess(compactor))),
        runtime,
        settings: ServerSettings::default(),
    })
    .await?;
    server.serving().await.map_err(|reason| format!("the broker did not start: {reason}"))?;
    println!(
        "{}",
        serde_json::json!({
            "grpc": format!("http://{}", server.grpc_address()),
            "http": format!("http://{}", server.http_address()),
            "s3": {
                "endpoint": s3.endpoint(), "bucket": BUCKET,
                "access_key": keys.access_key(), "secret_key": keys.secret_key(),
            },
        })
    );
    Err(format!("the broker stopped: {}", server.stopped().await).into())
}
