use super::*;
use crate::doubles::{Clock, Shelf};
use bytes::Bytes;
use refstream_format::{
    batch::{BatchBuilder, EncodedBatch},
    cluster_log::{OpenSegment, SealedBy, SealedSegment, TopicState},
    journal::{Entry, JournalObject},
};
use refstream_proto::v1::{ErrorCode, TailBatch, tail_response::Event};
use refstream_types::{
    Layout, Offset, PartitionId, PartitionRange, Record, SegmentId, SegmentNumber, Slot, Timestamp, Token, TopicConfig,
    Value,
};
use std::{collections::BTreeMap, sync::atomic::Ordering};
use tokio_util::sync::CancellationToken;

const TOPIC: TopicId = TopicId(1);
const OURS: Epoch = Epoch(7);
const GRACE: Duration = Duration::from_secs(10);

fn batch(records: usize) -> EncodedBatch {
    let mut builder = BatchBuilder::new();
    for _ in 0..records {
        builder.push(&Record::new(Value::Tombstone)).unwrap();
    }
    builder.finish(None).unwrap()
}

fn open(number: u64, starts: &[u64], owner: Epoch) -> OpenSegment {
    OpenSegment {
        id: SegmentId { topic: TOPIC, number: SegmentNumber(number) },
        range: PartitionRange::new(PartitionId(0), PartitionId(starts.len() as u32)).unwrap(),
        owner,
        start_offsets: starts.iter().copied().map(Offset).collect(),
        predecessors: Vec::new(),
    }
}

fn sealed(opened: OpenSegment, ends: &[u64]) -> SealedSegment {
    SealedSegment {
        opened,
        end_offsets: ends.iter().copied().map(Offset).collect(),
        by: SealedBy::Owner { slot: Slot(99) },
        slots: (Slot(1), Slot(99)),
        bytes: 1,
    }
}

fn state(sealed: Vec<SealedSegment>, opened: OpenSegment) -> Arc<ClusterState> {
    let topic = TopicState {
        id: TOPIC,
        name: "images".parse().unwrap(),
        config: TopicConfig { partitions: opened.range.len() as u32, ..TopicConfig::default() },
        created_at: Timestamp::from_micros(0),
        deleted: false,
        next_segment: opened.id.number.next(),
        next_offsets: opened.start_offsets.clone(),
        open: BTreeMap::from([(opened.id.number, opened)]),
        adopted: BTreeMap::new(),
        sealed: sealed.into_iter().map(|segment| (segment.opened.id.number, segment)).collect(),
        tails: BTreeMap::new(),
        planned: BTreeMap::new(),
    };
    let mut state = ClusterState::default();
    state.topics.insert(TOPIC, Arc::new(topic));
    Arc::new(state)
}

struct Bench {
    shelf: Arc<Shelf>,
    clock: Arc<Clock>,
    reader: Arc<Reader>,
    next: Vec<u64>,
    segment: u64,
    slot: u64,
    closing: CancellationToken,
}

impl Bench {
    fn new(cache: usize) -> Self {
        let (shelf, clock) = (Arc::new(Shelf::default()), Arc::new(Clock::default()));
        let metadata = Metadata::new(Arc::<Shelf>::clone(&shelf), Layout::new("").unwrap());
        let runtime: Arc<dyn Runtime> = Arc::<Clock>::clone(&clock);
        let reader = Arc::new(Reader::new(metadata, runtime, Arc::new(Metrics::new()), cache, GRACE));
        reader.set_state(&state(Vec::new(), open(1, &[0, 0], OURS)));
        Self { shelf, clock, reader, next: vec![0, 0], segment: 1, slot: 0, closing: CancellationToken::new() }
    }

    /// Commits one slot with batches of so many records to these partitions, at this append time.
    fn commit(&mut self, batches: &[(u32, usize)], at: i64) {
        self.slot += 1;
        let placed: Vec<PlacedBatch> = batches
            .iter()
            .map(|(partition, records)| {
                let next = &mut self.next[*partition as usize];
                let base_offset = Offset(*next);
                *next += *records as u64;
                PlacedBatch {
                    segment: SegmentId { topic: TOPIC, number: SegmentNumber(self.segment) },
                    partition: PartitionId(*partition),
                    base_offset,
                    append_time: Timestamp::from_micros(at),
                    batch: batch(*records),
                }
            })
            .collect();
        let object = JournalObject::Entries {
            in_flight: 0,
            epoch: OURS,
            slot: Slot(self.slot),
            token: Token([1; 16]),
            checkpoint: None,
            entries: placed.iter().cloned().map(Entry::Batch).collect(),
        };
        self.shelf.objects.lock().unwrap().insert(self.key(self.slot), object.encode());
        let locations = object.locations();
        self.reader.committed(OURS, placed.into_iter().zip(locations).collect());
    }

    fn key(&self, slot: u64) -> refstream_types::Key {
        self.reader.metadata.layout().journal(OURS, Slot(slot))
    }

    fn topic(&self) -> Arc<Topic> {
        self.reader.topic(TOPIC).unwrap()
    }

    fn tail(&self, positions: &[(u32, u64)], follow: bool) -> Tail {
        let positions = positions.iter().map(|(partition, offset)| (PartitionId(*partition), Offset(*offset)));
        Tail::new(Arc::clone(&self.reader), self.topic(), positions.collect::<Vec<_>>(), follow, self.closing.clone())
            .unwrap()
    }

    /// Closes the open segment's predecessor-to-be: seals it at what was committed, opens number 2, then drops number 1.
    fn close(&mut self) {
        let ends = self.next.clone();
        self.reader.set_state(&state(vec![sealed(open(1, &[0, 0], OURS), &ends)], open(2, &ends, OURS)));
        self.reader.set_state(&state(Vec::new(), open(2, &ends, OURS)));
        self.segment = 2;
    }
}

async fn event(tail: &mut Tail) -> Event {
    tail.next().await.expect("the tail goes on").expect("no status").event.expect("an event")
}

async fn next_batch(tail: &mut Tail) -> TailBatch {
    match event(tail).await {
        Event::Batch(batch) => batch,
        other => panic!("not a batch: {other:?}"),
    }
}

async fn rest(mut tail: Tail) -> Vec<(u32, u64)> {
    let mut seen = Vec::new();
    while let Some(response) = tail.next().await {
        if let Some(Event::Batch(batch)) = response.unwrap().event {
            seen.push((batch.partition, batch.base_offset));
        }
    }
    seen
}

#[tokio::test]
async fn a_tail_takes_turns_and_tells_once_that_it_caught_up() {
    let mut bench = Bench::new(1 << 20);
    bench.commit(&[(0, 3), (0, 2), (1, 1)], 10);
    let mut tail = bench.tail(&[(0, 4), (1, 0)], true);
    let first = next_batch(&mut tail).await;
    assert_eq!((first.partition, first.base_offset, first.latest), (0, 3, 5), "the batch that holds offset 4");
    assert_eq!(next_batch(&mut tail).await.partition, 1);
    let caught_up = |event| matches!(event, Event::CaughtUp(_));
    assert!(caught_up(event(&mut tail).await));
    assert!(caught_up(event(&mut tail).await));
    bench.commit(&[(1, 1)], 11);
    let live = next_batch(&mut tail).await;
    assert_eq!((live.partition, live.base_offset, live.append_time), (1, 1, 11));
    assert_eq!(EncodedBatch::parse(live.batch).unwrap().header().records, 1);
    bench.commit(&[(1, 1)], 12);
    assert_eq!(next_batch(&mut tail).await.base_offset, 2, "the live tail is not told of every end");
}

#[tokio::test]
async fn without_follow_a_tail_ends_at_what_was_committed() {
    let mut bench = Bench::new(1 << 20);
    bench.commit(&[(0, 1), (1, 1)], 1);
    let tail = bench.tail(&[(0, 0), (1, 0)], false);
    bench.commit(&[(0, 1), (1, 1)], 2);
    assert_eq!(rest(tail).await, [(0, 0), (1, 0)]);
}

#[tokio::test]
async fn what_is_not_in_memory_is_read_once_for_all_partitions() {
    let mut bench = Bench::new(0);
    bench.commit(&[(0, 1), (1, 1), (0, 1)], 1);
    // Without any cache every batch is a read of the object's stretch; with room for the stretch one read serves all.
    assert_eq!(rest(bench.tail(&[(0, 0), (1, 0)], false)).await.len(), 3);
    let mut bench = Bench::new(4_096);
    for slot in 0..40 {
        bench.commit(&[(0, 1), (1, 1), (0, 1)], slot);
    }
    let newest = bench.next[0];
    let before = bench.shelf.range_reads.load(Ordering::Relaxed);
    let seen = rest(bench.tail(&[(0, 0), (1, 0)], false)).await;
    assert_eq!(seen.len(), 120);
    assert_eq!(seen.iter().filter(|(partition, _)| *partition == 0).count() as u64, newest);
    assert!(bench.shelf.range_reads.load(Ordering::Relaxed) - before <= 40, "at most one read an object");
}

#[tokio::test]
async fn closed_segments_are_served_for_a_grace_period_then_are_in_files() {
    let mut bench = Bench::new(1 << 20);
    bench.commit(&[(0, 5), (1, 2)], 1);
    bench.close();
    bench.commit(&[(0, 1)], 2);
    assert_eq!(rest(bench.tail(&[(0, 0)], false)).await, [(0, 0), (0, 5)]);
    bench.clock.0.fetch_add(GRACE.as_micros() as u64 + 1, Ordering::Relaxed);
    bench.reader.prune();
    let mut tail = bench.tail(&[(0, 3), (1, 2)], true);
    let Event::Error(error) = event(&mut tail).await else { panic!("not an error") };
    let detail = error.error.unwrap();
    assert_eq!((error.partition, detail.code()), (0, ErrorCode::InFiles));
    assert_eq!((detail.offset, detail.until), (Some(3), Some(5)));
    assert!(matches!(event(&mut tail).await, Event::CaughtUp(_)), "the other partition goes on");
    bench.commit(&[(1, 1)], 3);
    assert_eq!(next_batch(&mut tail).await.base_offset, 2);
    assert_eq!(rest(bench.tail(&[(0, 5)], false)).await, [(0, 5)]);
    assert_eq!(bench.topic().latest(PartitionId(0)), Offset(6), "the end does not move back");
}

#[tokio::test]
async fn a_freed_journal_object_of_a_closed_segment_means_in_files() {
    let mut bench = Bench::new(0);
    bench.commit(&[(0, 5), (1, 1)], 1);
    bench.close();
    bench.shelf.objects.lock().unwrap().clear();
    let mut tail = bench.tail(&[(0, 0)], true);
    let Event::Error(error) = event(&mut tail).await else { panic!("not an error") };
    let detail = error.error.unwrap();
    assert_eq!((detail.code(), detail.until), (ErrorCode::InFiles, Some(5)));
}

#[tokio::test]
async fn a_lost_or_damaged_object_fails_its_partition_alone() {
    let mut bench = Bench::new(0);
    bench.commit(&[(0, 1)], 1);
    bench.commit(&[(1, 1)], 2);
    let (lost, damaged) = (bench.key(1), bench.key(2));
    bench.shelf.objects.lock().unwrap().remove(&lost);
    let mut tail = bench.tail(&[(0, 0), (1, 0)], false);
    let mut failed = 0;
    let mut delivered = 0;
    while let Some(response) = tail.next().await {
        match response.unwrap().event.unwrap() {
            Event::Error(error) => {
                let detail = error.error.unwrap();
                assert_eq!((error.partition, detail.code()), (0, ErrorCode::Internal));
                assert!(detail.message.contains(lost.as_str()), "{}", detail.message);
                failed += 1;
            }
            Event::Batch(batch) => {
                assert_eq!(batch.partition, 1);
                delivered += 1;
            }
            Event::CaughtUp(_) => {}
        }
    }
    assert_eq!((failed, delivered), (1, 1));

    let flipped = {
        let mut objects = bench.shelf.objects.lock().unwrap();
        let mut bytes = objects[&damaged].to_vec();
        *bytes.last_mut().unwrap() ^= 1;
        objects.insert(damaged.clone(), Bytes::from(bytes));
        damaged
    };
    let mut tail = bench.tail(&[(1, 0)], true);
    let Event::Error(error) = event(&mut tail).await else { panic!("wrong bytes were handed out") };
    let detail = error.error.unwrap();
    assert!(detail.message.contains(flipped.as_str()) && !detail.retryable, "{}", detail.message);
}

#[tokio::test]
async fn a_store_that_comes_back_is_waited_for() {
    let mut bench = Bench::new(0);
    bench.commit(&[(0, 1)], 1);
    bench.shelf.failing.store(2, Ordering::Relaxed);
    assert_eq!(rest(bench.tail(&[(0, 0)], false)).await, [(0, 0)]);
    bench.shelf.failing.store(u64::MAX, Ordering::Relaxed);
    let mut tail = bench.tail(&[(0, 0)], true);
    let Event::Error(error) = event(&mut tail).await else { panic!("not an error") };
    let detail = error.error.unwrap();
    assert!(detail.retryable && detail.code() == ErrorCode::Unavailable, "{}", detail.message);
}

#[tokio::test]
async fn an_offset_past_the_end_is_refused() {
    let mut bench = Bench::new(1 << 20);
    bench.commit(&[(0, 1)], 1);
    for follow in [true, false] {
        let mut tail = bench.tail(&[(0, 2)], follow);
        let Event::Error(error) = event(&mut tail).await else { panic!("not an error") };
        assert_eq!(error.error.unwrap().code(), ErrorCode::OffsetOutOfRange);
        assert!(tail.next().await.is_none(), "no partition is left");
    }
}

#[tokio::test]
async fn tails_end_with_their_topic_and_with_the_broker() {
    let bench = Bench::new(1 << 20);
    let mut tail = bench.tail(&[(0, 0)], true);
    assert!(matches!(event(&mut tail).await, Event::CaughtUp(_)));
    bench.reader.set_state(&Arc::new(ClusterState::default()));
    let status = tail.next().await.unwrap().unwrap_err();
    assert_eq!(refstream_proto::error_detail(&status).code(), ErrorCode::TopicNotFound);
    assert!(tail.next().await.is_none());

    let bench = Bench::new(1 << 20);
    let mut tail = bench.tail(&[(0, 0)], true);
    bench.closing.cancel();
    let status = tail.next().await.unwrap().unwrap_err();
    let detail = refstream_proto::error_detail(&status);
    assert!(detail.retryable && detail.code() == ErrorCode::Unavailable);
}

#[tokio::test]
async fn times_are_found_among_batches_and_point_to_files_where_those_may_hold_them() {
    let mut bench = Bench::new(1 << 20);
    bench.commit(&[(0, 5)], 100);
    bench.commit(&[(0, 5)], 200);
    let (topic, p0) = (bench.topic(), PartitionId(0));
    let at = async |time| bench.reader.offset_at(&topic, p0, Timestamp::from_micros(time)).await.unwrap();
    assert_eq!(at(50).await, (Some(Offset(0)), true));
    assert_eq!(at(101).await, (Some(Offset(5)), false));
    assert_eq!(at(200).await, (Some(Offset(5)), false));
    assert_eq!(at(201).await, (None, false));
    bench.close();
    bench.clock.0.fetch_add(GRACE.as_micros() as u64 + 1, Ordering::Relaxed);
    bench.reader.prune();
    let (topic, reader) = (bench.topic(), &bench.reader);
    assert_eq!(reader.offset_at(&topic, p0, Timestamp::from_micros(50)).await.unwrap(), (None, true));
}

#[tokio::test]
async fn memory_for_readers_is_bounded() {
    let mut bench = Bench::new(64 << 10);
    for at in 0..2_000 {
        bench.commit(&[(0, 10)], at);
    }
    assert!(lock(&bench.reader.recent).bytes() <= 48 << 10);
    let seen = rest(bench.tail(&[(0, 0)], false)).await;
    assert_eq!(seen.len(), 2_000, "evicted batches are read from the journal");
}
