//! AlterTopic: changes what is set in the request, answers when that is durable.

use super::topic_response;
use crate::{errors, node::Node};
use refstream_core::TopicOperation;
use refstream_proto::v1::{AlterTopicRequest, AlterTopicResponse, ErrorDetail};
use std::time::Duration;

pub(super) async fn call(node: &Node, request: AlterTopicRequest) -> Result<AlterTopicResponse, ErrorDetail> {
    let topic = node.topic(&request.name).await?;
    let mut config = topic.config;
    if request.clear_retention {
        if request.retention_micros.is_some() {
            return Err(errors::invalid("retention is to be set and cleared in one request; do one of the two"));
        }
        config.retention = None;
    }
    if let Some(retention) = request.retention_micros {
        config.retention = Some(Duration::from_micros(retention));
    }
    if let Some(store) = request.store {
        config.store = if store.is_empty() { None } else { Some(store.parse().map_err(errors::invalid)?) };
    }
    if let Some(inline_max) = request.inline_max {
        config.inline_max = inline_max;
    }
    if let Some(seal_bytes) = request.seal_bytes {
        config.seal_bytes = seal_bytes;
    }
    if let Some(seal_age) = request.seal_age_micros {
        config.seal_age = Duration::from_micros(seal_age);
    }
    if let Some(file_bytes) = request.file_bytes {
        config.file_bytes = file_bytes;
    }
    if let Some(publish_lag) = request.publish_lag_micros {
        config.publish_lag = Duration::from_micros(publish_lag);
    }
    config.validate().map_err(errors::invalid)?;
    node.check_store(config.store.as_ref())?;
    let topic = node.change_topic(TopicOperation::Alter { topic: topic.id, config }).await?;
    tracing::info!(topic = %topic.name, id = %topic.id, "topic altered");
    Ok(AlterTopicResponse { topic: Some(topic_response(&topic)) })
}
