//! Reads the cluster log, manifests and journals from the store alone: what offline tools, the broker's reader and the compactor share.
//!
//! A 404 while reading means that what was being read has moved on: read the state or manifest again.

#![warn(missing_docs)]

use bytes::Bytes;
use refstream_filer_adapter::{Filer, StoreError};
use refstream_format::{
    DecodeError,
    cluster_log::{ClusterState, SealedSegment, TopicState, Violation},
    journal::{BatchLocation, JournalObject, PlacedBatch, SegmentState},
    manifest::Manifest,
};
use refstream_types::{Epoch, Key, Layout, Slot};
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
}

/// A deployment's metadata, read from its store.
#[derive(Clone, Debug)]
pub struct Metadata {
    filer: Arc<dyn Filer>,
    layout: Layout,
}

#[allow(unused_variables)]
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
    /// The newest state: newest snapshot, then the log to its end.
    ///
    /// # Errors
    /// When the store did not say, or what it holds is damaged.
    pub async fn cluster_state(&self) -> Result<ClusterState, ReadError> {
        todo!()
    }
    /// Applies the log entries after `state`'s version; whether there were any.
    ///
    /// # Errors
    /// `Gone` when the log no longer reaches back so far: load the state afresh.
    pub async fn follow(&self, state: &mut ClusterState) -> Result<bool, ReadError> {
        todo!()
    }
    /// The newest version of a topic's manifest; `None` before the first. `hint`: a version known to have existed, or 0.
    ///
    /// # Errors
    /// When the store did not say, or what it holds is damaged.
    pub async fn manifest(&self, topic: &TopicState, hint: u64) -> Result<Option<Manifest>, ReadError> {
        todo!()
    }
    /// One journal object.
    ///
    /// # Errors
    /// `Gone` when the slot is not there.
    pub async fn journal_object(&self, epoch: Epoch, slot: Slot) -> Result<JournalObject, ReadError> {
        todo!()
    }
    /// Where a sealed segment's batches are, ascending by partition, then offset; read from checkpoints, bounded reads.
    ///
    /// # Errors
    /// When an object of the journal is gone or damaged, or the batches do not cover exactly the segment's offsets.
    pub async fn segment_batches(&self, segment: &SealedSegment) -> Result<Vec<BatchLocation>, ReadError> {
        todo!()
    }
    /// The bytes of one batch, checked.
    ///
    /// # Errors
    /// When the object is gone or damaged.
    pub async fn batch(&self, epoch: Epoch, location: &BatchLocation) -> Result<PlacedBatch, ReadError> {
        todo!()
    }
    /// The final state of a sealed segment, producers included.
    ///
    /// # Errors
    /// When an object of the journal is gone or damaged.
    pub async fn final_state(&self, segment: &SealedSegment) -> Result<SegmentState, ReadError> {
        todo!()
    }
    /// Raw bytes of an object.
    ///
    /// # Errors
    /// `Gone` when it is not there.
    pub async fn object(&self, key: &Key) -> Result<Bytes, ReadError> {
        self.filer.read(key).await?.ok_or_else(|| ReadError::Gone(key.clone()))
    }
}
