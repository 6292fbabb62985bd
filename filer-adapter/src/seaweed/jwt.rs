//! Permissions for one needle, signed with the cluster's own key (`[jwt.signing]` and `[jwt.signing.read]` of its `security.toml`).

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use hmac::{Hmac, KeyInit, Mac};
use refstream_types::Timestamp;
use sha2::Sha256;
use std::time::Duration;

/// How long a permission lasts that its maker uses himself. Long enough for a slow upload to begin, and for clocks that differ.
pub(super) const OWN_LIFE: Duration = Duration::from_secs(300);

/// A JSON Web Token (RFC 7519, HS256) that permits requests for `fid`.
pub(super) fn sign(key: &str, fid: &str, now: Timestamp, life: Duration) -> String {
    let expires = now.as_micros().div_euclid(1_000_000) + life.as_secs() as i64;
    let header = URL_SAFE_NO_PAD.encode(r#"{"alg":"HS256","typ":"JWT"}"#);
    let claims = URL_SAFE_NO_PAD.encode(format!(r#"{{"fid":"{fid}","exp":{expires}}}"#));
    let text = format!("{header}.{claims}");
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key.as_bytes()) else { return text };
    mac.update(text.as_bytes());
    format!("{text}.{}", URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_have_three_parts_and_the_claims() {
        let token = sign("secret", "3,01637037d6", "2026-01-01T00:00:00Z".parse().unwrap(), OWN_LIFE);
        let parts: Vec<_> = token.split('.').collect();
        let claims = String::from_utf8(URL_SAFE_NO_PAD.decode(parts[1]).unwrap()).unwrap();
        assert_eq!(claims, r#"{"fid":"3,01637037d6","exp":1767225900}"#);
        assert_eq!(URL_SAFE_NO_PAD.decode(parts[2]).unwrap().len(), 32);
        assert_ne!(token, sign("other", "3,01637037d6", "2026-01-01T00:00:00Z".parse().unwrap(), OWN_LIFE));
    }
}
