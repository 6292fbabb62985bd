//! Repeating batches that an earlier process left undecided.

use super::{Decided, engine::append_request};
use crate::{
    Client, NotAcked, ProduceError, TopicError,
    backoff::Backoff,
    broker::{Failure, MAX_ANSWER_BYTES},
    records,
};
use refstream_format::batch::EncodedBatch;
use refstream_proto::v1::{self, ErrorCode, append_result, records_client::RecordsClient};
use refstream_types::{AckMode, Offset, PartitionId, TopicId, TopicName};
use std::time::Duration;

/// How long a batch is repeated before it stays undecided.
const REPEAT_FOR: Duration = Duration::from_secs(300);

/// Sends exactly these bytes again until a broker decides. The caller has made sure that the topic did not hold the batch a moment ago, and
/// calls this for a partition's batches in their order.
///
/// * The broker knows the producer and has the batch (it landed meanwhile): it answers with the offset that it has.
/// * It knows the producer and this batch is next: it is appended, and a late copy will be recognised.
/// * It does not know the producer (expired), or the sequence does not follow: it is refused, and so would a late copy be.
pub(crate) async fn replay(
    client: &Client,
    topic: &TopicName,
    topic_id: TopicId,
    partition: PartitionId,
    batch: &EncodedBatch,
) -> Result<Decided, ProduceError> {
    let runtime = client.runtime();
    let start = runtime.now();
    let mut backoff = Backoff::new();
    loop {
        let why = match attempt(client, topic, topic_id, partition, batch).await? {
            Ok(decided) => return Ok(decided),
            Err(why) => why,
        };
        let delay = backoff.next(&**runtime);
        if runtime.now() - start + delay > REPEAT_FOR {
            return Err(ProduceError::NotAcked(Box::new(NotAcked {
                topic: topic.clone(),
                partition,
                why,
                may_have_happened: true,
                class: crate::ErrorClass::Unreachable,
                retryable: true,
            })));
        }
        runtime.sleep(delay).await;
    }
}

/// One attempt; the inner error is a reason to try again.
async fn attempt(
    client: &Client,
    topic: &TopicName,
    topic_id: TopicId,
    partition: PartitionId,
    batch: &EncodedBatch,
) -> Result<Result<Decided, String>, ProduceError> {
    let routes = match records::lookup(client.brokers(), topic, Some(topic_id)).await {
        Ok(routes) => routes,
        Err(error @ TopicError::NotFound(_)) => return Err(error.into()),
        Err(error) if error.is_retryable() => return Ok(Err(error.to_string())),
        Err(error) => return Err(error.into()),
    };
    let Some(endpoint) = routes.endpoint(partition) else {
        return Ok(Err(format!("no broker serves partition {partition} now")));
    };
    let channel = match client.brokers().channel(endpoint) {
        Ok(channel) => channel,
        Err(error) => return Ok(Err(error.to_string())),
    };
    let mut calls = RecordsClient::new(channel)
        .max_decoding_message_size(MAX_ANSWER_BYTES)
        .max_encoding_message_size(MAX_ANSWER_BYTES);
    let mut request = append_request(1, topic_id, AckMode::Durable, true);
    request.batches.push(v1::PartitionBatch { partition: partition.0, batch: batch.bytes().clone() });
    // The stream stays open until it has answered.
    let (open, requests) = tokio::sync::mpsc::channel(1);
    let _ = open.send(request).await;
    let answer = async {
        let mut answers = calls.append(tokio_stream::wrappers::ReceiverStream::new(requests)).await?.into_inner();
        answers.message().await
    };
    let answer = match answer.await {
        Ok(answer) => answer,
        Err(status) => return Ok(Err(Failure::of(endpoint, &status).why)),
    };
    drop(open);
    match answer.and_then(|answer| answer.results.into_iter().next()?.result) {
        Some(append_result::Result::Appended(appended)) => {
            Ok(Ok(Decided::Placed { partition, base: Offset(appended.base_offset) }))
        }
        Some(append_result::Result::Error(detail)) => match detail.code() {
            ErrorCode::UnknownProducer | ErrorCode::OutOfSequence | ErrorCode::ProducerFenced => {
                Ok(Ok(Decided::Refused))
            }
            _ if detail.retryable => Ok(Err(detail.message)),
            _ => Err(ProduceError::NotAcked(Box::new(NotAcked {
                topic: topic.clone(),
                partition,
                why: detail.message,
                may_have_happened: true,
                class: crate::ErrorClass::Failed,
                retryable: false,
            }))),
        },
        None => Ok(Err("the broker ended the stream without an answer".into())),
    }
}
