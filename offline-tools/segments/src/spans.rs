//! Arithmetic on [`SegmentSpan`]s: which rows a file holds and where in it they are.

use refstream_format::{journal::BatchLocation, manifest::SegmentSpan};
use refstream_types::{Offset, PartitionId, PartitionRange};
use std::collections::BTreeMap;

/// Rows of a span.
pub(crate) fn rows(span: &SegmentSpan) -> u64 {
    span.start_offsets.iter().zip(&span.end_offsets).map(|(start, end)| end.0.saturating_sub(start.0)).sum()
}

/// A run of dense offsets of one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Run {
    pub(crate) partition: PartitionId,
    pub(crate) start: Offset,
    pub(crate) end: Offset,
}

impl Run {
    pub(crate) fn len(self) -> u64 {
        self.end.0 - self.start.0
    }
}

/// The runs of a file's spans in the order of its rows.
pub(crate) fn runs(spans: &[SegmentSpan]) -> Vec<Run> {
    let mut runs: Vec<Run> = spans
        .iter()
        .flat_map(|span| span.range.iter().zip(span.start_offsets.iter().zip(&span.end_offsets)))
        .filter(|(_, (start, end))| start < end)
        .map(|(partition, (start, end))| Run { partition, start: *start, end: *end })
        .collect();
    runs.sort_unstable();
    runs
}

/// What lies between the runs of each partition in `spans`.
pub(crate) fn between(spans: &[SegmentSpan]) -> Vec<Run> {
    let runs = runs(spans);
    let gap = |two: &[Run]| {
        let (before, after) = (two[0], two[1]);
        (before.partition == after.partition && before.end < after.start).then_some(Run {
            partition: before.partition,
            start: before.end,
            end: after.start,
        })
    };
    runs.windows(2).filter_map(gap).collect()
}

/// The first part of `gap` that none of `held` covers.
pub(crate) fn uncovered(gap: Run, held: &[SegmentSpan]) -> Option<Run> {
    let mut start = gap.start;
    for run in runs(held).into_iter().filter(|run| run.partition == gap.partition) {
        if run.start > start {
            return (start < gap.end).then_some(Run { start, end: run.start.min(gap.end), ..gap });
        }
        start = start.max(run.end);
    }
    (start < gap.end).then_some(Run { start, ..gap })
}

/// The rows (first, number) of a file that hold `partition` from `offset` on.
pub(crate) fn rows_from(spans: &[SegmentSpan], partition: PartitionId, offset: Offset) -> (u64, u64) {
    let (mut before, mut within) = (0, 0);
    for run in runs(spans) {
        if (run.partition, run.end) <= (partition, offset) {
            before += run.len();
        } else if run.partition == partition {
            let skipped = offset.0.saturating_sub(run.start.0);
            before += skipped;
            within += run.len() - skipped;
        }
    }
    (before, within)
}

/// The smallest range of partitions that covers all spans.
pub(crate) fn range(spans: &[SegmentSpan]) -> Option<PartitionRange> {
    let lo = spans.iter().map(|span| span.range.lo()).min()?;
    let hi = spans.iter().map(|span| span.range.hi()).max()?;
    PartitionRange::new(lo, hi)
}

/// A segment by UTC day of append time: its span, and the batches in it. Parts without rows do not appear.
///
/// # Errors
/// Says where the batches do not cover exactly the segment's offsets, or where time runs backwards over midnight.
pub(crate) fn by_day(
    whole: &SegmentSpan,
    batches: &[BatchLocation],
) -> Result<BTreeMap<i64, (SegmentSpan, Vec<BatchLocation>)>, String> {
    let mut days: BTreeMap<i64, Vec<BatchLocation>> = BTreeMap::new();
    for batch in batches {
        days.entry(batch.append_time.day()).or_default().push(*batch);
    }
    let mut next = whole.start_offsets.clone();
    let mut parts = BTreeMap::new();
    for (day, mut batches) in days {
        batches.sort_unstable_by_key(|batch| (batch.partition, batch.base_offset));
        let start = next.clone();
        for batch in &batches {
            let at = whole
                .range
                .index_of(batch.partition)
                .ok_or_else(|| format!("a batch of partition {} is not in {}", batch.partition, whole.range))?;
            if batch.base_offset != next[at] {
                return Err(format!(
                    "partition {}: a batch starts at offset {} where {} is due",
                    batch.partition, batch.base_offset, next[at]
                ));
            }
            next[at] = Offset(batch.base_offset.0 + u64::from(batch.records));
        }
        let span =
            SegmentSpan { number: whole.number, range: whole.range, start_offsets: start, end_offsets: next.clone() };
        parts.insert(day, (span, batches));
    }
    if next != whole.end_offsets {
        return Err("its batches do not reach its end offsets".into());
    }
    Ok(parts)
}
