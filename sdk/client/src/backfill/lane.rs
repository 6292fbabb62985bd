//! Seeing each file through: payload, record, ack.

use super::{
    FileFailure, content_type, interrupted,
    ledger::{Known, Ledger, Payload},
    progress::{InPhase, Phase, Phases},
    read::{self, How, Read, SmallFile, SmallValue},
    walk::{Found, Walked},
};
use crate::{
    BackfillError, ErrorClass, ProduceError, Producer, UploadError, Uploader,
    producer::Ticket,
    uploader::{Begun, PackState, Source},
};
use bytes::Bytes;
use refstream_filer_adapter::StoreErrorKind;
use refstream_format::pack::PackEntry;
use refstream_types::{Header, Key, Record, Reference, Timestamp, Value};
use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, OnceLock, PoisonError},
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    task::{JoinError, JoinSet},
};

/// Files between the walk and their ack.
pub(super) const FILES_UNDER_WAY: u32 = 16_384;
/// Threads that read small files.
const READERS: usize = 4;
/// Files that are remembered in memory, where one may be found twice.
const FILES_REMEMBERED: usize = 65_536;
/// Objects of earlier processes whose presence is remembered.
const OBJECTS_KNOWN: usize = 1_024;

/// What the tasks tell.
pub(super) enum Report {
    /// Found, without those that an earlier run has done.
    Walked {
        files: u64,
        bytes: u64,
        already: u64,
        skipped: u64,
        complete: bool,
    },
    Done {
        name: String,
        bytes: u64,
    },
    Changed {
        name: String,
    },
    Failed(FileFailure),
    /// In a dry run.
    Would(Found),
}

/// What each file needs on its way.
#[derive(Clone)]
pub(super) struct Lane {
    pub(super) uploader: Uploader,
    pub(super) producer: Producer,
    pub(super) inline_max: u64,
    pub(super) headers: Arc<[Header]>,
    pub(super) ledger: Option<Arc<dyn Ledger>>,
    pub(super) phases: Arc<Phases>,
    pub(super) reports: mpsc::Sender<Vec<Report>>,
    /// Why the whole backfill cannot go on.
    pub(super) fatal: Arc<OnceLock<BackfillError>>,
    /// Objects that earlier processes noted, and whether they are there.
    pub(super) objects: Arc<Mutex<HashMap<Key, bool>>>,
    /// The same file may be found twice.
    pub(super) may_repeat: bool,
}

/// A chunk, by what is known of its files.
#[derive(Default)]
pub(super) struct Sorted {
    pub(super) new: Vec<Found>,
    pub(super) stored: Vec<(Found, Box<Reference>, u64)>,
    pub(super) begun: Vec<(Found, Begun)>,
    pub(super) placed: Vec<(Found, Box<Reference>)>,
    pub(super) changed: Vec<Found>,
    pub(super) already: u64,
}

/// Sorts files by what is known of them.
pub(super) fn sort(files: Vec<Found>, known: Vec<Known>) -> Sorted {
    let mut sorted = Sorted::default();
    for (mut found, known) in files.into_iter().zip(known) {
        match known {
            Known::New | Known::Stored { .. } | Known::Begun(_) if found.placed.is_some() => {
                let placed = found.placed.take();
                sorted.placed.extend(placed.map(|reference| (found, reference)));
            }
            Known::New => sorted.new.push(found),
            Known::Done => sorted.already += 1,
            Known::Changed => sorted.changed.push(found),
            Known::Stored { reference, object_size } => sorted.stored.push((found, reference, object_size)),
            Known::Begun(begun) => sorted.begun.push((found, begun)),
        }
    }
    sorted
}

impl Sorted {
    /// The files that are not done.
    pub(super) fn into_files(self) -> impl Iterator<Item = Found> {
        let stored = self.stored.into_iter().map(|(found, ..)| found);
        let placed = self.placed.into_iter().map(|(found, reference)| Found { placed: Some(reference), ..found });
        self.new.into_iter().chain(stored).chain(self.begun.into_iter().map(|(found, _)| found)).chain(placed)
    }

    /// What is told of a chunk at once.
    pub(super) fn report(&mut self, chunk: &mut Walked) -> Vec<Report> {
        let todo = || {
            let stored = self.stored.iter().map(|(found, ..)| found);
            let placed = self.placed.iter().map(|(found, _)| found);
            self.new.iter().chain(stored).chain(self.begun.iter().map(|(found, _)| found)).chain(placed)
        };
        let (files, bytes) = (todo().count() as u64, todo().map(|found| found.size).sum());
        let already = self.already + self.changed.len() as u64;
        let (skipped, complete) = (chunk.skipped, chunk.complete);
        let mut reports = vec![Report::Walked { files, bytes, already, skipped, complete }];
        reports.extend(chunk.failures.drain(..).map(|(_, failure)| Report::Failed(failure)));
        reports.extend(self.changed.drain(..).map(|found| Report::Changed { name: found.name }));
        reports
    }
}

/// Takes chunks from the walk and sees each file through.
pub(super) async fn dispatch(lane: Lane, mut walked: mpsc::Receiver<Walked>) -> Result<(), BackfillError> {
    let under_way = Arc::new(Semaphore::new(FILES_UNDER_WAY as usize));
    let readers = Arc::new(Semaphore::new(READERS));
    let large = Arc::new(Semaphore::new(lane.uploader.options().concurrency));
    let mut tasks = JoinSet::new();
    let mut dispatched: HashSet<Box<[u8]>> = HashSet::new();
    while lane.fatal.get().is_none()
        && let Some(mut chunk) = walked.recv().await
    {
        let mut files = std::mem::take(&mut chunk.files);
        let found = files.len();
        if lane.may_repeat {
            if dispatched.len() > FILES_REMEMBERED {
                // Once all of them are known, the ledger remembers them.
                while let Some(done) = tasks.join_next().await {
                    done.map_err(|_: JoinError| interrupted())?;
                }
                if let Some(ledger) = &lane.ledger {
                    ledger.written().await?;
                }
                dispatched.clear();
            }
            files.retain(|found| dispatched.insert(found.row().into()));
        }
        let repeated = (found - files.len()) as u64;
        if let Some(ledger) = &lane.ledger {
            for (file, failure) in &chunk.failures {
                if let Some(file) = file {
                    ledger.failed(file, &failure.error, false);
                }
            }
        }
        let mut sorted = lane.look_up(files).await?;
        sorted.already += repeated;
        if lane.reports.send(sorted.report(&mut chunk)).await.is_err() {
            return Ok(());
        }
        let Sorted { new, stored, begun, placed, .. } = sorted;
        let count = new.len() + stored.len() + begun.len() + placed.len();
        if count == 0 {
            continue;
        }
        let permits = Arc::new(acquire(&under_way, count as u32).await?);
        if !placed.is_empty() {
            let (lane, permits) = (lane.clone(), Arc::clone(&permits));
            tasks.spawn(async move {
                lane.placed(placed).await;
                drop(permits);
            });
        }
        let mut alone: Vec<_> = begun.into_iter().map(|(found, begun)| (found, Some(begun))).collect();
        if chunk.small && new.len() + stored.len() > 0 {
            let bytes = new.iter().map(|found| found.size).sum();
            let room = lane.uploader.room(bytes).await;
            let reader = acquire(&readers, 1).await?;
            let (lane, large, permits) = (lane.clone(), Arc::clone(&large), Arc::clone(&permits));
            tasks.spawn(async move {
                lane.small(new, stored, room, reader, &large).await;
                drop(permits);
            });
        } else {
            alone.extend(new.into_iter().map(|found| (found, None)));
            for (found, reference, object_size) in stored {
                let (lane, large, permits) = (lane.clone(), Arc::clone(&large), Arc::clone(&permits));
                tasks.spawn(async move {
                    let report = match lane.is_there(&found, &reference, object_size).await {
                        Ok(true) => lane.produce(found, Value::Reference(reference)).await,
                        Ok(false) => {
                            let _turn = large.acquire().await;
                            lane.one(found, None).await
                        }
                        Err(error) => lane.upload_failed(&found, error),
                    };
                    let _ = lane.reports.send(vec![report]).await;
                    drop(permits);
                });
            }
        }
        for (found, begun) in alone {
            let turn = acquire(&large, 1).await?;
            let (lane, permits) = (lane.clone(), Arc::clone(&permits));
            tasks.spawn(async move {
                let report = lane.one(found, begun).await;
                let _ = lane.reports.send(vec![report]).await;
                drop((turn, permits));
            });
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
    async fn look_up(&self, files: Vec<Found>) -> Result<Sorted, BackfillError> {
        let Some(ledger) = self.ledger.clone().filter(|_| !files.is_empty()) else {
            let known = vec![Known::New; files.len()];
            return Ok(sort(files, known));
        };
        let looked = tokio::task::spawn_blocking(move || {
            let known = ledger.known(&files)?;
            Ok::<_, BackfillError>(sort(files, known))
        });
        looked.await.map_err(|_: JoinError| interrupted())?
    }

    /// Whether the object that an earlier process noted for a file is there.
    async fn is_there(&self, found: &Found, reference: &Reference, object_size: u64) -> Result<bool, UploadError> {
        let known = |objects: &Mutex<HashMap<Key, bool>>| {
            objects.lock().unwrap_or_else(PoisonError::into_inner).get(&reference.key).copied()
        };
        let there = match known(&self.objects) {
            Some(there) => there,
            None => {
                let there = self.uploader.has(&reference.key, object_size).await?;
                let mut objects = self.objects.lock().unwrap_or_else(PoisonError::into_inner);
                if objects.len() >= OBJECTS_KNOWN {
                    objects.clear();
                }
                objects.insert(reference.key.clone(), there);
                there
            }
        };
        if there && let Some(ledger) = &self.ledger {
            let payload = Payload::Stored { reference, object_size };
            ledger.payload(found.row(), found.size, found.modified, &payload);
        }
        Ok(there)
    }

    /// Files whose payload is where it belongs already.
    async fn placed(&self, files: Vec<(Found, Box<Reference>)>) {
        let mut tickets = Vec::with_capacity(files.len());
        let mut reports = Vec::new();
        for (found, reference) in files {
            if let Some(ledger) = &self.ledger {
                let payload = Payload::Stored { reference: &reference, object_size: reference.size };
                ledger.payload(found.row(), found.size, found.modified, &payload);
            }
            match self.send(found, Value::Reference(reference)).await {
                Ok(sent) => tickets.push(sent),
                Err(report) => reports.push(report),
            }
        }
        for sent in tickets {
            reports.push(self.acked(sent).await);
        }
        let _ = self.reports.send(reports).await;
    }

    /// A chunk of small files: read together, packed together.
    async fn small(
        &self,
        mut files: Vec<Found>,
        stored: Vec<(Found, Box<Reference>, u64)>,
        room: OwnedSemaphorePermit,
        reader: OwnedSemaphorePermit,
        large: &Arc<Semaphore>,
    ) {
        let mut tickets = Vec::with_capacity(files.len() + stored.len());
        let mut reports = Vec::new();
        let take = |reports: &mut Vec<_>, tickets: &mut Vec<_>, sent| match sent {
            Ok(ticket) => tickets.push(ticket),
            Err(report) => reports.push(report),
        };
        for (found, reference, object_size) in stored {
            match self.is_there(&found, &reference, object_size).await {
                Ok(true) => take(&mut reports, &mut tickets, self.send(found, Value::Reference(reference)).await),
                Ok(false) => files.push(found),
                Err(error) => reports.push(self.upload_failed(&found, error)),
            }
        }
        let options = self.uploader.options();
        let how = How { compression: options.compression, below: options.pack_below, inline_max: self.inline_max };
        let hashing = self.phases.enter(Phase::Hashing, files.len() as u64);
        let phases = Arc::clone(&self.phases);
        let read = tokio::task::spawn_blocking(move || read::read(files, how, &phases)).await;
        drop(reader);
        let Ok(Read { stored, small, grown, failures }) = read else {
            let _ = self.fatal.set(interrupted());
            return;
        };
        let uploading = hashing.go_on(Phase::Uploading);
        reports.extend(failures.into_iter().map(|(found, error)| self.upload_failed(&found, error)));
        let packed = small.iter().filter_map(|file| match &file.value {
            SmallValue::Packed(range, entry, tag) => {
                Some((range.clone(), entry.clone(), self.ledger.is_some().then(|| Arc::clone(tag))))
            }
            SmallValue::Inline(_) => None,
        });
        let mut places = self.uploader.pack_all(&stored, packed, room).into_iter();
        drop(stored);
        for SmallFile { found, value } in small {
            let value = match value {
                SmallValue::Inline(bytes) => {
                    let content_hash = refstream_types::ContentHash(*blake3::hash(&bytes).as_bytes());
                    if let Some(ledger) = &self.ledger {
                        ledger.payload(found.row(), found.size, found.modified, &Payload::Inline(content_hash));
                    }
                    Value::Inline { bytes, content_hash }
                }
                SmallValue::Packed(_, entry, tag) => {
                    let Some((pack, offset)) = places.next() else { continue };
                    match self.stored_in(&pack, offset, &entry, tag.content_type.clone()).await {
                        Ok(reference) => Value::Reference(Box::new(reference)),
                        Err(error) => {
                            reports.push(self.upload_failed(&found, error));
                            continue;
                        }
                    }
                }
            };
            take(&mut reports, &mut tickets, self.send(found, value).await);
        }
        drop(uploading);
        for sent in tickets {
            reports.push(self.acked(sent).await);
        }
        for found in grown {
            let _turn = large.acquire().await;
            reports.push(self.one(found, None).await);
        }
        let _ = self.reports.send(reports).await;
    }

    async fn stored_in(
        &self,
        pack: &PackState,
        offset: u64,
        entry: &PackEntry,
        content_type: Option<String>,
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
            content_type,
            etag: None,
            version: None,
        })
    }

    /// One file by itself. One that changes while it is read gets a second chance.
    async fn one(&self, mut found: Found, begun: Option<Begun>) -> Report {
        let uploading = self.phases.enter(Phase::Uploading, 1);
        let content_type = content_type::of(&found.name).map(str::to_owned);
        let mut begun = begun;
        let mut again = true;
        let receipt = loop {
            let notes = self.ledger.clone().map(|ledger| {
                let tag = read::tag(&found, found.modified);
                ledger.upload_notes(&found, tag, begun.take())
            });
            let source = Source::File(found.path.clone());
            let name = Some(found.name.clone());
            match self.uploader.upload_noted(source, content_type.clone(), name, notes).await {
                Err(UploadError::Changed(_)) if again => {
                    again = false;
                    if let Ok(metadata) = std::fs::metadata(&found.path) {
                        found.size = metadata.len();
                        found.modified = metadata.modified().ok().map(Timestamp::from);
                    }
                }
                other => break other,
            }
        };
        let reference = match receipt {
            Ok(receipt) => receipt.into_reference(),
            Err(error) => return self.upload_failed(&found, error),
        };
        found.size = reference.content_size;
        if let Some(ledger) = &self.ledger
            && reference.offset.is_none()
        {
            let payload = Payload::Stored { reference: &reference, object_size: reference.size };
            ledger.payload(found.row(), found.size, found.modified, &payload);
        }
        drop(uploading);
        self.produce(found, Value::Reference(Box::new(reference))).await
    }

    /// Produces a file's record and waits for its ack.
    async fn produce(&self, found: Found, value: Value) -> Report {
        match self.send(found, value).await {
            Ok(sent) => self.acked(sent).await,
            Err(report) => report,
        }
    }

    async fn send(&self, found: Found, value: Value) -> Result<(Found, Ticket, InPhase), Report> {
        let committing = self.phases.enter(Phase::Committing, 1);
        let record = Record {
            key: Some(found.key().to_owned().into()),
            event_time: found.modified,
            headers: self.headers.to_vec(),
            source_name: Some(found.name.clone()),
            source_mtime: found.modified,
            value,
        };
        let tag = self.ledger.is_some().then(|| Bytes::copy_from_slice(found.row()));
        match self.producer.send_tagged(record, tag).await {
            Ok(ticket) => Ok((found, ticket, committing)),
            Err(error) => Err(self.produce_failed(&found, error)),
        }
    }

    async fn acked(&self, (found, ticket, committing): (Found, Ticket, InPhase)) -> Report {
        let report = match ticket.ack().await {
            Ok(_) => Report::Done { name: found.name, bytes: found.size },
            Err(error) => self.produce_failed(&found, error),
        };
        drop(committing);
        report
    }

    fn failed(&self, found: &Found, error: &dyn std::fmt::Display, go_on: bool) -> Report {
        let error = error.to_string();
        if let Some(ledger) = &self.ledger {
            ledger.failed(found, &error, go_on);
        }
        Report::Failed(FileFailure { path: found.name.clone(), error })
    }

    /// An upload that every other file's would share the fate of ends the backfill.
    fn upload_failed(&self, found: &Found, error: UploadError) -> Report {
        let hopeless = match &error {
            // A store that stays full has no room for the other files either.
            UploadError::NotStored(not_stored) if not_stored.error.kind == StoreErrorKind::NoSpace => true,
            UploadError::NotStored(_) => matches!(error.class(), ErrorClass::NotAuthorised | ErrorClass::NotFound),
            UploadError::Open(_) | UploadError::Interrupted(_) | UploadError::State(_) => true,
            _ => false,
        };
        let report = self.failed(found, &error, hopeless || error.is_retryable());
        if hopeless {
            let _ = self.fatal.set(error.into());
        }
        report
    }

    fn produce_failed(&self, found: &Found, error: ProduceError) -> Report {
        let report = self.failed(found, &error, true);
        if matches!(error, ProduceError::Ended(_)) {
            let _ = self.fatal.set(error.into());
        }
        report
    }
}
