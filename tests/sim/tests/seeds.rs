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

/// Each broken rule with a stretch of seeds in which the simulation must notice it. Most are noticed at once; for others the stretch
/// starts shortly before the coincidence that they need.
const NOTICED: [(Mutation, std::ops::Range<u64>); 15] = [
    (Mutation::AckBeforeDurable, 1..20),
    (Mutation::SkipFencing, 1..20),
    (Mutation::TrustMissingRead, 1..20),
    (Mutation::ReuseOffsets, 1..20),
    (Mutation::ForgetProducers, 1..20),
    (Mutation::NoDeduplication, 1..20),
    (Mutation::OwnBeforeNamed, 1..20),
    (Mutation::EndForOthers, 27..40),
    (Mutation::IgnoreFence, 46..60),
    (Mutation::AppendAfterSeal, 1..40),
    (Mutation::ReadBeforeDurable, 1..40),
    (Mutation::StaleAnswers, 1..60),
    (Mutation::FreeTooMuch, 1..40),
    (Mutation::EndBeforeDurable, 1..60),
    (Mutation::AckAboveGap, 10..20),
];

/// Rules whose breach takes a coincidence that no short stretch of seeds is known to have.
const RARE: [Mutation; 2] = [Mutation::HideEnds, Mutation::StaleRefusal];

#[test]
fn broken_rules_are_noticed() {
    assert_eq!(NOTICED.len() + RARE.len(), Mutation::ALL.len());
    for (mutation, seeds) in NOTICED {
        let noticed = seeds.clone().any(|seed| !simulate(seed, mutation).violations.is_empty());
        assert!(noticed, "{mutation:?} went unnoticed in seeds {seeds:?}");
    }
}

#[test]
#[ignore = "takes many minutes"]
fn rarely_broken_rules_are_noticed() {
    for mutation in RARE {
        let noticed = (1..20_000).any(|seed| !simulate(seed, mutation).violations.is_empty());
        assert!(noticed, "{mutation:?} went unnoticed");
    }
}

// Recovery fences at the tip plus twice the window; the chain looks so far back for a number that is there.
const _: () = assert!(2 * refstream_core::MAX_SLOTS_IN_FLIGHT <= refstream_filer_adapter::chain::MAX_GAP);
