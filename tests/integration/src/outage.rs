//! A proxy before a store, request by request: it counts them, can answer all of them with 503 or refuse every write as from a full disk, and can do to
//! some of them, by chance, what networks and stores do at their worst.

use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use std::{
    collections::BTreeMap,
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex, MutexGuard},
    thread,
};

/// The longest head of a request or answer.
const MAX_HEAD: u64 = 64 << 10;
/// A trickle hands on this many bytes one by one, in each direction, at the beginning and again at the end.
const TRICKLE: usize = 200;

/// What can happen to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// 503, and the store never hears of it.
    SlowDown,
    /// The connection breaks at some byte of the request; the store sees what came before.
    RequestReset,
    /// The store does what it was asked; the connection breaks at some byte of its answer.
    AnswerReset,
    /// The store does what it was asked; the answer is 500.
    AppliedBut500,
    /// Both directions come byte by byte for a while.
    Trickle,
    /// A write is answered with 409, and the store never hears of it.
    Conflict,
    /// A write is answered with 412, and the store never hears of it.
    PreconditionFailed,
    /// A write is answered with 507, and the store never hears of it.
    Full,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::SlowDown,
        Self::RequestReset,
        Self::AnswerReset,
        Self::AppliedBut500,
        Self::Trickle,
        Self::Conflict,
        Self::PreconditionFailed,
        Self::Full,
    ];

    fn is_of_writes(self) -> bool {
        matches!(self, Self::Conflict | Self::PreconditionFailed | Self::Full)
    }
}

/// What happens to requests by chance.
#[derive(Debug)]
struct Misbehaviour {
    random: StdRng,
    faults: Vec<Fault>,
    one_in: u32,
}

#[derive(Debug, Default)]
struct State {
    /// Connections, of both sides, that pass bytes on.
    open: Vec<TcpStream>,
    is_out: bool,
    is_full: bool,
    misbehaves: Option<Misbehaviour>,
    refused: u64,
    requests: u64,
    happened: BTreeMap<Fault, u64>,
    /// Heads of requests, while they are kept.
    heads: Option<Vec<String>>,
}

impl State {
    /// What happens to a request.
    fn decide(&mut self, writes: bool) -> Option<Fault> {
        self.requests += 1;
        if self.is_out {
            self.refused += 1;
            return Some(Fault::SlowDown);
        }
        if self.is_full && writes {
            self.refused += 1;
            return Some(Fault::Full);
        }
        let misbehaviour = self.misbehaves.as_mut()?;
        if !misbehaviour.random.random_ratio(1, misbehaviour.one_in) {
            return None;
        }
        let fault = misbehaviour.faults[misbehaviour.random.random_range(0..misbehaviour.faults.len())];
        if fault.is_of_writes() && !writes {
            return None;
        }
        *self.happened.entry(fault).or_default() += 1;
        Some(fault)
    }

    /// A number below `limit`, of chance.
    fn below(&mut self, limit: usize) -> usize {
        self.misbehaves.as_mut().map_or(0, |misbehaviour| misbehaviour.random.random_range(0..limit.max(1)))
    }
}

/// The proxy; it ends with the test's process.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl Proxy {
    /// Starts one before the server at `target`.
    ///
    /// # Panics
    /// When it cannot listen.
    pub fn before(target: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("its address");
        let state: Arc<Mutex<State>> = Arc::default();
        let (target, shared) = (target.to_owned(), Arc::clone(&state));
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (target, state) = (target.clone(), Arc::clone(&shared));
                // However a connection ends, it concerns nobody else.
                thread::spawn(move || serve(&client, &target, &state));
            }
        });
        Self { address, state }
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// From now on every request is answered with 503, and what is under way is cut.
    pub fn go_out(&self) {
        let mut state = self.state();
        state.is_out = true;
        for stream in state.open.drain(..) {
            // It may be closed already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// From now on every write is refused as from a full disk.
    pub fn fill_up(&self) {
        self.state().is_full = true;
    }

    /// The store is back, and has room.
    pub fn come_back(&self) {
        let mut state = self.state();
        (state.is_out, state.is_full) = (false, false);
    }

    /// From now on one in `one_in` requests meets one of these faults.
    pub fn misbehave(&self, seed: u64, one_in: u32, faults: &[Fault]) {
        let random = StdRng::seed_from_u64(seed);
        self.state().misbehaves = Some(Misbehaviour { random, faults: faults.to_vec(), one_in });
    }

    /// No more faults of chance.
    pub fn behave(&self) {
        self.state().misbehaves = None;
    }

    /// How many requests were refused while it was out or full.
    pub fn refused(&self) -> u64 {
        self.state().refused
    }

    /// How many requests there were.
    pub fn requests(&self) -> u64 {
        self.state().requests
    }

    /// From now on the heads of requests are kept.
    pub fn keep_heads(&self) {
        self.state().heads = Some(Vec::new());
    }

    /// The heads that were kept, in small letters but for the first line.
    pub fn heads(&self) -> Vec<String> {
        self.state().heads.clone().unwrap_or_default()
    }

    /// Which faults of chance there were, and how often.
    pub fn happened(&self) -> BTreeMap<Fault, u64> {
        self.state().happened.clone()
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().expect("no thread panicked")
}

/// The head of a request or answer, and how its body ends.
struct Head {
    text: String,
}

impl Head {
    /// `None` at the end of the connection.
    fn read(from: &mut impl io::BufRead) -> io::Result<Option<Self>> {
        let mut text = Vec::new();
        while !text.ends_with(b"\r\n\r\n") {
            if from.take(MAX_HEAD).read_until(b'\n', &mut text)? == 0 {
                return if text.is_empty() { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            }
        }
        let text = String::from_utf8(text).map_err(io::Error::other)?;
        Ok(Some(Self { text }))
    }
    fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.text.lines().filter_map(|line| line.split_once(':'));
        lines.find_map(|(header, value)| header.eq_ignore_ascii_case(name).then_some(value.trim()))
    }
    fn is(&self, method: &str) -> bool {
        self.text.split(' ').next() == Some(method)
    }
    fn status(&self) -> u16 {
        self.text.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
    }
    /// The body as it is on the wire. `to_end`: without a length it ends with the connection.
    fn body(&self, from: &mut impl io::BufRead, to_end: bool) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        if self.header("transfer-encoding").is_some_and(|how| how.eq_ignore_ascii_case("chunked")) {
            loop {
                let start = body.len();
                from.take(MAX_HEAD).read_until(b'\n', &mut body)?;
                let size = String::from_utf8_lossy(&body[start..]).trim().to_owned();
                let size =
                    u64::from_str_radix(size.split(';').next().unwrap_or_default(), 16).map_err(io::Error::other)?;
                from.take(size + 2).read_to_end(&mut body)?;
                if size == 0 {
                    return Ok(body);
                }
            }
        }
        match self.header("content-length").and_then(|length| length.parse::<u64>().ok()) {
            Some(length) => {
                from.take(length).read_to_end(&mut body)?;
                if body.len() as u64 != length {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
            None if to_end => {
                from.read_to_end(&mut body)?;
            }
            None => {}
        }
        Ok(body)
    }
}

/// An answer in S3's words, on a connection that is closed after it.
fn refusal(status: &str, code: &str) -> Vec<u8> {
    let body =
        format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>As the test has it.</Message></Error>");
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status}\r\ncontent-type: application/xml\r\ncontent-length: {length}\r\nconnection: close");
    format!("{head}\r\n\r\n{body}").into_bytes()
}

/// Sends what was read whole; the beginning and the end byte by byte, when it trickles.
fn send(mut to: &TcpStream, bytes: &[u8], trickles: bool) -> io::Result<()> {
    let slow = if trickles { TRICKLE.min(bytes.len() / 2) } else { 0 };
    let (start, rest) = bytes.split_at(slow);
    let (middle, end) = rest.split_at(rest.len() - slow);
    for byte in start.chunks(1).chain(std::iter::once(middle)).chain(end.chunks(1)) {
        to.write_all(byte)?;
        if trickles {
            thread::yield_now();
        }
    }
    Ok(())
}

/// One client's connection, until either side or a fault ends it.
fn serve(client: &TcpStream, target: &str, state: &Mutex<State>) -> io::Result<()> {
    let server = TcpStream::connect(target)?;
    {
        let both = [client, &server].map(TcpStream::try_clone);
        let mut state = lock(state);
        state.open.extend(both.into_iter().flatten());
    }
    for stream in [client, &server] {
        stream.set_nodelay(true)?;
    }
    let outcome = relay(client, &server, state);
    for stream in [client, &server] {
        let _ = stream.shutdown(Shutdown::Both);
    }
    outcome
}

fn relay(client: &TcpStream, server: &TcpStream, state: &Mutex<State>) -> io::Result<()> {
    let (mut from_client, mut from_server) = (BufReader::new(client), BufReader::new(server));
    let mut to_client = client;
    while let Some(mut request) = Head::read(&mut from_client)? {
        let writes = request.is("PUT") || request.is("POST");
        let fault = {
            let mut state = lock(state);
            if let Some(heads) = &mut state.heads {
                let (line, headers) = request.text.split_once('\n').unwrap_or((&request.text, ""));
                heads.push(format!("{line}\n{}", headers.to_ascii_lowercase()));
            }
            state.decide(writes)
        };
        match fault {
            Some(Fault::SlowDown) => return to_client.write_all(&refusal("503 Service Unavailable", "SlowDown")),
            Some(Fault::Conflict) => {
                return to_client.write_all(&refusal("409 Conflict", "ConditionalRequestConflict"));
            }
            Some(Fault::PreconditionFailed) => {
                return to_client.write_all(&refusal("412 Precondition Failed", "PreconditionFailed"));
            }
            Some(Fault::Full) => {
                return to_client.write_all(&refusal("507 Insufficient Storage", "InsufficientStorage"));
            }
            _ => {}
        }
        if request.header("expect").is_some() {
            to_client.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
            request.text = request
                .text
                .split_inclusive("\r\n")
                .filter(|line| !line.to_ascii_lowercase().starts_with("expect:"))
                .collect();
        }
        if fault == Some(Fault::RequestReset) {
            let length = request.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
            let at = lock(state).below(request.text.len() + length);
            let mut sent = request.text.into_bytes();
            from_client.take(at.saturating_sub(sent.len()) as u64).read_to_end(&mut sent)?;
            sent.truncate(at);
            return send(server, &sent, false);
        }
        let trickles = fault == Some(Fault::Trickle);
        let body = request.body(&mut from_client, false)?;
        send(server, &[request.text.as_bytes(), &body].concat(), trickles)?;
        let answer = loop {
            let answer = Head::read(&mut from_server)?.ok_or(io::ErrorKind::UnexpectedEof)?;
            if answer.status() >= 200 {
                break answer;
            }
        };
        let has_body = !request.is("HEAD") && !matches!(answer.status(), 204 | 304);
        let mut whole = answer.text.clone().into_bytes();
        if has_body {
            whole.extend(answer.body(&mut from_server, true)?);
        }
        match fault {
            Some(Fault::AppliedBut500) => {
                return to_client.write_all(&refusal("500 Internal Server Error", "InternalError"));
            }
            Some(Fault::AnswerReset) => {
                let at = lock(state).below(whole.len());
                return send(client, &whole[..at], false);
            }
            _ => send(client, &whole, trickles)?,
        }
        let closes = |head: &Head| head.header("connection").is_some_and(|how| how.eq_ignore_ascii_case("close"));
        if closes(&request) || closes(&answer) {
            break;
        }
    }
    Ok(())
}
