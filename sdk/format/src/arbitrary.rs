//! Random values for the tests of the formats, and what every decoder must stand.

use crate::{
    DecodeError,
    batch::{BatchBuilder, EncodedBatch},
};
use bytes::Bytes;
use proptest::{collection::vec, option, prelude::*};
use refstream_types::{
    ContentEncoding, ContentHash, Crc32c, Header, Key, ProducerEpoch, ProducerId, ProducerStamp, Record, Reference,
    Sequence, StoreName, Timestamp, Token, Value,
};

/// Checks that no single flipped bit and no truncation of `encoded` decodes to anything but an error, and that longer input
/// does not either.
pub(crate) fn detects_damage<T: std::fmt::Debug>(encoded: &[u8], decode: impl Fn(&[u8]) -> Result<T, DecodeError>) {
    for bit in 0..encoded.len() * 8 {
        let mut damaged = encoded.to_vec();
        damaged[bit / 8] ^= 1 << (bit % 8);
        if let Ok(decoded) = decode(&damaged) {
            panic!("bit {bit} flipped, decoded all the same: {decoded:?}");
        }
    }
    for length in 0..encoded.len() {
        if let Ok(decoded) = decode(&encoded[..length]) {
            panic!("cut to {length} of {} bytes, decoded all the same: {decoded:?}", encoded.len());
        }
    }
    decode(&[encoded, &[0]].concat()).expect_err("a byte too many");
}

pub(crate) fn time() -> impl Strategy<Value = Timestamp> {
    prop_oneof![
        any::<i64>().prop_map(Timestamp::from_micros),
        (1_790_000_000_000_000_i64..1_800_000_000_000_000).prop_map(Timestamp::from_micros)
    ]
}

pub(crate) fn token() -> impl Strategy<Value = Token> + Clone {
    any::<[u8; 16]>().prop_map(Token)
}

fn bytes(most: usize) -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..most).prop_map(Bytes::from)
}

pub(crate) fn reference() -> impl Strategy<Value = Reference> {
    let place = ("[a-z]{1,3}", "[a-z]{1,2}/[a-z]{1,30}", option::of(0_u64..1 << 40), 0_u64..1 << 40);
    let sums = (option::of(any::<u32>()), option::of(any::<[u8; 32]>()), option::of(0_u64..1 << 40));
    let texts = (option::of("[a-z]{0,3}/[a-z]{1,3}"), "\\PC{0,8}", option::of("\\PC{0,8}"));
    (place, sums, texts).prop_map(
        |((store, key, offset, size), (crc, hash, content), (content_type, etag, version))| Reference {
            store: store.parse().unwrap(),
            key: key.parse().unwrap(),
            offset,
            size,
            checksum: crc.map(Crc32c),
            content_hash: hash.map(ContentHash),
            content_size: content.unwrap_or(size),
            encoding: if content.is_some() { ContentEncoding::Zstd } else { ContentEncoding::Identity },
            content_type,
            etag: hash.is_none().then_some(etag),
            version,
        },
    )
}

pub(crate) fn record() -> impl Strategy<Value = Record> {
    let value = prop_oneof![
        3 => reference().prop_map(|reference| Value::Reference(Box::new(reference))),
        1 => (bytes(64), any::<[u8; 32]>())
            .prop_map(|(bytes, hash)| Value::Inline { bytes, content_hash: ContentHash(hash) }),
        1 => Just(Value::Tombstone),
    ];
    let header = ("\\PC{0,8}", bytes(8)).prop_map(|(name, value)| Header { name, value });
    (option::of(bytes(20)), option::of(time()), vec(header, 0..4), option::of("\\PC{0,12}"), option::of(time()), value)
        .prop_map(|(key, event_time, headers, source_name, source_mtime, value)| Record {
            key,
            event_time,
            headers,
            source_name,
            source_mtime,
            value,
        })
}

pub(crate) fn stamp() -> impl Strategy<Value = ProducerStamp> {
    (any::<u64>(), any::<u32>(), 0_u64..1 << 62).prop_map(|(id, epoch, first)| ProducerStamp {
        id: ProducerId(id),
        epoch: ProducerEpoch(epoch),
        first: Sequence(first),
    })
}

/// A batch with the records in it.
pub(crate) fn batch(records: std::ops::Range<usize>) -> impl Strategy<Value = (EncodedBatch, Vec<Record>)> {
    (vec(record(), records), option::of(stamp())).prop_map(|(records, stamp)| {
        let mut builder = BatchBuilder::new();
        for record in &records {
            builder.push(record).unwrap();
        }
        (builder.finish(stamp).unwrap(), records)
    })
}

/// A reference to a blob in a pack, number `n` of it, as backfills make them by the million.
pub(crate) fn packed(n: u64) -> Record {
    let mut hash = [0; 32];
    for (i, byte) in hash.iter_mut().enumerate() {
        *byte = (n.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(i as u32 * 7) >> 8) as u8;
    }
    let store: StoreName = "main".parse().unwrap();
    let key: Key = "payloads/files-1/ab/0123456789abcdef0123456789abcdef".parse().unwrap();
    Record::new(Value::Reference(Box::new(Reference {
        store,
        key,
        offset: Some(n * 4_000),
        size: 4_000,
        checksum: Some(Crc32c(n.wrapping_mul(0x9e37_79b9) as u32)),
        content_hash: Some(ContentHash(hash)),
        content_size: 9_000,
        encoding: ContentEncoding::Zstd,
        content_type: Some("image/png".into()),
        etag: None,
        version: None,
    })))
}
