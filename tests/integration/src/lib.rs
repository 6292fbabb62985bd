//! Real processes, end to end: starts the `refstream` binary, kills it, reads what it prints.
//!
//! The binary is the one that `cargo build` put beside the tests, or the one that `REFSTREAM_BIN` names.

pub mod cluster;
pub mod moto;
pub mod outage;
pub mod seaweed;
mod spoken;

use serde_json::Value;
use std::{
    io::{BufRead as _, BufReader, Read as _},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};
use tempfile::TempDir;

/// The `refstream` binary.
///
/// # Panics
/// When there is none: build the workspace first.
pub fn binary() -> PathBuf {
    let path = std::env::var_os("REFSTREAM_BIN").map_or_else(
        || {
            let mut path = std::env::current_exe().expect("the test's own path");
            path.pop();
            path.pop();
            path.join("refstream")
        },
        PathBuf::from,
    );
    assert!(path.is_file(), "{} does not exist: run cargo build --workspace first", path.display());
    path
}

/// Whether the long form of the tests is asked for.
pub fn long() -> bool {
    std::env::var_os("REFSTREAM_TEST_LONG").is_some()
}

/// What a finished command said.
#[derive(Debug)]
pub struct Said {
    /// Its exit code; `None` when a signal ended it.
    pub code: Option<i32>,
    /// Its standard output.
    pub stdout: Vec<u8>,
    /// Its standard error.
    pub stderr: String,
}

impl Said {
    fn of(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: output.stdout,
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
    /// What a command of the caller's own says.
    ///
    /// # Panics
    /// When it cannot be run.
    pub fn by(mut command: Command) -> Self {
        Self::of(command.output().expect("it runs"))
    }
    /// The output, of a command that must have succeeded.
    ///
    /// # Panics
    /// When it failed.
    pub fn ok(self) -> Vec<u8> {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        self.stdout
    }
    /// The output as one JSON document, of a command that must have succeeded.
    ///
    /// # Panics
    /// When it failed or printed something else.
    pub fn json(self) -> Value {
        serde_json::from_slice(&self.ok()).expect("JSON on stdout")
    }
    /// The output as one JSON document a line, of a command that must have succeeded.
    ///
    /// # Panics
    /// When it failed or printed something else.
    pub fn lines(self) -> Vec<Value> {
        lines(&self.ok())
    }
    /// Checks that the command failed with `code` and that its standard error has each of `words`, and did not panic.
    ///
    /// # Panics
    /// When it did not.
    pub fn fails(self, code: i32, words: &[&str]) -> Self {
        assert_eq!(self.code, Some(code), "{}", self.stderr);
        assert!(!self.stderr.contains("panicked"), "{}", self.stderr);
        for word in words {
            assert!(self.stderr.contains(word), "{word:?} is not in: {}", self.stderr);
        }
        self
    }
}

/// One JSON document a line.
///
/// # Panics
/// When a line is no JSON.
pub fn lines(bytes: &[u8]) -> Vec<Value> {
    bytes
        .split(|b| *b == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_slice(line).expect("a JSON document a line"))
        .collect()
}

/// `refstream up` on a folder of its own.
#[derive(Debug)]
pub struct Up {
    folder: TempDir,
    process: Option<Child>,
    /// Addresses of gRPC, HTTP and S3; the same after every restart.
    pub addresses: [String; 3],
    environment: Vec<(&'static str, String)>,
    arguments: Vec<String>,
    /// For `broker`: its configuration.
    config: Option<String>,
}

impl Up {
    /// Starts it and waits until it serves.
    pub fn start() -> Self {
        Self::start_with(Vec::new())
    }

    /// Starts it with `--store URI`, and further environment variables.
    pub fn start_on(store: &str, environment: Vec<(&'static str, String)>) -> Self {
        Self::launch(environment, vec!["--store".to_owned(), store.to_owned()], None)
    }

    /// Starts `refstream broker` with this configuration, and further environment variables.
    pub fn broker(config: &str, environment: Vec<(&'static str, String)>) -> Self {
        Self::launch(environment, Vec::new(), Some(config.to_owned()))
    }

    /// Starts `refstream broker` as [`Up::broker`] does; once more, up to three times, where it says `excuse`.
    ///
    /// # Panics
    /// When it does not start for another reason, or each time.
    pub fn broker_excused(config: &str, environment: Vec<(&'static str, String)>, excuse: &str) -> Self {
        let mut up = Self::new(environment, Vec::new(), Some(config.to_owned()));
        for _ in 0..2 {
            match up.try_restart(Stdio::piped()) {
                Ok(()) => return up,
                Err(said) => assert!(said.contains(excuse), "{said}"),
            }
        }
        up.restart();
        up
    }

    /// Starts it with further environment variables.
    pub fn start_with(environment: Vec<(&'static str, String)>) -> Self {
        Self::launch(environment, Vec::new(), None)
    }

    fn launch(environment: Vec<(&'static str, String)>, arguments: Vec<String>, config: Option<String>) -> Self {
        let mut up = Self::new(environment, arguments, config);
        up.restart();
        up
    }

    fn new(environment: Vec<(&'static str, String)>, arguments: Vec<String>, config: Option<String>) -> Self {
        let folder = TempDir::new().expect("a temporary folder");
        let addresses = ["127.0.0.1:0"; 3].map(str::to_owned);
        std::fs::create_dir(folder.path().join("data")).expect("a data folder");
        Self { folder, process: None, addresses, environment, arguments, config }
    }

    /// The data folder.
    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// The keys of its embedded store, as the environment of others who use that store.
    ///
    /// # Panics
    /// When it has none.
    pub fn credentials(&self) -> Vec<(&'static str, String)> {
        let keys = std::fs::read_to_string(self.data().join("credentials.toml")).expect("keys");
        let keys: toml::Table = keys.parse().expect("TOML");
        let key = |name: &str| keys[name].as_str().expect("a key").to_owned();
        vec![("AWS_ACCESS_KEY_ID", key("access_key")), ("AWS_SECRET_ACCESS_KEY", key("secret_key"))]
    }

    /// Starts it again on the same folder and ports, and waits until it serves.
    ///
    /// # Panics
    /// When it does not start.
    pub fn restart(&mut self) {
        if self.try_restart(Stdio::inherit()).is_err() {
            panic!("refstream up prints its endpoints once it serves");
        }
    }

    /// What it says on stderr when it does not start, if that is piped.
    fn try_restart(&mut self, stderr: Stdio) -> Result<(), String> {
        assert!(self.process.is_none(), "it runs already");
        let mut command = Command::new(binary());
        command.args(["--output", "json"]);
        match &self.config {
            Some(config) => {
                let path = self.folder.path().join("refstream.toml");
                std::fs::write(&path, config).expect("the configuration");
                command.arg("broker").arg("--config").arg(path);
            }
            None => {
                command.args(["up", "--s3", &self.addresses[2], "--data"]).arg(self.data());
            }
        }
        let mut child = command
            .args(["--listen", &self.addresses[0], "--http", &self.addresses[1]])
            .args(&self.arguments)
            .env("HOME", self.folder.path())
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .expect("refstream up starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
        let mut stderr = child.stderr.take();
        let Ok(said) = serde_json::from_str::<Value>(&line) else {
            let mut why = String::new();
            if let Some(stderr) = &mut stderr {
                stderr.read_to_string(&mut why).expect("text");
            }
            child.wait().expect("it ends");
            return Err(why);
        };
        if let Some(mut stderr) = stderr {
            // A full pipe would stop it.
            std::thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::stderr()));
        }
        let address = |value: &Value| {
            let (_, address) = value.as_str().and_then(|url| url.split_once("://")).expect("a URL");
            address.to_owned()
        };
        self.addresses[0] = address(&said["grpc"]);
        self.addresses[1] = address(&said["http"]);
        // Without an embedded store there is none.
        if !said["s3"].is_null() {
            self.addresses[2] = address(&said["s3"]["endpoint"]);
        }
        self.process = Some(child);
        Ok(())
    }

    /// `kill -9`.
    ///
    /// # Panics
    /// When it does not run.
    pub fn kill(&mut self) {
        let mut child = self.process.take().expect("it runs");
        child.kill().expect("it is killed");
        child.wait().expect("it ends");
    }

    /// SIGTERM, and waits for the end; its exit code.
    ///
    /// # Panics
    /// When it does not run.
    pub fn stop(&mut self) -> Option<i32> {
        let mut child = self.process.take().expect("it runs");
        signal(&child, "TERM");
        child.wait().expect("it ends").code()
    }

    fn pid(&self) -> u32 {
        self.process.as_ref().expect("it runs").id()
    }

    /// How many files the process has open.
    ///
    /// # Panics
    /// When it does not run.
    pub fn open_files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("it runs").count()
    }

    /// Allows the process so many open files, from now on.
    ///
    /// # Panics
    /// When that cannot be changed.
    pub fn limit_files(&self, most: usize) {
        let (pid, limit) = (self.pid().to_string(), format!("--nofile={most}:"));
        let set = Command::new("prlimit").args(["--pid", &pid, &limit]).status().expect("prlimit runs");
        assert!(set.success());
    }

    /// Sends a signal such as `STOP` or `CONT`.
    ///
    /// # Panics
    /// When it does not run.
    pub fn signal(&self, name: &str) {
        signal(self.process.as_ref().expect("it runs"), name);
    }

    /// A command against it.
    pub fn command<S: AsRef<std::ffi::OsStr>>(&self, arguments: &[S]) -> Command {
        let mut command = Command::new(binary());
        command
            .env("REFSTREAM_ENDPOINT", format!("http://{}", self.addresses[0]))
            .env("HOME", self.folder.path())
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .args(arguments)
            .stdin(Stdio::null());
        command
    }

    /// Runs a command against it to the end.
    ///
    /// # Panics
    /// When it cannot be run.
    pub fn run<S: AsRef<std::ffi::OsStr>>(&self, arguments: &[S]) -> Said {
        Said::of(self.command(arguments).output().expect("refstream runs"))
    }

    /// Starts a command against it in the background.
    ///
    /// # Panics
    /// When it cannot be run.
    pub fn spawn<S: AsRef<std::ffi::OsStr>>(&self, arguments: &[S]) -> Running {
        let child = self.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        Running(child.expect("refstream runs"))
    }

    /// Starts a backfill in which each file is an object of its own, few at a time: many moments to be disturbed at. It prints its
    /// summary as JSON, and waits for a broker longer than any test disturbs one.
    ///
    /// # Panics
    /// When it cannot be run.
    pub fn spawn_backfill(&self, topic: &str, files: &Files, concurrency: usize) -> Running {
        let (path, concurrency) = (files.path().to_str().expect("a UTF-8 path"), concurrency.to_string());
        let one_by_one = ["--pack-below", "0", "--concurrency", &concurrency];
        self.spawn(&[&["--timeout", "120s", "--output", "json", "backfill", topic, path], &one_by_one[..]].concat())
    }

    /// All records of a topic from the first one on, by partition and offset.
    ///
    /// # Panics
    /// When they do not arrive in the order of their offsets within each partition.
    pub fn records(&self, topic: &str) -> Vec<Value> {
        let mut records = self.run(&["tail", topic, "--from", "earliest", "--no-follow"]).lines();
        let partition = |record: &Value| record["partition"].as_u64();
        // Nothing orders two partitions: a stable sort keeps the order of arrival within each.
        records.sort_by_key(partition);
        let in_order = records.windows(2).all(|two| {
            partition(&two[0]) != partition(&two[1]) || two[0]["offset"].as_u64() < two[1]["offset"].as_u64()
        });
        assert!(in_order, "records of a partition arrive in order");
        records
    }

    /// How many records are committed in a topic; `None` while nobody answers.
    pub fn committed(&self, topic: &str) -> Option<u64> {
        let said = self.run(&["--timeout", "1s", "--output", "json", "topic", "describe", topic]);
        let value: Value = serde_json::from_slice(&said.stdout).ok()?;
        Some(value["offsets"].as_array()?.iter().filter_map(|p| p["latest"].as_u64()).sum())
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        if let Some(mut child) = self.process.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A command in the background.
#[derive(Debug)]
pub struct Running(Child);

impl Running {
    /// Whether it has ended.
    ///
    /// # Panics
    /// When the system does not say.
    pub fn ended(&mut self) -> bool {
        self.0.try_wait().expect("a status").is_some()
    }
    /// Waits for its end.
    ///
    /// # Panics
    /// When it cannot be waited for.
    pub fn wait(self) -> Said {
        Said::of(self.0.wait_with_output().expect("it ends"))
    }
    /// Sends a signal.
    pub fn signal(&self, name: &str) {
        signal(&self.0, name);
    }
}

fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").arg(format!("-{name}")).arg(child.id().to_string()).status().expect("kill runs");
    assert!(sent.success());
}

/// Files with different contents, some of them in sub-folders: path relative to the folder, and contents.
#[derive(Debug)]
pub struct Files {
    folder: TempDir,
    /// Relative path and BLAKE3 of each, ascending.
    pub expected: std::collections::BTreeMap<String, String>,
}

impl Files {
    /// `count` files of 0 to `max_bytes` bytes, the same for the same `seed`.
    ///
    /// # Panics
    /// When they cannot be written.
    pub fn generate(count: usize, max_bytes: usize, seed: u64) -> Self {
        use rand::{Rng as _, RngCore as _, SeedableRng as _};
        let mut random = rand::rngs::StdRng::seed_from_u64(seed);
        let folder = TempDir::new().expect("a temporary folder");
        let mut expected = std::collections::BTreeMap::new();
        for i in 0..count {
            let name = format!("{:02}/ä {:03}/file-{i:06}.bin", i % 7, i % 31);
            let mut contents = vec![0; random.random_range(0..=max_bytes)];
            random.fill_bytes(&mut contents);
            if i % 3 == 0 {
                // Something that compresses.
                contents.iter_mut().for_each(|b| *b = b'a' + (*b & 1));
            }
            let path = folder.path().join(&name);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
            std::fs::write(&path, &contents).expect("a file");
            expected.insert(name, format!("BLAKE3:{}", blake3::hash(&contents).to_hex()));
        }
        Self { folder, expected }
    }

    /// One more, of `bytes` bytes that do not compress.
    ///
    /// # Panics
    /// When it cannot be written.
    pub fn add(&mut self, name: &str, bytes: usize, seed: u64) {
        use rand::{RngCore as _, SeedableRng as _};
        let mut contents = vec![0; bytes];
        rand::rngs::StdRng::seed_from_u64(seed).fill_bytes(&mut contents);
        let path = self.folder.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
        std::fs::write(&path, &contents).expect("a file");
        self.expected.insert(name.to_owned(), format!("BLAKE3:{}", blake3::hash(&contents).to_hex()));
    }

    /// Where they are.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Checks that the records are the files: each exactly once, with the right hash, offsets dense in each partition.
    ///
    /// # Panics
    /// When they are not.
    pub fn check(&self, records: &[Value]) {
        let mut names = std::collections::BTreeMap::new();
        let mut next = std::collections::BTreeMap::new();
        for record in records {
            let offset = next.entry(record["partition"].as_u64().expect("a partition")).or_insert(0_u64);
            assert_eq!(record["offset"].as_u64(), Some(*offset), "offsets are dense: {record}");
            *offset += 1;
            let name = record["key"].as_str().expect("a key").to_owned();
            let hash = record["content_hash"].as_str().expect("a hash").to_owned();
            let before = names.insert(name.clone(), hash);
            assert!(before.is_none(), "{name} appears twice");
        }
        for (name, hash) in &self.expected {
            match names.remove(name) {
                None => panic!("{name} is missing"),
                Some(found) => assert_eq!(&found, hash, "{name}"),
            }
        }
        assert!(names.is_empty(), "more than was given: {names:?}");
    }
}
