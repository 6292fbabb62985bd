//! gRPC connections whose bytes are counted.

use crate::metrics::{Counted, Metrics};
use refstream_filer_adapter::Runtime;
use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
};
use tonic::transport::server::{Connected, TcpConnectInfo};

/// The wait after a connection that could not be accepted.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// A connection of a client.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    metrics: Arc<Metrics>,
    _counted: Counted,
}

impl Connection {
    /// The next connection. A client that is gone at once, or descriptors that are exhausted, end nothing: the next one is waited for.
    pub(crate) async fn accept(listener: &TcpListener, metrics: &Arc<Metrics>, runtime: &dyn Runtime) -> Self {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    // It fails when the client is gone, which the first read will tell.
                    let _ = stream.set_nodelay(true);
                    let counted = Counted::new(&metrics.connections);
                    return Self { stream, metrics: Arc::clone(metrics), _counted: counted };
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    runtime.sleep(ACCEPT_AGAIN).await;
                }
            }
        }
    }
}

impl Connected for Connection {
    type ConnectInfo = TcpConnectInfo;
    fn connect_info(&self) -> TcpConnectInfo {
        self.stream.connect_info()
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let poll = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.metrics.grpc_received_bytes.inc_by((buf.filled().len() - before) as u64);
        poll
    }
}

impl Connection {
    fn sent(&self, poll: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(count)) = &poll {
            self.metrics.grpc_sent_bytes.inc_by(*count as u64);
        }
        poll
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.sent(poll)
    }
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.sent(poll)
    }
    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
