//! What the gRPC and HTTP services share.

use crate::{
    StoreDescription, compaction::Compaction, core_task::CoreHandle, errors, metrics::Metrics, peers::Peers,
    reader::Reader, receipts::Receipts,
};
use refstream_core::{Input, Phase, Reply, Ticket, TopicOperation};
use refstream_filer_adapter::{Runtime, grant::Grants};
use refstream_format::cluster_log::{ClusterState, TopicState};
use refstream_proto::v1::ErrorDetail;
use refstream_types::{Layout, StoreName, TopicId, TopicName};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio_util::sync::CancellationToken;

/// Name and version, as brokers and clients tell each other.
pub(crate) const SOFTWARE: &str = concat!("refstream/", env!("CARGO_PKG_VERSION"));

/// A call that waits for a change is answered after this long at the latest.
const LONGEST_WATCH: Duration = Duration::from_secs(30);

/// The running broker, as its services see it.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) core: CoreHandle,
    pub(crate) reader: Arc<Reader>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) compaction: Arc<Compaction>,
    pub(crate) peers: Arc<Peers>,
    pub(crate) stores: Vec<StoreDescription>,
    pub(crate) metadata_store: StoreName,
    /// Who signs, for each store that grants are given for.
    pub(crate) grants: BTreeMap<StoreName, Arc<dyn Grants>>,
    /// What clients may be granted to read besides topics' objects.
    pub(crate) read_prefixes: Vec<String>,
    /// Whether what granted uploads are referred to by is there.
    pub(crate) receipts: Receipts,
    pub(crate) layout: Layout,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) stuck_after: Duration,
    /// Cancelled when a client wants the broker to drain.
    pub(crate) drain_asked: CancellationToken,
    /// Cancelled when streams must end.
    pub(crate) closing: CancellationToken,
}

impl Node {
    /// The cluster's state, once the broker serves.
    ///
    /// # Errors
    /// While it starts, and after it stopped.
    pub(crate) fn state(&self) -> Result<Arc<ClusterState>, ErrorDetail> {
        if let Some(reason) = &*self.core.stopped.borrow() {
            return Err(errors::stopped(reason));
        }
        match self.core.status.borrow().0.phase {
            Phase::Serving | Phase::Draining => Ok(Arc::clone(&self.core.state.borrow())),
            Phase::Starting(step) => {
                Err(errors::unavailable(format!("the broker is starting ({step}); try again in a moment")))
            }
            Phase::Stopped => Err(errors::unavailable("the broker has stopped; try again once it was restarted")),
        }
    }

    /// Waits until the cluster's state is newer than `after`, but not longer than `wait`, nor once the broker ends.
    pub(crate) async fn wait_for_change(&self, after: Option<u64>, wait: Duration) {
        let Some(after) = after else { return };
        let mut state = self.core.state.clone();
        tokio::select! {
            // Also when the core is over.
            _ = state.wait_for(|state| state.version.0 > after) => {}
            () = self.runtime.sleep(if wait.is_zero() { LONGEST_WATCH } else { wait.min(LONGEST_WATCH) }) => {}
            () = self.closing.cancelled() => {}
        }
    }

    /// A topic by its name as a client wrote it. One that is not known may just have been created at another broker.
    ///
    /// # Errors
    /// When the name is invalid, no topic has it, or the broker does not serve.
    pub(crate) async fn topic(&self, name: &str) -> Result<TopicState, ErrorDetail> {
        let name: TopicName = name.parse().map_err(errors::invalid)?;
        if let Some(topic) = self.state()?.topic_by_name(&name) {
            return Ok(topic.clone());
        }
        self.refresh().await?;
        self.state()?.topic_by_name(&name).cloned().ok_or_else(|| errors::no_such_topic(&name))
    }

    /// A topic by its id.
    ///
    /// # Errors
    /// When there is none, or the broker does not serve.
    pub(crate) async fn topic_by_id(&self, id: TopicId) -> Result<Arc<TopicState>, ErrorDetail> {
        let state = self.state()?;
        let state = if id < state.next_topic {
            state
        } else {
            self.refresh().await?;
            self.state()?
        };
        let topic = state.topics.get(&id).filter(|topic| !topic.deleted);
        topic.cloned().ok_or_else(|| errors::no_such_topic_id(id))
    }

    /// Waits until the state includes everything that others wrote to the log before the call.
    ///
    /// # Errors
    /// When it has stopped, and when the store does not answer for `stuck_after`.
    pub(crate) async fn refresh(&self) -> Result<(), ErrorDetail> {
        if self.core.status.borrow().0.brokers <= 1 {
            return Ok(());
        }
        self.prove("show whether the cluster log has grown", |ticket| Input::Refresh { ticket }).await
    }

    /// Endpoints of all brokers that are not known to be dead.
    pub(crate) fn brokers(&self, state: &ClusterState) -> Vec<String> {
        let live = state.epochs.values().filter(|epoch| epoch.fence.is_none());
        live.map(|epoch| epoch.endpoint.clone()).collect()
    }

    /// Has the core change the set of topics.
    ///
    /// # Errors
    /// As the core says.
    pub(crate) async fn change_topic(&self, operation: TopicOperation) -> Result<Arc<TopicState>, ErrorDetail> {
        match self.core.call(|ticket| Input::Topic { ticket, operation }).await? {
            Reply::Topic(result) => result.map_err(|error| errors::operation(&error)),
            other => Err(unexpected(&other)),
        }
    }

    /// Waits until it is certain that nobody has taken over from this broker since the call began.
    ///
    /// # Errors
    /// When it is fenced or has stopped, and when the store does not answer for `stuck_after`.
    pub(crate) async fn confirm(&self) -> Result<(), ErrorDetail> {
        self.prove("prove that it is not superseded", |ticket| Input::Confirm { ticket }).await
    }

    /// Has the core find out what the store has to tell; `what`: what the store keeps it from, while it does not answer.
    async fn prove(&self, what: &str, input: impl FnOnce(Ticket) -> Input) -> Result<(), ErrorDetail> {
        let asked = self.core.call(input);
        let reply = tokio::select! {
            reply = asked => reply?,
            () = self.runtime.sleep(self.stuck_after) => {
                let said = self.core.status.borrow().0.stuck.as_ref().map(|(_, said)| said.clone());
                let said = said.filter(|said| !said.is_empty()).unwrap_or_else(|| "it does not answer".into());
                return Err(errors::unavailable(format!("the broker's store does not let it {what}: {said}")));
            }
        };
        match reply {
            Reply::Refreshed(result) | Reply::Confirmed(result) => result.map_err(|error| errors::operation(&error)),
            other => Err(unexpected(&other)),
        }
    }

    /// Checks that a store that a topic names is configured.
    ///
    /// # Errors
    /// Lists the stores that are.
    pub(crate) fn check_store(&self, store: Option<&StoreName>) -> Result<(), ErrorDetail> {
        match store {
            Some(store) if !self.stores.iter().any(|known| known.name == *store) => {
                let names: Vec<&str> = self.stores.iter().map(|known| known.name.as_str()).collect();
                Err(errors::invalid(format!(
                    "the store {store} is not configured at this broker; it has: {}",
                    names.join(", ")
                )))
            }
            _ => Ok(()),
        }
    }
}

/// The core answered something else than it was asked.
pub(crate) fn unexpected(reply: &Reply) -> ErrorDetail {
    errors::internal(format!("the broker's core gave an answer of another kind ({reply:?}); please report this"))
}
