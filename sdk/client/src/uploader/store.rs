//! Requests to the store, repeated while that can help.

use super::Inner;
use crate::{NotStored, UploadError, backoff::Backoff};
use bytes::Bytes;
use futures::StreamExt as _;
use refstream_filer_adapter::{Attributes, CreateError, GetOptions, MAX_NOTE_BYTES, Sent, StoreError, StoreErrorKind};
use refstream_format::blocks::{BLOCK_BYTES, Blocks};
use refstream_types::{Crc32c, Key, Layout};
use std::{future::Future, time::Duration};

/// How long a request is repeated while the store is unavailable.
const RETRY_FOR: Duration = Duration::from_secs(300);
/// How long a request is repeated while the store is full.
const RETRY_FULL_FOR: Duration = Duration::from_secs(10);

/// Repeats a request whose repetition is harmless until it succeeds, fails for good, or time is up.
pub(super) async fn repeat<T, Attempt: Future<Output = Result<T, CreateError>>>(
    inner: &Inner,
    key: &Key,
    mut request: impl FnMut() -> Attempt,
) -> Result<T, UploadError> {
    let start = inner.runtime.now();
    let mut backoff = Backoff::new();
    loop {
        let error = match request().await {
            Ok(done) => {
                inner.set_trouble(None);
                return Ok(done);
            }
            Err(error) => error,
        };
        let mut delay = backoff.next(&*inner.runtime);
        if let StoreErrorKind::Throttled(Some(asked)) = error.error().kind {
            delay = delay.max(asked);
        }
        if matches!(error.error().kind, StoreErrorKind::Throttled(_)) {
            inner.requests.throttled(inner.runtime.now());
        }
        let limit = match error.error().kind {
            StoreErrorKind::NoSpace => RETRY_FULL_FOR,
            _ => RETRY_FOR,
        };
        let tried_for = inner.runtime.now() - start;
        if !error.error().is_retryable() || tried_for + delay > limit {
            let failed = NotStored::of_create(&inner.name, key, tried_for, error);
            return Err(UploadError::NotStored(Box::new(failed)));
        }
        inner.set_trouble(Some(error.error().to_string()));
        inner.runtime.sleep(delay).await;
    }
}

/// As a create that certainly left no object.
pub(super) fn harmless(error: StoreError) -> CreateError {
    CreateError::DidNotHappen(error)
}

/// Stores an object; returns its key, which the store may have chosen.
pub(super) async fn put(
    inner: &Inner,
    key: &Key,
    body: Vec<Bytes>,
    checksum: Crc32c,
    attributes: &Attributes,
    sent: &Sent,
) -> Result<Key, UploadError> {
    let size = body.iter().map(|piece| piece.len() as u64).sum();
    let stored = repeat(inner, key, || async {
        let _turn = inner.turn(size).await;
        inner.store.put_telling(key, body.clone(), checksum, attributes, sent).await
    })
    .await?;
    verify(inner, &stored.key, size, checksum).await?;
    inner.note_taken(size);
    inner.note_stored(size);
    Ok(stored.key)
}

/// Stores an object that holds one blob, with the sums of its blocks; returns its key. Sums that are too many for the object's note are an
/// object of their own: both are on their way at once, unless the sums have to wait for the key.
pub(super) async fn put_blob(
    inner: &Inner,
    key: &Key,
    body: Vec<Bytes>,
    (size, checksum, blocks): (u64, Crc32c, &[Crc32c]),
    attributes: &Attributes,
    sent: &Sent,
) -> Result<Key, UploadError> {
    let noted = Attributes { note: note_of(size, blocks), ..attributes.clone() };
    let object = put(inner, key, body, checksum, &noted, sent);
    if noted.note.is_some() {
        return object.await;
    }
    if inner.store.names_objects() {
        let key = object.await?;
        put_sidecar(inner, &key, size, blocks).await?;
        return Ok(key);
    }
    let (key, ()) = futures::try_join!(object, put_sidecar(inner, key, size, blocks))?;
    Ok(key)
}

/// Reads an object back, if that is asked for, and compares its sum.
pub(super) async fn verify(inner: &Inner, key: &Key, size: u64, checksum: Crc32c) -> Result<(), UploadError> {
    if !inner.options.verify {
        return Ok(());
    }
    repeat(inner, key, || async {
        let _turn = inner.requests.acquire().await;
        let mut body = inner.store.get(key, &GetOptions::default()).await.map_err(harmless)?.body;
        let mut sum = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
        let mut bytes = 0;
        while let Some(piece) = body.next().await {
            let piece = piece.map_err(harmless)?;
            bytes += piece.len() as u64;
            sum.update(&piece);
        }
        let found = Crc32c(sum.finalize() as u32);
        if (bytes, found) == (size, checksum) {
            return Ok(());
        }
        Err(harmless(StoreError {
            kind: StoreErrorKind::Invalid,
            operation: "read back",
            store: inner.name.to_string(),
            key: Some(key.clone()),
            message: format!("stored {size} bytes with {checksum}, read {bytes} bytes with {found}"),
        }))
    })
    .await
}

/// Whether there is an object of this size.
pub(super) async fn has(inner: &Inner, key: &Key, size: u64) -> Result<bool, UploadError> {
    let found = repeat(inner, key, || async {
        let _turn = inner.requests.acquire().await;
        inner.store.head(key).await.map_err(harmless)
    })
    .await?;
    Ok(found.is_some_and(|meta| meta.size == size))
}

/// The sums of a blob's blocks as the note of its object; `None` where there is one block at most, or the note were too long.
pub(super) fn note_of(size: u64, blocks: &[Crc32c]) -> Option<String> {
    // Each sum takes more than four characters: the sums of a large blob are not written to be thrown away.
    if size <= BLOCK_BYTES || blocks.len() > MAX_NOTE_BYTES / 4 {
        return None;
    }
    Some(Blocks { size, checksums: blocks.to_vec() }.to_note()).filter(|note| note.len() <= MAX_NOTE_BYTES)
}

/// Stores the sums of a blob's blocks as an object of their own, when it has more than one.
pub(super) async fn put_sidecar(inner: &Inner, key: &Key, size: u64, blocks: &[Crc32c]) -> Result<(), UploadError> {
    if size <= BLOCK_BYTES {
        return Ok(());
    }
    let bytes = Bytes::from(Blocks { size, checksums: blocks.to_vec() }.encode());
    let checksum = refstream_format::crc32c(&bytes);
    put(inner, &Layout::blocks(key), vec![bytes], checksum, &Attributes::default(), &Sent::default()).await?;
    Ok(())
}
