//! Request bodies: the caller's pieces, sent as they are.

use crate::Sent;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use std::{
    collections::VecDeque,
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

/// A body counts as sent when at most this many bytes of it are not yet the network's.
const LAST_BYTES: usize = 64 * 1024;

/// Pieces one after the other; nothing is copied.
pub(crate) struct Pieces {
    left: VecDeque<Bytes>,
    bytes: u64,
    sent: Option<Sent>,
}

impl Pieces {
    pub(crate) fn new(pieces: &[Bytes]) -> Self {
        let bytes = pieces.iter().map(|piece| piece.len() as u64).sum();
        Self { left: pieces.iter().filter(|piece| !piece.is_empty()).cloned().collect(), bytes, sent: None }
    }

    /// Says so when the last bytes are asked for: HTTP clients ask for a piece once there is room for it.
    pub(crate) fn telling(pieces: &[Bytes], sent: Sent) -> Self {
        let mut body = Self::new(pieces);
        if let Some(last) = body.left.back_mut().filter(|last| last.len() > LAST_BYTES) {
            let end = last.split_off(last.len() - LAST_BYTES);
            body.left.push_back(end);
        }
        body.sent = Some(sent);
        body
    }
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let piece = self.left.pop_front();
        if self.left.is_empty()
            && let Some(sent) = self.sent.take()
        {
            sent.tell();
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    fn next(body: &mut Pieces) -> Option<Bytes> {
        let frame = Pin::new(body).poll_frame(&mut Context::from_waker(futures::task::noop_waker_ref()));
        match frame {
            Poll::Ready(frame) => frame.map(|frame| frame.unwrap().into_data().unwrap()),
            Poll::Pending => panic!("pieces are there at once"),
        }
    }

    #[test]
    fn a_body_is_sent_when_its_last_bytes_are_asked_for() {
        let pieces = [Bytes::from(vec![1; 10]), Bytes::new(), Bytes::from(vec![2; 3 * LAST_BYTES])];
        let sent = Sent::default();
        let mut body = Pieces::telling(&pieces, sent.clone());
        let mut arrived = Vec::new();
        while !body.is_end_stream() {
            assert!(sent.told().now_or_never().is_none(), "{} bytes are left", body.size_hint().lower());
            arrived.extend(next(&mut body).unwrap());
        }
        assert!(sent.told().now_or_never().is_some());
        assert_eq!(arrived, pieces.concat());
    }

    #[test]
    fn an_empty_body_is_sent_at_its_end() {
        let sent = Sent::default();
        assert_eq!(next(&mut Pieces::telling(&[], sent.clone())), None);
        assert!(sent.told().now_or_never().is_some());
    }
}
