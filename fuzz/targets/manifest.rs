//! A topic's manifest, and what it answers.
#![no_main]

use libfuzzer_sys::fuzz_target;
use refstream_format::manifest::Manifest;
use refstream_fuzz::{reads_the_same, with_checksum};
use refstream_types::{Offset, PartitionId, TopicId, Version};

fuzz_target!(|bytes: &[u8]| {
    // The place of the golden file.
    let decode = |bytes: &[u8]| Manifest::decode(bytes, (TopicId(7), Version(12))).ok();
    reads_the_same(bytes, decode, Manifest::encode);
    for manifest in with_checksum(bytes).iter().filter_map(|bytes| decode(bytes)) {
        let _ = manifest.file_of(PartitionId(1), Offset(5));
        let _ = (manifest.end_offsets(), manifest.segments(), manifest.file_count());
    }
});
