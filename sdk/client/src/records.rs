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

/// Looks a topic up; `known`: the identity that it has had. Identities rise, so a broker that answers with a lower one has not heard yet that
/// that topic was deleted, and counts as one that does not answer: the next one is asked.
pub(crate) async fn lookup(brokers: &Brokers, name: &TopicName, known: Option<TopicId>) -> Result<Routes, TopicError> {
    let request = v1::LookupRequest { topic: name.to_string(), ..v1::LookupRequest::default() };
    let answered = brokers
        .call(Patience::Timeout, |channel| {
            let request = request.clone();
            async move {
                let mut client = RecordsClient::new(channel).max_decoding_message_size(MAX_ANSWER_BYTES);
                let answered = client.lookup(request).await?;
                let found = answered.get_ref().topic.as_ref().map(|topic| TopicId(topic.id));
                match (found, known) {
                    (Some(found), Some(known)) if found < known => Err(tonic::Status::unavailable(format!(
                        "it is behind: it answers for the topic {found}, which was deleted and made again as {known}"
                    ))),
                    _ => Ok(answered),
                }
            }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ErrorClass,
        broker::Bearer,
        doubles::{Clock, looks_up, lookup_answer},
    };
    use refstream_filer_adapter::{Runtime, TokioRuntime};
    use std::{sync::Arc, time::Duration};

    fn brokers(endpoints: &[String], timeout: Duration, runtime: Arc<dyn Runtime>) -> Brokers {
        Brokers::new(&endpoints.join(","), timeout, Bearer::default(), None, runtime).unwrap()
    }

    #[tokio::test]
    async fn a_broker_that_is_behind_is_passed_over() {
        let endpoints = [looks_up(lookup_answer(3)), looks_up(lookup_answer(7))];
        let brokers = brokers(&endpoints, Duration::from_secs(30), Arc::new(TokioRuntime::new()));
        let name = "t".parse().unwrap();
        let first = lookup(&brokers, &name, None).await.unwrap();
        assert_eq!(first.topic.id, TopicId(3), "who knows nothing believes what it is told");
        for known in [7, 5] {
            let found = lookup(&brokers, &name, Some(TopicId(known))).await.unwrap();
            assert_eq!(found.topic.id, TopicId(7), "as known, or made again since");
        }
    }

    #[tokio::test]
    async fn a_topic_is_not_gone_because_every_broker_is_behind() {
        // One attempt, which has the time it needs.
        let clock = Arc::new(Clock::default());
        let brokers = brokers(&[looks_up(lookup_answer(3))], Duration::from_millis(1), clock);
        let error = lookup(&brokers, &"t".parse().unwrap(), Some(TopicId(4))).await.unwrap_err();
        assert!(error.is_retryable() && error.class() == ErrorClass::Unreachable, "{error}");
        assert!(error.to_string().contains("behind"), "{error}");
    }
}
