use super::*;
use proptest::prelude::*;
use refstream_types::{ContentEncoding, ContentHash, Crc32c, Header, Reference, Timestamp};

fn reference(n: u8) -> Reference {
    Reference {
        store: "main".parse().unwrap(),
        key: format!("payloads/t-1/{:02x}/{}", n / 8, "0".repeat(32)).parse().unwrap(),
        offset: (n % 2 == 0).then_some(u64::from(n) * 1_000),
        size: 500,
        checksum: Some(Crc32c(n.into())),
        content_hash: Some(ContentHash([n; 32])),
        content_size: if n % 3 == 0 { 900 } else { 500 },
        encoding: if n % 3 == 0 { ContentEncoding::Zstd } else { ContentEncoding::Identity },
        content_type: (n % 5 == 0).then(|| "image/png".into()),
        etag: (n % 7 == 0).then(|| "e".into()),
        version: (n % 11 == 0).then(|| "v".into()),
    }
}

fn record() -> impl Strategy<Value = Record> {
    let value = prop_oneof![
        Just(Value::Tombstone),
        proptest::collection::vec(any::<u8>(), 0..40)
            .prop_map(|bytes| Value::Inline { bytes: bytes.into(), content_hash: ContentHash([9; 32]) }),
        any::<u8>().prop_map(|n| Value::Reference(Box::new(reference(n)))),
    ];
    let headers = proptest::collection::vec(("[a-z]{0,5}", proptest::collection::vec(any::<u8>(), 0..9)), 0..4);
    (
        proptest::option::of(proptest::collection::vec(any::<u8>(), 0..20)),
        proptest::option::of(any::<i64>()),
        headers,
        proptest::option::of("[a-zü/]{0,12}"),
        proptest::option::of(any::<i64>()),
        value,
    )
        .prop_map(|(key, event, headers, source_name, mtime, value)| Record {
            key: key.map(Into::into),
            event_time: event.map(Timestamp::from_micros),
            headers: headers.into_iter().map(|(name, value)| Header { name, value: value.into() }).collect(),
            source_name,
            source_mtime: mtime.map(Timestamp::from_micros),
            value,
        })
}

fn stamp() -> ProducerStamp {
    ProducerStamp { id: 7.into(), epoch: 1.into(), first: 42.into() }
}

fn build(records: &[Record]) -> EncodedBatch {
    let mut builder = BatchBuilder::new();
    records.iter().for_each(|record| builder.push(record).unwrap());
    builder.finish(Some(stamp())).unwrap()
}

proptest! {
    #[test]
    fn records_come_back_equal(records in proptest::collection::vec(record(), 1..40)) {
        let batch = build(&records);
        let parsed = EncodedBatch::parse(batch.bytes().clone()).unwrap();
        prop_assert_eq!(&parsed, &batch);
        prop_assert_eq!(parsed.decode().unwrap(), records);
    }

    #[test]
    fn damage_is_found(records in proptest::collection::vec(record(), 1..5), at in any::<prop::sample::Index>(), bit in 0..8) {
        let batch = build(&records);
        let mut bytes = batch.bytes().to_vec();
        let at = at.index(bytes.len());
        bytes[at] ^= 1_u8 << bit;
        prop_assert!(EncodedBatch::parse(bytes.clone().into()).is_err());
        bytes.truncate(at);
        prop_assert!(EncodedBatch::parse(bytes.into()).is_err());
    }

    #[test]
    fn noise_does_not_panic(body in proptest::collection::vec(any::<u8>(), 0..300), records in 1..50_u32) {
        // A valid header around a body of noise: the decoder is on its own.
        let mut batch = build(&[Record::new(Value::Tombstone)]).bytes().to_vec();
        batch.truncate(BATCH_HEADER_BYTES);
        batch[8..12].copy_from_slice(&records.to_le_bytes());
        batch[12..16].copy_from_slice(&(body.len() as u32).to_le_bytes());
        batch[16..20].copy_from_slice(&(body.len() as u32).to_le_bytes());
        batch[20..24].copy_from_slice(&crc32c(&body).0.to_le_bytes());
        batch.extend_from_slice(&body);
        write_stamp(&mut batch, None);
        if let Ok(parsed) = EncodedBatch::parse(batch.into()) {
            let _ = parsed.decode();
        }
    }
}

#[test]
fn a_stamp_changes_nothing_else() {
    let mut builder = BatchBuilder::new();
    builder.push(&Record::new(Value::Tombstone)).unwrap();
    let plain = builder.finish(None).unwrap();
    let stamped = plain.with_producer(stamp());
    assert_eq!(EncodedBatch::parse(stamped.bytes().clone()).unwrap(), stamped);
    assert_eq!(stamped.header().producer, Some(stamp()));
    assert_eq!(stamped.decode().unwrap(), plain.decode().unwrap());
}

#[test]
fn a_packed_reference_is_small() {
    let mut builder = BatchBuilder::new();
    for n in 0..500_u32 {
        let mut hash = [0; 32];
        hash[..4].copy_from_slice(&n.wrapping_mul(2_654_435_761).to_le_bytes());
        let hash = ContentHash(std::array::from_fn(|i| hash[i % 4] ^ (i as u8).wrapping_mul(n as u8)));
        let reference = Reference {
            offset: Some(u64::from(n) * 4_096),
            size: 4_096,
            content_size: 4_096,
            encoding: ContentEncoding::Identity,
            checksum: Some(Crc32c(n)),
            content_hash: Some(hash),
            content_type: None,
            etag: None,
            version: None,
            ..reference(1)
        };
        builder.push(&Record::new(Value::Reference(Box::new(reference)))).unwrap();
    }
    assert!(builder.bytes() / 500 <= 50, "{} bytes a record", builder.bytes() / 500);
}

#[test]
fn a_full_builder_is_unchanged() {
    let mut builder = BatchBuilder::new();
    let mut record = Record::new(Value::Inline { bytes: vec![1; 1 << 20].into(), content_hash: ContentHash([0; 32]) });
    record.source_name = Some("x".into());
    let mut pushed = Vec::new();
    while builder.push(&record).is_ok() {
        pushed.push(record.clone());
    }
    assert_eq!(builder.push(&record), Err(PushError::Full));
    assert_eq!(builder.finish(None).unwrap().decode().unwrap(), pushed);
}

#[test]
fn what_exceeds_a_limit_is_named() {
    let mut record = Record::new(Value::Tombstone);
    record.key = Some(vec![0; MAX_KEY_LENGTH + 1].into());
    let error = BatchBuilder::new().push(&record).unwrap_err();
    assert!(matches!(error, PushError::TooLarge { what: "key", .. }), "{error}");
}
