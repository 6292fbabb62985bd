//! How many requests to the store may be under way: a fixed number, or as many as help.
//!
//! The adaptive limit climbs while more requests bring more bytes, as a hill is climbed: every window of completed requests is compared with the
//! one before; a clear gain keeps the direction, a clear loss turns it round, and in between it stays. A request that the store turned away
//! (throttled) cuts the limit by half at once.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::sync::{Semaphore, SemaphorePermit};

/// The least and the most requests of the adaptive limit, and where it starts.
const LEAST: usize = 2;
const MOST: usize = 64;
const START: usize = 8;
/// A window has at least this length, and this many requests for each that is allowed.
const WINDOW: Duration = Duration::from_millis(500);
const ROUNDS: u64 = 2;
/// What counts as a gain or a loss.
const CLEAR: f64 = 0.1;

/// Turns of requests.
#[derive(Debug)]
pub(super) struct Turns {
    permits: Arc<Semaphore>,
    /// `None`: a fixed number.
    climb: Option<Mutex<Climb>>,
}

#[derive(Debug)]
struct Climb {
    limit: usize,
    up: bool,
    since: Option<Duration>,
    requests: u64,
    bytes: u64,
    /// Bytes a second of the window before.
    before: Option<f64>,
    /// Permits that are to be taken out as they come back.
    surplus: usize,
}

impl Climb {
    fn new() -> Self {
        Self { limit: START, up: true, since: None, requests: 0, bytes: 0, before: None, surplus: 0 }
    }

    fn start_window(&mut self, now: Duration) {
        (self.since, self.requests, self.bytes) = (Some(now), 0, 0);
    }

    /// A request of this many bytes succeeded at `now`.
    fn succeeded(&mut self, now: Duration, bytes: u64) {
        self.requests += 1;
        self.bytes += bytes;
        let since = *self.since.get_or_insert(now);
        if now - since < WINDOW || self.requests < ROUNDS * self.limit as u64 {
            return;
        }
        let rate = self.bytes as f64 / (now - since).as_secs_f64();
        match self.before {
            Some(before) if rate < before * (1.0 - CLEAR) => self.up = !self.up,
            // More requests that bring nothing only cost.
            Some(before) if self.up && rate < before * (1.0 + CLEAR) => self.up = false,
            _ => {}
        }
        let step = (self.limit / 4).max(1);
        let limit = if self.up { self.limit + step } else { self.limit - step.min(self.limit - 1) };
        self.limit = limit.clamp(LEAST, MOST);
        if self.limit == LEAST {
            self.up = true;
        }
        self.before = Some(rate);
        self.start_window(now);
    }

    fn throttled(&mut self, now: Duration) {
        self.limit = (self.limit / 2).max(LEAST);
        self.before = None;
        self.up = true;
        self.start_window(now);
    }
}

impl Turns {
    pub(super) fn fixed(requests: usize) -> Self {
        Self { permits: Arc::new(Semaphore::new(requests)), climb: None }
    }

    pub(super) fn adaptive() -> Self {
        Self { permits: Arc::new(Semaphore::new(START)), climb: Some(Mutex::new(Climb::new())) }
    }

    /// Waits for a turn; it ends when this is dropped.
    pub(super) async fn acquire(&self) -> Option<SemaphorePermit<'_>> {
        self.permits.acquire().await.ok()
    }

    /// Turns that nobody has.
    #[cfg(test)]
    pub(super) fn free(&self) -> usize {
        self.permits.available_permits()
    }

    fn change(&self, change: impl FnOnce(&mut Climb)) {
        let Some(climb) = &self.climb else { return };
        let mut climb = climb.lock().unwrap_or_else(PoisonError::into_inner);
        let before = climb.limit;
        change(&mut climb);
        if climb.limit >= before {
            let more = climb.limit - before;
            let kept = more.min(climb.surplus);
            climb.surplus -= kept;
            self.permits.add_permits(more - kept);
        } else {
            climb.surplus += before - climb.limit;
        }
        // Turns that are taken now are taken out later.
        climb.surplus -= self.permits.forget_permits(climb.surplus);
    }

    /// A request succeeded.
    pub(super) fn succeeded(&self, now: Duration, bytes: u64) {
        self.change(|climb| climb.succeeded(now, bytes));
    }

    /// A request was turned away.
    pub(super) fn throttled(&self, now: Duration) {
        self.change(|climb| climb.throttled(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests of 1 MB against a store that serves `best` of them a second at once and no more in total.
    fn climbed(best: usize, windows: u32) -> Vec<usize> {
        let mut climb = Climb::new();
        let mut now = Duration::from_secs(1);
        climb.start_window(now);
        let mut limits = Vec::new();
        for _ in 0..windows {
            let limit = climb.limit;
            let rate = limit.min(best) as u32;
            // Long enough for a window.
            for _ in 0..(2 * limit).max(rate as usize) {
                now += Duration::from_secs(1) / rate;
                climb.succeeded(now, 1_000_000);
            }
            limits.push(climb.limit);
        }
        limits
    }

    #[test]
    fn it_climbs_to_where_more_requests_bring_no_more() {
        let limits = climbed(24, 60);
        let settled = &limits[20..];
        assert!(settled.iter().all(|limit| (12..=40).contains(limit)), "{limits:?}");
        assert!(climbed(1_000, 60)[30..].iter().all(|limit| *limit >= 32), "{:?}", climbed(1_000, 60));
        assert!(climbed(2, 60)[20..].iter().all(|limit| *limit <= 8), "{:?}", climbed(2, 60));
    }

    #[tokio::test]
    async fn a_store_that_turns_requests_away_is_asked_half_as_much() {
        let turns = Turns::adaptive();
        let mut held = Vec::new();
        for _ in 0..START {
            held.push(turns.acquire().await.unwrap());
        }
        turns.throttled(Duration::from_secs(1));
        drop(held);
        turns.succeeded(Duration::from_secs(1), 1);
        assert_eq!(turns.permits.available_permits(), START / 2);
        turns.throttled(Duration::from_secs(2));
        turns.throttled(Duration::from_secs(2));
        assert_eq!(turns.permits.available_permits(), LEAST);
    }

    #[tokio::test]
    async fn a_fixed_number_stays() {
        let turns = Turns::fixed(3);
        turns.throttled(Duration::from_secs(1));
        assert_eq!(turns.permits.available_permits(), 3);
    }
}
