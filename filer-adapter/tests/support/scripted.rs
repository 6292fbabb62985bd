//! A server that follows a script.

#![allow(clippy::unwrap_used, dead_code, reason = "tests; each uses a part of it")]

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// What the server does with a request that it has read in full.
pub(crate) enum Answer {
    /// Writes this.
    Text(String),
    /// Writes this and closes the connection.
    Last(String),
    /// Closes the connection.
    Nothing,
}

pub(crate) fn answer(status: &str, headers: &str, body: &str) -> Answer {
    Answer::Text(format!("HTTP/1.1 {status}\r\n{headers}content-length: {}\r\n\r\n{body}", body.len()))
}

/// A server that gives the answers in order; each request's head is kept, in lower case.
pub(crate) struct Server {
    pub(crate) endpoint: String,
    pub(crate) heads: Arc<Mutex<Vec<String>>>,
}

impl Server {
    pub(crate) async fn start(answers: impl IntoIterator<Item = Answer>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let answers = Arc::new(Mutex::new(answers.into_iter().collect::<VecDeque<_>>()));
        let heads = Arc::<Mutex<Vec<String>>>::default();
        let seen = Arc::clone(&heads);
        tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                tokio::spawn(serve(connection, Arc::clone(&answers), Arc::clone(&seen)));
            }
        });
        Self { endpoint, heads }
    }

    pub(crate) fn requests(&self) -> usize {
        self.heads.lock().unwrap().len()
    }
}

async fn serve(mut connection: TcpStream, answers: Arc<Mutex<VecDeque<Answer>>>, heads: Arc<Mutex<Vec<String>>>) {
    let mut buffer = Vec::new();
    loop {
        let end = loop {
            if let Some(at) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
                break at + 4;
            }
            if connection.read_buf(&mut buffer).await.unwrap_or(0) == 0 {
                return;
            }
        };
        let head = String::from_utf8_lossy(&buffer[..end]).to_lowercase();
        let length = |line: &str| line.strip_prefix("content-length: ").and_then(|n| n.trim().parse::<usize>().ok());
        let length = head.lines().find_map(length).unwrap_or(0);
        if head.contains("expect: 100-continue") {
            connection.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await.unwrap();
        }
        while buffer.len() < end + length {
            if connection.read_buf(&mut buffer).await.unwrap_or(0) == 0 {
                return;
            }
        }
        buffer.drain(..end + length);
        heads.lock().unwrap().push(head);
        let next = answers.lock().unwrap().pop_front();
        match next {
            Some(Answer::Text(text)) => connection.write_all(text.as_bytes()).await.unwrap(),
            Some(Answer::Last(text)) => {
                connection.write_all(text.as_bytes()).await.unwrap();
                return;
            }
            Some(Answer::Nothing) | None => return,
        }
    }
}
