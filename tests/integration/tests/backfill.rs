//! Backfills as jobs: ended by `kill -9` at random moments and run again.

#![allow(clippy::unwrap_used)]

use rand::{Rng as _, SeedableRng as _};
use refstream_integration_tests::{Files, Up, long};
use std::path::{Path, PathBuf};

/// Files below a folder whose path has `part` in it, without the sums beside large objects.
fn objects(folder: &Path, part: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(objects(&path, part));
        } else if path.to_str().unwrap().contains(part) && path.extension().is_none() {
            found.push(path);
        }
    }
    found
}

fn kill_the_client(up: &Up, topic: &str, files: &Files, options: &[&str], kills: u64) {
    let seed: u64 = rand::random();
    eprintln!("seed {seed}");
    let mut random = rand::rngs::StdRng::seed_from_u64(seed);
    let total = files.expected.len() as u64;
    let path = files.path().to_str().unwrap();
    let mut arguments = vec!["--output", "json", "backfill", topic, path, "--job", topic];
    arguments.extend(options);
    for kill in 0..kills {
        let mut backfill = up.spawn(&arguments);
        // Sometimes before anything is committed, sometimes when a part is.
        let until = if random.random_bool(0.2) { 0 } else { (kill * total + random.random_range(0..total)) / kills };
        while up.committed(topic).is_none_or(|committed| committed < until) && !backfill.ended() {}
        if !backfill.ended() {
            backfill.signal("KILL");
        }
        backfill.wait();
    }
    let summary = up.run(&arguments).json();
    assert_eq!(summary["files_failed"], 0, "{summary}");
    assert_eq!(summary["files_done"].as_u64().unwrap() + summary["files_already"].as_u64().unwrap(), total);
    files.check(&up.records(topic));
    up.run(&["verify", topic, "--deep"]).ok();
    let again = up.run(&["--output", "json", "job", "resume", topic]).json();
    assert_eq!((again["files_done"].as_u64(), again["files_already"].as_u64()), (Some(0), Some(total)), "{again}");
    files.check(&up.records(topic));
}

#[test]
fn a_backfill_whose_client_is_killed_goes_on_where_it_was() {
    let kills = if long() { 25 } else { 6 };
    let mut files = Files::generate(kills as usize * 60, 6_000, 11);
    files.add("large/one.bin", 50 << 20, 12);
    files.add("medium/one.bin", 3 << 20, 13);
    let up = Up::start();
    // Each file an object of its own: as many objects as files means that nothing was uploaded twice.
    up.run(&["topic", "create", "objects"]).ok();
    kill_the_client(&up, "objects", &files, &["--pack-below", "0", "--concurrency", "2"], kills);
    assert_eq!(objects(&up.data(), "payloads/objects-").len(), files.expected.len());
    // Packs, closed early.
    up.run(&["topic", "create", "packs"]).ok();
    kill_the_client(&up, "packs", &files, &[], kills);
}

#[test]
fn jobs_are_listed_described_and_cancelled() {
    let up = Up::start();
    up.run(&["topic", "create", "t"]).ok();
    let files = Files::generate(20, 500, 14);
    let path = files.path().to_str().unwrap();
    assert!(up.run(&["--output", "json", "job", "list"]).json().as_array().unwrap().is_empty());
    let said = up.run(&["--output", "json", "backfill", "t", path, "--key", "{1}/{stem}"]);
    let name = said.stderr.split_whitespace().nth(1).unwrap().trim_end_matches(':').to_owned();
    assert!(name.starts_with("t-"), "{name}");
    assert_eq!(said.json()["job"], *name);
    let records = up.records("t");
    for record in &records {
        let source = record["source_name"].as_str().unwrap();
        let expected = format!("{}/{}", &source[..2], source.rsplit('/').next().unwrap().trim_end_matches(".bin"));
        assert_eq!(record["key"], *expected);
        let attributes = record["attributes"].to_string();
        assert!(attributes.contains("refstream.job") && attributes.contains(&name), "{attributes}");
    }
    assert_eq!(up.run(&["--output", "json", "job", "list"]).json()[0]["state"], "complete");
    let status = up.run(&["--output", "json", "job", "status", &name]).json();
    assert_eq!((status["files_done"].as_u64(), status["phase"].as_str()), (Some(20), Some("complete")));
    // The same command again is the same job; a new file is all that is left to do.
    std::fs::write(files.path().join("new"), "new").unwrap();
    let listed = up.run(&["--output", "jsonl", "backfill", "t", path, "--dry-run"]).lines();
    assert_eq!((listed[0]["file"].as_str(), listed[0]["placement"].as_str()), (Some("new"), Some("pack")));
    assert_eq!(listed.len(), 2);
    up.run(&["backfill", "t", path]).fails(1, &["keys of {1}/{stem}", "--job"]);
    let again = up.run(&["--output", "json", "backfill", "t", path, "--key", "{1}/{stem}"]).json();
    assert_eq!((again["files_done"].as_u64(), again["files_already"].as_u64()), (Some(1), Some(20)));
    up.run(&["job", "cancel", &name]).ok();
    up.run(&["backfill", "t", path]).fails(1, &["cancelled", "--job"]);
    up.run(&["job", "status", "absent"]).fails(1, &["absent", &name]);
    up.run(&["backfill", "t", path, "--job", "a/b"]).fails(1, &["a/b"]);
    up.run(&["backfill", "t", path, "--job", "other", "--key", "{nope}"]).fails(2, &["{nope}", "{stem}"]);
}

#[test]
fn files_come_from_lists_archives_and_objects_that_are_there() {
    let up = Up::start();
    up.run(&["topic", "create", "t"]).ok();
    let files = Files::generate(12, 5_000, 15);
    let folder = files.path();
    let some: Vec<_> = files.expected.keys().take(3).cloned().collect();

    // A list on standard input, relative to where the command runs.
    let mut child = up
        .command(&["--output", "json", "backfill", "t", "-", "--null", "--concurrency", "auto", "--checksum", "verify"])
        .current_dir(folder)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), some.join("\0").as_bytes()).unwrap();
    let said = child.wait_with_output().unwrap();
    assert!(said.status.success());
    let names = |topic: &str| {
        let records = up.records(topic);
        let mut names: Vec<_> = records.iter().map(|r| r["source_name"].as_str().unwrap().to_owned()).collect();
        names.sort();
        names
    };
    assert_eq!(names("t"), some);

    // An archive whose members become ranges.
    let archive = folder.join("all.tar");
    let tar = std::process::Command::new("tar")
        .arg("-cf")
        .arg(&archive)
        .arg("-C")
        .arg(folder)
        .args(files.expected.keys())
        .status()
        .unwrap();
    assert!(tar.success());
    up.run(&["topic", "create", "members"]).ok();
    up.run(&["backfill", "members", archive.to_str().unwrap(), "--tar"]).ok();
    files.check(&up.records("members"));
    up.run(&["verify", "members", "--deep"]).ok();
    std::fs::remove_file(&archive).unwrap();

    // What is in the store already, attached; listed in a manifest it is the same objects.
    up.run(&["topic", "create", "objects"]).ok();
    up.run(&["backfill", "objects", folder.to_str().unwrap(), "--pack-below", "0", "--no-compression"]).ok();
    up.run(&["topic", "create", "attached"]).ok();
    let mut list = String::from("uri,size,key\n");
    for record in up.records("objects") {
        let (uri, size) = (record["payload"]["uri"].as_str().unwrap(), record["payload"]["size"].as_u64().unwrap());
        list += &format!("{uri},{size},\"{}\"\n", record["key"].as_str().unwrap());
    }
    let manifest = up.data().join("list.csv");
    std::fs::write(&manifest, list).unwrap();
    let stored = objects(&up.data(), "payloads/").len();
    let said = up.run(&["--output", "json", "backfill", "attached", "--manifest", manifest.to_str().unwrap()]).json();
    assert_eq!((said["files_done"].as_u64(), said["objects"].as_u64()), (Some(12), Some(0)), "{said}");
    assert_eq!(objects(&up.data(), "payloads/").len(), stored, "nothing was uploaded");
    let attached = up.records("attached");
    let keys: std::collections::BTreeSet<_> = attached.iter().map(|record| record["key"].as_str().unwrap()).collect();
    assert_eq!(keys, files.expected.keys().map(String::as_str).collect());
    up.run(&["verify", "attached", "--deep"]).ok();
    // A prefix passes over what belongs to the deployment itself.
    let said = up.run(&["--output", "json", "backfill", "attached", "s3://refstream/", "--in-place"]).json();
    assert_eq!(said["files_done"], 0, "{said}");
    assert!(said["files_skipped"].as_u64() > Some(12), "{said}");
    up.run(&["backfill", "t", "s3://elsewhere/x", "--in-place"]).fails(1, &["s3://elsewhere/x", "s3://refstream/"]);
    up.run(&["backfill", "t", "/etc", "--bandwidth", "fast"]).fails(2, &["--bandwidth", "20M"]);
}
