//! Reading an object's bytes, unverified, with patience.

use crate::{DamagedObject, FetchError, FetchedObject, backoff::Backoff};
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use refstream_filer_adapter::{BlobStore, ByteStream, GetOptions, Runtime, StoreError, StoreErrorKind};
use refstream_format::{DecodeError, blocks::Blocks};
use refstream_types::{ByteRange, Key, Layout, Reference};
use std::{fmt::Display, time::Duration};

/// Blobs of fewer stored bytes were likely stored in one request: by default, twice the least size of a part.
const ONE_REQUEST_BYTES: u64 = 16 << 20;

/// The object of a reference.
pub(super) struct Object<'a> {
    pub(super) store: &'a dyn BlobStore,
    pub(super) runtime: &'a dyn Runtime,
    pub(super) reference: &'a Reference,
    pub(super) object: &'a FetchedObject,
    /// How long a store that does not answer is asked again.
    pub(super) patience: Duration,
}

impl<'a> Object<'a> {
    pub(super) fn damaged(&self, what: &str, expected: impl Display, actual: impl Display) -> FetchError {
        FetchError::Damaged(Box::new(DamagedObject {
            object: self.object.clone(),
            what: what.to_owned(),
            expected: expected.to_string(),
            actual: actual.to_string(),
            handed_out: 0,
        }))
    }
    pub(super) fn failed(&self, error: StoreError) -> FetchError {
        FetchError::of_store(self.object, error)
    }

    /// Bytes `range` of the object.
    pub(super) async fn read(&self, range: ByteRange) -> Result<Bytes, FetchError> {
        let mut stream = self.stream(range);
        let mut pieces = Vec::new();
        while let Some(piece) = stream.next().await? {
            pieces.push(piece);
        }
        Ok(super::joined(pieces))
    }

    /// Bytes `range` of the object, as they arrive.
    pub(super) fn stream(&self, range: ByteRange) -> RangeStream<'_, 'a> {
        RangeStream {
            object: self,
            left: range,
            body: None,
            kept: BytesMut::new(),
            patience: Patience::new(self.runtime, self.patience),
        }
    }

    /// What the store keeps of the sums of the blob's blocks, with the object that has them: the blob's own, in its note, or the sidecar.
    pub(super) async fn sums(&self) -> Result<Option<(Key, Result<Blocks, DecodeError>)>, FetchError> {
        // What was likely stored in one request has them in its note: then the first question is the last.
        if self.reference.size < ONE_REQUEST_BYTES {
            let noted = self.noted_sums().await?;
            return if noted.is_some() { Ok(noted) } else { self.sidecar().await };
        }
        let beside = self.sidecar().await?;
        if beside.is_some() { Ok(beside) } else { self.noted_sums().await }
    }

    async fn noted_sums(&self) -> Result<Option<(Key, Result<Blocks, DecodeError>)>, FetchError> {
        let key = &self.reference.key;
        let meta = self.asked(|| self.store.head(key)).await?;
        Ok(meta.and_then(|meta| meta.note).map(|note| (key.clone(), Blocks::from_note(&note))))
    }

    async fn sidecar(&self) -> Result<Option<(Key, Result<Blocks, DecodeError>)>, FetchError> {
        let key = Layout::blocks(&self.reference.key);
        let read = async || {
            let mut body = match self.store.get(&key, &GetOptions::default()).await {
                Ok(found) => found.body,
                Err(error) if error.is_not_found() => return Ok(None),
                Err(error) => return Err(error),
            };
            let mut pieces = Vec::new();
            while let Some(piece) = body.next().await {
                pieces.push(piece?);
            }
            Ok(Some(super::joined(pieces)))
        };
        let bytes = self.asked(read).await?;
        Ok(bytes.map(|bytes| (key, Blocks::decode(&bytes))))
    }

    /// Asks the store until it answers, or patience is at its end.
    async fn asked<T, Answer: Future<Output = Result<T, StoreError>>>(
        &self,
        ask: impl Fn() -> Answer,
    ) -> Result<T, FetchError> {
        let mut patience = Patience::new(self.runtime, self.patience);
        loop {
            match limited(self.runtime, self.patience, self.reference, ask()).await {
                Ok(answer) => return Ok(answer),
                Err(error) => patience.wait(error).await.map_err(|error| self.failed(error))?,
            }
        }
    }
}

/// A step that must bring something, or an error, within the limit.
async fn limited<T>(
    runtime: &dyn Runtime,
    limit: Duration,
    reference: &Reference,
    step: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    tokio::select! {
        done = step => done,
        () = runtime.sleep(limit) => Err(StoreError {
            kind: StoreErrorKind::Unavailable,
            operation: "get",
            store: reference.store.to_string(),
            key: Some(reference.key.clone()),
            message: "no answer in time".into(),
        }),
    }
}

/// Waits between attempts until time is up.
struct Patience<'a> {
    runtime: &'a dyn Runtime,
    limit: Duration,
    backoff: Backoff,
    /// When the first failure came since something arrived.
    since: Option<Duration>,
}

impl<'a> Patience<'a> {
    fn new(runtime: &'a dyn Runtime, limit: Duration) -> Self {
        Self { runtime, limit, backoff: Backoff::new(), since: None }
    }
    fn progress(&mut self) {
        self.backoff.reset();
        self.since = None;
    }
    /// Waits, or gives the error back when waiting does not help.
    async fn wait(&mut self, error: StoreError) -> Result<(), StoreError> {
        if error.kind == StoreErrorKind::Corrupt {
            // The store itself found the damage; its adapter has asked all that have a copy.
            return Err(error);
        }
        let mut delay = self.backoff.next(self.runtime);
        if let StoreErrorKind::Throttled(Some(asked)) = error.kind {
            delay = delay.max(asked);
        }
        let now = self.runtime.now();
        let since = *self.since.get_or_insert(now);
        if !error.is_retryable() || now - since + delay > self.limit {
            return Err(error);
        }
        self.runtime.sleep(delay).await;
        Ok(())
    }
}

/// Bytes of a range. An interrupted answer is asked for again from where it broke off.
pub(super) struct RangeStream<'o, 'a> {
    object: &'o Object<'a>,
    left: ByteRange,
    body: Option<ByteStream>,
    /// Bytes that arrived and were not taken.
    kept: BytesMut,
    patience: Patience<'a>,
}

impl RangeStream<'_, '_> {
    /// The next bytes as they arrive; `None` at the end of the range. An object that ends within the range is damaged.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, FetchError> {
        if !self.kept.is_empty() {
            return Ok(Some(self.kept.split().freeze()));
        }
        while self.left.length > 0 {
            let error = match self.limited_step().await {
                Ok(Some(mut piece)) => {
                    piece.truncate(usize::try_from(self.left.length).unwrap_or(usize::MAX));
                    self.left.offset += piece.len() as u64;
                    self.left.length -= piece.len() as u64;
                    self.patience.progress();
                    return Ok(Some(piece));
                }
                Ok(None) => {
                    let end = self.left.offset + self.left.length;
                    let what = "its size";
                    return Err(self.object.damaged(
                        what,
                        format!("at least {end} bytes"),
                        format!("{} bytes", self.left.offset),
                    ));
                }
                Err(error) => error,
            };
            self.body = None;
            self.patience.wait(error).await.map_err(|error| self.object.failed(error))?;
        }
        Ok(None)
    }

    async fn limited_step(&mut self) -> Result<Option<Bytes>, StoreError> {
        let object = self.object;
        limited(object.runtime, object.patience, object.reference, self.step()).await
    }

    async fn step(&mut self) -> Result<Option<Bytes>, StoreError> {
        if self.body.is_none() {
            let reference = self.object.reference;
            let options =
                GetOptions { range: Some(self.left), etag: reference.etag.clone(), version: reference.version.clone() };
            let found = self.object.store.get(&reference.key, &options).await?;
            if found.meta.size < self.left.offset + self.left.length {
                self.left.offset = found.meta.size.max(self.left.offset);
                return Ok(None);
            }
            self.body = Some(found.body);
        }
        let Some(body) = &mut self.body else { return Ok(None) };
        loop {
            match body.next().await {
                Some(Ok(piece)) if piece.is_empty() => {}
                Some(piece) => return piece.map(Some),
                None => return Ok(None),
            }
        }
    }

    /// The next `bytes` bytes, or fewer at the end of the range; `None` when nothing is left.
    pub(super) async fn take_up_to(&mut self, bytes: usize) -> Result<Option<Bytes>, FetchError> {
        let mut taken = std::mem::take(&mut self.kept);
        while taken.len() < bytes {
            match self.next().await? {
                Some(piece) => taken.extend_from_slice(&piece),
                None => break,
            }
        }
        if taken.len() > bytes {
            self.kept = taken.split_off(bytes);
        }
        Ok(Some(taken.freeze()).filter(|taken| !taken.is_empty()))
    }
}
