//! `refstream segments`.

use crate::{Global, config, exit::Failure, output};
use refstream::{SegmentState, types::TopicName};
use serde_json::json;

/// A topic's segments: number, partitions, state, offsets, bytes, files
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  refstream segments images --output jsonl")]
pub(crate) struct Arguments {
    /// The topic
    topic: TopicName,
}

pub(crate) async fn run(global: &Global, arguments: Arguments) -> Result<(), Failure> {
    let segments = config::connect(global).await?.segments(&arguments.topic).await?;
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
                "partitions": format!("{}-{}", segment.range.lo(), segment.range.hi()),
                "lo": segment.range.lo(),
                "hi": segment.range.hi(),
                "state": state,
                "records": records,
                "start_offsets": segment.start_offsets,
                "end_offsets": segment.end_offsets,
                "bytes": segment.bytes,
                "files": segment.files,
            })
        })
        .collect();
    output::rows(global.output, &["segment", "partitions", "state", "records", "bytes", "files"], &rows)
}
