//! The one way in which the state changes.
//!
//! Every refusal names an invariant and leaves the state as it was: what an entry touches is kept aside (topics are shared, so
//! that costs a pointer) and put back.

use super::{
    ClusterState, Command, EpochState, LogEntry, OpenSegment, Planned, SealedBy, SealedSegment, Tail, TopicState,
    Violation,
};
use refstream_types::{
    Epoch, LeaderTerm, Offset, PartitionRange, SegmentId, SegmentNumber, Slot, TopicConfig, TopicId,
};
use std::{collections::BTreeMap, sync::Arc};

/// An invariant and what would break it.
pub(super) type Refusal = (&'static str, String);

pub(super) fn ensure(holds: bool, invariant: &'static str, detail: impl FnOnce() -> String) -> Result<(), Refusal> {
    if holds { Ok(()) } else { Err((invariant, detail())) }
}

/// What an entry has touched, as it was before.
struct Before {
    leader: Option<(LeaderTerm, Epoch)>,
    next_topic: TopicId,
    forgotten: Epoch,
    topics: BTreeMap<TopicId, Option<Arc<TopicState>>>,
    epochs: BTreeMap<Epoch, Option<EpochState>>,
}

impl ClusterState {
    /// Folds one log entry into the state: the only way in which the state changes, the same for everybody who reads the log.
    /// The state is unchanged when it refuses.
    ///
    /// # Errors
    /// Names the invariant that the entry would break.
    pub fn apply(&mut self, entry: &LogEntry) -> Result<(), Violation> {
        let violation = |(invariant, detail)| Violation { version: entry.version, invariant, detail };
        self.admit(entry).map_err(violation)?;
        let mut before = Before {
            leader: self.leader,
            next_topic: self.next_topic,
            forgotten: self.forgotten,
            topics: BTreeMap::new(),
            epochs: BTreeMap::new(),
        };
        let applied = entry
            .commands
            .iter()
            .try_for_each(|command| self.command(entry, command, &mut before))
            .and_then(|()| self.led(entry));
        match applied {
            Ok(()) => {
                self.version = entry.version;
                Ok(())
            }
            Err(refusal) => {
                self.restore(before);
                Err(violation(refusal))
            }
        }
    }

    fn admit(&self, entry: &LogEntry) -> Result<(), Refusal> {
        ensure(self.version.0.checked_add(1) == Some(entry.version.0), "versions-are-contiguous", || {
            format!("the state is at {}", self.version)
        })?;
        if let Some((term, leader)) = self.leader {
            ensure(entry.term >= term, "terms-never-fall", || {
                format!("decided under term {}, but epoch {leader} leads with term {term}", entry.term)
            })?;
        }
        let over = match self.epochs.get(&entry.writer) {
            Some(epoch) => epoch.fence.is_some(),
            None => entry.writer <= self.forgotten,
        };
        ensure(!over, "recovered-epochs-write-nothing", || format!("epoch {} was recovered", entry.writer))
    }

    /// Checked once an entry's commands are applied: its term is one that somebody took.
    fn led(&self, entry: &LogEntry) -> Result<(), Refusal> {
        let highest = self.leader.map_or(LeaderTerm(0), |(term, _)| term);
        ensure(entry.term <= highest, "terms-are-taken", || {
            format!("decided under term {}, but the highest term taken is {highest}", entry.term)
        })
    }

    fn restore(&mut self, before: Before) {
        self.leader = before.leader;
        self.next_topic = before.next_topic;
        self.forgotten = before.forgotten;
        for id in before.topics.keys() {
            if let Some(now) = self.topics.remove(id)
                && !now.deleted
            {
                self.names.remove(&now.name);
            }
        }
        for (id, topic) in before.topics {
            if let Some(topic) = topic {
                if !topic.deleted {
                    self.names.insert(topic.name.clone(), id);
                }
                self.topics.insert(id, topic);
            }
        }
        for (id, epoch) in before.epochs {
            match epoch {
                Some(epoch) => self.epochs.insert(id, epoch),
                None => self.epochs.remove(&id),
            };
        }
    }

    /// A topic, to be changed.
    fn topic(&mut self, id: TopicId, before: &mut Before) -> Result<&mut TopicState, Refusal> {
        let Some(topic) = self.topics.get_mut(&id) else {
            return Err(("topics-exist", format!("there is no topic {id}")));
        };
        before.topics.entry(id).or_insert_with(|| Some(Arc::clone(topic)));
        Ok(Arc::make_mut(topic))
    }

    fn live_topic(&mut self, id: TopicId, before: &mut Before) -> Result<&mut TopicState, Refusal> {
        let topic = self.topic(id, before)?;
        ensure(!topic.deleted, "deleted-topics-stay-deleted", || format!("topic {id} ({}) is deleted", topic.name))?;
        Ok(topic)
    }

    /// An epoch that joined, to be changed.
    fn epoch(&mut self, epoch: Epoch, before: &mut Before) -> Result<&mut EpochState, Refusal> {
        let Some(state) = self.epochs.get_mut(&epoch) else {
            return Err(("epochs-have-joined", format!("epoch {epoch} did not join, or is forgotten")));
        };
        before.epochs.entry(epoch).or_insert_with(|| Some(state.clone()));
        Ok(state)
    }

    fn command(&mut self, entry: &LogEntry, command: &Command, before: &mut Before) -> Result<(), Refusal> {
        match command {
            Command::Lead { epoch, term } => self.lead(entry, *epoch, *term),
            Command::CreateTopic { topic: id, name, config, created_at } => {
                ensure(*id == self.next_topic, "topic-ids-never-reused", || {
                    format!("topic {name} has id {id}, the next one is {}", self.next_topic)
                })?;
                valid(config)?;
                if let Some(other) = self.names.get(name) {
                    return Err(("topic-names-unique", format!("{name} is the name of topic {other}")));
                }
                before.topics.entry(*id).or_insert(None);
                self.next_topic = TopicId(after(id.0)?);
                self.names.insert(name.clone(), *id);
                let topic = TopicState {
                    id: *id,
                    name: name.clone(),
                    next_offsets: vec![Offset(0); config.partitions as usize],
                    config: config.clone(),
                    created_at: *created_at,
                    deleted: false,
                    next_segment: SegmentNumber(1),
                    open: BTreeMap::new(),
                    adopted: BTreeMap::new(),
                    sealed: BTreeMap::new(),
                    tails: BTreeMap::new(),
                    planned: BTreeMap::new(),
                };
                self.topics.insert(*id, Arc::new(topic));
                Ok(())
            }
            Command::AlterTopic { topic, config } => {
                valid(config)?;
                let topic = self.live_topic(*topic, before)?;
                ensure(config.partitions == topic.config.partitions, "partitions-fixed", || {
                    format!("{} has {} partitions, not {}", topic.name, topic.config.partitions, config.partitions)
                })?;
                topic.config = config.clone();
                Ok(())
            }
            Command::DeleteTopic { topic: id } => {
                let topic = self.live_topic(*id, before)?;
                topic.deleted = true;
                topic.tails.clear();
                topic.planned.clear();
                let name = topic.name.clone();
                self.names.remove(&name);
                self.drop_if_over(*id);
                Ok(())
            }
            Command::OpenSegment(segment) => {
                let owner = self.epochs.get(&segment.owner);
                ensure(owner.is_some_and(|e| e.fence.is_none()), "owners-are-live", || {
                    format!(
                        "segment {} is for epoch {}, which did not join or was recovered",
                        segment.id, segment.owner
                    )
                })?;
                self.live_topic(segment.id.topic, before)?.open(segment)
            }
            Command::SealSegment { segment, end_offsets, by, slots, bytes } => {
                let topic = self.topic(segment.topic, before)?;
                topic.seal(segment.number, end_offsets, *by, *slots, *bytes)
            }
            Command::SegmentAdopted { segment, slot } => self.topic(segment.topic, before)?.adopt(*segment, *slot),
            Command::SegmentClosed { segment } => {
                let closed = self.topic(segment.topic, before)?.sealed.remove(&segment.number);
                ensure(closed.is_some(), "only-sealed-segments-close", || format!("segment {segment} is not sealed"))?;
                self.drop_if_over(segment.topic);
                Ok(())
            }
            Command::EpochRecovered { epoch, fence } => self.recovered(*epoch, *fence, before),
            Command::EpochJoined { epoch, endpoint } => {
                ensure(*epoch > self.forgotten && !self.epochs.contains_key(epoch), "epochs-join-once", || {
                    format!("epoch {epoch} has joined, or epochs up to {} are over", self.forgotten)
                })?;
                ensure(endpoint.len() <= super::MAX_ENDPOINT_BYTES, "endpoints-are-bounded", || {
                    format!("the endpoint of epoch {epoch} has {} bytes", endpoint.len())
                })?;
                before.epochs.entry(*epoch).or_insert(None);
                self.epochs.insert(*epoch, EpochState { endpoint: endpoint.clone(), fence: None, leaving: false });
                Ok(())
            }
            Command::EpochForgotten { epoch } => {
                let state = self.epoch(*epoch, before)?;
                ensure(state.fence.is_some(), "only-recovered-epochs-are-forgotten", || {
                    format!("epoch {epoch} was not recovered")
                })?;
                let needed = self.journal_needed(*epoch, Slot(1));
                ensure(needed.is_none(), "needed-journals-stay", || {
                    format!("journal {epoch} is needed from slot {} on", needed.unwrap_or_default())
                })?;
                self.epochs.remove(epoch);
                self.forgotten = self.forgotten.max(*epoch);
                Ok(())
            }
            Command::PlanSegment { segment, successors } => {
                self.live_topic(segment.topic, before)?.plan(*segment, successors)
            }
            Command::EpochLeaving { epoch } => {
                let state = self.epoch(*epoch, before)?;
                ensure(state.fence.is_none(), "only-the-living-leave", || format!("epoch {epoch} was recovered"))?;
                state.leaving = true;
                Ok(())
            }
        }
    }

    fn lead(&mut self, entry: &LogEntry, epoch: Epoch, term: LeaderTerm) -> Result<(), Refusal> {
        let highest = self.leader.map_or(LeaderTerm(0), |(term, _)| term);
        ensure(term > highest, "terms-rise", || format!("term {term} does not exceed term {highest}"))?;
        ensure(epoch == entry.writer, "leaders-name-themselves", || {
            format!("epoch {} wrote that epoch {epoch} leads", entry.writer)
        })?;
        self.leader = Some((term, epoch));
        Ok(())
    }

    fn recovered(&mut self, epoch: Epoch, fence: Slot, before: &mut Before) -> Result<(), Refusal> {
        if let Some(segment) = self.owned_by(epoch).next() {
            return Err(("recovered-owns-nothing", format!("epoch {epoch} still owns segment {}", segment.id)));
        }
        ensure(fence >= Slot(1), "fences-agree", || "a fence has a slot from 1 on".into())?;
        let ended = self.topics.values().flat_map(|t| t.sealed.values().chain(t.tails.values().map(|t| &t.segment)));
        for segment in ended.filter(|s| s.opened.owner == epoch) {
            fits_fence(segment, fence)?;
        }
        let state = self.epoch(epoch, before)?;
        if let Some(earlier) = state.fence {
            return Err(("epochs-recover-once", format!("epoch {epoch} was recovered at fence {earlier}")));
        }
        state.fence = Some(fence);
        Ok(())
    }

    /// A deleted topic disappears with its last segment.
    fn drop_if_over(&mut self, id: TopicId) {
        if self.topics.get(&id).is_some_and(|t| t.deleted && t.open.is_empty() && t.sealed.is_empty()) {
            self.topics.remove(&id);
        }
    }
}

pub(super) fn fits_fence(segment: &SealedSegment, lowest: Slot) -> Result<(), Refusal> {
    let fits = match segment.by {
        SealedBy::Owner { slot } => slot < lowest,
        SealedBy::Recovery { fence } => fence == lowest,
    };
    ensure(fits, "fences-agree", || {
        format!("segment {} ended by {:?}, but the lowest fence is at {lowest}", segment.opened.id, segment.by)
    })
}

/// The number that follows, of those that are never reused.
fn after(number: u64) -> Result<u64, Refusal> {
    number.checked_add(1).ok_or_else(|| ("numbers-are-never-reused", format!("{number} is the last number there is")))
}

pub(super) fn valid(config: &TopicConfig) -> Result<(), Refusal> {
    config.validate().map_err(|error| ("topic-settings-valid", error.to_string()))
}

/// Checks that an end fits its beginning.
pub(super) fn fits_end(segment: &SealedSegment) -> Result<(), Refusal> {
    let SealedSegment { opened, end_offsets, by, slots, .. } = segment;
    ensure(end_offsets.len() == opened.range.len(), "end-not-before-start", || {
        format!("segment {} has {} partitions and {} ends", opened.id, opened.range.len(), end_offsets.len())
    })?;
    for ((partition, start), end) in opened.range.iter().zip(&opened.start_offsets).zip(end_offsets) {
        ensure(start <= end && *end <= Offset::MAX, "end-not-before-start", || {
            format!("partition {partition} of segment {} starts at {start} and ends at {end}", opened.id)
        })?;
    }
    let slots_ascend = Slot(1) <= slots.0 && slots.0 <= slots.1;
    let fits = match by {
        SealedBy::Owner { slot } => slots_ascend && slots.1 <= *slot,
        SealedBy::Recovery { fence } => *fence >= Slot(1) && (segment.is_empty() || slots_ascend && slots.1 < *fence),
    };
    ensure(fits, "sealed-by-fits-owner", || {
        format!("segment {} cannot have its batches in slots {} to {} and end by {by:?}", opened.id, slots.0, slots.1)
    })
}

impl TopicState {
    fn open(&mut self, segment: &OpenSegment) -> Result<(), Refusal> {
        let OpenSegment { id, range, start_offsets, predecessors, .. } = segment;
        ensure(id.number == self.next_segment, "segment-numbers-ascend", || {
            format!("segment {id} is opened, but the topic's next number is {}", self.next_segment)
        })?;
        if let Some(other) = self.open.values().find(|other| other.range.overlaps(*range)) {
            let (theirs, other) = (other.range, other.id);
            return Err(("open-segments-are-disjoint", format!("{id} over {range} overlaps {other} over {theirs}")));
        }
        let Some(starts) = self.starts(*range) else {
            return Err(("ranges-fit-topic", format!("{id} over {range}: there are {} partitions", self.partitions())));
        };
        ensure(start_offsets == starts, "segments-form-chains", || {
            format!("{id} over {range} starts at {start_offsets:?}, but its partitions ended at {starts:?}")
        })?;
        let tails = self.predecessors(*range);
        ensure(*predecessors == tails, "predecessors-hold-the-state", || {
            format!("{id} over {range} carries on from {predecessors:?}, but its producers' state is in {tails:?}")
        })?;
        self.next_segment = SegmentNumber(after(id.number.0)?);
        self.open.insert(id.number, segment.clone());
        Ok(())
    }

    fn seal(
        &mut self,
        number: SegmentNumber,
        end_offsets: &[Offset],
        by: SealedBy,
        slots: (Slot, Slot),
        bytes: u64,
    ) -> Result<(), Refusal> {
        let id = SegmentId { topic: self.id, number };
        let Some(opened) = self.open.get(&number) else {
            return Err(("only-open-segments-seal", format!("segment {id} is not open")));
        };
        let segment = SealedSegment { opened: opened.clone(), end_offsets: end_offsets.to_vec(), by, slots, bytes };
        fits_end(&segment)?;
        let adopted = self.adopted.get(&number).copied();
        if let Some(slot) = adopted {
            ensure(slots.0 == slot, "slots-start-at-the-adoption", || {
                format!("segment {id} was adopted at slot {slot}, but ends with slots from {} on", slots.0)
            })?;
        }
        let range = segment.opened.range;
        self.open.remove(&number);
        self.adopted.remove(&number);
        self.planned.remove(&number);
        for (partition, end) in range.iter().zip(end_offsets) {
            self.next_offsets[partition.0 as usize] = *end;
        }
        let was_adopted = adopted.is_some() || !segment.is_empty() || matches!(by, SealedBy::Owner { .. });
        if was_adopted && !self.deleted {
            self.release_tails(range);
            self.tails.insert(number, Tail { segment: segment.clone(), uncovered: vec![range] });
        }
        self.sealed.insert(number, segment);
        Ok(())
    }

    fn adopt(&mut self, id: SegmentId, slot: Slot) -> Result<(), Refusal> {
        let Some(range) = self.open.get(&id.number).map(|s| s.range) else {
            return Err(("only-open-segments-are-adopted", format!("segment {id} is not open")));
        };
        ensure(slot >= Slot(1), "adopted-once", || format!("segment {id} cannot be adopted before slot 1"))?;
        if let Some(earlier) = self.adopted.get(&id.number) {
            return Err(("adopted-once", format!("segment {id} was adopted at slot {earlier}")));
        }
        self.adopted.insert(id.number, slot);
        self.release_tails(range);
        Ok(())
    }

    fn plan(&mut self, id: SegmentId, successors: &[Planned]) -> Result<(), Refusal> {
        let Some(range) = self.open.get(&id.number).map(|s| s.range) else {
            return Err(("only-open-segments-are-planned", format!("segment {id} is not open")));
        };
        self.plan_fits(range, successors)?;
        self.planned.insert(id.number, successors.to_vec());
        Ok(())
    }

    /// Checks a plan for a segment over `range`.
    pub(super) fn plan_fits(&self, range: PartitionRange, successors: &[Planned]) -> Result<(), Refusal> {
        ensure(
            successors.is_sorted_by(|a, b| a.range.hi() <= b.range.lo())
                && successors.iter().all(|planned| self.starts(planned.range).is_some()),
            "plans-are-disjoint",
            || format!("{successors:?}"),
        )?;
        let covers = range.iter().all(|partition| successors.iter().any(|planned| planned.range.contains(partition)));
        ensure(covers, "plans-leave-nothing-out", || format!("{successors:?} does not cover {range}"))
    }

    /// The producers' state of `range` is elsewhere now.
    fn release_tails(&mut self, range: PartitionRange) {
        self.tails.retain(|_, tail| {
            tail.uncovered = tail.uncovered.iter().flat_map(|left| left.without(range)).collect();
            !tail.uncovered.is_empty()
        });
    }
}
