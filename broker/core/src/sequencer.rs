//! From an append to its place in the journal, and from a durable slot to its answers.
//!
//! # On arrival
//!
//! Topic and partition are checked against the log's state and the bytes against the limit; then the batch waits in its lane.
//!
//! # At placement
//!
//! When an object is due (linger, size, or something else to write) and the window has room, batches are taken from the lanes and
//! judged one by one: does its segment take batches, does it follow its producer's last one? Only now does it get its offset and
//! append time (invariant *offsets-at-placement*); nothing reorders them afterwards. What does not find a segment waits aside, for
//! at most [`LONGEST_PARKED`].
//!
//! # Answers
//!
//! Everything said about a batch, good or bad, relies on batches placed before it, so it is said when the slot placed last is
//! released (invariant *answers-rely-on-the-durable*). A duplicate of an undecided batch thereby shares its outcome. A refusal
//! gets a slot of its own where nothing else is written (invariant *fenced-brokers-refuse-nothing*): a broker that was fenced
//! while it slept would otherwise refuse by what it knew then. If the broker ends first, the outcome is unknown.

use crate::{
    broker::{Broker, Life},
    cluster_writer::Intent,
    interface::{AppendError, Appended, Effect, StopReason, Ticket},
    journal_writer::{Answered, Flight, Mark, Placement},
    lanes::Queued,
    mutation::Mutation,
    operations::Decided,
    producers::Verdict,
    requests::Outcome,
    segment::{After, OwnedSegment, Stage},
    turn::Turn,
};
use refstream_format::{
    batch::EncodedBatch,
    journal::{Checkpoint, Entry, PlacedBatch, SegmentState},
};
use refstream_types::{PartitionId, SegmentId, SegmentNumber, Slot, TopicId};
use std::time::Duration;

/// The longest a batch waits for a segment to open; then it is refused with `NotServed`.
pub(crate) const LONGEST_PARKED: Duration = Duration::from_secs(10);
/// What a throttled producer is told to wait at least.
const THROTTLE: Duration = Duration::from_millis(50);
/// A checkpoint that would list more batches is due early, so that it fits into an object.
const MOST_CHECKPOINT_BATCHES: usize = 1 << 18;
/// Bulk batches may fill this part of the pending bytes.
const BULK_PART: usize = 2;

impl Broker {
    pub(crate) fn append(
        &mut self,
        turn: &mut Turn<'_>,
        ticket: Ticket,
        topic: TopicId,
        batches: Vec<(PartitionId, EncodedBatch)>,
        bulk: bool,
    ) {
        self.requests.open(turn, ticket, batches.len());
        let limit = if bulk { self.settings.pending_bytes / BULK_PART } else { self.settings.pending_bytes };
        for (index, (partition, batch)) in batches.into_iter().enumerate() {
            let length = batch.bytes().len();
            let refusal = self.refusal(topic, partition).filter(|error| !self.may_be_new(error)).or_else(|| {
                // One batch always fits, whatever the limit.
                let full = self.pending_bytes > 0 && self.pending_bytes + length > limit;
                full.then(|| AppendError::Throttled(THROTTLE.max(self.settings.linger * 2)))
            });
            if let Some(error) = refusal {
                self.requests.settle(turn, ticket, index, Err(error));
                continue;
            }
            self.pending_bytes += length;
            let arrived = turn.now.monotonic;
            self.lanes.push(Queued { ticket, index, topic, partition, batch, bulk, arrived });
        }
    }

    /// Why nothing can be appended to a partition now.
    fn refusal(&self, topic: TopicId, partition: PartitionId) -> Option<AppendError> {
        match &self.life {
            Life::Serving => {}
            Life::Starting(startup) => return Some(AppendError::Unavailable(self.describe(startup))),
            Life::Draining(_) => return Some(AppendError::Unavailable("it is draining")),
            Life::Stopped => return Some(AppendError::Unavailable("it has stopped")),
        }
        let Some(state) = self.cluster.state.topics.get(&topic).filter(|topic| !topic.deleted) else {
            return Some(AppendError::UnknownTopic(topic));
        };
        if partition.0 >= state.partitions() {
            return Some(AppendError::UnknownPartition { partition, partitions: state.partitions() });
        }
        None
    }

    /// Whether an unknown topic may be younger than the log as we know it. Ids are never reused, and rise.
    fn may_be_new(&self, error: &AppendError) -> bool {
        matches!(error, AppendError::UnknownTopic(topic) if *topic >= self.cluster.state.next_topic)
    }

    /// Our segment over a partition.
    pub(crate) fn segment_of(&self, topic: TopicId, partition: PartitionId) -> Option<SegmentId> {
        let numbers = |number| SegmentId { topic, number };
        self.segments
            .range(numbers(SegmentNumber(0))..=numbers(SegmentNumber(u64::MAX)))
            .rev()
            .find(|(_, segment)| segment.opened.range.contains(partition))
            .map(|(id, _)| *id)
    }

    // Placement.

    /// Places objects as long as one is due and there is room.
    pub(crate) fn place(&mut self, turn: &mut Turn<'_>) {
        while self.journal.as_ref().is_some_and(|journal| journal.has_room()) && self.is_due(turn.now.monotonic) {
            if !self.place_one(turn) {
                break;
            }
        }
    }

    fn is_due(&self, now: Duration) -> bool {
        self.placement_due().is_some_and(|at| at <= now)
    }

    /// When the next object is due, were there room.
    pub(crate) fn placement_due(&self) -> Option<Duration> {
        let journal = self.journal.as_ref()?;
        if !journal.has_room() {
            return None;
        }
        let urgent = journal.needs_proof()
            || !self.sealing.to_adopt.is_empty()
            || !self.sealing.to_expire.is_empty()
            || !self.sealing.to_end.is_empty() && self.may_end()
            || self.lanes.ready_bytes() >= self.settings.object_bytes
            || matches!(self.life, Life::Draining(_)) && !self.lanes.is_idle()
            || self.is_adopting() && journal.next() == Slot(1);
        if urgent {
            return Some(Duration::ZERO);
        }
        let heartbeat = journal.placed_at() + self.settings.death_after / 3;
        let linger = match journal.has_none_in_flight() {
            true => self.settings.linger_when_idle,
            false => self.settings.linger,
        };
        let linger = self.lanes.oldest().map(|oldest| oldest + linger.min(self.settings.linger));
        Some(linger.map_or(heartbeat, |linger| linger.min(heartbeat)))
    }

    fn is_checkpoint_due(&self) -> bool {
        self.journal.as_ref().is_some_and(|journal| {
            journal.checkpoint().is_none()
                || journal.slots_since_checkpoint() >= self.settings.checkpoint_slots
                || journal.batches_since_checkpoint() >= MOST_CHECKPOINT_BATCHES
        })
    }

    /// A checkpoint states the open segments. It must not come between a segment's end and the log entry that says so, or
    /// recovery would know nothing of the segment (invariant *checkpoints-hide-nothing*): it waits for those entries, and further
    /// ends wait for it.
    fn may_checkpoint(&self) -> bool {
        self.sealing.unlogged == 0 || self.mutation == Mutation::HideEnds
    }

    fn may_end(&self) -> bool {
        !self.is_checkpoint_due() || self.may_checkpoint()
    }

    /// Places one object; false when there turned out to be nothing to write.
    fn place_one(&mut self, turn: &mut Turn<'_>) -> bool {
        let Some(journal) = self.journal.as_mut() else { return false };
        let slot = journal.next();
        let proof = journal.needs_proof();
        let idle = turn.now.monotonic >= journal.placed_at() + self.settings.death_after / 3;
        let mut placement = Placement::default();
        let mut ends = self.may_end();
        if self.is_checkpoint_due() && self.may_checkpoint() {
            self.add_checkpoint(&mut placement);
            ends = true;
        }
        let size = self.add_adoptions(slot, &mut placement);
        // Before the batches, so that nobody is forgotten who was just heard.
        self.add_expiries(&mut placement);
        let limit = self.settings.object_bytes.saturating_sub(size).max(1);
        let mut used = 0;
        self.lanes.begin();
        while let Some(queued) = self.lanes.next(used, limit) {
            let length = queued.len();
            if self.sequence(turn, slot, queued, &mut placement) {
                used += length;
            }
        }
        if ends {
            self.add_ends(slot, &mut placement);
        }
        if placement.entries.is_empty() && !placement.needs_slot && !proof && !idle {
            for answered in placement.answers {
                let wait = self.journal.as_mut().and_then(|journal| journal.wait(answered));
                if let Some(answered) = wait {
                    self.requests.settle(turn, answered.ticket, answered.index, answered.outcome);
                }
            }
            return false;
        }
        let token = self.token();
        let early: Vec<_> = match self.mutation {
            Mutation::EndBeforeDurable => placement.marks.iter().filter_map(Mark::sealed).collect(),
            _ => Vec::new(),
        };
        if let Some(journal) = self.journal.as_mut() {
            let slot = journal.place(turn, &mut self.operations, token, placement);
            if self.mutation == Mutation::ReadBeforeDurable
                && let Some(epoch) = self.epoch
            {
                turn.emit(Effect::Committed { epoch, slot, batches: journal.batches_in(slot) });
            }
        }
        early.into_iter().for_each(|segment| self.seal_released(segment));
        true
    }

    fn add_checkpoint(&mut self, placement: &mut Placement) {
        let Some(journal) = self.journal.as_mut() else { return };
        let segments =
            self.segments.values().filter(|segment| segment.stage == Stage::Open).map(|segment| segment.state());
        let checkpoint = Checkpoint {
            previous: journal.checkpoint(),
            segments: segments.collect(),
            batches: journal.take_locations(),
        };
        placement.entries.push(Entry::Checkpoint(checkpoint));
        placement.has_checkpoint = true;
    }

    /// Segments that opened: their `Adopt` entries precede all their batches. Returns about how many bytes they take.
    fn add_adoptions(&mut self, slot: Slot, placement: &mut Placement) -> usize {
        let mut size = 0;
        while size < self.settings.object_bytes
            && let Some(id) = self.sealing.to_adopt.pop_front()
        {
            let Some(segment) = self.segments.get_mut(&id) else { continue };
            segment.stage = Stage::Open;
            segment.ledger.adopted = slot;
            segment.last_slot = slot;
            let state = segment.state();
            size += weight(&state);
            placement.entries.push(Entry::Adopt(state));
            placement.marks.push(Mark::Adopted(id));
            if segment.ending.is_some() {
                self.sealing.to_end.push_back(id);
            }
        }
        if !placement.marks.is_empty() {
            self.lanes.unpark();
        }
        size
    }

    /// Segments whose end is wanted: their `Seal` entries follow all their batches.
    fn add_ends(&mut self, slot: Slot, placement: &mut Placement) {
        let mut size = 0;
        while size < self.settings.object_bytes
            && let Some(id) = self.sealing.to_end.pop_front()
        {
            let Some(segment) = self.segments.get_mut(&id).filter(|segment| segment.stage == Stage::Open) else {
                continue;
            };
            let state = segment.state();
            size += weight(&state);
            segment.stage = Stage::Ended(slot);
            self.sealing.unlogged += 1;
            placement.entries.push(Entry::Seal(state));
            placement.marks.push(Mark::Sealed(id));
        }
    }

    fn add_expiries(&mut self, placement: &mut Placement) {
        for (id, producers) in std::mem::take(&mut self.sealing.to_expire) {
            if let Some(segment) = self.segments.get_mut(&id).filter(|segment| segment.takes_batches()) {
                segment.ledger.producers.forget(&producers);
                placement.entries.push(Entry::Expire { segment: id, producers });
            }
        }
    }

    /// Judges a batch and gives it its place in the object for `slot`; whether it got one.
    fn sequence(&mut self, turn: &mut Turn<'_>, slot: Slot, queued: Queued, placement: &mut Placement) -> bool {
        let now = turn.now;
        let refusal = match self.life {
            // What arrived before the drain is still placed.
            Life::Draining(_) => None,
            _ => self.refusal(queued.topic, queued.partition),
        };
        if let Some(error) = refusal {
            if self.may_be_new(&error) && !self.has_seen_log_of(queued.arrived) {
                self.watch_log(turn);
                self.lanes.park(queued);
            } else {
                self.refuse(turn, queued, error);
            }
            return false;
        }
        let broken = self.mutation == Mutation::AppendAfterSeal;
        let id = self.segment_of(queued.topic, queued.partition);
        let takes =
            |segment: &&mut OwnedSegment| segment.takes_batches() || broken && matches!(segment.stage, Stage::Ended(_));
        let Some((id, segment)) = id.and_then(|id| Some((id, self.segments.get_mut(&id).filter(takes)?))) else {
            self.set_aside(turn, queued);
            return false;
        };
        let append_time = segment.ledger.append_time(now.wall);
        let header = queued.batch.header();
        let verdict = match self.mutation {
            Mutation::NoDeduplication => Verdict::Fresh,
            _ => segment.ledger.judge(queued.partition, &header),
        };
        let outcome: Outcome = match verdict {
            Verdict::Duplicate { base_offset, append_time } => {
                Ok(Appended { base_offset, append_time, duplicate: true })
            }
            Verdict::Refused(error) => {
                // The producer may know better than a broker that was fenced without noticing.
                placement.needs_slot = self.mutation != Mutation::StaleRefusal;
                Err(error)
            }
            Verdict::Fresh => {
                if segment.first_batch.is_some_and(|(_, first)| first.day() != append_time.day()) && !broken {
                    // A segment holds one UTC day.
                    self.end_segment(id, After::Successor);
                    self.lanes.park(queued);
                    return false;
                }
                let expires_at = now.monotonic + self.settings.producer_expiry;
                match segment.ledger.place(queued.partition, &queued.batch, now.wall, expires_at) {
                    Err(error) => Err(error),
                    Ok(place) => {
                        segment.first_batch.get_or_insert((now.monotonic, place.append_time));
                        segment.last_slot = slot;
                        let full = self
                            .cluster
                            .state
                            .topics
                            .get(&queued.topic)
                            .is_some_and(|topic| segment.ledger.bytes >= topic.config.seal_bytes);
                        if full {
                            self.end_segment(id, After::Successor);
                        }
                        let (base_offset, append_time) = (place.base_offset, place.append_time);
                        let outcome = Ok(Appended { base_offset, append_time, duplicate: false });
                        placement.entries.push(Entry::Batch(PlacedBatch {
                            segment: id,
                            partition: queued.partition,
                            base_offset,
                            append_time,
                            batch: queued.batch,
                        }));
                        if self.mutation == Mutation::AckBeforeDurable {
                            self.requests.settle(turn, queued.ticket, queued.index, outcome);
                        } else {
                            placement.answers.push(Answered { ticket: queued.ticket, index: queued.index, outcome });
                        }
                        return true;
                    }
                }
            }
        };
        self.pending_bytes = self.pending_bytes.saturating_sub(queued.len());
        placement.answers.push(Answered { ticket: queued.ticket, index: queued.index, outcome });
        false
    }

    /// A batch that no segment of ours takes now waits aside: for a segment to open here, or until it is certain that somebody else
    /// serves the partition. The client may have been told of us by somebody who reads the log faster.
    fn set_aside(&mut self, turn: &mut Turn<'_>, queued: Queued) {
        if self.is_served_elsewhere(&queued) {
            if self.knows_log(turn.now.monotonic) {
                let error = AppendError::NotServed(queued.partition);
                return self.refuse(turn, queued, error);
            }
            self.watch_log(turn);
        }
        self.lanes.park(queued);
    }

    fn is_served_elsewhere(&self, queued: &Queued) -> bool {
        let owner = self.cluster.owner_of(queued.topic, queued.partition);
        owner.is_some_and(|(_, owner)| Some(owner) != self.epoch)
    }

    /// Refuses parked batches whose partition somebody else serves, or whose topic does not exist.
    pub(crate) fn redirect_parked(&mut self, turn: &mut Turn<'_>) {
        if self.lanes.oldest_parked().is_none() {
            return;
        }
        let mut is_early = false;
        for queued in self.lanes.take_parked(|_| true) {
            if self.is_served_elsewhere(&queued) {
                let error = AppendError::NotServed(queued.partition);
                self.refuse(turn, queued, error);
            } else if !self.cluster.state.topics.contains_key(&queued.topic) {
                // A definite answer takes a look that began after the batch came.
                if !self.has_seen_log_of(queued.arrived) {
                    is_early = true;
                    self.lanes.park(queued);
                    continue;
                }
                let error = AppendError::UnknownTopic(queued.topic);
                self.refuse(turn, queued, error);
            } else {
                self.lanes.park(queued);
            }
        }
        if is_early {
            self.watch_log(turn);
        }
    }

    /// Refuses a batch that was never placed, for a reason that the log's durable state gives.
    pub(crate) fn refuse(&mut self, turn: &mut Turn<'_>, queued: Queued, error: AppendError) {
        self.pending_bytes = self.pending_bytes.saturating_sub(queued.len());
        self.requests.settle(turn, queued.ticket, queued.index, Err(error));
    }

    // Release.

    pub(crate) fn slot_decided(
        &mut self,
        turn: &mut Turn<'_>,
        slot: Slot,
        decided: Decided,
        since: Duration,
    ) -> Result<(), StopReason> {
        let decided = match decided {
            Decided::Taken(_) if self.mutation == Mutation::IgnoreFence => Decided::Committed,
            decided => decided,
        };
        let Some(journal) = self.journal.as_mut() else { return Ok(()) };
        let now = turn.now.monotonic;
        self.members.wrote(now.saturating_sub(since), self.settings.death_after, now);
        for (slot, flight) in journal.decided(slot, decided, since, now)? {
            self.release(turn, slot, flight);
        }
        Ok(())
    }

    fn release(&mut self, turn: &mut Turn<'_>, slot: Slot, flight: Flight) {
        let Some(epoch) = self.epoch else { return };
        let Flight { batches, answers, marks, bytes, .. } = flight;
        self.pending_bytes = self.pending_bytes.saturating_sub(bytes);
        turn.emit(Effect::Committed { epoch, slot, batches });
        for answered in answers {
            self.requests.settle(turn, answered.ticket, answered.index, answered.outcome);
        }
        for mark in marks {
            match mark {
                Mark::Adopted(segment) => self.cluster.want(Intent::Adopted { segment, slot }),
                Mark::Sealed(segment) => self.seal_released(segment),
            }
        }
    }
}

/// About how many bytes a state takes in a journal object.
fn weight(state: &SegmentState) -> usize {
    const PRODUCER: usize = 64;
    const OFFSET: usize = 8;
    const REST: usize = 64;
    REST + OFFSET * state.next_offsets.len() + PRODUCER * state.producers.len()
}
