//! A whole broker on a store in memory, reached over gRPC and HTTP.

use crate::{
    Compacted, Compactor, CompactorError, Server, ServerConfig, ServerSettings, StartError, StoreDescription,
    doubles::Shelf,
};
use async_trait::async_trait;
use bytes::Bytes;
use refstream_core::{Settings, StopReason};
use refstream_filer_adapter::TokioRuntime;
use refstream_format::{
    batch::{BatchBuilder, EncodedBatch, MAX_BATCH_BYTES},
    cluster_log::{SealedSegment, TopicState},
    manifest::{DataFile, Manifest, SegmentSpan, Tier},
};
use refstream_proto::{
    error_detail,
    v1::{
        self, AppendRequest, AppendResponse, AppendResult, ErrorCode, PartitionBatch, PartitionPosition, TailBatch,
        append_result, records_client::RecordsClient, segments_client::SegmentsClient, tail_response::Event,
        topics_client::TopicsClient,
    },
};
use refstream_types::{
    Layout, ProducerEpoch, ProducerId, ProducerStamp, Record, Sequence, Timestamp, Token, Value, Version,
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::mpsc,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Streaming, transport::Channel};

mod appending;
mod closing;
mod clustering;
mod living;

const LOOPBACK: &str = "127.0.0.1:0";

fn config(shelf: &Arc<Shelf>) -> ServerConfig {
    ServerConfig {
        listen: LOOPBACK.parse().unwrap(),
        http: LOOPBACK.parse().unwrap(),
        advertise: None,
        former: None,
        core: Settings { linger: Duration::from_millis(1), ..Settings::default() },
        filer: Arc::<Shelf>::clone(shelf),
        layout: Layout::new("test").unwrap(),
        stores: vec![StoreDescription {
            name: "main".parse().unwrap(),
            description: v1::Store {
                name: "main".into(),
                uri_prefix: "s3://bucket/".into(),
                kind: None,
                grants: false,
            },
        }],
        metadata_store: "main".parse().unwrap(),
        access: crate::Access::default(),
        read_cache_bytes: 1 << 20,
        compactor: None,
        runtime: Arc::new(TokioRuntime::new()),
        settings: ServerSettings { closed_grace: Duration::ZERO, ..ServerSettings::default() },
    }
}

async fn serve(config: ServerConfig) -> Server {
    let server = Server::start(config).await.unwrap();
    // A broker that cannot recover says so here, rather than by a test that never ends.
    tokio::time::timeout(Duration::from_secs(30), server.serving()).await.expect("it serves in time").unwrap();
    server
}

struct Client {
    topics: TopicsClient<Channel>,
    records: RecordsClient<Channel>,
    segments: SegmentsClient<Channel>,
}

impl Client {
    async fn to(server: &Server) -> Self {
        let endpoint = Channel::from_shared(format!("http://{}", server.grpc_address())).unwrap();
        let channel = endpoint.connect().await.unwrap();
        Self {
            topics: TopicsClient::new(channel.clone()),
            records: RecordsClient::new(channel.clone()).max_encoding_message_size(usize::MAX),
            segments: SegmentsClient::new(channel),
        }
    }

    async fn create(&mut self, name: &str, partitions: u32) -> u64 {
        let config = Some(v1::TopicConfig { partitions, ..v1::TopicConfig::default() });
        let request = v1::CreateTopicRequest { name: name.into(), config };
        self.topics.create_topic(request).await.unwrap().into_inner().topic.unwrap().id
    }

    async fn latest(&mut self, topic: u64) -> Vec<u64> {
        let request = v1::ListOffsetsRequest { topic_id: topic, at: None, own: false };
        let offsets = self.records.list_offsets(request).await.unwrap().into_inner();
        offsets.partitions.iter().map(|partition| partition.latest).collect()
    }

    async fn appender(&mut self, topic: u64) -> Appender {
        let (requests, outgoing) = mpsc::channel(16);
        let responses = self.records.append(ReceiverStream::new(outgoing)).await.unwrap().into_inner();
        Appender { topic, requests, responses, next: 0 }
    }

    async fn tail(&mut self, topic_id: u64, positions: &[(u32, u64)], follow: bool) -> Streaming<v1::TailResponse> {
        let positions =
            positions.iter().map(|(partition, offset)| PartitionPosition { partition: *partition, offset: *offset });
        let request = v1::TailRequest { topic_id, positions: positions.collect(), follow };
        self.records.tail(request).await.unwrap().into_inner()
    }

    /// All batches from these positions on, until the end.
    async fn read(&mut self, topic: u64, positions: &[(u32, u64)]) -> Vec<TailBatch> {
        let (mut tail, mut batches) = (self.tail(topic, positions, false).await, Vec::new());
        while let Some(response) = tail.message().await.unwrap() {
            match response.event.unwrap() {
                Event::Batch(batch) => batches.push(batch),
                Event::CaughtUp(_) => {}
                Event::Error(error) => panic!("{error:?}"),
            }
        }
        batches
    }

    /// The error that a partition's tail starts with.
    async fn tail_error(&mut self, topic: u64, partition: u32, offset: u64) -> v1::ErrorDetail {
        let mut tail = self.tail(topic, &[(partition, offset)], true).await;
        match tail.message().await.unwrap().unwrap().event.unwrap() {
            Event::Error(error) => error.error.unwrap(),
            other => panic!("not an error: {other:?}"),
        }
    }
}

struct Appender {
    topic: u64,
    requests: mpsc::Sender<AppendRequest>,
    responses: Streaming<AppendResponse>,
    next: u64,
}

impl Appender {
    async fn send(&mut self, batches: Vec<(u32, Bytes)>) -> u64 {
        self.next += 1;
        let batches = batches.into_iter().map(|(partition, batch)| PartitionBatch { partition, batch }).collect();
        let request =
            AppendRequest { request_id: self.next, topic_id: self.topic, batches, ..AppendRequest::default() };
        self.requests.send(request).await.unwrap();
        self.next
    }
    /// Sends and waits for the results.
    async fn append(&mut self, batches: Vec<(u32, Bytes)>) -> Vec<AppendResult> {
        let id = self.send(batches).await;
        let response = self.responses.message().await.unwrap().unwrap();
        assert_eq!(response.request_id, id);
        response.results
    }
    async fn append_one(&mut self, partition: u32, batch: Bytes) -> v1::Appended {
        appended(&self.append(vec![(partition, batch)]).await[0])
    }
}

fn appended(result: &AppendResult) -> v1::Appended {
    match result.result.as_ref().unwrap() {
        append_result::Result::Appended(appended) => *appended,
        append_result::Result::Error(error) => panic!("{error:?}"),
    }
}

fn refused(result: &AppendResult) -> v1::ErrorDetail {
    match result.result.as_ref().unwrap() {
        append_result::Result::Appended(appended) => panic!("{appended:?}"),
        append_result::Result::Error(error) => error.clone(),
    }
}

fn batch(keys: &[&str]) -> EncodedBatch {
    let mut builder = BatchBuilder::new();
    for key in keys {
        let record = Record { key: Some(Bytes::copy_from_slice(key.as_bytes())), ..Record::new(Value::Tombstone) };
        builder.push(&record).unwrap();
    }
    builder.finish(None).unwrap()
}

fn bytes(keys: &[&str]) -> Bytes {
    batch(keys).bytes().clone()
}

fn stamped(keys: &[&str], producer: &v1::OpenProducerResponse, first: u64) -> Bytes {
    let stamp = ProducerStamp {
        id: ProducerId(producer.producer_id),
        epoch: ProducerEpoch(producer.producer_epoch),
        first: Sequence(first),
    };
    batch(keys).with_producer(stamp).bytes().clone()
}

/// Status code and body of a GET.
async fn http(server: &Server, path: &str) -> (u16, String) {
    let mut stream = tokio::net::TcpStream::connect(server.http_address()).await.unwrap();
    stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let code = answer.split(' ').nth(1).unwrap().parse().unwrap();
    (code, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
}
