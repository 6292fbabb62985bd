//! The object by which a broker takes its epoch: magic `RFSE`, version, fields, CRC32C over all of it.

use crate::{DecodeError, checked};
use refstream_types::{Epoch, Timestamp, Token};

const MAGIC: [u8; 4] = *b"RFSE";
const VERSION: u16 = 1;
/// The longest endpoint and the longest software name, in bytes.
const MAX_TEXT_BYTES: usize = 4_096;

/// Who took an epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpochClaim {
    /// The epoch.
    pub epoch: Epoch,
    /// The claim's token.
    pub token: Token,
    /// Where clients reach the broker, for example `http://127.0.0.1:7400`.
    pub endpoint: String,
    /// When, by the broker's clock: for people, never compared.
    pub claimed_at: Timestamp,
    /// The broker's version.
    pub software: String,
}

impl EpochClaim {
    /// The object's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = checked::begin(MAGIC, VERSION);
        writer.u64(self.epoch.0);
        writer.raw(&self.token.0);
        writer.bytes(self.endpoint.as_bytes());
        writer.signed(self.claimed_at.as_micros());
        writer.bytes(self.software.as_bytes());
        checked::finish(writer)
    }

    /// Reads a claim.
    ///
    /// # Errors
    /// When it is damaged or of an unknown version.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let (mut reader, _) = checked::open(bytes, "epoch claim", MAGIC, VERSION)?;
        let claim = Self {
            epoch: Epoch(reader.u64()?),
            token: Token(reader.array()?),
            endpoint: reader.text(MAX_TEXT_BYTES)?,
            claimed_at: Timestamp::from_micros(reader.signed()?),
            software: reader.text(MAX_TEXT_BYTES)?,
        };
        reader.end()?;
        Ok(claim)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_comes_back_equal_or_not_at_all() {
        let claim = EpochClaim {
            epoch: Epoch(7),
            token: Token([3; 16]),
            endpoint: "http://127.0.0.1:7400".into(),
            claimed_at: Timestamp::from_micros(1),
            software: "refstream 0.1.0".into(),
        };
        let bytes = claim.encode();
        assert_eq!(EpochClaim::decode(&bytes).unwrap(), claim);
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(EpochClaim::decode(&damaged).is_err());
            assert!(EpochClaim::decode(&bytes[..at]).is_err());
        }
    }
}
