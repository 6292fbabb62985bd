//! `refstream get`.

use crate::{Global, config, exit::Failure};
use refstream::types::{ByteRange, Offset, PartitionId, TopicName, Value};
use std::{
    io,
    path::{Path, PathBuf},
    pin::Pin,
    str::FromStr,
    task::{Context, Poll, ready},
};
use tokio::io::{AsyncWrite, AsyncWriteExt as _};

/// Links that are followed before they are called a circle, as Linux does.
const MAX_LINKS: u32 = 40;

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
    /// Write to this file instead of standard output; a device or FIFO is written into, a file appears only when it is verified
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
        let number = |text: &str| {
            text.parse::<u64>().map_err(|error| match error.kind() {
                std::num::IntErrorKind::PosOverflow => format!("{text} is more than {}", u64::MAX),
                _ => form(),
            })
        };
        let (a, b) = (number(a)?, number(b)?);
        // What is behind the payload's end does not matter.
        let length = b.checked_sub(a).ok_or_else(form)?.saturating_add(1);
        Ok(Self(ByteRange { offset: a, length }))
    }
}

/// Where the payload goes.
#[derive(Debug, PartialEq, Eq)]
enum Target {
    /// Standard output.
    Stdout,
    /// Into what is there and is no regular file: a device, a FIFO.
    Into(PathBuf),
    /// A regular file, that does or does not exist. It appears under its name only when every byte was verified.
    File { partial: PathBuf, path: PathBuf },
}

impl Target {
    fn of(path: Option<&Path>) -> Result<Self, Failure> {
        let Some(path) = path else { return Ok(Self::Stdout) };
        let failed = |error: io::Error| Failure::failed(format!("cannot write to {}: {error}", path.display()));
        match std::fs::metadata(path) {
            Ok(meta) if meta.is_dir() => {
                return Err(Failure::usage(format!("{} is a folder: name a file", path.display())));
            }
            Ok(meta) if !meta.is_file() => return Ok(Self::Into(path.to_owned())),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
        // Of a link, that which it leads to is replaced or made.
        let mut path = path.to_owned();
        for _ in 0..MAX_LINKS {
            match std::fs::read_link(&path) {
                Ok(target) => path = path.parent().unwrap_or(Path::new("")).join(target),
                Err(_) => break,
            }
        }
        let mut partial = path.as_os_str().to_owned();
        partial.push(format!(".{}.partial", std::process::id()));
        Ok(Self::File { partial: partial.into(), path })
    }

    async fn open(&self) -> io::Result<Out> {
        Ok(Out {
            inner: match self {
                Self::Stdout => Box::new(tokio::io::stdout()),
                Self::Into(path) => Box::new(tokio::fs::OpenOptions::new().write(true).open(path).await?),
                Self::File { partial, .. } => Box::new(tokio::fs::File::create(partial).await?),
            },
            broken: false,
        })
    }
}

/// Remembers whether the reader went away.
struct Out {
    inner: Box<dyn AsyncWrite + Send + Unpin>,
    broken: bool,
}

impl Out {
    fn seen<T>(&mut self, result: io::Result<T>) -> Poll<io::Result<T>> {
        self.broken |= result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe);
        Poll::Ready(result)
    }
}

impl AsyncWrite for Out {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = ready!(Pin::new(&mut self.inner).poll_write(cx, bytes));
        self.seen(result)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = ready!(Pin::new(&mut self.inner).poll_flush(cx));
        self.seen(result)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = ready!(Pin::new(&mut self.inner).poll_shutdown(cx));
        self.seen(result)
    }
}

pub(crate) async fn run(global: &Global, arguments: Arguments) -> Result<(), Failure> {
    let target = Target::of(arguments.output_file.as_deref())?;
    let client = config::connect(global).await?;
    let delivery = client.record(&arguments.topic, PartitionId(arguments.partition), Offset(arguments.offset)).await?;
    let at = format!("topic {} partition {} offset {}", arguments.topic, arguments.partition, arguments.offset);
    let written = |error: io::Error| Failure::failed(format!("cannot write the payload of {at}: {error}"));
    let mut sink = target.open().await.map_err(written)?;
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
    let broken = sink.broken;
    drop(sink);
    match (target, result) {
        (Target::File { partial, path }, Ok(())) => std::fs::rename(partial, path).map_err(written),
        (Target::File { partial, .. }, Err(failure)) => {
            let _ = std::fs::remove_file(partial);
            Err(failure)
        }
        // A closed pipe ends the command quietly, as with other Unix tools.
        (_, Err(_)) if broken => Ok(()),
        (_, result) => result,
    }
}

fn blake3_of(bytes: &[u8]) -> [u8; 32] {
    *blake3::hash(bytes).as_bytes()
}
