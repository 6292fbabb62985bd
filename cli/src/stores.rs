//! Stores as they are configured, and how each kind is opened.

use crate::{
    config::{BrokerSettings, NO_USER_INFO, Settings, has_user_info},
    exit::{Exit, Failure},
};
use percent_encoding::percent_decode_str;
use refstream::{
    stores::{
        BlobStore, Filer, StoreErrorKind, TokioRuntime,
        embedded::{EmbeddedKeys, FileStore, FileStoreOptions, S3Server},
        grant::Grants,
        s3::{S3Config, S3Granter, S3Store},
        seaweed::{SeaweedConfig, SeaweedGranter, SeaweedStore},
    },
    types::StoreName,
};
use refstream_proto::v1;
use refstream_server::StoreDescription;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

/// The embedded store's bucket.
pub(crate) const BUCKET: &str = "refstream";
/// The embedded store's name where the configuration gives it none.
pub(crate) const EMBEDDED: &str = "embedded";

/// One store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub(crate) enum StoreSettings {
    /// Any S3-compatible store.
    S3(S3Settings),
    /// A SeaweedFS cluster, natively: payloads only.
    #[serde(rename = "seaweedfs")]
    Seaweed(SeaweedSettings),
    /// Plain files in the folder `broker.data`, served as S3 at `broker.s3`. At most one.
    Embedded(EmbeddedSettings),
}

/// An S3-compatible store. Credentials come from AWS_* variables, profiles and roles.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct S3Settings {
    /// Empty: AWS's own endpoint of the region.
    #[serde(default)]
    pub(crate) endpoint: String,
    /// The bucket.
    pub(crate) bucket: String,
    /// The region.
    #[serde(default = "default_region")]
    pub(crate) region: String,
    /// `endpoint/bucket/key` rather than `bucket.endpoint/key`.
    #[serde(default = "yes")]
    pub(crate) path_style: bool,
    /// Send and check CRC32C with each object; some older servers refuse it.
    #[serde(default = "yes")]
    pub(crate) checksums: bool,
    /// Storage class of payloads and files; empty: the bucket's.
    #[serde(default)]
    pub(crate) storage_class: String,
    /// Encryption by the store, AES256 or aws:kms; empty: as the bucket says.
    #[serde(default)]
    pub(crate) encryption: String,
    /// The key of aws:kms; empty: the bucket's.
    #[serde(default)]
    pub(crate) kms_key: String,
    /// Certificates (PEM) to trust beside the system's, for this broker; clients take theirs from AWS_CA_BUNDLE.
    #[serde(default)]
    pub(crate) ca_file: Option<PathBuf>,
    /// A file with `access_key` and `secret_key` (TOML, mode 0600). Clients on this machine who may read it use it too.
    #[serde(default)]
    pub(crate) credentials_file: Option<PathBuf>,
}

impl S3Settings {
    /// A bucket, and nothing else said of it.
    pub(crate) fn plain(bucket: &str) -> Self {
        Self {
            endpoint: String::new(),
            bucket: bucket.into(),
            region: default_region(),
            path_style: true,
            checksums: true,
            storage_class: String::new(),
            encryption: String::new(),
            kms_key: String::new(),
            ca_file: None,
            credentials_file: None,
        }
    }
}

/// A SeaweedFS cluster. The keys that sign permissions come from WEED_JWT_SIGNING_KEY and WEED_JWT_SIGNING_READ_KEY, else its master gives permissions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SeaweedSettings {
    /// HOST:PORT of its masters, with commas between them.
    pub(crate) masters: String,
    /// Replication such as 001; empty: the master's default.
    #[serde(default)]
    pub(crate) replication: String,
    /// Collection of new payloads; empty: the default one.
    #[serde(default)]
    pub(crate) collection: String,
    /// Time to live of new payloads, such as 7d; empty: for ever.
    #[serde(default)]
    pub(crate) ttl: String,
    /// Volume servers wait for their disk before they acknowledge.
    #[serde(default = "yes")]
    pub(crate) fsync: bool,
    /// Objects over this size are stored in parts of it.
    #[serde(default = "default_blob_bytes")]
    pub(crate) blob_bytes: u64,
    /// Masters and volume servers are reached by HTTPS.
    #[serde(default)]
    pub(crate) https: bool,
    /// Certificates (PEM) to trust beside the system's, for this broker; clients take theirs from AWS_CA_BUNDLE.
    #[serde(default)]
    pub(crate) ca_file: Option<PathBuf>,
}

/// The embedded store; its settings are the broker's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EmbeddedSettings {}

/// What an object's part on volume servers may have: they refuse needles over 256 MiB unless they say otherwise, and none has more than 4 GiB.
const BLOB_BYTES: std::ops::RangeInclusive<u64> = 64 << 10..=4 << 30;

impl StoreSettings {
    /// Checks the numbers of a store; otherwise the setting and why it is refused.
    pub(crate) fn validate(&self) -> Result<(), String> {
        match self {
            Self::Seaweed(seaweed) if !BLOB_BYTES.contains(&seaweed.blob_bytes) => {
                let (least, most) = BLOB_BYTES.into_inner();
                Err(format!(
                    "blob_bytes is refused: use {least} to {most}, and no more than the volume servers take (256 MiB unless they say otherwise)"
                ))
            }
            _ => Ok(()),
        }
    }
}

fn default_region() -> String {
    "us-east-1".into()
}

fn default_blob_bytes() -> u64 {
    SeaweedConfig::default().blob_bytes
}

const fn yes() -> bool {
    true
}

/// A store that was given as a URI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FromUri {
    pub(crate) store: StoreSettings,
    /// Key prefix of everything in it; empty: none.
    pub(crate) root: String,
}

/// Reads `s3://BUCKET[/ROOT][?endpoint=URL&region=NAME&path_style=BOOL]` or
/// `seaweedfs://MASTER[,MASTER][?collection=NAME&replication=001&ttl=7d&fsync=BOOL]`.
pub(crate) fn from_uri(uri: &str) -> Result<FromUri, Failure> {
    let refuse = |why: String| {
        let forms = "use s3://BUCKET?endpoint=http://HOST:PORT or seaweedfs://MASTER:PORT";
        Failure::usage(format!("the store {uri:?} is refused: {why}; {forms}"))
    };
    // First, so that nothing below repeats what is secret.
    let (target, query) = uri.split_once('?').unwrap_or((uri, ""));
    let values = query.split('&').map(|pair| percent_decode_str(pair.split_once('=').map_or("", |pair| pair.1)));
    if has_user_info(target) || values.into_iter().any(|value| has_user_info(&value.decode_utf8_lossy())) {
        return Err(Failure::usage(format!("the store is refused: its URI holds {NO_USER_INFO}")));
    }
    let (scheme, rest) = uri.split_once("://").ok_or_else(|| refuse("it is no URI".into()))?;
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (host, root) = place.split_once('/').unwrap_or((place, ""));
    let mut fields = toml::Table::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, "true"));
        let value = percent_decode_str(value).decode_utf8().map_err(|_| refuse(format!("{name} is no UTF-8")))?;
        let value = match &*value {
            "true" => toml::Value::Boolean(true),
            "false" => toml::Value::Boolean(false),
            text => toml::Value::String(text.to_owned()),
        };
        fields.insert(name.to_owned(), value);
    }
    let place_field = match scheme {
        "s3" => "bucket",
        "seaweedfs" if root.is_empty() => "masters",
        "seaweedfs" => return Err(refuse("it has a path: payloads have no names there".into())),
        _ => return Err(refuse(format!("there is no kind of store {scheme}"))),
    };
    if host.is_empty() {
        return Err(refuse(format!("the {place_field} is missing")));
    }
    fields.insert("kind".into(), scheme.into());
    fields.insert(place_field.into(), host.into());
    let store = fields.try_into().map_err(|error: toml::de::Error| refuse(error.message().to_owned()))?;
    Ok(FromUri { store, root: root.trim_end_matches('/').to_owned() })
}

/// The embedded store while it runs.
#[derive(Debug)]
pub(crate) struct Embedded {
    pub(crate) s3: S3Server,
    pub(crate) keys: EmbeddedKeys,
    /// Nobody else may open the folder while this lives.
    _lock: std::fs::File,
}

/// Opened stores.
#[derive(Debug, Default)]
pub(crate) struct Stores {
    pub(crate) blobs: BTreeMap<StoreName, Arc<dyn BlobStore>>,
    /// Those that can hold metadata.
    pub(crate) filers: BTreeMap<StoreName, Arc<dyn Filer>>,
    pub(crate) descriptions: BTreeMap<StoreName, StoreDescription>,
    /// Who signs grants for them, where grants are given.
    pub(crate) grants: BTreeMap<StoreName, Arc<dyn Grants>>,
    pub(crate) embedded: Option<(StoreName, Embedded)>,
}

impl Stores {
    /// Opens all configured stores.
    pub(crate) async fn open(settings: &Settings) -> Result<Self, Failure> {
        let mut stores = Self::default();
        let life = settings.grants.life.0;
        for (name, store) in &settings.stores {
            match store {
                StoreSettings::S3(s3) => stores.open_s3(name, s3, life).await?,
                StoreSettings::Seaweed(seaweed) => stores.open_seaweed(name, seaweed, life)?,
                StoreSettings::Embedded(_) => stores.open_embedded(name, &settings.broker, life).await?,
            }
        }
        if !settings.grants.enabled {
            stores.grants.clear();
        }
        Ok(stores)
    }

    fn describe(&mut self, name: &StoreName, uri_prefix: String, kind: v1::store::Kind) {
        let description = v1::Store { name: name.to_string(), kind: Some(kind), uri_prefix, grants: false };
        self.descriptions.insert(name.clone(), StoreDescription { name: name.clone(), description });
    }

    async fn open_s3(&mut self, name: &StoreName, settings: &S3Settings, life: Duration) -> Result<(), Failure> {
        let S3Settings { endpoint, bucket, region, path_style, .. } = settings.clone();
        let S3Settings { checksums, storage_class, encryption, kms_key, ca_file, credentials_file, .. } =
            settings.clone();
        let config = S3Config {
            endpoint: Some(endpoint.clone()).filter(|endpoint| !endpoint.is_empty()),
            bucket: bucket.clone(),
            region: region.clone(),
            path_style,
            checksums,
            storage_class: storage_class.clone(),
            encryption: encryption.clone(),
            kms_key: kms_key.clone(),
            ca_file,
            credentials: credentials_file.as_deref().map(credentials).transpose()?,
            ..S3Config::default()
        };
        let opened = S3Store::open(name.as_str(), config).await;
        let store = Arc::new(opened.map_err(|error| match error.kind {
            StoreErrorKind::Invalid => Failure::usage(error),
            _ => Failure::new(Exit::Unreachable, error),
        })?);
        self.sign_s3(name, (*store).clone(), life);
        self.filers.insert(name.clone(), Arc::clone(&store) as Arc<dyn Filer>);
        self.blobs.insert(name.clone(), store);
        let prefix = format!("s3://{bucket}/");
        let s3 = v1::S3Store {
            endpoint,
            bucket,
            region,
            path_style,
            credentials_file: credentials_file.map(|file| file.to_string_lossy().into_owned()),
            no_checksums: !checksums,
            storage_class,
            encryption,
            kms_key,
        };
        self.describe(name, prefix, v1::store::Kind::S3(s3));
        Ok(())
    }

    fn sign_s3(&mut self, name: &StoreName, store: S3Store, life: Duration) {
        let granter = S3Granter::new(store, life, Arc::new(TokioRuntime::new()));
        self.grants.insert(name.clone(), Arc::new(granter));
    }

    fn open_seaweed(&mut self, name: &StoreName, settings: &SeaweedSettings, life: Duration) -> Result<(), Failure> {
        let SeaweedSettings { masters, replication, collection, ttl, fsync, blob_bytes, https, ca_file } =
            settings.clone();
        let masters: Vec<String> = masters.split(',').map(|master| master.trim().to_owned()).collect();
        let from_env = SeaweedConfig::from_env();
        let described = v1::SeaweedStore {
            masters: masters.clone(),
            replication: replication.clone(),
            collection: collection.clone(),
            ttl: ttl.clone(),
            fsync,
            blob_bytes,
            https,
            signed: from_env.signing_key.is_some(),
        };
        let config =
            SeaweedConfig { masters, replication, collection, ttl, fsync, blob_bytes, https, ca_file, ..from_env };
        let runtime = Arc::new(TokioRuntime::new());
        let store = SeaweedStore::open(name.as_str(), config, runtime).map_err(Failure::usage)?;
        self.grants.insert(name.clone(), Arc::new(SeaweedGranter::new(store.clone(), life)));
        self.blobs.insert(name.clone(), Arc::new(store));
        self.describe(name, format!("seaweedfs://{name}/"), v1::store::Kind::Seaweed(described));
        Ok(())
    }

    async fn open_embedded(
        &mut self,
        name: &StoreName,
        broker: &BrokerSettings,
        life: Duration,
    ) -> Result<(), Failure> {
        if let Some((other, _)) = &self.embedded {
            return Err(Failure::usage(format!("the stores {other} and {name} are both embedded: there can be one")));
        }
        crate::deployment::only_loopback(broker.s3)?;
        let folder = &broker.data;
        std::fs::create_dir_all(folder)
            .map_err(|error| Failure::failed(format!("cannot create the data folder {}: {error}", folder.display())))?;
        let folder = folder
            .canonicalize()
            .map_err(|error| Failure::failed(format!("cannot open the data folder {}: {error}", folder.display())))?;
        let lock = lock(&folder)?;
        let options = FileStoreOptions { fsync: broker.fsync, ..FileStoreOptions::default() };
        let store = FileStore::open(&folder, BUCKET, options).map_err(Failure::failed)?;
        let keys = EmbeddedKeys::load_or_generate(&folder).map_err(|error| {
            Failure::failed(format!("cannot read or write the embedded store's keys in {}: {error}", folder.display()))
        })?;
        let s3 = S3Server::start(Arc::clone(&store), keys.clone(), broker.s3)
            .await
            .map_err(|error| crate::deployment::cannot_listen(broker.s3, "s3", error))?;
        let signing = S3Config {
            endpoint: Some(s3.endpoint()),
            bucket: BUCKET.into(),
            region: default_region(),
            credentials: Some((keys.access_key().to_owned(), keys.secret_key().to_owned())),
            ..S3Config::default()
        };
        let signing = S3Store::open(name.as_str(), signing).await.map_err(Failure::failed)?;
        self.sign_s3(name, signing, life);
        let described = v1::S3Store {
            endpoint: format!("http://{}", s3.address()),
            bucket: BUCKET.into(),
            region: default_region(),
            path_style: true,
            credentials_file: Some(folder.join("credentials.toml").to_string_lossy().into_owned()),
            ..v1::S3Store::default()
        };
        self.describe(name, format!("s3://{BUCKET}/"), v1::store::Kind::S3(described));
        self.filers.insert(name.clone(), Arc::clone(&store) as Arc<dyn Filer>);
        self.blobs.insert(name.clone(), store);
        self.embedded = Some((name.clone(), Embedded { s3, keys, _lock: lock }));
        Ok(())
    }
}

/// Reads a file of keys.
fn credentials(path: &Path) -> Result<(String, String), Failure> {
    #[derive(Deserialize)]
    struct Keys {
        access_key: String,
        secret_key: String,
    }
    let refuse = |why: String| Failure::usage(format!("the credentials file {} is refused: {why}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| refuse(error.to_string()))?;
    // What is in it is never repeated.
    let keys: Keys = toml::from_str(&text).map_err(|_| refuse("it has no access_key and secret_key".into()))?;
    Ok((keys.access_key, keys.secret_key))
}

fn lock(folder: &Path) -> Result<std::fs::File, Failure> {
    let path = folder.join("lock");
    let file = std::fs::File::create(&path)
        .map_err(|error| Failure::failed(format!("cannot write to the data folder {}: {error}", folder.display())))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(Failure::failed(format!(
            "the data folder {} is in use by another refstream; stop that one or choose another folder with --data",
            folder.display()
        ))),
        Err(std::fs::TryLockError::Error(error)) => {
            Err(Failure::failed(format!("cannot lock {}: {error}", path.display())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_read_from_its_uri() {
        let read = from_uri("s3://pics/prod/eu?endpoint=http://127.0.0.1:8333&path_style=false").unwrap();
        assert_eq!(read.root, "prod/eu");
        let StoreSettings::S3(s3) = read.store else { panic!() };
        assert_eq!((s3.bucket.as_str(), s3.endpoint.as_str()), ("pics", "http://127.0.0.1:8333"));
        assert_eq!((s3.region.as_str(), s3.path_style), ("us-east-1", false));
    }

    #[test]
    fn a_cluster_is_read_from_its_uri() {
        let read = from_uri("seaweedfs://127.0.0.1:9333,10.0.0.2:9333?collection=pics&fsync=false").unwrap();
        let StoreSettings::Seaweed(seaweed) = read.store else { panic!() };
        assert_eq!(seaweed.masters, "127.0.0.1:9333,10.0.0.2:9333");
        assert_eq!((seaweed.collection.as_str(), seaweed.fsync), ("pics", false));
    }

    #[test]
    fn a_uri_that_means_nothing_is_refused() {
        for (uri, why) in [
            ("pics", "no URI"),
            ("ftp://pics", "ftp"),
            ("s3://", "bucket"),
            ("s3://pics?endpiont=x", "endpiont"),
            ("s3://pics?path_style=maybe", "boolean"),
            ("s3://me:s3cret@pics", "user name"),
            ("s3://pics?endpoint=http://me:s3cret@host&x=y", "user name"),
            ("s3://pics?endpoint=http%3A%2F%2Fme%3As3cret%40host", "user name"),
            ("seaweedfs://127.0.0.1:9333/x", "path"),
        ] {
            let failure = from_uri(uri).unwrap_err();
            assert!(failure.text().contains(why), "{uri}: {}", failure.text());
            assert!(!failure.text().contains("s3cret"), "{uri}: {}", failure.text());
            assert_eq!(failure.exit(), Exit::Usage);
        }
    }
}
