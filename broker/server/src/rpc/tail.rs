//! Tail: committed records as they come.
//!
//! The stream sends batches that hold the offsets asked for; a batch may start before the position. A partition that reaches its
//! end is reported once as caught up, and again only after it was behind by more than the batch just sent. A partition that
//! fails (records in files only, offset past the end, damage) is reported once and takes no further part; the others go on. Without
//! `follow` the stream ends once every partition is at the end it had when the call began, or failed.

use crate::{errors, node::Node, reader::Tail};
use futures::{StreamExt, stream, stream::BoxStream};
use refstream_proto::v1::{ErrorDetail, PartitionError, TailRequest, TailResponse, tail_response::Event};
use refstream_types::{Offset, PartitionId, TopicId};
use std::{collections::BTreeSet, sync::Arc};
use tonic::Status;

pub(super) async fn call(
    node: &Node,
    request: TailRequest,
) -> Result<BoxStream<'static, Result<TailResponse, Status>>, ErrorDetail> {
    let id = TopicId(request.topic_id);
    node.topic_by_id(id).await?;
    let topic = node.reader.topic(id).filter(|topic| !topic.has_ended()).ok_or_else(|| errors::no_such_topic_id(id))?;
    if request.positions.is_empty() {
        return Err(errors::invalid("a tail needs at least one position (partition and offset)"));
    }
    let (mut seen, mut positions, mut refused) = (BTreeSet::new(), Vec::new(), Vec::new());
    for position in request.positions {
        let partition = position.partition;
        if !seen.insert(partition) {
            return Err(errors::invalid(format!("partition {partition} is named twice; a tail reads it once")));
        }
        if partition as usize >= topic.partitions() {
            let error = Some(errors::no_such_partition(partition, topic.partitions()));
            refused.push(Ok(TailResponse { event: Some(Event::Error(PartitionError { partition, error })) }));
        } else {
            positions.push((PartitionId(partition), Offset(position.offset)));
        }
    }
    let tail = Tail::new(Arc::clone(&node.reader), topic, positions, request.follow, node.closing.clone())?;
    let tail = stream::unfold(tail, |mut tail| async move { tail.next().await.map(|response| (response, tail)) });
    Ok(stream::iter(refused).chain(tail).boxed())
}
