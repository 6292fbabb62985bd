use super::*;
use crate::{
    ClosedReader, Row,
    testing::{Deployment, Fault, MapStore, TestRuntime, records, sorted},
};
use bytes::Bytes;
use futures::TryStreamExt;
use parquet::arrow::arrow_reader::{ArrowReaderOptions, ParquetRecordBatchReaderBuilder};
use refstream_filer_adapter::Filer;
use refstream_types::{ContentHash, Layout, Offset, Record, Value};

const NOON: &str = "2026-11-29T12:00:00Z";
const NIGHT: &str = "2026-11-29T23:59:59.999999Z";
const MORNING: &str = "2026-11-30T00:00:00Z";

fn runtime(seed: u64) -> Arc<TestRuntime> {
    TestRuntime::new("2026-11-29T13:00:00Z", seed)
}

/// Three segments: two on one day, one that crosses midnight.
async fn three() -> (Deployment, Vec<SealedSegment>) {
    let mut deployment = Deployment::new();
    let segments = vec![
        deployment
            .segment((0, 4), &[(0, NOON, records(0, 30)), (3, NOON, records(30, 10)), (0, NOON, records(40, 7))])
            .await,
        deployment.segment((0, 2), &[(1, NOON, records(100, 20)), (0, NOON, records(120, 5))]).await,
        deployment
            .segment(
                (0, 4),
                &[
                    (0, NIGHT, records(200, 9)),
                    (2, NIGHT, records(210, 3)),
                    (0, MORNING, records(220, 11)),
                    (1, MORNING, records(240, 4)),
                ],
            )
            .await,
    ];
    (deployment, segments)
}

async fn manifest_rows(compactor: &Compactor, topic: &TopicState, store: &MapStore) -> Vec<Row> {
    let blobs: Arc<dyn BlobStore> = Arc::new(store.clone());
    let reader = ClosedReader::new(Arc::clone(&blobs), [("main".parse().unwrap(), blobs)].into());
    let Some(manifest) = compactor.manifest(topic).await.unwrap() else { return Vec::new() };
    let files: Vec<DataFile> = compactor.metadata.manifest_files(&manifest).try_collect().await.unwrap();
    let mut rows = Vec::new();
    for file in files {
        let found: Vec<Row> = reader.rows(&file, None).try_collect().await.unwrap();
        assert_eq!(found.len() as u64, file.rows);
        assert!(found.iter().all(|row| file.contains(row.partition, row.offset)));
        assert!(found.iter().all(|row| row.append_time.day() == file.append_times.0.day()));
        rows.extend(found);
    }
    sorted(rows)
}

/// What a plain glob over `data/` finds.
fn glob_rows(compactor: &Compactor, store: &MapStore) -> Vec<Row> {
    let mut rows = Vec::new();
    for key in store.keys("root/topics/images-7/data/") {
        let day = key.as_str().split('/').find_map(|part| part.strip_prefix("ingest_date=")).unwrap().to_owned();
        assert!(key.as_str().ends_with(".parquet"));
        let options = ArrowReaderOptions::new().with_schema(crate::schema());
        let bytes = store.bytes(&key).unwrap();
        let batches = ParquetRecordBatchReaderBuilder::try_new_with_options(bytes, options).unwrap().build().unwrap();
        for batch in batches {
            let found = crate::decode::rows(&batch.unwrap(), &compactor.stores).unwrap();
            assert!(found.iter().all(|row| row.append_time.date().to_string() == day));
            assert!(found.is_sorted_by_key(|row| (row.partition, row.offset)));
            rows.extend(found);
        }
    }
    sorted(rows)
}

fn assert_no_row_twice(rows: &[Row]) {
    assert!(rows.windows(2).all(|pair| (pair[0].partition, pair[0].offset) < (pair[1].partition, pair[1].offset)));
}

#[tokio::test]
async fn segments_become_fresh_files_then_published_ones() {
    let (deployment, segments) = three().await;
    let compactor = deployment.compactor(runtime(1));
    let done = compactor.compact(&deployment.topic, &segments, false).await.unwrap();
    assert_eq!(done.segments, [1, 2, 3].map(SegmentNumber));
    assert_eq!(done.rows, deployment.rows.len() as u64);
    assert_eq!(done.files.len(), 2, "one file a day: {:?}", done.files);
    assert!(done.files.iter().all(|uri| uri.starts_with("s3://bucket/root/topics/images-7/_fresh/")));
    assert!(store_is_quiet(&deployment.store), "nothing is due yet");
    assert_eq!(manifest_rows(&compactor, &deployment.topic, &deployment.store).await, deployment.sorted_rows());

    let done = compactor.compact(&deployment.topic, &[], true).await.unwrap();
    assert_eq!(
        done.files,
        [
            "s3://bucket/root/topics/images-7/data/ingest_date=2026-11-29/s000000000001-s000000000003-p00000-00004.parquet",
            "s3://bucket/root/topics/images-7/data/ingest_date=2026-11-30/s000000000003-s000000000003-p00000-00004.parquet",
        ]
    );
    assert_eq!(glob_rows(&compactor, &deployment.store), deployment.sorted_rows());
    assert_eq!(manifest_rows(&compactor, &deployment.topic, &deployment.store).await, deployment.sorted_rows());

    let again = compactor.compact(&deployment.topic, &segments, true).await.unwrap();
    let expected = Compaction { segments: [1, 2, 3].map(SegmentNumber).to_vec(), ..Compaction::default() };
    assert_eq!(again, expected, "all of it was done already");
}

fn store_is_quiet(store: &MapStore) -> bool {
    store.keys("root/topics/images-7/data/").is_empty()
}

#[tokio::test]
async fn an_empty_segment_is_done_without_a_file() {
    let mut deployment = Deployment::new();
    let empty = deployment.segment((0, 4), &[]).await;
    let compactor = deployment.compactor(runtime(1));
    let done = compactor.compact(&deployment.topic, &[empty], true).await.unwrap();
    assert_eq!(done, Compaction { segments: vec![SegmentNumber(1)], ..Compaction::default() });
    assert!(compactor.manifest(&deployment.topic).await.unwrap().is_none());
}

#[tokio::test]
async fn a_day_split_segment_spans_exactly_its_parts() {
    let (deployment, segments) = three().await;
    let compactor = deployment.compactor(runtime(1));
    compactor.compact(&deployment.topic, &segments, false).await.unwrap();
    let manifest = compactor.manifest(&deployment.topic).await.unwrap().unwrap();
    let third: Vec<_> =
        manifest.files.iter().flat_map(|f| &f.segments).filter(|span| span.number == SegmentNumber(3)).collect();
    assert_eq!(third.len(), 2);
    assert_eq!(third[0].start_offsets, [42, 20, 0, 10].map(Offset));
    assert_eq!(third[0].end_offsets, [51, 20, 3, 10].map(Offset));
    assert_eq!(third[1].start_offsets, third[0].end_offsets);
    assert_eq!(third[1].end_offsets, segments[2].end_offsets);
}

#[tokio::test]
async fn a_day_is_published_at_its_target_size() {
    let (mut deployment, segments) = three().await;
    deployment.topic.config.file_bytes = 1 << 10;
    let compactor = deployment.compactor(runtime(1));
    let done = compactor.compact(&deployment.topic, &segments, false).await.unwrap();
    assert_eq!(done.files.iter().filter(|uri| uri.contains("/data/")).count(), 2);
    assert_eq!(glob_rows(&compactor, &deployment.store), deployment.sorted_rows());
}

#[tokio::test]
async fn a_quiet_topic_gets_its_file_after_the_lag_and_at_the_days_end() {
    let (deployment, segments) = three().await;
    let clock = runtime(1);
    let compactor = deployment.compactor(Arc::clone(&clock));
    compactor.compact(&deployment.topic, &segments[..1], false).await.unwrap();
    clock.advance(deployment.topic.config.publish_lag);
    // Two segments are still to come, so the day is not over; the rows have waited for long enough all the same.
    compactor.compact(&deployment.topic, &[], false).await.unwrap();
    assert_eq!(glob_rows(&compactor, &deployment.store).len(), 47);

    // 19:00 it is now. Past midnight by the age at which segments are sealed.
    clock.advance(Duration::from_secs(5 * 3600) + deployment.topic.config.seal_age);
    compactor.compact(&deployment.topic, &[], false).await.unwrap();
    assert_eq!(glob_rows(&compactor, &deployment.store).len(), 47);
    compactor.compact(&deployment.topic, &segments, false).await.unwrap();
    let published = glob_rows(&compactor, &deployment.store);
    assert_eq!(published.len(), 47 + 25 + 12, "the day that is over, and not the next one");
    assert_eq!(manifest_rows(&compactor, &deployment.topic, &deployment.store).await, deployment.sorted_rows());
}

/// After each store operation of a whole compaction, with that operation done or not: what is there is right, and the next run,
/// which remembers nothing, finishes it.
#[tokio::test]
async fn a_crash_at_any_point_loses_and_doubles_nothing() {
    let (mut deployment, segments) = three().await;
    deployment.topic.config.file_bytes = 6 << 10;
    let whole = deployment.store.fork();
    let compactor = deployment.compactor_on(&whole, runtime(1));
    compactor.compact(&deployment.topic, &segments[..1], false).await.unwrap();
    whole.revive();
    compactor.compact(&deployment.topic, &segments, true).await.unwrap();
    let (operations, writes) = whole.revive();
    assert!(operations > 30 && writes.len() > 8, "{operations} {writes:?}");

    for fault in [Fault::Before, Fault::After] {
        // A read whose answer is lost leaves what a read that did not happen leaves.
        for at in (1..=operations).filter(|at| fault == Fault::Before || writes.contains(at)) {
            let store = deployment.store.fork();
            let first = deployment.compactor_on(&store, runtime(at));
            first.compact(&deployment.topic, &segments[..1], false).await.unwrap();
            store.crash_at(at, fault);
            let crashed = first.compact(&deployment.topic, &segments, true).await;
            store.revive();

            let next = deployment.compactor_on(&store, runtime(1_000 + at));
            let rows = manifest_rows(&next, &deployment.topic, &store).await;
            assert_no_row_twice(&rows);
            assert_no_row_twice(&glob_rows(&next, &store));
            if crashed.is_ok() {
                assert_eq!(rows, deployment.sorted_rows(), "{fault:?} at {at}");
            }

            let done = next.compact(&deployment.topic, &segments, true).await.unwrap();
            assert_eq!(done.segments, [1, 2, 3].map(SegmentNumber), "{fault:?} at {at}");
            let rows = manifest_rows(&next, &deployment.topic, &store).await;
            assert_eq!(rows, deployment.sorted_rows(), "{fault:?} at {at}");
            assert_eq!(glob_rows(&next, &store), deployment.sorted_rows(), "{fault:?} at {at}");
        }
    }
}

#[tokio::test]
async fn two_compactors_at_once_write_no_row_twice() {
    let (mut deployment, segments) = three().await;
    deployment.topic.config.file_bytes = 6 << 10;
    for seed in 0..16 {
        let store = deployment.store.fork();
        store.seed(seed);
        let (one, two) =
            (deployment.compactor_on(&store, runtime(seed)), deployment.compactor_on(&store, runtime(900 + seed)));
        let (first, second) = tokio::join!(
            one.compact(&deployment.topic, &segments, seed % 2 == 0),
            two.compact(&deployment.topic, &segments[(seed % 3) as usize..], true),
        );
        first.unwrap();
        second.unwrap();
        let rows = manifest_rows(&one, &deployment.topic, &store).await;
        assert_eq!(rows, deployment.sorted_rows(), "seed {seed}");
        one.compact(&deployment.topic, &segments, true).await.unwrap();
        assert_eq!(glob_rows(&one, &store), deployment.sorted_rows(), "seed {seed}");
        // What the loser wrote is not left behind.
        let manifest = one.manifest(&deployment.topic).await.unwrap().unwrap();
        let named: Vec<&Key> = manifest.files.iter().map(|file| &file.key).chain(&manifest.replaced).collect();
        let left: Vec<Key> = store.keys("root/topics/images-7/_fresh/");
        assert!(left.iter().all(|key| named.contains(&key)), "seed {seed}: {left:?} of {named:?}");
    }
}

#[tokio::test]
async fn a_planned_file_with_other_rows_is_not_accepted() {
    let (deployment, segments) = three().await;
    let compactor = deployment.compactor(runtime(1));
    compactor.compact(&deployment.topic, &segments, true).await.unwrap();
    let published = deployment.store.keys("root/topics/images-7/data/");
    let other = deployment.store.bytes(&published[1]).unwrap();

    let store = deployment.store.fork();
    for key in store.keys("root/topics/images-7/") {
        store.remove(&key).await.unwrap();
    }
    store.overwrite(&published[0], other);
    let compactor = deployment.compactor_on(&store, runtime(2));
    let error = compactor.compact(&deployment.topic, &segments, true).await.unwrap_err();
    assert!(!error.is_retryable());
    let text = error.to_string();
    assert!(text.contains(published[0].as_str()) && text.contains("publish plan"), "{text}");
}

#[tokio::test]
async fn replaced_files_and_old_manifests_go_after_the_grace() {
    let (mut deployment, segments) = three().await;
    let clock = runtime(1);
    let mut compactor = deployment.compactor(Arc::clone(&clock));
    compactor.limits.versions = 2;
    compactor.compact(&deployment.topic, &segments, true).await.unwrap();
    let fresh = deployment.store.keys("root/topics/images-7/_fresh/");
    assert_eq!(fresh.len(), 2, "readers of the version before still use them");

    clock.advance(GRACE);
    compactor.compact(&deployment.topic, &[], true).await.unwrap();
    assert!(deployment.store.keys("root/topics/images-7/_fresh/").is_empty());
    let listed = compactor.manifest(&deployment.topic).await.unwrap().unwrap().replaced;
    assert_eq!(listed, fresh, "a version that says so is not worth a commit of its own");

    let more = deployment.segment((0, 4), &[(0, MORNING, records(300, 2))]).await;
    compactor.compact(&deployment.topic, &[more], false).await.unwrap();
    let manifest = compactor.manifest(&deployment.topic).await.unwrap().unwrap();
    assert_eq!(manifest.replaced, []);

    let versions = |store: &MapStore| {
        let keys = store.keys("root/topics/images-7/manifest/0");
        keys.iter().filter_map(Layout::number_of).collect::<Vec<_>>()
    };
    clock.advance(GRACE);
    compactor.compact(&deployment.topic, &[], false).await.unwrap();
    let kept = versions(&deployment.store);
    assert!(kept.len() <= 4 && kept.last() == Some(&manifest.version.0), "{kept:?}");
    let fresh_start = deployment.compactor(runtime(5));
    let rows = manifest_rows(&fresh_start, &deployment.topic, &deployment.store).await;
    assert_eq!(rows, deployment.sorted_rows());
}

#[tokio::test]
async fn published_files_move_into_pages() {
    let mut deployment = Deployment::new();
    let mut compactor = deployment.compactor(runtime(1));
    compactor.limits = Limits { listed: 3, page: 2, ..Limits::default() };
    let mut segments = Vec::new();
    for n in 0..9 {
        segments.push(deployment.segment((0, 4), &[(n % 4, NOON, records(u64::from(n) * 10, 4))]).await);
        // A page that a lost race left under the name that is due: it must not be mistaken for ours.
        if n == 4 {
            let next = compactor.manifest(&deployment.topic).await.unwrap().unwrap().version.0 + 3;
            let folder = TopicFolder::new(&deployment.topic.name, deployment.topic.id);
            let page = deployment.layout.manifest_page(&folder, Version(next));
            deployment.store.overwrite(&page, Bytes::from(Manifest::encode_page(&[])));
        }
        compactor.compact(&deployment.topic, &segments[n as usize..], true).await.unwrap();
    }
    let manifest = compactor.manifest(&deployment.topic).await.unwrap().unwrap();
    assert!(manifest.files.len() <= 4, "{}", manifest.files.len());
    assert_eq!(manifest.pages.iter().map(|(_, count)| count).sum::<u32>() as usize + manifest.files.len(), 9);
    assert_eq!(manifest_rows(&compactor, &deployment.topic, &deployment.store).await, deployment.sorted_rows());

    // Segments that only a page names are done.
    let fresh_start = deployment.compactor(runtime(2));
    let done = fresh_start.compact(&deployment.topic, &segments, true).await.unwrap();
    assert_eq!((done.segments.len(), done.files.len()), (9, 0));
}

#[tokio::test]
async fn a_large_file_is_uploaded_in_parts() {
    let mut deployment = Deployment::new();
    let value = |n: u64| {
        let mut bytes = vec![0; 900_000];
        blake3::Hasher::new().update(&n.to_le_bytes()).finalize_xof().fill(&mut bytes);
        let content_hash = ContentHash(*blake3::hash(&bytes).as_bytes());
        Record::new(Value::Inline { bytes: bytes.into(), content_hash })
    };
    let batches: Vec<(u32, &str, Vec<Record>)> = (0..24).map(|n| ((n % 2) as u32, NOON, vec![value(n)])).collect();
    let segment = deployment.segment((0, 2), &batches).await;
    let compactor = deployment.compactor(runtime(1));
    let done = compactor.compact(&deployment.topic, &[segment], true).await.unwrap();
    assert!(done.bytes > 2 * 20_000_000, "{}", done.bytes);
    assert_eq!(manifest_rows(&compactor, &deployment.topic, &deployment.store).await, deployment.sorted_rows());
    assert_eq!(glob_rows(&compactor, &deployment.store), deployment.sorted_rows());
}

#[tokio::test]
async fn a_damaged_journal_is_named_and_nothing_is_committed() {
    let (deployment, segments) = three().await;
    let key = deployment.store.keys("root/journals/")[0].clone();
    let mut bytes = deployment.store.bytes(&key).unwrap().to_vec();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    deployment.store.overwrite(&key, bytes.into());
    let compactor = deployment.compactor(runtime(1));
    let error = compactor.compact(&deployment.topic, &segments, true).await.unwrap_err();
    assert!(error.to_string().contains(key.as_str()), "{error}");
    assert!(compactor.manifest(&deployment.topic).await.unwrap().is_none());
}

/// The three stages hand over often, each object is read several times, and the file is the same.
#[tokio::test]
async fn passes_of_a_batch_each_make_the_same_file() {
    let mut deployment = Deployment::new();
    let batches: Vec<_> = (0..12).map(|n| (n % 4, NOON, records(u64::from(n) * 700, 700))).collect();
    let segment = deployment.segment((0, 4), &batches).await;
    let whole = deployment.store.fork();
    let compactor = deployment.compactor_on(&whole, runtime(1));
    compactor.compact(&deployment.topic, std::slice::from_ref(&segment), false).await.unwrap();
    let mut compactor = deployment.compactor(runtime(1));
    compactor.limits.pass_bytes = 1;
    compactor.compact(&deployment.topic, &[segment], false).await.unwrap();
    assert_eq!(manifest_rows(&compactor, &deployment.topic, &deployment.store).await, deployment.sorted_rows());
    let file = |store: &MapStore| store.bytes(&store.keys("root/topics/images-7/_fresh/")[0]);
    assert_eq!(file(&deployment.store), file(&whole));
}

/// A compactor that died between its fresh file and its commit leaves the file behind; it goes once the chain has grown and the
/// grace is over, and nothing else goes.
#[tokio::test]
async fn fresh_files_without_a_name_are_collected() {
    let (mut deployment, segments) = three().await;
    let clock = runtime(1);
    let store = &deployment.store.clone();
    let dead = deployment.compactor(Arc::clone(&clock));
    let group: Vec<&SealedSegment> = segments.iter().collect();
    let orphans: Vec<Key> =
        dead.write_fresh(&deployment.topic, &group).await.unwrap().into_iter().map(|file| file.key).collect();
    assert_eq!(orphans.len(), 2);
    let there = |store: &MapStore| orphans.iter().filter(|key| store.bytes(key).is_some()).count();

    let compactor = deployment.compactor(Arc::clone(&clock));
    compactor.compact(&deployment.topic, &segments, false).await.unwrap();
    for _ in 0..3 {
        clock.advance(2 * GRACE);
        compactor.compact(&deployment.topic, &[], false).await.unwrap();
    }
    assert_eq!(there(store), 2, "the chain stands still");

    for n in 0..2 {
        let more = deployment.segment((0, 4), &[(0, MORNING, records(300 + n, 1))]).await;
        clock.advance(2 * GRACE);
        compactor.compact(&deployment.topic, &[more], false).await.unwrap();
    }
    assert_eq!(there(store), 2, "given up, and still there for the grace of replaced files");
    clock.advance(2 * GRACE);
    compactor.compact(&deployment.topic, &[], false).await.unwrap();
    assert_eq!(there(store), 0);
    assert_eq!(manifest_rows(&compactor, &deployment.topic, store).await, deployment.sorted_rows());
    let manifest = compactor.manifest(&deployment.topic).await.unwrap().unwrap();
    assert!(manifest.files.iter().all(|file| store.bytes(&file.key).is_some()));
}

/// A compactor that was only slow: its files are given up before it commits, at each point of its commit, and it writes them again.
#[tokio::test]
async fn a_slow_compactor_does_not_commit_files_that_were_given_up() {
    for seed in 0..12 {
        let (mut deployment, segments) = three().await;
        let first = deployment.segment((0, 4), &[(0, MORNING, records(300, 1))]).await;
        let store = deployment.store.clone();
        let collector = deployment.compactor(runtime(seed));
        collector.compact(&deployment.topic, &[first], false).await.unwrap();
        store.seed(seed);
        let slow = deployment.compactor(runtime(900 + seed));
        // Gives up and deletes whatever nothing names, without any grace.
        let collect = async {
            for _ in 0..6 {
                let current = collector.manifest(&deployment.topic).await.unwrap().unwrap();
                let named: Vec<&Key> = current.files.iter().map(|file| &file.key).chain(&current.replaced).collect();
                let mut next = collector.successor(&deployment.topic, Some(&current));
                let given_up: Vec<Key> = store
                    .keys("root/topics/images-7/_fresh/")
                    .into_iter()
                    .filter(|key| !named.contains(&key))
                    .collect();
                next.replaced.extend(given_up.iter().cloned());
                if collector.commit(&deployment.topic, &mut next).await.unwrap() {
                    for key in given_up {
                        collector.files.delete(&key).await.unwrap();
                    }
                }
                tokio::task::yield_now().await;
            }
        };
        let (done, ()) = tokio::join!(slow.compact(&deployment.topic, &segments, false), collect);
        done.unwrap();
        assert_eq!(manifest_rows(&slow, &deployment.topic, &store).await, deployment.sorted_rows(), "seed {seed}");
    }
}

#[tokio::test]
async fn nothing_is_published_across_a_lost_version_of_the_manifest() {
    let mut deployment = Deployment::new();
    for (seed, (from, count)) in (1..).zip([(0, 10), (10, 7), (20, 5)]) {
        // One that remembers nothing, as after a restart.
        let compactor = deployment.compactor(runtime(seed));
        let segment = deployment.segment((0, 4), &[(0, NOON, records(from, count))]).await;
        let number = segment.opened.id.number;
        compactor.compact(&deployment.topic, &[segment], false).await.unwrap();
        if number == SegmentNumber(2) {
            // Reported, so that the cluster log forgets it; then its version of the manifest is lost.
            let manifest = compactor.manifest(&deployment.topic).await.unwrap().unwrap();
            let chain = Chain::Manifest(TopicFolder::new(&deployment.topic.name, deployment.topic.id));
            let key = deployment.layout.link(&chain, manifest.version.0);
            let filer: &dyn Filer = &deployment.store;
            filer.remove(&key).await.unwrap();
        }
    }
    let fresh = deployment.compactor(runtime(9));
    deployment.topic.sealed.clear();
    let error = fresh.compact(&deployment.topic, &[], true).await.unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, CompactError::Hole { .. }) && error.is_damage() && !error.is_retryable(), "{text}");
    for part in ["images", "partition 0", "10..17"] {
        assert!(text.contains(part), "{text}");
    }
    assert!(store_is_quiet(&deployment.store));
}
