//! Offline checks of a whole deployment: verify that every reference resolves.

#![warn(missing_docs)]

use refstream::{Client, ConsumeError};
use refstream_types::TopicName;
use serde::Serialize;

/// One thing that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// `missing`, `damaged`, `size`, `gap`, ...
    pub kind: &'static str,
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: u32,
    /// The offset.
    pub offset: u64,
    /// The object concerned.
    pub object: String,
    /// What is wrong and what can be done.
    pub detail: String,
}

/// What a verification saw.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Verification {
    /// Records read.
    pub records: u64,
    /// References checked.
    pub references: u64,
    /// Payload bytes hashed (deep only).
    pub bytes: u64,
    /// How many findings there are in all.
    pub wrong: u64,
    /// What is wrong: the first 10,000 findings.
    pub findings: Vec<Finding>,
}

/// Checks each record of a topic: offsets dense, its object there and large enough; with `deep` each payload fetched and hashed.
///
/// # Errors
/// When the topic cannot be read at all.
pub async fn verify(
    client: &Client,
    topic: &TopicName,
    deep: bool,
    on_progress: impl FnMut(&Verification) + Send,
) -> Result<Verification, ConsumeError> {
    let _ = (client, topic, deep, on_progress);
    todo!()
}
