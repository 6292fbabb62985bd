//! `refstream segments`.

use crate::{Global, config, exit::Failure, output};
use refstream::{Segment, SegmentState, types::TopicName};
use serde_json::json;
use std::time::Duration;

/// A topic's segments: number, partitions, state, offsets, bytes, files
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  refstream segments images --output jsonl\n\nIn the table, ranges include both ends: PARTITIONS 0-3 are four, OFFSETS 2:10-19 are ten records of partition 2. In JSON, `hi` and\n`end_offsets` are one past the last."
)]
pub(crate) struct Arguments {
    /// The topic
    topic: TopicName,
    /// Go on, and print them again whenever something changed
    #[arg(long)]
    watch: bool,
}

/// How often a watched topic is looked at.
const EVERY: Duration = Duration::from_secs(1);

/// How many partitions' offsets a table's row names.
const SHOWN: usize = 4;

/// `FROM-TO`, both included.
fn inclusive(from: u64, end: u64) -> String {
    match end.saturating_sub(1) {
        to if to == from => from.to_string(),
        to => format!("{from}-{to}"),
    }
}

/// `PARTITION:FROM-TO` of partitions that hold records.
fn offsets(segment: &Segment) -> String {
    let held = segment.start_offsets.iter().zip(&segment.end_offsets).enumerate();
    let mut held = held.filter(|(_, (start, end))| start < end).map(|(index, (start, end))| {
        format!("{}:{}", u64::from(segment.range.lo().get()) + index as u64, inclusive(start.get(), end.get()))
    });
    let shown: Vec<_> = held.by_ref().take(SHOWN).collect();
    match held.count() {
        0 => shown.join(" "),
        more => format!("{} and of {more} more", shown.join(" ")),
    }
}

pub(crate) async fn run(global: &Global, arguments: Arguments) -> Result<(), Failure> {
    let client = config::connect(global).await?;
    let mut before = None;
    loop {
        let segments = client.segments(&arguments.topic).await?;
        if before.as_ref() != Some(&segments) {
            show(global, &segments)?;
        }
        if !arguments.watch {
            return Ok(());
        }
        before = Some(segments);
        client.runtime().sleep(EVERY).await;
    }
}

fn show(global: &Global, segments: &[Segment]) -> Result<(), Failure> {
    let rows: Vec<_> = segments
        .iter()
        .map(|segment| {
            let state = match segment.state {
                SegmentState::Open => "open",
                SegmentState::Sealed => "sealed",
                SegmentState::Compacted => "compacted",
                SegmentState::Published => "published",
            };
            let records: u64 = segment
                .start_offsets
                .iter()
                .zip(&segment.end_offsets)
                .map(|(s, e)| e.get().saturating_sub(s.get()))
                .sum();
            json!({
                "segment": segment.number,
                "partitions": inclusive(segment.range.lo().get().into(), segment.range.hi().get().into()),
                "lo": segment.range.lo(),
                "hi": segment.range.hi(),
                "state": state,
                "broker": segment.owner,
                "records": records,
                "offsets": offsets(segment),
                "start_offsets": segment.start_offsets,
                "end_offsets": segment.end_offsets,
                "bytes": segment.bytes,
                "files": segment.files,
            })
        })
        .collect();
    output::rows(
        global.output,
        &["segment", "partitions", "state", "broker", "records", "offsets", "bytes", "files"],
        &rows,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use refstream::types::{Offset, PartitionId, PartitionRange, SegmentNumber};

    #[test]
    fn ranges_in_the_table_include_both_ends() {
        assert_eq!(inclusive(0, 2), "0-1");
        assert_eq!(inclusive(3, 4), "3");
        let segment = |ends: &[u64]| Segment {
            number: SegmentNumber(1),
            range: PartitionRange::new(PartitionId(2), PartitionId(2 + ends.len() as u32)).unwrap(),
            state: SegmentState::Open,
            owner: None,
            start_offsets: ends.iter().map(|_| Offset(10)).collect(),
            end_offsets: ends.iter().copied().map(Offset).collect(),
            bytes: 0,
            files: Vec::new(),
        };
        assert_eq!(offsets(&segment(&[10, 20, 11])), "3:10-19 4:10");
        assert_eq!(offsets(&segment(&[12; 6])), "2:10-11 3:10-11 4:10-11 5:10-11 and of 2 more");
        assert_eq!(offsets(&segment(&[10])), "");
    }
}
