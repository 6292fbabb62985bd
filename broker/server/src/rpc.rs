//! The gRPC services, one file per call. Every error is an [`ErrorDetail`] within a status.

mod alter_topic;
mod append;
mod compact;
mod create_topic;
mod delete_topic;
mod describe_cluster;
mod describe_deployment;
mod describe_topic;
mod grants;
mod list_offsets;
mod list_segments;
mod list_topics;
mod lookup;
mod open_producer;
mod seal;
mod tail;

use crate::{auth::Caller, node::Node};
use futures::stream::BoxStream;
use refstream_format::{batch::MAX_BATCH_BYTES, cluster_log::TopicState};
use refstream_proto::{
    into_status,
    v1::{
        self, ErrorDetail, cluster_server::Cluster, grants_server::Grants, peers_server::Peers,
        records_server::Records, segments_server::Segments, topics_server::Topics,
    },
};
use std::sync::Arc;
use tonic::{Request, Response, Status, Streaming};

/// The longest gRPC request and response, in bytes: room for the largest batches of many partitions.
pub(crate) const MAX_CALL_BYTES: usize = 16 * MAX_BATCH_BYTES;

/// All services, on one node.
#[derive(Clone, Debug)]
pub(crate) struct Services(pub(crate) Arc<Node>);

type Answer<T> = Result<Response<T>, Status>;

fn answer<T>(result: Result<T, ErrorDetail>) -> Answer<T> {
    result.map(Response::new).map_err(into_status)
}

/// Says who was granted what; with `--verbose` twice.
fn note_grants<T>(what: &'static str, store: &str, count: usize, request: &Request<T>) {
    let caller = request.extensions().get::<Caller>().map(tracing::field::display);
    tracing::debug!(caller, store, count, "{what} are asked for");
}

fn topic_response(topic: &TopicState) -> v1::Topic {
    v1::Topic {
        id: topic.id.0,
        name: topic.name.to_string(),
        config: Some((&topic.config).into()),
        created_at: topic.created_at.as_micros(),
    }
}

#[tonic::async_trait]
impl Topics for Services {
    async fn create_topic(&self, request: Request<v1::CreateTopicRequest>) -> Answer<v1::CreateTopicResponse> {
        answer(create_topic::call(&self.0, request.into_inner()).await)
    }
    async fn describe_topic(&self, request: Request<v1::DescribeTopicRequest>) -> Answer<v1::DescribeTopicResponse> {
        answer(describe_topic::call(&self.0, &request.into_inner()).await)
    }
    async fn list_topics(&self, _: Request<v1::ListTopicsRequest>) -> Answer<v1::ListTopicsResponse> {
        answer(list_topics::call(&self.0))
    }
    async fn alter_topic(&self, request: Request<v1::AlterTopicRequest>) -> Answer<v1::AlterTopicResponse> {
        answer(alter_topic::call(&self.0, request.into_inner()).await)
    }
    async fn delete_topic(&self, request: Request<v1::DeleteTopicRequest>) -> Answer<v1::DeleteTopicResponse> {
        answer(delete_topic::call(&self.0, &request.into_inner()).await)
    }
}

#[tonic::async_trait]
impl Records for Services {
    async fn describe_deployment(
        &self,
        _: Request<v1::DescribeDeploymentRequest>,
    ) -> Answer<v1::DescribeDeploymentResponse> {
        answer(describe_deployment::call(&self.0))
    }
    async fn lookup(&self, request: Request<v1::LookupRequest>) -> Answer<v1::LookupResponse> {
        answer(lookup::call(&self.0, &request.into_inner()).await)
    }
    async fn open_producer(&self, _: Request<v1::OpenProducerRequest>) -> Answer<v1::OpenProducerResponse> {
        answer(open_producer::call(&self.0).await)
    }

    type AppendStream = BoxStream<'static, Result<v1::AppendResponse, Status>>;
    async fn append(&self, request: Request<Streaming<v1::AppendRequest>>) -> Answer<Self::AppendStream> {
        let caller = request.extensions().get::<Caller>().cloned();
        answer(append::call(&self.0, request.into_inner(), caller))
    }

    type TailStream = BoxStream<'static, Result<v1::TailResponse, Status>>;
    async fn tail(&self, request: Request<v1::TailRequest>) -> Answer<Self::TailStream> {
        answer(tail::call(&self.0, request.into_inner()).await)
    }
    async fn list_offsets(&self, request: Request<v1::ListOffsetsRequest>) -> Answer<v1::ListOffsetsResponse> {
        answer(list_offsets::call(&self.0, &request.into_inner()).await)
    }
}

#[tonic::async_trait]
impl Segments for Services {
    async fn list_segments(&self, request: Request<v1::ListSegmentsRequest>) -> Answer<v1::ListSegmentsResponse> {
        answer(list_segments::call(&self.0, &request.into_inner()).await)
    }
    async fn seal(&self, request: Request<v1::SealRequest>) -> Answer<v1::SealResponse> {
        answer(seal::call(&self.0, &request.into_inner()).await)
    }
    async fn compact(&self, request: Request<v1::CompactRequest>) -> Answer<v1::CompactResponse> {
        answer(compact::call(&self.0, &request.into_inner()).await)
    }
}

#[tonic::async_trait]
impl Grants for Services {
    async fn grant_uploads(&self, request: Request<v1::GrantUploadsRequest>) -> Answer<v1::GrantUploadsResponse> {
        note_grants("grants to store", &request.get_ref().store, request.get_ref().asks.len(), &request);
        self.0.receipts.note_granted(request.extensions().get());
        answer(grants::uploads::call(&self.0, request.into_inner()).await)
    }
    async fn grant_reads(&self, request: Request<v1::GrantReadsRequest>) -> Answer<v1::GrantReadsResponse> {
        note_grants("grants to read", &request.get_ref().store, request.get_ref().asks.len(), &request);
        answer(grants::reads::call(&self.0, request.into_inner()).await)
    }
    async fn start_upload(&self, request: Request<v1::StartUploadRequest>) -> Answer<v1::StartUploadResponse> {
        self.0.receipts.note_granted(request.extensions().get());
        answer(grants::parts::start(&self.0, request.into_inner()).await)
    }
    async fn list_parts(&self, request: Request<v1::ListPartsRequest>) -> Answer<v1::ListPartsResponse> {
        answer(grants::parts::list(&self.0, request.into_inner()).await)
    }
    async fn complete_upload(&self, request: Request<v1::CompleteUploadRequest>) -> Answer<v1::CompleteUploadResponse> {
        answer(grants::parts::complete(&self.0, request.into_inner()).await)
    }
    async fn abort_upload(&self, request: Request<v1::AbortUploadRequest>) -> Answer<v1::AbortUploadResponse> {
        answer(grants::parts::abort(&self.0, request.into_inner()).await)
    }
    async fn list_objects(&self, request: Request<v1::ListObjectsRequest>) -> Answer<v1::ListObjectsResponse> {
        answer(grants::list_objects::call(&self.0, &request.into_inner()).await)
    }
}

#[tonic::async_trait]
impl Peers for Services {
    type FollowStream = BoxStream<'static, Result<v1::PeerState, Status>>;
    async fn follow(&self, request: Request<v1::FollowRequest>) -> Answer<Self::FollowStream> {
        let (peers, closing) = (Arc::clone(&self.0.peers), self.0.closing.clone());
        Ok(Response::new(peers.followed(request.into_inner(), closing).await))
    }
}

#[tonic::async_trait]
impl Cluster for Services {
    async fn describe_cluster(
        &self,
        request: Request<v1::DescribeClusterRequest>,
    ) -> Answer<v1::DescribeClusterResponse> {
        answer(describe_cluster::call(&self.0, request.into_inner()).await)
    }
    async fn drain(&self, _: Request<v1::DrainRequest>) -> Answer<v1::DrainResponse> {
        tracing::info!("asked to drain by a client");
        self.0.drain_asked.cancel();
        answer(Ok(v1::DrainResponse {}))
    }
}
