//! Small objects under one checksum: magic, version, body, and a CRC32C over all of it.

use crate::{
    DecodeError,
    wire::{Reader, Writer, crc32c},
};
use bytes::Bytes;
use refstream_types::{Crc32c, Offset, PartitionId, PartitionRange};

const CHECKSUM_BYTES: usize = 4;

/// Begins an object.
pub(crate) fn begin(magic: [u8; 4], version: u16) -> Writer {
    let mut writer = Writer::new();
    writer.raw(&magic);
    writer.u16(version);
    writer
}

/// Ends the object that [`begin`] began.
pub(crate) fn finish(mut writer: Writer) -> Vec<u8> {
    writer.checksum_from(0);
    writer.0
}

/// Checks magic, version and checksum of a whole object; what is left to read is its body, of the version returned.
pub(crate) fn open(
    bytes: &[u8],
    what: &'static str,
    magic: [u8; 4],
    highest: u16,
) -> Result<(Reader, u16), DecodeError> {
    let mut whole = Reader::new(Bytes::copy_from_slice(bytes), what);
    let version = whole.preamble(magic, highest)?;
    let Some(body_end) = bytes.len().checked_sub(CHECKSUM_BYTES).filter(|end| *end >= whole.at()) else {
        return Err(whole.error("truncated: the checksum is missing"));
    };
    let (body, tail) = bytes.split_at(body_end);
    let mut tail = Reader::new(Bytes::copy_from_slice(tail), what);
    let (stored, actual) = (Crc32c(tail.u32()?), crc32c(body));
    if stored != actual {
        let why = format!("checksum mismatch: stored {stored}, actual {actual}");
        return Err(DecodeError { what, at: body_end, why });
    }
    let mut reader = Reader::new(Bytes::copy_from_slice(body), what);
    reader.preamble(magic, highest)?;
    Ok((reader, version))
}

pub(crate) fn write_range(writer: &mut Writer, range: PartitionRange) {
    writer.varint(range.lo().0.into());
    writer.varint(range.len() as u64);
}

pub(crate) fn read_range(reader: &mut Reader) -> Result<PartitionRange, DecodeError> {
    let (lo, length) = (reader.varint()?, reader.varint()?);
    let hi = lo.checked_add(length).and_then(|hi| u32::try_from(hi).ok());
    hi.and_then(|hi| PartitionRange::new(PartitionId(lo as u32), PartitionId(hi)))
        .ok_or_else(|| reader.error(format!("{length} partitions from {lo} on are no range")))
}

/// One offset for each partition of a range; the count is the range's.
pub(crate) fn write_offsets(writer: &mut Writer, offsets: &[Offset]) {
    writer.list(offsets, |w, o| w.varint(o.0));
}

pub(crate) fn read_offset(reader: &mut Reader) -> Result<Offset, DecodeError> {
    let offset = Offset(reader.varint()?);
    if offset > Offset::MAX {
        return Err(reader.error(format!("offset {offset} exceeds {}", Offset::MAX)));
    }
    Ok(offset)
}

pub(crate) fn read_offsets(reader: &mut Reader, count: usize) -> Result<Vec<Offset>, DecodeError> {
    let offsets = reader.list(count, read_offset)?;
    if offsets.len() != count {
        return Err(reader.error(format!("{} offsets for {count} partitions", offsets.len())));
    }
    Ok(offsets)
}
