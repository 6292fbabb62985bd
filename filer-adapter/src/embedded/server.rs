//! The S3 server: hyper's HTTP/1 under the service.

mod access;

use super::{EmbeddedKeys, FileStore, service::Service};
use crate::Runtime;
use hyper_util::rt::{TokioIo, TokioTimer};
use s3s::{
    auth::SimpleAuth,
    config::{S3Config, StaticConfigProvider},
    service::{S3Service, S3ServiceBuilder},
};
use std::{io, net::SocketAddr, pin::pin, sync::Arc, time::Duration};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
    task::{JoinHandle, JoinSet},
};

/// Connections at once, or fewer where the process may not open so many files; more wait to be accepted.
const MAX_CONNECTIONS: usize = 4_096;
/// Connections take at most this part of the files that the process may open: the store needs some for its own.
const CONNECTIONS_PART: u64 = 4;
/// How long requests under way may take when the server stops.
const DRAIN_TIME: Duration = Duration::from_secs(10);
/// How long a client may take to send a request's head.
const HEAD_TIME: Duration = Duration::from_secs(60);
/// How long to wait when no connection can be accepted, for example for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Bodies in XML (deletions, completions with 10,000 parts) are smaller.
const MAX_XML_BYTES: usize = 4 * 1024 * 1024;
/// The form upload of browsers is refused; so is its body.
const MAX_FORM_BYTES: u64 = 64 * 1024;

/// A running S3 server. Dropped without [`S3Server::stop`] it ends at once and cuts its connections.
#[derive(Debug)]
pub struct S3Server {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    serving: Option<JoinHandle<()>>,
}

impl S3Server {
    /// Serves the store on `address` (port 0 picks one) to those who have the keys.
    ///
    /// # Errors
    /// When the address cannot be listened on.
    pub async fn start(store: Arc<FileStore>, keys: EmbeddedKeys, address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let runtime = Arc::clone(&store.inner.options.runtime);
        let mut builder = S3ServiceBuilder::new(Service::new(store));
        builder.set_auth(SimpleAuth::from_single(keys.access_key(), keys.secret_key()));
        builder.set_access(access::Signed);
        let mut config = S3Config::default();
        config.xml_max_body_size = MAX_XML_BYTES;
        config.post_object_max_file_size = MAX_FORM_BYTES;
        builder.set_config(Arc::new(StaticConfigProvider::new(Arc::new(config))));
        let (stop, stopped) = watch::channel(false);
        let serving = tokio::spawn(serve(listener, builder.build(), stopped, runtime));
        Ok(Self { address, stop, serving: Some(serving) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The endpoint for clients, for example `http://127.0.0.1:7402`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Accepts nothing more, lets requests under way finish (for 10 seconds at most), and ends.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        if let Some(serving) = self.serving.take() {
            let _ = serving.await;
        }
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        if let Some(serving) = &self.serving {
            serving.abort();
        }
    }
}

async fn serve(
    listener: TcpListener,
    service: S3Service,
    mut stopped: watch::Receiver<bool>,
    runtime: Arc<dyn Runtime>,
) {
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let most =
        files.map_or(MAX_CONNECTIONS, |files| usize::try_from(files / CONNECTIONS_PART).unwrap_or(MAX_CONNECTIONS));
    let slots = Arc::new(Semaphore::new(most.clamp(1, MAX_CONNECTIONS)));
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let accepted = async {
            let slot = Arc::clone(&slots).acquire_owned().await.map_err(io::Error::other)?;
            Ok::<_, io::Error>((slot, listener.accept().await?.0))
        };
        tokio::select! {
            () = async { let _ = stopped.wait_for(|&stop| stop).await; } => break,
            accepted = accepted => match accepted {
                Ok((slot, stream)) => {
                    let (service, stopped) = (service.clone(), stopped.clone());
                    connections.spawn(async move {
                        connection(stream, service, stopped).await;
                        drop(slot);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "no S3 connection can be accepted");
                    runtime.sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop(listener);
    tokio::select! {
        () = async { while connections.join_next().await.is_some() {} } => {}
        () = runtime.sleep(DRAIN_TIME) => {
            tracing::warn!(connections = connections.len(), "S3 requests were cut at the server's end");
        }
    }
}

async fn connection(stream: TcpStream, service: S3Service, mut stopped: watch::Receiver<bool>) {
    let _ = stream.set_nodelay(true);
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => Some(ended),
        () = async { let _ = stopped.wait_for(|&stop| stop).await; } => None,
    };
    let ended = match ended {
        Some(ended) => ended,
        None => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "an S3 connection broke");
    }
}

#[cfg(test)]
#[cfg(feature = "s3")]
mod tests;
