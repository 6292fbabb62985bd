//! The promises of the store, kept over HTTP, with the S3 adapter as the client.

use super::*;
use crate::{
    Attributes, BlobStore, CreateError, Created, Filer, GetOptions, StoreErrorKind,
    embedded::{FileStore, FileStoreOptions, body::crc32c, tests::pattern, uploads::MIN_PART_BYTES},
    s3::{S3Config as ClientConfig, S3Store},
};
use bytes::Bytes;
use futures::TryStreamExt;
use refstream_types::{ByteRange, Crc32c, Key};

struct Rig {
    _dir: tempfile::TempDir,
    store: Arc<FileStore>,
    server: S3Server,
    client: Arc<S3Store>,
}

fn config(server: &S3Server, keys: &EmbeddedKeys) -> ClientConfig {
    ClientConfig {
        endpoint: Some(server.endpoint()),
        bucket: "refstream".to_owned(),
        credentials: Some((keys.access_key().to_owned(), keys.secret_key().to_owned())),
        attempts: 1,
        ..ClientConfig::default()
    }
}

async fn rig() -> Rig {
    let dir = tempfile::tempdir().unwrap();
    let options = FileStoreOptions { fsync: false, ..FileStoreOptions::default() };
    let store = FileStore::open(dir.path(), "refstream", options).unwrap();
    let keys = EmbeddedKeys::load_or_generate(dir.path()).unwrap();
    let server = S3Server::start(Arc::clone(&store), keys.clone(), "127.0.0.1:0".parse().unwrap()).await.unwrap();
    let client = Arc::new(S3Store::open("test", config(&server, &keys)).await.unwrap());
    Rig { _dir: dir, store, server, client }
}

fn key(text: &str) -> Key {
    text.parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_many_concurrent_creates_exactly_one_wins() {
    let rig = rig().await;
    for round in 0..4 {
        let at = key(&format!("race/{round}"));
        let racers = (0..32_u8).map(|racer| {
            let (client, at) = (Arc::clone(&rig.client), at.clone());
            tokio::spawn(async move { (racer, client.create(&at, Bytes::from(vec![racer; 1_000])).await.unwrap()) })
        });
        let outcomes = futures::future::join_all(racers).await.into_iter().map(Result::unwrap);
        let winners: Vec<u8> =
            outcomes.filter(|(_, outcome)| *outcome == Created::New).map(|(racer, _)| racer).collect();
        assert_eq!(winners.len(), 1);
        let bytes = vec![winners[0]; 1_000];
        assert_eq!(rig.client.read(&at).await.unwrap().unwrap(), bytes);
        assert_eq!(rig.store.read(&at).await.unwrap().unwrap(), bytes, "both ways lead to one store");
    }
}

#[tokio::test]
async fn odd_keys_ranges_and_listings() {
    let rig = rig().await;
    let keys = ["a", "a-b", "a/b", "a/b/c", "a0", "sp ace/ü+%2F&?=#.txt", &"x".repeat(300)].map(key);
    for at in &keys {
        let bytes = Bytes::copy_from_slice(at.as_str().as_bytes());
        rig.client.put(at, vec![bytes.clone()], crc32c(&bytes), &Attributes::default()).await.unwrap();
        assert_eq!(rig.client.read(at).await.unwrap().unwrap(), bytes);
        let range = ByteRange { offset: 0, length: 1 };
        assert_eq!(rig.client.read_range(at, range).await.unwrap().unwrap(), bytes[..1]);
    }
    let listed = rig.client.list("", None, 100).await.unwrap();
    assert_eq!(listed.iter().map(|listed| listed.key.clone()).collect::<Vec<_>>(), keys);
    let listed = rig.client.list("a", Some(&keys[1]), 2).await.unwrap();
    assert_eq!(listed.iter().map(|listed| listed.key.clone()).collect::<Vec<_>>(), keys[2..4]);
    rig.client.remove(&keys[0]).await.unwrap();
    assert_eq!(rig.client.read(&keys[0]).await.unwrap(), None);
    assert!(rig.client.head(&keys[0]).await.unwrap().is_none());
}

#[tokio::test]
async fn a_wrong_checksum_publishes_nothing() {
    let rig = rig().await;
    for size in [5, 3_000_000] {
        let bytes = pattern(size, 1);
        let error = rig.client.put(&key("k"), vec![bytes], Crc32c(1), &Attributes::default()).await.unwrap_err();
        let CreateError::DidNotHappen(error) = error else { panic!("{error}") };
        assert_eq!(error.kind, StoreErrorKind::Corrupt);
        assert!(rig.store.head(&key("k")).await.unwrap().is_none());
    }
}

#[tokio::test]
async fn large_bodies_and_parts_arrive_whole() {
    let rig = rig().await;
    let bytes = pattern(9_000_000, 2);
    let pieces = bytes.chunks(1_000_001).map(|piece| bytes.slice_ref(piece)).collect();
    let attributes = Attributes { content_type: Some("image/png".to_owned()), ..Attributes::default() };
    let stored = rig.client.put(&key("big"), pieces, crc32c(&bytes), &attributes).await.unwrap();
    let found = rig.client.get(&key("big"), &GetOptions::default()).await.unwrap();
    assert_eq!((found.meta.etag, found.meta.content_type), (stored.etag, attributes.content_type.clone()));
    let read: Vec<Bytes> = found.body.try_collect().await.unwrap();
    assert_eq!(read.concat(), bytes);

    let upload = rig.client.start_multipart(&key("multi"), &attributes).await.unwrap();
    let cut = MIN_PART_BYTES as usize;
    for (number, part) in [(2, bytes.slice(cut..)), (1, bytes.slice(..cut))] {
        let checksum = crc32c(&part);
        upload.put_part(number, vec![part], checksum).await.unwrap();
    }
    let parts = upload.parts().await.unwrap();
    assert!(rig.store.head(&key("multi")).await.unwrap().is_none());
    upload.complete(&parts).await.unwrap();
    assert_eq!(rig.store.read(&key("multi")).await.unwrap().unwrap(), bytes);
}

#[tokio::test]
async fn only_those_with_the_keys_are_served_and_a_stopped_server_is_gone() {
    let rig = rig().await;
    let strangers = EmbeddedKeys::new("RSSTRANGER", "secret");
    let stranger = S3Store::open("test", config(&rig.server, &strangers)).await.unwrap();
    let error = stranger.read(&key("k")).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::AccessDenied);
    let taken = S3Server::start(Arc::clone(&rig.store), strangers, rig.server.address()).await.unwrap_err();
    assert_eq!(taken.kind(), std::io::ErrorKind::AddrInUse);
    rig.server.stop().await;
    let error = rig.client.read(&key("k")).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Unavailable);
}

mod grants;
