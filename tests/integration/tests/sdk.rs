//! The SDK against a broker in this process, on a store in memory.

#![allow(clippy::unwrap_used)]

use async_trait::async_trait;
use bytes::Bytes;
use refstream::{
    BackfillEvent, BackfillOptions, Client, ClientOptions, ConsumeError, Consumer, ConsumerOptions, Delivery,
    ErrorClass, From, ProducerOptions, SegmentState, Source, TopicError, UploadOptions,
};
use refstream_core::Settings;
use refstream_filer_adapter::{Attributes, BlobStore, Runtime, TokioRuntime, memory::MemoryStore};
use refstream_format::{
    blocks::Blocks,
    cluster_log::{SealedSegment, TopicState},
    manifest::Manifest,
};
use refstream_journal::Metadata;
use refstream_proto::v1;
use refstream_server::{Compacted, Compactor, CompactorError, Server, ServerConfig, StoreDescription};
use refstream_types::{
    ByteRange, ContentHash, Crc32c, Key, Layout, Offset, PartitionId, Record, StoreName, TopicConfig, TopicName, Value,
};
use std::{collections::BTreeMap, net::SocketAddr, sync::Arc, time::Duration};

#[derive(Debug)]
struct Files(refstream_segments::Compactor);

fn failed(error: refstream_segments::CompactError) -> CompactorError {
    CompactorError { message: error.to_string(), retryable: true, damaged: error.is_damage() }
}

#[async_trait]
impl Compactor for Files {
    async fn compact(
        &self,
        topic: &TopicState,
        segments: &[SealedSegment],
        publish: bool,
    ) -> Result<Compacted, CompactorError> {
        let done = self.0.compact(topic, segments, publish).await.map_err(failed)?;
        Ok(Compacted { segments: done.segments, files: done.files, rows: done.rows, bytes: done.bytes })
    }
    async fn manifest(&self, topic: &TopicState) -> Result<Option<Manifest>, CompactorError> {
        self.0.manifest(topic).await.map_err(failed)
    }
}

struct Deployment {
    store: MemoryStore,
    runtime: Arc<dyn Runtime>,
}

impl Deployment {
    fn new() -> Self {
        let runtime: Arc<dyn Runtime> = Arc::new(TokioRuntime::new());
        Self { store: MemoryStore::new(Arc::clone(&runtime)), runtime }
    }

    fn stores(&self) -> BTreeMap<StoreName, Arc<dyn BlobStore>> {
        BTreeMap::from([("main".parse().unwrap(), Arc::new(self.store.clone()) as Arc<dyn BlobStore>)])
    }

    async fn broker(&self, listen: SocketAddr) -> Server {
        let layout = Layout::new("").unwrap();
        let metadata = Metadata::new(Arc::new(self.store.clone()), layout.clone());
        let compactor = refstream_segments::Compactor::new(
            metadata,
            Arc::new(self.store.clone()),
            self.stores(),
            Arc::clone(&self.runtime),
        );
        let name: StoreName = "main".parse().unwrap();
        let description =
            v1::Store { name: name.to_string(), uri_prefix: "memory://main/".into(), ..Default::default() };
        let config = ServerConfig {
            listen,
            http: "127.0.0.1:0".parse().unwrap(),
            advertise: None,
            former: None,
            core: Settings {
                linger: Duration::from_millis(1),
                death_after: Duration::from_millis(200),
                ..Settings::default()
            },
            filer: Arc::new(self.store.clone()),
            layout,
            stores: vec![StoreDescription { name: name.clone(), description }],
            metadata_store: name,
            access: Default::default(),
            read_cache_bytes: 16 << 20,
            compactor: Some(Arc::new(Files(compactor))),
            runtime: Arc::clone(&self.runtime),
            settings: Default::default(),
        };
        let server = Server::start(config).await.unwrap();
        server.serving().await.unwrap();
        server
    }

    async fn client(&self, server: &Server) -> Client {
        let options = ClientOptions {
            stores: self.stores().into_iter().collect(),
            ..ClientOptions::new(format!("http://{}", server.grpc_address()))
        };
        Client::connect_with(options).await.unwrap()
    }
}

fn any() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

fn topic() -> TopicName {
    "photos".parse().unwrap()
}

fn inline(number: u64) -> Record {
    let bytes = number.to_le_bytes();
    let content_hash = ContentHash(*blake3::hash(&bytes).as_bytes());
    let value = Value::Inline { bytes: bytes.to_vec().into(), content_hash };
    Record { key: Some(format!("key-{}", number % 100).into()), ..Record::new(value) }
}

fn number(delivery: &Delivery) -> u64 {
    match &delivery.record.value {
        Value::Inline { bytes, .. } => u64::from_le_bytes(bytes[..].try_into().unwrap()),
        other => panic!("{other:?}"),
    }
}

async fn all(client: &Client) -> Vec<Delivery> {
    let options = ConsumerOptions { from: From::Earliest, follow: false };
    let mut consumer = client.consumer(&topic(), options).await.unwrap();
    drain(&mut consumer).await
}

async fn drain(consumer: &mut Consumer) -> Vec<Delivery> {
    let mut deliveries = Vec::new();
    while let Some(delivery) = consumer.next().await.unwrap() {
        deliveries.push(delivery);
    }
    deliveries
}

/// Offsets dense from 0, the numbers `0..count` once each, those of one key in order.
fn assert_exactly_once(deliveries: &[Delivery], count: u64) {
    let mut next: BTreeMap<PartitionId, u64> = BTreeMap::new();
    let mut last_of_key = BTreeMap::new();
    let mut numbers = Vec::new();
    for delivery in deliveries {
        let expected = next.entry(delivery.partition).or_default();
        assert_eq!(delivery.offset.0, *expected, "partition {}", delivery.partition);
        *expected += 1;
        let number = number(delivery);
        if let Some(before) = last_of_key.insert(delivery.record.key.clone(), number) {
            assert!(before < number, "{before} before {number}");
        }
        numbers.push(number);
    }
    numbers.sort_unstable();
    assert!(numbers.iter().copied().eq(0..count), "{} records, {count} expected", numbers.len());
}

async fn with_topic(deployment: &Deployment, partitions: u32) -> (Server, Client) {
    let server = deployment.broker(any()).await;
    let client = deployment.client(&server).await;
    client.create_topic(&topic(), &TopicConfig { partitions, ..TopicConfig::default() }).await.unwrap();
    (server, client)
}

#[tokio::test(flavor = "multi_thread")]
async fn topics_come_and_go() {
    let deployment = Deployment::new();
    let (_server, client) = with_topic(&deployment, 3).await;
    let error = client.create_topic(&topic(), &TopicConfig::default()).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Exists);
    let described = client.describe_topic(&topic()).await.unwrap();
    assert_eq!((described.config.partitions, described.partitions.len()), (3, 3));
    assert_eq!(client.list_topics().await.unwrap().len(), 1);
    client.delete_topic(&topic()).await.unwrap();
    let error = client.describe_topic(&topic()).await.unwrap_err();
    assert!(matches!(error, TopicError::NotFound(_)), "{error}");
    assert!(error.to_string().contains("photos"));
}

#[tokio::test(flavor = "multi_thread")]
async fn records_arrive_exactly_once_in_order_from_broker_and_files() {
    let deployment = Deployment::new();
    let (_server, client) = with_topic(&deployment, 4).await;
    let producer = client
        .producer(&topic(), ProducerOptions { batch_bytes: 4 << 10, ..ProducerOptions::default() })
        .await
        .unwrap();
    for number in 0..5_000 {
        producer.send(inline(number)).await.unwrap();
    }
    producer.flush().await.unwrap();
    assert_exactly_once(&all(&client).await, 5_000);

    client.seal(&topic()).await.unwrap();
    // The broker's own compactor may have made the early files already; publishing them is left to this call.
    let (_, files) = client.compact(&topic(), true).await.unwrap();
    assert!(!files.is_empty());
    for number in 5_000..6_000 {
        producer.send(inline(number)).await.unwrap();
    }
    let ack = producer.send(inline(6_000)).await.unwrap().ack().await.unwrap();
    producer.flush().await.unwrap();
    assert_exactly_once(&all(&client).await, 6_001);
    assert!(client.segments(&topic()).await.unwrap().iter().any(|segment| segment.state == SegmentState::Published));

    let record = client.record(&topic(), ack.partition, ack.offset).await.unwrap();
    assert_eq!(number(&record), 6_000);
    let first = client.record(&topic(), record.partition, Offset(0)).await.unwrap();
    assert_eq!((first.partition, first.offset), (record.partition, Offset(0)), "the first record comes from a file");
    let error = client.record(&topic(), ack.partition, Offset(1 << 40)).await.unwrap_err();
    assert!(matches!(error, ConsumeError::NoSuchRecord(_)), "{error}");

    let offsets = client.offsets_at(&topic(), record.append_time).await.unwrap();
    assert!(offsets[ack.partition.0 as usize] <= ack.offset);
    let from = From::Time(record.append_time);
    let mut late = client.consumer(&topic(), ConsumerOptions { from, follow: false }).await.unwrap();
    assert!(drain(&mut late).await.iter().any(|delivery| number(delivery) == 6_000));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_sees_records_as_they_come() {
    let deployment = Deployment::new();
    let (_server, client) = with_topic(&deployment, 2).await;
    let options = ConsumerOptions { from: From::Latest, follow: true };
    let mut consumer = client.consumer(&topic(), options).await.unwrap();
    let producer = client.producer(&topic(), ProducerOptions::default()).await.unwrap();
    for count in 0..10 {
        let ack = producer.send(inline(count)).await.unwrap().ack().await.unwrap();
        let delivery = consumer.next().await.unwrap().unwrap();
        assert_eq!((delivery.partition, delivery.offset, number(&delivery)), (ack.partition, ack.offset, count));
        assert_eq!(delivery.append_time, ack.append_time);
        assert_eq!(consumer.positions()[&ack.partition], ack.offset.next());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_producer_and_a_follower_outlive_their_broker() {
    let deployment = Deployment::new();
    let (server, client) = with_topic(&deployment, 4).await;
    let address = server.grpc_address();
    let options = ConsumerOptions { from: From::Earliest, follow: true };
    let mut consumer = client.consumer(&topic(), options).await.unwrap();
    let producer = client
        .producer(&topic(), ProducerOptions { batch_bytes: 2 << 10, ..ProducerOptions::default() })
        .await
        .unwrap();
    let sending = {
        let producer = producer.clone();
        tokio::spawn(async move {
            for number in 0..4_000 {
                producer.send(inline(number)).await.unwrap();
                if number % 50 == 0 {
                    tokio::task::yield_now().await;
                }
            }
            producer.flush().await.unwrap();
        })
    };
    let mut seen = Vec::new();
    for _ in 0..500 {
        seen.push(consumer.next().await.unwrap().unwrap());
    }
    server.drain().await;
    let _server = deployment.broker(address).await;
    sending.await.unwrap();
    while seen.len() < 4_000 {
        seen.push(consumer.next().await.unwrap().unwrap());
    }
    assert_exactly_once(&seen, 4_000);
    assert_exactly_once(&all(&client).await, 4_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_producer_says_what_may_have_happened() {
    let deployment = Deployment::new();
    let (server, client) = with_topic(&deployment, 1).await;
    let options = ProducerOptions { linger: Duration::from_secs(600), ..ProducerOptions::default() };
    let producer = client.producer(&topic(), options).await.unwrap();
    let ticket = producer.send(inline(0)).await.unwrap();
    drop(producer);
    let error = ticket.ack().await.unwrap_err();
    assert!(error.has_no_side_effects() && error.to_string().contains("certainly not"), "{error}");
    drop(server);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_oversized_record_fails_alone() {
    let deployment = Deployment::new();
    let (_server, client) = with_topic(&deployment, 1).await;
    let producer = client.producer(&topic(), ProducerOptions::default()).await.unwrap();
    let good = producer.send(inline(0)).await.unwrap();
    let key = Some(vec![b'k'; 1 << 20].into());
    let error = producer.send(Record { key, ..inline(1) }).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Invalid);
    assert!(error.has_no_side_effects());
    good.ack().await.unwrap();
    producer.flush().await.unwrap();
    assert_exactly_once(&all(&client).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payload_goes_up_and_comes_back() {
    let deployment = Deployment::new();
    let (_server, client) = with_topic(&deployment, 1).await;
    let uploader = client.uploader(&topic(), UploadOptions::default()).await.unwrap();
    let producer = client.producer(&topic(), ProducerOptions::default()).await.unwrap();
    let content: Vec<u8> = (0..3_000_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let source = Source::Bytes(content.clone().into());
    let reference = uploader.upload(source, None, None).await.unwrap().into_reference();
    let ack = producer.send(Record::new(Value::Reference(Box::new(reference)))).await.unwrap().ack().await.unwrap();
    let delivery = client.record(&topic(), ack.partition, ack.offset).await.unwrap();
    let payload = delivery.payload(&client).unwrap();
    assert_eq!(payload.bytes().await.unwrap(), content);
    let range = ByteRange { offset: 2_000_000, length: 1_000 };
    assert_eq!(payload.range(range).await.unwrap(), content[2_000_000..2_001_000]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backfilled_folder_verifies_and_damage_is_found() {
    let deployment = Deployment::new();
    let (_server, client) = with_topic(&deployment, 4).await;
    let folder = tempfile::tempdir().unwrap();
    for number in 0..600 {
        let sub = folder.path().join(format!("d{}", number % 7));
        std::fs::create_dir_all(&sub).unwrap();
        std::fs::write(sub.join(format!("{number}.txt")), format!("file number {number} ").repeat(number % 50))
            .unwrap();
    }
    std::fs::write(folder.path().join("large.bin"), vec![7; 3 << 20]).unwrap();
    let options = BackfillOptions {
        paths: vec![folder.path().to_owned()],
        attributes: vec![("job".into(), "1".into())],
        ..BackfillOptions::default()
    };
    let dry = BackfillOptions { dry_run: true, ..options.clone() };
    let rehearsed = client.backfill(&topic(), dry).await.unwrap().run(|_| {}).await.unwrap();
    assert_eq!((rehearsed.files_found, rehearsed.files_done, rehearsed.objects), (601, 601, 0));
    let mut done = 0;
    let backfill = client.backfill(&topic(), options).await.unwrap();
    let summary = backfill.run(|event| done += u64::from(matches!(event, BackfillEvent::Done { .. }))).await.unwrap();
    assert_eq!((summary.files_found, summary.files_done, summary.files_failed, done), (601, 601, 0, 601));
    assert_eq!(summary.bytes_done, rehearsed.bytes_done);
    assert!(summary.objects < 30, "{summary:?}");

    let records = all(&client).await;
    let large = records.iter().find(|delivery| delivery.record.source_name.as_deref() == Some("large.bin")).unwrap();
    assert_eq!(large.record.key.as_deref(), Some(&b"large.bin"[..]));
    assert_eq!(large.record.headers[0].name, "job");
    for compacted in [false, true] {
        if compacted {
            client.seal(&topic()).await.unwrap();
            client.compact(&topic(), true).await.unwrap();
        }
        let seen = refstream_check::verify(&client, &topic(), true, |_| {}).await.unwrap();
        assert_eq!((seen.records, seen.references, seen.wrong), (601, 601, 0), "{:?}", seen.findings);
        assert_eq!(seen.bytes, summary.bytes_done);
    }

    let victim = records.iter().find(|delivery| delivery.record.source_name.as_deref() == Some("d4/123.txt")).unwrap();
    let Value::Reference(reference) = &victim.record.value else { panic!() };
    assert!(deployment.store.flip_bit(&reference.key, reference.range().offset + 1));
    let seen = refstream_check::verify(&client, &topic(), true, |_| {}).await.unwrap();
    assert_eq!(seen.wrong, 1);
    let finding = &seen.findings[0];
    assert_eq!((finding.kind, finding.partition, finding.offset), ("damaged", victim.partition.0, victim.offset.0));
    assert!(finding.object.contains(reference.key.as_str()));
    assert_eq!(refstream_check::verify(&client, &topic(), false, |_| {}).await.unwrap().wrong, 0);
    assert!(deployment.store.lose(&reference.key));
    let seen = refstream_check::verify(&client, &topic(), false, |_| {}).await.unwrap();
    assert!(seen.wrong > 0 && seen.findings.iter().all(|finding| finding.kind == "missing"));
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_of_what_helps_readers_is_found_once_an_object() {
    let deployment = Deployment::new();
    let (_server, client) = with_topic(&deployment, 2).await;
    let folder = tempfile::tempdir().unwrap();
    for name in ["flipped", "garbled", "foreign", "deleted", "beside", "damaged beside", "good"] {
        let contents = vec![name.len() as u8; 3 << 20];
        let noise: Vec<u8> = contents.iter().zip(0_u32..).map(|(a, b)| a ^ blake3_byte(name, b)).collect();
        std::fs::write(folder.path().join(name), noise).unwrap();
    }
    for number in 0..20 {
        std::fs::write(folder.path().join(format!("small-{number}")), format!("file number {number}")).unwrap();
    }
    let options = BackfillOptions { paths: vec![folder.path().to_owned()], ..BackfillOptions::default() };
    client.backfill(&topic(), options).await.unwrap().run(|_| {}).await.unwrap();
    let seen = refstream_check::verify(&client, &topic(), true, |_| {}).await.unwrap();
    assert_eq!((seen.records, seen.wrong), (27, 0), "{:?}", seen.findings);

    let references: BTreeMap<String, refstream_types::Reference> = all(&client)
        .await
        .into_iter()
        .filter_map(|delivery| match delivery.record.value {
            Value::Reference(reference) => Some((delivery.record.source_name?, *reference)),
            _ => None,
        })
        .collect();
    let store: &dyn BlobStore = &deployment.store;
    let put = async |key: &Key, bytes: Bytes, note: Option<String>| {
        let checksum = refstream_format::crc32c(&bytes);
        let attributes = Attributes { note, ..Attributes::default() };
        store.put(key, vec![bytes], checksum, &attributes).await.unwrap();
    };
    let intact = store.head(&references["good"].key).await.unwrap().unwrap().note.unwrap();
    let other = Blocks { size: 1 << 20, checksums: vec![Crc32c(7)] };
    let mut flipped = intact.clone().into_bytes();
    let last = flipped.len() - 8;
    flipped[last] = if flipped[last] == b'A' { b'B' } else { b'A' };
    let notes = [
        ("flipped", Some(String::from_utf8(flipped).unwrap())),
        ("garbled", Some("!".to_owned())),
        ("foreign", Some(other.to_note())),
        ("deleted", None),
        ("beside", None),
        ("damaged beside", None),
    ];
    for (name, note) in notes {
        let key = &references[name].key;
        let had = store.head(key).await.unwrap().unwrap().note.unwrap();
        put(key, deployment.store.peek(key).unwrap(), note).await;
        if name.ends_with("beside") {
            let sums = Blocks::from_note(&had).unwrap().encode();
            put(&Layout::blocks(key), sums.into(), None).await;
        }
    }
    assert!(deployment.store.flip_bit(&Layout::blocks(&references["damaged beside"].key), 20));
    let pack = &references["small-3"].key;
    assert!(deployment.store.flip_bit(pack, deployment.store.peek(pack).unwrap().len() as u64 - 30));

    let seen = refstream_check::verify(&client, &topic(), true, |_| {}).await.unwrap();
    let mut found: Vec<(&str, &str)> = seen.findings.iter().map(|f| (f.kind, f.object.as_str())).collect();
    let object = |name: &str| ("block-sums", store.uri(&references[name].key));
    let sidecar = |name: &str| ("block-sums", store.uri(&Layout::blocks(&references[name].key)));
    let mut expected = ["flipped", "garbled", "foreign"].map(object).to_vec();
    expected.extend(["deleted", "damaged beside"].map(sidecar));
    expected.push(("footer", store.uri(pack)));
    found.sort_unstable();
    expected.sort_unstable();
    assert_eq!(found, expected.iter().map(|(kind, uri)| (*kind, uri.as_str())).collect::<Vec<_>>());
    let finding = seen.findings.iter().find(|finding| finding.kind == "block-sums").unwrap();
    assert!(finding.detail.contains("for a range, all of it is read"), "{}", finding.detail);
    assert_eq!(seen.bytes, (21 << 20) + (0..20).map(|n| format!("file number {n}").len() as u64).sum::<u64>());
    assert_eq!(refstream_check::verify(&client, &topic(), false, |_| {}).await.unwrap().wrong, 0);
}

/// Noise that does not compress.
fn blake3_byte(name: &str, at: u32) -> u8 {
    let block = blake3::hash(format!("{name} {}", at / 32).as_bytes());
    block.as_bytes()[at as usize % 32]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_verification_without_its_store_stops_and_accuses_no_record() {
    let deployment = Deployment::new();
    let (server, producing) = with_topic(&deployment, 2).await;
    let folder = tempfile::tempdir().unwrap();
    for number in 0..300 {
        std::fs::write(folder.path().join(format!("{number}")), format!("file number {number}")).unwrap();
    }
    let options = BackfillOptions {
        paths: vec![folder.path().to_owned()],
        upload: UploadOptions { pack_below: 0, ..UploadOptions::default() },
        ..BackfillOptions::default()
    };
    producing.backfill(&topic(), options).await.unwrap().run(|_| {}).await.unwrap();

    let payloads = deployment.store.client("payloads", Arc::clone(&deployment.runtime), 1, Default::default());
    let options = ClientOptions {
        timeout: Duration::from_millis(300),
        stores: vec![("main".parse().unwrap(), Arc::new(payloads.clone()))],
        ..ClientOptions::new(format!("http://{}", server.grpc_address()))
    };
    let client = Client::connect_with(options).await.unwrap();
    for sealed in [false, true] {
        for deep in [false, true] {
            payloads.set_cut_off(true);
            let unfinished = refstream_check::verify(&client, &topic(), deep, |_| {}).await.unwrap_err();
            assert_eq!(unfinished.why.class(), ErrorClass::Unreachable, "{unfinished}");
            assert_eq!((unfinished.seen.records, unfinished.seen.wrong), (0, 0), "{unfinished}");
            let text = unfinished.to_string();
            assert!(text.contains("could not be finished; 0 records were checked, 0 findings so far"), "{text}");
            payloads.set_cut_off(false);
            let seen = refstream_check::verify(&client, &topic(), deep, |_| {}).await.unwrap();
            assert_eq!((seen.records, seen.wrong), (300, 0), "{:?}", seen.findings);
        }
        if !sealed {
            producing.seal(&topic()).await.unwrap();
            producing.compact(&topic(), true).await.unwrap();
        }
    }
}
