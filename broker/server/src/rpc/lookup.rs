//! Lookup: which broker serves which partitions, now or once that may have changed.

use super::topic_response;
use crate::node::Node;
use refstream_format::cluster_log::TopicState;
use refstream_proto::v1::{Assignment, ErrorDetail, LookupRequest, LookupResponse};
use std::time::Duration;

pub(super) async fn call(node: &Node, request: &LookupRequest) -> Result<LookupResponse, ErrorDetail> {
    node.wait_for_change(request.after, Duration::from_micros(request.wait_micros)).await;
    let topic = node.topic(&request.topic).await?;
    let state = node.state()?;
    // Assignments and version of one state.
    let topic = state.topics.get(&topic.id).map_or(topic, |topic| TopicState::clone(topic));
    let assignments = topic
        .open
        .values()
        .filter_map(|segment| {
            // Of an owner that is fenced nobody can get anything: its segment is about to be sealed.
            let owner = state.epochs.get(&segment.owner).filter(|owner| owner.fence.is_none())?;
            Some(Assignment {
                segment: segment.id.number.0,
                lo: segment.range.lo().0,
                hi: segment.range.hi().0,
                epoch: segment.owner.0,
                endpoint: owner.endpoint.clone(),
            })
        })
        .collect();
    Ok(LookupResponse {
        topic: Some(topic_response(&topic)),
        assignments,
        brokers: node.brokers(&state),
        version: state.version.0,
    })
}
