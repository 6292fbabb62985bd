use super::*;
use crate::{broker::Bearer, doubles::Clock, producer::ProducerOptions};
use refstream_filer_adapter::Runtime;
use refstream_types::{ProducerEpoch, ProducerId, Record, TopicConfig, Value};
use std::sync::{
    Mutex,
    atomic::{AtomicU32, Ordering},
};
use tokio::sync::Semaphore;

#[test]
fn partitions_take_turns_and_each_keeps_its_order() {
    let batch = |partition, attempt| (partition, Attempt(attempt), Bytes::from(vec![attempt as u8]));
    let turns = in_turns(vec![batch(1, 10), batch(1, 11), batch(1, 12), batch(4, 20), batch(7, 30), batch(7, 31)]);
    let order: Vec<_> = turns.iter().map(|(partition, attempt, _)| (*partition, attempt.0)).collect();
    assert_eq!(order, [(1, 10), (4, 20), (7, 30), (1, 11), (7, 31), (1, 12)]);
    assert!(turns.iter().all(|(_, attempt, batch)| u64::from(batch[0]) == attempt.0), "each has its own bytes");
}

/// Two brokers that nobody ever talks to.
const BROKERS: [&str; 2] = ["http://127.0.0.1:1", "http://127.0.0.1:2"];

fn routes(endpoint: Option<&str>) -> Routes {
    let config = TopicConfig { partitions: 2, ..TopicConfig::default() };
    let topic = crate::TopicDescription {
        id: TopicId(5),
        name: "t".parse().unwrap(),
        config,
        created_at: Timestamp::from_micros(0),
        partitions: Vec::new(),
    };
    Routes { topic, endpoints: vec![endpoint.map(str::to_owned); 2] }
}

struct Fixture {
    clock: Arc<Clock>,
    engine: Engine,
}

impl Fixture {
    fn new(seed: u64) -> Self {
        let clock = Arc::new(Clock::seeded(seed));
        let runtime: Arc<dyn Runtime> = Arc::clone(&clock) as Arc<dyn Runtime>;
        let timeout = Duration::from_secs(30);
        let brokers = Brokers::new(&BROKERS.join(","), timeout, Bearer::default(), None, Arc::clone(&runtime));
        let (inputs, queue) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            topic: "t".parse().unwrap(),
            topic_id: TopicId(5),
            options: ProducerOptions::default(),
            runtime,
            slots: (0..2).map(|_| Mutex::default()).collect(),
            sticky: AtomicU32::new(0),
            room: Semaphore::new(1 << 20),
            inputs,
            log: None,
            trouble: Mutex::new(None),
            failure: Mutex::new(None),
        });
        let identity = (ProducerId(1), ProducerEpoch(0));
        let engine = Engine::new(shared, Arc::new(brokers.unwrap()), routes(Some(BROKERS[0])), identity, queue);
        Self { clock, engine }
    }

    /// Closes this many batches of one record in each partition.
    fn batches(&mut self, count: usize) {
        let shared = Arc::clone(&self.engine.shared);
        for _ in 0..count {
            for partition in 0..2 {
                shared.sticky.store(partition, Ordering::Relaxed);
                shared.take(&Record::new(Value::Tombstone), None, 0).unwrap();
                self.engine.close(partition, None);
            }
        }
        while let Ok(input) = self.engine.inputs.try_recv() {
            self.engine.take(input);
        }
    }

    /// Answers everything that is under way, request by request, all batches of a request alike.
    fn answer(&mut self, result: &append_result::Result) {
        let mut requests = Vec::new();
        for stream in self.engine.streams.values() {
            requests.extend(stream.under_way.iter().map(|(request, batches)| (*request, stream.id, batches.len())));
        }
        requests.sort_unstable_by_key(|(request, ..)| *request);
        for (request_id, stream, batches) in requests {
            let results = vec![v1::AppendResult { result: Some(result.clone()) }; batches];
            self.engine.take(Input::Answered { stream, response: AppendResponse { request_id, results } });
        }
    }

    /// How long partitions wait.
    fn holds(&self) -> [Duration; 2] {
        [0, 1].map(|partition| self.engine.queues[partition].hold.saturating_sub(self.clock.now()))
    }

    /// Waits for it, and finds brokers.
    fn retry(&mut self, found: &Routes) {
        self.clock.advance(self.holds()[0].max(self.holds()[1]));
        self.engine.turn();
        assert!(self.engine.looking_up);
        self.engine.take(Input::LookedUp(Ok(found.clone())));
        self.engine.turn();
    }
}

fn error(code: ErrorCode) -> append_result::Result {
    let detail = v1::ErrorDetail { code: code.into(), retryable: true, no_side_effects: true, ..Default::default() };
    append_result::Result::Error(detail)
}

/// Delays that begin at 25 ms and grow to 400 ms, each less by half of itself at most.
fn assert_grow(delays: &[[Duration; 2]]) {
    for (failures, both) in delays.iter().enumerate() {
        let full = Duration::from_millis(25 << failures).min(Duration::from_millis(400));
        assert!((full / 2..=full).contains(&both[0]), "{delays:?}");
        assert_eq!(both[0], both[1], "what fails together is looked up together");
    }
}

#[tokio::test]
async fn partitions_that_change_hands_are_tried_soon_and_then_less_often() {
    for code in [ErrorCode::SegmentSealed, ErrorCode::Unavailable] {
        let mut fixture = Fixture::new(1);
        // Several batches are under way: that they fail together is one failure.
        fixture.batches(3);
        fixture.engine.turn();
        let mut delays = Vec::new();
        for _ in 0..8 {
            fixture.answer(&error(code));
            delays.push(fixture.holds());
            fixture.retry(&routes(Some(BROKERS[1])));
        }
        assert_grow(&delays);
        fixture.answer(&append_result::Result::Appended(v1::Appended::default()));
        fixture.batches(1);
        fixture.engine.turn();
        fixture.answer(&error(code));
        assert_grow(&[fixture.holds()]);
    }
}

#[tokio::test]
async fn partitions_that_nobody_serves_are_looked_up_soon_and_then_less_often() {
    let mut fixture = Fixture::new(2);
    fixture.batches(1);
    fixture.engine.stale_routes = true;
    let mut delays = Vec::new();
    for _ in 0..8 {
        fixture.retry(&routes(None));
        delays.push(fixture.holds());
    }
    assert_grow(&delays);
}

#[tokio::test]
async fn a_broker_that_says_how_long_is_believed() {
    let mut fixture = Fixture::new(3);
    fixture.batches(1);
    fixture.engine.turn();
    let append_result::Result::Error(mut detail) = error(ErrorCode::Unavailable) else { panic!() };
    detail.retry_after_micros = Some(3_000_000);
    fixture.answer(&append_result::Result::Error(detail));
    assert_eq!(fixture.holds(), [Duration::from_secs(3); 2]);
}
