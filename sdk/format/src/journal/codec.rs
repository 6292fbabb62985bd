//! The bytes of a journal object.
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | magic `RFSJ` |
//! | 4..6 | version, `u16` |
//! | 6 | kind: 0 entries, 1 fence |
//! | 7 | of entries: slots in flight, this one included, 0 where not told; of a fence: 0 |
//! | 8..16, 16..24 | epoch, slot, `u64` |
//! | 24..40 | token |
//! | 40..48 | of entries: the slot of the latest checkpoint below, 0 for none; of a fence: the epoch that fenced |
//! | 48..52 | entries, `u32` |
//! | 52..56 | bytes of the index, `u32` |
//! | 56..60 | bytes of the body, `u32` |
//! | 60..64 | CRC32C of bytes 0..60 |
//! | then | the index: for each entry its kind and fields |
//! | then | CRC32C of the index |
//! | then | the body: the batches, one after the other, each with its own checksums |
//!
//! The index is a list of entries: a byte of kind, then the fields as varints (times are zigzag varints of microseconds since 1970; a
//! list is a count and its items; a segment is topic and number).
//!
//! | kind | fields |
//! |---|---|
//! | 0 batch | segment, partition, base offset, append time, records, bytes; the 4 bytes of the batch's header checksum |
//! | 1 adopt, 2 seal | segment state |
//! | 3 checkpoint | previous slot or 0; list of segment states; list of locations: slot, start, bytes, segment, partition, base offset, records, append time |
//! | 4 expire | segment; list of partition, producer id |
//!
//! A segment state is segment, first partition, number of partitions, adopting slot, bytes, list of next offsets, last append time, and
//! a list of producers: partition, id, epoch, list of first sequence, records, base offset, append time.
//!
//! A batch's place in the body follows from the lengths before it. The checksum, which covers the one of its body, ties it to
//! its entry: intact batches in the wrong places are found.

use super::{
    BatchLocation, Checkpoint, Entry, HEADER_BYTES, JournalHead, JournalIndex, JournalKind, JournalObject,
    MAX_IN_FLIGHT, MAX_OBJECT_BYTES, MAX_OBJECT_ENTRIES, PlacedBatch, ProducerState, RememberedBatch, SegmentState,
};
use crate::{
    DecodeError,
    batch::{BATCH_HEADER_BYTES, EncodedBatch, MAX_BATCH_BYTES, MAX_BATCH_RECORDS},
    checked::{read_offset, read_offsets, read_range, write_offsets, write_range},
    crc32c,
    wire::{Reader, Writer},
};
use bytes::Bytes;
use refstream_types::{Epoch, Offset, PartitionId, SegmentId, SegmentNumber, Slot, Timestamp, Token, TopicId};

const MAGIC: [u8; 4] = *b"RFSJ";
const VERSION: u16 = 1;
const WHAT: &str = "journal object";
const KIND_ENTRIES: u8 = 0;
const KIND_FENCE: u8 = 1;
const CHECKSUM_BYTES: usize = 4;

const BATCH: u8 = 0;
const ADOPT: u8 = 1;
const SEAL: u8 = 2;
const CHECKPOINT: u8 = 3;
const EXPIRE: u8 = 4;

fn write_segment(writer: &mut Writer, segment: SegmentId) {
    writer.varint(segment.topic.0);
    writer.varint(segment.number.0);
}

fn read_segment(reader: &mut Reader) -> Result<SegmentId, DecodeError> {
    Ok(SegmentId { topic: TopicId(reader.varint()?), number: SegmentNumber(reader.varint()?) })
}

fn read_u32(reader: &mut Reader, what: &str) -> Result<u32, DecodeError> {
    let value = reader.varint()?;
    u32::try_from(value).map_err(|_| reader.error(format!("{what} {value} exceeds 32 bits")))
}

fn read_records(reader: &mut Reader) -> Result<u32, DecodeError> {
    match read_u32(reader, "the number of records")? {
        records @ 1..=MAX_BATCH_RECORDS => Ok(records),
        other => Err(reader.error(format!("{other} records: a batch has 1 to {MAX_BATCH_RECORDS}"))),
    }
}

fn read_time(reader: &mut Reader) -> Result<Timestamp, DecodeError> {
    let micros = reader.signed()?;
    let time = Timestamp::from_micros(micros);
    if time.as_micros() == micros { Ok(time) } else { Err(reader.error("a time is out of range")) }
}

fn write_producer(writer: &mut Writer, producer: &ProducerState) {
    writer.varint(producer.partition.0.into());
    writer.varint(producer.id.0);
    writer.varint(producer.epoch.0.into());
    writer.list(&producer.batches, |writer, batch| {
        writer.varint(batch.first.0);
        writer.varint(batch.records.into());
        writer.varint(batch.base_offset.0);
        writer.signed(batch.append_time.as_micros());
    });
}

fn read_producer(reader: &mut Reader) -> Result<ProducerState, DecodeError> {
    Ok(ProducerState {
        partition: PartitionId(read_u32(reader, "partition")?),
        id: reader.varint()?.into(),
        epoch: read_u32(reader, "producer epoch")?.into(),
        batches: reader.list(MAX_IN_FLIGHT, |reader| {
            Ok(RememberedBatch {
                first: reader.varint()?.into(),
                records: read_records(reader)?,
                base_offset: read_offset(reader)?,
                append_time: read_time(reader)?,
            })
        })?,
    })
}

fn write_state(writer: &mut Writer, state: &SegmentState) {
    write_segment(writer, state.segment);
    write_range(writer, state.range);
    writer.varint(state.adopted.0);
    writer.varint(state.bytes);
    write_offsets(writer, &state.next_offsets);
    writer.signed(state.last_append_time.as_micros());
    writer.list(&state.producers, write_producer);
}

fn read_state(reader: &mut Reader) -> Result<SegmentState, DecodeError> {
    let segment = read_segment(reader)?;
    let range = read_range(reader)?;
    Ok(SegmentState {
        segment,
        range,
        adopted: Slot(reader.varint()?),
        bytes: reader.varint()?,
        next_offsets: read_offsets(reader, range.len())?,
        last_append_time: read_time(reader)?,
        producers: reader.list(MAX_OBJECT_BYTES, read_producer)?,
    })
}

fn write_location(writer: &mut Writer, location: &BatchLocation) {
    writer.varint(location.slot.0);
    writer.varint(location.bytes.0.into());
    writer.varint(location.bytes.1.into());
    write_segment(writer, location.segment);
    writer.varint(location.partition.0.into());
    writer.varint(location.base_offset.0);
    writer.varint(location.records.into());
    writer.signed(location.append_time.as_micros());
}

fn read_location(reader: &mut Reader) -> Result<BatchLocation, DecodeError> {
    Ok(BatchLocation {
        slot: Slot(reader.varint()?),
        bytes: (read_u32(reader, "position")?, read_u32(reader, "length")?),
        segment: read_segment(reader)?,
        partition: PartitionId(read_u32(reader, "partition")?),
        base_offset: read_offset(reader)?,
        records: read_records(reader)?,
        append_time: read_time(reader)?,
    })
}

fn write_entry(writer: &mut Writer, entry: &Entry) {
    match entry {
        Entry::Batch(placed) => {
            writer.u8(BATCH);
            write_segment(writer, placed.segment);
            writer.varint(placed.partition.0.into());
            writer.varint(placed.base_offset.0);
            writer.signed(placed.append_time.as_micros());
            writer.varint(placed.batch.header().records.into());
            writer.varint(placed.batch.bytes().len() as u64);
            writer.raw(&placed.batch.header_checksum());
        }
        Entry::Adopt(state) => {
            writer.u8(ADOPT);
            write_state(writer, state);
        }
        Entry::Seal(state) => {
            writer.u8(SEAL);
            write_state(writer, state);
        }
        Entry::Checkpoint(checkpoint) => {
            writer.u8(CHECKPOINT);
            writer.varint(checkpoint.previous.map_or(0, |slot| slot.0));
            writer.list(&checkpoint.segments, write_state);
            writer.list(&checkpoint.batches, write_location);
        }
        Entry::Expire { segment, producers } => {
            writer.u8(EXPIRE);
            write_segment(writer, *segment);
            writer.list(producers, |writer, (partition, producer)| {
                writer.varint(partition.0.into());
                writer.varint(producer.0);
            });
        }
    }
}

/// What the index says of a batch.
struct IndexedBatch {
    segment: SegmentId,
    partition: PartitionId,
    base_offset: Offset,
    append_time: Timestamp,
    records: u32,
    length: usize,
    checksum: [u8; 4],
}

/// What the index says of one entry.
enum Indexed {
    Batch(IndexedBatch),
    Whole(Entry),
}

fn read_indexed(reader: &mut Reader) -> Result<Indexed, DecodeError> {
    Ok(Indexed::Whole(match reader.u8()? {
        BATCH => {
            let segment = read_segment(reader)?;
            let partition = PartitionId(read_u32(reader, "partition")?);
            let base_offset = read_offset(reader)?;
            let append_time = read_time(reader)?;
            let records = read_records(reader)?;
            let length = read_u32(reader, "length of a batch")? as usize;
            if !(BATCH_HEADER_BYTES..=MAX_BATCH_BYTES).contains(&length) {
                return Err(reader.error(format!("a batch of {length} bytes")));
            }
            if base_offset.checked_add(records.into()).is_none() {
                return Err(reader.error(format!("{records} records from offset {base_offset} on overflow")));
            }
            let checksum = reader.array()?;
            let batch = IndexedBatch { segment, partition, base_offset, append_time, records, length, checksum };
            return Ok(Indexed::Batch(batch));
        }
        ADOPT => Entry::Adopt(read_state(reader)?),
        SEAL => Entry::Seal(read_state(reader)?),
        CHECKPOINT => Entry::Checkpoint(Checkpoint {
            previous: slot_or_none(reader.varint()?),
            segments: reader.list(MAX_OBJECT_BYTES, read_state)?,
            batches: reader.list(MAX_OBJECT_BYTES, read_location)?,
        }),
        EXPIRE => Entry::Expire {
            segment: read_segment(reader)?,
            producers: reader.list(MAX_OBJECT_BYTES, |reader| {
                Ok((PartitionId(read_u32(reader, "partition")?), reader.varint()?.into()))
            })?,
        },
        other => return Err(reader.error(format!("kind {other} of an entry is unknown"))),
    }))
}

/// Reads one entry of the index; a batch comes from `body`.
fn read_entry(reader: &mut Reader, body: &mut Reader) -> Result<Entry, DecodeError> {
    let indexed = match read_indexed(reader)? {
        Indexed::Whole(entry) => return Ok(entry),
        Indexed::Batch(batch) => batch,
    };
    let IndexedBatch { segment, partition, base_offset, append_time, records, length, checksum } = indexed;
    let at = body.at();
    let batch = EncodedBatch::parse(body.take(length)?).map_err(|error| DecodeError { at: at + error.at, ..error })?;
    if batch.header().records != records {
        return Err(reader.error(format!("the batch holds {} records, not {records}", batch.header().records)));
    }
    if batch.header_checksum() != checksum {
        return Err(DecodeError { what: WHAT, at, why: "this is not the batch that the index describes".into() });
    }
    Ok(Entry::Batch(PlacedBatch { segment, partition, base_offset, append_time, batch }))
}

fn slot_or_none(slot: u64) -> Option<Slot> {
    (slot != 0).then_some(Slot(slot))
}

impl JournalObject {
    fn index(&self) -> Vec<u8> {
        let mut index = Writer::new();
        if let Self::Entries { entries, .. } = self {
            entries.iter().for_each(|entry| write_entry(&mut index, entry));
        }
        index.0
    }

    /// The object's bytes.
    pub fn encode(&self) -> Bytes {
        let index = self.index();
        let (kind, epoch, slot, token, link, in_flight, entries): (_, _, _, _, _, _, &[Entry]) = match self {
            Self::Entries { epoch, slot, token, checkpoint, in_flight, entries } => {
                (KIND_ENTRIES, epoch, slot, token, checkpoint.map_or(0, |slot| slot.0), *in_flight, entries)
            }
            Self::Fence { epoch, slot, token, by } => (KIND_FENCE, epoch, slot, token, by.0, 0, &[]),
        };
        let batches = || {
            entries.iter().filter_map(|entry| match entry {
                Entry::Batch(placed) => Some(placed.batch.bytes()),
                _ => None,
            })
        };
        let body: usize = batches().map(Bytes::len).sum();
        let mut writer = Writer(Vec::with_capacity(HEADER_BYTES + index.len() + CHECKSUM_BYTES + body));
        writer.raw(&MAGIC);
        writer.u16(VERSION);
        writer.u8(kind);
        writer.u8(in_flight);
        writer.u64(epoch.0);
        writer.u64(slot.0);
        writer.raw(&token.0);
        writer.u64(link);
        writer.u32(entries.len() as u32);
        writer.u32(index.len() as u32);
        writer.u32(body as u32);
        writer.checksum_from(0);
        debug_assert_eq!(writer.len(), HEADER_BYTES);
        writer.raw(&index);
        writer.u32(crc32c(&index).0);
        batches().for_each(|batch| writer.raw(batch));
        writer.0.into()
    }

    /// Reads a whole object; batches share `bytes`.
    ///
    /// # Errors
    /// When any checksum or limit is violated, or epoch and slot are not `expected`.
    pub fn decode(bytes: Bytes, expected: (Epoch, Slot)) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes.clone(), WHAT);
        if bytes.len() > MAX_OBJECT_BYTES {
            return Err(reader.error(format!("{} bytes, the limit is {MAX_OBJECT_BYTES}", bytes.len())));
        }
        let header = Header::read(&mut reader, expected)?;
        let mut index = header.index(&mut reader, &bytes)?;
        let mut body = reader;
        if body.remaining() != header.body_bytes {
            return Err(body.error(format!("{} bytes of batches, expected {}", body.remaining(), header.body_bytes)));
        }
        let Header { epoch, slot, token, in_flight, .. } = header;
        if header.fence {
            return Ok(Self::Fence { epoch, slot, token, by: Epoch(header.link) });
        }
        let mut entries = Vec::new();
        for _ in 0..header.entries {
            entries.push(read_entry(&mut index, &mut body)?);
        }
        index.end()?;
        body.end()?;
        Ok(Self::Entries { epoch, slot, token, checkpoint: slot_or_none(header.link), in_flight, entries })
    }

    /// Where each [`Entry::Batch`] of the encoded object stands, in order. Equal to what a checkpoint says of the object.
    pub fn locations(&self) -> Vec<BatchLocation> {
        let Self::Entries { slot, entries, .. } = self else { return Vec::new() };
        let mut at = HEADER_BYTES + self.index().len() + CHECKSUM_BYTES;
        let mut locations = Vec::new();
        for entry in entries {
            if let Entry::Batch(placed) = entry {
                let length = placed.batch.bytes().len();
                locations.push(BatchLocation {
                    slot: *slot,
                    bytes: (at as u32, length as u32),
                    segment: placed.segment,
                    partition: placed.partition,
                    base_offset: placed.base_offset,
                    records: placed.batch.header().records,
                    append_time: placed.append_time,
                });
                at += length;
            }
        }
        locations
    }

    /// The token.
    pub fn token(&self) -> Token {
        match self {
            Self::Entries { token, .. } | Self::Fence { token, .. } => *token,
        }
    }
}

/// An object's fixed header.
struct Header {
    epoch: Epoch,
    slot: Slot,
    token: Token,
    fence: bool,
    in_flight: u8,
    link: u64,
    entries: u32,
    index_bytes: usize,
    body_bytes: usize,
}

impl Header {
    fn read(reader: &mut Reader, expected: (Epoch, Slot)) -> Result<Self, DecodeError> {
        let header = Self::read_any(reader)?;
        if (header.epoch, header.slot) != expected {
            return Err(reader.error(format!(
                "it is slot {} of epoch {}, expected slot {} of epoch {}",
                header.slot, header.epoch, expected.1, expected.0
            )));
        }
        Ok(header)
    }

    fn read_any(reader: &mut Reader) -> Result<Self, DecodeError> {
        reader.preamble(MAGIC, VERSION)?;
        let kind = reader.u8()?;
        let in_flight = reader.u8()?;
        let (epoch, slot) = (Epoch(reader.u64()?), Slot(reader.u64()?));
        let token = Token(reader.array()?);
        let link = reader.u64()?;
        let (entries, index_bytes, body_bytes) = (reader.u32()?, reader.u32()? as usize, reader.u32()? as usize);
        reader.verify_from(0)?;
        if kind > KIND_FENCE || kind == KIND_FENCE && in_flight != 0 {
            return Err(reader.error(format!("kind {kind} is unknown")));
        }
        let fence = kind == KIND_FENCE;
        if fence && (entries != 0 || index_bytes != 0 || body_bytes != 0) {
            return Err(reader.error("a fence with entries"));
        }
        if entries as usize > index_bytes || entries as usize > MAX_OBJECT_ENTRIES {
            return Err(reader.error(format!("{entries} entries in an index of {index_bytes} bytes")));
        }
        let length = HEADER_BYTES + index_bytes + CHECKSUM_BYTES + body_bytes;
        if length > MAX_OBJECT_BYTES {
            return Err(reader.error(format!("{length} bytes announced, the limit is {MAX_OBJECT_BYTES}")));
        }
        if !fence && link >= slot.0 && link != 0 {
            return Err(reader.error("the latest checkpoint is not below the slot"));
        }
        if u64::from(in_flight) > slot.0 {
            return Err(reader.error(format!("{in_flight} slots in flight at slot {slot}")));
        }
        Ok(Self { epoch, slot, token, fence, in_flight, link, entries, index_bytes, body_bytes })
    }

    /// The index, checked, of the object that starts with `bytes`; `reader` goes on to the body.
    fn index(&self, reader: &mut Reader, bytes: &Bytes) -> Result<Reader, DecodeError> {
        let from = reader.at();
        reader.take(self.index_bytes)?;
        reader.verify_from(from)?;
        Ok(Reader::new(bytes.slice(from..from + self.index_bytes), "journal object index"))
    }
}

impl JournalHead {
    /// Reads the header from the start of an object; what follows it is not looked at.
    ///
    /// # Errors
    /// When `bytes` are fewer than [`HEADER_BYTES`], or damaged, or of an unknown version.
    pub fn peek(bytes: &[u8]) -> Result<Self, DecodeError> {
        let start = Bytes::copy_from_slice(&bytes[..bytes.len().min(HEADER_BYTES)]);
        let Header { epoch, slot, token, fence, link, .. } = Header::read_any(&mut Reader::new(start, WHAT))?;
        let kind = if fence {
            JournalKind::Fence { by: Epoch(link) }
        } else {
            JournalKind::Entries { checkpoint: slot_or_none(link) }
        };
        Ok(Self { epoch, slot, token, kind })
    }
}

impl JournalIndex {
    /// How many bytes of an object its header and index take, from its first [`HEADER_BYTES`].
    ///
    /// # Errors
    /// When they are damaged, or epoch and slot are not `expected`.
    pub fn encoded_len(header: &Bytes, expected: (Epoch, Slot)) -> Result<usize, DecodeError> {
        let header = Header::read(&mut Reader::new(header.clone(), WHAT), expected)?;
        Ok(HEADER_BYTES + header.index_bytes + CHECKSUM_BYTES)
    }

    /// Reads the index from an object's first bytes, at least [`JournalIndex::encoded_len`].
    ///
    /// # Errors
    /// When header or index are damaged, or epoch and slot are not `expected`.
    pub fn decode(bytes: &Bytes, expected: (Epoch, Slot)) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes.clone(), WHAT);
        let header = Header::read(&mut reader, expected)?;
        let mut index = header.index(&mut reader, bytes)?;
        let mut at = HEADER_BYTES + header.index_bytes + CHECKSUM_BYTES;
        let end = at + header.body_bytes;
        let (mut batches, mut checkpoint) = (Vec::new(), None);
        for _ in 0..header.entries {
            match read_indexed(&mut index)? {
                Indexed::Batch(batch) => {
                    let IndexedBatch { segment, partition, base_offset, append_time, records, length, .. } = batch;
                    if at + length > end {
                        return Err(index.error("the batches exceed the object"));
                    }
                    let (slot, bytes) = (header.slot, (at as u32, length as u32));
                    let location = BatchLocation { slot, bytes, segment, partition, base_offset, records, append_time };
                    batches.push(location);
                    at += length;
                }
                Indexed::Whole(Entry::Checkpoint(found)) => checkpoint = Some(found),
                Indexed::Whole(_) => {}
            }
        }
        index.end()?;
        if at != end {
            return Err(index.error(format!("the batches end at byte {at}, the object at byte {end}")));
        }
        let previous = if header.fence { None } else { slot_or_none(header.link) };
        Ok(Self { slot: header.slot, fence: header.fence, previous, checkpoint, batches })
    }
}
