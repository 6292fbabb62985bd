//! `refstream seal`.

use crate::{Global, config, exit::Failure, output};
use refstream::types::TopicName;
use serde_json::json;

/// Seal a topic's open segments now: what they hold is durable and ready to be compacted, successors open
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  refstream seal images")]
pub(crate) struct Arguments {
    /// The topic
    topic: TopicName,
}

pub(crate) async fn run(global: &Global, arguments: Arguments) -> Result<(), Failure> {
    let sealed = config::connect(global).await?.seal(&arguments.topic).await?;
    output::one(global.output, &json!({ "topic": arguments.topic, "sealed": sealed }))
}
