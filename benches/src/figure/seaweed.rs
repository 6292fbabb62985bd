//! SDK upload of 8 MiB payloads to SeaweedFS' volume servers against a bare loop that sends the same requests.
//!
//! The bare loop is `reqwest`: `/dir/assign` for each payload, as the SDK asks for it (an id, and one more for sums of blocks), and a `PUT` with
//! `fsync=true`; it neither hashes nor sums, and looks at no answer but its status. SeaweedFS is a process of its own, `weed mini`, which
//! `REFSTREAM_TEST_WEED` names (`./test` installs it).

use crate::{
    Outcome, Plan, load,
    numbers::{Watch, cpu_seconds, median},
    process::Process,
    report::Row,
};
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use refstream::UploadOptions;
use refstream_integration_tests::seaweed::{Options, Weed};
use serde::Deserialize;

const PAYLOAD_BYTES: usize = 8 << 20;
const MIB: f64 = (1 << 20) as f64;

#[derive(Deserialize)]
struct Assigned {
    fid: String,
    url: String,
}

pub(crate) async fn measure(plan: &Plan) -> Outcome<Vec<Row>> {
    let installed = std::env::var_os("REFSTREAM_TEST_WEED").is_some();
    if !installed {
        return Err("REFSTREAM_TEST_WEED does not name a weed binary: run ./test once, which installs it".into());
    }
    let options = Options { arguments: vec!["-master.volumeSizeLimitMB=1024".into()], ..Options::default() };
    let weed = tokio::task::spawn_blocking(|| Weed::start_with(options)).await?;
    let process = Process::start_on(plan, &weed.master()).await?;
    let client = process.client().await?;
    let topic = process.topic(&client, "uploads", 1).await?;
    let uploader = client.uploader(&topic, UploadOptions::default()).await?;
    let payloads: Vec<Bytes> = (0..plan.size(24) as u64).map(|seed| load::payload(PAYLOAD_BYTES, seed)).collect();
    let http = reqwest::Client::new();
    let bytes = (payloads.len() * PAYLOAD_BYTES) as f64;
    let own = std::process::id();
    let (mut rows, mut cpu) = (Vec::new(), Vec::new());
    for (at_once, target) in [(4, 0.8), (1, 0.9)] {
        let (mut sdk, mut bare, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..=plan.rounds() {
            let (watch, before) = (Watch::start(), cpu_seconds(own));
            put_all(&http, &weed.master(), &payloads, at_once).await?;
            let bare_rate = bytes / MIB / watch.elapsed().as_secs_f64();
            let bare_cpu = cpu_seconds(own) - before;
            let (watch, before) = (Watch::start(), cpu_seconds(own));
            super::upload::upload_all(&uploader, &payloads, at_once).await?;
            let sdk_rate = bytes / MIB / watch.elapsed().as_secs_f64();
            let sdk_cpu = cpu_seconds(own) - before;
            // The first round opens connections, makes volumes grow, and warms caches.
            if round > 0 {
                bare.push(bare_rate);
                sdk.push(sdk_rate);
                ratios.push(sdk_rate / bare_rate);
                cpu.push((sdk_cpu, bare_cpu + super::upload::hashing(&payloads)));
            }
        }
        let details = format!(
            "{:.0} / {:.0} MiB/s; {} payloads a round, {} rounds; both wait for fsync",
            median(&sdk),
            median(&bare),
            payloads.len(),
            plan.rounds()
        );
        let figure = format!("SDK upload of 8 MiB payloads to SeaweedFS natively / bare loop, {at_once} at once");
        rows.push(Row::at_least(&figure, median(&ratios), target, details));
    }
    let gib = bytes / MIB / 1_024.0;
    let (sdk, bare): (Vec<_>, Vec<_>) = cpu.into_iter().unzip();
    let (sdk, bare) = (median(&sdk) / gib, median(&bare) / gib);
    let details = format!("{sdk:.2} / {bare:.2} CPU-s per GiB");
    let figure = "SDK CPU per GiB to SeaweedFS natively / (BLAKE3 + CRC32C + bare loop)";
    rows.push(Row::at_most(figure, sdk / bare, 1.3, "", details));
    Ok(rows)
}

async fn put_all(http: &reqwest::Client, master: &str, payloads: &[Bytes], at_once: usize) -> Outcome<()> {
    let puts = payloads.iter().map(|payload| async move {
        let assign = format!("http://{master}/dir/assign?count=2&dataSize={}", payload.len());
        let answer = http.get(assign).send().await?.error_for_status()?.bytes().await?;
        let Assigned { fid, url } = serde_json::from_slice(&answer)?;
        let put = http.put(format!("http://{url}/{fid}?fsync=true")).header("content-type", "application/octet-stream");
        put.body(payload.clone()).send().await?.error_for_status()?;
        Outcome::Ok(())
    });
    stream::iter(puts).buffer_unordered(at_once).try_collect::<()>().await
}
