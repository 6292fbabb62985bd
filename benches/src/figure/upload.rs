//! SDK upload of 8 MiB payloads against a bare HTTP PUT loop of the same bytes, to the same store.
//!
//! The bare loop is `reqwest` with URLs presigned beforehand: it neither hashes nor sums, and the store checks nothing. The SDK computes
//! BLAKE3 and CRC32C, lets the store check the checksum, and stores the sums of each MiB with the object. Payloads are random, so
//! compression is tried on a sample and given up.

use crate::{
    Outcome, Plan, load,
    numbers::{Watch, cpu_seconds, median},
    process::{Process, S3Address},
    report::Row,
};
use aws_sdk_s3::{
    config::{BehaviorVersion, Credentials, Region},
    presigning::PresigningConfig,
};
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use refstream::{Source, UploadOptions, Uploader};
use std::time::Duration;

const PAYLOAD_BYTES: usize = 8 << 20;
const MIB: f64 = (1 << 20) as f64;

pub(crate) async fn measure(plan: &Plan) -> Outcome<Vec<Row>> {
    let process = Process::start(plan).await?;
    let client = process.client().await?;
    let topic = process.topic(&client, "uploads", 1).await?;
    let uploader = client.uploader(&topic, UploadOptions::default()).await?;
    let payloads: Vec<Bytes> = (0..plan.size(24) as u64).map(|seed| load::payload(PAYLOAD_BYTES, seed)).collect();
    let presigner = Presigner::new(process.s3());
    let http = reqwest::Client::new();
    let bytes = (payloads.len() * PAYLOAD_BYTES) as f64;
    let own = std::process::id();
    let mut rows = Vec::new();
    let mut cpu = Vec::new();
    for at_once in [4, 1] {
        let (mut sdk, mut bare, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..=plan.short_rounds() {
            let urls = presigner.urls(&format!("bare/{at_once}/{round}"), payloads.len()).await?;
            let (watch, before) = (Watch::start(), cpu_seconds(own));
            put_all(&http, &urls, &payloads, at_once).await?;
            let bare_rate = bytes / MIB / watch.elapsed().as_secs_f64();
            let bare_cpu = cpu_seconds(own) - before;
            let (watch, before) = (Watch::start(), cpu_seconds(own));
            upload_all(&uploader, &payloads, at_once).await?;
            let sdk_rate = bytes / MIB / watch.elapsed().as_secs_f64();
            let sdk_cpu = cpu_seconds(own) - before;
            // The first round opens connections and warms caches.
            if round > 0 {
                bare.push(bare_rate);
                sdk.push(sdk_rate);
                ratios.push(sdk_rate / bare_rate);
                cpu.push((sdk_cpu, bare_cpu + hashing(&payloads)));
            }
        }
        let details = format!(
            "{:.0} / {:.0} MiB/s; {} payloads a round, {} rounds; both wait for fsync",
            median(&sdk),
            median(&bare),
            payloads.len(),
            plan.short_rounds()
        );
        let figure = format!("SDK upload of 8 MiB payloads / bare HTTP PUT loop, {at_once} at once");
        rows.push(Row::at_least(&figure, median(&ratios), 0.9, details));
    }
    let gib = bytes / MIB / 1_024.0;
    let (sdk, bare): (Vec<_>, Vec<_>) = cpu.into_iter().unzip();
    let (sdk, bare) = (median(&sdk) / gib, median(&bare) / gib);
    let details = format!("{sdk:.2} / {bare:.2} CPU-s per GiB");
    rows.push(Row::at_most("SDK CPU per GiB / (BLAKE3 + CRC32C + bare PUT client)", sdk / bare, 1.3, "", details));
    Ok(rows)
}

async fn put_all(http: &reqwest::Client, urls: &[String], payloads: &[Bytes], at_once: usize) -> Outcome<()> {
    let puts = urls.iter().zip(payloads).map(|(url, payload)| async move {
        http.put(url).body(payload.clone()).send().await?.error_for_status()?;
        Ok::<_, reqwest::Error>(())
    });
    Ok(stream::iter(puts).buffer_unordered(at_once).try_collect::<()>().await?)
}

pub(super) async fn upload_all(uploader: &Uploader, payloads: &[Bytes], at_once: usize) -> Outcome<()> {
    let uploads = payloads
        .iter()
        .map(|payload| async move { uploader.upload(Source::Bytes(payload.clone()), None, None).await.map(drop) });
    Ok(stream::iter(uploads).buffer_unordered(at_once).try_collect::<()>().await?)
}

/// Seconds of one core for the BLAKE3 and CRC32C of all payloads.
pub(super) fn hashing(payloads: &[Bytes]) -> f64 {
    let own = std::process::id();
    let before = cpu_seconds(own);
    for payload in payloads {
        std::hint::black_box(blake3::hash(payload));
        std::hint::black_box(refstream_filer_adapter::crc32c(std::slice::from_ref(payload)));
    }
    cpu_seconds(own) - before
}

struct Presigner {
    client: aws_sdk_s3::Client,
    bucket: String,
}

impl Presigner {
    fn new(address: &S3Address) -> Self {
        let config = aws_sdk_s3::Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::new("us-east-1"))
            .endpoint_url(&address.endpoint)
            .force_path_style(true)
            .credentials_provider(Credentials::new(&address.access_key, &address.secret_key, None, None, "bench"))
            .build();
        Self { client: aws_sdk_s3::Client::from_conf(config), bucket: address.bucket.clone() }
    }

    async fn urls(&self, prefix: &str, count: usize) -> Outcome<Vec<String>> {
        let mut urls = Vec::new();
        for number in 0..count {
            let expires = PresigningConfig::expires_in(Duration::from_secs(3_600))?;
            let put = self.client.put_object().bucket(&self.bucket).key(format!("{prefix}/{number}"));
            urls.push(put.presigned(expires).await?.uri().to_owned());
        }
        Ok(urls)
    }
}
