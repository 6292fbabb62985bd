//! The object by which a broker takes its epoch.

use crate::DecodeError;
use refstream_types::{Epoch, Timestamp, Token};

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
        todo!()
    }
    /// Reads a claim.
    ///
    /// # Errors
    /// When it is damaged or of an unknown version.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let _ = bytes;
        todo!()
    }
}
