//! The whole path: backfill, tail, seal, compact, files, fetch, verify.

#![allow(clippy::unwrap_used)]

use refstream_integration_tests::{Files, Up};
use std::collections::BTreeSet;

#[test]
fn files_become_records_then_parquet_and_come_back_equal() {
    let mut up = Up::start();
    let files = Files::generate(300, 40_000, 1);
    let large = vec![7_u8; 3_000_000].into_iter().enumerate().map(|(i, b)| b ^ (i / 1000) as u8).collect::<Vec<_>>();
    up.run(&["topic", "create", "t", "--partitions", "5"]).ok();
    let summary = up.run(&["--output", "json", "backfill", "t", files.path().to_str().unwrap()]).json();
    assert_eq!(summary["files_done"], 300);
    assert_eq!(summary["files_failed"], 0);
    let records = up.records("t");
    files.check(&records);

    // One larger payload by hand, with all that put can say.
    let path = up.data().join("large");
    std::fs::write(&path, &large).unwrap();
    let put = up
        .run(&[
            "--output",
            "json",
            "put",
            "t",
            path.to_str().unwrap(),
            "--key",
            "k",
            "--attribute",
            "a=b",
            "--event-time",
            "2026-01-02T03:04:05Z",
        ])
        .json();
    let (partition, offset) = (put["partition"].to_string(), put["offset"].to_string());
    let get = |range: &[&str]| {
        let mut arguments = vec!["get", "t", &partition, &offset];
        arguments.extend(range);
        up.run(&arguments).ok()
    };
    assert!(get(&[]) == large, "the payload comes back equal");
    assert!(get(&["--range", "1048570-1048585"]) == large[1_048_570..=1_048_585]);

    let before: Vec<_> = up.records("t");
    up.run(&["seal", "t"]).ok();
    up.run(&["compact", "t"]).ok();
    assert_eq!(up.records("t"), before, "the same records, now from files");
    assert!(get(&[]) == large);

    let published = up.run(&["--output", "jsonl", "segments", "t"]).lines();
    let files_listed: BTreeSet<_> = published
        .iter()
        .filter(|s| s["state"] == "published")
        .flat_map(|s| s["files"].as_array().unwrap().clone())
        .map(|uri| uri.as_str().unwrap().to_owned())
        .collect();
    assert!(!files_listed.is_empty());
    for uri in &files_listed {
        let path = up.data().join(uri.trim_start_matches("s3://"));
        assert!(path.is_file(), "{} is a plain file", path.display());
        assert!(uri.contains("/data/ingest_date="), "{uri}");
    }

    // New records follow the closed ones; a restart changes nothing.
    let more = Files::generate(20, 500, 2);
    up.run(&["topic", "create", "u"]).ok();
    up.run(&["backfill", "u", more.path().to_str().unwrap()]).ok();
    assert_eq!(up.stop(), Some(0));
    up.restart();
    more.check(&up.records("u"));
    assert_eq!(up.records("t"), before);
    up.run(&["verify", "--deep"]).ok();
}

#[test]
fn a_tail_sees_records_as_they_come_and_ends_after_max() {
    let up = Up::start();
    up.run(&["topic", "create", "t"]).ok();
    let tail = up.spawn(&["tail", "t", "--from", "earliest", "--max", "3"]);
    let file = up.data().join("x");
    for i in 0..3 {
        std::fs::write(&file, format!("payload {i}")).unwrap();
        up.run(&["put", "t", file.to_str().unwrap(), "--key", "same"]).ok();
    }
    let seen = refstream_integration_tests::lines(&tail.wait().ok());
    assert_eq!(seen.iter().map(|r| r["offset"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn topics_are_described_altered_and_deleted() {
    let up = Up::start();
    up.run(&["topic", "create", "a", "--partitions", "3", "--retention", "1day"]).ok();
    up.run(&["topic", "create", "b"]).ok();
    let names: Vec<_> =
        up.run(&["--output", "jsonl", "topic", "list"]).lines().iter().map(|t| t["name"].clone()).collect();
    assert_eq!(names, ["a", "b"]);
    up.run(&["topic", "alter", "a", "--retention", "forever", "--seal-age", "1m"]).ok();
    let described = up.run(&["--output", "json", "topic", "describe", "a"]).json();
    assert_eq!((&described["retention"], &described["seal_age"]), (&"forever".into(), &"1m".into()));
    assert_eq!(described["offsets"].as_array().unwrap().len(), 3);
    up.run(&["topic", "delete", "a"]).ok();
    up.run(&["topic", "describe", "a"]).fails(1, &["a", "does not exist"]);
    // The name is free again, and nothing of the old topic shows.
    up.run(&["topic", "create", "a", "--partitions", "1"]).ok();
    assert!(up.records("a").is_empty());
}
