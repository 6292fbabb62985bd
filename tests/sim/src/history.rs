//! What was promised, and what the store holds in the end.
//!
//! Checked while the simulation runs: an offset is never given to two batches, nothing is acked that readers were not told of,
//! what readers were told never changes, refusals of a producer's next batch do not happen. Checked at the end, against what is
//! read from the store alone: see [`History::judge`].

use bytes::Bytes;
use refstream_format::journal::PlacedBatch;
use refstream_types::{Offset, PartitionId, TopicId};
use std::collections::{BTreeMap, BTreeSet};

/// A batch that some producer sent, from 0.
pub(crate) type BatchId = usize;
/// A partition of a topic.
pub(crate) type Place = (TopicId, PartitionId);

#[derive(Debug)]
struct Sent {
    place: Place,
    /// The producer, and the sequence in it; `None` for producers without idempotence.
    lane: Option<(usize, u64)>,
    records: u32,
    acked: Option<Offset>,
    /// It was certainly refused and never sent again.
    refused: bool,
}

/// All that happened.
#[derive(Debug, Default)]
pub(crate) struct History {
    sent: Vec<Sent>,
    by_bytes: BTreeMap<Bytes, BatchId>,
    /// What readers were told.
    visible: BTreeMap<(Place, Offset), BatchId>,
    pub(crate) violations: Vec<String>,
    pub(crate) acks: u64,
    /// The offset after the highest acked record, of each partition.
    ends: BTreeMap<Place, Offset>,
}

impl History {
    pub(crate) fn violation(&mut self, what: impl Into<String>) {
        self.violations.push(what.into());
    }

    /// How many batches were made.
    pub(crate) fn count(&self) -> usize {
        self.sent.len()
    }

    /// A producer made a batch.
    pub(crate) fn sent(&mut self, bytes: Bytes, place: Place, lane: Option<(usize, u64)>, records: u32) -> BatchId {
        let id = self.sent.len();
        self.sent.push(Sent { place, lane, records, acked: None, refused: false });
        if self.by_bytes.insert(bytes, id).is_some() {
            self.violation("the simulation made the same batch twice");
        }
        id
    }

    /// A producer was told where its batch is. A duplicate may have been placed by a broker that died before it told anybody.
    pub(crate) fn acked(&mut self, id: BatchId, offset: Offset, duplicate: bool) {
        self.acks += 1;
        let sent = &mut self.sent[id];
        let before = sent.acked.replace(offset);
        if before.is_some_and(|before| before != offset) {
            let what = format!("batch {id} of {:?} was acked at {before:?} and at {offset}", sent.place);
            return self.violation(what);
        }
        let end = self.ends.entry(sent.place).or_default();
        *end = (*end).max(Offset(offset.0 + u64::from(sent.records)));
        let at = (sent.place, offset);
        match self.visible.get(&at) {
            Some(visible) if *visible == id => {}
            None if duplicate => {}
            other => {
                let what = format!("batch {id} was acked at {at:?}, where readers were told of {other:?}");
                self.violation(what);
            }
        }
    }

    /// What is acked by now: an answer about latest offsets to a request from now on must not lie below.
    pub(crate) fn ends(&self) -> BTreeMap<Place, Offset> {
        self.ends.clone()
    }

    /// A broker answered for the latest offsets, `known` to it, of a request that came when `floor` was acked.
    pub(crate) fn latest(&mut self, floor: &BTreeMap<Place, Offset>, known: &BTreeMap<Place, Offset>) {
        for (place, acked) in floor {
            let answer = known.get(place).copied().unwrap_or_default();
            if answer < *acked {
                self.violation(format!("a broker said that {place:?} ends at {answer}, after {acked} was acked"));
            }
        }
    }

    /// A batch without idempotence was refused for certain.
    pub(crate) fn refused(&mut self, id: BatchId) {
        self.sent[id].refused = true;
    }

    /// Readers were told of a batch.
    pub(crate) fn visible(&mut self, placed: &PlacedBatch) {
        let place = (placed.segment.topic, placed.partition);
        let Some(&id) = self.by_bytes.get(placed.batch.bytes()) else {
            return self.violation(format!("readers were told of a batch at {place:?} that nobody sent"));
        };
        let at = (place, placed.base_offset);
        if let Some(before) = self.visible.insert(at, id)
            && before != id
        {
            self.violation(format!("readers were told of batch {before} at {at:?}, and then of batch {id}"));
        }
    }

    /// Judges what was read from the store in the end: for each partition the batches by offset.
    pub(crate) fn judge(&mut self, partitions: &BTreeSet<Place>, read: &BTreeMap<(Place, Offset), PlacedBatch>) {
        let mut next: BTreeMap<Place, u64> = BTreeMap::new();
        let mut sequences: BTreeMap<(Place, usize), u64> = BTreeMap::new();
        let mut found = BTreeMap::new();
        let mut wrong = Vec::new();
        for ((place, offset), placed) in read {
            let Some(&id) = self.by_bytes.get(placed.batch.bytes()) else {
                wrong.push(format!("{place:?} holds a batch at {offset} that nobody sent"));
                continue;
            };
            let sent = &self.sent[id];
            let expected = next.entry(*place).or_default();
            if *expected != offset.0 {
                wrong.push(format!("{place:?}: offset {offset} follows, expected {expected}: offsets are not dense"));
            }
            *expected = offset.0 + u64::from(sent.records);
            if sent.place != *place {
                wrong.push(format!("batch {id} of {:?} stands in {place:?}", sent.place));
            }
            if let Some(before) = found.insert(id, *offset) {
                wrong.push(format!("batch {id} stands twice in {place:?}: at {before} and {offset}"));
            }
            if let Some((producer, sequence)) = sent.lane {
                let expected = sequences.entry((*place, producer)).or_default();
                if *expected != sequence {
                    wrong.push(format!(
                        "{place:?}: producer {producer} has sequence {sequence} at {offset}, expected {expected}: order"
                    ));
                }
                *expected = sequence + u64::from(sent.records);
            }
            if sent.refused {
                wrong.push(format!("batch {id} was refused for certain, but stands in {place:?} at {offset}"));
            }
        }
        for (id, sent) in self.sent.iter().enumerate().filter(|(_, sent)| partitions.contains(&sent.place)) {
            if let Some(offset) = sent.acked
                && found.get(&id) != Some(&offset)
            {
                let stands = found.get(&id);
                wrong.push(format!("batch {id} of {:?} was acked at {offset}, but stands at {stands:?}", sent.place));
            }
        }
        for ((place, offset), id) in self.visible.iter().filter(|((place, _), _)| partitions.contains(place)) {
            if found.get(id) != Some(offset) {
                wrong.push(format!("readers were told of batch {id} in {place:?} at {offset}; it is not there"));
            }
        }
        self.violations.extend(wrong);
    }
}
