//! `refstream put`.

use crate::{Global, config, exit::Failure, json, output};
use bytes::Bytes;
use refstream::{
    ProducerOptions, Source, UploadOptions,
    types::{Header, Record, Timestamp, TopicName, Value},
};
use serde_json::json;
use std::path::PathBuf;

/// Store one payload and submit its reference
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  refstream put images photo.jpg --key cats/1 --attribute camera=x100\n  tar c logs | refstream put bundles -"
)]
pub(crate) struct Arguments {
    /// The topic
    topic: TopicName,
    /// The payload: a file, or - for standard input
    file: PathBuf,
    /// The record's key: records of one key keep their order
    #[arg(long)]
    key: Option<String>,
    /// An attribute, may repeat
    #[arg(long, value_name = "NAME=VALUE")]
    attribute: Vec<String>,
    /// When it happened (RFC 3339)
    #[arg(long, value_name = "TIME")]
    event_time: Option<Timestamp>,
    /// Its MIME type
    #[arg(long, value_name = "TYPE")]
    content_type: Option<String>,
}

/// `NAME=VALUE` pairs.
pub(crate) fn attributes(given: &[String]) -> Result<Vec<(String, String)>, Failure> {
    given
        .iter()
        .map(|pair| match pair.split_once('=') {
            Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
            _ => Err(Failure::usage(format!("--attribute {pair:?} is not of the form NAME=VALUE"))),
        })
        .collect()
}

pub(crate) async fn run(global: &Global, arguments: Arguments) -> Result<(), Failure> {
    let attributes = attributes(&arguments.attribute)?;
    let from_stdin = arguments.file.as_os_str() == "-";
    if !from_stdin {
        let meta = std::fs::metadata(&arguments.file)
            .map_err(|error| Failure::failed(format!("cannot read {}: {error}", arguments.file.display())))?;
        if meta.is_dir() {
            return Err(Failure::usage(format!(
                "{} is a folder: use refstream backfill {} {}",
                arguments.file.display(),
                arguments.topic,
                arguments.file.display()
            )));
        }
    }
    let client = config::connect(global).await?;
    // A lone payload waits for no company.
    let options = UploadOptions { pack_below: 0, ..UploadOptions::default() };
    let uploader = client.uploader(&arguments.topic, options).await?;
    let source =
        if from_stdin { Source::Reader(Box::new(tokio::io::stdin())) } else { Source::File(arguments.file.clone()) };
    let receipt = uploader.upload(source, arguments.content_type, None).await?;
    let reference = receipt.into_reference();
    let mut record = Record::new(Value::Reference(Box::new(reference.clone())));
    record.key = arguments.key.map(Bytes::from);
    record.event_time = arguments.event_time;
    record.headers = attributes.into_iter().map(|(name, value)| Header { name, value: value.into() }).collect();
    if !from_stdin {
        record.source_name = arguments.file.file_name().map(|name| name.to_string_lossy().into_owned());
    }
    let producer = client.producer(&arguments.topic, ProducerOptions::default()).await?;
    let ticket = producer.send(record).await?;
    producer.flush().await?;
    let ack = ticket.ack().await?;
    let store = client.store(&reference.store).ok();
    let payload = json::payload(&reference, store.as_deref());
    let mut value = json!({
        "topic": arguments.topic,
        "partition": ack.partition,
        "offset": ack.offset,
        "append_time": ack.append_time,
        "size": reference.content_size,
        "content_hash": reference.content_hash,
    });
    if global.output == output::Format::Table {
        value["payload"] = payload["uri"].clone();
    } else {
        value["payload"] = payload;
    }
    output::one(global.output, &value)
}
