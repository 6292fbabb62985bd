//! Topics and their settings.

use crate::StoreName;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use thiserror::Error;

/// Partitions of a topic when nothing is said.
pub const DEFAULT_PARTITIONS: u32 = 16;
/// The most partitions of a topic.
pub const MAX_PARTITIONS: u32 = 4_096;

/// The most bytes of a value that travels inside its record, whatever the topic.
pub const MAX_INLINE_BYTES: u32 = 1 << 20;

/// When an append is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AckMode {
    /// After the journal object that holds it is durable in the store.
    #[default]
    Durable,
    /// After every broker of the segment holds it in memory.
    Replicated,
}

/// A topic's settings were refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the topic setting {setting} = {given} is refused: {why}")]
pub struct InvalidTopicConfig {
    /// The setting's name.
    pub setting: &'static str,
    /// What was given.
    pub given: String,
    /// Why it is refused and what is permitted.
    pub why: String,
}

/// A topic's settings. All but `partitions` can be altered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TopicConfig {
    /// Number of partitions, 1 to 4,096; fixed for ever, since keys are bound to partitions by it.
    pub partitions: u32,
    /// How long records are kept after their append; `None` keeps them for ever.
    pub retention: Option<Duration>,
    /// Store of new payloads; `None` means the cluster's default store.
    pub store: Option<StoreName>,
    /// `put` and backfills may be asked to let values of at most this many bytes travel inside the record. 0: every payload is uploaded.
    pub inline_max: u32,
    /// A segment is sealed once its journal bytes exceed this.
    pub seal_bytes: u64,
    /// A segment is sealed once it has been open this long and holds a record.
    pub seal_age: Duration,
    /// Target size of the files under `data/`, in bytes.
    pub file_bytes: u64,
    /// The longest that rows of a quiet topic may wait for their file under `data/`.
    pub publish_lag: Duration,
}

impl Default for TopicConfig {
    fn default() -> Self {
        Self {
            partitions: DEFAULT_PARTITIONS,
            retention: None,
            store: None,
            inline_max: 0,
            seal_bytes: 64 << 20,
            seal_age: Duration::from_secs(600),
            file_bytes: 128 << 20,
            publish_lag: Duration::from_secs(6 * 3600),
        }
    }
}

impl TopicConfig {
    /// Checks every setting against its limits.
    ///
    /// # Errors
    /// Names the first setting that is out of bounds, and the bounds.
    pub fn validate(&self) -> Result<(), InvalidTopicConfig> {
        fn refuse(setting: &'static str, given: impl ToString, why: impl ToString) -> Result<(), InvalidTopicConfig> {
            Err(InvalidTopicConfig { setting, given: given.to_string(), why: why.to_string() })
        }
        if self.partitions == 0 || self.partitions > MAX_PARTITIONS {
            return refuse("partitions", self.partitions, format!("use 1 to {MAX_PARTITIONS}"));
        }
        if self.inline_max > MAX_INLINE_BYTES {
            let why = format!("at most {MAX_INLINE_BYTES} bytes travel inside a record");
            return refuse("inline_max", self.inline_max, why);
        }
        if self.seal_bytes < 1 << 10 || self.seal_bytes > 1 << 30 {
            return refuse("seal_bytes", self.seal_bytes, "use 1024 to 1073741824");
        }
        if self.file_bytes < 1 << 10 || self.file_bytes > 4 << 30 {
            return refuse("file_bytes", self.file_bytes, "use 1024 to 4294967296");
        }
        for (setting, given) in [("seal_age", self.seal_age), ("publish_lag", self.publish_lag)] {
            if given < Duration::from_secs(1) || given > Duration::from_secs(7 * 86_400) {
                return refuse(setting, format!("{given:?}"), "use 1 second to 7 days");
            }
        }
        if self.retention.is_some_and(|r| r < Duration::from_secs(60)) {
            return refuse("retention", format!("{:?}", self.retention.unwrap_or_default()), "use at least 1 minute");
        }
        Ok(())
    }
}
