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
    /// For partitions that change hands: who has them next serves them in a moment, as a rule.
    pub(crate) const fn moving() -> Self {
        Self { first: Duration::from_millis(25), longest: Duration::from_millis(400), failures: 0 }
    }
    /// The next attempt is the first one again.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }
    /// How long to wait before the next attempt.
    pub(crate) fn next(&mut self, runtime: &dyn Runtime) -> Duration {
        self.next_spread(runtime.random())
    }
    /// As [`Backoff::next`], with a random number of the caller's: what has failed as often waits as long, so that it comes back together.
    pub(crate) fn next_spread(&mut self, random: u64) -> Duration {
        let full = self.first.saturating_mul(1 << self.failures.min(16)).min(self.longest);
        self.failures = self.failures.saturating_add(1);
        let half = full / 2;
        half + Duration::from_nanos(random % (half.as_nanos() as u64 + 1))
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

    #[test]
    fn what_changes_hands_is_tried_soon_and_never_much_later() {
        let mut backoff = Backoff::moving();
        let delays: Vec<_> = (0..8).map(|_| backoff.next_spread(u64::MAX).as_millis()).collect();
        assert!(delays[..4].iter().sum::<u128>() <= 375, "{delays:?}");
        assert!(delays.is_sorted() && delays[7] > 200 && delays[7] <= 400, "{delays:?}");
        let (mut one, mut other) = (Backoff::moving(), Backoff::moving());
        assert_eq!(one.next_spread(7), other.next_spread(7));
        assert_ne!(one.next_spread(7), other.next_spread(11_000_000), "clients do not come back together");
    }
}
