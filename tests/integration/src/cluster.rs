//! `refstream up --brokers`: several brokers, each a process that can be killed, paused, drained and started again.

use crate::{Files, Running, Said, binary, lines};
use refstream_filer_adapter::{Runtime as _, TokioRuntime};
use serde_json::Value;
use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};
use tempfile::TempDir;

/// How long anything may take that is waited for.
const PATIENCE: Duration = Duration::from_secs(120);

/// A broker of a cluster.
#[derive(Debug)]
pub struct Broker {
    /// Its endpoint for clients, a URL.
    pub endpoint: String,
    http: String,
    /// Its process, as far as it is known.
    pid: u32,
    /// Set once the test itself has started it.
    own: Option<Child>,
}

/// A cluster of brokers on the embedded store.
#[derive(Debug)]
pub struct Cluster {
    folder: TempDir,
    parent: Child,
    /// Its brokers.
    pub brokers: Vec<Broker>,
}

impl Cluster {
    /// Starts it and waits until every broker serves.
    ///
    /// # Panics
    /// When it does not start.
    pub fn start(brokers: usize) -> Self {
        let folder = TempDir::new().expect("a temporary folder");
        let any = "127.0.0.1:0";
        let mut parent = Command::new(binary())
            .args(["--output", "json", "up", "--brokers", &brokers.to_string(), "--data"])
            .arg(folder.path().join("data"))
            .args(["--listen", any, "--http", any, "--s3", any])
            .env("HOME", folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .expect("refstream up starts");
        let mut line = String::new();
        BufReader::new(parent.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
        let said: Value = serde_json::from_str(&line).expect("refstream up prints its endpoints once it serves");
        let text = |value: &Value| value.as_str().expect("a URL").to_owned();
        let brokers = said["brokers"].as_array().expect("brokers").iter().map(|broker| Broker {
            endpoint: text(&broker["grpc"]),
            http: text(&broker["http"]),
            pid: broker["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).expect("a process"),
            own: None,
        });
        Self { brokers: brokers.collect(), parent, folder }
    }

    /// The data folder.
    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// All endpoints, as clients take them.
    pub fn endpoints(&self) -> String {
        let all: Vec<&str> = self.brokers.iter().map(|broker| broker.endpoint.as_str()).collect();
        all.join(",")
    }

    /// The process of a broker; the parent starts it again at its address when it is killed.
    ///
    /// # Panics
    /// When it is not there in time.
    pub fn pid(&mut self, broker: usize) -> u32 {
        let parent = self.parent.id();
        let broker = &mut self.brokers[broker];
        if let Some(own) = &broker.own {
            return own.id();
        }
        let clock = TokioRuntime::new();
        let address = broker.endpoint.trim_start_matches("http://").to_owned();
        loop {
            if PathBuf::from(format!("/proc/{}/cmdline", broker.pid)).exists() && parent_of(broker.pid) == Some(parent)
            {
                return broker.pid;
            }
            let found = fs::read_dir("/proc").expect("/proc").flatten().filter_map(|entry| {
                let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
                let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
                let is_it = command.split(|b| *b == 0).any(|part| part == address.as_bytes());
                (is_it && parent_of(pid) == Some(parent)).then_some(pid)
            });
            if let Some(pid) = found.last() {
                broker.pid = pid;
            }
            assert!(clock.now() < PATIENCE, "the broker at {address} is not started again");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Sends a broker a signal such as `KILL`, `STOP` or `CONT`.
    ///
    /// # Panics
    /// When it does not run.
    pub fn signal(&mut self, broker: usize, name: &str) {
        let pid = self.pid(broker).to_string();
        let sent = Command::new("kill").arg(format!("-{name}")).arg(pid).status().expect("kill runs");
        assert!(sent.success());
    }

    /// Stops a broker by SIGTERM, waits for its end, and starts it again at its address.
    ///
    /// # Panics
    /// When it does not end, or start.
    pub fn restart(&mut self, broker: usize) {
        let pid = self.pid(broker);
        self.signal(broker, "TERM");
        match self.brokers[broker].own.take() {
            Some(mut own) => assert!(own.wait().expect("it ends").success(), "it drains"),
            None => {
                let clock = TokioRuntime::new();
                while PathBuf::from(format!("/proc/{pid}/exe")).exists() && parent_of(pid).is_some() {
                    assert!(clock.now() < PATIENCE, "the broker does not end");
                    thread::sleep(Duration::from_millis(10));
                }
            }
        }
        let target = &self.brokers[broker];
        let address = |url: &str| url.trim_start_matches("http://").to_owned();
        let mut child = Command::new(binary())
            .arg("--config")
            .arg(self.data().join("brokers.toml"))
            .args(["--output", "json", "broker"])
            .args(["--listen", &address(&target.endpoint), "--http", &address(&target.http)])
            .env("HOME", self.folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .expect("refstream broker starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
        assert!(line.contains("grpc"), "it serves: {line}");
        self.brokers[broker].own = Some(child);
    }

    /// A command against it, which knows all endpoints.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command
            .env("REFSTREAM_ENDPOINT", self.endpoints())
            .env("HOME", self.folder.path())
            .args(arguments)
            .stdin(Stdio::null());
        command
    }

    /// Runs a command against it to the end.
    pub fn run(&self, arguments: &[&str]) -> Said {
        Said::by(self.command(arguments))
    }

    /// Starts a backfill of files, each an object of its own; it prints its summary as JSON.
    ///
    /// # Panics
    /// When it cannot be run.
    pub fn spawn_backfill(&self, topic: &str, files: &Files, concurrency: usize) -> Running {
        let (path, concurrency) = (files.path().to_str().expect("a UTF-8 path"), concurrency.to_string());
        let arguments = ["--timeout", "120s", "--output", "json", "backfill", topic, path, "--pack-below", "0"];
        let arguments = [&arguments[..], &["--concurrency", &concurrency]].concat();
        let child = self.command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        Running(child.expect("refstream runs"))
    }

    /// How many records are committed in a topic; `None` while nobody answers.
    pub fn committed(&self, topic: &str) -> Option<u64> {
        let said = self.run(&["--timeout", "5s", "--output", "json", "topic", "describe", topic]);
        let value: Value = serde_json::from_slice(&said.stdout).ok()?;
        Some(value["offsets"].as_array()?.iter().filter_map(|p| p["latest"].as_u64()).sum())
    }

    /// All records of a topic from the first one on, by partition and offset.
    pub fn records(&self, topic: &str) -> Vec<Value> {
        let mut records = lines(&self.run(&["tail", topic, "--from", "earliest", "--no-follow"]).ok());
        records.sort_by_key(|record| record["partition"].as_u64());
        records
    }

    /// The brokers as `refstream broker list` shows them.
    pub fn list(&self) -> Vec<Value> {
        lines(&self.run(&["--timeout", "30s", "--output", "jsonl", "broker", "list"]).ok())
    }

    /// The epoch of a broker as the cluster lists it, if it does.
    pub fn epoch(list: &[Value], endpoint: &str) -> Option<u64> {
        list.iter().find(|broker| broker["endpoint"].as_str() == Some(endpoint))?["epoch"].as_u64()
    }

    /// Kills a broker, and waits until it was recovered and has joined anew.
    ///
    /// # Panics
    /// When that takes too long.
    pub fn kill(&mut self, broker: usize) {
        let endpoint = self.brokers[broker].endpoint.clone();
        let before = Self::epoch(&self.list(), &endpoint);
        self.signal(broker, "KILL");
        self.until("killed, recovered, started again", |list| {
            let now = Self::epoch(list, &endpoint);
            list.len() == 3 && now.is_some() && now != before
        });
    }

    /// Waits until the cluster is what is wanted.
    ///
    /// # Panics
    /// When that takes too long.
    pub fn until(&self, what: &str, wanted: impl Fn(&[Value]) -> bool) {
        let clock = TokioRuntime::new();
        loop {
            let list = self.list();
            if wanted(&list) {
                eprintln!("{what} after {:?}", clock.now());
                return;
            }
            assert!(clock.now() < PATIENCE, "not {what}: {list:?}");
            thread::sleep(Duration::from_millis(50));
        }
    }
}

fn parent_of(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // PID (NAME) STATE PARENT ...; a zombie is over.
    let mut rest = stat.rsplit_once(") ")?.1.split(' ');
    let state = rest.next()?;
    (state != "Z").then(|| rest.next()?.parse().ok())?
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Its brokers end with the pipe to their standard input; those that are paused cannot.
        for broker in &mut self.brokers {
            match &mut broker.own {
                Some(own) => {
                    let _ = own.kill();
                    let _ = own.wait();
                }
                None if parent_of(broker.pid) == Some(self.parent.id()) => {
                    let _ = Command::new("kill").args(["-KILL", &broker.pid.to_string()]).status();
                }
                None => {}
            }
        }
        let _ = self.parent.kill();
        let _ = self.parent.wait();
    }
}
