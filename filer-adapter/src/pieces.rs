//! Request bodies: the caller's pieces, sent as they are.

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use std::{
    collections::VecDeque,
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

/// Pieces one after the other; nothing is copied.
pub(crate) struct Pieces {
    left: VecDeque<Bytes>,
    bytes: u64,
}

impl Pieces {
    pub(crate) fn new(pieces: &[Bytes]) -> Self {
        let bytes = pieces.iter().map(|piece| piece.len() as u64).sum();
        Self { left: pieces.iter().filter(|piece| !piece.is_empty()).cloned().collect(), bytes }
    }
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let piece = self.left.pop_front();
        self.bytes -= piece.as_ref().map_or(0, |piece| piece.len() as u64);
        Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.left.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes)
    }
}
