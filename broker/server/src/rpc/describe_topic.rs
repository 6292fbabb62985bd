//! DescribeTopic: settings and offsets.

use super::topic_response;
use crate::node::Node;
use refstream_proto::v1::{DescribeTopicRequest, DescribeTopicResponse, ErrorDetail};

pub(super) async fn call(node: &Node, request: &DescribeTopicRequest) -> Result<DescribeTopicResponse, ErrorDetail> {
    if request.with_offsets {
        node.confirm().await?;
    }
    let topic = node.topic(&request.name)?;
    let partitions = if request.with_offsets { node.offsets(&topic) } else { Vec::new() };
    Ok(DescribeTopicResponse { topic: Some(topic_response(&topic)), partitions })
}
