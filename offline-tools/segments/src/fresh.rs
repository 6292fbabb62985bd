//! Sealed segments to fresh files: one for each UTC day of append time that a group of segments has rows of.
//!
//! Three stages work at once on one file, with bounded channels between them: *fetch* reads the batches of a pass from journal
//! objects, *decode* (a blocking thread, [`Decoding`]) makes columns of their records, *encode* (another one, [`Output`]) writes
//! Parquet, while what is finished is uploaded. A stage that fails closes its channels and thereby ends the others; nothing names the
//! file, so giving up its upload is all there is to undo.
//!
//! In memory at most: two passes of [`PASS_BYTES`](source::PASS_BYTES) as encoded (one being decoded, one being read), with what lies
//! between their batches up to twice that; one decoded batch (16 MiB); `COLUMNS_AHEAD` + 2 sets of columns of 8 MiB; one row group,
//! whose rows take [`FRESH_ROW_GROUP_BYTES`]; two upload parts of 8 MiB. A record of 2 MiB can exceed each of the limits by itself.

use crate::{
    CompactError, Compactor,
    decoding::Decoding,
    output::Output,
    source::{self, Placed},
    spans,
    writer::FRESH_ROW_GROUP_BYTES,
};
use refstream_format::{
    batch::EncodedBatch,
    cluster_log::{SealedSegment, TopicState},
    manifest::{DataFile, SegmentSpan, Tier},
};
use refstream_types::{SegmentNumber, Timestamp, TopicFolder};
use std::collections::BTreeMap;
use tokio::sync::mpsc;

/// Journal bytes of small segments that go into one fresh file.
const GROUP_BYTES: u64 = 64 << 20;
/// Segments that go into one fresh file at most.
const GROUP_SEGMENTS: usize = 256;
/// Passes that are read while one is decoded.
const PASSES_AHEAD: usize = 1;
/// Sets of columns that wait while one is encoded.
const COLUMNS_AHEAD: usize = 1;
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

pub(crate) fn whole(segment: &SealedSegment) -> SegmentSpan {
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
        let (to_decode, passes) = mpsc::channel::<Vec<(Placed, EncodedBatch)>>(PASSES_AHEAD);
        let (to_encode, columns) = mpsc::channel(COLUMNS_AHEAD);
        let (layout, uri) = (self.metadata.layout().clone(), self.files.uri(&key));
        let names = (topic.name.clone(), self.stores.clone());
        let decoding = Decoding::new(layout, uri.clone(), spans::runs(&file.spans), names, to_encode);
        let decode = tokio::task::spawn_blocking(move || decoding.run(passes));
        // Each stage owns its ends of the channels: one that fails closes them, upon which the others end.
        let (metadata, batches, limit) = (&self.metadata, file.batches, self.limits.pass_bytes);
        let fetch = async move {
            for pass in source::passes(&batches, limit) {
                let Ok(room) = to_decode.reserve().await else { break };
                let fetched = source::fetch(metadata, pass).await?;
                room.send(pass.iter().copied().zip(fetched).collect());
            }
            Ok::<_, CompactError>(())
        };
        let output = Output {
            key,
            tier: Tier::Fresh,
            topic: (topic.name.clone(), topic.id),
            segments: file.spans,
            group_bytes: FRESH_ROW_GROUP_BYTES,
        };
        let (fetched, decoded, written) = tokio::join!(fetch, decode, output.write(&self.files, columns));
        // The first stage that failed says why; what the others say follows from that.
        fetched?;
        let failed = |why: String| CompactError::Write { uri: uri.clone(), why };
        decoded.map_err(|error| failed(error.to_string()))??;
        written?.ok_or_else(|| failed("its rows ended too early".into()))
    }
}

/// The lowest and highest segment.
pub(crate) fn ends(spans: &[SegmentSpan]) -> Option<(SegmentNumber, SegmentNumber)> {
    let numbers = spans.iter().map(|span| span.number);
    Some((numbers.clone().min()?, numbers.max()?))
}
