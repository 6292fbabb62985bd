//! Files a second of a backfill of 4 KiB files with packs, against one PUT for each file, to the same store.

use crate::{
    Outcome, Plan, load,
    numbers::{Watch, median},
    process::Process,
    report::Row,
};
use refstream::{BackfillOptions, Client, UploadOptions, types::TopicName};
use std::path::Path;

const FILE_BYTES: usize = 4 << 10;
const FILES_A_FOLDER: usize = 500;

pub(crate) async fn measure(plan: &Plan) -> Outcome<Vec<Row>> {
    let process = Process::start(plan).await?;
    let client = process.client().await?;
    let topic = process.topic(&client, "files", 16).await?;
    let (many, few) = (plan.size(20_000), plan.size(1_500));
    let folder = plan.temporary()?;
    write_files(&folder.path().join("many"), many)?;
    write_files(&folder.path().join("few"), few)?;
    let (mut packed, mut single, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=plan.rounds() {
        let each = UploadOptions { pack_below: 0, ..UploadOptions::default() };
        let single_rate = backfill(&client, &topic, &folder.path().join("few"), few, each).await?;
        let with = UploadOptions::default();
        let packed_rate = backfill(&client, &topic, &folder.path().join("many"), many, with).await?;
        // The first round opens connections and brings the files into memory.
        if round > 0 {
            single.push(single_rate);
            packed.push(packed_rate);
            ratios.push(packed_rate / single_rate);
        }
    }
    let details = format!(
        "{:.0} / {:.0} files/s; {many} and {few} files a round, {} rounds; to the ack of each record",
        median(&packed),
        median(&single),
        plan.rounds()
    );
    Ok(vec![Row::at_least(
        "files/s of a backfill of 4 KiB files, packs / one PUT per file",
        median(&ratios),
        20.0,
        details,
    )])
}

pub(super) async fn backfill(
    client: &Client,
    topic: &TopicName,
    folder: &Path,
    files: usize,
    upload: UploadOptions,
) -> Outcome<f64> {
    let options = BackfillOptions { paths: vec![folder.to_owned()], upload, ..BackfillOptions::default() };
    let backfill = client.backfill(topic, options).await?;
    let watch = Watch::start();
    let summary = backfill.run(|_| {}).await?;
    let rate = watch.rate(files);
    if summary.files_done != files as u64 {
        return Err(format!("{} of {files} files were done: {:?}", summary.files_done, summary.failures.first()).into());
    }
    Ok(rate)
}

pub(super) fn write_files(folder: &Path, count: usize) -> Outcome<()> {
    for number in 0..count {
        let sub = folder.join(format!("{:03}", number / FILES_A_FOLDER));
        if number.is_multiple_of(FILES_A_FOLDER) {
            std::fs::create_dir_all(&sub)?;
        }
        std::fs::write(sub.join(format!("{number:06}.bin")), load::payload(FILE_BYTES, number as u64))?;
    }
    Ok(())
}
