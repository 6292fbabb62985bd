//! What every store must do, as tests that each implementation runs: [`run_all`].
//!
//! A breach panics and says which promise is broken. Objects are made below a random prefix and removed in the end.

#![allow(clippy::unwrap_used, reason = "a test suite")]

mod blobs;
mod filers;
mod multipart;

use crate::{BlobStore, Filer, Runtime};
use bytes::Bytes;
use refstream_types::{Key, MAX_KEY_COMPONENT_BYTES, Token};
use std::{fmt::Debug, sync::Arc};

/// The two faces of a store.
#[derive(Clone, Debug)]
pub struct Store {
    /// The small-object namespace.
    pub filer: Arc<dyn Filer>,
    /// The payloads.
    pub blobs: Arc<dyn BlobStore>,
}

impl Store {
    /// A store that has both faces.
    pub fn new<S: Filer + BlobStore>(store: Arc<S>) -> Self {
        Self { filer: Arc::clone(&store) as Arc<dyn Filer>, blobs: store }
    }
}

/// Runs the whole suite. `open` gives a store for each part of it: a new one, or the same bucket again.
///
/// Needs a tokio runtime with several threads, so that parallel requests are.
///
/// # Panics
/// When the store breaks a promise.
pub async fn run_all<F, Fut>(open: F, runtime: Arc<dyn Runtime>)
where
    F: Fn() -> Fut,
    Fut: Future<Output = Store>,
{
    filers::run(&Bench::new(open().await, &*runtime)).await;
    blobs::run(&Bench::new(open().await, &*runtime)).await;
    multipart::run(&Bench::new(open().await, &*runtime)).await;
}

/// Runs the part of the suite that is about the small-object namespace.
///
/// # Panics
/// When the store breaks a promise.
pub async fn run_filer(store: Store, runtime: Arc<dyn Runtime>) {
    filers::run(&Bench::new(store, &*runtime)).await;
}

/// Runs what brokers rely on when they reach one namespace by different ways: several gateways, or several servers of metadata behind them.
/// Each of `doors` is one way.
///
/// # Panics
/// When the doors do not lead to one namespace that keeps the contract, or there are none.
pub async fn run_together(doors: &[Store], runtime: Arc<dyn Runtime>) {
    let bench = Bench::new(doors[0].clone(), &*runtime);
    let doors: Vec<_> = doors.iter().map(|door| Arc::clone(&door.filer)).collect();
    filers::run_together(&bench, &doors).await;
}

/// Runs the part of the suite that is about payloads, for a store that is no filer.
///
/// # Panics
/// When the store breaks a promise.
pub async fn run_blobs(store: Arc<dyn BlobStore>, runtime: Arc<dyn Runtime>) {
    let bench = Bench { filer: None, blobs: store, place: runtime.token() };
    blobs::run(&bench).await;
    multipart::run(&bench).await;
}

/// A store and a place in it of which nobody else knows.
struct Bench {
    filer: Option<Arc<dyn Filer>>,
    blobs: Arc<dyn BlobStore>,
    place: Token,
}

impl Bench {
    fn new(store: Store, runtime: &dyn Runtime) -> Self {
        Self { filer: Some(store.filer), blobs: store.blobs, place: runtime.token() }
    }

    fn prefix(&self, rest: &str) -> String {
        format!("conformance/{}/{rest}", self.place)
    }

    fn key(&self, name: &str) -> Key {
        self.prefix(name).parse().unwrap()
    }

    fn filer(&self) -> &Arc<dyn Filer> {
        self.filer.as_ref().unwrap()
    }

    async fn clean(&self) {
        let Some(filer) = &self.filer else { return };
        loop {
            let left = filer.list(&self.prefix(""), None, 100).await.unwrap();
            if left.is_empty() {
                return;
            }
            for listed in left {
                filer.remove(&listed.key).await.unwrap();
            }
        }
    }
}

/// Keys that some store or tool trips over.
fn odd_names() -> Vec<String> {
    let mut names: Vec<String> = [
        "a space",
        "plus+and%percent",
        "%2F",
        "%",
        "ünïcödé/日本語/🦀",
        "quote'\"<&>",
        "question?mark#hash",
        "semi;colon=and,comma",
        "tilde~!$()*@:[]{}|^`",
        ".hidden",
        "ends.",
        "a",
        "a/b",
        "a/b/c",
        "a.b",
        "A",
    ]
    .map(String::from)
    .into();
    names.push("long".repeat(40));
    names.push(format!("{}/{}", "x".repeat(200), "y".repeat(255)));
    names
}

/// Names that a store may refuse, as invalid, but never confuse with others; no [`Layout`](refstream_types::Layout) makes them: a part that
/// is longer than any of ours, and a backslash, which some stores take for a slash.
fn refusable_names() -> [String; 2] {
    ["z".repeat(MAX_KEY_COMPONENT_BYTES + 45), "back\\slash".to_owned()]
}

/// `length` bytes that do not repeat soon, different for each `seed`.
fn noise(seed: u64, length: usize) -> Bytes {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes.into()
}
