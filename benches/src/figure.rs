//! The figures, one file each.

mod backfill;
mod broker_bytes;
mod compaction;
mod file_size;
mod latency;
mod references;
mod upload;

use crate::{Outcome, Plan, report::Row};

/// Names for `--only`, in the order of the table.
pub(crate) const NAMES: [&str; 7] =
    ["upload", "backfill", "references", "broker-bytes", "latency", "compaction", "file-size"];

/// Measures one of [`NAMES`].
pub(crate) async fn measure(name: &str, plan: &Plan) -> Outcome<Vec<Row>> {
    match name {
        "upload" => upload::measure(plan).await,
        "backfill" => backfill::measure(plan).await,
        "references" => references::measure(plan).await,
        "broker-bytes" => broker_bytes::measure(plan).await,
        "latency" => latency::measure(plan).await,
        "compaction" => compaction::measure(plan).await,
        "file-size" => file_size::measure(),
        other => Err(format!("there is no figure {other}").into()),
    }
}
