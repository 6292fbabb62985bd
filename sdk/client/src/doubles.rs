//! Stand-ins for what tests cannot wait for.

use futures::{FutureExt as _, future::BoxFuture};
use refstream_filer_adapter::Runtime;
use refstream_types::Timestamp;
use std::{
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// A clock that stands until it is moved. Who sleeps never wakes up, unless there is nothing to wait for. Random numbers follow from a seed.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    now: Mutex<Duration>,
    random: AtomicU64,
}

impl Clock {
    pub(crate) fn seeded(seed: u64) -> Self {
        Self { now: Mutex::default(), random: AtomicU64::new(seed) }
    }
    pub(crate) fn advance(&self, by: Duration) {
        *self.now.lock().unwrap() += by;
    }
}

impl Runtime for Clock {
    fn now(&self) -> Duration {
        *self.now.lock().unwrap()
    }
    fn wall(&self) -> Timestamp {
        Timestamp::from_micros(0)
    }
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        if duration.is_zero() { std::future::ready(()).boxed() } else { std::future::pending().boxed() }
    }
    /// SplitMix64.
    fn random(&self) -> u64 {
        let mut mixed = self.random.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
