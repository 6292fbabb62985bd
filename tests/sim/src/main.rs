//! Runs seeds of the simulation and prints those that break a promise.

use clap::Parser;
use refstream_filer_adapter::{Runtime, TokioRuntime};
use refstream_sim::{Coincidence, Mutation, Options, run};
use std::{collections::BTreeMap, process::ExitCode};

/// Simulates brokers, clients and a misbehaving store, a seed at a time.
#[derive(Debug, Parser)]
#[command(after_help = "Example: refstream-sim --seeds 1000 --first 1")]
struct Arguments {
    /// How many seeds to run.
    #[arg(long, default_value_t = 100)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    first: u64,
    /// Break a rule of the protocol, for example `AckBeforeDurable`: the simulation must notice.
    #[arg(long)]
    mutation: Option<String>,
    /// What all seeds are about: Alarms, Deafness or Sleep.
    #[arg(long)]
    about: Option<String>,
    /// Print everything that happens.
    #[arg(long)]
    verbose: bool,
    /// Go on after a seed that failed.
    #[arg(long)]
    keep_going: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let mutation = match &arguments.mutation {
        None => Mutation::None,
        Some(name) => match Mutation::ALL.into_iter().find(|mutation| format!("{mutation:?}") == *name) {
            Some(mutation) => mutation,
            None => {
                eprintln!("there is no mutation {name}; there are {:?}", Mutation::ALL);
                return ExitCode::from(2);
            }
        },
    };
    let about = match arguments.about.as_deref() {
        None => None,
        Some("Alarms") => Some(Coincidence::Alarms),
        Some("Deafness") => Some(Coincidence::Deafness),
        Some("Sleep") => Some(Coincidence::Sleep),
        Some(other) => {
            eprintln!("seeds are about Alarms, Deafness or Sleep, not {other}");
            return ExitCode::from(2);
        }
    };
    let clock = TokioRuntime::new();
    let (mut acks, mut failed, mut ran) = (0, 0, 0_u64);
    let mut stops: BTreeMap<String, u64> = BTreeMap::new();
    for seed in arguments.first..arguments.first.saturating_add(arguments.seeds) {
        let report = run(Options { seed, mutation, about, verbose: arguments.verbose });
        ran += 1;
        acks += report.acks;
        for (reason, count) in report.stops {
            *stops.entry(reason).or_default() += count;
        }
        if !report.violations.is_empty() {
            failed += 1;
            println!("seed {seed} fails:");
            for violation in report.violations.iter().take(10) {
                println!("  {violation}");
            }
            if !arguments.keep_going {
                break;
            }
        }
    }
    let elapsed = clock.now().as_secs_f64();
    println!(
        "{ran} seeds in {elapsed:.1} s ({:.0} a second), {acks} acks, stops {stops:?}, {failed} failed",
        ran as f64 / elapsed
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
