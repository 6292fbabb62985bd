//! Uploads by grants against uploads with credentials of one's own: the same SDK, the same store.
//!
//! A grant costs a call to the broker, for many keys at once where many uploads wait, and a signature there instead of one here; the broker also looks up
//! what records refer to. Packs hide both among thousands of files.

use super::backfill;
use crate::{
    Outcome, Plan, load,
    numbers::{Watch, median},
    process::Process,
    report::Row,
};
use bytes::Bytes;
use refstream::UploadOptions;

const PAYLOAD_BYTES: usize = 8 << 20;
const AT_ONCE: usize = 4;

pub(crate) async fn measure(plan: &Plan) -> Outcome<Vec<Row>> {
    let process = Process::start(plan).await?;
    let (own, granted) = (process.client().await?, process.client_by_grants().await?);
    let topic = process.topic(&own, "uploads", 16).await?;
    let folder = plan.temporary()?;
    let files = plan.size(20_000);
    backfill::write_files(folder.path(), files)?;
    let payloads: Vec<Bytes> = (0..plan.size(24) as u64).map(|seed| load::payload(PAYLOAD_BYTES, seed)).collect();
    let mib = (payloads.len() * PAYLOAD_BYTES) as f64 / (1 << 20) as f64;
    let (mut large, mut small) = ((vec![], vec![]), (vec![], vec![]));
    for round in 0..=plan.rounds() {
        let mut rates = [(0.0, 0.0); 2];
        for (client, rate) in [&own, &granted].into_iter().zip(&mut rates) {
            let uploader = client.uploader(&topic, UploadOptions::default()).await?;
            let watch = Watch::start();
            super::upload::upload_all(&uploader, &payloads, AT_ONCE).await?;
            rate.0 = mib / watch.elapsed().as_secs_f64();
            rate.1 = backfill::backfill(client, &topic, folder.path(), files, UploadOptions::default()).await?;
        }
        // The first round opens connections and brings the files into memory.
        if round > 0 {
            let [(own_large, own_small), (granted_large, granted_small)] = rates;
            large.0.push(granted_large / own_large);
            large.1.push((granted_large, own_large));
            small.0.push(granted_small / own_small);
            small.1.push((granted_small, own_small));
        }
    }
    let rounds = plan.rounds();
    let middle = |rates: Vec<(f64, f64)>| {
        let (granted, own): (Vec<_>, Vec<_>) = rates.into_iter().unzip();
        format!("{:.0} / {:.0}", median(&granted), median(&own))
    };
    Ok(vec![
        Row::only(
            "uploads of 8 MiB payloads by grants / with own credentials, 4 at once",
            format!("{:.2}", median(&large.0)),
            format!("{} MiB/s; {} payloads a round, {rounds} rounds", middle(large.1), payloads.len()),
        ),
        Row::only(
            "files/s of a backfill of 4 KiB files by grants / with own credentials",
            format!("{:.2}", median(&small.0)),
            format!("{} files/s; {files} files a round, {rounds} rounds; every pack is looked up", middle(small.1)),
        ),
    ])
}
