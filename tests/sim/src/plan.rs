//! What a seed stands for: settings, the store's manners, and what goes wrong when.

use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use refstream_core::Settings;
use refstream_filer_adapter::memory::Faults;
use refstream_types::TopicConfig;
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// Something that goes wrong, or is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Blow {
    /// A process ends at once; what it has sent to the store may still land.
    Crash,
    /// A process stands still for so long, and then goes on as if nothing had been.
    Pause(Duration),
    /// One more process starts, beside those there are.
    StartAnother,
    /// One process, or all of them, cannot reach the store for so long.
    Outage { all: bool, lasts: Duration },
    /// A process cannot write to the cluster log for a while, and its topics are to be sealed.
    LogOutage,
    /// A process's wall clock jumps by so many seconds.
    WallJump(i64),
    /// A topic's segments are sealed.
    Seal,
    /// A topic is created that will be deleted.
    CreateScratch,
    /// It is deleted.
    DeleteScratch,
    /// A process is asked to leave.
    Drain,
    /// All others are told that a process is gone, which is not so.
    FalseAlarm,
    /// What a process writes to the cluster log lands there, but for a while it is not told so.
    LogDeafness,
}

/// What a seed can be about, beside what all are about: broken rules that show only when several things happen at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coincidence {
    /// Brokers are taken for dead that are well, do not know it, and are asked just then.
    Alarms,
    /// Brokers do not know what they have written to the log.
    Deafness,
    /// Several brokers sleep at once while the log goes on and is freed.
    Sleep,
}

/// All that a seed decides beforehand.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) settings: Settings,
    pub(crate) faults: Faults,
    pub(crate) topics: Vec<TopicConfig>,
    pub(crate) producers: usize,
    /// Batches of each lane.
    pub(crate) batches: u32,
    pub(crate) depth: usize,
    /// Between batches of a lane, on average.
    pub(crate) pause: Duration,
    /// How long a client waits for an answer.
    pub(crate) patience: Duration,
    /// Ascending.
    pub(crate) blows: Vec<(Duration, Blow)>,
    /// The end of the blows.
    pub(crate) calm_at: Duration,
    /// The store cannot be reached before.
    pub(crate) store_up_at: Duration,
    pub(crate) compact_every: Duration,
    /// How many brokers there are meant to be.
    pub(crate) brokers: usize,
    /// Whether brokers are connected: they tell each other how far they are, and see each other go.
    pub(crate) connected: bool,
    /// The wall clock's start, in microseconds.
    pub(crate) wall: i64,
}

fn one_of<T: Clone>(random: &mut StdRng, of: &[T]) -> T {
    match of.choose(random) {
        Some(one) => one.clone(),
        None => unreachable!("there is something to choose from"),
    }
}

impl Plan {
    pub(crate) fn new(seed: u64, about: Option<Coincidence>) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let random = &mut random;
        let long = random.random_bool(0.08);
        let unit = if long { MINUTE } else { SECOND };
        let calm_at = if long { 50 * MINUTE } else { random.random_range(2..9) * SECOND };
        let slots_in_flight = one_of(random, &[1, 2, 4, 8]);
        let checkpoint_slots = one_of(random, &[3, 10, 40]);
        let linger = one_of(random, &[Duration::ZERO, 2 * MS, 20 * MS]);
        let settings = Settings {
            slots_in_flight,
            checkpoint_slots,
            linger,
            linger_when_idle: if seed.is_multiple_of(2) { Duration::ZERO } else { linger },
            object_bytes: one_of(random, &[300, 4 << 20]),
            death_after: if long { 3 * MINUTE } else { one_of(random, &[150 * MS, 3 * SECOND]) },
            fence_check: if long { MINUTE } else { one_of(random, &[SECOND, MINUTE]) },
            producer_expiry: Duration::from_secs(7 * 86_400),
            pending_bytes: one_of(random, &[2_000, 64 << 20]),
            snapshot_entries: one_of(random, &[2, 6, 256]),
        };
        let p = one_of(random, &[0.0, 0.01, 0.04]);
        let stall_up_to = if long { 14 * MINUTE } else { one_of(random, &[100 * MS, 3 * SECOND]) };
        let latency_to = one_of(random, &[MS, 10 * MS, 60 * MS]);
        // A commit is a few calls of the store, and several of them fit into D wherever brokers are run.
        let settings = Settings { death_after: settings.death_after.max(15 * latency_to), ..settings };
        let faults = Faults {
            stall_up_to,
            latency_from: latency_to / 10,
            latency_to,
            stale_list: if random.random_bool(0.3) { p } else { 0.0 },
            stale_by: 200 * MS,
            ..Faults::within_contract(p)
        };
        let topics = (0..random.random_range(1..=2)).map(|_| TopicConfig {
            partitions: random.random_range(1..=4),
            seal_bytes: one_of(random, &[1_024, 4_096, 1 << 20]),
            seal_age: one_of(random, &[SECOND, 600 * SECOND]),
            ..TopicConfig::default()
        });
        let topics = topics.collect();
        let mut blows = Vec::new();
        for _ in 0..random.random_range(0..=8) {
            let at = random.random_range(Duration::ZERO..calm_at);
            let blow = match random.random_range(0..100) {
                0..22 => Blow::Crash,
                22..40 if long => Blow::Pause(random.random_range(MINUTE..25 * MINUTE)),
                22..40 => Blow::Pause(random.random_range(20 * MS..4 * SECOND)),
                40..54 => Blow::StartAnother,
                54..68 => {
                    Blow::Outage { all: random.random_bool(0.3), lasts: unit.mul_f64(random.random_range(0.05..3.0)) }
                }
                68..72 => Blow::LogOutage,
                72..77 => Blow::WallJump(one_of(random, &[1_200, -1_200, 86_400])),
                77..86 => Blow::Seal,
                86..91 => Blow::CreateScratch,
                91..93 => Blow::DeleteScratch,
                93..95 => Blow::FalseAlarm,
                _ => Blow::Drain,
            };
            blows.push((at, blow));
        }
        let (mut settings, mut faults) = (settings, faults);
        let drawn = match random.random_range(0..30) {
            0 => Some(Coincidence::Alarms),
            1 => Some(Coincidence::Deafness),
            2 => Some(Coincidence::Sleep),
            _ => None,
        };
        match about.or(drawn) {
            None => {}
            Some(Coincidence::Alarms) => {
                settings.death_after = settings.death_after.max(20 * latency_to).max(3 * SECOND);
                faults = Faults { stall: 0.0, ..faults };
                blows.extend((0..8).map(|_| (random.random_range(Duration::ZERO..calm_at), Blow::FalseAlarm)));
            }
            Some(Coincidence::Deafness) => {
                for _ in 0..4 {
                    let at = random.random_range(Duration::ZERO..calm_at);
                    let next = at + latency_to;
                    blows.extend([(at, Blow::LogDeafness), (next, Blow::StartAnother), (next, Blow::Seal)]);
                }
            }
            Some(Coincidence::Sleep) => {
                settings.snapshot_entries = 2;
                settings.death_after = settings.death_after.max(3 * SECOND);
                for _ in 0..3 {
                    let at = random.random_range(Duration::ZERO..calm_at);
                    let lasts = random.random_range(calm_at / 8..calm_at / 3);
                    blows.extend((0..3).map(|_| (at, Blow::Pause(lasts))));
                    blows.extend((1..12).map(|part| (at + lasts / 12 * part, Blow::Seal)));
                }
                blows.retain(|(at, _)| *at < calm_at);
            }
        }
        blows.sort_by_key(|(at, _)| *at);
        let batches = random.random_range(3..25);
        Self {
            settings,
            faults,
            topics,
            producers: random.random_range(1..=3),
            batches,
            depth: random.random_range(1..=4),
            pause: (calm_at / batches).mul_f64(random.random_range(0.3..1.0)),
            patience: if long { MINUTE } else { random.random_range(300 * MS..4 * SECOND) },
            blows,
            calm_at,
            store_up_at: if random.random_bool(0.1) { unit } else { Duration::ZERO },
            brokers: one_of(random, &[1, 2, 3, 3, 4]),
            connected: random.random_bool(0.6),
            compact_every: one_of(random, &[200 * MS, 2 * SECOND]).mul_f64(if long { 60.0 } else { 1.0 }),
            // Shortly before midnight, now and then.
            wall: 1_700_000_000_000_000 + if random.random_bool(0.2) { 6_395_000_000 } else { 0 },
        }
    }
}
