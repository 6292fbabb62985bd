//! GrantUploads: permissions to store bodies.

use super::{ASKS_AT_ONCE, Granter, MAX_BODY_BYTES, MAX_PART_NUMBER};
use crate::{errors, node::Node};
use futures::{StreamExt as _, stream};
use refstream_filer_adapter::grant::{self, UploadKind};
use refstream_proto::v1::{
    ErrorDetail, GrantUploadsRequest, GrantUploadsResponse, NeedleGrant, UploadAsk, UploadGrant, upload_ask,
    upload_grant,
};
use refstream_types::Crc32c;

pub(in crate::rpc) async fn call(
    node: &Node,
    request: GrantUploadsRequest,
) -> Result<GrantUploadsResponse, ErrorDetail> {
    super::check_count(request.asks.len())?;
    let granter = Granter::of(node, &request.store)?;
    let granter = &granter;
    let grants = stream::iter(request.asks).map(|ask| async move {
        let granted = match asked(granter, &ask) {
            Ok(ask) => granter.grants.upload(&ask).await.map_err(|error| super::refused(&error)),
            Err(refused) => Err(refused),
        };
        match granted {
            Ok(granted) => {
                node.metrics.granted("upload");
                answer(granted)
            }
            Err(error) => UploadGrant { result: Some(upload_grant::Result::Error(error)), life_micros: 0 },
        }
    });
    Ok(GrantUploadsResponse { grants: grants.buffered(ASKS_AT_ONCE).collect().await })
}

fn asked(granter: &Granter<'_>, ask: &UploadAsk) -> Result<grant::UploadAsk, ErrorDetail> {
    let key = super::key(&ask.key)?;
    granter.scope.check_write(&key)?;
    if ask.size > MAX_BODY_BYTES {
        return Err(errors::invalid(format!("a body of {} bytes is too large; upload it in parts", ask.size)));
    }
    let kind = match &ask.kind {
        None => UploadKind::Object(super::attributes(&Default::default())?),
        Some(upload_ask::Kind::Object(attributes)) => UploadKind::Object(super::attributes(attributes)?),
        Some(upload_ask::Kind::Part(part)) => {
            super::store_name("upload's id", &part.upload)?;
            if !(1..=MAX_PART_NUMBER).contains(&part.number) {
                let why = format!("parts are numbered from 1 to {MAX_PART_NUMBER}, not {}", part.number);
                return Err(errors::invalid(why));
            }
            UploadKind::Part { upload: part.upload.clone(), number: part.number }
        }
    };
    Ok(grant::UploadAsk { key, size: ask.size, checksum: Crc32c(ask.checksum), kind })
}

fn answer(granted: grant::UploadGrant) -> UploadGrant {
    let (result, life) = match granted {
        grant::UploadGrant::Request(request) => {
            let life = request.life;
            (upload_grant::Result::Request(super::signed(request)), life)
        }
        grant::UploadGrant::Needle(needle) => {
            let needle = *needle;
            let grant = NeedleGrant {
                key: needle.key.to_string(),
                server: needle.server,
                place: Some(super::place(needle.place)),
                beside: Some(super::place(needle.beside)),
                proof: needle.proof,
            };
            (upload_grant::Result::Needle(grant), needle.life)
        }
    };
    UploadGrant { result: Some(result), life_micros: super::micros(life) }
}
