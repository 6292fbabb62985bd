//! Checksums of the blocks of a large blob, so that ranged reads are verified: base64 in the note that the store keeps with the object, where that is
//! short enough and the object was stored in one request; else the sidecar object `<key>.blocks`.
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | magic `RFSK` |
//! | 4..6 | version, `u16` |
//! | 6..14 | stored bytes of the blob, `u64` |
//! | 4 a block | CRC32C of the block; their number follows from the size |
//! | 4 | CRC32C of all bytes before it |

use crate::{DecodeError, checked, crc32c};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use refstream_types::{ByteRange, Crc32c};
use std::sync::OnceLock;

/// Stored bytes per checksum. Blobs of at most this size have no block checksums: their reference's checksum serves.
pub const BLOCK_BYTES: u64 = 1 << 20;

/// The CRC32C of two runs of bytes, one after the other; `length` is that of the second. Combinations with whole blocks are a few
/// nanoseconds, others tens of microseconds.
pub fn combined(first: Crc32c, second: Crc32c, length: u64) -> Crc32c {
    if length != BLOCK_BYTES {
        return combined_by_library(first, second, length);
    }
    // What `length` zeros do to a checksum is linear: a block's worth of it is kept for each bit.
    static SHIFTED: OnceLock<[u32; 32]> = OnceLock::new();
    let shifted = SHIFTED
        .get_or_init(|| std::array::from_fn(|bit| combined_by_library(Crc32c(1 << bit), Crc32c(0), BLOCK_BYTES).0));
    let bits = (0..32).filter(|bit| first.0 >> bit & 1 == 1);
    Crc32c(bits.fold(second.0, |sum, bit| sum ^ shifted[bit]))
}

fn combined_by_library(first: Crc32c, second: Crc32c, length: u64) -> Crc32c {
    let (first, second) = (u64::from(first.0), u64::from(second.0));
    Crc32c(crc_fast::checksum_combine(crc_fast::CrcAlgorithm::Crc32Iscsi, first, second, length) as u32)
}

const MAGIC: [u8; 4] = *b"RFSK";
const VERSION: u16 = 1;
const WHAT: &str = "block checksums";

/// CRC32C of each [`BLOCK_BYTES`] of a blob's stored bytes; the last block may be shorter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// Stored bytes of the blob.
    pub size: u64,
    /// One checksum a block.
    pub checksums: Vec<Crc32c>,
}

impl Blocks {
    /// The sidecar's bytes. There is one checksum for each block of `size`.
    pub fn encode(&self) -> Vec<u8> {
        debug_assert_eq!(self.checksums.len() as u64, self.size.div_ceil(BLOCK_BYTES));
        let mut writer = checked::begin(MAGIC, VERSION);
        writer.u64(self.size);
        for checksum in &self.checksums {
            writer.u32(checksum.0);
        }
        checked::finish(writer)
    }
    /// The CRC32C of the whole blob: what its reference has, if these are the sums of its blocks.
    pub fn whole(&self) -> Crc32c {
        let mut at = 0;
        self.checksums.iter().fold(Crc32c(0), |sum, block| {
            let length = BLOCK_BYTES.min(self.size - at);
            at += length;
            combined(sum, *block, length)
        })
    }
    /// As [`Self::encode`], in base64, for the note of an object.
    pub fn to_note(&self) -> String {
        STANDARD.encode(self.encode())
    }
    /// Reads a note.
    ///
    /// # Errors
    /// As [`Self::decode`].
    pub fn from_note(note: &str) -> Result<Self, DecodeError> {
        let bytes = STANDARD.decode(note).map_err(|error| DecodeError {
            what: WHAT,
            at: 0,
            why: format!("no base64: {error}"),
        })?;
        Self::decode(&bytes)
    }
    /// Reads a sidecar.
    ///
    /// # Errors
    /// When it is damaged, or the number of checksums does not fit the size.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let (mut reader, _) = checked::open(bytes, WHAT, MAGIC, VERSION)?;
        let size = reader.u64()?;
        let blocks = size.div_ceil(BLOCK_BYTES);
        if blocks.checked_mul(4) != Some(reader.remaining() as u64) {
            return Err(reader.error(format!("{} bytes of checksums for {blocks} blocks", reader.remaining())));
        }
        let checksums = (0..blocks).map(|_| reader.u32().map(Crc32c)).collect::<Result<_, _>>()?;
        Ok(Self { size, checksums })
    }
    /// The whole blocks that hold `range` of the stored bytes; `None` when it reaches past the end.
    pub fn covering(&self, range: ByteRange) -> Option<ByteRange> {
        let end = range.end().filter(|end| *end <= self.size)?;
        let offset = range.offset / BLOCK_BYTES * BLOCK_BYTES;
        let end = end.div_ceil(BLOCK_BYTES).saturating_mul(BLOCK_BYTES).min(self.size);
        Some(ByteRange { offset, length: end.saturating_sub(offset) })
    }
    /// Checks whole blocks that start at byte `offset` of the blob, as [`Self::covering`] gives them.
    ///
    /// # Errors
    /// When a block's checksum differs, or `bytes` are not whole blocks. The position is that of the block in the blob.
    pub fn verify(&self, offset: u64, bytes: &[u8]) -> Result<(), DecodeError> {
        let error = |at: u64, why: String| DecodeError { what: "stored blob", at: at as usize, why };
        let end = offset.checked_add(bytes.len() as u64).filter(|end| *end <= self.size);
        let whole = end.is_some_and(|end| end == self.size || end.is_multiple_of(BLOCK_BYTES));
        if !whole || !offset.is_multiple_of(BLOCK_BYTES) {
            return Err(error(
                offset,
                format!("{} bytes are not whole blocks of a blob of {}", bytes.len(), self.size),
            ));
        }
        let first = (offset / BLOCK_BYTES) as usize;
        for (block, (bytes, stored)) in bytes.chunks(BLOCK_BYTES as usize).zip(&self.checksums[first..]).enumerate() {
            let actual = crc32c(bytes);
            if actual != *stored {
                let at = offset + block as u64 * BLOCK_BYTES;
                return Err(error(at, format!("checksum mismatch: expected {stored}, actual {actual}")));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arbitrary::detects_damage;
    use proptest::{collection::vec, prelude::*};

    fn of(content: &[u8]) -> Blocks {
        Blocks { size: content.len() as u64, checksums: content.chunks(BLOCK_BYTES as usize).map(crc32c).collect() }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn sidecars_round_trip_and_damage_is_detected(last in 1..=BLOCK_BYTES, checksums in vec(any::<u32>(), 1..20)) {
            let size = (checksums.len() as u64 - 1) * BLOCK_BYTES + last;
            let blocks = Blocks { size, checksums: checksums.into_iter().map(Crc32c).collect() };
            let encoded = blocks.encode();
            prop_assert_eq!(&Blocks::decode(&encoded).unwrap(), &blocks);
            prop_assert_eq!(Blocks::from_note(&blocks.to_note()).unwrap(), blocks);
            detects_damage(&encoded, Blocks::decode);
        }

        #[test]
        fn checksums_combine(first in vec(any::<u8>(), 0..100), second in any::<u32>(), length in prop_oneof![Just(BLOCK_BYTES), 0..=2 * BLOCK_BYTES]) {
            let sum = crc32c(&first);
            prop_assert_eq!(combined(sum, Crc32c(second), length), combined_by_library(sum, Crc32c(second), length));
            let rest = vec![second as u8; length as usize];
            let all = [first, rest.clone()].concat();
            prop_assert_eq!(combined(sum, crc32c(&rest), length), crc32c(&all));
        }

        #[test]
        fn hostile_bytes_do_not_panic(body in vec(any::<u8>(), 0..40)) {
            Blocks::decode(&body).unwrap_err();
            Blocks::from_note(&String::from_utf8_lossy(&body)).unwrap_err();
            let mut writer = checked::begin(MAGIC, VERSION);
            writer.raw(&body);
            let _ = Blocks::decode(&checked::finish(writer));
        }
    }

    #[test]
    fn a_size_that_does_not_fit_its_checksums_is_refused() {
        for size in [0, BLOCK_BYTES + 1, u64::MAX] {
            let mut writer = checked::begin(MAGIC, VERSION);
            writer.u64(size);
            writer.u32(1);
            let error = Blocks::decode(&checked::finish(writer)).unwrap_err();
            assert!(error.why.contains("4 bytes of checksums"), "{error}");
        }
    }

    #[test]
    fn ranges_are_verified_block_by_block() {
        let mut content = vec![7; 2 * BLOCK_BYTES as usize + 5];
        let blocks = of(&content);
        assert_eq!(blocks.whole(), crc32c(&content));
        let covering = |offset, length| blocks.covering(ByteRange { offset, length });
        assert_eq!(covering(3, 1), Some(ByteRange { offset: 0, length: BLOCK_BYTES }));
        assert_eq!(covering(BLOCK_BYTES - 1, 2), Some(ByteRange { offset: 0, length: 2 * BLOCK_BYTES }));
        assert_eq!(covering(2 * BLOCK_BYTES, 5), Some(ByteRange { offset: 2 * BLOCK_BYTES, length: 5 }));
        assert_eq!(covering(2 * BLOCK_BYTES, 6), None);
        assert_eq!(covering(u64::MAX, 1), None);
        blocks.verify(0, &content).unwrap();
        content[BLOCK_BYTES as usize + 9] ^= 1;
        blocks.verify(0, &content[..BLOCK_BYTES as usize]).unwrap();
        blocks.verify(2 * BLOCK_BYTES, &content[2 * BLOCK_BYTES as usize..]).unwrap();
        assert_eq!(blocks.verify(0, &content).unwrap_err().at, BLOCK_BYTES as usize);
        for (offset, bytes) in [(1, 5), (0, 5), (2 * BLOCK_BYTES, 6), (u64::MAX, 5)] {
            blocks.verify(offset, &content[..bytes]).unwrap_err();
        }
    }
}
