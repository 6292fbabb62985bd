//! Closed segments: journal to Arrow to Parquet, and back.
//!
//! The file schema is documented in docs/SEGMENT_FILE.md.

#![warn(missing_docs)]

mod interface;

pub use interface::{ClosedReader, CompactError, Compaction, Compactor, Row};
