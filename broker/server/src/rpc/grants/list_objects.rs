//! ListObjects: a topic's files and manifest, for clients that cannot list themselves.

use super::Granter;
use crate::{errors, node::Node};
use refstream_proto::v1::{ErrorDetail, ListObjectsRequest, ListObjectsResponse, ListedObject};

/// The most objects of one answer.
const MAX_OBJECTS: u32 = 1_000;

pub(in crate::rpc) async fn call(
    node: &Node,
    request: &ListObjectsRequest,
) -> Result<ListObjectsResponse, ErrorDetail> {
    let granter = Granter::of(node, &request.store)?;
    granter.scope.check_list(&request.prefix)?;
    let after = request.after.as_deref().map(super::key).transpose()?;
    if !(1..=MAX_OBJECTS).contains(&request.limit) {
        return Err(errors::invalid(format!("list 1 to {MAX_OBJECTS} objects at once, not {}", request.limit)));
    }
    let listed = granter.grants.list(&request.prefix, after.as_ref(), request.limit as usize).await;
    let listed = listed.map_err(|error| super::refused(&error))?;
    let objects = listed.into_iter().map(|object| ListedObject {
        key: object.key.to_string(),
        size: object.size,
        etag: object.etag,
    });
    Ok(ListObjectsResponse { objects: objects.collect() })
}
