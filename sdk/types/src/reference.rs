//! References: what flows through brokers in place of payloads.

use crate::{ContentHash, Crc32c, Key, StoreName};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// How a payload's bytes were encoded before they were stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ContentEncoding {
    /// Stored as given.
    #[default]
    Identity,
    /// zstd, in independent frames of at most 1 MiB of content each with a seek table at the end where there is more than
    /// one frame, so that ranges can be read.
    Zstd,
}

/// A range of an object's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ByteRange {
    /// Bytes before the range.
    pub offset: u64,
    /// Bytes in the range.
    pub length: u64,
}

impl ByteRange {
    /// One past the last byte; `None` on overflow.
    pub fn end(self) -> Option<u64> {
        self.offset.checked_add(self.length)
    }
}

/// A reference whose parts contradict each other.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the reference to {key} in store {store} is invalid: {why}")]
pub struct InvalidReference {
    /// The store it names.
    pub store: StoreName,
    /// The object it names.
    pub key: Key,
    /// What is wrong.
    pub why: &'static str,
}

/// Where a payload is and what it is: a *configured* store and a key in it, never a free address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reference {
    /// The configured store.
    pub store: StoreName,
    /// The object within the store.
    pub key: Key,
    /// Where in the object the blob starts; `Some` only for ranges of a pack.
    pub offset: Option<u64>,
    /// Stored bytes of the blob (after encoding).
    pub size: u64,
    /// CRC32C of the stored bytes; `None` only for objects attached in place.
    pub checksum: Option<Crc32c>,
    /// BLAKE3 of the payload as given; `None` only for objects attached in place.
    pub content_hash: Option<ContentHash>,
    /// Bytes of the payload as given.
    pub content_size: u64,
    /// How the stored bytes encode the payload.
    pub encoding: ContentEncoding,
    /// MIME type, when known.
    pub content_type: Option<String>,
    /// ETag that the object must still have (objects attached in place).
    pub etag: Option<String>,
    /// Version that is meant (objects attached in place).
    pub version: Option<String>,
}

impl Reference {
    /// The bytes of the object that hold the blob.
    pub fn range(&self) -> ByteRange {
        ByteRange { offset: self.offset.unwrap_or(0), length: self.size }
    }

    /// Checks that the parts agree with each other.
    ///
    /// # Errors
    /// Says which rule is broken: the range overflows, or an unencoded payload has two sizes.
    pub fn validate(&self) -> Result<(), InvalidReference> {
        let verifiable = self.content_hash.is_some() || self.etag.is_some() || self.version.is_some();
        match Self::contradiction(self.range(), self.content_size, self.encoding, verifiable) {
            None => Ok(()),
            Some(why) => Err(InvalidReference { store: self.store.clone(), key: self.key.clone(), why }),
        }
    }

    /// What contradicts itself in a reference of these parts, if anything does. `verifiable`: it has a content hash, or pins an
    /// etag or a version.
    pub fn contradiction(
        range: ByteRange,
        content_size: u64,
        encoding: ContentEncoding,
        verifiable: bool,
    ) -> Option<&'static str> {
        if range.end().is_none_or(|end| end > i64::MAX as u64) {
            return Some("offset + size exceeds 2^63 - 1");
        }
        if content_size > i64::MAX as u64 {
            return Some("content_size exceeds 2^63 - 1");
        }
        if encoding == ContentEncoding::Identity && content_size != range.length {
            return Some("size and content_size differ although the payload is stored as given");
        }
        if !verifiable {
            return Some("neither a content hash nor a pinned etag or version: nothing could verify it");
        }
        None
    }
}
