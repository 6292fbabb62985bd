//! The promises of the direct store.

use super::{FileStore, FileStoreOptions, body::crc32c, uploads::MIN_PART_BYTES};
use crate::{Attributes, BlobStore, CreateError, Created, Filer, GetOptions, StoreErrorKind};
use bytes::Bytes;
use futures::TryStreamExt;
use refstream_types::{ByteRange, Crc32c, Key};
use std::{path::Path, sync::Arc};

fn key(text: &str) -> Key {
    text.parse().unwrap()
}

pub(super) fn open(dir: &Path) -> Arc<FileStore> {
    FileStore::open(dir, "refstream", FileStoreOptions { fsync: false, ..FileStoreOptions::default() }).unwrap()
}

/// Bytes that repeat only every 65,521, a prime: what lands in the wrong place shows.
pub(super) fn pattern(size: usize, seed: u8) -> Bytes {
    let block: Vec<u8> =
        (0..65_521_usize).map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed) ^ (at >> 8) as u8).collect();
    let mut bytes = block.repeat(size / block.len() + 1);
    bytes.truncate(size);
    bytes.into()
}

async fn put(store: &FileStore, at: &str, bytes: &[u8]) {
    let bytes = Bytes::copy_from_slice(bytes);
    let checksum = crc32c(&bytes);
    store.put(&key(at), vec![bytes], checksum, &Attributes::default()).await.unwrap();
}

async fn body(store: &FileStore, at: &str, range: Option<ByteRange>) -> Vec<u8> {
    let found = store.get(&key(at), &GetOptions { range, ..GetOptions::default() }).await.unwrap();
    found
        .body
        .try_fold(Vec::new(), |mut all, piece| async move {
            all.extend(piece);
            Ok(all)
        })
        .await
        .unwrap()
}

async fn names(store: &FileStore, prefix: &str) -> Vec<String> {
    let listed = store.list(prefix, None, 1_000).await.unwrap();
    listed.into_iter().map(|listed| listed.key.to_string()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_many_concurrent_creates_exactly_one_wins() {
    let dir = tempfile::tempdir().unwrap();
    let options = FileStoreOptions::default();
    let store = FileStore::open(dir.path(), "refstream", options).unwrap();
    for round in 0..8 {
        let at = key(&format!("journals/{round}/slot"));
        let racers = (0..32_u8).map(|racer| {
            let (store, at) = (Arc::clone(&store), at.clone());
            tokio::spawn(async move { (racer, store.create(&at, Bytes::from(vec![racer; 1_000])).await.unwrap()) })
        });
        let outcomes = futures::future::join_all(racers).await.into_iter().map(Result::unwrap);
        let winners: Vec<u8> =
            outcomes.filter(|(_, outcome)| *outcome == Created::New).map(|(racer, _)| racer).collect();
        assert_eq!(winners.len(), 1);
        assert_eq!(store.read(&at).await.unwrap().unwrap(), vec![winners[0]; 1_000]);
    }
    assert_eq!(std::fs::read_dir(dir.path().join(".refstream/tmp")).unwrap().count(), 0);
}

#[tokio::test]
async fn keys_are_plain_paths() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    put(&store, "topics/t-1/data/ingest_date=2026-11-29/a.parquet", b"PAR1").await;
    let path = dir.path().join("refstream/topics/t-1/data/ingest_date=2026-11-29/a.parquet");
    assert_eq!(std::fs::read(path).unwrap(), b"PAR1");
    assert_eq!(store.uri(&key("a/b")), "s3://refstream/a/b");
}

#[tokio::test]
async fn odd_keys_live_together_and_outlive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let long = "x".repeat(300);
    let longest = "é/".repeat(341) + "x";
    let mut keys = vec![
        "a".to_owned(),
        "a/b".to_owned(),
        "a/b/c".to_owned(),
        "a-b".to_owned(),
        "a0".to_owned(),
        "a b%2Fc+=".to_owned(),
        format!("deep/{long}/x"),
        format!("deep/{long}"),
        longest,
        ".refstream/lock".to_owned(),
        "ä/…".to_owned(),
    ];
    let mut store = open(dir.path());
    // Both orders of a clash.
    for (nr, at) in keys.iter().enumerate() {
        put(&store, at, &[nr as u8; 3]).await;
    }
    put(&store, "folder/inside", b"1").await;
    put(&store, "folder", b"2").await;
    keys.extend(["folder".to_owned(), "folder/inside".to_owned()]);
    for restart in [false, true] {
        if restart {
            drop(store);
            store = open(dir.path());
        }
        for (nr, at) in keys.iter().take(11).enumerate() {
            assert_eq!(body(&store, at, None).await, [nr as u8; 3], "{at}");
            assert_eq!(store.create(&key(at), Bytes::new()).await.unwrap(), Created::Exists);
        }
        let mut sorted = keys.clone();
        sorted.sort();
        assert_eq!(names(&store, "").await, sorted);
    }
    for at in &keys {
        store.remove(&key(at)).await.unwrap();
        assert_eq!(store.read(&key(at)).await.unwrap(), None);
    }
    assert!(names(&store, "").await.is_empty());
    assert_eq!(std::fs::read_dir(dir.path().join("refstream")).unwrap().count(), 0, "empty folders are removed");
    assert_eq!(std::fs::read_dir(dir.path().join(".refstream/escaped")).unwrap().count(), 0);
    store.remove(&key("a")).await.unwrap();
}

#[tokio::test]
async fn listing_is_ascending_by_key_and_pages() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let long = format!("a/{}", "y".repeat(300));
    let mut all: Vec<String> =
        ["a-b", "a/b", "a/b-c", "a/b/c", "a0", "a", "b/1", "b/2", "b/3/4", "c"].map(str::to_owned).into();
    all.push(long);
    for at in &all {
        put(&store, at, b"1").await;
    }
    all.sort();
    assert_eq!(names(&store, "").await, all);
    for prefix in ["a", "a/", "a/b", "a/b/", "b/", "b/3", "b", "x", "a/y", "/", "../", "a//", "a/../"] {
        let expected: Vec<_> = all.iter().filter(|key| key.starts_with(prefix)).cloned().collect();
        assert_eq!(names(&store, prefix).await, expected, "{prefix}");
    }
    for limit in 1..4 {
        let (mut paged, mut after) = (Vec::new(), None);
        loop {
            let page = store.list("", after.as_ref(), limit).await.unwrap();
            let Some(last) = page.last() else { break };
            after = Some(last.key.clone());
            paged.extend(page.into_iter().map(|listed| listed.key.to_string()));
        }
        assert_eq!(paged, all);
    }
}

#[tokio::test]
async fn ranges_are_exact() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let bytes = pattern(3_000_000, 1);
    put(&store, "big", &bytes).await;
    assert_eq!(body(&store, "big", None).await, bytes);
    for (offset, length) in
        [(0, 1), (5, 0), (1_000_000, 1_500_000), (2_999_990, 100), (3_000_000, 5), (u64::MAX, u64::MAX)]
    {
        let range = ByteRange { offset, length };
        let start = offset.min(3_000_000) as usize;
        let end = offset.saturating_add(length).min(3_000_000) as usize;
        assert_eq!(body(&store, "big", Some(range)).await, bytes[start..end], "{range:?}");
        assert_eq!(store.read_range(&key("big"), range).await.unwrap().unwrap(), bytes[start..end]);
    }
    assert_eq!(store.read_range(&key("none"), ByteRange { offset: 0, length: 1 }).await.unwrap(), None);
}

#[tokio::test]
async fn a_wrong_checksum_publishes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let error =
        store.put(&key("k"), vec![Bytes::from_static(b"bytes")], Crc32c(1), &Attributes::default()).await.unwrap_err();
    let CreateError::DidNotHappen(error) = error else { panic!("{error}") };
    assert_eq!(error.kind, StoreErrorKind::Corrupt);
    assert!(store.head(&key("k")).await.unwrap().is_none());
    assert_eq!(std::fs::read_dir(dir.path().join(".refstream/tmp")).unwrap().count(), 0);
}

#[tokio::test]
async fn an_etag_pins_an_object() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let attributes = Attributes { content_type: Some("image/png".to_owned()), ..Attributes::default() };
    let bytes = Bytes::from_static(b"same");
    let first = store.put(&key("k"), vec![bytes.clone()], crc32c(&bytes), &attributes).await.unwrap();
    let found = store.get(&key("k"), &GetOptions { etag: first.etag.clone(), ..GetOptions::default() }).await.unwrap();
    assert_eq!(found.meta.content_type.as_deref(), Some("image/png"));
    assert_eq!(found.meta.etag, first.etag);
    let second = store.put(&key("k"), vec![bytes.clone()], crc32c(&bytes), &attributes).await.unwrap();
    assert_ne!(first.etag, second.etag);
    let stale = store.get(&key("k"), &GetOptions { etag: first.etag, ..GetOptions::default() }).await;
    assert_eq!(stale.err().unwrap().kind, StoreErrorKind::Changed);
    let missing = store.get(&key("none"), &GetOptions::default()).await;
    assert_eq!(missing.err().unwrap().kind, StoreErrorKind::NotFound);
}

#[tokio::test]
async fn a_reader_is_not_disturbed_by_overwrite_and_delete() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let (old, new) = (pattern(4_000_000, 1), pattern(5_000_000, 2));
    put(&store, "k", &old).await;
    let found = store.get(&key("k"), &GetOptions::default()).await.unwrap();
    put(&store, "k", &new).await;
    let again = store.get(&key("k"), &GetOptions::default()).await.unwrap();
    store.delete(&key("k")).await.unwrap();
    for (found, bytes) in [(found, old), (again, new)] {
        assert_eq!(found.meta.size, bytes.len() as u64);
        let read: Vec<Bytes> = found.body.try_collect().await.unwrap();
        assert_eq!(read.concat(), bytes);
    }
}

#[tokio::test]
async fn a_crash_leaves_no_half_objects_and_keeps_uploads() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let upload = store.start_multipart(&key("big"), &Attributes::default()).await.unwrap();
    let id = upload.id().to_owned();
    let bytes = pattern(100, 3);
    let part = upload.put_part(1, vec![bytes.clone()], crc32c(&bytes)).await.unwrap();
    drop(upload);
    drop(store);
    std::fs::write(dir.path().join(".refstream/tmp/leftover"), b"half").unwrap();
    let folder = dir.path().join(".refstream/uploads").join(&id);
    std::fs::write(folder.join("00002-0000000000000000"), b"half a part").unwrap();
    std::fs::create_dir(dir.path().join(".refstream/uploads/never-started")).unwrap();
    let store = open(dir.path());
    assert!(!dir.path().join(".refstream/tmp/leftover").exists());
    assert!(!dir.path().join(".refstream/uploads/never-started").exists());
    assert!(!folder.join("00002-0000000000000000").exists());
    assert!(names(&store, "").await.is_empty());
    let upload = store.resume_multipart(&key("big"), &id).await.unwrap();
    assert_eq!(upload.parts().await.unwrap(), std::slice::from_ref(&part));
    upload.complete(&[part]).await.unwrap();
    assert_eq!(body(&store, "big", None).await, bytes);
    assert!(!folder.exists());
    assert!(store.resume_multipart(&key("big"), &id).await.is_err());
}

#[tokio::test]
async fn parts_in_any_order_and_size_make_the_object() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let size = MIN_PART_BYTES as usize;
    // Sizes of the parts, the order in which they arrive, and which of them come twice.
    let cases: [(&[usize], &[u32], &[u32]); 5] = [
        (&[size, size, 100], &[1, 2, 3], &[]),
        (&[size, size, 100], &[3, 1, 2], &[]),
        (&[size, size, 100], &[2, 3, 1], &[2]),
        (&[size + 1, size, size + 7, 1], &[4, 3, 2, 1], &[]),
        (&[size], &[1], &[1]),
    ];
    for (nr, (sizes, order, twice)) in cases.into_iter().enumerate() {
        let at = key(&format!("multi/{nr}"));
        let attributes = Attributes { content_type: Some("video/mp4".to_owned()), ..Attributes::default() };
        let upload = store.start_multipart(&at, &attributes).await.unwrap();
        let bytes: Vec<Bytes> = sizes.iter().enumerate().map(|(nr, &size)| pattern(size, nr as u8)).collect();
        for number in twice {
            let wrong = pattern(size, 99);
            upload.put_part(*number, vec![wrong.clone()], crc32c(&wrong)).await.unwrap();
        }
        for &number in order {
            let part = &bytes[number as usize - 1];
            let pieces = part.chunks(700_000).map(|piece| part.slice_ref(piece)).collect();
            upload.put_part(number, pieces, crc32c(part)).await.unwrap();
        }
        let parts = upload.parts().await.unwrap();
        assert!(store.head(&at).await.unwrap().is_none(), "nothing is visible before");
        let stored = upload.complete(&parts).await.unwrap();
        let whole = bytes.concat();
        assert_eq!(stored.size, whole.len() as u64);
        assert_eq!(body(&store, at.as_str(), None).await, whole);
        let (_, properties) = store.inner.open(&at).unwrap().unwrap();
        assert_eq!(properties.checksum, Some(crc32c(&whole)));
        assert_eq!(properties.content_type.as_deref(), Some("video/mp4"));
    }
    assert_eq!(std::fs::read_dir(dir.path().join(".refstream/uploads")).unwrap().count(), 0);
}

#[tokio::test]
async fn wrong_parts_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let upload = store.start_multipart(&key("k"), &Attributes::default()).await.unwrap();
    let small = Bytes::from_static(b"small");
    let error = upload.put_part(1, vec![small.clone()], Crc32c(0)).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Corrupt);
    assert!(upload.parts().await.unwrap().is_empty());
    for number in [0, 10_001] {
        let error = upload.put_part(number, vec![small.clone()], crc32c(&small)).await.unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::Invalid);
    }
    let first = upload.put_part(1, vec![small.clone()], crc32c(&small)).await.unwrap();
    let second = upload.put_part(2, vec![small.clone()], crc32c(&small)).await.unwrap();
    let mut other = second.clone();
    other.etag = "other".to_owned();
    for parts in [vec![], vec![first.clone(), other], vec![second.clone(), first.clone()], vec![first, second]] {
        let error = upload.complete(&parts).await.unwrap_err();
        assert_eq!(error.error().kind, StoreErrorKind::Invalid);
    }
    upload.abort().await.unwrap();
    assert!(upload.parts().await.unwrap_err().is_not_found());
    assert!(upload.put_part(1, vec![small.clone()], crc32c(&small)).await.unwrap_err().is_not_found());
    assert_eq!(std::fs::read_dir(dir.path().join(".refstream/uploads")).unwrap().count(), 0);
}

#[tokio::test]
async fn one_process_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let error = FileStore::open(dir.path(), "refstream", FileStoreOptions::default()).unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Unavailable);
    assert!(error.to_string().contains("another process"));
    drop(store);
    open(dir.path());
    for bucket in ["", "ab", "../up", ".refstream", "UPPER", &"x".repeat(64)] {
        let error = FileStore::open(dir.path(), bucket, FileStoreOptions::default()).unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::Invalid, "{bucket}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn creates_and_deletes_in_one_folder_do_not_disturb_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let tasks = (0..16).map(|task| {
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            for round in 0..50 {
                let at = key(&format!("deep/er/{}/{task}-{round}", round % 2));
                assert_eq!(store.create(&at, Bytes::from_static(b"1")).await.unwrap(), Created::New);
                assert_eq!(store.create(&at, Bytes::from_static(b"2")).await.unwrap(), Created::Exists);
                store.remove(&at).await.unwrap();
                assert_eq!(store.read(&at).await.unwrap(), None);
            }
        })
    });
    futures::future::join_all(tasks).await.into_iter().for_each(Result::unwrap);
    assert_eq!(std::fs::read_dir(store.objects()).unwrap().count(), 0);
}

#[tokio::test]
async fn files_of_others_are_objects_too_but_links_and_odd_names_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    std::fs::write(store.objects().join("by-hand"), b"hello").unwrap();
    std::os::unix::fs::symlink("/etc/hostname", store.objects().join("link")).unwrap();
    use std::os::unix::ffi::OsStrExt;
    std::fs::write(store.objects().join(std::ffi::OsStr::from_bytes(b"bad\xff")), b"x").unwrap();
    assert_eq!(names(&store, "").await, ["by-hand"]);
    assert_eq!(body(&store, "by-hand", None).await, b"hello");
    assert!(store.head(&key("by-hand")).await.unwrap().unwrap().etag.is_some());
    assert_eq!(store.read(&key("link")).await.unwrap(), None);
}
