//! Grants for SeaweedFS: made by whoever knows the master, used by whoever does not.

use super::{SeaweedStore, Shared, fid::Fid, jwt, master::Assigned};
use crate::{
    Attributes, BlobStore as _, CreateError, Listed, MultipartUpload as _, Part, StoreError, StoreErrorKind,
    attempt::{Failed, retried},
    grant::{Completed, Grants, NeedleGrant, NeedlePlace, ReadAsk, ReadGrant, UploadAsk, UploadGrant, UploadKind},
};
use async_trait::async_trait;
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use hmac::{Hmac, KeyInit, Mac};
use refstream_types::Key;
use sha2::Sha256;
use std::{collections::VecDeque, sync::Arc, time::Duration};

/// The longest life of a permission to write a payload: only the request's beginning must fall into it. A JWT cannot forbid to overwrite
/// its needle, so it is short.
const WRITE_LIFE: Duration = Duration::from_secs(60);
/// How the ids of granted uploads begin, by which they are told from those of other uploads.
const UPLOAD_PREFIX: &str = "granted-";
/// Stands between a part's file id and its proof.
const PROOF_MARK: char = '~';
/// Needles whose neighbours may still be written, at most; older ones are forgotten.
const REMEMBERED: usize = 4_096;

/// A file id and its proof, as the ETag of a part.
pub(super) fn etag_with(fid: Fid, proof: Option<&str>) -> String {
    match proof {
        Some(proof) => format!("{fid}{PROOF_MARK}{proof}"),
        None => fid.to_string(),
    }
}

/// The file id in the ETag of a part.
pub(super) fn without_proof(etag: &str) -> &str {
    etag.split_once(PROOF_MARK).map_or(etag, |(fid, _)| fid)
}

/// Whether an upload is a granted one.
pub(super) fn is_granted(upload: &str) -> bool {
    upload.starts_with(UPLOAD_PREFIX)
}

/// Gives grants for a cluster: has the master assign a file id for each, and signs for it alone.
#[derive(Clone)]
pub struct SeaweedGranter {
    store: SeaweedStore,
    life: Duration,
    /// Proves parts. Brokers of one deployment have the same where they have the cluster's signing key.
    secret: Arc<[u8]>,
}

impl std::fmt::Debug for SeaweedGranter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SeaweedGranter").field("store", &self.store).field("life", &self.life).finish_non_exhaustive()
    }
}

impl SeaweedGranter {
    /// Grants that are accepted for `life`; those to write a payload for a minute at most. `store` reaches the master.
    pub fn new(store: SeaweedStore, life: Duration) -> Self {
        let secret = match &store.shared.config.signing_key {
            Some(key) => key.as_bytes().into(),
            None => (0..4).flat_map(|_| store.shared.runtime.random().to_le_bytes()).collect(),
        };
        Self { store, life, secret }
    }

    /// The proof that this needle was granted as a part of this upload.
    fn proof(&self, upload: &str, fid: Fid, size: u64) -> String {
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.secret) else { return String::new() };
        mac.update(format!("refstream part\n{upload}\n{fid}\n{size}").as_bytes());
        URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes())
    }

    /// The file id of a part that was granted for this upload.
    fn proven(&self, key: &Key, upload: &str, part: &Part) -> Result<Fid, StoreError> {
        let refuse = |why: &str| {
            let message = format!("part {} {why}; start the upload anew", part.number);
            self.store.shared.error(StoreErrorKind::Invalid, "complete", Some(key), message)
        };
        let (fid, proof) = part.etag.split_once(PROOF_MARK).ok_or_else(|| refuse("was not stored by a grant"))?;
        let fid: Fid = fid.parse().map_err(|()| refuse("has no file id"))?;
        // Compared in constant time: whoever could measure the comparison could find a proof byte by byte.
        let expected = self.proof(upload, fid, part.size);
        let differs = expected.len() != proof.len()
            || expected.bytes().zip(proof.bytes()).fold(0, |differs, (a, b)| differs | (a ^ b)) != 0;
        if differs { Err(refuse("does not belong to this upload")) } else { Ok(fid) }
    }

    fn proven_parts(&self, key: &Key, upload: &str, parts: &[Part]) -> Result<Vec<Part>, StoreError> {
        let plain = |part: &Part| {
            let fid = self.proven(key, upload, part)?;
            Ok(Part { etag: fid.to_string(), ..part.clone() })
        };
        parts.iter().map(plain).collect()
    }

    /// Where the sums of a needle's blocks go, with a permission for it.
    async fn beside(&self, fid: Fid) -> Result<NeedlePlace, Failed> {
        let shared = &self.store.shared;
        let fid = fid.plus(1);
        let token = match &shared.config.signing_key {
            Some(key) => Some(jwt::sign(key, &fid.to_string(), shared.runtime.wall(), self.life)),
            None => shared.permission(fid, true).await?,
        };
        Ok(NeedlePlace { path: fid.to_string(), token })
    }

    async fn needle(&self, ask: &UploadAsk) -> Result<NeedleGrant, Failed> {
        let shared = &self.store.shared;
        let Assigned { fid, server, token, .. } = shared.assign_alone(ask.size).await?;
        let (place, beside) = match &shared.config.signing_key {
            Some(key) => {
                let life = self.life.min(WRITE_LIFE);
                let token = Some(jwt::sign(key, &fid.to_string(), shared.runtime.wall(), life));
                (NeedlePlace { path: fid.to_string(), token }, self.beside(fid).await?)
            }
            // The master's permission covers what is counted from its file id.
            None => {
                let beside = NeedlePlace { path: format!("{fid}_1"), token: token.clone() };
                (NeedlePlace { path: fid.to_string(), token }, beside)
            }
        };
        let key = shared.key_of(fid).map_err(|error| Failed { error, happened: false, status: None })?;
        let proof = match &ask.kind {
            UploadKind::Part { upload, .. } => Some(self.proof(upload, fid, ask.size)),
            UploadKind::Object(_) => None,
        };
        let (server, life) = (server.to_string(), self.life.min(WRITE_LIFE));
        Ok(NeedleGrant { key, server, place, beside, proof, life })
    }

    async fn read_grant(&self, fid: Fid) -> Result<ReadGrant, Failed> {
        let shared = &self.store.shared;
        let servers = shared.located(fid.volume).await?;
        let token = match &shared.config.read_signing_key {
            Some(key) => Some(jwt::sign(key, &fid.to_string(), shared.runtime.wall(), self.life)),
            None => shared.permission(fid, false).await?,
        };
        Ok(ReadGrant::Needle {
            servers: servers.iter().map(|server| server.to_string()).collect(),
            token,
            life: self.life,
        })
    }
}

#[async_trait]
impl Grants for SeaweedGranter {
    async fn upload(&self, ask: &UploadAsk) -> Result<UploadGrant, StoreError> {
        let shared = &self.store.shared;
        let granted = retried(shared.config.attempts, || self.needle(ask)).await.map_err(|failed| failed.error)?;
        Ok(UploadGrant::Needle(Box::new(granted)))
    }

    async fn read(&self, ask: &ReadAsk) -> Result<ReadGrant, StoreError> {
        let shared = &self.store.shared;
        let fid = shared.fid("grant read", &ask.key)?;
        retried(shared.config.attempts, || self.read_grant(fid)).await.map_err(|failed| failed.error)
    }

    async fn start_upload(&self, _: &Key, _: &Attributes) -> Result<String, StoreError> {
        Ok(format!("{UPLOAD_PREFIX}{}", self.store.shared.runtime.token()))
    }

    async fn parts(&self, _: &Key, _: &str) -> Result<Vec<Part>, StoreError> {
        Ok(Vec::new())
    }

    async fn complete_upload(
        &self,
        key: &Key,
        upload: &str,
        parts: &[Part],
        note: Option<&str>,
    ) -> Result<Completed, CreateError> {
        let shared = &self.store.shared;
        let parts = self.proven_parts(key, upload, parts).map_err(CreateError::DidNotHappen)?;
        let object = super::upload::Upload::new(shared, key, upload).with_note(note);
        let stored = object.complete(&parts).await?;
        let fid = shared.fid("complete", &stored.key).map_err(CreateError::MayHaveHappened)?;
        let place = async || {
            let servers = shared.located(fid.volume).await?;
            let beside = self.beside(fid).await?;
            Ok(servers.first().map(|server| (server.to_string(), beside)))
        };
        let beside = retried(shared.config.attempts, place).await;
        let beside = beside.map_err(|failed| CreateError::MayHaveHappened(failed.error))?;
        Ok(Completed { stored, beside })
    }

    async fn abort_upload(&self, key: &Key, upload: &str, parts: &[Part]) -> Result<(), StoreError> {
        for part in self.proven_parts(key, upload, parts)? {
            let Ok(chunk) = part.etag.parse() else { continue };
            self.store.delete(&chunk).await?;
        }
        Ok(())
    }

    async fn list(&self, prefix: &str, after: Option<&Key>, limit: usize) -> Result<Vec<Listed>, StoreError> {
        self.store.list_blobs(prefix, after, limit).await
    }
}

/// Where the sums of blocks go, of needles that were written by a grant.
#[derive(Debug, Default)]
pub(super) struct Neighbours(VecDeque<(Fid, Arc<str>, NeedlePlace)>);

impl Shared {
    /// A needle that was granted for a body.
    pub(super) async fn assigned_by(&self, grants: &dyn Grants, ask: &UploadAsk) -> Result<Assigned, Failed> {
        let failed = |error| Failed { error, happened: false, status: None };
        let granted = match grants.upload(ask).await.map_err(failed)? {
            UploadGrant::Needle(granted) => *granted,
            UploadGrant::Request(_) => {
                let message = "the broker gave a grant of another kind of store; client and broker disagree about the configuration";
                return Err(failed(self.error(StoreErrorKind::Invalid, "put", Some(&ask.key), message)));
            }
        };
        let fid = self.fid("put", &granted.key).map_err(failed)?;
        Ok(Assigned::granted(fid, granted))
    }

    pub(super) fn remember_beside(&self, fid: Fid, server: Arc<str>, place: NeedlePlace) {
        let mut neighbours = self.neighbours.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if neighbours.0.len() >= REMEMBERED {
            neighbours.0.pop_front();
        }
        neighbours.0.push_back((fid.plus(1), server, place));
    }

    /// Where the sums that belong under this file id are written.
    pub(super) fn beside(&self, fid: Fid, key: &Key) -> Result<(Arc<str>, NeedlePlace), StoreError> {
        let neighbours = self.neighbours.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let found = neighbours.0.iter().rev().find(|(other, ..)| *other == fid);
        found.map(|(_, server, place)| (Arc::clone(server), place.clone())).ok_or_else(|| {
            let message =
                "its payload was not stored by this process, and a grant covers the sums of its own payload only";
            self.error(StoreErrorKind::AccessDenied, "put", Some(key), message)
        })
    }
}
