//! A batch: what is accepted decodes within its limits or not at all, and its records make an equal batch.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use refstream_format::{
    batch::{BATCH_HEADER_BYTES, BatchBuilder, EncodedBatch},
    crc32c,
};

/// Gives header and body the checksums they should have, which no mutation would find.
fn repaired(bytes: &[u8]) -> Bytes {
    let mut bytes = bytes.to_vec();
    if let Some((header, body)) = bytes.split_at_mut_checked(BATCH_HEADER_BYTES) {
        header[12..16].copy_from_slice(&(body.len() as u32).to_le_bytes());
        if header[7] == 0 {
            header[16..20].copy_from_slice(&(body.len() as u32).to_le_bytes());
        }
        header[20..24].copy_from_slice(&crc32c(body).0.to_le_bytes());
        let checksum = crc32c(&header[..52]).0;
        header[52..].copy_from_slice(&checksum.to_le_bytes());
    }
    bytes.into()
}

fuzz_target!(|bytes: &[u8]| {
    let _ = EncodedBatch::parse(Bytes::copy_from_slice(bytes));
    let Ok(batch) = EncodedBatch::parse(repaired(bytes)) else { return };
    let Ok(records) = batch.decode() else { return };
    assert_eq!(records.len(), batch.header().records as usize);
    let mut builder = BatchBuilder::new();
    if records.iter().all(|record| builder.push(record).is_ok()) {
        let again = builder.finish(batch.header().producer).expect("there are records");
        assert_eq!(again.header(), batch.header());
        assert_eq!(again.decode().expect("just built"), records);
    }
});
