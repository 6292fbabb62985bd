//! A SeaweedFS of separate processes: a master, volume servers, filers and S3 gateways, each of which can be killed and started again.

use super::{ACCESS_KEY, BUCKET, SECRET_KEY, STARTS, binary, get};
use crate::spoken::Spoken;
use std::{
    io::Write as _,
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};
use tempfile::TempDir;

/// What a cluster consists of, beside its one master.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Volume servers.
    pub volumes: usize,
    /// Filers, each with a metadata store of its own; they tell each other what they have.
    pub filers: usize,
    /// S3 gateways: the filer that each of them asks.
    pub gateways: Vec<usize>,
    /// Everything that speaks HTTP speaks HTTPS, with the certificate of [`tls`].
    pub https: bool,
}

impl Default for Plan {
    fn default() -> Self {
        Self { volumes: 1, filers: 1, gateways: vec![0], https: false }
    }
}

/// A file of `tests/integration/tls`: `ca.pem`, and the certificate and key of loopback that it signed.
pub fn tls(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tls").join(file)
}

/// What SeaweedFS is told of HTTPS.
fn security() -> String {
    let [ca, certificate, key] = ["ca.pem", "server.pem", "server.key"].map(|file| tls(file).display().to_string());
    let own = format!("cert = \"{certificate}\"\nkey = \"{key}\"\n");
    let servers = ["master", "volume", "filer"].map(|server| format!("[https.{server}]\n{own}"));
    format!("[https.client]\nenabled = true\nca = \"{ca}\"\n{own}{}", servers.concat())
}

/// How often the master is asked whether it has heard of a volume server that speaks HTTPS.
const ASKED: usize = 60;
/// Volumes that a volume server has room for.
const VOLUMES_EACH: usize = 200;

/// One process of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The master.
    Master,
    /// A volume server.
    Volume(usize),
    /// A filer.
    Filer(usize),
    /// An S3 gateway.
    Gateway(usize),
}

#[derive(Debug)]
struct Running {
    part: Part,
    http: SocketAddr,
    grpc: SocketAddr,
    process: Option<Child>,
    spoken: Option<Spoken>,
}

impl Running {
    /// As SeaweedFS writes an address with its gRPC port.
    fn both(&self) -> String {
        format!("{}.{}", self.http, self.grpc.port())
    }
    fn kill(&mut self) {
        if let Some(mut child) = self.process.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A running cluster on loopback, in a temporary folder; killed when dropped.
#[derive(Debug)]
pub struct Cluster {
    // Before the folder, so that the processes end first.
    parts: Vec<Running>,
    folder: TempDir,
    plan: Plan,
}

impl Cluster {
    /// Starts one and waits until volumes can be written and, where there is a gateway, its bucket exists.
    ///
    /// # Panics
    /// When it does not start.
    pub fn start(plan: Plan) -> Self {
        for _ in 0..STARTS {
            let folder = TempDir::new().expect("a temporary folder");
            if plan.https {
                std::fs::write(folder.path().join("security.toml"), security()).expect("security.toml");
            }
            let mut all = vec![Part::Master];
            all.extend((0..plan.volumes).map(Part::Volume));
            all.extend((0..plan.filers).map(Part::Filer));
            all.extend((0..plan.gateways.len()).map(Part::Gateway));
            // All at once, so that no port is given twice.
            let held: Vec<_> =
                (0..2 * all.len()).map(|_| TcpListener::bind("127.0.0.1:0").expect("a free port")).collect();
            let mut ports = held.iter().map(|held| held.local_addr().expect("an address"));
            let mut next = || ports.next().expect("a port each");
            let parts = all
                .into_iter()
                .map(|part| Running { part, http: next(), grpc: next(), process: None, spoken: None })
                .collect();
            drop(held);
            let mut cluster = Self { parts, folder, plan: plan.clone() };
            // A port that was free may be taken by then.
            if (0..cluster.parts.len()).all(|at| cluster.launch(at)) && cluster.has_volumes() && cluster.has_bucket() {
                return cluster;
            }
        }
        panic!("a cluster of weed does not start");
    }

    fn at(&self, part: Part) -> usize {
        self.parts.iter().position(|running| running.part == part).expect("a part of the plan")
    }

    fn of(&self, part: Part) -> &Running {
        &self.parts[self.at(part)]
    }

    fn command(&self, at: usize) -> Command {
        let folder = self.folder.path();
        let running = &self.parts[at];
        let mut command = Command::new(binary());
        command
            .env("HOME", folder)
            .env("AWS_ACCESS_KEY_ID", ACCESS_KEY)
            .env("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
            .current_dir(folder);
        let place = |name: String| {
            let place = folder.join(name);
            std::fs::create_dir_all(&place).expect("a folder of its own");
            place.display().to_string()
        };
        let socket = |name: String| folder.join(name).display().to_string();
        let master = self.of(Part::Master).both();
        match running.part {
            Part::Master => {
                command.args(["master", "-ip=127.0.0.1", "-telemetry=false", "-volumeSizeLimitMB=64", "-peers=none"]);
                command.arg(format!("-mdir={}", place("master".into())));
            }
            Part::Volume(n) => {
                command.args([
                    "volume",
                    "-ip=127.0.0.1",
                    &format!("-max={VOLUMES_EACH}"),
                    &format!("-master={master}"),
                ]);
                command.arg(format!("-dir={}", place(format!("volume{n}"))));
            }
            Part::Filer(n) => {
                command.args(["filer", "-ip=127.0.0.1", &format!("-master={master}")]);
                command.arg(format!("-defaultStoreDir={}", place(format!("filer{n}"))));
                command.arg(format!("-localSocket={}", socket(format!("filer{n}.sock"))));
            }
            Part::Gateway(n) => {
                let filer = self.of(Part::Filer(self.plan.gateways[n])).both();
                command.args(["s3", "-port.iceberg=0", "-port.lance=0", &format!("-filer={filer}")]);
                command.arg(format!("-localSocket={}", socket(format!("gateway{n}.sock"))));
                if self.plan.https {
                    command.arg(format!("-cert.file={}", tls("server.pem").display()));
                    command.arg(format!("-key.file={}", tls("server.key").display()));
                }
            }
        }
        command.args([
            "-ip.bind=127.0.0.1",
            &format!("-port={}", running.http.port()),
            &format!("-port.grpc={}", running.grpc.port()),
        ]);
        command
    }

    /// Starts a process; whether it came to serve.
    fn launch(&mut self, at: usize) -> bool {
        let (process, spoken) = Spoken::start(self.command(at));
        self.parts[at].process = Some(process);
        let serving = spoken.until(|| self.serves(self.parts[at].part));
        self.parts[at].spoken = Some(spoken);
        serving
    }

    fn serves(&self, part: Part) -> bool {
        if self.plan.https {
            // Plain HTTP is answered, too: that it is not wanted.
            return get(self.of(part).http, "/").is_some();
        }
        let answers = |path: &str, with: &str| {
            get(self.of(part).http, path).is_some_and(|(status, body)| status == 200 && body.contains(with))
        };
        match part {
            Part::Master => answers("/cluster/status", "\"IsLeader\":true"),
            Part::Volume(_) => {
                // The master must have heard of it, too.
                let known = get(self.of(Part::Master).http, "/dir/status");
                answers("/status", "") && known.is_some_and(|(_, body)| body.contains(&self.of(part).http.to_string()))
            }
            Part::Filer(_) => answers("/", ""),
            // It asks the filer before it answers.
            Part::Gateway(_) => get(self.of(part).http, "/").is_some_and(|(status, _)| status < 500),
        }
    }

    /// Whether the master has heard of the volume servers; of those that speak plain HTTP it is known already.
    fn has_volumes(&self) -> bool {
        // Servers without a volume are in no list, but what they have room for is in the total.
        let room = format!("/{} active", VOLUMES_EACH * self.plan.volumes);
        let known = || self.shell("volume.list").contains(&room);
        !self.plan.https || (0..ASKED).any(|_| known())
    }

    /// Makes the bucket, where there is a gateway to it.
    fn has_bucket(&self) -> bool {
        self.plan.gateways.is_empty() || self.shell(&format!("s3.bucket.create -name {BUCKET}")).contains(BUCKET)
    }

    /// What `weed shell` says to a command.
    ///
    /// # Panics
    /// When it cannot be run.
    pub fn shell(&self, line: &str) -> String {
        let mut command = Command::new(binary());
        command.arg("shell").arg(format!("-master={}", self.of(Part::Master).both()));
        if self.plan.filers > 0 {
            command.arg(format!("-filer={}", self.of(Part::Filer(0)).both()));
        }
        command.env("HOME", self.folder.path()).current_dir(self.folder.path());
        let mut shell = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("weed shell starts");
        let input = format!("lock\n{line}\nunlock\nexit\n");
        shell.stdin.take().expect("piped").write_all(input.as_bytes()).expect("it listens");
        let said = shell.wait_with_output().expect("it ends");
        String::from_utf8_lossy(&[said.stdout, said.stderr].concat()).into_owned()
    }

    /// `HOST:PORT` of the master.
    pub fn master(&self) -> String {
        self.of(Part::Master).http.to_string()
    }
    /// `HOST:PORT` of a volume server.
    pub fn volume(&self, number: usize) -> String {
        self.of(Part::Volume(number)).http.to_string()
    }
    /// `http://HOST:PORT` of a gateway, or `https://`.
    pub fn s3(&self, gateway: usize) -> String {
        let scheme = if self.plan.https { "https" } else { "http" };
        format!("{scheme}://{}", self.of(Part::Gateway(gateway)).http)
    }
    /// Where the volumes of a server are.
    pub fn data(&self, volume: usize) -> PathBuf {
        self.folder.path().join(format!("volume{volume}"))
    }
    /// Where a test may put files of its own.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
    /// What a process has printed since it was last started.
    pub fn log(&self, part: Part) -> String {
        self.of(part).spoken.as_ref().map(Spoken::said).unwrap_or_default()
    }

    /// `kill -9`.
    pub fn kill(&mut self, part: Part) {
        let at = self.at(part);
        self.parts[at].kill();
    }

    /// Starts a process again on the same folder and ports, and waits until it serves.
    ///
    /// # Panics
    /// When it does not start.
    pub fn restart(&mut self, part: Part) {
        let at = self.at(part);
        assert!(self.parts[at].process.is_none(), "{part:?} runs already");
        assert!(self.launch(at), "{part:?} does not start again; it said:\n{}", self.log(part));
    }
}
