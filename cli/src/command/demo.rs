//! `refstream demo`.

use crate::{
    Global,
    config::{BrokerSettings, Settings},
    deployment,
    exit::{Exit, Failure},
    output::{self, Format},
    stores::{EMBEDDED, EmbeddedSettings, StoreSettings},
};
use refstream::{
    BackfillOptions, BackfillSummary, Client, ClientOptions, ConsumerOptions, From, SegmentState, StoreCredentials,
    types::{PartitionId, TopicConfig, TopicName},
};
use serde_json::json;
use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

/// Show the whole path on real files: backfill, live tail, seal, compact to Parquet, verify every payload
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  refstream demo\n  refstream demo ~/Pictures --keep ./demo-data\n\nRuns an embedded store and a broker on free ports in a temporary folder and needs nothing else."
)]
pub(crate) struct Arguments {
    /// Folder of files to use [default: sources of the cargo registry on this machine, else /usr/share/doc or what is like it]
    folder: Option<PathBuf>,
    /// At most this many files
    #[arg(long, default_value_t = 10_000, value_name = "N")]
    max_files: u64,
    /// At most this many bytes
    #[arg(long, default_value_t = 256_000_000, value_name = "BYTES")]
    max_bytes: u64,
    /// Keep everything in this (new) folder, to look at afterwards
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
}

/// Real files that a machine with Rust has.
fn default_folder() -> Option<PathBuf> {
    let home = |variable| std::env::var_os(variable).map(PathBuf::from);
    let cargo = [home("CARGO_HOME"), home("HOME").map(|home| home.join(".cargo"))];
    let mut candidates: Vec<PathBuf> = cargo.into_iter().flatten().map(|home| home.join("registry/src")).collect();
    // A built binary knows nothing of cargo's home: other real files follow.
    candidates.extend(["/usr/share/doc", "/usr/share", "/usr/lib"].map(PathBuf::from));
    candidates.into_iter().find(|folder| folder.read_dir().is_ok_and(|mut entries| entries.next().is_some()))
}

fn free(port_of: &str) -> Result<std::net::SocketAddr, Failure> {
    port_of.parse().map_err(Failure::failed)
}

pub(crate) async fn run(global: &Global, arguments: Arguments) -> Result<(), Failure> {
    tokio::select! {
        result = Box::pin(demonstrate(global, arguments)) => result,
        () = deployment::asked_to_stop() => Err(Failure::interrupted()),
    }
}

async fn demonstrate(global: &Global, arguments: Arguments) -> Result<(), Failure> {
    let folder = match arguments.folder {
        Some(folder) if folder.exists() => folder,
        Some(folder) => return Err(Failure::usage(format!("{} does not exist", folder.display()))),
        None => default_folder().ok_or_else(|| {
            Failure::usage("no real files were found on this machine: say which to use, refstream demo DIR")
        })?,
    };
    let temporary = tempfile::Builder::new().prefix("refstream-demo-").tempdir()?;
    let data = match &arguments.keep {
        Some(keep) => {
            if keep.exists() {
                return Err(Failure::usage(format!("{} exists already: --keep wants a new folder", keep.display())));
            }
            keep.clone()
        }
        None => temporary.path().to_owned(),
    };
    let say = |text: &str| {
        if global.output == Format::Table { output::line(text) } else { Ok(()) }
    };
    let broker = BrokerSettings {
        data: data.clone(),
        listen: free("127.0.0.1:0")?,
        http: free("127.0.0.1:0")?,
        s3: free("127.0.0.1:0")?,
        ..BrokerSettings::default()
    };
    let stores = [(EMBEDDED.parse()?, StoreSettings::Embedded(EmbeddedSettings {}))].into();
    let running = deployment::start(&Settings { broker, stores, ..Settings::default() }, None).await?;
    running.server.serving().await.map_err(|reason| Failure::failed(format!("the broker did not start: {reason}")))?;
    say(&format!("store and broker are up, data in {}", data.display()))?;

    let mut options = ClientOptions::new(format!("http://{}", running.server.grpc_address()));
    options.credentials = running.embedded().map(|store| StoreCredentials {
        access_key: store.keys.access_key().to_owned(),
        secret_key: store.keys.secret_key().to_owned(),
    });
    let client = Client::connect_with(options).await?;
    let topic: TopicName = "demo".parse()?;
    client.create_topic(&topic, &TopicConfig::default()).await?;

    let tail = tokio::spawn(watch(client.clone(), topic.clone()));
    say(&format!("backfilling files of {}", folder.display()))?;
    let backfill = BackfillOptions {
        paths: vec![folder.clone()],
        max_files: Some(arguments.max_files),
        max_bytes: Some(arguments.max_bytes),
        ..BackfillOptions::default()
    };
    let summary = super::backfill::with_progress(&client, &topic, backfill, |_| {}).await?;
    say(&format!("  {}", rates(&summary)))?;
    for failure in summary.failures.iter().take(5) {
        output::notice(format_args!("refstream: {}: {}", failure.path, failure.error));
    }
    if summary.files_done == 0 {
        return Err(Failure::failed(format!("no file of {} could be read", folder.display())));
    }

    let watched = watched_all(&client, &topic, summary.files_done, tail).await?;
    say(&format!("  the live tail saw {watched} records beside it, each once, offsets dense"))?;

    let sealed = client.seal(&topic).await?;
    let (segments, files) = compact(&client, &topic).await?;
    let listed = client.segments(&topic).await?;
    let published = listed.iter().filter(|s| s.state == SegmentState::Published).count();
    let file_bytes: u64 = listed.iter().filter(|s| s.state == SegmentState::Published).map(|s| s.bytes).sum();
    say(&format!(
        "sealed {} segments, {published} published in {} Parquet files ({})",
        sealed.len(),
        files.len(),
        output::bytes(file_bytes)
    ))?;

    let bar = output::progress("{spinner} verifying {msg}");
    let verified = refstream_check::verify(&client, &topic, true, |so_far| {
        bar.set_message(format!("{} records, {}", so_far.records, output::bytes(so_far.bytes)));
    })
    .await;
    bar.finish_and_clear();
    let verified = verified?;
    say(&format!(
        "verified {} records: {} of payload re-hashed, {} findings",
        verified.records,
        output::bytes(verified.bytes),
        verified.wrong
    ))?;

    let reason = running.drain().await;
    if reason != refstream_core::StopReason::Drained {
        return Err(Failure::failed(format!("the broker stopped: {reason}")));
    }
    report(
        global,
        &summary,
        watched,
        segments,
        &files,
        file_bytes,
        &verified,
        arguments.keep.is_some().then_some(&data),
    )?;
    if verified.wrong > 0 || verified.records != summary.files_done {
        return Err(Failure::new(
            Exit::Verification,
            format!("{} findings; {} records for {} files", verified.wrong, verified.records, summary.files_done),
        ));
    }
    Ok(())
}

fn rates(summary: &BackfillSummary) -> String {
    let seconds = summary.seconds.max(1e-9);
    format!(
        "{} files, {} in {:.1} s: {:.0} files/s, {}/s; stored as {} in {} objects{}",
        summary.files_done,
        output::bytes(summary.bytes_done),
        summary.seconds,
        summary.files_done as f64 / seconds,
        output::bytes((summary.bytes_done as f64 / seconds) as u64),
        output::bytes(summary.bytes_stored),
        summary.objects,
        if summary.files_failed == 0 { String::new() } else { format!("; {} files failed", summary.files_failed) },
    )
}

/// Compacts until every sealed segment is published: the broker's own compactor may be at work on some of them.
async fn compact(client: &Client, topic: &TopicName) -> Result<(usize, Vec<String>), Failure> {
    let mut files = std::collections::BTreeSet::new();
    loop {
        client.compact(topic, true).await?;
        let closed: Vec<_> =
            client.segments(topic).await?.into_iter().filter(|s| s.state != SegmentState::Open).collect();
        files.extend(closed.iter().flat_map(|s| s.files.iter().cloned()));
        if closed.iter().all(|s| s.state == SegmentState::Published) {
            let current =
                closed.iter().flat_map(|s| s.files.iter().cloned()).collect::<std::collections::BTreeSet<_>>();
            return Ok((closed.len(), current.into_iter().collect()));
        }
    }
}

/// Counts of the live tail, per partition.
type Seen = Arc<tokio::sync::watch::Sender<BTreeMap<PartitionId, u64>>>;

async fn watch(client: Client, topic: TopicName) -> Result<Tail, Failure> {
    let consumer = client.consumer(&topic, ConsumerOptions { from: From::Earliest, follow: true }).await?;
    let seen: Seen = Arc::new(tokio::sync::watch::channel(BTreeMap::new()).0);
    let sender = Arc::clone(&seen);
    let reader = tokio::spawn(async move {
        let mut consumer = consumer;
        while let Some(delivery) = consumer.next().await? {
            let mut problem = None;
            sender.send_modify(|seen| {
                let next = seen.entry(delivery.partition).or_default();
                if *next != delivery.offset.get() {
                    problem = Some(format!(
                        "the tail expected offset {next} of partition {}, got {}",
                        delivery.partition, delivery.offset
                    ));
                }
                *next += 1;
            });
            if let Some(problem) = problem {
                return Err(Failure::new(Exit::Verification, problem));
            }
        }
        Ok(())
    });
    Ok(Tail { seen, reader })
}

#[derive(Debug)]
struct Tail {
    seen: Seen,
    reader: tokio::task::JoinHandle<Result<(), Failure>>,
}

/// Waits until the tail has seen all that was acked.
async fn watched_all(
    client: &Client,
    topic: &TopicName,
    acked: u64,
    tail: tokio::task::JoinHandle<Result<Tail, Failure>>,
) -> Result<u64, Failure> {
    let Tail { seen, mut reader } = tail.await.map_err(Failure::failed)??;
    let committed: u64 = client.describe_topic(topic).await?.partitions.iter().map(|p| p.latest.get()).sum();
    if committed != acked {
        return Err(Failure::new(
            Exit::Verification,
            format!("{acked} records were acked, the topic holds {committed}"),
        ));
    }
    let mut receiver = seen.subscribe();
    let all = receiver.wait_for(|seen| seen.values().sum::<u64>() >= acked);
    tokio::select! {
        waited = tokio::time::timeout(Duration::from_secs(60), all) => {
            if waited.is_err() {
                let so_far: u64 = seen.borrow().values().sum();
                return Err(Failure::failed(format!("the live tail saw {so_far} of {acked} records within a minute")));
            }
        }
        ended = &mut reader => {
            ended.map_err(Failure::failed)??;
            return Err(Failure::failed("the live tail ended by itself"));
        }
    }
    reader.abort();
    let total = seen.borrow().values().sum();
    Ok(total)
}

#[allow(clippy::too_many_arguments)]
fn report(
    global: &Global,
    summary: &BackfillSummary,
    watched: u64,
    segments: usize,
    files: &[String],
    file_bytes: u64,
    verified: &refstream_check::Verification,
    kept: Option<&PathBuf>,
) -> Result<(), Failure> {
    let seconds = summary.seconds.max(1e-9);
    let value = json!({
        "files": summary.files_done,
        "files_failed": summary.files_failed,
        "payload_bytes": summary.bytes_done,
        "stored_bytes": summary.bytes_stored,
        "objects": summary.objects,
        "seconds": summary.seconds,
        "files_per_second": (summary.files_done as f64 / seconds).round(),
        "bytes_per_second": (summary.bytes_done as f64 / seconds).round(),
        "tailed": watched,
        "segments": segments,
        "parquet_files": files,
        "parquet_bytes": file_bytes,
        "parquet_bytes_per_record": (file_bytes as f64 / verified.records.max(1) as f64 * 10.0).round() / 10.0,
        "verified_records": verified.records,
        "verified_bytes": verified.bytes,
        "findings": verified.wrong,
        "data": kept,
    });
    if global.output != Format::Table {
        return output::one(global.output, &value);
    }
    output::line("")?;
    output::line("summary")?;
    for (name, text) in [
        ("files", format!("{} ({} failed)", summary.files_done, summary.files_failed)),
        (
            "payloads",
            format!(
                "{}, stored as {} in {} objects",
                output::bytes(summary.bytes_done),
                output::bytes(summary.bytes_stored),
                summary.objects
            ),
        ),
        (
            "rate",
            format!(
                "{:.0} files/s, {}/s",
                summary.files_done as f64 / seconds,
                output::bytes((summary.bytes_done as f64 / seconds) as u64)
            ),
        ),
        ("live tail", format!("{watched} records")),
        (
            "segments",
            format!(
                "{segments} in {} Parquet files, {} ({:.1} bytes a record)",
                files.len(),
                output::bytes(file_bytes),
                file_bytes as f64 / verified.records.max(1) as f64
            ),
        ),
        (
            "verified",
            format!(
                "{} records, {} re-hashed, {} findings",
                verified.records,
                output::bytes(verified.bytes),
                verified.wrong
            ),
        ),
    ] {
        output::line(&format!("  {name:10} {text}"))?;
    }
    for file in files.iter().take(5) {
        output::line(&format!("  parquet    {file}"))?;
    }
    if let Some(data) = kept {
        output::line(&format!("  kept in    {}; refstream up --data {} serves it", data.display(), data.display()))?;
    }
    Ok(())
}
