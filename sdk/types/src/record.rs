//! Records: what producers submit and consumers receive.

use crate::{ContentHash, Reference, Timestamp};
use bytes::Bytes;

/// The longest key, in bytes.
pub const MAX_KEY_LENGTH: usize = 32 * 1024;
/// The most headers and attributes of one record together.
pub const MAX_HEADERS: usize = 1_024;

/// A named value of any bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Its name; may repeat within a record.
    pub name: String,
    /// Its value. Headers whose value is UTF-8 appear as attributes in Parquet and JSON.
    pub value: Bytes,
}

/// What a record carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A stored payload.
    Reference(Box<Reference>),
    /// A small value in the record itself. An empty value is not a tombstone.
    Inline {
        /// The bytes as given.
        bytes: Bytes,
        /// BLAKE3 of the bytes.
        content_hash: ContentHash,
    },
    /// Nothing: in Kafka's words a null value.
    Tombstone,
}

/// One record, without its place in a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Chooses the partition; `None` spreads records.
    pub key: Option<Bytes>,
    /// When it happened, by the producer's word.
    pub event_time: Option<Timestamp>,
    /// Headers and attributes, in order.
    pub headers: Vec<Header>,
    /// The file's original relative path, for backfilled files.
    pub source_name: Option<String>,
    /// The file's modification time, for backfilled files.
    pub source_mtime: Option<Timestamp>,
    /// What it carries.
    pub value: Value,
}

impl Record {
    /// A record that carries `value` and nothing else.
    pub fn new(value: Value) -> Self {
        Self { key: None, event_time: None, headers: Vec::new(), source_name: None, source_mtime: None, value }
    }
}
