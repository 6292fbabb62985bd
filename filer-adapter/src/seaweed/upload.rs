//! Objects in parts: SeaweedFS' own chunk manifests.

use super::{Shared, fid::Fid, grants::etag_with, volume::Needle};
use crate::{
    Attributes, CreateError, MultipartUpload, Part, StoreError, StoreErrorKind, Stored, crc32c, grant::Completed,
};
use async_trait::async_trait;
use bytes::Bytes;
use refstream_types::{Crc32c, Key};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// The list of an object's chunks, as SeaweedFS reads it.
#[derive(Deserialize, Serialize)]
pub(super) struct Manifest {
    pub(super) size: u64,
    pub(super) chunks: Vec<Chunk>,
}

#[derive(Deserialize, Serialize)]
pub(super) struct Chunk {
    pub(super) fid: String,
    pub(super) offset: u64,
    pub(super) size: u64,
}

/// What was uploaded by this process.
#[derive(Debug, Default)]
struct Written {
    parts: BTreeMap<u32, Part>,
    /// Parts that were replaced.
    replaced: Vec<Part>,
    aborted: bool,
}

/// An upload in parts. Its state is here and with whoever keeps the parts; the store knows nothing of it until it is complete.
#[derive(Debug)]
pub(super) struct Upload {
    shared: Arc<Shared>,
    key: Key,
    id: String,
    /// What is kept with the object.
    note: Option<String>,
    written: Mutex<Written>,
}

impl Upload {
    pub(super) fn new(shared: &Arc<Shared>, key: &Key, id: &str) -> Self {
        Self { shared: Arc::clone(shared), key: key.clone(), id: id.to_owned(), note: None, written: Mutex::default() }
    }

    /// The same upload, whose object keeps this.
    pub(super) fn with_note(mut self, note: Option<&str>) -> Self {
        self.note = note.map(str::to_owned);
        self
    }

    fn written(&self) -> MutexGuard<'_, Written> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn gone(&self) -> StoreError {
        self.shared.error(StoreErrorKind::NotFound, "upload", Some(&self.key), "the upload was given up")
    }

    /// Deletes chunks that nothing names, as well as can be.
    async fn remove(&self, parts: Vec<Part>) -> Result<(), StoreError> {
        if let Some(grants) = &self.shared.grants {
            return if parts.is_empty() { Ok(()) } else { grants.abort_upload(&self.key, &self.id, &parts).await };
        }
        let mut outcome = Ok(());
        for fid in parts.iter().filter_map(|part| part.etag.parse::<Fid>().ok()) {
            if let Err(failed) = self.shared.delete(fid, &self.key).await {
                outcome = Err(failed.error);
            }
        }
        outcome
    }
}

impl Upload {
    /// Removes what the object does not consist of.
    async fn forget_replaced(&self) {
        let replaced = std::mem::take(&mut self.written().replaced);
        // What cannot be removed costs space only.
        let _ = self.remove(replaced).await;
    }
}

#[async_trait]
impl MultipartUpload for Upload {
    fn id(&self) -> &str {
        &self.id
    }

    async fn put_part(&self, number: u32, body: Vec<Bytes>, checksum: Crc32c) -> Result<Part, StoreError> {
        if self.written().aborted {
            return Err(self.gone());
        }
        let size = body.iter().map(|piece| piece.len() as u64).sum();
        let what = Needle::Part { upload: &self.id, number };
        let (fid, proof) = self.shared.put(&self.key, &body, checksum, what).await.map_err(|failed| failed.error)?;
        let part = Part { number, etag: etag_with(fid, proof.as_deref()), size, checksum: Some(checksum) };
        let mut written = self.written();
        if let Some(before) = written.parts.insert(number, part.clone()) {
            written.replaced.push(before);
        }
        Ok(part)
    }

    async fn parts(&self) -> Result<Vec<Part>, StoreError> {
        Ok(self.written().parts.values().cloned().collect())
    }

    async fn complete(&self, parts: &[Part]) -> Result<Stored, CreateError> {
        if self.written().aborted {
            return Err(CreateError::DidNotHappen(self.gone()));
        }
        if let Some(grants) = &self.shared.grants {
            let Completed { stored, beside } =
                grants.complete_upload(&self.key, &self.id, parts, self.note.as_deref()).await?;
            if let (Some((server, place)), Some(fid)) = (beside, Fid::of_key(&stored.key)) {
                self.shared.remember_beside(fid, server.into(), place);
            }
            self.forget_replaced().await;
            return Ok(stored);
        }
        let mut manifest = Manifest { size: 0, chunks: Vec::with_capacity(parts.len()) };
        for part in parts {
            if part.etag.parse::<Fid>().is_err() {
                let message = format!("the ETag {:?} of part {} is no file id", part.etag, part.number);
                let error = self.shared.error(StoreErrorKind::Invalid, "complete", Some(&self.key), message);
                return Err(CreateError::DidNotHappen(error));
            }
            manifest.chunks.push(Chunk { fid: part.etag.clone(), offset: manifest.size, size: part.size });
            manifest.size += part.size;
        }
        let size = manifest.size;
        let body = serde_json::to_vec(&manifest).map(|json| vec![Bytes::from(json)]).map_err(|error| {
            let error = self.shared.error(StoreErrorKind::Invalid, "complete", Some(&self.key), error.to_string());
            CreateError::DidNotHappen(error)
        })?;
        let checksum = crc32c(&body);
        let what = Needle::Manifest { note: self.note.as_deref() };
        let (fid, _) = self.shared.put(&self.key, &body, checksum, what).await?;
        self.forget_replaced().await;
        let key = self.shared.key_of(fid).map_err(CreateError::MayHaveHappened)?;
        Ok(Stored { key, size, etag: Some(format!("{:08x}", checksum.0)) })
    }

    async fn abort(&self) -> Result<(), StoreError> {
        let parts = {
            let mut written = self.written();
            written.aborted = true;
            let replaced = std::mem::take(&mut written.replaced);
            let parts = std::mem::take(&mut written.parts);
            replaced.into_iter().chain(parts.into_values()).collect()
        };
        self.remove(parts).await
    }
}

/// Stores an object that is too large for one needle.
pub(super) async fn put_in_parts(
    shared: &Arc<Shared>,
    key: &Key,
    body: &[Bytes],
    checksum: Crc32c,
    note: Option<String>,
) -> Result<Stored, CreateError> {
    let actual = crc32c(body);
    if actual != checksum {
        let message = format!("the body has checksum {actual}, not {checksum}");
        return Err(CreateError::DidNotHappen(shared.error(StoreErrorKind::Corrupt, "put", Some(key), message)));
    }
    let id = match &shared.grants {
        Some(grants) => grants.start_upload(key, &Attributes::default()).await.map_err(CreateError::DidNotHappen)?,
        None => String::new(),
    };
    let upload = Upload { note, ..Upload::new(shared, key, &id) };
    let mut pieces: Vec<Bytes> = body.iter().rev().cloned().collect();
    let mut parts = Vec::new();
    let outcome = async {
        while !pieces.is_empty() {
            let chunk = take(&mut pieces, shared.config.blob_bytes);
            let sum = crc32c(&chunk);
            let part = upload.put_part(parts.len() as u32 + 1, chunk, sum).await;
            parts.push(part.map_err(CreateError::DidNotHappen)?);
        }
        upload.complete(&parts).await
    };
    let outcome = outcome.await;
    if outcome.is_err() {
        let _ = upload.abort().await;
    }
    outcome
}

/// Takes up to `bytes` bytes from the end of a reversed list of pieces.
fn take(pieces: &mut Vec<Bytes>, bytes: u64) -> Vec<Bytes> {
    let (mut taken, mut left) = (Vec::new(), usize::try_from(bytes).unwrap_or(usize::MAX));
    while left > 0
        && let Some(mut piece) = pieces.pop()
    {
        if piece.len() > left {
            pieces.push(piece.split_off(left));
        }
        left -= piece.len();
        taken.push(piece);
    }
    taken
}
