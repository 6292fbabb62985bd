//! Bytes at rest and in batches.
//!
//! Every format is versioned, every unit carries a CRC32C, integers are little-endian. Decoders never panic and never allocate
//! more than their input justifies; what they return was checked. Golden files in `tests/golden` pin each version.

#![warn(missing_docs)]

pub mod batch;
pub mod blocks;
mod checked;
pub mod cluster_log;
pub mod epoch;
pub mod frames;
pub mod journal;
pub mod manifest;
pub mod pack;
mod wire;

#[cfg(test)]
mod arbitrary;

pub use wire::{DecodeError, crc32c};
