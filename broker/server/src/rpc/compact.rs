//! Compact: puts the topic's sealed segments into files now.

use crate::{errors, node::Node};
use refstream_proto::v1::{CompactRequest, CompactResponse, ErrorDetail};
use std::sync::Arc;

pub(super) async fn call(node: &Node, request: &CompactRequest) -> Result<CompactResponse, ErrorDetail> {
    // What another broker has sealed before this call is to be in files after it.
    node.refresh().await?;
    let topic = node.topic(&request.topic).await?;
    let (compaction, publish) = (Arc::clone(&node.compaction), request.publish);
    if !compaction.is_available() {
        return Err(errors::unsupported(
            "this broker has no compactor; run one beside it, or ask a broker that has one",
        ));
    }
    if !request.own
        && let Some(endpoint) = compaction.elsewhere(topic.id)
    {
        return node.peers.compact(&endpoint, request.clone()).await;
    }
    // A task of its own: a client that goes away does not leave half of the work.
    let work = tokio::spawn(async move { compaction.compact_topic(topic.id, publish).await });
    let done =
        work.await.map_err(|_| errors::internal("the compaction failed unexpectedly; the broker's log says why"))??;
    Ok(CompactResponse {
        segments: u32::try_from(done.segments.len()).unwrap_or(u32::MAX),
        files: done.files,
        rows: done.rows,
        bytes: done.bytes,
    })
}
