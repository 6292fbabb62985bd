//! Closed segments: journal to Arrow to Parquet, and back.
//!
//! The file schema is documented in docs/SEGMENT_FILE.md. [`Compactor`] makes files and keeps the topic's manifest,
//! [`ClosedReader`] reads rows back.

#![warn(missing_docs)]

mod compactor;
mod decode;
mod decoding;
mod digest;
mod encode;
mod file;
mod fresh;
mod interface;
mod orphans;
mod output;
mod pages;
mod publish;
mod reader;
mod schema;
mod source;
mod spans;
mod stores;
#[cfg(test)]
mod testing;
mod upload;
mod writer;

pub use compactor::Compactor;
pub use digest::RowsDigest;
pub use interface::{CompactError, Compaction, Row};
pub use reader::ClosedReader;
pub use schema::{FORMAT_VERSION, schema};
pub use writer::{ROW_GROUP_BYTES, ROW_GROUP_ROWS, created_by, metadata, properties, record_batches, write_rows};
