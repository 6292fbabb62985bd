//! The other brokers of the cluster, over the network.
//!
//! To each broker that the log names, a stream is kept open on which it tells how far its journal and its log are: a sign of life that
//! costs the store nothing, and the news of a log entry at once. Where a stream ends, the next connection is tried at once; if that is
//! refused, nobody listens there, and the core is told so. Where it is neither accepted nor refused, nothing is concluded: then the journal
//! in the store tells. Nothing here decides anything.
//!
//! Numbers of epochs are small, and ports are used again: that it is not a broker of another deployment which answers is told by the token of
//! its claim of the epoch, which both read from their store. Until it was read nothing is concluded from it: signs of life do not wait for it.
//!
//! Some questions are passed on to the broker that can answer them: the ends of partitions, and compaction. Such calls carry the token
//! that this broker was given for it.

use crate::{core_task::CoreHandle, errors};
use futures::{StreamExt, stream, stream::BoxStream};
use refstream_core::Input;
use refstream_filer_adapter::Runtime;
use refstream_format::epoch::EpochClaim;
use refstream_journal::Metadata;
use refstream_proto::{
    error_detail,
    v1::{
        self, ErrorCode, ErrorDetail, FollowRequest, PeerState, peers_client::PeersClient,
        records_client::RecordsClient, segments_client::SegmentsClient,
    },
};
use refstream_types::{Chain, Epoch, Slot, Token, Version};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
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
/// A connection that was silent for this long while calls are open is asked whether it lives, and counts as lost after as long.
const PING: Duration = Duration::from_secs(10);
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
    metadata: Metadata,
    /// Of our own epoch.
    claim: OnceLock<Token>,
    /// How often a broker says where it is, when nothing else changes.
    every: Duration,
}

impl Peers {
    pub(crate) fn new(
        core: CoreHandle,
        runtime: Arc<dyn Runtime>,
        metadata: Metadata,
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
        Self {
            core,
            runtime,
            token,
            authorities,
            channels: Mutex::default(),
            metadata,
            claim: OnceLock::new(),
            every: death_after / 4,
        }
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
        let dialled = dialled.http2_keep_alive_interval(PING).keep_alive_timeout(PING);
        Ok(dialled.connect_timeout(CONNECT_TIMEOUT).tcp_nodelay(true))
    }

    fn channels(&self) -> MutexGuard<'_, HashMap<String, Channel>> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn channel(&self, endpoint: &str) -> Result<Channel, ErrorDetail> {
        let mut channels = self.channels();
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
        Ok(client.list_offsets(request).await.map_err(|status| self.passed_on(endpoint, &status))?.into_inner())
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
        Ok(client.compact(request).await.map_err(|status| self.passed_on(endpoint, &status))?.into_inner())
    }

    /// Reads by which claim an epoch was taken, and keeps that in `known`.
    async fn learn_claim(&self, epoch: Epoch, known: &OnceLock<Token>) {
        let key = self.metadata.layout().link(&Chain::Epochs, epoch.0);
        // Old ones are freed; an unreadable one is as good as none.
        if let Ok(bytes) = self.metadata.object(&key).await
            && let Ok(claim) = EpochClaim::decode(&bytes)
        {
            let _ = known.set(claim.token);
        }
    }

    /// Keeps a stream open to every other broker, until `closing`.
    pub(crate) async fn run(self: Arc<Self>, closing: CancellationToken) {
        let mut state = self.core.state.clone();
        let mut followed: BTreeMap<Epoch, CancellationToken> = BTreeMap::new();
        let mut tasks = JoinSet::new();
        let mut claim_asked = false;
        loop {
            let mine = self.core.status.borrow().0.epoch;
            if let Some(mine) = mine.filter(|_| !claim_asked) {
                claim_asked = true;
                let peers = Arc::clone(&self);
                tasks.spawn(async move { peers.learn_claim(mine, &peers.claim).await });
            }
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
            let known: BTreeSet<&String> = wanted.values().collect();
            self.channels().retain(|endpoint, _| known.contains(endpoint));
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
        let claim = OnceLock::new();
        let learn = async {
            self.learn_claim(epoch, &claim).await;
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = learn => {}
            () = self.follow_on(epoch, &endpoint, &claim) => {}
        }
    }

    async fn follow_on(&self, epoch: Epoch, endpoint: &str, claim: &OnceLock<Token>) {
        let mut trouble: Option<String> = None;
        loop {
            let (gone, why) = match self.follow_once(epoch, endpoint, claim, &mut trouble).await {
                // The next attempt tells what became of it.
                Ended::Lost => continue,
                Ended::Gone(why) => (true, why),
                Ended::Unreachable(why) => (false, why),
            };
            // Once for each reason, not for each attempt.
            if trouble.as_ref() != Some(&why) {
                tracing::warn!(%epoch, endpoint, why, "another broker cannot be followed; trying again");
                trouble = Some(why);
            }
            if gone {
                self.core.tell(Input::PeerGone { epoch }).await;
            }
            self.runtime.sleep(AGAIN).await;
        }
    }

    /// `trouble`: why it could not be followed until now.
    async fn follow_once(
        &self,
        epoch: Epoch,
        endpoint: &str,
        claim: &OnceLock<Token>,
        trouble: &mut Option<String>,
    ) -> Ended {
        let dial = match self.endpoint(endpoint) {
            Ok(dial) => dial,
            Err(invalid) => return Ended::Unreachable(invalid.message),
        };
        let channel = match dial.connect().await {
            Ok(channel) => channel,
            Err(error) if is_refused(&error) => return Ended::Gone(innermost(&error)),
            Err(error) => return Ended::Unreachable(innermost(&error)),
        };
        let mine = self.core.status.borrow().0.epoch.map_or(0, |epoch| epoch.0);
        let version = self.core.state.borrow().version.0;
        let request = self.request(FollowRequest { epoch: mine, version });
        let mut states = match PeersClient::new(channel).follow(request).await {
            Ok(states) => states.into_inner(),
            Err(status) => return Ended::Unreachable(self.passed_on(endpoint, &status).message),
        };
        let mut heard = false;
        while let Ok(Some(state)) = states.message().await {
            if state.epoch != epoch.0 {
                // Another process holds its port.
                let why = format!("the broker of epoch {} answers there", state.epoch);
                return if state.epoch > epoch.0 { Ended::Gone(why) } else { Ended::Unreachable(why) };
            }
            if is_stranger(claim.get(), &state.claim) {
                return Ended::Gone("a broker of another deployment answers there".into());
            }
            heard = true;
            if trouble.take().is_some() {
                tracing::info!(%epoch, endpoint, "the other broker is followed");
            }
            let (committed, version) = (Slot(state.committed_slot), Version(state.version));
            self.core.tell(Input::PeerSeen { epoch, committed, version }).await;
        }
        if heard { Ended::Lost } else { Ended::Unreachable("it ends the call at once".into()) }
    }

    /// What another broker answered to a call that is made for a client, or for ourselves.
    fn passed_on(&self, endpoint: &str, status: &Status) -> ErrorDetail {
        let detail = error_detail(status);
        if status.details().is_empty() {
            return errors::unavailable(format!("the broker at {endpoint} cannot be reached: {}", status.message()));
        }
        // It is not the client's token that it refuses.
        if detail.code() == ErrorCode::NotAuthorised {
            let state = self.core.state.borrow();
            let here = self.core.status.borrow().0.epoch.and_then(|mine| state.epochs.get(&mine));
            let here = here.map_or("this address", |here| here.endpoint.as_str());
            let text = format!(
                "the broker at {endpoint} refuses the token of the broker at {here}: start that one with a REFSTREAM_TOKEN which the others take"
            );
            return ErrorDetail { no_side_effects: true, ..errors::internal(text) };
        }
        detail
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
                        claim: peers.claim.get().map(|token| token.0.to_vec()).unwrap_or_default(),
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
    Gone(String),
    /// Nobody can say.
    Unreachable(String),
}

/// Whether somebody who tells of an epoch took it by another claim than the one that is known.
fn is_stranger(known: Option<&Token>, told: &[u8]) -> bool {
    known.is_some_and(|known| !told.is_empty() && told != known.0)
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

/// The innermost cause says most.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_is_known_to_be_somebody_else_is_a_stranger() {
        let (ours, other) = (Token([1; 16]), Token([2; 16]));
        assert!(!is_stranger(Some(&ours), &ours.0) && is_stranger(Some(&ours), &other.0));
        assert!(
            !is_stranger(None, &other.0) && !is_stranger(Some(&ours), &[]),
            "nothing is concluded from what is not known"
        );
    }
}
