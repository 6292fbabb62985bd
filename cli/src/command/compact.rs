//! `refstream compact`.

use crate::{Global, config, exit::Failure, output};
use refstream::types::TopicName;
use serde_json::json;

/// Compact a topic's sealed segments now and publish them under data/ whatever their size
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  refstream seal images && refstream compact images")]
pub(crate) struct Arguments {
    /// The topic
    topic: TopicName,
    /// Only make early files for readers of the manifest; publish when the topic's settings say so
    #[arg(long)]
    no_publish: bool,
}

pub(crate) async fn run(global: &Global, arguments: Arguments) -> Result<(), Failure> {
    let (segments, files) = config::connect(global).await?.compact(&arguments.topic, !arguments.no_publish).await?;
    output::one(global.output, &json!({ "topic": arguments.topic, "segments": segments, "files": files }))
}
