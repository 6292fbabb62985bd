//! Stand-ins for what tests cannot wait for.

use futures::{
    FutureExt as _,
    future::BoxFuture,
    stream::{BoxStream, StreamExt as _},
};
use refstream_filer_adapter::Runtime;
use refstream_proto::v1::{
    self,
    records_server::{Records, RecordsServer},
};
use refstream_types::Timestamp;
use std::{
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tonic::{Request, Response, Status, Streaming, transport::server::TcpIncoming};

/// A clock that stands until it is moved. Who sleeps never wakes up, unless there is nothing to wait for. Random numbers follow from a seed.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    now: Mutex<Duration>,
    random: AtomicU64,
}

impl Clock {
    pub(crate) fn seeded(seed: u64) -> Self {
        Self { now: Mutex::default(), random: AtomicU64::new(seed) }
    }
    pub(crate) fn advance(&self, by: Duration) {
        *self.now.lock().unwrap() += by;
    }
}

impl Runtime for Clock {
    fn now(&self) -> Duration {
        *self.now.lock().unwrap()
    }
    fn wall(&self) -> Timestamp {
        Timestamp::from_micros(0)
    }
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        if duration.is_zero() { std::future::ready(()).boxed() } else { std::future::pending().boxed() }
    }
    /// SplitMix64.
    fn random(&self) -> u64 {
        let mut mixed = self.random.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// A broker that answers look-ups, always the same, and nothing else.
struct LooksUp(v1::LookupResponse);

#[tonic::async_trait]
impl Records for LooksUp {
    type AppendStream = BoxStream<'static, Result<v1::AppendResponse, Status>>;
    type TailStream = BoxStream<'static, Result<v1::TailResponse, Status>>;

    async fn lookup(&self, _: Request<v1::LookupRequest>) -> Result<Response<v1::LookupResponse>, Status> {
        Ok(Response::new(self.0.clone()))
    }
    async fn describe_deployment(
        &self,
        _: Request<v1::DescribeDeploymentRequest>,
    ) -> Result<Response<v1::DescribeDeploymentResponse>, Status> {
        Err(Status::unimplemented("not in the script"))
    }
    async fn open_producer(
        &self,
        _: Request<v1::OpenProducerRequest>,
    ) -> Result<Response<v1::OpenProducerResponse>, Status> {
        Err(Status::unimplemented("not in the script"))
    }
    async fn append(&self, _: Request<Streaming<v1::AppendRequest>>) -> Result<Response<Self::AppendStream>, Status> {
        Ok(Response::new(futures::stream::empty().boxed()))
    }
    async fn tail(&self, _: Request<v1::TailRequest>) -> Result<Response<Self::TailStream>, Status> {
        Ok(Response::new(futures::stream::empty().boxed()))
    }
    async fn list_offsets(
        &self,
        _: Request<v1::ListOffsetsRequest>,
    ) -> Result<Response<v1::ListOffsetsResponse>, Status> {
        Err(Status::unimplemented("not in the script"))
    }
}

/// Starts a broker that answers every look-up with this; returns its endpoint. It ends with the test.
pub(crate) fn looks_up(answer: v1::LookupResponse) -> String {
    let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let endpoint = format!("http://{}", incoming.local_addr().unwrap());
    let service = RecordsServer::new(LooksUp(answer));
    tokio::spawn(tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming));
    endpoint
}

/// What a broker answers of a topic `t` of one partition.
pub(crate) fn lookup_answer(topic: u64) -> v1::LookupResponse {
    let config = refstream_types::TopicConfig { partitions: 1, ..Default::default() };
    let topic = v1::Topic { id: topic, name: "t".into(), config: Some((&config).into()), ..Default::default() };
    v1::LookupResponse { topic: Some(topic), ..Default::default() }
}
