use super::*;
use crate::arbitrary::{self, detects_damage, packed};
use proptest::{collection::vec, prelude::*};
use refstream_types::{ContentHash, Header, MAX_HEADERS, MAX_KEY_LENGTH, Value};

fn built(records: &[Record]) -> EncodedBatch {
    let mut builder = BatchBuilder::new();
    for record in records {
        builder.push(record).unwrap();
    }
    builder.finish(None).unwrap()
}

fn inline(bytes: Vec<u8>) -> Record {
    Record::new(Value::Inline { bytes: bytes.into(), content_hash: ContentHash([7; 32]) })
}

/// A batch around any body, its checksums right: what a hostile or broken client can send.
fn forged(records: u32, codec: u8, body: &[u8], decoded: usize) -> Result<EncodedBatch, DecodeError> {
    let header = FullHeader {
        public: BatchHeader { records, producer: None, payload_bytes: 0 },
        codec,
        stored: body.len() as u32,
        decoded: decoded as u32,
        body_checksum: crc32c(body).0,
    };
    let mut writer = Writer::new();
    header.encode(&mut writer);
    writer.raw(body);
    EncodedBatch::parse(writer.0.into())
}

/// A body of empty tables and these records.
fn body(records: &[u8]) -> Vec<u8> {
    [&[0, 0, 0], records].concat()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn records_round_trip((batch, records) in arbitrary::batch(1..20)) {
        let parsed = EncodedBatch::parse(batch.bytes().clone()).unwrap();
        prop_assert_eq!(&parsed, &batch);
        prop_assert_eq!(parsed.header().records as usize, records.len());
        prop_assert_eq!(parsed.decode().unwrap(), records);
    }

    #[test]
    fn a_stamp_changes_nothing_else((batch, records) in arbitrary::batch(1..5), stamp in arbitrary::stamp()) {
        let stamped = EncodedBatch::parse(batch.with_producer(stamp).bytes().clone()).unwrap();
        prop_assert_eq!(stamped.header(), BatchHeader { producer: Some(stamp), ..batch.header() });
        prop_assert_eq!(stamped.decode().unwrap(), records);
    }

    #[test]
    fn random_bytes_are_refused(bytes in vec(any::<u8>(), 0..200)) {
        EncodedBatch::parse(bytes.into()).unwrap_err();
    }

    #[test]
    fn random_bodies_do_not_panic(records in 1_u32..5, bytes in vec(any::<u8>(), 5..200)) {
        let _ = forged(records, CODEC_NONE, &bytes, bytes.len()).unwrap().decode();
        if let Ok(batch) = forged(records, CODEC_ZSTD, &bytes, bytes.len() + 1) {
            batch.decode().unwrap_err();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4))]

    #[test]
    fn damage_is_detected((batch, _) in arbitrary::batch(1..3)) {
        detects_damage(batch.bytes(), |bytes| EncodedBatch::parse(Bytes::copy_from_slice(bytes)));
    }
}

#[test]
fn an_empty_builder_makes_no_batch_and_a_finished_one_is_empty() {
    let mut builder = BatchBuilder::new();
    assert_eq!(builder.finish(None), None);
    builder.push(&packed(1)).unwrap();
    let first = builder.finish(None).unwrap();
    assert_eq!((builder.records(), builder.bytes()), (0, 0));
    assert_eq!(builder.finish(None), None);
    builder.push(&packed(1)).unwrap();
    assert_eq!(builder.finish(None).unwrap(), first);
}

#[test]
fn a_packed_blob_takes_at_most_70_bytes() {
    let mut builder = BatchBuilder::new();
    (0..500).for_each(|n| builder.push(&packed(n)).unwrap());
    // Before compression, which does nothing for real hashes.
    let each = (builder.bytes() + BATCH_HEADER_BYTES) / 500;
    assert!(each <= 70, "{each} bytes a record");
}

#[test]
fn repetition_is_compressed() {
    let records: Vec<_> = (0..100).map(|_| inline(b"the same words again and again".to_vec())).collect();
    let batch = built(&records);
    assert!(batch.bytes().len() < 1_000, "{} bytes", batch.bytes().len());
    assert_eq!(batch.decode().unwrap(), records);
}

#[test]
fn payload_bytes_are_what_the_user_gave() {
    let batch = built(&[packed(1), inline(vec![1; 10]), Record::new(Value::Tombstone)]);
    assert_eq!(batch.header().payload_bytes, 9_010);
}

#[test]
fn a_full_builder_says_so_and_keeps_what_it_has() {
    let mut builder = BatchBuilder::new();
    let mut pushed = 0;
    let refused = loop {
        match builder.push(&inline(vec![pushed; MAX_INLINE_BYTES])) {
            Ok(()) => pushed += 1,
            Err(refused) => break refused,
        }
    };
    assert_eq!(refused, PushError::Full);
    assert_eq!(builder.records(), u32::from(pushed));
    assert!(builder.bytes() <= MAX_BATCH_BYTES);
    let batch = builder.finish(None).unwrap();
    assert_eq!(EncodedBatch::parse(batch.bytes().clone()).unwrap().decode().unwrap().len(), usize::from(pushed));
}

#[test]
fn a_builder_takes_the_most_records_and_no_more() {
    let mut builder = BatchBuilder::new();
    for _ in 0..MAX_BATCH_RECORDS {
        builder.push(&Record::new(Value::Tombstone)).unwrap();
    }
    assert_eq!(builder.push(&Record::new(Value::Tombstone)), Err(PushError::Full));
    assert_eq!(builder.finish(None).unwrap().decode().unwrap().len(), MAX_BATCH_RECORDS as usize);
}

#[test]
fn long_names_that_repeat_fill_a_batch_before_they_fill_memory() {
    let mut record = packed(1);
    let Value::Reference(reference) = &mut record.value else { unreachable!() };
    reference.content_type = Some("x".repeat(MAX_TEXT_BYTES));
    let mut builder = BatchBuilder::new();
    let refused = std::iter::repeat_with(|| builder.push(&record)).find(Result::is_err);
    assert_eq!(refused, Some(Err(PushError::Full)));
    assert!(builder.bytes() < MAX_BATCH_BYTES / 2);
    assert!(builder.finish(None).unwrap().decode().is_ok());
}

#[test]
fn what_is_too_large_is_named_and_leaves_the_builder_as_it_was() {
    let header = |value: usize| Header { name: "n".into(), value: vec![0; value].into() };
    let mut invalid = packed(1);
    let Value::Reference(reference) = &mut invalid.value else { unreachable!() };
    reference.content_hash = None;
    let tombstone = Record::new(Value::Tombstone);
    let bad = [
        ("key", Record { key: Some(vec![0; MAX_KEY_LENGTH + 1].into()), ..tombstone.clone() }),
        ("number of headers", Record { headers: vec![header(0); MAX_HEADERS + 1], ..tombstone.clone() }),
        ("headers", Record { headers: vec![header(MAX_RECORD_BYTES)], ..tombstone.clone() }),
        ("encoded form", Record { headers: vec![header(MAX_RECORD_BYTES - 2)], ..tombstone.clone() }),
        ("source name", Record { source_name: Some("x".repeat(MAX_TEXT_BYTES + 1)), ..tombstone }),
        ("value", inline(vec![0; MAX_INLINE_BYTES + 1])),
        ("nothing could verify it", invalid),
    ];
    let mut builder = BatchBuilder::new();
    builder.push(&packed(1)).unwrap();
    for (what, record) in bad {
        let refused = builder.push(&record).unwrap_err();
        assert!(refused.to_string().contains(what), "{refused} should speak of {what}");
        assert_ne!(refused, PushError::Full);
    }
    builder.push(&packed(2)).unwrap();
    assert_eq!(builder.finish(None).unwrap(), built(&[packed(1), packed(2)]));
}

#[test]
fn contradictions_behind_right_checksums_are_refused() {
    let refused = |batch: Result<EncodedBatch, DecodeError>, why: &str| {
        let error = batch.and_then(|batch| batch.decode()).unwrap_err().to_string();
        assert!(error.contains(why), "{error} should say {why}");
    };
    refused(forged(0, CODEC_NONE, &body(&[0]), 4), "0 records");
    refused(forged(2, CODEC_NONE, &body(&[0]), 4), "2 records cannot stand in 1 bytes");
    refused(forged(1, CODEC_NONE, &body(&[0, 0]), 5), "too many");
    refused(forged(1, CODEC_NONE, &body(&[3 << 5]), 4), "kind of value 3");
    refused(forged(1, CODEC_NONE, &body(&[2 << 5, 0, 0, 0, 0]), 8), "store 0 of 0");
    refused(forged(1, CODEC_NONE, &body(&[1 << 2, 0]), 5), "none given");
    refused(forged(1, CODEC_NONE, &[0, 1, 4, b'a', b'/', b'/', b'b', 0, 0], 9), "object key");
    refused(forged(1, CODEC_NONE, &body(&[0]), 5), "cannot make");
    refused(forged(1, 2, &body(&[0]), 4), "codec 2");
    refused(forged(1, CODEC_ZSTD, &body(&[0]), 5), "no zstd frame");
    refused(forged(1, CODEC_ZSTD, &body(&[0]), MAX_BATCH_DECODED_BYTES), "cannot make");
    refused(forged(1, CODEC_NONE, &body(&[0]), MAX_BATCH_DECODED_BYTES + 1), "the limit is");
}

#[test]
fn a_small_bomb_stays_small() {
    let claimed = 64 * MAX_BATCH_DECODED_BYTES;
    let bomb = zstd::bulk::compress(&vec![0; claimed], 1).unwrap();
    let error = forged(1, CODEC_ZSTD, &bomb, MAX_BATCH_DECODED_BYTES).unwrap().decode().unwrap_err();
    assert!(error.why.contains("announced"), "{error}");
    // Every record a header of two bytes, or a name of a kilobyte: cheap to say, dear to keep.
    let headers: Vec<u8> = [&[1 << 2, 0x80, 8][..], &[0; 2 * MAX_HEADERS]].concat().repeat(1_100);
    let headers = body(&headers);
    let stored = zstd::bulk::compress(&headers, 1).unwrap();
    let error = forged(1_100, CODEC_ZSTD, &stored, headers.len()).unwrap().decode().unwrap_err();
    assert!(error.why.contains("memory"), "{error}");
}

#[test]
fn one_decoder_takes_batch_after_batch_and_stops_where_it_is_told() {
    let long = built(&(0..100).map(|n| inline(vec![n; 500])).collect::<Vec<_>>());
    let (broken, short) = (forged(2, CODEC_NONE, &body(&[0, 3 << 5]), 5).unwrap(), built(&[packed(1)]));
    let mut decoder = BatchDecoder::new();
    let mut seen = |batch: &EncodedBatch, stop_at: usize| {
        let mut count = 0;
        let done = decoder.each(batch, |record| {
            let views = [packed(1), Record::new(Value::Tombstone)];
            let known = views.iter().any(|known| RecordView::of(known, &mut Vec::new()) == record);
            count += 1;
            match record.value {
                _ if count > stop_at => Err(DecodeError { what: "test", at: 0, why: "enough".into() }),
                ValueView::Inline { bytes, .. } if bytes.len() == 500 => Ok(()),
                _ if known => Ok(()),
                other => panic!("{other:?}"),
            }
        });
        (count, done.map_err(|error| error.why))
    };
    assert_eq!(seen(&long, 1_000), (100, Ok(())));
    assert_eq!(seen(&broken, 1_000), (1, Err("the kind of value 3 is unknown".into())));
    assert_eq!(seen(&short, 1_000), (1, Ok(())));
    assert_eq!(seen(&long, 7), (8, Err("enough".into())));
}
