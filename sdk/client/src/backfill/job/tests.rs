//! A job that is ended at every step, against a broker in this process and a store in memory.

use super::{state::tests::set_fuse, *};
use crate::{BackfillEvent, BackfillSummary, ClientOptions, Delivery, From, UploadOptions, uploader::tests::noise};
use refstream_core::Settings;
use refstream_filer_adapter::{
    BlobStore, Runtime, TokioRuntime,
    memory::{Fault, MemoryStore, Operation},
};
use refstream_proto::v1;
use refstream_server::{Server, ServerConfig, StoreDescription};
use refstream_types::{Layout, StoreName, TopicConfig, Value};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

struct Deployment {
    store: MemoryStore,
    _server: Server,
    client: Client,
    files: tempfile::TempDir,
    jobs: tempfile::TempDir,
}

fn topic() -> TopicName {
    "photos".parse().unwrap()
}

impl Deployment {
    async fn new() -> Self {
        let runtime: Arc<dyn Runtime> = Arc::new(TokioRuntime::new());
        let store = MemoryStore::new(Arc::clone(&runtime));
        let name: StoreName = "main".parse().unwrap();
        let description =
            v1::Store { name: name.to_string(), uri_prefix: "memory://main/".into(), ..Default::default() };
        let server = Server::start(ServerConfig {
            listen: "127.0.0.1:0".parse().unwrap(),
            http: "127.0.0.1:0".parse().unwrap(),
            advertise: None,
            former: None,
            core: Settings {
                linger: Duration::from_millis(1),
                death_after: Duration::from_millis(200),
                ..Settings::default()
            },
            filer: Arc::new(store.clone()),
            layout: Layout::new("").unwrap(),
            stores: vec![StoreDescription { name: name.clone(), description }],
            metadata_store: name.clone(),
            access: Default::default(),
            read_cache_bytes: 16 << 20,
            compactor: None,
            runtime: Arc::clone(&runtime),
            settings: Default::default(),
        })
        .await
        .unwrap();
        server.serving().await.unwrap();
        let payloads = store.client("main", runtime, 0, Default::default());
        let options = ClientOptions {
            stores: vec![(name, Arc::new(payloads.clone()) as Arc<dyn BlobStore>)],
            ..ClientOptions::new(format!("http://{}", server.grpc_address()))
        };
        let client = Client::connect_with(options).await.unwrap();
        client
            .create_topic(&topic(), &TopicConfig { partitions: 2, inline_max: 40, ..TopicConfig::default() })
            .await
            .unwrap();
        let (files, jobs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        Self { store: payloads, _server: server, client, files, jobs }
    }

    fn job(&self) -> JobOptions {
        JobOptions { folder: self.jobs.path().to_owned(), name: "j".into() }
    }

    fn write(&self, name: &str, content: &[u8]) {
        std::fs::write(self.files.path().join(name), content).unwrap();
    }

    fn options(&self, pack_below: u64) -> BackfillOptions {
        BackfillOptions {
            paths: vec![self.files.path().to_owned()],
            upload: UploadOptions {
                pack_below,
                pack_bytes: 2_000,
                pack_linger: Duration::ZERO,
                part_bytes: 5 << 20,
                concurrency: 2,
                ..UploadOptions::default()
            },
            job: Some(self.job()),
            ..BackfillOptions::default()
        }
    }

    async fn run(&self, options: BackfillOptions) -> Result<BackfillSummary, BackfillError> {
        self.client.backfill(&topic(), options).await?.run(|_| {}).await
    }

    /// Runs, ended at the latest before the commit after `commits` more.
    async fn run_until(&self, commits: u64, options: BackfillOptions) -> Result<BackfillSummary, BackfillError> {
        let path = self.job().file("job");
        set_fuse(&path, Some(commits));
        let ended = self.run(options).await;
        set_fuse(&path, None);
        // The producer of a run that failed ends in its own time, and holds the state until then.
        while StateFile::open(&path, true).is_err() {
            tokio::task::yield_now().await;
        }
        ended
    }

    async fn records(&self) -> Vec<Delivery> {
        let options = ConsumerOptions { from: From::Earliest, follow: false };
        let mut consumer = self.client.consumer(&topic(), options).await.unwrap();
        let mut records = Vec::new();
        while let Some(delivery) = consumer.next().await.unwrap() {
            records.push(delivery);
        }
        records
    }

    /// Each file once, with its content; and no object that no record refers to.
    async fn check(&self) {
        let mut names = BTreeSet::new();
        let mut referred = BTreeSet::new();
        for delivery in self.records().await {
            let name = delivery.record.source_name.clone().unwrap();
            assert!(names.insert(name.clone()), "{name} appears twice");
            let content = std::fs::read(self.files.path().join(&name)).unwrap();
            match &delivery.record.value {
                Value::Reference(reference) => {
                    let payload = self.client.payload(reference).of(&delivery);
                    assert_eq!(payload.bytes().await.unwrap(), content, "{name}");
                    referred.insert(reference.key.clone());
                }
                Value::Inline { bytes, .. } => assert_eq!(bytes, &content),
                Value::Tombstone => panic!("{name} is a tombstone"),
            }
        }
        let files: BTreeSet<_> = std::fs::read_dir(self.files.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        assert_eq!(names, files);
        let stored = self
            .store
            .keys()
            .into_iter()
            .filter(|key| key.as_str().starts_with("payloads/") && !key.as_str().ends_with(".blocks"));
        assert_eq!(stored.collect::<BTreeSet<_>>(), referred, "each payload was stored once");
    }
}

use crate::ConsumerOptions;

/// The number of commits that the job needs is found by trying: a run with a longer fuse each time, until one ends well.
async fn ended_at_every_step(deployment: &Deployment, options: BackfillOptions, runs: u64) {
    let mut ended = 0;
    // Each run goes on where the one before was ended, one, two, three, ... commits later.
    for run in 0..runs {
        if deployment.run_until(2 + run % 5, options.clone()).await.is_ok_and(|summary| summary.files_failed == 0) {
            break;
        }
        ended += 1;
    }
    assert!(ended > 1, "the job was ended {ended} times only");
    let summary = deployment.run(options.clone()).await.unwrap();
    assert_eq!(summary.files_failed, 0, "{summary:?}");
    deployment.check().await;
    assert_eq!(status(&deployment.job()).unwrap().phase, JobPhase::Complete);
    let again = deployment.run(options).await.unwrap();
    assert_eq!((again.files_done, again.objects), (0, 0));
    assert_eq!(again.files_already, again.files_found);
    deployment.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_are_stored_once_wherever_the_job_is_ended() {
    let deployment = Deployment::new().await;
    for number in 0..30_usize {
        deployment.write(&format!("{number}"), &noise(300 + number));
    }
    ended_at_every_step(&deployment, deployment.options(0), 60).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn packs_are_stored_once_wherever_the_job_is_ended() {
    let deployment = Deployment::new().await;
    for number in 0..300_usize {
        deployment.write(&format!("{number}"), &noise(20 + number));
    }
    let options = BackfillOptions { inline_max: 40, ..deployment.options(1 << 20) };
    ended_at_every_step(&deployment, options, 60).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_are_stored_once_wherever_the_job_is_ended() {
    let deployment = Deployment::new().await;
    deployment.write("large", &noise((27 << 20) + 5));
    deployment.write("small", b"small");
    ended_at_every_step(&deployment, deployment.options(0), 20).await;
    assert_eq!(deployment.store.operations(Operation::PutPart), 6);
    assert_eq!(deployment.store.operations(Operation::Complete), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_completed_unseen_is_not_repeated() {
    let deployment = Deployment::new().await;
    deployment.write("large", &noise(11 << 20));
    // State: the job's own two commits, the upload, then parts; the last commit is that of the completed object.
    let mut commits = 2;
    while deployment.store.operations(Operation::Complete) == 0 {
        let _ = deployment.run_until(commits, deployment.options(0)).await;
        commits += 1;
    }
    deployment.run(deployment.options(0)).await.unwrap();
    deployment.check().await;
    assert_eq!(deployment.store.operations(Operation::PutPart), 3);
}

/// Puts a batch of one record into the job's state, as of a process that was ended before it sent it or before it learned of its ack.
async fn leave_behind(deployment: &Deployment, number: u64, stamp: refstream_types::ProducerStamp) {
    let state = StateFile::open(&deployment.job().file("job"), false).unwrap();
    let spec: Spec = state.meta(SPEC).unwrap().unwrap();
    let mut record = refstream_types::Record::new(Value::Tombstone);
    record.source_name = Some("good".into());
    record.headers.push(Header { name: ATTRIBUTE.into(), value: spec.attribute.into_bytes().into() });
    let mut builder = refstream_format::batch::BatchBuilder::default();
    builder.push(&record).unwrap();
    let bytes = builder.finish(Some(stamp)).unwrap().bytes().clone();
    let partition = refstream_types::PartitionId(1);
    let batch = Batch { number, partition, floor: Offset(0), bytes, files: vec![Bytes::from_static(b"/good")] };
    let row = Job::row(4, None, None, State::Inline);
    state.change(Change::Row { file: Bytes::from_static(b"/good"), row });
    state.durable(Change::Batch(batch)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_that_were_left_behind_are_settled() {
    let deployment = Deployment::new().await;
    let description = deployment.client.describe_topic(&topic()).await.unwrap();
    let open = async || {
        let options = deployment.options(0);
        let job = Job::open(&deployment.client, &description, deployment.job(), &options).await.unwrap();
        let row = job.state.rows([&b"/good"[..]].into_iter()).unwrap().remove(0);
        assert!(job.state.batches().unwrap().is_empty());
        let first = job.first_batch;
        job.close();
        (row.map(|row| row.state), first)
    };
    assert_eq!(open().await, (None, 0));
    let (id, epoch) = records::open_producer(deployment.client.brokers()).await.unwrap();
    let stamp = |first| refstream_types::ProducerStamp { id, epoch, first: refstream_types::Sequence(first) };

    // Refused: the broker does not know the producer, so what was sent cannot have been taken, and never will be.
    leave_behind(&deployment, 7, stamp(5)).await;
    assert_eq!(open().await, (Some(State::Inline), 8));
    assert!(deployment.records().await.is_empty());

    // Logged and never sent.
    leave_behind(&deployment, 8, stamp(0)).await;
    let (state, _) = open().await;
    let records = deployment.records().await;
    assert_eq!(records.len(), 1);
    let done = Some(State::Done { partition: records[0].partition, offset: records[0].offset });
    assert_eq!(state, done);

    // Appended, and the ack was not noted: it is found. Twice makes no difference.
    for number in [9, 10] {
        leave_behind(&deployment, number, stamp(0)).await;
        assert_eq!(open().await, (done.clone(), number + 1));
        assert_eq!(deployment.records().await.len(), 1);
    }

    // It lands after it was looked for: the broker recognises what comes second.
    let state = StateFile::open(&deployment.job().file("job"), false).unwrap();
    let spec: Spec = state.meta(SPEC).unwrap().unwrap();
    state.close();
    let mut builder = refstream_format::batch::BatchBuilder::default();
    builder.push(&refstream_types::Record::new(Value::Tombstone)).unwrap();
    let batch = builder.finish(Some(stamp(1))).unwrap();
    let partition = refstream_types::PartitionId(1);
    let mut placed = Vec::new();
    for _ in 0..2 {
        let replayed = crate::producer::replay(&deployment.client, &topic(), spec.topic_id, partition, &batch).await;
        placed.push(replayed.unwrap());
    }
    assert_eq!(placed[0], placed[1]);
    assert!(matches!(placed[0], Decided::Placed { .. }));
    assert_eq!(deployment.records().await.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_of_the_store_end_in_the_same_records() {
    let deployment = Deployment::new().await;
    for number in 0..20_usize {
        deployment.write(&format!("{number}"), &noise(100 + number));
    }
    deployment.write("large", &noise(11 << 20));
    for fault in [Fault::Lost, Fault::Failed, Fault::Dropped, Fault::Refused] {
        for operation in [Operation::Put, Operation::Multipart, Operation::PutPart, Operation::Complete] {
            deployment.store.script(operation, "", fault);
        }
    }
    let summary = deployment.run(deployment.options(0)).await.unwrap();
    assert_eq!(summary.files_done, 21);
    deployment.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_files_are_tried_again_and_changed_ones_are_left_alone() {
    let deployment = Deployment::new().await;
    deployment.write("good", b"good");
    deployment.write("bad", b"bad");
    let bad = deployment.files.path().join("bad");
    // Replaced by a link before it is looked at: no regular file, which is skipped.
    let options = deployment.options(1 << 20);
    let backfill = deployment.client.backfill(&topic(), options.clone()).await.unwrap();
    std::fs::remove_file(&bad).unwrap();
    std::os::unix::fs::symlink("/nowhere", &bad).unwrap();
    let summary = backfill.run(|_| {}).await.unwrap();
    assert_eq!((summary.files_done, summary.files_skipped), (1, 1));
    std::fs::remove_file(&bad).unwrap();
    deployment.write("bad", b"bad");
    deployment.write("good", b"better");
    let mut changed = Vec::new();
    let backfill = deployment.client.backfill(&topic(), options.clone()).await.unwrap();
    let summary = backfill
        .run(|event| {
            if let BackfillEvent::Changed { name } = event {
                changed.push(name);
            }
        })
        .await
        .unwrap();
    assert_eq!((summary.files_done, summary.files_changed), (1, 1));
    assert_eq!(changed, ["good"]);
    assert_eq!(deployment.records().await.len(), 2);

    let job = Job::open(
        &deployment.client,
        &deployment.client.describe_topic(&topic()).await.unwrap(),
        deployment.job(),
        &options,
    )
    .await
    .unwrap();
    deployment.write("late", b"late");
    let late = deployment.files.path().join("late");
    let found = Found::new(late, "sub/late".into(), 4, None);
    job.failed(&found, "it was locked", false);
    job.close();
    let before = status(&deployment.job()).unwrap();
    assert_eq!(before.failures, [FileFailure { path: "sub/late".into(), error: "it was locked".into() }]);
    assert_eq!((before.phase, before.files_failed, before.files_done), (JobPhase::Incomplete, 1, 2));
    let retry = BackfillOptions { retry_failed: true, ..options };
    let summary = deployment.run(retry).await.unwrap();
    assert_eq!((summary.files_found, summary.files_done), (1, 1));
    let names: BTreeMap<_, _> =
        deployment.records().await.into_iter().map(|delivery| (delivery.record.source_name, delivery.offset)).collect();
    assert!(names.contains_key(&Some("sub/late".to_owned())));
    assert!(status(&deployment.job()).unwrap().failures.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn members_of_an_archive_are_ranges_of_it() {
    let deployment = Deployment::new().await;
    let large = noise(3 << 20);
    let members: Vec<(&str, &[u8])> = vec![("a/one.txt", b"one"), ("a/empty", b""), ("b/large.bin", &large)];
    deployment.write("all.tar", &super::super::tar::tests::archive(&members));
    deployment.write("no.tar", &[1; 2_000]);
    let at = |name: &str| deployment.files.path().join(name);
    let options = BackfillOptions {
        paths: Vec::new(),
        archives: vec![at("all.tar"), at("no.tar")],
        ..deployment.options(1 << 20)
    };
    let summary = deployment.run(options.clone()).await.unwrap();
    assert_eq!((summary.files_done, summary.files_failed), (3, 1), "{summary:?}");
    assert!(summary.failures[0].error.contains("no tar archive"), "{summary:?}");
    let mut keys = BTreeSet::new();
    for delivery in deployment.records().await {
        let name = delivery.record.source_name.clone().unwrap();
        let content = members.iter().find(|(member, _)| *member == name).unwrap().1;
        let Value::Reference(reference) = &delivery.record.value else { panic!("{delivery:?}") };
        assert!(reference.offset.is_some() && reference.content_hash.is_some());
        assert_eq!(deployment.client.payload(reference).bytes().await.unwrap(), content, "{name}");
        assert_eq!(delivery.record.event_time, Some(Timestamp::from_micros(10_000_000)));
        keys.insert(reference.key.clone());
    }
    assert_eq!(keys.len(), 1, "the archive is one object");
    let again = deployment.run(options).await.unwrap();
    assert_eq!((again.files_done, again.files_already, again.objects), (0, 3, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_are_attached_where_they_are() {
    let deployment = Deployment::new().await;
    let put = async |key: &str, content: &'static [u8]| {
        let body = vec![Bytes::from_static(content)];
        let sum = refstream_format::crc32c(content);
        deployment.store.put(&key.parse().unwrap(), body, sum, &Default::default()).await.unwrap();
    };
    put("photos/2024/a.png", b"aaa").await;
    put("photos/2024/b.png", b"bb").await;
    put("photos/2025/c.png", b"c").await;
    let options = BackfillOptions {
        paths: Vec::new(),
        in_place: vec!["memory://main/photos/2024/".into()],
        ..deployment.options(1 << 20)
    };
    let asked = [Operation::Put, Operation::Get];
    let before = asked.map(|operation| deployment.store.operations(operation));
    let summary = deployment.run(options.clone()).await.unwrap();
    assert_eq!((summary.files_done, summary.files_failed), (2, 0), "{summary:?}");
    let after = asked.map(|operation| deployment.store.operations(operation));
    assert_eq!(after, before, "no payload byte moves, and the listing tells what is to be known");
    let records = deployment.records().await;
    let a = records.iter().find(|delivery| delivery.record.source_name.as_deref() == Some("a.png")).unwrap();
    let payload = a.payload(&deployment.client).unwrap();
    assert_eq!(payload.reference().content_type.as_deref(), Some("image/png"));
    assert_eq!(payload.bytes().await.unwrap(), &b"aaa"[..]);

    // An object that is overwritten is another one: the old record says so, and there is a new one.
    put("photos/2024/a.png", b"AAAA").await;
    assert_eq!(payload.bytes().await.unwrap_err().class(), crate::ErrorClass::VerificationFailed);
    let again = deployment.run(options.clone()).await.unwrap();
    assert_eq!((again.files_done, again.files_already), (1, 1));

    let list = deployment.jobs.path().join("list.csv");
    let rows = "uri,size,checksum,key\nmemory://main/photos/2025/c.png,1,,k\nmemory://main/absent,,,\n\
                memory://main/photos/2024/b.png,7,,\nhttp://elsewhere/x,,,\n";
    std::fs::write(&list, rows).unwrap();
    let listed = BackfillOptions { in_place: Vec::new(), manifests: vec![list], ..options.clone() };
    let summary = deployment.run(listed).await.unwrap();
    assert_eq!((summary.files_done, summary.files_failed), (1, 3), "{summary:?}");
    let errors: Vec<_> = summary.failures.iter().map(|failure| &*failure.error).collect();
    for says in ["does not exist", "the list says 7", "configured store"] {
        assert!(errors.iter().any(|error| error.contains(says)), "{errors:?}");
    }
    let keys: Vec<_> = deployment.records().await.into_iter().filter_map(|delivery| delivery.record.key).collect();
    assert!(keys.contains(&Bytes::from_static(b"k")), "{keys:?}");

    // Looked at or not, an object is the same one.
    let mut looked = options.clone();
    looked.upload.verify = true;
    let again = deployment.run(looked).await.unwrap();
    assert_eq!((again.files_done, again.files_already, again.files_failed), (0, 2, 0));
    let elsewhere = BackfillOptions { in_place: vec!["s3://other/x".into()], ..options };
    let error = deployment.run(elsewhere).await.unwrap_err().to_string();
    assert!(error.contains("memory://main/ (main)"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_with_checksums_are_believed_or_verified() {
    let deployment = Deployment::new().await;
    let content = &b"content"[..];
    let sum = refstream_format::crc32c(content);
    for key in ["right", "wrong", "wrong-hash"] {
        deployment
            .store
            .put(&key.parse().unwrap(), vec![Bytes::from_static(content)], sum, &Default::default())
            .await
            .unwrap();
    }
    let list = deployment.jobs.path().join("list.csv");
    let hash = "0".repeat(64);
    let rows = format!(
        "uri,size,checksum\nmemory://main/right,7,{sum}\nmemory://main/wrong,7,CRC32C:00000000\nmemory://main/wrong-hash,7,BLAKE3:{hash}\n"
    );
    std::fs::write(&list, rows).unwrap();
    let mut options = BackfillOptions { manifests: vec![list], ..deployment.options(0) };
    options.paths.clear();
    options.upload.verify = true;
    let summary = deployment.run(options.clone()).await.unwrap();
    assert_eq!((summary.files_done, summary.files_failed), (1, 2), "{summary:?}");
    for failure in &summary.failures {
        assert!(failure.path.contains("wrong") && failure.error.contains("the list says"), "{failure:?}");
    }
    let looks = deployment.store.operations(Operation::Get);
    options.upload.verify = false;
    let summary = deployment.run(options).await.unwrap();
    assert_eq!((summary.files_done, summary.files_already, summary.files_failed), (2, 1, 0), "{summary:?}");
    assert_eq!(deployment.store.operations(Operation::Get), looks + 2, "what has a size and a hash is not looked at");
    // What does not match is found out by whoever reads it.
    for delivery in deployment.records().await {
        let payload = delivery.payload(&deployment.client).unwrap();
        let key = payload.reference().key.to_string();
        assert_eq!(payload.bytes().await.is_ok(), key == "right", "{key}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_a_list_are_named_as_they_are_listed() {
    let deployment = Deployment::new().await;
    deployment.write("one", b"one");
    deployment.write("two", b"two");
    let at = |name: &str| deployment.files.path().join(name).display().to_string();
    let list = deployment.jobs.path().join("list");
    std::fs::write(&list, format!("{}\0\0{}\0{}\0{}", at("one"), at("./two"), at("absent"), at("one"))).unwrap();
    let mut options = BackfillOptions { lists: vec![list], null_separated: true, ..deployment.options(0) };
    options.paths.clear();
    options.upload.verify = true;
    options.upload.adaptive = true;
    let summary = deployment.run(options.clone()).await.unwrap();
    assert_eq!((summary.files_done, summary.files_failed), (2, 1), "{summary:?}");
    assert_eq!(summary.files_already, 1, "a file that is listed twice has one record");
    assert_eq!(deployment.records().await.len(), 2);
    let names: BTreeSet<_> =
        deployment.records().await.into_iter().filter_map(|delivery| delivery.record.source_name).collect();
    assert_eq!(names, BTreeSet::from([at("one")[1..].to_owned(), at("two")[1..].to_owned()]));
    let before = status(&deployment.job()).unwrap();
    assert_eq!((before.phase, before.files_failed, before.failures.len()), (JobPhase::Incomplete, 1, 1));

    let retry = BackfillOptions { retry_failed: true, ..options };
    let summary = deployment.run(retry.clone()).await.unwrap();
    assert_eq!((summary.files_done, summary.files_failed), (0, 1), "it is still not there");
    assert_eq!(status(&deployment.job()).unwrap().phase, JobPhase::Incomplete);
    deployment.write("absent", b"now it is");
    let summary = deployment.run(retry.clone()).await.unwrap();
    assert_eq!((summary.files_done, summary.files_failed), (1, 0));
    let after = status(&deployment.job()).unwrap();
    assert_eq!((after.phase, after.files_failed, after.files_done), (JobPhase::Complete, 0, 3));
    // There is nothing left to try again, which changes nothing.
    assert_eq!(deployment.run(retry).await.unwrap().files_found, 0);
    assert_eq!(status(&deployment.job()).unwrap().phase, JobPhase::Complete);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_belongs_to_its_topic_and_to_what_it_makes_of_files() {
    let (deployment, other) = (Deployment::new().await, Deployment::new().await);
    deployment.write("one", b"one");
    let refused = async |deployment: &Deployment, options| {
        deployment.client.backfill(&topic(), options).await.unwrap_err().to_string()
    };
    let options = deployment.options(0);
    let retry = BackfillOptions { retry_failed: true, ..options.clone() };
    assert!(refused(&deployment, retry).await.contains("no such job"));
    assert_eq!(deployment.run(options.clone()).await.unwrap().files_done, 1);
    // Its first topic has the same name and id.
    let why = refused(&other, options.clone()).await;
    assert!(why.contains("another deployment") && why.contains("--job"), "{why}");
    let keys = BackfillOptions { key: Some("{stem}".into()), ..options.clone() };
    let attributes = BackfillOptions { attributes: vec![("a".into(), "b".into())], ..options.clone() };
    for changed in [keys, attributes] {
        let why = refused(&deployment, changed).await;
        assert!(why.contains("--job"), "{why}");
    }
    assert_eq!(deployment.run(options).await.unwrap().files_already, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_one_topic_and_can_be_cancelled() {
    let deployment = Deployment::new().await;
    deployment.write("large", &noise(11 << 20));
    let ended = deployment.run_until(4, deployment.options(0)).await;
    assert!(ended.is_err() || ended.unwrap().files_failed > 0);
    let other: TopicName = "other".parse().unwrap();
    deployment.client.create_topic(&other, &TopicConfig::default()).await.unwrap();
    let error = deployment.client.backfill(&other, deployment.options(0)).await.unwrap_err().to_string();
    assert!(error.contains("photos") && error.contains("--job"), "{error}");
    assert_eq!(list(deployment.jobs.path()).unwrap(), ["j"]);
    let (resumed, options) = resume_options(&deployment.job()).unwrap();
    assert_eq!((resumed, options.paths), (topic(), vec![deployment.files.path().to_owned()]));
    assert!(!cancel(&deployment.client, &deployment.job()).await.unwrap());
    assert_eq!(status(&deployment.job()).unwrap().phase, JobPhase::Cancelled);
    let error = deployment.run(deployment.options(0)).await.unwrap_err().to_string();
    assert!(error.contains("cancelled"), "{error}");
    let absent = JobOptions { name: "absent".into(), ..deployment.job() };
    let error = status(&absent).unwrap_err().to_string();
    assert!(error.contains("absent") && error.contains("there are: j"), "{error}");
    for name in ["", "a/b", ".x", "ä"] {
        let odd = JobOptions { name: name.into(), ..deployment.job() };
        assert!(status(&odd).is_err(), "{name}");
    }
}
