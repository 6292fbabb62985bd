//! Damaged and missing payloads: named exactly, never handed out, never in the way of others.

#![allow(clippy::unwrap_used)]

use rand::{RngCore as _, SeedableRng as _};
use refstream_integration_tests::{Files, Up};
use std::path::{Path, PathBuf};

fn objects(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        if entry.path().is_dir() { objects(&entry.path(), found) } else { found.push(entry.path()) }
    }
}

fn flip(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[at] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn a_flipped_byte_is_named_and_never_handed_out() {
    let up = Up::start();
    let files = Files::generate(40, 3_000, 5);
    up.run(&["topic", "create", "t", "--partitions", "2"]).ok();
    up.run(&["backfill", "t", files.path().to_str().unwrap(), "--pack-below", "0"]).ok();
    let records = up.records("t");
    let victim = records.iter().find(|r| r["size"].as_u64().unwrap() > 100).unwrap();
    let uri = victim["payload"]["uri"].as_str().unwrap();
    flip(&up.data().join(uri.trim_start_matches("s3://")), 50);
    let (partition, offset) = (victim["partition"].to_string(), victim["offset"].to_string());
    let key = uri.rsplit('/').next().unwrap();

    let said = up.run(&["get", "t", &partition, &offset]).fails(5, &["topic t", &partition, &offset, key]);
    assert!(said.stdout.is_empty(), "no byte is handed out");
    let target = up.data().join("out");
    up.run(&["get", "t", &partition, &offset, "-o", target.to_str().unwrap()]).fails(5, &[key]);
    assert!(!target.exists(), "no file is left behind");

    up.run(&["verify", "t"]).ok();
    let said = up.run(&["--output", "jsonl", "verify", "t", "--deep"]).fails(5, &[]);
    let mut findings = refstream_integration_tests::lines(&said.stdout);
    let summary = findings.pop().unwrap();
    assert_eq!((&summary["event"], &summary["findings"]), (&"summary".into(), &findings.len().into()));
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert_eq!(findings[0]["topic"], "t");
    assert_eq!(findings[0]["partition"].to_string(), partition);
    assert_eq!(findings[0]["offset"].to_string(), offset);
    assert!(findings[0]["object"].as_str().unwrap().contains(key));

    // The others are not disturbed.
    let folder = up.data().join("payloads");
    let said = up.run(&["tail", "t", "--from", "earliest", "--no-follow", "--payload", folder.to_str().unwrap()]);
    let said = said.fails(5, &[key]);
    assert_eq!(refstream_integration_tests::lines(&said.stdout).len(), 40);
    let mut written = Vec::new();
    objects(&folder, &mut written);
    assert_eq!(written.len(), 39);
}

#[test]
fn a_range_of_a_large_payload_is_verified_too() {
    let up = Up::start();
    up.run(&["topic", "create", "t"]).ok();
    let path = up.data().join("large");
    // Noise is stored as it is: byte n of the payload is byte n of the object.
    let mut contents = vec![0; 5_000_000];
    rand::rngs::StdRng::seed_from_u64(8).fill_bytes(&mut contents);
    std::fs::write(&path, &contents).unwrap();
    let put = up.run(&["--output", "json", "put", "t", path.to_str().unwrap()]).json();
    let (partition, offset) = (put["partition"].to_string(), put["offset"].to_string());
    let object = up.data().join(put["payload"]["uri"].as_str().unwrap().trim_start_matches("s3://"));
    flip(&object, 3_500_000);
    let range = |range: &str| up.run(&["get", "t", &partition, &offset, "--range", range]);
    assert!(range("100-2000000").ok() == contents[100..=2_000_000], "blocks that are whole are served");
    let said = range("3400000-3400010").fails(5, &["topic t"]);
    assert!(said.stdout.is_empty());
}

#[test]
fn a_missing_object_is_found_without_reading_payloads() {
    let up = Up::start();
    let files = Files::generate(50, 2_000, 6);
    up.run(&["topic", "create", "t"]).ok();
    up.run(&["backfill", "t", files.path().to_str().unwrap()]).ok();
    let records = up.records("t");
    let uri = records[0]["payload"]["uri"].as_str().unwrap();
    let affected = records.iter().filter(|r| r["payload"]["uri"] == uri).count();
    std::fs::remove_file(up.data().join(uri.trim_start_matches("s3://"))).unwrap();
    let said = up.run(&["--output", "jsonl", "verify", "t"]).fails(5, &[]);
    let findings =
        refstream_integration_tests::lines(&said.stdout).into_iter().filter(|line| line["event"] != "summary");
    assert_eq!(findings.count(), affected, "exactly the records that name it");
    assert_eq!(up.records("t"), records, "references still flow");
}

#[test]
fn a_lost_or_damaged_journal_is_what_compaction_says() {
    for lost in [true, false] {
        let up = Up::start();
        up.run(&["topic", "create", "t", "--partitions", "1"]).ok();
        up.run(&["put", "t", "/etc/hostname", "--key", "k"]).ok();
        let mut found = Vec::new();
        objects(&up.data(), &mut found);
        let mut hit = 0;
        // Whichever object holds the batch: it is the one with the record's source name in it.
        for path in found {
            let bytes = std::fs::read(&path).unwrap();
            if path.to_str().unwrap().contains("journal") && bytes.windows(8).any(|window| window == b"hostname") {
                hit += 1;
                if lost {
                    std::fs::remove_file(&path).unwrap();
                } else {
                    let at = bytes.windows(8).position(|window| window == b"hostname").unwrap();
                    flip(&path, at);
                }
            }
        }
        assert!(hit > 0);
        // Only now, or the node's own compaction could be earlier.
        up.run(&["seal", "t"]).ok();
        up.run(&["compact", "t"]).fails(5, &["topic t"]);
    }
}

/// Parquet files below the data folder whose path has `part`.
fn parquet(up: &Up, part: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    objects(&up.data(), &mut found);
    found.retain(|path| path.extension().is_some_and(|e| e == "parquet") && path.to_str().unwrap().contains(part));
    found.sort();
    found
}

fn number(record: &serde_json::Value, field: &str) -> u64 {
    record[field].as_u64().unwrap()
}

#[test]
fn a_lost_file_of_records_does_not_block_its_partitions() {
    for (kind, publish) in [("data", true), ("_fresh", false)] {
        let mut up = Up::start();
        up.run(&["topic", "create", "t", "--partitions", "2"]).ok();
        let compact: &[&str] = if publish { &["compact", "t"] } else { &["compact", "t", "--no-publish"] };
        let (mut known, mut lost) = (0, None);
        for round in 0..3_u64 {
            let files = Files::generate(30, 300, 20 + round);
            up.run(&["backfill", "t", files.path().to_str().unwrap()]).ok();
            up.run(&["seal", "t"]).ok();
            up.run(compact).ok();
            let now = parquet(&up, kind);
            if round == 1 {
                lost = now.last().cloned();
            }
            known = now.len();
        }
        assert!(known >= 3, "each round made a file");
        let live = Files::generate(10, 300, 30);
        up.run(&["backfill", "t", live.path().to_str().unwrap()]).ok();
        let before = up.records("t");
        assert_eq!(before.len(), 100);
        let lost = lost.unwrap();
        std::fs::remove_file(&lost).unwrap();
        // What the broker keeps in memory of closed segments hides the loss.
        up.stop();
        up.restart();

        let name = lost.file_name().unwrap().to_str().unwrap();
        let said =
            up.run(&["tail", "t", "--from", "earliest", "--no-follow"]).fails(5, &["topic t", "partition", name]);
        let mut after = refstream_integration_tests::lines(&said.stdout);
        after.sort_by_key(|record| (number(record, "partition"), number(record, "offset")));
        assert_eq!(after.len(), 70, "all but the records of the lost file: {}", said.stderr);
        assert!(after.iter().all(|record| before.contains(record)));
        let gone = before.iter().find(|record| !after.contains(record)).unwrap();
        let (partition, offset) = (gone["partition"].to_string(), gone["offset"].to_string());
        up.run(&["get", "t", &partition, &offset]).fails(5, &["topic t", name]);
        let said = up.run(&["--output", "jsonl", "verify", "t"]).fails(5, &[]);
        let mut findings = refstream_integration_tests::lines(&said.stdout);
        findings.retain(|line| line["event"] != "summary");
        assert!(!findings.is_empty() && findings.iter().all(|f| f["kind"] == "unreadable"), "{findings:?}");
        assert!(findings[0]["detail"].as_str().unwrap().contains(name));
    }
}

#[test]
fn nothing_is_published_across_a_lost_version_of_the_manifest() {
    let mut up = Up::start();
    up.run(&["topic", "create", "t", "--partitions", "2"]).ok();
    for round in 0..4_u64 {
        let files = Files::generate(20, 300, 40 + round);
        up.run(&["backfill", "t", files.path().to_str().unwrap()]).ok();
        up.run(&["seal", "t"]).ok();
        up.run(&["compact", "t", "--no-publish"]).ok();
        if round == 2 {
            let mut manifests = Vec::new();
            objects(&up.data(), &mut manifests);
            manifests.retain(|path| path.to_str().unwrap().contains("/manifest/"));
            manifests.sort();
            std::fs::remove_file(manifests.last().unwrap()).unwrap();
            // A broker that knows of the version refuses already to build on an older one.
            up.stop();
            up.restart();
        }
    }
    up.run(&["compact", "t"]).fails(5, &["topic t", "partition", "manifest", "hole"]);
    assert!(parquet(&up, "/data/ingest_date").is_empty(), "no file claims a span that it does not hold");
}
