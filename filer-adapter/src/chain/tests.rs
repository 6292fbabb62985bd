use super::*;
use crate::{
    TokioRuntime,
    memory::{Fault, Faults, MemoryStore, Operation},
};
use futures::FutureExt;
use futures::future::BoxFuture;
use refstream_types::{Epoch, Timestamp};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// Nothing here waits, so no executor is needed.
fn block_on<F: Future>(future: F) -> F::Output {
    future.now_or_never().expect("it waits")
}

/// Time that passes only by sleeping.
#[derive(Debug, Default)]
struct Clock {
    nanos: Arc<AtomicU64>,
    draws: AtomicU64,
}

impl Runtime for Clock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.nanos.load(Ordering::SeqCst))
    }
    fn wall(&self) -> Timestamp {
        TokioRuntime::new().wall()
    }
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let nanos = Arc::clone(&self.nanos);
        Box::pin(async move {
            nanos.fetch_add(duration.as_nanos() as u64, Ordering::SeqCst);
        })
    }
    fn random(&self) -> u64 {
        self.draws.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::SeqCst)
    }
}

struct Bench {
    runtime: Arc<Clock>,
    store: MemoryStore,
    layout: Layout,
    chain: Chain,
}

fn bench(chain: Chain) -> Bench {
    let runtime = Arc::new(Clock::default());
    let store = MemoryStore::new(Arc::clone(&runtime) as Arc<dyn Runtime>);
    Bench { runtime, store, layout: Layout::new("r").unwrap(), chain }
}

impl Bench {
    fn commit(&self, number: u64, bytes: &'static str) -> Commit {
        let bytes = Bytes::from_static(bytes.as_bytes());
        block_on(commit(&self.store, &*self.runtime, &self.layout, &self.chain, number, bytes))
    }
    fn fill(&self, numbers: impl IntoIterator<Item = u64>) {
        for number in numbers {
            block_on(self.store.create(&self.layout.link(&self.chain, number), Bytes::from_static(b"x"))).unwrap();
        }
    }
    fn tip(&self, hint: u64) -> Option<u64> {
        block_on(tip(&self.store, &self.layout, &self.chain, hint)).unwrap().map(|(number, _)| number)
    }
    fn free(&self, below: u64) -> u64 {
        block_on(free_below(&self.store, &self.layout, &self.chain, below)).unwrap()
    }
    fn script(&self, operation: Operation, fault: Fault) {
        self.store.script(operation, "", fault);
    }
    fn numbers(&self) -> Vec<u64> {
        block_on(numbers(&self.store, &self.layout.chain_prefix(&self.chain), None)).unwrap()
    }
}

#[test]
fn it_was_me_when_the_answer_is_lost() {
    for fault in [Fault::Lost, Fault::Failed, Fault::Conflict, Fault::Dropped, Fault::Refused] {
        let bench = bench(Chain::ClusterLog);
        bench.script(Operation::Create, fault);
        assert!(matches!(bench.commit(0, "mine"), Commit::Committed), "{fault:?}");
        assert!(matches!(bench.commit(0, "other"), Commit::Taken(bytes) if bytes == "mine"), "{fault:?}");
    }
}

#[test]
fn nothing_is_decided_by_a_missing_read() {
    let bench = bench(Chain::ClusterLog);
    let late = Duration::from_secs(60);
    for _ in 0..ATTEMPTS {
        bench.script(Operation::Create, Fault::Stall(late));
    }
    assert!(matches!(bench.commit(0, "mine"), Commit::Unknown(_)));
    block_on(bench.runtime.sleep(late * 2));
    assert!(matches!(bench.commit(0, "mine"), Commit::Committed), "it landed later");
}

#[test]
fn a_late_create_does_not_unseat_the_winner() {
    let bench = bench(Chain::ClusterLog);
    let late = Duration::from_secs(60);
    for _ in 0..ATTEMPTS {
        bench.script(Operation::Create, Fault::Stall(late));
    }
    assert!(matches!(bench.commit(0, "slow"), Commit::Unknown(_)));
    assert!(matches!(bench.commit(0, "fast"), Commit::Committed));
    block_on(bench.runtime.sleep(late * 2));
    assert!(matches!(bench.commit(0, "slow"), Commit::Taken(bytes) if bytes == "fast"));
}

#[test]
fn an_outage_is_unknown() {
    let bench = bench(Chain::Epochs);
    bench.store.set_cut_off(true);
    assert!(matches!(bench.commit(0, "mine"), Commit::Unknown(error) if error.is_retryable()));
    bench.store.set_cut_off(false);
    assert!(matches!(bench.commit(0, "mine"), Commit::Committed));
}

#[test]
fn a_sleeper_does_not_get_a_freed_number() {
    for chain in [Chain::ClusterLog, Chain::Journal(Epoch(3))] {
        let bench = bench(chain);
        bench.fill(0..100);
        assert_eq!(bench.free(90), 90);
        assert!(matches!(bench.commit(20, "late"), Commit::Freed));
        assert!(matches!(bench.commit(20, "later"), Commit::Freed), "the sleeper's own object is not trusted either");
        assert_eq!(bench.tip(20), Some(99), "nor found from an old hint");
        assert!(matches!(bench.commit(100, "fine"), Commit::Committed));
    }
}

#[test]
fn a_sleeping_recoverer_does_not_fence_a_freed_slot_of_a_live_journal() {
    let bench = bench(Chain::Journal(Epoch(3)));
    bench.fill(0..300);
    bench.free(256);
    assert!(matches!(bench.commit(100, "fence"), Commit::Freed));
    assert!(matches!(bench.commit(300, "the owner goes on"), Commit::Committed));
}

#[test]
fn two_sleepers_do_not_vouch_for_each_other() {
    let bench = bench(Chain::ClusterLog);
    bench.fill(0..100);
    bench.free(90);
    assert!(matches!(bench.commit(20, "one"), Commit::Freed));
    assert!(matches!(bench.commit(21, "two"), Commit::Freed));
}

#[test]
fn the_number_above_the_boundary_is_trusted() {
    for chain in [Chain::ClusterLog, Chain::Journal(Epoch(3))] {
        let bench = bench(chain);
        bench.fill(0..91);
        bench.free(90);
        assert!(matches!(bench.commit(90, "other"), Commit::Taken(_)), "the boundary's own number has no predecessor");
        assert!(matches!(bench.commit(91, "next"), Commit::Committed));
    }
}

#[test]
fn a_stale_boundary_is_noticed() {
    for (chain, number) in [(Chain::ClusterLog, 80), (Chain::Journal(Epoch(3)), 80)] {
        let bench = bench(chain);
        bench.fill(0..201);
        block_on(bench.runtime.sleep(Duration::from_secs(100)));
        bench.free(200);
        bench.script(Operation::List, Fault::StaleList(Duration::from_secs(50)));
        assert!(matches!(bench.commit(number, "late"), Commit::Unknown(_)));
        assert!(matches!(bench.commit(number, "late"), Commit::Freed));
    }
}

#[test]
fn a_journal_may_have_its_predecessors_in_flight() {
    let bench = bench(Chain::Journal(Epoch(1)));
    bench.fill(0..=50);
    for number in [55, 53, 54, 52, 51] {
        assert!(matches!(bench.commit(number, "x"), Commit::Committed), "{number}");
    }
    bench.free(55);
    assert!(matches!(bench.commit(60, "fence ahead"), Commit::Committed));
}

#[test]
fn the_first_numbers_need_no_predecessor() {
    for (chain, first) in [(Chain::Epochs, 1), (Chain::ClusterLog, 0), (Chain::Journal(Epoch(1)), 5)] {
        let bench = bench(chain);
        assert!(matches!(bench.commit(first, "x"), Commit::Committed));
    }
}

#[test]
fn the_tip_is_the_end_of_the_run() {
    let journal = Chain::Journal(Epoch(1));
    for chain in [Chain::ClusterLog, journal.clone()] {
        assert_eq!(bench(chain.clone()).tip(0), None);
        for length in [1, 2, 3, 7, 8, 100] {
            for first in [0, 1] {
                let bench = bench(chain.clone());
                bench.fill(first..first + length);
                for hint in [0, first, first + length / 2, first + length - 1] {
                    assert_eq!(bench.tip(hint), Some(first + length - 1), "{first} {length} {hint}");
                }
            }
        }
    }
    // Every pattern of creates in flight above the tip.
    for pattern in 0_u64..64 {
        let bench = bench(journal.clone());
        bench.fill(0..10);
        bench.fill((0..6).filter(|bit| pattern >> bit & 1 == 1).map(|bit| 10 + bit));
        assert_eq!(bench.tip(3), Some(9 + pattern.trailing_ones() as u64), "{pattern:b}");
    }
    let bench = bench(journal);
    bench.fill((0..10).chain([26]));
    assert_eq!(bench.tip(0), Some(9), "a fence ahead is above a gap");
}

#[test]
fn freeing_can_be_cut_off_anywhere() {
    for cut in 0..12 {
        let bench = bench(Chain::ClusterLog);
        bench.fill(0..10);
        for _ in 0..cut {
            // Lets the first removes through: each script is met once.
            bench.script(Operation::Remove, Fault::BitRot);
        }
        bench.script(Operation::Remove, Fault::Dropped);
        let first = block_on(free_below(&bench.store, &bench.layout, &bench.chain, 8));
        assert_eq!(first.is_err(), cut < 8);
        let left = bench.numbers();
        assert!(left.windows(2).all(|pair| pair[0] + 1 == pair[1]), "deletes ascend: {left:?}");
        assert_eq!(block_on(boundary(&bench.store, &bench.layout, &bench.chain)).unwrap(), 8);
        bench.store.set_faults(Faults::default());
        while bench.store.scripts_left() > 0 {
            let _ = block_on(bench.store.remove(&"none".parse().unwrap()));
        }
        bench.free(9);
        assert_eq!(bench.numbers(), [9]);
        assert_eq!(bench.tip(0), Some(9));
        let boundaries = block_on(numbers(&bench.store, &bench.layout.boundary_prefix(&bench.chain), None)).unwrap();
        assert_eq!(boundaries, [9], "only the newest boundary stays");
    }
}

#[test]
fn the_newest_number_is_never_freed() {
    let bench = bench(Chain::Epochs);
    bench.fill(0..5);
    let error = block_on(free_below(&bench.store, &bench.layout, &bench.chain, 9)).unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Invalid, "there is no 9");
    assert_eq!(bench.free(4), 4);
    assert_eq!(bench.numbers(), [4]);
    assert_eq!(bench.free(2), 0, "the boundary never falls");
    assert_eq!(block_on(boundary(&bench.store, &bench.layout, &bench.chain)).unwrap(), 4);
}

#[test]
fn what_a_sleeper_left_is_not_the_chains() {
    let bench = bench(Chain::ClusterLog);
    bench.fill(1..=9);
    let link = |number| block_on(link(&bench.store, &bench.layout, &bench.chain, number)).unwrap();
    assert_eq!(link(9), Link::Present(Bytes::from_static(b"x")));
    assert_eq!(link(10), Link::Missing);
    bench.free(6);
    assert_eq!(link(6), Link::Present(Bytes::from_static(b"x")));
    assert_eq!(link(5), Link::Missing);
    // Two sleepers: the second one's predecessor is there, and tells nothing.
    bench.fill([4, 5]);
    assert_eq!(link(5), Link::Freed);
    assert_eq!(link(4), Link::Freed);
    bench.free(7);
    assert_eq!(link(5), Link::Missing);
}

#[test]
fn an_empty_answer_is_no_link() {
    let bench = bench(Chain::Journal(Epoch(3)));
    bench.fill([1]);
    block_on(bench.store.create(&bench.layout.link(&bench.chain, 2), Bytes::new())).unwrap();
    assert!(block_on(read(&bench.store, &bench.layout, &bench.chain, 2)).unwrap_err().is_retryable());
    assert!(matches!(bench.commit(2, "ours"), Commit::Unknown(_)));
}

#[test]
fn one_lost_answer_does_not_end_a_search() {
    let bench = bench(Chain::Journal(Epoch(3)));
    bench.fill(1..=20);
    bench.store.script(Operation::Read, "", Fault::Failed);
    assert_eq!(bench.tip(0), Some(20));
}
