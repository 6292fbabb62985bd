//! Brokers, clients and the store in one thread.

mod blows;
mod clients;

use crate::{
    executor::{Clock, Executor},
    history::{History, Place},
    observer::Observer,
    plan::{Coincidence, Plan},
    producer::Lane,
    shell::{Ended, Outside},
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use refstream_core::{Broker, Done, Effect, Identity, Input, Mutation, Now, Phase, StopReason};
use refstream_filer_adapter::{
    Runtime,
    memory::{Faults, MemoryStore},
};
use refstream_format::cluster_log::{ClusterState, LogEntry};
use refstream_types::{Chain, Epoch, Layout, Offset, ProducerId, SegmentId, Timestamp, TopicId, Version};
use std::{
    collections::{BTreeMap, VecDeque, hash_map::DefaultHasher},
    hash::{Hash, Hasher},
    sync::Arc,
    time::Duration,
};

/// Brokers that may be needed to end what is open at the end.
const LAST_BROKERS: usize = 4;
/// Calls on the cluster log that a process which is deaf to it is not answered.
const DEAF_LOG_CALLS: u32 = 24;
/// Steps after which a seed is given up: it goes round in circles.
const MOST_STEPS: u64 = 2_000_000;
/// What is left must be done within this time after the blows end.
const PATIENCE: Duration = Duration::from_secs(600);
/// Creates of log entries that are dropped when a process cannot write to the log.
const DROPPED_LOG_WRITES: u32 = 40;
/// The longest a lane waits between batches, on average, once all is calm.
const MOST_PAUSE: Duration = Duration::from_millis(200);

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Decides everything.
    pub seed: u64,
    /// A rule that the brokers break.
    pub mutation: Mutation,
    /// What it is about; drawn from the seed where it is not given.
    pub about: Option<Coincidence>,
    /// Print what happens.
    pub verbose: bool,
}

/// What came of a seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// Broken promises; none, hopefully.
    pub violations: Vec<String>,
    /// A digest of everything that happened: the same for the same seed.
    pub trace: u64,
    /// Batches that were acked.
    pub acks: u64,
    /// Processes that were started.
    pub processes: usize,
    /// How often which end came, by the first word of the reason.
    pub stops: BTreeMap<String, u64>,
}

struct Process {
    broker: Broker,
    outside: Outside,
    wake: Option<Duration>,
    paused_until: Option<Duration>,
    mailbox: VecDeque<Input>,
    over: bool,
    draining: bool,
    /// Where partitions end, as its readers know.
    ends: BTreeMap<Place, Offset>,
    /// The cluster's state, as it knows it.
    state: Arc<ClusterState>,
    endpoint: String,
    /// Microseconds.
    wall_offset: i64,
}

/// What a ticket was given for.
#[derive(Clone, Debug)]
enum Waiter {
    Append {
        lane: usize,
        batch: usize,
    },
    Open {
        producer: usize,
    },
    /// By then this was acked.
    Latest {
        floor: BTreeMap<Place, Offset>,
    },
    Other,
}

impl Process {
    /// Its readers were told that a partition reaches so far.
    fn learn(&mut self, place: Place, end: Offset) {
        let known = self.ends.entry(place).or_default();
        *known = (*known).max(end);
    }
}

struct World {
    plan: Plan,
    mutation: Mutation,
    verbose: bool,
    random: StdRng,
    clock: Clock,
    executor: Executor,
    layout: Layout,
    /// A client without faults.
    store: MemoryStore,
    processes: Vec<Process>,
    ended: Ended,
    /// When processes start, and where, if that matters.
    starts: Vec<(Duration, Option<String>)>,
    /// What processes are told of each other, when.
    hints: Vec<(Duration, usize, Input)>,
    tell_at: Duration,
    outages: Vec<(Duration, usize)>,
    lanes: Vec<Lane>,
    producers: Vec<Option<ProducerId>>,
    opening: Vec<Option<Duration>>,
    topics: Vec<Option<TopicId>>,
    creating_at: Duration,
    scratches: u32,
    tickets: BTreeMap<u64, Waiter>,
    next_ticket: u64,
    history: History,
    observer: Observer,
    trace: DefaultHasher,
    stops: BTreeMap<String, u64>,
    calm: bool,
    steps: u64,
}

/// Runs one seed.
pub fn run(options: Options) -> Report {
    let mut world = World::new(options);
    world.play();
    Report {
        seed: options.seed,
        violations: world.history.violations,
        trace: world.trace.finish(),
        acks: world.history.acks,
        processes: world.processes.len(),
        stops: world.stops,
    }
}

impl World {
    fn new(options: Options) -> Self {
        let plan = Plan::new(options.seed, options.about);
        let clock = Clock::new(options.seed);
        let runtime: Arc<dyn Runtime> = Arc::new(clock.clone());
        let store = MemoryStore::new(Arc::clone(&runtime));
        let Ok(layout) = Layout::new("sim") else { unreachable!("the root is a key") };
        let topics = plan.topics.len();
        let producers = plan.producers;
        Self {
            observer: Observer::new(store.clone(), layout.clone(), plan.compact_every),
            mutation: options.mutation,
            verbose: options.verbose,
            random: StdRng::seed_from_u64(options.seed ^ 0x5eed),
            clock,
            executor: Executor::default(),
            layout,
            store,
            processes: Vec::new(),
            ended: Ended::default(),
            starts: Vec::new(),
            hints: Vec::new(),
            tell_at: Duration::ZERO,
            outages: Vec::new(),
            lanes: Vec::new(),
            producers: vec![None; producers],
            opening: vec![None; producers],
            topics: vec![None; topics],
            creating_at: Duration::ZERO,
            scratches: 0,
            tickets: BTreeMap::new(),
            next_ticket: 0,
            history: History::default(),
            trace: DefaultHasher::new(),
            stops: BTreeMap::new(),
            calm: false,
            steps: 0,
            plan,
        }
    }

    fn say(&self, what: impl FnOnce() -> String) {
        if self.verbose {
            println!("{:>12.6} {}", self.clock.now().as_secs_f64(), what());
        }
    }

    /// The whole life of a seed.
    fn play(&mut self) {
        self.say(|| format!("{:?}", self.plan));
        for broker in 0..self.plan.brokers {
            let at = self.random.random_range(Duration::ZERO..=self.plan.calm_at / 8) * u32::from(broker > 0);
            self.starts.push((at, None));
        }
        let mut blows = VecDeque::from(std::mem::take(&mut self.plan.blows));
        let calm_at = self.plan.calm_at;
        while !self.is_broken() {
            let next = blows.front().map_or(calm_at, |(at, _)| *at);
            self.run_until(next, |_| false);
            match blows.pop_front() {
                Some((_, blow)) => self.strike(blow),
                None => break,
            }
        }
        self.heal();
        let end = self.clock.now() + self.patience();
        if !self.run_until(end, |world| world.is_done()) && !self.is_broken() {
            let left: Vec<_> = self.lanes.iter().filter(|lane| !lane.is_done()).map(|lane| lane.place).collect();
            let status = self.processes.last().map(|p| p.broker.status(self.time(p)));
            let topics = &self.topics;
            self.history.violation(format!("not done in time: {left:?} of {topics:?}, {status:?}"));
        }
        if self.is_broken() {
            return;
        }
        // A broker that another one supersedes before it is drained leaves the rest to that one.
        for _ in 0..LAST_BROKERS {
            while let Some(last) = self.newest().filter(|_| !self.is_broken()) {
                self.drain(last);
            }
            self.observer.follow(&mut self.history);
            if self.is_broken() || self.observer.state.open_segments().next().is_none() {
                break;
            }
            // Who was fenced by one that then left has nobody to recover it but the next one.
            self.start(None);
        }
        if self.is_broken() {
            return;
        }
        self.judge();
    }

    /// How long anything may take once all is well: who is silent is presumed dead after D, one at a time.
    fn patience(&self) -> Duration {
        PATIENCE + self.plan.settings.death_after * 2 * self.processes.len() as u32
    }

    /// Waits until a process serves, and drains it.
    fn drain(&mut self, process: usize) {
        self.processes[process].draining = true;
        self.wait_for(process, |phase| phase == Phase::Serving);
        // Nobody would be left to see that what is handed over goes to somebody who is dead.
        let end = self.clock.now() + self.patience();
        if !self.run_until(end, |world| world.processes[process].over || world.dead_are_recovered()) {
            self.history.violation("the dead are not recovered in time");
        }
        let ticket = self.ticket(Waiter::Other);
        self.give(process, Input::Drain { ticket });
        self.wait_for(process, |_| false);
    }

    /// Waits until a process has come to a phase, or is over.
    fn wait_for(&mut self, process: usize, reached: impl Fn(Phase) -> bool) {
        let end = self.clock.now() + self.patience();
        let status = |world: &Self| world.processes[process].broker.status(world.time(&world.processes[process]));
        let done = |world: &Self| world.processes[process].over || reached(status(world).phase);
        if !self.run_until(end, done) && !self.is_broken() {
            let status = status(self);
            self.history.violation(format!("not drained in time: {status:?}"));
        }
    }

    fn judge(&mut self) {
        self.observer.follow(&mut self.history);
        let partitions = self.lanes.iter().map(|lane| lane.place);
        let partitions = partitions.filter(|(topic, _)| self.topics.contains(&Some(*topic))).collect();
        let read = self.observer.read_all(&mut self.executor, &self.clock, &mut self.history);
        let read = read.into_iter().filter(|((place, _), _)| self.topics.contains(&Some(place.0))).collect();
        self.history.judge(&partitions, &read);
    }

    fn is_broken(&self) -> bool {
        !self.history.violations.is_empty()
    }

    fn is_done(&self) -> bool {
        let serves = |process: &Process| process.broker.status(self.time(process)).phase == Phase::Serving;
        let mut alive = self.processes.iter().filter(|process| !process.over).peekable();
        alive.peek().is_some()
            && alive.all(serves)
            && self.dead_are_recovered()
            && self.starts.is_empty()
            && self.topics.iter().all(Option::is_some)
            && self.lanes.iter().all(Lane::is_done)
    }

    /// Whether the cluster knows of every process that is over.
    fn dead_are_recovered(&self) -> bool {
        let alive: Vec<_> =
            (0..self.processes.len()).filter(|p| !self.processes[*p].over).filter_map(|p| self.epoch_of(p)).collect();
        self.observer.state.live_epochs().all(|epoch| alive.contains(&epoch))
    }

    /// Lets time pass until `end`, or until `done`; whether it was `done` that ended it.
    fn run_until(&mut self, end: Duration, done: impl Fn(&Self) -> bool) -> bool {
        loop {
            self.settle();
            if self.is_broken() || done(self) {
                return done(self);
            }
            let next = self.next_moment();
            if next > end {
                self.clock.advance(end);
                return false;
            }
            self.clock.advance(next);
            self.steps += 1;
            if self.steps > MOST_STEPS {
                let what = format!("goes round in circles at {next:?}");
                self.history.violation(what);
                return false;
            }
            self.moment();
        }
    }

    /// Runs tasks and hands their ends to the brokers until everybody waits.
    fn settle(&mut self) {
        loop {
            self.executor.run();
            let ended = std::mem::take(&mut *self.ended.borrow_mut());
            if ended.is_empty() {
                return;
            }
            for (process, op, done) in ended {
                match &done {
                    Done::Commit(outcome) => (process, op.0, std::mem::discriminant(outcome)).hash(&mut self.trace),
                    done => (process, op.0, std::mem::discriminant(done)).hash(&mut self.trace),
                }
                self.say(|| {
                    let done = format!("{done:?}");
                    format!("process {process}: {op:?} {}", done.chars().take(100).collect::<String>())
                });
                self.give(process, Input::Done { op, done });
            }
        }
    }

    fn next_moment(&self) -> Duration {
        let processes = self.processes.iter().filter(|p| !p.over);
        let wakes = processes.filter_map(|p| if p.paused_until.is_some() { p.paused_until } else { p.wake });
        let lanes = self.lanes.iter().filter(|lane| !lane.is_done()).map(|lane| lane.at);
        let creating = (!self.topics.iter().all(Option::is_some)).then_some(self.creating_at);
        let outages = self.outages.iter().map(|(at, _)| *at);
        let next = wakes
            .chain(lanes)
            .chain(creating)
            .chain(outages)
            .chain(self.starts.iter().map(|(at, _)| *at))
            .chain(self.hints.iter().map(|(at, ..)| *at))
            .chain((self.plan.connected || self.calm).then_some(self.tell_at))
            .chain(self.clock.next_timer())
            .chain([self.observer.next_look()])
            .min();
        next.unwrap_or(Duration::MAX).max(self.clock.now())
    }

    /// Does what is due.
    fn moment(&mut self) {
        let now = self.clock.now();
        while let Some(at) = self.starts.iter().position(|(at, _)| *at <= now) {
            let (_, endpoint) = self.starts.remove(at);
            self.start(endpoint);
        }
        if (self.plan.connected || self.calm) && self.tell_at <= now {
            self.tell();
        }
        while let Some(at) = self.hints.iter().position(|(at, ..)| *at <= now) {
            let (_, process, hint) = self.hints.remove(at);
            self.give(process, hint);
        }
        while let Some(at) = self.outages.iter().position(|(at, _)| *at <= now) {
            let (_, process) = self.outages.remove(at);
            if !self.processes[process].over {
                self.processes[process].outside.store.set_cut_off(false);
            }
        }
        for process in 0..self.processes.len() {
            if self.processes[process].over {
                continue;
            }
            if self.processes[process].paused_until.is_some_and(|until| until <= now) {
                self.say(|| format!("process {process} goes on"));
                self.processes[process].paused_until = None;
                while let Some(input) = self.processes[process].mailbox.pop_front() {
                    self.give(process, input);
                }
            }
            let due = self.processes[process].wake.is_some_and(|at| at <= now);
            if due && self.processes[process].paused_until.is_none() && !self.processes[process].over {
                self.processes[process].wake = None;
                self.give(process, Input::Tick);
            }
        }
        if self.observer.next_look() <= now {
            self.observe();
        }
        if self.creating_at <= now {
            self.create_topics();
        }
        for lane in 0..self.lanes.len() {
            if self.lanes[lane].at <= now && !self.lanes[lane].is_done() {
                self.advance_lane(lane);
            }
        }
    }

    // Processes.

    fn time(&self, process: &Process) -> Now {
        let now = self.clock.now();
        let wall = self.plan.wall + now.as_micros() as i64 + process.wall_offset;
        Now { monotonic: now, wall: Timestamp::from_micros(wall) }
    }

    fn start(&mut self, endpoint: Option<String>) {
        let process = self.processes.len();
        let faults = if self.calm { self.calm_faults() } else { self.plan.faults.clone() };
        let runtime: Arc<dyn Runtime> = Arc::new(self.clock.clone());
        let store = self.store.client(&format!("process {process}"), runtime, self.random.random(), faults);
        let now = self.clock.now();
        if now < self.plan.store_up_at {
            store.set_cut_off(true);
            self.outages.push((self.plan.store_up_at, process));
        }
        let outside = Outside {
            store,
            clock: self.clock.clone(),
            layout: self.layout.clone(),
            ended: Ended::clone(&self.ended),
            process,
        };
        let endpoint = endpoint.unwrap_or_else(|| format!("http://process-{process}"));
        let identity =
            Identity { endpoint: endpoint.clone(), former: None, software: "sim".into(), seed: self.random.random() };
        let wall_offset = self.random.random_range(-3_000_000..3_000_000);
        let wall = Timestamp::from_micros(self.plan.wall + now.as_micros() as i64 + wall_offset);
        let mut effects = Vec::new();
        let time = Now { monotonic: now, wall };
        let broker = Broker::start_mutated(self.plan.settings.clone(), identity, self.mutation, time, &mut effects);
        self.say(|| format!("process {process} starts"));
        self.processes.push(Process {
            broker,
            outside,
            wake: None,
            paused_until: None,
            mailbox: VecDeque::new(),
            over: false,
            draining: false,
            ends: BTreeMap::new(),
            state: Arc::default(),
            endpoint,
            wall_offset,
        });
        self.carry_out(process, effects);
    }

    fn calm_faults(&self) -> Faults {
        Faults {
            latency_from: self.plan.faults.latency_from,
            latency_to: self.plan.faults.latency_to,
            ..Faults::default()
        }
    }

    /// Gives a process an input, or leaves it in its mailbox.
    fn give(&mut self, process: usize, input: Input) {
        let target = &mut self.processes[process];
        if target.over {
            return;
        }
        if target.paused_until.is_some() {
            return target.mailbox.push_back(input);
        }
        let time = self.time(&self.processes[process]);
        let mut effects = Vec::new();
        self.processes[process].broker.handle(time, input, &mut effects);
        self.carry_out(process, effects);
    }

    fn carry_out(&mut self, process: usize, effects: Vec<Effect>) {
        for effect in effects {
            self.hash_effect(process, &effect);
            let outside = self.processes[process].outside.clone();
            let Some(effect) = outside.start(&mut self.executor, effect) else { continue };
            match effect {
                Effect::Reply { ticket, reply } => self.reply(process, ticket.0, reply),
                Effect::Committed { batches, .. } => {
                    for (placed, location) in &batches {
                        if placed.base_offset != location.base_offset {
                            self.history.violation("a batch and its location have different offsets");
                        }
                        self.history.visible(placed);
                        let end = placed.base_offset.0 + u64::from(placed.batch.header().records);
                        self.processes[process].learn((placed.segment.topic, placed.partition), Offset(end));
                    }
                }
                Effect::State(state) => {
                    let (sealed, open) = (state.topics.values(), state.open_segments());
                    let sealed = sealed.flat_map(|topic| topic.sealed.values());
                    let ends = sealed.map(|sealed| (&sealed.opened, &sealed.end_offsets));
                    for (segment, offsets) in ends.chain(open.map(|open| (open, &open.start_offsets))) {
                        for (partition, offset) in segment.range.iter().zip(offsets) {
                            self.processes[process].learn((segment.id.topic, partition), *offset);
                        }
                    }
                    self.processes[process].state = state;
                    self.observer.follow(&mut self.history);
                }
                Effect::WakeAt(at) => self.processes[process].wake = Some(at),
                Effect::Stop(reason) => self.stopped(process, &reason),
                _ => {}
            }
        }
    }

    fn hash_effect(&mut self, process: usize, effect: &Effect) {
        if let Effect::Read { .. }
        | Effect::ReadLog { .. }
        | Effect::Tip { .. }
        | Effect::LatestSnapshot { .. }
        | Effect::Free { .. } = effect
        {
            self.say(|| format!("process {process}: {effect:?}"));
        }
        (self.clock.now(), process, std::mem::discriminant(effect)).hash(&mut self.trace);
        match effect {
            Effect::Commit { chain, number, bytes, .. } => {
                (chain, number, bytes).hash(&mut self.trace);
                self.say(|| {
                    let entry = LogEntry::decode(bytes, Version(*number)).ok().filter(|_| *chain == Chain::ClusterLog);
                    let commands = entry.map(|entry| entry.commands);
                    format!("process {process} commits {chain:?} {number} {commands:?}")
                });
            }
            Effect::Reply { ticket, .. } => ticket.hash(&mut self.trace),
            _ => {}
        }
    }

    fn stopped(&mut self, process: usize, reason: &StopReason) {
        self.say(|| format!("process {process} stops: {reason}"));
        let word = format!("{reason:?}").split(['(', ' ', '{']).next().unwrap_or_default().to_string();
        *self.stops.entry(word).or_default() += 1;
        if let StopReason::Damaged(why) = reason {
            self.history.violation(format!("process {process} found damage: {why}"));
        }
        self.end(process);
    }

    fn end(&mut self, process: usize) {
        let ended = &mut self.processes[process];
        ended.over = true;
        ended.outside.store.set_cut_off(true);
        ended.mailbox.clear();
        let endpoint = ended.endpoint.clone();
        let now = self.clock.now();
        if let Some(epoch) = self.epoch_of(process).filter(|_| self.plan.connected || self.calm) {
            for other in (0..self.processes.len()).filter(|other| !self.processes[*other].over).collect::<Vec<_>>() {
                let at = now + Duration::from_millis(self.random.random_range(1..30));
                self.hints.push((at, other, Input::PeerGone { epoch }));
            }
        }
        let running = |p: &&Process| !p.over && !p.draining && p.paused_until.is_none();
        let left = self.processes.iter().filter(running).count() + self.starts.len();
        let leaving = self.calm && self.processes.iter().any(|p| p.draining);
        if !leaving && (left == 0 || left < self.plan.brokers && self.random.random_bool(0.7)) {
            let pause = Duration::from_millis(self.random.random_range(1..400));
            let same = self.random.random_bool(0.5).then_some(endpoint);
            self.starts.push((now + pause, same));
        }
    }

    fn epoch_of(&self, process: usize) -> Option<Epoch> {
        let process = &self.processes[process];
        process.broker.status(self.time(process)).epoch
    }

    /// The process that was started last and is not over.
    fn newest(&self) -> Option<usize> {
        self.processes.iter().rposition(|process| !process.over)
    }

    /// Whom a client turns to with a partition: mostly the owner, as some process knows it.
    fn target(&mut self, place: Option<Place>) -> Option<usize> {
        let alive: Vec<_> = (0..self.processes.len()).filter(|p| !self.processes[*p].over).collect();
        let asked = *alive.get(self.random.random_range(0..alive.len().max(1)))?;
        let Some((topic, partition)) = place else { return Some(asked) };
        if !self.calm && self.random.random_bool(0.05) {
            return Some(asked);
        }
        let state = &self.processes[asked].state;
        let owner = state.topics.get(&topic).and_then(|topic| topic.open_segment(partition)).map(|open| open.owner);
        let owner = owner.and_then(|owner| alive.iter().copied().find(|p| self.epoch_of(*p) == Some(owner)));
        Some(owner.unwrap_or(asked))
    }

    /// Connected processes tell each other how far they are.
    fn tell(&mut self) {
        self.tell_at = self.clock.now() + self.plan.settings.death_after / 4;
        let awake = |p: &Process| !p.over && p.paused_until.is_none();
        let told: Vec<_> = (0..self.processes.len())
            .filter(|p| awake(&self.processes[*p]))
            .filter_map(|p| {
                let status = self.processes[p].broker.status(self.time(&self.processes[p]));
                Some((p, status.epoch?, status.committed_slot, status.version))
            })
            .collect();
        for (from, epoch, committed, version) in &told {
            for (to, ..) in told.iter().filter(|(to, ..)| to != from) {
                let (epoch, committed, version) = (*epoch, *committed, *version);
                self.give(*to, Input::PeerSeen { epoch, committed, version });
            }
        }
    }

    // The observer and the compactor.

    fn observe(&mut self) {
        let closable = self.observer.look(&mut self.executor, &self.clock, &mut self.history);
        if let (false, Some(target)) = (closable.is_empty(), self.target(None)) {
            let segments: Vec<SegmentId> = closable;
            let ticket = self.ticket(Waiter::Other);
            self.give(target, Input::Closed { ticket, segments });
        }
        for process in (0..self.processes.len()).filter(|process| !self.processes[*process].over).collect::<Vec<_>>() {
            let ticket = self.ticket(Waiter::Latest { floor: self.history.ends() });
            self.give(process, Input::Confirm { ticket });
        }
    }
}
