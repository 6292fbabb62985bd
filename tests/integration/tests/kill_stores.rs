//! `kill -9` of any process during a backfill to a real SeaweedFS (the client, the broker, each of the store's own), then resume: the records
//! are the files, each once, each payload as it was given.

#![allow(clippy::unwrap_used)]

use rand::{
    Rng as _, SeedableRng as _,
    rngs::StdRng,
    seq::{IndexedRandom as _, SliceRandom as _},
};
use refstream_integration_tests::{
    Files, Running, Up, long,
    seaweed::{
        ACCESS_KEY, BUCKET, SECRET_KEY,
        cluster::{Cluster, Part, Plan},
    },
};

/// What a kill is aimed at.
#[derive(Clone, Copy, Debug)]
enum Victim {
    Client,
    Broker,
    Store(Part),
}

/// Runs of the job after the last kill. One whose files met an outage for too long says so, and the next one has no excuse.
const RESUMES: usize = 2;

fn kill_at_random(cluster: &mut Cluster, up: &mut Up, victims: &[Victim]) {
    let kills = if long() { 25 } else { 5 };
    let seed: u64 = rand::random();
    eprintln!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let mut files = Files::generate(kills * 80, 6_000, seed);
    files.add("large/one.bin", 40 << 20, seed);
    files.add("medium/one.bin", 3 << 20, seed);
    let total = files.expected.len() as u64;
    up.run(&["topic", "create", "t", "--seal-bytes", "20000"]).ok();
    let path = files.path().to_str().unwrap();
    let job = ["--timeout", "120s", "--output", "json", "backfill", "t", path, "--job", "kills"];
    let one_by_one = ["--pack-below", "0", "--concurrency", "2"];
    let arguments = [&job[..], &one_by_one].concat();
    let start = |up: &Up| -> Running { up.spawn(&arguments) };
    let mut backfill = start(up);
    // Each of them once before any of them twice, in an order of chance.
    let mut left = Vec::new();
    for kill in 0..kills as u64 {
        if left.is_empty() {
            left = victims.to_vec();
            left.shuffle(&mut random);
        }
        let victim = left.pop().unwrap();
        let until = (kill * total + random.random_range(0..total)) / kills as u64;
        while up.committed("t").is_none_or(|committed| committed < until) {
            if backfill.ended() {
                // It had to give files up while the store was away; whoever runs it would run it again.
                let before = std::mem::replace(&mut backfill, start(up)).wait();
                if before.code == Some(0) {
                    break;
                }
            }
        }
        eprintln!("{victim:?} at {until} of {total}");
        match victim {
            Victim::Client => {
                if !backfill.ended() {
                    backfill.signal("KILL");
                }
                std::mem::replace(&mut backfill, start(up)).wait();
            }
            Victim::Broker => {
                up.kill();
                up.restart();
            }
            Victim::Store(part) => {
                cluster.kill(part);
                cluster.restart(part);
            }
        }
    }
    let mut said = backfill.wait();
    for _ in 0..RESUMES {
        if said.code == Some(0) {
            break;
        }
        assert_eq!(said.code, Some(1), "files may have failed, nothing else: {}", said.stderr);
        said = up.run(&arguments);
    }
    let summary = said.json();
    assert_eq!(summary["files_failed"], 0, "{summary}");
    assert_eq!(summary["files_done"].as_u64().unwrap() + summary["files_already"].as_u64().unwrap(), total);
    let records = up.records("t");
    files.check(&records);
    up.run(&["verify", "t", "--deep"]).ok();
    let samples = records.choose_multiple(&mut random, 10);
    for record in samples.chain(records.iter().filter(|record| record["size"].as_u64() > Some(1 << 20))) {
        let place = [record["partition"].to_string(), record["offset"].to_string()];
        let got = up.run(&["get", "t", &place[0], &place[1]]).ok();
        assert!(got == std::fs::read(files.path().join(record["key"].as_str().unwrap())).unwrap(), "{record}");
    }
    // And the same once everything is in files, and every process is another one.
    up.run(&["seal", "t"]).ok();
    up.run(&["compact", "t"]).ok();
    up.kill();
    up.restart();
    files.check(&up.records("t"));
    up.run(&["verify", "t", "--deep"]).ok();
    let again = up.run(&["--output", "json", "job", "resume", "kills"]).json();
    assert_eq!((again["files_done"].as_u64(), again["files_already"].as_u64()), (Some(0), Some(total)), "{again}");
}

#[test]
fn payloads_on_volume_servers_survive_kills_of_everything() {
    let mut cluster = Cluster::start(Plan { filers: 0, gateways: Vec::new(), ..Plan::default() });
    let mut up = Up::start_on(&format!("seaweedfs://{}", cluster.master()), Vec::new());
    let store = [Part::Master, Part::Volume(0)].map(Victim::Store);
    let victims = [&store[..], &[Victim::Client, Victim::Broker]].concat();
    kill_at_random(&mut cluster, &mut up, &victims);
}

#[test]
fn everything_on_the_s3_gateway_survives_kills_of_everything() {
    let mut cluster = Cluster::start(Plan::default());
    let uri = format!("s3://{BUCKET}/root?endpoint={}", cluster.s3(0));
    let keys = vec![("AWS_ACCESS_KEY_ID", ACCESS_KEY.into()), ("AWS_SECRET_ACCESS_KEY", SECRET_KEY.into())];
    let mut up = Up::start_on(&uri, keys);
    let mut store = vec![Part::Volume(0), Part::Filer(0), Part::Gateway(0)];
    if long() {
        store.push(Part::Master);
    }
    let store: Vec<_> = store.into_iter().map(Victim::Store).collect();
    let victims = [&store[..], &[Victim::Client, Victim::Broker]].concat();
    kill_at_random(&mut cluster, &mut up, &victims);
}
