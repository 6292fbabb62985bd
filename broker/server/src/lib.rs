//! The shell around the broker core: tasks, gRPC services, the reader of journals, HTTP.

#![warn(missing_docs)]

mod interface;

pub use interface::{Compacted, Compactor, CompactorError, Server, ServerConfig, StartError, StoreDescription};
