//! Seal: ends the topic's open segments that hold records, answers when that is durable.

use crate::{
    errors,
    node::{Node, unexpected},
};
use refstream_core::{Input, Reply};
use refstream_proto::v1::{ErrorDetail, SealRequest, SealResponse};

pub(super) async fn call(node: &Node, request: &SealRequest) -> Result<SealResponse, ErrorDetail> {
    let topic = node.topic(&request.topic).await?;
    match node.core.call(|ticket| Input::Seal { ticket, topic: topic.id }).await? {
        Reply::Sealed(Ok(segments)) => {
            let sealed: Vec<u64> = segments.into_iter().map(|number| number.0).collect();
            tracing::info!(topic = %topic.name, ?sealed, "segments sealed by request");
            Ok(SealResponse { sealed })
        }
        Reply::Sealed(Err(error)) => Err(errors::operation(&error)),
        other => Err(unexpected(&other)),
    }
}
