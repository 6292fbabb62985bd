//! Several brokers on one machine, each a process of its own, so that one of them can be killed.
//!
//! The parent runs the embedded store and starts `refstream broker` processes that reach it over S3. A child that ends by itself is started
//! again at its address, unless it was drained. Children stop in order when the pipe to their standard input ends: when the parent
//! stops them, and also when the parent is gone.

use crate::{
    config::{Period, Settings, TOKEN_VARIABLE},
    deployment::asked_to_stop,
    exit::Failure,
    output,
    stores::{BUCKET, S3Settings, StoreSettings, Stores},
};
use futures::future::join_all;
use refstream::types::StoreName;
use refstream_server::PeerToken;
use serde_json::Value;
use std::{net::SocketAddr, path::PathBuf, process::Stdio, time::Duration};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, ChildStdin, Command},
};

/// Between the ports of one broker and those of the next.
const PORTS: u16 = 10;
/// A child that ended is started again after this pause.
const PAUSE: Duration = Duration::from_secs(1);

/// How children are started.
#[derive(Debug)]
struct Launch {
    config: PathBuf,
    /// With which brokers call each other, where they ask for one. By the environment: other users of the machine can see arguments.
    token: Option<PeerToken>,
}

/// A broker in a process of its own.
#[derive(Debug)]
pub(crate) struct Broker {
    process: Child,
    /// Held apart, since to wait for a process closes what it has of it.
    stdin: Option<ChildStdin>,
    grpc: SocketAddr,
    /// For clients.
    pub(crate) url: String,
    /// Health and metrics.
    pub(crate) http: SocketAddr,
}

impl Broker {
    /// Its process.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.process.id()
    }

    async fn start(launch: &Launch, listen: SocketAddr, http: SocketAddr) -> Result<Self, Failure> {
        let program = std::env::current_exe()?;
        let mut command = Command::new(program);
        if let Some(PeerToken(token)) = &launch.token {
            command.env(TOKEN_VARIABLE, token);
        }
        let mut process = command
            .arg("--config")
            .arg(&launch.config)
            .args(["--output", "json", "broker", "--until-stdin-ends"])
            .args(["--listen", &listen.to_string(), "--http", &http.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let mut line = String::new();
        if let Some(stdout) = process.stdout.take() {
            BufReader::new(stdout).read_line(&mut line).await?;
        }
        let stdin = process.stdin.take();
        let said: Option<Value> = serde_json::from_str(&line).ok();
        let url = |name: &str| said.as_ref()?[name].as_str().map(ToOwned::to_owned);
        let address = |name: &str| url(name)?.rsplit_once('/')?.1.parse().ok();
        match (url("grpc"), address("grpc"), address("http")) {
            (Some(url), Some(grpc), Some(http)) => Ok(Self { process, stdin, grpc, url, http }),
            _ => Err(Failure::failed(format!("the broker at {listen} did not start"))),
        }
    }

    /// Lets it run, and starts it again when it ends; until it is drained.
    async fn keep(&mut self, launch: &Launch) {
        loop {
            let ended = self.process.wait().await;
            if ended.as_ref().is_ok_and(|status| status.success()) {
                output::notice(format_args!("refstream: the broker at {} was drained", self.grpc));
                return std::future::pending().await;
            }
            let how = ended.map_or_else(|error| error.to_string(), |status| status.to_string());
            output::notice(format_args!("refstream: the broker at {} ended ({how}): starting it again", self.grpc));
            loop {
                tokio::time::sleep(PAUSE).await;
                match Self::start(launch, self.grpc, self.http).await {
                    Ok(started) => {
                        *self = started;
                        break;
                    }
                    Err(failure) => output::notice(format_args!("refstream: {}", failure.text())),
                }
            }
            let pid = self.pid().unwrap_or_default();
            output::notice(format_args!("refstream: the broker at {} runs again: process {pid}", self.grpc));
        }
    }

    /// Has it stop in order.
    async fn stop(&mut self) {
        drop(self.stdin.take());
        let _ = self.process.wait().await;
    }
}

/// Several brokers, and the embedded store that they share.
#[derive(Debug)]
pub(crate) struct Brokers {
    pub(crate) brokers: Vec<Broker>,
    pub(crate) stores: Stores,
    launch: Launch,
}

/// Starts a store and `count` brokers. `embedded`: the name of the embedded store, which holds the metadata; `token`: with which the brokers
/// call each other.
pub(crate) async fn start(
    mut settings: Settings,
    embedded: &StoreName,
    count: u16,
    token: Option<String>,
) -> Result<Brokers, Failure> {
    let stores = Stores::open(&settings).await?;
    let Some((_, store)) = &stores.embedded else {
        return Err(Failure::usage("several brokers are started on the embedded store only"));
    };
    let folder = settings.broker.data.canonicalize()?;
    let reached = S3Settings {
        endpoint: format!("http://{}", store.s3.address()),
        credentials_file: Some(folder.join("credentials.toml")),
        ..S3Settings::plain(BUCKET)
    };
    settings.stores.insert(embedded.clone(), StoreSettings::S3(reached));
    // As for the store in the process: it is on this machine all the same.
    let local = settings.broker.core(true);
    settings.broker.linger = Some(Period(local.linger));
    settings.broker.linger_when_idle = Some(Period(local.linger_when_idle));
    settings.broker.death_after = Some(Period(local.death_after));
    let config = folder.join("brokers.toml");
    let text = toml::to_string(&settings)
        .map_err(|error| Failure::failed(format!("the brokers' configuration cannot be written: {error}")))?;
    std::fs::write(&config, text)?;
    let launch = Launch { config, token: token.map(PeerToken) };
    let mut brokers = Vec::new();
    for number in 0..count {
        let [listen, http] = [settings.broker.listen, settings.broker.http].map(|mut address| {
            if address.port() > 0 {
                address.set_port(address.port().saturating_add(number * PORTS));
            }
            address
        });
        brokers.push(Broker::start(&launch, listen, http).await?);
    }
    Ok(Brokers { brokers, stores, launch })
}

impl Brokers {
    /// Keeps them running until asked to stop, then stops them in order.
    pub(crate) async fn serve(mut self) -> Result<(), Failure> {
        let launch = &self.launch;
        tokio::select! {
            () = asked_to_stop() => {}
            _ = join_all(self.brokers.iter_mut().map(|broker| broker.keep(launch))) => {}
        }
        output::notice(format_args!("refstream: stopping the brokers (a second signal ends at once)"));
        let stopped = async {
            join_all(self.brokers.iter_mut().map(Broker::stop)).await;
        };
        let result = tokio::select! {
            () = stopped => Ok(()),
            () = asked_to_stop() => Err(Failure::interrupted()),
        };
        if let Some((_, embedded)) = self.stores.embedded {
            embedded.s3.stop().await;
        }
        result
    }
}
