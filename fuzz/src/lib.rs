//! What the targets share.

use refstream_format::crc32c;

/// The bytes as they are, and with the CRC32C at their end that they should have, which no mutation would find.
pub fn with_checksum(bytes: &[u8]) -> [Vec<u8>; 2] {
    let mut repaired = bytes.to_vec();
    if let Some((content, checksum)) = repaired.split_last_chunk_mut() {
        *checksum = crc32c(content).0.to_le_bytes();
    }
    [bytes.to_vec(), repaired]
}

/// Checks that a decoder of an object under one checksum does not panic, and that what it accepts reads the same again.
pub fn reads_the_same<T: PartialEq + std::fmt::Debug>(
    bytes: &[u8],
    decode: impl Fn(&[u8]) -> Option<T>,
    encode: impl Fn(&T) -> Vec<u8>,
) {
    for bytes in with_checksum(bytes) {
        if let Some(value) = decode(&bytes) {
            assert_eq!(decode(&encode(&value)).as_ref(), Some(&value));
        }
    }
}
