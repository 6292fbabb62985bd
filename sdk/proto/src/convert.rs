//! Conversions between messages and the vocabulary.

use crate::v1;
use refstream_types::{InvalidName, InvalidTopicConfig, TopicConfig};
use std::time::Duration;
use thiserror::Error;

/// A message that does not say what it must.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum InvalidMessage {
    /// A field is missing.
    #[error("the field {0} is missing")]
    Missing(&'static str),
    /// A name is invalid.
    #[error(transparent)]
    Name(#[from] InvalidName),
    /// A setting is invalid.
    #[error(transparent)]
    Config(#[from] InvalidTopicConfig),
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

impl From<&TopicConfig> for v1::TopicConfig {
    fn from(config: &TopicConfig) -> Self {
        Self {
            partitions: config.partitions,
            retention_micros: config.retention.map(micros),
            store: config.store.as_ref().map(ToString::to_string),
            inline_max: config.inline_max,
            seal_bytes: config.seal_bytes,
            seal_age_micros: micros(config.seal_age),
            file_bytes: config.file_bytes,
            publish_lag_micros: micros(config.publish_lag),
        }
    }
}

impl TryFrom<&v1::TopicConfig> for TopicConfig {
    type Error = InvalidMessage;

    /// Zero means "the default" for every setting that cannot be zero.
    fn try_from(message: &v1::TopicConfig) -> Result<Self, InvalidMessage> {
        let or = |given: u64, default: u64| if given == 0 { default } else { given };
        let default = TopicConfig::default();
        let config = TopicConfig {
            partitions: if message.partitions == 0 { default.partitions } else { message.partitions },
            retention: message.retention_micros.map(Duration::from_micros),
            store: message.store.as_deref().map(str::parse).transpose()?,
            inline_max: message.inline_max,
            seal_bytes: or(message.seal_bytes, default.seal_bytes),
            seal_age: Duration::from_micros(or(message.seal_age_micros, micros(default.seal_age))),
            file_bytes: or(message.file_bytes, default.file_bytes),
            publish_lag: Duration::from_micros(or(message.publish_lag_micros, micros(default.publish_lag))),
        };
        config.validate()?;
        Ok(config)
    }
}
