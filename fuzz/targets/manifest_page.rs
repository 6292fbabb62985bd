//! A page of a manifest's history.
#![no_main]

use libfuzzer_sys::fuzz_target;
use refstream_format::manifest::{DataFile, Manifest};
use refstream_fuzz::reads_the_same;

fuzz_target!(|bytes: &[u8]| {
    let encode = |files: &Vec<DataFile>| Manifest::encode_page(files);
    reads_the_same(bytes, |bytes| Manifest::decode_page(bytes).ok(), encode);
});
