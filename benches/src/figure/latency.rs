//! At 1,000 records a second: from a record's due time to its durable ack, and from its ack to its delivery.
//!
//! Records are sent on a schedule, whether or not earlier ones were acked, and their time counts from when they were due, so a stall shows in
//! full. The store's own latency is measured in turns with it, in the same folder: creates of objects of the same size at the pace of
//! the broker's journal, on a store of our own with the same settings.

use crate::{
    Outcome, Plan,
    load::{self, Place, References},
    numbers::{Watch, median, millis, percentile},
    process::Process,
    report::Row,
};
use refstream::{Client, ConsumerOptions, Delivery, From, ProducerOptions, types::TopicName};
use refstream_filer_adapter::{
    Filer as _,
    embedded::{FileStore, FileStoreOptions},
};
use std::{collections::HashMap, sync::Arc, time::Duration};

const RATE: u32 = 1_000;
/// The broker's linger on a local store.
const LINGER: Duration = Duration::from_millis(5);
/// What a delivery may take beyond its record's ack.
const BEYOND: Duration = Duration::from_millis(5);
const PARTITIONS: u32 = 4;

pub(crate) async fn measure(plan: &Plan) -> Outcome<Vec<Row>> {
    let process = Process::start(plan).await?;
    let client = process.client().await?;
    let topic = process.topic(&client, "live", PARTITIONS).await?;
    let folder = plan.temporary()?;
    let store = FileStore::open(folder.path(), "bench", FileStoreOptions::default())?;
    let count = plan.size(2_000);
    let (mut acks, mut beyonds, mut puts, mut bounds, mut bytes) = (vec![], vec![], vec![], vec![], 1_000.0);
    let (mut middle_acks, mut middle_puts) = (vec![], vec![]);
    for round in 0..=plan.short_rounds() {
        let before = slots(&process).await?;
        let (mut ack, mut beyond) = live(&client, &topic, count).await?;
        let after = slots(&process).await?;
        bytes = (after.1 - before.1) / (after.0 - before.0).max(1.0);
        let mut put = creates(&store, round, bytes as usize, count as u32 * 1_000 / RATE).await?;
        if round > 0 {
            middle_acks.push(percentile(&mut ack, 50.0).as_secs_f64());
            middle_puts.push(percentile(&mut put, 50.0).as_secs_f64());
            let put = percentile(&mut put, 99.0);
            acks.push(percentile(&mut ack, 99.0).as_secs_f64());
            beyonds.push(percentile(&mut beyond, 99.0).as_secs_f64());
            puts.push(put.as_secs_f64());
            bounds.push((LINGER + put.mul_f64(1.5)).as_secs_f64());
        }
    }
    let middle = |values: &[f64]| Duration::from_secs_f64(median(values));
    let row = |figure: &str, value: Duration, bound: Duration, details: String| Row {
        figure: figure.into(),
        value: millis(value),
        target: format!("<= {}", millis(bound)),
        met: Some(value <= bound),
        details,
    };
    let ack = format!(
        "linger {} + 1.5 x the store's p99 of {} for creates of {bytes:.0} bytes; p50 {} and {}; medians of {} rounds of {count} records",
        millis(LINGER),
        millis(middle(&puts)),
        millis(middle(&middle_acks)),
        millis(middle(&middle_puts)),
        plan.short_rounds()
    );
    Ok(vec![
        row("durable ack p99 at 1,000 records/s", middle(&acks), middle(&bounds), ack),
        row(
            "delivery to a consumer beyond the ack, p99, at 1,000 records/s",
            middle(&beyonds),
            BEYOND,
            "one consumer of all partitions; 0 when delivered before its ack".into(),
        ),
    ])
}

/// Journal slots committed so far, and their bytes.
async fn slots(process: &Process) -> Outcome<(f64, f64)> {
    let metrics = process.metrics().await?;
    let metric = |name: &str| metrics.get(name).copied().unwrap_or_default();
    Ok((metric("refstream_journal_commit_latency_seconds_count"), metric("refstream_journal_commit_bytes_total")))
}

/// Latencies of the acks, and of deliveries beyond them.
async fn live(client: &Client, topic: &TopicName, count: usize) -> Outcome<(Vec<Duration>, Vec<Duration>)> {
    let mut consumer = client.consumer(topic, ConsumerOptions { from: From::Latest, follow: true }).await?;
    // The SDK's own linger is for throughput; here every record is sent at once.
    let options = ProducerOptions { linger: Duration::ZERO, ..ProducerOptions::default() };
    let producer = client.producer(topic, options).await?;
    let store = "embedded".parse()?;
    let mut references = References::new(Place::Whole, store, 5);
    let watch = Watch::start();
    let consumed = tokio::spawn(async move {
        let mut delivered = HashMap::new();
        while delivered.len() < count {
            match consumer.next().await {
                Ok(Some(Delivery { partition, offset, .. })) => delivered.insert((partition, offset), watch.elapsed()),
                Ok(None) => break,
                Err(error) => return Err(error),
            };
        }
        Ok(delivered)
    });
    // Gives the tail time to be open: what is appended before is no live delivery.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let start = watch.elapsed();
    let mut tickets = Vec::with_capacity(count);
    // A thread of its own: the runtime's timers are a millisecond late.
    let (clock, mut dues) = tokio::sync::mpsc::unbounded_channel();
    let paced = tokio::task::spawn_blocking(move || {
        for number in 0..count as u32 {
            let due = start + Duration::from_secs(1) * number / RATE;
            std::thread::sleep(due.saturating_sub(watch.elapsed()));
            if clock.send(due).is_err() {
                break;
            }
        }
    });
    while let Some(due) = dues.recv().await {
        let key = tickets.len().to_string();
        let ticket = producer.send(references.record(Some(key.into()))).await?;
        tickets.push(tokio::spawn(async move { ticket.ack().await.map(|ack| (ack, due, watch.elapsed())) }));
    }
    paced.await?;
    let mut acked = Vec::with_capacity(count);
    for ticket in tickets {
        acked.push(ticket.await??);
    }
    let delivered = consumed.await??;
    let beyond = acked
        .iter()
        .map(|(ack, _, at)| {
            let seen = delivered.get(&(ack.partition, ack.offset)).ok_or("an acked record was not delivered")?;
            Ok(seen.saturating_sub(*at))
        })
        .collect::<Outcome<Vec<_>>>()?;
    Ok((acked.iter().map(|(_, due, at)| *at - *due).collect(), beyond))
}

/// Latencies of creates at the pace of a journal with that linger, for as long as `millis`.
async fn creates(store: &Arc<FileStore>, round: usize, bytes: usize, millis: u32) -> Outcome<Vec<Duration>> {
    let body = load::payload(bytes, 7);
    let watch = Watch::start();
    let mut tasks = Vec::new();
    for number in 0..millis / LINGER.as_millis() as u32 {
        let due = LINGER * number;
        let now = watch.elapsed();
        if now < due {
            tokio::time::sleep(due - now).await;
        }
        let (store, body) = (Arc::clone(store), body.clone());
        let key = format!("creates/{round:02}/{number:08}").parse()?;
        tasks.push(tokio::spawn(async move {
            let started = watch.elapsed();
            store.create(&key, body).await.map(|_| watch.elapsed() - started)
        }));
    }
    let mut latencies = Vec::new();
    for task in tasks {
        latencies.push(task.await??);
    }
    Ok(latencies)
}
