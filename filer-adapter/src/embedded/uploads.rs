//! Uploads in parts.
//!
//! ```text
//! uploads/<id>/upload.json             key and attributes
//! uploads/<id>/body                    parts of equal size lie here where they belong in the object
//! uploads/<id>/<number:05>-<nonce>     a part that does not fit that grid, or that replaced one
//! uploads/<id>/<number:05>.json        the record that the part is there and durable
//! ```
//! The first part to arrive sets the grid: part n of that size goes to offset (n - 1) x size of `body`, so that completing an
//! ordinary upload moves no byte; it cuts the file, fsyncs it and renames it into place. Otherwise the parts are
//! concatenated by the kernel into a new file. A part's bytes are durable before its record, its record before its answer. A part
//! that comes again never writes over recorded bytes, so what is recorded stays true while it streams.
//!
//! Crash while a part streams: no record, its bytes are overwritten or removed later. Crash in `complete` before the rename: the
//! upload is as it was. After it: the object is there, and start-up removes the upload, whose body is gone.

use super::{
    body::{Body, Receiver, Target, Temporary, combine},
    durable::lock,
    objects::{Condition, Extra, Failure, Outcome},
    paths::Paths,
    store::Inner,
};
use crate::{CreateError, MultipartUpload, Part, StoreError, StoreErrorKind, Stored};
use async_trait::async_trait;
use bytes::Bytes;
use refstream_types::{Crc32c, Key, Timestamp};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

/// The highest number of a part; S3's.
pub(super) const MAX_PART_NUMBER: u32 = 10_000;
/// The least size of every part but the last; S3's.
pub(super) const MIN_PART_BYTES: u64 = 5 * 1024 * 1024;

const DESCRIPTION: &str = "upload.json";
const BODY: &str = "body";

#[derive(Debug, Serialize, Deserialize)]
struct Description {
    key: Key,
    content_type: Option<String>,
    metadata: BTreeMap<String, String>,
    started: Timestamp,
}

/// A part that is durable.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) size: u64,
    pub(super) checksum: Crc32c,
    pub(super) etag: String,
    place: Place,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Place {
    /// At this offset of `body`.
    Body(u64),
    /// In a file of this name.
    File(String),
}

#[derive(Debug, Default)]
struct State {
    parts: BTreeMap<u32, Record>,
    grid: Option<u64>,
    /// Numbers that are being written within `body`.
    claimed: BTreeSet<u32>,
    /// Completing, completed or given up.
    closed: bool,
}

/// An upload that is neither completed nor given up.
#[derive(Debug)]
pub(super) struct Upload {
    id: String,
    folder: PathBuf,
    description: Description,
    state: Mutex<State>,
}

/// Why an upload could not be completed.
#[derive(Debug)]
pub(super) enum CompleteFailure {
    /// There is no such upload (any more).
    NoSuchUpload,
    /// This part is not there with this ETag.
    InvalidPart(u32),
    /// The parts are not in ascending order, or there are none.
    InvalidOrder,
    /// This part is not the last one and too small.
    TooSmall(u32),
    /// The whole has this checksum, not the one that was promised.
    Mismatch {
        /// What the parts make.
        arrived: Crc32c,
    },
    /// As for other publications.
    Publish(Failure),
}

impl From<io::Error> for CompleteFailure {
    fn from(error: io::Error) -> Self {
        Self::Publish(Failure::Before(error))
    }
}

/// Why a part was not stored.
#[derive(Debug)]
pub(super) enum PartFailure {
    /// There is no such upload (any more).
    NoSuchUpload,
    /// The part's number is not one of 1 to [`MAX_PART_NUMBER`].
    InvalidNumber,
    /// The bytes that arrived have this checksum, not the one that was promised.
    Mismatch {
        /// What arrived.
        arrived: Crc32c,
    },
    /// The disk failed.
    Disk(io::Error),
}

impl From<io::Error> for PartFailure {
    fn from(error: io::Error) -> Self {
        Self::Disk(error)
    }
}

/// The uploads of a store.
#[derive(Debug, Default)]
pub(super) struct Uploads(Mutex<HashMap<String, Arc<Upload>>>);

impl Uploads {
    pub(super) fn load(paths: &Paths) -> io::Result<Self> {
        let mut uploads = HashMap::new();
        for entry in std::fs::read_dir(&paths.uploads)? {
            let folder = entry?.path();
            match load_upload(&folder)? {
                Some(upload) => {
                    uploads.insert(upload.id.clone(), Arc::new(upload));
                }
                None => std::fs::remove_dir_all(&folder)?,
            }
        }
        Ok(Self(Mutex::new(uploads)))
    }

    pub(super) fn find(&self, id: &str) -> Option<Arc<Upload>> {
        lock(&self.0).get(id).cloned()
    }

    /// All uploads, ascending by key and id.
    pub(super) fn all(&self) -> Vec<Arc<Upload>> {
        let mut all: Vec<_> = lock(&self.0).values().cloned().collect();
        all.sort_by(|a, b| (a.key(), &a.id).cmp(&(b.key(), &b.id)));
        all
    }
}

/// Reads an upload back; `None` when it never started or was completed.
fn load_upload(folder: &Path) -> io::Result<Option<Upload>> {
    let read_json = |path: &Path| -> io::Result<Option<Vec<u8>>> {
        match std::fs::read(path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
            Err(error) => Err(error),
        }
    };
    let Some(id) = folder.file_name().and_then(|name| name.to_str()) else { return Ok(None) };
    let Some(description) = read_json(&folder.join(DESCRIPTION))? else { return Ok(None) };
    let Ok(description) = serde_json::from_slice(&description) else { return Ok(None) };
    let mut state = State::default();
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let Ok(name) = entry?.file_name().into_string() else { continue };
        match name.strip_suffix(".json").and_then(|number| number.parse().ok()) {
            Some(number) => {
                let Some(record) = read_json(&folder.join(&name))? else { continue };
                let Ok(record) = serde_json::from_slice::<Record>(&record) else { continue };
                match record.place {
                    Place::Body(offset) if number > 1 => state.grid = Some(offset / u64::from(number - 1)),
                    Place::Body(_) => state.grid = state.grid.or(Some(record.size)),
                    Place::File(_) => {}
                }
                state.parts.insert(number, record);
            }
            None => files.push(name),
        }
    }
    let recorded: BTreeSet<_> = state
        .parts
        .values()
        .map(|record| match &record.place {
            Place::Body(_) => BODY,
            Place::File(name) => name.as_str(),
        })
        .collect();
    if recorded.contains(BODY) && !files.iter().any(|name| name == BODY) {
        return Ok(None);
    }
    for leftover in files.iter().filter(|name| *name != DESCRIPTION && !recorded.contains(name.as_str())) {
        std::fs::remove_file(folder.join(leftover))?;
    }
    let id = id.to_owned();
    Ok(Some(Upload { id, folder: folder.to_path_buf(), description, state: Mutex::new(state) }))
}

/// The place that an arriving part was given; within `body` it is nobody else's until this is dropped.
#[derive(Debug)]
pub(super) struct Claim {
    upload: Arc<Upload>,
    number: u32,
    place: Place,
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Place::Body(_) = self.place {
            lock(&self.upload.state).claimed.remove(&self.number);
        }
    }
}

impl Upload {
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn key(&self) -> &Key {
        &self.description.key
    }

    pub(super) fn started(&self) -> Timestamp {
        self.description.started
    }

    /// The parts that are there, ascending.
    pub(super) fn parts(&self) -> Vec<(u32, Record)> {
        lock(&self.state).parts.iter().map(|(&number, record)| (number, record.clone())).collect()
    }

    fn record_path(&self, number: u32) -> PathBuf {
        self.folder.join(format!("{number:05}.json"))
    }
}

impl Inner {
    /// Starts an upload, durably. Blocks.
    pub(super) fn start_upload(&self, key: &Key, extra: Extra) -> io::Result<Arc<Upload>> {
        let id = self.options.runtime.token().to_string();
        let folder = self.paths.uploads.join(&id);
        let description = Description {
            key: key.clone(),
            content_type: extra.content_type,
            metadata: extra.metadata,
            started: self.options.runtime.wall(),
        };
        self.folders.ensure(&folder)?;
        // One of many folders that live for minutes: not worth remembering.
        self.folders.forget(&folder);
        self.write_json(&folder.join(DESCRIPTION), &description)?;
        let upload = Arc::new(Upload { id: id.clone(), folder, description, state: Mutex::default() });
        lock(&self.uploads.0).insert(id, Arc::clone(&upload));
        Ok(upload)
    }

    fn write_json(&self, path: &Path, value: &impl Serialize) -> io::Result<()> {
        let json = serde_json::to_vec(value)?;
        let body = Body::whole(self.temporary(), vec![json.into()]);
        let Some(temporary) = body.finish()?.0 else { return Err(io::ErrorKind::InvalidInput.into()) };
        if self.options.fsync {
            temporary.file().sync_all()?;
        }
        std::fs::rename(temporary.path(), path)?;
        temporary.keep();
        self.folders.sync(path.parent().unwrap_or(&self.paths.uploads))
    }

    /// Gives an arriving part its place. `size` as far as it is known.
    pub(super) fn claim_part(
        &self,
        upload: &Arc<Upload>,
        number: u32,
        size: Option<u64>,
    ) -> Result<(Arc<Claim>, Target), PartFailure> {
        if !(1..=MAX_PART_NUMBER).contains(&number) {
            return Err(PartFailure::InvalidNumber);
        }
        let mut state = lock(&upload.state);
        if state.closed {
            return Err(PartFailure::NoSuchUpload);
        }
        let recorded = state.parts.get(&number).is_some_and(|record| matches!(record.place, Place::Body(_)));
        if !recorded
            && !state.claimed.contains(&number)
            && let Some(size) = size
            && size > 0
        {
            let grid = *state.grid.get_or_insert(size);
            if size <= grid
                && let Some(offset) = grid.checked_mul(u64::from(number - 1))
            {
                let file = File::options()
                    .create(true)
                    .truncate(false)
                    .read(true)
                    .write(true)
                    .open(upload.folder.join(BODY))?;
                state.claimed.insert(number);
                let claim = Arc::new(Claim { upload: Arc::clone(upload), number, place: Place::Body(offset) });
                let target = Target::Within { file: Arc::new(file), offset, size, _claim: Arc::clone(&claim) };
                return Ok((claim, target));
            }
        }
        let name = format!("{number:05}-{:016x}", self.options.runtime.random());
        let target = Target::New { path: upload.folder.join(&name), made: None };
        Ok((Arc::new(Claim { upload: Arc::clone(upload), number, place: Place::File(name) }), target))
    }

    /// Makes a part that has arrived durable and records it. Blocks.
    pub(super) fn record_part(
        &self,
        claim: &Arc<Claim>,
        body: Body,
        expected: Option<Crc32c>,
    ) -> Result<Record, PartFailure> {
        let upload = Arc::clone(&claim.upload);
        let announced = body.size();
        let (temporary, size, checksum) = body.finish()?;
        debug_assert_eq!(announced, size);
        if expected.is_some_and(|expected| expected != checksum) {
            return Err(PartFailure::Mismatch { arrived: checksum });
        }
        if self.options.fsync {
            match &temporary {
                Some(temporary) => temporary.file().sync_all()?,
                None => File::open(upload.folder.join(BODY))?.sync_all()?,
            }
        }
        let etag = format!("{:08x}-{:016x}", checksum.0, self.options.runtime.random());
        let record = Record { size, checksum, etag, place: claim.place.clone() };
        let mut state = lock(&upload.state);
        if state.closed {
            return Err(PartFailure::NoSuchUpload);
        }
        self.write_json(&upload.record_path(claim.number), &record)?;
        let replaced = state.parts.insert(claim.number, record.clone());
        if let Some(temporary) = temporary {
            temporary.keep();
        }
        drop(state);
        if let Some(Record { place: Place::File(name), .. }) = replaced {
            let _ = std::fs::remove_file(upload.folder.join(name));
        }
        Ok(record)
    }

    /// Makes the object of these parts (number and ETag, ascending). Blocks.
    pub(super) fn complete_upload(
        &self,
        upload: &Arc<Upload>,
        parts: &[(u32, String)],
        expected: Option<Crc32c>,
        condition: &Condition,
    ) -> Result<Outcome, CompleteFailure> {
        let records = {
            let mut state = lock(&upload.state);
            if state.closed {
                return Err(CompleteFailure::NoSuchUpload);
            }
            let records = choose(&state, parts)?;
            state.closed = true;
            records
        };
        let outcome = self.join_parts(upload, &records, expected, condition);
        match outcome {
            Ok(Outcome::Published(_)) | Err(CompleteFailure::Publish(Failure::After(_))) => {
                self.forget_upload(upload)?
            }
            _ => lock(&upload.state).closed = false,
        }
        outcome
    }

    fn join_parts(
        &self,
        upload: &Arc<Upload>,
        records: &[Record],
        expected: Option<Crc32c>,
        condition: &Condition,
    ) -> Result<Outcome, CompleteFailure> {
        let key = upload.key();
        if *condition == Condition::Absent && self.locate(key)?.is_some() {
            self.stripe(key).wait(key)?;
            return Ok(Outcome::Refused);
        }
        let extra = Extra {
            content_type: upload.description.content_type.clone(),
            metadata: upload.description.metadata.clone(),
        };
        let (mut size, mut checksum, mut in_place) = (0_u64, super::body::crc32c(b""), true);
        for record in records {
            in_place &= record.place == Place::Body(size);
            checksum = combine(checksum, record.checksum, record.size);
            size += record.size;
        }
        if expected.is_some_and(|expected| expected != checksum) {
            return Err(CompleteFailure::Mismatch { arrived: checksum });
        }
        in_place &= lock(&upload.state).claimed.is_empty();
        if !in_place {
            let temporary = self.concatenate(upload, records)?;
            return self.publish_file(key, temporary, checksum, extra, condition).map_err(CompleteFailure::Publish);
        }
        let path = upload.folder.join(BODY);
        let body = File::options().read(true).write(true).open(&path)?;
        if body.metadata()?.len() > size {
            self.drop_parts_from(upload, size)?;
            body.set_len(size)?;
        }
        let properties = self.seal(&body, checksum, extra)?;
        self.install(&path, key, condition, properties).map_err(CompleteFailure::Publish)
    }

    /// Forgets parts that lie in the body behind `size`, before it is cut there.
    fn drop_parts_from(&self, upload: &Upload, size: u64) -> io::Result<()> {
        let mut state = lock(&upload.state);
        let behind: Vec<u32> = state
            .parts
            .iter()
            .filter(|(_, record)| matches!(record.place, Place::Body(offset) if offset + record.size > size))
            .map(|(&number, _)| number)
            .collect();
        for number in behind {
            std::fs::remove_file(upload.record_path(number))?;
            state.parts.remove(&number);
        }
        self.folders.sync(&upload.folder)
    }

    fn concatenate(&self, upload: &Upload, records: &[Record]) -> io::Result<Temporary> {
        let temporary = Temporary::create(self.temporary())?;
        let mut out = temporary.file();
        for record in records {
            let mut part = match &record.place {
                Place::Body(offset) => {
                    let mut file = File::open(upload.folder.join(BODY))?;
                    file.seek(SeekFrom::Start(*offset))?;
                    file
                }
                Place::File(name) => File::open(upload.folder.join(name))?,
            };
            // Between files this is copy_file_range, which shares blocks where the file system can.
            let copied = io::copy(&mut (&mut part).take(record.size), &mut out)?;
            if copied != record.size {
                return Err(io::Error::other("a part is shorter than its record"));
            }
        }
        Ok(temporary)
    }

    /// Gives an upload up; whether it was there. Blocks.
    pub(super) fn abort_upload(&self, upload: &Arc<Upload>) -> io::Result<bool> {
        let was_open = !std::mem::replace(&mut lock(&upload.state).closed, true);
        if was_open {
            self.forget_upload(upload)?;
        }
        Ok(was_open)
    }

    fn forget_upload(&self, upload: &Upload) -> io::Result<()> {
        lock(&self.uploads.0).remove(&upload.id);
        // The description first: a folder without it is removed at start.
        let _ = std::fs::remove_file(upload.folder.join(DESCRIPTION));
        match std::fs::remove_dir_all(&upload.folder) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            // A part that was still arriving made a file meanwhile; start-up takes it.
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
            Err(error) => Err(error),
        }
    }
}

fn choose(state: &State, parts: &[(u32, String)]) -> Result<Vec<Record>, CompleteFailure> {
    if parts.is_empty() || !parts.is_sorted_by(|a, b| a.0 < b.0) {
        return Err(CompleteFailure::InvalidOrder);
    }
    let mut records = Vec::with_capacity(parts.len());
    for (index, (number, etag)) in parts.iter().enumerate() {
        let record = state.parts.get(number).filter(|record| record.etag == *etag);
        let record = record.ok_or(CompleteFailure::InvalidPart(*number))?;
        if index + 1 < parts.len() && record.size < MIN_PART_BYTES {
            return Err(CompleteFailure::TooSmall(*number));
        }
        records.push(record.clone());
    }
    Ok(records)
}

/// An upload as the process itself uses it.
#[derive(Debug)]
pub(super) struct DirectUpload {
    inner: Arc<Inner>,
    upload: Arc<Upload>,
}

impl DirectUpload {
    pub(super) fn new(inner: Arc<Inner>, upload: Arc<Upload>) -> Self {
        Self { inner, upload }
    }

    fn refusal(&self, kind: StoreErrorKind, operation: &'static str, why: impl Into<String>) -> StoreError {
        self.inner.refusal(kind, operation, Some(self.upload.key()), why)
    }

    fn part_error(&self, failure: PartFailure) -> StoreError {
        const OPERATION: &str = "put part";
        match failure {
            PartFailure::NoSuchUpload => {
                self.refusal(StoreErrorKind::NotFound, OPERATION, format!("there is no upload {}", self.upload.id))
            }
            PartFailure::InvalidNumber => self.refusal(
                StoreErrorKind::Invalid,
                OPERATION,
                format!("parts are numbered from 1 to {MAX_PART_NUMBER}"),
            ),
            PartFailure::Mismatch { arrived } => {
                self.refusal(StoreErrorKind::Corrupt, OPERATION, format!("the bytes that arrived have {arrived}"))
            }
            PartFailure::Disk(error) => self.inner.error(OPERATION, Some(self.upload.key()), &error),
        }
    }
}

#[async_trait]
impl MultipartUpload for DirectUpload {
    fn id(&self) -> &str {
        &self.upload.id
    }

    async fn put_part(&self, number: u32, body: Vec<Bytes>, checksum: Crc32c) -> Result<Part, StoreError> {
        let size = body.iter().map(|piece| piece.len() as u64).sum();
        let upload = Arc::clone(&self.upload);
        let claimed = self.inner.try_run(move |inner| inner.claim_part(&upload, number, Some(size))).await;
        let (claim, target) =
            claimed.unwrap_or_else(|error| Err(error.into())).map_err(|failure| self.part_error(failure))?;
        let mut receiver = Receiver::new(Arc::clone(&self.inner), target);
        let arrived = async {
            for piece in body {
                receiver.push(piece).await?;
            }
            receiver.finish().await
        };
        let body = arrived.await.map_err(|error| self.part_error(error.into()))?;
        let recorded = self.inner.try_run(move |inner| inner.record_part(&claim, body, Some(checksum))).await;
        match recorded {
            Ok(Ok(record)) => {
                Ok(Part { number, etag: record.etag, size: record.size, checksum: Some(record.checksum) })
            }
            Ok(Err(failure)) => Err(self.part_error(failure)),
            Err(error) => Err(self.part_error(error.into())),
        }
    }

    async fn parts(&self) -> Result<Vec<Part>, StoreError> {
        if self.inner.uploads.find(&self.upload.id).is_none() {
            return Err(self.refusal(StoreErrorKind::NotFound, "list parts", "the upload was completed or given up"));
        }
        let parts = self.upload.parts().into_iter();
        Ok(parts
            .map(|(number, record)| Part {
                number,
                etag: record.etag,
                size: record.size,
                checksum: Some(record.checksum),
            })
            .collect())
    }

    async fn complete(&self, parts: &[Part]) -> Result<Stored, CreateError> {
        const OPERATION: &str = "complete multipart";
        let upload = Arc::clone(&self.upload);
        let parts: Vec<_> = parts.iter().map(|part| (part.number, part.etag.clone())).collect();
        let completed =
            self.inner.try_run(move |inner| inner.complete_upload(&upload, &parts, None, &Condition::Always)).await;
        let refused = |kind, why: String| Err(CreateError::DidNotHappen(self.refusal(kind, OPERATION, why)));
        match completed {
            Ok(Ok(Outcome::Published(properties))) => {
                Ok(Stored { key: self.upload.key().clone(), size: properties.size, etag: Some(properties.etag) })
            }
            Ok(Ok(Outcome::Refused | Outcome::Missing)) => {
                refused(StoreErrorKind::Unavailable, "refused without a condition".to_owned())
            }
            Ok(Err(CompleteFailure::NoSuchUpload)) => Err(CreateError::MayHaveHappened(self.refusal(
                StoreErrorKind::NotFound,
                OPERATION,
                format!("upload {} was completed or given up", self.upload.id),
            ))),
            Ok(Err(CompleteFailure::InvalidPart(number))) => {
                refused(StoreErrorKind::Invalid, format!("part {number} is not there with that etag"))
            }
            Ok(Err(CompleteFailure::InvalidOrder)) => {
                refused(StoreErrorKind::Invalid, "parts must be there and in ascending order".to_owned())
            }
            Ok(Err(CompleteFailure::TooSmall(number))) => refused(
                StoreErrorKind::Invalid,
                format!("part {number} is not the last one and has less than {MIN_PART_BYTES} bytes"),
            ),
            Ok(Err(CompleteFailure::Mismatch { arrived })) => {
                refused(StoreErrorKind::Corrupt, format!("the parts make {arrived}"))
            }
            Ok(Err(CompleteFailure::Publish(failure))) => {
                Err(self.inner.create_error(OPERATION, self.upload.key(), failure))
            }
            Err(error) => {
                Err(CreateError::MayHaveHappened(self.inner.error(OPERATION, Some(self.upload.key()), &error)))
            }
        }
    }

    async fn abort(&self) -> Result<(), StoreError> {
        let upload = Arc::clone(&self.upload);
        let aborted = self.inner.run(move |inner| inner.abort_upload(&upload)).await;
        aborted.map(drop).map_err(|error| self.inner.error("abort multipart", Some(self.upload.key()), &error))
    }
}
