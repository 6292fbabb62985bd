//! Bytes on the broker's connections, in and out, for each record and hop: once from the producer, once to a consumer.
//!
//! Payloads are uploaded first; their records are then produced as fast as they go, so batches are full. What one record costs that
//! travels alone, and is acked before the next, is told as well.

use crate::{Outcome, Plan, load, numbers::median, process::Process, report::Row};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use refstream::{
    Client, ConsumerOptions, From, ProducerOptions, Source, UploadOptions,
    types::{Record, TopicName, Value},
};

const TARGET: f64 = 128.0;
/// Length of every record's key.
const KEY_BYTES: usize = 16;

pub(crate) async fn measure(plan: &Plan) -> Outcome<Vec<Row>> {
    let process = Process::start(plan).await?;
    let client = process.client().await?;
    let mut rows = Vec::new();
    for (name, size, count) in [
        ("4 KiB", 4 << 10, plan.size(5_000)),
        ("64 KiB", 64 << 10, plan.size(2_000)),
        ("1 MiB", 1 << 20, plan.size(400)),
    ] {
        let topic = process.topic(&client, &format!("bytes-{size}"), 4).await?;
        let hops = hops(&process, &client, &topic, size, count).await?;
        for (hop, bytes) in ["producer to broker", "broker to consumer"].iter().zip(hops) {
            let details =
                format!("{count} records with keys of {KEY_BYTES} bytes, which count; acks and HTTP/2 included");
            let figure = format!("broker bytes in + out per record, {name} payloads, {hop}");
            rows.push(Row::at_most(&figure, bytes, TARGET + KEY_BYTES as f64, " bytes", details));
        }
        if size == 64 << 10 {
            let ratio = (hops[0] + hops[1]) / size as f64;
            let details = "both hops together".to_owned();
            rows.push(Row::at_most("broker bytes / payload byte at 64 KiB", ratio, 0.005, "", details));
        }
    }
    let topic = process.topic(&client, "bytes-alone", 1).await?;
    let alone = alone(&process, &client, &topic, plan.size(500)).await?;
    let details = "each waits for the ack of the one before: batches, requests and answers of one record".to_owned();
    rows.push(Row::only("broker bytes in + out per record that travels alone", format!("{alone:.0} bytes"), details));
    Ok(rows)
}

/// Bytes per record of both hops.
async fn hops(process: &Process, client: &Client, topic: &TopicName, size: usize, count: usize) -> Outcome<[f64; 2]> {
    let records = uploaded(client, topic, size, count).await?;
    let producer = client.producer(topic, ProducerOptions::default()).await?;
    let start = wire_bytes(process).await?;
    for record in records {
        producer.send(record).await?;
    }
    producer.flush().await?;
    let produced = wire_bytes(process).await?;
    let mut consumer = client.consumer(topic, ConsumerOptions { from: From::Earliest, follow: false }).await?;
    let mut delivered = 0;
    while consumer.next().await?.is_some() {
        delivered += 1;
    }
    if delivered != count {
        return Err(format!("{delivered} of {count} records were delivered").into());
    }
    let consumed = wire_bytes(process).await?;
    Ok([(produced - start) / count as f64, (consumed - produced) / count as f64])
}

/// Bytes per record when each is acked before the next is sent.
async fn alone(process: &Process, client: &Client, topic: &TopicName, count: usize) -> Outcome<f64> {
    let records = uploaded(client, topic, 4 << 10, count).await?;
    let producer = client.producer(topic, ProducerOptions::default()).await?;
    let mut costs = Vec::new();
    for record in records {
        let start = wire_bytes(process).await?;
        producer.send(record).await?.ack().await?;
        costs.push(wire_bytes(process).await? - start);
    }
    Ok(median(&costs))
}

/// Records of payloads that are durable.
async fn uploaded(client: &Client, topic: &TopicName, size: usize, count: usize) -> Outcome<Vec<Record>> {
    let uploader = client.uploader(topic, UploadOptions::default()).await?;
    let records = (0..count).map(|number| {
        let uploader = &uploader;
        async move {
            let payload = Source::Bytes(load::payload(size, number as u64));
            let receipt = uploader.upload(payload, Some("image/jpeg".into()), None).await?;
            let mut record = Record::new(Value::Reference(Box::new(receipt.into_reference())));
            record.key = Some(format!("{number:0>width$}", width = KEY_BYTES).into());
            Ok::<_, refstream::UploadError>(record)
        }
    });
    // More than fill a pack, so that packs need not linger.
    Ok(stream::iter(records).buffered((16 << 20) / size).try_collect().await?)
}

async fn wire_bytes(process: &Process) -> Outcome<f64> {
    let metrics = process.metrics().await?;
    ["refstream_grpc_received_bytes_total", "refstream_grpc_sent_bytes_total"]
        .iter()
        .map(|name| metrics.get(*name).copied().ok_or_else(|| format!("the broker has no metric {name}").into()))
        .sum()
}
