//! OpenProducer: a new identity.

use crate::{
    errors,
    node::{Node, unexpected},
};
use refstream_core::{Input, Reply};
use refstream_proto::v1::{ErrorDetail, OpenProducerResponse};

pub(super) async fn call(node: &Node) -> Result<OpenProducerResponse, ErrorDetail> {
    match node.core.call(|ticket| Input::OpenProducer { ticket }).await? {
        Reply::Producer(Ok((id, epoch))) => Ok(OpenProducerResponse { producer_id: id.0, producer_epoch: epoch.0 }),
        Reply::Producer(Err(error)) => Err(errors::operation(&error)),
        other => Err(unexpected(&other)),
    }
}
