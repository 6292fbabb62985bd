//! The other brokers of the cluster, over the network.
//!
//! To each broker that the log names, a stream is kept open on which it tells how far its journal and its log are: a sign of life that
//! costs the store nothing, and the news of a log entry at once. Where a stream ends, the next connection is tried at once; if that is
//! refused, nobody listens there, and the core is told so. Where it is neither accepted nor refused, nothing is concluded: then the journal
//! in the store tells. Nothing here decides anything.
//!
//! Some questions are passed on to the broker that can answer them: the ends of partitions, and compaction. Such calls carry the token
//! that this broker was given for it.

use crate::{core_task::CoreHandle, errors};
use futures::{StreamExt, stream, stream::BoxStream};
use refstream_core::Input;
use refstream_filer_adapter::Runtime;
use refstream_proto::{
    error_detail,
    v1::{
        self, ErrorDetail, FollowRequest, PeerState, peers_client::PeersClient, records_client::RecordsClient,
        segments_client::SegmentsClient,
    },
};
use refstream_types::{Epoch, Slot, Version};
use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::{
    Request, Status,
    metadata::{Ascii, MetadataValue},
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint},
};

/// How long one attempt to connect to another broker may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Between attempts to reach another broker.
const AGAIN: Duration = Duration::from_millis(100);
/// The longest answer of another broker, in bytes.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// How this broker reaches others.
#[derive(Debug)]
pub(crate) struct Peers {
    core: CoreHandle,
    runtime: Arc<dyn Runtime>,
    token: Option<MetadataValue<Ascii>>,
    /// Authorities that are trusted beside the system's.
    authorities: Option<Certificate>,
    channels: Mutex<HashMap<String, Channel>>,
    /// How often a broker says where it is, when nothing else changes.
    every: Duration,
}

impl Peers {
    pub(crate) fn new(
        core: CoreHandle,
        runtime: Arc<dyn Runtime>,
        token: Option<&str>,
        authorities: Option<Vec<u8>>,
        death_after: Duration,
    ) -> Self {
        let authorities = authorities.map(Certificate::from_pem);
        let token =
            token.and_then(|token| format!("Bearer {token}").parse().ok()).map(|mut token: MetadataValue<_>| {
                token.set_sensitive(true);
                token
            });
        Self { core, runtime, token, authorities, channels: Mutex::default(), every: death_after / 4 }
    }

    fn endpoint(&self, endpoint: &str) -> Result<Endpoint, ErrorDetail> {
        let invalid = |error: tonic::transport::Error| {
            errors::internal(format!("the endpoint {endpoint} of a broker cannot be one: {error}"))
        };
        let mut dialled = Endpoint::from_shared(endpoint.to_owned()).map_err(invalid)?;
        if endpoint.starts_with("https://") {
            let mut tls = ClientTlsConfig::new().with_enabled_roots();
            if let Some(authorities) = &self.authorities {
                tls = tls.ca_certificate(authorities.clone());
            }
            dialled = dialled.tls_config(tls).map_err(invalid)?;
        }
        Ok(dialled.connect_timeout(CONNECT_TIMEOUT).tcp_nodelay(true))
    }

    fn channel(&self, endpoint: &str) -> Result<Channel, ErrorDetail> {
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(channel) = channels.get(endpoint) {
            return Ok(channel.clone());
        }
        let channel = self.endpoint(endpoint)?.connect_lazy();
        channels.insert(endpoint.to_owned(), channel.clone());
        Ok(channel)
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(token) = &self.token {
            request.metadata_mut().insert("authorization", token.clone());
        }
        request
    }

    /// Asks another broker for the ends of the partitions that it serves.
    ///
    /// # Errors
    /// As it says, or that it cannot be reached.
    pub(crate) async fn own_offsets(
        &self,
        endpoint: &str,
        request: v1::ListOffsetsRequest,
    ) -> Result<v1::ListOffsetsResponse, ErrorDetail> {
        let mut client = RecordsClient::new(self.channel(endpoint)?).max_decoding_message_size(MAX_ANSWER_BYTES);
        let request = self.request(v1::ListOffsetsRequest { own: true, ..request });
        Ok(client.list_offsets(request).await.map_err(|status| passed_on(endpoint, &status))?.into_inner())
    }

    /// Has another broker compact a topic.
    ///
    /// # Errors
    /// As it says, or that it cannot be reached.
    pub(crate) async fn compact(
        &self,
        endpoint: &str,
        request: v1::CompactRequest,
    ) -> Result<v1::CompactResponse, ErrorDetail> {
        let mut client = SegmentsClient::new(self.channel(endpoint)?).max_decoding_message_size(MAX_ANSWER_BYTES);
        let request = self.request(v1::CompactRequest { own: true, ..request });
        Ok(client.compact(request).await.map_err(|status| passed_on(endpoint, &status))?.into_inner())
    }

    /// Keeps a stream open to every other broker, until `closing`.
    pub(crate) async fn run(self: Arc<Self>, closing: CancellationToken) {
        let mut state = self.core.state.clone();
        let mut followed: BTreeMap<Epoch, CancellationToken> = BTreeMap::new();
        let mut tasks = JoinSet::new();
        loop {
            let mine = self.core.status.borrow().0.epoch;
            let wanted: BTreeMap<Epoch, String> = {
                let state = state.borrow_and_update();
                // Before we have joined, nobody would know us.
                let joined = mine.is_some_and(|mine| state.epochs.contains_key(&mine));
                let others = state
                    .epochs
                    .iter()
                    .filter(|(epoch, other)| joined && Some(**epoch) != mine && other.fence.is_none());
                others.map(|(epoch, other)| (*epoch, other.endpoint.clone())).collect()
            };
            followed.retain(|epoch, over| {
                let stays = wanted.contains_key(epoch);
                if !stays {
                    over.cancel();
                }
                stays
            });
            for (epoch, endpoint) in wanted {
                followed.entry(epoch).or_insert_with(|| {
                    let (peers, over) = (Arc::clone(&self), closing.child_token());
                    let until = over.clone();
                    tasks.spawn(async move {
                        tokio::select! {
                            () = until.cancelled() => {}
                            () = peers.follow(epoch, endpoint) => {}
                        }
                    });
                    over
                });
            }
            while tasks.try_join_next().is_some() {}
            tokio::select! {
                () = closing.cancelled() => return,
                changed = state.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
            }
        }
    }

    /// Follows one broker for as long as the log names it.
    async fn follow(&self, epoch: Epoch, endpoint: String) {
        loop {
            match self.follow_once(epoch, &endpoint).await {
                // The next attempt tells what became of it.
                Ended::Lost => {}
                Ended::Gone => {
                    self.core.tell(Input::PeerGone { epoch }).await;
                    self.runtime.sleep(AGAIN).await;
                }
                Ended::Unreachable => self.runtime.sleep(AGAIN).await,
            }
        }
    }

    async fn follow_once(&self, epoch: Epoch, endpoint: &str) -> Ended {
        let Ok(dial) = self.endpoint(endpoint) else { return Ended::Unreachable };
        let channel = match dial.connect().await {
            Ok(channel) => channel,
            Err(error) if is_refused(&error) => return Ended::Gone,
            Err(_) => return Ended::Unreachable,
        };
        let mine = self.core.status.borrow().0.epoch.map_or(0, |epoch| epoch.0);
        let version = self.core.state.borrow().version.0;
        let request = self.request(FollowRequest { epoch: mine, version });
        let mut states = match PeersClient::new(channel).follow(request).await {
            Ok(states) => states.into_inner(),
            Err(_) => return Ended::Unreachable,
        };
        let mut heard = false;
        while let Ok(Some(state)) = states.message().await {
            if state.epoch != epoch.0 {
                // Another process holds its port.
                return if state.epoch > epoch.0 { Ended::Gone } else { Ended::Unreachable };
            }
            heard = true;
            let (committed, version) = (Slot(state.committed_slot), Version(state.version));
            self.core.tell(Input::PeerSeen { epoch, committed, version }).await;
        }
        if heard { Ended::Lost } else { Ended::Unreachable }
    }

    /// What a broker that follows us is told.
    pub(crate) async fn followed(
        self: Arc<Self>,
        request: FollowRequest,
        closing: CancellationToken,
    ) -> BoxStream<'static, Result<PeerState, Status>> {
        let (epoch, version) = (Epoch(request.epoch), Version(request.version));
        // It may be one that we have not read of yet.
        self.core.tell(Input::PeerSeen { epoch, committed: Slot(0), version }).await;
        let state = self.core.state.clone();
        let told = stream::unfold((self, state, true), move |(peers, mut state, first)| {
            let closing = closing.clone();
            async move {
                if !first {
                    tokio::select! {
                        () = closing.cancelled() => return None,
                        changed = state.changed() => changed.ok()?,
                        () = peers.runtime.sleep(peers.every) => {}
                    }
                }
                let version = state.borrow_and_update().version.0;
                let now = {
                    let status = peers.core.status.borrow();
                    let (status, _) = &*status;
                    PeerState {
                        epoch: status.epoch.map_or(0, |epoch| epoch.0),
                        committed_slot: status.committed_slot.0,
                        version,
                    }
                };
                Some((Ok(now), (peers, state, false)))
            }
        });
        told.boxed()
    }
}

/// How a stream to another broker ended.
enum Ended {
    /// It was open, and broke.
    Lost,
    /// Nobody listens there, or somebody else.
    Gone,
    /// Nobody can say.
    Unreachable,
}

/// Whether the other machine says that nobody listens.
fn is_refused(error: &tonic::transport::Error) -> bool {
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        if error.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::ConnectionRefused) {
            return true;
        }
        source = error.source();
    }
    false
}

fn passed_on(endpoint: &str, status: &Status) -> ErrorDetail {
    let detail = error_detail(status);
    if status.details().is_empty() {
        return errors::unavailable(format!("the broker at {endpoint} cannot be reached: {}", status.message()));
    }
    detail
}
