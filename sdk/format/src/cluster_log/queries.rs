//! Questions about the state; nothing here changes it.

use super::{ClusterState, OpenSegment, SealedBy, SealedSegment, TopicState};
use refstream_types::{Epoch, Offset, PartitionId, PartitionRange, SegmentId, SegmentNumber, Slot, TopicName};
use std::collections::BTreeMap;

impl TopicState {
    /// The partitions of the topic.
    pub fn partitions(&self) -> u32 {
        self.config.partitions
    }
    /// The open segment of a partition.
    pub fn open_segment(&self, partition: PartitionId) -> Option<&OpenSegment> {
        self.open.values().find(|s| s.range.contains(partition))
    }
    /// Where the partitions of `range` go on; `None` when the topic has no such partitions.
    pub fn starts(&self, range: PartitionRange) -> Option<&[Offset]> {
        self.next_offsets.get(range.lo().0 as usize..range.hi().0 as usize)
    }
    /// The tails that hold the producers' state of partitions of `range`, ascending: the predecessors of a segment over it.
    pub fn predecessors(&self, range: PartitionRange) -> Vec<SegmentNumber> {
        let overlapping = |tail: &super::Tail| tail.uncovered.iter().any(|r| r.overlaps(range));
        self.tails.iter().filter(|(_, tail)| overlapping(tail)).map(|(number, _)| *number).collect()
    }
    /// The segment to open next over `range`; `None` when the topic has no such partitions. For several in one log entry, give
    /// the further ones the numbers that follow.
    pub fn successor(&self, range: PartitionRange, owner: Epoch) -> Option<OpenSegment> {
        Some(OpenSegment {
            id: SegmentId { topic: self.id, number: self.next_segment },
            range,
            owner,
            start_offsets: self.starts(range)?.to_vec(),
            predecessors: self.predecessors(range),
        })
    }
    /// The partitions without an open segment, as maximal ranges, ascending. Empty for a deleted topic.
    pub fn unserved(&self) -> Vec<PartitionRange> {
        if self.deleted {
            return Vec::new();
        }
        let mut served: Vec<_> = self.open.values().map(|s| (s.range.lo(), s.range.hi())).collect();
        served.push((PartitionId(self.partitions()), PartitionId(self.partitions())));
        served.sort_unstable();
        let mut from = PartitionId(0);
        let mut unserved = Vec::new();
        for (lo, hi) in served {
            unserved.extend(PartitionRange::new(from, lo));
            from = from.max(hi);
        }
        unserved
    }
    /// The ended segment of that number, as long as the state knows it: not closed yet, or a tail.
    pub fn ended(&self, number: SegmentNumber) -> Option<&SealedSegment> {
        self.sealed.get(&number).or_else(|| self.tails.get(&number).map(|tail| &tail.segment))
    }
}

impl ClusterState {
    /// The live topic of that name.
    pub fn topic_by_name(&self, name: &TopicName) -> Option<&TopicState> {
        self.topics.get(self.names.get(name)?).map(AsRef::as_ref)
    }
    /// The open segment of that identity.
    pub fn open_segment(&self, segment: SegmentId) -> Option<&OpenSegment> {
        self.topics.get(&segment.topic)?.open.get(&segment.number)
    }
    /// The ended segment of that identity, see [`TopicState::ended`].
    pub fn ended_segment(&self, segment: SegmentId) -> Option<&SealedSegment> {
        self.topics.get(&segment.topic)?.ended(segment.number)
    }
    /// All open segments.
    pub fn open_segments(&self) -> impl Iterator<Item = &OpenSegment> {
        self.topics.values().flat_map(|topic| topic.open.values())
    }
    /// The open segments of one owner.
    pub fn owned_by(&self, owner: Epoch) -> impl Iterator<Item = &OpenSegment> {
        self.open_segments().filter(move |segment| segment.owner == owner)
    }
    /// Epochs that joined and are not recovered, ascending.
    pub fn live_epochs(&self) -> impl Iterator<Item = Epoch> {
        self.epochs.iter().filter(|(_, state)| state.fence.is_none()).map(|(epoch, _)| *epoch)
    }
    /// The lowest slot of an epoch's journal that is still needed: for segments that no file holds yet, for producers' states
    /// that no successor has adopted, for open segments. `None` when none is.
    ///
    /// `adopting_from` stands for open segments whose adoption the log does not know yet: the lowest slot that can hold their
    /// `Adopt` entries. The owner knows it; everybody else says [`Slot`] 1. Beyond that, an owner must keep its latest
    /// checkpoint and everything after it.
    pub fn journal_needed(&self, epoch: Epoch, adopting_from: Slot) -> Option<Slot> {
        let open = |topic: &TopicState| {
            let mine = topic.open.values().filter(|s| s.owner == epoch);
            mine.map(|s| topic.adopted.get(&s.id.number).copied().unwrap_or(adopting_from)).min()
        };
        let sealed = |topic: &TopicState| {
            let mine = topic.sealed.values().filter(|s| s.opened.owner == epoch && !s.is_empty());
            mine.map(|s| s.slots.0).min()
        };
        let tails = |topic: &TopicState| {
            let mine = topic.tails.values().filter(|t| t.segment.opened.owner == epoch);
            mine.map(|t| match t.segment.by {
                // The seal entry holds the whole final state.
                SealedBy::Owner { slot } => slot,
                SealedBy::Recovery { .. } => t.segment.slots.0,
            })
            .min()
        };
        let lowest = |topic: &TopicState| [open(topic), sealed(topic), tails(topic)].into_iter().flatten().min();
        self.topics.values().filter_map(|topic| lowest(topic)).min()
    }
    pub(super) fn names_of_topics(&self) -> BTreeMap<TopicName, refstream_types::TopicId> {
        self.topics.values().filter(|t| !t.deleted).map(|t| (t.name.clone(), t.id)).collect()
    }
}
