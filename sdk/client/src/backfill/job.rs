//! Jobs: backfills that can be ended at any moment and go on where they were.
//!
//! # What is remembered, and when
//!
//! A job is a file `NAME.job`, an embedded database (`state`) beside nothing else that matters. A file's way through it, each step durable before
//! the one after it begins:
//!
//! 1. **Begun** (objects of their own): key, and size and sum of what will be stored, or the store's id of the upload in parts; then bytes go out. Each
//!    part is noted once the store has it.
//!    **Stored** (packs): the pack's key and size and the places of all its blobs; then the pack goes out.
//! 2. **Stored** (objects of their own): the reference, once the object and its sidecar are durable.
//! 3. **Batch**: the encoded batch of records with its producer id, epoch and sequence, and the file of each record; then it is sent.
//! 4. **Done**: partition and offset, when the batch is acked; the batch is forgotten in the same commit.
//!
//! # Ended by `kill -9`, and run again
//!
//! Opening the job takes the file's lock, so there is one process at a time, and first *settles* the batches that are left over:
//!
//! * The topic is read from the lowest offset on that each of them can have (`floor`: the highest offset that this job's producer was acked in the
//!   partition before the batch was logged; a partition keeps a producer's order). Records are ours by the job's attribute, and the batch is known
//!   by the records' producer id, epoch and sequence. Found: step 4 is made up for.
//! * Not found: its very bytes may still be on the way, in a socket or in a broker that was paused. So they are sent again, in the order of their
//!   numbers. A broker that knows the producer answers with the offset that the batch has, now or since; whichever copy comes second is recognised. A
//!   broker that refuses, because the producer expired (after 7 days or more) or the sequence does not follow, would refuse the other copy as well:
//!   the batch is not in the topic, and its files go through step 3 again, in new batches of a new producer.
//!
//! Then the sources are walked again, and each file is looked up. The crash was
//!
//! | after | what is there | what happens |
//! |---|---|---|
//! | nothing | nothing, or a copy in memory | the file is new |
//! | 1, before or while bytes go out | maybe an upload in parts | parts that the store has (by our note or its list, with the right sum) are not sent again; the file is read again for its hash |
//! | 1, object complete, unnoted | the object | its size is asked for under its key, which is used once: nothing is sent again |
//! | 1, pack complete | the pack | the same, without reading the file |
//! | 1, pack not complete | nothing under its key | the file is new; what was stored of a pack was one request, so nothing |
//! | 2 | the object | straight to 3 |
//! | 3, before or after sending | maybe the records | settled as above; then 3 or done |
//! | 4 | the record | nothing |
//!
//! A file whose size or modification time is no longer what was noted is new, unless its record is durable: then it is reported as changed
//! and left alone, since a job makes one record a file.
//!
//! What a crash may leave behind: an upload in parts that was started but not noted yet (no bytes in it), and objects of files that changed.

mod row;
mod settle;
mod state;

use super::{
    BackfillOptions, BackfillProgress, FileFailure,
    ledger::{Known, Ledger, Lookup, Payload},
    walk::{self, Chunks, Found},
};
use crate::{
    BackfillError, Client, JobMismatch, JobState, TopicDescription, UploadError,
    producer::{BatchLog, Decided, NotLogged, ToLog},
    records,
    uploader::{Begun, FileTag, NotedPack, PackNotes, UploadNotes},
};
use async_trait::async_trait;
use bytes::Bytes;
use futures::future::BoxFuture;
use refstream_filer_adapter::Part;
use refstream_types::{ContentHash, Header, Offset, Reference, Timestamp, TopicId, TopicName};
use row::{Kind, Row, State};
use serde::{Deserialize, Serialize};
use state::{Batch, Change, StateFile};
use std::{
    ffi::OsStr,
    ops::ControlFlow,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// The attribute that names a record's job.
pub(super) const ATTRIBUTE: &str = "refstream.job";
/// The version of the state's format.
const VERSION: u32 = 1;
/// The longest name of a job.
const MAX_NAME: usize = 100;
/// Failures that a status lists.
const FAILURES_LISTED: usize = 20;
/// Failures that are read at once.
const FAILURES_AT_ONCE: usize = 256;
/// Why something that failed is not tried again.
const NOT_BY_ITSELF: &str = "it cannot be tried again by itself: run the job without --retry-failed";
const SPEC: &str = "spec";
const ENDED: &str = "ended";

/// Where a job's state is, and its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobOptions {
    /// The folder of the states of all jobs.
    pub folder: PathBuf,
    /// `[A-Za-z0-9._-]`, at most 100 of them, not starting with a dot.
    pub name: String,
}

/// How a job stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JobPhase {
    /// In some process now.
    Running,
    /// It ended before everything was done: resume it.
    Incomplete,
    /// Everything is done.
    Complete,
    /// Cancelled: it cannot be resumed.
    Cancelled,
}

/// A job, for people.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobStatus {
    /// Its name.
    pub name: String,
    /// How it stands.
    pub phase: JobPhase,
    /// The topic.
    pub topic: TopicName,
    /// The value of the attribute `refstream.job` of its records.
    pub attribute: String,
    /// When it was first run.
    pub created_at: Timestamp,
    /// Files whose record is durable.
    pub files_done: u64,
    /// Their bytes.
    pub bytes_done: u64,
    /// Files whose payload has its place, but whose record is not durable.
    pub files_stored: u64,
    /// Files whose upload was begun.
    pub files_uploading: u64,
    /// Files that failed.
    pub files_failed: u64,
    /// Batches of records of which the outcome is not known yet.
    pub batches_undecided: u64,
    /// The first failures.
    pub failures: Vec<FileFailure>,
    /// How far the process that runs it is.
    pub progress: Option<BackfillProgress>,
}

/// What a job is.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Spec {
    version: u32,
    attribute: String,
    topic: TopicName,
    topic_id: TopicId,
    /// Ids begin anew in every deployment; this tells its topics from those of another one.
    topic_created_at: Timestamp,
    created_at: Timestamp,
    /// Those of the last run.
    options: BackfillOptions,
}

/// How the last run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Ended {
    /// Not everything was found.
    Incomplete,
    /// Everything was found; some of it failed.
    Failed,
    Complete,
    Cancelled,
}

/// A job that this process runs.
#[derive(Debug)]
pub(super) struct Job {
    options: JobOptions,
    spec: Spec,
    state: StateFile,
    /// Numbers of batches that earlier processes used are below this.
    first_batch: u64,
    /// An earlier process found everything there is.
    all_found: bool,
    /// Per partition: an offset that no later batch of this process can be below.
    floors: Mutex<Vec<Offset>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn check_name(name: &str) -> Result<(), JobMismatch> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if name.is_empty() || name.len() > MAX_NAME || name.starts_with('.') || !name.chars().all(allowed) {
        return Err(JobMismatch {
            job: name.to_owned(),
            why: format!(
                "a job's name has 1 to {MAX_NAME} characters of A-Z a-z 0-9 . _ - and does not start with a dot"
            ),
        });
    }
    Ok(())
}

impl JobOptions {
    fn file(&self, extension: &str) -> PathBuf {
        self.folder.join(format!("{}.{extension}", self.name))
    }
    fn unusable(&self, why: impl std::fmt::Display) -> JobState {
        JobState { path: self.folder.clone(), why: format!("cannot be used: {why}") }
    }
}

impl Job {
    /// Opens a job or begins it, and settles what an earlier process left undecided.
    pub(super) async fn open(
        client: &Client,
        topic: &TopicDescription,
        job: JobOptions,
        options: &BackfillOptions,
    ) -> Result<Arc<Self>, BackfillError> {
        check_name(&job.name)?;
        make_folder(&job.folder).map_err(|error| job.unusable(error))?;
        let state = StateFile::open(&job.file("job"), true)?;
        let mismatch = |why: String| JobMismatch { job: job.name.clone(), why };
        let earlier: Option<Spec> = state.meta(SPEC)?;
        let ended = state.meta(ENDED)?;
        if ended == Some(Ended::Cancelled) {
            return Err(mismatch("it was cancelled; take another name with --job".into()).into());
        }
        let spec = match earlier {
            Some(spec) if spec.version != VERSION => {
                let why = format!("its state has version {}, this program knows {VERSION}", spec.version);
                return Err(mismatch(why).into());
            }
            Some(spec) if spec.topic != topic.name => {
                let why =
                    format!("it backfills the topic {}, not {}; take another name with --job", spec.topic, topic.name);
                return Err(mismatch(why).into());
            }
            Some(spec) if (spec.topic_id, spec.topic_created_at) != (topic.id, topic.created_at) => {
                let why = format!(
                    "the topic {} is not the one that it began with: it was deleted and created again, or belongs to another \
                     deployment; take another name with --job",
                    topic.name
                );
                return Err(mismatch(why).into());
            }
            Some(spec) if spec.options.key != options.key => {
                let said = |key: &Option<String>| key.as_deref().unwrap_or("paths as they are").to_owned();
                let (before, now) = (said(&spec.options.key), said(&options.key));
                let why = format!("it makes keys of {before}, not of {now}; take another name with --job");
                return Err(mismatch(why).into());
            }
            Some(spec) if spec.options.attributes != options.attributes => {
                let why = "its records have other attributes; take another name with --job".to_owned();
                return Err(mismatch(why).into());
            }
            None if options.retry_failed => {
                return Err(mismatch("there is no such job, so nothing of it failed".into()).into());
            }
            Some(_)
                if options.retry_failed && ended != Some(Ended::Complete) && state.failures(None, 1)?.is_empty() =>
            {
                let why =
                    "no file of it is known to have failed; run it without --retry-failed, which looks for everything";
                return Err(mismatch(why.into()).into());
            }
            Some(spec) => Spec { options: options.clone(), ..spec },
            None => Spec {
                version: VERSION,
                attribute: format!("{}@{:016x}", job.name, client.runtime().random()),
                topic: topic.name.clone(),
                topic_id: topic.id,
                topic_created_at: topic.created_at,
                created_at: client.runtime().wall(),
                options: options.clone(),
            },
        };
        let json = serde_json::to_vec(&spec).map_err(|error| job.unusable(error))?;
        state.change(Change::Meta { name: ENDED, json: b"\"incomplete\"".to_vec() });
        state.durable(Change::Meta { name: SPEC, json }).await?;
        let _ = std::fs::remove_file(job.file("cancel"));
        let first_batch = settle::settle(client, &spec, &state).await?;
        let (held, _) = records::list_offsets(client.brokers(), topic.id, None)
            .await
            .map_err(|error| UploadError::Topic(crate::TopicError::of(&topic.name, error)))?;
        let mut floors = vec![Offset(0); topic.config.partitions as usize];
        for offsets in held {
            if let Some(floor) = floors.get_mut(offsets.partition.0 as usize) {
                *floor = offsets.latest;
            }
        }
        let all_found = matches!(ended, Some(Ended::Complete | Ended::Failed));
        Ok(Arc::new(Self { options: job, spec, state, first_batch, all_found, floors: Mutex::new(floors) }))
    }

    /// Writes what is left and lets others open the job. Blocks.
    pub(super) fn close(&self) {
        self.state.close();
    }

    pub(super) fn name(&self) -> &str {
        &self.options.name
    }

    /// Whether somebody asked to cancel it.
    pub(super) fn is_cancelled(&self) -> bool {
        self.options.file("cancel").exists()
    }

    /// Tells other processes how far it is.
    pub(super) fn publish(&self, progress: &BackfillProgress) {
        let status = status_of(&self.options.name, &self.state, Some(progress));
        if let Ok(status) = status {
            let (path, fresh) = (self.options.file("status.json"), self.options.file("status.json.new"));
            let json = serde_json::to_vec(&status).unwrap_or_default();
            // For people only: a status that cannot be written stops nothing.
            let _ = std::fs::write(&fresh, json).and_then(|()| std::fs::rename(&fresh, &path));
        }
    }

    /// How the job stands after a run that came to its end. `looked`: for everything, not only for what had failed.
    pub(super) fn after(&self, looked: bool, failed: u64) -> Ended {
        match (looked || self.all_found, failed) {
            (false, _) => Ended::Incomplete,
            (true, 0) => Ended::Complete,
            (true, _) => Ended::Failed,
        }
    }

    /// Notes how the run ended, behind all else.
    pub(super) async fn end(&self, ended: Ended) -> Result<(), JobState> {
        let json = serde_json::to_vec(&ended).unwrap_or_default();
        self.state.durable(Change::Meta { name: ENDED, json }).await?;
        let _ = std::fs::remove_file(self.options.file("status.json"));
        Ok(())
    }

    /// Finds the files that failed. Blocks.
    pub(super) fn find_failed(&self, chunks: &mut Chunks<'_>) -> ControlFlow<walk::Ended> {
        let mut after: Option<Bytes> = None;
        loop {
            let failures = match self.state.failures(after.as_deref(), FAILURES_AT_ONCE) {
                Ok(failures) => failures,
                Err(error) => {
                    let path = self.options.name.clone();
                    return chunks.failed(FileFailure { path, error: error.to_string() });
                }
            };
            let Some((last, ..)) = failures.last() else { return ControlFlow::Continue(()) };
            after = Some(last.clone());
            for (file, name, _) in failures {
                // Members of archives and attached objects are no paths: their place is in their row.
                if file.contains(&0) {
                    let row = match self.state.rows(std::iter::once(&file[..])) {
                        Ok(mut rows) => rows.pop().flatten(),
                        Err(error) => return chunks.failed(FileFailure { path: name, error: error.to_string() }),
                    };
                    match row {
                        // A manifest may say the key, which no row has.
                        Some(Row { size, modified, state: State::Stored { reference, .. }, .. })
                            if self.spec.options.manifests.is_empty() =>
                        {
                            let path = PathBuf::from(OsStr::from_bytes(&file));
                            let mut found = Found::new(path, name, size, modified);
                            found.placed = Some(reference);
                            chunks.found(found)?;
                        }
                        _ => chunks.failed(FileFailure { path: name, error: NOT_BY_ITSELF.into() })?,
                    }
                    continue;
                }
                walk::look(PathBuf::from(OsStr::from_bytes(&file)), name, true, chunks)?;
            }
        }
    }

    fn row(size: u64, modified: Option<Timestamp>, hash: Option<ContentHash>, state: State) -> Row {
        Row { size, modified, hash, state }
    }
}

/// The folder is its owner's alone: names of files are nobody else's business.
fn make_folder(folder: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

impl Ledger for Job {
    fn known(&self, files: &[Found]) -> Result<Vec<Known>, JobState> {
        known(&self.state, files)
    }

    fn payload(&self, row: &[u8], size: u64, modified: Option<Timestamp>, payload: &Payload<'_>) {
        let (hash, state) = match payload {
            Payload::Stored { reference, object_size } => {
                let reference = Box::new((*reference).clone());
                (reference.content_hash, State::Stored { reference, object_size: *object_size })
            }
            Payload::Inline(hash) => (Some(*hash), State::Inline),
        };
        self.state
            .change(Change::Row { file: Bytes::copy_from_slice(row), row: Self::row(size, modified, hash, state) });
    }

    fn failed(&self, found: &Found, error: &str, go_on: bool) {
        let row =
            (!go_on).then(|| Self::row(found.size, found.modified, None, State::Failed { error: error.to_owned() }));
        let (file, name) = (Bytes::copy_from_slice(found.row()), found.name.clone());
        self.state.change(Change::Failed { file, name, error: error.to_owned(), row });
    }

    fn upload_notes(self: Arc<Self>, found: &Found, tag: Arc<FileTag>, earlier: Option<Begun>) -> Arc<dyn UploadNotes> {
        Arc::new(FileNotes { job: self, size: found.size, tag, earlier })
    }

    fn written(&self) -> BoxFuture<'static, Result<(), JobState>> {
        Box::pin(self.state.durable(Change::Nothing))
    }

    fn header(&self) -> Header {
        Header { name: ATTRIBUTE.into(), value: self.spec.attribute.clone().into_bytes().into() }
    }
}

/// The notes of one file's upload.
struct FileNotes {
    job: Arc<Job>,
    size: u64,
    tag: Arc<FileTag>,
    earlier: Option<Begun>,
}

#[async_trait]
impl UploadNotes for FileNotes {
    fn earlier(&self) -> Option<Begun> {
        self.earlier.clone()
    }
    async fn begun(&self, begun: &Begun) -> Result<(), UploadError> {
        let row = Job::row(self.size, self.tag.modified, None, State::Begun(begun.clone()));
        Ok(self.job.state.durable(Change::Row { file: self.tag.row.clone(), row }).await?)
    }
    fn part(&self, part: &Part) {
        self.job.state.change(Change::Part { file: self.tag.row.clone(), part: part.clone() });
    }
    fn tag(&self) -> Arc<FileTag> {
        Arc::clone(&self.tag)
    }
}

impl PackNotes for Job {
    fn pack(&self, pack: NotedPack) -> BoxFuture<'static, Result<(), UploadError>> {
        let NotedPack { store, key, size: object_size, blobs } = pack;
        for (entry, tag) in blobs {
            let reference = Box::new(Reference {
                store: store.clone(),
                key: key.clone(),
                offset: Some(entry.offset),
                size: entry.size,
                checksum: Some(entry.checksum),
                content_hash: Some(entry.content_hash),
                content_size: entry.content_size,
                encoding: entry.encoding,
                content_type: tag.content_type.clone(),
                etag: None,
                version: None,
            });
            let state = State::Stored { reference, object_size };
            let row = Self::row(entry.content_size, tag.modified, Some(entry.content_hash), state);
            self.state.change(Change::Row { file: tag.row.clone(), row });
        }
        let durable = self.state.durable(Change::Nothing);
        Box::pin(async move { Ok(durable.await?) })
    }
}

impl BatchLog for Job {
    fn remember(&self, batch: ToLog) -> BoxFuture<'static, Result<(), NotLogged>> {
        let floor = lock(&self.floors).get(batch.partition.0 as usize).copied().unwrap_or_default();
        let batch = Batch {
            number: self.first_batch + batch.number,
            partition: batch.partition,
            floor,
            bytes: batch.batch.bytes().clone(),
            files: batch.tags,
        };
        let durable = self.state.durable(Change::Batch(batch));
        Box::pin(async move { durable.await.map_err(|error| NotLogged(error.to_string())) })
    }

    fn decided(&self, number: u64, outcome: Decided) {
        let number = self.first_batch + number;
        match outcome {
            Decided::Placed { partition, base } => {
                if let Some(floor) = lock(&self.floors).get_mut(partition.0 as usize) {
                    *floor = (*floor).max(base);
                }
                self.state.change(Change::Placed { number, partition, base });
            }
            Decided::Refused => self.state.change(Change::NotPlaced { number }),
            // It stays, and the next process settles it.
            Decided::InDoubt => {}
        }
    }
}

/// What is known of files, by the state of a job that is not run; of a job that does not exist, nothing.
pub(super) fn peek(job: &JobOptions) -> Result<Option<Lookup>, BackfillError> {
    check_name(&job.name)?;
    if !job.file("job").exists() {
        return Ok(None);
    }
    let state = StateFile::open(&job.file("job"), false)?;
    Ok(Some(Arc::new(move |files| known(&state, files))))
}

fn known(state: &StateFile, files: &[Found]) -> Result<Vec<Known>, JobState> {
    let rows = state.rows(files.iter().map(Found::row))?;
    let known = |(row, found): (Option<Row>, &Found)| match row {
        Some(row) => row.known(found.size, found.modified),
        None => Known::New,
    };
    Ok(rows.into_iter().zip(files).map(known).collect())
}

fn status_of(name: &str, state: &StateFile, progress: Option<&BackfillProgress>) -> Result<JobStatus, BackfillError> {
    let no_job = || JobState { path: state.path().to_owned(), why: "is not the state of a job".into() };
    let spec: Spec = state.meta(SPEC)?.ok_or_else(no_job)?;
    let phase = match (progress, state.meta(ENDED)?) {
        (Some(_), _) => JobPhase::Running,
        (None, Some(Ended::Complete)) => JobPhase::Complete,
        (None, Some(Ended::Cancelled)) => JobPhase::Cancelled,
        (None, _) => JobPhase::Incomplete,
    };
    let totals = state.totals()?;
    let (files_done, bytes_done) = totals.of(Kind::Done);
    let failures = state.failures(None, FAILURES_LISTED)?;
    Ok(JobStatus {
        name: name.to_owned(),
        phase,
        topic: spec.topic,
        attribute: spec.attribute,
        created_at: spec.created_at,
        files_done,
        bytes_done,
        files_stored: totals.of(Kind::Stored).0,
        files_uploading: totals.of(Kind::Uploading).0,
        files_failed: totals.of(Kind::Failed).0,
        batches_undecided: state.batches_under_way()?,
        failures: failures.into_iter().map(|(_, path, error)| FileFailure { path, error }).collect(),
        progress: progress.cloned(),
    })
}

/// The names of all jobs in a folder, ascending. A folder that does not exist has none.
///
/// # Errors
/// When the folder cannot be read.
pub fn list(folder: &Path) -> Result<Vec<String>, JobState> {
    let unreadable =
        |error: std::io::Error| JobState { path: folder.to_owned(), why: format!("cannot be read: {error}") };
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(unreadable(error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = entry.map_err(unreadable)?.file_name();
        names.extend(name.to_str().and_then(|name| name.strip_suffix(".job")).map(str::to_owned));
    }
    names.sort();
    Ok(names)
}

fn existing(job: &JobOptions) -> Result<(), BackfillError> {
    check_name(&job.name)?;
    if !job.file("job").exists() {
        let known = list(&job.folder)?.join(", ");
        let known = if known.is_empty() { "none".to_owned() } else { known };
        let why = format!("there is no such job in {}; there are: {known}", job.folder.display());
        return Err(JobMismatch { job: job.name.clone(), why }.into());
    }
    Ok(())
}

/// How a job stands; of one that is running, as of about a second ago.
///
/// # Errors
/// When there is no such job or its state cannot be read.
pub fn status(job: &JobOptions) -> Result<JobStatus, BackfillError> {
    existing(job)?;
    match StateFile::open(&job.file("job"), false) {
        Ok(state) => status_of(&job.name, &state, None),
        Err(locked) => {
            let published = std::fs::read(job.file("status.json")).ok();
            published.and_then(|json| serde_json::from_slice(&json).ok()).ok_or_else(|| locked.into())
        }
    }
}

/// What a job was last run with.
///
/// # Errors
/// When there is no such job or its state cannot be read.
pub fn resume_options(job: &JobOptions) -> Result<(TopicName, BackfillOptions), BackfillError> {
    existing(job)?;
    let state = StateFile::open(&job.file("job"), false)?;
    let no_job = || JobState { path: state.path().to_owned(), why: "is not the state of a job".into() };
    let spec: Spec = state.meta(SPEC)?.ok_or_else(no_job)?;
    Ok((spec.topic, BackfillOptions { job: Some(job.clone()), ..spec.options }))
}

/// Cancels a job. One that is running ends within about a second; uploads in parts that were begun are given up. Records that were made
/// stay, and so does the job's state. Returns whether it was running.
///
/// # Errors
/// When there is no such job, its state cannot be written, or an upload cannot be given up; what is left can be cancelled again.
pub async fn cancel(client: &Client, job: &JobOptions) -> Result<bool, BackfillError> {
    existing(job)?;
    let state = match StateFile::open(&job.file("job"), false) {
        Ok(state) => state,
        Err(locked) => {
            if std::fs::read(job.file("status.json")).is_err() {
                return Err(locked.into());
            }
            std::fs::write(job.file("cancel"), b"").map_err(|error| job.unusable(error))?;
            return Ok(true);
        }
    };
    let spec: Option<Spec> = state.meta(SPEC)?;
    if let Some(spec) = &spec {
        let topic = client.topic_settings(&spec.topic).await.map_err(UploadError::Topic)?;
        let uploader = client.uploader_to(&topic, spec.options.store.as_ref(), spec.options.upload.clone())?;
        give_up(&state, &uploader).await?;
    }
    let json = serde_json::to_vec(&Ended::Cancelled).unwrap_or_default();
    state.durable(Change::Meta { name: ENDED, json }).await?;
    Ok(false)
}

/// Frees what uploads in parts hold at the store.
async fn give_up(state: &StateFile, uploader: &crate::Uploader) -> Result<(), BackfillError> {
    for begun in state.begun()? {
        uploader.give_up(&begun).await?;
    }
    Ok(())
}

impl Job {
    /// Gives up what was begun, after the run ended.
    pub(super) async fn cancelled(&self, uploader: &crate::Uploader) -> Result<(), BackfillError> {
        self.state.durable(Change::Nothing).await?;
        give_up(&self.state, uploader).await?;
        self.end(Ended::Cancelled).await?;
        let _ = std::fs::remove_file(self.options.file("cancel"));
        Ok(())
    }
}

#[cfg(test)]
mod tests;
