//! DescribeDeployment: what a client must know before it can upload or read files.

use crate::{
    errors,
    node::{Node, SOFTWARE},
};
use refstream_format::batch::MAX_BATCH_BYTES;
use refstream_proto::v1::{DescribeDeploymentResponse, ErrorDetail, Store};

pub(super) fn call(node: &Node) -> Result<DescribeDeploymentResponse, ErrorDetail> {
    let state = node.state()?;
    let epoch = node.core.status.borrow().0.epoch;
    let default = node.stores.first().ok_or_else(|| errors::internal("no store is configured at this broker"))?;
    Ok(DescribeDeploymentResponse {
        broker_software: SOFTWARE.into(),
        epoch: epoch.map_or(0, |epoch| epoch.0),
        stores: node
            .stores
            .iter()
            .map(|store| Store { grants: node.grants.contains_key(&store.name), ..store.description.clone() })
            .collect(),
        default_store: default.name.to_string(),
        metadata_store: node.metadata_store.to_string(),
        root: node.layout.root().into(),
        brokers: node.brokers(&state),
        max_batch_bytes: u32::try_from(MAX_BATCH_BYTES).unwrap_or(u32::MAX),
    })
}
