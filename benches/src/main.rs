//! Benchmarks: ratios measured in one run.
//!
//! `cargo run --release -p refstream-benches` measures every figure and prints a table. Rates of a noisy machine mean little by
//! themselves, so the two sides of a ratio take turns in several short rounds of one run, and medians are compared. The exit code is
//! always 0: this is a measurement, not a test.
//!
//! Broker and embedded store run in a process of their own, as they do in production (see [`process`]). Each figure is one file
//! below `figure/`.

mod figure;
mod load;
mod numbers;
mod process;
mod report;

use clap::Parser;
use report::{Conditions, Format, Row};
use std::{error::Error, path::PathBuf};

/// What a measurement returns: why it failed is printed in the table's place.
pub(crate) type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Measures the speed figures and prints them as a table
#[derive(Debug, Parser)]
#[command(name = "refstream-benches")]
struct Arguments {
    /// Only figures whose name contains this; may be repeated
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Fewer and smaller rounds
    #[arg(long)]
    quick: bool,
    /// How to print the result
    #[arg(long, value_enum, default_value_t = Format::Table)]
    output: Format,
    /// Measure this `refstream` binary instead of the broker that is compiled in
    #[arg(long, value_name = "PATH")]
    refstream: Option<PathBuf>,
    /// Where to put data while measuring [default: the system's temporary folder]
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// Be the broker process that is measured
    #[arg(long, hide = true, value_name = "DIR")]
    serve: Option<PathBuf>,
    /// As that process: payloads go to the SeaweedFS of this master
    #[arg(long, hide = true, value_name = "HOST:PORT", requires = "serve")]
    master: Option<String>,
    /// Be a client that backfills this folder again and again
    #[arg(long, hide = true, value_name = "DIR", requires = "broker")]
    flood: Option<PathBuf>,
    /// As that client: the broker
    #[arg(long, hide = true, value_name = "URL")]
    broker: Option<String>,
}

/// What every measurement is told.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Fewer and smaller rounds.
    pub(crate) quick: bool,
    /// The binary to measure; `None`: this program's own broker.
    pub(crate) refstream: Option<PathBuf>,
    /// Where temporary folders are made.
    pub(crate) folder: PathBuf,
}

impl Plan {
    /// Rounds of each side of a ratio.
    pub(crate) fn rounds(&self) -> usize {
        if self.quick { 2 } else { 5 }
    }
    /// The same for short rounds.
    pub(crate) fn short_rounds(&self) -> usize {
        3 * self.rounds()
    }
    /// `full`, or a part of it when quick.
    pub(crate) fn size(&self, full: usize) -> usize {
        if self.quick { (full / 5).max(1) } else { full }
    }
    /// A new folder for data.
    pub(crate) fn temporary(&self) -> Outcome<tempfile::TempDir> {
        Ok(tempfile::Builder::new().prefix("refstream-bench").tempdir_in(&self.folder)?)
    }
}

fn main() -> Outcome<()> {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    if let Some(folder) = &arguments.serve {
        return runtime.block_on(process::serve(folder, arguments.master));
    }
    if let (Some(folder), Some(broker)) = (&arguments.flood, &arguments.broker) {
        return runtime.block_on(figure::flood(broker, folder));
    }
    let plan = Plan {
        quick: arguments.quick,
        refstream: arguments.refstream,
        folder: arguments.folder.unwrap_or_else(std::env::temp_dir),
    };
    let conditions = Conditions::read(&plan);
    let rows = runtime.block_on(measure(&plan, &arguments.only));
    report::print(arguments.output, &conditions, &rows)?;
    Ok(())
}

async fn measure(plan: &Plan, only: &[String]) -> Vec<Row> {
    let mut rows = Vec::new();
    for name in figure::NAMES {
        if !only.is_empty() && !only.iter().any(|wanted| name.contains(wanted.as_str())) {
            continue;
        }
        eprintln!("measuring {name} ...");
        match Box::pin(figure::measure(name, plan)).await {
            Ok(found) => {
                for row in &found {
                    eprintln!("  {}: {} (target {})", row.figure, row.value, row.target);
                }
                rows.extend(found);
            }
            Err(error) => {
                eprintln!("  {name} could not be measured: {error}");
                rows.push(Row::failed(name, &*error));
            }
        }
    }
    rows
}
