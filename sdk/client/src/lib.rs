//! The Refstream SDK: payloads go straight to storage, only references go through the brokers.
//!
//! [`Client`] connects to a deployment. [`Uploader`] stores payloads and returns [`Receipt`]s, [`Producer`] submits records in
//! order and exactly once, [`Consumer`] reads them from closed files and the live tail, [`Client::payload`] fetches and verifies
//! bytes, [`Backfill`] does all of it for folders of files.

#![warn(missing_docs)]

mod backfill;
mod backoff;
mod broker;
mod client;
mod consumer;
mod deployment;
#[cfg(test)]
mod doubles;
mod error;
mod grants;
mod lazy_store;
mod payload;
mod producer;
mod records;
mod topics;
mod uploader;

/// Jobs: backfills that can be ended at any moment and go on where they were.
#[cfg(feature = "jobs")]
pub mod jobs {
    pub use crate::backfill::job::{cancel, list, resume_options, status};
}

pub use backfill::{
    Backfill, BackfillEvent, BackfillOptions, BackfillProgress, BackfillSummary, FileFailure, KeyTemplate, Placement,
};
#[cfg(feature = "jobs")]
pub use backfill::{JobOptions, JobPhase, JobStatus};
pub use client::{Client, ClientOptions, StoreAccess, StoreCredentials, Token};
pub use consumer::{Consumer, ConsumerOptions, Delivery, From};
pub use error::*;
pub use payload::{BlockSums, Payload};
pub use producer::{Ack, Permit, Producer, ProducerOptions, Ticket};
pub use refstream_filer_adapter as stores;
pub use refstream_types as types;
pub use topics::{
    AlterTopic, BrokerDescription, ClusterChanges, PartitionOffsets, Segment, SegmentState, TopicDescription,
};
pub use uploader::{MAX_CONCURRENCY, MAX_PACK_BELOW, Receipt, Source, UploadOptions, Uploader};
