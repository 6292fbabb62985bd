//! DeleteTopic: ends the topic, answers when that is durable.

use crate::node::Node;
use refstream_core::TopicOperation;
use refstream_proto::v1::{DeleteTopicRequest, DeleteTopicResponse, ErrorDetail};

pub(super) async fn call(node: &Node, request: &DeleteTopicRequest) -> Result<DeleteTopicResponse, ErrorDetail> {
    let topic = node.topic(&request.name).await?;
    node.change_topic(TopicOperation::Delete { topic: topic.id }).await?;
    tracing::info!(topic = %topic.name, id = %topic.id, "topic deleted");
    Ok(DeleteTopicResponse {})
}
