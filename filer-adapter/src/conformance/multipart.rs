//! [`MultipartUpload`](crate::MultipartUpload): objects in parts.

use super::{
    Bench,
    blobs::{same_etag, whole},
    noise,
};
use crate::{Attributes, GetOptions, MultipartUpload, Part, StoreErrorKind, crc32c};
use bytes::{Bytes, BytesMut};
use futures::future::try_join_all;
use refstream_types::Crc32c;

/// The smallest part but the last.
const PART: usize = 5 << 20;

pub(super) async fn run(bench: &Bench) {
    parts_become_an_object(bench).await;
    an_upload_is_resumed_by_its_id(bench).await;
    an_aborted_upload_is_gone(bench).await;
    bench.clean().await;
}

async fn put_part(upload: &dyn MultipartUpload, number: u32, body: &Bytes) -> Part {
    // In two pieces.
    let body = vec![body.slice(..body.len() / 3), body.slice(body.len() / 3..)];
    let checksum = crc32c(&body);
    let size: u64 = body.iter().map(|piece| piece.len() as u64).sum();
    let part = upload.put_part(number, body, checksum).await.unwrap();
    assert_eq!((part.number, part.size, part.checksum), (number, size, Some(checksum)));
    part
}

/// Whether a part as it is listed is the one that was put.
fn same(listed: &Part, put: &Part) -> bool {
    let known = listed.checksum.is_none_or(|checksum| Some(checksum) == put.checksum);
    known && (listed.number, &listed.etag, listed.size) == (put.number, &put.etag, put.size)
}

async fn parts_become_an_object(bench: &Bench) {
    let key = bench.key("parts/object");
    let attributes = Attributes { content_type: Some("video/mp4".into()), ..Attributes::default() };
    let bodies = [noise(10, PART), noise(11, PART), noise(12, PART), noise(13, 1_234)];
    let upload = bench.blobs.start_multipart(&key, &attributes).await.unwrap();
    let upload = upload.as_ref();
    // In parallel and out of order; part 2 is replaced.
    put_part(upload, 2, &noise(99, PART)).await;
    let mut parts = try_join_all([3_u32, 1, 4, 2].map(|number| {
        let body = &bodies[number as usize - 1];
        async move { Ok::<_, ()>(put_part(upload, number, body).await) }
    }))
    .await
    .unwrap();
    parts.sort_by_key(|part| part.number);

    let wrong = Crc32c(crc32c(&bodies[3..]).0 ^ 1);
    let error = upload.put_part(4, vec![bodies[3].clone()], wrong).await.unwrap_err();
    assert!(matches!(error.kind, StoreErrorKind::Corrupt | StoreErrorKind::Invalid), "{error}");
    let listed = upload.parts().await.unwrap();
    assert!(listed.is_sorted_by_key(|part| part.number), "{listed:?}");
    for part in &parts {
        assert!(listed.iter().any(|listed| same(listed, part)), "the store has {part:?}: {listed:?}");
    }

    assert_eq!(bench.blobs.head(&key).await.unwrap(), None, "nothing is visible before the end");
    if !bench.blobs.names_objects() {
        assert_eq!(bench.blobs.list_blobs(&bench.prefix("parts/"), None, 10).await.unwrap(), []);
    }
    let stored = upload.complete(&parts).await.unwrap();
    let expected = bodies.iter().fold(BytesMut::new(), |mut whole, body| {
        whole.extend_from_slice(body);
        whole
    });
    assert_eq!(stored.size, expected.len() as u64);
    assert!(bench.blobs.names_objects() || stored.key == key, "{}", stored.key);
    let found = bench.blobs.get(&stored.key, &GetOptions::default()).await.unwrap();
    assert_eq!(found.meta.size, expected.len() as u64);
    if !bench.blobs.names_objects() {
        assert_eq!(found.meta.content_type.as_deref(), Some("video/mp4"));
    }
    assert!(whole(found).await.unwrap() == expected.freeze(), "the object is its parts in order");
    if !bench.blobs.names_objects() {
        let listed = bench.blobs.list_blobs(&bench.prefix("parts/"), None, 10).await.unwrap();
        assert_eq!(listed.len(), 1);
        same_etag(bench, &listed[0]).await;
    }
}

async fn an_upload_is_resumed_by_its_id(bench: &Bench) {
    let key = bench.key("resumed");
    let (first, second) = (noise(20, PART), noise(21, 77));
    let upload = bench.blobs.start_multipart(&key, &Attributes::default()).await.unwrap();
    let put = put_part(upload.as_ref(), 1, &first).await;
    let id = upload.id().to_owned();
    drop(upload);

    let upload = bench.blobs.resume_multipart(&key, &id).await.unwrap();
    assert_eq!(upload.id(), id);
    let listed = upload.parts().await.unwrap();
    // A store that names objects goes by the parts that its caller has noted.
    assert_eq!(listed.len(), usize::from(!bench.blobs.names_objects()));
    assert!(
        listed.iter().all(|listed| same(listed, &put)),
        "a part is known by its ETag, and by its checksum where it is told: {listed:?}"
    );
    let parts = [put, put_part(upload.as_ref(), 2, &second).await];
    let stored = upload.complete(&parts).await.unwrap();
    let found = bench.blobs.get(&stored.key, &GetOptions::default()).await.unwrap();
    assert_eq!(crc32c(&[whole(found).await.unwrap()]), crc32c(&[first, second]));
}

async fn an_aborted_upload_is_gone(bench: &Bench) {
    let key = bench.key("aborted");
    let upload = bench.blobs.start_multipart(&key, &Attributes::default()).await.unwrap();
    let part = put_part(upload.as_ref(), 1, &noise(30, 100)).await;
    let id = upload.id().to_owned();
    upload.abort().await.unwrap();
    if !bench.blobs.names_objects() {
        let error = bench.blobs.resume_multipart(&key, &id).await.unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::NotFound, "{error}");
    }
    assert!(upload.complete(&[part]).await.is_err());
    assert_eq!(bench.blobs.head(&key).await.unwrap(), None);
}
