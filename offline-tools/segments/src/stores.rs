//! Between references (store name and key) and the absolute URIs of files.

use refstream_filer_adapter::BlobStore;
use refstream_types::{Key, StoreName};
use std::{collections::BTreeMap, fmt, sync::Arc};

/// The scheme of URIs of payloads whose store is not configured here: `refstream://<store>/<key>`. The store's name says where to
/// look; compaction goes on.
const UNKNOWN_SCHEME: &str = "refstream://";

/// The stores that references may name.
#[derive(Clone, Default)]
pub(crate) struct Stores(Arc<BTreeMap<StoreName, Arc<dyn BlobStore>>>);

impl fmt::Debug for Stores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Stores {
    pub(crate) fn new(stores: BTreeMap<StoreName, Arc<dyn BlobStore>>) -> Self {
        Self(Arc::new(stores))
    }

    /// What the absolute URIs of a store's objects start with; the key follows as it is.
    pub(crate) fn uri_prefix(&self, store: &str) -> String {
        let known = store.parse().ok().and_then(|name: StoreName| self.0.get(&name));
        known.and_then(|known| prefix(known.as_ref())).unwrap_or_else(|| format!("{UNKNOWN_SCHEME}{store}/"))
    }

    /// The key in `store` that `uri` names: what follows the store's own prefix, or where the file was written with another
    /// configuration, what follows the authority.
    pub(crate) fn key(&self, store: &StoreName, uri: &str) -> Option<Key> {
        if let Some(known) = self.0.get(store)
            && let Some(key) = prefix(known.as_ref()).and_then(|prefix| uri.strip_prefix(prefix.as_str())?.parse().ok())
            && known.uri(&key) == uri
        {
            return Some(key);
        }
        let (_, rest) = uri.split_once("://")?;
        let (_, key) = rest.split_once('/')?;
        key.parse().ok()
    }
}

/// What all URIs of a store start with, as [`BlobStore::uri`] promises.
fn prefix(store: &dyn BlobStore) -> Option<String> {
    const PROBE: &str = "x";
    let uri = store.uri(&PROBE.parse().ok()?);
    uri.strip_suffix(PROBE).map(str::to_owned)
}
