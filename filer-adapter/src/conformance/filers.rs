//! [`Filer`](crate::Filer): the contract that all coordination rests on.

use super::{Bench, odd_names, refusable_names};
use crate::{CreateError, Created, Filer, Listed, StoreErrorKind};
use bytes::Bytes;
use refstream_types::{ByteRange, Key};
use std::sync::Arc;

const WRITERS: usize = 32;
const ROUNDS: usize = 4;
/// Objects of the test that doors agree.
const DOORS_AGREE: usize = 40;

pub(super) async fn run(bench: &Bench) {
    of_many_creates_one_wins(bench, std::slice::from_ref(bench.filer())).await;
    what_exists_stays(bench).await;
    reads_see_writes(bench).await;
    ranges_end_with_the_object(bench).await;
    listings_are_ordered_and_complete(bench).await;
    removed_objects_are_gone(bench).await;
    odd_keys_are_different_objects(bench).await;
    unusual_names_work_or_are_refused(bench).await;
    bench.clean().await;
}

/// One namespace through several doors.
pub(super) async fn run_together(bench: &Bench, doors: &[Arc<dyn Filer>]) {
    of_many_creates_one_wins(bench, doors).await;
    doors_agree(bench, doors).await;
    bench.clean().await;
}

/// What is done through one door is so at once behind all others.
async fn doors_agree(bench: &Bench, doors: &[Arc<dyn Filer>]) {
    for number in 0..DOORS_AGREE {
        let key = bench.key(&format!("doors/{number:03}"));
        let here = &doors[number % doors.len()];
        let others = || (1..doors.len()).map(|further| &doors[(number + further) % doors.len()]);
        let bytes = Bytes::from(vec![number as u8; number * 1_000]);
        // A read that misses must not be remembered.
        for other in others() {
            assert_eq!(other.read(&key).await.unwrap(), None);
        }
        assert_eq!(here.create(&key, bytes.clone()).await.unwrap(), Created::New);
        for other in others() {
            let read = other.read(&key).await.unwrap();
            assert_eq!(read.as_ref(), Some(&bytes), "{key} is not read through another door");
            let again = other.create(&key, Bytes::from_static(b"another")).await.unwrap();
            assert_eq!(again, Created::Exists, "{key} exists for one door and not for another");
            let listed = other.list(&bench.prefix("doors/"), None, 1_000).await.unwrap();
            assert!(listed.iter().any(|listed| listed.key == key), "{key} is not listed through another door");
        }
        assert_eq!(here.read(&key).await.unwrap(), Some(bytes), "a create through another door changed it");
        // Whoever removes is not always who created.
        let remover = others().next().unwrap_or(here);
        remover.remove(&key).await.unwrap();
        for door in doors {
            assert_eq!(door.read(&key).await.unwrap(), None, "{key} was removed through another door");
        }
    }
}

async fn of_many_creates_one_wins(bench: &Bench, doors: &[Arc<dyn Filer>]) {
    for round in 0..ROUNDS {
        let key = bench.key(&format!("race/{round}"));
        let bytes = |writer| Bytes::from(format!("round {round}, writer {writer}"));
        let start = Arc::new(tokio::sync::Barrier::new(WRITERS));
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (filer, key, bytes) = (Arc::clone(&doors[writer % doors.len()]), key.clone(), bytes(writer));
                let start = Arc::clone(&start);
                tokio::spawn(async move {
                    start.wait().await;
                    filer.create(&key, bytes).await
                })
            })
            .collect();
        let (mut winners, mut open) = (Vec::new(), Vec::new());
        for (writer, answer) in writers.into_iter().enumerate() {
            match answer.await.unwrap() {
                Ok(Created::New) => winners.push(writer),
                Ok(Created::Exists) => {}
                Err(CreateError::MayHaveHappened(_)) => open.push(writer),
                Err(CreateError::DidNotHappen(error)) => panic!("a create failed: {error}"),
            }
        }
        assert!(winners.len() <= 1, "creates of one key by {winners:?} all succeeded");
        let may_be = if winners.is_empty() { open } else { winners };
        for door in doors {
            let found = door.read(&key).await.unwrap().expect("one of the creates must have stored the object");
            assert!(
                may_be.iter().any(|writer| bytes(*writer) == found),
                "{found:?} is not the winner's, of {may_be:?}"
            );
        }
    }
}

async fn what_exists_stays(bench: &Bench) {
    let key = bench.key("exists");
    assert_eq!(bench.filer().create(&key, Bytes::from_static(b"first")).await.unwrap(), Created::New);
    for other in [Bytes::from_static(b"second"), Bytes::from_static(b"first"), Bytes::new()] {
        assert_eq!(bench.filer().create(&key, other).await.unwrap(), Created::Exists);
        assert_eq!(bench.filer().read(&key).await.unwrap().unwrap(), "first", "a create changed what existed");
    }
}

async fn reads_see_writes(bench: &Bench) {
    assert_eq!(bench.filer().read(&bench.key("missing")).await.unwrap(), None);
    for number in 0..50 {
        let key = bench.key(&format!("seen/{number}"));
        let bytes = Bytes::from(vec![number as u8; number * 1_000]);
        assert_eq!(bench.filer().create(&key, bytes.clone()).await.unwrap(), Created::New);
        assert_eq!(bench.filer().read(&key).await.unwrap(), Some(bytes), "what was created must be read at once");
    }
}

async fn ranges_end_with_the_object(bench: &Bench) {
    let key = bench.key("ranges");
    bench.filer().create(&key, Bytes::from_static(b"0123456789")).await.unwrap();
    let cases: [(u64, u64, &str); 7] =
        [(0, 10, "0123456789"), (0, 1, "0"), (3, 4, "3456"), (8, 100, "89"), (10, 1, ""), (99, 5, ""), (2, 0, "")];
    for (offset, length, expected) in cases {
        let read = bench.filer().read_range(&key, ByteRange { offset, length }).await.unwrap();
        assert_eq!(read.as_deref(), Some(expected.as_bytes()), "{length} bytes at {offset}");
        let missing = bench.filer().read_range(&bench.key("none"), ByteRange { offset, length }).await.unwrap();
        assert_eq!(missing, None);
    }
    let empty = bench.key("empty");
    bench.filer().create(&empty, Bytes::new()).await.unwrap();
    assert_eq!(bench.filer().read(&empty).await.unwrap(), Some(Bytes::new()));
    let read = bench.filer().read_range(&empty, ByteRange { offset: 0, length: 1 }).await.unwrap();
    assert_eq!(read, Some(Bytes::new()), "an empty object exists");
}

async fn listings_are_ordered_and_complete(bench: &Bench) {
    // By bytes: '-' < '.' < '/' < '0' < 'A' < 'a' < 'ä'.
    let names = ["l/a", "l/a-", "l/a.b", "l/a/b", "l/a/c/d", "l/a0", "l/B", "l/b", "l/ä", "l2", "m"];
    for name in names {
        bench.filer().create(&bench.key(name), Bytes::from(name)).await.unwrap();
    }
    let mut expected: Vec<Listed> = names.iter().map(|name| Listed::new(bench.key(name), name.len() as u64)).collect();
    expected.sort_by(|a, b| a.key.cmp(&b.key));
    for (prefix, count) in [("l/", 9), ("l", 10), ("l/a", 6), ("l/a/", 2), ("m", 1), ("none", 0)] {
        let prefix = bench.prefix(prefix);
        let all: Vec<_> = expected.iter().filter(|listed| listed.key.as_str().starts_with(&prefix)).cloned().collect();
        assert_eq!(all.len(), count);
        for limit in [1, 2, 3, 1_000] {
            let (mut paged, mut after) = (Vec::new(), None::<Key>);
            loop {
                let page = bench.filer().list(&prefix, after.as_ref(), limit).await.unwrap();
                assert!(page.len() <= limit);
                let Some(last) = page.last() else { break };
                after = Some(last.key.clone());
                paged.extend(page.into_iter().map(|listed| Listed::new(listed.key, listed.size)));
            }
            assert_eq!(paged, all, "prefix {prefix}, {limit} at a time");
        }
    }
    // `after` need not exist, and may lie before the prefix.
    let page = bench.filer().list(&bench.prefix("l/a"), Some(&bench.key("l/a.a")), 2).await.unwrap();
    let keys: Vec<_> = page.into_iter().map(|listed| listed.key).collect();
    assert_eq!(keys, [bench.key("l/a.b"), bench.key("l/a/b")]);
    let page = bench.filer().list(&bench.prefix("l/b"), Some(&bench.key("0")), 2).await.unwrap();
    assert_eq!(page.len(), 1);
}

async fn removed_objects_are_gone(bench: &Bench) {
    let key = bench.key("removed/one");
    bench.filer().remove(&key).await.expect("removing what is not there succeeds");
    bench.filer().create(&key, Bytes::from_static(b"x")).await.unwrap();
    bench.filer().remove(&key).await.unwrap();
    assert_eq!(bench.filer().read(&key).await.unwrap(), None);
    assert_eq!(bench.filer().list(&bench.prefix("removed/"), None, 10).await.unwrap(), []);
    assert_eq!(bench.filer().create(&key, Bytes::from_static(b"y")).await.unwrap(), Created::New);
    assert_eq!(bench.filer().read(&key).await.unwrap().unwrap(), "y");
}

async fn odd_keys_are_different_objects(bench: &Bench) {
    let names: Vec<_> = odd_names().into_iter().map(|name| format!("odd/{name}")).collect();
    for name in &names {
        let created = bench.filer().create(&bench.key(name), Bytes::from(name.clone())).await;
        assert_eq!(created.unwrap(), Created::New, "{name}");
    }
    for name in &names {
        let read = bench.filer().read(&bench.key(name)).await.unwrap();
        assert_eq!(read, Some(Bytes::from(name.clone())), "{name}");
    }
    let mut expected: Vec<_> = names.iter().map(|name| bench.key(name)).collect();
    expected.sort();
    let listed = bench.filer().list(&bench.prefix("odd/"), None, 1_000).await.unwrap();
    assert_eq!(listed.into_iter().map(|listed| listed.key).collect::<Vec<_>>(), expected);
    for name in &names {
        bench.filer().remove(&bench.key(name)).await.unwrap();
    }
    assert_eq!(bench.filer().list(&bench.prefix("odd/"), None, 10).await.unwrap(), []);
}

async fn unusual_names_work_or_are_refused(bench: &Bench) {
    for name in refusable_names() {
        let key = bench.key(&format!("unusual/{name}"));
        match bench.filer().create(&key, Bytes::from_static(b"unusual")).await {
            Ok(created) => {
                assert_eq!(created, Created::New);
                assert_eq!(bench.filer().read(&key).await.unwrap().unwrap(), "unusual");
                assert_eq!(bench.filer().list(&bench.prefix("unusual/"), None, 10).await.unwrap()[0].key, key);
                bench.filer().remove(&key).await.unwrap();
            }
            Err(CreateError::DidNotHappen(error)) => assert_eq!(error.kind, StoreErrorKind::Invalid, "{error}"),
            Err(CreateError::MayHaveHappened(error)) => panic!("{name} must be refused for certain: {error}"),
        }
        assert_eq!(bench.filer().list(&bench.prefix("unusual/"), None, 10).await.unwrap(), []);
    }
}
