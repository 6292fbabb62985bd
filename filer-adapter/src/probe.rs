//! The start-up probe: does this store keep the contract that all coordination rests on?
//!
//! A few rounds of four parallel creates of one key each must give exactly one success, a later create must fail, and the winner's
//! bytes must be read back.

use crate::{Filer, Runtime, StoreError};
use refstream_types::{Key, Layout};
use thiserror::Error;

/// Why a store is refused.
#[derive(Clone, Debug, Error)]
pub enum ProbeError {
    /// The store breaks the contract.
    #[error(
        "this store cannot coordinate brokers: {what} (key {key}); use a store whose If-None-Match is atomic, see docs/STORES.md"
    )]
    Broken {
        /// What it did.
        what: String,
        /// Where.
        key: Key,
    },
    /// The store did not answer.
    #[error("the store could not be probed: {0}")]
    Store(#[from] StoreError),
}

/// Probes the store with objects of random names below the layout's root, and removes them.
///
/// # Errors
/// When the store breaks the contract or does not answer.
pub async fn probe(filer: &dyn Filer, runtime: &dyn Runtime, layout: &Layout) -> Result<(), ProbeError> {
    let _ = (filer, runtime, layout);
    todo!()
}
