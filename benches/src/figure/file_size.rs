//! Bytes of a Parquet file for each reference, against what cannot be compressed: the hash (32), the CRC (4), the random part of the
//! object's key (16) where a payload has an object of its own, and the user's strings.
//!
//! A whole row group, with what a topic's rows have: partition, dense offset, append and event time, sizes, content type, producer and
//! sequence, bloom filters, page index.

use crate::{
    Outcome,
    load::{Place, References},
    report::Row,
};
use refstream::types::{Offset, PartitionId, ProducerEpoch, ProducerId, ProducerStamp, Sequence, Timestamp};
use refstream_filer_adapter::{BlobStore, TokioRuntime, memory::MemoryStore};
use refstream_segments::{ROW_GROUP_ROWS, properties, write_rows};
use std::{collections::BTreeMap, sync::Arc};

const PARTITIONS: usize = 16;
const BATCH_RECORDS: usize = 500;
const HASH_AND_CRC: f64 = 36.0;
const RANDOM_KEY: f64 = 16.0;

pub(crate) fn measure() -> Outcome<Vec<Row>> {
    let mut rows = Vec::new();
    for (place, name) in [(Place::Packed, "packed"), (Place::Whole, "unpacked")] {
        for keyed in [false, true] {
            let (bytes, keys) = bytes_per_reference(place, keyed)?;
            let part = HASH_AND_CRC + if place == Place::Whole { RANDOM_KEY } else { 0.0 } + keys;
            let details =
                format!("{bytes:.1} / {part:.1} bytes, {keys:.1} of them the user's key; {ROW_GROUP_ROWS} rows");
            let with = if keyed { "a key" } else { "no key" };
            let figure = format!("Parquet bytes per reference / incompressible part, {name}, {with}");
            rows.push(Row::at_most(&figure, bytes / part, 1.3, "", details));
        }
    }
    Ok(rows)
}

/// Bytes of the file, and of the user's strings, for each row.
fn bytes_per_reference(place: Place, keyed: bool) -> Outcome<(f64, f64)> {
    let mut references = References::new(place, "main".parse()?, 13);
    let mut keys = 0;
    let mut rows = Vec::with_capacity(ROW_GROUP_ROWS);
    for number in 0..ROW_GROUP_ROWS {
        let key = keyed.then(|| format!("{:016x}", blake3_prefix(number)));
        keys += key.as_ref().map_or(0, String::len);
        let (partition, offset) = (number * PARTITIONS / ROW_GROUP_ROWS, number % (ROW_GROUP_ROWS / PARTITIONS));
        let sequence = Sequence(offset as u64);
        rows.push(refstream_segments::Row {
            partition: PartitionId(partition as u32),
            offset: Offset(offset as u64),
            append_time: Timestamp::from_micros(1_750_000_000_000_000 + (offset / BATCH_RECORDS) as i64 * 5_731),
            producer: Some(ProducerStamp { id: ProducerId(1 << 32), epoch: ProducerEpoch(0), first: sequence }),
            record: references.record(key.map(Into::into)),
        });
    }
    let store: Arc<dyn BlobStore> = Arc::new(MemoryStore::new(Arc::new(TokioRuntime::new())));
    let stores = BTreeMap::from([("main".parse()?, store)]);
    let file = write_rows(&"bench".parse()?, &rows, &stores, properties())?;
    Ok((file.len() as f64 / ROW_GROUP_ROWS as f64, keys as f64 / ROW_GROUP_ROWS as f64))
}

/// Random but the same in every run.
fn blake3_prefix(number: usize) -> u64 {
    let hash = blake3::hash(&number.to_le_bytes());
    hash.as_bytes().iter().take(8).fold(0, |prefix, byte| prefix << 8 | u64::from(*byte))
}
