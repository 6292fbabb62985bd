//! `refstream up --brokers`: several brokers, each a process that can be killed, paused, drained and started again.

use crate::{Files, Running, Said, binary, lines, seaweed::cluster::tls};
use refstream_filer_adapter::{Runtime as _, TokioRuntime};
use serde_json::Value;
use std::{
    fs,
    io::{BufRead as _, BufReader, Read},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};
use tempfile::TempDir;

/// How long anything may take that is waited for.
const PATIENCE: Duration = Duration::from_secs(120);

/// What a process prints, a line at a time.
#[derive(Debug)]
struct Lines(mpsc::Receiver<String>);

impl Lines {
    /// `echo`: show it, too.
    fn of(stream: impl Read + Send + 'static, echo: bool) -> Self {
        let (lines, read) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(stream).lines().map_while(Result::ok) {
                if echo {
                    eprintln!("{line}");
                }
                // To the end, whether somebody reads it or not: a full pipe would stop the process.
                let _ = lines.send(line);
            }
        });
        Self(read)
    }

    /// The next line; `awaited`: what it is waited for.
    fn next(&self, awaited: &str) -> String {
        self.0.recv_timeout(PATIENCE).unwrap_or_else(|error| panic!("not {awaited}: {error}"))
    }
}

/// A broker of a cluster.
#[derive(Debug)]
pub struct Broker {
    /// Its endpoint for clients, a URL.
    pub endpoint: String,
    http: String,
    /// Its process, while it is known to run.
    pid: Option<u32>,
    drained: bool,
    /// Set once the test itself has started it.
    own: Option<Child>,
}

/// A cluster of brokers on the embedded store.
#[derive(Debug)]
pub struct Cluster {
    folder: TempDir,
    /// What it asks for.
    token: Option<String>,
    parent: Child,
    /// What the parent says of its brokers.
    said: Lines,
    /// Its brokers.
    pub brokers: Vec<Broker>,
    /// `refstream broker list --watch`.
    watching: Option<(Child, Lines)>,
    /// What it printed last.
    listed: Vec<Value>,
}

impl Cluster {
    /// Starts it and waits until every broker serves.
    ///
    /// # Panics
    /// When it does not start.
    pub fn start(brokers: usize) -> Self {
        Self::launch(brokers, None)
    }

    /// The same, of brokers that have TLS and ask for a token: this one, whose hash this is.
    ///
    /// # Panics
    /// When it does not start.
    pub fn start_guarded(brokers: usize, token: &str, hash: &str) -> Self {
        Self::launch(brokers, Some((token, hash)))
    }

    fn launch(brokers: usize, guard: Option<(&str, &str)>) -> Self {
        let folder = TempDir::new().expect("a temporary folder");
        let any = "127.0.0.1:0";
        let mut command = Command::new(binary());
        if let Some((token, hash)) = guard {
            let config = folder.path().join("guarded.toml");
            let text = format!(
                "ca_file = {:?}\n[broker]\ntls_certificate = {:?}\ntls_key = {:?}\n[auth.tokens]\nana = {hash:?}\n",
                tls("ca.pem"),
                tls("server.pem"),
                tls("server.key")
            );
            fs::write(&config, text).expect("the configuration");
            command.args(["--token", token, "--config"]).arg(config);
        }
        let mut parent = command
            .args(["--output", "json", "up", "--brokers", &brokers.to_string(), "--data"])
            .arg(folder.path().join("data"))
            .args(["--listen", any, "--http", any, "--s3", any])
            .env("HOME", folder.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("refstream up starts");
        let said = Lines::of(parent.stderr.take().expect("piped"), true);
        let mut line = String::new();
        BufReader::new(parent.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
        let first: Value = serde_json::from_str(&line).expect("refstream up prints its endpoints once it serves");
        let text = |value: &Value| value.as_str().expect("a URL").to_owned();
        let brokers = first["brokers"].as_array().expect("brokers").iter().map(|broker| Broker {
            endpoint: text(&broker["grpc"]),
            http: text(&broker["http"]),
            pid: broker["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()),
            drained: false,
            own: None,
        });
        let token = guard.map(|(token, _)| token.to_owned());
        Self { brokers: brokers.collect(), parent, said, folder, token, watching: None, listed: Vec::new() }
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

    /// Takes in what the parent says of its brokers.
    fn note(&mut self, line: &str) {
        for broker in &mut self.brokers {
            let (_, address) = broker.endpoint.split_once("://").expect("a URL");
            let Some(said) = line.strip_prefix(&format!("refstream: the broker at {address} ")) else { continue };
            if let Some(pid) = said.strip_prefix("runs again: process ") {
                broker.pid = pid.parse().ok();
            } else if said.starts_with("ended ") {
                broker.pid = None;
            } else if said == "was drained" {
                (broker.pid, broker.drained) = (None, true);
            }
        }
    }

    /// The process of a broker; the parent starts it again at its address when it is killed.
    ///
    /// # Panics
    /// When it is not there in time.
    pub fn pid(&mut self, broker: usize) -> u32 {
        if let Some(own) = &self.brokers[broker].own {
            return own.id();
        }
        while let Ok(line) = self.said.0.try_recv() {
            self.note(&line);
        }
        loop {
            if let Some(pid) = self.brokers[broker].pid {
                return pid;
            }
            let line = self.said.next("started again");
            self.note(&line);
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
        if name == "KILL" {
            self.brokers[broker].pid = None;
        }
    }

    /// Stops a broker by SIGTERM, waits for its end, starts it again at its address, and waits until it has joined anew.
    ///
    /// # Panics
    /// When it does not end, or start.
    pub fn restart(&mut self, broker: usize) {
        let endpoint = self.brokers[broker].endpoint.clone();
        let before = Self::epoch(&self.list(), &endpoint);
        self.signal(broker, "TERM");
        match self.brokers[broker].own.take() {
            Some(mut own) => assert!(own.wait().expect("it ends").success(), "it drains"),
            None => {
                while !self.brokers[broker].drained {
                    let line = self.said.next("drained");
                    self.note(&line);
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
        self.until("restarted", |list| {
            let now = Self::epoch(list, &endpoint);
            now.is_some() && now != before
        });
    }

    /// A command against it, which knows all endpoints.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command
            .env("REFSTREAM_ENDPOINT", self.endpoints())
            .env("HOME", self.folder.path())
            .envs(self.token.iter().map(|token| ("REFSTREAM_TOKEN", token)))
            .env("REFSTREAM_CA_FILE", tls("ca.pem"))
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
        self.spawn_backfill_with(topic, files, &["--concurrency", &concurrency.to_string()])
    }

    /// The same with these options.
    ///
    /// # Panics
    /// When it cannot be run.
    pub fn spawn_backfill_with(&self, topic: &str, files: &Files, options: &[&str]) -> Running {
        let path = files.path().to_str().expect("a UTF-8 path");
        let arguments = ["--timeout", "120s", "--output", "json", "backfill", topic, path, "--pack-below", "0"];
        let arguments = [&arguments[..], options].concat();
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

    /// Waits until the cluster is what is wanted, as it is told of each change.
    ///
    /// # Panics
    /// When that takes too long.
    pub fn until(&mut self, what: &str, wanted: impl Fn(&[Value]) -> bool) {
        let clock = TokioRuntime::new();
        while !wanted(&self.listed) {
            let line = self.changes().next(what);
            self.listed = serde_json::from_str(&line).expect("a list a line");
        }
        eprintln!("{what} after {:?}", clock.now());
    }

    /// What `refstream broker list --watch` prints.
    fn changes(&mut self) -> &Lines {
        if self.watching.is_none() {
            let arguments = ["--timeout", "120s", "--output", "jsonl", "broker", "list", "--watch"];
            let mut child = self.command(&arguments).stdout(Stdio::piped()).spawn().expect("refstream runs");
            let lines = Lines::of(child.stdout.take().expect("piped"), false);
            self.watching = Some((child, lines));
        }
        &self.watching.as_ref().expect("it was started").1
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
                None => {
                    // Only if it is still the parent's: numbers of processes are used again.
                    if let Some(pid) = broker.pid.filter(|pid| parent_of(*pid) == Some(self.parent.id())) {
                        let _ = Command::new("kill").args(["-KILL", &pid.to_string()]).status();
                    }
                }
            }
        }
        if let Some((watching, _)) = &mut self.watching {
            let _ = watching.kill();
            let _ = watching.wait();
        }
        let _ = self.parent.kill();
        let _ = self.parent.wait();
    }
}
