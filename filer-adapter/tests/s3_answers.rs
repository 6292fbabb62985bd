//! What the S3 adapter makes of each answer of a server that follows a script: above all, whether it may have happened.

#![allow(clippy::unwrap_used, reason = "tests")]

use bytes::Bytes;
use futures::TryStreamExt;
use refstream_filer_adapter::{
    Attributes, BlobStore, CreateError, Created, Filer, GetOptions, StoreErrorKind, crc32c,
    s3::{S3Config, S3Store},
};
use refstream_types::{ByteRange, Crc32c, Key};
use scripted::{Answer, Server, answer};
use std::time::Duration;
use tokio::net::TcpListener;

#[path = "support/scripted.rs"]
mod scripted;

fn error(status: &str, code: &str) -> Answer {
    answer(status, "", &format!("<Error><Code>{code}</Code><Message>as scripted</Message></Error>"))
}

async fn store_of(server: &Server) -> S3Store {
    store(&server.endpoint, 3).await
}

async fn store(endpoint: &str, attempts: usize) -> S3Store {
    let config = S3Config {
        endpoint: Some(endpoint.into()),
        bucket: "bucket".into(),
        credentials: Some(("access".into(), "very-secret".into())),
        request_timeout: Duration::from_secs(20),
        attempts,
        ..S3Config::default()
    };
    S3Store::open("test", config).await.unwrap()
}

fn key() -> Key {
    "some/key".parse().unwrap()
}

/// Creates against one answer: the outcome, and the head of the one request that may be sent.
async fn create(answer: Answer) -> (Result<Created, CreateError>, String) {
    let server = Server::start([answer]).await;
    let created = store_of(&server).await.create(&key(), Bytes::from_static(b"bytes")).await;
    assert_eq!(server.requests(), 1, "a create is never repeated inside");
    let head = server.heads.lock().unwrap()[0].clone();
    (created, head)
}

fn may_have_happened(created: Result<Created, CreateError>) -> StoreErrorKind {
    match created {
        Err(CreateError::MayHaveHappened(error)) => {
            assert!(error.is_retryable(), "{error}");
            error.kind
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_create_is_conditional_checked_and_not_hashed() {
    let (created, head) = create(answer("200 OK", "etag: \"x\"\r\n", "")).await;
    assert_eq!(created.unwrap(), Created::New);
    assert!(head.starts_with("put /bucket/some/key"), "{head}");
    assert!(head.contains("if-none-match: *"), "{head}");
    assert!(head.contains("x-amz-content-sha256: unsigned-payload"), "{head}");
    assert!(head.contains("x-amz-checksum-crc32c: "), "{head}");
    assert!(head.contains("content-length: 5\r\n"), "{head}");
}

#[tokio::test]
async fn a_create_says_whether_it_may_have_happened() {
    let (created, _) = create(error("412 Precondition Failed", "PreconditionFailed")).await;
    assert_eq!(created.unwrap(), Created::Exists);
    for (status, code, kind) in [
        ("409 Conflict", "ConditionalRequestConflict", StoreErrorKind::Unavailable),
        ("500 Internal Server Error", "InternalError", StoreErrorKind::Unavailable),
        ("503 Service Unavailable", "SlowDown", StoreErrorKind::Throttled(None)),
        ("507 Insufficient Storage", "InsufficientStorage", StoreErrorKind::NoSpace),
    ] {
        let (created, _) = create(error(status, code)).await;
        assert_eq!(may_have_happened(created), kind, "{status}");
    }
    let (created, _) = create(answer("503 Slow Down", "retry-after: 7\r\n", "")).await;
    assert_eq!(may_have_happened(created), StoreErrorKind::Throttled(Some(Duration::from_secs(7))));
    let (created, _) = create(Answer::Nothing).await;
    assert_eq!(may_have_happened(created), StoreErrorKind::Unavailable, "the connection was closed without an answer");
    for (status, code, kind) in [
        ("403 Forbidden", "AccessDenied", StoreErrorKind::AccessDenied),
        ("404 Not Found", "NoSuchBucket", StoreErrorKind::NoSuchStore),
        ("400 Bad Request", "BadDigest", StoreErrorKind::Corrupt),
        ("400 Bad Request", "InvalidArgument", StoreErrorKind::Invalid),
    ] {
        let (created, _) = create(error(status, code)).await;
        assert!(matches!(&created, Err(CreateError::DidNotHappen(error)) if error.kind == kind), "{created:?}");
    }
}

#[tokio::test]
async fn nothing_happens_where_nobody_listens() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let created = store(&endpoint, 1).await.create(&key(), Bytes::from_static(b"x")).await;
    match created {
        Err(CreateError::DidNotHappen(error)) => assert_eq!(error.kind, StoreErrorKind::Unavailable),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn puts_are_repeated_with_patience() {
    let slow_down = answer("503 Slow Down", "retry-after: 0\r\n", "<Error><Code>SlowDown</Code></Error>");
    let server = Server::start([slow_down, Answer::Nothing, answer("200 OK", "etag: \"x\"\r\n", "")]).await;
    let body = vec![Bytes::from_static(b"two "), Bytes::from_static(b"pieces")];
    let put = store_of(&server).await.put(&key(), body.clone(), crc32c(&body), &Attributes::default()).await;
    let stored = put.unwrap();
    assert_eq!((stored.size, stored.etag.as_deref()), (10, Some("x")));
    assert_eq!(server.requests(), 3);
    for head in server.heads.lock().unwrap().iter() {
        assert!(head.contains("content-length: 10\r\n"), "{head}");
        assert!(head.contains("x-amz-content-sha256: unsigned-payload"), "{head}");
    }
}

#[tokio::test]
async fn an_earlier_try_may_have_happened() {
    let server = Server::start([error("500 Oops", "InternalError"), error("403 Forbidden", "AccessDenied")]).await;
    let body = vec![Bytes::from_static(b"x")];
    let put = store_of(&server).await.put(&key(), body.clone(), crc32c(&body), &Attributes::default()).await;
    assert!(matches!(&put, Err(CreateError::MayHaveHappened(e)) if e.kind == StoreErrorKind::AccessDenied), "{put:?}");
}

#[tokio::test]
async fn a_store_that_holds_other_bytes_is_found_out() {
    let server = Server::start([answer("200 OK", "x-amz-checksum-crc32c: AAAAAA==\r\n", "")]).await;
    let put = store(&server.endpoint, 1).await;
    let put = put.put(&key(), vec![Bytes::from_static(b"x")], Crc32c(7), &Attributes::default()).await;
    assert!(matches!(&put, Err(CreateError::MayHaveHappened(e)) if e.kind == StoreErrorKind::Corrupt), "{put:?}");
}

#[tokio::test]
async fn an_ignored_or_wrong_range_gives_no_bytes() {
    let options = GetOptions { range: Some(ByteRange { offset: 2, length: 3 }), ..GetOptions::default() };
    for ignored in [
        answer("200 OK", "", "0123456789"),
        answer("206 Partial Content", "content-range: bytes 0-2/10\r\n", "012"),
        answer("206 Partial Content", "content-range: bytes 2-9/10\r\n", "23456789"),
    ] {
        let server = Server::start([ignored]).await;
        let store = store_of(&server).await;
        assert!(store.get(&key(), &options).await.is_err());
    }
    let right = answer("206 Partial Content", "content-range: bytes 2-4/10\r\n", "234");
    let server = Server::start([right]).await;
    let found = store_of(&server).await.get(&key(), &options).await.unwrap();
    assert_eq!(found.meta.size, 10);
    assert_eq!(found.body.try_collect::<Vec<_>>().await.unwrap().concat(), b"234");
    assert!(server.heads.lock().unwrap()[0].contains("range: bytes=2-4\r\n"));
}

#[tokio::test]
async fn a_body_that_breaks_off_is_an_error() {
    let broken = "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n01234".to_owned();
    let server = Server::start([Answer::Last(broken)]).await;
    let found = store_of(&server).await.get(&key(), &GetOptions::default()).await.unwrap();
    let body = found.body.try_collect::<Vec<_>>().await;
    assert_eq!(body.unwrap_err().kind, StoreErrorKind::Unavailable);
}

#[tokio::test]
async fn a_completion_answered_200_with_an_error_is_a_failure() {
    let started = "<InitiateMultipartUploadResult><UploadId>u1</UploadId></InitiateMultipartUploadResult>";
    let failed = "<Error><Code>InternalError</Code><Message>as scripted</Message></Error>";
    let head = |size| Answer::Text(format!("HTTP/1.1 200 OK\r\netag: \"whole\"\r\ncontent-length: {size}\r\n\r\n"));
    for (size, there) in [(5, true), (6, false)] {
        let server = Server::start([
            answer("200 OK", "", started),
            answer("200 OK", "etag: \"p1\"\r\n", ""),
            answer("200 OK", "", failed),
            error("404 Not Found", "NoSuchUpload"),
            head(size),
        ])
        .await;
        let upload = store_of(&server).await.start_multipart(&key(), &Attributes::default()).await.unwrap();
        let body = vec![Bytes::from_static(b"01234")];
        let part = upload.put_part(1, body.clone(), crc32c(&body)).await.unwrap();
        let completed = upload.complete(&[part]).await;
        assert_eq!(server.requests(), 5);
        match completed {
            Ok(stored) => assert!(there && stored.etag.as_deref() == Some("whole")),
            Err(error) => assert!(!there && matches!(error, CreateError::MayHaveHappened(_)), "{error:?}"),
        }
    }
}

#[tokio::test]
async fn secrets_are_not_shown() {
    let store = store("http://127.0.0.1:1", 1).await;
    assert!(!format!("{store:?}").contains("very-secret"));
    let config = S3Config { credentials: Some(("access".into(), "very-secret".into())), ..S3Config::default() };
    assert!(!format!("{config:?}").contains("very-secret"));
}

#[tokio::test]
async fn objects_are_stored_as_the_settings_say() {
    let ok = || answer("200 OK", "etag: \"e\"\r\n", "");
    let server = Server::start([ok(), ok()]).await;
    let config = S3Config {
        endpoint: Some(server.endpoint.clone()),
        bucket: "bucket".into(),
        credentials: Some(("access".into(), "very-secret".into())),
        checksums: false,
        storage_class: "STANDARD_IA".into(),
        encryption: "aws:kms".into(),
        kms_key: "some-key".into(),
        ..S3Config::default()
    };
    let store = S3Store::open("test", config).await.unwrap();
    let body = vec![Bytes::from_static(b"bytes")];
    store.put(&key(), body.clone(), crc32c(&body), &Attributes::default()).await.unwrap();
    store.create(&key(), body[0].clone()).await.unwrap();
    let heads = server.heads.lock().unwrap();
    for head in heads.iter() {
        assert!(head.contains("x-amz-server-side-encryption: aws:kms\r\n"), "{head}");
        assert!(head.contains("x-amz-server-side-encryption-aws-kms-key-id: some-key\r\n"), "{head}");
        assert!(!head.contains("x-amz-checksum"), "{head}");
    }
    assert!(heads[0].contains("x-amz-storage-class: standard_ia\r\n"), "{}", heads[0]);
    assert!(!heads[1].contains("storage-class"), "commit objects stay in the bucket's class: {}", heads[1]);
}

#[tokio::test]
async fn certificates_that_cannot_be_used_are_said() {
    let config = S3Config { bucket: "bucket".into(), ..S3Config::default() };
    for (path, why) in [("/nowhere/ca.pem", "/nowhere/ca.pem"), ("Cargo.toml", "no certificate")] {
        let config = S3Config { ca_file: Some(path.into()), ..config.clone() };
        let error = S3Store::open("test", config).await.unwrap_err();
        assert!(error.kind == StoreErrorKind::Invalid && error.to_string().contains(why), "{error}");
    }
}

/// On S3 listing objects, asking whether versions are kept, and listing versions are three permissions.
#[tokio::test]
async fn a_bucket_whose_versions_may_not_be_listed_is_listed_without() {
    let enabled =
        || answer("200 OK", "", "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>");
    let denied = || error("403 Forbidden", "AccessDenied");
    let plain = || {
        let object = "<Contents><Key>a/b</Key><Size>3</Size></Contents>";
        answer("200 OK", "", &format!("<ListBucketResult><IsTruncated>false</IsTruncated>{object}</ListBucketResult>"))
    };
    for (answers, requests) in [(vec![enabled(), denied(), plain(), plain()], 4), (vec![denied(), plain(), plain()], 3)]
    {
        let server = Server::start(answers).await;
        let store = store_of(&server).await;
        for _ in 0..2 {
            let listed = store.list_blobs("a/", None, 10).await.unwrap();
            let [object] = &listed[..] else { panic!("{listed:?}") };
            assert_eq!((object.key.as_str(), object.size, &object.version), ("a/b", 3, &None));
        }
        assert_eq!(server.requests(), requests, "who may not is not asked again");
    }
    let server = Server::start([enabled(), error("404 Not Found", "NoSuchBucket")]).await;
    let failed = store_of(&server).await.list_blobs("a/", None, 10).await.unwrap_err();
    assert_eq!(failed.kind, StoreErrorKind::NoSuchStore, "anything else is an error");
}
