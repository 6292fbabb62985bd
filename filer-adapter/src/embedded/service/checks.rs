//! The checksums that a client sends with a body, in headers or in a trailer.

use super::service_error;
use crate::embedded::body::Receiver;
use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use futures::StreamExt;
use http::HeaderMap;
use refstream_types::Crc32c;
use s3s::{
    S3Error, S3Result, TrailingHeaders,
    checksum::ChecksumHasher,
    crypto::{Checksum as _, Crc32, Crc64Nvme, Md5, Sha1, Sha256},
    dto::{self, StreamingBlob},
    s3_error,
};

const ALGORITHMS: [&str; 5] = ["crc32", "crc32c", "crc64nvme", "sha1", "sha256"];

/// A CRC32C as S3 writes it: base64 of its four bytes.
pub(in crate::embedded) fn encode(checksum: Crc32c) -> String {
    STANDARD.encode(checksum.0.to_be_bytes())
}

pub(super) fn decode(text: &str) -> S3Result<Crc32c> {
    let bytes = STANDARD.decode(text).ok().and_then(|bytes| <[u8; 4]>::try_from(bytes).ok());
    bytes
        .map(|bytes| Crc32c(u32::from_be_bytes(bytes)))
        .ok_or_else(|| s3_error!(InvalidDigest, "{text:?} is not a CRC32C: expected base64 of 4 bytes"))
}

/// What was promised of a body.
#[derive(Debug, Default)]
pub(super) struct Checks {
    /// Promised values by algorithm, as base64.
    promised: [Option<String>; 5],
    /// Algorithms whose values come in the trailer.
    trailing: [bool; 5],
    md5: Option<String>,
    trailer: Option<TrailingHeaders>,
}

impl Checks {
    pub(super) fn new(headers: &HeaderMap, trailer: Option<TrailingHeaders>) -> S3Result<Self> {
        let text = |name: &str| {
            let value = headers.get(name).map(|value| value.to_str());
            value.transpose().map_err(|_| s3_error!(InvalidDigest, "the header {name} is not ASCII"))
        };
        let mut checks = Self { trailer, ..Self::default() };
        let announced: Vec<_> = headers
            .get_all("x-amz-trailer")
            .iter()
            .filter_map(|names| names.to_str().ok())
            .flat_map(|names| names.split(','))
            .collect();
        for (index, algorithm) in ALGORITHMS.iter().enumerate() {
            let name = format!("x-amz-checksum-{algorithm}");
            checks.promised[index] = text(&name)?.map(str::to_owned);
            checks.trailing[index] = announced.iter().any(|announced| announced.trim().eq_ignore_ascii_case(&name));
        }
        checks.md5 = text("content-md5")?.map(str::to_owned);
        Ok(checks)
    }

    fn hasher(&self) -> ChecksumHasher {
        let wanted = |index: usize| self.promised[index].is_some() || self.trailing[index];
        ChecksumHasher {
            crc32: wanted(0).then(Crc32::new),
            // Computed for every body as it is written.
            crc32c: None,
            crc64nvme: wanted(2).then(Crc64Nvme::new),
            sha1: wanted(3).then(Sha1::new),
            sha256: wanted(4).then(Sha256::new),
        }
    }

    /// Takes a whole body, into `receiver` unless it is only to be read. Gives the checks that remain: the CRC32C. A body that
    /// the disk does not take is read to its end all the same: a client that is still sending would not see the answer.
    pub(super) async fn receive(
        mut self,
        body: Option<StreamingBlob>,
        mut receiver: Option<&mut Receiver>,
    ) -> S3Result<Promised> {
        let mut hasher = self.hasher();
        let mut failed = None;
        let mut md5 = self.md5.as_ref().map(|_| Md5::new());
        if let Some(mut body) = body {
            while let Some(piece) = body.next().await {
                let piece: Bytes = piece.map_err(refused_body)?;
                hasher.update(&piece);
                if let Some(md5) = &mut md5 {
                    md5.update(&piece);
                }
                if let Some(receiving) = receiver.as_deref_mut()
                    && let Err(error) = receiving.push(piece).await
                {
                    failed = Some(service_error(&error));
                    receiver = None;
                }
            }
        }
        if let Some(failed) = failed {
            return Err(failed);
        }
        if let Some(trailer) = self.trailer.as_ref().and_then(TrailingHeaders::take) {
            for (index, algorithm) in ALGORITHMS.iter().enumerate() {
                let value = trailer.get(format!("x-amz-checksum-{algorithm}")).and_then(|value| value.to_str().ok());
                if let Some(value) = value {
                    self.promised[index] = Some(value.to_owned());
                }
            }
        }
        if let (Some(promised), Some(md5)) = (&self.md5, md5) {
            let arrived = STANDARD.encode(md5.finalize());
            if *promised != arrived {
                return Err(s3_error!(BadDigest, "the Content-MD5 is {promised}, that of the bytes {arrived}"));
            }
        }
        let arrived = hasher.finalize();
        let arrived =
            [arrived.checksum_crc32, None, arrived.checksum_crc64nvme, arrived.checksum_sha1, arrived.checksum_sha256];
        for ((promised, arrived), algorithm) in self.promised.iter().zip(&arrived).zip(ALGORITHMS) {
            if let (Some(promised), Some(arrived)) = (promised, arrived)
                && promised != arrived
            {
                return Err(s3_error!(
                    BadDigest,
                    "the checksum {algorithm} was given as {promised}, that of the bytes is {arrived}"
                ));
            }
        }
        let crc32c = self.promised[1].as_deref().map(decode).transpose()?;
        Ok(Promised { crc32c, all: self.promised })
    }
}

/// The checksums of a body that has arrived; all but the CRC32C were compared.
#[derive(Debug)]
pub(super) struct Promised {
    pub(super) crc32c: Option<Crc32c>,
    all: [Option<String>; 5],
}

impl Promised {
    /// The checksums as an answer repeats them.
    pub(super) fn into_answer(self) -> dto::Checksum {
        let [crc32, crc32c, crc64nvme, sha1, sha256] = self.all;
        dto::Checksum {
            checksum_crc32: crc32,
            checksum_crc32c: crc32c,
            checksum_crc64nvme: crc64nvme,
            checksum_sha1: sha1,
            checksum_sha256: sha256,
            ..dto::Checksum::default()
        }
    }
}

/// The body ended early, or a signature or hash in it was wrong.
fn refused_body(error: Box<dyn std::error::Error + Send + Sync>) -> S3Error {
    let mut refused = s3_error!(IncompleteBody, "the body is not what was announced: {error}");
    refused.set_source(error);
    refused
}
