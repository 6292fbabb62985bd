//! ListTopics: all live topics, by name.

use super::topic_response;
use crate::node::Node;
use refstream_proto::v1::{ErrorDetail, ListTopicsResponse};

pub(super) fn call(node: &Node) -> Result<ListTopicsResponse, ErrorDetail> {
    let state = node.state()?;
    let mut topics: Vec<_> =
        state.topics.values().filter(|topic| !topic.deleted).map(|topic| topic_response(topic)).collect();
    topics.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(ListTopicsResponse { topics })
}
