//! A snapshot of the cluster's state.
#![no_main]

use libfuzzer_sys::fuzz_target;
use refstream_format::cluster_log::ClusterState;
use refstream_fuzz::reads_the_same;
use refstream_types::Version;

fuzz_target!(|bytes: &[u8]| {
    reads_the_same(bytes, |bytes| ClusterState::decode(bytes, Version(1)).ok(), ClusterState::encode);
});
