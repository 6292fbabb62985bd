//! A journal object: what is accepted encodes to an object that reads the same.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use refstream_format::{
    crc32c,
    journal::{HEADER_BYTES, JournalHead, JournalIndex, JournalObject},
};

/// Gives header and index the checksums they should have.
fn repaired(bytes: &[u8]) -> Bytes {
    let mut bytes = bytes.to_vec();
    if let Some((header, rest)) = bytes.split_at_mut_checked(HEADER_BYTES) {
        let index = u32::from_le_bytes([header[52], header[53], header[54], header[55]]) as usize;
        if let Some((index, rest)) = rest.split_at_mut_checked(index)
            && let Some(checksum) = rest.first_chunk_mut()
        {
            *checksum = crc32c(index).0.to_le_bytes();
        }
        let checksum = crc32c(&header[..60]).0;
        header[60..].copy_from_slice(&checksum.to_le_bytes());
    }
    bytes.into()
}

fuzz_target!(|bytes: &[u8]| {
    for bytes in [Bytes::copy_from_slice(bytes), repaired(bytes)] {
        let Ok(head) = JournalHead::peek(&bytes) else { continue };
        let place = (head.epoch, head.slot);
        let index = JournalIndex::decode(&bytes, place);
        let Ok(object) = JournalObject::decode(bytes, place) else { continue };
        assert_eq!(object.token(), head.token);
        assert_eq!(index.expect("the whole is readable").batches, object.locations());
        assert_eq!(JournalObject::decode(object.encode(), place).expect("just encoded"), object);
    }
});
