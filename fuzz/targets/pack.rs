//! The footer of a pack: its trailer, then its blobs.
#![no_main]

use libfuzzer_sys::fuzz_target;
use refstream_format::{
    crc32c,
    pack::{PackFooter, TRAILER_BYTES},
};

/// Blobs before the footer, in bytes.
const BLOBS: u64 = 1 << 20;

/// Gives footer and trailer the length and checksums they should have.
fn repaired(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let length = bytes.len();
    if let Some(trailer) = length.checked_sub(TRAILER_BYTES)
        && let Some(footer) = trailer.checked_sub(4)
    {
        let checksum = crc32c(&bytes[..footer]).0;
        bytes[footer..trailer].copy_from_slice(&checksum.to_le_bytes());
        bytes[trailer..trailer + 8].copy_from_slice(&(length as u64).to_le_bytes());
        let checksum = crc32c(&bytes[trailer..trailer + 8]).0;
        bytes[trailer + 8..trailer + 12].copy_from_slice(&checksum.to_le_bytes());
    }
    bytes
}

fuzz_target!(|bytes: &[u8]| {
    let _ = PackFooter::encoded_len(bytes);
    for bytes in [bytes.to_vec(), repaired(bytes)] {
        let Ok(footer) = PackFooter::decode(&bytes, BLOBS + bytes.len() as u64) else { continue };
        let mut end = 0;
        for entry in &footer.entries {
            assert!(entry.offset >= end);
            end = entry.offset + entry.size;
        }
        assert!(end <= BLOBS);
        let again = footer.encode();
        assert_eq!(PackFooter::decode(&again, BLOBS + again.len() as u64).as_ref(), Ok(&footer));
    }
});
