//! How a bucket is reached.

use std::{fmt, path::PathBuf, time::Duration};

/// Where a bucket is when nothing says so.
pub(super) const DEFAULT_REGION: &str = "us-east-1";

/// How to reach a bucket.
#[derive(Clone)]
pub struct S3Config {
    /// `http://host:port`; `None`: the provider's own endpoint of the region.
    pub endpoint: Option<String>,
    /// The bucket, which must exist.
    pub bucket: String,
    /// The region; empty: the one of `AWS_REGION` or the profile, else us-east-1.
    pub region: String,
    /// `endpoint/bucket/key` rather than `bucket.endpoint/key`.
    pub path_style: bool,
    /// Access key and secret key; `None`: `AWS_*` variables, profiles, roles.
    pub credentials: Option<(String, String)>,
    /// Send and check CRC32C with each object. Some older servers refuse the header.
    pub checksums: bool,
    /// Storage class of payloads and files, such as `STANDARD_IA`; empty: the bucket's. Commit objects keep the bucket's: they are small and short-lived.
    pub storage_class: String,
    /// Encryption by the store (`AES256` or `aws:kms`); empty: as the bucket says.
    pub encryption: String,
    /// The key of `aws:kms`; empty: the bucket's or the account's.
    pub kms_key: String,
    /// Certificates (PEM) of authorities to trust beside the system's own; `None`: the file that `AWS_CA_BUNDLE` names, if it does.
    pub ca_file: Option<PathBuf>,
    /// The longest wait for a connection.
    pub connect_timeout: Duration,
    /// The longest time without the answer's beginning or its next bytes, for one request. A request with a body gets a second more
    /// for each 256 KiB of it.
    pub request_timeout: Duration,
    /// Tries of a request that may be repeated, the first one included.
    pub attempts: usize,
}

impl Default for S3Config {
    fn default() -> Self {
        Self {
            endpoint: None,
            bucket: String::new(),
            region: DEFAULT_REGION.into(),
            path_style: true,
            credentials: None,
            checksums: true,
            storage_class: String::new(),
            encryption: String::new(),
            kms_key: String::new(),
            ca_file: None,
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(60),
            attempts: 6,
        }
    }
}

impl fmt::Debug for S3Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("S3Config")
            .field("endpoint", &self.endpoint)
            .field("bucket", &self.bucket)
            .field("region", &self.region)
            .field("path_style", &self.path_style)
            .field("credentials", &self.credentials.as_ref().map(|_| "given"))
            .finish_non_exhaustive()
    }
}
