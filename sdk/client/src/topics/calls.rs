//! The calls, one a function.

use super::{AlterTopic, BrokerDescription, PartitionOffsets, Segment, SegmentState, TopicDescription};
use crate::{
    CallError, RefusedConfig, TopicError,
    broker::{Brokers, Patience},
};
use refstream_proto::v1::{
    self, cluster_client::ClusterClient, segments_client::SegmentsClient, topics_client::TopicsClient,
};
use refstream_types::{
    Epoch, Offset, PartitionId, PartitionRange, SegmentNumber, Timestamp, TopicConfig, TopicId, TopicName,
};
use std::time::Duration;

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Reads a topic as a broker describes it.
pub(crate) fn description(
    brokers: &Brokers,
    topic: Option<&v1::Topic>,
    partitions: &[v1::PartitionOffsets],
) -> Result<TopicDescription, CallError> {
    let topic = topic.ok_or_else(|| brokers.invalid_answer("the field topic is missing"))?;
    let config = topic.config.as_ref().ok_or_else(|| brokers.invalid_answer("the field topic.config is missing"))?;
    Ok(TopicDescription {
        id: TopicId(topic.id),
        name: topic.name.parse().map_err(|error| brokers.invalid_answer(format!("{error}")))?,
        config: TopicConfig::try_from(config).map_err(|error| brokers.invalid_answer(error.to_string()))?,
        created_at: Timestamp::from_micros(topic.created_at),
        partitions: partitions.iter().map(offsets).collect(),
    })
}

pub(crate) fn offsets(offsets: &v1::PartitionOffsets) -> PartitionOffsets {
    PartitionOffsets {
        partition: PartitionId(offsets.partition),
        earliest: Offset(offsets.earliest),
        latest: Offset(offsets.latest),
    }
}

/// Creates a topic. When an attempt whose answer was lost has created it, that is recognised by its settings.
pub(crate) async fn create(
    brokers: &Brokers,
    name: &TopicName,
    config: &TopicConfig,
) -> Result<TopicDescription, TopicError> {
    config.validate().map_err(|error| TopicError::Config(RefusedConfig(error)))?;
    let request = v1::CreateTopicRequest { name: name.to_string(), config: Some(config.into()) };
    let answer = brokers
        .call(Patience::Timeout, |channel| {
            let request = request.clone();
            async move { TopicsClient::new(channel).create_topic(request).await }
        })
        .await;
    match answer {
        Ok(answered) => description(brokers, answered.topic.as_ref(), &[]).map_err(TopicError::Call),
        Err(error) => {
            let in_doubt = error.repeated_in_doubt();
            let error = TopicError::of(name, error);
            if in_doubt && matches!(error, TopicError::Exists(_)) {
                let found = settings(brokers, name).await?;
                if found.config == *config {
                    return Ok(found);
                }
            }
            Err(error)
        }
    }
}

/// Settings and offsets.
pub(crate) async fn describe(brokers: &Brokers, name: &TopicName) -> Result<TopicDescription, TopicError> {
    describe_with(brokers, name, true).await
}

/// Settings without offsets, which a broker answers at once.
pub(crate) async fn settings(brokers: &Brokers, name: &TopicName) -> Result<TopicDescription, TopicError> {
    describe_with(brokers, name, false).await
}

async fn describe_with(
    brokers: &Brokers,
    name: &TopicName,
    with_offsets: bool,
) -> Result<TopicDescription, TopicError> {
    let request = v1::DescribeTopicRequest { name: name.to_string(), with_offsets };
    let answered = brokers
        .call(Patience::Timeout, |channel| {
            let request = request.clone();
            async move {
                TopicsClient::new(channel)
                    .max_decoding_message_size(crate::broker::MAX_ANSWER_BYTES)
                    .describe_topic(request)
                    .await
            }
        })
        .await
        .map_err(|error| TopicError::of(name, error))?;
    description(brokers, answered.topic.as_ref(), &answered.partitions).map_err(TopicError::Call)
}

/// All topics, by name.
pub(crate) async fn list(brokers: &Brokers) -> Result<Vec<TopicDescription>, TopicError> {
    let answered = brokers
        .call(Patience::Timeout, |channel| async move {
            TopicsClient::new(channel)
                .max_decoding_message_size(crate::broker::MAX_ANSWER_BYTES)
                .list_topics(v1::ListTopicsRequest {})
                .await
        })
        .await
        .map_err(TopicError::Call)?;
    let topics = answered.topics.iter().map(|topic| description(brokers, Some(topic), &[]));
    let mut topics = topics.collect::<Result<Vec<_>, _>>().map_err(TopicError::Call)?;
    topics.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(topics)
}

/// Changes settings; changing them twice is the same.
pub(crate) async fn alter(
    brokers: &Brokers,
    name: &TopicName,
    change: &AlterTopic,
) -> Result<TopicDescription, TopicError> {
    let request = v1::AlterTopicRequest {
        name: name.to_string(),
        retention_micros: change.retention.flatten().map(micros),
        clear_retention: change.retention == Some(None),
        store: change.store.as_ref().map(ToString::to_string),
        inline_max: change.inline_max,
        seal_bytes: change.seal_bytes,
        seal_age_micros: change.seal_age.map(micros),
        file_bytes: change.file_bytes,
        publish_lag_micros: change.publish_lag.map(micros),
    };
    let answered = brokers
        .call(Patience::Timeout, |channel| {
            let request = request.clone();
            async move { TopicsClient::new(channel).alter_topic(request).await }
        })
        .await
        .map_err(|error| TopicError::of(name, error))?;
    description(brokers, answered.topic.as_ref(), &[]).map_err(TopicError::Call)
}

/// Deletes a topic. When an attempt whose answer was lost has deleted it, it is gone, which is what was wanted.
pub(crate) async fn delete(brokers: &Brokers, name: &TopicName) -> Result<(), TopicError> {
    let request = v1::DeleteTopicRequest { name: name.to_string() };
    let answer = brokers
        .call(Patience::Timeout, |channel| {
            let request = request.clone();
            async move { TopicsClient::new(channel).delete_topic(request).await }
        })
        .await;
    match answer {
        Ok(_) => Ok(()),
        Err(error) => {
            let in_doubt = error.repeated_in_doubt();
            match TopicError::of(name, error) {
                TopicError::NotFound(_) if in_doubt => Ok(()),
                error => Err(error),
            }
        }
    }
}

/// All segments, ascending.
pub(crate) async fn segments(brokers: &Brokers, name: &TopicName) -> Result<Vec<Segment>, TopicError> {
    let request = v1::ListSegmentsRequest { topic: name.to_string() };
    let answered = brokers
        .call(Patience::Timeout, |channel| {
            let request = request.clone();
            async move {
                SegmentsClient::new(channel)
                    .max_decoding_message_size(crate::broker::MAX_ANSWER_BYTES)
                    .list_segments(request)
                    .await
            }
        })
        .await
        .map_err(|error| TopicError::of(name, error))?;
    let segments = answered.segments.iter().map(|segment| segment_of(brokers, segment));
    let mut segments = segments.collect::<Result<Vec<_>, _>>().map_err(TopicError::Call)?;
    segments.sort_by_key(|segment| segment.number);
    Ok(segments)
}

fn segment_of(brokers: &Brokers, segment: &v1::Segment) -> Result<Segment, CallError> {
    let range = PartitionRange::new(PartitionId(segment.lo), PartitionId(segment.hi))
        .ok_or_else(|| brokers.invalid_answer(format!("segment {} has no partitions", segment.number)))?;
    Ok(Segment {
        number: SegmentNumber(segment.number),
        range,
        state: match segment.state() {
            v1::SegmentState::Open => SegmentState::Open,
            v1::SegmentState::Sealed => SegmentState::Sealed,
            v1::SegmentState::Compacted => SegmentState::Compacted,
            v1::SegmentState::Published => SegmentState::Published,
        },
        owner: (segment.epoch > 0).then_some(Epoch(segment.epoch)),
        start_offsets: segment.start_offsets.iter().copied().map(Offset).collect(),
        end_offsets: segment.end_offsets.iter().copied().map(Offset).collect(),
        bytes: segment.bytes,
        files: segment.files.clone(),
    })
}

/// Seals open segments that hold records.
pub(crate) async fn seal(brokers: &Brokers, name: &TopicName) -> Result<Vec<u64>, TopicError> {
    let request = v1::SealRequest { topic: name.to_string() };
    let answered = brokers
        .call(Patience::Work, |channel| {
            let request = request.clone();
            async move { SegmentsClient::new(channel).seal(request).await }
        })
        .await
        .map_err(|error| TopicError::of(name, error))?;
    Ok(answered.sealed)
}

/// Puts sealed segments into files.
pub(crate) async fn compact(
    brokers: &Brokers,
    name: &TopicName,
    publish: bool,
) -> Result<(u32, Vec<String>), TopicError> {
    let request = v1::CompactRequest { topic: name.to_string(), publish, own: false };
    let answered = brokers
        .call(Patience::Work, |channel| {
            let request = request.clone();
            async move {
                SegmentsClient::new(channel)
                    .max_decoding_message_size(crate::broker::MAX_ANSWER_BYTES)
                    .compact(request)
                    .await
            }
        })
        .await
        .map_err(|error| TopicError::of(name, error))?;
    Ok((answered.segments, answered.files))
}

/// How long a broker that is asked for a change may wait for one before it answers. Another one is asked soon after, should this one stand still.
const WATCH: Duration = Duration::from_secs(2);

/// The brokers, and how new that is; with `after` only once it is newer than that, or [`WATCH`] is over.
pub(crate) async fn cluster(brokers: &Brokers, after: Option<u64>) -> Result<(u64, Vec<BrokerDescription>), CallError> {
    let patience = if after.is_some() { Patience::Waits(WATCH) } else { Patience::Timeout };
    let request = v1::DescribeClusterRequest { after, wait_micros: micros(WATCH) };
    let answered = brokers
        .call(patience, |channel| async move { ClusterClient::new(channel).describe_cluster(request).await })
        .await?;
    let endpoints: Vec<String> = answered.brokers.iter().map(|broker| broker.endpoint.clone()).collect();
    brokers.learn(&endpoints);
    let described = answered.brokers.into_iter().map(|broker| BrokerDescription {
        epoch: Epoch(broker.epoch),
        endpoint: broker.endpoint,
        leads: broker.leads,
        leaving: broker.leaving,
        open_segments: broker.open_segments,
    });
    Ok((answered.version, described.collect()))
}

/// Asks the broker at an endpoint to hand everything over and end.
pub(crate) async fn drain(brokers: &Brokers, endpoint: &str) -> Result<(), CallError> {
    brokers
        .call_at(endpoint, |channel| async move { ClusterClient::new(channel).drain(v1::DrainRequest {}).await })
        .await
        .map(|_| ())
}
