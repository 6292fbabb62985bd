//! `refstream topic`.

use crate::{
    Global,
    config::{self, Period},
    exit::Failure,
    output,
};
use refstream::{
    AlterTopic, TopicDescription,
    types::{StoreName, TopicConfig, TopicName},
};
use serde_json::{Value, json};

/// Create, list, describe, alter and delete topics
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Arguments {
    /// Create a topic
    #[command(after_help = "Example:\n  refstream topic create images --partitions 16 --seal-age 5m")]
    Create {
        /// Its name: 1 to 249 of A-Z a-z 0-9 . _ -
        name: TopicName,
        /// How many partitions, 1 to 4096; cannot be changed later [default: 16]
        #[arg(long, value_name = "N")]
        partitions: Option<u32>,
        #[command(flatten)]
        settings: Settings,
    },
    /// All topics
    #[command(after_help = "Example:\n  refstream topic list --output jsonl")]
    List,
    /// One topic: settings, and what each partition holds
    #[command(after_help = "Example:\n  refstream topic describe images --output json")]
    Describe {
        /// The topic
        name: TopicName,
    },
    /// Change settings
    #[command(after_help = "Example:\n  refstream topic alter images --seal-age 5m")]
    Alter {
        /// The topic
        name: TopicName,
        #[command(flatten)]
        settings: Settings,
    },
    /// Delete a topic: it takes no more records and its name is free again. Payloads and Parquet files stay in the store
    #[command(after_help = "Example:\n  refstream topic delete images")]
    Delete {
        /// The topic
        name: TopicName,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct Settings {
    /// How long records are to be kept, for example 30days, or "forever"; this version notes it and removes nothing yet [default: forever]
    #[arg(long, value_name = "DURATION")]
    retention: Option<String>,
    /// Store of new payloads [default: the cluster's default store]
    #[arg(long, value_name = "NAME")]
    store: Option<StoreName>,
    /// put and backfill may be asked, with --inline-max, to let payloads up to this many bytes travel inside the record [default: 0]
    #[arg(long, value_name = "BYTES")]
    inline_max: Option<u32>,
    /// Seal a segment when its journal bytes exceed this [default: 67108864]
    #[arg(long, value_name = "BYTES")]
    seal_bytes: Option<u64>,
    /// Seal a segment with records at this age [default: 10m]
    #[arg(long, value_name = "DURATION")]
    seal_age: Option<Period>,
    /// Target size of published files [default: 134217728]
    #[arg(long, value_name = "BYTES")]
    file_bytes: Option<u64>,
    /// The longest that rows wait for their published file [default: 6h]
    #[arg(long, value_name = "DURATION")]
    publish_lag: Option<Period>,
}

impl Settings {
    fn change(self) -> Result<AlterTopic, Failure> {
        let retention = match self.retention.as_deref() {
            None => None,
            Some("forever") => Some(None),
            Some(text) => Some(Some(humantime::parse_duration(text).map_err(|error| {
                Failure::usage(format!(
                    "--retention {text:?} is neither a duration such as 30days nor \"forever\": {error}"
                ))
            })?)),
        };
        // Microseconds are kept.
        if retention.flatten().is_some_and(|retention| u64::try_from(retention.as_micros()).is_err()) {
            return Err(Failure::usage(
                "--retention is longer than can be kept, which is 584542years; \"forever\" keeps records for ever",
            ));
        }
        let change = AlterTopic {
            retention,
            store: self.store,
            inline_max: self.inline_max,
            seal_bytes: self.seal_bytes,
            seal_age: self.seal_age.map(|p| p.0),
            file_bytes: self.file_bytes,
            publish_lag: self.publish_lag.map(|p| p.0),
        };
        // Here, so that what is refused is what was given.
        config(&change, None).validate().map_err(Failure::usage)?;
        Ok(change)
    }
}

/// A topic's settings where nothing but this is said of them.
fn config(change: &AlterTopic, partitions: Option<u32>) -> TopicConfig {
    let defaults = TopicConfig::default();
    TopicConfig {
        partitions: partitions.unwrap_or(defaults.partitions),
        retention: change.retention.flatten(),
        store: change.store.clone(),
        inline_max: change.inline_max.unwrap_or(defaults.inline_max),
        seal_bytes: change.seal_bytes.unwrap_or(defaults.seal_bytes),
        seal_age: change.seal_age.unwrap_or(defaults.seal_age),
        file_bytes: change.file_bytes.unwrap_or(defaults.file_bytes),
        publish_lag: change.publish_lag.unwrap_or(defaults.publish_lag),
    }
}

fn described(topic: &TopicDescription) -> Value {
    let config = &topic.config;
    let period = |d| humantime::format_duration(d).to_string();
    json!({
        "name": topic.name,
        "id": topic.id,
        "partitions": config.partitions,
        "retention": config.retention.map_or_else(|| "forever".into(), period),
        "store": config.store,
        "inline_max": config.inline_max,
        "seal_bytes": config.seal_bytes,
        "seal_age": period(config.seal_age),
        "file_bytes": config.file_bytes,
        "publish_lag": period(config.publish_lag),
        "created_at": topic.created_at,
    })
}

pub(crate) async fn run(global: &Global, arguments: Arguments) -> Result<(), Failure> {
    match arguments {
        Arguments::Create { name, partitions, settings } => {
            let change = settings.change()?;
            let config = config(&change, partitions);
            config.validate().map_err(Failure::usage)?;
            let topic = config::connect(global).await?.create_topic(&name, &config).await?;
            output::one(global.output, &described(&topic))
        }
        Arguments::List => {
            let topics = config::connect(global).await?.list_topics().await?;
            let rows: Vec<_> = topics.iter().map(described).collect();
            output::rows(global.output, &["name", "id", "partitions", "retention", "store", "created_at"], &rows)
        }
        Arguments::Describe { name } => {
            let topic = config::connect(global).await?.describe_topic(&name).await?;
            let partitions: Vec<_> = topic
                .partitions
                .iter()
                .map(|p| {
                    json!({
                        "partition": p.partition,
                        "earliest": p.earliest,
                        "latest": p.latest,
                        "records": p.latest.get().saturating_sub(p.earliest.get()),
                    })
                })
                .collect();
            let mut value = described(&topic);
            if global.output == output::Format::Table {
                output::one(global.output, &value)?;
                output::line("")?;
                output::rows(global.output, &["partition", "earliest", "latest", "records"], &partitions)
            } else {
                value["offsets"] = Value::Array(partitions);
                output::one(global.output, &value)
            }
        }
        Arguments::Alter { name, settings } => {
            let change = settings.change()?;
            if change == AlterTopic::default() {
                return Err(Failure::usage(
                    "nothing to alter: give at least one setting, see refstream topic alter --help",
                ));
            }
            let topic = config::connect(global).await?.alter_topic(&name, change).await?;
            output::one(global.output, &described(&topic))
        }
        Arguments::Delete { name } => {
            config::connect(global).await?.delete_topic(&name).await?;
            output::one(global.output, &json!({ "deleted": name }))
        }
    }
}
