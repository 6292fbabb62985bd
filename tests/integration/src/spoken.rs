//! What a server process prints, each line an occasion to look whether it serves.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

/// A process that prints nothing is looked at this often.
const SILENCE: Duration = Duration::from_millis(100);
/// After so many silences it is given up.
const SILENCES: u32 = 1_200;

/// The output of a process, both streams together.
#[derive(Debug)]
pub(crate) struct Spoken {
    lines: mpsc::Receiver<()>,
    said: Arc<Mutex<String>>,
}

impl Spoken {
    /// Starts a process and listens to it.
    ///
    /// # Panics
    /// When it cannot be started.
    pub(crate) fn start(mut command: Command) -> (Child, Self) {
        let (output, input) = std::io::pipe().expect("a pipe");
        command.stdin(Stdio::null()).stdout(input.try_clone().expect("a pipe")).stderr(input);
        let child = command.spawn().expect("the server starts");
        let (heard, lines) = mpsc::channel();
        let said: Arc<Mutex<String>> = Arc::default();
        let kept = Arc::clone(&said);
        thread::spawn(move || {
            // To the end, heard or not: a full pipe would stop the process.
            for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                let mut kept = kept.lock().expect("no thread panicked");
                kept.push_str(&String::from_utf8_lossy(&line));
                kept.push('\n');
                let _ = heard.send(());
            }
        });
        (child, Self { lines, said })
    }

    /// Waits until it `serves`; false when it ended before, or has been silent for long.
    pub(crate) fn until(&self, serves: impl Fn() -> bool) -> bool {
        let mut silences = 0;
        while silences < SILENCES {
            if serves() {
                return true;
            }
            match self.lines.recv_timeout(SILENCE) {
                Ok(()) => while self.lines.try_recv().is_ok() {},
                Err(RecvTimeoutError::Timeout) => silences += 1,
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
        false
    }

    /// All that it has said.
    pub(crate) fn said(&self) -> String {
        self.said.lock().expect("no thread panicked").clone()
    }
}
