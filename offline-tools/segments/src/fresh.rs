//! Sealed segments to fresh files: one for each UTC day of append time that a group of segments has rows of.

use crate::{
    CompactError, Compactor,
    output::Output,
    source::{self, Placed},
    spans,
    writer::FRESH_ROW_GROUP_BYTES,
};
use refstream_format::{
    cluster_log::{SealedSegment, TopicState},
    manifest::{DataFile, SegmentSpan, Tier},
};
use refstream_types::{SegmentNumber, Timestamp, TopicFolder};
use std::collections::BTreeMap;

/// Journal bytes of small segments that go into one fresh file.
const GROUP_BYTES: u64 = 64 << 20;
/// Segments that go into one fresh file at most.
const GROUP_SEGMENTS: usize = 256;
/// Microseconds of a day.
pub(crate) const DAY_MICROS: i64 = 86_400_000_000;

/// What one day's file will hold.
#[derive(Default)]
struct Day {
    spans: Vec<SegmentSpan>,
    batches: Vec<Placed>,
}

/// The first segments of `missing` that make one fresh file.
pub(crate) fn first_group<'a>(missing: &[&'a SealedSegment]) -> Vec<&'a SealedSegment> {
    let mut bytes = 0;
    let mut group = Vec::new();
    for segment in missing {
        if !group.is_empty() && (bytes + segment.bytes > GROUP_BYTES || group.len() >= GROUP_SEGMENTS) {
            break;
        }
        bytes += segment.bytes;
        group.push(*segment);
    }
    group
}

fn whole(segment: &SealedSegment) -> SegmentSpan {
    SegmentSpan {
        number: segment.opened.id.number,
        range: segment.opened.range,
        start_offsets: segment.opened.start_offsets.clone(),
        end_offsets: segment.end_offsets.clone(),
    }
}

impl Compactor {
    /// Writes the fresh files of a group of segments; no manifest names them yet.
    pub(crate) async fn write_fresh(
        &self,
        topic: &TopicState,
        group: &[&SealedSegment],
    ) -> Result<Vec<DataFile>, CompactError> {
        let mut days: BTreeMap<i64, Day> = BTreeMap::new();
        for segment in group {
            let batches = self.metadata.segment_batches(segment).await?;
            let parts = spans::by_day(&whole(segment), &batches)
                .map_err(|why| CompactError::Segment { segment: segment.opened.id, why })?;
            for (day, (span, batches)) in parts {
                let file = days.entry(day).or_default();
                file.spans.push(span);
                file.batches.extend(batches.into_iter().map(|batch| (segment.opened.owner, batch)));
            }
        }
        let mut files = Vec::new();
        for (day, mut file) in days {
            file.spans.sort_unstable_by_key(|span| span.number);
            file.batches.sort_unstable_by_key(|(_, batch)| (batch.partition, batch.base_offset));
            files.push(self.write_day(topic, day, file).await?);
        }
        Ok(files)
    }

    async fn write_day(&self, topic: &TopicState, day: i64, file: Day) -> Result<DataFile, CompactError> {
        let folder = TopicFolder::new(&topic.name, topic.id);
        let midnight = Timestamp::from_micros(day * DAY_MICROS);
        let (Some(range), Some(ends)) = (spans::range(&file.spans), ends(&file.spans)) else {
            return Err(CompactError::Write { uri: folder.to_string(), why: "a day without segments".into() });
        };
        let key = self.metadata.layout().fresh_file(&folder, ends, range, midnight, self.runtime.token());
        let mut output = Output::new(
            &self.files,
            key,
            Tier::Fresh,
            (&topic.name, topic.id),
            self.stores.clone(),
            (file.spans.iter().map(spans::rows).sum(), FRESH_ROW_GROUP_BYTES),
        )?;
        for pass in source::passes(&file.batches) {
            if let Err(error) = self.copy_pass(&mut output, pass).await {
                output.abandon().await;
                return Err(error);
            }
        }
        output.finish(file.spans, None).await
    }

    async fn copy_pass(&self, output: &mut Output, pass: &[Placed]) -> Result<(), CompactError> {
        let batches = source::fetch(&self.metadata, pass).await?;
        let mut rows = Vec::new();
        for (placed, batch) in pass.iter().zip(batches) {
            rows.extend(source::rows(&self.metadata, placed, &batch)?);
            if rows.len() >= crate::writer::BATCH_ROWS {
                output.rows(std::mem::take(&mut rows)).await?;
            }
        }
        output.rows(rows).await
    }
}

/// The lowest and highest segment.
pub(crate) fn ends(spans: &[SegmentSpan]) -> Option<(SegmentNumber, SegmentNumber)> {
    let numbers = spans.iter().map(|span| span.number);
    Some((numbers.clone().min()?, numbers.max()?))
}
