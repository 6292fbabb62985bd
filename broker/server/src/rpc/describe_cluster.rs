//! DescribeCluster: the brokers that are not known to be dead, who leads, and how many segments each serves; now, or once that may have changed.

use crate::node::Node;
use refstream_proto::v1::{BrokerState, DescribeClusterRequest, DescribeClusterResponse, ErrorDetail};
use refstream_types::Epoch;
use std::{collections::BTreeMap, time::Duration};

pub(super) async fn call(node: &Node, request: DescribeClusterRequest) -> Result<DescribeClusterResponse, ErrorDetail> {
    node.wait_for_change(request.after, Duration::from_micros(request.wait_micros)).await;
    let state = node.state()?;
    let mut open: BTreeMap<Epoch, u64> = BTreeMap::new();
    for segment in state.open_segments() {
        *open.entry(segment.owner).or_default() += 1;
    }
    let leader = state.leader.map(|(_, leader)| leader);
    let live = state.epochs.iter().filter(|(_, broker)| broker.fence.is_none());
    let brokers = live.map(|(epoch, broker)| BrokerState {
        epoch: epoch.0,
        endpoint: broker.endpoint.clone(),
        leads: leader == Some(*epoch),
        leaving: broker.leaving,
        open_segments: open.get(epoch).copied().unwrap_or(0),
    });
    let called = node.core.status.borrow().0.epoch.map_or(0, |epoch| epoch.0);
    Ok(DescribeClusterResponse { brokers: brokers.collect(), called, version: state.version.0 })
}
