//! Bytes of log entries (magic `RFCL`) and snapshots (magic `RFCS`). Numbers are varints; maps are written ascending, so the
//! same state gives the same bytes.

use super::{
    ClusterState, Command, EpochState, LogEntry, OpenSegment, Planned, SealedBy, SealedSegment, Tail, TopicState,
};
use crate::{
    DecodeError,
    checked::{begin, finish, open, read_offsets, read_range, write_offsets, write_range},
    wire::{Reader, Writer},
};
use refstream_types::{
    Epoch, LeaderTerm, MAX_PARTITIONS, MAX_STORE_NAME_BYTES, MAX_TOPIC_NAME_BYTES, SegmentId, SegmentNumber, Slot,
    Timestamp, Token, TopicConfig, TopicId, Version,
};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// The most commands of one log entry.
pub const MAX_COMMANDS: usize = 65_536;
/// The longest endpoint of a broker, in bytes.
pub const MAX_ENDPOINT_BYTES: usize = 1_024;

const ENTRY_MAGIC: [u8; 4] = *b"RFCL";
const ENTRY_VERSION: u16 = 1;
const SNAPSHOT_MAGIC: [u8; 4] = *b"RFCS";
/// Version 1 knew neither brokers that leave nor plans.
const SNAPSHOT_VERSION: u16 = 2;

impl LogEntry {
    /// The object's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = begin(ENTRY_MAGIC, ENTRY_VERSION);
        w.varint(self.version.0);
        w.raw(&self.token.0);
        w.varint(self.term.0);
        w.varint(self.writer.0);
        w.list(&self.commands, write_command);
        finish(w)
    }
    /// Reads an entry.
    ///
    /// # Errors
    /// When it is damaged, of an unknown version, or not number `expected`.
    pub fn decode(bytes: &[u8], expected: Version) -> Result<Self, DecodeError> {
        let (mut r, _) = open(bytes, "cluster log entry", ENTRY_MAGIC, ENTRY_VERSION)?;
        let version = read_version(&mut r, expected)?;
        let token = Token(r.array()?);
        let term = LeaderTerm(r.varint()?);
        let writer = Epoch(r.varint()?);
        let commands = r.list(MAX_COMMANDS, read_command)?;
        r.end()?;
        Ok(Self { version, token, term, writer, commands })
    }
}

impl ClusterState {
    /// A snapshot's bytes; the same state gives the same bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = begin(SNAPSHOT_MAGIC, SNAPSHOT_VERSION);
        w.varint(self.version.0);
        w.option(self.leader, |w, (term, epoch)| {
            w.varint(term.0);
            w.varint(epoch.0);
        });
        w.varint(self.next_topic.0);
        w.varint(self.forgotten.0);
        w.varint(self.epochs.len() as u64);
        for (epoch, state) in &self.epochs {
            w.varint(epoch.0);
            w.bytes(state.endpoint.as_bytes());
            w.option(state.fence, |w, fence| w.varint(fence.0));
            w.u8(state.leaving.into());
        }
        w.varint(self.topics.len() as u64);
        for topic in self.topics.values() {
            write_topic(&mut w, topic);
        }
        finish(w)
    }
    /// Reads a snapshot and checks that its parts agree, see [`ClusterState::check`].
    ///
    /// # Errors
    /// When it is damaged, of an unknown version, or not of entry `expected`.
    pub fn decode(bytes: &[u8], expected: Version) -> Result<Self, DecodeError> {
        let (mut r, format) = open(bytes, "cluster snapshot", SNAPSHOT_MAGIC, SNAPSHOT_VERSION)?;
        let version = read_version(&mut r, expected)?;
        let leader = r.option(|r| Ok((LeaderTerm(r.varint()?), Epoch(r.varint()?))))?;
        let next_topic = TopicId(r.varint()?);
        let forgotten = Epoch(r.varint()?);
        let epochs = read_map(&mut r, |r| {
            let epoch = Epoch(r.varint()?);
            let endpoint = r.text(MAX_ENDPOINT_BYTES)?;
            let fence = r.option(|r| r.varint().map(Slot))?;
            let leaving = format >= 2 && r.flag()?;
            Ok((epoch, EpochState { endpoint, fence, leaving }))
        })?;
        let topics = read_map(&mut r, |r| read_topic(r, format).map(|topic| (topic.id, Arc::new(topic))))?;
        let mut state = Self { version, leader, next_topic, topics, epochs, forgotten, names: BTreeMap::new() };
        state.names = state.names_of_topics();
        r.end()?;
        state.check().map_err(|violation| r.error(violation.to_string()))?;
        Ok(state)
    }
}

fn read_version(r: &mut Reader, expected: Version) -> Result<Version, DecodeError> {
    let version = Version(r.varint()?);
    if version == expected { Ok(version) } else { Err(r.error(format!("number {version}, expected {expected}"))) }
}

/// Entries of a map, which must ascend.
fn read_map<K: Ord + Copy, V>(
    r: &mut Reader,
    read: impl FnMut(&mut Reader) -> Result<(K, V), DecodeError>,
) -> Result<BTreeMap<K, V>, DecodeError> {
    let items = r.list(usize::MAX, read)?;
    if !items.is_sorted_by(|a, b| a.0 < b.0) {
        return Err(r.error("entries do not ascend"));
    }
    Ok(items.into_iter().collect())
}

fn write_command(w: &mut Writer, command: &Command) {
    match command {
        Command::Lead { epoch, term } => {
            w.u8(1);
            w.varint(epoch.0);
            w.varint(term.0);
        }
        Command::CreateTopic { topic, name, config, created_at } => {
            w.u8(2);
            w.varint(topic.0);
            w.bytes(name.as_str().as_bytes());
            write_config(w, config);
            w.signed(created_at.as_micros());
        }
        Command::AlterTopic { topic, config } => {
            w.u8(3);
            w.varint(topic.0);
            write_config(w, config);
        }
        Command::DeleteTopic { topic } => {
            w.u8(4);
            w.varint(topic.0);
        }
        Command::OpenSegment(segment) => {
            w.u8(5);
            w.varint(segment.id.topic.0);
            write_open(w, segment);
        }
        Command::SealSegment { segment, end_offsets, by, slots, bytes } => {
            w.u8(6);
            write_segment(w, *segment);
            write_offsets(w, end_offsets);
            write_end(w, *by, *slots, *bytes);
        }
        Command::SegmentClosed { segment } => {
            w.u8(7);
            write_segment(w, *segment);
        }
        Command::EpochRecovered { epoch, fence } => {
            w.u8(8);
            w.varint(epoch.0);
            w.varint(fence.0);
        }
        Command::EpochJoined { epoch, endpoint } => {
            w.u8(9);
            w.varint(epoch.0);
            w.bytes(endpoint.as_bytes());
        }
        Command::SegmentAdopted { segment, slot } => {
            w.u8(10);
            write_segment(w, *segment);
            w.varint(slot.0);
        }
        Command::EpochForgotten { epoch } => {
            w.u8(11);
            w.varint(epoch.0);
        }
        Command::PlanSegment { segment, successors } => {
            w.u8(12);
            write_segment(w, *segment);
            write_plan(w, successors);
        }
        Command::EpochLeaving { epoch } => {
            w.u8(13);
            w.varint(epoch.0);
        }
    }
}

fn write_plan(w: &mut Writer, successors: &[Planned]) {
    w.list(successors, |w, planned| {
        write_range(w, planned.range);
        w.varint(planned.owner.0);
    });
}

fn read_plan(r: &mut Reader) -> Result<Vec<Planned>, DecodeError> {
    r.list(MAX_PARTITIONS as usize, |r| Ok(Planned { range: read_range(r)?, owner: Epoch(r.varint()?) }))
}

fn read_command(r: &mut Reader) -> Result<Command, DecodeError> {
    Ok(match r.u8()? {
        1 => Command::Lead { epoch: Epoch(r.varint()?), term: LeaderTerm(r.varint()?) },
        2 => Command::CreateTopic {
            topic: TopicId(r.varint()?),
            name: r.parsed(MAX_TOPIC_NAME_BYTES)?,
            config: read_config(r)?,
            created_at: Timestamp::from_micros(r.signed()?),
        },
        3 => Command::AlterTopic { topic: TopicId(r.varint()?), config: read_config(r)? },
        4 => Command::DeleteTopic { topic: TopicId(r.varint()?) },
        5 => {
            let topic = TopicId(r.varint()?);
            Command::OpenSegment(read_open(r, topic)?)
        }
        6 => {
            let segment = read_segment(r)?;
            let end_offsets = r.list(MAX_PARTITIONS as usize, crate::checked::read_offset)?;
            let (by, slots, bytes) = read_end(r)?;
            Command::SealSegment { segment, end_offsets, by, slots, bytes }
        }
        7 => Command::SegmentClosed { segment: read_segment(r)? },
        8 => Command::EpochRecovered { epoch: Epoch(r.varint()?), fence: Slot(r.varint()?) },
        9 => Command::EpochJoined { epoch: Epoch(r.varint()?), endpoint: r.text(MAX_ENDPOINT_BYTES)? },
        10 => Command::SegmentAdopted { segment: read_segment(r)?, slot: Slot(r.varint()?) },
        11 => Command::EpochForgotten { epoch: Epoch(r.varint()?) },
        12 => Command::PlanSegment { segment: read_segment(r)?, successors: read_plan(r)? },
        13 => Command::EpochLeaving { epoch: Epoch(r.varint()?) },
        other => return Err(r.error(format!("command {other} is unknown: update this program"))),
    })
}

fn write_segment(w: &mut Writer, segment: SegmentId) {
    w.varint(segment.topic.0);
    w.varint(segment.number.0);
}

fn read_segment(r: &mut Reader) -> Result<SegmentId, DecodeError> {
    Ok(SegmentId { topic: TopicId(r.varint()?), number: SegmentNumber(r.varint()?) })
}

/// All but the topic, which is written before.
fn write_open(w: &mut Writer, segment: &OpenSegment) {
    w.varint(segment.id.number.0);
    write_range(w, segment.range);
    w.varint(segment.owner.0);
    write_offsets(w, &segment.start_offsets);
    w.list(&segment.predecessors, |w, number| w.varint(number.0));
}

fn read_open(r: &mut Reader, topic: TopicId) -> Result<OpenSegment, DecodeError> {
    let number = SegmentNumber(r.varint()?);
    let range = read_range(r)?;
    let owner = Epoch(r.varint()?);
    let start_offsets = read_offsets(r, range.len())?;
    let predecessors = r.list(MAX_PARTITIONS as usize, |r| r.varint().map(SegmentNumber))?;
    Ok(OpenSegment { id: SegmentId { topic, number }, range, owner, start_offsets, predecessors })
}

fn write_end(w: &mut Writer, by: SealedBy, slots: (Slot, Slot), bytes: u64) {
    match by {
        SealedBy::Owner { slot } => {
            w.u8(1);
            w.varint(slot.0);
        }
        SealedBy::Recovery { fence } => {
            w.u8(2);
            w.varint(fence.0);
        }
    }
    w.varint(slots.0.0);
    w.varint(slots.1.0);
    w.varint(bytes);
}

fn read_end(r: &mut Reader) -> Result<(SealedBy, (Slot, Slot), u64), DecodeError> {
    let by = match r.u8()? {
        1 => SealedBy::Owner { slot: Slot(r.varint()?) },
        2 => SealedBy::Recovery { fence: Slot(r.varint()?) },
        other => return Err(r.error(format!("{other} is no way in which segments end"))),
    };
    Ok((by, (Slot(r.varint()?), Slot(r.varint()?)), r.varint()?))
}

fn write_sealed(w: &mut Writer, segment: &SealedSegment) {
    write_open(w, &segment.opened);
    write_offsets(w, &segment.end_offsets);
    write_end(w, segment.by, segment.slots, segment.bytes);
}

fn read_sealed(r: &mut Reader, topic: TopicId) -> Result<SealedSegment, DecodeError> {
    let opened = read_open(r, topic)?;
    let end_offsets = read_offsets(r, opened.range.len())?;
    let (by, slots, bytes) = read_end(r)?;
    Ok(SealedSegment { opened, end_offsets, by, slots, bytes })
}

fn write_duration(w: &mut Writer, duration: Duration) {
    w.varint(duration.as_secs());
    w.u32(duration.subsec_nanos());
}

fn read_duration(r: &mut Reader) -> Result<Duration, DecodeError> {
    let (seconds, nanos) = (r.varint()?, r.u32()?);
    if nanos >= 1_000_000_000 {
        return Err(r.error(format!("{nanos} ns exceed a second")));
    }
    Ok(Duration::new(seconds, nanos))
}

fn write_config(w: &mut Writer, config: &TopicConfig) {
    let TopicConfig { partitions, retention, store, inline_max, seal_bytes, seal_age, file_bytes, publish_lag } =
        config;
    w.varint((*partitions).into());
    w.option(*retention, write_duration);
    w.option(store.as_ref(), |w, store| w.bytes(store.as_str().as_bytes()));
    w.varint((*inline_max).into());
    w.varint(*seal_bytes);
    write_duration(w, *seal_age);
    w.varint(*file_bytes);
    write_duration(w, *publish_lag);
}

fn read_config(r: &mut Reader) -> Result<TopicConfig, DecodeError> {
    let number = |r: &mut Reader| {
        let number = r.varint()?;
        u32::try_from(number).map_err(|_| r.error(format!("{number} exceeds 32 bits")))
    };
    let config = TopicConfig {
        partitions: number(r)?,
        retention: r.option(read_duration)?,
        store: r.option(|r| r.parsed(MAX_STORE_NAME_BYTES))?,
        inline_max: number(r)?,
        seal_bytes: r.varint()?,
        seal_age: read_duration(r)?,
        file_bytes: r.varint()?,
        publish_lag: read_duration(r)?,
    };
    Ok(config)
}

fn write_topic(w: &mut Writer, topic: &TopicState) {
    w.varint(topic.id.0);
    w.bytes(topic.name.as_str().as_bytes());
    write_config(w, &topic.config);
    w.signed(topic.created_at.as_micros());
    w.u8(topic.deleted.into());
    w.varint(topic.next_segment.0);
    write_offsets(w, &topic.next_offsets);
    w.varint(topic.open.len() as u64);
    for segment in topic.open.values() {
        write_open(w, segment);
        w.option(topic.adopted.get(&segment.id.number), |w, slot| w.varint(slot.0));
    }
    w.varint(topic.sealed.len() as u64);
    for segment in topic.sealed.values() {
        write_sealed(w, segment);
    }
    w.varint(topic.tails.len() as u64);
    for tail in topic.tails.values() {
        write_sealed(w, &tail.segment);
        w.list(&tail.uncovered, |w, range| write_range(w, *range));
    }
    w.varint(topic.planned.len() as u64);
    for (number, successors) in &topic.planned {
        w.varint(number.0);
        write_plan(w, successors);
    }
}

fn read_topic(r: &mut Reader, format: u16) -> Result<TopicState, DecodeError> {
    let id = TopicId(r.varint()?);
    let name = r.parsed(MAX_TOPIC_NAME_BYTES)?;
    let config = read_config(r)?;
    let created_at = Timestamp::from_micros(r.signed()?);
    let deleted = r.flag()?;
    let next_segment = SegmentNumber(r.varint()?);
    let next_offsets = read_offsets(r, config.partitions as usize)?;
    let mut adopted = BTreeMap::new();
    let open = read_map(r, |r| {
        let segment = read_open(r, id)?;
        if let Some(slot) = r.option(|r| r.varint().map(Slot))? {
            adopted.insert(segment.id.number, slot);
        }
        Ok((segment.id.number, segment))
    })?;
    let sealed = read_map(r, |r| read_sealed(r, id).map(|s| (s.opened.id.number, s)))?;
    let tails = read_map(r, |r| {
        let segment = read_sealed(r, id)?;
        let uncovered = r.list(MAX_PARTITIONS as usize, read_range)?;
        Ok((segment.opened.id.number, Tail { segment, uncovered }))
    })?;
    let planned = match format {
        1 => BTreeMap::new(),
        _ => read_map(r, |r| Ok((SegmentNumber(r.varint()?), read_plan(r)?)))?,
    };
    Ok(TopicState {
        id,
        name,
        config,
        created_at,
        deleted,
        next_segment,
        next_offsets,
        open,
        adopted,
        sealed,
        tails,
        planned,
    })
}
