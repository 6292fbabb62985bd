//! DescribeTopic: settings and offsets.

use super::{list_offsets, topic_response};
use crate::node::Node;
use refstream_proto::v1::{DescribeTopicRequest, DescribeTopicResponse, ErrorDetail};

pub(super) async fn call(node: &Node, request: &DescribeTopicRequest) -> Result<DescribeTopicResponse, ErrorDetail> {
    let topic = node.topic(&request.name).await?;
    let partitions = if request.with_offsets { list_offsets::all(node, topic.id, None).await?.0 } else { Vec::new() };
    Ok(DescribeTopicResponse { topic: Some(topic_response(&topic)), partitions })
}
