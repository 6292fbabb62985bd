//! A running broker.

use crate::{ServerConfig, StartError};
use refstream_core::StopReason;
use std::net::SocketAddr;

/// A running broker.
#[derive(Debug)]
pub struct Server {}

#[allow(unused_variables)]
impl Server {
    /// Probes the store, listens, and starts the core. Returns once both ports listen; `/readyz` tells when it serves.
    ///
    /// # Errors
    /// When a port cannot be had or the store is unfit.
    pub async fn start(config: ServerConfig) -> Result<Self, StartError> {
        todo!()
    }
    /// Where gRPC listens.
    pub fn grpc_address(&self) -> SocketAddr {
        todo!()
    }
    /// Where HTTP listens.
    pub fn http_address(&self) -> SocketAddr {
        todo!()
    }
    /// Waits until it serves, or says why it stopped before.
    ///
    /// # Errors
    /// When it stopped.
    pub async fn serving(&self) -> Result<(), StopReason> {
        todo!()
    }
    /// Waits until it stops by itself.
    pub async fn stopped(&self) -> StopReason {
        todo!()
    }
    /// Drains: refuses new appends, seals and commits, answers what is in flight, closes the ports.
    pub async fn drain(self) -> StopReason {
        todo!()
    }
}
