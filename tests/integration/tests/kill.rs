//! `kill -9` of the whole node at random moments: nothing acked is lost, nothing appears twice.

#![allow(clippy::unwrap_used)]

use rand::{Rng as _, SeedableRng as _};
use refstream_integration_tests::{Files, Up, long};

#[test]
fn a_backfill_survives_kills_of_the_node() {
    let kills = if long() { 25 } else { 6 };
    let files = Files::generate(kills * 150, 6_000, 3);
    let seed: u64 = rand::random();
    eprintln!("seed {seed}");
    let mut random = rand::rngs::StdRng::seed_from_u64(seed);
    let mut up = Up::start();
    up.run(&["topic", "create", "t", "--seal-bytes", "20000"]).ok();
    // Each file an object of its own, few at a time: many moments to be killed at.
    let mut backfill = up.spawn_backfill("t", &files, 2);
    let total = files.expected.len() as u64;
    for kill in 0..kills as u64 {
        let until = (kill * total + random.random_range(0..total)) / kills as u64;
        while up.committed("t").is_none_or(|committed| committed < until) && !backfill.ended() {}
        up.kill();
        up.restart();
    }
    let summary = backfill.wait().json();
    assert_eq!(summary["files_done"].as_u64(), Some(total), "{summary}");
    files.check(&up.records("t"));
    up.run(&["verify", "t", "--deep"]).ok();
    // And the same once everything is in files.
    up.run(&["seal", "t"]).ok();
    up.run(&["compact", "t"]).ok();
    files.check(&up.records("t"));
}

#[test]
fn a_paused_node_goes_on_where_it_was() {
    let up = Up::start();
    let files = Files::generate(200, 2_000, 4);
    up.run(&["topic", "create", "t"]).ok();
    let mut backfill = up.spawn_backfill("t", &files, 1);
    while up.committed("t").is_none_or(|committed| committed < 20) && !backfill.ended() {}
    up.signal("STOP");
    // Longer than every deadline of the liveness protocol would let a client believe it dead: the describe call times out.
    assert_eq!(up.committed("t"), None);
    up.signal("CONT");
    assert_eq!(backfill.wait().json()["files_done"], 200);
    files.check(&up.records("t"));
}
