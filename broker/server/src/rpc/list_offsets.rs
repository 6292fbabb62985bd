//! ListOffsets: where partitions start and end, and where a time lies.
//!
//! The end of a partition is told by the broker that owns its open segment, once it has proven that nobody has taken over from it. The
//! called broker asks the others for theirs, again and again while a partition changes hands.
//!
//! A time is looked up among the batches that the broker serves itself: exact, since a batch has one append time. Where closed files may
//! hold an earlier record of that time, the answer is the first offset of the partition in the earliest file whose append times reach
//! it: at or before the record asked for. A client drops what is older as it reads on.

use crate::{errors, node::Node};
use futures::future::join_all;
use refstream_format::{cluster_log::TopicState, manifest::DataFile};
use refstream_proto::v1::{ErrorDetail, ListOffsetsRequest, ListOffsetsResponse, PartitionOffsets};
use refstream_types::{Epoch, PartitionId, Timestamp, TopicId};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// Between two questions for partitions that change hands.
const AGAIN: Duration = Duration::from_millis(20);

/// What is known of each partition: its offsets, and where the time that was asked for lies.
type Known = BTreeMap<u32, (PartitionOffsets, u64)>;

pub(super) async fn call(node: &Node, request: &ListOffsetsRequest) -> Result<ListOffsetsResponse, ErrorDetail> {
    let id = TopicId(request.topic_id);
    let at = request.at.map(Timestamp::from_micros);
    let (partitions, at) = if request.own {
        node.topic_by_id(id).await?;
        split(own(node, id, at).await?, at)
    } else {
        all(node, id, at).await?
    };
    Ok(ListOffsetsResponse { partitions, at })
}

fn split(known: Known, at: Option<Timestamp>) -> (Vec<PartitionOffsets>, Vec<u64>) {
    let (partitions, times): (Vec<_>, Vec<_>) = known.into_values().unzip();
    (partitions, if at.is_some() { times } else { Vec::new() })
}

/// The partitions that this broker serves.
async fn own(node: &Node, id: TopicId, at: Option<Timestamp>) -> Result<Known, ErrorDetail> {
    node.confirm().await?;
    // What was ours and confirmed then is told; read behind the proof, the state names nothing that was taken from us before.
    let state = node.state()?;
    let mine = node.core.status.borrow().0.epoch;
    let topic = state.topics.get(&id).filter(|topic| !topic.deleted).ok_or_else(|| errors::no_such_topic_id(id))?;
    let owned: Vec<_> = topic.open.values().filter(|open| Some(open.owner) == mine).collect();
    let partitions: Vec<PartitionId> = owned.iter().flat_map(|open| open.range.iter()).collect();
    let times = match at {
        Some(at) => offsets_at(node, topic, &partitions, at).await?,
        None => vec![0; partitions.len()],
    };
    let indexed = node.reader.topic(id);
    let bytes = owned.iter().flat_map(|open| {
        let bytes = indexed.as_ref().map_or(0, |indexed| indexed.segment_bytes(open.id.number));
        open.range.iter().map(move |_| bytes)
    });
    let told = partitions.into_iter().zip(times).zip(bytes).map(|((partition, time), segment_bytes)| {
        // Nothing is removed from a topic but with the topic, so all start at 0.
        let latest = indexed.as_ref().map_or(0, |indexed| indexed.latest(partition).0);
        (partition.0, (PartitionOffsets { partition: partition.0, earliest: 0, latest, segment_bytes }, time))
    });
    Ok(told.collect())
}

/// All partitions of a topic, from whoever serves them.
pub(super) async fn all(
    node: &Node,
    id: TopicId,
    at: Option<Timestamp>,
) -> Result<(Vec<PartitionOffsets>, Vec<u64>), ErrorDetail> {
    let deadline = node.runtime.now() + node.stuck_after;
    let mut known = Known::new();
    loop {
        let topic = node.topic_by_id(id).await?;
        let state = node.state()?;
        let mine = node.core.status.borrow().0.epoch;
        let missing = |partition: &PartitionId| !known.contains_key(&partition.0);
        let wanted = topic.open.values().filter(|open| open.range.iter().any(|partition| missing(&partition)));
        let owners: BTreeSet<Epoch> = wanted.map(|open| open.owner).collect();
        let asked = owners.into_iter().map(|owner| {
            let endpoint = state.epochs.get(&owner).map(|epoch| epoch.endpoint.clone());
            async move {
                if Some(owner) == mine {
                    return own(node, id, at).await;
                }
                let endpoint = endpoint.ok_or_else(|| errors::unavailable("its broker is gone"))?;
                let request = ListOffsetsRequest { topic_id: id.0, at: at.map(Timestamp::as_micros), own: true };
                let answer = tokio::select! {
                    answer = node.peers.own_offsets(&endpoint, request) => answer?,
                    // It may be gone without a word.
                    () = node.runtime.sleep(node.stuck_after / 5) => {
                        return Err(errors::unavailable(format!("the broker at {endpoint} does not answer")));
                    }
                };
                let times = answer.at.into_iter().chain(std::iter::repeat(0));
                Ok(answer.partitions.into_iter().zip(times).map(|(p, time)| (p.partition, (p, time))).collect())
            }
        });
        let mut failure = None;
        for answer in join_all(asked).await {
            match answer {
                Ok(told) => known.extend(told),
                Err(error) => failure = Some(error),
            }
        }
        if known.len() >= topic.partitions() as usize {
            return Ok(split(known, at));
        }
        let failure = failure.unwrap_or_else(|| errors::unavailable("some partitions are changing hands; try again"));
        if !failure.retryable || node.runtime.now() >= deadline {
            return Err(failure);
        }
        node.runtime.sleep(AGAIN).await;
    }
}

async fn offsets_at(
    node: &Node,
    topic: &TopicState,
    partitions: &[PartitionId],
    at: Timestamp,
) -> Result<Vec<u64>, ErrorDetail> {
    let indexed = node.reader.topic(topic.id).ok_or_else(|| errors::no_such_topic_id(topic.id))?;
    let mut found = Vec::with_capacity(partitions.len());
    let mut files: Option<Vec<DataFile>> = None;
    for partition in partitions.iter().copied() {
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
