//! Packs: one stored object that holds many small blobs of one topic, with a footer that lists them, so that a pack explains
//! itself without any record.
//!
//! The blobs stand one after the other from the start of the object. After the last one comes the footer, which ends with a
//! trailer of [`TRAILER_BYTES`]: a reader takes the trailer, then the footer, then any blob.
//!
//! | bytes | field |
//! |---|---|
//! | 4 | magic `RFSP` |
//! | 2 | version, `u16` |
//! | varint | number of blobs, at most [`MAX_PACK_BLOBS`] |
//! | | the blobs, ascending by offset |
//! | 4 | CRC32C of the footer up to here |
//! | 8 | trailer: bytes of the footer with its trailer, `u64` |
//! | 4 | CRC32C of those 8 bytes |
//! | 4 | magic `RFPE` |
//!
//! | blob | |
//! |---|---|
//! | 1 | flags; bit 0 zstd, bit 1 source name |
//! | varint | offset |
//! | varint | stored bytes |
//! | 4 | CRC32C of the stored bytes |
//! | 32 | BLAKE3 of the payload as given |
//! | varint | bytes of the payload as given; only with bit 0, otherwise the stored bytes |
//! | varint + n | source name, UTF-8, at most [`MAX_SOURCE_NAME_BYTES`]; only with bit 1 |

use crate::{
    DecodeError, checked,
    wire::{Reader, Writer},
};
use bytes::Bytes;
use refstream_types::{ContentEncoding, ContentHash, Crc32c};

/// The media type of packs, for stores that keep one.
pub const CONTENT_TYPE: &str = "application/vnd.refstream.pack";
/// The most blobs of one pack.
pub const MAX_PACK_BLOBS: usize = 65_536;
/// The longest source name, in bytes.
pub const MAX_SOURCE_NAME_BYTES: usize = 32 << 10;
/// Bytes at the end of a pack from which the footer's length is read.
pub const TRAILER_BYTES: usize = 16;

const MAGIC: [u8; 4] = *b"RFSP";
const VERSION: u16 = 1;
const END_MAGIC: [u8; 4] = *b"RFPE";
const WHAT: &str = "pack footer";
const ZSTD: u8 = 1;
const SOURCE_NAME: u8 = 2;
/// Magic, version, count and checksum of an empty footer, and its trailer.
const MIN_FOOTER_BYTES: u64 = 4 + 2 + 1 + 4 + TRAILER_BYTES as u64;

/// One blob of a pack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackEntry {
    /// Where its stored bytes start.
    pub offset: u64,
    /// Stored bytes.
    pub size: u64,
    /// CRC32C of the stored bytes.
    pub checksum: Crc32c,
    /// BLAKE3 of the payload as given.
    pub content_hash: ContentHash,
    /// Bytes of the payload as given; [`Self::size`] where it is stored as given.
    pub content_size: u64,
    /// How the stored bytes encode it.
    pub encoding: ContentEncoding,
    /// The file's original name, when there was one; at most [`MAX_SOURCE_NAME_BYTES`].
    pub source_name: Option<String>,
}

impl PackEntry {
    fn encode(&self, writer: &mut Writer) {
        let zstd = self.encoding == ContentEncoding::Zstd;
        writer.u8(if zstd { ZSTD } else { 0 } | if self.source_name.is_some() { SOURCE_NAME } else { 0 });
        writer.varint(self.offset);
        writer.varint(self.size);
        writer.u32(self.checksum.0);
        writer.raw(&self.content_hash.0);
        if zstd {
            writer.varint(self.content_size);
        }
        if let Some(name) = &self.source_name {
            writer.bytes(name.as_bytes());
        }
    }

    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let flags = reader.u8()?;
        if flags & !(ZSTD | SOURCE_NAME) != 0 {
            return Err(reader.error(format!("the flags {flags:#04x} are unknown")));
        }
        let offset = reader.varint()?;
        let size = reader.varint()?;
        let checksum = Crc32c(reader.u32()?);
        let content_hash = ContentHash(reader.array()?);
        let (encoding, content_size) = if flags & ZSTD != 0 {
            (ContentEncoding::Zstd, reader.varint()?)
        } else {
            (ContentEncoding::Identity, size)
        };
        let source_name = if flags & SOURCE_NAME != 0 { Some(reader.text(MAX_SOURCE_NAME_BYTES)?) } else { None };
        Ok(Self { offset, size, checksum, content_hash, content_size, encoding, source_name })
    }
}

/// The footer of a pack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PackFooter {
    /// The blobs, ascending by offset.
    pub entries: Vec<PackEntry>,
}

impl PackFooter {
    /// The bytes to append after the last blob, trailer included.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = checked::begin(MAGIC, VERSION);
        writer.list(&self.entries, |writer, entry| entry.encode(writer));
        writer.checksum_from(0);
        let trailer = writer.len();
        writer.u64((trailer + TRAILER_BYTES) as u64);
        writer.checksum_from(trailer);
        writer.raw(&END_MAGIC);
        writer.0
    }
    /// From a pack's last [`TRAILER_BYTES`]: how many bytes the footer has, trailer included. Compare it with the object's size
    /// before reading so many.
    ///
    /// # Errors
    /// When they are no pack's trailer.
    pub fn encoded_len(trailer: &[u8]) -> Result<u64, DecodeError> {
        let mut reader = Reader::new(Bytes::copy_from_slice(trailer), "pack trailer");
        let length = reader.u64()?;
        reader.verify_from(0)?;
        let magic: [u8; 4] = reader.array()?;
        reader.end()?;
        if magic != END_MAGIC {
            return Err(reader.error(format!("magic is {magic:02x?}, expected {END_MAGIC:02x?}")));
        }
        if length < MIN_FOOTER_BYTES {
            return Err(reader.error(format!("a footer of {length} bytes, {MIN_FOOTER_BYTES} is the least")));
        }
        Ok(length)
    }
    /// Reads the footer from exactly its own bytes, at the end of an object of `object_bytes`.
    ///
    /// # Errors
    /// When it is damaged or lists ranges outside the object or overlapping ones.
    pub fn decode(bytes: &[u8], object_bytes: u64) -> Result<Self, DecodeError> {
        let error = |at: usize, why: String| DecodeError { what: WHAT, at, why };
        let Some(trailer) = bytes.len().checked_sub(TRAILER_BYTES) else {
            return Err(error(0, format!("truncated: {} bytes hold no trailer", bytes.len())));
        };
        let (content, trailer) = bytes.split_at(trailer);
        let length = Self::encoded_len(trailer)?;
        if length != bytes.len() as u64 {
            return Err(error(content.len(), format!("{} bytes, the trailer says {length}", bytes.len())));
        }
        let Some(blobs_end) = object_bytes.checked_sub(length) else {
            return Err(error(content.len(), format!("a footer of {length} bytes in an object of {object_bytes}")));
        };
        let (mut reader, _) = checked::open(content, WHAT, MAGIC, VERSION)?;
        let mut end = 0;
        let entries = reader.list(MAX_PACK_BLOBS, |reader| {
            let entry = PackEntry::decode(reader)?;
            if entry.offset < end {
                return Err(reader.error(format!("a blob at {} overlaps the one that ends at {end}", entry.offset)));
            }
            end = entry.offset.checked_add(entry.size).filter(|end| *end <= blobs_end).ok_or_else(|| {
                let PackEntry { offset, size, .. } = entry;
                reader.error(format!("a blob of {size} bytes at {offset} in a pack with {blobs_end} bytes of blobs"))
            })?;
            if entry.content_size > i64::MAX as u64 {
                return Err(reader.error(format!("a payload of {} bytes", entry.content_size)));
            }
            Ok(entry)
        })?;
        reader.end()?;
        Ok(Self { entries })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arbitrary::detects_damage;
    use proptest::{collection::vec, option, prelude::*};

    /// A footer and the bytes of blobs before it.
    fn footer(blobs: std::ops::Range<usize>) -> impl Strategy<Value = (PackFooter, u64)> {
        let blob = (0_u64..9, 0_u64..1 << 40, any::<u32>(), any::<[u8; 32]>(), option::of(0_u64..1 << 62), {
            option::of("\\PC{0,8}")
        });
        vec(blob, blobs).prop_map(|blobs| {
            let mut end = 0;
            let entries = blobs.into_iter().map(|(gap, size, checksum, hash, content_size, source_name)| {
                let offset = end + gap;
                end = offset + size;
                PackEntry {
                    offset,
                    size,
                    checksum: Crc32c(checksum),
                    content_hash: ContentHash(hash),
                    content_size: content_size.unwrap_or(size),
                    encoding: if content_size.is_some() { ContentEncoding::Zstd } else { ContentEncoding::Identity },
                    source_name,
                }
            });
            (PackFooter { entries: entries.collect() }, end)
        })
    }

    proptest! {
        #[test]
        fn footers_round_trip((footer, blobs) in footer(0..20)) {
            let encoded = footer.encode();
            let length = PackFooter::encoded_len(&encoded[encoded.len() - TRAILER_BYTES..]).unwrap();
            prop_assert_eq!(length, encoded.len() as u64);
            prop_assert_eq!(&PackFooter::decode(&encoded, blobs + length).unwrap(), &footer);
            // One byte less of blobs, and the last reaches into the footer.
            if blobs > 0 {
                PackFooter::decode(&encoded, blobs + length - 1).unwrap_err();
            }
            PackFooter::decode(&encoded, length - 1).unwrap_err();
        }

        #[test]
        fn hostile_bytes_do_not_panic(body in vec(any::<u8>(), 0..100)) {
            PackFooter::decode(&body, 1 << 20).unwrap_err();
            let mut writer = checked::begin(MAGIC, VERSION);
            writer.raw(&body);
            writer.checksum_from(0);
            let trailer = writer.len();
            writer.u64((trailer + TRAILER_BYTES) as u64);
            writer.checksum_from(trailer);
            writer.raw(&END_MAGIC);
            let _ = PackFooter::decode(&writer.0, 1 << 20);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]

        #[test]
        fn damage_is_detected((footer, blobs) in footer(0..4)) {
            let encoded = footer.encode();
            detects_damage(&encoded, |bytes| PackFooter::decode(bytes, blobs + bytes.len() as u64));
        }
    }

    #[test]
    fn overlapping_blobs_are_refused() {
        let entry = |offset| PackEntry {
            offset,
            size: 10,
            checksum: Crc32c(0),
            content_hash: ContentHash([0; 32]),
            content_size: 10,
            encoding: ContentEncoding::Identity,
            source_name: None,
        };
        for offsets in [[0, 9], [10, 0], [5, 5], [0, u64::MAX - 3]] {
            let encoded = PackFooter { entries: offsets.map(entry).to_vec() }.encode();
            PackFooter::decode(&encoded, 1 << 40).unwrap_err();
        }
        let encoded = PackFooter { entries: [0, 10].map(entry).to_vec() }.encode();
        PackFooter::decode(&encoded, 20 + encoded.len() as u64).unwrap();
    }
}
