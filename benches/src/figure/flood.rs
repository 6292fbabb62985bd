//! Live traffic beside a flood: durable acks at 1,000 records a second, alone and beside a backfill that runs flat out.
//!
//! The flood is a client in a process of its own that backfills a folder again and again, each time into a topic of its own, with default
//! settings; it shares store, broker and cores with the live producer. Its records are marked as bulk, which brokers place behind live ones. Idle and
//! flooded stretches take turns, and each pair gives a ratio of their p99.

use super::backfill;
use crate::{
    Outcome, Plan,
    load::{Place, References},
    numbers::{Watch, median, millis, percentile},
    process::Process,
    report::Row,
};
use refstream::{
    BackfillOptions, Client, ClientOptions, ProducerOptions, StoreCredentials,
    types::{TopicConfig, TopicName},
};
use std::{path::Path, process::Stdio, time::Duration};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, Lines},
    process::{Child, ChildStdout, Command},
};

const RATE: u32 = 1_000;
/// Pairs of an idle and a flooded stretch.
const PAIRS: usize = 5;
const LARGE_BYTES: usize = 256 << 20;
const ACCESS_KEY: &str = "REFSTREAM_ACCESS_KEY";
const SECRET_KEY: &str = "REFSTREAM_SECRET_KEY";

pub(crate) async fn measure(plan: &Plan) -> Outcome<Vec<Row>> {
    let folder = plan.temporary()?;
    let (small, large) = (folder.path().join("small"), folder.path().join("large"));
    backfill::write_files(&small, plan.size(20_000))?;
    std::fs::create_dir(&large)?;
    std::fs::write(large.join("one.bin"), crate::load::payload(LARGE_BYTES, 1))?;
    let kinds = [(&small, "of 4 KiB files", "files/s"), (&large, "of files of 256 MiB", "files/s")];
    let mut rows = Vec::new();
    for (files, what, unit) in kinds {
        let process = Process::start(plan).await?;
        let client = process.client().await?;
        let topic = process.topic(&client, "live", 4).await?;
        let count = plan.size(5_000);
        // Opens connections and warms caches.
        live(&client, &topic, count / 5).await?;
        let (mut idle, mut flooded, mut ratios, mut rates) = (vec![], vec![], vec![], vec![]);
        for _ in 0..PAIRS {
            let alone = percentile(&mut live(&client, &topic, count).await?, 99.0).as_secs_f64();
            let mut flood = Flood::start(&process, files).await?;
            let (watch, before) = (Watch::start(), flood.records(&process).await?);
            let beside = percentile(&mut live(&client, &topic, count).await?, 99.0).as_secs_f64();
            rates.push((flood.records(&process).await? - before - count as f64) / watch.elapsed().as_secs_f64());
            flood.stop().await?;
            idle.push(alone);
            flooded.push(beside);
            ratios.push(beside / alone);
        }
        let middle = |values: &[f64]| millis(Duration::from_secs_f64(median(values)));
        let details = format!(
            "{} / {}; the flood made {:.0} {unit} meanwhile; {PAIRS} pairs of {count} records",
            middle(&flooded),
            middle(&idle),
            median(&rates)
        );
        let figure = format!("durable ack p99 at 1,000 records/s beside a backfill {what} / alone");
        rows.push(Row::at_most(&figure, median(&ratios), 3.0, "", details));
    }
    Ok(rows)
}

/// Times from when records were due to their acks.
async fn live(client: &Client, topic: &TopicName, count: usize) -> Outcome<Vec<Duration>> {
    let options = ProducerOptions { linger: Duration::ZERO, ..ProducerOptions::default() };
    let producer = client.producer(topic, options).await?;
    let mut references = References::new(Place::Whole, "embedded".parse()?, 5);
    let watch = Watch::start();
    let mut tickets = Vec::with_capacity(count);
    for number in 0..count as u32 {
        let due = Duration::from_secs(1) * number / RATE;
        let now = watch.elapsed();
        if now < due {
            tokio::time::sleep(due - now).await;
        }
        let ticket = producer.send(references.record(Some(number.to_string().into()))).await?;
        tickets.push(tokio::spawn(async move { ticket.ack().await.map(|_| watch.elapsed() - due) }));
    }
    let mut acks = Vec::with_capacity(count);
    for ticket in tickets {
        acks.push(ticket.await??);
    }
    Ok(acks)
}

/// A client that floods, killed at the end.
struct Flood {
    child: Child,
    _said: Lines<BufReader<ChildStdout>>,
}

impl Flood {
    /// Starts it and waits until its first files are done.
    async fn start(process: &Process, folder: &Path) -> Outcome<Self> {
        let s3 = process.s3();
        let mut child = Command::new(std::env::current_exe()?)
            .arg("--flood")
            .arg(folder)
            .args(["--broker", process.grpc()])
            .env(ACCESS_KEY, &s3.access_key)
            .env(SECRET_KEY, &s3.secret_key)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let mut said = BufReader::new(child.stdout.take().ok_or("the flood's output is not piped")?).lines();
        said.next_line().await?.ok_or("the flood ended before it began")?;
        Ok(Self { child, _said: said })
    }

    /// Records that the broker has appended so far.
    async fn records(&mut self, process: &Process) -> Outcome<f64> {
        if let Some(ended) = self.child.try_wait()? {
            return Err(format!("the flood ended by itself: {ended}").into());
        }
        Ok(process.metrics().await?.get("refstream_appended_records_total").copied().unwrap_or_default())
    }

    async fn stop(mut self) -> Outcome<()> {
        Ok(self.child.kill().await?)
    }
}

/// Is the client that floods: backfills `folder` again and again until it is killed; prints a line when it has begun.
pub(crate) async fn flood(broker: &str, folder: &Path) -> Outcome<()> {
    let mut options = ClientOptions::new(broker);
    let [access_key, secret_key] = [ACCESS_KEY, SECRET_KEY].map(std::env::var);
    options.credentials = Some(StoreCredentials { access_key: access_key?, secret_key: secret_key? });
    let client = Client::connect_with(options).await?;
    let mut begun = false;
    for number in 0_u64.. {
        let topic: TopicName = format!("flood-{}-{number}", std::process::id()).parse()?;
        client.create_topic(&topic, &TopicConfig::default()).await?;
        let options = BackfillOptions { paths: vec![folder.to_owned()], ..BackfillOptions::default() };
        let summary = client
            .backfill(&topic, options)
            .await?
            .run(|_| {
                if !std::mem::replace(&mut begun, true) {
                    println!("begun");
                }
            })
            .await?;
        if let Some(failure) = summary.failures.first() {
            return Err(format!("{} was not backfilled: {}", failure.path, failure.error).into());
        }
    }
    Ok(())
}
