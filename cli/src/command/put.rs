//! `refstream put`.

use crate::{
    Global, config,
    exit::Failure,
    json,
    output::{self, Format},
};
use bytes::Bytes;
use refstream::{
    InlineRefused, ProducerOptions, Source, UploadOptions,
    types::{ContentHash, Header, MAX_INLINE_BYTES, Record, Timestamp, TopicName, Value},
};
use serde_json::json;
use std::path::{Path, PathBuf};
use tokio::io::{AsyncRead, AsyncReadExt as _};

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
    /// A payload up to this many bytes travels inside its record; at most the topic's inline_max
    #[arg(long, value_name = "BYTES", default_value_t = 0, value_parser = inline_max())]
    inline_max: u32,
    /// Its MIME type
    #[arg(long, value_name = "TYPE")]
    content_type: Option<String>,
}

/// What `--inline-max` can be.
pub(crate) fn inline_max() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(..=i64::from(MAX_INLINE_BYTES))
}

/// The payload, where it is to travel inside its record; else its source.
async fn inline(file: &Path, max: u32) -> Result<Result<Bytes, Source>, Failure> {
    let failed = |error: std::io::Error| Failure::failed(format!("cannot read {}: {error}", file.display()));
    let from_stdin = file.as_os_str() == "-";
    if max == 0 {
        return Ok(Err(if from_stdin {
            Source::Reader(Box::new(tokio::io::stdin()))
        } else {
            Source::File(file.to_owned())
        }));
    }
    let mut reader: Box<dyn AsyncRead + Send + Unpin> = if from_stdin {
        Box::new(tokio::io::stdin())
    } else {
        Box::new(tokio::fs::File::open(file).await.map_err(failed)?)
    };
    let mut bytes = Vec::new();
    (&mut reader).take(u64::from(max) + 1).read_to_end(&mut bytes).await.map_err(failed)?;
    if bytes.len() <= max as usize {
        return Ok(Ok(bytes.into()));
    }
    Ok(Err(if from_stdin {
        Source::Reader(Box::new(std::io::Cursor::new(bytes).chain(reader)))
    } else {
        Source::File(file.to_owned())
    }))
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
            .map_err(|error| Failure::usage(format!("cannot read {}: {error}", arguments.file.display())))?;
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
    if arguments.inline_max > 0 {
        let permitted = client.topic_settings(&arguments.topic).await?.config.inline_max;
        if arguments.inline_max > permitted {
            return Err(InlineRefused { topic: arguments.topic, asked: arguments.inline_max, permitted }.into());
        }
    }
    let value = match inline(&arguments.file, arguments.inline_max).await? {
        Ok(bytes) => Value::Inline { content_hash: ContentHash(*blake3::hash(&bytes).as_bytes()), bytes },
        Err(source) => {
            // A lone payload waits for no company.
            let options = UploadOptions { pack_below: 0, ..UploadOptions::default() };
            let uploader = client.uploader(&arguments.topic, options).await?;
            let receipt = uploader.upload(source, arguments.content_type, None).await?;
            Value::Reference(Box::new(receipt.into_reference()))
        }
    };
    let mut record = Record::new(value.clone());
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
    let mut said = json!({
        "topic": arguments.topic,
        "partition": ack.partition,
        "offset": ack.offset,
        "append_time": ack.append_time,
    });
    match &value {
        Value::Reference(reference) => {
            let payload = json::payload(reference, client.store(&reference.store).ok().as_deref());
            said["size"] = json!(reference.content_size);
            said["content_hash"] = json!(reference.content_hash);
            said["payload"] = if global.output == Format::Table { payload["uri"].clone() } else { payload };
        }
        Value::Inline { bytes, content_hash } => {
            said["size"] = json!(bytes.len());
            said["content_hash"] = json!(content_hash);
            said["payload"] = serde_json::Value::Null;
        }
        Value::Tombstone => {}
    }
    output::one(global.output, &said)
}
