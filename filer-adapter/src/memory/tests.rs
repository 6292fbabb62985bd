use super::*;
use crate::{Attributes, BlobStore, TokioRuntime, crc32c};
use futures::FutureExt;

/// Nothing here waits, so no executor is needed.
fn block_on<F: Future>(future: F) -> F::Output {
    future.now_or_never().expect("it waits")
}

fn key(text: &str) -> Key {
    text.parse().unwrap()
}

fn store(faults: Faults) -> MemoryStore {
    MemoryStore::with_faults(Arc::new(TokioRuntime::new()), 7, faults)
}

fn create(store: &MemoryStore, name: &str, bytes: &'static str) -> Result<Created, CreateError> {
    block_on(store.create(&key(name), Bytes::from_static(bytes.as_bytes())))
}

#[test]
fn faults_do_what_they_say() {
    let store = store(Faults::default());
    let applied = [
        (Fault::Lost, true),
        (Fault::Failed, true),
        (Fault::Dropped, false),
        (Fault::Refused, false),
        (Fault::Conflict, false),
        (Fault::NoSpace, false),
    ];
    for (at, (fault, applied)) in applied.into_iter().enumerate() {
        let name = format!("k{at}");
        store.script(Operation::Create, &name, fault);
        let error = create(&store, &name, "x").unwrap_err();
        assert_eq!(store.peek(&key(&name)).is_some(), applied, "{fault:?}");
        let certain = matches!(error, CreateError::DidNotHappen(_));
        assert_eq!(certain, matches!(fault, Fault::Refused | Fault::NoSpace), "{fault:?}");
    }
    create(&store, "two", "first").unwrap();
    store.script(Operation::Create, "two", Fault::ConditionIgnored);
    assert_eq!(create(&store, "two", "second").unwrap(), Created::New);
    store.script(Operation::Create, "rot", Fault::BitRot);
    create(&store, "rot", "bytes").unwrap();
    assert_ne!(store.peek(&key("rot")).unwrap(), "bytes");
    assert_eq!(store.scripts_left(), 0);
}

#[test]
fn one_client_is_cut_off_alone() {
    let store = store(Faults::default());
    let other = store.client("other", Arc::new(TokioRuntime::new()), 1, Faults::default());
    other.set_cut_off(true);
    create(&store, "a", "x").unwrap();
    assert!(block_on(other.read(&key("a"))).is_err());
    other.set_cut_off(false);
    assert_eq!(block_on(other.read(&key("a"))).unwrap().unwrap(), "x");
}

#[test]
fn a_listing_shows_the_past() {
    let store = store(Faults::default());
    create(&store, "p/a", "x").unwrap();
    block_on(store.remove(&key("p/a"))).unwrap();
    create(&store, "p/b", "x").unwrap();
    store.script(Operation::List, "p/", Fault::StaleList(Duration::from_secs(3_600)));
    assert_eq!(block_on(store.list("p/", None, 10)).unwrap().len(), 0);
    let fresh = block_on(store.list("p/", None, 10)).unwrap();
    assert_eq!(fresh, [Listed { etag: fresh[0].etag.clone(), ..Listed::new(key("p/b"), 1) }]);
}

#[test]
fn the_same_seed_draws_the_same_faults() {
    let run = |seed| {
        let faults =
            Faults { latency_to: Duration::ZERO, latency_from: Duration::ZERO, ..Faults::within_contract(0.1) };
        let store = MemoryStore::with_faults(Arc::new(TokioRuntime::new()), seed, faults);
        (0..200).map(|n| format!("{:?}", create(&store, &format!("k{n}"), "x"))).collect::<Vec<_>>()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn a_full_store_refuses() {
    let store = store(Faults::default());
    store.set_capacity(Some(4));
    create(&store, "a", "123").unwrap();
    let error = create(&store, "b", "12").unwrap_err();
    assert_eq!(error.error().kind, StoreErrorKind::NoSpace);
    block_on(store.remove(&key("a"))).unwrap();
    create(&store, "b", "12").unwrap();
}

#[test]
fn a_wrong_checksum_is_refused() {
    let store = store(Faults::default());
    let body = vec![Bytes::from_static(b"abc"), Bytes::from_static(b"def")];
    let mut checksum = crc32c(&body);
    block_on(store.put(&key("good"), body.clone(), checksum, &Attributes::default())).unwrap();
    checksum.0 ^= 1;
    let error = block_on(store.put(&key("bad"), body, checksum, &Attributes::default())).unwrap_err();
    assert_eq!(error.error().kind, StoreErrorKind::Corrupt);
    assert_eq!(store.keys(), [key("good")]);
}
