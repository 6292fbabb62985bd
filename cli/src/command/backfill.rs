//! `refstream backfill`.

use crate::{
    Global, config,
    exit::{Exit, Failure},
    output::{self, Format},
};
use refstream::{BackfillEvent, BackfillOptions, BackfillSummary, Client, UploadOptions, types::TopicName};
use serde_json::json;
use std::path::PathBuf;

/// Upload files in parallel and submit a reference for each; folders are walked
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  refstream backfill images ./photos --include '*.jpg' --exclude 'tmp/**'\n  refstream backfill images ./photos --dry-run\n\nThe record's key and source_name are the file's path relative to the folder given. Symbolic links are not followed."
)]
pub(crate) struct Arguments {
    /// The topic
    topic: TopicName,
    /// Files and folders
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Only files whose relative path matches; may repeat
    #[arg(long, value_name = "GLOB")]
    include: Vec<String>,
    /// Not files whose relative path matches; may repeat
    #[arg(long, value_name = "GLOB")]
    exclude: Vec<String>,
    /// List what would be done, do nothing
    #[arg(long)]
    dry_run: bool,
    /// Payloads up to this many bytes travel inside their record
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    inline_max: u32,
    /// Payloads below this many bytes share packs; 0: each is an object of its own
    #[arg(long, value_name = "BYTES")]
    pack_below: Option<u64>,
    /// Requests to the store at once
    #[arg(long, value_name = "N")]
    concurrency: Option<usize>,
    /// Store payloads as they are, never compressed
    #[arg(long)]
    no_compression: bool,
    /// An attribute of every record, may repeat
    #[arg(long, value_name = "NAME=VALUE")]
    attribute: Vec<String>,
}

/// Runs a backfill with a progress line on stderr.
pub(crate) async fn with_progress(
    client: &Client,
    topic: &TopicName,
    options: BackfillOptions,
    mut each: impl FnMut(&BackfillEvent) + Send,
) -> Result<BackfillSummary, Failure> {
    let bar = output::progress("{spinner} {bytes}/{total_bytes}  {binary_bytes_per_sec}  ETA {eta}  {msg}");
    let (mut found, mut done, mut failed, mut complete) = (0_u64, 0_u64, 0_u64, false);
    let result = client
        .backfill(topic, options)
        .await?
        .run(|event| {
            each(&event);
            match event {
                BackfillEvent::Found { files, bytes, complete: all } => {
                    found = files;
                    complete = all;
                    bar.set_length(bytes);
                }
                BackfillEvent::Done { bytes, .. } => {
                    done += 1;
                    bar.inc(bytes);
                }
                BackfillEvent::Failed(_) => failed += 1,
            }
            // The text is only rebuilt when it is drawn often enough to matter.
            if (done + failed) % 64 == 0 || done + failed == found {
                let more = if complete { "" } else { "+" };
                let failures = if failed == 0 { String::new() } else { format!(", {failed} failed") };
                bar.set_message(format!("{done}/{found}{more} files{failures}"));
            }
        })
        .await;
    bar.finish_and_clear();
    Ok(result?)
}

pub(crate) async fn run(global: &Global, arguments: Arguments) -> Result<(), Failure> {
    for path in &arguments.paths {
        if let Err(error) = std::fs::symlink_metadata(path) {
            return Err(Failure::usage(format!("cannot read {}: {error}", path.display())));
        }
    }
    let defaults = UploadOptions::default();
    let options = BackfillOptions {
        paths: arguments.paths,
        include: arguments.include,
        exclude: arguments.exclude,
        dry_run: arguments.dry_run,
        inline_max: arguments.inline_max,
        upload: UploadOptions {
            pack_below: arguments.pack_below.unwrap_or(defaults.pack_below),
            concurrency: arguments.concurrency.unwrap_or(defaults.concurrency),
            compression: if arguments.no_compression { None } else { defaults.compression },
            ..defaults
        },
        store: None,
        attributes: super::put::attributes(&arguments.attribute)?,
        ..BackfillOptions::default()
    };
    let client = config::connect(global).await?;
    let dry_run = options.dry_run;
    let format = global.output;
    let mut said = Ok(());
    let summary = with_progress(&client, &arguments.topic, options, |event| {
        if said.is_err() {
            return;
        }
        match event {
            BackfillEvent::Done { name, bytes } if dry_run => {
                said = match format {
                    Format::Jsonl => output::line(&json!({ "file": name, "bytes": bytes }).to_string()),
                    Format::Table => output::line(&format!("{bytes:>12}  {name}")),
                    Format::Json => Ok(()),
                };
            }
            BackfillEvent::Failed(failure) => eprintln!("refstream: {}: {}", failure.path, failure.error),
            _ => {}
        }
    })
    .await?;
    said?;
    let mut value = serde_json::to_value(&summary).map_err(Failure::failed)?;
    value["topic"] = json!(arguments.topic);
    value["dry_run"] = json!(dry_run);
    if format == Format::Table {
        let rate = |amount: u64| if summary.seconds > 0.0 { amount as f64 / summary.seconds } else { 0.0 };
        output::line(&format!(
            "{} {} of {} files, {} ({} stored in {} objects) in {:.1} s: {:.0} files/s, {}/s{}",
            if dry_run { "would backfill" } else { "backfilled" },
            summary.files_done,
            summary.files_found,
            output::bytes(summary.bytes_done),
            output::bytes(summary.bytes_stored),
            summary.objects,
            summary.seconds,
            rate(summary.files_done),
            output::bytes(rate(summary.bytes_done) as u64),
            if summary.files_failed == 0 { String::new() } else { format!("; {} failed", summary.files_failed) },
        ))?;
    } else {
        output::one(format, &value)?;
    }
    if summary.files_failed > 0 {
        return Err(Failure::new(
            Exit::Failed,
            format!(
                "{} of {} files were not backfilled; each is listed above",
                summary.files_failed, summary.files_found
            ),
        ));
    }
    Ok(())
}
