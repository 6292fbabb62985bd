//! Grants: what they permit, and that they permit nothing else.

use super::*;
use crate::{
    Runtime, StoreError, TokioRuntime,
    grant::{Grants, ReadAsk, ReadGrant, SignedRequest, UploadAsk, UploadGrant, UploadKind},
    s3::S3Granter,
};
use futures::future::BoxFuture;
use refstream_types::Timestamp;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const LIFE: Duration = Duration::from_secs(300);

/// A clock that is late, so that what is signed by it has expired.
#[derive(Debug)]
struct Late(TokioRuntime, Duration);

impl Runtime for Late {
    fn now(&self) -> Duration {
        self.0.now()
    }
    fn wall(&self) -> Timestamp {
        Timestamp::from_micros(self.0.wall().as_micros() - self.1.as_micros() as i64)
    }
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.0.sleep(duration)
    }
    fn random(&self) -> u64 {
        self.0.random()
    }
}

fn granter(rig: &Rig, late: Duration) -> Arc<S3Granter> {
    let clock = Arc::new(Late(TokioRuntime::new(), late));
    Arc::new(S3Granter::new((*rig.client).clone(), LIFE, clock))
}

fn ask(at: &str, body: &[u8]) -> UploadAsk {
    let attributes = Attributes { content_type: Some("image/png".to_owned()), note: Some("our-note".to_owned()) };
    let (size, checksum) = (body.len() as u64, crc32c(body));
    UploadAsk { key: key(at), size, checksum, kind: UploadKind::Object(attributes) }
}

async fn upload(granter: &dyn Grants, ask: UploadAsk) -> SignedRequest {
    match granter.upload(&ask).await.unwrap() {
        UploadGrant::Request(request) => request,
        other => panic!("{other:?}"),
    }
}

async fn read(granter: &dyn Grants, at: &str, head: bool) -> SignedRequest {
    match granter.read(&ReadAsk { key: key(at), version: None, head }).await.unwrap() {
        ReadGrant::Request(request) => request,
        other => panic!("{other:?}"),
    }
}

/// Sends a request as anybody can who has a socket; its status and the whole answer.
async fn send(rig: &Rig, method: &str, request: &SignedRequest, more: &[&str], body: &[u8]) -> (u16, String) {
    let target = request.url.strip_prefix(&rig.server.endpoint()).unwrap();
    let mut head = format!("{method} {target} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n", rig.server.address());
    for (name, value) in &request.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    if !more.iter().any(|line| line.contains("content-length") || line.contains("transfer-encoding")) {
        head.push_str(&format!("content-length: {}\r\n", body.len()));
    }
    for line in more {
        head.push_str(&format!("{line}\r\n"));
    }
    let mut stream = TcpStream::connect(rig.server.address()).await.unwrap();
    stream.write_all(&[head.as_bytes(), b"\r\n", body].concat()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let text = String::from_utf8_lossy(&answer).into_owned();
    (text.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_default(), text)
}

/// What it is, the method, the request, further header lines, the body, the status that it is answered with.
type Attack<'a> = (&'a str, &'a str, SignedRequest, &'a [&'a str], &'a [u8], u16);

async fn stored(rig: &Rig, at: &str) -> Option<Bytes> {
    rig.store.read(&key(at)).await.unwrap()
}

#[tokio::test]
async fn a_granted_put_stores_what_was_granted_and_only_once() {
    let rig = rig().await;
    let granter = granter(&rig, Duration::ZERO);
    let request = upload(&*granter, ask("p/a", b"first")).await;
    assert!(
        request.headers.iter().any(|(name, value)| name == "if-none-match" && value == "*"),
        "{:?}",
        request.headers
    );
    let (status, answer) = send(&rig, "PUT", &request, &[], b"first").await;
    assert_eq!(status, 200, "{answer}");
    let meta = rig.store.head(&key("p/a")).await.unwrap().unwrap();
    assert_eq!(meta.content_type.as_deref(), Some("image/png"));
    let (status, answer) = send(&rig, "PUT", &request, &[], b"first").await;
    assert_eq!(status, 412, "{answer}");
    // A new grant for a key that is taken does not overwrite either.
    let request = upload(&*granter, ask("p/a", b"other")).await;
    assert_eq!(send(&rig, "PUT", &request, &[], b"other").await.0, 412);
    assert_eq!(stored(&rig, "p/a").await.unwrap(), "first");
}

#[tokio::test]
async fn a_granted_put_is_good_for_nothing_else() {
    let rig = rig().await;
    rig.store.create(&key("secret"), Bytes::from_static(b"not yours")).await.unwrap();
    let granter = granter(&rig, Duration::ZERO);
    let good = upload(&*granter, ask("p/a", b"first")).await;
    let elsewhere = |to: &str| SignedRequest { url: good.url.replace("/p/a", to), ..good.clone() };
    let with = |name: &str, value: Option<&str>| {
        let mut headers: Vec<_> = good.headers.iter().filter(|(other, _)| other != name).cloned().collect();
        headers.extend(value.map(|value| (name.to_owned(), value.to_owned())));
        SignedRequest { headers, ..good.clone() }
    };
    let other_sum = super::super::super::service::checksum_text(crc32c(b"other"));
    let attacks: [Attack<'_>; 16] = [
        ("another key", "PUT", elsewhere("/p/b"), &[], b"first", 403),
        ("a key that is taken", "PUT", elsewhere("/secret"), &[], b"first", 403),
        ("a key by way of another", "PUT", elsewhere("/p/a/../b"), &[], b"first", 403),
        ("another note", "PUT", with("x-amz-meta-refstream-note", Some("another")), &[], b"first", 403),
        ("without the condition", "PUT", with("if-none-match", None), &[], b"first", 403),
        ("another condition", "PUT", with("if-none-match", Some("\"x\"")), &[], b"first", 403),
        ("other bytes", "PUT", good.clone(), &[], b"other", 400),
        ("another sum", "PUT", with("x-amz-checksum-crc32c", Some(&other_sum)), &[], b"other", 403),
        ("without the sum", "PUT", with("x-amz-checksum-crc32c", None), &[], b"other", 403),
        ("more bytes", "PUT", good.clone(), &[], b"first and more", 403),
        ("another type", "PUT", with("content-type", Some("text/html")), &[], b"first", 403),
        ("chunks", "PUT", good.clone(), &["transfer-encoding: chunked"], b"5\r\nfirst\r\n0\r\n\r\n", 403),
        ("a copy", "PUT", good.clone(), &["x-amz-copy-source: /refstream/secret"], b"first", 403),
        ("deletion", "DELETE", with("content-length", None), &[], b"", 403),
        ("reading", "GET", good.clone(), &[], b"", 403),
        (
            "a longer life",
            "PUT",
            SignedRequest { url: good.url.replace("Expires=300", "Expires=3000"), ..good.clone() },
            &[],
            b"first",
            403,
        ),
    ];
    for (attack, method, request, more, body, expected) in attacks {
        let (status, answer) = send(&rig, method, &request, more, body).await;
        assert_eq!(status, expected, "{attack}: {answer}");
        assert!(!answer.contains("not yours"), "{attack}");
    }
    assert!(stored(&rig, "p/a").await.is_none() && stored(&rig, "p/b").await.is_none());
    assert_eq!(stored(&rig, "secret").await.unwrap(), "not yours");
    // It was good all the time.
    assert_eq!(send(&rig, "PUT", &good, &[], b"first").await.0, 200);
}

#[tokio::test]
async fn a_granted_read_reads_its_object_in_ranges_and_nothing_else() {
    let rig = rig().await;
    for (at, text) in [("p/a", "abcdef"), ("p/b", "not yours")] {
        rig.store.create(&key(at), Bytes::from_static(text.as_bytes())).await.unwrap();
    }
    let granter = granter(&rig, Duration::ZERO);
    let get = read(&*granter, "p/a", false).await;
    assert!(send(&rig, "GET", &get, &[], b"").await.1.ends_with("abcdef"));
    let (status, answer) = send(&rig, "GET", &get, &["range: bytes=1-2"], b"").await;
    assert!(status == 206 && answer.ends_with("bc"), "{answer}");
    let head = read(&*granter, "p/a", true).await;
    assert_eq!(send(&rig, "HEAD", &head, &[], b"").await.0, 200);
    let other = SignedRequest { url: get.url.replace("/p/a", "/p/b"), ..get.clone() };
    let list = SignedRequest { url: get.url.replace("/p/a", "/"), ..get.clone() };
    for (method, request) in [("GET", &other), ("GET", &list), ("GET", &head), ("PUT", &get), ("DELETE", &get)] {
        let (status, answer) = send(&rig, method, request, &[], b"").await;
        assert!(status == 403 && !answer.contains("not yours"), "{method}: {answer}");
    }
    assert_eq!(stored(&rig, "p/a").await.unwrap(), "abcdef");
}

#[tokio::test]
async fn a_grant_does_not_outlive_its_time() {
    let rig = rig().await;
    rig.store.create(&key("p/b"), Bytes::from_static(b"abcdef")).await.unwrap();
    for (late, expected) in [(LIFE - Duration::from_secs(30), 200), (LIFE + Duration::from_secs(30), 403)] {
        let granter = granter(&rig, late);
        let get = read(&*granter, "p/b", false).await;
        assert_eq!(send(&rig, "GET", &get, &[], b"").await.0, expected);
        let put = upload(&*granter, ask(&format!("p/{}", late.as_secs()), b"x")).await;
        assert_eq!(send(&rig, "PUT", &put, &[], b"x").await.0, expected);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_store_without_credentials_works_by_grants() {
    let rig = rig().await;
    let granter = granter(&rig, Duration::ZERO);
    let no_keys = ClientConfig { credentials: None, ..config(&rig.server, &EmbeddedKeys::new("", "")) };
    let store = S3Store::granted("test", no_keys, Arc::<S3Granter>::clone(&granter)).await.unwrap();
    let bytes = pattern(3 << 20, 7);
    let pieces: Vec<_> = (0..3).map(|i| bytes.slice(i << 20..(i + 1) << 20)).collect();
    let attributes = Attributes { content_type: Some("image/png".to_owned()), note: Some("our-note".to_owned()) };
    let at = key("p/ä b+c");
    let sum = crc32c(&bytes);
    let stored = store.put(&at, pieces.clone(), sum, &attributes).await.unwrap();
    // Whoever does not know that his put succeeded may repeat it; nobody may put something else.
    let again = store.put(&at, pieces, sum, &attributes).await.unwrap();
    assert_eq!((&again.key, again.size, &again.etag), (&at, 3 << 20, &stored.etag));
    let other = store.put(&at, vec![Bytes::from_static(b"x")], crc32c(b"x"), &attributes).await.unwrap_err();
    assert!(matches!(other, CreateError::DidNotHappen(StoreError { kind: StoreErrorKind::Invalid, .. })), "{other}");
    let meta = store.head(&at).await.unwrap().unwrap();
    assert_eq!((meta.size, meta.content_type.as_deref()), (3 << 20, Some("image/png")));
    assert_eq!(meta.note.as_deref(), Some("our-note"));
    let range = Some(ByteRange { offset: 1 << 20, length: 100 });
    for etag in [None, meta.etag.clone()] {
        let found = store.get(&at, &GetOptions { range, etag, version: None }).await.unwrap();
        let read: Vec<Bytes> = found.body.try_collect().await.unwrap();
        assert_eq!(read.concat(), bytes.slice(1 << 20..(1 << 20) + 100));
    }
    let changed = GetOptions { etag: Some("other".to_owned()), ..GetOptions::default() };
    assert_eq!(store.get(&at, &changed).await.err().unwrap().kind, StoreErrorKind::Changed);
    assert!(store.head(&key("p/none")).await.unwrap().is_none());
    assert!(store.get(&key("p/none"), &GetOptions::default()).await.err().unwrap().is_not_found());
    assert_eq!(store.list_blobs("p/", None, 10).await.unwrap().len(), 1);
    for refused in [store.delete(&at).await, store.remove(&at).await] {
        assert_eq!(refused.unwrap_err().kind, StoreErrorKind::AccessDenied);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_upload_in_parts_works_by_grants_and_never_overwrites() {
    let rig = rig().await;
    let granter = granter(&rig, Duration::ZERO);
    let no_keys = ClientConfig { credentials: None, ..config(&rig.server, &EmbeddedKeys::new("", "")) };
    let store = S3Store::granted("test", no_keys, Arc::<S3Granter>::clone(&granter)).await.unwrap();
    let attributes = Attributes { content_type: Some("video/mp4".to_owned()), note: None };
    let cut = MIN_PART_BYTES as usize;
    let bytes = pattern(cut + 1_000, 9);
    let upload = store.start_multipart(&key("p/big"), &attributes).await.unwrap();
    let mut parts = Vec::new();
    for (number, part) in [(2, bytes.slice(cut..)), (1, bytes.slice(..cut))] {
        parts.push(upload.put_part(number, vec![part.clone()], crc32c(&part)).await.unwrap());
    }
    parts.sort_by_key(|part| part.number);
    let resumed = store.resume_multipart(&key("p/big"), upload.id()).await.unwrap();
    assert_eq!(resumed.parts().await.unwrap(), parts);
    let done = resumed.complete(&parts).await.unwrap();
    assert_eq!((done.size, stored(&rig, "p/big").await.unwrap()), (bytes.len() as u64, bytes.clone()));
    // Repeated since the answer was lost.
    assert_eq!(upload.complete(&parts).await.unwrap().etag, done.etag);
    upload.abort().await.unwrap();

    let error = store.start_multipart(&key("p/big"), &attributes).await.err().unwrap();
    assert!(error.kind == StoreErrorKind::Invalid && error.to_string().contains("never overwrite"), "{error}");
    // One that was started before the object was there.
    let early = store.start_multipart(&key("p/raced"), &attributes).await.unwrap();
    let part = early.put_part(1, vec![Bytes::from_static(b"late")], crc32c(b"late")).await.unwrap();
    rig.store.create(&key("p/raced"), Bytes::from_static(b"first")).await.unwrap();
    let error = early.complete(&[part]).await.unwrap_err();
    assert!(matches!(error, CreateError::DidNotHappen(_)), "{error}");
    assert_eq!(stored(&rig, "p/raced").await.unwrap(), "first");
    early.abort().await.unwrap();
    assert!(store.resume_multipart(&key("p/raced"), early.id()).await.err().unwrap().is_not_found());

    // A part's grant is for that part of that upload.
    let kind = UploadKind::Part { upload: "other".to_owned(), number: 1 };
    let request = super::grants::upload(&*granter, UploadAsk { kind, ..ask("p/c", b"x") }).await;
    assert_eq!(send(&rig, "PUT", &request, &[], b"x").await.0, 404);
    let moved = SignedRequest { url: request.url.replace("partNumber=1", "partNumber=2"), ..request };
    assert_eq!(send(&rig, "PUT", &moved, &[], b"x").await.0, 403);
}

/// Hands out an expired grant until it is told to forget.
#[derive(Debug)]
struct Stale(Arc<S3Granter>, Arc<S3Granter>, std::sync::atomic::AtomicBool);

#[async_trait::async_trait]
impl Grants for Stale {
    async fn upload(&self, ask: &UploadAsk) -> Result<UploadGrant, StoreError> {
        self.1.upload(ask).await
    }
    async fn read(&self, ask: &ReadAsk) -> Result<ReadGrant, StoreError> {
        if self.2.load(std::sync::atomic::Ordering::Relaxed) { self.1.read(ask).await } else { self.0.read(ask).await }
    }
    fn forget(&self, _: &Key) {
        self.2.store(true, std::sync::atomic::Ordering::Relaxed);
    }
    async fn start_upload(&self, key: &Key, attributes: &Attributes) -> Result<String, StoreError> {
        self.1.start_upload(key, attributes).await
    }
    async fn parts(&self, key: &Key, upload: &str) -> Result<Vec<crate::Part>, StoreError> {
        self.1.parts(key, upload).await
    }
    async fn complete_upload(
        &self,
        key: &Key,
        upload: &str,
        parts: &[crate::Part],
        note: Option<&str>,
    ) -> Result<crate::grant::Completed, CreateError> {
        self.1.complete_upload(key, upload, parts, note).await
    }
    async fn abort_upload(&self, key: &Key, upload: &str, parts: &[crate::Part]) -> Result<(), StoreError> {
        self.1.abort_upload(key, upload, parts).await
    }
    async fn list(&self, prefix: &str, after: Option<&Key>, limit: usize) -> Result<Vec<crate::Listed>, StoreError> {
        self.1.list(prefix, after, limit).await
    }
}

#[tokio::test]
async fn a_grant_to_read_that_ended_early_is_asked_for_anew() {
    let rig = rig().await;
    rig.store.create(&key("p/a"), Bytes::from_static(b"abcdef")).await.unwrap();
    let (old, new) = (granter(&rig, LIFE * 2), granter(&rig, Duration::ZERO));
    for head in [false, true] {
        let grants = Arc::new(Stale(Arc::clone(&old), Arc::clone(&new), Default::default()));
        let no_keys = ClientConfig { credentials: None, ..config(&rig.server, &EmbeddedKeys::new("", "")) };
        let store = S3Store::granted("test", no_keys, grants).await.unwrap();
        if head {
            assert_eq!(store.head(&key("p/a")).await.unwrap().unwrap().size, 6);
        } else {
            assert_eq!(store.get(&key("p/a"), &GetOptions::default()).await.unwrap().meta.size, 6);
        }
    }
}
