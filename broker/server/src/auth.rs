//! Who may call: those who have one of the configured tokens; everybody where there are none, which the loopback interface bounds.
//!
//! Tokens are random, so a plain SHA-256 keeps them; a configuration that leaks gives none away. A token's hash is compared with all
//! configured ones, each in constant time.

use crate::{errors, metrics::Metrics};
use refstream_proto::{into_status, v1::ErrorDetail};
use sha2::{Digest as _, Sha256};
use std::{collections::BTreeMap, fmt, sync::Arc};
use thiserror::Error;
use tonic::{Request, Status, metadata::MetadataMap, service::Interceptor};

/// How the hash of a token begins.
const HASH_PREFIX: &str = "sha256:";

/// A token's hash that cannot be one.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "the hash of the token {name:?} is refused: use sha256: and 64 hexadecimal digits, as `refstream token` prints them"
)]
pub struct InvalidTokenHash {
    /// The token's name.
    pub name: String,
}

/// The tokens that a broker takes: names, and SHA-256 of each.
#[derive(Clone, Default)]
pub struct Tokens(Vec<(Arc<str>, [u8; 32])>);

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

impl Tokens {
    /// Tokens by name, each as [`Tokens::hash`] gives it.
    ///
    /// # Errors
    /// When a hash cannot be one.
    pub fn new(hashes: &BTreeMap<String, String>) -> Result<Self, InvalidTokenHash> {
        let read = |(name, hash): (&String, &String)| {
            let digits = hash.strip_prefix(HASH_PREFIX).and_then(|digits| hex::decode(digits).ok());
            let hash = digits.and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
            let hash = hash.ok_or_else(|| InvalidTokenHash { name: name.clone() })?;
            Ok((Arc::from(name.as_str()), hash))
        };
        hashes.iter().map(read).collect::<Result<_, _>>().map(Self)
    }

    /// Whether there is none: everybody may call.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A token as it stands in the configuration.
    pub fn hash(token: &str) -> String {
        format!("{HASH_PREFIX}{}", hex::encode(Sha256::digest(token)))
    }

    /// Whose token this is.
    fn owner(&self, token: &str) -> Option<&Arc<str>> {
        let given: [u8; 32] = Sha256::digest(token).into();
        let mut owner = None;
        for (name, hash) in &self.0 {
            let differs = hash.iter().zip(&given).fold(0, |differs, (a, b)| differs | (a ^ b));
            if std::hint::black_box(differs) == 0 {
                owner = Some(name);
            }
        }
        owner
    }
}

/// The name of the token that a call came with.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Caller(Arc<str>);

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Lets calls in.
#[derive(Clone, Debug)]
pub(crate) struct Door {
    tokens: Arc<Tokens>,
    metrics: Arc<Metrics>,
}

impl Door {
    pub(crate) fn new(tokens: Tokens, metrics: Arc<Metrics>) -> Self {
        Self { tokens: Arc::new(tokens), metrics }
    }

    fn caller(&self, metadata: &MetadataMap) -> Result<Option<Caller>, ErrorDetail> {
        if self.tokens.0.is_empty() {
            return Ok(None);
        }
        let given = metadata.get("authorization").and_then(|value| value.to_str().ok());
        let token = given.and_then(|text| {
            let (kind, token) = text.split_once(' ')?;
            kind.eq_ignore_ascii_case("bearer").then(|| token.trim())
        });
        let token = token.ok_or_else(|| {
            errors::not_authorised("this broker asks for a token: give it with --token or REFSTREAM_TOKEN")
        })?;
        match self.tokens.owner(token) {
            Some(owner) => Ok(Some(Caller(Arc::clone(owner)))),
            None => Err(errors::not_authorised(
                "the token is none of those that this broker takes: check --token or REFSTREAM_TOKEN",
            )),
        }
    }
}

impl Interceptor for Door {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        match self.caller(request.metadata()) {
            Ok(caller) => {
                if let Some(caller) = caller {
                    request.extensions_mut().insert(caller);
                }
                Ok(request)
            }
            Err(refused) => {
                self.metrics.calls_refused.inc();
                Err(into_status(refused))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens() -> Tokens {
        let hashes = [("ana", "first"), ("ben", "second")].map(|(name, token)| (name.to_owned(), Tokens::hash(token)));
        Tokens::new(&hashes.into()).unwrap()
    }

    #[test]
    fn a_token_is_known_by_its_hash() {
        let tokens = tokens();
        assert_eq!(tokens.owner("second").map(|name| &**name), Some("ben"));
        for wrong in ["", "First", "first ", &Tokens::hash("first")] {
            assert!(tokens.owner(wrong).is_none(), "{wrong:?}");
        }
        assert_eq!(Tokens::hash("first"), "sha256:a7937b64b8caa58f03721bb6bacf5c78cb235febe0e70b1b84cd99541461a08e");
        for bad in [
            "",
            "first",
            "sha256:",
            "sha256:ab",
            "md5:a7937b64b8caa58f03721bb6bacf5c78cb235febe0e70b1b84cd99541461a08e",
        ] {
            let error = Tokens::new(&[("ana".to_owned(), bad.to_owned())].into()).unwrap_err();
            assert!(error.to_string().contains("ana"), "{error}");
        }
    }

    #[test]
    fn calls_without_the_right_token_are_refused() {
        let door = Door::new(tokens(), Arc::new(Metrics::new()));
        let call = |given: Option<&str>| {
            let mut request = Request::new(());
            if let Some(given) = given {
                request.metadata_mut().insert("authorization", given.parse().unwrap());
            }
            door.clone().call(request)
        };
        for given in ["Bearer first", "bearer first"] {
            assert_eq!(call(Some(given)).unwrap().extensions().get::<Caller>().unwrap().to_string(), "ana");
        }
        for given in [None, Some("first"), Some("Bearer "), Some("Bearer third"), Some("Basic first")] {
            let detail = refstream_proto::error_detail(&call(given).unwrap_err());
            assert_eq!(detail.code(), refstream_proto::v1::ErrorCode::NotAuthorised);
            assert!(detail.message.contains("REFSTREAM_TOKEN") && !detail.retryable, "{}", detail.message);
        }
        assert!(Door::new(Tokens::default(), Arc::new(Metrics::new())).call(Request::new(())).is_ok());
    }
}
