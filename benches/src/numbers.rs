//! Medians, percentiles, clocks.

use refstream_filer_adapter::{Runtime as _, TokioRuntime};
use std::time::Duration;

/// The middle of `values` (the mean of the two middle ones); 0 of none.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

/// The smallest value that at least `percent` % of `values` do not exceed (nearest rank); zero of none.
pub(crate) fn percentile(values: &mut [Duration], percent: f64) -> Duration {
    values.sort_unstable();
    let rank = (percent / 100.0 * values.len() as f64).ceil() as usize;
    values.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}

/// Measures time from its start on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watch(TokioRuntime);

impl Watch {
    pub(crate) fn start() -> Self {
        Self(TokioRuntime::new())
    }
    pub(crate) fn elapsed(self) -> Duration {
        self.0.now()
    }
    /// `count` per second since the start.
    pub(crate) fn rate(self, count: usize) -> f64 {
        count as f64 / self.elapsed().as_secs_f64()
    }
}

/// CPU seconds that a process has used, all its threads; 0 where /proc does not say.
pub(crate) fn cpu_seconds(process: u32) -> f64 {
    /// Linux reports in hundredths of a second to user space, whatever the kernel's own tick.
    const TICKS: f64 = 100.0;
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // Fields 14 and 15, of which the second one, in parentheses, may hold spaces.
    let after = text.rsplit_once(')').map_or("", |(_, after)| after);
    let ticks: u64 = after.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    ticks as f64 / TICKS
}

/// Milliseconds with one decimal.
pub(crate) fn millis(duration: Duration) -> String {
    format!("{:.1} ms", duration.as_secs_f64() * 1_000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn middles_and_ranks() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&[]), 0.0);
        let mut values: Vec<_> = (1..=200).rev().map(Duration::from_millis).collect();
        assert_eq!(percentile(&mut values, 99.0), Duration::from_millis(198));
        assert_eq!(percentile(&mut values, 50.0), Duration::from_millis(100));
        assert_eq!(percentile(&mut [], 99.0), Duration::ZERO);
    }

    #[test]
    fn this_process_has_used_time() {
        let mut x = 1_u64;
        while cpu_seconds(std::process::id()) == 0.0 {
            x = std::hint::black_box(x.wrapping_mul(3));
        }
        assert!(x != 0);
    }
}
