//! The shell around the broker core: tasks, gRPC services, the reader of journals, HTTP.

#![warn(missing_docs)]

mod interface;
mod server;

pub use interface::{Compacted, Compactor, CompactorError, ServerConfig, ServerSettings, StartError, StoreDescription};
pub use server::Server;
