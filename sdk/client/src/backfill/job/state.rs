//! The job's database: a redb file, written by one thread that commits in groups.
//!
//! | table | key | value |
//! |---|---|---|
//! | `files` | the file's identity: its absolute path, a tar's path and a member, or a URI | its [`Row`] |
//! | `parts` | file, part number | a part that the store has |
//! | `batches` | number | a batch that is under way: [`Batch`] |
//! | `failures` | file | the name that people know it by, and its error |
//! | `meta` | name | JSON: `spec`, `totals`, `ended` |
//!
//! A commit is durable (`fsync`) before anybody who waits for it is told. redb never overwrites what the last commit needs, so a crash at any moment
//! leaves the file as of the last commit. Every page has a checksum; all are compared when the file is opened, and a file that was damaged is refused: a
//! row that is not what it was could make a second record of its file.

use super::row::{KINDS, Kind, Row, State, part_from_bytes, part_to_bytes};
use crate::{
    JobState,
    uploader::{Begun, BegunHow},
};
use bytes::Bytes;
use redb::{Database, DatabaseError, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition};
use refstream_filer_adapter::Part;
use refstream_types::{Offset, PartitionId};
use serde::{Deserialize, Serialize};
use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, mpsc},
};
use tokio::sync::oneshot;

const FILES: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("files");
const PARTS: TableDefinition<'_, (&[u8], u32), &[u8]> = TableDefinition::new("parts");
const BATCHES: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("batches");
const FAILURES: TableDefinition<'_, &[u8], (&str, &str)> = TableDefinition::new("failures");
const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");

/// The name in the table `meta` of the counts.
const TOTALS: &str = "totals";
/// Pages of the database that are kept in memory, in bytes.
const CACHE_BYTES: usize = 48 << 20;
/// Changes of one commit.
const GROUP: usize = 4_096;

/// Counts of files by how far they are, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Totals {
    files: [u64; KINDS],
    bytes: [u64; KINDS],
}

impl Totals {
    pub(super) fn of(&self, kind: Kind) -> (u64, u64) {
        (self.files[kind as usize], self.bytes[kind as usize])
    }
    fn add(&mut self, row: &Row) {
        self.files[row.kind() as usize] += 1;
        self.bytes[row.kind() as usize] += row.size;
    }
    fn remove(&mut self, row: &Row) {
        let (files, bytes) = (&mut self.files[row.kind() as usize], &mut self.bytes[row.kind() as usize]);
        *files = files.saturating_sub(1);
        *bytes = bytes.saturating_sub(row.size);
    }
}

/// A batch that is under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Batch {
    pub(super) number: u64,
    pub(super) partition: PartitionId,
    /// The batch has no lower offset than this.
    pub(super) floor: Offset,
    /// The encoded batch, stamped.
    pub(super) bytes: Bytes,
    /// The file of each record, in order.
    pub(super) files: Vec<Bytes>,
}

impl Batch {
    fn to_bytes(&self) -> Vec<u8> {
        let names: usize = self.files.iter().map(|file| file.len() + 4).sum();
        let mut bytes = Vec::with_capacity(20 + names + self.bytes.len());
        bytes.extend_from_slice(&self.partition.0.to_le_bytes());
        bytes.extend_from_slice(&self.floor.0.to_le_bytes());
        bytes.extend_from_slice(&(self.files.len() as u32).to_le_bytes());
        for file in &self.files {
            bytes.extend_from_slice(&(file.len() as u32).to_le_bytes());
            bytes.extend_from_slice(file);
        }
        bytes.extend_from_slice(&self.bytes);
        bytes
    }

    fn from_bytes(number: u64, bytes: &[u8]) -> Option<Self> {
        fn word(bytes: &mut &[u8]) -> Option<u32> {
            let (now, later) = bytes.split_first_chunk()?;
            *bytes = later;
            Some(u32::from_le_bytes(*now))
        }
        let mut rest = bytes;
        let partition = PartitionId(word(&mut rest)?);
        let (low, high) = (word(&mut rest)?, word(&mut rest)?);
        let floor = Offset(u64::from(high) << 32 | u64::from(low));
        let count = word(&mut rest)?;
        let mut files = Vec::new();
        for _ in 0..count {
            let length = word(&mut rest)? as usize;
            let (file, later) = rest.split_at_checked(length)?;
            files.push(Bytes::copy_from_slice(file));
            rest = later;
        }
        Some(Self { number, partition, floor, bytes: Bytes::copy_from_slice(rest), files })
    }
}

/// A change.
#[derive(Debug)]
pub(super) enum Change {
    /// A file's row. A row that is done is never replaced.
    Row { file: Bytes, row: Row },
    /// A part of a file's upload.
    Part { file: Bytes, part: Part },
    /// A file failed. `row: None` leaves its row as it is.
    Failed { file: Bytes, name: String, error: String, row: Option<Row> },
    /// A batch is about to be sent.
    Batch(Batch),
    /// A batch is in the topic from this offset on.
    Placed { number: u64, partition: PartitionId, base: Offset },
    /// A batch is certainly not in the topic.
    NotPlaced { number: u64 },
    /// An entry of the table `meta`.
    Meta { name: &'static str, json: Vec<u8> },
    /// Nothing: to wait for what went before.
    Nothing,
}

fn row_of(bytes: &[u8]) -> Result<Row, redb::Error> {
    Row::from_bytes(bytes).ok_or_else(|| unreadable("a file's row"))
}

fn batch_of(number: u64, bytes: &[u8]) -> Result<Batch, redb::Error> {
    Batch::from_bytes(number, bytes).ok_or_else(|| unreadable("a batch"))
}

type Reply = oneshot::Sender<Result<(), JobState>>;

/// An open database. Dropping or closing it waits until all changes are written.
#[derive(Debug)]
pub(super) struct StateFile {
    path: PathBuf,
    open: Mutex<Option<Open>>,
}

#[derive(Debug)]
struct Open {
    database: Arc<Database>,
    changes: mpsc::Sender<(Change, Option<Reply>)>,
    writer: std::thread::JoinHandle<()>,
}

impl Drop for StateFile {
    fn drop(&mut self) {
        self.close();
    }
}

fn trouble(path: &Path, why: impl std::fmt::Display) -> JobState {
    JobState { path: path.to_owned(), why: format!("cannot be read or written: {why}") }
}

fn damaged(path: &Path, why: impl std::fmt::Display) -> JobState {
    let why = format!(
        "is damaged ({why}): the disk or somebody else changed it, and it is not used, since files could get a second record; restore it from \
         a copy, or begin anew under another name with --job NAME, which makes records of all files again"
    );
    JobState { path: path.to_owned(), why }
}

/// What the database says is wrong.
fn refused(path: &Path, error: &redb::Error) -> JobState {
    match error {
        redb::Error::Corrupted(why) => damaged(path, why),
        other => trouble(path, other),
    }
}

/// Something that is there and cannot be read.
fn unreadable(what: &str) -> redb::Error {
    redb::Error::Corrupted(format!("{what} has no meaning"))
}

fn builder() -> redb::Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE_BYTES).set_check_integrity_on_open(true);
    builder
}

/// Makes an empty state. It gets its name when it is whole: a file that was being made when the process was killed is none.
fn make(path: &Path) -> Result<(), redb::Error> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let lock = std::fs::File::create(path.with_extension("lock"))?;
    lock.lock()?;
    if path.exists() {
        return Ok(());
    }
    let fresh = path.with_extension("job.new");
    match std::fs::remove_file(&fresh) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let database = builder().create(&fresh)?;
    let transaction = database.begin_write()?;
    transaction.open_table(FILES)?;
    transaction.open_table(PARTS)?;
    transaction.open_table(BATCHES)?;
    transaction.open_table(FAILURES)?;
    transaction.open_table(META)?;
    transaction.commit()?;
    drop(database);
    std::fs::rename(&fresh, path)?;
    std::fs::File::open(folder)?.sync_all()?;
    Ok(())
}

impl StateFile {
    /// Opens a job's file, or creates it.
    pub(super) fn open(path: &Path, create: bool) -> Result<Self, JobState> {
        if create && !path.exists() {
            make(path).map_err(|error| trouble(path, error))?;
        }
        let database = builder().open(path).map_err(|error| match error {
            DatabaseError::DatabaseAlreadyOpen => {
                JobState { path: path.to_owned(), why: "is in use: the job is running in another process".into() }
            }
            other => refused(path, &other.into()),
        })?;
        let database = Arc::new(database);
        let (changes, queue) = mpsc::channel();
        let mut writer = Writer { path: path.to_owned(), database: Arc::clone(&database), broken: None };
        let writer = std::thread::Builder::new()
            .name("job-state".into())
            .spawn(move || writer.run(&queue))
            .map_err(|error| trouble(path, error))?;
        Ok(Self { path: path.to_owned(), open: Mutex::new(Some(Open { database, changes, writer })) })
    }

    /// Writes what is left and lets others open the file. Changes that come later are not made. Blocks.
    pub(super) fn close(&self) {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Open { database, changes, writer }) = open {
            drop((changes, database));
            let _ = writer.join();
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    fn send(&self, change: Change, reply: Option<Reply>) {
        if let Some(open) = &*self.open.lock().unwrap_or_else(PoisonError::into_inner) {
            let _ = open.changes.send((change, reply));
        }
    }

    /// Makes a change some time, after those before it.
    pub(super) fn change(&self, change: Change) {
        self.send(change, None);
    }

    /// Makes a change; the future resolves once it is durable. The change is under way when this returns.
    pub(super) fn durable(&self, change: Change) -> impl Future<Output = Result<(), JobState>> + Send + use<> {
        let (reply, done) = oneshot::channel();
        self.send(change, Some(reply));
        let path = self.path.clone();
        async move { done.await.unwrap_or_else(|_| Err(trouble(&path, "its writer has ended"))) }
    }

    fn read<T>(&self, read: impl FnOnce(&redb::ReadTransaction) -> Result<T, redb::Error>) -> Result<T, JobState> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let database = open.as_ref().map(|open| Arc::clone(&open.database));
        drop(open);
        let database = database.ok_or_else(|| trouble(&self.path, "it is closed"))?;
        let transaction = database.begin_read().map_err(|error| trouble(&self.path, error))?;
        read(&transaction).map_err(|error| refused(&self.path, &error))
    }

    /// The rows of these files, with the parts of uploads that were begun. Changes that are not committed yet are not seen.
    pub(super) fn rows<'a>(&self, files: impl Iterator<Item = &'a [u8]>) -> Result<Vec<Option<Row>>, JobState> {
        self.read(|transaction| {
            let rows = transaction.open_table(FILES)?;
            let parts = transaction.open_table(PARTS)?;
            let mut found = Vec::new();
            for file in files {
                let mut row = rows.get(file)?.map(|bytes| row_of(bytes.value())).transpose()?;
                if let Some(Row {
                    state: State::Begun(Begun { how: BegunHow::Parts { parts: there, .. }, .. }), ..
                }) = &mut row
                {
                    for part in parts.range((file, 0)..=(file, u32::MAX))? {
                        let (key, part) = part?;
                        there.extend(part_from_bytes(key.value().1, part.value()));
                    }
                }
                found.push(row);
            }
            Ok(found)
        })
    }

    /// All batches that are under way, by number.
    pub(super) fn batches(&self) -> Result<Vec<Batch>, JobState> {
        self.read(|transaction| {
            let mut batches = Vec::new();
            for batch in transaction.open_table(BATCHES)?.iter()? {
                let (number, bytes) = batch?;
                batches.push(batch_of(number.value(), bytes.value())?);
            }
            Ok(batches)
        })
    }

    /// How many batches are under way.
    pub(super) fn batches_under_way(&self) -> Result<u64, JobState> {
        self.read(|transaction| Ok(transaction.open_table(BATCHES)?.len()?))
    }

    /// Failures in the order of their files, from after `after` on: file, name and error.
    pub(super) fn failures(
        &self,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Bytes, String, String)>, JobState> {
        self.read(|transaction| {
            let from = after.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
            let mut failures = Vec::new();
            let table = transaction.open_table(FAILURES)?;
            for failure in table.range::<&[u8]>((from, std::ops::Bound::Unbounded))?.take(limit) {
                let (file, said) = failure?;
                let (name, error) = said.value();
                failures.push((Bytes::copy_from_slice(file.value()), name.to_owned(), error.to_owned()));
            }
            Ok(failures)
        })
    }

    /// Uploads in parts that were begun and not finished.
    pub(super) fn begun(&self) -> Result<Vec<Begun>, JobState> {
        self.read(|transaction| {
            let mut begun = Vec::new();
            for row in transaction.open_table(FILES)?.iter()? {
                if let Row { state: State::Begun(found), .. } = row_of(row?.1.value())? {
                    begun.push(found);
                }
            }
            Ok(begun)
        })
    }

    /// An entry of the table `meta`.
    pub(super) fn meta<T: for<'de> Deserialize<'de>>(&self, name: &str) -> Result<Option<T>, JobState> {
        let bytes =
            self.read(|transaction| Ok(transaction.open_table(META)?.get(name)?.map(|bytes| bytes.value().to_vec())))?;
        bytes.map(|bytes| serde_json::from_slice(&bytes).map_err(|error| damaged(&self.path, error))).transpose()
    }

    pub(super) fn totals(&self) -> Result<Totals, JobState> {
        Ok(self.meta(TOTALS)?.unwrap_or_default())
    }
}

struct Writer {
    path: PathBuf,
    database: Arc<Database>,
    /// Why nothing is written any more.
    broken: Option<JobState>,
}

impl Writer {
    /// Takes what there is, commits, tells; until nobody is left who could send.
    fn run(&mut self, queue: &mpsc::Receiver<(Change, Option<Reply>)>) {
        while let Ok(first) = queue.recv() {
            let mut group = vec![first];
            group.extend(std::iter::from_fn(|| queue.try_recv().ok()).take(GROUP - 1));
            let mut waiting = Vec::new();
            let mut changes = Vec::with_capacity(group.len());
            for (change, reply) in group {
                changes.push(change);
                waiting.extend(reply);
            }
            #[cfg(test)]
            if tests::fuse_blows(&self.path) {
                self.broken = Some(trouble(&self.path, "the fuse has blown"));
            }
            let outcome = match &self.broken {
                Some(broken) => Err(broken.clone()),
                None => self.commit(changes).map_err(|error| refused(&self.path, &error)),
            };
            // What went before did not become durable, so nothing after it may.
            self.broken = outcome.clone().err();
            for reply in waiting {
                let _ = reply.send(outcome.clone());
            }
        }
    }

    fn commit(&self, changes: Vec<Change>) -> Result<(), redb::Error> {
        let transaction = self.database.begin_write()?;
        {
            let mut meta = transaction.open_table(META)?;
            let totals = meta.get(TOTALS)?.map(|bytes| serde_json::from_slice(bytes.value())).transpose();
            let totals = totals.map_err(|_| unreadable("the count of files"))?;
            let mut tables = Tables {
                files: transaction.open_table(FILES)?,
                parts: transaction.open_table(PARTS)?,
                batches: transaction.open_table(BATCHES)?,
                failures: transaction.open_table(FAILURES)?,
                totals: totals.unwrap_or_default(),
            };
            for change in changes {
                if let Change::Meta { name, json } = change {
                    meta.insert(name, &json[..])?;
                } else {
                    tables.apply(change)?;
                }
            }
            let json = serde_json::to_vec(&tables.totals).unwrap_or_default();
            meta.insert(TOTALS, &json[..])?;
        }
        transaction.commit()?;
        Ok(())
    }
}

/// The tables of one transaction.
struct Tables<'t> {
    files: redb::Table<'t, &'static [u8], &'static [u8]>,
    parts: redb::Table<'t, (&'static [u8], u32), &'static [u8]>,
    batches: redb::Table<'t, u64, &'static [u8]>,
    failures: redb::Table<'t, &'static [u8], (&'static str, &'static str)>,
    totals: Totals,
}

impl Tables<'_> {
    fn apply(&mut self, change: Change) -> Result<(), redb::Error> {
        match change {
            Change::Row { file, row } => self.put(&file, &row)?,
            Change::Part { file, part } => {
                self.parts.insert((&file[..], part.number), &part_to_bytes(&part)[..])?;
            }
            Change::Failed { file, name, error, row } => {
                self.failures.insert(&file[..], (&name[..], &error[..]))?;
                if let Some(row) = row {
                    self.put(&file, &row)?;
                }
            }
            Change::Batch(batch) => {
                self.batches.insert(batch.number, &batch.to_bytes()[..])?;
            }
            Change::Placed { number, partition, base } => {
                let removed = self.batches.remove(number)?.map(|bytes| batch_of(number, bytes.value())).transpose()?;
                for (index, file) in removed.into_iter().flat_map(|batch| batch.files).enumerate() {
                    let before = self.row(&file)?;
                    let (size, modified) = before.as_ref().map_or((0, None), |row| (row.size, row.modified));
                    let hash = before.and_then(|row| row.hash);
                    let state = State::Done { partition, offset: Offset(base.0 + index as u64) };
                    self.put(&file, &Row { size, modified, hash, state })?;
                }
            }
            Change::NotPlaced { number } => {
                self.batches.remove(number)?;
            }
            Change::Meta { .. } | Change::Nothing => {}
        }
        Ok(())
    }

    fn row(&self, file: &[u8]) -> Result<Option<Row>, redb::Error> {
        self.files.get(file)?.map(|bytes| row_of(bytes.value())).transpose()
    }

    /// Replaces a file's row, unless that is done.
    fn put(&mut self, file: &[u8], row: &Row) -> Result<(), redb::Error> {
        if let Some(before) = self.row(file)? {
            if before.kind() == Kind::Done {
                return Ok(());
            }
            self.totals.remove(&before);
            if matches!(before.state, State::Begun(_)) {
                self.parts.retain_in((file, 0)..=(file, u32::MAX), |_, _| false)?;
            }
            // What fails again has its new error noted already.
            if before.kind() == Kind::Failed && row.kind() != Kind::Failed || row.kind() == Kind::Done {
                self.failures.remove(file)?;
            }
        }
        self.totals.add(row);
        self.files.insert(file, &row.to_bytes()[..])?;
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests;
