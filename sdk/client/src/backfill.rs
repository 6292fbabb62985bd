//! Backfilling folders of files.
//!
//! A walk finds files and hands them on in chunks over a bounded queue, so that uploading starts before it ends and memory does not grow
//! with the number of files. Small files are read, hashed and compressed a chunk at a time on a few threads, and go into packs together;
//! others are uploaded one by one. Each file's order of writes is: payload durable, then its record, then the record's ack; only then is it
//! counted as done. A file that fails is reported and does not stop the others. **A crash** leaves payloads that nothing refers to, and files
//! whose record is durable although this process did not say so.
//!
//! A record's key and source name are the file's path below the folder that was given (its name, where a file was given), with slashes.
//! Names that are not UTF-8 are percent-encoded, `%` included. Symbolic links below the given paths are not followed; they and other
//! special files (sockets, pipes, devices) are counted as skipped. The modification time is the record's event time.

mod content_type;
mod read;
mod walk;

use crate::{
    BackfillError, Client, ErrorClass, Producer, ProducerOptions, SourceUnreadable, UploadError, UploadOptions,
    Uploader,
    uploader::{PackState, Source},
};
use read::{Read, SmallFile, SmallValue};
use refstream_filer_adapter::Runtime;
use refstream_types::{Header, Record, Reference, StoreName, TopicName, Value};
use serde::Serialize;
use std::{
    path::PathBuf,
    sync::{Arc, OnceLock},
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    task::{JoinError, JoinSet},
};
use walk::{Found, Limits, Patterns, Walked};

/// Files between the walk and their ack.
const FILES_UNDER_WAY: u32 = 16_384;
/// Threads that read small files.
const READERS: usize = 4;
/// Chunks that the walk may be ahead.
const CHUNKS_AHEAD: usize = 64;
/// Failures that the summary lists.
const FAILURES_LISTED: usize = 1_000;

/// What to backfill. The default is nothing: give at least one path.
#[derive(Clone, Debug, Default)]
pub struct BackfillOptions {
    /// Files and folders; folders are walked. Symbolic links below them are not followed.
    pub paths: Vec<PathBuf>,
    /// Only files whose relative path matches one of these globs; empty: all. `*` also matches slashes.
    pub include: Vec<String>,
    /// Not files whose relative path matches one of these globs.
    pub exclude: Vec<String>,
    /// Only say what would be done.
    pub dry_run: bool,
    /// Values of at most this many bytes travel inside their record. 0: none does.
    pub inline_max: u32,
    /// How to upload.
    pub upload: UploadOptions,
    /// Store of the payloads; `None` means the topic's.
    pub store: Option<StoreName>,
    /// Attributes of every record.
    pub attributes: Vec<(String, String)>,
    /// End the walk after this many files.
    pub max_files: Option<u64>,
    /// End the walk before the file that would exceed this many bytes in all.
    pub max_bytes: Option<u64>,
}

/// A file that was not backfilled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileFailure {
    /// Its path.
    pub path: String,
    /// Why, and what to do.
    pub error: String,
}

/// What happens during a backfill, as it happens.
#[derive(Clone, Debug)]
pub enum BackfillEvent {
    /// Files and bytes found so far, and whether the walk has ended.
    Found {
        /// Files.
        files: u64,
        /// Bytes.
        bytes: u64,
        /// The walk has ended.
        complete: bool,
    },
    /// A file's record is durable (in a dry run: would be made).
    Done {
        /// Its path relative to the walked folder.
        name: String,
        /// Its size.
        bytes: u64,
    },
    /// A file failed; the others go on.
    Failed(FileFailure),
}

/// The end of a backfill.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct BackfillSummary {
    /// Files found.
    pub files_found: u64,
    /// Files whose record is durable.
    pub files_done: u64,
    /// Files that failed.
    pub files_failed: u64,
    /// Symbolic links, sockets, pipes and devices, which are passed over.
    pub files_skipped: u64,
    /// Bytes of the files done.
    pub bytes_done: u64,
    /// Bytes that were stored for them.
    pub bytes_stored: u64,
    /// Objects that were stored for them.
    pub objects: u64,
    /// Duration in seconds.
    pub seconds: f64,
    /// The first 1,000 failures.
    pub failures: Vec<FileFailure>,
}

/// Backfills files into a topic: each file a record whose key is its relative path.
#[derive(Debug)]
pub struct Backfill {
    paths: Vec<PathBuf>,
    patterns: Patterns,
    limits: Limits,
    /// `None` in a dry run.
    sinks: Option<(Uploader, Producer)>,
    inline_max: u64,
    headers: Arc<[Header]>,
    runtime: Arc<dyn Runtime>,
}

impl Backfill {
    pub(crate) async fn open(
        client: &Client,
        topic: &TopicName,
        options: BackfillOptions,
    ) -> Result<Self, BackfillError> {
        let patterns = Patterns::new(&options.include, &options.exclude)?;
        for path in &options.paths {
            std::fs::metadata(path)
                .map_err(|error| SourceUnreadable { path: Some(path.clone()), why: error.to_string() })?;
        }
        let description = client.topic_settings(topic).await.map_err(UploadError::Topic)?;
        let sinks = if options.dry_run {
            None
        } else {
            let uploader = client.uploader_to(&description, options.store.as_ref(), options.upload)?;
            let how = ProducerOptions { bulk: true, ..ProducerOptions::default() };
            Some((uploader, client.producer(topic, how).await?))
        };
        let header = |(name, value): (String, String)| Header { name, value: value.into() };
        Ok(Self {
            paths: options.paths,
            patterns,
            limits: Limits {
                files: options.max_files.unwrap_or(u64::MAX),
                bytes: options.max_bytes.unwrap_or(u64::MAX),
            },
            sinks,
            inline_max: u64::from(options.inline_max),
            headers: options.attributes.into_iter().map(header).collect(),
            runtime: Arc::clone(client.runtime()),
        })
    }

    /// Runs to the end. Uploading starts before the walk ends; memory does not grow with the number of files.
    ///
    /// # Errors
    /// When it could not go on at all; files that failed alone are in the summary.
    pub async fn run(self, mut on_event: impl FnMut(BackfillEvent) + Send) -> Result<BackfillSummary, BackfillError> {
        let start = self.runtime.now();
        let (chunks, walked) = mpsc::channel(CHUNKS_AHEAD);
        let (paths, patterns, limits) = (self.paths, self.patterns, self.limits);
        let small_below = match &self.sinks {
            Some((uploader, _)) => uploader.options().pack_below.max(self.inline_max + 1),
            None => u64::MAX,
        };
        let walk = tokio::task::spawn_blocking(move || walk::walk(&paths, &patterns, limits, small_below, &chunks));
        let (reports, mut reported) = mpsc::channel(CHUNKS_AHEAD);
        let mut tasks = JoinSet::new();
        let uploader = self.sinks.as_ref().map(|(uploader, _)| uploader.clone());
        if let Some((uploader, producer)) = self.sinks {
            let lane = Lane {
                uploader,
                producer,
                inline_max: self.inline_max,
                headers: self.headers,
                reports,
                fatal: Arc::new(OnceLock::new()),
            };
            tasks.spawn(dispatch(lane, walked));
        } else {
            tasks.spawn(rehearse(walked, reports));
        }
        let mut summary = BackfillSummary::default();
        let mut found_bytes = 0;
        while let Some(report) = reported.recv().await {
            for event in report {
                match event {
                    Report::Walked { files, bytes, skipped, complete } => {
                        summary.files_found += files;
                        summary.files_skipped += skipped;
                        found_bytes += bytes;
                        on_event(BackfillEvent::Found { files: summary.files_found, bytes: found_bytes, complete });
                    }
                    Report::Done { name, bytes } => {
                        summary.files_done += 1;
                        summary.bytes_done += bytes;
                        on_event(BackfillEvent::Done { name, bytes });
                    }
                    Report::Failed(failure) => {
                        summary.files_failed += 1;
                        if summary.failures.len() < FAILURES_LISTED {
                            summary.failures.push(failure.clone());
                        }
                        on_event(BackfillEvent::Failed(failure));
                    }
                }
            }
        }
        let ended = tasks.join_next().await.unwrap_or(Ok(Ok(())));
        ended.unwrap_or(Err(interrupted()))?;
        walk.await.map_err(|_: JoinError| interrupted())?;
        if let Some(uploader) = uploader {
            let totals = uploader.totals();
            summary.objects = totals.objects;
            summary.bytes_stored = totals.bytes;
        }
        summary.seconds = (self.runtime.now() - start).as_secs_f64();
        Ok(summary)
    }
}

fn interrupted() -> BackfillError {
    UploadError::Interrupted(crate::Interrupted).into()
}

/// What the tasks tell.
enum Report {
    Walked { files: u64, bytes: u64, skipped: u64, complete: bool },
    Done { name: String, bytes: u64 },
    Failed(FileFailure),
}

impl Report {
    fn failed(name: &str, error: impl ToString) -> Self {
        Self::Failed(FileFailure { path: name.to_owned(), error: error.to_string() })
    }
}

fn walk_report(chunk: &mut Walked) -> Vec<Report> {
    let files = chunk.files.len() as u64;
    let bytes = chunk.files.iter().map(|found| found.size).sum();
    let mut reports = vec![Report::Walked { files, bytes, skipped: chunk.skipped, complete: chunk.complete }];
    reports.extend(chunk.failures.drain(..).map(Report::Failed));
    reports
}

/// A dry run.
async fn rehearse(mut walked: mpsc::Receiver<Walked>, reports: mpsc::Sender<Vec<Report>>) -> Result<(), BackfillError> {
    while let Some(mut chunk) = walked.recv().await {
        let mut report = walk_report(&mut chunk);
        report.extend(chunk.files.into_iter().map(|found| Report::Done { name: found.name, bytes: found.size }));
        if reports.send(report).await.is_err() {
            break;
        }
    }
    Ok(())
}

/// What each file needs on its way.
#[derive(Clone)]
struct Lane {
    uploader: Uploader,
    producer: Producer,
    inline_max: u64,
    headers: Arc<[Header]>,
    reports: mpsc::Sender<Vec<Report>>,
    /// Why the whole backfill cannot go on.
    fatal: Arc<OnceLock<BackfillError>>,
}

/// Takes chunks from the walk and sees each file through.
async fn dispatch(lane: Lane, mut walked: mpsc::Receiver<Walked>) -> Result<(), BackfillError> {
    let under_way = Arc::new(Semaphore::new(FILES_UNDER_WAY as usize));
    let readers = Arc::new(Semaphore::new(READERS));
    let large = Arc::new(Semaphore::new(lane.uploader.options().concurrency));
    let mut tasks = JoinSet::new();
    while lane.fatal.get().is_none()
        && let Some(mut chunk) = walked.recv().await
    {
        let report = walk_report(&mut chunk);
        if lane.reports.send(report).await.is_err() {
            return Ok(());
        }
        if chunk.files.is_empty() {
            continue;
        }
        let files = acquire(&under_way, chunk.files.len() as u32).await?;
        if chunk.small {
            let bytes = chunk.files.iter().map(|found| found.size).sum();
            let room = lane.uploader.room(bytes).await;
            let reader = acquire(&readers, 1).await?;
            let (lane, large) = (lane.clone(), Arc::clone(&large));
            tasks.spawn(async move {
                lane.small(chunk.files, room, reader, &large).await;
                drop(files);
            });
        } else {
            let files = Arc::new(files);
            for found in chunk.files {
                let turn = acquire(&large, 1).await?;
                let (lane, files) = (lane.clone(), Arc::clone(&files));
                tasks.spawn(async move {
                    let report = lane.one(found).await;
                    let _ = lane.reports.send(vec![report]).await;
                    drop((turn, files));
                });
            }
        }
        while let Some(done) = tasks.try_join_next() {
            done.map_err(|_: JoinError| interrupted())?;
        }
    }
    while let Some(done) = tasks.join_next().await {
        done.map_err(|_: JoinError| interrupted())?;
    }
    lane.fatal.get().cloned().map_or(Ok(()), Err)
}

async fn acquire(semaphore: &Arc<Semaphore>, permits: u32) -> Result<OwnedSemaphorePermit, BackfillError> {
    let permits = permits.min(FILES_UNDER_WAY);
    Arc::clone(semaphore).acquire_many_owned(permits).await.map_err(|_| interrupted())
}

impl Lane {
    /// A chunk of small files: read together, packed together.
    async fn small(
        &self,
        files: Vec<Found>,
        room: OwnedSemaphorePermit,
        reader: OwnedSemaphorePermit,
        large: &Arc<Semaphore>,
    ) {
        let options = self.uploader.options();
        let (compression, below, inline_max) = (options.compression, options.pack_below, self.inline_max);
        let read = tokio::task::spawn_blocking(move || read::read(files, compression, below, inline_max)).await;
        drop(reader);
        let Ok(Read { stored, small, grown, failures }) = read else {
            let _ = self.fatal.set(interrupted());
            return;
        };
        let mut reports: Vec<_> = failures.into_iter().map(Report::Failed).collect();
        let packed = small.iter().filter_map(|file| match &file.value {
            SmallValue::Packed(range, entry) => Some((range.clone(), entry.clone())),
            SmallValue::Inline(_) => None,
        });
        let mut places = self.uploader.pack_all(&stored, packed, room).into_iter();
        drop(stored);
        let mut tickets = Vec::with_capacity(small.len());
        for file in small {
            let value = match &file.value {
                SmallValue::Inline(bytes) => {
                    let content_hash = refstream_types::ContentHash(*blake3::hash(bytes).as_bytes());
                    Value::Inline { bytes: bytes.clone(), content_hash }
                }
                SmallValue::Packed(_, entry) => {
                    let Some((pack, offset)) = places.next() else { continue };
                    match self.stored_in(&pack, offset, entry, &file).await {
                        Ok(reference) => Value::Reference(Box::new(reference)),
                        Err(error) => {
                            reports.push(self.upload_failed(&file.name, error));
                            continue;
                        }
                    }
                }
            };
            let record = self.record(&file.name, file.modified, value);
            match self.producer.send(record).await {
                Ok(ticket) => tickets.push((file.name, file.size, ticket)),
                Err(error) => reports.push(self.produce_failed(&file.name, error)),
            }
        }
        for (name, bytes, ticket) in tickets {
            reports.push(match ticket.ack().await {
                Ok(_) => Report::Done { name, bytes },
                Err(error) => self.produce_failed(&name, error),
            });
        }
        for found in grown {
            let _turn = large.acquire().await;
            reports.push(self.one(found).await);
        }
        let _ = self.reports.send(reports).await;
    }

    async fn stored_in(
        &self,
        pack: &PackState,
        offset: u64,
        entry: &refstream_format::pack::PackEntry,
        file: &SmallFile,
    ) -> Result<Reference, UploadError> {
        pack.durable().await?;
        Ok(Reference {
            store: self.uploader.store_name().clone(),
            key: pack.key().clone(),
            offset: Some(offset),
            size: entry.size,
            checksum: Some(entry.checksum),
            content_hash: Some(entry.content_hash),
            content_size: entry.content_size,
            encoding: entry.encoding,
            content_type: file.content_type.map(str::to_owned),
            etag: None,
            version: None,
        })
    }

    /// One file by itself. One that changes while it is read gets a second chance.
    async fn one(&self, found: Found) -> Report {
        let content_type = content_type::of(&found.name).map(str::to_owned);
        let upload = || {
            let (content_type, name) = (content_type.clone(), Some(found.name.clone()));
            self.uploader.upload(Source::File(found.path.clone()), content_type, name)
        };
        let receipt = match upload().await {
            Err(UploadError::Changed(_)) => upload().await,
            other => other,
        };
        let receipt = match receipt {
            Ok(receipt) => receipt,
            Err(error) => return self.upload_failed(&found.name, error),
        };
        let bytes = receipt.reference().content_size;
        let value = Value::Reference(Box::new(receipt.into_reference()));
        let record = self.record(&found.name, found.modified, value);
        let acked = match self.producer.send(record).await {
            Ok(ticket) => ticket.ack().await,
            Err(error) => Err(error),
        };
        match acked {
            Ok(_) => Report::Done { name: found.name, bytes },
            Err(error) => self.produce_failed(&found.name, error),
        }
    }

    fn record(&self, name: &str, modified: Option<refstream_types::Timestamp>, value: Value) -> Record {
        Record {
            key: Some(name.to_owned().into()),
            event_time: modified,
            headers: self.headers.to_vec(),
            source_name: Some(name.to_owned()),
            source_mtime: modified,
            value,
        }
    }

    /// An upload that every other file's would share the fate of ends the backfill.
    fn upload_failed(&self, name: &str, error: UploadError) -> Report {
        let report = Report::failed(name, &error);
        let hopeless = match &error {
            UploadError::NotStored(_) => matches!(error.class(), ErrorClass::NotAuthorised | ErrorClass::NotFound),
            UploadError::Open(_) | UploadError::Interrupted(_) => true,
            _ => false,
        };
        if hopeless {
            let _ = self.fatal.set(error.into());
        }
        report
    }

    fn produce_failed(&self, name: &str, error: crate::ProduceError) -> Report {
        let report = Report::failed(name, &error);
        if matches!(error, crate::ProduceError::Ended(_)) {
            let _ = self.fatal.set(error.into());
        }
        report
    }
}

#[cfg(test)]
mod tests;
