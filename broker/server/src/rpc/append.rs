//! Append: batches in, offsets out.
//!
//! One task reads the stream: it checks each batch, waits until the stream's bytes in flight permit it, and hands the request to the
//! core, waiting for room in the core's queue; so requests reach the core in the order of the stream, and a client that is
//! faster than the store feels it through HTTP/2's windows. Responses are sent as their requests are decided. A batch that is damaged or
//! too large is refused in its own result; the stream goes on. So is one whose references are checked, see [`crate::receipts`], and name a payload
//! that is not there.
//!
//! When the client ends its side, what is in flight is still answered. When the broker drains or stops, no further request is
//! read; those that the core took are answered, with "outcome unknown" where it stopped before it knew.

use crate::{
    auth::Caller,
    errors,
    metrics::{CodeLabel, Counted, Metrics},
    node::Node,
};
use futures::{
    StreamExt,
    stream::{self, BoxStream},
};
use refstream_core::{Input, Reply};
use refstream_format::batch::{BatchHeader, EncodedBatch, MAX_BATCH_BYTES};
use refstream_proto::{
    into_status,
    v1::{self, AppendRequest, AppendResponse, AppendResult, ErrorDetail, append_result},
};
use refstream_types::{AckMode, PartitionId, TopicId};
use std::{collections::BTreeSet, sync::Arc, time::Duration};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

/// Batch bytes of one stream that may be undecided.
const STREAM_BYTES: usize = 32 << 20;
/// Requests of one stream that may be undecided.
const STREAM_REQUESTS: usize = 4_096;

/// What the broker found of each batch of a request before the core saw it.
enum Checked {
    /// It went to the core.
    Sent(BatchHeader, usize),
    /// It did not.
    Refused(ErrorDetail),
}

/// A request whose outcome is awaited.
struct Undecided {
    request_id: u64,
    checked: Vec<Checked>,
    reply: Option<oneshot::Receiver<Reply>>,
    received: Duration,
    _bytes: OwnedSemaphorePermit,
}

pub(super) fn call(
    node: &Arc<Node>,
    requests: Streaming<AppendRequest>,
    caller: Option<Caller>,
) -> Result<BoxStream<'static, Result<AppendResponse, Status>>, ErrorDetail> {
    node.state()?;
    let (undecided, decided) = mpsc::channel(STREAM_REQUESTS);
    tokio::spawn(read(Arc::clone(node), requests, caller, undecided));
    let (deciding, closing) = (Arc::clone(node), node.closing.clone());
    let counted = Counted::new(&node.metrics.append_streams);
    let responses = ReceiverStream::new(decided)
        .map(move |undecided| {
            let (node, _) = (Arc::clone(&deciding), &counted);
            async move { Ok(decide(&node, undecided).await) }
        })
        .buffer_unordered(STREAM_REQUESTS);
    // Comes after every response, since a status ends the stream.
    let end = stream::once(async move {
        closing.is_cancelled().then(|| {
            Err(into_status(errors::unavailable(
                "the broker is stopping; send what was not answered again once it was restarted, or elsewhere",
            )))
        })
    });
    Ok(responses.chain(end.filter_map(std::future::ready)).boxed())
}

/// Reads requests until the client's side ends, the client is gone, or the broker stops.
async fn read(
    node: Arc<Node>,
    mut requests: Streaming<AppendRequest>,
    caller: Option<Caller>,
    undecided: mpsc::Sender<Undecided>,
) {
    let bytes = Arc::new(Semaphore::new(STREAM_BYTES));
    loop {
        let request = tokio::select! {
            biased;
            () = node.closing.cancelled() => return,
            () = undecided.closed() => return,
            request = requests.message() => match request {
                Ok(Some(request)) => request,
                // The client has ended its side, or is gone: nobody is left to be told of an error.
                Ok(None) | Err(_) => return,
            },
        };
        let received = node.runtime.now();
        let weight = request.batches.iter().map(|batch| batch.batch.len()).sum::<usize>().min(STREAM_BYTES);
        let Ok(permit) = Arc::clone(&bytes).acquire_many_owned(u32::try_from(weight).unwrap_or(u32::MAX)).await else {
            return;
        };
        let request_id = request.request_id;
        let granted = node.receipts.applies(request.granted, caller.as_ref());
        let (mut checked, mut input) = check(request);
        if granted {
            input = with_payloads(&node, &mut checked, input).await;
        }
        let (checked, reply) = match input {
            None => (checked, None),
            Some((topic, batches, ack, bulk)) => {
                match node.core.send(|ticket| Input::Append { ticket, topic, batches, ack, bulk }).await {
                    Ok(reply) => (checked, Some(reply)),
                    Err(detail) => (checked.into_iter().map(|each| each.or_refused(&detail)).collect(), None),
                }
            }
        };
        let next = Undecided { request_id, checked, reply, received, _bytes: permit };
        if undecided.send(next).await.is_err() {
            return;
        }
    }
}

impl Checked {
    fn or_refused(self, detail: &ErrorDetail) -> Self {
        match self {
            Self::Sent(..) => Self::Refused(detail.clone()),
            refused @ Self::Refused(_) => refused,
        }
    }
}

type Append = (TopicId, Vec<(PartitionId, EncodedBatch)>, AckMode, bool);

/// Checks every batch by itself; what is good goes on to the core.
fn check(request: AppendRequest) -> (Vec<Checked>, Option<Append>) {
    let ack = match v1::AckMode::try_from(request.ack_mode) {
        Ok(v1::AckMode::Durable) => AckMode::Durable,
        Ok(v1::AckMode::Replicated) => AckMode::Replicated,
        Err(_) => {
            let detail = errors::unsupported(format!(
                "the ack mode {} is unknown to this broker; use DURABLE or a newer broker",
                request.ack_mode
            ));
            return (request.batches.iter().map(|_| Checked::Refused(detail.clone())).collect(), None);
        }
    };
    let mut partitions = BTreeSet::new();
    let mut good = Vec::with_capacity(request.batches.len());
    let checked = request
        .batches
        .into_iter()
        .map(|v1::PartitionBatch { partition, batch }| {
            let length = batch.len();
            if length > MAX_BATCH_BYTES {
                return Checked::Refused(errors::too_large(partition, length, MAX_BATCH_BYTES));
            }
            match EncodedBatch::parse(batch) {
                Err(error) => Checked::Refused(errors::corrupt_batch(partition, error)),
                Ok(_) if !partitions.insert(partition) => Checked::Refused(errors::invalid(format!(
                    "partition {partition} has two batches in one request; send the second in the next request"
                ))),
                Ok(batch) => {
                    let header = batch.header();
                    good.push((PartitionId(partition), batch));
                    Checked::Sent(header, length)
                }
            }
        })
        .collect();
    let append = (!good.is_empty()).then_some((TopicId(request.topic_id), good, ack, request.bulk));
    (checked, append)
}

/// Refuses the batches whose references name payloads that are not there.
async fn with_payloads(node: &Node, checked: &mut [Checked], input: Option<Append>) -> Option<Append> {
    let (topic, batches, ack, bulk) = input?;
    let mut good = Vec::with_capacity(batches.len());
    let mut sent = checked.iter_mut().filter(|checked| matches!(checked, Checked::Sent(..)));
    for (partition, batch) in batches {
        let mine = sent.next();
        match (node.receipts.check(partition.0, &batch).await, mine) {
            (Err(refused), Some(mine)) => *mine = Checked::Refused(refused),
            _ => good.push((partition, batch)),
        }
    }
    (!good.is_empty()).then_some((topic, good, ack, bulk))
}

/// Waits for the core's answer and makes the response of it.
async fn decide(node: &Node, undecided: Undecided) -> AppendResponse {
    let mut outcomes = match undecided.reply {
        None => Vec::new().into_iter(),
        Some(reply) => match reply.await {
            Ok(Reply::Append(outcomes)) => outcomes.into_iter(),
            // The broker stopped: what was sent to it may be committed.
            Ok(_) | Err(_) => Vec::new().into_iter(),
        },
    };
    let metrics = &node.metrics;
    let results = undecided
        .checked
        .into_iter()
        .map(|checked| {
            let result = match checked {
                Checked::Refused(detail) => refused(metrics, detail),
                Checked::Sent(header, length) => match outcomes.next() {
                    Some(Ok(appended)) => {
                        if !appended.duplicate {
                            metrics.appended_records.inc_by(u64::from(header.records));
                            metrics.appended_bytes.inc_by(length as u64);
                            metrics.appended_payload_bytes.inc_by(header.payload_bytes);
                        }
                        append_result::Result::Appended(v1::Appended {
                            base_offset: appended.base_offset.0,
                            append_time: appended.append_time.as_micros(),
                            duplicate: appended.duplicate,
                        })
                    }
                    Some(Err(error)) => refused(metrics, errors::append(&error)),
                    None => refused(metrics, errors::outcome_unknown()),
                },
            };
            AppendResult { result: Some(result) }
        })
        .collect();
    metrics.append_latency.observe(node.runtime.now().saturating_sub(undecided.received).as_secs_f64());
    AppendResponse { request_id: undecided.request_id, results }
}

fn refused(metrics: &Metrics, detail: ErrorDetail) -> append_result::Result {
    metrics.append_refused.get_or_create(&CodeLabel { code: detail.code().as_str_name() }).inc();
    append_result::Result::Error(detail)
}
