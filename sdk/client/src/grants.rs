//! Grants, asked for at the broker.
//!
//! Asks that come while calls are under way go together in the next one, so many small requests cost few calls. A grant to read is used again
//! until half of its life is over: what it permits starts in time then, on any clock. A grant to store is used once.

use crate::{
    CallError,
    broker::{Brokers, Line, Patience, retry_after},
};
use async_trait::async_trait;
use refstream_filer_adapter::{
    Attributes, CreateError, Listed, Part, Runtime, StoreError, StoreErrorKind, Stored,
    grant::{
        Completed, Grants, NeedleGrant, NeedlePlace, ReadAsk, ReadGrant, SignedRequest, UploadAsk, UploadGrant,
        UploadKind,
    },
};
use refstream_proto::v1::{self, ErrorCode, ErrorDetail, grants_client::GrantsClient, read_grant, upload_grant};
use refstream_types::{Crc32c, Key, StoreName};
use std::{
    collections::HashMap,
    fmt,
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::sync::{Semaphore, oneshot};

/// Calls for grants of one kind at once.
const CALLS: usize = 4;
/// The most asks of one call.
const MAX_ASKS: usize = 256;
/// Grants to read that are kept.
const MAX_KEPT: usize = 8_192;
/// The most objects of one listing.
const MAX_LISTED: usize = 1_000;

/// Who is asked for grants for one store.
#[derive(Debug)]
pub(crate) struct BrokerGrants {
    brokers: Arc<Brokers>,
    store: StoreName,
    runtime: Arc<dyn Runtime>,
    uploads: Together<UploadAsk, UploadGrant>,
    reads: Together<ReadAsk, ReadGrant>,
    kept: Mutex<HashMap<ReadAsk, (ReadGrant, Duration)>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where an answer goes.
type Answer<G> = oneshot::Sender<Result<G, StoreError>>;

/// Asks that wait for a call.
struct Together<A, G> {
    waiting: Mutex<Vec<(A, Answer<G>)>>,
    calls: Semaphore,
}

impl<A, G> fmt::Debug for Together<A, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Together").field("waiting", &lock(&self.waiting).len()).finish_non_exhaustive()
    }
}

impl<A: Clone, G> Together<A, G> {
    fn new() -> Self {
        Self { waiting: Mutex::default(), calls: Semaphore::new(CALLS) }
    }

    /// Asks together with whoever waits too. Whoever gets to call does so for all; when that one gives up, the others ask anew.
    async fn ask<Call>(&self, ask: &A, call: impl Fn(Vec<A>) -> Call) -> Result<G, StoreError>
    where
        Call: Future<Output = Vec<Result<G, StoreError>>>,
    {
        loop {
            let (answer, mut answered) = oneshot::channel();
            lock(&self.waiting).push((ask.clone(), answer));
            let turn = tokio::select! {
                biased;
                answer = &mut answered => match answer {
                    Ok(answer) => return answer,
                    Err(_) => continue,
                },
                turn = self.calls.acquire() => turn,
            };
            let (asks, answers): (Vec<_>, Vec<_>) = {
                let mut waiting = lock(&self.waiting);
                // The turn may have come after somebody else took this ask along.
                waiting.retain(|(_, answer)| !answer.is_closed());
                let most = waiting.len().min(MAX_ASKS);
                waiting.drain(..most).unzip()
            };
            if !asks.is_empty() {
                for (answer, outcome) in answers.into_iter().zip(call(asks).await) {
                    let _ = answer.send(outcome);
                }
            }
            drop(turn);
            if let Ok(answer) = answered.await {
                return answer;
            }
        }
    }
}

impl BrokerGrants {
    pub(crate) fn new(brokers: Arc<Brokers>, store: StoreName, runtime: Arc<dyn Runtime>) -> Self {
        let (uploads, reads) = (Together::new(), Together::new());
        Self { brokers, store, runtime, uploads, reads, kept: Mutex::default() }
    }

    fn error(
        &self,
        kind: StoreErrorKind,
        operation: &'static str,
        key: Option<&Key>,
        message: impl Into<String>,
    ) -> StoreError {
        let store = format!("{} (by grants of {})", self.store, self.brokers.endpoint());
        StoreError { kind, operation, store, key: key.cloned(), message: message.into() }
    }

    fn of_detail(&self, operation: &'static str, key: &Key, detail: &ErrorDetail) -> StoreError {
        let after = retry_after(detail);
        self.error(kind_of(detail.code(), detail.retryable, after), operation, Some(key), detail.message.clone())
    }

    fn of_call(&self, operation: &'static str, key: Option<&Key>, error: &CallError) -> StoreError {
        let kind = match error {
            CallError::Unreachable(_) => StoreErrorKind::Unavailable,
            CallError::Refused(refusal) => kind_of(refusal.code, refusal.is_retryable(), None),
            CallError::Answer(_) => StoreErrorKind::Invalid,
        };
        let message = match error {
            CallError::Refused(refusal) => refusal.message.clone(),
            other => other.to_string(),
        };
        self.error(kind, operation, key, message)
    }

    fn strange(&self, operation: &'static str, key: Option<&Key>, what: &str) -> StoreError {
        let message = format!("the broker's answer {what}; do client and broker have the same version?");
        self.error(StoreErrorKind::Invalid, operation, key, message)
    }

    async fn call<Request: Clone, T, Call>(
        &self,
        request: Request,
        call: impl Fn(GrantsClient<Line>, Request) -> Call,
    ) -> Result<T, CallError>
    where
        Call: Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    {
        let answer = self.brokers.call(Patience::Timeout, |line| call(GrantsClient::new(line), request.clone()));
        Box::pin(answer).await
    }

    async fn grant_uploads(&self, asks: Vec<UploadAsk>) -> Vec<Result<UploadGrant, StoreError>> {
        const OPERATION: &str = "grant to store";
        let request =
            v1::GrantUploadsRequest { store: self.store.to_string(), asks: asks.iter().map(upload_ask).collect() };
        let answer = self.call(request, async |mut to, request| to.grant_uploads(request).await).await;
        let grants = match answer {
            Ok(answer) => answer.grants,
            Err(error) => {
                return asks.iter().map(|ask| Err(self.of_call(OPERATION, Some(&ask.key), &error))).collect();
            }
        };
        let mut grants = grants.into_iter();
        let granted = |ask: &UploadAsk| {
            let key = &ask.key;
            let strange = |what| self.strange(OPERATION, Some(key), what);
            let grant = grants.next().ok_or_else(|| strange("lacks a grant"))?;
            let life = Duration::from_micros(grant.life_micros);
            match grant.result.ok_or_else(|| strange("has an empty grant"))? {
                upload_grant::Result::Request(request) => Ok(UploadGrant::Request(signed(request, life))),
                upload_grant::Result::Needle(needle) => {
                    let key = needle.key.parse().map_err(|_| strange("names an object in no way that can be"))?;
                    let (Some(place), Some(beside)) = (needle.place, needle.beside) else {
                        return Err(strange("lacks a place"));
                    };
                    let (server, proof) = (needle.server, needle.proof);
                    let (place, beside) = (needle_place(place), needle_place(beside));
                    Ok(UploadGrant::Needle(Box::new(NeedleGrant { key, server, place, beside, proof, life })))
                }
                upload_grant::Result::Error(error) => Err(self.of_detail(OPERATION, key, &error)),
            }
        };
        asks.iter().map(granted).collect()
    }

    async fn grant_reads(&self, asks: Vec<ReadAsk>) -> Vec<Result<ReadGrant, StoreError>> {
        const OPERATION: &str = "grant to read";
        let ask =
            |ask: &ReadAsk| v1::ReadAsk { key: ask.key.to_string(), version: ask.version.clone(), head: ask.head };
        let request = v1::GrantReadsRequest { store: self.store.to_string(), asks: asks.iter().map(ask).collect() };
        let answer = self.call(request, async |mut to, request| to.grant_reads(request).await).await;
        let grants = match answer {
            Ok(answer) => answer.grants,
            Err(error) => {
                return asks.iter().map(|ask| Err(self.of_call(OPERATION, Some(&ask.key), &error))).collect();
            }
        };
        let mut grants = grants.into_iter();
        let granted = |ask: &ReadAsk| {
            let strange = |what| self.strange(OPERATION, Some(&ask.key), what);
            let grant = grants.next().ok_or_else(|| strange("lacks a grant"))?;
            let life = Duration::from_micros(grant.life_micros);
            match grant.result.ok_or_else(|| strange("has an empty grant"))? {
                read_grant::Result::Request(request) => Ok(ReadGrant::Request(signed(request, life))),
                read_grant::Result::Needle(v1::NeedleRead { servers, token }) => {
                    Ok(ReadGrant::Needle { servers, token, life })
                }
                read_grant::Result::Error(error) => Err(self.of_detail(OPERATION, &ask.key, &error)),
            }
        };
        asks.iter().map(granted).collect()
    }

    /// Whether a completion that failed may have happened.
    fn of_completion(&self, key: &Key, error: &CallError) -> CreateError {
        let clean = error.has_no_side_effects();
        let error = self.of_call("complete multipart upload", Some(key), error);
        if clean { CreateError::DidNotHappen(error) } else { CreateError::MayHaveHappened(error) }
    }
}

fn kind_of(code: ErrorCode, retryable: bool, after: Option<Duration>) -> StoreErrorKind {
    match code {
        ErrorCode::PayloadNotFound => StoreErrorKind::NotFound,
        ErrorCode::NotAuthorised => StoreErrorKind::AccessDenied,
        ErrorCode::Throttled => StoreErrorKind::Throttled(after),
        _ if retryable => StoreErrorKind::Unavailable,
        _ => StoreErrorKind::Invalid,
    }
}

fn upload_ask(ask: &UploadAsk) -> v1::UploadAsk {
    let kind = match &ask.kind {
        UploadKind::Object(given) => v1::upload_ask::Kind::Object(attributes(given)),
        UploadKind::Part { upload, number } => {
            v1::upload_ask::Kind::Part(v1::PartOf { upload: upload.clone(), number: *number })
        }
    };
    v1::UploadAsk { key: ask.key.to_string(), size: ask.size, checksum: ask.checksum.0, kind: Some(kind) }
}

fn attributes(given: &Attributes) -> v1::ObjectAttributes {
    v1::ObjectAttributes { content_type: given.content_type.clone(), note: given.note.clone() }
}

fn signed(request: v1::SignedRequest, life: Duration) -> SignedRequest {
    let headers = request.headers.into_iter().map(|header| (header.name, header.value)).collect();
    SignedRequest { url: request.url, headers, life }
}

fn needle_place(place: v1::NeedlePlace) -> NeedlePlace {
    NeedlePlace { path: place.path, token: place.token }
}

fn uploaded(parts: &[Part]) -> Vec<v1::UploadedPart> {
    let part = |part: &Part| v1::UploadedPart {
        number: part.number,
        etag: part.etag.clone(),
        size: part.size,
        checksum: part.checksum.map(|sum| sum.0),
    };
    parts.iter().map(part).collect()
}

#[async_trait]
impl Grants for BrokerGrants {
    async fn upload(&self, ask: &UploadAsk) -> Result<UploadGrant, StoreError> {
        self.brokers.note_granted();
        self.uploads.ask(ask, |asks| self.grant_uploads(asks)).await
    }

    async fn read(&self, ask: &ReadAsk) -> Result<ReadGrant, StoreError> {
        let now = self.runtime.now();
        if let Some((grant, until)) = lock(&self.kept).get(ask)
            && *until > now
        {
            return Ok(grant.clone());
        }
        let grant = self.reads.ask(ask, |asks| self.grant_reads(asks)).await?;
        let mut kept = lock(&self.kept);
        if kept.len() >= MAX_KEPT {
            kept.retain(|_, (_, until)| *until > now);
        }
        if kept.len() >= MAX_KEPT {
            kept.clear();
        }
        kept.insert(ask.clone(), (grant.clone(), now + grant.life() / 2));
        Ok(grant)
    }

    fn forget(&self, key: &Key) {
        lock(&self.kept).retain(|ask, _| ask.key != *key);
    }

    async fn start_upload(&self, key: &Key, given: &Attributes) -> Result<String, StoreError> {
        let attributes = Some(attributes(given));
        let request = v1::StartUploadRequest { store: self.store.to_string(), key: key.to_string(), attributes };
        let answer = self.call(request, async |mut to, request| to.start_upload(request).await).await;
        Ok(answer.map_err(|error| self.of_call("start multipart upload", Some(key), &error))?.upload)
    }

    async fn parts(&self, key: &Key, upload: &str) -> Result<Vec<Part>, StoreError> {
        let (store, key_text) = (self.store.to_string(), key.to_string());
        let request = v1::ListPartsRequest { store, key: key_text, upload: upload.to_owned() };
        let answer = self.call(request, async |mut to, request| to.list_parts(request).await).await;
        let answer = answer.map_err(|error| self.of_call("list parts", Some(key), &error))?;
        let part = |part: v1::UploadedPart| Part {
            number: part.number,
            etag: part.etag,
            size: part.size,
            checksum: part.checksum.map(Crc32c),
        };
        Ok(answer.parts.into_iter().map(part).collect())
    }

    async fn complete_upload(
        &self,
        key: &Key,
        upload: &str,
        parts: &[Part],
        note: Option<&str>,
    ) -> Result<Completed, CreateError> {
        let request = v1::CompleteUploadRequest {
            store: self.store.to_string(),
            key: key.to_string(),
            upload: upload.to_owned(),
            parts: uploaded(parts),
            note: note.map(str::to_owned),
        };
        let answer = self.call(request, async |mut to, request| to.complete_upload(request).await).await;
        let answer = answer.map_err(|error| self.of_completion(key, &error))?;
        let named = answer.key.parse().map_err(|_| {
            let what = "names the object in no way that can be";
            CreateError::MayHaveHappened(self.strange("complete multipart upload", Some(key), what))
        })?;
        let server = answer.beside_server;
        let beside = answer.beside.map(|place| (server, needle_place(place)));
        Ok(Completed { stored: Stored { key: named, size: answer.size, etag: answer.etag }, beside })
    }

    async fn abort_upload(&self, key: &Key, upload: &str, parts: &[Part]) -> Result<(), StoreError> {
        let (store, key_text) = (self.store.to_string(), key.to_string());
        let request =
            v1::AbortUploadRequest { store, key: key_text, upload: upload.to_owned(), parts: uploaded(parts) };
        let answer = self.call(request, async |mut to, request| to.abort_upload(request).await).await;
        answer.map_err(|error| self.of_call("abort multipart upload", Some(key), &error))?;
        Ok(())
    }

    async fn list(&self, prefix: &str, after: Option<&Key>, limit: usize) -> Result<Vec<Listed>, StoreError> {
        let mut found: Vec<Listed> = Vec::new();
        while found.len() < limit {
            let page = (limit - found.len()).min(MAX_LISTED);
            let after = found.last().map(|listed| &listed.key).or(after).map(ToString::to_string);
            let request = v1::ListObjectsRequest {
                store: self.store.to_string(),
                prefix: prefix.to_owned(),
                after,
                limit: page as u32,
            };
            let answer = self.call(request, async |mut to, request| to.list_objects(request).await).await;
            let answer = answer.map_err(|error| self.of_call("list", None, &error))?;
            let last = answer.objects.len() < page;
            for object in answer.objects {
                let key = object.key.parse();
                let key = key.map_err(|_| self.strange("list", None, "names an object in no way that can be"))?;
                found.push(Listed { key, size: object.size, etag: object.etag, version: None });
            }
            if last {
                break;
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[tokio::test]
    async fn asks_go_together_and_each_gets_its_own_answer() {
        let together = Together::<usize, usize>::new();
        let calls = AtomicUsize::new(0);
        let call = async |asks: Vec<usize>| {
            calls.fetch_add(1, Ordering::Relaxed);
            // Others come while a call is under way.
            tokio::task::yield_now().await;
            asks.into_iter().map(|ask| Ok(ask * 2)).collect()
        };
        let asks: Vec<_> = (0..1_000).collect();
        let answers = futures::future::join_all(asks.iter().map(|ask| together.ask(ask, call))).await;
        assert_eq!(
            answers.into_iter().map(Result::unwrap).collect::<Vec<_>>(),
            (0..1_000).map(|ask| ask * 2).collect::<Vec<_>>()
        );
        assert!(calls.load(Ordering::Relaxed) < 20, "{calls:?}");
    }

    #[tokio::test]
    async fn an_asker_that_gives_up_takes_nobody_along() {
        let together = Together::<usize, usize>::new();
        let stuck = async |_: Vec<usize>| futures::future::pending().await;
        let mut leaders: Vec<_> = (0..CALLS).map(|_| Box::pin(together.ask(&1, stuck))).collect();
        for leader in &mut leaders {
            assert!(futures::poll!(leader.as_mut()).is_pending());
        }
        let call = async |asks: Vec<usize>| asks.into_iter().map(|ask| Ok(ask * 2)).collect();
        let mut other = Box::pin(together.ask(&21, call));
        assert!(futures::poll!(other.as_mut()).is_pending());
        drop(leaders);
        assert_eq!(other.await.unwrap(), 42);
    }
}
