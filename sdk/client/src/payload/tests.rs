use super::*;
use crate::{
    ErrorClass, UploadOptions,
    uploader::tests::{fixture, noise, text},
};
use refstream_filer_adapter::Attributes;
use refstream_types::{Layout, Record, Value};
use std::time::Duration;

fn options() -> UploadOptions {
    UploadOptions { pack_linger: Duration::ZERO, ..UploadOptions::default() }
}

fn damaged(error: &FetchError) -> &crate::DamagedObject {
    match error {
        FetchError::Damaged(damaged) => damaged,
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn one_flipped_bit_of_a_small_blob_is_found_and_named() {
    let fixture = fixture(options());
    for content in [noise(5_000), text(5_000)] {
        let reference = fixture.upload(content).await;
        assert!(fixture.store.flip_bit(&reference.key, reference.offset.unwrap() + reference.size / 2));
        let delivery = Delivery {
            topic: "photos".parse().unwrap(),
            partition: refstream_types::PartitionId(3),
            offset: refstream_types::Offset(42),
            append_time: refstream_types::Timestamp::default(),
            producer: None,
            record: Record::new(Value::Tombstone),
        };
        let payload = fixture.payload(&reference).of(&delivery);
        let error = payload.bytes().await.unwrap_err();
        let text = error.to_string();
        for part in ["photos", "partition 3", "offset 42", reference.key.as_str(), "CRC32C:"] {
            assert!(text.contains(part), "{text}");
        }
        assert_eq!(error.class(), ErrorClass::VerificationFailed);
        damaged(&payload.range(ByteRange { offset: 0, length: 1 }).await.unwrap_err());
        let mut sink = Vec::new();
        damaged(&payload.copy_to(&mut sink).await.unwrap_err());
        assert!(sink.is_empty());
    }
}

#[tokio::test]
async fn one_flipped_bit_of_a_large_blob_spoils_only_its_own_mib() {
    let fixture = fixture(options());
    let content = noise(5 << 20);
    let reference = fixture.upload(content.clone()).await;
    assert!(fixture.store.flip_bit(&reference.key, (3 << 20) + 5));
    let payload = fixture.payload(&reference);
    let good = ByteRange { offset: (1 << 20) - 3, length: 2 << 20 };
    assert_eq!(payload.range(good).await.unwrap(), content[good.offset as usize..good.end().unwrap() as usize]);
    let error = payload.range(ByteRange { offset: 3 << 20, length: 1 }).await.unwrap_err();
    assert!(damaged(&error).what.contains("MiB 3"), "{error}");
    let mut sink = Vec::new();
    let error = payload.copy_to(&mut sink).await.unwrap_err();
    assert_eq!(damaged(&error).handed_out, 3 << 20);
    assert!(error.to_string().contains("3145728 bytes before it"), "{error}");
    assert_eq!(sink, content[..3 << 20]);
    damaged(&payload.bytes().await.unwrap_err());
}

#[tokio::test]
async fn lost_or_damaged_block_sums_do_not_cost_the_payload() {
    let fixture = fixture(options());
    let content = noise((3 << 20) + 1);
    let reference = fixture.upload(content.clone()).await;
    let range = ByteRange { offset: (2 << 20) - 1, length: 1 << 20 };
    let expected = &content[range.offset as usize..range.end().unwrap() as usize];
    let sums = fixture.store.head(&reference.key).await.unwrap().unwrap().note.unwrap();
    let sidecar = Layout::blocks(&reference.key);
    // With an intact sidecar; with a damaged one; with a damaged note; with nothing.
    for (note, beside) in [(None, Some(0)), (None, Some(0x55)), (Some("AAAA"), None), (None, None)] {
        fixture.store.lose(&sidecar);
        let attributes = Attributes { note: note.map(str::to_owned), ..Attributes::default() };
        let put = async |key, bytes: Bytes| {
            let checksum = refstream_format::crc32c(&bytes);
            fixture.store.put(key, vec![bytes], checksum, &attributes).await.unwrap();
        };
        put(&reference.key, content.clone()).await;
        if let Some(damage) = beside {
            let mut sums = Blocks::from_note(&sums).unwrap().encode();
            sums[20] ^= damage;
            put(&sidecar, sums.into()).await;
        }
        assert_eq!(fixture.payload(&reference).range(range).await.unwrap(), expected);
        let mut copy = Vec::new();
        fixture.payload(&reference).copy_to(&mut copy).await.unwrap();
        assert_eq!(copy, content);
    }
    assert!(fixture.store.flip_bit(&reference.key, 7));
    damaged(&fixture.payload(&reference).range(range).await.unwrap_err());
}

#[tokio::test]
async fn a_missing_object_is_named() {
    let fixture = fixture(options());
    let reference = fixture.upload(noise(100)).await;
    assert!(fixture.store.lose(&reference.key));
    let error = fixture.payload(&reference).bytes().await.unwrap_err();
    assert!(matches!(error, FetchError::Missing(_)));
    assert_eq!(error.class(), ErrorClass::VerificationFailed);
    assert!(error.to_string().contains(reference.key.as_str()), "{error}");
}

#[tokio::test]
async fn a_reference_that_claims_too_much_is_damaged_not_short() {
    let fixture = fixture(options());
    let mut reference = fixture.upload(noise(100)).await;
    reference.offset = Some(1 << 20);
    let error = fixture.payload(&reference).bytes().await.unwrap_err();
    assert!(damaged(&error).what.contains("size"), "{error}");
}

#[tokio::test]
async fn an_overwritten_attached_object_is_recognised() {
    let fixture = fixture(UploadOptions { pack_below: 0, ..options() });
    let content = noise(1_000);
    let mut reference = fixture.upload(content.clone()).await;
    let store: &dyn BlobStore = &fixture.store;
    let etag = store.head(&reference.key).await.unwrap().unwrap().etag;
    (reference.content_hash, reference.checksum, reference.etag) = (None, None, etag);
    let range = ByteRange { offset: 990, length: 100 };
    assert_eq!(fixture.payload(&reference).range(range).await.unwrap(), content[990..]);
    let mut copy = Vec::new();
    fixture.payload(&reference).copy_to(&mut copy).await.unwrap();
    assert_eq!(copy, content);
    reference.etag = Some("another".into());
    let error = fixture.payload(&reference).bytes().await.unwrap_err();
    assert!(matches!(error, FetchError::Overwritten(_)), "{error}");
}

#[tokio::test]
async fn another_payload_in_its_place_is_never_handed_out() {
    // With its sums in a note, and in a sidecar.
    for bytes in [(3 << 20) + 1, (17 << 20) + 1] {
        let fixture = fixture(options());
        let [mine, other] = [0, 1].map(|seed| {
            let mut content = noise(bytes).to_vec();
            content[0] ^= seed;
            Bytes::from(content)
        });
        let (mine, other) = (fixture.upload(mine).await, fixture.upload(other).await);
        for (from, to) in
            [(other.key.clone(), mine.key.clone()), (Layout::blocks(&other.key), Layout::blocks(&mine.key))]
        {
            let Some(meta) = fixture.store.head(&from).await.unwrap() else { continue };
            let content = fixture.store.peek(&from).unwrap();
            let attributes = Attributes { note: meta.note, ..Attributes::default() };
            let checksum = refstream_format::crc32c(&content);
            fixture.store.put(&to, vec![content], checksum, &attributes).await.unwrap();
        }
        let payload = fixture.payload(&mine);
        damaged(&payload.range(ByteRange { offset: 100, length: 20 }).await.unwrap_err());
        let mut copy = Vec::new();
        damaged(&payload.copy_to(&mut copy).await.unwrap_err());
        assert!(copy.is_empty(), "{} bytes of another payload", copy.len());
        assert!(matches!(payload.block_sums().await.unwrap(), BlockSums::Unusable { .. }));
    }
}
