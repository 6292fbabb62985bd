use super::*;
use refstream_types::{Offset, TopicConfig};

fn create(ticket: u64, name: &str) -> Intent {
    let operation = TopicOperation::Create { name: name.parse().unwrap(), config: TopicConfig::default() };
    Intent::Topic { ticket: Ticket(ticket), operation, at: Timestamp::from_micros(1), ended: Vec::new() }
}

fn token() -> Token {
    Token([3; 16])
}

fn commit(writer: &mut ClusterWriter) -> (Version, Vec<Settled>) {
    match writer.propose(Epoch(4), token).unwrap() {
        Proposal::Commit(version, bytes) => {
            assert_eq!(LogEntry::decode(&bytes, version).unwrap().version, version);
            (version, writer.committed().unwrap())
        }
        Proposal::Nothing | Proposal::Settled(_) => panic!("nothing to commit"),
    }
}

fn joined() -> ClusterWriter {
    let mut writer = ClusterWriter::new();
    writer.want(Intent::Join { endpoint: "http://four".into() });
    let (version, settled) = commit(&mut writer);
    assert!(matches!(settled[..], [Settled::Joined]));
    assert_eq!((version, writer.term), (Version(1), Some(LeaderTerm(1))));
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
    let Proposal::Settled(settled) = writer.propose(Epoch(4), token).unwrap() else { panic!() };
    assert!(matches!(&settled[..], [Settled::Topic { result: Err(OperationError::TopicExists(_)), .. }]));
}

#[test]
fn a_loser_decides_again() {
    let mut loser = ClusterWriter::new();
    loser.want(Intent::Join { endpoint: "http://four".into() });
    assert!(matches!(loser.propose(Epoch(4), token).unwrap(), Proposal::Commit(Version(1), _)));
    assert!(matches!(loser.propose(Epoch(4), token).unwrap(), Proposal::Nothing), "one entry at a time");
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
    assert_eq!((version, loser.term), (Version(2), Some(LeaderTerm(2))));
}

#[test]
fn many_changes_are_split_into_bounded_entries() {
    let mut writer = joined();
    let topics = 3_000;
    (0..topics).for_each(|n| writer.want(create(n, &format!("topic-{n}"))));
    let mut entries = 0;
    let mut settled = 0;
    while !writer.is_idle() {
        let Proposal::Commit(version, bytes) = writer.propose(Epoch(4), token).unwrap() else { panic!() };
        let entry = LogEntry::decode(&bytes, version).unwrap();
        assert!(entry.commands.len() <= MOST_COMMANDS + 1 && bytes.len() <= MOST_BYTES * 2);
        entries += 1;
        settled += writer.committed().unwrap().len();
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
    let [Settled::Ended { segment, successor: Some(successor) }] = &settled[..] else { panic!("{settled:?}") };
    assert_eq!((*segment, successor.range), (opened.id, opened.range));
    assert_eq!(successor.predecessors, [opened.id.number]);
    assert!(writer.state.topics[&TopicId(1)].sealed.is_empty());
}

#[test]
fn what_was_proposed_may_have_happened() {
    let mut writer = joined();
    writer.want(create(1, "a"));
    assert!(matches!(writer.propose(Epoch(4), token).unwrap(), Proposal::Commit(..)));
    writer.want(create(2, "b"));
    let proposed: Vec<_> = writer.take_unsettled().into_iter().map(|(_, proposed)| proposed).collect();
    assert_eq!(proposed, [true, false]);
}
