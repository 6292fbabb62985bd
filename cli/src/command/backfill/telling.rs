//! What is said while a backfill runs.

use crate::{
    exit::Failure,
    output::{self, Format},
};
use refstream::{
    BackfillEvent, BackfillOptions, BackfillProgress, BackfillSummary, Client, FileFailure, types::TopicName,
};
use serde_json::json;
use std::{
    fs::File,
    io::{BufWriter, Write as _},
    path::{Path, PathBuf},
};

/// Runs a backfill with a progress line on stderr.
pub(crate) async fn with_progress(
    client: &Client,
    topic: &TopicName,
    options: BackfillOptions,
    mut each: impl FnMut(&BackfillEvent) + Send,
) -> Result<BackfillSummary, Failure> {
    let bar = output::progress("{spinner} {bytes}/{total_bytes}  {msg}");
    let job = options.job.as_ref().filter(|_| !options.dry_run).map(|job| job.name.clone());
    let backfill = client.backfill(topic, options).await?;
    if let Some(job) = job {
        output::notice(format_args!("job {job}: if this is ended, go on with: refstream job resume {job}"));
    }
    let result = backfill
        .run(|event| {
            match event {
                BackfillEvent::Found { .. } | BackfillEvent::Done { .. } => each(&event),
                _ => bar.suspend(|| each(&event)),
            }
            match event {
                BackfillEvent::Found { bytes, .. } => bar.set_length(bytes),
                BackfillEvent::Done { bytes, .. } => bar.inc(bytes),
                BackfillEvent::Progress(progress) => bar.set_message(message(&progress)),
                _ => {}
            }
        })
        .await;
    bar.finish_and_clear();
    Ok(result?)
}

/// What the progress line says.
fn message(progress: &BackfillProgress) -> String {
    if let Some(stalled) = &progress.stalled {
        return stalled.clone();
    }
    let more = if progress.found_all { "" } else { "+" };
    let mut message = format!(
        "{}/s  {}/{}{more} files, {:.0}/s",
        output::bytes(progress.bytes_per_second as u64),
        progress.files_done,
        progress.files_found,
        progress.files_per_second,
    );
    if let Some(eta) = progress.eta_seconds {
        let eta = eta.ceil() as u64;
        message += &format!("  ETA {}:{:02}:{:02}", eta / 3_600, eta / 60 % 60, eta % 60);
    }
    for (count, what) in [
        (progress.hashing, "hashing"),
        (progress.uploading, "uploading"),
        (progress.committing, "committing"),
        (progress.files_already, "done before"),
        (progress.files_failed, "failed"),
    ] {
        if count > 0 {
            message += &format!("  {count} {what}");
        }
    }
    message
}

/// Finds out whether failures can be written down before there are any.
pub(super) fn check_writable(failures: &Path) -> Result<(), Failure> {
    let opened = File::options().create(true).append(true).open(failures);
    opened.map(drop).map_err(|error| {
        Failure::usage(format!(
            "cannot write failures to {}: {error}; choose another file with --failures",
            failures.display()
        ))
    })
}

/// Says what happens: results on stdout, trouble on stderr, failures in a file as well.
#[derive(Debug)]
pub(crate) struct Told {
    format: Format,
    failures: Option<PathBuf>,
    file: Option<BufWriter<File>>,
    stalled: bool,
    outcome: Result<(), Failure>,
}

impl Told {
    pub(crate) fn new(format: Format, failures: Option<PathBuf>) -> Self {
        // What an earlier run of the job wrote is no longer true.
        if let Some(failures) = &failures {
            let _ = std::fs::remove_file(failures);
        }
        Self { format, failures, file: None, stalled: false, outcome: Ok(()) }
    }

    /// The file that failures were written to, if there were any.
    pub(crate) fn failures_file(&self) -> Option<&Path> {
        self.file.as_ref().and(self.failures.as_deref())
    }

    /// What went wrong while telling.
    pub(crate) fn finish(&mut self) -> Result<(), Failure> {
        if let Some(file) = &mut self.file {
            file.flush()?;
        }
        std::mem::replace(&mut self.outcome, Ok(()))
    }

    pub(crate) fn tell(&mut self, event: &BackfillEvent) {
        if self.outcome.is_ok() {
            self.outcome = self.try_tell(event);
        }
    }

    fn try_tell(&mut self, event: &BackfillEvent) -> Result<(), Failure> {
        let jsonl = self.format == Format::Jsonl;
        match event {
            BackfillEvent::Would { name, key, bytes, placement } => match self.format {
                Format::Jsonl => output::line(
                    &json!({ "event": "would", "file": name, "key": key, "bytes": bytes, "placement": placement })
                        .to_string(),
                ),
                Format::Table if key == name => output::line(&format!("{bytes:>12}  {name}")),
                Format::Table => output::line(&format!("{bytes:>12}  {name} -> {key}")),
                Format::Json => Ok(()),
            },
            BackfillEvent::Failed(failure) => {
                output::notice(format_args!("refstream: {}: {}", failure.path, failure.error));
                self.write_down(failure)?;
                if jsonl {
                    let line = json!({ "event": "failed", "file": failure.path, "error": failure.error });
                    output::line(&line.to_string())?;
                }
                Ok(())
            }
            BackfillEvent::Changed { name } => {
                output::notice(format_args!("refstream: {name}: changed since its record was made; it is left alone"));
                if jsonl {
                    output::line(&json!({ "event": "changed", "file": name }).to_string())?;
                }
                Ok(())
            }
            BackfillEvent::Progress(progress) => {
                if let Some(stalled) = progress.stalled.as_ref().filter(|_| !self.stalled) {
                    output::notice(format_args!("refstream: {stalled}"));
                }
                self.stalled = progress.stalled.is_some();
                if jsonl {
                    let mut line = serde_json::to_value(progress).map_err(Failure::failed)?;
                    line["event"] = json!("progress");
                    output::line(&line.to_string())?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn write_down(&mut self, failure: &FileFailure) -> Result<(), Failure> {
        let Some(path) = &self.failures else { return Ok(()) };
        let failed = |error| Failure::failed(format!("cannot write {}: {error}", path.display()));
        let mut file = match self.file.take() {
            Some(file) => file,
            None => BufWriter::new(File::create(path).map_err(failed)?),
        };
        let line = serde_json::to_string(failure).map_err(Failure::failed)?;
        writeln!(file, "{line}").map_err(failed)?;
        self.file = Some(file);
        Ok(())
    }
}
