//! `refstream verify`.

use crate::{
    Global, config,
    exit::{Exit, Failure},
    output::{self, Format},
};
use refstream::types::TopicName;
use serde_json::json;

/// Check that every reference resolves; with --deep fetch and hash every payload
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  refstream verify images --deep\n\nEnds with 5 and the list of affected records when something is wrong; with 4 or 3 when a broker or store cannot be reached or permits no access, and the verification could not be finished. With --output jsonl each finding is a line, and then each topic's summary."
)]
pub(crate) struct Arguments {
    /// The topic; all topics when not given
    topic: Option<TopicName>,
    /// Fetch and hash every payload
    #[arg(long)]
    deep: bool,
}

pub(crate) async fn run(global: &Global, arguments: Arguments) -> Result<(), Failure> {
    let client = config::connect(global).await?;
    let topics = match arguments.topic {
        Some(topic) => vec![topic],
        None => client.list_topics().await?.into_iter().map(|topic| topic.name).collect(),
    };
    let (mut summaries, mut findings) = (Vec::new(), Vec::new());
    let (mut wrong, mut broken_off) = (0, None);
    for topic in &topics {
        let bar = output::progress("{spinner} {msg}");
        let seen = refstream_check::verify(&client, topic, arguments.deep, |so_far| {
            bar.set_message(format!(
                "{topic}: {} records, {} hashed, {} findings",
                so_far.records,
                output::bytes(so_far.bytes),
                so_far.wrong
            ));
        })
        .await;
        bar.finish_and_clear();
        let seen = match seen {
            Ok(seen) => seen,
            Err(unfinished) => {
                let exit = unfinished.why.class().into();
                broken_off = Some(Failure::new(exit, format!("topic {topic}: {unfinished}")));
                unfinished.seen
            }
        };
        if broken_off.is_some() && seen.records == 0 {
            break;
        }
        wrong += seen.wrong;
        summaries.push(json!({
            "topic": topic,
            "records": seen.records,
            "references": seen.references,
            "bytes": seen.bytes,
            "findings": seen.wrong,
        }));
        for finding in seen.findings {
            findings.push(serde_json::to_value(finding).map_err(Failure::failed)?);
        }
        if broken_off.is_some() {
            break;
        }
    }
    match global.output {
        Format::Table => {
            output::rows(Format::Table, &["topic", "records", "references", "bytes", "findings"], &summaries)?;
            if !findings.is_empty() {
                output::line("")?;
                let columns = ["kind", "topic", "partition", "offset", "object", "detail"];
                output::rows(Format::Table, &columns, &findings)?;
            }
        }
        Format::Json => output::one(Format::Json, &json!({ "topics": summaries, "findings": findings }))?,
        Format::Jsonl => {
            for summary in &mut summaries {
                summary["event"] = json!("summary");
            }
            output::rows(Format::Jsonl, &[], &findings)?;
            output::rows(Format::Jsonl, &[], &summaries)?;
        }
    }
    if let Some(failure) = broken_off {
        return Err(failure);
    }
    if wrong > 0 {
        return Err(Failure::new(Exit::Verification, format!("{wrong} findings")));
    }
    Ok(())
}
