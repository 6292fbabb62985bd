//! moto, a second S3 server of other make: on loopback, in memory, killed when dropped.
//!
//! The binary is the one that `REFSTREAM_TEST_MOTO` names; `./test` installs it and sets the variable.

use crate::{
    seaweed::{STARTS, request},
    spoken::Spoken,
};
use std::{
    net::{SocketAddr, TcpListener},
    path::PathBuf,
    process::{Child, Command},
};

/// The bucket that exists from the start.
pub const BUCKET: &str = "refstream";

fn binary() -> PathBuf {
    let how = "run ./test, or: pip install 'moto[server]==5.2.5' (in a venv), then export REFSTREAM_TEST_MOTO=VENV/bin/moto_server";
    let path = std::env::var_os("REFSTREAM_TEST_MOTO")
        .map(PathBuf::from)
        .unwrap_or_else(|| panic!("this test needs moto, and REFSTREAM_TEST_MOTO is not set: {how}"));
    assert!(path.is_file(), "REFSTREAM_TEST_MOTO names {}, which does not exist: {how}", path.display());
    path
}

/// A running moto server.
#[derive(Debug)]
pub struct Moto {
    process: Child,
    address: SocketAddr,
}

impl Moto {
    /// Starts one and waits until its bucket exists.
    ///
    /// # Panics
    /// When it does not start.
    pub fn start() -> Self {
        for _ in 0..STARTS {
            let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
            let address = free.local_addr().expect("an address");
            drop(free);
            let mut command = Command::new(binary());
            command.args(["-H", "127.0.0.1", "-p", &address.port().to_string()]);
            let (process, spoken) = Spoken::start(command);
            let moto = Self { process, address };
            let has_bucket = || {
                let made = request("PUT", address, &format!("/{BUCKET}"));
                made.is_some_and(|(status, _)| status == 200)
            };
            if spoken.until(has_bucket) {
                return moto;
            }
        }
        panic!("moto does not start");
    }

    /// `http://HOST:PORT`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
