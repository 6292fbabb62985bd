//! Some seeds hold what is promised; the same seed gives the same history; broken rules are noticed.

use refstream_sim::{Mutation, Options, Report, run};

fn simulate(seed: u64, mutation: Mutation) -> Report {
    run(Options { seed, mutation, verbose: false })
}

fn holds(seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let report = simulate(seed, Mutation::None);
        assert!(report.violations.is_empty(), "seed {seed}: {:#?}", report.violations);
    }
}

// Two halves, so that they run beside each other.

#[test]
fn promises_hold() {
    holds(1..101);
}

#[test]
fn promises_hold_further_on() {
    holds(1_001..1_101);
}

#[test]
fn the_same_seed_gives_the_same_history() {
    for seed in [1, 2, 3, 20, 69] {
        assert_eq!(simulate(seed, Mutation::None), simulate(seed, Mutation::None), "seed {seed}");
    }
    assert_ne!(simulate(1, Mutation::None).trace, simulate(2, Mutation::None).trace);
}

/// Each broken rule with a stretch of seeds in which the simulation must notice it. Most are noticed at once; the last three need
/// a rare coincidence, so their stretches start shortly before one.
const NOTICED: [(Mutation, std::ops::Range<u64>); 15] = [
    (Mutation::AckBeforeDurable, 1..20),
    (Mutation::SkipFencing, 1..40),
    (Mutation::TrustMissingRead, 1..40),
    (Mutation::ReuseOffsets, 1..20),
    (Mutation::ForgetProducers, 1..20),
    (Mutation::NoDeduplication, 1..40),
    (Mutation::IgnoreFence, 1..40),
    (Mutation::AppendAfterSeal, 1..20),
    (Mutation::ReadBeforeDurable, 1..40),
    (Mutation::StaleAnswers, 1..40),
    (Mutation::FreeTooMuch, 1..20),
    (Mutation::EndBeforeDurable, 1..40),
    (Mutation::AckAboveGap, 265..275),
    (Mutation::HideEnds, 100..140),
    (Mutation::StaleRefusal, 1_265..1_280),
];

#[test]
fn broken_rules_are_noticed() {
    assert_eq!(NOTICED.len(), Mutation::ALL.len());
    for (mutation, seeds) in NOTICED {
        let noticed = seeds.clone().any(|seed| !simulate(seed, mutation).violations.is_empty());
        assert!(noticed, "{mutation:?} went unnoticed in seeds {seeds:?}");
    }
}

// Recovery fences at the tip plus twice the window; the chain looks so far back for a number that is there.
const _: () = assert!(2 * refstream_core::MAX_SLOTS_IN_FLIGHT <= refstream_filer_adapter::chain::MAX_GAP);
