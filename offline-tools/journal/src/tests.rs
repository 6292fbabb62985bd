//! What is read back is what was written, within the reads that are promised; what moved on or is damaged is said so.

mod fixture;

use crate::ReadError;
use fixture::{Owner, Shelf, id, metadata, range};
use futures::TryStreamExt;
use refstream_format::{
    cluster_log::{ClusterState, Command, LogEntry, SealedBy, SealedSegment},
    journal::SegmentState,
    manifest::{DataFile, Manifest, SegmentSpan, Tier},
};
use refstream_types::{Chain, Epoch, Key, Layout, LeaderTerm, Offset, SegmentNumber, Slot, Timestamp, Token, Version};
use std::sync::Arc;

fn layout() -> Layout {
    Layout::new("deployment").unwrap()
}

/// Writes a log of `entries` entries, each a broker that joins; the states after each, from none.
fn write_log(shelf: &Shelf, entries: u64) -> Vec<ClusterState> {
    let mut states = vec![ClusterState::default()];
    for version in 1..=entries {
        let mut state = states.last().unwrap().clone();
        let entry = joins(version, version);
        state.apply(&entry).unwrap();
        shelf.put(&layout().link(&Chain::ClusterLog, version), entry.encode());
        states.push(state);
    }
    states
}

fn joins(version: u64, epoch: u64) -> LogEntry {
    LogEntry {
        version: Version(version),
        token: Token([3; 16]),
        term: LeaderTerm(0),
        writer: Epoch(epoch),
        commands: vec![Command::EpochJoined { epoch: Epoch(epoch), endpoint: format!("http://b{epoch}:7400") }],
    }
}

fn snapshot(shelf: &Shelf, state: &ClusterState) {
    shelf.put(&layout().snapshot(state.version), state.encode());
}

/// Frees the log below `number`, as a chain is freed: boundary first.
fn free_log(shelf: &Shelf, number: u64) {
    shelf.put(&layout().boundary(&Chain::ClusterLog, number), vec![0]);
    (1..number).for_each(|n| shelf.take(&layout().link(&Chain::ClusterLog, n)));
}

#[tokio::test]
async fn the_state_is_the_newest_snapshot_and_the_log_after_it() {
    let (shelf, metadata) = metadata();
    assert_eq!(metadata.cluster_state().await.unwrap(), ClusterState::default());
    let states = write_log(&shelf, 70);
    assert_eq!(metadata.cluster_state().await.unwrap(), states[70]);
    snapshot(&shelf, &states[20]);
    snapshot(&shelf, &states[60]);
    let before = shelf.reads();
    assert_eq!(metadata.cluster_state().await.unwrap(), states[70]);
    assert!(shelf.reads() - before < 20, "the log is read from the newest snapshot on");

    free_log(&shelf, 61);
    assert_eq!(metadata.cluster_state().await.unwrap(), states[70]);
    shelf.take(&layout().snapshot(Version(20)));
    assert_eq!(metadata.cluster_state().await.unwrap(), states[70]);
}

#[tokio::test]
async fn a_stale_list_costs_reads_and_never_truth() {
    let (shelf, metadata) = metadata();
    let states = write_log(&shelf, 30);
    snapshot(&shelf, &states[10]);
    shelf.freeze_list();
    snapshot(&shelf, &states[25]);
    assert_eq!(metadata.cluster_state().await.unwrap(), states[30]);
    // The listed snapshot is removed, the one that replaced it is not listed yet, and the log is freed up to it.
    shelf.take(&layout().snapshot(Version(10)));
    free_log(&shelf, 26);
    assert!(matches!(metadata.cluster_state().await, Err(ReadError::Gone(_))));
    shelf.thaw_list();
    assert_eq!(metadata.cluster_state().await.unwrap(), states[30]);
}

#[tokio::test]
async fn following_applies_what_is_new() {
    let (shelf, metadata) = metadata();
    let states = write_log(&shelf, 3);
    let mut state = ClusterState::default();
    assert!(metadata.follow(&mut state).await.unwrap());
    assert_eq!(state, states[3]);
    assert!(!metadata.follow(&mut state).await.unwrap());
    let more = write_log(&shelf, 200);
    assert!(metadata.follow(&mut state).await.unwrap());
    assert_eq!(state, more[200]);
}

#[tokio::test]
async fn a_follower_that_slept_through_a_freeing_finds_out() {
    let (shelf, metadata) = metadata();
    let states = write_log(&shelf, 9);
    free_log(&shelf, 7);
    for (slept, gone) in [(0, true), (5, true), (6, false), (7, false)] {
        let mut state = states[slept].clone();
        let followed = metadata.follow(&mut state).await;
        assert_eq!(matches!(followed, Err(ReadError::Gone(_))), gone, "from {slept}: {followed:?}");
        assert_eq!(state, states[if gone { slept } else { 9 }]);
    }
    // A writer that slept as well creates a freed number again: nobody may believe it.
    shelf.put(&layout().link(&Chain::ClusterLog, 6), joins(6, 77).encode());
    let mut state = states[5].clone();
    assert!(matches!(metadata.follow(&mut state).await, Err(ReadError::Gone(_))));
    assert_eq!(state, states[5]);
}

#[tokio::test]
async fn damage_in_the_log_is_named_and_a_damaged_snapshot_is_passed_over() {
    let (shelf, metadata) = metadata();
    let states = write_log(&shelf, 12);
    snapshot(&shelf, &states[4]);
    snapshot(&shelf, &states[8]);
    shelf.flip(&layout().snapshot(Version(8)), 20);
    assert_eq!(metadata.cluster_state().await.unwrap(), states[12]);
    let key = layout().link(&Chain::ClusterLog, 11);
    shelf.flip(&key, 30);
    match metadata.cluster_state().await {
        Err(ReadError::Damaged { key: named, .. }) => assert_eq!(named, key),
        other => panic!("{other:?}"),
    }
    // An entry that is whole but contradicts the state.
    shelf.put(&key, joins(11, 3).encode());
    assert!(
        matches!(metadata.cluster_state().await, Err(ReadError::Violation(v)) if v.invariant == "epochs-join-once")
    );
}

fn file(name: &str) -> DataFile {
    let span = SegmentSpan {
        number: SegmentNumber(1),
        range: range(0, 1),
        start_offsets: vec![Offset(0)],
        end_offsets: vec![Offset(1)],
    };
    DataFile {
        key: name.parse().unwrap(),
        tier: Tier::Data,
        segments: vec![span],
        rows: 1,
        bytes: 1,
        payload_bytes: 0,
        append_times: (Timestamp::default(), Timestamp::default()),
        digest: [0; 32],
    }
}

#[tokio::test]
async fn manifests_are_found_and_their_pages_read_in_order() {
    let (shelf, metadata) = metadata();
    let (topic, folder) = fixture::topic();
    assert_eq!(metadata.manifest(&topic, 0).await.unwrap(), None);
    let page = |n| layout().manifest_page(&folder, Version(n));
    shelf.put(&page(1), Manifest::encode_page(&[file("a"), file("b")]));
    shelf.put(&page(2), Manifest::encode_page(&[file("c")]));
    let mut manifest = Manifest::empty(topic.id, topic.name.clone(), Token([1; 16]));
    for version in 1..=9 {
        manifest.version = Version(version);
        manifest.pages = vec![(page(1), 2), (page(2), 1)];
        manifest.files = vec![file("d")];
        shelf.put(&layout().link(&Chain::Manifest(folder.clone()), version), manifest.encode());
    }
    for hint in [0, 3, 9] {
        assert_eq!(metadata.manifest(&topic, hint).await.unwrap().unwrap(), manifest);
    }
    let files: Vec<_> = metadata.manifest_files(&manifest).try_collect().await.unwrap();
    assert_eq!(files, [file("a"), file("b"), file("c"), file("d")]);
    manifest.pages[1].1 = 2;
    let result: Result<Vec<_>, _> = metadata.manifest_files(&manifest).try_collect().await;
    assert!(matches!(result, Err(ReadError::Damaged { key, .. }) if key == page(2)));
    shelf.take(&page(1));
    let result: Result<Vec<_>, _> = metadata.manifest_files(&manifest).try_collect().await;
    assert!(matches!(result, Err(ReadError::Gone(key)) if key == page(1)));
}

/// Segment 1 over partitions 0 and 1, adopted in slot 5, 90 slots long and shared with segment 2; a checkpoint every `every` slots.
async fn journal(every: u64, by_owner: bool) -> (Arc<Shelf>, crate::Metadata, Owner, SealedSegment, SegmentState) {
    let (shelf, metadata) = metadata();
    let mut owner = Owner::new(Arc::clone(&shelf), layout(), every);
    owner.heartbeats(2);
    owner.adopt(2, range(2, 4));
    owner.heartbeats(1);
    owner.adopt(1, range(0, 2));
    for step in 0..90_u32 {
        owner.append(&[(1, step % 2, 1 + step % 3), (2, 2 + step % 2, 1), (1, (step + 1) % 2, 1)]);
    }
    let state = owner.state(1);
    let (last, by) = if by_owner {
        let slot = owner.seal(1);
        owner.heartbeats(7);
        (slot, SealedBy::Owner { slot })
    } else {
        let fence = owner.fence();
        (Slot(fence.0 - 1), SealedBy::Recovery { fence })
    };
    let sealed = SealedSegment {
        opened: owner.opened(1),
        end_offsets: state.next_offsets.clone(),
        by,
        slots: (state.adopted, last),
        bytes: state.bytes,
    };
    (shelf, metadata, owner, sealed, state)
}

#[tokio::test]
async fn a_sealed_segments_batches_are_exactly_its_records() {
    for by_owner in [true, false] {
        for every in [1, 2, 7, 16, 1_000] {
            let (shelf, metadata, owner, sealed, state) = journal(every, by_owner).await;
            // What lies below the segment's first slot may be gone.
            (1..sealed.slots.0.0).for_each(|slot| shelf.take(&layout().journal(Epoch(4), Slot(slot))));
            let before = shelf.reads();
            let batches = metadata.segment_batches(&sealed).await.unwrap();
            let reads = shelf.reads() - before;
            let mut expected: Vec<_> = owner.batches().iter().filter(|b| b.segment == id(1)).copied().collect();
            expected.sort_by_key(|b| (b.partition, b.base_offset));
            assert_eq!(batches, expected, "a checkpoint every {every} slots");
            let slots = sealed.slots.1.0 - sealed.slots.0.0 + 1;
            assert!(reads <= slots / every + every.min(slots) + 2, "{reads} reads for {slots} slots, {every}");
            assert_eq!(batches.iter().map(|b| u64::from(b.bytes.1)).sum::<u64>(), sealed.bytes);
            for location in &batches {
                let placed = metadata.batch(Epoch(4), location).await.unwrap();
                assert_eq!(placed.batch.decode().unwrap().len() as u32, location.records);
                assert_eq!((placed.base_offset, placed.append_time), (location.base_offset, location.append_time));
            }
            let before = shelf.reads();
            assert_eq!(metadata.final_state(&sealed).await.unwrap(), state);
            assert!(shelf.reads() - before <= every.min(slots) + 2);
        }
    }
}

#[tokio::test]
async fn batches_that_do_not_cover_the_segment_are_refused() {
    let (_, metadata, _, sealed, _) = journal(7, true).await;
    let changes: [fn(&mut SealedSegment); 4] = [
        |s| s.end_offsets[0] = Offset(s.end_offsets[0].0 + 1),
        |s| s.end_offsets[1] = Offset(s.end_offsets[1].0 - 1),
        |s| s.opened.start_offsets[0] = Offset(1),
        |s| s.slots.0 = Slot(s.slots.0.0 + 3),
    ];
    for change in changes {
        let mut wrong = sealed.clone();
        change(&mut wrong);
        match metadata.segment_batches(&wrong).await {
            Err(ReadError::Segment { segment, why }) => assert!(segment == id(1) && why.contains("partition"), "{why}"),
            other => panic!("{other:?}"),
        }
    }
    let mut wrong = sealed.clone();
    wrong.end_offsets[0] = Offset(9_999);
    assert!(matches!(metadata.final_state(&wrong).await, Err(ReadError::Segment { .. })));
    let mut empty = sealed;
    empty.end_offsets = empty.opened.start_offsets.clone();
    empty.slots = (Slot(0), Slot(0));
    assert!(metadata.segment_batches(&empty).await.unwrap().is_empty());
}

#[tokio::test]
async fn missing_and_damaged_objects_are_named() {
    let (shelf, metadata, owner, sealed, _) = journal(7, false).await;
    let key = |slot: u64| layout().journal(Epoch(4), Slot(slot));
    let gone = |result: Result<_, ReadError>, expected: Key| match result {
        Err(ReadError::Gone(key)) => assert_eq!(key, expected),
        other => panic!("{:?}", other.map(|_: ()| ())),
    };
    let location = owner.batches()[5];
    shelf.flip(&key(location.slot.0), location.bytes.0 as usize + 3);
    assert!(
        matches!(metadata.batch(Epoch(4), &location).await, Err(ReadError::Damaged { key: k, .. }) if k == key(location.slot.0))
    );
    shelf.take(&key(location.slot.0));
    gone(metadata.batch(Epoch(4), &location).await.map(|_| ()), key(location.slot.0));
    let last = sealed.slots.1.0;
    shelf.flip(&key(last), 70);
    assert!(
        matches!(metadata.segment_batches(&sealed).await, Err(ReadError::Damaged { key: k, .. }) if k == key(last))
    );
    shelf.take(&key(last));
    gone(metadata.segment_batches(&sealed).await.map(|_| ()), key(last));
    gone(metadata.final_state(&sealed).await.map(|_| ()), key(last));
}
