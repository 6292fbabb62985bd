//! `refstream get`.

use crate::{Global, config, exit::Failure};
use refstream::types::{ByteRange, Offset, PartitionId, TopicName, Value};
use std::{path::PathBuf, str::FromStr};
use tokio::io::{AsyncWrite, AsyncWriteExt as _};

/// Fetch one record's payload, verified
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  refstream get images 3 42 -o photo.jpg\n  refstream get images 3 42 --range 0-1023 | xxd | head"
)]
pub(crate) struct Arguments {
    /// The topic
    topic: TopicName,
    /// The partition
    partition: u32,
    /// The offset
    offset: u64,
    /// Write to this file instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output_file: Option<PathBuf>,
    /// Only bytes A to B, both included, counted from 0
    #[arg(long, value_name = "A-B")]
    range: Option<Span>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Span(ByteRange);

impl FromStr for Span {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let form = || "use A-B with A <= B, for example 0-1023".to_owned();
        let (a, b) = text.split_once('-').ok_or_else(form)?;
        let (a, b): (u64, u64) = (a.parse().map_err(|_| form())?, b.parse().map_err(|_| form())?);
        let length = b.checked_sub(a).and_then(|n| n.checked_add(1)).ok_or_else(form)?;
        Ok(Self(ByteRange { offset: a, length }))
    }
}

pub(crate) async fn run(global: &Global, arguments: Arguments) -> Result<(), Failure> {
    let client = config::connect(global).await?;
    let delivery = client.record(&arguments.topic, PartitionId(arguments.partition), Offset(arguments.offset)).await?;
    let at = format!("topic {} partition {} offset {}", arguments.topic, arguments.partition, arguments.offset);
    let path = arguments.output_file;
    // A file appears under its name only when every byte was verified.
    let partial = path.as_ref().map(|path| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{}.partial", std::process::id()));
        PathBuf::from(name)
    });
    let written = |error: std::io::Error| Failure::failed(format!("cannot write the payload of {at}: {error}"));
    let mut sink: Box<dyn AsyncWrite + Send + Unpin> = match &partial {
        Some(partial) => Box::new(tokio::fs::File::create(partial).await.map_err(written)?),
        None => Box::new(tokio::io::stdout()),
    };
    let result = async {
        match (&delivery.record.value, arguments.range) {
            (Value::Tombstone, _) => return Err(Failure::failed(format!("{at} is a tombstone: it has no payload"))),
            (Value::Inline { bytes, content_hash }, range) => {
                let actual = refstream::types::ContentHash(blake3_of(bytes));
                if actual != *content_hash {
                    return Err(Failure::new(
                        crate::exit::Exit::Verification,
                        format!("the inline value of {at} is damaged: expected {content_hash}, got {actual}"),
                    ));
                }
                let bytes = match range {
                    None => bytes.clone(),
                    Some(Span(range)) => {
                        let start = usize::try_from(range.offset).unwrap_or(usize::MAX).min(bytes.len());
                        let end =
                            range.end().and_then(|e| usize::try_from(e).ok()).unwrap_or(usize::MAX).min(bytes.len());
                        bytes.slice(start..end)
                    }
                };
                sink.write_all(&bytes).await.map_err(written)?;
            }
            (Value::Reference(reference), None) => {
                client.payload(reference).of(&delivery).copy_to(&mut sink).await?;
            }
            (Value::Reference(reference), Some(Span(range))) => {
                let bytes = client.payload(reference).of(&delivery).range(range).await?;
                sink.write_all(&bytes).await.map_err(written)?;
            }
        }
        sink.flush().await.map_err(written)
    }
    .await;
    drop(sink);
    if let (Some(partial), Some(path)) = (&partial, &path) {
        match &result {
            Ok(()) => std::fs::rename(partial, path).map_err(written)?,
            Err(_) => drop(std::fs::remove_file(partial)),
        }
    }
    result
}

fn blake3_of(bytes: &[u8]) -> [u8; 32] {
    *blake3::hash(bytes).as_bytes()
}
