//! Golden files of the cluster log and manifests: each is read, and written again to equal bytes. `REFSTREAM_WRITE_GOLDEN=1`
//! writes them. Beside them: damage never passes for something else.

#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use refstream_format::{
    cluster_log::{ClusterState, Command, LogEntry, OpenSegment, Planned, SealedBy},
    manifest::{DataFile, Manifest, PublishPlan, SegmentSpan, Tier, end_offsets, file_of, segments},
};
use refstream_types::{
    Epoch, LeaderTerm, Offset, PartitionId, PartitionRange, SegmentId, SegmentNumber, Slot, Timestamp, Token,
    TopicConfig, TopicId, Version,
};
use std::{path::PathBuf, time::Duration};

fn golden(name: &str, written: &[u8]) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("REFSTREAM_WRITE_GOLDEN").is_some() {
        std::fs::write(&path, written).unwrap();
    }
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn range(lo: u32, hi: u32) -> PartitionRange {
    PartitionRange::new(PartitionId(lo), PartitionId(hi)).unwrap()
}

fn entry() -> LogEntry {
    let segment = |number| SegmentId { topic: TopicId(1), number: SegmentNumber(number) };
    let open = |number, lo, hi, owner, starts: &[u64], before: &[u64]| {
        Command::OpenSegment(OpenSegment {
            id: segment(number),
            range: range(lo, hi),
            owner: Epoch(owner),
            start_offsets: starts.iter().copied().map(Offset).collect(),
            predecessors: before.iter().copied().map(SegmentNumber).collect(),
        })
    };
    let config = TopicConfig {
        partitions: 4,
        retention: Some(Duration::new(86_400, 5)),
        store: Some("eu-1".parse().unwrap()),
        inline_max: 100,
        ..TopicConfig::default()
    };
    let join = |epoch| Command::EpochJoined { epoch: Epoch(epoch), endpoint: format!("http://10.0.0.{epoch}:7400") };
    let sealed = |number, ends: &[u64], by, slots: (u64, u64)| Command::SealSegment {
        segment: segment(number),
        end_offsets: ends.iter().copied().map(Offset).collect(),
        by,
        slots: (Slot(slots.0), Slot(slots.1)),
        bytes: 123_456,
    };
    LogEntry {
        version: Version(1),
        token: Token([0xa5; 16]),
        term: LeaderTerm(1),
        writer: Epoch(3),
        commands: vec![
            join(1),
            join(2),
            join(3),
            Command::Lead { epoch: Epoch(3), term: LeaderTerm(1) },
            Command::CreateTopic {
                topic: TopicId(1),
                name: "images.raw".parse().unwrap(),
                config: config.clone(),
                created_at: Timestamp::from_micros(1_795_939_800_000_001),
            },
            open(1, 0, 2, 1, &[0, 0], &[]),
            open(2, 2, 4, 2, &[0, 0], &[]),
            Command::SegmentAdopted { segment: segment(1), slot: Slot(4) },
            sealed(1, &[1 << 40, 7], SealedBy::Owner { slot: Slot(9) }, (4, 9)),
            sealed(2, &[5, 0], SealedBy::Recovery { fence: Slot(300) }, (2, 299)),
            Command::EpochRecovered { epoch: Epoch(2), fence: Slot(300) },
            open(3, 1, 3, 3, &[7, 5], &[1, 2]),
            Command::SegmentAdopted { segment: segment(3), slot: Slot(11) },
            Command::SegmentClosed { segment: segment(1) },
            Command::AlterTopic { topic: TopicId(1), config: TopicConfig { inline_max: 0, ..config.clone() } },
            Command::CreateTopic {
                topic: TopicId(2),
                name: "gone".parse().unwrap(),
                config,
                created_at: Timestamp::from_micros(-1),
            },
            Command::DeleteTopic { topic: TopicId(2) },
        ],
    }
}

/// What follows it: a plan to split and move, and a broker that leaves.
fn second_entry() -> LogEntry {
    let planned = |lo, hi, owner| Planned { range: range(lo, hi), owner: Epoch(owner) };
    let segment = SegmentId { topic: TopicId(1), number: SegmentNumber(3) };
    LogEntry {
        version: Version(2),
        token: Token([0x5a; 16]),
        commands: vec![
            Command::PlanSegment { segment, successors: vec![planned(0, 2, 3), planned(2, 4, 1)] },
            Command::EpochLeaving { epoch: Epoch(1) },
        ],
        ..entry()
    }
}

fn state() -> ClusterState {
    let mut state = old_state();
    state.apply(&second_entry()).unwrap();
    state.check().unwrap();
    state
}

fn old_state() -> ClusterState {
    let mut state = ClusterState::default();
    state.apply(&entry()).unwrap();
    state.check().unwrap();
    state
}

fn file(name: &str, tier: Tier, first: u64, from: u64) -> DataFile {
    let span = |number, lo, hi| SegmentSpan {
        number: SegmentNumber(number),
        range: range(lo, hi),
        start_offsets: (lo..hi).map(|_| Offset(from)).collect(),
        end_offsets: (lo..hi).map(|p| Offset(from + 10 * u64::from(p))).collect(),
    };
    DataFile {
        key: name.parse().unwrap(),
        tier,
        segments: vec![span(first, 0, 3), span(first + 1, 3, 4)],
        rows: 60,
        bytes: 4_096,
        payload_bytes: 1 << 41,
        append_times: ("2026-11-29T08:30:00Z".parse().unwrap(), "2026-11-29T23:59:59.999999Z".parse().unwrap()),
        digest: [first as u8; 32],
    }
}

fn manifest() -> Manifest {
    Manifest {
        topic: TopicId(7),
        name: "images.raw".parse().unwrap(),
        version: Version(12),
        token: Token([0x5a; 16]),
        pages: vec![("topics/images.raw-7/pages/00000000000000000003".parse().unwrap(), 400)],
        files: vec![file("a.parquet", Tier::Data, 1, 0), file("b.parquet", Tier::Fresh, 3, 100)],
        plan: Some(PublishPlan { key: "c.parquet".parse().unwrap(), inputs: vec!["b.parquet".parse().unwrap()] }),
        replaced: vec!["x.parquet".parse().unwrap(), "y.parquet".parse().unwrap()],
    }
}

type Again = fn(&[u8]) -> Option<Vec<u8>>;

/// Every format with an example of its bytes, and how to read and write them again.
fn formats() -> Vec<(&'static str, Vec<u8>, Again)> {
    vec![
        ("log_entry.v1.bin", entry().encode(), |b| LogEntry::decode(b, Version(1)).ok().map(|e| e.encode())),
        ("log_entry_plan.v1.bin", second_entry().encode(), |b| {
            LogEntry::decode(b, Version(2)).ok().map(|e| e.encode())
        }),
        ("snapshot.v2.bin", state().encode(), |b| ClusterState::decode(b, Version(2)).ok().map(|s| s.encode())),
        ("manifest.v1.bin", manifest().encode(), |b| {
            Manifest::decode(b, (TopicId(7), Version(12))).ok().map(|m| m.encode())
        }),
        ("manifest_page.v1.bin", Manifest::encode_page(&manifest().files), |b| {
            Manifest::decode_page(b).ok().map(|files| Manifest::encode_page(&files))
        }),
    ]
}

#[test]
fn golden_files_are_read_and_written_alike() {
    for (name, bytes, again) in formats() {
        let stored = golden(name, &bytes);
        assert_eq!(again(&stored).as_ref(), Some(&stored), "{name}");
        assert_eq!(stored, bytes, "{name}: the format changed; raise its version");
    }
    assert_eq!(LogEntry::decode(&golden("log_entry.v1.bin", &entry().encode()), Version(1)).unwrap(), entry());
    assert_eq!(ClusterState::decode(&golden("snapshot.v2.bin", &state().encode()), Version(2)).unwrap(), state());
}

#[test]
fn snapshots_of_the_first_version_are_read() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/snapshot.v1.bin");
    assert_eq!(ClusterState::decode(&std::fs::read(path).unwrap(), Version(1)).unwrap(), old_state());
}

#[test]
fn every_flipped_bit_and_every_cut_is_noticed() {
    for (name, bytes, again) in formats() {
        for at in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[at / 8] ^= 1 << (at % 8);
            assert_eq!(again(&damaged), None, "{name}, bit {at}");
        }
        for length in 0..bytes.len() {
            assert_eq!(again(&bytes[..length]), None, "{name} cut to {length}");
        }
        assert_eq!(again(&[&bytes[..], &[0]].concat()), None, "{name} with a byte more");
    }
}

#[test]
fn another_objects_bytes_are_refused() {
    let error = LogEntry::decode(&entry().encode(), Version(2)).unwrap_err();
    assert!(error.to_string().contains("number 1, expected 2"), "{error}");
    assert!(ClusterState::decode(&state().encode(), Version(3)).is_err());
    assert!(Manifest::decode(&manifest().encode(), (TopicId(8), Version(12))).is_err());
    assert!(Manifest::decode(&manifest().encode(), (TopicId(7), Version(11))).is_err());
    let mut newer = manifest().encode();
    newer[4] = 2;
    let error = Manifest::decode(&newer, (TopicId(7), Version(12))).unwrap_err();
    assert!(error.to_string().contains("version 2 is unknown, the highest known is 1"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    /// Bytes with a right checksum but any content: an error or a value, never a panic; a value is written alike.
    #[test]
    fn hostile_bytes_do_not_panic(which in 0_usize..5, at in any::<prop::sample::Index>(), put in prop::collection::vec(any::<u8>(), 0..12), cut in 0_usize..4) {
        let (_, mut bytes, again) = formats().swap_remove(which);
        bytes.truncate(bytes.len() - 4);
        let at = 6 + at.index(bytes.len() - 6);
        let end = (at + cut).min(bytes.len());
        bytes.splice(at..end, put);
        let checksum = refstream_format::crc32c(&bytes).0;
        bytes.extend(checksum.to_le_bytes());
        if let Some(written) = again(&bytes) {
            prop_assert_eq!(again(&written), Some(written));
        }
    }
}

#[test]
fn manifests_say_which_file_holds_what() {
    let manifest = manifest();
    let key = |partition, offset| {
        manifest.file_of(PartitionId(partition), Offset(offset)).map(|file| file.key.as_str().to_owned())
    };
    assert_eq!(key(0, 0), None, "partition 0 has no record");
    assert_eq!(key(1, 0).as_deref(), Some("a.parquet"));
    assert_eq!(key(1, 10), None);
    assert_eq!(key(3, 129).as_deref(), Some("b.parquet"));
    assert_eq!(key(9, 0), None);
    let ends: Vec<_> = manifest.end_offsets().into_iter().map(|(p, o)| (p.0, o.0)).collect();
    assert_eq!(ends, [(1, 110), (2, 120), (3, 130)]);
    let held: Vec<_> = manifest.segments().iter().map(|h| (h.span.number.0, h.file.tier)).collect();
    assert_eq!(held, [(1, Tier::Data), (2, Tier::Data), (3, Tier::Fresh), (4, Tier::Fresh)]);
    assert_eq!(manifest.file_count(), 402);

    // While both tiers hold a row, the published file is the one to read.
    let both = [file("fresh.parquet", Tier::Fresh, 1, 0), file("data.parquet", Tier::Data, 1, 0)];
    assert_eq!(file_of(&both, PartitionId(2), Offset(5)).unwrap().key.as_str(), "data.parquet");
    assert_eq!(end_offsets(&both)[&PartitionId(3)], Offset(30));
    assert_eq!(segments(&both).len(), 4);
}
