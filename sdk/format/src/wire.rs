//! Reading and writing primitive values, with bounds.
//!
//! Every object at rest is a *frame*: 4 bytes magic, `u16` version, then whatever the format says, with a CRC32C over each unit.

use bytes::Bytes;
use refstream_types::{Crc32c, Timestamp};
use thiserror::Error;

/// Bytes that are not what they should be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{what} at byte {at}: {why}")]
pub struct DecodeError {
    /// The format and field, for example `journal object header`.
    pub what: &'static str,
    /// Where, in bytes from the start of what was decoded.
    pub at: usize,
    /// What is wrong: truncated, checksum mismatch with both values, unknown version with the highest one known, ...
    pub why: String,
}

/// CRC32C (Castagnoli, RFC 3720) of `bytes`.
pub fn crc32c(bytes: &[u8]) -> Crc32c {
    Crc32c(crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32)
}

/// Appends primitive values to a buffer.
#[derive(Debug, Default)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn new() -> Self {
        Self::default()
    }
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
    pub(crate) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }
    pub(crate) fn u16(&mut self, value: u16) {
        self.raw(&value.to_le_bytes());
    }
    pub(crate) fn u32(&mut self, value: u32) {
        self.raw(&value.to_le_bytes());
    }
    pub(crate) fn u64(&mut self, value: u64) {
        self.raw(&value.to_le_bytes());
    }
    /// LEB128.
    pub(crate) fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.u8(value as u8 | 0x80);
            value >>= 7;
        }
        self.u8(value as u8);
    }
    /// Zigzag, then LEB128.
    pub(crate) fn signed(&mut self, value: i64) {
        self.varint(((value << 1) ^ (value >> 63)) as u64);
    }
    /// The distance from `before`, in microseconds.
    pub(crate) fn time(&mut self, before: Timestamp, time: Timestamp) {
        self.signed(time.as_micros() - before.as_micros());
    }
    /// A varint length, then the bytes.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.varint(bytes.len() as u64);
        self.raw(bytes);
    }
    /// 0, or 1 and the value.
    pub(crate) fn option<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        match value {
            None => self.u8(0),
            Some(value) => {
                self.u8(1);
                write(self, value);
            }
        }
    }
    /// A varint count, then the items.
    pub(crate) fn list<T>(&mut self, items: &[T], mut write: impl FnMut(&mut Self, &T)) {
        self.varint(items.len() as u64);
        for item in items {
            write(self, item);
        }
    }
    /// The CRC32C of everything from byte `from` on.
    pub(crate) fn checksum_from(&mut self, from: usize) {
        let checksum = crc32c(&self.0[from..]);
        self.u32(checksum.0);
    }
}

/// Takes primitive values from a buffer; never reads past its end.
#[derive(Clone, Debug)]
pub(crate) struct Reader<B = Bytes> {
    bytes: B,
    at: usize,
    what: &'static str,
}

impl<B: AsRef<[u8]>> Reader<B> {
    pub(crate) fn new(bytes: B, what: &'static str) -> Self {
        Self { bytes, at: 0, what }
    }
    pub(crate) fn at(&self) -> usize {
        self.at
    }
    pub(crate) fn remaining(&self) -> usize {
        self.bytes.as_ref().len() - self.at
    }
    /// An error at the current position.
    pub(crate) fn error(&self, why: impl Into<String>) -> DecodeError {
        DecodeError { what: self.what, at: self.at, why: why.into() }
    }
    /// Passes over `count` bytes; returns where they start.
    pub(crate) fn skip(&mut self, count: usize) -> Result<usize, DecodeError> {
        if count > self.remaining() {
            return Err(self.error(format!("truncated: {count} bytes wanted, {} left", self.remaining())));
        }
        let start = self.at;
        self.at += count;
        Ok(start)
    }
    /// Passes over a varint length of at most `limit` and that many bytes; returns where the bytes are.
    pub(crate) fn skip_bytes(&mut self, limit: usize) -> Result<std::ops::Range<usize>, DecodeError> {
        let length = self.varint()?;
        if length > limit as u64 {
            return Err(self.error(format!("length {length} exceeds the limit {limit}")));
        }
        let start = self.skip(length as usize)?;
        Ok(start..self.at)
    }
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let start = self.skip(N)?;
        let mut array = [0; N];
        array.copy_from_slice(&self.bytes.as_ref()[start..start + N]);
        Ok(array)
    }
    pub(crate) fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(self.array::<1>()?[0])
    }
    pub(crate) fn u16(&mut self) -> Result<u16, DecodeError> {
        Ok(u16::from_le_bytes(self.array()?))
    }
    pub(crate) fn u32(&mut self) -> Result<u32, DecodeError> {
        Ok(u32::from_le_bytes(self.array()?))
    }
    pub(crate) fn u64(&mut self) -> Result<u64, DecodeError> {
        Ok(u64::from_le_bytes(self.array()?))
    }
    /// A number in as few bytes as it needs: one value has one form, so that what was decoded encodes to the same length.
    pub(crate) fn varint(&mut self) -> Result<u64, DecodeError> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte == 0 && shift > 0 {
                return Err(self.error("a varint is longer than it need be"));
            }
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(self.error("a varint exceeds 64 bits"))
    }
    pub(crate) fn signed(&mut self) -> Result<i64, DecodeError> {
        let value = self.varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }
    /// A time, by its distance from `before`.
    pub(crate) fn time(&mut self, before: Timestamp) -> Result<Timestamp, DecodeError> {
        let distance = self.signed()?;
        let micros = before.as_micros().checked_add(distance);
        match micros.map(Timestamp::from_micros) {
            Some(time) if Some(time.as_micros()) == micros => Ok(time),
            _ => Err(self.error("a time outside the years 1 to 9999")),
        }
    }
    pub(crate) fn text(&mut self, limit: usize) -> Result<String, DecodeError> {
        let range = self.skip_bytes(limit)?;
        let text = std::str::from_utf8(&self.bytes.as_ref()[range]).map(str::to_owned);
        text.map_err(|_| self.error("text is not UTF-8"))
    }
    /// Text that parses as a `T`.
    pub(crate) fn parsed<T: std::str::FromStr<Err: std::fmt::Display>>(
        &mut self,
        limit: usize,
    ) -> Result<T, DecodeError> {
        let text = self.text(limit)?;
        text.parse().map_err(|error: T::Err| self.error(error.to_string()))
    }
    pub(crate) fn flag(&mut self) -> Result<bool, DecodeError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(self.error(format!("{other} is neither 0 nor 1"))),
        }
    }
    pub(crate) fn option<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Option<T>, DecodeError> {
        if self.flag()? { read(self).map(Some) } else { Ok(None) }
    }
    /// A varint count, then the items. An item takes at least one byte, so the count cannot exceed what is left; memory
    /// grows with what was really read.
    pub(crate) fn list<T>(
        &mut self,
        limit: usize,
        mut read: impl FnMut(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Vec<T>, DecodeError> {
        let mut items = Vec::new();
        for _ in 0..self.count(limit)? {
            items.push(read(self)?);
        }
        Ok(items)
    }
    /// How many items follow: at most `limit`, and at most as many as bytes are left.
    pub(crate) fn count(&mut self, limit: usize) -> Result<u64, DecodeError> {
        let count = self.varint()?;
        if count > limit as u64 || count > self.remaining() as u64 {
            return Err(
                self.error(format!("count {count} exceeds the limit {limit} or the {} bytes left", self.remaining()))
            );
        }
        Ok(count)
    }
    /// Checks the CRC32C that follows the bytes from `from` to here.
    pub(crate) fn verify_from(&mut self, from: usize) -> Result<(), DecodeError> {
        let actual = crc32c(&self.bytes.as_ref()[from..self.at]);
        let at = self.at;
        let stored = Crc32c(self.u32()?);
        if actual == stored {
            Ok(())
        } else {
            Err(DecodeError {
                what: self.what,
                at,
                why: format!("checksum mismatch: stored {stored}, actual {actual}"),
            })
        }
    }
    /// Checks magic and version (at most `highest`) and returns the version.
    pub(crate) fn preamble(&mut self, magic: [u8; 4], highest: u16) -> Result<u16, DecodeError> {
        let found: [u8; 4] = self.array()?;
        if found != magic {
            return Err(self.error(format!("magic is {found:02x?}, expected {magic:02x?}")));
        }
        let version = self.u16()?;
        if version == 0 || version > highest {
            return Err(self
                .error(format!("version {version} is unknown, the highest known is {highest}: update this program")));
        }
        Ok(version)
    }
    /// Checks that nothing is left.
    pub(crate) fn end(&self) -> Result<(), DecodeError> {
        if self.remaining() == 0 { Ok(()) } else { Err(self.error(format!("{} bytes too many", self.remaining()))) }
    }
}

impl Reader {
    /// The next `count` bytes, sharing the buffer.
    pub(crate) fn take(&mut self, count: usize) -> Result<Bytes, DecodeError> {
        let start = self.skip(count)?;
        Ok(self.bytes.slice(start..self.at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn varint(bytes: &[u8]) -> Result<u64, DecodeError> {
        let mut reader = Reader::new(Bytes::copy_from_slice(bytes), "test");
        let value = reader.varint()?;
        reader.end()?;
        Ok(value)
    }

    proptest! {
        #[test]
        fn a_number_has_one_form(bytes in proptest::collection::vec(any::<u8>(), 0..11), value in any::<u64>()) {
            let mut writer = Writer::new();
            writer.varint(value);
            prop_assert_eq!(varint(&writer.0), Ok(value));
            if let Ok(value) = varint(&bytes) {
                let mut writer = Writer::new();
                writer.varint(value);
                prop_assert_eq!(writer.0, bytes);
            }
        }
    }

    #[test]
    fn longer_forms_and_larger_numbers_are_refused() {
        assert_eq!(varint(&[0x1d]), Ok(0x1d));
        for longer in [&[0x9d, 0][..], &[0x80, 0], &[0x80, 0x80, 0]] {
            assert!(varint(longer).unwrap_err().why.contains("longer"));
        }
        let mut most = [0xff; 10];
        most[9] = 1;
        assert_eq!(varint(&most), Ok(u64::MAX));
        most[9] = 2;
        assert!(varint(&most).unwrap_err().why.contains("64 bits"));
    }
}
