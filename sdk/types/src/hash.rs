//! Hashes, checksums and tokens.

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};
use thiserror::Error;

/// A hash, checksum or token as text was not in its form.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{text:?} is not a {what}: expected {form}")]
pub struct ParseHashError {
    what: &'static str,
    form: &'static str,
    text: String,
}

/// BLAKE3 of a payload as the user gave it, 32 bytes. As text: `BLAKE3:<64 hex>`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ContentHash(pub [u8; 32]);

/// CRC32C (Castagnoli) of stored bytes. As text: `CRC32C:<8 hex>`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Crc32c(pub u32);

/// 128 random bits in every conditional object, by which its writer recognises its own write. As text: 32 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Token(pub [u8; 16]);

macro_rules! hex_text {
    ($name:ident, $prefix:literal, $what:literal, $form:literal, $bytes:literal, $to:expr, $from:expr) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let to: fn(&Self) -> [u8; $bytes] = $to;
                write!(f, "{}{}", $prefix, hex::encode(to(self)))
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
        impl FromStr for $name {
            type Err = ParseHashError;
            fn from_str(text: &str) -> Result<Self, ParseHashError> {
                let error = || ParseHashError { what: $what, form: $form, text: text.chars().take(80).collect() };
                let digits = text.strip_prefix($prefix).ok_or_else(error)?;
                let mut bytes = [0; $bytes];
                hex::decode_to_slice(digits, &mut bytes).map_err(|_| error())?;
                let from: fn([u8; $bytes]) -> Self = $from;
                Ok(from(bytes))
            }
        }
        impl TryFrom<String> for $name {
            type Error = ParseHashError;
            fn try_from(text: String) -> Result<Self, ParseHashError> {
                text.parse()
            }
        }
        impl From<$name> for String {
            fn from(value: $name) -> String {
                value.to_string()
            }
        }
    };
}

hex_text!(ContentHash, "BLAKE3:", "content hash", "BLAKE3:<64 hex digits>", 32, |h| h.0, ContentHash);
hex_text!(Crc32c, "CRC32C:", "checksum", "CRC32C:<8 hex digits>", 4, |c| c.0.to_be_bytes(), |b| Crc32c(
    u32::from_be_bytes(b)
));
hex_text!(Token, "", "token", "32 hex digits", 16, |t| t.0, Token);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips() {
        let hash = ContentHash([0xab; 32]);
        assert_eq!(hash.to_string().parse::<ContentHash>().unwrap(), hash);
        assert_eq!(Crc32c(0x0102_a0ff).to_string(), "CRC32C:0102a0ff");
        assert_eq!("CRC32C:0102a0ff".parse::<Crc32c>().unwrap(), Crc32c(0x0102_a0ff));
        for bad in ["", "BLAKE3:", "BLAKE3:zz", "blake3:00", &format!("BLAKE3:{}", "0".repeat(63))] {
            assert!(bad.parse::<ContentHash>().is_err(), "{bad}");
        }
    }
}
