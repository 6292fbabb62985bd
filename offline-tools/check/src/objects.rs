//! Checking the objects that a group of records refers to.

use crate::Finding;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use refstream::{
    Client, Delivery, FetchError, OpenStoreError, Payload,
    stores::{BlobStore, GetOptions, StoreErrorKind},
};
use refstream_types::{ByteRange, Key, Reference, StoreName};
use std::{collections::HashMap, sync::Arc};

/// Requests at once.
const REQUESTS: usize = 16;
/// Reads at once in a deep check; each holds up to [`SPAN_BYTES`] or one large payload's buffers.
const READS: usize = 8;
/// Objects whose size is remembered.
const REMEMBERED: usize = 100_000;
/// Blobs of a pack are read together up to this many bytes, and over gaps up to that many.
const SPAN_BYTES: u64 = 8 << 20;
const GAP_BYTES: u64 = 64 << 10;

type Object = (StoreName, Key);

/// What a group came to.
#[derive(Debug, Default)]
pub(crate) struct Resolved {
    /// Payload bytes that were hashed.
    pub(crate) bytes: u64,
    pub(crate) findings: Vec<Finding>,
}

/// What a store said of an object: its size, that there is none, or why it could not say.
type Answer = Result<Option<u64>, (&'static str, String)>;

/// Asks for objects, and remembers.
#[derive(Debug)]
pub(crate) struct Objects {
    client: Client,
    deep: bool,
    sizes: HashMap<Object, Answer>,
}

impl Objects {
    pub(crate) fn new(client: Client, deep: bool) -> Self {
        Self { client, deep, sizes: HashMap::new() }
    }

    /// Checks the references of these records.
    pub(crate) async fn resolve(&mut self, group: Vec<Delivery>) -> Resolved {
        let mut by_object: HashMap<Object, Vec<Blob>> = HashMap::new();
        for delivery in group {
            if let Some(blob) = Blob::of(&self.client, delivery) {
                let object = (blob.reference().store.clone(), blob.reference().key.clone());
                by_object.entry(object).or_default().push(blob);
            }
        }
        self.ask(by_object.keys()).await;
        let mut resolved = Resolved::default();
        let mut reads = Vec::new();
        for (object, blobs) in by_object {
            let answer = self.sizes.get(&object).cloned().unwrap_or(Ok(None));
            let mut good = Vec::new();
            for blob in blobs {
                match blob.check_size(&answer) {
                    Some(finding) => resolved.findings.push(finding),
                    None => good.push(blob),
                }
            }
            if self.deep
                && let Ok(store) = self.client.store(&object.0)
            {
                reads.extend(spans(good).into_iter().map(|span| read(Arc::clone(&store), object.1.clone(), span)));
            }
        }
        let mut outcomes = stream::iter(reads.into_iter().map(tokio::spawn)).buffer_unordered(READS);
        while let Some(outcome) = outcomes.next().await {
            // A read that was cancelled means that the program is shutting down.
            let Ok((bytes, findings)) = outcome else { break };
            resolved.bytes += bytes;
            resolved.findings.extend(findings);
        }
        resolved.findings.sort_by_key(|finding| (finding.partition, finding.offset));
        resolved
    }

    /// Asks for the sizes that are not known yet.
    async fn ask(&mut self, objects: impl Iterator<Item = &Object>) {
        if self.sizes.len() > REMEMBERED {
            self.sizes.clear();
        }
        let unknown: Vec<_> = objects.filter(|object| !self.sizes.contains_key(*object)).cloned().collect();
        let client = &self.client;
        let answers = stream::iter(unknown).map(|object| async move {
            let answer = size_of(client, &object).await;
            (object, answer)
        });
        let answers: Vec<_> = answers.buffer_unordered(REQUESTS).collect().await;
        self.sizes.extend(answers);
    }
}

async fn size_of(client: &Client, (store, key): &Object) -> Answer {
    let store = client.store(store).map_err(|error| (kind_of(&error), error.to_string()))?;
    match store.head(key).await {
        Ok(meta) => Ok(meta.map(|meta| meta.size)),
        Err(error) if error.kind == StoreErrorKind::Corrupt => Err(("damaged", error.to_string())),
        Err(error) => Err(("store", error.to_string())),
    }
}

/// One record's payload.
#[derive(Debug)]
struct Blob {
    payload: Payload,
    topic: String,
    partition: u32,
    offset: u64,
    object: String,
}

impl Blob {
    fn of(client: &Client, delivery: Delivery) -> Option<Self> {
        let payload = delivery.payload(client)?;
        let reference = payload.reference();
        let object = match client.store(&reference.store) {
            Ok(store) => store.uri(&reference.key),
            Err(_) => format!("{}: {}", reference.store, reference.key),
        };
        Some(Self {
            topic: delivery.topic.to_string(),
            partition: delivery.partition.0,
            offset: delivery.offset.0,
            object,
            payload,
        })
    }
    fn reference(&self) -> &Reference {
        self.payload.reference()
    }
    fn finding(&self, kind: &'static str, detail: String) -> Finding {
        Finding {
            kind,
            topic: self.topic.clone(),
            partition: self.partition,
            offset: self.offset,
            object: self.object.clone(),
            detail,
        }
    }
    fn check_size(&self, answer: &Answer) -> Option<Finding> {
        let range = self.reference().range();
        let end = range.end().unwrap_or(u64::MAX);
        match answer {
            Err((kind, why)) => Some(self.finding(kind, why.clone())),
            Ok(None) => Some(self.finding("missing", "the object does not exist; restore it from a copy".to_owned())),
            Ok(Some(size)) if *size < end => {
                let detail = format!(
                    "the object has {size} bytes, the reference needs bytes {}..{end}; restore it from a copy",
                    range.offset
                );
                Some(self.finding("size", detail))
            }
            Ok(Some(_)) => None,
        }
    }
    /// Fetches and hashes the payload by itself.
    async fn fetch(&self) -> Result<u64, Finding> {
        let outcome = self.payload.copy_to(&mut tokio::io::sink()).await;
        outcome.map_err(|error| self.finding(kind_of(&error), error.to_string()))
    }
}

fn kind_of(error: &FetchError) -> &'static str {
    match error {
        FetchError::Open(OpenStoreError::Unknown { .. }) | FetchError::Open(_) | FetchError::Store(_) => "store",
        FetchError::Missing(_) => "missing",
        FetchError::Overwritten(_) => "overwritten",
        _ => "damaged",
    }
}

/// Splits the blobs of an object into runs that are read together.
fn spans(mut blobs: Vec<Blob>) -> Vec<Vec<Blob>> {
    blobs.sort_by_key(|blob| blob.reference().range().offset);
    let mut spans: Vec<Vec<Blob>> = Vec::new();
    let (mut start, mut end) = (0, 0);
    for blob in blobs {
        let range = blob.reference().range();
        let blob_end = range.offset + range.length;
        match spans.last_mut() {
            Some(span) if range.offset <= end + GAP_BYTES && blob_end.max(end) - start <= SPAN_BYTES => {
                end = end.max(blob_end);
                span.push(blob);
            }
            _ => {
                (start, end) = (range.offset, blob_end);
                spans.push(vec![blob]);
            }
        }
    }
    spans
}

/// Reads a run of blobs and hashes each. Whatever fails is read again by itself, which says exactly what is wrong.
async fn read(store: Arc<dyn BlobStore>, key: Key, span: Vec<Blob>) -> (u64, Vec<Finding>) {
    let together = if span.len() > 1 { read_together(&*store, &key, &span).await } else { None };
    let (mut bytes, mut findings) = (0, Vec::new());
    for blob in span {
        let from_run = together.as_ref().and_then(|(start, run)| {
            let range = blob.reference().range();
            let from = (range.offset - start) as usize;
            let stored =
                (from + range.length as usize <= run.len()).then(|| run.slice(from..from + range.length as usize))?;
            blob.payload.verify_stored(stored).ok()
        });
        match from_run {
            Some(content) => bytes += content.len() as u64,
            None => match blob.fetch().await {
                Ok(length) => bytes += length,
                Err(finding) => findings.push(finding),
            },
        }
    }
    (bytes, findings)
}

async fn read_together(store: &dyn BlobStore, key: &Key, span: &[Blob]) -> Option<(u64, Bytes)> {
    let offset = span.first()?.reference().range().offset;
    let end = span.iter().filter_map(|blob| blob.reference().range().end()).max()?;
    let range = Some(ByteRange { offset, length: end - offset });
    let found = store.get(key, &GetOptions { range, ..GetOptions::default() }).await.ok()?;
    let pieces: Vec<Bytes> = found.body.try_collect().await.ok()?;
    Some((offset, pieces.concat().into()))
}
