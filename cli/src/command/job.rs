//! `refstream job`.

use super::backfill::{JobFolder, perform};
use crate::{
    Global, config,
    exit::Failure,
    output::{self, Format},
};
use refstream::{JobOptions, JobPhase, JobStatus, jobs};
use serde_json::json;
use std::path::PathBuf;

/// Jobs: list, status, resume, cancel
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Arguments {
    /// All jobs
    #[command(after_help = "Example:\n  refstream job list")]
    List {
        #[command(flatten)]
        jobs: JobFolder,
    },
    /// How a job stands, and its first failures
    #[command(after_help = "Example:\n  refstream job status images-1f3a9c0d")]
    Status {
        /// The job
        job: String,
        #[command(flatten)]
        jobs: JobFolder,
    },
    /// Go on with a job, as it was last run
    #[command(
        after_help = "Example:\n  refstream job resume images-1f3a9c0d\n  refstream job resume images-1f3a9c0d --retry-failed"
    )]
    Resume {
        /// The job
        job: String,
        /// Only files that failed before
        #[arg(long)]
        retry_failed: bool,
        /// Write failures to this file, one JSON document a line [default: NAME.failures.jsonl beside the job]
        #[arg(long, value_name = "FILE")]
        failures: Option<PathBuf>,
        #[command(flatten)]
        jobs: JobFolder,
    },
    /// End a job for good: uploads that were begun are given up, records that were made stay
    #[command(after_help = "Example:\n  refstream job cancel images-1f3a9c0d")]
    Cancel {
        /// The job
        job: String,
        #[command(flatten)]
        jobs: JobFolder,
    },
}

pub(crate) async fn run(global: &Global, arguments: Arguments) -> Result<(), Failure> {
    match arguments {
        Arguments::List { jobs } => list(global, &jobs),
        Arguments::Status { job, jobs } => status(global, &named(job, &jobs)?),
        Arguments::Resume { job, retry_failed, failures, jobs } => {
            let job_name = job.clone();
            let (topic, mut options) = jobs::resume_options(&named(job, &jobs)?)?;
            options.retry_failed = retry_failed;
            if !retry_failed && options.lists.iter().any(|list| list.as_os_str() == "-") {
                let again = format!("refstream backfill {topic} - --job {}", job_name);
                return Err(Failure::usage(format!(
                    "the job's paths came from standard input; give them again: {again}"
                )));
            }
            let client = config::connect(global).await?;
            perform(global, &client, &topic, options, failures.as_deref()).await
        }
        Arguments::Cancel { job, jobs } => {
            let job = named(job, &jobs)?;
            let client = config::connect(global).await?;
            let running = jobs::cancel(&client, &job).await?;
            let said = if running { "it is running and ends within about a second" } else { "cancelled" };
            match global.output {
                Format::Table => output::line(&format!("{}: {said}", job.name)),
                format => output::one(format, &json!({ "name": job.name, "was_running": running })),
            }
        }
    }
}

fn named(name: String, jobs: &JobFolder) -> Result<JobOptions, Failure> {
    Ok(JobOptions { folder: jobs.path()?, name })
}

fn list(global: &Global, jobs: &JobFolder) -> Result<(), Failure> {
    let folder = jobs.path()?;
    let mut rows = Vec::new();
    for name in jobs::list(&folder).map_err(|error| Failure::failed(error.to_string()))? {
        rows.push(match jobs::status(&JobOptions { folder: folder.clone(), name: name.clone() }) {
            Ok(status) => json!({
                "name": name,
                "state": status.phase,
                "topic": status.topic,
                "done": status.files_done,
                "failed": status.files_failed,
                "bytes": status.bytes_done,
                "created": status.created_at,
            }),
            Err(error) => json!({ "name": name, "state": "unreadable", "error": error.to_string() }),
        });
    }
    output::rows(global.output, &["name", "state", "topic", "done", "failed", "bytes", "created"], &rows)
}

fn status(global: &Global, job: &JobOptions) -> Result<(), Failure> {
    let status = jobs::status(job)?;
    let failures = status.failures.clone();
    let mut value = serde_json::to_value(&status).map_err(Failure::failed)?;
    if global.output != Format::Table {
        return output::one(global.output, &value);
    }
    if let Some(fields) = value.as_object_mut() {
        fields.remove("failures");
        fields.remove("progress");
    }
    output::one(Format::Table, &value)?;
    if let JobStatus { phase: JobPhase::Running, progress: Some(progress), .. } = &status {
        output::line(&format!(
            "running: {} of {} files, {} of {}",
            progress.files_done,
            progress.files_found,
            output::bytes(progress.bytes_done),
            output::bytes(progress.bytes_found)
        ))?;
        if let Some(stalled) = &progress.stalled {
            output::line(stalled)?;
        }
    }
    for failure in failures {
        output::line(&format!("failed: {}: {}", failure.path, failure.error))?;
    }
    Ok(())
}
