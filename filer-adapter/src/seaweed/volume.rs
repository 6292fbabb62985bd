//! Requests to volume servers.

use super::{Shared, escaped, fid::Fid, http, jwt, master::Assigned, upload::Manifest};
use crate::{
    Attributes, ByteStream, Found, GetOptions, ObjectMeta, Sent, StoreError, StoreErrorKind,
    attempt::{Failed, chain, retried},
    content_range::content_range,
    grant::{UploadAsk, UploadKind},
    pieces::Pieces,
    store::NOTE,
};
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, future::BoxFuture};
use refstream_types::{ByteRange, Crc32c, Key};
use reqwest::{Method, RequestBuilder, Response};
use serde::Deserialize;
use std::sync::{Arc, atomic::Ordering};

/// Anything else makes a volume server interpret the body: a form's type stores nothing, none compresses it.
const BODY_TYPE: &str = "application/octet-stream";

/// Headers that start so are kept with a needle, and come back without it.
const KEPT: &str = "seaweed-";

/// What a volume server says when it cannot read a chunk of a manifest from another one.
const CHUNK_FAILED: &str = "chunk needle error";

/// What a needle is.
#[derive(Clone, Copy)]
pub(super) enum Needle<'a> {
    Object {
        note: Option<&'a str>,
        sent: &'a Sent,
    },
    Part {
        upload: &'a str,
        number: u32,
    },
    /// A list of chunks; never by a grant.
    Manifest {
        note: Option<&'a str>,
    },
}

impl<'a> Needle<'a> {
    /// What is kept with it.
    fn note(self) -> Option<&'a str> {
        match self {
            Self::Object { note, .. } | Self::Manifest { note } => note,
            Self::Part { .. } => None,
        }
    }

    fn ask(self, key: &Key, size: u64, checksum: Crc32c) -> UploadAsk {
        let kind = match self {
            Self::Part { upload, number } => UploadKind::Part { upload: upload.to_owned(), number },
            Self::Object { .. } | Self::Manifest { .. } => UploadKind::Object(Attributes::default()),
        };
        UploadAsk { key: key.clone(), size, checksum, kind }
    }
}

/// What a volume server says of a needle that it stored.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Written {
    size: u64,
    e_tag: String,
}

/// How telling a failure is, where several servers failed.
fn weight(error: &StoreError) -> u8 {
    match error.kind {
        StoreErrorKind::NotFound => 0,
        StoreErrorKind::Corrupt => 2,
        StoreErrorKind::Throttled(_) | StoreErrorKind::Unavailable => 3,
        _ => 1,
    }
}

impl Shared {
    /// The permission for a request, where one is needed.
    async fn token(&self, fid: Fid, write: bool) -> Result<Option<String>, Failed> {
        let key = if write { &self.config.signing_key } else { &self.config.read_signing_key };
        match key {
            Some(key) => Ok(Some(jwt::sign(key, &fid.to_string(), self.runtime.wall(), jwt::OWN_LIFE))),
            None if self.grants.is_some() => self.permission(fid, write).await,
            None if self.guarded[usize::from(!write)].load(Ordering::Relaxed) => self.permission(fid, write).await,
            None => Ok(None),
        }
    }

    fn request(&self, method: Method, server: &str, path: &str, token: Option<String>) -> RequestBuilder {
        let request = self.client.request(method, self.url(server, path));
        match token {
            Some(token) => request.header("authorization", format!("BEARER {token}")),
            None => request,
        }
    }

    /// Sends a request for a needle, with the permission that it needs.
    async fn permitted(
        &self,
        operation: &'static str,
        (fid, key): (Fid, &Key),
        method: Method,
        server: &str,
        more: impl Fn(RequestBuilder) -> RequestBuilder,
    ) -> Result<Response, Failed> {
        let write = !matches!(method, Method::GET | Method::HEAD);
        let mut token = self.token(fid, write).await?;
        loop {
            let path = if method == Method::PUT { self.written_path(&fid.to_string(), false) } else { fid.to_string() };
            let anonymous = token.is_none();
            let request = more(self.request(method.clone(), server, &path, token));
            let answer = self.send(operation, Some(key), 0, request).await?;
            if !(anonymous && matches!(answer.status().as_u16(), 401 | 403)) {
                return Ok(answer);
            }
            // Servers that want a permission: the master gives it.
            token = self.permission(fid, write).await?;
            if token.is_none() {
                return Ok(answer);
            }
            self.guarded[usize::from(!write)].store(true, Ordering::Relaxed);
        }
    }

    fn written_path(&self, path: &str, manifest: bool) -> String {
        let mut query = vec![format!("fsync={}", self.config.fsync)];
        if manifest {
            query.push("cm=true".into());
        }
        if !self.config.ttl.is_empty() {
            query.push(format!("ttl={}", escaped(&self.config.ttl)));
        }
        format!("{path}?{}", query.join("&"))
    }

    pub(super) fn key_of(&self, fid: Fid) -> Result<Key, StoreError> {
        fid.key().ok_or_else(|| self.error(StoreErrorKind::Invalid, "put", None, format!("{fid} is no key")))
    }

    /// Stores a needle under a new id. Gives what proves it as a part, too, where it was granted as one.
    pub(super) async fn put(
        &self,
        key: &Key,
        body: &[Bytes],
        checksum: Crc32c,
        what: Needle<'_>,
    ) -> Result<(Fid, Option<String>), Failed> {
        let size = size_of(body);
        let manifest = matches!(what, Needle::Manifest { .. });
        retried(self.config.attempts, || async {
            let assigned = match &self.grants {
                Some(grants) => self.assigned_by(&**grants, &what.ask(key, size, checksum)).await?,
                None => self.assign(size).await?,
            };
            let path = self.written_path(&assigned.path, manifest);
            let token = match &self.config.signing_key {
                Some(_) if assigned.granted.is_none() => self.token(assigned.first, true).await?,
                _ => assigned.token.clone(),
            };
            let request = self.request(Method::PUT, &assigned.server, &path, token.clone());
            let mut request = match what {
                Needle::Object { sent, .. } => with_body(request, Pieces::telling(body, sent.clone())),
                _ => body_of(request, body),
            };
            if let Some(note) = what.note() {
                request = request.header(format!("{KEPT}{NOTE}"), note);
            }
            let stored = match self.ask("put", Some(key), size, request).await {
                Ok(answer) => self.check(key, size, checksum, answer.etag.as_deref(), &answer.body),
                Err(failed) => Err(failed),
            };
            if let Err(failed) = stored {
                self.avoid(&assigned.server).await;
                // Whoever deletes a list of chunks deletes the chunks, which the next try lists again.
                if !manifest {
                    self.give_up(assigned, token).await;
                }
                return Err(failed);
            }
            let Assigned { fid, server, granted, .. } = assigned;
            let proof = granted.and_then(|(beside, proof)| {
                self.remember_beside(fid, server, beside);
                proof
            });
            Ok((fid, proof))
        })
        .await
    }

    /// Stores a needle under an id that is ours already: the one beside a payload's.
    pub(super) async fn put_beside(&self, fid: Fid, key: &Key, body: &[Bytes], checksum: Crc32c) -> Result<(), Failed> {
        let size = size_of(body);
        retried(self.config.attempts, || async {
            let sent = if self.grants.is_some() {
                let failed = |error| Failed { error, happened: false, status: None };
                let (server, place) = self.beside(fid, key).map_err(failed)?;
                let path = self.written_path(&place.path, false);
                self.send("put", Some(key), size, body_of(self.request(Method::PUT, &server, &path, place.token), body))
                    .await
            } else {
                let servers = self.locate(fid).await?;
                let Some(server) = servers.first() else { return Ok(()) };
                self.permitted("put", (fid, key), Method::PUT, server, |r| body_of(r, body)).await
            };
            let answer = match sent {
                Ok(answer) if answer.status().is_success() => answer,
                Ok(answer) => {
                    self.forget(fid);
                    return Err(self.refused("put", Some(key), answer).await);
                }
                Err(failed) => {
                    self.forget(fid);
                    return Err(failed);
                }
            };
            let etag = http::etag(&answer);
            let body = answer.bytes().await.unwrap_or_default();
            self.check(key, size, checksum, etag.as_deref(), &body)
        })
        .await
    }

    /// Whether what a volume server says it has is what was sent.
    fn check(&self, key: &Key, size: u64, sent: Crc32c, etag: Option<&str>, said: &[u8]) -> Result<(), Failed> {
        // An unchanged needle is answered 204 without a body.
        let written = match said {
            [] => Written { size, e_tag: etag.unwrap_or_default().to_owned() },
            said => serde_json::from_slice(said).unwrap_or_default(),
        };
        let has = u32::from_str_radix(written.e_tag.trim_matches('"'), 16).ok().map(Crc32c);
        if written.size == size && has == Some(sent) {
            return Ok(());
        }
        let has = has.map_or_else(|| "no checksum".into(), |has| has.to_string());
        let message = format!("sent {size} bytes, {sent}; the volume server has {} bytes, {has}", written.size);
        let error = self.error(StoreErrorKind::Corrupt, "put", Some(key), message);
        Err(Failed { error, happened: false, status: None })
    }

    /// Removes what a failed put may have left, as well as can be.
    async fn give_up(&self, assigned: Assigned, token: Option<String>) {
        let request = self.request(Method::DELETE, &assigned.server, &assigned.path, token);
        // Who waits for a server that hangs would only be later with the next try.
        let limit = self.config.connect_timeout;
        let _ = tokio::time::timeout(limit, request.send()).await;
    }

    pub(super) async fn head(&self, fid: Fid, key: &Key) -> Result<ObjectMeta, Failed> {
        let ask = || async {
            let mut servers = Servers::of(fid);
            while let Some(server) = servers.next(self).await? {
                match self.head_at(&server, fid, key).await {
                    Ok(meta) => return Ok(Ok(meta)),
                    Err(failed) => servers.failed(failed),
                }
            }
            servers.outcome(self)
        };
        retried(self.config.attempts, ask).await?
    }

    pub(super) async fn get(self: &Arc<Self>, fid: Fid, key: &Key, options: &GetOptions) -> Result<Found, Failed> {
        let ask = || async {
            let mut servers = Servers::of(fid);
            while let Some(server) = servers.next(self).await? {
                match self.get_at(&server, fid, key, options).await {
                    Ok(found) => return Ok(Ok(found)),
                    Err(failed) => servers.failed(failed),
                }
            }
            servers.outcome(self)
        };
        retried(self.config.attempts, ask).await?
    }

    async fn head_at(&self, server: &str, fid: Fid, key: &Key) -> Result<ObjectMeta, Failed> {
        let answer = self.permitted("head", (fid, key), Method::HEAD, server, |request| request).await?;
        if !answer.status().is_success() {
            return Err(self.unread("head", key, answer).await);
        }
        let size = http::header(&answer, "content-length").and_then(|text| text.parse().ok());
        let size =
            size.ok_or_else(|| self.strange("head", key, "the volume server does not say how long it is".into()))?;
        Ok(meta_of(&answer, size))
    }

    async fn get_at(
        self: &Arc<Self>,
        server: &str,
        fid: Fid,
        key: &Key,
        options: &GetOptions,
    ) -> Result<Found, Failed> {
        let answer = match options.range {
            Some(range) if range.length == 0 => self.nothing_at(server, fid, key, options).await,
            Some(range) => self.range_at(server, fid, key, options, range).await,
            None => self.whole_at(server, fid, key, options, None).await,
        };
        let failed = match answer {
            // Volume servers that ask for permissions to read do not give each other any.
            Err(failed) if failed.error.message.contains(CHUNK_FAILED) => {
                return self.chunks_at(server, fid, key, options).await;
            }
            Err(failed) if failed.status.is_none() && failed.happened => failed,
            answer => return answer,
        };
        // A connection that is closed without an answer: the network, chunks that the server may not read, or a damaged needle of which all was asked
        // for as a range; of that the server says what is wrong when no range is asked for.
        let head = self.permitted("head", (fid, key), Method::HEAD, server, |request| request).await?;
        match options.range {
            _ if http::header(&head, "x-file-store") == Some("chunked") => {
                self.chunks_at(server, fid, key, options).await
            }
            Some(range) if range.offset == 0 => self.whole_at(server, fid, key, options, Some(range.length)).await,
            _ => Err(failed),
        }
    }

    /// An object in parts, its chunks read from where they are.
    async fn chunks_at(
        self: &Arc<Self>,
        server: &str,
        fid: Fid,
        key: &Key,
        options: &GetOptions,
    ) -> Result<Found, Failed> {
        let raw = |request: RequestBuilder| request.query(&[("cm", "false")]);
        let answer = self.permitted("get", (fid, key), Method::GET, server, raw).await?;
        if answer.status() != 200 {
            return Err(self.unread("get", key, answer).await);
        }
        let mut meta = meta_of(&answer, 0);
        let body = answer.bytes().await.unwrap_or_default();
        let manifest: Manifest = serde_json::from_slice(&body)
            .map_err(|error| self.strange("get", key, format!("its list of chunks is not readable: {error}")))?;
        meta.size = manifest.size;
        self.check_pin(key, options, &meta)?;
        let whole = ByteRange { offset: 0, length: manifest.size };
        let body = chunk_stream(Arc::clone(self), manifest, options.range.unwrap_or(whole));
        Ok(Found { meta, body })
    }

    /// Properties alone, for a range without bytes.
    async fn nothing_at(&self, server: &str, fid: Fid, key: &Key, options: &GetOptions) -> Result<Found, Failed> {
        let meta = self.head_at(server, fid, key).await?;
        self.check_pin(key, options, &meta)?;
        Ok(Found { meta, body: futures::stream::empty().boxed() })
    }

    async fn range_at(
        &self,
        server: &str,
        fid: Fid,
        key: &Key,
        options: &GetOptions,
        range: ByteRange,
    ) -> Result<Found, Failed> {
        let (first, last) = (range.offset, range.end().unwrap_or(u64::MAX) - 1);
        let ask = |request: RequestBuilder| request.header("range", format!("bytes={first}-{last}"));
        let answer = self.permitted("get", (fid, key), Method::GET, server, ask).await?;
        match answer.status().as_u16() {
            206 => {}
            // It starts at or beyond the end.
            416 => return self.nothing_at(server, fid, key, options).await,
            // An empty needle has no ranges.
            200 if answer.content_length() == Some(0) => {}
            200 => return Err(self.strange("get", key, format!("bytes {first}-{last} were asked for, all were sent"))),
            _ => return Err(self.unread("get", key, answer).await),
        }
        let size = match http::header(&answer, "content-range").map(content_range) {
            Some(Some((from, to, size))) if from == first && to <= last => size,
            None if answer.status() == 200 => 0,
            said => {
                return Err(self.strange(
                    "get",
                    key,
                    format!("bytes {first}-{last} were asked for, {said:?} were sent"),
                ));
            }
        };
        self.found(key, options, answer, size, u64::MAX)
    }

    async fn whole_at(
        &self,
        server: &str,
        fid: Fid,
        key: &Key,
        options: &GetOptions,
        length: Option<u64>,
    ) -> Result<Found, Failed> {
        let answer = self.permitted("get", (fid, key), Method::GET, server, |request| request).await?;
        if answer.status() != 200 {
            return Err(self.unread("get", key, answer).await);
        }
        let size = answer.content_length();
        let size =
            size.ok_or_else(|| self.strange("get", key, "the volume server does not say how long it is".into()))?;
        self.found(key, options, answer, size, length.unwrap_or(u64::MAX))
    }

    fn found(
        &self,
        key: &Key,
        options: &GetOptions,
        answer: Response,
        size: u64,
        length: u64,
    ) -> Result<Found, Failed> {
        let meta = meta_of(&answer, size);
        self.check_pin(key, options, &meta)?;
        let limit = self.config.request_timeout;
        let (key, name) = (key.clone(), self.name.to_string());
        let failed = move |message| StoreError {
            kind: StoreErrorKind::Unavailable,
            operation: "get",
            store: name.clone(),
            key: Some(key.clone()),
            message,
        };
        let body =
            futures::stream::try_unfold((answer, length, failed), move |(mut answer, left, failed)| async move {
                if left == 0 {
                    return Ok(None);
                }
                match tokio::time::timeout(limit, answer.chunk()).await {
                    Ok(Ok(Some(mut piece))) => {
                        piece.truncate(usize::try_from(left).unwrap_or(usize::MAX));
                        let left = left - piece.len() as u64;
                        Ok(Some((piece, (answer, left, failed))))
                    }
                    Ok(Ok(None)) => Ok(None),
                    Ok(Err(error)) => Err(failed(chain(&error))),
                    Err(_) => Err(failed(format!("no bytes within {} s", limit.as_secs()))),
                }
            });
        Ok(Found { meta, body: body.into_stream().boxed() })
    }

    fn check_pin(&self, key: &Key, options: &GetOptions, meta: &ObjectMeta) -> Result<(), Failed> {
        match (&options.etag, &meta.etag) {
            (Some(pinned), now) if now.as_ref() != Some(pinned) => {
                let message = format!("pinned {pinned}, now {}", now.as_deref().unwrap_or("none"));
                let error = self.error(StoreErrorKind::Changed, "get", Some(key), message);
                Err(Failed { error, happened: false, status: None })
            }
            _ => Ok(()),
        }
    }

    fn strange(&self, operation: &'static str, key: &Key, message: String) -> Failed {
        let error = self.error(StoreErrorKind::Invalid, operation, Some(key), message);
        Failed { error, happened: false, status: None }
    }

    /// What an answer to a read that is no success says. A server that cannot read a needle of its own says 500.
    async fn unread(&self, operation: &'static str, key: &Key, answer: Response) -> Failed {
        let mut failed = self.refused(operation, Some(key), answer).await;
        if failed.status == Some(500) {
            failed.error.kind = StoreErrorKind::Corrupt;
            let said = std::mem::take(&mut failed.error.message);
            failed.error.message =
                format!("the volume server cannot read it: its checksum is wrong, or the disk fails; it said: {said}");
        }
        failed
    }

    pub(super) async fn delete(&self, fid: Fid, key: &Key) -> Result<(), Failed> {
        let ask = || async {
            let mut servers = Servers::of(fid);
            while let Some(server) = servers.next(self).await? {
                let answer = self.permitted("delete", (fid, key), Method::DELETE, &server, |request| request).await;
                match answer {
                    Ok(answer) if answer.status().is_success() => return Ok(Ok(())),
                    Ok(answer) => servers.failed(self.refused("delete", Some(key), answer).await),
                    Err(failed) => servers.failed(failed),
                }
            }
            servers.outcome(self)
        };
        match retried(self.config.attempts, ask).await {
            Err(failed) if failed.error.is_not_found() => Ok(()),
            answer => answer?,
        }
    }
}

/// The servers of a volume, to be asked one after the other until one answers as it should; where all fail, once more where the volume is
/// by then, if that is elsewhere.
struct Servers {
    fid: Fid,
    asked: Option<Arc<[Arc<str>]>>,
    left: Vec<Arc<str>>,
    located: u8,
    worst: Option<Failed>,
}

impl Servers {
    fn of(fid: Fid) -> Self {
        Self { fid, asked: None, left: Vec::new(), located: 0, worst: None }
    }

    /// The next server to ask; `None` when all have failed.
    async fn next(&mut self, shared: &Shared) -> Result<Option<Arc<str>>, Failed> {
        if let Some(server) = self.left.pop() {
            return Ok(Some(server));
        }
        if self.located == 2 {
            return Ok(None);
        }
        if self.located == 1 {
            shared.forget(self.fid);
        }
        self.located += 1;
        let servers = match shared.locate(self.fid).await {
            Ok(servers) => servers,
            Err(failed) => return if self.worst.is_some() { Ok(None) } else { Err(failed) },
        };
        if self.asked.as_ref() == Some(&servers) {
            return Ok(None);
        }
        self.left = servers.to_vec();
        let start = shared.runtime.random() % self.left.len().max(1) as u64;
        self.left.rotate_left(start as usize);
        self.asked = Some(servers);
        Ok(self.left.pop())
    }

    fn failed(&mut self, failed: Failed) {
        if self.worst.as_ref().is_none_or(|worst| weight(&worst.error) < weight(&failed.error)) {
            self.worst = Some(failed);
        }
    }

    /// What it came to. Damage is an answer: whoever compares sums decides whether to ask again.
    fn outcome<T>(self, shared: &Shared) -> Result<Result<T, Failed>, Failed> {
        let failed = self.worst.unwrap_or_else(|| {
            let error = shared.error(StoreErrorKind::Unavailable, "lookup", None, "no server has the volume");
            Failed { error, happened: false, status: None }
        });
        if failed.error.kind == StoreErrorKind::Corrupt { Ok(Err(failed)) } else { Err(failed) }
    }
}

/// The bytes of a range, chunk by chunk.
fn chunk_stream(shared: Arc<Shared>, manifest: Manifest, range: ByteRange) -> ByteStream {
    let end = range.end().unwrap_or(u64::MAX);
    let chunks = manifest.chunks.into_iter().filter_map(move |chunk| {
        let (from, to) = (range.offset.max(chunk.offset), end.min(chunk.offset + chunk.size));
        let part = ByteRange { offset: from.saturating_sub(chunk.offset), length: to.checked_sub(from)? };
        (part.length > 0).then_some((chunk.fid, part))
    });
    let bodies = futures::stream::iter(chunks).then(move |(fid, range)| {
        let shared = Arc::clone(&shared);
        let body: BoxFuture<'static, Result<ByteStream, StoreError>> = Box::pin(async move {
            let key = fid.parse::<Key>().map_err(|error| {
                shared.error(StoreErrorKind::Corrupt, "get", None, format!("a chunk has no file id: {error}"))
            })?;
            let fid = shared.fid("get", &key)?;
            let options = GetOptions { range: Some(range), ..GetOptions::default() };
            Ok(shared.get(fid, &key, &options).await.map_err(|failed| failed.error)?.body)
        });
        body
    });
    bodies.try_flatten().boxed()
}

fn size_of(body: &[Bytes]) -> u64 {
    body.iter().map(|piece| piece.len() as u64).sum()
}

/// What an answer says of the needle.
fn meta_of(answer: &Response, size: u64) -> ObjectMeta {
    let note = http::header(answer, NOTE).map(str::to_owned);
    ObjectMeta { size, etag: http::etag(answer), note, ..ObjectMeta::default() }
}

fn body_of(request: RequestBuilder, body: &[Bytes]) -> RequestBuilder {
    with_body(request, Pieces::new(body))
}

fn with_body(request: RequestBuilder, body: Pieces) -> RequestBuilder {
    request.header("content-type", BODY_TYPE).body(reqwest::Body::wrap(body))
}
