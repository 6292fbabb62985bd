//! `refstream up`.

use crate::{
    Global, children,
    config::{self, Settings},
    deployment,
    exit::Failure,
    output::{self, Format},
    stores::{self, BUCKET, EMBEDDED, EmbeddedSettings, FromUri, StoreSettings},
};
use refstream::types::StoreName;
use serde_json::json;

/// Run an embedded store, a broker and a compactor in the foreground
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  refstream up --data ./refstream-data\n\nStops in order on Ctrl-C or SIGTERM. Everything is in the data folder; closed segments are Parquet files below\nDATA/refstream/topics/TOPIC-ID/data/."
)]
pub(crate) struct Arguments {
    /// Folder that holds everything [default: ./refstream-data]
    #[arg(long, value_name = "DIR")]
    data: Option<String>,
    /// Address for clients (gRPC) [default: 127.0.0.1:7400]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Address for health and metrics [default: 127.0.0.1:7401]
    #[arg(long, value_name = "ADDRESS")]
    http: Option<String>,
    /// Address of the embedded S3 store [default: 127.0.0.1:7402]
    #[arg(long, value_name = "ADDRESS")]
    s3: Option<String>,
    /// Keep payloads elsewhere: seaweedfs://MASTER:PORT, or s3://BUCKET[/ROOT]?endpoint=URL, which then holds everything
    #[arg(long, value_name = "URI")]
    store: Option<String>,
    /// How many brokers, each a process of its own; the further ones listen 10 ports higher each: 7410 and 7411, 7420 and 7421
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=9))]
    brokers: u16,
    /// Accepted for later: there is no Kafka gateway yet
    #[arg(long, value_name = "ADDRESS")]
    kafka: Option<String>,
}

pub(crate) async fn run(global: &Global, arguments: Arguments) -> Result<(), Failure> {
    if let Some(address) = &arguments.kafka {
        output::notice(format_args!("refstream: --kafka {address} is not used: this version has no Kafka gateway"));
    }
    let mut settings = config::load(
        global,
        vec![
            ("broker.data", arguments.data),
            ("broker.listen", arguments.listen),
            ("broker.http", arguments.http),
            ("broker.s3", arguments.s3),
        ],
    )?
    .settings;
    let store = arguments.store.as_deref();
    let embedded = place(&mut settings, store)?;
    if arguments.brokers > 1 {
        let Some(embedded) = embedded else {
            return Err(Failure::usage(
                "--brokers is for the embedded store; on a store of its own, start each with refstream broker",
            ));
        };
        if !settings.broker.advertise.is_empty() {
            return Err(Failure::usage(
                "broker.advertise is the address of one broker, and --brokers starts several: each needs one of its own; leave it out, or start each with \
                 refstream broker and its own configuration",
            ));
        }
        return several(global, settings, &embedded, arguments.brokers).await;
    }
    let running = deployment::start(&settings, config::token(global)).await?;
    tokio::select! {
        served = running.server.serving() => {
            served.map_err(|reason| Failure::failed(format!("the broker did not start: {reason}")))?;
        }
        () = deployment::asked_to_stop() => return Err(Failure::interrupted()),
    }
    let (grpc, http) = deployment::addresses(&running.server);
    let scheme = running.server.grpc_scheme();
    let data = settings.broker.data.canonicalize().unwrap_or(settings.broker.data);
    let embedded = running.embedded();
    match global.output {
        Format::Table => {
            output::line("refstream is up")?;
            output::line(&format!("  clients (gRPC)    {scheme}://{grpc}"))?;
            output::line(&format!("  health, metrics   http://{http}/readyz  http://{http}/metrics"))?;
            if let Some(uri) = store {
                output::line(&format!("  payloads          {uri}"))?;
            }
            if let Some(embedded) = embedded {
                let s3 = embedded.s3.address();
                output::line(&format!("  store (S3)        http://{s3}  bucket {BUCKET}, path style"))?;
                output::line(&format!("    access key      {}", embedded.keys.access_key()))?;
                output::line(&format!("    secret key      {}", embedded.keys.secret_key()))?;
                output::line(&format!("  data              {}", data.display()))?;
            }
            output::line("Stop with Ctrl-C.")?;
        }
        Format::Json | Format::Jsonl => {
            let mut said = json!({ "grpc": format!("{scheme}://{grpc}"), "http": format!("http://{http}") });
            if let Some(uri) = store {
                said["store"] = uri.into();
            }
            if let Some(embedded) = embedded {
                let endpoint = format!("http://{}", embedded.s3.address());
                let (access_key, secret_key) = (embedded.keys.access_key(), embedded.keys.secret_key());
                said["s3"] = json!({ "endpoint": endpoint, "bucket": BUCKET, "access_key": access_key, "secret_key": secret_key });
                said["data"] = json!(data);
            }
            output::line(&said.to_string())?;
        }
    }
    deployment::serve(running, std::future::pending()).await
}

/// Several brokers, each a process of its own.
async fn several(global: &Global, settings: Settings, embedded: &StoreName, count: u16) -> Result<(), Failure> {
    let data = settings.broker.data.clone();
    let running = tokio::select! {
        running = children::start(settings, embedded, count, config::token(global)) => running?,
        () = deployment::asked_to_stop() => return Err(Failure::interrupted()),
    };
    let data = data.canonicalize().unwrap_or(data);
    let store = running.stores.embedded.as_ref().map(|(_, embedded)| embedded);
    match global.output {
        Format::Table => {
            output::line("refstream is up")?;
            for broker in &running.brokers {
                let pid = broker.pid().map(|pid| pid.to_string()).unwrap_or_default();
                let (grpc, http) = (&broker.url, broker.http);
                output::line(&format!(
                    "  broker            {grpc}  health, metrics http://{http}/readyz  process {pid}"
                ))?;
            }
            if let Some(store) = store {
                output::line(&format!(
                    "  store (S3)        http://{}  bucket {BUCKET}, path style",
                    store.s3.address()
                ))?;
                output::line(&format!("    access key      {}", store.keys.access_key()))?;
                output::line(&format!("    secret key      {}", store.keys.secret_key()))?;
            }
            output::line(&format!("  data              {}", data.display()))?;
            output::line("Any broker may be killed: the others go on, and it is started again. Stop with Ctrl-C.")?;
        }
        Format::Json | Format::Jsonl => {
            let url = |address: std::net::SocketAddr| format!("http://{address}");
            let brokers: Vec<_> = running
                .brokers
                .iter()
                .map(|broker| json!({ "grpc": broker.url, "http": url(broker.http), "pid": broker.pid() }))
                .collect();
            let mut said = json!({ "brokers": brokers, "data": data });
            said["grpc"] = said["brokers"][0]["grpc"].clone();
            said["http"] = said["brokers"][0]["http"].clone();
            if let Some(store) = store {
                let (access_key, secret_key) = (store.keys.access_key(), store.keys.secret_key());
                said["s3"] = json!({ "endpoint": url(store.s3.address()), "bucket": BUCKET, "access_key": access_key, "secret_key": secret_key });
            }
            output::line(&said.to_string())?;
        }
    }
    running.serve().await
}

/// Decides where things are kept: an embedded store beside those that are configured, or what `--store` says. The name of the embedded
/// store, if that holds the metadata.
fn place(settings: &mut Settings, uri: Option<&str>) -> Result<Option<StoreName>, Failure> {
    let broker = &mut settings.broker;
    if let Some(uri) = uri {
        let FromUri { store, root } = stores::from_uri(uri)?;
        let name: StoreName = "main".parse()?;
        broker.default_store = Some(name.clone());
        if matches!(store, StoreSettings::S3(_)) {
            broker.metadata_store = Some(name.clone());
            broker.root = root;
            settings.stores.insert(name, store);
            return Ok(None);
        }
        settings.stores.insert(name, store);
    }
    let embedded = settings.stores.iter().find(|(_, store)| matches!(store, StoreSettings::Embedded(_)));
    let embedded = match embedded {
        Some((name, _)) => name.clone(),
        None => {
            let name: StoreName = EMBEDDED.parse()?;
            let taken = settings.stores.insert(name.clone(), StoreSettings::Embedded(EmbeddedSettings {}));
            if taken.is_some() {
                return Err(Failure::usage(format!(
                    "the name of the store {EMBEDDED} is taken: rename [stores.{EMBEDDED}]"
                )));
            }
            name
        }
    };
    let metadata = broker.metadata_store.get_or_insert_with(|| embedded.clone());
    Ok((*metadata == embedded).then_some(embedded))
}
