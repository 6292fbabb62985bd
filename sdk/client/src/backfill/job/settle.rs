//! Finding out what became of batches that an earlier process left undecided. See the parent module.

use super::{
    ATTRIBUTE, Spec,
    state::{Batch, Change, StateFile},
};
use crate::{
    BackfillError, Client, ConsumerOptions, From, UploadError,
    producer::{Decided, replay},
};
use futures::future::try_join_all;
use refstream_format::batch::EncodedBatch;
use refstream_types::{Offset, PartitionId, ProducerStamp};
use std::collections::{BTreeMap, HashMap};

/// A batch, and what is known of it.
struct Open {
    batch: Batch,
    encoded: EncodedBatch,
    stamp: ProducerStamp,
    base: Option<Offset>,
}

/// Settles all batches that are left over. Returns the number after the last one that was ever used.
pub(super) async fn settle(client: &Client, spec: &Spec, state: &StateFile) -> Result<u64, BackfillError> {
    let mut open = Vec::new();
    let mut next = 0;
    for batch in state.batches()? {
        next = batch.number + 1;
        // What cannot be read was never sent: a batch is sent once it is committed.
        let encoded = EncodedBatch::parse(batch.bytes.clone()).ok();
        match encoded.and_then(|encoded| Some((encoded.header().producer?, encoded))) {
            Some((stamp, encoded)) => open.push(Open { batch, encoded, stamp, base: None }),
            None => state.change(Change::NotPlaced { number: batch.number }),
        }
    }
    if open.is_empty() {
        return Ok(next);
    }
    look_for(client, spec, &mut open).await?;
    let mut by_partition: BTreeMap<PartitionId, Vec<&Open>> = BTreeMap::new();
    for open in &open {
        match open.base {
            Some(base) => {
                let partition = open.batch.partition;
                state.change(Change::Placed { number: open.batch.number, partition, base });
            }
            None => by_partition.entry(open.batch.partition).or_default().push(open),
        }
    }
    try_join_all(by_partition.into_values().map(|batches| async move {
        for open in batches {
            let number = open.batch.number;
            let partition = open.batch.partition;
            let decided = replay(client, &spec.topic, spec.topic_id, partition, &open.encoded).await?;
            match decided {
                Decided::Placed { partition, base } => state.change(Change::Placed { number, partition, base }),
                Decided::Refused | Decided::InDoubt => state.change(Change::NotPlaced { number }),
            }
        }
        Ok::<_, BackfillError>(())
    }))
    .await?;
    state.durable(Change::Nothing).await?;
    Ok(next)
}

/// Reads the topic where the batches can be.
async fn look_for(client: &Client, spec: &Spec, open: &mut [Open]) -> Result<(), BackfillError> {
    let topic = client.describe_topic(&spec.topic).await.map_err(UploadError::Topic)?;
    let mut from = BTreeMap::new();
    for open in &*open {
        let partition = open.batch.partition;
        let Some(held) = topic.partitions.iter().find(|held| held.partition == partition) else { continue };
        let floor = open.batch.floor.clamp(held.earliest, held.latest);
        from.entry(partition).and_modify(|from: &mut Offset| *from = (*from).min(floor)).or_insert(floor);
    }
    let mut wanted: HashMap<_, Vec<usize>> = HashMap::new();
    for (index, open) in open.iter().enumerate() {
        wanted.entry((open.batch.partition, open.stamp.id, open.stamp.epoch)).or_default().push(index);
    }
    let options = ConsumerOptions { from: From::Offsets(from), follow: false };
    let mut consumer = client.consumer(&spec.topic, options).await?;
    while let Some(delivery) = consumer.next().await? {
        let ours =
            |header: &refstream_types::Header| header.name == ATTRIBUTE && header.value == spec.attribute.as_bytes();
        let Some(stamp) = delivery.producer.filter(|_| delivery.record.headers.iter().any(ours)) else { continue };
        for index in wanted.get(&(delivery.partition, stamp.id, stamp.epoch)).into_iter().flatten() {
            let found = &mut open[*index];
            let first = found.stamp.first.0;
            let records = u64::from(found.encoded.header().records);
            if let Some(at) = stamp.first.0.checked_sub(first).filter(|at| *at < records) {
                found.base = delivery.offset.0.checked_sub(at).map(Offset);
            }
        }
    }
    Ok(())
}
