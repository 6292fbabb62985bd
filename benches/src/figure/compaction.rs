//! Rows a second of a compaction, journal to Parquet, against a bare arrow-rs writer on the same rows with the same properties.
//!
//! The compactor reads journal objects from the embedded store, checks and decodes their batches, brings the rows into order, makes
//! columns of them, writes the file and commits the manifest. The bare writer has the columns in memory already, and writes one file
//! to the same file system and waits for the disk.

use crate::{
    Outcome, Plan,
    load::{Place, References},
    numbers::{Watch, cpu_seconds, median},
    report::Row,
};
use arrow::array::RecordBatch;
use parquet::arrow::ArrowWriter;
use refstream::types::{
    Epoch, Layout, Offset, PartitionId, PartitionRange, ProducerEpoch, ProducerId, ProducerStamp, SegmentId,
    SegmentNumber, Sequence, Slot, StoreName, Timestamp, Token, TopicConfig, TopicId, TopicName,
};
use refstream_filer_adapter::{
    BlobStore, Filer as _, Runtime as _, TokioRuntime,
    embedded::{FileStore, FileStoreOptions},
};
use refstream_format::{
    batch::BatchBuilder,
    cluster_log::{OpenSegment, SealedBy, SealedSegment, TopicState},
    journal::{Entry, JournalObject, PlacedBatch},
};
use refstream_journal::Metadata;
use refstream_segments::{Compactor, properties, record_batches, schema};
use std::{collections::BTreeMap, path::Path, sync::Arc};

const PARTITIONS: u32 = 16;
const BATCH_RECORDS: u64 = 500;
/// Batches of a journal object: one of each partition.
const OBJECT_BATCHES: u64 = PARTITIONS as u64;
const EPOCH: Epoch = Epoch(1);
const STORE: &str = "embedded";

pub(crate) async fn measure(plan: &Plan) -> Outcome<Vec<Row>> {
    let objects = plan.size(60) as u64;
    let mut rows = Vec::new();
    for (place, name) in [(Place::Packed, "packed"), (Place::Whole, "unpacked")] {
        let folder = plan.temporary()?;
        let deployment = Deployment::new(folder.path(), place, objects).await?;
        let count = deployment.rows;
        let batches = deployment.columns().await?;
        let own = std::process::id();
        let (mut compacted, mut bare, mut ratios, mut published) = (vec![], vec![], vec![], vec![]);
        let (mut cpu, mut bare_cpu, mut cpu_ratios) = (vec![], vec![], vec![]);
        let (mut bytes, mut bare_bytes) = (0, 0);
        for round in 0..=plan.rounds() {
            let (watch, before) = (Watch::start(), cpu_seconds(own));
            bare_bytes = write_bare(&folder.path().join("bare.parquet"), &batches)?;
            let (bare_rate, bare_used) = (watch.rate(count), cpu_seconds(own) - before);
            // Another topic each round: the compactor would find its work done.
            let topic = deployment.topic(round as u64 + 1);
            let segment = deployment.seal(&topic).await?;
            let (watch, before) = (Watch::start(), cpu_seconds(own));
            let done = deployment.compactor().compact(&topic, std::slice::from_ref(&segment), false).await?;
            let (rate, used) = (watch.rate(count), cpu_seconds(own) - before);
            bytes = done.bytes;
            if done.rows != count as u64 {
                return Err(format!("{} of {count} rows were written", done.rows).into());
            }
            let watch = Watch::start();
            deployment.compactor().compact(&topic, &[], true).await?;
            if round > 0 {
                compacted.push(rate);
                bare.push(bare_rate);
                ratios.push(rate / bare_rate);
                cpu.push(used / count as f64 * 1e6);
                bare_cpu.push(bare_used / count as f64 * 1e6);
                cpu_ratios.push(used / bare_used);
                published.push(watch.rate(count));
            }
        }
        let details = format!(
            "{:.0} / {:.0} rows/s; {count} rows a round; {:.2} / {:.2} CPU-s per million rows, {:.2} x; {:.1} / {:.1} bytes a row; \
             publishing the file afterwards {:.0} rows/s",
            median(&compacted),
            median(&bare),
            median(&cpu),
            median(&bare_cpu),
            median(&cpu_ratios),
            bytes as f64 / count as f64,
            bare_bytes as f64 / count as f64,
            median(&published)
        );
        let figure = format!("compaction, journal to Parquet / bare arrow-rs writer, {name} references");
        rows.push(Row::at_least(&figure, median(&ratios), 0.6, details));
    }
    Ok(rows)
}

/// The same rows in one Parquet file, durable; its size.
fn write_bare(path: &Path, batches: &[RecordBatch]) -> Outcome<u64> {
    let mut writer = ArrowWriter::try_new(std::fs::File::create(path)?, schema(), Some(properties()))?;
    for batch in batches {
        writer.write(batch)?;
    }
    let file = writer.into_inner()?;
    file.sync_all()?;
    Ok(file.metadata()?.len())
}

/// A store with journal objects, without a broker.
struct Deployment {
    store: Arc<FileStore>,
    layout: Layout,
    place: Place,
    objects: u64,
    rows: usize,
    since: Timestamp,
}

impl Deployment {
    async fn new(folder: &Path, place: Place, objects: u64) -> Outcome<Self> {
        let store = FileStore::open(&folder.join("data"), "bench", FileStoreOptions::default())?;
        let rows = (objects * OBJECT_BATCHES * BATCH_RECORDS) as usize;
        Ok(Self { store, layout: Layout::new("")?, place, objects, rows, since: TokioRuntime::new().wall() })
    }

    fn stores(&self) -> Outcome<BTreeMap<StoreName, Arc<dyn BlobStore>>> {
        Ok(BTreeMap::from([(STORE.parse()?, Arc::clone(&self.store) as Arc<dyn BlobStore>)]))
    }

    fn compactor(&self) -> Compactor {
        let metadata = Metadata::new(Arc::clone(&self.store) as _, self.layout.clone());
        let stores = self.stores().unwrap_or_default();
        Compactor::new(metadata, Arc::clone(&self.store) as _, stores, Arc::new(TokioRuntime::new()))
    }

    fn topic(&self, id: u64) -> TopicState {
        TopicState {
            id: TopicId(id),
            name: topic_name(),
            config: TopicConfig { partitions: PARTITIONS, ..TopicConfig::default() },
            created_at: Timestamp::default(),
            deleted: false,
            next_segment: SegmentNumber(2),
            next_offsets: Vec::new(),
            adopted: BTreeMap::new(),
            tails: BTreeMap::new(),
            planned: BTreeMap::new(),
            open: BTreeMap::new(),
            sealed: BTreeMap::new(),
        }
    }

    /// The batch of one partition in one object, and its place.
    fn batch(&self, topic: TopicId, references: &mut References, slot: u64, partition: u32) -> Outcome<PlacedBatch> {
        let base = (slot - 1) * BATCH_RECORDS;
        let mut builder = BatchBuilder::new();
        for number in 0..BATCH_RECORDS {
            let key = format!("images/{partition:02}/{:08}.jpg", base + number);
            builder.push(&references.record(Some(key.into())))?;
        }
        let stamp = ProducerStamp { id: ProducerId::new(EPOCH, 1), epoch: ProducerEpoch(0), first: Sequence(base) };
        Ok(PlacedBatch {
            segment: SegmentId { topic, number: SegmentNumber(1) },
            partition: PartitionId(partition),
            base_offset: Offset(base),
            // Today: rows of a day that is over would be published at once.
            append_time: Timestamp::from_micros(self.since.as_micros() + slot as i64 * 5_000),
            batch: builder.finish(Some(stamp)).ok_or("no records")?,
        })
    }

    /// Every batch of a topic, object by object.
    fn placed(&self, topic: TopicId) -> Outcome<Vec<Vec<PlacedBatch>>> {
        let mut references = References::new(self.place, STORE.parse()?, 11);
        (1..=self.objects)
            .map(|slot| (0..PARTITIONS).map(|p| self.batch(topic, &mut references, slot, p)).collect())
            .collect()
    }

    /// Writes the journal of a topic with one sealed segment.
    async fn seal(&self, topic: &TopicState) -> Outcome<SealedSegment> {
        // Each topic's owner is an epoch of its own.
        let epoch = Epoch(EPOCH.0 + topic.id.0);
        let mut bytes = 0;
        for (slot, batches) in (1..).map(Slot).zip(self.placed(topic.id)?) {
            bytes += batches.iter().map(|placed| placed.batch.bytes().len() as u64).sum::<u64>();
            let entries = batches.into_iter().map(Entry::Batch).collect();
            let object =
                JournalObject::Entries { in_flight: 0, epoch, slot, token: Token([9; 16]), checkpoint: None, entries };
            self.store.create(&self.layout.journal(epoch, slot), object.encode()).await?;
        }
        let range = PartitionRange::new(PartitionId(0), PartitionId(PARTITIONS)).ok_or("no range")?;
        let id = SegmentId { topic: topic.id, number: SegmentNumber(1) };
        Ok(SealedSegment {
            opened: OpenSegment {
                id,
                range,
                owner: epoch,
                start_offsets: vec![Offset(0); PARTITIONS as usize],
                predecessors: Vec::new(),
            },
            end_offsets: vec![Offset(self.objects * BATCH_RECORDS); PARTITIONS as usize],
            by: SealedBy::Recovery { fence: Slot(self.objects + 1) },
            slots: (Slot(1), Slot(self.objects)),
            bytes,
        })
    }

    /// The same rows in the order of the file, as columns.
    async fn columns(&self) -> Outcome<Vec<RecordBatch>> {
        let mut rows = Vec::with_capacity(self.rows);
        for placed in self.placed(TopicId(1))?.into_iter().flatten() {
            let producer = placed.batch.header().producer;
            for (number, record) in (0..).zip(placed.batch.decode()?) {
                rows.push(refstream_segments::Row {
                    partition: placed.partition,
                    offset: Offset(placed.base_offset.0 + number),
                    append_time: placed.append_time,
                    producer: producer.map(|stamp| ProducerStamp { first: Sequence(stamp.first.0 + number), ..stamp }),
                    record,
                });
            }
        }
        rows.sort_by_key(|row| (row.partition, row.offset));
        Ok(record_batches(&topic_name(), &rows, &self.stores()?)?)
    }
}

fn topic_name() -> TopicName {
    "bench".parse().unwrap_or_else(|error| unreachable!("a topic's name: {error}"))
}
