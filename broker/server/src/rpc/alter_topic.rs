//! AlterTopic: changes what is set in the request, answers when that is durable.

use super::topic_response;
use crate::{errors, node::Node};
use refstream_core::{TopicChange, TopicOperation};
use refstream_proto::v1::{AlterTopicRequest, AlterTopicResponse, ErrorDetail};
use refstream_types::StoreName;
use std::time::Duration;

pub(super) async fn call(node: &Node, request: AlterTopicRequest) -> Result<AlterTopicResponse, ErrorDetail> {
    let topic = node.topic(&request.name).await?;
    let retention = match (request.clear_retention, request.retention_micros) {
        (true, Some(_)) => {
            return Err(errors::invalid("retention is to be set and cleared in one request; do one of the two"));
        }
        (true, None) => Some(None),
        (false, retention) => retention.map(|micros| Some(Duration::from_micros(micros))),
    };
    let store = match request.store.as_deref() {
        None => None,
        Some("") => Some(None),
        Some(store) => Some(Some(store.parse::<StoreName>().map_err(errors::invalid)?)),
    };
    node.check_store(store.as_ref().and_then(Option::as_ref))?;
    let change = TopicChange {
        retention,
        store,
        inline_max: request.inline_max,
        seal_bytes: request.seal_bytes,
        seal_age: request.seal_age_micros.map(Duration::from_micros),
        file_bytes: request.file_bytes,
        publish_lag: request.publish_lag_micros.map(Duration::from_micros),
    };
    let topic = node.change_topic(TopicOperation::Alter { topic: topic.id, change }).await?;
    tracing::info!(topic = %topic.name, id = %topic.id, "topic altered");
    Ok(AlterTopicResponse { topic: Some(topic_response(&topic)) })
}
