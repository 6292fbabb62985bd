//! One SeaweedFS by several ways: two S3 gateways of one filer, and two filers with a gateway each. What else is asked of a SeaweedFS of several
//! processes: its payloads are ordinary objects for its own tools, and replicated ones outlive a volume server.

#![allow(clippy::unwrap_used)]

use refstream_filer_adapter::{
    Runtime, TokioRuntime,
    conformance::{Store, run_together},
    s3::{S3Config, S3Store},
};
use refstream_integration_tests::{
    Files, Up,
    seaweed::{
        ACCESS_KEY, BUCKET, SECRET_KEY,
        cluster::{Cluster, Part, Plan},
    },
};
use std::sync::Arc;

async fn doors(cluster: &Cluster, gateways: usize) -> Vec<Store> {
    let mut doors = Vec::new();
    for gateway in 0..gateways {
        let config = S3Config {
            endpoint: Some(cluster.s3(gateway)),
            bucket: BUCKET.into(),
            credentials: Some((ACCESS_KEY.into(), SECRET_KEY.into())),
            ..S3Config::default()
        };
        doors.push(Store::new(Arc::new(S3Store::open("weed", config).await.unwrap())));
    }
    doors
}

async fn conforms(plan: Plan) {
    let gateways = plan.gateways.len();
    let cluster = Cluster::start(plan);
    let runtime: Arc<dyn Runtime> = Arc::new(TokioRuntime::new());
    run_together(&doors(&cluster, gateways).await, runtime).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_gateways_of_one_filer_are_one_namespace() {
    conforms(Plan { gateways: vec![0, 0], ..Plan::default() }).await;
}

/// While both run. What happens when one of them starts again is why docs/STORES.md refuses this arrangement for metadata.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_filers_are_one_namespace_while_both_run() {
    conforms(Plan { filers: 2, gateways: vec![0, 1], ..Plan::default() }).await;
}

fn keys() -> Vec<(&'static str, String)> {
    vec![("AWS_ACCESS_KEY_ID", ACCESS_KEY.into()), ("AWS_SECRET_ACCESS_KEY", SECRET_KEY.into())]
}

/// What `verify` finds, without its summary.
fn findings(up: &Up, code: i32) -> Vec<serde_json::Value> {
    let said = up.run(&["--output", "jsonl", "verify", "t"]).fails(code, &[]);
    let mut findings = refstream_integration_tests::lines(&said.stdout);
    findings.retain(|line| line["event"] != "summary");
    findings
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn payloads_are_ordinary_objects_and_one_that_is_deleted_is_missed_by_its_records_alone() {
    let cluster = Cluster::start(Plan::default());
    let up = Up::start_on(&format!("s3://{BUCKET}/root?endpoint={}", cluster.s3(0)), keys());
    up.run(&["topic", "create", "t", "--partitions", "2"]).ok();
    let mut files = Files::generate(40, 3_000, 17);
    // Of more than one chunk of the filer's, stored as it is.
    files.add("large/one.bin", 9 << 20, 18);
    let path = files.path().to_str().unwrap();
    // Small ones share packs.
    up.run(&["backfill", "t", path]).ok();
    let records = up.records("t");
    let place = |record: &serde_json::Value| {
        let uri = record["payload"]["uri"].as_str().unwrap();
        uri.strip_prefix(&format!("s3://{BUCKET}/")).unwrap().to_owned()
    };
    let large = records.iter().find(|record| record["key"] == "large/one.bin").unwrap();
    let pack = place(records.iter().find(|record| record["key"] != "large/one.bin").unwrap());

    // weed shell, and any S3 client.
    let folder = |key: &str| format!("/buckets/{BUCKET}/{}", key.rsplit_once('/').unwrap().0);
    let name = |key: &str| key.rsplit('/').next().unwrap().to_owned();
    let listed = cluster.shell(&format!("fs.ls -l {}", folder(&place(large))));
    assert!(listed.contains(&name(&place(large))) && listed.contains(&(9 << 20).to_string()), "{listed}");
    let s3 = doors(&cluster, 1).await.remove(0).blobs;
    let meta = s3.head(&place(large).parse().unwrap()).await.unwrap().unwrap();
    assert_eq!(meta.size, 9 << 20);
    let found = s3.get(&place(large).parse().unwrap(), &Default::default()).await.unwrap();
    let pieces: Vec<bytes::Bytes> = futures::TryStreamExt::try_collect(found.body).await.unwrap();
    assert!(pieces.concat() == std::fs::read(files.path().join("large/one.bin")).unwrap(), "stored as it is");
    assert!(findings(&up, 0).is_empty());

    let said = cluster.shell(&format!("fs.rm {}/{}", folder(&place(large)), name(&place(large))));
    let found = findings(&up, 5);
    assert_eq!(found.len(), 1, "{found:?}; {said}");
    assert_eq!((&found[0]["kind"], &found[0]["offset"]), (&"missing".into(), &large["offset"]));
    assert_eq!(found[0]["partition"], large["partition"]);

    // A pack is missed by all that are in it, and by nobody else.
    s3.delete(&pack.parse().unwrap()).await.unwrap();
    let mut missed: Vec<_> = findings(&up, 5).iter().map(|f| (f["partition"].as_u64(), f["offset"].as_u64())).collect();
    let mut expected: Vec<_> = records
        .iter()
        .filter(|record| place(record) == pack || record["key"] == "large/one.bin")
        .map(|record| (record["partition"].as_u64(), record["offset"].as_u64()))
        .collect();
    missed.sort();
    expected.sort();
    assert_eq!(missed, expected);
    assert_eq!(up.records("t"), records, "references still flow");
}

#[test]
fn replicated_payloads_outlive_a_volume_server() {
    let mut cluster = Cluster::start(Plan { volumes: 2, filers: 0, gateways: Vec::new(), ..Plan::default() });
    let up = Up::start_on(&format!("seaweedfs://{}?replication=001", cluster.master()), Vec::new());
    up.run(&["topic", "create", "t"]).ok();
    let mut files = Files::generate(60, 3_000, 19);
    // In parts: the list of its chunks is replicated as well.
    files.add("large/one.bin", 20 << 20, 20);
    let path = files.path().to_str().unwrap();
    up.run(&["backfill", "t", path, "--pack-below", "1000"]).ok();
    let records = up.records("t");
    files.check(&records);
    for lost in 0..2 {
        cluster.kill(Part::Volume(lost));
        up.run(&["verify", "t", "--deep"]).ok();
        let large = records.iter().find(|record| record["key"] == "large/one.bin").unwrap();
        let place = [large["partition"].to_string(), large["offset"].to_string()];
        let got = up.run(&["get", "t", &place[0], &place[1]]).ok();
        assert!(got == std::fs::read(files.path().join("large/one.bin")).unwrap());
        cluster.restart(Part::Volume(lost));
    }
    up.run(&["verify", "t", "--deep"]).ok();
    let put = ["put", "t", files.path().join("large/one.bin").to_str().unwrap(), "--key", "again"].map(str::to_owned);
    up.run(&put).ok();
}
