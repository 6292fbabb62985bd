//! The final states of segments that ended under earlier brokers: what their successors adopt.
//!
//! A segment that its owner ended has its final state in its seal entry. One that a recovery ended has it in the journal below
//! the fence: the last object names the latest checkpoint, and a replay from there (or from the adoption, whichever is later)
//! comes to it. Journals are kept for this as long as a tail needs them (`ClusterState::journal_needed`), so a missing object
//! is damage, unless the cluster has moved on.

use crate::{
    operations::{Answer, Operations, Purpose, Request},
    turn::Turn,
    walk::{Walk, Whose},
};
use bytes::Bytes;
use refstream_format::{
    cluster_log::{SealedBy, SealedSegment},
    journal::{Entry, JournalObject, Replay, SegmentState},
};
use refstream_types::{Chain, Epoch, SegmentId, Slot};
use std::collections::{BTreeMap, BTreeSet};

/// A journal whose end has to be replayed.
#[derive(Debug)]
struct Ending {
    fence: u64,
    /// Segments and the slots of their adoption.
    wanted: BTreeMap<SegmentId, Slot>,
    walk: Option<Walk>,
    replays: Vec<(SegmentId, Replay)>,
}

/// Reads final states.
#[derive(Debug, Default)]
pub(crate) struct Tails {
    /// Seal entries wanted of a journal's slot.
    seals: BTreeMap<(Epoch, Slot), BTreeSet<SegmentId>>,
    endings: BTreeMap<Epoch, Ending>,
    pub(crate) found: Vec<SegmentState>,
}

impl Tails {
    /// Begins to read the final states of these segments.
    pub(crate) fn begin(turn: &mut Turn<'_>, operations: &mut Operations, segments: &[SealedSegment]) -> Self {
        let mut tails = Self::default();
        for segment in segments {
            let (id, owner) = (segment.opened.id, segment.opened.owner);
            match segment.by {
                SealedBy::Owner { slot } => {
                    tails.seals.entry((owner, slot)).or_default().insert(id);
                }
                SealedBy::Recovery { fence } => {
                    let ending = tails.endings.entry(owner).or_insert_with(|| Ending {
                        fence: fence.0,
                        wanted: BTreeMap::new(),
                        walk: None,
                        replays: Vec::new(),
                    });
                    ending.wanted.insert(id, segment.slots.0);
                }
            }
        }
        let last = tails.endings.iter().map(|(epoch, ending)| (*epoch, Slot(ending.fence - 1)));
        for (epoch, slot) in tails.seals.keys().copied().chain(last).collect::<BTreeSet<_>>() {
            let request = Request::Read { chain: Chain::Journal(epoch), number: slot.0 };
            operations.submit(turn, Purpose::TailPointer(epoch, slot), request);
        }
        tails
    }

    /// Whether all are found.
    pub(crate) fn is_complete(&self) -> bool {
        self.seals.is_empty() && self.endings.is_empty()
    }

    /// Takes an answer; an error says what is missing or damaged.
    pub(crate) fn answered(
        &mut self,
        turn: &mut Turn<'_>,
        operations: &mut Operations,
        purpose: Purpose,
        answer: Answer,
    ) -> Result<(), String> {
        match (purpose, answer) {
            (Purpose::TailPointer(epoch, slot), Answer::Read(bytes)) => {
                let (checkpoint, entries) = entries(epoch, slot, bytes)?;
                if let Some(mut wanted) = self.seals.remove(&(epoch, slot)) {
                    for entry in entries {
                        if let Entry::Seal(state) = entry
                            && wanted.remove(&state.segment)
                        {
                            self.found.push(state);
                        }
                    }
                    if let Some(segment) = wanted.first() {
                        return Err(format!("slot {slot} of journal {epoch} has no seal entry of segment {segment}"));
                    }
                }
                if let Some(ending) = self.endings.get_mut(&epoch)
                    && ending.walk.is_none()
                    && slot.0 == ending.fence - 1
                {
                    let lowest = ending.wanted.values().min().copied().unwrap_or(Slot(1));
                    let from = checkpoint.unwrap_or(Slot(1)).max(lowest);
                    ending.replays = ending.wanted.keys().map(|id| (*id, Replay::of(epoch, *id))).collect();
                    let mut walk = Walk::new(Chain::Journal(epoch), from.0, Whose::Tails(epoch));
                    walk.ask(turn, operations, ending.fence);
                    ending.walk = Some(walk);
                }
                Ok(())
            }
            (Purpose::TailWalk(epoch, number), Answer::Read(bytes)) => {
                let Some(Ending { fence, walk: Some(walk), replays, .. }) = self.endings.get_mut(&epoch) else {
                    return Ok(());
                };
                walk.arrived(number, bytes);
                while let Some((number, bytes)) = walk.take() {
                    let object = object(epoch, Slot(number), bytes)?;
                    for (_, replay) in replays.iter_mut() {
                        replay.feed(&object).map_err(|contradiction| contradiction.to_string())?;
                    }
                }
                walk.ask(turn, operations, *fence);
                if walk.at() == *fence
                    && let Some(ending) = self.endings.remove(&epoch)
                {
                    for (segment, replay) in ending.replays {
                        let sealed = || replay.sealed().get(&segment).map(|(_, state)| state.clone());
                        let state = replay.open_segment(segment).or_else(sealed);
                        self.found
                            .push(state.ok_or_else(|| format!("journal {epoch} does not know its segment {segment}"))?);
                    }
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

fn object(epoch: Epoch, slot: Slot, bytes: Option<Bytes>) -> Result<JournalObject, String> {
    let bytes = bytes.ok_or_else(|| format!("slot {slot} of journal {epoch} is gone, but still needed"))?;
    JournalObject::decode(bytes, (epoch, slot)).map_err(|error| format!("slot {slot} of journal {epoch}: {error}"))
}

fn entries(epoch: Epoch, slot: Slot, bytes: Option<Bytes>) -> Result<(Option<Slot>, Vec<Entry>), String> {
    match object(epoch, slot, bytes)? {
        JournalObject::Entries { checkpoint, entries, .. } => {
            let is_checkpoint = entries.iter().any(|entry| matches!(entry, Entry::Checkpoint(_)));
            Ok((if is_checkpoint { Some(slot) } else { checkpoint }, entries))
        }
        JournalObject::Fence { .. } => Err(format!("slot {slot} of journal {epoch} is a fence, below the lowest one")),
    }
}
