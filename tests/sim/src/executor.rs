//! One thread, simulated time: tasks run until all of them wait, then the clock jumps to the next moment that anybody waits for.

use futures::future::{BoxFuture, LocalBoxFuture};
use refstream_filer_adapter::Runtime;
use refstream_types::Timestamp;
use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct ClockState {
    now: Duration,
    timers: BTreeMap<(Duration, u64), Waker>,
    next_timer: u64,
    random: u64,
}

/// Simulated time and randomness; all clients of the store share it.
#[derive(Clone)]
pub(crate) struct Clock {
    state: Arc<Mutex<ClockState>>,
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clock").field("now", &lock(&self.state).now).finish()
    }
}

impl Clock {
    pub(crate) fn new(seed: u64) -> Self {
        let state = ClockState { now: Duration::ZERO, timers: BTreeMap::new(), next_timer: 0, random: seed };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// When the next sleeper wakes.
    pub(crate) fn next_timer(&self) -> Option<Duration> {
        lock(&self.state).timers.keys().next().map(|(at, _)| *at)
    }

    /// Moves the time forward and wakes everybody whose moment has come.
    pub(crate) fn advance(&self, to: Duration) {
        let mut due = Vec::new();
        {
            let mut state = lock(&self.state);
            state.now = state.now.max(to);
            while let Some(entry) = state.timers.first_entry()
                && entry.key().0 <= to
            {
                due.push(entry.remove());
            }
        }
        due.into_iter().for_each(Waker::wake);
    }
}

struct Sleep {
    clock: Clock,
    at: Duration,
    registered: bool,
}

impl Future for Sleep {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let clock = self.clock.clone();
        let mut state = lock(&clock.state);
        if state.now >= self.at {
            return Poll::Ready(());
        }
        if !self.registered {
            self.registered = true;
            let timer = state.next_timer;
            state.next_timer += 1;
            state.timers.insert((self.at, timer), cx.waker().clone());
        }
        Poll::Pending
    }
}

impl Runtime for Clock {
    fn now(&self) -> Duration {
        lock(&self.state).now
    }
    fn wall(&self) -> Timestamp {
        Timestamp::from_micros(lock(&self.state).now.as_micros() as i64)
    }
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(Sleep { clock: self.clone(), at: self.now() + duration, registered: false })
    }
    fn random(&self) -> u64 {
        // SplitMix64 (Steele, Lea, Flood 2014).
        let mut state = lock(&self.state);
        state.random = state.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

type Ready = Arc<Mutex<VecDeque<usize>>>;

struct TaskWaker {
    task: usize,
    ready: Ready,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        lock(&self.ready).push_back(self.task);
    }
}

/// Runs tasks, first come, first served.
#[derive(Default)]
pub(crate) struct Executor {
    tasks: Vec<Option<LocalBoxFuture<'static, ()>>>,
    free: Vec<usize>,
    ready: Ready,
}

impl Executor {
    pub(crate) fn spawn(&mut self, task: impl Future<Output = ()> + 'static) {
        let task: LocalBoxFuture<'static, ()> = Box::pin(task);
        let id = match self.free.pop() {
            Some(id) => {
                self.tasks[id] = Some(task);
                id
            }
            None => {
                self.tasks.push(Some(task));
                self.tasks.len() - 1
            }
        };
        lock(&self.ready).push_back(id);
    }

    /// Polls until every task waits.
    pub(crate) fn run(&mut self) {
        loop {
            let Some(id) = lock(&self.ready).pop_front() else { return };
            // A task may have been woken twice, or have ended.
            let Some(Some(task)) = self.tasks.get_mut(id) else { continue };
            let waker = Waker::from(Arc::new(TaskWaker { task: id, ready: Arc::clone(&self.ready) }));
            if task.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
                self.tasks[id] = None;
                self.free.push(id);
            }
        }
    }
}
