//! The start-up probe: does this store keep the contract that all coordination rests on?
//!
//! A few rounds of four parallel creates of one key each must give exactly one success, a later create must fail, and the winner's
//! bytes must be read back. An answer that leaves open whether a create happened is no breach: then the object decides.

use crate::{CreateError, Created, Filer, Runtime, StoreError};
use bytes::Bytes;
use futures::future::join_all;
use refstream_types::{Key, Layout};
use thiserror::Error;

/// Rounds of racing creates.
const ROUNDS: u32 = 3;
/// Creates that race in each round. More would take seconds on stores whose losers wait for each other.
const RACERS: usize = 4;

/// Why a store is refused.
#[derive(Clone, Debug, Error)]
pub enum ProbeError {
    /// The store breaks the contract.
    #[error(
        "this store cannot coordinate brokers: {what} (key {key}); use a store whose If-None-Match is atomic, see docs/STORES.md"
    )]
    Broken {
        /// What it did.
        what: String,
        /// Where.
        key: Key,
    },
    /// The store did not answer.
    #[error("the store could not be probed: {0}")]
    Store(#[from] StoreError),
}

/// Probes the store with objects of random names below the layout's root, and removes them.
///
/// # Errors
/// When the store breaks the contract or does not answer.
pub async fn probe(filer: &dyn Filer, runtime: &dyn Runtime, layout: &Layout) -> Result<(), ProbeError> {
    let token = runtime.token();
    for round in 0..ROUNDS {
        let key = layout.probe(token, round);
        let outcome = race(filer, &key, token.to_string()).await;
        // What stays behind when this fails disturbs nobody: the name is never used again.
        let removed = filer.remove(&key).await;
        outcome?;
        removed?;
        if filer.read(&key).await?.is_some() {
            return Err(broken(&key, "an object that was removed is still read"));
        }
    }
    Ok(())
}

fn broken(key: &Key, what: impl Into<String>) -> ProbeError {
    ProbeError::Broken { what: what.into(), key: key.clone() }
}

async fn race(filer: &dyn Filer, key: &Key, token: String) -> Result<(), ProbeError> {
    let bytes = |racer: usize| Bytes::from(format!("{token} racer {racer}"));
    let answers = join_all((0..RACERS).map(|racer| filer.create(key, bytes(racer)))).await;
    let winners: Vec<_> = (0..RACERS).filter(|racer| matches!(answers[*racer], Ok(Created::New))).collect();
    let open: Vec<_> =
        (0..RACERS).filter(|racer| matches!(answers[*racer], Err(CreateError::MayHaveHappened(_)))).collect();
    if winners.len() > 1 {
        let what = format!("{} of {RACERS} parallel creates of one key succeeded", winners.len());
        return Err(broken(key, what));
    }
    let Some(found) = filer.read(key).await? else {
        if !winners.is_empty() {
            return Err(broken(key, "an object that was just created is not read"));
        }
        return Err(match answers.into_iter().find_map(Result::err) {
            Some(error) => ProbeError::Store(error.error().clone()),
            None => broken(key, "creates of a free key were all answered as if it existed"),
        });
    };
    let may_be = if winners.is_empty() { &open } else { &winners };
    if !may_be.iter().any(|racer| bytes(*racer) == found) {
        return Err(broken(key, "the bytes that are read are not those of the create that succeeded"));
    }
    match filer.create(key, Bytes::from(format!("{token} too late"))).await {
        Ok(Created::New) => return Err(broken(key, "a create of an existing key succeeded: the condition is ignored")),
        Ok(Created::Exists) => {}
        Err(error) => return Err(ProbeError::Store(error.error().clone())),
    }
    match filer.read(key).await? {
        Some(again) if again == found => Ok(()),
        Some(_) => Err(broken(key, "a create of an existing key changed its bytes")),
        None => Err(broken(key, "an object vanished")),
    }
}

#[cfg(test)]
#[cfg(feature = "memory")]
mod tests {
    use super::*;
    use crate::{
        TokioRuntime,
        memory::{Fault, Faults, MemoryStore, Operation},
    };
    use std::sync::Arc;

    async fn probed(faults: Faults, scripts: &[(Operation, Fault)]) -> Result<(), ProbeError> {
        let runtime = Arc::new(TokioRuntime::new());
        let store = MemoryStore::with_faults(Arc::clone(&runtime) as Arc<dyn Runtime>, 1, faults);
        for (operation, fault) in scripts {
            store.script(*operation, "", *fault);
        }
        let result = probe(&store, &*runtime, &Layout::new("r").unwrap()).await;
        assert!(result.is_err() || store.keys().is_empty(), "it cleans up");
        result
    }

    #[tokio::test]
    async fn a_store_that_keeps_the_contract_passes() {
        probed(Faults::default(), &[]).await.unwrap();
        for fault in [Fault::Lost, Fault::Failed, Fault::Dropped, Fault::Refused, Fault::Conflict] {
            probed(Faults::default(), &[(Operation::Create, fault)]).await.unwrap();
        }
    }

    #[tokio::test]
    async fn an_ignored_condition_is_refused() {
        let always = Faults { condition_ignored: 1.0, ..Faults::default() };
        let error = probed(always, &[]).await.unwrap_err();
        assert!(error.to_string().contains("4 of 4 parallel creates"), "{error}");
        let late: Vec<_> = [Fault::Lost, Fault::Conflict, Fault::Conflict, Fault::Conflict, Fault::ConditionIgnored]
            .map(|fault| (Operation::Create, fault))
            .into();
        let error = probed(Faults::default(), &late).await.unwrap_err();
        assert!(error.to_string().contains("the condition is ignored"), "{error}");
    }

    #[tokio::test]
    async fn an_outage_is_no_breach() {
        let error = probed(Faults { refused: 1.0, ..Faults::default() }, &[]).await.unwrap_err();
        assert!(matches!(error, ProbeError::Store(_)), "{error}");
    }
}
