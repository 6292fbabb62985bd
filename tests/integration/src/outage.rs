//! A proxy before a store that can be made to answer every request with 503.

use std::{
    io::{Read as _, Write as _, copy},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

/// What S3 says when it wants to be left alone, on a connection that it closes.
const SLOW_DOWN: &str = "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/xml\r\ncontent-length: 91\r\nconnection: close\r\n\r\n\
    <?xml version=\"1.0\"?><Error><Code>SlowDown</Code><Message>Please slow down.</Message></Error>";

#[derive(Debug, Default)]
struct State {
    /// Connections, of both sides, that pass bytes on.
    open: Vec<TcpStream>,
    is_out: bool,
    refused: u64,
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
                thread::spawn(move || serve(client, &target, &state));
            }
        });
        Self { address, state }
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// From now on every request is answered with 503, and what is under way is cut.
    ///
    /// # Panics
    /// When a thread of the proxy has panicked.
    pub fn go_out(&self) {
        let mut state = self.state.lock().expect("no thread panicked");
        state.is_out = true;
        for stream in state.open.drain(..) {
            // It may be closed already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// The store is back.
    ///
    /// # Panics
    /// When a thread of the proxy has panicked.
    pub fn come_back(&self) {
        self.state.lock().expect("no thread panicked").is_out = false;
    }

    /// How many requests were answered with 503.
    ///
    /// # Panics
    /// When a thread of the proxy has panicked.
    pub fn refused(&self) -> u64 {
        self.state.lock().expect("no thread panicked").refused
    }
}

fn serve(mut client: TcpStream, target: &str, state: &Mutex<State>) {
    let Ok(server) = TcpStream::connect(target) else { return };
    {
        let mut state = state.lock().expect("no thread panicked");
        if state.is_out {
            state.refused += 1;
            drop(state);
            // The head of the request, at least; its sender need not be heard out.
            let _ = client.read(&mut [0; 16 << 10]);
            let _ = client.write_all(SLOW_DOWN.as_bytes());
            return;
        }
        let both = [&client, &server].map(TcpStream::try_clone);
        state.open.extend(both.into_iter().flatten());
    }
    for stream in [&client, &server] {
        let _ = stream.set_nodelay(true);
    }
    let (Ok(mut from_server), Ok(mut to_client)) = (server.try_clone(), client.try_clone()) else { return };
    let answers = thread::spawn(move || {
        let _ = copy(&mut from_server, &mut to_client);
        let _ = to_client.shutdown(Shutdown::Both);
    });
    let mut server = server;
    let _ = copy(&mut client, &mut server);
    let _ = server.shutdown(Shutdown::Both);
    let _ = answers.join();
}
