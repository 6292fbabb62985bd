//! Seek tables and compressed payloads.
#![no_main]

use libfuzzer_sys::fuzz_target;
use refstream_format::frames::{FRAME_BYTES, SeekTable, decompress};
use refstream_types::ByteRange;

/// Content of the golden frame.
const GOLDEN_BYTES: usize = 12_000;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(table) = SeekTable::decode_tail(bytes) {
        assert_eq!(SeekTable::decode_tail(&table.encode()).as_ref(), Ok(&table));
        let (stored, content) = (table.stored_bytes(), table.content_bytes());
        let whole = table.span(ByteRange { offset: 0, length: content }).expect("within the payload");
        assert_eq!((whole.stored.length, whole.content, whole.skip), (stored, content, 0));
        assert_eq!(table.span(ByteRange { offset: content, length: 1 }), None);
    }
    for size in [GOLDEN_BYTES, 0, FRAME_BYTES] {
        if let Ok(content) = decompress(bytes, size) {
            assert_eq!(content.len(), size);
        }
    }
});
