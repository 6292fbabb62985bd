//! What the native SeaweedFS adapter makes of each answer of a master and a volume server that follow a script.

#![allow(clippy::unwrap_used, reason = "tests")]

use bytes::Bytes;
use futures::TryStreamExt;
use refstream_filer_adapter::{
    Attributes, BlobStore, CreateError, GetOptions, StoreErrorKind, Stored, TokioRuntime, crc32c,
    seaweed::{SeaweedConfig, SeaweedStore},
};
use refstream_types::ByteRange;
use scripted::{Answer, Server, answer};
use std::sync::Arc;

#[path = "support/scripted.rs"]
mod scripted;

fn store(masters: &[&Server]) -> SeaweedStore {
    let masters = masters.iter().map(|master| master.endpoint.trim_start_matches("http://").to_owned()).collect();
    let config = SeaweedConfig { masters, attempts: 3, ..SeaweedConfig::default() };
    SeaweedStore::open("test", config, Arc::new(TokioRuntime::new())).unwrap()
}

fn body() -> Vec<Bytes> {
    vec![Bytes::from_static(b"some "), Bytes::from_static(b"bytes")]
}

/// An assignment of one payload to a volume server.
fn assigned(fid: &str, server: &Server) -> Answer {
    let url = server.endpoint.trim_start_matches("http://");
    answer("200 OK", "", &format!(r#"{{"fid":"{fid}","url":"{url}","publicUrl":"{url}","count":2}}"#))
}

fn located(address: &str) -> Answer {
    answer("200 OK", "", &format!(r#"{{"locations":[{{"url":"{address}","publicUrl":"{address}"}}]}}"#))
}

fn stored(size: usize, etag: u32) -> Answer {
    answer("201 Created", "", &format!(r#"{{"name":"x","size":{size},"eTag":"{etag:08x}"}}"#))
}

async fn put(store: &SeaweedStore) -> Result<Stored, CreateError> {
    store.put(&"asked".parse().unwrap(), body(), crc32c(&body()), &Attributes::default()).await
}

#[tokio::test]
async fn an_id_is_never_used_again_after_a_failure() {
    let volume = Server::start([
        answer("500 Internal Server Error", "", "replica failed"),
        answer("202 Accepted", "", "{}"),
        stored(10, crc32c(&body()).0),
    ])
    .await;
    let master = Server::start([assigned("1,0100000001", &volume), assigned("2,0200000002", &volume)]).await;
    let stored = put(&store(&[&master])).await.unwrap();
    assert_eq!(stored.key.as_str(), "2,0200000002");
    let heads = volume.heads.lock().unwrap();
    assert!(heads[0].starts_with("put /1,0100000001?fsync=true "), "{}", heads[0]);
    assert!(heads[0].contains("content-type: application/octet-stream\r\n"), "{}", heads[0]);
    assert!(heads[0].contains("content-length: 10\r\n"), "{}", heads[0]);
    assert!(heads[1].starts_with("delete /1,0100000001 "), "what may have been left is removed: {}", heads[1]);
    assert!(heads[2].starts_with("put /2,0200000002?fsync=true "), "{}", heads[2]);
}

#[tokio::test]
async fn a_master_that_asks_for_patience_gets_it() {
    let volume = Server::start([stored(10, crc32c(&body()).0)]).await;
    let master = Server::start([
        answer("503 Service Unavailable", "retry-after: 0\r\n", r#"{"error":"a leader is warming up"}"#),
        answer("406 Not Acceptable", "", r#"{"error":"no writable volumes"}"#),
        assigned("1,0100000001", &volume),
    ])
    .await;
    assert_eq!(put(&store(&[&master])).await.unwrap().key.as_str(), "1,0100000001");
    // And one that is not there is passed over.
    let other = Server::start([assigned("1,0300000001", &volume)]).await;
    let gone = Server { endpoint: "http://127.0.0.1:1".into(), heads: Arc::default() };
    let error = put(&store(&[&gone, &other])).await.unwrap_err();
    assert!(matches!(error, CreateError::MayHaveHappened(_)), "the volume server hung up on it: {error}");
    assert!(other.requests() > 0);
}

#[tokio::test]
async fn a_volume_server_that_has_other_bytes_is_found_out() {
    // A form's content type stores nothing and answers 201; a flipped bit shows in the sum.
    for wrong in [(0, 0), (9, crc32c(&body()).0), (10, crc32c(&body()).0 ^ 1)] {
        let volume =
            Server::start((0..3).flat_map(|_| [stored(wrong.0, wrong.1), answer("202 Accepted", "", "")])).await;
        let master = Server::start((1..4).map(|n| assigned(&format!("1,0{n}00000001"), &volume))).await;
        let error = put(&store(&[&master])).await.unwrap_err();
        assert_eq!(error.error().kind, StoreErrorKind::Corrupt, "{error}");
        assert_eq!(volume.requests(), 6, "each of three tries is removed again");
    }
}

#[tokio::test]
async fn a_volume_that_moved_is_found_again() {
    let ranged = |text: &str| answer("206 Partial Content", "content-range: bytes 2-4/10\r\netag: \"c\"\r\n", text);
    let volume = Server::start([ranged("me "), answer("404 Not Found", "", ""), ranged("me ")]).await;
    let here = volume.endpoint.trim_start_matches("http://");
    let master = Server::start([located("127.0.0.1:1"), located(here), located(here)]).await;
    let (store, key) = (store(&[&master]), "7,0100000001".parse().unwrap());
    let options = GetOptions { range: Some(ByteRange { offset: 2, length: 3 }), ..GetOptions::default() };
    let found = store.get(&key, &options).await.unwrap();
    assert_eq!(found.meta.size, 10);
    let pieces: Vec<Bytes> = found.body.try_collect().await.unwrap();
    assert_eq!(pieces.concat(), b"me ");
    assert_eq!(master.requests(), 2, "nobody listened where it was said to be, so the master was asked once more");
    // Where it still is, a 404 is the truth.
    let error = store.get(&key, &options).await.err().unwrap();
    assert_eq!(error.kind, StoreErrorKind::NotFound, "{error}");
    assert_eq!(master.requests(), 3);
}

#[tokio::test]
async fn a_needle_that_cannot_be_read_is_damaged_and_a_server_that_cannot_be_reached_is_not() {
    let volume = Server::start([answer("500 Internal Server Error", "", "")]).await;
    let here = volume.endpoint.trim_start_matches("http://");
    let master = Server::start([located(here), located(here)]).await;
    let key = "7,0100000001".parse().unwrap();
    let error = store(&[&master]).get(&key, &GetOptions::default()).await.err().unwrap();
    assert_eq!(error.kind, StoreErrorKind::Corrupt, "{error}");
    let master = Server::start((0..9).map(|_| located("127.0.0.1:1"))).await;
    let error = store(&[&master]).get(&key, &GetOptions::default()).await.err().unwrap();
    assert_eq!(error.kind, StoreErrorKind::Unavailable, "{error}");
    let unknown = || answer("404 Not Found", "", r#"{"error":"volume id 7 not found"}"#);
    let master = Server::start((0..9).map(|_| unknown())).await;
    let error = store(&[&master]).head(&key).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Unavailable, "its server may be away: {error}");
}

#[tokio::test]
async fn keys_of_other_stores_are_not_found() {
    let master = Server::start([]).await;
    let store = store(&[&master]);
    let key = "payloads/t-1/ab/abcdef".parse().unwrap();
    assert_eq!(store.head(&key).await.unwrap(), None);
    let error = store.get(&key, &GetOptions::default()).await.err().unwrap();
    assert_eq!(error.kind, StoreErrorKind::NotFound);
    assert_eq!(master.requests(), 0, "nothing is asked");
}
