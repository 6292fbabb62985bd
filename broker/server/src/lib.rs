//! The shell around the broker core: tasks, gRPC services, the reader of journals, HTTP.

#![warn(missing_docs)]

mod auth;
mod compaction;
mod connection;
mod core_task;
#[cfg(test)]
mod doubles;
mod errors;
mod http;
mod interface;
mod metrics;
mod node;
mod peers;
mod reader;
mod receipts;
mod rpc;
mod server;
#[cfg(test)]
mod tests;

pub use auth::{InvalidTokenHash, Tokens};
pub use interface::{
    Access, Compacted, Compactor, CompactorError, PeerToken, ServerConfig, ServerSettings, StartError,
    StoreDescription, TlsIdentity,
};
pub use server::Server;
