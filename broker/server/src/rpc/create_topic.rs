//! CreateTopic: answers when the topic is durable.

use super::topic_response;
use crate::{errors, node::Node};
use refstream_core::TopicOperation;
use refstream_proto::v1::{CreateTopicRequest, CreateTopicResponse, ErrorDetail};
use refstream_types::{TopicConfig, TopicName};

pub(super) async fn call(node: &Node, request: CreateTopicRequest) -> Result<CreateTopicResponse, ErrorDetail> {
    let name: TopicName = request.name.parse().map_err(errors::invalid)?;
    let config = TopicConfig::try_from(&request.config.unwrap_or_default()).map_err(errors::invalid)?;
    node.state()?;
    node.check_store(config.store.as_ref())?;
    let topic = node.change_topic(TopicOperation::Create { name, config }).await?;
    tracing::info!(topic = %topic.name, id = %topic.id, partitions = topic.config.partitions, "topic created");
    Ok(CreateTopicResponse { topic: Some(topic_response(&topic)) })
}
