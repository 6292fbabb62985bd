//! A store that answers 503 for a while, under a whole deployment.

#![allow(clippy::unwrap_used)]

use refstream_integration_tests::{Files, Up, outage::Proxy};

/// Requests that must have been refused before the store comes back: brokers and clients have all met the outage by then.
const REFUSED: u64 = 150;

#[test]
fn an_outage_of_the_store_delays_and_loses_nothing() {
    let store = Up::start();
    let proxy = Proxy::before(&store.addresses[2]);
    let environment = store.credentials();
    // Down when the broker starts, too.
    proxy.go_out();
    let up = std::thread::scope(|scope| {
        let starting =
            scope.spawn(|| Up::start_on(&format!("s3://refstream/second?endpoint={}", proxy.url()), environment));
        while proxy.refused() < 3 {
            std::thread::yield_now();
        }
        proxy.come_back();
        starting.join().unwrap()
    });
    let files = Files::generate(300, 4_000, 11);
    up.run(&["topic", "create", "t"]).ok();
    let mut backfill = up.spawn_backfill("t", &files, 2);
    while up.committed("t").is_none_or(|committed| committed < 50) && !backfill.ended() {}
    let before = proxy.refused();
    proxy.go_out();
    // What is committed nowhere is told to nobody, and the broker says why.
    while proxy.refused() < before + REFUSED {
        assert!(!backfill.ended(), "it must wait for the store");
    }
    proxy.come_back();
    let summary = backfill.wait().json();
    assert_eq!((&summary["files_done"], &summary["files_failed"]), (&300.into(), &0.into()), "{summary}");
    files.check(&up.records("t"));
    up.run(&["seal", "t"]).ok();
    up.run(&["compact", "t"]).ok();
    files.check(&up.records("t"));
    up.run(&["verify", "t", "--deep"]).ok();
}

#[test]
fn a_verification_that_cannot_be_finished_says_so_and_accuses_no_record() {
    let store = Up::start();
    let proxy = Proxy::before(&store.addresses[2]);
    let environment = store.credentials();
    let uri = format!("s3://refstream/second?endpoint={}", proxy.url());
    let mut up = Up::start_on(&uri, environment);
    let files = Files::generate(400, 3_000, 12);
    up.run(&["topic", "create", "t"]).ok();
    up.run(&["backfill", "t", files.path().to_str().unwrap(), "--pack-below", "0"]).ok();

    // Keys that the store does not know.
    let mut command = up.command(&["--timeout", "2s", "--output", "jsonl", "verify", "t", "--deep"]);
    command.env("REFSTREAM_ACCESS_KEY", "bad").env("REFSTREAM_SECRET_KEY", "bad");
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(no_findings(&output.stdout), "{}", String::from_utf8_lossy(&output.stdout));

    // The store is gone, before and while it is asked.
    for deep in [&["verify", "t"][..], &["verify", "t", "--deep"]] {
        let arguments = [&["--timeout", "1s", "--output", "jsonl"], deep].concat();
        proxy.go_out();
        let said = up.run(&arguments).fails(4, &[]);
        assert!(no_findings(&said.stdout), "{}", String::from_utf8_lossy(&said.stdout));
        proxy.come_back();
        let verification = up.spawn(&arguments);
        proxy.go_out();
        let said = verification.wait();
        assert!(said.code == Some(4), "{}", said.stderr);
        assert!(no_findings(&said.stdout), "{}", String::from_utf8_lossy(&said.stdout));
        proxy.come_back();
    }
    up.run(&["verify", "t", "--deep"]).ok();

    // The broker is gone.
    up.kill();
    let said = up.run(&["--timeout", "1s", "verify", "t", "--deep"]);
    assert_eq!(said.code, Some(4), "{}", said.stderr);
}

fn no_findings(jsonl: &[u8]) -> bool {
    refstream_integration_tests::lines(jsonl).iter().all(|line| line["event"] == "summary")
}
