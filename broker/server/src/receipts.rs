//! The check of receipts: whether what a record refers to is there, before the record is taken.
//!
//! The SDK's own receipts are proof enough: it has stored the payload itself, with credentials of the deployment. Who has no credentials stores by
//! grants, and what a grant was used for the broker does not see. So the references of such clients are looked up: the object must exist, and offset and
//! length fit its size. A request says that its client uploads by grants (`granted`); a client that was given grants here under its token is checked
//! whether it says so or not.
//!
//! One `HEAD` an object: a pack holds thousands of payloads, and sizes of objects, which are immutable, are remembered.

use crate::{auth::Caller, errors};
use futures::{TryStreamExt as _, stream};
use refstream_filer_adapter::BlobStore;
use refstream_format::batch::EncodedBatch;
use refstream_proto::v1::ErrorDetail;
use refstream_types::{Key, Reference, StoreName, Value};
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Objects whose size is remembered.
const OBJECTS_KNOWN: usize = 65_536;
/// Objects of one batch that are looked up at once.
const LOOKS: usize = 16;

/// What is known of payloads, and of who is checked.
#[derive(Debug, Default)]
pub(crate) struct Receipts {
    /// The stores that are asked; empty: nothing is checked.
    stores: BTreeMap<StoreName, Arc<dyn BlobStore>>,
    sizes: Mutex<HashMap<StoreName, HashMap<Key, u64>>>,
    granted: Mutex<HashSet<Caller>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Receipts {
    pub(crate) fn new(stores: BTreeMap<StoreName, Arc<dyn BlobStore>>) -> Self {
        Self { stores, ..Self::default() }
    }

    /// Notes that somebody stores by grants.
    pub(crate) fn note_granted(&self, caller: Option<&Caller>) {
        if let Some(caller) = caller {
            lock(&self.granted).insert(caller.clone());
        }
    }

    /// Whether references of a request are checked.
    pub(crate) fn applies(&self, said: bool, caller: Option<&Caller>) -> bool {
        !self.stores.is_empty() && (said || caller.is_some_and(|caller| lock(&self.granted).contains(caller)))
    }

    /// Checks every reference of a batch.
    ///
    /// # Errors
    /// The first reference whose payload is not there, or that the store could not be asked.
    pub(crate) async fn check(&self, partition: u32, batch: &EncodedBatch) -> Result<(), ErrorDetail> {
        let records = batch.decode().map_err(|error| errors::corrupt_batch(partition, error))?;
        let mut objects: BTreeMap<(&StoreName, &Key), Vec<(usize, &Reference)>> = BTreeMap::new();
        for (number, record) in records.iter().enumerate() {
            if let Value::Reference(reference) = &record.value {
                objects.entry((&reference.store, &reference.key)).or_default().push((number, reference));
            }
        }
        stream::iter(objects.into_iter().map(Ok))
            .try_for_each_concurrent(LOOKS, |((name, key), references)| async move {
                let told = |number: usize, why: ErrorDetail| {
                    let message = format!("record {number} of the batch for partition {partition}: {}", why.message);
                    ErrorDetail { message, ..why }
                };
                let first = references.first().map_or(0, |(number, _)| *number);
                let size = self.size(name, key).await.map_err(|why| told(first, why))?;
                for (number, reference) in references {
                    fits(reference, size).map_err(|why| told(number, why))?;
                }
                Ok(())
            })
            .await
    }

    /// The size of an object.
    async fn size(&self, name: &StoreName, key: &Key) -> Result<u64, ErrorDetail> {
        let Some(store) = self.stores.get(name) else {
            return Err(errors::invalid(format!("it refers to the store {name}, which is not configured")));
        };
        if let Some(size) = lock(&self.sizes).get(name).and_then(|sizes| sizes.get(key)) {
            return Ok(*size);
        }
        let found = store.head(key).await.map_err(|error| errors::store(&error))?;
        let found = found.ok_or_else(|| {
            errors::invalid(format!("its payload {} is not in the store: upload it first", store.uri(key)))
        })?;
        self.remember(name, key, found.size);
        Ok(found.size)
    }

    fn remember(&self, name: &StoreName, key: &Key, size: u64) {
        let mut sizes = lock(&self.sizes);
        if sizes.values().map(HashMap::len).sum::<usize>() >= OBJECTS_KNOWN {
            sizes.clear();
        }
        sizes.entry(name.clone()).or_default().insert(key.clone(), size);
    }
}

/// Whether what a reference names lies in an object of this size; without an offset it is all of it.
fn fits(reference: &Reference, size: u64) -> Result<(), ErrorDetail> {
    let Reference { key, offset, size: length, .. } = reference;
    let fits = match offset {
        None => *length == size,
        Some(offset) => offset.checked_add(*length).is_some_and(|end| end <= size),
    };
    if fits {
        return Ok(());
    }
    let offset = offset.unwrap_or(0);
    Err(errors::invalid(format!("it refers to {length} bytes from {offset} on of {key}, which has {size}")))
}
