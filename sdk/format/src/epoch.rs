//! The object by which a broker takes its epoch.
//!
//! | bytes | field |
//! |---|---|
//! | 4 | magic `RFSE` |
//! | 2 | version, 1 |
//! | 8 | epoch |
//! | 16 | token |
//! | 8 | claimed at, signed microseconds since 1970 |
//! | varint + n | endpoint, UTF-8, at most [`MAX_ENDPOINT_BYTES`] |
//! | varint + n | software, UTF-8, at most [`MAX_SOFTWARE_BYTES`] |
//! | 4 | CRC32C of all bytes before it |

use crate::{DecodeError, checked};
use refstream_types::{Epoch, Timestamp, Token};

const MAGIC: [u8; 4] = *b"RFSE";
const VERSION: u16 = 1;

/// The longest endpoint, in bytes.
pub const MAX_ENDPOINT_BYTES: usize = 2_048;
/// The longest name of a software version, in bytes.
pub const MAX_SOFTWARE_BYTES: usize = 256;

/// Who took an epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpochClaim {
    /// The epoch.
    pub epoch: Epoch,
    /// The claim's token.
    pub token: Token,
    /// Where clients reach the broker, for example `http://127.0.0.1:7400`; at most [`MAX_ENDPOINT_BYTES`].
    pub endpoint: String,
    /// When, by the broker's clock: for people, never compared.
    pub claimed_at: Timestamp,
    /// The broker's version; at most [`MAX_SOFTWARE_BYTES`].
    pub software: String,
}

impl EpochClaim {
    /// The object's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = checked::begin(MAGIC, VERSION);
        writer.u64(self.epoch.0);
        writer.raw(&self.token.0);
        writer.u64(self.claimed_at.as_micros() as u64);
        writer.bytes(self.endpoint.as_bytes());
        writer.bytes(self.software.as_bytes());
        checked::finish(writer)
    }
    /// Reads a claim.
    ///
    /// # Errors
    /// When it is damaged or of an unknown version.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let (mut reader, _) = checked::open(bytes, "epoch claim", MAGIC, VERSION)?;
        let epoch = Epoch(reader.u64()?);
        let token = Token(reader.array()?);
        let micros = reader.u64()? as i64;
        let claimed_at = Timestamp::from_micros(micros);
        if claimed_at.as_micros() != micros {
            return Err(reader.error("a time outside the years 1 to 9999"));
        }
        let endpoint = reader.text(MAX_ENDPOINT_BYTES)?;
        let software = reader.text(MAX_SOFTWARE_BYTES)?;
        reader.end()?;
        Ok(Self { epoch, token, endpoint, claimed_at, software })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arbitrary::{detects_damage, time, token};
    use proptest::{collection::vec, prelude::*};

    fn claim() -> impl Strategy<Value = EpochClaim> {
        (any::<u64>(), token(), "\\PC{0,40}", time(), "\\PC{0,10}").prop_map(
            |(epoch, token, endpoint, claimed_at, software)| EpochClaim {
                epoch: Epoch(epoch),
                token,
                endpoint,
                claimed_at,
                software,
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn claims_round_trip_and_damage_is_detected(claim in claim()) {
            let encoded = claim.encode();
            prop_assert_eq!(&EpochClaim::decode(&encoded).unwrap(), &claim);
            detects_damage(&encoded, EpochClaim::decode);
        }

        #[test]
        fn random_bytes_are_refused(bytes in vec(any::<u8>(), 0..100)) {
            EpochClaim::decode(&bytes).unwrap_err();
        }
    }

    #[test]
    fn a_newer_version_is_named_as_such() {
        let error = EpochClaim::decode(b"RFSE\x02\x00something else").unwrap_err();
        assert!(error.why.contains("version 2 is unknown"), "{error}");
    }
}
