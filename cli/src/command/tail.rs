//! `refstream tail`.

use crate::{
    Global, config,
    exit::{Exit, Failure},
    json, output,
};
use refstream::{
    Consumer, ConsumerOptions, Delivery, From,
    types::{Offset, Timestamp, TopicName, Value},
};
use std::{
    path::{Path, PathBuf},
    str::FromStr,
};
use tokio::io::AsyncWriteExt as _;

/// Print a topic's records as they are committed, one JSON document a line
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  refstream tail images --from earliest --no-follow\n  refstream tail images --payload ./out --max 10"
)]
pub(crate) struct Arguments {
    /// The topic
    topic: TopicName,
    /// earliest, latest, an offset in every partition, or a time (RFC 3339)
    #[arg(long, default_value = "latest", value_name = "WHERE")]
    from: Where,
    /// End after this many records
    #[arg(long, value_name = "N")]
    max: Option<u64>,
    /// Also write each payload, verified, into this folder, as PARTITION-OFFSET
    #[arg(long, value_name = "DIR")]
    payload: Option<PathBuf>,
    /// End at what is committed now instead of waiting for more
    #[arg(long)]
    no_follow: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Where(From);

impl FromStr for Where {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Ok(Self(match text {
            "earliest" => From::Earliest,
            "latest" => From::Latest,
            _ if text.bytes().all(|b| b.is_ascii_digit()) => {
                From::Offset(Offset(text.parse().map_err(|_| "the offset is too large".to_owned())?))
            }
            _ => {
                From::Time(text.parse::<Timestamp>().map_err(|_| {
                    "use earliest, latest, an offset, or a time such as 2026-11-29T08:30:00Z".to_owned()
                })?)
            }
        }))
    }
}

async fn write_payload(
    client: &refstream::Client,
    delivery: &Delivery,
    folder: &Path,
) -> Result<Option<PathBuf>, Failure> {
    let path = folder.join(format!("{:05}-{:020}", delivery.partition.get(), delivery.offset.get()));
    let failed = |error: std::io::Error| Failure::failed(format!("cannot write {}: {error}", path.display()));
    match &delivery.record.value {
        Value::Tombstone => return Ok(None),
        Value::Inline { bytes, .. } => tokio::fs::write(&path, bytes).await.map_err(failed)?,
        Value::Reference(reference) => {
            // Under its final name only once it is verified as a whole.
            let partial = path.with_extension("partial");
            let mut file = tokio::fs::File::create(&partial).await.map_err(failed)?;
            let copied = client.payload(reference).of(delivery).copy_to(&mut file).await;
            let flushed = file.flush().await;
            if let Err(error) = copied {
                let _ = tokio::fs::remove_file(&partial).await;
                return Err(error.into());
            }
            flushed.map_err(failed)?;
            tokio::fs::rename(&partial, &path).await.map_err(failed)?;
        }
    }
    Ok(Some(path))
}

pub(crate) async fn run(global: &Global, arguments: Arguments) -> Result<(), Failure> {
    if let Some(folder) = &arguments.payload {
        std::fs::create_dir_all(folder)
            .map_err(|error| Failure::failed(format!("cannot create {}: {error}", folder.display())))?;
    }
    let client = config::connect(global).await?;
    let options = ConsumerOptions { from: arguments.from.0, follow: !arguments.no_follow };
    let mut consumer: Consumer = client.consumer(&arguments.topic, options).await?;
    let mut left = arguments.max.unwrap_or(u64::MAX);
    let mut damaged = 0_u64;
    while left > 0 {
        let delivery = match consumer.next().await {
            Ok(Some(delivery)) => delivery,
            Ok(None) => break,
            // One bad record never hides the others.
            Err(error) if error.is_about_records() => {
                output::notice(format_args!("refstream: {error}"));
                damaged += 1;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        left -= 1;
        let store = match &delivery.record.value {
            Value::Reference(reference) => client.store(&reference.store).ok(),
            _ => None,
        };
        let mut value = json::record(&delivery, store.as_deref());
        if let Some(folder) = &arguments.payload {
            match write_payload(&client, &delivery, folder).await {
                Ok(path) => value["payload_file"] = serde_json::json!(path),
                Err(failure) if failure.exit() == Exit::Verification => {
                    output::notice(format_args!("refstream: {}", failure.text()));
                    damaged += 1;
                }
                Err(failure) => return Err(failure),
            }
        }
        output::line(&value.to_string())?;
    }
    if damaged > 0 {
        return Err(Failure::new(Exit::Verification, format!("{damaged} records or payloads are damaged; see above")));
    }
    Ok(())
}
