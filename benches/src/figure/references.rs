//! References a second that one broker acks durably: records of 128 bytes in batches of 500.
//!
//! Once through the SDK's producer, which also encodes, and once with batches that were encoded beforehand, over the same gRPC
//! stream. The journal is on the embedded store, in the broker's process, and waits for the disk.

use crate::{
    Outcome, Plan,
    load::{Place, References},
    numbers::{Watch, cpu_seconds, median},
    process::Process,
    report::Row,
};
use bytes::Bytes;
use futures::StreamExt as _;
use refstream::{
    Client, ProducerOptions,
    types::{ProducerStamp, Record, TopicName},
};
use refstream_format::batch::{BatchBuilder, EncodedBatch};
use refstream_proto::v1::{self, append_result, records_client::RecordsClient};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

const BATCH_RECORDS: usize = 500;
const PARTITIONS: u32 = 16;
/// Undecided requests, each with one batch, of each partition: as many as the SDK's producer has.
const IN_FLIGHT: usize = 5;
const TARGET: f64 = 500_000.0;

pub(crate) async fn measure(plan: &Plan) -> Outcome<Vec<Row>> {
    let process = Process::start(plan).await?;
    let client = process.client().await?;
    let topic = process.topic(&client, "references", PARTITIONS).await?;
    let records = records();
    let bytes = encoded_bytes(&records)?;
    let count = plan.size(2_000_000) / BATCH_RECORDS * BATCH_RECORDS;
    let own = std::process::id();
    let mut results: [Vec<(f64, f64, f64)>; 2] = Default::default();
    for round in 0..=plan.rounds() {
        for (side, result) in results.iter_mut().enumerate() {
            let (watch, client_cpu, broker_cpu) = (Watch::start(), cpu_seconds(own), process.cpu_seconds());
            if side == 0 {
                produce(&client, &topic, &records, bytes * BATCH_RECORDS, count).await?;
            } else {
                append(&process, &client, &topic, &records, count).await?;
            }
            let millions = count as f64 / 1e6;
            if round > 0 {
                result.push((
                    watch.rate(count),
                    (process.cpu_seconds() - broker_cpu) / millions,
                    (cpu_seconds(own) - client_cpu) / millions,
                ));
            }
        }
    }
    let names = ["through the SDK's producer", "batches encoded beforehand, over gRPC"];
    Ok(names
        .iter()
        .zip(results)
        .map(|(name, result)| {
            let column = |at: fn(&(f64, f64, f64)) -> f64| median(&result.iter().map(at).collect::<Vec<_>>());
            let details = format!(
                "records of {bytes} bytes before compression; broker and store {:.2}, client {:.2} CPU-s per million; {PARTITIONS} partitions, fsync",
                column(|row| row.1),
                column(|row| row.2)
            );
            Row::at_least(&format!("references/s acked durable, {name}"), column(|row| row.0), TARGET, details)
        })
        .collect())
}

/// A batch's worth of different records.
fn records() -> Vec<Record> {
    let store = "embedded".parse().unwrap_or_else(|error| unreachable!("a store's name: {error}"));
    let mut references = References::new(Place::Packed, store, 3);
    (0..BATCH_RECORDS).map(|number| references.record(Some(key(number)))).collect()
}

/// A key of 79 bytes, half of them random digits: with it a record is about 128 bytes before compression.
fn key(number: usize) -> Bytes {
    let random = blake3::hash(&number.to_le_bytes()).to_hex();
    format!("warehouse/camera-07/2026-11-29/{}", &random[..48]).into()
}

/// Bytes of a record within a batch, before compression.
fn encoded_bytes(records: &[Record]) -> Outcome<usize> {
    let mut builder = BatchBuilder::new();
    for record in records {
        builder.push(record)?;
    }
    Ok(builder.bytes() / records.len())
}

async fn produce(
    client: &Client,
    topic: &TopicName,
    records: &[Record],
    batch_bytes: usize,
    count: usize,
) -> Outcome<()> {
    let options = ProducerOptions { batch_bytes, ..ProducerOptions::default() };
    let producer = client.producer(topic, options).await?;
    for number in 0..count {
        producer.send(records[number % records.len()].clone()).await?;
    }
    Ok(producer.flush().await?)
}

async fn append(
    process: &Process,
    client: &Client,
    topic: &TopicName,
    records: &[Record],
    count: usize,
) -> Outcome<()> {
    let topic_id = client.describe_topic(topic).await?.id.0;
    let channel = tonic::transport::Endpoint::from_shared(process.grpc().to_owned())?
        .initial_stream_window_size(8 << 20)
        .initial_connection_window_size(16 << 20)
        .connect()
        .await?;
    let mut calls = RecordsClient::new(channel);
    let identity = calls.open_producer(v1::OpenProducerRequest {}).await?.into_inner();
    let mut builder = BatchBuilder::new();
    for record in records {
        builder.push(record)?;
    }
    let encoded: EncodedBatch = builder.finish(None).ok_or("no records")?;
    let (requests, sent) = mpsc::channel(PARTITIONS as usize * IN_FLIGHT);
    let mut answers = calls.append(ReceiverStream::new(sent)).await?.into_inner();
    let total = count / BATCH_RECORDS;
    let mut next = [0_u64; PARTITIONS as usize];
    // Request ids tell the partition, to which the next batch goes when one is answered.
    let mut request = |partition: u32, number: usize| {
        let sequence = &mut next[partition as usize];
        let stamp = ProducerStamp {
            id: identity.producer_id.into(),
            epoch: identity.producer_epoch.into(),
            first: (*sequence).into(),
        };
        *sequence += BATCH_RECORDS as u64;
        v1::AppendRequest {
            request_id: (number * PARTITIONS as usize) as u64 + u64::from(partition),
            topic_id,
            ack_mode: v1::AckMode::Durable.into(),
            bulk: false,
            granted: false,
            batches: vec![v1::PartitionBatch { partition, batch: encoded.with_producer(stamp).bytes().clone() }],
        }
    };
    let mut started = 0;
    while started < total.min(PARTITIONS as usize * IN_FLIGHT) {
        requests.send(request(started as u32 % PARTITIONS, started)).await?;
        started += 1;
    }
    for _ in 0..total {
        let answer = answers.next().await.ok_or("the broker ended the stream")??;
        if let Some(append_result::Result::Error(error)) = answer.results.into_iter().find_map(|each| each.result) {
            return Err(format!("the broker refused a batch: {}", error.message).into());
        }
        if started < total {
            requests.send(request(answer.request_id as u32 % PARTITIONS, started)).await?;
            started += 1;
        }
    }
    Ok(())
}
