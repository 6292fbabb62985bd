use super::*;
use refstream_types::{Offset, TopicConfig};

const NOBODY: BTreeSet<Epoch> = BTreeSet::new();

fn create(ticket: u64, name: &str) -> Intent {
    let operation = TopicOperation::Create { name: name.parse().unwrap(), config: TopicConfig::default() };
    Intent::Topic { ticket: Ticket(ticket), operation, at: Timestamp::from_micros(1) }
}

fn token() -> Token {
    Token([3; 16])
}

fn commit(writer: &mut ClusterWriter) -> (Version, Vec<Settled>) {
    match writer.propose(Epoch(4), &NOBODY, token).unwrap() {
        Proposal::Commit(version, bytes) => {
            assert_eq!(LogEntry::decode(&bytes, version).unwrap().version, version);
            (version, writer.committed().unwrap().unwrap().1)
        }
        Proposal::Nothing | Proposal::Settled(_) => panic!("nothing to commit"),
    }
}

fn joined() -> ClusterWriter {
    let mut writer = ClusterWriter::new();
    writer.want(Intent::Join { endpoint: "http://four".into() });
    let (version, settled) = commit(&mut writer);
    assert!(matches!(settled[..], [Settled::Joined]));
    assert_eq!((version, writer.state.leader), (Version(1), Some((LeaderTerm(1), Epoch(4)))));
    writer
}

#[test]
fn what_waits_goes_together_and_refusals_wait_with_it() {
    let mut writer = joined();
    for (ticket, name) in [(1, "a"), (2, "b"), (3, "a")] {
        writer.want(create(ticket, name));
    }
    let (version, settled) = commit(&mut writer);
    assert_eq!(version, Version(2));
    let [Settled::Topic { result: Ok(a), .. }, Settled::Topic { result: Ok(b), .. }, Settled::Topic { result, .. }] =
        &settled[..]
    else {
        panic!("{settled:?}")
    };
    assert_eq!((a.id, b.id), (TopicId(1), TopicId(2)));
    assert_eq!(a.open.len(), 1);
    assert!(matches!(result, Err(OperationError::TopicExists(_))));
    assert!(writer.is_idle());
}

#[test]
fn what_needs_no_entry_is_settled_at_once() {
    let mut writer = joined();
    writer.want(create(1, "a"));
    commit(&mut writer);
    writer.want(create(2, "a"));
    let Proposal::Settled(settled) = writer.propose(Epoch(4), &NOBODY, token).unwrap() else { panic!() };
    assert!(matches!(&settled[..], [Settled::Topic { result: Err(OperationError::TopicExists(_)), .. }]));
}

#[test]
fn a_loser_decides_again() {
    let mut loser = ClusterWriter::new();
    loser.want(Intent::Join { endpoint: "http://four".into() });
    assert!(matches!(loser.propose(Epoch(4), &NOBODY, token).unwrap(), Proposal::Commit(Version(1), _)));
    assert!(matches!(loser.propose(Epoch(4), &NOBODY, token).unwrap(), Proposal::Nothing), "one entry at a time");
    let winner = LogEntry {
        version: Version(1),
        token: token(),
        term: LeaderTerm(1),
        writer: Epoch(3),
        commands: vec![
            Command::EpochJoined { epoch: Epoch(3), endpoint: "http://three".into() },
            Command::Lead { epoch: Epoch(3), term: LeaderTerm(1) },
        ],
    };
    loser.follow(&winner).unwrap();
    let (version, _) = commit(&mut loser);
    assert_eq!((version, loser.state.leader), (Version(2), Some((LeaderTerm(1), Epoch(3)))), "somebody leads");
}

#[test]
fn settings_that_somebody_else_changed_meanwhile_stay() {
    use crate::interface::TopicChange;
    let mut writer = joined();
    writer.want(create(1, "a"));
    commit(&mut writer);
    let alter = |ticket, change| {
        let operation = TopicOperation::Alter { topic: TopicId(1), change };
        Intent::Topic { ticket: Ticket(ticket), operation, at: Timestamp::from_micros(1) }
    };
    writer.want(alter(2, TopicChange { seal_bytes: Some(5 << 20), ..TopicChange::default() }));
    assert!(matches!(writer.propose(Epoch(4), &NOBODY, token).unwrap(), Proposal::Commit(Version(3), _)));
    let day = std::time::Duration::from_secs(86_400);
    let config = TopicConfig { retention: Some(day), inline_max: 7, ..TopicConfig::default() };
    let commands = vec![Command::AlterTopic { topic: TopicId(1), config }];
    let (term, token) = (LeaderTerm(1), Token([8; 16]));
    writer.follow(&LogEntry { version: Version(3), token, term, writer: Epoch(4), commands }).unwrap();
    let (version, _) = commit(&mut writer);
    let settings = writer.state.topics[&TopicId(1)].config.clone();
    assert_eq!(
        (version, settings.seal_bytes, settings.retention, settings.inline_max),
        (Version(4), 5 << 20, Some(day), 7)
    );

    // What is set can be unset; what makes no sense is refused.
    writer.want(alter(3, TopicChange { retention: Some(None), ..TopicChange::default() }));
    writer.want(alter(4, TopicChange { file_bytes: Some(0), ..TopicChange::default() }));
    let (_, settled) = commit(&mut writer);
    assert_eq!(writer.state.topics[&TopicId(1)].config.retention, None);
    let [_, Settled::Topic { result, .. }] = &settled[..] else { panic!("{settled:?}") };
    assert!(matches!(result, Err(OperationError::Invalid(_))), "{result:?}");
}

#[test]
fn many_changes_are_split_into_bounded_entries() {
    let mut writer = joined();
    let topics = 3_000;
    (0..topics).for_each(|n| writer.want(create(n, &format!("topic-{n}"))));
    let mut entries = 0;
    let mut settled = 0;
    while !writer.is_idle() {
        let Proposal::Commit(version, bytes) = writer.propose(Epoch(4), &NOBODY, token).unwrap() else { panic!() };
        let entry = LogEntry::decode(&bytes, version).unwrap();
        assert!(entry.commands.len() <= MOST_COMMANDS + 1 && bytes.len() <= MOST_BYTES * 2);
        entries += 1;
        settled += writer.committed().unwrap().unwrap().1.len();
    }
    assert!(entries >= 2);
    assert_eq!(settled, topics as usize);
    writer.state.check().unwrap();
}

#[test]
fn an_empty_segment_is_closed_with_its_end_and_leaves_its_successor() {
    let mut writer = joined();
    writer.want(create(1, "a"));
    commit(&mut writer);
    let opened = writer.state.open_segments().next().unwrap().clone();
    let mut state = SegmentState::adopt(&opened, &[], Slot(1)).unwrap();
    state.next_offsets[3] = Offset(0);
    let by = SealedBy::Owner { slot: Slot(2) };
    let ended = EndedSegment { state, by, last_slot: Slot(1) };
    writer.want(Intent::End { ended, after: After::Successor });
    let (_, settled) = commit(&mut writer);
    let [Settled::Ended { segment }] = &settled[..] else { panic!("{settled:?}") };
    let successor = writer.state.open_segments().next().unwrap();
    assert_eq!((*segment, successor.range, successor.owner), (opened.id, opened.range, Epoch(4)));
    assert_eq!(successor.predecessors, [opened.id.number]);
    assert!(writer.state.topics[&TopicId(1)].sealed.is_empty());
}

#[test]
fn what_was_proposed_may_have_happened() {
    let mut writer = joined();
    writer.want(create(1, "a"));
    assert!(matches!(writer.propose(Epoch(4), &NOBODY, token).unwrap(), Proposal::Commit(..)));
    writer.want(create(2, "b"));
    let proposed: Vec<_> = writer.take_unsettled().into_iter().map(|(_, proposed)| proposed).collect();
    assert_eq!(proposed, [true, false]);
}

/// Epochs 4, 5 and 6 joined; 4 leads; topic 1 of six partitions.
fn three() -> ClusterWriter {
    let mut writer = joined();
    for epoch in [5, 6] {
        let joined = Command::EpochJoined { epoch: Epoch(epoch), endpoint: format!("http://{epoch}") };
        let version = writer.state.version.next();
        let entry =
            LogEntry { version, token: token(), term: LeaderTerm(1), writer: Epoch(epoch), commands: vec![joined] };
        writer.follow(&entry).unwrap();
    }
    let config = TopicConfig { partitions: 6, ..TopicConfig::default() };
    let operation = TopicOperation::Create { name: "t".parse().unwrap(), config };
    writer.want(Intent::Topic { ticket: Ticket(1), operation, at: Timestamp::from_micros(1) });
    commit(&mut writer);
    writer
}

fn owners(writer: &ClusterWriter) -> Vec<(u32, u32, u64)> {
    let mut owners: Vec<_> =
        writer.state.open_segments().map(|s| (s.range.lo().0, s.range.hi().0, s.owner.0)).collect();
    owners.sort_unstable();
    owners
}

fn ended(writer: &ClusterWriter, lo: u32) -> EndedSegment {
    let opened = writer.state.open_segments().find(|s| s.range.lo().0 == lo).unwrap();
    let state = SegmentState::empty(opened, Slot(1), Timestamp::default());
    EndedSegment { state, by: SealedBy::Owner { slot: Slot(2) }, last_slot: Slot(1) }
}

#[test]
fn a_new_topic_is_spread_over_the_brokers() {
    assert_eq!(owners(&three()), [(0, 2, 4), (2, 4, 5), (4, 6, 6)]);
}

#[test]
fn who_leaves_or_is_presumed_dead_is_given_nothing() {
    let mut writer = three();
    writer.want(Intent::End { ended: ended(&writer, 0), after: After::Anybody });
    writer.want(Intent::Leaving);
    commit(&mut writer);
    writer.want(Intent::End { ended: ended(&writer, 0), after: After::Successor });
    let absent = BTreeSet::from([Epoch(5)]);
    assert!(matches!(writer.propose(Epoch(4), &absent, token).unwrap(), Proposal::Commit(..)));
    writer.committed().unwrap();
    assert_eq!(owners(&writer), [(0, 2, 6), (2, 4, 5), (4, 6, 6)]);
}

#[test]
fn a_plan_to_merge_waits_for_the_last_one_and_nobody_opens_in_its_stead() {
    let mut writer = three();
    let merged = Planned { range: PartitionRange::new(PartitionId(0), PartitionId(4)).unwrap(), owner: Epoch(6) };
    for lo in [0, 2] {
        let segment = ended(&writer, lo).state.segment;
        writer.want(Intent::Plan { segment, successors: vec![merged] });
    }
    commit(&mut writer);
    for (lo, expected) in [(0, vec![(2, 4, 5), (4, 6, 6)]), (2, vec![(0, 4, 6), (4, 6, 6)])] {
        writer.want(Intent::End { ended: ended(&writer, lo), after: After::Successor });
        writer.want(Intent::Assign);
        commit(&mut writer);
        assert_eq!(owners(&writer), expected);
    }
    writer.state.check().unwrap();
}

#[test]
fn what_nobody_serves_is_assigned_by_the_leader_alone() {
    let mut writer = three();
    let one = EndedSegment { ..ended(&writer, 2) };
    let (id, by, slots) = (one.state.segment, one.by, (Slot(1), Slot(1)));
    let seal = Command::SealSegment { segment: id, end_offsets: one.state.next_offsets, by, slots, bytes: 0 };
    let version = writer.state.version.next();
    let entry = LogEntry { version, token: token(), term: LeaderTerm(1), writer: Epoch(5), commands: vec![seal] };
    writer.follow(&entry).unwrap();
    writer.want(Intent::Assign);
    assert!(matches!(writer.propose(Epoch(5), &NOBODY, token).unwrap(), Proposal::Settled(_)));
    writer.want(Intent::Assign);
    commit(&mut writer);
    assert_eq!(owners(&writer), [(0, 2, 4), (2, 4, 5), (4, 6, 6)]);
}
