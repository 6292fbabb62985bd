//! An epoch claim.
#![no_main]

use libfuzzer_sys::fuzz_target;
use refstream_format::epoch::EpochClaim;
use refstream_fuzz::reads_the_same;

fuzz_target!(|bytes: &[u8]| reads_the_same(bytes, |bytes| EpochClaim::decode(bytes).ok(), EpochClaim::encode));
