//! The batches of sealed segments, from journal objects, in the order of a file, in bounded memory.
//!
//! A journal object holds batches of many segments, so a segment's batches lie scattered over its slots. They are read in
//! passes: each takes the next batches in file order up to [`PASS_BYTES`], groups them by object, fetches near ranges of one
//! object with one request, and hands out the batches in file order. One pass is decoded while the next is read.

use crate::CompactError;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use refstream_format::{batch::EncodedBatch, journal::BatchLocation};
use refstream_journal::{Metadata, ReadError};
use refstream_types::{ByteRange, Epoch, Slot};
use std::collections::BTreeMap;

/// Encoded bytes of the batches of one pass at most (a batch has at most 4 MiB).
pub(crate) const PASS_BYTES: u64 = 8 << 20;
/// Batches with a smaller gap than this between them are fetched with one request.
const MAX_GAP: u64 = 64 << 10;
/// Bytes of a request at most.
const MAX_REQUEST: u64 = 8 << 20;
/// Requests at a time.
const REQUESTS: usize = 4;

/// A batch and the journal it is in.
pub(crate) type Placed = (Epoch, BatchLocation);

/// Cuts batches (in file order) into passes of at most `limit` bytes, or one batch.
pub(crate) fn passes(batches: &[Placed], limit: u64) -> Vec<&[Placed]> {
    let mut passes = Vec::new();
    let (mut from, mut bytes) = (0, 0);
    for (at, (_, batch)) in batches.iter().enumerate() {
        let length = batch.range().length;
        if at > from && bytes + length > limit {
            passes.push(&batches[from..at]);
            (from, bytes) = (at, 0);
        }
        bytes += length;
    }
    passes.push(&batches[from..]);
    passes
}

/// One range of one object, and which batches of the pass are in it.
struct Request {
    epoch: Epoch,
    slot: Slot,
    range: ByteRange,
    batches: Vec<usize>,
}

fn requests(pass: &[Placed]) -> Vec<Request> {
    let mut objects: BTreeMap<(Epoch, Slot), Vec<usize>> = BTreeMap::new();
    for (at, (epoch, batch)) in pass.iter().enumerate() {
        objects.entry((*epoch, batch.slot)).or_default().push(at);
    }
    let mut requests: Vec<Request> = Vec::new();
    for ((epoch, slot), mut batches) in objects {
        batches.sort_unstable_by_key(|at| pass[*at].1.bytes.0);
        let mut open: Option<Request> = None;
        for at in batches {
            let range = pass[at].1.range();
            let end = range.offset + range.length;
            match &mut open {
                Some(request)
                    if range.offset <= request.range.offset + request.range.length + MAX_GAP
                        && end - request.range.offset <= MAX_REQUEST =>
                {
                    request.range.length = end.max(request.range.offset + request.range.length) - request.range.offset;
                    request.batches.push(at);
                }
                _ => requests.extend(open.replace(Request { epoch, slot, range, batches: vec![at] })),
            }
        }
        requests.extend(open);
    }
    requests
}

/// The encoded batches of a pass, in its order, checked.
pub(crate) async fn fetch(metadata: &Metadata, pass: &[Placed]) -> Result<Vec<EncodedBatch>, CompactError> {
    let fetched: Vec<Vec<(usize, EncodedBatch)>> = stream::iter(requests(pass))
        .map(|request| async move {
            let key = metadata.layout().journal(request.epoch, request.slot);
            let found = metadata.filer().read_range(&key, request.range).await.map_err(ReadError::Store)?;
            let bytes = found.ok_or_else(|| ReadError::Gone(key.clone()))?;
            let wanted: u64 = request.batches.iter().map(|at| pass[*at].1.range().length).sum();
            let mostly_gaps = wanted * 2 < bytes.len() as u64;
            let mut batches = Vec::with_capacity(request.batches.len());
            for at in request.batches {
                let location = &pass[at].1;
                let from = (location.range().offset - request.range.offset) as usize;
                let to = (from + location.range().length as usize).min(bytes.len());
                let piece = bytes.slice(from.min(to)..to);
                let piece = if mostly_gaps { Bytes::copy_from_slice(&piece) } else { piece };
                let damaged = |error| ReadError::Damaged { key: key.clone(), error };
                let batch = EncodedBatch::parse(piece).map_err(damaged)?;
                if batch.header().records != location.records {
                    let why =
                        format!("the batch at byte {} has another number of records than its index", location.bytes.0);
                    return Err(CompactError::File { uri: key.to_string(), why });
                }
                batches.push((at, batch));
            }
            Ok::<_, CompactError>(batches)
        })
        .buffer_unordered(REQUESTS)
        .try_collect()
        .await?;
    let mut in_order: Vec<(usize, EncodedBatch)> = fetched.into_iter().flatten().collect();
    in_order.sort_unstable_by_key(|(at, _)| *at);
    Ok(in_order.into_iter().map(|(_, batch)| batch).collect())
}
