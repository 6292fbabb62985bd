//! An entry of the cluster log, applied to an empty cluster.
#![no_main]

use libfuzzer_sys::fuzz_target;
use refstream_format::cluster_log::{ClusterState, LogEntry};
use refstream_fuzz::{reads_the_same, with_checksum};
use refstream_types::Version;

fuzz_target!(|bytes: &[u8]| {
    let decode = |bytes: &[u8]| LogEntry::decode(bytes, Version(1)).ok();
    reads_the_same(bytes, decode, LogEntry::encode);
    for entry in with_checksum(bytes).iter().filter_map(|bytes| decode(bytes)) {
        let mut state = ClusterState::default();
        if state.apply(&entry).is_ok() {
            state.check().expect("an applied entry keeps the invariants");
        }
    }
});
