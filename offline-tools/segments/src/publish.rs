//! Fresh files to files under `data/`: what is due, and the merge.

use crate::{
    CompactError, Compactor,
    digest::RowsDigest,
    file::{self, OpenFile},
    fresh::{self, DAY_MICROS, ends},
    output::{Columns, Output, Step, Totals},
    reader, spans,
    writer::{BATCH_ROWS, Description, ROW_GROUP_BYTES, metadata, raw_bytes},
};
use arrow::{
    array::{AsArray, RecordBatch},
    compute::concat_batches,
    datatypes::{Int32Type, Int64Type},
    error::ArrowError,
};
use futures::{TryStreamExt, stream::BoxStream};
use refstream_format::{
    cluster_log::TopicState,
    manifest::{DataFile, Manifest, PublishPlan, SegmentSpan, Tier},
};
use refstream_types::{Key, Offset, SegmentNumber, Timestamp, TopicFolder};
use std::collections::{BTreeMap, BTreeSet};
use tokio::sync::mpsc;

/// Fresh files that one file under `data/` replaces at most.
const MAX_INPUTS: usize = 1_024;
/// Rows, and bytes in memory, that a merge writes at a time.
const MERGE_BYTES: usize = 4 << 20;
/// Such batches that wait while one is encoded.
const COLUMNS_AHEAD: usize = 1;

/// When files are due.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    /// The wall clock.
    pub(crate) now: Timestamp,
    /// Publish everything.
    pub(crate) everything: bool,
}

/// The next file to publish, if one is due: of the earliest day that has one.
///
/// A day's fresh files are due as far as they fill a file of the target size; all of them are due when `clock.everything`, when
/// the oldest row has waited for `publish_lag`, or when the day is over: midnight is past by `seal_age`, within which every segment
/// that was open then is sealed, and no sealed segment that the caller knows of is missing from the manifest. A segment that
/// comes later all the same gets a file of its own: a day's files are never rewritten.
pub(crate) fn due(topic: &TopicState, manifest: &Manifest, clock: Clock) -> Option<Vec<DataFile>> {
    let mut days: BTreeMap<i64, Vec<&DataFile>> = BTreeMap::new();
    for file in manifest.files.iter().filter(|file| file.tier == Tier::Fresh) {
        days.entry(file.append_times.0.day()).or_default().push(file);
    }
    let held: BTreeSet<SegmentNumber> =
        manifest.files.iter().flat_map(|file| &file.segments).map(|span| span.number).collect();
    let all_here = topic.sealed.values().all(|s| s.is_empty() || held.contains(&s.opened.id.number));
    let micros = |duration: std::time::Duration| i64::try_from(duration.as_micros()).unwrap_or(i64::MAX);
    let now = clock.now.as_micros();
    for (day, files) in days {
        let end = (day + 1) * DAY_MICROS;
        let over = all_here && now >= end.saturating_add(micros(topic.config.seal_age));
        let oldest = files.iter().map(|file| file.append_times.0.as_micros()).min().unwrap_or(now);
        let late = now.saturating_sub(oldest) >= micros(topic.config.publish_lag);
        let mut bytes = 0;
        let mut inputs = Vec::new();
        for file in files {
            bytes += file.bytes;
            inputs.push(file.clone());
            if bytes >= topic.config.file_bytes || inputs.len() >= MAX_INPUTS {
                return Some(inputs);
            }
        }
        if clock.everything || over || late {
            return Some(inputs);
        }
    }
    None
}

/// The fresh files that a plan replaces, where the manifest has them all.
pub(crate) fn inputs(manifest: &Manifest, plan: &PublishPlan) -> Option<Vec<DataFile>> {
    plan.inputs.iter().map(|key| manifest.files.iter().find(|file| file.key == *key).cloned()).collect()
}

/// One input of a merge: opened when it is first needed, then read once from start to end.
struct Cursor {
    file: DataFile,
    batches: Option<BoxStream<'static, Result<RecordBatch, CompactError>>>,
    current: Option<RecordBatch>,
}

impl Cursor {
    /// The next rows, at most `count`.
    async fn take(&mut self, compactor: &Compactor, count: u64) -> Result<RecordBatch, CompactError> {
        let uri = || compactor.files.uri(&self.file.key);
        if self.batches.is_none() {
            let opened = reader::open(&compactor.files, &self.file, false).await?;
            self.batches = Some(reader::columns(&opened, uri(), 0, self.file.rows, BATCH_ROWS)?);
        }
        while self.current.as_ref().is_none_or(|batch| batch.num_rows() == 0) {
            let next = match &mut self.batches {
                Some(batches) => batches.try_next().await?,
                None => None,
            };
            let ended = || CompactError::File { uri: uri(), why: "it ends too early".into() };
            self.current = Some(next.ok_or_else(ended)?);
        }
        let Some(current) = self.current.take() else {
            return Err(CompactError::File { uri: uri(), why: "it ends too early".into() });
        };
        let taken = current.num_rows().min(usize::try_from(count).unwrap_or(usize::MAX));
        self.current = Some(current.slice(taken, current.num_rows() - taken));
        Ok(current.slice(0, taken))
    }
}

/// Whether a batch is exactly the run that is due, by its first and last row; rows between them ascend in a file that its
/// checksums vouch for.
fn is_run(batch: &RecordBatch, partition: u32, start: Offset) -> bool {
    use crate::schema::column::{LOG_OFFSET, PARTITION_ID};
    let partitions = batch.column(PARTITION_ID).as_primitive::<Int32Type>();
    let offsets = batch.column(LOG_OFFSET).as_primitive::<Int64Type>();
    let last = batch.num_rows() - 1;
    [0, last]
        .iter()
        .all(|row| partitions.value(*row) as u32 == partition && offsets.value(*row) as u64 == start.0 + *row as u64)
}

impl Compactor {
    /// Refuses to publish `files` as one across a hole: records between theirs that no file of the manifest holds and no sealed
    /// segment that waits to be compacted. A file's name says that it reaches from its first segment to its last.
    pub(crate) async fn refuse_hole(
        &self,
        topic: &TopicState,
        manifest: &Manifest,
        files: &[DataFile],
    ) -> Result<(), CompactError> {
        let spans: Vec<SegmentSpan> = files.iter().flat_map(|file| file.segments.iter().cloned()).collect();
        let gaps = spans::between(&spans);
        if gaps.is_empty() {
            return Ok(());
        }
        let mut held: Vec<SegmentSpan> = topic.sealed.values().map(fresh::whole).collect();
        let mut listed = self.metadata.manifest_files(manifest);
        while let Some(file) = listed.try_next().await? {
            held.extend(file.segments);
        }
        match gaps.into_iter().find_map(|gap| spans::uncovered(gap, &held)) {
            None => Ok(()),
            Some(hole) => Err(CompactError::Hole {
                topic: topic.name.clone(),
                partition: hole.partition,
                from: hole.start,
                to: hole.end,
                version: manifest.version,
            }),
        }
    }

    /// The plan for a file that replaces `files`.
    pub(crate) fn plan(&self, topic: &TopicState, files: &[DataFile]) -> Option<PublishPlan> {
        let spans: Vec<SegmentSpan> = files.iter().flat_map(|file| file.segments.iter().cloned()).collect();
        let folder = TopicFolder::new(&topic.name, topic.id);
        let day = files.first()?.append_times.0;
        let key = self.metadata.layout().data_file(&folder, day, ends(&spans)?, spans::range(&spans)?);
        Some(PublishPlan { key, inputs: files.iter().map(|file| file.key.clone()).collect() })
    }

    /// The file that a plan is for: written now, or found complete from an attempt that crashed. Whether it was written.
    pub(crate) async fn complete(
        &self,
        topic: &TopicState,
        key: &Key,
        inputs: Vec<DataFile>,
    ) -> Result<(DataFile, bool), CompactError> {
        let mut segments: Vec<SegmentSpan> = inputs.iter().flat_map(|file| file.segments.iter().cloned()).collect();
        segments.sort_by_key(|span| span.number);
        let mut digest = RowsDigest::default();
        inputs.iter().for_each(|file| digest.add(RowsDigest::from_bytes(file.digest)));
        let times = |pick: fn(&DataFile) -> Timestamp| inputs.iter().map(pick);
        let totals = Totals {
            rows: segments.iter().map(spans::rows).sum(),
            payload_bytes: inputs.iter().map(|file| file.payload_bytes).sum(),
            append_times: (
                times(|file| file.append_times.0).min().unwrap_or_default(),
                times(|file| file.append_times.1).max().unwrap_or_default(),
            ),
            digest: digest.to_bytes(),
        };
        if let Some(found) = self.files.head(key).await? {
            let description = Description {
                topic: topic.name.clone(),
                topic_id: topic.id,
                rows: totals.rows,
                segments,
                payload_bytes: totals.payload_bytes,
                append_times: totals.append_times,
                digest: totals.digest,
            };
            return Ok((self.accept(key, found.size, description).await?, false));
        }
        let (to_encode, columns) = mpsc::channel(COLUMNS_AHEAD);
        let output = Output {
            key: key.clone(),
            tier: Tier::Data,
            topic: (topic.name.clone(), topic.id),
            segments,
            group_bytes: ROW_GROUP_BYTES,
        };
        let (merged, written) =
            tokio::join!(self.merge(to_encode, key, inputs, totals), output.write(&self.files, columns));
        merged?;
        let uri = || self.files.uri(key);
        let file =
            written?.ok_or_else(|| CompactError::Write { uri: uri(), why: "its rows ended too early".into() })?;
        Ok((file, true))
    }

    /// Accepts a file that is there already: it must be the one that the plan describes.
    async fn accept(&self, key: &Key, size: u64, expected: Description) -> Result<DataFile, CompactError> {
        let uri = self.files.uri(key);
        let opened = OpenFile::open(std::sync::Arc::clone(&self.files), key.clone(), size, false).await;
        let opened = opened.map_err(|error| file::error(&uri, error))?;
        let (segments, offsets) = expected.segments_and_offsets();
        for (name, value) in [
            (metadata::SEGMENTS, segments),
            (metadata::OFFSETS, offsets),
            (metadata::ROW_COUNT, expected.rows.to_string()),
            (metadata::DIGEST, hex::encode(expected.digest)),
        ] {
            if opened.said(name) != Some(value.as_str()) {
                let why = format!(
                    "it is not the file that the topic's publish plan describes: {name} is {:?}, expected {value:?}; \
                     something else wrote it, move it away",
                    opened.said(name)
                );
                return Err(CompactError::File { uri, why });
            }
        }
        Ok(expected.into_file(key.clone(), Tier::Data, size))
    }

    /// Writes the rows of all inputs in order. The manifest says which runs of offsets each input holds, so the order of reading is
    /// known beforehand: one row group of each input, and [`COLUMNS_AHEAD`] + 2 batches of [`MERGE_BYTES`], in memory. Ends early,
    /// without an error, when nobody takes the rows any more.
    async fn merge(
        &self,
        out: mpsc::Sender<Step>,
        key: &Key,
        inputs: Vec<DataFile>,
        totals: Totals,
    ) -> Result<(), CompactError> {
        let failed = |error: &ArrowError| CompactError::Write { uri: self.files.uri(key), why: error.to_string() };
        let mut runs: Vec<(spans::Run, usize)> = Vec::new();
        for (at, file) in inputs.iter().enumerate() {
            runs.extend(spans::runs(&file.segments).into_iter().map(|run| (run, at)));
        }
        runs.sort_unstable();
        let mut cursors: Vec<Cursor> =
            inputs.into_iter().map(|file| Cursor { file, batches: None, current: None }).collect();
        let mut pending: Vec<RecordBatch> = Vec::new();
        let (mut rows, mut bytes) = (0, 0);
        for (run, at) in runs {
            let mut start = run.start;
            while start < run.end {
                let batch = cursors[at].take(self, run.end.0 - start.0).await?;
                if !is_run(&batch, run.partition.0, start) {
                    let why = format!("partition {} offset {start} is not where the manifest says", run.partition);
                    return Err(CompactError::File { uri: self.files.uri(&cursors[at].file.key), why });
                }
                start = Offset(start.0 + batch.num_rows() as u64);
                rows += batch.num_rows();
                bytes += raw_bytes(&batch);
                pending.push(batch);
                if rows >= BATCH_ROWS || bytes >= MERGE_BYTES {
                    let columns = joined(&mut pending).map_err(|error| failed(&error))?;
                    if out.send(columns).await.is_err() {
                        return Ok(());
                    }
                    (rows, bytes) = (0, 0);
                }
            }
        }
        if rows > 0 {
            let columns = joined(&mut pending).map_err(|error| failed(&error))?;
            // Who does not take it has failed, and says why.
            let _ = out.send(columns).await;
        }
        let _ = out.send(Step::End(totals)).await;
        Ok(())
    }
}

/// One batch of several.
fn joined(pending: &mut Vec<RecordBatch>) -> Result<Step, ArrowError> {
    let batch = concat_batches(&crate::schema::schema(), std::mem::take(pending).iter())?;
    let raw = raw_bytes(&batch);
    Ok(Step::Columns(Columns { batch, raw }))
}
