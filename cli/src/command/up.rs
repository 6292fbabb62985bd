//! `refstream up`.

use crate::{
    Global, config,
    deployment::{self, BUCKET},
    exit::Failure,
    output::{self, Format},
};
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
    /// Accepted for later: there is no Kafka gateway yet
    #[arg(long, value_name = "ADDRESS")]
    kafka: Option<String>,
}

pub(crate) async fn run(global: &Global, arguments: Arguments) -> Result<(), Failure> {
    if let Some(address) = &arguments.kafka {
        eprintln!("refstream: --kafka {address} is not used: this version has no Kafka gateway");
    }
    let settings = config::load(
        global,
        vec![
            ("broker.data", arguments.data),
            ("broker.listen", arguments.listen),
            ("broker.http", arguments.http),
            ("broker.s3", arguments.s3),
        ],
    )?
    .settings;
    let running = deployment::embedded(&settings.broker).await?;
    tokio::select! {
        served = running.server.serving() => {
            served.map_err(|reason| Failure::failed(format!("the broker did not start: {reason}")))?;
        }
        () = deployment::asked_to_stop() => return Err(Failure::interrupted()),
    }
    let (grpc, http) = deployment::addresses(&running.server);
    let s3 = running.s3.address();
    let data = settings.broker.data.canonicalize().unwrap_or(settings.broker.data);
    match global.output {
        Format::Table => {
            output::line("refstream is up")?;
            output::line(&format!("  clients (gRPC)    http://{grpc}"))?;
            output::line(&format!("  health, metrics   http://{http}/readyz  http://{http}/metrics"))?;
            output::line(&format!("  store (S3)        http://{s3}  bucket {BUCKET}, path style"))?;
            output::line(&format!("    access key      {}", running.keys.access_key()))?;
            output::line(&format!("    secret key      {}", running.keys.secret_key()))?;
            output::line(&format!("  data              {}", data.display()))?;
            output::line("Stop with Ctrl-C.")?;
        }
        Format::Json | Format::Jsonl => output::line(
            &json!({
                "grpc": format!("http://{grpc}"),
                "http": format!("http://{http}"),
                "s3": { "endpoint": format!("http://{s3}"), "bucket": BUCKET, "access_key": running.keys.access_key(), "secret_key": running.keys.secret_key() },
                "data": data,
            })
            .to_string(),
        )?,
    }
    let result = deployment::serve(running.server).await;
    running.s3.stop().await;
    result
}
