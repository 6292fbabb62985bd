//! GrantReads: permissions to read objects.

use super::{ASKS_AT_ONCE, Granter};
use crate::node::Node;
use futures::{StreamExt as _, stream};
use refstream_filer_adapter::grant;
use refstream_proto::v1::{
    ErrorDetail, GrantReadsRequest, GrantReadsResponse, NeedleRead, ReadAsk, ReadGrant, read_grant,
};

pub(in crate::rpc) async fn call(node: &Node, request: GrantReadsRequest) -> Result<GrantReadsResponse, ErrorDetail> {
    super::check_count(request.asks.len())?;
    let granter = Granter::of(node, &request.store)?;
    let granter = &granter;
    let grants = stream::iter(request.asks).map(|ask| async move {
        let granted = match asked(granter, &ask) {
            Ok(ask) => granter.grants.read(&ask).await.map_err(|error| super::refused(&error)),
            Err(refused) => Err(refused),
        };
        match granted {
            Ok(granted) => {
                node.metrics.granted("read");
                answer(granted)
            }
            Err(error) => ReadGrant { result: Some(read_grant::Result::Error(error)), life_micros: 0 },
        }
    });
    Ok(GrantReadsResponse { grants: grants.buffered(ASKS_AT_ONCE).collect().await })
}

fn asked(granter: &Granter<'_>, ask: &ReadAsk) -> Result<grant::ReadAsk, ErrorDetail> {
    let key = super::key(&ask.key)?;
    granter.scope.check_read(&key)?;
    if let Some(version) = &ask.version {
        super::store_name("version", version)?;
    }
    Ok(grant::ReadAsk { key, version: ask.version.clone(), head: ask.head })
}

fn answer(granted: grant::ReadGrant) -> ReadGrant {
    let life_micros = super::micros(granted.life());
    let result = match granted {
        grant::ReadGrant::Request(request) => read_grant::Result::Request(super::signed(request)),
        grant::ReadGrant::Needle { servers, token, .. } => read_grant::Result::Needle(NeedleRead { servers, token }),
    };
    ReadGrant { result: Some(result), life_micros }
}
