//! The checksums of a blob's blocks.
#![no_main]

use libfuzzer_sys::fuzz_target;
use refstream_format::blocks::Blocks;
use refstream_fuzz::reads_the_same;
use refstream_types::ByteRange;

fuzz_target!(|bytes: &[u8]| {
    reads_the_same(bytes, |bytes| Blocks::decode(bytes).ok(), Blocks::encode);
    if let Ok(blocks) = Blocks::decode(bytes) {
        let range = ByteRange { offset: blocks.size / 3, length: blocks.size / 2 };
        let covering = blocks.covering(range).expect("within the blob");
        assert!(covering.offset <= range.offset && covering.end() >= range.end());
    }
});
