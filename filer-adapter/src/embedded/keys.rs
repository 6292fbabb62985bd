//! The access key of an embedded store: generated once, kept beside the data, readable by its owner only.

use crate::{Runtime, TokioRuntime};
use serde::Deserialize;
use std::{
    fmt,
    fs::{File, Permissions},
    io::{self, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};
use thiserror::Error;

const FILE: &str = "credentials.toml";
const MODE: u32 = 0o600;
const ACCESS_KEY_PREFIX: &str = "RS";
const ACCESS_KEY_LENGTH: usize = 20;
const SECRET_KEY_LENGTH: usize = 40;
const ACCESS_KEY_ALPHABET: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
const SECRET_KEY_ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// The keys with which requests to an [`S3Server`](super::S3Server) are signed.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EmbeddedKeys {
    access_key: String,
    secret_key: String,
}

/// Why there are no keys.
#[derive(Debug, Error)]
pub enum KeysError {
    /// The file could not be read or written.
    #[error("the keys in {path} cannot be read or written: {error}")]
    File {
        /// Which file.
        path: PathBuf,
        /// What the file system said.
        error: io::Error,
    },
    /// The file is not what [`EmbeddedKeys::load_or_generate`] writes.
    #[error("{path} holds no keys ({why}); mend it, or remove it to have new keys made")]
    Content {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}

impl EmbeddedKeys {
    /// These keys.
    pub fn new(access_key: impl Into<String>, secret_key: impl Into<String>) -> Self {
        Self { access_key: access_key.into(), secret_key: secret_key.into() }
    }

    /// Random keys.
    pub fn generate(runtime: &dyn Runtime) -> Self {
        let text = |alphabet: &[u8], length: usize| -> String {
            (0..length).map(|_| char::from(alphabet[runtime.random() as usize % alphabet.len()])).collect()
        };
        let access_key = text(ACCESS_KEY_ALPHABET, ACCESS_KEY_LENGTH - ACCESS_KEY_PREFIX.len());
        Self::new(format!("{ACCESS_KEY_PREFIX}{access_key}"), text(SECRET_KEY_ALPHABET, SECRET_KEY_LENGTH))
    }

    /// The keys in `dir/credentials.toml`, made if there are none, mode 0600. Blocks for a moment.
    ///
    /// # Errors
    /// When the file cannot be read or written, or holds something else.
    pub fn load_or_generate(dir: &Path) -> Result<Self, KeysError> {
        let path = dir.join(FILE);
        let failed = |error| KeysError::File { path: path.clone(), error };
        match std::fs::read_to_string(&path) {
            Ok(text) => {
                std::fs::set_permissions(&path, Permissions::from_mode(MODE)).map_err(failed)?;
                Self::parse(&text).map_err(|why| KeysError::Content { path: path.clone(), why })
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let runtime = TokioRuntime::new();
                let keys = Self::generate(&runtime);
                match keys.write(dir, &path, &runtime) {
                    Ok(()) => Ok(keys),
                    // Another process was first.
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Self::load_or_generate(dir),
                    Err(error) => Err(failed(error)),
                }
            }
            Err(error) => Err(failed(error)),
        }
    }

    fn parse(text: &str) -> Result<Self, String> {
        let keys: Self = toml::from_str(text).map_err(|error| error.message().to_owned())?;
        if keys.access_key.is_empty() || keys.secret_key.is_empty() {
            return Err("a key is empty".to_owned());
        }
        Ok(keys)
    }

    fn write(&self, dir: &Path, path: &Path, runtime: &dyn Runtime) -> io::Result<()> {
        std::fs::create_dir_all(dir)?;
        let temporary = dir.join(format!(".{FILE}.{}", runtime.token()));
        let mut file = File::options().write(true).create_new(true).mode(MODE).open(&temporary)?;
        let written = writeln!(
            file,
            "# The S3 keys of this store. Who has them can read, write and delete everything in it.\naccess_key = \"{}\"\nsecret_key = \"{}\"",
            self.access_key, self.secret_key
        );
        // A link never replaces keys that others made meanwhile.
        let linked = written.and_then(|()| file.sync_all()).and_then(|()| std::fs::hard_link(&temporary, path));
        std::fs::remove_file(&temporary)?;
        linked?;
        File::open(dir)?.sync_all()
    }

    /// The access key, which is no secret.
    pub fn access_key(&self) -> &str {
        &self.access_key
    }

    /// The secret key.
    pub fn secret_key(&self) -> &str {
        &self.secret_key
    }
}

impl fmt::Debug for EmbeddedKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmbeddedKeys").field("access_key", &self.access_key).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_made_once_and_private() {
        let dir = tempfile::tempdir().unwrap();
        let keys = EmbeddedKeys::load_or_generate(dir.path()).unwrap();
        assert_eq!(keys.access_key().len(), ACCESS_KEY_LENGTH);
        assert_eq!(keys.secret_key().len(), SECRET_KEY_LENGTH);
        assert_eq!(EmbeddedKeys::load_or_generate(dir.path()).unwrap(), keys);
        let path = dir.path().join(FILE);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, MODE);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        assert!(!format!("{keys:?}").contains(keys.secret_key()));
        for bad in ["", "access_key = 1", "access_key = \"a\"\nsecret_key = \"\"\n", "\u{0}"] {
            std::fs::write(&path, bad).unwrap();
            let error = EmbeddedKeys::load_or_generate(dir.path()).unwrap_err();
            assert!(matches!(error, KeysError::Content { .. }), "{error}");
        }
    }
}
