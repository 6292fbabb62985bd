//! A reader whose streams the test plays: what brokers answer, in which order, and when partitions change hands.

use super::*;
use crate::{StoreAccess, broker::Bearer, doubles::Clock};
use proptest::prelude::*;
use refstream_format::batch::BatchBuilder;
use refstream_types::{ContentHash, Record, TopicConfig, TopicId, Value};

/// Two brokers that nobody ever talks to.
const BROKERS: [&str; 2] = ["http://127.0.0.1:1", "http://127.0.0.1:2"];

/// A batch of this many records.
fn batch(records: u64) -> Bytes {
    let mut builder = BatchBuilder::new();
    for _ in 0..records {
        let value = Value::Inline { bytes: Bytes::from_static(b"x"), content_hash: ContentHash([0; 32]) };
        builder.push(&Record::new(value)).unwrap();
    }
    builder.finish(None).unwrap().bytes().clone()
}

fn routes(topic: TopicId, owners: &[usize]) -> Routes {
    let config = TopicConfig { partitions: owners.len() as u32, ..TopicConfig::default() };
    let topic = crate::TopicDescription {
        id: topic,
        name: "t".parse().unwrap(),
        config,
        created_at: Timestamp::from_micros(0),
        partitions: Vec::new(),
    };
    Routes { topic, endpoints: owners.iter().map(|owner| Some(BROKERS[*owner].to_owned())).collect() }
}

struct Fixture {
    clock: Arc<Clock>,
    reader: Reader,
    items: mpsc::Receiver<Item>,
}

impl Fixture {
    /// A reader that follows, from offset 0 of each partition on.
    fn new(owners: &[usize], seed: u64) -> Self {
        let clock = Arc::new(Clock::seeded(seed));
        let runtime: Arc<dyn Runtime> = Arc::clone(&clock) as Arc<dyn Runtime>;
        let answer = v1::DescribeDeploymentResponse {
            default_store: "main".into(),
            metadata_store: "main".into(),
            ..Default::default()
        };
        let brokers =
            Brokers::new(&BROKERS.join(","), Duration::from_secs(30), Bearer::default(), None, Arc::clone(&runtime));
        let brokers = Arc::new(brokers.unwrap());
        let access = (StoreAccess::Auto, None);
        let deployment = Deployment::new(&brokers, answer, access, Vec::new(), Arc::clone(&runtime)).unwrap();
        let client = Client::of(brokers, deployment, runtime);
        let partitions = (0..owners.len() as u32).map(PartitionId);
        let targets = partitions.map(|partition| (partition, Target::new(Offset(0), None))).collect();
        let (queue, items) = mpsc::channel(10_000);
        let reader = Reader::new(&client, routes(TopicId(1), owners), targets, true, queue);
        Self { clock, reader, items }
    }

    /// Lets time pass and opens what can be opened.
    fn open(&mut self) {
        self.clock.advance(Duration::from_secs(10));
        self.reader.start();
    }

    async fn handle(&mut self, event: Event) {
        assert!(self.reader.handle(event).await.is_ok());
    }

    async fn answer(&mut self, session: SessionId, answer: tail_response::Event) {
        self.handle(Event::Answer(session, v1::TailResponse { event: Some(answer) })).await;
    }

    /// The offsets that were delivered, by partition, in order; fails on anything that was reported.
    fn delivered(&mut self) -> BTreeMap<PartitionId, Vec<u64>> {
        let mut delivered: BTreeMap<_, Vec<u64>> = BTreeMap::new();
        while let Ok(item) = self.items.try_recv() {
            match item.unwrap() {
                Chunk::Batch { partition, base, from, until, batch, .. } => {
                    let end = base.0 + u64::from(batch.header().records);
                    delivered.entry(partition).or_default().extend(base.0.max(from.0)..end.min(until.0));
                }
                Chunk::Rows { .. } => panic!("nothing is in files"),
            }
        }
        delivered
    }
}

fn tail_batch(partition: PartitionId, base: u64, records: u64) -> tail_response::Event {
    tail_response::Event::Batch(v1::TailBatch {
        partition: partition.0,
        base_offset: base,
        append_time: 0,
        batch: batch(records),
        latest: base + records,
    })
}

fn caught_up(partition: PartitionId, offset: u64) -> tail_response::Event {
    tail_response::Event::CaughtUp(v1::PartitionPosition { partition: partition.0, offset })
}

fn failed(partition: PartitionId, code: ErrorCode) -> tail_response::Event {
    let error = v1::ErrorDetail { code: code.into(), retryable: true, ..Default::default() };
    tail_response::Event::Error(v1::PartitionError { partition: partition.0, error: Some(error) })
}

/// A stream as its broker plays it: how far it is with each partition.
type Played = BTreeMap<PartitionId, u64>;

/// What happens next; the numbers choose among what there is.
#[derive(Clone, Debug)]
enum Step {
    /// A stream answers with the next records of a partition, or that there are no more.
    Answer { stream: usize, partition: usize, records: u64 },
    /// A partition goes to the other broker.
    Move(usize),
    /// Who serves what is looked up beside the reading.
    Check,
    /// A broker says that it does not serve a partition any more.
    Sealed { stream: usize, partition: usize },
    /// A connection is lost.
    Lost(usize),
    /// A look-up that the reader asked for is answered.
    LookedUp,
    /// Time passes.
    Open,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (0..8_usize, 0..3_usize, 1..4_u64)
            .prop_map(|(stream, partition, records)| Step::Answer { stream, partition, records }),
        2 => (0..3_usize).prop_map(Step::Move),
        3 => Just(Step::Check),
        1 => (0..8_usize, 0..3_usize).prop_map(|(stream, partition)| Step::Sealed { stream, partition }),
        1 => (0..8_usize).prop_map(Step::Lost),
        2 => Just(Step::LookedUp),
        3 => Just(Step::Open),
    ];
    prop::collection::vec(step, 1..120)
}

/// Records of each partition.
const RECORDS: u64 = 20;

/// A cluster of two brokers, of which both go on answering about what they once served: their answers were under way.
struct Cluster {
    fixture: Fixture,
    owners: [usize; 3],
    streams: BTreeMap<SessionId, (String, Played)>,
}

impl Cluster {
    fn new() -> Self {
        let owners = [0, 0, 1];
        Self { fixture: Fixture::new(&owners, 1), owners, streams: BTreeMap::new() }
    }

    /// Notices the streams that the reader has opened.
    fn notice(&mut self) {
        for (id, session) in &self.fixture.reader.sessions {
            let targets = &self.fixture.reader.targets;
            let start = || session.partitions.iter().map(|partition| (*partition, targets[partition].position.0));
            self.streams.entry(*id).or_insert_with(|| (session.endpoint.clone(), start().collect()));
        }
    }

    fn open(&mut self) {
        self.fixture.open();
        self.notice();
    }

    async fn looked_up(&mut self) {
        if self.fixture.reader.looking_up {
            let found = (routes(TopicId(1), &self.owners), Vec::new());
            self.fixture.handle(Event::LookedUp(Ok(found))).await;
        }
    }

    fn nth(&self, stream: usize) -> Option<SessionId> {
        self.streams.keys().nth(stream % self.streams.len().max(1)).copied()
    }

    async fn take(&mut self, step: Step) {
        match step {
            Step::Answer { stream, partition, records } => {
                let Some(id) = self.nth(stream) else { return };
                let Some((_, played)) = self.streams.get_mut(&id) else { return };
                let Some((partition, position)) = played.iter_mut().nth(partition % 3) else { return };
                let records = records.min(RECORDS - *position);
                let answer = match records {
                    0 => caught_up(*partition, *position),
                    records => tail_batch(*partition, *position, records),
                };
                *position += records;
                let also = caught_up(*partition, *position);
                self.fixture.answer(id, answer).await;
                self.fixture.answer(id, also).await;
            }
            Step::Move(partition) => self.owners[partition] ^= 1,
            Step::Check => {
                self.fixture.handle(Event::Checked(Ok(routes(TopicId(1), &self.owners)))).await;
            }
            Step::Sealed { stream, partition } => {
                let Some(id) = self.nth(stream) else { return };
                let Some((endpoint, played)) = self.streams.get_mut(&id) else { return };
                let Some(partition) = played.keys().nth(partition % 3).copied() else { return };
                if BROKERS[self.owners[partition.0 as usize]] != *endpoint {
                    played.remove(&partition);
                    self.fixture.answer(id, failed(partition, ErrorCode::SegmentSealed)).await;
                }
            }
            Step::Lost(stream) => {
                let Some(id) = self.nth(stream) else { return };
                self.streams.remove(&id);
                self.fixture.handle(Event::Ended(id, Some(tonic::Status::unavailable("lost")))).await;
            }
            Step::LookedUp => self.looked_up().await,
            Step::Open => self.open(),
        }
    }

    /// Plays everything to its end.
    async fn finish(&mut self) {
        for _ in 0..3 {
            self.looked_up().await;
            self.open();
        }
        for stream in 0..self.streams.len() {
            for partition in 0..3 {
                for _ in 0..=RECORDS / 3 + 1 {
                    self.take(Step::Answer { stream, partition, records: 3 }).await;
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_changes_hands_each_record_is_delivered_once_and_none_is_lost(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let delivered = runtime.block_on(async {
            let mut cluster = Cluster::new();
            cluster.open();
            for step in steps {
                cluster.take(step).await;
            }
            cluster.finish().await;
            cluster.fixture.delivered()
        });
        let all: Vec<u64> = (0..RECORDS).collect();
        prop_assert_eq!(delivered, (0..3).map(|partition| (PartitionId(partition), all.clone())).collect());
    }
}

#[tokio::test]
async fn answers_that_were_under_way_when_a_partition_went_elsewhere_count_for_nothing() {
    let mut fixture = Fixture::new(&[0, 0], 1);
    fixture.open();
    let (moved, stays) = (PartitionId(0), PartitionId(1));
    fixture.answer(1, tail_batch(moved, 0, 10)).await;
    fixture.handle(Event::Checked(Ok(routes(TopicId(1), &[1, 0])))).await;
    fixture.answer(1, tail_batch(moved, 10, 10)).await;
    fixture.answer(1, caught_up(moved, 20)).await;
    fixture.answer(1, failed(moved, ErrorCode::SegmentSealed)).await;
    fixture.answer(1, tail_batch(stays, 0, 5)).await;
    fixture.open();
    fixture.answer(2, tail_batch(moved, 10, 10)).await;
    fixture.answer(2, caught_up(moved, 20)).await;
    let expected = BTreeMap::from([(moved, (0..20).collect()), (stays, (0..5).collect())]);
    assert_eq!(fixture.delivered(), expected);
}

/// Delays that begin at 25 ms and grow to 400 ms, each less by half of itself at most.
fn assert_grow(delays: &[Duration]) {
    for (failures, delay) in delays.iter().enumerate() {
        let full = Duration::from_millis(25 << failures).min(Duration::from_millis(400));
        assert!((full / 2..=full).contains(delay), "{delays:?}");
    }
}

#[tokio::test]
async fn a_partition_that_changes_hands_is_tried_soon_and_then_less_often() {
    let (moved, stays) = (PartitionId(0), PartitionId(1));
    let nobody = || {
        let mut nobody = routes(TopicId(1), &[0, 0]);
        nobody.endpoints[0] = None;
        nobody
    };
    for refused in [true, false] {
        let mut fixture = Fixture::new(&[0, 0], 1);
        fixture.open();
        fixture.answer(1, failed(moved, ErrorCode::SegmentSealed)).await;
        let mut delays = vec![fixture.reader.hold - fixture.clock.now()];
        for round in 0..7 {
            // What others deliver says nothing about this one.
            fixture.answer(1, tail_batch(stays, round, 1)).await;
            fixture.clock.advance(delays[round as usize]);
            fixture.reader.start();
            assert!(fixture.reader.looking_up);
            let found = if refused { routes(TopicId(1), &[0, 0]) } else { nobody() };
            fixture.handle(Event::LookedUp(Ok((found, Vec::new())))).await;
            if refused {
                fixture.reader.start();
                let session = fixture.reader.next_session;
                fixture.answer(session, failed(moved, ErrorCode::SegmentSealed)).await;
            }
            delays.push(fixture.reader.hold - fixture.clock.now());
        }
        assert_grow(&delays);
        fixture.open();
        fixture.handle(Event::LookedUp(Ok((routes(TopicId(1), &[1, 0]), Vec::new())))).await;
        fixture.open();
        let session = fixture.reader.next_session;
        fixture.answer(session, caught_up(moved, 0)).await;
        fixture.answer(session, failed(moved, ErrorCode::SegmentSealed)).await;
        assert_grow(&[fixture.reader.hold - fixture.clock.now()]);
    }
}
