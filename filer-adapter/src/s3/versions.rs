//! Listings of buckets that keep versions, with the version of each object: what is attached from such a bucket is pinned by it, so that it stays
//! readable when its key is overwritten.
//!
//! Only a bucket whose versioning is enabled names versions that last: with versioning suspended the version `null` is overwritten. A store that
//! does not say, or whose credentials may not ask or may not list versions (on S3 those are permissions of their own, `s3:GetBucketVersioning` and
//! `s3:ListBucketVersions`), is listed without.

use super::{Listed, PAGE, S3Store, bare_etag};
use crate::{StoreError, StoreErrorKind};
use aws_sdk_s3::types::BucketVersioningStatus;
use refstream_types::Key;
use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, Ordering},
};

/// The version of objects of a bucket that kept none when they were written.
const UNVERSIONED: &str = "null";

/// Whether the bucket keeps versions, and they may be listed; asked for once.
#[derive(Clone, Debug, Default)]
pub(super) struct Versioned(Arc<Known>);

#[derive(Debug, Default)]
struct Known {
    kept: OnceLock<bool>,
    denied: AtomicBool,
}

impl Versioned {
    fn is_denied(&self) -> bool {
        self.0.denied.load(Ordering::Relaxed)
    }
    fn deny(&self) {
        self.0.denied.store(true, Ordering::Relaxed);
    }
}

impl S3Store {
    /// Whether the bucket keeps versions.
    pub(super) async fn is_versioned(&self) -> bool {
        if let Some(known) = self.shared.versioned.0.kept.get() {
            return *known;
        }
        if self.shared.grants.is_some() {
            return false;
        }
        let asked = self.shared.client.get_bucket_versioning().bucket(self.bucket()).send();
        let kept = match self.shared.send("list", None, 0, asked).await {
            Ok(answer) => answer.status() == Some(&BucketVersioningStatus::Enabled),
            // An answer that means nothing to us.
            Err(failed) if failed.status == Some(200) => self.names_versions().await,
            // It may be able to say so next time.
            Err(failed) if failed.error.is_retryable() && failed.status != Some(501) => return false,
            Err(_) => false,
        };
        // SeaweedFS lists versions folder by folder, not in the order of keys.
        let kept = kept && self.shared.order.is_tree() != Some(true);
        *self.shared.versioned.0.kept.get_or_init(|| kept)
    }

    /// Whether a store that does not say if the bucket keeps versions has named one that lasts.
    async fn names_versions(&self) -> bool {
        let asked = self.shared.client.list_object_versions().bucket(self.bucket()).max_keys(1).send();
        let Ok(answer) = self.shared.send("list", None, 0, asked).await else { return false };
        let first = answer.versions().first().and_then(|version| version.version_id());
        first.is_some_and(|version| version != UNVERSIONED)
    }

    /// The newest version of each object in the order of keys; objects that were deleted have none. `None` where the credentials may not list
    /// versions; from then on they are not asked for any more.
    pub(super) async fn list_newest(
        &self,
        prefix: &str,
        first: Option<&Key>,
        limit: usize,
    ) -> Result<Option<Vec<Listed>>, StoreError> {
        if self.shared.versioned.is_denied() {
            return Ok(None);
        }
        let mut found: Vec<Listed> = Vec::new();
        let (mut key_marker, mut version_marker) = (first.map(|key| key.as_str().to_owned()), None::<String>);
        while found.len() < limit {
            let list = async || {
                let request = self
                    .shared
                    .client
                    .list_object_versions()
                    .bucket(self.bucket())
                    .prefix(prefix)
                    .set_key_marker(key_marker.clone())
                    .set_version_id_marker(version_marker.clone())
                    .max_keys(PAGE as i32)
                    .send();
                self.shared.send("list", None, 0, request).await
            };
            let answer = match self.shared.retried(list).await {
                Ok(answer) => answer,
                Err(failed) if failed.error.kind == StoreErrorKind::AccessDenied => {
                    self.shared.versioned.deny();
                    return Ok(None);
                }
                Err(failed) => return Err(failed.error),
            };
            for version in answer.versions().iter().filter(|version| version.is_latest() == Some(true)) {
                // Objects that others put beside ours may have names that no key of ours has.
                let Some(key) = version.key().and_then(|key| key.parse::<Key>().ok()) else { continue };
                if first.is_none_or(|first| key > *first) && found.len() < limit {
                    let size = version.size().and_then(|n| u64::try_from(n).ok()).unwrap_or(0);
                    let (etag, version) = (bare_etag(version.e_tag()), version.version_id().map(str::to_owned));
                    found.push(Listed { key, size, etag, version });
                }
            }
            let next = answer.next_key_marker().map(str::to_owned);
            if !answer.is_truncated().unwrap_or(false) || next.is_none() {
                break;
            }
            (key_marker, version_marker) = (next, answer.next_version_id_marker().map(str::to_owned));
        }
        Ok(Some(found))
    }
}
