//! Settings of stores that show only in what is sent: HTTPS with an authority of one's own, temporary credentials, storage class, encryption.

#![allow(clippy::unwrap_used)]

use refstream_integration_tests::{
    Files, Up,
    moto::Moto,
    outage::Proxy,
    seaweed::{
        ACCESS_KEY, BUCKET, SECRET_KEY,
        cluster::{Cluster, Plan, tls},
    },
};

#[test]
fn everything_by_https_with_an_authority_of_ones_own() {
    let cluster = Cluster::start(Plan { https: true, ..Plan::default() });
    let authority = tls("ca.pem").display().to_string();
    let config = format!(
        r#"
        [broker]
        metadata_store = "bucket"
        default_store = "volumes"
        [stores.bucket]
        kind = "s3"
        bucket = "{BUCKET}"
        endpoint = "{}"
        ca_file = "{authority}"
        [stores.volumes]
        kind = "seaweedfs"
        masters = "{}"
        https = true
        ca_file = "{authority}"
        "#,
        cluster.s3(0),
        cluster.master()
    );
    let keys = vec![("AWS_ACCESS_KEY_ID", ACCESS_KEY.into()), ("AWS_SECRET_ACCESS_KEY", SECRET_KEY.into())];
    let up = Up::broker(&config, keys);
    let mut files = Files::generate(40, 3_000, 41);
    files.add("large/one.bin", 17 << 20, 42);
    let path = files.path().to_str().unwrap();
    // Clients have no file of settings for stores.
    let trusting = |arguments: &[&str]| {
        let said = up.command(arguments).env("AWS_CA_BUNDLE", tls("ca.pem")).output().unwrap();
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        said.stdout
    };
    for (topic, store) in [("natively", "volumes"), ("by-gateway", "bucket")] {
        trusting(&["topic", "create", topic, "--store", store]);
        trusting(&["backfill", topic, path, "--pack-below", "1000"]);
        let records = trusting(&["tail", topic, "--from", "earliest", "--no-follow"]);
        files.check(&refstream_integration_tests::lines(&records));
        trusting(&["verify", topic, "--deep"]);
    }
    // Who does not trust the authority is told so.
    for topic in ["natively", "by-gateway"] {
        let said = up.run(&["get", topic, "0", "0"]);
        assert!(said.code != Some(0) && said.stderr.contains("certificate"), "{}", said.stderr);
    }
}

#[test]
fn temporary_credentials_storage_class_and_encryption_are_sent() {
    // It takes the headers, as the embedded store does not.
    let moto = Moto::start();
    let proxy = Proxy::before(moto.endpoint().trim_start_matches("http://"));
    let config = format!(
        r#"
        [broker]
        root = "second"
        [stores.main]
        kind = "s3"
        bucket = "refstream"
        endpoint = "{}"
        storage_class = "STANDARD_IA"
        encryption = "AES256"
        "#,
        proxy.url()
    );
    let keys =
        [("AWS_ACCESS_KEY_ID", "access"), ("AWS_SECRET_ACCESS_KEY", "secret"), ("AWS_SESSION_TOKEN", "of-a-session")];
    let environment: Vec<_> = keys.map(|(name, value)| (name, value.to_owned())).into();
    proxy.keep_heads();
    // moto, busy, now and then lets two of several creates at once win, which the broker's probe refuses.
    let up = Up::broker_excused(&config, environment, "this store cannot coordinate brokers");
    up.run(&["topic", "create", "t"]).ok();
    let mut files = Files::generate(5, 3_000, 43);
    files.add("large/one.bin", 20 << 20, 44);
    up.run(&["backfill", "t", files.path().to_str().unwrap(), "--pack-below", "0"]).ok();
    up.run(&["seal", "t"]).ok();
    up.run(&["compact", "t"]).ok();
    files.check(&up.records("t"));
    let heads = proxy.heads();
    assert!(heads.iter().all(|head| head.contains("x-amz-security-token: of-a-session")), "temporary credentials");
    let begins = |method: &str, folder: &str| {
        let place = format!("{method} /refstream/second/{folder}/");
        heads.iter().filter(move |head| head.starts_with(&place)).collect::<Vec<_>>()
    };
    let class = "x-amz-storage-class: standard_ia";
    let encryption = "x-amz-server-side-encryption: aes256";
    // Payloads: in one request, and the beginning of an upload in parts.
    let objects: Vec<_> = begins("PUT", "payloads").into_iter().filter(|head| !head.contains("partNumber")).collect();
    let uploads: Vec<_> = begins("POST", "payloads").into_iter().filter(|head| head.contains("uploads")).collect();
    assert!(objects.len() >= 5 && !uploads.is_empty(), "{heads:?}");
    for head in objects.into_iter().chain(uploads) {
        assert!(head.contains(class) && head.contains(encryption), "{head}");
    }
    // Commit objects are small and short-lived: no class that costs by the month.
    let commits = begins("PUT", "journals");
    assert!(!commits.is_empty());
    for head in commits {
        assert!(!head.contains(class) && head.contains(encryption), "{head}");
    }
}
