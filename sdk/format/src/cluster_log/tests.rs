//! Promises of the cluster's state: every command's invariants by name, atomic refusal, and random command sequences.

use super::*;
use proptest::prelude::*;
use refstream_types::PartitionId;

fn range(lo: u32, hi: u32) -> PartitionRange {
    PartitionRange::new(PartitionId(lo), PartitionId(hi)).unwrap()
}

fn segment(number: u64) -> SegmentId {
    SegmentId { topic: TopicId(1), number: SegmentNumber(number) }
}

fn config(partitions: u32) -> TopicConfig {
    TopicConfig { partitions, ..TopicConfig::default() }
}

fn create(id: u64, name: &str) -> Command {
    let (topic, name) = (TopicId(id), name.parse().unwrap());
    Command::CreateTopic { topic, name, config: config(4), created_at: Timestamp::from_micros(7) }
}

fn seal(number: u64, ends: &[u64], by: SealedBy, slots: (u64, u64)) -> Command {
    let end_offsets = ends.iter().map(|end| Offset(*end)).collect();
    let slots = (Slot(slots.0), Slot(slots.1));
    Command::SealSegment { segment: segment(number), end_offsets, by, slots, bytes: 10 }
}

fn owner(slot: u64) -> SealedBy {
    SealedBy::Owner { slot: Slot(slot) }
}

fn recovery(fence: u64) -> SealedBy {
    SealedBy::Recovery { fence: Slot(fence) }
}

/// A state and its log.
struct Log {
    state: ClusterState,
    writer: Epoch,
}

impl Log {
    /// Epochs 1 and 2 joined, 1 leads, topic 1 (`images`, 4 partitions) exists.
    fn new() -> Self {
        let mut log = Self { state: ClusterState::default(), writer: Epoch(1) };
        let join = |epoch| Command::EpochJoined { epoch: Epoch(epoch), endpoint: format!("http://b{epoch}") };
        log.accept([join(1), join(2), Command::Lead { epoch: Epoch(1), term: LeaderTerm(1) }, create(1, "images")]);
        log
    }
    fn entry(&self, commands: impl IntoIterator<Item = Command>) -> LogEntry {
        LogEntry {
            version: self.state.version.next(),
            token: Token([9; 16]),
            term: self.state.leader.map_or(LeaderTerm(0), |(term, _)| term),
            writer: self.writer,
            commands: commands.into_iter().collect(),
        }
    }
    fn accept(&mut self, commands: impl IntoIterator<Item = Command>) {
        let mut entry = self.entry(commands);
        if let Some(Command::Lead { term, .. }) = entry.commands.iter().find(|c| matches!(c, Command::Lead { .. })) {
            entry.term = *term;
        }
        self.state.apply(&entry).unwrap();
        self.state.check().unwrap();
    }
    /// The invariant that refuses the commands; the state is untouched, whatever the commands before it did.
    fn refuse(&mut self, commands: impl IntoIterator<Item = Command>) -> &'static str {
        let entry = self.entry(commands);
        self.refuse_entry(&entry)
    }
    fn refuse_entry(&mut self, entry: &LogEntry) -> &'static str {
        let before = self.state.clone();
        let violation = self.state.apply(entry).unwrap_err();
        assert_eq!(self.state, before, "{violation}");
        assert_eq!(violation.version, entry.version);
        violation.invariant
    }
    fn topic(&self) -> &TopicState {
        &self.state.topics[&TopicId(1)]
    }
    fn open(&self, lo: u32, hi: u32, epoch: u64) -> Command {
        Command::OpenSegment(self.topic().successor(range(lo, hi), Epoch(epoch)).unwrap())
    }
    fn adopt(&self, number: u64, slot: u64) -> Command {
        Command::SegmentAdopted { segment: segment(number), slot: Slot(slot) }
    }
}

#[test]
fn entries_follow_each_other() {
    let mut log = Log::new();
    for version in [0, 1, 3, u64::MAX] {
        let entry = LogEntry { version: Version(version), ..log.entry([]) };
        assert_eq!(log.refuse_entry(&entry), "versions-are-contiguous");
    }
    log.accept([]);
    assert_eq!(log.state.version, Version(2));
}

#[test]
fn terms_rise_by_lead_alone() {
    let mut log = Log::new();
    let lead = |epoch, term| Command::Lead { epoch: Epoch(epoch), term: LeaderTerm(term) };
    assert_eq!(log.refuse([lead(1, 1)]), "terms-rise");
    assert_eq!(log.refuse([lead(2, 2)]), "leaders-name-themselves");
    let entry = LogEntry { term: LeaderTerm(2), ..log.entry([]) };
    assert_eq!(log.refuse_entry(&entry), "terms-are-taken");
    log.writer = Epoch(2);
    log.accept([lead(2, 5)]);
    assert_eq!(log.state.leader, Some((LeaderTerm(5), Epoch(2))));
    let entry = LogEntry { term: LeaderTerm(4), writer: Epoch(1), ..log.entry([]) };
    assert_eq!(log.refuse_entry(&entry), "terms-never-fall");
}

#[test]
fn topics_have_one_name_and_one_identity() {
    let mut log = Log::new();
    assert_eq!(log.refuse([create(1, "other")]), "topic-ids-never-reused");
    assert_eq!(log.refuse([create(3, "other")]), "topic-ids-never-reused");
    assert_eq!(log.refuse([create(2, "other"), create(3, "images")]), "topic-names-unique");
    let alter = |config| Command::AlterTopic { topic: TopicId(1), config };
    assert_eq!(log.refuse([alter(config(5))]), "partitions-fixed");
    assert_eq!(log.refuse([alter(TopicConfig { seal_bytes: 0, ..config(4) })]), "topic-settings-valid");
    log.accept([alter(TopicConfig { inline_max: 12, ..config(4) })]);
    assert_eq!(log.refuse([Command::DeleteTopic { topic: TopicId(9) }]), "topics-exist");
    let name = "images".parse().unwrap();
    assert_eq!(log.state.topic_by_name(&name).unwrap().id, TopicId(1));
    log.accept([log.open(0, 4, 1), Command::DeleteTopic { topic: TopicId(1) }, create(2, "images")]);
    assert_eq!(log.state.topic_by_name(&name).unwrap().id, TopicId(2));
    assert_eq!(log.refuse([alter(config(4))]), "deleted-topics-stay-deleted");
}

#[test]
fn a_deleted_topic_disappears_with_its_last_segment() {
    let mut log = Log::new();
    log.accept([log.open(0, 2, 1)]);
    log.accept([log.open(2, 4, 1), Command::DeleteTopic { topic: TopicId(1) }]);
    assert!(log.topic().unserved().is_empty());
    assert_eq!(log.refuse([log.open(0, 2, 1)]), "deleted-topics-stay-deleted");
    log.accept([seal(1, &[3, 3], owner(4), (1, 4)), seal(2, &[0, 0], owner(4), (1, 4))]);
    assert!(log.topic().tails.is_empty());
    log.accept([Command::SegmentClosed { segment: segment(1) }]);
    assert_eq!(log.state.topics.len(), 1);
    log.accept([Command::SegmentClosed { segment: segment(2) }]);
    assert!(log.state.topics.is_empty());
    assert_eq!(log.refuse([create(1, "images")]), "topic-ids-never-reused");
}

#[test]
fn segments_form_chains() {
    let mut log = Log::new();
    let first = log.topic().successor(range(0, 4), Epoch(1)).unwrap();
    assert_eq!((first.id, &*first.start_offsets), (segment(1), &[Offset(0); 4][..]));
    let with = |change: fn(&mut OpenSegment)| {
        let mut segment = first.clone();
        change(&mut segment);
        [Command::OpenSegment(segment)]
    };
    assert_eq!(log.refuse(with(|s| s.id.number = SegmentNumber(2))), "segment-numbers-ascend");
    assert_eq!(log.refuse(with(|s| s.start_offsets[1] = Offset(1))), "segments-form-chains");
    assert_eq!(log.refuse(with(|s| s.start_offsets.truncate(3))), "segments-form-chains");
    assert_eq!(log.refuse(with(|s| s.range = range(1, 5))), "ranges-fit-topic");
    assert_eq!(log.refuse(with(|s| s.predecessors.push(SegmentNumber(1)))), "predecessors-hold-the-state");
    assert_eq!(log.refuse(with(|s| s.owner = Epoch(3))), "owners-are-live");
    log.accept([Command::OpenSegment(first)]);
    assert_eq!(log.refuse([log.open(3, 4, 1)]), "open-segments-are-disjoint");

    assert_eq!(log.refuse([seal(2, &[0; 4], owner(1), (1, 1))]), "only-open-segments-seal");
    assert_eq!(log.refuse([seal(1, &[0; 3], owner(1), (1, 1))]), "end-not-before-start");
    assert_eq!(log.refuse([seal(1, &[1, 1, 1, 1 << 63], owner(1), (1, 1))]), "end-not-before-start");
    assert_eq!(log.refuse([seal(1, &[1; 4], owner(4), (1, 5))]), "sealed-by-fits-owner");
    assert_eq!(log.refuse([seal(1, &[1; 4], recovery(5), (1, 5))]), "sealed-by-fits-owner");
    log.accept([log.adopt(1, 2)]);
    assert_eq!(log.refuse([log.adopt(1, 2)]), "adopted-once");
    assert_eq!(log.refuse([seal(1, &[1; 4], owner(4), (1, 4))]), "slots-start-at-the-adoption");
    log.accept([seal(1, &[1, 2, 3, 4], owner(4), (2, 4))]);
    assert_eq!(log.refuse([seal(1, &[1, 2, 3, 4], owner(4), (2, 4))]), "only-open-segments-seal");

    // Closed in between: the successors still start where it ended.
    log.accept([Command::SegmentClosed { segment: segment(1) }]);
    assert_eq!(log.refuse([Command::SegmentClosed { segment: segment(1) }]), "only-sealed-segments-close");
    let unserved = log.topic().unserved();
    assert_eq!(unserved, [range(0, 4)]);
    let successor = log.topic().successor(unserved[0], Epoch(4)).unwrap();
    assert_eq!(successor.start_offsets, [1, 2, 3, 4].map(Offset));
    assert_eq!(successor.predecessors, [SegmentNumber(1)]);
    log.accept([log.open(1, 3, 2)]);
    assert_eq!(log.topic().unserved(), [range(0, 1), range(3, 4)]);
    assert_eq!(log.topic().open_segment(PartitionId(2)).unwrap().start_offsets, [Offset(2), Offset(3)]);
    assert!(log.topic().open_segment(PartitionId(3)).is_none());
    assert_eq!(log.state.owned_by(Epoch(2)).count(), 1);
}

#[test]
fn a_journal_is_needed_until_its_state_is_adopted_and_its_records_are_in_files() {
    let mut log = Log::new();
    let needed = |log: &Log, epoch| log.state.journal_needed(Epoch(epoch), Slot(1)).map(|slot| slot.0);
    assert_eq!(needed(&log, 1), None);
    log.accept([log.open(0, 4, 1)]);
    assert_eq!(needed(&log, 1), Some(1));
    assert_eq!(log.state.journal_needed(Epoch(1), Slot(6)), Some(Slot(6)));
    log.accept([log.adopt(1, 7)]);
    assert_eq!(needed(&log, 1), Some(7));
    log.accept([seal(1, &[5; 4], owner(9), (7, 9))]);
    log.accept([Command::SegmentClosed { segment: segment(1) }]);
    assert_eq!(needed(&log, 1), Some(9), "the seal entry holds the producers' state");
    log.accept([log.open(0, 2, 2)]);
    log.accept([log.open(2, 4, 2)]);
    log.accept([log.adopt(2, 1)]);
    assert_eq!(log.topic().tails[&SegmentNumber(1)].uncovered, [range(2, 4)]);
    assert_eq!(needed(&log, 1), Some(9));
    log.accept([log.adopt(3, 1)]);
    assert_eq!(needed(&log, 1), None);
    assert!(log.topic().tails.is_empty());
}

#[test]
fn a_segment_that_was_never_adopted_passes_its_predecessors_on() {
    let mut log = Log::new();
    log.accept([log.open(0, 4, 1)]);
    log.accept([seal(1, &[5; 4], owner(9), (7, 9))]);
    log.accept([log.open(0, 4, 2)]);
    // Epoch 2 dies before its Adopt entry: nothing but the fence is in its journal.
    log.accept([
        seal(2, &[5; 4], recovery(1), (0, 0)),
        Command::EpochRecovered { epoch: Epoch(2), fence: Slot(1) },
        Command::SegmentClosed { segment: segment(2) },
    ]);
    let next = log.topic().successor(range(0, 4), Epoch(1)).unwrap();
    assert_eq!(next.predecessors, [SegmentNumber(1)]);
    log.accept([Command::OpenSegment(next)]);
    assert!(log.state.ended_segment(segment(1)).is_some());
    // Records prove the adoption, though the log never heard of it.
    log.accept([
        seal(3, &[6; 4], recovery(20), (12, 19)),
        Command::EpochJoined { epoch: Epoch(5), endpoint: "c".into() },
    ]);
    assert_eq!(log.topic().tails.keys().copied().collect::<Vec<_>>(), [SegmentNumber(3)]);
    assert_eq!(log.topic().successor(range(1, 2), Epoch(5)).unwrap().predecessors, [SegmentNumber(3)]);
}

#[test]
fn a_recovered_epoch_owns_and_writes_nothing() {
    let mut log = Log::new();
    log.writer = Epoch(2);
    let recovered = |fence| Command::EpochRecovered { epoch: Epoch(1), fence: Slot(fence) };
    log.accept([log.open(0, 4, 1)]);
    assert_eq!(log.refuse([recovered(9)]), "recovered-owns-nothing");
    log.accept([seal(1, &[5; 4], recovery(9), (7, 8))]);
    assert_eq!(log.refuse([recovered(8)]), "fences-agree");
    assert_eq!(log.refuse([Command::EpochForgotten { epoch: Epoch(1) }]), "only-recovered-epochs-are-forgotten");
    log.accept([recovered(9)]);
    assert_eq!(log.refuse([recovered(9)]), "epochs-recover-once");
    assert_eq!(log.refuse([log.open(0, 4, 1)]), "owners-are-live");
    let zombie = LogEntry { writer: Epoch(1), ..log.entry([]) };
    assert_eq!(log.refuse_entry(&zombie), "recovered-epochs-write-nothing");
    assert_eq!(log.refuse([Command::EpochForgotten { epoch: Epoch(1) }]), "needed-journals-stay");
    log.accept([log.open(0, 4, 2)]);
    log.accept([log.adopt(2, 3), Command::SegmentClosed { segment: segment(1) }]);
    log.accept([Command::EpochForgotten { epoch: Epoch(1) }]);
    assert_eq!(log.refuse_entry(&LogEntry { writer: Epoch(1), ..log.entry([]) }), "recovered-epochs-write-nothing");
    let join = |epoch| Command::EpochJoined { epoch: Epoch(epoch), endpoint: "x".into() };
    assert_eq!(log.refuse([join(1)]), "epochs-join-once");
    assert_eq!(log.refuse([join(2)]), "epochs-join-once");
    assert_eq!(log.refuse([recovered(9)]), "epochs-have-joined");
    assert_eq!(log.state.live_epochs().collect::<Vec<_>>(), [Epoch(2)]);
}

#[test]
fn a_snapshot_that_contradicts_itself_is_refused() {
    let mut log = Log::new();
    log.accept([log.open(0, 4, 1)]);
    let mut state = log.state.clone();
    Arc::make_mut(state.topics.get_mut(&TopicId(1)).unwrap()).next_offsets[0] = Offset(1);
    assert_eq!(state.check().unwrap_err().invariant, "segments-form-chains");
    let error = ClusterState::decode(&state.encode(), state.version).unwrap_err();
    assert!(error.to_string().contains("segments-form-chains"), "{error}");
}

/// Steers a random walk: small numbers that pick among what is possible, some of it wrong.
fn command(state: &ClusterState, writer: Epoch, dice: [u8; 4]) -> Command {
    let [what, a, b, c] = dice;
    let live: Vec<_> = state.live_epochs().collect();
    let owner_of = |n: u8| live.get(n as usize % (live.len() + 1)).copied().unwrap_or(Epoch(u64::from(n)));
    let epoch = |n: u8| Epoch(u64::from(n % 9) + 1);
    let topics: Vec<_> = state.topics.values().collect();
    let topic = (!topics.is_empty()).then(|| topics[a as usize % topics.len()]);
    let pick = |numbers: Vec<SegmentNumber>| {
        let number = if numbers.is_empty() { SegmentNumber(b.into()) } else { numbers[b as usize % numbers.len()] };
        SegmentId { topic: topic.map_or(TopicId(1), |t| t.id), number }
    };
    match (what % 16, topic) {
        (0, _) => Command::EpochJoined { epoch: epoch(a), endpoint: "http://x".into() },
        (1, _) => {
            let id = state.next_topic.0 + u64::from(b == 0);
            let name = format!("t{}", a % 4).parse().unwrap();
            Command::CreateTopic { topic: TopicId(id), name, config: config(4), created_at: Timestamp::default() }
        }
        (2, Some(topic)) if b < 64 => Command::DeleteTopic { topic: topic.id },
        (2..=6, Some(topic)) => {
            let lo = u32::from(b % 4);
            let hi = (lo + 1 + u32::from(b / 4 % 4)).min(4 + u32::from(b == 255));
            match topic.successor(range(lo, hi), owner_of(c)) {
                Some(segment) => Command::OpenSegment(segment),
                None => Command::DeleteTopic { topic: TopicId(0) },
            }
        }
        (7..=9, Some(topic)) => {
            let segment = pick(topic.open.keys().copied().collect());
            let starts = topic.open.get(&segment.number).map_or(vec![], |s| s.start_offsets.clone());
            let grown = |(i, o): (usize, &Offset)| Offset(o.0 + u64::from(c >> (i % 4) & 3));
            let end_offsets = starts.iter().enumerate().map(grown).collect();
            let first = topic.adopted.get(&segment.number).copied().unwrap_or(Slot(2));
            let by = if c % 2 == 0 { owner(30) } else { recovery(40) };
            Command::SealSegment { segment, end_offsets, by, slots: (first, Slot(29)), bytes: 1 }
        }
        (10, Some(topic)) => Command::SegmentAdopted {
            segment: pick(topic.open.keys().copied().collect()),
            slot: Slot(u64::from(c % 8)),
        },
        (11, Some(topic)) => Command::SegmentClosed { segment: pick(topic.sealed.keys().copied().collect()) },
        (12, _) if b < 96 => Command::EpochRecovered { epoch: epoch(a), fence: Slot(40) },
        (13, _) => Command::EpochForgotten { epoch: epoch(a) },
        (14, Some(topic)) => Command::AlterTopic { topic: topic.id, config: config(4 + u32::from(b == 0)) },
        _ => {
            let term = state.leader.map_or(0, |(term, _)| term.0) + u64::from(b % 3);
            Command::Lead { epoch: if b == 9 { epoch(a) } else { writer }, term: LeaderTerm(term) }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is accepted keeps every invariant, and survives its snapshot; whatever is refused changes nothing; numbers,
    /// offsets and terms never move back.
    #[test]
    fn accepted_entries_keep_all_invariants(steps in prop::collection::vec(prop::collection::vec(any::<[u8; 4]>(), 1..4), 1..80)) {
        let mut log = Log::new();
        for step in steps {
            let before = log.state.clone();
            let live: Vec<_> = before.live_epochs().collect();
            log.writer = live.get(step[0][1] as usize % (live.len() + 1)).copied().unwrap_or(log.writer);
            let mut scratch = before.clone();
            let mut commands = Vec::new();
            for dice in step {
                // Later commands of an entry are chosen with the earlier ones in mind, where those are possible.
                let command = command(&scratch, log.writer, dice);
                let alone = LogEntry { version: scratch.version.next(), ..log.entry([command.clone()]) };
                let _ = scratch.apply(&alone);
                commands.push(command);
            }
            let entry = log.entry(commands);
            prop_assert_eq!(&LogEntry::decode(&entry.encode(), entry.version).unwrap(), &entry);
            if log.state.apply(&entry).is_err() {
                prop_assert_eq!(&log.state, &before);
                continue;
            }
            log.state.check().unwrap();
            prop_assert!(log.state.leader >= before.leader && log.state.next_topic >= before.next_topic);
            for (id, topic) in &before.topics {
                let Some(now) = log.state.topics.get(id) else { continue };
                prop_assert!(now.next_segment >= topic.next_segment);
                prop_assert!(now.next_offsets.iter().zip(&topic.next_offsets).all(|(now, before)| now >= before));
            }
            let bytes = log.state.encode();
            let read = ClusterState::decode(&bytes, log.state.version).unwrap();
            prop_assert_eq!(&read, &log.state);
            prop_assert_eq!(read.encode(), bytes);
        }
    }
}
