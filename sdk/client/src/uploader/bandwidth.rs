//! A limit of bytes a second to the store.

use refstream_filer_adapter::Runtime;
use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

/// Lets bytes go out at a rate. A request waits until all that went before it has had its time.
#[derive(Debug)]
pub(super) struct Bandwidth {
    bytes_per_second: u64,
    /// When the next byte may go out.
    free_at: Mutex<Duration>,
}

impl Bandwidth {
    pub(super) fn new(bytes_per_second: u64) -> Self {
        Self { bytes_per_second: bytes_per_second.max(1), free_at: Mutex::new(Duration::ZERO) }
    }

    /// How long a request of this many bytes has to wait at `now`.
    fn reserve(&self, now: Duration, bytes: u64) -> Duration {
        let takes = Duration::from_secs_f64(bytes as f64 / self.bytes_per_second as f64);
        let mut free_at = self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
        let start = (*free_at).max(now);
        *free_at = start.saturating_add(takes);
        start - now
    }

    /// Waits for the turn of a request of this many bytes.
    pub(super) async fn turn(&self, runtime: &dyn Runtime, bytes: u64) {
        let wait = self.reserve(runtime.now(), bytes);
        if !wait.is_zero() {
            runtime.sleep(wait).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_follow_one_another_at_the_rate() {
        let bandwidth = Bandwidth::new(1_000);
        let second = Duration::from_secs(1);
        assert_eq!(bandwidth.reserve(second, 500), Duration::ZERO);
        assert_eq!(bandwidth.reserve(second, 2_000), second / 2);
        assert_eq!(bandwidth.reserve(2 * second, 1), 3 * second / 2);
        assert_eq!(bandwidth.reserve(100 * second, 1), Duration::ZERO, "time that nobody used is gone");
    }
}
