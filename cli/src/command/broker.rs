//! `refstream broker`.

use crate::{
    Global, config, deployment,
    exit::Failure,
    output::{self, Format},
};
use serde_json::json;

/// Run a broker on a configured store
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  refstream broker --config refstream.toml\n\nwith refstream.toml:\n  [stores.main]\n  kind = \"s3\"\n  endpoint = \"http://127.0.0.1:8333\"\n  bucket = \"refstream\""
)]
pub(crate) struct Arguments {
    /// Address for clients (gRPC)
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Address for health and metrics
    #[arg(long, value_name = "ADDRESS")]
    http: Option<String>,
}

pub(crate) async fn run(global: &Global, arguments: Arguments) -> Result<(), Failure> {
    let flags = vec![("broker.listen", arguments.listen), ("broker.http", arguments.http)];
    let settings = config::load(global, flags)?.settings;
    let running = deployment::start(&settings).await?;
    let server = running.server;
    tokio::select! {
        served = server.serving() => {
            served.map_err(|reason| Failure::failed(format!("the broker did not start: {reason}")))?;
        }
        () = deployment::asked_to_stop() => return Err(Failure::interrupted()),
    }
    let (grpc, http) = deployment::addresses(&server);
    let scheme = server.grpc_scheme();
    match global.output {
        Format::Table => output::line(&format!(
            "the broker is up: clients (gRPC) {scheme}://{grpc}, health and metrics http://{http}"
        ))?,
        Format::Json | Format::Jsonl => {
            output::line(
                &json!({ "grpc": format!("{scheme}://{grpc}"), "http": format!("http://{http}") }).to_string(),
            )?;
        }
    }
    let result = deployment::serve(server).await;
    if let Some(embedded) = running.embedded {
        embedded.s3.stop().await;
    }
    result
}
