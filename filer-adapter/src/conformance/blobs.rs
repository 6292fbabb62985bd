//! [`BlobStore`](crate::BlobStore): objects in one request.

use super::{Bench, noise, odd_names, refusable_names};
use crate::{
    Attributes, CreateError, Found, GetOptions, Listed, MAX_NOTE_BYTES, Sent, StoreError, StoreErrorKind, crc32c,
};
use bytes::{Bytes, BytesMut};
use futures::{FutureExt, TryStreamExt};
use refstream_types::{ByteRange, Crc32c, Key, Layout};

pub(super) async fn run(bench: &Bench) {
    what_is_put_is_got(bench).await;
    ranges_end_with_the_object(bench).await;
    a_pinned_etag_is_honoured(bench).await;
    damaged_bodies_are_refused(bench).await;
    odd_keys_are_different_objects(bench).await;
    big_bodies_stream(bench).await;
    a_body_is_sent_before_it_is_stored(bench).await;
    a_sidecar_is_found_by_its_blob(bench).await;
    bench.clean().await;
}

pub(super) async fn whole(found: Found) -> Result<Bytes, StoreError> {
    let pieces: BytesMut = found
        .body
        .try_fold(BytesMut::new(), |mut whole, piece| async move {
            whole.extend_from_slice(&piece);
            Ok(whole)
        })
        .await?;
    Ok(pieces.freeze())
}

/// Puts an object; returns its key, which is the one that was asked for unless the store names objects itself.
async fn put(bench: &Bench, key: &Key, body: Vec<Bytes>) -> Key {
    let checksum = crc32c(&body);
    let size: usize = body.iter().map(Bytes::len).sum();
    let stored = bench.blobs.put(key, body, checksum, &Attributes::default()).await.unwrap();
    assert_eq!(stored.size, size as u64);
    assert!(bench.blobs.names_objects() || stored.key == *key, "{}", stored.key);
    stored.key
}

/// Whoever pins the ETag of a listing must find it at the object.
pub(super) async fn same_etag(bench: &Bench, listed: &Listed) {
    let meta = bench.blobs.head(&listed.key).await.unwrap().expect("what is listed is there");
    let told = listed.etag.as_ref();
    assert!(told.is_none_or(|told| Some(told) == meta.etag.as_ref()), "the listing tells the ETag {told:?}: {meta:?}");
}

async fn got(bench: &Bench, key: &Key, options: &GetOptions) -> Result<Bytes, StoreError> {
    whole(bench.blobs.get(key, options).await?).await
}

async fn what_is_put_is_got(bench: &Bench) {
    let key = bench.key("put/image.png");
    assert_eq!(bench.blobs.head(&key).await.unwrap(), None);
    let missing = got(bench, &key, &GetOptions::default()).await.unwrap_err();
    assert_eq!(missing.kind, StoreErrorKind::NotFound, "{missing}");
    let (uri, other) = (bench.blobs.uri(&key), bench.key("put/ä %2F.png"));
    let prefix = uri.strip_suffix(key.as_str()).expect("a URI ends with its key");
    assert_eq!(bench.blobs.uri(&other), format!("{prefix}{other}"));

    let body: Vec<Bytes> = ["three ", "", "pieces"].map(Bytes::from).into();
    let note = "A".repeat(MAX_NOTE_BYTES - 4) + "+/==";
    let attributes = Attributes { content_type: Some("image/png".into()), note: Some(note.clone()) };
    let stored = bench.blobs.put(&key, body.clone(), crc32c(&body), &attributes).await.unwrap();
    assert_eq!(stored.size, 12);
    let key = stored.key;
    assert!(bench.blobs.uri(&key).ends_with(key.as_str()));
    let meta = bench.blobs.head(&key).await.unwrap().expect("what was put is there");
    assert_eq!((meta.size, &meta.note), (12, &Some(note.clone())));
    if !bench.blobs.names_objects() {
        assert_eq!(meta.content_type.as_deref(), Some("image/png"));
    }
    assert_eq!(meta.etag, stored.etag, "the ETag does not change");
    let found = bench.blobs.get(&key, &GetOptions::default()).await.unwrap();
    assert_eq!((found.meta.size, &found.meta.etag), (12, &meta.etag));
    assert_eq!(found.meta.note.as_ref(), Some(&note));
    assert_eq!(whole(found).await.unwrap(), "three pieces");
    put(bench, &key, body).await;
    assert_eq!(got(bench, &key, &GetOptions::default()).await.unwrap(), "three pieces", "a repeated put is harmless");

    if !bench.blobs.names_objects() {
        let listed = bench.blobs.list_blobs(&bench.prefix("put/"), None, 10).await.unwrap();
        assert_eq!(listed.iter().map(|listed| (&listed.key, listed.size)).collect::<Vec<_>>(), [(&key, 12)]);
        same_etag(bench, &listed[0]).await;
    }
    bench.blobs.delete(&key).await.unwrap();
    bench.blobs.delete(&key).await.expect("deleting what is not there succeeds");
    assert_eq!(bench.blobs.head(&key).await.unwrap(), None);

    let empty = put(bench, &bench.key("put/empty"), Vec::new()).await;
    assert_eq!(bench.blobs.head(&empty).await.unwrap().map(|meta| meta.size), Some(0));
    assert_eq!(got(bench, &empty, &GetOptions::default()).await.unwrap(), Bytes::new());
}

async fn ranges_end_with_the_object(bench: &Bench) {
    let body = noise(1, 300_000);
    let key = put(bench, &bench.key("ranges"), vec![body.clone()]).await;
    let cases =
        [(0, 300_000), (0, 1), (299_999, 1), (1_000, 200_000), (299_000, 5_000), (300_000, 1), (400_000, 9), (5, 0)];
    for (offset, length) in cases {
        let options = GetOptions { range: Some(ByteRange { offset, length }), ..GetOptions::default() };
        let found =
            bench.blobs.get(&key, &options).await.unwrap_or_else(|error| panic!("{length} at {offset}: {error}"));
        assert_eq!(found.meta.size, 300_000, "the size is the whole object's");
        let (start, end) = (offset.min(300_000) as usize, (offset + length).min(300_000) as usize);
        assert_eq!(whole(found).await.unwrap(), body.slice(start..end), "{length} bytes at {offset}");
    }
    let options = GetOptions { range: Some(ByteRange { offset: 0, length: 5 }), ..GetOptions::default() };
    let missing = got(bench, &bench.key("none"), &options).await.unwrap_err();
    assert_eq!(missing.kind, StoreErrorKind::NotFound);
}

async fn a_pinned_etag_is_honoured(bench: &Bench) {
    let key = put(bench, &bench.key("pinned"), vec![Bytes::from_static(b"pinned bytes")]).await;
    let etag = bench.blobs.head(&key).await.unwrap().unwrap().etag;
    assert!(etag.as_ref().is_some_and(|etag| !etag.contains('"')), "an ETag without quotes: {etag:?}");
    let range = Some(ByteRange { offset: 0, length: 6 });
    let options = GetOptions { etag, range, version: None };
    assert_eq!(got(bench, &key, &options).await.unwrap(), "pinned");
    let options = GetOptions { etag: Some("0123456789abcdef0123456789abcdef".into()), range, version: None };
    let error = got(bench, &key, &options).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Changed, "{error}");
}

async fn damaged_bodies_are_refused(bench: &Bench) {
    let key = bench.key("damaged");
    let body = vec![Bytes::from_static(b"some "), Bytes::from_static(b"bytes")];
    let wrong = Crc32c(crc32c(&body).0 ^ 0x10);
    let error = bench.blobs.put(&key, body, wrong, &Attributes::default()).await.unwrap_err();
    let kind = error.error().kind;
    assert!(matches!(kind, StoreErrorKind::Corrupt | StoreErrorKind::Invalid), "{error}");
    assert_eq!(bench.blobs.head(&key).await.unwrap(), None, "nothing may be stored of a body with a wrong checksum");
}

async fn odd_keys_are_different_objects(bench: &Bench) {
    let mut keys = Vec::new();
    for name in odd_names() {
        let body = Bytes::from(name.clone());
        keys.push(put(bench, &bench.key(&format!("odd/{name}")), vec![body]).await);
    }
    for (name, key) in odd_names().into_iter().zip(keys) {
        assert_eq!(got(bench, &key, &GetOptions::default()).await.unwrap(), name, "{name}");
    }
    for name in refusable_names() {
        let (key, body) = (bench.key(&format!("odd/{name}")), vec![Bytes::from(name.clone())]);
        match bench.blobs.put(&key, body.clone(), crc32c(&body), &Attributes::default()).await {
            Ok(stored) => assert_eq!(got(bench, &stored.key, &GetOptions::default()).await.unwrap(), name),
            Err(CreateError::DidNotHappen(error)) => assert_eq!(error.kind, StoreErrorKind::Invalid, "{error}"),
            Err(CreateError::MayHaveHappened(error)) => panic!("{name} must be refused for certain: {error}"),
        }
    }
}

async fn big_bodies_stream(bench: &Bench) {
    let body = noise(2, 20 << 20);
    // Pieces of uneven size, as a reader delivers them.
    let pieces: Vec<_> =
        (0..body.len()).step_by(70_001).map(|at| body.slice(at..body.len().min(at + 70_001))).collect();
    let key = put(bench, &bench.key("big"), pieces).await;
    if !bench.blobs.names_objects() {
        same_etag(bench, &bench.blobs.list_blobs(&bench.prefix("big"), None, 10).await.unwrap()[0]).await;
    }
    let found = bench.blobs.get(&key, &GetOptions::default()).await.unwrap();
    assert_eq!(found.meta.size, body.len() as u64);
    let pieces: Vec<Bytes> = found.body.try_collect().await.unwrap();
    assert!(pieces.len() > 1, "a big body comes in pieces");
    assert_eq!(crc32c(&pieces), crc32c(&[body]));
}

async fn a_body_is_sent_before_it_is_stored(bench: &Bench) {
    for bytes in [0, 1, 3 << 20] {
        let (body, sent) = (vec![noise(5, bytes)], Sent::default());
        let key = bench.key(&format!("sent/{bytes}"));
        let stored =
            bench.blobs.put_telling(&key, body.clone(), crc32c(&body), &Attributes::default(), &sent).await.unwrap();
        assert!(sent.told().now_or_never().is_some(), "{bytes} bytes are stored and were never said to be sent");
        assert_eq!(got(bench, &stored.key, &GetOptions::default()).await.unwrap(), body[0]);
    }
}

async fn a_sidecar_is_found_by_its_blob(bench: &Bench) {
    let blob = put(bench, &bench.key("with-sidecar"), vec![noise(3, 100)]).await;
    let sidecar = Layout::blocks(&blob);
    assert_eq!(bench.blobs.head(&sidecar).await.unwrap(), None);
    let sums = vec![noise(4, 50)];
    let stored = bench.blobs.put(&sidecar, sums.clone(), crc32c(&sums), &Attributes::default()).await.unwrap();
    assert_eq!(stored.key, sidecar, "also where the store names objects");
    assert_eq!(got(bench, &sidecar, &GetOptions::default()).await.unwrap(), sums[0]);
    assert_eq!(got(bench, &blob, &GetOptions::default()).await.unwrap(), noise(3, 100));
    bench.blobs.delete(&sidecar).await.unwrap();
    bench.blobs.delete(&blob).await.unwrap();
    assert_eq!(bench.blobs.head(&sidecar).await.unwrap(), None);
}
