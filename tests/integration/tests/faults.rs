//! A store behind a proxy that misbehaves, under a whole deployment, client and broker: a backfill finishes, or stops and says why, and goes on
//! when it is run again. Nothing is lost, nothing is there twice.

#![allow(clippy::unwrap_used)]

use refstream_integration_tests::{
    Files, Said, Up, long,
    outage::{Fault, Proxy},
};

/// Runs of a job under faults; after these the store behaves, and there is no excuse left.
const RUNS: usize = 4;
/// Writes that must have been refused before a full store has room again: brokers and clients have all met it by then.
const REFUSED: u64 = 60;

/// A deployment whose store is the embedded one of another deployment, behind a proxy.
struct Bed {
    up: Up,
    proxy: Proxy,
    // Until the end.
    _store: Up,
}

impl Bed {
    fn start() -> Self {
        let store = Up::start();
        let proxy = Proxy::before(&store.addresses[2]);
        let up = Up::start_on(&format!("s3://refstream/second?endpoint={}", proxy.url()), store.credentials());
        up.run(&["topic", "create", "t", "--seal-bytes", "20000"]).ok();
        Self { up, proxy, _store: store }
    }

    fn backfill(&self, files: &Files) -> Said {
        let path = files.path().to_str().unwrap();
        let job = ["--timeout", "120s", "--output", "json", "backfill", "t", path, "--job", "faults"];
        // A third goes into packs, others are objects of their own, one is in parts.
        self.up.run(&[&job[..], &["--pack-below", "2000", "--concurrency", "4"]].concat())
    }

    /// Everything is there, once, and as it was given; in the journal, and in files.
    fn check(&self, files: &Files) {
        files.check(&self.up.records("t"));
        self.up.run(&["verify", "t", "--deep"]).ok();
        self.up.run(&["seal", "t"]).ok();
        self.up.run(&["compact", "t"]).ok();
        files.check(&self.up.records("t"));
        self.up.run(&["verify", "t", "--deep"]).ok();
    }
}

/// What a run that stopped must have said: that it failed, why, and no more than that.
fn is_clear(said: &Said) {
    assert!(matches!(said.code, Some(1 | 4)), "{:?}: {}", said.code, said.stderr);
    assert!(!said.stderr.contains("panicked"), "{}", said.stderr);
    let why = ["store", "broker", "the node"];
    assert!(why.iter().any(|why| said.stderr.contains(why)), "{}", said.stderr);
}

fn survives(faults: &[Fault], one_in: u32) {
    let seed: u64 = rand::random();
    eprintln!("{faults:?}, seed {seed}");
    let mut files = Files::generate(if long() { 1_500 } else { 200 }, 6_000, seed);
    files.add("large/one.bin", 20 << 20, seed);
    let bed = Bed::start();
    bed.proxy.misbehave(seed, one_in, faults);
    let mut said = bed.backfill(&files);
    for _ in 1..RUNS {
        if said.code == Some(0) {
            break;
        }
        is_clear(&said);
        said = bed.backfill(&files);
    }
    bed.proxy.behave();
    if said.code != Some(0) {
        is_clear(&said);
        said = bed.backfill(&files);
    }
    let summary = said.json();
    let total = files.expected.len() as u64;
    assert_eq!(summary["files_failed"], 0, "{summary}");
    assert_eq!(summary["files_done"].as_u64().unwrap() + summary["files_already"].as_u64().unwrap(), total);
    let happened = bed.proxy.happened();
    eprintln!("{happened:?}");
    // Of many kinds, chance may leave one out.
    assert!(happened.len() >= faults.len().min(5), "not enough has happened: {happened:?}");
    bed.check(&files);
}

#[test]
fn connections_break_at_any_byte() {
    survives(&[Fault::RequestReset, Fault::AnswerReset], 8);
}

#[test]
fn what_was_done_is_answered_with_500() {
    survives(&[Fault::AppliedBut500], 8);
}

#[test]
fn conflicts_and_failed_conditions_that_never_were() {
    survives(&[Fault::Conflict, Fault::PreconditionFailed], 10);
}

#[test]
fn bytes_trickle() {
    survives(&[Fault::Trickle], 3);
}

#[test]
fn all_faults_at_once() {
    survives(&Fault::ALL, 7);
}

#[test]
fn a_full_store_says_so_and_nothing_is_lost() {
    let bed = Bed::start();
    let files = Files::generate(300, 4_000, 31);
    let mut backfill = bed.up.spawn_backfill("t", &files, 2);
    while bed.up.committed("t").is_none_or(|committed| committed < 50) && !backfill.ended() {}
    bed.proxy.fill_up();
    while bed.proxy.refused() < REFUSED {
        std::thread::yield_now();
    }
    bed.proxy.come_back();
    let said = backfill.wait();
    // It waits for acks with patience, and not long for room: which of the two it did when the store had room again is chance.
    if said.code != Some(0) {
        assert!(said.code == Some(1) && said.stderr.contains("no space left"), "{}", said.stderr);
    }
    let name = said.stderr.split_whitespace().nth(1).unwrap().trim_end_matches(':').to_owned();
    let summary = bed.up.run(&["--timeout", "120s", "--output", "json", "job", "resume", &name]).json();
    assert_eq!(summary["files_failed"], 0, "{summary}");
    bed.check(&files);
}

/// A listing tells all that is to be known, a thousand objects a request.
#[test]
fn attaching_asks_for_a_listing_and_not_for_objects() {
    let bed = Bed::start();
    const OBJECTS: usize = 3_000;
    let folder = bed._store.data().join("refstream/photos");
    for number in 0..OBJECTS {
        let path = folder.join(format!("{:02}/{number:05}.png", number % 7));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, number.to_string()).unwrap();
    }
    let before = bed.proxy.requests();
    let command = ["--output", "json", "backfill", "t", "s3://refstream/photos/", "--in-place"];
    let summary = bed.up.run(&command).json();
    assert_eq!((summary["files_done"].as_u64(), summary["files_failed"].as_u64()), (Some(OBJECTS as u64), Some(0)));
    // Most are the broker's own, by the clock.
    let asked = bed.proxy.requests() - before;
    assert!(asked < OBJECTS as u64 / 4, "{asked} requests for {OBJECTS} objects");
    let attached = bed.up.records("t");
    assert!(attached.iter().all(|record| record["payload_etag"].is_string()), "{:?}", attached.first());

    // One that is overwritten is found out, by a look as well as by reading it.
    std::fs::write(folder.join("03/00010.png"), "another").unwrap();
    let victim = attached.iter().find(|record| record["source_name"] == "03/00010.png").unwrap();
    let said = bed.up.run(&["--output", "jsonl", "verify", "t"]).fails(5, &[]);
    let findings: Vec<_> = refstream_integration_tests::lines(&said.stdout);
    assert_eq!((&findings[0]["kind"], &findings[0]["offset"]), (&"overwritten".into(), &victim["offset"]));
    assert_eq!(findings.len(), 2, "and the summary: {findings:?}");
    let place = [victim["partition"].to_string(), victim["offset"].to_string()];
    bed.up.run(&["get", "t", &place[0], &place[1]]).fails(5, &["overwritten", "03/00010.png"]);
}

/// Times that the node is left without a file descriptor.
const SHORTAGES: usize = 150;

#[test]
fn a_node_that_runs_out_of_file_descriptors_goes_on_once_it_has_some() {
    let up = Up::start();
    let files = Files::generate(800, 4_000, 21);
    up.run(&["topic", "create", "t"]).ok();
    let mut backfill = up.spawn_backfill("t", &files, 4);
    while up.committed("t").is_none_or(|committed| committed < 20) && !backfill.ended() {}
    let mut shortages = 0;
    while shortages < SHORTAGES && !backfill.ended() {
        up.limit_files(up.open_files());
        up.limit_files(4_096);
        shortages += 1;
    }
    assert!(shortages > SHORTAGES / 10, "the backfill must still run: {shortages}");
    let summary = backfill.wait().json();
    assert_eq!((&summary["files_done"], &summary["files_failed"]), (&800.into(), &0.into()), "{summary}");
    files.check(&up.records("t"));
    up.run(&["seal", "t"]).ok();
    up.run(&["compact", "t"]).ok();
    up.run(&["verify", "t", "--deep"]).ok();
}
