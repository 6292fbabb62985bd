//! The figures, one file each.

mod backfill;
mod broker_bytes;
mod compaction;
mod file_size;
mod flood;
mod grants;
mod latency;
mod references;
mod seaweed;
mod upload;

pub(crate) use flood::flood;

use crate::{Outcome, Plan, report::Row};

/// Names for `--only`, in the order of the table.
pub(crate) const NAMES: [&str; 10] = [
    "upload",
    "seaweed",
    "grants",
    "backfill",
    "references",
    "broker-bytes",
    "latency",
    "flood",
    "compaction",
    "file-size",
];

/// Measures one of [`NAMES`].
pub(crate) async fn measure(name: &str, plan: &Plan) -> Outcome<Vec<Row>> {
    match name {
        "upload" => upload::measure(plan).await,
        "seaweed" => seaweed::measure(plan).await,
        "grants" => grants::measure(plan).await,
        "backfill" => backfill::measure(plan).await,
        "references" => references::measure(plan).await,
        "broker-bytes" => broker_bytes::measure(plan).await,
        "latency" => latency::measure(plan).await,
        "flood" => flood::measure(plan).await,
        "compaction" => compaction::measure(plan).await,
        "file-size" => file_size::measure(),
        other => Err(format!("there is no figure {other}").into()),
    }
}
