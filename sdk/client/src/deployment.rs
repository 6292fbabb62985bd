//! What a broker says of its deployment, and the stores it names, opened when they are first needed.
//!
//! How a store is reached, unless [`crate::StoreAccess`] says otherwise: with credentials of the client's own where there are some, else by grants of the
//! broker where it gives them.
//!
//! Credentials of a store, in this order: those in [`crate::ClientOptions`]; the file that the broker names for its embedded store, which is
//! honoured only when the broker is on this machine's loopback interface (a broker elsewhere must not make us read files); the AWS chain of
//! environment, profile and instance. SeaweedFS' permissions are signed with the keys in `WEED_JWT_SIGNING_KEY` and `WEED_JWT_SIGNING_READ_KEY`, else
//! its master gives them; where the broker has the keys and the client has none, grants are used.

use crate::{
    InvalidAnswer, OpenStoreError, StoreAccess, StoreCredentials,
    broker::{Brokers, is_loopback},
    grants::BrokerGrants,
    lazy_store::{Access, LazyS3},
};
use refstream_filer_adapter::{
    BlobStore, Runtime,
    grant::Grants,
    s3::S3Config,
    seaweed::{SeaweedConfig, SeaweedStore},
};
use refstream_proto::v1;
use refstream_types::{Layout, StoreName};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

/// A deployment as its brokers describe it.
#[derive(Debug)]
pub(crate) struct Deployment {
    /// The store of new payloads where a topic names none.
    pub(crate) default_store: StoreName,
    /// The store of metadata and closed files.
    #[cfg_attr(not(feature = "parquet"), allow(dead_code))]
    pub(crate) metadata_store: StoreName,
    pub(crate) layout: Layout,
    /// The longest batch that a broker takes.
    pub(crate) max_batch_bytes: usize,
    brokers: Arc<Brokers>,
    access: StoreAccess,
    credentials: Option<StoreCredentials>,
    described: BTreeMap<StoreName, v1::Store>,
    opened: Mutex<BTreeMap<StoreName, Arc<dyn BlobStore>>>,
    runtime: Arc<dyn Runtime>,
}

impl Deployment {
    /// Reads a broker's description. `given` stores replace those of the same name.
    pub(crate) fn new(
        brokers: &Arc<Brokers>,
        answer: v1::DescribeDeploymentResponse,
        (access, credentials): (StoreAccess, Option<StoreCredentials>),
        given: Vec<(StoreName, Arc<dyn BlobStore>)>,
        runtime: Arc<dyn Runtime>,
    ) -> Result<Self, InvalidAnswer> {
        let invalid = |why: String| InvalidAnswer { endpoint: brokers.endpoint().to_owned(), why };
        let name = |field: &str, text: &str| {
            text.parse::<StoreName>().map_err(|error| invalid(format!("the field {field}: {error}")))
        };
        let mut described = BTreeMap::new();
        for store in answer.stores {
            described.insert(name("stores.name", &store.name)?, store);
        }
        Ok(Self {
            default_store: name("default_store", &answer.default_store)?,
            metadata_store: name("metadata_store", &answer.metadata_store)?,
            layout: Layout::new(&answer.root).map_err(|error| invalid(format!("the field root: {error}")))?,
            max_batch_bytes: match answer.max_batch_bytes {
                0 => refstream_format::batch::MAX_BATCH_BYTES,
                bytes => (bytes as usize).min(refstream_format::batch::MAX_BATCH_BYTES),
            },
            brokers: Arc::clone(brokers),
            access,
            credentials,
            described,
            opened: Mutex::new(given.into_iter().collect()),
            runtime,
        })
    }

    /// A store by name.
    pub(crate) fn store(&self, name: &StoreName) -> Result<Arc<dyn BlobStore>, OpenStoreError> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(store) = opened.get(name) {
            return Ok(Arc::clone(store));
        }
        let store = self.open(name)?;
        opened.insert(name.clone(), Arc::clone(&store));
        Ok(store)
    }

    /// Every store that can be opened, by name.
    #[cfg_attr(not(feature = "parquet"), allow(dead_code))]
    pub(crate) fn stores(&self) -> BTreeMap<StoreName, Arc<dyn BlobStore>> {
        let given: Vec<_> = self.opened.lock().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect();
        let names = self.described.keys().cloned().chain(given);
        names.filter_map(|name| self.store(&name).ok().map(|store| (name, store))).collect()
    }

    fn open(&self, name: &StoreName) -> Result<Arc<dyn BlobStore>, OpenStoreError> {
        let Some(store) = self.described.get(name) else {
            let configured: Vec<_> = self.described.keys().map(StoreName::as_str).collect();
            return Err(OpenStoreError::Unknown { store: name.clone(), configured: configured.join(", ") });
        };
        match &store.kind {
            Some(v1::store::Kind::S3(s3)) => self.open_s3(name, s3, store),
            Some(v1::store::Kind::Seaweed(seaweed)) => self.open_seaweed(name, seaweed, store),
            None => Err(OpenStoreError::Unusable {
                store: name.clone(),
                why: "its kind is unknown to this client; update it".into(),
            }),
        }
    }

    /// Who is asked for grants for a store; `None` where the broker gives none, or none are wanted.
    fn grants(&self, name: &StoreName, store: &v1::Store) -> Result<Option<Arc<dyn Grants>>, OpenStoreError> {
        match self.access {
            StoreAccess::Own => Ok(None),
            StoreAccess::Grants if !store.grants => Err(OpenStoreError::Unusable {
                store: name.clone(),
                why: "grants are asked for (--store-access grants), and the broker gives none for it".into(),
            }),
            StoreAccess::Auto if !store.grants => Ok(None),
            StoreAccess::Auto | StoreAccess::Grants => {
                let brokers = Arc::clone(&self.brokers);
                Ok(Some(Arc::new(BrokerGrants::new(brokers, name.clone(), Arc::clone(&self.runtime)))))
            }
        }
    }

    fn open_seaweed(
        &self,
        name: &StoreName,
        seaweed: &v1::SeaweedStore,
        store: &v1::Store,
    ) -> Result<Arc<dyn BlobStore>, OpenStoreError> {
        let v1::SeaweedStore { masters, replication, collection, ttl, fsync, blob_bytes, signed, https } =
            seaweed.clone();
        let mut config =
            SeaweedConfig { masters, replication, collection, ttl, fsync, https, ..SeaweedConfig::from_env() };
        let keyless = config.signing_key.is_none() && config.read_signing_key.is_none();
        let wanted = self.access == StoreAccess::Grants || signed && keyless || config.masters.is_empty();
        let grants = if wanted { self.grants(name, store)? } else { None };
        if blob_bytes > 0 {
            config.blob_bytes = blob_bytes;
        }
        let runtime = Arc::clone(&self.runtime);
        let opened = match grants {
            Some(grants) => SeaweedStore::granted(name.as_str(), config, runtime, grants),
            None => SeaweedStore::open(name.as_str(), config, runtime),
        };
        let opened =
            opened.map_err(|error| OpenStoreError::Unusable { store: name.clone(), why: error.to_string() })?;
        Ok(Arc::new(opened))
    }

    fn open_s3(
        &self,
        name: &StoreName,
        s3: &v1::S3Store,
        store: &v1::Store,
    ) -> Result<Arc<dyn BlobStore>, OpenStoreError> {
        let grants = self.grants(name, store)?;
        let credentials = match (&self.credentials, s3.credentials_file.as_deref()) {
            _ if self.access == StoreAccess::Grants => None,
            (Some(given), _) => Some(given.clone()),
            (None, Some(file)) if is_loopback(self.brokers.endpoint()) => match credentials_from(name, file) {
                // Another user's, or on another machine that looks like this one.
                Err(_) if grants.is_some() => None,
                read => Some(read?),
            },
            (None, _) => None,
        };
        // Nobody has an embedded store's keys by accident: what the environment has is for something else.
        let is_embedded = s3.credentials_file.is_some();
        let access = match grants {
            Some(grants) if self.access == StoreAccess::Grants => Access::Granted(grants),
            Some(grants) if credentials.is_none() && is_embedded => Access::Granted(grants),
            Some(grants) if credentials.is_none() => Access::GrantedUnlessCredentials(grants),
            _ => Access::Own,
        };
        let config = S3Config {
            endpoint: Some(s3.endpoint.clone()).filter(|endpoint| !endpoint.is_empty()),
            bucket: s3.bucket.clone(),
            region: if s3.region.is_empty() { S3Config::default().region } else { s3.region.clone() },
            path_style: s3.path_style,
            checksums: !s3.no_checksums,
            storage_class: s3.storage_class.clone(),
            encryption: s3.encryption.clone(),
            kms_key: s3.kms_key.clone(),
            credentials: credentials.map(|keys| (keys.access_key, keys.secret_key)),
            ..S3Config::default()
        };
        let uri_prefix = match store.uri_prefix.as_str() {
            "" => format!("s3://{}/", s3.bucket),
            given => given.to_owned(),
        };
        Ok(Arc::new(LazyS3::new(name.clone(), uri_prefix, config, access, Arc::clone(&self.runtime))))
    }
}

/// Reads `access_key` and `secret_key` from a TOML file.
fn credentials_from(store: &StoreName, file: &str) -> Result<StoreCredentials, OpenStoreError> {
    #[derive(serde::Deserialize)]
    struct Keys {
        access_key: String,
        secret_key: String,
    }
    let failed = |why: String| OpenStoreError::Credentials { store: store.clone(), file: file.to_owned(), why };
    let text = std::fs::read_to_string(file).map_err(|error| failed(error.to_string()))?;
    // The parser's own error would quote the line, and the secret with it.
    let keys: Keys = toml::from_str(&text)
        .map_err(|_| failed("it is no TOML file with the fields access_key and secret_key".into()))?;
    Ok(StoreCredentials { access_key: keys.access_key, secret_key: keys.secret_key })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::Bearer;

    fn runtime() -> Arc<dyn Runtime> {
        Arc::new(refstream_filer_adapter::TokioRuntime::new())
    }

    fn deployment(access: StoreAccess, answer: v1::DescribeDeploymentResponse) -> Result<Deployment, InvalidAnswer> {
        let (endpoint, timeout) = ("http://127.0.0.1:1", std::time::Duration::ZERO);
        let brokers = Arc::new(Brokers::new(endpoint, timeout, Bearer::default(), None, runtime()).unwrap());
        Deployment::new(&brokers, answer, (access, None), Vec::new(), runtime())
    }

    #[tokio::test]
    async fn grants_that_the_broker_does_not_give_are_missed() {
        let mut answer = answer();
        let kind = Some(v1::store::Kind::S3(v1::S3Store { bucket: "bucket".into(), ..Default::default() }));
        answer.stores.push(v1::Store { name: "main".into(), kind, ..Default::default() });
        let main = "main".parse().unwrap();
        let text = deployment(StoreAccess::Grants, answer.clone()).unwrap().store(&main).unwrap_err().to_string();
        assert!(text.contains("main") && text.contains("--store-access"), "{text}");
        assert!(deployment(StoreAccess::Auto, answer).unwrap().store(&main).is_ok());
    }

    fn answer() -> v1::DescribeDeploymentResponse {
        v1::DescribeDeploymentResponse {
            default_store: "main".into(),
            metadata_store: "main".into(),
            ..Default::default()
        }
    }

    #[tokio::test]
    async fn an_unknown_store_is_named_with_those_that_exist() {
        let mut answer = answer();
        answer.stores.push(v1::Store { name: "main".into(), ..Default::default() });
        let deployment = deployment(StoreAccess::Auto, answer).unwrap();
        let text = deployment.store(&"other".parse().unwrap()).unwrap_err().to_string();
        assert!(text.contains("other") && text.contains("main"), "{text}");
    }

    #[test]
    fn credentials_are_read_and_never_shown() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("keys.toml");
        std::fs::write(&file, "access_key = \"A\"\nsecret_key = \"hush\"\n").unwrap();
        let store = "main".parse().unwrap();
        let keys = credentials_from(&store, file.to_str().unwrap()).unwrap();
        assert_eq!((keys.access_key.as_str(), keys.secret_key.as_str()), ("A", "hush"));
        assert!(!format!("{keys:?}").contains("hush"));
        std::fs::write(&file, "secret_key = \"hush\n").unwrap();
        let text = credentials_from(&store, file.to_str().unwrap()).unwrap_err().to_string();
        assert!(!text.contains("hush") && text.contains("access_key"), "{text}");
    }

    #[tokio::test]
    async fn a_malformed_description_is_refused() {
        let mut answer = answer();
        answer.root = "../x".into();
        assert!(deployment(StoreAccess::Auto, answer).is_err());
    }
}
