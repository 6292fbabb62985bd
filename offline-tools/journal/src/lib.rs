//! Reads the cluster log, manifests and journals from the store alone: what offline tools, the broker's reader and the compactor share.
//!
//! Nothing here writes, and nothing here needs a broker. Three things are read:
//!
//! - The *cluster's state*: the newest snapshot that a listing shows (it may lag), then the log upward by reads. Log objects
//!   are freed in ascending order behind a boundary, and a writer that slept may create a freed number again, so entries
//!   count only if, after they were read, the one before them was still there or they begin at the boundary (the chain's rule of
//!   trust). Otherwise [`ReadError::Gone`] says: load the state afresh.
//! - A *topic's manifest*: the highest version, found by reads; its history pages are immutable and read when asked for.
//! - A *sealed segment*: its batches and final state from its owner's journal, within the slots that the state names, by way of
//!   the checkpoints: one object in K, plus the tail behind the last checkpoint. What is returned was checked to cover exactly
//!   the segment's offsets.
//!
//! A 404 while reading means that what was being read has moved on: read the state or manifest again.

#![warn(missing_docs)]

mod cluster;
mod manifest;
mod segment;

use bytes::Bytes;
use refstream_filer_adapter::{Filer, StoreError};
use refstream_format::{DecodeError, cluster_log::Violation, journal::Contradiction};
use refstream_types::{Key, Layout, SegmentId};
use std::sync::Arc;
use thiserror::Error;

/// Why something could not be read.
#[derive(Clone, Debug, Error)]
pub enum ReadError {
    /// The store did not say.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An object that must exist does not (any more): read the state again.
    #[error("the object {0} does not exist (any more)")]
    Gone(Key),
    /// An object is damaged.
    #[error("the object {key} is damaged: {error}")]
    Damaged {
        /// Which.
        key: Key,
        /// How.
        error: DecodeError,
    },
    /// The cluster log contradicts itself.
    #[error(transparent)]
    Violation(#[from] Violation),
    /// A journal contradicts itself.
    #[error(transparent)]
    Contradiction(#[from] Contradiction),
    /// A journal does not hold what the cluster's state says of a segment.
    #[error("the journal does not hold segment {segment} as the cluster's state describes it: {why}")]
    Segment {
        /// Which.
        segment: SegmentId,
        /// What differs.
        why: String,
    },
}

impl ReadError {
    /// Whether the same call may succeed later, or after the state was read again.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Store(error) => error.is_retryable(),
            Self::Gone(_) => true,
            Self::Damaged { .. } | Self::Violation(_) | Self::Contradiction(_) | Self::Segment { .. } => false,
        }
    }
}

/// A deployment's metadata, read from its store.
#[derive(Clone, Debug)]
pub struct Metadata {
    filer: Arc<dyn Filer>,
    layout: Layout,
}

impl Metadata {
    /// The deployment below `layout`'s root in `filer`.
    pub fn new(filer: Arc<dyn Filer>, layout: Layout) -> Self {
        Self { filer, layout }
    }
    /// Where it is.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }
    /// The store it is in.
    pub fn filer(&self) -> &Arc<dyn Filer> {
        &self.filer
    }
    /// Raw bytes of an object.
    ///
    /// # Errors
    /// `Gone` when it is not there.
    pub async fn object(&self, key: &Key) -> Result<Bytes, ReadError> {
        self.filer.read(key).await?.ok_or_else(|| ReadError::Gone(key.clone()))
    }
}

/// Names the object that a decoder refused.
fn damaged(key: &Key) -> impl FnOnce(DecodeError) -> ReadError + '_ {
    move |error| ReadError::Damaged { key: key.clone(), error }
}

#[cfg(test)]
mod tests;
