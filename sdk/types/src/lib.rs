//! The vocabulary of Refstream as types.
//!
//! No I/O, no async, no wire formats: every other crate speaks in these words. Input from outside is parsed once, here, into
//! newtypes whose values are valid by construction; limits are constants beside the type they limit.

#![warn(missing_docs)]

mod hash;
mod ids;
mod layout;
mod name;
mod partitioner;
mod record;
mod reference;
mod time;
mod topic;

pub use hash::{ContentHash, Crc32c, ParseHashError, Token};
pub use ids::{
    Epoch, LeaderTerm, Offset, PartitionId, PartitionRange, ProducerEpoch, ProducerId, ProducerStamp, SegmentId,
    SegmentNumber, Sequence, Slot, TopicId, Version,
};
pub use layout::{Chain, Key, KeyError, Layout, MAX_KEY_BYTES, MAX_KEY_COMPONENT_BYTES, TopicFolder, TopicObject};
pub use name::{InvalidName, MAX_STORE_NAME_BYTES, MAX_TOPIC_NAME_BYTES, StoreName, TopicName};
pub use partitioner::{murmur2, partition_for_key};
pub use record::{Header, MAX_HEADERS, MAX_KEY_LENGTH, Record, Value};
pub use reference::{ByteRange, ContentEncoding, InvalidReference, Reference};
pub use time::{ParseTimestampError, Timestamp};
pub use topic::{AckMode, DEFAULT_PARTITIONS, InvalidTopicConfig, MAX_INLINE_BYTES, MAX_PARTITIONS, TopicConfig};
