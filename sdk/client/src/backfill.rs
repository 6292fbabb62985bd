//! Backfilling folders of files.
//!
//! A walk finds files and hands them on in chunks over a bounded queue, so that uploading starts before it ends and memory does not grow
//! with the number of files. Small files are read, hashed and compressed a chunk at a time on a few threads, and go into packs together;
//! others are uploaded one by one, large ones in parallel parts. Each file's order of writes is: payload durable, then its record, then the
//! record's ack; only then is it counted as done. A file that fails is reported and does not stop the others. **A crash** leaves payloads that
//! nothing refers to, and files whose record is durable although this process did not say so; a *job* remembers both, and goes on (module `job`).
//!
//! A record's source name is the file's path below the folder that was given (its name, where a file was given), with slashes; its key is the
//! same, or made of it by a template. Names that are not UTF-8 are percent-encoded, `%` included. Symbolic links below the given paths are not
//! followed; they and other special files (sockets, pipes, devices) are counted as skipped. The modification time is the record's event time.

mod content_type;
mod in_place;
#[cfg(feature = "jobs")]
pub(crate) mod job;
#[cfg_attr(not(feature = "jobs"), allow(dead_code))]
mod lane;
#[cfg_attr(not(feature = "jobs"), allow(dead_code))]
mod ledger;
mod manifest;
mod options;
mod progress;
mod read;
mod source;
mod tar;
mod template;
mod walk;

#[cfg(feature = "jobs")]
pub use job::{JobOptions, JobPhase, JobStatus};
pub use options::{BackfillEvent, BackfillOptions, BackfillSummary, FileFailure, Placement};
pub use progress::BackfillProgress;
pub use template::KeyTemplate;

use crate::{
    BackfillError, Client, InlineRefused, Producer, ProducerOptions, SourceUnreadable, TopicDescription, UploadError,
    UploadOptions, Uploader,
};
use lane::{Lane, Report};
use ledger::{Ledger, Lookup};
use progress::{Phases, Troubles, Watch};
use refstream_filer_adapter::Runtime;
use refstream_types::{Header, TopicName};
use source::{Sources, Upload};
use std::{
    ops::ControlFlow,
    path::PathBuf,
    sync::{Arc, OnceLock},
};
use tokio::{
    sync::mpsc,
    task::{JoinError, JoinSet},
};
use walk::{Chunks, Limits, Patterns, Walked};

/// Chunks that the walk may be ahead.
const CHUNKS_AHEAD: usize = 64;
/// Failures that the summary lists.
const FAILURES_LISTED: usize = 1_000;

/// Backfills files into a topic: each file a record.
#[derive(Debug)]
pub struct Backfill {
    sources: Option<Sources>,
    patterns: Patterns,
    key: Option<KeyTemplate>,
    limits: Limits,
    sinks: Sinks,
    inline_max: u64,
    upload: UploadOptions,
    headers: Vec<Header>,
    runtime: Arc<dyn Runtime>,
    #[cfg(feature = "jobs")]
    job: Option<Arc<job::Job>>,
    #[cfg(feature = "jobs")]
    retry_failed: bool,
}

/// Where everything goes.
enum Sinks {
    /// To a store and a topic.
    Real(Uploader, Producer),
    /// Nowhere; what is known of the files by a job, if there is one.
    DryRun(Option<Lookup>),
}

impl std::fmt::Debug for Sinks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Real(..) => "Real",
            Self::DryRun(_) => "DryRun",
        })
    }
}

impl Backfill {
    pub(crate) async fn open(
        client: &Client,
        topic: &TopicName,
        options: BackfillOptions,
    ) -> Result<Self, BackfillError> {
        let patterns =
            Patterns::new(&options.include, &options.exclude)?.ignoring(&options.exclude_from, options.gitignore)?;
        let key = options.key.as_deref().map(str::parse).transpose()?;
        let sources = Some(Sources::new(client, &options)?);
        let description = client.topic_settings(topic).await.map_err(UploadError::Topic)?;
        let permitted = description.config.inline_max;
        if options.inline_max > permitted {
            return Err(InlineRefused { topic: topic.clone(), asked: options.inline_max, permitted }.into());
        }
        let header = |(name, value): (String, String)| Header { name, value: value.into() };
        let mut this = Self {
            sources,
            patterns,
            key,
            limits: Limits {
                files: options.max_files.unwrap_or(u64::MAX),
                bytes: options.max_bytes.unwrap_or(u64::MAX),
            },
            sinks: Sinks::DryRun(None),
            inline_max: u64::from(options.inline_max),
            upload: options.upload.clone(),
            headers: options.attributes.clone().into_iter().map(header).collect(),
            runtime: Arc::clone(client.runtime()),
            #[cfg(feature = "jobs")]
            job: None,
            #[cfg(feature = "jobs")]
            retry_failed: options.retry_failed,
        };
        this.connect(client, &description, options).await?;
        Ok(this)
    }

    async fn connect(
        &mut self,
        client: &Client,
        topic: &TopicDescription,
        options: BackfillOptions,
    ) -> Result<(), BackfillError> {
        #[cfg(feature = "jobs")]
        if let (true, Some(job)) = (options.dry_run, &options.job) {
            self.sinks = Sinks::DryRun(job::peek(job)?);
        }
        if options.dry_run {
            return Ok(());
        }
        let uploader = client.uploader_to(topic, options.store.as_ref(), options.upload.clone())?;
        let how = ProducerOptions { bulk: true, ..ProducerOptions::default() };
        #[cfg(feature = "jobs")]
        if let Some(named) = options.job.clone() {
            let job = job::Job::open(client, topic, named, &options).await?;
            let producer = Producer::open(client, &topic.name, how, Some(Arc::clone(&job) as _)).await?;
            self.sinks = Sinks::Real(uploader.noting(Arc::clone(&job) as _), producer);
            self.headers.push(job.header());
            self.job = Some(job);
            return Ok(());
        }
        self.sinks = Sinks::Real(uploader, client.producer(&topic.name, how).await?);
        Ok(())
    }

    /// What remembers the files.
    fn ledger(&self) -> Option<Arc<dyn Ledger>> {
        #[cfg(feature = "jobs")]
        return self.job.clone().map(|job| job as Arc<dyn Ledger>);
        #[cfg(not(feature = "jobs"))]
        None
    }

    /// Starts finding files.
    fn find(&mut self, chunks: mpsc::Sender<Walked>, small_below: u64) -> tokio::task::JoinHandle<()> {
        let sources = self.sources.take();
        let upload = Upload {
            uploader: match &self.sinks {
                Sinks::Real(uploader, _) => Some(uploader.clone()),
                Sinks::DryRun(_) => None,
            },
            ledger: self.ledger(),
        };
        let patterns = std::mem::replace(&mut self.patterns, Patterns::none());
        let (key, limits) = (self.key.take(), self.limits);
        #[cfg(feature = "jobs")]
        let failed = self.job.clone().filter(|_| self.retry_failed);
        tokio::task::spawn_blocking(move || {
            let mut chunks = Chunks::new(&patterns, key.as_ref(), limits, small_below, &chunks);
            #[cfg(feature = "jobs")]
            let _: ControlFlow<_> = match failed {
                Some(job) => job.find_failed(&mut chunks),
                None => sources.map_or(ControlFlow::Continue(()), |sources| sources.find(&upload, &mut chunks)),
            };
            #[cfg(not(feature = "jobs"))]
            let _: ControlFlow<_> =
                sources.map_or(ControlFlow::Continue(()), |sources| sources.find(&upload, &mut chunks));
            chunks.finish();
        })
    }

    /// Runs to the end. Uploading starts before the walk ends; memory does not grow with the number of files.
    ///
    /// # Errors
    /// When it could not go on at all; files that failed alone are in the summary.
    pub async fn run(
        mut self,
        mut on_event: impl FnMut(BackfillEvent) + Send,
    ) -> Result<BackfillSummary, BackfillError> {
        let start = self.runtime.now();
        let (chunks, walked) = mpsc::channel(CHUNKS_AHEAD);
        let small_below = match &self.sinks {
            Sinks::Real(uploader, _) => uploader.options().pack_below.max(self.inline_max + 1),
            Sinks::DryRun(_) => u64::MAX,
        };
        let may_repeat = self.sources.as_ref().is_some_and(Sources::may_repeat);
        let walk = self.find(chunks, small_below);
        let (reports, reported) = mpsc::channel(CHUNKS_AHEAD);
        let phases = Arc::new(Phases::default());
        let ledger = self.ledger();
        let mut tasks = JoinSet::new();
        let mut sinks = None;
        match std::mem::replace(&mut self.sinks, Sinks::DryRun(None)) {
            Sinks::Real(uploader, producer) => {
                sinks = Some((uploader.clone(), producer.clone()));
                tasks.spawn(lane::dispatch(
                    Lane {
                        uploader,
                        producer,
                        inline_max: self.inline_max,
                        headers: std::mem::take(&mut self.headers).into(),
                        ledger,
                        phases: Arc::clone(&phases),
                        reports,
                        fatal: Arc::new(OnceLock::new()),
                        objects: Arc::default(),
                        may_repeat,
                    },
                    walked,
                ));
            }
            Sinks::DryRun(lookup) => {
                tasks.spawn(rehearse(lookup, walked, reports));
            }
        }
        let telling = Telling { summary: BackfillSummary::default(), progress: BackfillProgress::default(), start };
        let told = telling.tell(&self, sinks.as_ref(), &phases, reported, &mut on_event).await;
        let (mut summary, outcome) = match told {
            Some(summary) => {
                let ended = tasks.join_next().await.unwrap_or(Ok(Ok(())));
                (summary, ended.unwrap_or(Err(interrupted())))
            }
            None => {
                // Cancelled: what is under way is dropped, as by a crash.
                tasks.shutdown().await;
                (BackfillSummary::default(), Ok(()))
            }
        };
        if outcome.is_ok() {
            walk.await.map_err(|_: JoinError| interrupted())?;
        }
        summary.seconds = (self.runtime.now() - start).as_secs_f64();
        if let Some((uploader, _)) = &sinks {
            let totals = uploader.totals();
            summary.objects = totals.objects;
            summary.bytes_stored = totals.bytes;
        }
        #[cfg(feature = "jobs")]
        let outcome = self.end_job(&mut summary, outcome, sinks).await;
        outcome.map(|()| summary)
    }

    /// Notes how the run ended, and lets others open the job.
    #[cfg(feature = "jobs")]
    async fn end_job(
        &mut self,
        summary: &mut BackfillSummary,
        outcome: Result<(), BackfillError>,
        sinks: Option<(Uploader, Producer)>,
    ) -> Result<(), BackfillError> {
        let Some(job) = self.job.take() else { return outcome };
        summary.job = Some(job.name().to_owned());
        let ended = match &outcome {
            Ok(()) if job.is_cancelled() => {
                if let Some((uploader, producer)) = sinks {
                    drop(producer);
                    job.cancelled(&uploader).await?;
                }
                Err(BackfillError::Cancelled(crate::JobCancelled { job: job.name().to_owned() }))
            }
            Ok(()) => Ok(job.end(job.after(!self.retry_failed, summary.files_failed)).await?),
            Err(_) => Ok(job.end(job::Ended::Incomplete).await?),
        };
        let _ = tokio::task::spawn_blocking(move || job.close()).await;
        outcome.and(ended)
    }
}

/// Adds up what the tasks report.
struct Telling {
    summary: BackfillSummary,
    progress: BackfillProgress,
    start: std::time::Duration,
}

impl Telling {
    /// Until the tasks have nothing more to report; `None` when the job was cancelled.
    async fn tell(
        mut self,
        backfill: &Backfill,
        sinks: Option<&(Uploader, Producer)>,
        phases: &Phases,
        mut reported: mpsc::Receiver<Vec<Report>>,
        on_event: &mut (impl FnMut(BackfillEvent) + Send),
    ) -> Option<BackfillSummary> {
        let mut watch = Watch::default();
        let mut tick = backfill.runtime.sleep(progress::EVERY);
        loop {
            tokio::select! {
                report = reported.recv() => match report {
                    Some(reports) => reports.into_iter().for_each(|report| self.take(backfill, report, on_event)),
                    None => break,
                },
                () = &mut tick => {
                    tick = backfill.runtime.sleep(progress::EVERY);
                    let now = backfill.runtime.now();
                    self.progress.seconds = (now - self.start).as_secs_f64();
                    if let Some((uploader, _)) = sinks {
                        self.progress.bytes_stored = uploader.taken();
                    }
                    watch.look(now, &mut self.progress, phases, || Troubles {
                        store: sinks.and_then(|(uploader, _)| uploader.trouble()),
                        broker: sinks.and_then(|(_, producer)| producer.trouble()),
                    });
                    #[cfg(feature = "jobs")]
                    if let Some(job) = &backfill.job {
                        job.publish(&self.progress);
                        if job.is_cancelled() {
                            return None;
                        }
                    }
                    on_event(BackfillEvent::Progress(self.progress.clone()));
                }
            }
        }
        Some(self.summary)
    }

    fn take(&mut self, backfill: &Backfill, report: Report, on_event: &mut (impl FnMut(BackfillEvent) + Send)) {
        let (summary, progress) = (&mut self.summary, &mut self.progress);
        match report {
            Report::Walked { files, bytes, already, skipped, complete } => {
                summary.files_found += files + already;
                summary.files_already += already;
                summary.files_skipped += skipped;
                progress.files_found += files;
                progress.bytes_found += bytes;
                progress.files_already += already;
                progress.found_all |= complete;
                let (files, bytes) = (progress.files_found, progress.bytes_found);
                on_event(BackfillEvent::Found { files, bytes, complete });
            }
            Report::Done { name, bytes } => {
                summary.files_done += 1;
                summary.bytes_done += bytes;
                (progress.files_done, progress.bytes_done) = (summary.files_done, summary.bytes_done);
                on_event(BackfillEvent::Done { name, bytes });
            }
            Report::Would(found) => {
                summary.files_done += 1;
                summary.bytes_done += found.size;
                let key = found.key().to_owned();
                let attached = found.placed.is_some();
                let placement = if attached { Placement::Attached } else { backfill.placement(found.size) };
                on_event(BackfillEvent::Would { name: found.name, key, bytes: found.size, placement });
            }
            Report::Changed { name } => {
                summary.files_changed += 1;
                summary.files_already -= 1;
                on_event(BackfillEvent::Changed { name });
            }
            Report::Failed(failure) => {
                summary.files_failed += 1;
                progress.files_failed += 1;
                if summary.failures.len() < FAILURES_LISTED {
                    summary.failures.push(failure.clone());
                }
                on_event(BackfillEvent::Failed(failure));
            }
        }
    }
}

impl Backfill {
    /// How a file of this size would be stored, if it does not compress.
    fn placement(&self, size: u64) -> Placement {
        match size {
            _ if self.inline_max > 0 && size <= self.inline_max => Placement::Inline,
            _ if size < self.upload.pack_below => Placement::Pack,
            _ if size < 2 * self.upload.part_bytes => Placement::Object,
            _ => Placement::Parts,
        }
    }
}

/// Paths that stay right wherever the program is run, and exist. One that lies below another would give two records to a file.
fn absolute(paths: &[PathBuf]) -> Result<Vec<PathBuf>, BackfillError> {
    let mut absolute: Vec<PathBuf> = Vec::new();
    for path in paths {
        let unreadable = |why: String| SourceUnreadable { path: Some(path.clone()), why };
        std::fs::metadata(path).map_err(|error| unreadable(error.to_string()))?;
        // Without `.` and a slash at the end, so that one file has one path.
        let path: PathBuf =
            std::path::absolute(path).map_err(|error| unreadable(error.to_string()))?.components().collect();
        if absolute.contains(&path) {
            continue;
        }
        if let Some(other) = absolute.iter().find(|other| path.starts_with(other) || other.starts_with(&path)) {
            let why = format!("it overlaps {}, so files would have two records; give one of them", other.display());
            return Err(unreadable(why).into());
        }
        absolute.push(path);
    }
    Ok(absolute)
}

fn interrupted() -> BackfillError {
    UploadError::Interrupted(crate::Interrupted).into()
}

/// A dry run.
async fn rehearse(
    lookup: Option<Lookup>,
    mut walked: mpsc::Receiver<Walked>,
    reports: mpsc::Sender<Vec<Report>>,
) -> Result<(), BackfillError> {
    while let Some(mut chunk) = walked.recv().await {
        let files = std::mem::take(&mut chunk.files);
        let mut sorted = match lookup.clone() {
            Some(lookup) => {
                let looked = tokio::task::spawn_blocking(move || Ok::<_, BackfillError>((lookup(&files)?, files)));
                let (known, files) = looked.await.map_err(|_: JoinError| interrupted())??;
                lane::sort(files, known)
            }
            None => {
                let known = vec![ledger::Known::New; files.len()];
                lane::sort(files, known)
            }
        };
        let mut report = sorted.report(&mut chunk);
        report.extend(sorted.into_files().map(Report::Would));
        if reports.send(report).await.is_err() {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
