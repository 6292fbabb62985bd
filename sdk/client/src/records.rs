//! Calls about records that are neither appends nor reads.

use crate::{
    CallError, PartitionOffsets, TopicError,
    broker::{Brokers, MAX_ANSWER_BYTES, Patience},
    topics::{TopicDescription, calls},
};
use refstream_proto::v1::{self, records_client::RecordsClient};
use refstream_types::{Offset, PartitionId, ProducerEpoch, ProducerId, Timestamp, TopicId, TopicName};

/// Which broker serves which partitions.
#[derive(Clone, Debug)]
pub(crate) struct Routes {
    pub(crate) topic: TopicDescription,
    /// The endpoint of each partition, by number; `None` where nobody serves it now.
    pub(crate) endpoints: Vec<Option<String>>,
}

impl Routes {
    pub(crate) fn endpoint(&self, partition: PartitionId) -> Option<&str> {
        self.endpoints.get(partition.0 as usize)?.as_deref()
    }
}

/// Looks a topic up.
pub(crate) async fn lookup(brokers: &Brokers, name: &TopicName) -> Result<Routes, TopicError> {
    let request = v1::LookupRequest { topic: name.to_string() };
    let answered = brokers
        .call(Patience::Timeout, |channel| {
            let request = request.clone();
            async move { RecordsClient::new(channel).max_decoding_message_size(MAX_ANSWER_BYTES).lookup(request).await }
        })
        .await
        .map_err(|error| TopicError::of(name, error))?;
    brokers.learn(&answered.brokers);
    let topic = calls::description(brokers, answered.topic.as_ref(), &[]).map_err(TopicError::Call)?;
    let mut endpoints = vec![None; topic.config.partitions as usize];
    for assignment in &answered.assignments {
        let endpoint = match assignment.endpoint.as_str() {
            "" => brokers.endpoint(),
            endpoint => endpoint,
        };
        let hi = (assignment.hi as usize).min(endpoints.len());
        for slot in endpoints.get_mut(assignment.lo as usize..hi).unwrap_or_default() {
            *slot = Some(endpoint.to_owned());
        }
    }
    Ok(Routes { topic, endpoints })
}

/// A new producer identity.
pub(crate) async fn open_producer(brokers: &Brokers) -> Result<(ProducerId, ProducerEpoch), CallError> {
    let answered = brokers
        .call(Patience::Timeout, |channel| async move {
            RecordsClient::new(channel).open_producer(v1::OpenProducerRequest {}).await
        })
        .await?;
    Ok((ProducerId(answered.producer_id), ProducerEpoch(answered.producer_epoch)))
}

/// Offsets of every partition, and where asked the first at or after a time.
pub(crate) async fn list_offsets(
    brokers: &Brokers,
    topic: TopicId,
    at: Option<Timestamp>,
) -> Result<(Vec<PartitionOffsets>, Vec<Offset>), CallError> {
    let request = v1::ListOffsetsRequest { topic_id: topic.0, at: at.map(Timestamp::as_micros), own: false };
    let answered = brokers
        .call(Patience::Timeout, |channel| async move {
            RecordsClient::new(channel).max_decoding_message_size(MAX_ANSWER_BYTES).list_offsets(request).await
        })
        .await?;
    let partitions: Vec<_> = answered.partitions.iter().map(calls::offsets).collect();
    let at: Vec<_> = answered.at.iter().copied().map(Offset).collect();
    Ok((partitions, at))
}
