//! ListSegments: open and sealed ones from the cluster's state, closed ones from the topic's manifest.
//!
//! The bytes of a closed segment are its share of its files by rows; who owned it is not kept.

use super::list_offsets;
use crate::node::Node;
use refstream_format::{
    cluster_log::OpenSegment,
    manifest::{DataFile, SegmentSpan, Tier},
};
use refstream_proto::v1::{
    ErrorDetail, ListSegmentsRequest, ListSegmentsResponse, PartitionOffsets, Segment, SegmentState,
};
use refstream_types::Offset;
use std::collections::BTreeMap;

pub(super) async fn call(node: &Node, request: &ListSegmentsRequest) -> Result<ListSegmentsResponse, ErrorDetail> {
    let topic = node.topic(&request.topic).await?;
    let indexed = node.reader.topic(topic.id);
    let mine = node.core.status.borrow().0.epoch;
    // How far others' open segments are, they know; without their answer they are shown as far as they are known here.
    let told: BTreeMap<u32, PartitionOffsets> = match topic.open.values().any(|open| Some(open.owner) != mine) {
        true => {
            let told = list_offsets::all(node, topic.id, None).await.map(|(told, _)| told).unwrap_or_default();
            told.into_iter().map(|offsets| (offsets.partition, offsets)).collect()
        }
        false => BTreeMap::new(),
    };
    let mut segments = BTreeMap::new();
    for open in topic.open.values() {
        let ends = open.range.iter().zip(&open.start_offsets).map(|(partition, start)| {
            let here = indexed.as_ref().map_or(*start, |indexed| indexed.latest(partition));
            told.get(&partition.0).map_or(here, |told| Offset(told.latest)).max(*start)
        });
        let here = indexed.as_ref().map_or(0, |indexed| indexed.segment_bytes(open.id.number));
        let segment = Segment {
            end_offsets: numbers(ends),
            bytes: told.get(&open.range.lo().0).map_or(here, |told| told.segment_bytes),
            ..living(open, SegmentState::Open)
        };
        segments.insert(segment.number, segment);
    }
    for sealed in topic.sealed.values() {
        let segment = Segment {
            end_offsets: numbers(sealed.end_offsets.iter().copied()),
            bytes: sealed.bytes,
            ..living(&sealed.opened, SegmentState::Sealed)
        };
        segments.insert(segment.number, segment);
    }
    let prefix = uri_prefix(node);
    let mut closed = BTreeMap::new();
    for file in node.compaction.files(&topic).await? {
        add_file(&mut closed, &file, &prefix);
    }
    // A segment that is in files and still in the state is closed for every reader of the manifest.
    segments.extend(closed);
    Ok(ListSegmentsResponse { segments: segments.into_values().collect() })
}

fn uri_prefix(node: &Node) -> String {
    let store = node.stores.iter().find(|store| store.name == node.metadata_store);
    store.map(|store| store.description.uri_prefix.clone()).unwrap_or_default()
}

fn numbers(offsets: impl Iterator<Item = Offset>) -> Vec<u64> {
    offsets.map(|offset| offset.0).collect()
}

fn living(opened: &OpenSegment, state: SegmentState) -> Segment {
    Segment {
        number: opened.id.number.0,
        lo: opened.range.lo().0,
        hi: opened.range.hi().0,
        state: state.into(),
        epoch: opened.owner.0,
        start_offsets: numbers(opened.start_offsets.iter().copied()),
        ..Segment::default()
    }
}

fn rows(span: &SegmentSpan) -> u64 {
    span.start_offsets.iter().zip(&span.end_offsets).map(|(start, end)| end.0.saturating_sub(start.0)).sum()
}

fn add_file(segments: &mut BTreeMap<u64, Segment>, file: &DataFile, prefix: &str) {
    for span in &file.segments {
        let published = file.tier == Tier::Data;
        let segment = segments.entry(span.number.0).or_insert_with(|| Segment {
            number: span.number.0,
            lo: span.range.lo().0,
            hi: span.range.hi().0,
            state: SegmentState::Published.into(),
            start_offsets: numbers(span.start_offsets.iter().copied()),
            end_offsets: numbers(span.end_offsets.iter().copied()),
            ..Segment::default()
        });
        // A segment that crosses midnight has a part in the file of each day.
        for (known, start) in segment.start_offsets.iter_mut().zip(&span.start_offsets) {
            *known = start.0.min(*known);
        }
        for (known, end) in segment.end_offsets.iter_mut().zip(&span.end_offsets) {
            *known = end.0.max(*known);
        }
        if !published {
            segment.set_state(SegmentState::Compacted);
        }
        let share = u128::from(file.bytes) * u128::from(rows(span)) / u128::from(file.rows.max(1));
        segment.bytes += u64::try_from(share).unwrap_or(u64::MAX);
        segment.files.push(format!("{prefix}{}", file.key));
    }
}
