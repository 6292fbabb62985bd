//! Some seeds hold what is promised; the same seed gives the same history; broken rules are noticed.

use refstream_sim::{Coincidence, Mutation, Options, Report, run};

fn simulate(seed: u64, mutation: Mutation) -> Report {
    simulate_about(seed, mutation, None)
}

fn simulate_about(seed: u64, mutation: Mutation, about: Option<Coincidence>) -> Report {
    run(Options { seed, mutation, about, verbose: false })
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
fn promises_hold_when_several_things_happen_at_once() {
    for about in [Coincidence::Alarms, Coincidence::Deafness, Coincidence::Sleep] {
        for seed in 1..31 {
            let report = simulate_about(seed, Mutation::None, Some(about));
            assert!(report.violations.is_empty(), "seed {seed} about {about:?}: {:#?}", report.violations);
        }
    }
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
const NOTICED: [(Mutation, Option<Coincidence>, std::ops::Range<u64>); 19] = [
    (Mutation::AckBeforeDurable, None, 1..20),
    (Mutation::AckAboveGap, None, 31..40),
    (Mutation::SkipFencing, None, 1..20),
    (Mutation::TrustMissingRead, None, 1..20),
    (Mutation::ReuseOffsets, None, 1..30),
    (Mutation::ForgetProducers, None, 1..20),
    (Mutation::NoDeduplication, None, 1..20),
    (Mutation::IgnoreFence, None, 1..30),
    (Mutation::AppendAfterSeal, None, 1..20),
    (Mutation::ReadBeforeDurable, None, 8..30),
    (Mutation::HideEnds, Some(Coincidence::Deafness), 30..34),
    (Mutation::StaleRefusal, Some(Coincidence::Alarms), 720..725),
    (Mutation::StaleAnswers, None, 39..50),
    (Mutation::FreeTooMuch, None, 1..20),
    (Mutation::EndBeforeDurable, None, 40..50),
    (Mutation::EndForOthers, None, 29..45),
    (Mutation::OwnBeforeNamed, None, 1..20),
    (Mutation::TrustSleepers, Some(Coincidence::Sleep), 312..316),
    (Mutation::AnswerWhileGiving, Some(Coincidence::Deafness), 545..550),
];

#[test]
fn broken_rules_are_noticed() {
    assert_eq!(NOTICED.map(|(mutation, ..)| mutation), Mutation::ALL, "each has its seeds");
    for (mutation, about, seeds) in NOTICED {
        let noticed = seeds.clone().any(|seed| !simulate_about(seed, mutation, about).violations.is_empty());
        assert!(noticed, "{mutation:?} went unnoticed in seeds {seeds:?} about {about:?}");
    }
}

// Recovery fences at the tip plus twice the window; the chain looks so far back for a number that is there.
const _: () = assert!(2 * refstream_core::MAX_SLOTS_IN_FLIGHT <= refstream_filer_adapter::chain::MAX_GAP);
