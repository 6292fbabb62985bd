//! Uploads in parts, for clients that only store the parts: StartUpload, ListParts, CompleteUpload, AbortUpload.
//!
//! A crash of client or broker between any two steps leaves parts that belong to no object; the store's own rules remove them, or whoever goes on
//! with the upload by its id.

use super::Granter;
use crate::{errors, node::Node};
use refstream_filer_adapter::{CreateError, Part};
use refstream_proto::v1::{
    AbortUploadRequest, AbortUploadResponse, CompleteUploadRequest, CompleteUploadResponse, ErrorDetail,
    ListPartsRequest, ListPartsResponse, StartUploadRequest, StartUploadResponse, UploadedPart,
};
use refstream_types::Key;

/// The upload that a call is about.
fn upload<'a>(node: &'a Node, store: &str, key: &str, id: &str) -> Result<(Granter<'a>, Key), ErrorDetail> {
    let granter = Granter::of(node, store)?;
    let key = super::key(key)?;
    granter.scope.check_write(&key)?;
    super::store_name("upload's id", id)?;
    Ok((granter, key))
}

fn parts(given: &[UploadedPart]) -> Result<Vec<Part>, ErrorDetail> {
    given.iter().map(super::part).collect()
}

pub(in crate::rpc) async fn start(
    node: &Node,
    request: StartUploadRequest,
) -> Result<StartUploadResponse, ErrorDetail> {
    let granter = Granter::of(node, &request.store)?;
    let key = super::key(&request.key)?;
    granter.scope.check_write(&key)?;
    let attributes = super::attributes(&request.attributes.unwrap_or_default())?;
    let upload = granter.grants.start_upload(&key, &attributes).await.map_err(|error| super::refused(&error))?;
    node.metrics.granted("start_upload");
    Ok(StartUploadResponse { upload })
}

pub(in crate::rpc) async fn list(node: &Node, request: ListPartsRequest) -> Result<ListPartsResponse, ErrorDetail> {
    let (granter, key) = upload(node, &request.store, &request.key, &request.upload)?;
    let parts = granter.grants.parts(&key, &request.upload).await.map_err(|error| super::refused(&error))?;
    let part = |part: Part| UploadedPart {
        number: part.number,
        etag: part.etag,
        size: part.size,
        checksum: part.checksum.map(|sum| sum.0),
    };
    Ok(ListPartsResponse { parts: parts.into_iter().map(part).collect() })
}

pub(in crate::rpc) async fn complete(
    node: &Node,
    request: CompleteUploadRequest,
) -> Result<CompleteUploadResponse, ErrorDetail> {
    let (granter, key) = upload(node, &request.store, &request.key, &request.upload)?;
    let parts = parts(&request.parts)?;
    if parts.is_empty() || !parts.is_sorted_by(|a, b| a.number < b.number) {
        return Err(errors::invalid("an object needs at least one part, ascending by number and each once"));
    }
    super::check_note(request.note.as_deref())?;
    let completed = granter.grants.complete_upload(&key, &request.upload, &parts, request.note.as_deref()).await;
    let completed = completed.map_err(|error| {
        let happened = matches!(error, CreateError::MayHaveHappened(_));
        ErrorDetail { no_side_effects: !happened, ..super::refused(error.error()) }
    })?;
    node.metrics.granted("complete_upload");
    let (beside_server, beside) = completed.beside.unzip();
    Ok(CompleteUploadResponse {
        key: completed.stored.key.to_string(),
        size: completed.stored.size,
        etag: completed.stored.etag,
        beside_server: beside_server.unwrap_or_default(),
        beside: beside.map(super::place),
    })
}

pub(in crate::rpc) async fn abort(
    node: &Node,
    request: AbortUploadRequest,
) -> Result<AbortUploadResponse, ErrorDetail> {
    let (granter, key) = upload(node, &request.store, &request.key, &request.upload)?;
    let parts = parts(&request.parts)?;
    granter.grants.abort_upload(&key, &request.upload, &parts).await.map_err(|error| super::refused(&error))?;
    Ok(AbortUploadResponse {})
}
