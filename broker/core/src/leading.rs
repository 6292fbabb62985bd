//! What the leader does: it recovers who is presumed dead, gives what nobody serves to somebody, and evens out who has how much.
//!
//! # Order of steps, for a dead broker
//!
//! 1. *Recover* its journal, see `recovery`: fenced, it can commit nothing any more, and its end is final.
//! 2. *Read the log* to its end as of then. The journal's last checkpoint leaves out what the log had ended before it; with an older
//!    log, a segment that is not in the journal would seem to have held nothing.
//! 3. *Log*: its segments ended, their successors have owners, the epoch is recovered; where that is more than an entry holds, the
//!    last one says that the epoch is recovered.
//! 4. The new owners adopt what they were given, see `arrivals`.
//!
//! A crash, or another leader, at any step: the next leader does the same. Two leaders at once come to the same end of the journal, and
//! each segment ends once, since who loses a number of the log decides again.
//!
//! # Damage
//!
//! A dead journal that cannot be recovered, since an object of it is lost or is not what was written, is told to people and tried again
//! after a pause: the object may have been put back. What others serve goes on meanwhile, without the dead broker's partitions.
//!
//! # Evening out
//!
//! A leader never ends a living broker's segment: it asks, by a plan in the log, and the owner ends it (invariant *a-leader-asks*).

use crate::{
    broker::{Broker, Life},
    cluster_writer::{EndedSegment, Intent, loads_to_come},
    interface::StopReason,
    mutation::Mutation,
    operations::{Answer, Purpose},
    recovery::{Outcome, Recovered, Recovery},
    segment::After,
    turn::Turn,
};
use refstream_format::{
    cluster_log::{ClusterState, Planned, SealedBy},
    journal::SegmentState,
};
use refstream_types::{Epoch, SegmentId, Slot, Timestamp};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

/// How often a recovery that finds its journal moved begins again before that is called damage.
const MOST_MOVES: u32 = 20;
/// Segments whose owners are asked to hand them over at a time.
const MOST_PLANS: usize = 32;
/// A journal that seemed damaged is tried again after this pause: somebody may have put right what was wrong.
const DAMAGED_PAUSE: Duration = Duration::from_secs(30);

/// A journal that could not be recovered.
#[derive(Debug)]
struct Damage {
    why: String,
    /// When it was tried last.
    tried: Duration,
}

/// A leader at work.
#[derive(Debug, Default)]
pub(crate) struct Leading {
    recovery: Option<Box<Recovery>>,
    moves: u32,
    /// The recovery under way found its journal moved, and waits for a look at the log.
    has_moved: bool,
    /// Damage that may be no more than our own being outdated.
    suspicion: Option<(Epoch, String)>,
    /// What a recovery found, and when; it is told once the log is known as of then.
    ended: Option<(Duration, Box<Recovered>)>,
    /// Epochs whose end is on its way to the log.
    telling: BTreeSet<Epoch>,
    /// Epochs that cannot be recovered now.
    damaged: BTreeMap<Epoch, Damage>,
    /// Something may have no owner.
    assign: bool,
    assigning: bool,
}

impl Leading {
    /// Whether an epoch's end is being found or told.
    pub(crate) fn is_recovering(&self, epoch: Epoch) -> bool {
        self.telling.contains(&epoch)
            || self.recovery.as_ref().is_some_and(|recovery| recovery.epoch == epoch)
            || self.ended.as_ref().is_some_and(|(_, recovered)| recovered.epoch == epoch)
    }

    /// Whether nothing is left to do.
    pub(crate) fn is_idle(&self) -> bool {
        self.recovery.is_none() && !self.waits_for_log() && self.telling.is_empty() && !self.assign && !self.assigning
    }

    /// Whether something waits until all of the log is known.
    pub(crate) fn waits_for_log(&self) -> bool {
        self.has_moved || self.suspicion.is_some() || self.ended.is_some()
    }

    /// Something may have no owner.
    pub(crate) fn must_assign(&mut self) {
        self.assign = true;
    }

    /// Everything has an owner, or not all of it yet.
    pub(crate) fn assigned(&mut self, rest: bool) {
        self.assigning = false;
        self.assign |= rest;
    }

    /// A dead epoch's segments have ended.
    pub(crate) fn told(&mut self, epoch: Epoch) {
        self.telling.remove(&epoch);
    }

    /// Epochs that cannot be recovered now, and why.
    pub(crate) fn damaged(&self) -> BTreeMap<Epoch, String> {
        self.damaged.iter().map(|(epoch, damage)| (*epoch, damage.why.clone())).collect()
    }

    /// When a damaged journal is tried again.
    pub(crate) fn due(&self) -> Option<Duration> {
        let waiting = self.damaged.iter().filter(|(epoch, _)| !self.telling.contains(epoch));
        let tried = waiting.map(|(_, damage)| damage.tried + DAMAGED_PAUSE).min();
        tried.filter(|_| self.recovery.is_none() && !self.waits_for_log())
    }

    /// What a start is busy with.
    pub(crate) fn describe(&self) -> Option<&'static str> {
        if self.recovery.is_some() {
            Some("it is recovering the journal of an earlier broker")
        } else if !self.is_idle() {
            Some("it is taking segments over")
        } else {
            None
        }
    }
}

impl Broker {
    /// Goes on leading, if we do.
    pub(crate) fn lead_on(&mut self, turn: &mut Turn<'_>) {
        let Some(mine) = self.epoch.filter(|_| self.journal.is_some()) else { return };
        if !self.leads() {
            if self.leading.recovery.take().is_some() {
                self.operations.abandon(Recovery::owns);
            }
            self.leading.assign = false;
            self.leading.has_moved = false;
            self.leading.suspicion = None;
            self.leading.ended = None;
            self.leading.damaged.clear();
            return;
        }
        // What is recovered by whomever, or lives after all, is not.
        let absent = &self.members.absent;
        self.leading.damaged.retain(|epoch, _| absent.contains(epoch));
        if self.leading.recovery.is_none() && !self.leading.waits_for_log() {
            let (leading, now) = (&self.leading, turn.now.monotonic);
            let due =
                |epoch: &Epoch| leading.damaged.get(epoch).is_none_or(|damage| now >= damage.tried + DAMAGED_PAUSE);
            let dead = self.cluster.state.live_epochs().filter(|epoch| {
                *epoch != mine && absent.contains(epoch) && !leading.telling.contains(epoch) && due(epoch)
            });
            let next = dead.min_by_key(|epoch| (leading.damaged.contains_key(epoch), *epoch));
            if let Some(epoch) = next {
                self.leading.moves = 0;
                self.recover(turn, epoch, mine);
            }
        }
        if self.leading.assign
            && !self.leading.assigning
            && self.leading.recovery.is_none()
            && self.leading.ended.is_none()
            && self.leading.telling.is_empty()
        {
            self.leading.assign = false;
            self.leading.assigning = true;
            self.cluster.want(Intent::Assign);
        }
    }

    fn recover(&mut self, turn: &mut Turn<'_>, epoch: Epoch, by: Epoch) {
        let hint = known_slot(&self.cluster.state, epoch);
        let recovery = Recovery::begin(turn, &mut self.operations, epoch, by, hint, self.mutation);
        self.leading.recovery = Some(Box::new(recovery));
    }

    pub(crate) fn recovery_answered(&mut self, turn: &mut Turn<'_>, purpose: Purpose, answer: Answer) {
        let token = self.token();
        let Some(recovery) = self.leading.recovery.as_mut() else { return };
        let epoch = recovery.epoch;
        match recovery.answered(turn, &mut self.operations, token, purpose, answer) {
            Outcome::Going => {}
            Outcome::Ended(recovered) => {
                self.operations.abandon(Recovery::owns);
                self.leading.recovery = None;
                self.leading.ended = Some((turn.now.monotonic, recovered));
                self.watch_log(turn);
            }
            Outcome::Moved => {
                self.operations.abandon(Recovery::owns);
                self.leading.has_moved = true;
                self.watch_log(turn);
            }
            Outcome::Damaged(why) => {
                self.operations.abandon(Recovery::owns);
                self.leading.recovery = None;
                self.leading.suspicion = Some((epoch, why));
                self.watch_log(turn);
            }
        }
    }

    /// An epoch is recovered, by whomever: nothing more is to be found out about it.
    pub(crate) fn forget_recovery(&mut self, epoch: Epoch) {
        self.leading.told(epoch);
        if self.leading.recovery.as_ref().is_some_and(|recovery| recovery.epoch == epoch) {
            self.operations.abandon(Recovery::owns);
            self.leading.recovery = None;
            self.leading.has_moved = false;
        }
        self.leading.suspicion.take_if(|(suspect, _)| *suspect == epoch);
        self.leading.ended.take_if(|(_, recovered)| recovered.epoch == epoch);
    }

    /// Tells what a recovery found, now that the log is known as of its end.
    fn tell_ended(&mut self) {
        let ended = self.leading.ended.take_if(|(at, _)| self.members.has_seen_log_of(*at));
        let Some((_, recovered)) = ended.filter(|_| self.leads()) else { return };
        let epoch = recovered.epoch;
        self.leading.telling.insert(epoch);
        // What we are given ourselves need not be read again.
        let last_slots = recovered.last_slots();
        for opened in self.cluster.state.owned_by(epoch) {
            if let Some(ended) = recovered.ended(opened.id, &last_slots) {
                let mut state = ended.state;
                if self.mutation == Mutation::ReuseOffsets {
                    state.next_offsets.clone_from(&opened.start_offsets);
                }
                self.finals.insert(opened.id, state);
            }
        }
        let reuse_offsets = self.mutation == Mutation::ReuseOffsets;
        self.cluster.want(Intent::Recovered { recovered: Arc::new(*recovered), reuse_offsets });
    }

    /// The log is as we know it: what seemed wrong is wrong.
    pub(crate) fn recovery_is_suspect(&mut self, turn: &mut Turn<'_>) -> Result<(), StopReason> {
        let Some(mine) = self.epoch.filter(|_| self.leads()) else { return Ok(()) };
        self.tell_ended();
        if std::mem::take(&mut self.leading.has_moved)
            && let Some(recovery) = self.leading.recovery.take()
        {
            let epoch = recovery.epoch;
            self.leading.moves += 1;
            if self.leading.moves > MOST_MOVES {
                self.leading.suspicion =
                    Some((epoch, format!("journal {epoch} has no end that could be found, and nobody else leads")));
            } else {
                self.recover(turn, epoch, mine);
            }
        }
        let suspicion = self.leading.suspicion.take();
        // Somebody else may have recovered it: then what it held is free to go.
        if let Some((epoch, why)) = suspicion.filter(|(epoch, _)| self.others().any(|other| other == *epoch)) {
            if matches!(self.life, Life::Starting(_)) {
                return Err(StopReason::Damaged(why));
            }
            // What others serve goes on.
            self.leading.damaged.insert(epoch, Damage { why, tried: turn.now.monotonic });
        }
        Ok(())
    }

    /// Asks the owners of many segments to hand some over to those that have few.
    pub(crate) fn even_out(&mut self) {
        if !self.leads() || !self.leading.is_idle() || !self.cluster.is_idle() {
            return;
        }
        // First the dead are recovered, as far as they can be.
        if self.members.absent.iter().any(|epoch| !self.leading.damaged.contains_key(epoch)) {
            return;
        }
        let state = Arc::clone(&self.cluster.state);
        let mut loads = loads_to_come(&state, &self.members.absent);
        let mut room = MOST_PLANS.saturating_sub(self.cluster.plans());
        let mut movable: BTreeMap<Epoch, Vec<_>> = BTreeMap::new();
        while room > 0 {
            let most = loads.iter().max_by_key(|(epoch, load)| (**load, **epoch)).map(|(e, l)| (*e, *l));
            let least = loads.iter().min_by_key(|(epoch, load)| (**load, **epoch)).map(|(e, l)| (*e, *l));
            let (Some((from, most)), Some((to, least))) = (most, least) else { return };
            if most < least + 2 {
                return;
            }
            let segments = movable.entry(from).or_insert_with(|| {
                let topics = state.topics.values().filter(|topic| !topic.deleted);
                let open = topics.flat_map(|topic| {
                    topic.open.values().filter(|open| {
                        open.owner == from
                            && !topic.planned.contains_key(&open.id.number)
                            && topic.adopted.contains_key(&open.id.number)
                    })
                });
                open.map(|open| (open.id, open.range)).collect()
            });
            let Some((segment, range)) = segments.pop() else { return };
            if self.mutation == Mutation::EndForOthers && Some(from) != self.epoch {
                self.end_unasked(segment);
            } else {
                self.cluster.want(Intent::Plan { segment, successors: vec![Planned { range, owner: to }] });
            }
            loads.insert(from, most - 1);
            loads.insert(to, least + 1);
            room -= 1;
        }
    }
}

impl Broker {
    /// A broken rule: ends a segment as the log knows it, whatever its owner has appended.
    fn end_unasked(&mut self, segment: SegmentId) {
        let Some(topic) = self.cluster.state.topics.get(&segment.topic) else { return };
        let adopted = topic.adopted.get(&segment.number).copied().unwrap_or(Slot(1));
        let Some(opened) = topic.open.get(&segment.number) else { return };
        let state = SegmentState::empty(opened, adopted, Timestamp::default());
        let by = SealedBy::Recovery { fence: adopted.next() };
        let ended = EndedSegment { state, by, last_slot: adopted };
        self.cluster.want(Intent::End { ended, after: After::Anybody });
    }
}

/// A slot that existed in the journal of `epoch`, as far as the state knows; or 0.
fn known_slot(state: &ClusterState, epoch: Epoch) -> u64 {
    let open = state.topics.values().flat_map(|topic| {
        let mine = topic.open.values().filter(move |segment| segment.owner == epoch);
        mine.filter_map(|segment| topic.adopted.get(&segment.id.number).map(|slot| slot.0))
    });
    let sealed = state.topics.values().flat_map(|topic| {
        let mine = topic.sealed.values().filter(move |segment| segment.opened.owner == epoch);
        mine.filter(|segment| !segment.is_empty()).map(|segment| segment.slots.1.0)
    });
    open.chain(sealed).max().unwrap_or(0)
}
