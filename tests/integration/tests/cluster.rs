//! Three brokers in processes of their own: killed, paused, drained, restarted; nothing acked is lost, nothing appears twice, offsets are
//! dense and in order, and no error reaches who produces and who consumes.

#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use rand::{Rng as _, SeedableRng as _};
use refstream::{Client, ClientOptions, ConsumerOptions, From, ProducerOptions};
use refstream_filer_adapter::{Runtime as _, TokioRuntime};
use refstream_integration_tests::{Files, Said, binary, cluster::Cluster, long};
use refstream_types::{ContentHash, Record, TopicName, Value};
use std::{
    collections::BTreeMap,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

fn refstream(arguments: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.args(arguments);
    command
}

#[test]
fn a_backfill_survives_kills_of_brokers() {
    let kills = if long() { 25 } else { 5 };
    let files = Files::generate(kills * 60, 3_000, 5);
    let seed: u64 = rand::random();
    eprintln!("seed {seed}");
    let mut random = rand::rngs::StdRng::seed_from_u64(seed);
    let mut cluster = Cluster::start(3);
    cluster.run(&["topic", "create", "t", "--partitions", "6", "--seal-bytes", "20000"]).ok();
    // Slowly: a kill is over only when the broker is there again, and the next one must meet work too.
    let mut backfill = cluster.spawn_backfill_with("t", &files, &["--concurrency", "2", "--bandwidth", "40K"]);
    let total = files.expected.len() as u64;
    let mut at_work = 0;
    for kill in 0..kills as u64 {
        let until = (kill * total + random.random_range(0..total)) / kills as u64;
        while cluster.committed("t").is_none_or(|committed| committed < until) && !backfill.ended() {}
        at_work += usize::from(!backfill.ended());
        let victim = random.random_range(0..3);
        // The next one only once this one is there again, or two of three would be gone at once.
        cluster.kill(victim);
    }
    assert!(at_work > kills / 2, "most kills must meet a backfill at work: {at_work} of {kills} did");
    let summary = backfill.wait().json();
    assert_eq!(summary["files_done"].as_u64(), Some(total), "{summary}");
    files.check(&cluster.records("t"));
    cluster.run(&["seal", "t"]).ok();
    cluster.run(&["compact", "t"]).ok();
    files.check(&cluster.records("t"));
    cluster.run(&["verify", "t"]).ok();
}

#[test]
fn brokers_with_tls_that_ask_for_tokens_know_each_other() {
    let made = Said::by(refstream(&["--output", "json", "token", "ana"])).json();
    let (token, hash) = (made["token"].as_str().unwrap(), made["hash"].as_str().unwrap());
    let cluster = Cluster::start_guarded(2, token, hash);
    cluster.run(&["topic", "create", "t", "--partitions", "2"]).ok();
    // Whichever is asked, half of the answer is the other one's.
    for broker in &cluster.brokers {
        assert!(broker.endpoint.starts_with("https://"), "{}", broker.endpoint);
        let said = cluster.run(&["--endpoint", &broker.endpoint, "--output", "json", "topic", "describe", "t"]).json();
        assert_eq!(said["offsets"].as_array().map(Vec::len), Some(2), "{said}");
    }
}

#[test]
fn several_brokers_are_not_started_at_one_address() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("refstream.toml");
    std::fs::write(&config, "[broker]\nadvertise = \"http://127.0.0.1:7400\"\n").unwrap();
    let mut command = refstream(&["up", "--brokers", "2", "--config"]);
    command.arg(config).arg("--data").arg(folder.path().join("data"));
    Said::by(command).fails(2, &["broker.advertise", "--brokers"]);
}

#[test]
fn a_paused_broker_is_replaced_and_joins_anew() {
    let mut cluster = Cluster::start(3);
    let files = Files::generate(200, 2_000, 6);
    cluster.run(&["topic", "create", "t", "--partitions", "6"]).ok();
    let mut backfill = cluster.spawn_backfill("t", &files, 2);
    while cluster.committed("t").is_none_or(|committed| committed < 20) && !backfill.ended() {}
    let paused = cluster.brokers[0].endpoint.clone();
    cluster.signal(0, "STOP");
    let lists = |list: &[serde_json::Value]| list.iter().any(|broker| broker["endpoint"].as_str() == Some(&paused));
    cluster.until("recovered", |list| list.len() == 2 && !lists(list));
    assert_eq!(backfill.wait().json()["files_done"], 200);
    cluster.signal(0, "CONT");
    cluster.until("joined anew", |list| list.len() == 3 && lists(list));
    files.check(&cluster.records("t"));
}

/// What a producer and a consumer saw.
#[derive(Default)]
struct Seen {
    acked: BTreeMap<u64, (u32, u64)>,
    longest: Duration,
}

/// Produces one record after the other on each of eight keys, until it is told to stop; every send and ack must succeed.
async fn produce(client: Client, topic: TopicName, stop: Arc<AtomicBool>) -> Seen {
    let producer = client.producer(&topic, ProducerOptions::default()).await.unwrap();
    let mut seen = Seen::default();
    let mut number = 0_u64;
    let clock = TokioRuntime::new();
    while !stop.load(Ordering::Relaxed) {
        let mut tickets = Vec::new();
        for key in 0..8_u64 {
            let bytes = Bytes::from(number.to_string());
            let content_hash = ContentHash(*blake3::hash(&bytes).as_bytes());
            let mut record = Record::new(Value::Inline { bytes, content_hash });
            record.key = Some(Bytes::from(format!("key-{key}")));
            tickets.push((number, clock.now(), producer.send(record).await.unwrap()));
            number += 1;
        }
        for (number, began, ticket) in tickets {
            let ack = ticket.ack().await.unwrap();
            seen.longest = seen.longest.max(clock.now() - began);
            assert!(seen.acked.insert(number, (ack.partition.get(), ack.offset.get())).is_none());
        }
    }
    seen
}

/// Reads everything from the beginning until `total` records are there; no error must reach it.
async fn consume(client: Client, topic: TopicName, stop: Arc<AtomicBool>) -> BTreeMap<(u32, u64), u64> {
    let options = ConsumerOptions { from: From::Earliest, follow: true };
    let mut consumer = client.consumer(&topic, options).await.unwrap();
    let mut found = BTreeMap::new();
    loop {
        let next = tokio::time::timeout(Duration::from_millis(500), consumer.next()).await;
        match next {
            Ok(next) => {
                let delivery = next.unwrap().unwrap();
                let Value::Inline { bytes, .. } = delivery.record.value else { panic!("not inline") };
                let number = std::str::from_utf8(&bytes).unwrap().parse().unwrap();
                assert!(found.insert((delivery.partition.get(), delivery.offset.get()), number).is_none());
            }
            Err(_) if stop.load(Ordering::Relaxed) => return found,
            Err(_) => {}
        }
    }
}

fn check(seen: &Seen, found: &BTreeMap<(u32, u64), u64>) {
    let mut next: BTreeMap<u32, u64> = BTreeMap::new();
    let mut last: BTreeMap<u64, u64> = BTreeMap::new();
    for ((partition, offset), number) in found {
        let expected = next.entry(*partition).or_default();
        assert_eq!(offset, expected, "offsets of partition {partition} are dense");
        *expected += 1;
        if let Some(before) = last.insert(number % 8, *number) {
            assert!(before < *number, "a key keeps its order");
        }
        assert_eq!(seen.acked.get(number), Some(&(*partition, *offset)), "record {number} is where its ack said");
    }
    assert_eq!(found.len(), seen.acked.len(), "every acked record is there once");
}

/// Runs a producer and a consumer while `disturb` does what it does; none of them sees an error.
fn under_load(disturb: impl FnOnce(&mut Cluster)) -> Seen {
    let mut cluster = Cluster::start(3);
    cluster.run(&["topic", "create", "t", "--partitions", "6", "--inline-max", "100"]).ok();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let topic: TopicName = "t".parse().unwrap();
    let (stop, over) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (producing, consuming) = runtime.block_on(async {
        let client = Client::connect_with(ClientOptions::new(cluster.endpoints())).await.unwrap();
        (
            tokio::spawn(produce(client.clone(), topic.clone(), Arc::clone(&stop))),
            tokio::spawn(consume(client, topic, Arc::clone(&over))),
        )
    });
    disturb(&mut cluster);
    stop.store(true, Ordering::Relaxed);
    let seen = runtime.block_on(producing).unwrap();
    // Until it has nothing left to read.
    over.store(true, Ordering::Relaxed);
    let found = runtime.block_on(consuming).unwrap();
    eprintln!("{} records, longest ack {:?}", seen.acked.len(), seen.longest);
    check(&seen, &found);
    seen
}

#[test]
fn a_rolling_restart_shows_no_error() {
    under_load(|cluster| {
        for broker in 0..3 {
            cluster.restart(broker);
            cluster.until("evened out", |list| {
                list.len() == 3 && list.iter().all(|broker| broker["open_segments"].as_u64() > Some(0))
            });
        }
    });
}

#[test]
fn kills_and_a_pause_show_no_error() {
    under_load(|cluster| {
        for broker in 0..2 {
            cluster.kill(broker);
        }
        cluster.signal(2, "STOP");
        cluster.until("recovered", |list| list.len() == 2);
        cluster.signal(2, "CONT");
        cluster.until("joined anew", |list| list.len() == 3);
    });
}
