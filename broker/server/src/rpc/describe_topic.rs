//! DescribeTopic: settings and offsets.

use super::topic_response;
use crate::node::Node;
use refstream_proto::v1::{DescribeTopicRequest, DescribeTopicResponse, ErrorDetail};

pub(super) async fn call(node: &Node, request: &DescribeTopicRequest) -> Result<DescribeTopicResponse, ErrorDetail> {
    node.confirm().await?;
    let topic = node.topic(&request.name)?;
    Ok(DescribeTopicResponse { topic: Some(topic_response(&topic)), partitions: node.offsets(&topic) })
}
