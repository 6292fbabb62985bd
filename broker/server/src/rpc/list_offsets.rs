//! ListOffsets: where partitions start and end, and where a time lies.
//!
//! A time is looked up among the batches that the broker serves itself: exact, since a batch has one append time. Where closed files may
//! hold an earlier record of that time, the answer is the first offset of the partition in the earliest file whose append times reach
//! it: at or before the record asked for. A client drops what is older as it reads on.

use crate::{errors, node::Node};
use refstream_format::{cluster_log::TopicState, manifest::DataFile};
use refstream_proto::v1::{ErrorDetail, ListOffsetsRequest, ListOffsetsResponse};
use refstream_types::{PartitionId, Timestamp, TopicId};

pub(super) async fn call(node: &Node, request: &ListOffsetsRequest) -> Result<ListOffsetsResponse, ErrorDetail> {
    let id = TopicId(request.topic_id);
    node.confirm().await?;
    let state = node.state()?;
    let topic = state.topics.get(&id).filter(|topic| !topic.deleted).ok_or_else(|| errors::no_such_topic_id(id))?;
    let at = match request.at {
        Some(at) => offsets_at(node, topic, Timestamp::from_micros(at)).await?,
        None => Vec::new(),
    };
    Ok(ListOffsetsResponse { partitions: node.offsets(topic), at })
}

async fn offsets_at(node: &Node, topic: &TopicState, at: Timestamp) -> Result<Vec<u64>, ErrorDetail> {
    let indexed = node.reader.topic(topic.id).ok_or_else(|| errors::no_such_topic_id(topic.id))?;
    let mut found = Vec::with_capacity(indexed.partitions());
    let mut files: Option<Vec<DataFile>> = None;
    for partition in (0..topic.config.partitions).map(PartitionId) {
        // Before the look at the index: what is committed meanwhile is younger.
        let latest = indexed.latest(partition);
        let (here, in_files) = node.reader.offset_at(&indexed, partition, at).await?;
        let mut offset = here.map_or(latest.0, |here| here.0);
        if in_files && indexed.first(partition).0 > 0 {
            if files.is_none() {
                files = Some(node.compaction.files(topic).await?);
            }
            let earlier = files.iter().flatten().filter(|file| file.append_times.1 >= at);
            let starts = earlier.flat_map(|file| &file.segments).filter_map(|span| {
                let index = span.range.index_of(partition)?;
                let (start, end) = (span.start_offsets.get(index)?, span.end_offsets.get(index)?);
                (start < end).then_some(start.0)
            });
            offset = starts.fold(offset, u64::min);
        }
        found.push(offset);
    }
    Ok(found)
}
