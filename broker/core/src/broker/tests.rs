use super::*;
use crate::{
    interface::{Appended, CommitOutcome, Done, TopicOperation},
    journal_writer::CHECKPOINT_MARGIN,
};
use refstream_format::{
    batch::BatchBuilder,
    cluster_log::{ClusterState, TopicState},
    journal::{BatchLocation, Entry, JournalObject, PlacedBatch},
};
use refstream_types::{
    AckMode, Offset, PartitionId, ProducerStamp, Record, SegmentNumber, Sequence, Timestamp, TopicConfig, TopicId,
    Value, Version,
};
use std::collections::{BTreeSet, VecDeque};

const MS: Duration = Duration::from_millis(1);

/// A store that always answers, and one broker at a time.
#[derive(Default)]
struct World {
    chains: BTreeMap<(Chain, u64), Bytes>,
    boundaries: BTreeMap<Chain, u64>,
    snapshots: BTreeMap<Version, Bytes>,
    broker: Option<Broker>,
    now: Duration,
    wall: i64,
    wake: Option<Duration>,
    queue: VecDeque<Effect>,
    /// Operations on these chains get no answer.
    silent: BTreeSet<Chain>,
    replies: BTreeMap<Ticket, Reply>,
    committed: Vec<(PlacedBatch, BatchLocation)>,
    stopped: Option<StopReason>,
    tickets: u64,
    brokers: u8,
    settings: Settings,
    endpoint: Option<String>,
    former: Option<Epoch>,
}

impl World {
    fn new() -> Self {
        let mut world = Self { wall: 1_000_000, ..Self::default() };
        world.start();
        world
    }
    fn time(&self) -> Now {
        Now { monotonic: self.now, wall: Timestamp::from_micros(self.wall) }
    }
    fn start(&mut self) {
        self.brokers += 1;
        self.queue.clear();
        self.wake = None;
        self.stopped = None;
        self.replies.clear();
        let mut effects = Vec::new();
        let identity = Identity {
            endpoint: self.endpoint.clone().unwrap_or_else(|| "http://test".into()),
            former: self.former,
            software: "test".into(),
            seed: [self.brokers; 32],
        };
        self.broker = Some(Broker::start(self.settings.clone(), identity, self.time(), &mut effects));
        self.queue.extend(effects);
        self.run();
    }
    fn input(&mut self, input: Input) {
        let mut effects = Vec::new();
        let time = self.time();
        if let Some(broker) = &mut self.broker {
            broker.handle(time, input, &mut effects);
        }
        self.queue.extend(effects);
    }
    /// Carries out effects until nothing is left to do at this moment.
    fn run(&mut self) {
        let mut rounds = 0;
        loop {
            rounds += 1;
            assert!(rounds < 1_000_000, "no end: {:?}", self.queue);
            let Some(effect) = self.queue.pop_front() else {
                match self.wake {
                    Some(at) if at <= self.now && self.stopped.is_none() => {
                        self.wake = None;
                        self.input(Input::Tick);
                        continue;
                    }
                    _ => return,
                }
            };
            let answer = match effect {
                Effect::ReadLog { .. } if self.silent.contains(&Chain::ClusterLog) => continue,
                Effect::Commit { chain, .. } | Effect::Read { chain, .. } if self.silent.contains(&chain) => continue,
                Effect::Commit { op, chain, number, bytes } => {
                    let outcome = if number < self.boundaries.get(&chain).copied().unwrap_or(0) {
                        CommitOutcome::Freed
                    } else {
                        match self.chains.get(&(chain.clone(), number)) {
                            Some(there) if *there != bytes => CommitOutcome::Taken(there.clone()),
                            _ => {
                                self.chains.insert((chain, number), bytes);
                                CommitOutcome::Committed
                            }
                        }
                    };
                    (op, Done::Commit(outcome))
                }
                Effect::ReadLog { op, number } => {
                    (op, Done::Read(Ok(self.chains.get(&(Chain::ClusterLog, number)).cloned())))
                }
                Effect::Read { op, chain, number } => (op, Done::Read(Ok(self.chains.get(&(chain, number)).cloned()))),
                Effect::Tip { op, chain, .. } => {
                    let range = (chain.clone(), 0)..=(chain, u64::MAX);
                    let tip = self.chains.range(range).next_back().map(|((_, n), b)| (*n, b.clone()));
                    (op, Done::Tip(Ok(tip)))
                }
                Effect::LatestSnapshot { op } => {
                    let newest = self.snapshots.iter().next_back().map(|(v, b)| (*v, b.clone()));
                    (op, Done::Snapshot(Ok(newest)))
                }
                Effect::StoreSnapshot { op, version, bytes } => {
                    self.snapshots.insert(version, bytes);
                    (op, Done::Stored(Ok(())))
                }
                Effect::Free { op, chain, below } => {
                    self.chains.retain(|(c, n), _| *c != chain || *n >= below);
                    self.boundaries.insert(chain, below);
                    (op, Done::Stored(Ok(())))
                }
                Effect::Reply { ticket, reply } => {
                    assert!(self.replies.insert(ticket, reply).is_none(), "answered twice");
                    continue;
                }
                Effect::Committed { batches, .. } => {
                    self.committed.extend(batches);
                    continue;
                }
                Effect::State(state) => {
                    state.check().unwrap();
                    continue;
                }
                Effect::WakeAt(at) => {
                    self.wake = Some(at);
                    continue;
                }
                Effect::Stop(reason) => {
                    self.stopped = Some(reason);
                    continue;
                }
            };
            self.input(Input::Done { op: answer.0, done: answer.1 });
        }
    }
    /// Lets time pass, from wake-up to wake-up.
    fn pass(&mut self, duration: Duration) {
        let end = self.now + duration;
        while let Some(at) = self.wake.filter(|at| *at <= end && self.stopped.is_none()) {
            let step = at.saturating_sub(self.now);
            self.now += step;
            self.wall += step.as_micros() as i64;
            self.run();
        }
        self.wall += (end - self.now).as_micros() as i64;
        self.now = end;
    }
    fn ticket(&mut self) -> Ticket {
        self.tickets += 1;
        Ticket(self.tickets)
    }
    fn create(&mut self, name: &str, partitions: u32) -> Arc<TopicState> {
        let ticket = self.ticket();
        let config = TopicConfig { partitions, seal_bytes: 1 << 20, ..TopicConfig::default() };
        let operation = TopicOperation::Create { name: name.parse().unwrap(), config };
        self.input(Input::Topic { ticket, operation });
        self.run();
        match self.replies.remove(&ticket) {
            Some(Reply::Topic(Ok(topic))) => topic,
            other => panic!("{other:?}"),
        }
    }
    fn send(&mut self, topic: TopicId, batches: Vec<(u32, EncodedBatch)>) -> Ticket {
        let ticket = self.ticket();
        let batches = batches.into_iter().map(|(p, b)| (PartitionId(p), b)).collect();
        self.input(Input::Append { ticket, topic, batches, ack: AckMode::Durable, bulk: false });
        self.run();
        ticket
    }
    fn outcome(&mut self, ticket: Ticket) -> Vec<crate::requests::Outcome> {
        match self.replies.remove(&ticket) {
            Some(Reply::Append(outcomes)) => outcomes,
            other => panic!("{other:?}"),
        }
    }
    /// Appends one batch and waits for its outcome.
    fn append(&mut self, topic: TopicId, partition: u32, batch: EncodedBatch) -> crate::requests::Outcome {
        let ticket = self.send(topic, vec![(partition, batch)]);
        self.pass(10 * MS);
        self.outcome(ticket).remove(0)
    }
    fn state(&self) -> Arc<ClusterState> {
        Arc::clone(&self.broker.as_ref().unwrap().cluster.state)
    }
    fn phase(&self) -> Phase {
        self.broker.as_ref().unwrap().status(self.time()).phase
    }
}

use refstream_format::batch::EncodedBatch;

fn batch(records: u32, stamp: Option<ProducerStamp>) -> EncodedBatch {
    let mut builder = BatchBuilder::new();
    for n in 0..records {
        let bytes = Bytes::from(format!("value {n}"));
        let record = Record::new(Value::Inline { bytes, content_hash: refstream_types::ContentHash([0; 32]) });
        builder.push(&record).unwrap();
    }
    builder.finish(stamp).unwrap()
}

fn stamp(id: u64, first: u64) -> Option<ProducerStamp> {
    Some(ProducerStamp { id: ProducerId(id), epoch: ProducerEpoch(0), first: Sequence(first) })
}

fn at(offset: u64, outcome: crate::requests::Outcome) -> Appended {
    let appended = outcome.unwrap();
    assert_eq!(appended.base_offset, Offset(offset));
    appended
}

#[test]
fn appends_get_dense_offsets_and_committed_comes_first() {
    let mut world = World::new();
    assert_eq!((world.phase(), &world.stopped), (Phase::Serving, &None));
    let topic = world.create("t", 4).id;
    at(0, world.append(topic, 1, batch(3, None)));
    at(3, world.append(topic, 1, batch(2, None)));
    at(0, world.append(topic, 2, batch(1, None)));
    let offsets: Vec<_> = world.committed.iter().map(|(b, _)| (b.partition.0, b.base_offset.0)).collect();
    assert_eq!(offsets, [(1, 0), (1, 3), (2, 0)]);
}

#[test]
fn a_restart_carries_on_with_offsets_and_producers() {
    let mut world = World::new();
    let topic = world.create("t", 2).id;
    at(0, world.append(topic, 0, batch(3, stamp(9, 0))));
    for round in 1..6 {
        world.start();
        assert_eq!((world.phase(), &world.stopped), (Phase::Serving, &None));
        let again = at(3 * (round - 1), world.append(topic, 0, batch(3, stamp(9, 3 * (round - 1)))));
        assert!(again.duplicate, "round {round}");
        at(3 * round, world.append(topic, 0, batch(3, stamp(9, 3 * round))));
        assert_eq!(world.state().live_epochs().count(), 1);
    }
    let gap = world.append(topic, 0, batch(1, stamp(9, 99)));
    assert_eq!(gap, Err(AppendError::OutOfSequence { given: Sequence(99), expected: Sequence(18) }));
}

#[test]
fn recovery_starts_at_a_checkpoint_and_freed_journals_do_not_hurt() {
    let mut world = World { settings: Settings { checkpoint_slots: 20, ..Settings::default() }, ..World::default() };
    world.start();
    let topic = world.create("t", 1).id;
    let mut next = 0;
    for _ in 0..3 {
        for _ in 0..CHECKPOINT_MARGIN + 100 {
            at(next, world.append(topic, 0, batch(1, stamp(9, next))));
            next += 1;
        }
        let ticket = world.ticket();
        world.input(Input::Seal { ticket, topic });
        world.run();
        world.pass(10 * MS);
        let Some(Reply::Sealed(Ok(numbers))) = world.replies.remove(&ticket) else { panic!() };
        assert_eq!(numbers.len(), 1);
        let segments = numbers.into_iter().map(|number| SegmentId { topic, number }).collect();
        let ticket = world.ticket();
        world.input(Input::Closed { ticket, segments });
        world.run();
        assert!(matches!(world.replies.remove(&ticket), Some(Reply::Closed(Ok(())))));
        world.pass(Duration::from_secs(3));
        assert!(world.boundaries.keys().any(|chain| matches!(chain, Chain::Journal(_))));
        world.start();
        assert_eq!((world.phase(), &world.stopped), (Phase::Serving, &None));
        assert!(at(next - 1, world.append(topic, 0, batch(1, stamp(9, next - 1)))).duplicate);
    }
    // Dead journals go in the end, and with them their epochs.
    world.pass(Duration::from_secs(1_300));
    assert_eq!(world.state().epochs.len(), 1);
    world.start();
    assert!(at(next - 1, world.append(topic, 0, batch(1, stamp(9, next - 1)))).duplicate);
}

#[test]
fn a_hole_never_passes_for_an_end() {
    let mut world = World::new();
    let topic = world.create("images", 1).id;
    for _ in 0..20 {
        world.append(topic, 0, batch(1, None)).unwrap();
    }
    world.create("more", 1);
    let chains = world.chains;
    for chain in [Chain::Journal(Epoch(1)), Chain::ClusterLog] {
        let numbers: Vec<u64> = chains.keys().filter(|(of, _)| *of == chain).map(|(_, number)| *number).collect();
        let (last, others) = numbers.split_last().unwrap();
        assert!(*last > 3, "{last}");
        for gone in others {
            let mut world = World { chains: chains.clone(), wall: 1_000_000, brokers: 1, ..World::default() };
            world.chains.remove(&(chain.clone(), *gone));
            // A second start finds what the first one left, and must not be fooled either.
            for _ in 0..2 {
                world.start();
                let stopped = world.stopped.as_ref().map(ToString::to_string);
                assert!(stopped.as_ref().is_some_and(|why| why.contains("missing")), "{chain:?} {gone}: {stopped:?}");
            }
        }
    }
}

#[test]
fn nothing_is_answered_before_its_slot_is_durable() {
    let mut world = World::new();
    let topic = world.create("t", 1).id;
    at(0, world.append(topic, 0, batch(1, stamp(9, 0))));
    world.silent.insert(Chain::Journal(Epoch(1)));
    let first = world.send(topic, vec![(0, batch(1, stamp(9, 1)))]);
    world.pass(10 * MS);
    let duplicate = world.send(topic, vec![(0, batch(1, stamp(9, 1)))]);
    let refused = world.send(topic, vec![(0, batch(1, stamp(9, 7)))]);
    let queued = world.send(topic, vec![(0, batch(1, stamp(9, 2)))]);
    world.pass(Duration::from_secs(20));
    assert!(world.replies.is_empty());
    assert_eq!(world.committed.len(), 1);
    // Another broker takes over: the old one finds the fence.
    let old = world.broker.take();
    world.silent.clear();
    world.start();
    assert_eq!((world.phase(), &world.stopped), (Phase::Serving, &None));
    let mut effects = Vec::new();
    let mut old = old.unwrap();
    let (op, slot) = old.first_slot_in_flight().unwrap();
    let fence = world.chains[&(Chain::Journal(Epoch(1)), slot.0)].clone();
    old.handle(world.time(), Input::Done { op, done: Done::Commit(CommitOutcome::Taken(fence)) }, &mut effects);
    let mut unknown = BTreeSet::new();
    for effect in effects {
        match effect {
            Effect::Reply { ticket, reply: Reply::Append(outcomes) } => {
                assert_eq!(outcomes, [Err(AppendError::OutcomeUnknown)]);
                unknown.insert(ticket);
            }
            Effect::Stop(reason) => assert_eq!(reason, StopReason::Fenced { slot }),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(unknown, BTreeSet::from([first, duplicate, refused, queued]));
}

#[test]
fn a_drained_broker_leaves_nothing_open_and_the_next_one_knows_its_producers() {
    let mut world = World::new();
    let topic = world.create("t", 2).id;
    let empty = world.create("empty", 2).id;
    at(0, world.append(topic, 0, batch(3, stamp(9, 0))));
    let late = world.send(topic, vec![(1, batch(1, None))]);
    let ticket = world.ticket();
    world.input(Input::Drain { ticket });
    world.run();
    world.pass(10 * MS);
    assert!(matches!(world.replies[&ticket], Reply::Drained(Ok(()))));
    at(0, world.outcome(late).remove(0));
    assert_eq!(world.stopped, Some(StopReason::Drained));
    assert_eq!(world.state().open_segments().count(), 0);
    assert!(world.state().topics[&empty].sealed.is_empty());
    world.start();
    assert!(at(0, world.append(topic, 0, batch(3, stamp(9, 0)))).duplicate);
    at(0, world.append(empty, 1, batch(1, None)));
    assert_eq!(world.state().topics[&topic].sealed.len(), 1);
}

#[test]
fn a_deleted_topic_is_gone_and_its_name_is_free() {
    let mut world = World::new();
    let topic = world.create("t", 2).id;
    at(0, world.append(topic, 0, batch(3, None)));
    let (one, two) = (world.ticket(), world.ticket());
    world.input(Input::Topic { ticket: one, operation: TopicOperation::Delete { topic } });
    world.input(Input::Topic { ticket: two, operation: TopicOperation::Delete { topic } });
    world.run();
    world.pass(10 * MS);
    assert!(matches!(&world.replies[&one], Reply::Topic(Ok(topic)) if topic.deleted));
    assert!(matches!(&world.replies[&two], Reply::Topic(Err(OperationError::UnknownTopic(_)))));
    assert!(world.state().topics.is_empty());
    assert_eq!(world.append(topic, 0, batch(1, None)), Err(AppendError::UnknownTopic(topic)));
    let again = world.create("t", 1);
    assert!(again.id > topic);
    at(0, world.append(again.id, 0, batch(1, None)));
}

#[test]
fn a_segment_ends_by_size_and_by_day_and_appends_go_on() {
    let mut world = World::new();
    let topic = world.create("t", 1).id;
    let mut next = 0;
    while world.state().topics[&topic].sealed.is_empty() {
        at(next, world.append(topic, 0, batch(200, stamp(9, next))));
        next += 200;
    }
    world.wall += 86_400_000_000;
    at(next, world.append(topic, 0, batch(200, stamp(9, next))));
    next += 200;
    world.wall += 86_400_000_000;
    at(next, world.append(topic, 0, batch(200, stamp(9, next))));
    assert!(world.state().topics[&topic].sealed.len() >= 2);
    assert!(at(next, world.append(topic, 0, batch(200, stamp(9, next)))).duplicate);
    let _ = SegmentNumber(1);
}

#[test]
fn the_older_of_two_brokers_stops() {
    let mut world = World::new();
    let topic = world.create("t", 1).id;
    let old = world.broker.take();
    world.start();
    at(0, world.append(topic, 0, batch(1, None)));
    let wake = world.wake.take();
    let new = std::mem::replace(&mut world.broker, old);
    world.pass(Duration::ZERO);
    world.input(Input::Tick);
    world.run();
    world.now += Duration::from_secs(120);
    world.input(Input::Tick);
    world.run();
    // Whatever it finds first.
    let stopped = world.stopped.take();
    assert!(
        matches!(stopped, Some(StopReason::Fenced { .. } | StopReason::AddressTaken { by: Epoch(2), .. })),
        "{stopped:?}"
    );
    world.broker = new;
    world.wake = wake;
}

#[test]
fn two_brokers_with_one_address_do_not_fence_each_other_for_ever() {
    let taken = |world: &World| match &world.stopped {
        Some(reason @ StopReason::AddressTaken { .. }) => reason.to_string().contains("broker.advertise"),
        _ => false,
    };
    let mut world = World::new();
    let first = world.broker.take();
    world.start();
    assert_eq!(world.phase(), Phase::Serving);
    // The first one follows the log, and ends for good.
    let second = std::mem::replace(&mut world.broker, first);
    world.now += Duration::from_secs(2);
    world.input(Input::Tick);
    world.run();
    assert!(taken(&world), "{:?}", world.stopped);
    // Had it found its journal fenced before, it would have joined anew, and found then what is wrong.
    world.former = Some(Epoch(1));
    world.start();
    assert!(taken(&world), "{:?}", world.stopped);
    assert_eq!(world.state().live_epochs().collect::<Vec<_>>(), [Epoch(2)]);
    drop(second);
    // A process that starts at the address of one that is gone replaces it.
    world.former = None;
    world.start();
    assert_eq!((world.phase(), &world.stopped), (Phase::Serving, &None));
}

#[test]
fn a_damaged_journal_is_told_and_tried_again() {
    let mut world = World::new();
    let topic = world.create("t", 1).id;
    for offset in 0..9 {
        at(offset, world.append(topic, 0, batch(1, stamp(9, offset))));
    }
    // A second one, which hears of the first.
    world.broker = None;
    world.endpoint = Some("http://second".into());
    world.start();
    let seen = Input::PeerSeen { epoch: Epoch(1), committed: Slot(99), version: Version(0) };
    world.input(seen);
    world.run();
    assert_eq!(world.phase(), Phase::Serving);
    let damaged = |world: &World| world.broker.as_ref().unwrap().status(world.time()).damaged;
    assert!(damaged(&world).is_empty());

    let middle = (Chain::Journal(Epoch(1)), 5);
    let kept = world.chains.remove(&middle).unwrap();
    world.input(Input::PeerGone { epoch: Epoch(1) });
    world.run();
    world.pass(Duration::from_secs(100));
    let told = damaged(&world);
    assert!(told[&Epoch(1)].contains("slot 5"), "{told:?}");
    assert_eq!((world.phase(), &world.stopped), (Phase::Serving, &None), "what it serves itself goes on");
    let status = world.broker.as_ref().unwrap().status(world.time());
    assert_eq!(status.stuck, None, "the store answers");
    let other = world.create("other", 1).id;
    at(0, world.append(other, 0, batch(1, None)));

    world.chains.insert(middle, kept);
    world.pass(Duration::from_secs(31));
    assert_eq!(damaged(&world), BTreeMap::new());
    assert!(at(8, world.append(topic, 0, batch(1, stamp(9, 8)))).duplicate);
    at(9, world.append(topic, 0, batch(1, stamp(9, 9))));
}

#[test]
fn a_silent_producer_is_forgotten_by_a_journal_entry() {
    let expiry = Duration::from_secs(4_000);
    let mut world = World { settings: Settings { producer_expiry: expiry, ..Settings::default() }, ..World::default() };
    world.start();
    let topic = world.create("t", 1).id;
    at(0, world.append(topic, 0, batch(3, stamp(9, 0))));
    world.pass(expiry / 2);
    at(3, world.append(topic, 0, batch(3, stamp(10, 0))));
    world.pass(expiry / 2 + Duration::from_secs(700));
    world.start();
    let error = AppendError::UnknownProducer(ProducerId(9));
    assert_eq!(world.append(topic, 0, batch(3, stamp(9, 3))), Err(error));
    assert!(at(3, world.append(topic, 0, batch(3, stamp(10, 0)))).duplicate);
}

#[test]
fn entries_replay_as_written() {
    // Every journal that a broker wrote replays without contradiction: recovery feeds it to the shared replay.
    let mut world = World { settings: Settings { checkpoint_slots: 7, ..Settings::default() }, ..World::default() };
    world.start();
    let topic = world.create("t", 3).id;
    for n in 0..60 {
        let _ = world.append(topic, n % 3, batch(1 + n % 4, None));
        if n % 9 == 0 {
            let ticket = world.ticket();
            world.input(Input::Seal { ticket, topic });
            world.run();
        }
    }
    let mut replay = refstream_format::journal::Replay::new(Epoch(1));
    let mut checkpoints = 0;
    for ((chain, slot), bytes) in &world.chains {
        if *chain == Chain::Journal(Epoch(1)) {
            let object = JournalObject::decode(bytes.clone(), (Epoch(1), Slot(*slot))).unwrap();
            if let JournalObject::Entries { entries, .. } = &object {
                checkpoints += entries.iter().filter(|e| matches!(e, Entry::Checkpoint(_))).count();
            }
            replay.feed(&object).unwrap();
        }
    }
    assert!(checkpoints > 5, "{checkpoints}");
    assert_eq!(replay.batches().len(), 60);
}

#[test]
fn a_topic_that_nobody_writes_to_does_not_keep_the_journal() {
    let mut world = World {
        settings: Settings { checkpoint_slots: 8, ..Settings::default() },
        wall: 1_000_000,
        ..World::default()
    };
    world.start();
    let quiet = world.create("quiet", 2);
    let slots = |world: &World| {
        let journal = |chain: &Chain| matches!(chain, Chain::Journal(_));
        world.chains.keys().filter(|(chain, _)| journal(chain)).count()
    };
    // Three hours in which nothing happens but signs of life.
    for _ in 0..3 * 6 {
        for _ in 0..1_200 {
            world.pass(500 * MS);
        }
        assert!(slots(&world) < 1_200 + 4 * 8 + 200, "{} slots are kept", slots(&world));
    }
    let log = world.chains.keys().filter(|(chain, _)| *chain == Chain::ClusterLog).count();
    assert!(log < 3 * 6 * 8, "{log} entries for a topic that does nothing");
    assert_eq!(at(0, world.append(quiet.id, 0, batch(1, None))).base_offset, Offset(0));
}
