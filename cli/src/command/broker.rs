//! `refstream broker`.

use crate::{
    Global, config, deployment,
    exit::Failure,
    output::{self, Format},
};
use clap::Subcommand;
use refstream::BrokerDescription;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;

/// Run a broker on a configured store, alone or as one of several
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Example:\n  refstream broker --config refstream.toml\n\nwith refstream.toml:\n  [stores.main]\n  kind = \"s3\"\n  endpoint = \"http://127.0.0.1:8333\"\n  bucket = \"refstream\"\n\nSeveral brokers on one store are a cluster: each takes a part of the work, and any of them may end at any time."
)]
pub(crate) struct Arguments {
    /// Address for clients (gRPC)
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Address for health and metrics
    #[arg(long, value_name = "ADDRESS")]
    http: Option<String>,
    /// Stop in order when standard input ends
    #[arg(long, hide = true)]
    until_stdin_ends: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    List(List),
    Drain(Drain),
}

/// The brokers of the cluster: epoch, endpoint, who leads, how many segments each serves
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  refstream broker list\n\nWith --watch and --output jsonl each line is the whole list."
)]
struct List {
    /// Go on, and print them again whenever something changed
    #[arg(long)]
    watch: bool,
}

/// Have a broker hand over what it serves, and end
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  refstream broker drain http://127.0.0.1:7410")]
struct Drain {
    /// The broker's endpoint, as `refstream broker list` shows it
    #[arg(value_name = "URL")]
    broker: String,
}

pub(crate) async fn run(global: &Global, arguments: Arguments) -> Result<(), Failure> {
    match arguments.command {
        Some(Command::List(List { watch })) => list(global, watch).await,
        Some(Command::Drain(Drain { broker })) => {
            config::connect(global).await?.drain(&broker).await?;
            output::one(global.output, &json!({ "draining": broker }))
        }
        None => serve(global, arguments).await,
    }
}

async fn list(global: &Global, watch: bool) -> Result<(), Failure> {
    let mut changes = config::connect(global).await?.cluster_changes();
    loop {
        let rows = described(&changes.next().await?);
        match (watch, global.output) {
            (true, Format::Jsonl) => output::line(&Value::Array(rows).to_string())?,
            (_, format) => output::rows(format, &["epoch", "endpoint", "leads", "leaving", "open_segments"], &rows)?,
        }
        if !watch {
            return Ok(());
        }
    }
}

fn described(brokers: &[BrokerDescription]) -> Vec<Value> {
    brokers
        .iter()
        .map(|broker| {
            json!({
                "epoch": broker.epoch,
                "endpoint": broker.endpoint,
                "leads": broker.leads,
                "leaving": broker.leaving,
                "open_segments": broker.open_segments,
            })
        })
        .collect()
}

async fn serve(global: &Global, arguments: Arguments) -> Result<(), Failure> {
    let flags = vec![("broker.listen", arguments.listen), ("broker.http", arguments.http)];
    let settings = config::load(global, flags)?.settings;
    let running = deployment::start(&settings, config::token(global)).await?;
    let stdin_ends = async {
        if arguments.until_stdin_ends {
            // What is written to it has no meaning; that it ends has.
            let _ = tokio::io::stdin().read_to_end(&mut Vec::new()).await;
        } else {
            std::future::pending::<()>().await;
        }
    };
    tokio::pin!(stdin_ends);
    tokio::select! {
        served = running.server.serving() => {
            served.map_err(|reason| Failure::failed(format!("the broker did not start: {reason}")))?;
        }
        () = deployment::asked_to_stop() => return Err(Failure::interrupted()),
        () = &mut stdin_ends => return Err(Failure::interrupted()),
    }
    let (grpc, http) = deployment::addresses(&running.server);
    let scheme = running.server.grpc_scheme();
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
    deployment::serve(running, stdin_ends).await
}
