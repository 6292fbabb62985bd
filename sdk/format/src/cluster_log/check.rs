//! The whole state against every invariant: for snapshots, the simulator and tests. [`ClusterState::apply`] keeps them one
//! change at a time.

use super::{
    ClusterState, TopicState, Violation,
    apply::{Refusal, ensure, fits_end, fits_fence, valid},
};
use refstream_types::{Offset, PartitionId, SegmentNumber, Slot};

impl ClusterState {
    /// Checks that the state is one that a log can lead to.
    ///
    /// # Errors
    /// Names the first invariant that does not hold.
    pub fn check(&self) -> Result<(), Violation> {
        self.holds().map_err(|(invariant, detail)| Violation { version: self.version, invariant, detail })
    }

    fn holds(&self) -> Result<(), Refusal> {
        let highest = self.topics.keys().next_back();
        ensure(highest.is_none_or(|id| *id < self.next_topic), "topic-ids-never-reused", || {
            format!("the next topic is {}, but topic {} exists", self.next_topic, highest.copied().unwrap_or_default())
        })?;
        let live = self.topics.values().filter(|t| !t.deleted).count();
        ensure(self.names == self.names_of_topics() && self.names.len() == live, "topic-names-unique", || {
            format!("{live} live topics have {} names", self.names.len())
        })?;
        for (id, topic) in &self.topics {
            ensure(*id == topic.id, "topic-ids-never-reused", || format!("topic {} stands under {id}", topic.id))?;
            topic.holds()?;
            self.owners_hold(topic)?;
        }
        Ok(())
    }

    fn owners_hold(&self, topic: &TopicState) -> Result<(), Refusal> {
        for segment in topic.open.values() {
            let owner = self.epochs.get(&segment.owner);
            ensure(owner.is_some_and(|e| e.fence.is_none()), "owners-are-live", || {
                format!("segment {} is owned by epoch {}", segment.id, segment.owner)
            })?;
        }
        let tails = topic.tails.values().map(|tail| (&tail.segment, true));
        for (segment, is_tail) in topic.sealed.values().map(|s| (s, !s.is_empty())).chain(tails) {
            match self.epochs.get(&segment.opened.owner) {
                Some(owner) => owner.fence.map_or(Ok(()), |fence| fits_fence(segment, fence))?,
                None => ensure(!is_tail, "needed-journals-stay", || {
                    format!("segment {} is in the journal of a forgotten epoch", segment.opened.id)
                })?,
            }
        }
        Ok(())
    }
}

impl TopicState {
    fn holds(&self) -> Result<(), Refusal> {
        valid(&self.config)?;
        ensure(self.next_offsets.len() == self.partitions() as usize, "partitions-fixed", || {
            format!("topic {} has {} partitions and {} offsets", self.id, self.partitions(), self.next_offsets.len())
        })?;
        ensure(
            !self.deleted || self.tails.is_empty() && !(self.open.is_empty() && self.sealed.is_empty()),
            "deleted-topics-stay-deleted",
            || format!("topic {} is deleted, but has tails or no segment", self.id),
        )?;
        let opened = self.sealed.values().chain(self.tails.values().map(|t| &t.segment)).map(|s| &s.opened);
        for segment in self.open.values().chain(opened) {
            ensure(
                segment.id.topic == self.id
                    && SegmentNumber(1) <= segment.id.number
                    && segment.id.number < self.next_segment,
                "segment-numbers-ascend",
                || format!("segment {} of topic {}, whose next is {}", segment.id, self.id, self.next_segment),
            )?;
            ensure(
                self.starts(segment.range).is_some() && segment.start_offsets.len() == segment.range.len(),
                "ranges-fit-topic",
                || format!("segment {} over {}", segment.id, segment.range),
            )?;
        }
        self.open_hold()?;
        for segment in self.sealed.values().chain(self.tails.values().map(|t| &t.segment)) {
            fits_end(segment)?;
        }
        self.chains_hold()?;
        self.tails_hold()
    }

    fn open_hold(&self) -> Result<(), Refusal> {
        let mut ranges: Vec<_> = self.open.values().map(|s| s.range).collect();
        ranges.sort_unstable();
        ensure(ranges.is_sorted_by(|a, b| a.hi() <= b.lo()), "open-segments-are-disjoint", || format!("{ranges:?}"))?;
        for (number, segment) in &self.open {
            ensure(*number == segment.id.number, "segment-numbers-ascend", || {
                format!("{} under {number}", segment.id)
            })?;
            ensure(self.starts(segment.range) == Some(&segment.start_offsets), "segments-form-chains", || {
                format!("segment {} does not start where its partitions ended", segment.id)
            })?;
            let tails = self.predecessors(segment.range);
            let fits = match self.adopted.get(number) {
                Some(slot) => tails.is_empty() && *slot >= Slot(1),
                None => self.deleted || segment.predecessors == tails,
            };
            ensure(fits, "predecessors-hold-the-state", || {
                format!("segment {} carries on from {:?}, tails are {tails:?}", segment.id, segment.predecessors)
            })?;
        }
        ensure(self.adopted.keys().all(|n| self.open.contains_key(n)), "only-open-segments-are-adopted", || {
            format!("topic {}: {:?}", self.id, self.adopted)
        })?;
        for (number, successors) in &self.planned {
            let Some(segment) = self.open.get(number).filter(|_| !self.deleted) else {
                return Err(("only-open-segments-are-planned", format!("topic {}: {number}", self.id)));
            };
            self.plan_fits(segment.range, successors)?;
        }
        Ok(())
    }

    /// For each partition the sealed segments ascend without overlap and end at most at the next offset.
    fn chains_hold(&self) -> Result<(), Refusal> {
        let mut reached = vec![Offset(0); self.next_offsets.len()];
        for (number, segment) in &self.sealed {
            let opened = &segment.opened;
            ensure(*number == opened.id.number, "segment-numbers-ascend", || format!("{} under {number}", opened.id))?;
            for ((partition, start), end) in opened.range.iter().zip(&opened.start_offsets).zip(&segment.end_offsets) {
                let at = partition.0 as usize;
                ensure(reached[at] <= *start && *end <= self.next_offsets[at], "segments-form-chains", || {
                    format!("segment {}: partition {partition} from {start} to {end}", opened.id)
                })?;
                reached[at] = *end;
            }
        }
        Ok(())
    }

    /// Every partition that holds a record has its producers' state in one place.
    fn tails_hold(&self) -> Result<(), Refusal> {
        let mut places = vec![0_u32; self.next_offsets.len()];
        for (number, tail) in &self.tails {
            let range = tail.segment.opened.range;
            let within = tail.uncovered.iter().all(|r| range.lo() <= r.lo() && r.hi() <= range.hi());
            let apart = tail.uncovered.is_sorted_by(|a, b| a.hi() < b.lo()) && !tail.uncovered.is_empty();
            ensure(within && apart && *number == tail.segment.opened.id.number, "tails-hold-their-partitions", || {
                format!("{} over {range} for {:?}", tail.segment.opened.id, tail.uncovered)
            })?;
            for partition in tail.uncovered.iter().flat_map(|r| r.iter()) {
                let at = partition.0 as usize;
                let end = range.index_of(partition).map(|i| tail.segment.end_offsets[i]);
                ensure(end == Some(self.next_offsets[at]), "tails-hold-their-partitions", || {
                    format!("{} does not end where partition {partition} goes on", tail.segment.opened.id)
                })?;
                places[at] += 1;
            }
        }
        for partition in self.adopted.keys().filter_map(|n| self.open.get(n)).flat_map(|s| s.range.iter()) {
            places[partition.0 as usize] += 1;
        }
        if self.deleted {
            return Ok(());
        }
        for (at, (places, next)) in places.iter().zip(&self.next_offsets).enumerate() {
            let partition = PartitionId(at as u32);
            ensure(*places <= 1 && (*places == 1 || *next == Offset(0)), "predecessors-hold-the-state", || {
                format!("partition {partition} goes on at {next} with its producers' state in {places} places")
            })?;
        }
        Ok(())
    }
}
