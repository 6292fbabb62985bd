//! Time and randomness, so that a simulation can stand in for both.

use futures::future::BoxFuture;
use refstream_types::{Timestamp, Token};
use std::{fmt::Debug, time::Duration};

/// Where time and randomness come from.
pub trait Runtime: Debug + Send + Sync + 'static {
    /// Monotonic time since some fixed moment; never compared between machines.
    fn now(&self) -> Duration;
    /// The wall clock; may jump.
    fn wall(&self) -> Timestamp;
    /// Waits.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;
    /// 64 random bits.
    fn random(&self) -> u64;

    /// A fresh token.
    fn token(&self) -> Token {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.random().to_le_bytes());
        bytes[8..].copy_from_slice(&self.random().to_le_bytes());
        Token(bytes)
    }
}

/// The machine's own clock and random numbers, on tokio.
#[derive(Clone, Copy, Debug)]
pub struct TokioRuntime {
    start: std::time::Instant,
}

impl TokioRuntime {
    /// A runtime whose monotonic time starts now.
    #[allow(clippy::new_without_default, clippy::disallowed_methods)]
    pub fn new() -> Self {
        Self { start: std::time::Instant::now() }
    }
}

impl Runtime for TokioRuntime {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }
    #[allow(clippy::disallowed_methods)]
    fn wall(&self) -> Timestamp {
        std::time::SystemTime::now().into()
    }
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }
    fn random(&self) -> u64 {
        rand::random()
    }
}
