//! Fetching payloads, verified.

use crate::FetchError;
use bytes::Bytes;
use refstream_types::ByteRange;

/// A payload to be fetched. Nothing unverified is ever handed out.
#[derive(Clone, Debug)]
pub struct Payload {}

pub(crate) fn joined(mut pieces: Vec<Bytes>) -> Bytes {
    match pieces.len() {
        1 => pieces.swap_remove(0),
        _ => pieces.concat().into(),
    }
}

#[allow(unused_variables)]
impl Payload {
    pub(crate) fn new(
        reference: refstream_types::Reference,
        store: Result<std::sync::Arc<dyn refstream_filer_adapter::BlobStore>, crate::OpenStoreError>,
        runtime: std::sync::Arc<dyn refstream_filer_adapter::Runtime>,
    ) -> Self {
        todo!()
    }
    /// The whole payload, its BLAKE3 verified.
    ///
    /// # Errors
    /// When it is gone, damaged or out of reach; names the object.
    pub async fn bytes(&self) -> Result<Bytes, FetchError> {
        todo!()
    }
    /// Bytes `range` of the payload as given (clamped to its end), verified by block.
    ///
    /// # Errors
    /// As [`Payload::bytes`].
    pub async fn range(&self, range: ByteRange) -> Result<Bytes, FetchError> {
        todo!()
    }
    /// Writes the whole payload to `sink` as it arrives; each block is verified before it is written, the whole at the end. Bounded
    /// memory for any size. Returns the number of bytes.
    ///
    /// # Errors
    /// As [`Payload::bytes`]; the sink may have received verified blocks before a later one failed.
    pub async fn copy_to(&self, sink: &mut (dyn tokio::io::AsyncWrite + Send + Unpin)) -> Result<u64, FetchError> {
        todo!()
    }
}
