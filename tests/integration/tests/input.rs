//! Wrong input on each surface: a clear error, nothing lost, nothing else disturbed.

#![allow(clippy::unwrap_used)]

use refstream_integration_tests::{Files, Said, Up, binary};
use std::{
    os::unix::{ffi::OsStrExt as _, fs::PermissionsExt as _},
    process::Command,
};

#[test]
fn names_and_settings_are_refused_with_a_reason() {
    let up = Up::start();
    up.run(&["topic", "create", "../x"]).fails(2, &["../x", "'/'"]);
    up.run(&["topic", "create", &"x".repeat(300)]).fails(2, &["300 bytes", "249"]);
    up.run(&["topic", "create", ""]).fails(2, &["empty"]);
    up.run(&["topic", "create", "t", "--partitions", "0"]).fails(2, &["partitions"]);
    up.run(&["topic", "create", "t", "--partitions", "5000"]).fails(2, &["4096"]);
    up.run(&["topic", "create", "t", "--retention", "soon"]).fails(2, &["soon"]);
    up.run(&["topic", "create", "t", "--seal-age", "1ms"]).fails(2, &["seal_age = 1ms"]);
    up.run(&["topic", "create", "t", "--retention", "600000years"]).fails(2, &["584542years"]);
    up.run(&["topic", "create", "t"]).ok();
    up.run(&["topic", "alter", "t", "--publish-lag", "8days"]).fails(2, &["publish_lag", "7 days"]);
    up.run(&["topic", "create", "t"]).fails(1, &["t", "exists"]);
    up.run(&["topic", "alter", "t"]).fails(2, &["nothing to alter"]);
    up.run(&["tail", "nowhere", "--no-follow"]).fails(1, &["nowhere", "does not exist"]);
    up.run(&["tail", "t", "--from", "yesterday"]).fails(2, &["yesterday"]);
    up.run(&["get", "t", "99", "0"]).fails(1, &["99"]);
    up.run(&["get", "t", "0", "0"]).fails(1, &["0"]);
    up.run(&["get", "t", "0", "0", "--range", "9-1"]).fails(2, &["range"]);
    up.run(&["get", "t", "0", "0", "--range", "0-18446744073709551616"]).fails(2, &["more than 18446744073709551615"]);
    up.run(&["put", "t", "/etc/hostname", "--event-time", "0000-01-01T00:00:00Z"]).fails(2, &["0001 to 9999"]);
    up.run(&["put", "t", "/etc/hostname", "--key", &"k".repeat(32_769)]).fails(1, &["32769 bytes", "32768 bytes"]);
    up.run(&["put", "t", "/does/not/exist"]).fails(2, &["/does/not/exist"]);
    up.run(&["put", "t", "/tmp", "--key", "k"]).fails(2, &["folder"]);
    up.run(&["put", "t", "/etc/hostname", "--attribute", "novalue"]).fails(2, &["novalue", "NAME=VALUE"]);
    up.run(&["backfill", "t", "/does/not/exist"]).fails(2, &["/does/not/exist"]);
    up.run(&["backfill", "nowhere", "/etc/hostname"]).fails(1, &["nowhere"]);
    up.run(&["backfill", "t", "/etc", "--include", "a{"]).fails(2, &["a{"]);
    up.run(&["backfill", "t", "/etc", "--exclude", "["]).fails(2, &["["]);
    up.run(&["--endpoint", "http://", "topic", "list"]).fails(2, &["host"]);
    up.run(&["--endpoint", "ftp://127.0.0.1:1", "topic", "list"]).fails(2, &["URL"]);
    up.run(&["--endpoint", "http://10.1.2.3:1", "--token", "rst-x", "topic", "list"])
        .fails(2, &["in the clear", "https://"]);
    up.run(&["--timeout", "800000years", "topic", "list"]).fails(2, &["timeout", "7days"]);
    for (flag, value, most) in [("--concurrency", "1025", "1024"), ("--pack-below", "1048577", "1048576")] {
        up.run(&["backfill", "t", "/etc/hostname", flag, value]).fails(2, &[flag, most]);
    }
    for (setting, value, most) in [
        ("LINGER", "11s", "10s"),
        ("LINGER_WHEN_IDLE", "1h", "10s"),
        ("DEATH_AFTER", "2h", "1h"),
        ("FENCE_CHECK", "61s", "1m"),
        ("PRODUCER_EXPIRY", "4000days", "3650days"),
        ("PENDING_BYTES", "99999999999999", "17179869184"),
        ("READ_CACHE_BYTES", "9999999999999999", "274877906944"),
    ] {
        let mut command = up.command(&["config", "show"]);
        let said = Said::by({
            command.env(format!("REFSTREAM_BROKER__{setting}"), value);
            command
        });
        said.fails(2, &[&format!("broker.{}", setting.to_lowercase()), most]);
    }
    up.run(&["up", "--store", "s3://b?endpoint=http://127.0.0.1:9"]).fails(2, &["3 characters"]);
    for command in [["config", "show"], ["topic", "list"]] {
        let said = up.command(&command).env("REFSTREAM_ENDPOINT", "http://me:s3cret@127.0.0.1:9").output().unwrap();
        let (out, err) = (String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
        assert_eq!(said.status.code(), Some(2), "{err}");
        assert!(err.contains("user name") && !err.contains("s3cret") && !out.contains("s3cret"), "{out}{err}");
    }
    up.run(&["nonsense"]).fails(2, &[]);
    assert_eq!(up.committed("t"), Some(0), "nothing was appended by all that");
}

#[test]
fn the_topic_limits_what_travels_inline() {
    let up = Up::start();
    up.run(&["topic", "create", "t", "--partitions", "1"]).ok();
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::create_dir(at("files")).unwrap();
    std::fs::write(at("files/small"), "x".repeat(100)).unwrap();
    std::fs::write(at("files/large"), "x".repeat(101)).unwrap();
    let put = |name: &str, max: &str| up.run(&["put", "t", &at(name), "--inline-max", max]);
    let backfill = |max: &str| up.run(&["backfill", "t", &at("files"), "--inline-max", max]);
    // A topic that says nothing permits nothing.
    put("files/small", "100").fails(2, &["topic alter t --inline-max 100", "0 bytes"]);
    backfill("100").fails(2, &["topic alter t --inline-max 100"]);
    up.run(&["topic", "alter", "t", "--inline-max", "100"]).ok();
    put("files/small", "101").fails(2, &["100 bytes"]);
    backfill("101").fails(2, &["100 bytes"]);
    // More than a record can hold is wrong whatever the topic.
    put("files/small", "1048577").fails(2, &["1048576"]);
    backfill("4294967295").fails(2, &["1048576"]);
    assert_eq!(up.committed("t"), Some(0));
    let said = up.run(&["--output", "json", "put", "t", &at("files/small"), "--inline-max", "100"]).json();
    assert_eq!((&said["payload"], &said["size"]), (&serde_json::Value::Null, &100.into()));
    put("files/large", "100").ok();
    // Not asked for: not done.
    up.run(&["put", "t", &at("files/small")]).ok();
    backfill("100").ok();
    let inline: Vec<_> = up.records("t").iter().map(|r| (!r["value"].is_null(), r["size"].as_u64().unwrap())).collect();
    assert_eq!(inline[..3], [(true, 100), (false, 101), (false, 100)]);
    assert_eq!(inline[3..].iter().filter(|(inline, size)| *inline == (*size == 100)).count(), 2, "{inline:?}");
    assert_eq!(up.run(&["get", "t", "0", "0"]).ok(), "x".repeat(100).into_bytes());
    assert_eq!(up.run(&["get", "t", "0", "1"]).ok(), "x".repeat(101).into_bytes());
    up.run(&["get", "t", "0", "5"]).fails(1, &["0..5"]);
    assert_eq!(up.run(&["get", "t", "0", "1", "--range", "100-18446744073709551615"]).ok(), b"x");
    assert_eq!(up.run(&["get", "t", "0", "0", "--range", "0-18446744073709551615"]).ok().len(), 100);
    let said = String::from_utf8(up.run(&["segments", "t"]).ok()).unwrap();
    assert!(said.contains("OFFSETS") && said.contains("0:0-4"), "{said}");
    let said = up.run(&["--output", "jsonl", "verify", "t"]).lines();
    assert_eq!((said.len(), &said[0]["event"], &said[0]["records"]), (1, &"summary".into(), &5.into()));
    assert!(Command::new("mkfifo").arg(at("fifo")).status().unwrap().success());
    let said = up.run(&["backfill", "t", &at("fifo")]);
    assert_eq!((said.code, said.stderr.contains("skipped")), (Some(0), true), "{}", said.stderr);
}

#[test]
fn nobody_there_is_exit_code_4() {
    let said = Command::new(binary())
        .args(["--endpoint", "http://127.0.0.1:9", "--timeout", "1s", "topic", "list"])
        .output()
        .unwrap();
    assert_eq!(said.status.code(), Some(4));
    assert!(String::from_utf8_lossy(&said.stderr).contains("http://127.0.0.1:9"));
    let said = Command::new(binary()).args(["--endpoint", "127.0.0.1:7400", "topic", "list"]).output().unwrap();
    assert_eq!(said.status.code(), Some(2), "an endpoint that is no URL");
}

#[test]
fn a_port_or_folder_in_use_is_said() {
    let up = Up::start();
    let folder = tempfile::tempdir().unwrap();
    let start_with = |data: &std::path::Path, listen: &str, s3: &str| {
        let said = Command::new(binary())
            .args(["up", "--data"])
            .arg(data)
            .args(["--listen", listen, "--http", "127.0.0.1:0", "--s3", s3])
            .output()
            .unwrap();
        assert_eq!(said.status.code(), Some(1));
        String::from_utf8_lossy(&said.stderr).into_owned()
    };
    let start = |data: &std::path::Path, listen: &str| start_with(data, listen, "127.0.0.1:0");
    let said = start(folder.path(), &up.addresses[0]);
    assert!(said.contains(&up.addresses[0]) && said.contains("--listen"), "{said}");
    let said = start(&up.data(), "127.0.0.1:0");
    assert!(said.contains("in use") && said.contains("--data"), "{said}");
    let said = start(folder.path(), "0.0.0.0:0");
    assert!(said.contains("TLS"), "{said}");
    let said = start_with(&folder.path().join("new"), "127.0.0.1:0", "0.0.0.0:0");
    assert!(said.contains("TLS") && said.contains("--s3"), "{said}");
    assert!(!folder.path().join("new").exists(), "nothing was made");
}

#[test]
fn odd_files_are_backfilled_or_named() {
    let up = Up::start();
    up.run(&["topic", "create", "t"]).ok();
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("empty"), b"").unwrap();
    std::fs::write(at("plain"), b"x").unwrap();
    std::fs::write(at("with space and ü"), b"y").unwrap();
    std::fs::write(folder.path().join(std::ffi::OsStr::from_bytes(b"not-utf8-\xff")), b"z").unwrap();
    std::os::unix::fs::symlink(folder.path(), at("loop")).unwrap();
    std::os::unix::fs::symlink(at("plain"), at("link")).unwrap();
    std::fs::create_dir(at("closed")).unwrap();
    std::fs::write(at("closed/secret"), b"s").unwrap();
    assert!(Command::new("mkfifo").arg(at("fifo")).status().unwrap().success());
    std::fs::set_permissions(at("closed/secret"), std::fs::Permissions::from_mode(0o000)).unwrap();
    let said = up.run(&["--output", "json", "backfill", "t", folder.path().to_str().unwrap()]);
    let summary: serde_json::Value = serde_json::from_slice(&said.stdout).unwrap();
    let mut keys: Vec<_> = up.records("t").iter().map(|r| r["key"].as_str().unwrap().to_owned()).collect();
    keys.sort();
    // Root reads everything; for others the unreadable file is a named failure.
    if std::fs::read(at("closed/secret")).is_ok() {
        assert_eq!(keys, ["closed/secret", "empty", "not-utf8-%FF", "plain", "with space and ü"]);
        assert_eq!((said.code, &summary["files_failed"]), (Some(0), &0.into()));
    } else {
        assert_eq!(keys, ["empty", "not-utf8-%FF", "plain", "with space and ü"]);
        assert_eq!((said.code, &summary["files_failed"]), (Some(1), &1.into()));
        assert!(said.stderr.contains("closed/secret"), "{}", said.stderr);
    }
    let empty = up.records("t").into_iter().find(|r| r["key"] == "empty").unwrap();
    assert_eq!(empty["size"], 0);
    let (partition, offset) = (empty["partition"].to_string(), empty["offset"].to_string());
    assert!(up.run(&["get", "t", &partition, &offset]).ok().is_empty());
    up.run(&["verify", "t", "--deep"]).ok();
}

#[test]
fn what_is_not_what_it_looks_like_is_taken_whole_or_refused() {
    let up = Up::start();
    up.run(&["topic", "create", "t", "--partitions", "1"]).ok();
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    // The system says that it is empty.
    let said = up.run(&["--output", "json", "put", "t", "/proc/version"]).json();
    let content = std::fs::read("/proc/version").unwrap();
    assert_eq!(said["size"].as_u64(), Some(content.len() as u64));
    assert_eq!(up.run(&["get", "t", "0", "0"]).ok(), content);
    up.run(&["backfill", "t", "/proc/version"]).fails(1, &["refstream put"]);
    // Failures that could not be written down are no reason to stop halfway.
    let nowhere = at("absent/failures");
    up.run(&["backfill", "t", "/etc/hostname", "--failures", &nowhere]).fails(2, &[&nowhere, "--failures"]);
    // A list without line ends.
    std::fs::write(at("long"), ["/etc/hostname\0".repeat(10_000), "\n/etc/hostname\n".to_owned()].concat()).unwrap();
    let said = up.run(&["--output", "json", "backfill", "t", "--from-file", &at("long")]);
    assert!(
        said.code == Some(1) && said.stderr.contains("path 1") && said.stderr.contains("--null"),
        "{}",
        said.stderr
    );
    let summary: serde_json::Value = serde_json::from_slice(&said.stdout).unwrap();
    assert_eq!((&summary["files_done"], &summary["files_failed"]), (&1.into(), &1.into()), "{summary}");
    // Members of a compressed archive are no ranges of it.
    let tar = |arguments: &[&str]| assert!(Command::new("tar").args(arguments).status().unwrap().success());
    tar(&["-czf", &at("a.tar.gz"), "-C", "/etc", "hostname"]);
    up.run(&["backfill", "t", &at("a.tar.gz"), "--tar"]).fails(1, &["gzip", "decompress"]);
    // A member of one byte more than a range may have: a hole in a file.
    let size = (4_u64 << 30) + 1;
    let mut header = [0; 512];
    header[..4].copy_from_slice(b"huge");
    header[124..136].copy_from_slice(format!("{size:011o}\0").as_bytes());
    header[156] = b'0';
    header[148..156].fill(b' ');
    let sum: u64 = header.iter().map(|byte| u64::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    std::fs::write(at("huge.tar"), header).unwrap();
    std::fs::File::options().write(true).open(at("huge.tar")).unwrap().set_len(512 + size + 511 + 1_024).unwrap();
    let said = up.run(&["backfill", "t", &at("huge.tar"), "--tar", "--dry-run"]);
    said.fails(1, &["4294967297 bytes", "4 GiB", "tar -xf", "huge"]);
    assert_eq!(up.committed("t"), Some(2), "nothing but the file of /proc and the listed one");
}

#[test]
fn a_dry_run_says_all_and_does_nothing() {
    let up = Up::start();
    up.run(&["topic", "create", "t"]).ok();
    let files = Files::generate(30, 100, 7);
    let path = files.path().to_str().unwrap();
    let said = up.run(&["--output", "jsonl", "backfill", "t", path, "--dry-run", "--exclude", "00/**"]).lines();
    let listed: Vec<_> = said.iter().filter_map(|line| line["file"].as_str()).collect();
    assert_eq!(listed.len(), files.expected.keys().filter(|name| !name.starts_with("00/")).count());
    assert_eq!(up.committed("t"), Some(0));
}
