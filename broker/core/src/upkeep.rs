//! What the passing of time asks for: segments that are old enough, producers that are silent for too long, snapshots and freeing. Snapshots,
//! the log and dead journals are the leader's.
//!
//! # Freeing
//!
//! - *Own journal*: below the lowest slot that open, unfiled or unadopted segments need, and below a checkpoint with enough
//!   committed slots above it (invariant *checkpoint-margin*).
//! - *Dead journals*: what nothing needs, but not before [`GRACE`] after we saw them fenced, so that a writer which slept that long
//!   finds out by itself (invariant *grace-after-the-fence*). Fences stay. When nothing at all is needed, the epoch is forgotten.
//! - *The log*: below the snapshot before the newest one that was stored, so that somebody who just read that one still finds
//!   what follows.
//!
//! Everything is freed in ascending prefixes, boundary first; that is the shell's chain.

use crate::{
    broker::{Broker, Life},
    interface::{AppendError, StopReason},
    journal_writer::JournalWriter,
    mutation::Mutation,
    operations::{Purpose, Request},
    segment::{After, Stage},
    sequencer::LONGEST_PARKED,
    turn::Turn,
};
use bytes::Bytes;
use refstream_format::cluster_log::ClusterState;
use refstream_types::{Chain, Epoch, Slot, Version};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// A segment without records ends once the journal is so many checkpoints longer than at its adoption.
const IDLE_CHECKPOINTS: u64 = 4;
/// How often the segments are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often producers are looked at.
const EXPIRE_EVERY: Duration = Duration::from_secs(600);
/// Producers remembered in all open segments together: more would not fit into a checkpoint. Those silent for longest are
/// forgotten before their time.
const MOST_PRODUCERS: usize = 200_000;
/// A fenced journal frees nothing for so long.
pub(crate) const GRACE: Duration = Duration::from_secs(600);
/// The least number of slots that is worth freeing at once.
const FREE_AT_LEAST: u64 = 64;

/// What was done when.
#[derive(Debug, Default)]
pub(crate) struct Upkeep {
    /// A contradiction that was found where nothing can be returned.
    pub(crate) damage: Option<String>,
    begun: bool,
    looked_at: Duration,
    expired_at: Duration,
    snapshot_under_way: bool,
    /// The newest snapshot that was stored, and the one before.
    snapshots: (Version, Version),
    /// When each dead epoch was first seen dead.
    fenced: BTreeMap<Epoch, Duration>,
    freed: BTreeMap<Epoch, Slot>,
    freeing: BTreeSet<Epoch>,
    forgetting: BTreeSet<Epoch>,
}

impl Upkeep {
    pub(crate) fn begin(&mut self, now: Duration) {
        self.begun = true;
        self.looked_at = now;
        self.expired_at = now;
    }

    /// The snapshot that the state was read from.
    pub(crate) fn loaded(&mut self, snapshot: Version) {
        self.snapshots = (snapshot, snapshot);
    }

    /// Notes when epochs are first seen dead.
    pub(crate) fn note_fences(&mut self, state: &ClusterState, now: Duration) {
        let dead = |epoch: &Epoch| state.epochs.get(epoch).is_some_and(|e| e.fence.is_some());
        self.fenced.retain(|epoch, _| dead(epoch));
        self.freed.retain(|epoch, _| state.epochs.contains_key(epoch));
        self.forgetting.retain(|epoch| state.epochs.contains_key(epoch));
        for (epoch, _) in state.epochs.iter().filter(|(_, state)| state.fence.is_some()) {
            self.fenced.entry(*epoch).or_insert(now);
        }
    }
}

impl Broker {
    pub(crate) fn upkeep_due(&self) -> Option<Duration> {
        self.upkeep.begun.then(|| self.upkeep.looked_at + LOOK_EVERY)
    }

    pub(crate) fn keep_up(&mut self, turn: &mut Turn<'_>) -> Result<(), StopReason> {
        let now = turn.now.monotonic;
        if let Some(why) = self.upkeep.damage.take() {
            return Err(StopReason::Damaged(why));
        }
        if !self.upkeep.begun || now < self.upkeep.looked_at + LOOK_EVERY {
            return Ok(());
        }
        self.upkeep.looked_at = now;
        if matches!(self.life, Life::Serving) {
            self.end_old_segments(turn);
            self.expire_producers(now);
            self.refuse_parked(turn);
            self.free_journals(turn);
            if self.leads() {
                self.take_snapshot(turn);
                self.even_out();
                // What nobody serves has been seen to before; this is the net below.
                self.leading.must_assign();
            }
        }
        Ok(())
    }

    fn end_old_segments(&mut self, turn: &mut Turn<'_>) {
        let now = turn.now;
        let mut old = Vec::new();
        let released = self.journal.as_ref().map_or(Slot(0), JournalWriter::released);
        for (id, segment) in self.segments.iter().filter(|(_, segment)| segment.takes_batches()) {
            let age = self.cluster.state.topics.get(&id.topic).map(|topic| topic.config.seal_age);
            let aged = |since: Duration| age.is_some_and(|age| now.monotonic.saturating_sub(since) >= age);
            let is_old = match segment.first_batch {
                Some((since, first)) => aged(since) || segment.ledger.append_time(now.wall).day() != first.day(),
                // Nobody writes to it, and yet it keeps the whole journal from its adoption on from being freed.
                None => {
                    let kept = released.0.saturating_sub(segment.ledger.adopted.0);
                    aged(segment.since) && kept >= self.settings.checkpoint_slots.saturating_mul(IDLE_CHECKPOINTS)
                }
            };
            if is_old {
                old.push(*id);
            }
        }
        for id in old {
            self.end_segment(id, After::Successor);
        }
    }

    fn expire_producers(&mut self, now: Duration) {
        let open = || self.segments.iter().filter(|(_, segment)| segment.stage == Stage::Open);
        let count: usize = open().map(|(_, segment)| segment.ledger.producers.len()).sum();
        let due = now >= self.upkeep.expired_at + EXPIRE_EVERY.min(self.settings.producer_expiry);
        if !due && count <= MOST_PRODUCERS {
            return;
        }
        let expiries = open().flat_map(|(id, segment)| {
            segment.ledger.producers.expiries().map(|(at, (partition, producer))| (at, *id, partition, producer))
        });
        let mut expiries: Vec<_> = expiries.collect();
        expiries.sort_unstable();
        let over = if count > MOST_PRODUCERS { count - MOST_PRODUCERS + MOST_PRODUCERS / 8 } else { 0 };
        let silent = expiries.partition_point(|(at, ..)| *at <= now);
        let mut expired: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (_, id, partition, producer) in expiries.into_iter().take(over.max(silent)) {
            expired.entry(id).or_default().push((partition, producer));
        }
        self.upkeep.expired_at = now;
        self.sealing.to_expire = expired;
    }

    fn refuse_parked(&mut self, turn: &mut Turn<'_>) {
        let now = turn.now.monotonic;
        if self.lanes.oldest_parked().is_none_or(|arrived| now < arrived + LONGEST_PARKED) {
            return;
        }
        for queued in self.lanes.take_parked(|queued| now >= queued.arrived + LONGEST_PARKED) {
            let error = AppendError::NotServed(queued.partition);
            self.refuse(turn, queued, error);
        }
    }

    fn take_snapshot(&mut self, turn: &mut Turn<'_>) {
        let state = &self.cluster.state;
        let last = self.upkeep.snapshots.0;
        if self.upkeep.snapshot_under_way || state.version.0 < last.0 + self.settings.snapshot_entries.max(1) {
            return;
        }
        self.upkeep.snapshot_under_way = true;
        let (version, bytes) = (state.version, Bytes::from(state.encode()));
        self.operations.submit(turn, Purpose::StoreSnapshot(version), Request::StoreSnapshot { version, bytes });
    }

    pub(crate) fn snapshot_stored(&mut self, turn: &mut Turn<'_>, version: Version) {
        self.upkeep.snapshot_under_way = false;
        self.upkeep.snapshots = (version, self.upkeep.snapshots.0);
        let below = self.upkeep.snapshots.1.0;
        if below > 0 {
            let request = Request::Free { chain: Chain::ClusterLog, below };
            self.operations.submit(turn, Purpose::FreeLog, request);
        }
    }

    fn free_journals(&mut self, turn: &mut Turn<'_>) {
        let (Some(mine), Some(journal)) = (self.epoch, self.journal.as_mut()) else { return };
        let placed = self.segments.values().filter(|s| s.stage != Stage::Opened).map(|s| s.ledger.adopted);
        let adopting_from = placed.min().unwrap_or(journal.next());
        let needed = self.cluster.state.journal_needed(mine, adopting_from).unwrap_or(journal.next());
        let needed = match self.mutation {
            Mutation::FreeTooMuch => journal.released(),
            _ => needed.min(journal.needed_by_recovery()),
        };
        let mut below = BTreeMap::from([(mine, (needed, false))]);
        let leads = self.leads();
        for (epoch, since) in self.upkeep.fenced.iter().filter(|_| leads) {
            let fence = self.cluster.state.epochs.get(epoch).and_then(|e| e.fence);
            if let Some(fence) = fence.filter(|_| turn.now.monotonic >= *since + GRACE) {
                let needed = self.cluster.state.journal_needed(*epoch, Slot(1));
                below.insert(*epoch, (needed.unwrap_or(fence), needed.is_none()));
            }
        }
        for (epoch, (below, is_last)) in below {
            let freed = self.upkeep.freed.get(&epoch).copied().unwrap_or(Slot(1));
            if self.upkeep.freeing.contains(&epoch) || self.upkeep.forgetting.contains(&epoch) {
                continue;
            }
            if is_last && freed >= below {
                self.upkeep.forgetting.insert(epoch);
                self.cluster.want(crate::cluster_writer::Intent::Forget { epoch });
            } else if below.0 >= freed.0 + FREE_AT_LEAST || is_last && below > freed {
                self.upkeep.freeing.insert(epoch);
                let request = Request::Free { chain: Chain::Journal(epoch), below: below.0 };
                self.operations.submit(turn, Purpose::FreeJournal(epoch, below), request);
            }
        }
    }

    pub(crate) fn journal_freed(&mut self, epoch: Epoch, below: Slot) {
        self.upkeep.freeing.remove(&epoch);
        self.upkeep.freed.insert(epoch, below);
    }
}
