//! Waiting between attempts.

use refstream_filer_adapter::Runtime;
use std::time::Duration;

/// Delays that double from `first` to `longest`, each spread over half of itself so that many clients do not come back together.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    first: Duration,
    longest: Duration,
    failures: u32,
}

impl Backoff {
    /// For calls to brokers and stores.
    pub(crate) const fn new() -> Self {
        Self { first: Duration::from_millis(50), longest: Duration::from_secs(2), failures: 0 }
    }
    /// The next attempt is the first one again.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }
    /// How long to wait before the next attempt.
    pub(crate) fn next(&mut self, runtime: &dyn Runtime) -> Duration {
        let full = self.first.saturating_mul(1 << self.failures.min(16)).min(self.longest);
        self.failures = self.failures.saturating_add(1);
        let half = full / 2;
        half + Duration::from_nanos(runtime.random() % (half.as_nanos() as u64 + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use refstream_filer_adapter::TokioRuntime;

    #[test]
    fn delays_grow_to_a_limit_and_start_again() {
        let runtime = TokioRuntime::new();
        let mut backoff = Backoff::new();
        assert!(backoff.next(&runtime) <= Duration::from_millis(50));
        for _ in 0..100 {
            assert!(backoff.next(&runtime) <= Duration::from_secs(2));
        }
        assert!(backoff.next(&runtime) >= Duration::from_secs(1));
        backoff.reset();
        assert!(backoff.next(&runtime) <= Duration::from_millis(50));
    }
}
