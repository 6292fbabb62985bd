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

/// Seeds that have failed: what each needed is found nowhere near.
#[test]
fn promises_hold_where_they_did_not() {
    for seed in [1_749, 2_966, 3_699, 4_573, 4_980, 6_186, 6_513, 6_880, 7_001, 7_856, 8_019, 9_122, 12_445] {
        holds(seed..seed + 1);
    }
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
const NOTICED: [(Mutation, std::ops::Range<u64>); 19] = [
    (Mutation::AckBeforeDurable, 1..20),
    (Mutation::AckAboveGap, 39..50),
    (Mutation::SkipFencing, 1..20),
    (Mutation::TrustMissingRead, 1..20),
    (Mutation::ReuseOffsets, 1..20),
    (Mutation::ForgetProducers, 1..20),
    (Mutation::NoDeduplication, 1..20),
    (Mutation::IgnoreFence, 1..20),
    (Mutation::AppendAfterSeal, 1..20),
    (Mutation::ReadBeforeDurable, 8..30),
    (Mutation::HideEnds, 275..285),
    (Mutation::StaleRefusal, 1_885..1_895),
    (Mutation::StaleAnswers, 39..50),
    (Mutation::FreeTooMuch, 1..20),
    (Mutation::EndBeforeDurable, 70..80),
    (Mutation::EndForOthers, 29..40),
    (Mutation::OwnBeforeNamed, 1..20),
    (Mutation::TrustSleepers, 2_095..2_100),
    (Mutation::AnswerWhileGiving, 2_085..2_095),
];

#[test]
fn broken_rules_are_noticed() {
    assert_eq!(NOTICED.map(|(mutation, _)| mutation), Mutation::ALL, "each has its seeds");
    for (mutation, seeds) in NOTICED {
        let noticed = seeds.clone().any(|seed| !simulate(seed, mutation).violations.is_empty());
        assert!(noticed, "{mutation:?} went unnoticed in seeds {seeds:?}");
    }
}

// Recovery fences at the tip plus twice the window; the chain looks so far back for a number that is there.
const _: () = assert!(2 * refstream_core::MAX_SLOTS_IN_FLIGHT <= refstream_filer_adapter::chain::MAX_GAP);
