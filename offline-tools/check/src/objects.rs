//! Checking the objects that a group of records refers to.

use crate::Finding;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use refstream::{
    BlockSums, Client, Delivery, FetchError, FetchedObject, OpenStoreError, Payload, UnreadableObject,
    stores::{BlobStore, GetOptions, StoreError, StoreErrorKind},
};
use refstream_format::pack::{self, PackEntry, PackFooter, TRAILER_BYTES};
use refstream_types::{ByteRange, Key, Reference, StoreName};
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};
use tokio::task::JoinSet;

/// Requests at once.
const REQUESTS: usize = 16;
/// Reads at once in a deep check; each holds up to [`SPAN_BYTES`] or one large payload's buffers.
const READS: usize = 8;
/// Objects that are remembered.
const REMEMBERED: usize = 100_000;
/// Blobs of a pack are read together up to this many bytes, and over gaps up to that many.
const SPAN_BYTES: u64 = 8 << 20;
const GAP_BYTES: u64 = 64 << 10;
/// The first and the longest wait before a store that does not answer is asked again.
const RETRY_FROM: Duration = Duration::from_millis(50);
const RETRY_TO: Duration = Duration::from_secs(2);

type Object = (StoreName, Key);

/// What a group came to.
#[derive(Debug, Default)]
pub(crate) struct Resolved {
    /// Payload bytes that were hashed.
    pub(crate) bytes: u64,
    pub(crate) findings: Vec<Finding>,
    /// Why the group could not be checked to its end.
    pub(crate) stopped: Option<FetchError>,
}

impl Resolved {
    /// Takes one outcome in; an error that tells nothing about the record ends the check.
    fn take(&mut self, outcome: Outcome) {
        self.bytes += outcome.0;
        self.findings.extend(outcome.1);
        if self.stopped.is_none() {
            self.stopped = outcome.2;
        }
    }
}

/// What a read came to: bytes hashed, findings, and why it could not go on.
type Outcome = (u64, Vec<Finding>, Option<FetchError>);

/// What a store said of an object: size and ETag, that there is none, or why no store can say.
type Answer = Result<Option<Known>, (&'static str, String)>;

/// What is known of an object that is there.
#[derive(Clone, Debug)]
struct Known {
    size: u64,
    etag: Option<String>,
}

/// Asks for objects, and remembers.
#[derive(Debug)]
pub(crate) struct Objects {
    client: Client,
    deep: bool,
    known: HashMap<Object, Answer>,
    /// Objects whose block checksums or footer were looked at.
    inspected: HashSet<Object>,
}

impl Objects {
    pub(crate) fn new(client: Client, deep: bool) -> Self {
        Self { client, deep, known: HashMap::new(), inspected: HashSet::new() }
    }

    /// Checks the references of these records. Only what is damaged or absent is a finding: a store that is out of reach, or that
    /// permits no access, ends the check.
    pub(crate) async fn resolve(&mut self, group: Vec<Delivery>) -> Resolved {
        let mut by_object: HashMap<Object, Vec<Blob>> = HashMap::new();
        for delivery in group {
            if let Some(blob) = Blob::of(&self.client, delivery) {
                let object = (blob.reference().store.clone(), blob.reference().key.clone());
                by_object.entry(object).or_default().push(blob);
            }
        }
        let mut resolved = Resolved::default();
        if let Err(error) = self.ask(by_object.keys()).await {
            resolved.stopped = Some(error);
            return resolved;
        }
        let mut reads = Vec::new();
        for (object, blobs) in by_object {
            let answer = self.known.get(&object).cloned().unwrap_or(Ok(None));
            let mut good = Vec::new();
            for blob in blobs {
                match blob.check(&answer) {
                    Some(finding) => resolved.findings.push(finding),
                    None => good.push(blob),
                }
            }
            if self.deep
                && let (Ok(store), Ok(Some(Known { size, .. }))) = (self.client.store(&object.0), answer)
            {
                let inspect = self.inspected.insert(object.clone());
                let spans = spans(good).into_iter().enumerate();
                reads.extend(spans.map(|(at, span)| {
                    let stored =
                        Stored { client: self.client.clone(), store: Arc::clone(&store), key: object.1.clone(), size };
                    read(stored, span, inspect && at == 0)
                }));
            }
        }
        // Dropping the set ends the reads that are left.
        let mut running = JoinSet::new();
        let mut reads = reads.into_iter();
        loop {
            while running.len() < READS
                && let Some(read) = reads.next()
            {
                running.spawn(read);
            }
            match running.join_next().await {
                Some(Ok(outcome)) => resolved.take(outcome),
                // Nobody knows what it would have found.
                Some(Err(error)) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                // All are done, or the program is shutting down.
                None | Some(Err(_)) => break,
            }
            if resolved.stopped.is_some() {
                break;
            }
        }
        resolved.findings.sort_by_key(|finding| (finding.partition, finding.offset));
        resolved
    }

    /// Asks for what is not known yet.
    async fn ask(&mut self, objects: impl Iterator<Item = &Object>) -> Result<(), FetchError> {
        if self.known.len() > REMEMBERED {
            self.known.clear();
            self.inspected.clear();
        }
        let unknown: Vec<_> = objects.filter(|object| !self.known.contains_key(*object)).cloned().collect();
        let client = &self.client;
        let answers = stream::iter(unknown).map(|object| async move {
            let answer = known_of(client, &object).await?;
            Ok::<_, FetchError>((object, answer))
        });
        let answers: Vec<_> = answers.buffer_unordered(REQUESTS).try_collect().await?;
        self.known.extend(answers);
        Ok(())
    }
}

async fn known_of(client: &Client, object: &Object) -> Result<Answer, FetchError> {
    let store = match client.store(&object.0) {
        Ok(store) => store,
        Err(error) if is_about_the_record(&error) => return Ok(Err((kind_of(&error), error.to_string()))),
        Err(error) => return Err(error),
    };
    match patiently(client, || store.head(&object.1)).await {
        Ok(meta) => Ok(Ok(meta.map(|meta| Known { size: meta.size, etag: meta.etag }))),
        Err(error) => {
            let error = unreadable(&*store, object, error);
            if is_about_the_record(&error) { Ok(Err((kind_of(&error), error.to_string()))) } else { Err(error) }
        }
    }
}

fn unreadable(store: &dyn BlobStore, (name, key): &Object, error: StoreError) -> FetchError {
    let object = FetchedObject { store: name.clone(), key: key.clone(), uri: Some(store.uri(key)), place: None };
    FetchError::Store(Box::new(UnreadableObject { object, error }))
}

/// Asks a store again for as long as the client's timeout; an answer that takes longer is none.
async fn patiently<T, F: Future<Output = Result<T, StoreError>>>(
    client: &Client,
    mut request: impl FnMut() -> F,
) -> Result<T, StoreError> {
    let (runtime, limit) = (client.runtime(), client.timeout());
    let started = runtime.now();
    let mut delay = RETRY_FROM;
    let mut last = None;
    loop {
        let left = limit.saturating_sub(runtime.now().saturating_sub(started));
        let error = tokio::select! {
            answer = request() => match answer {
                Err(error) if error.is_retryable() && error.kind != StoreErrorKind::Corrupt => error,
                other => return other,
            },
            () = runtime.sleep(left) => last.unwrap_or_else(|| StoreError {
                kind: StoreErrorKind::Unavailable,
                operation: "request",
                store: String::new(),
                key: None,
                message: "no answer in time".into(),
            }),
        };
        if runtime.now().saturating_sub(started) + delay > limit {
            return Err(error);
        }
        last = Some(error);
        runtime.sleep(delay).await;
        delay = (delay * 2).min(RETRY_TO);
    }
}

/// Whether an error says something of the one record; otherwise it is the store, or the access to it, and the next record would
/// fare no better.
fn is_about_the_record(error: &FetchError) -> bool {
    match error {
        FetchError::Missing(_) | FetchError::Damaged(_) | FetchError::Overwritten(_) | FetchError::TooLarge(_) => true,
        FetchError::Open(error) => matches!(error, OpenStoreError::Unknown { .. }),
        FetchError::Store(store) => matches!(
            store.error.kind,
            StoreErrorKind::NotFound | StoreErrorKind::Changed | StoreErrorKind::Corrupt | StoreErrorKind::Invalid
        ),
        FetchError::Sink(_) => false,
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
        let payload = delivery.payload(client)?.patience(client.timeout());
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
    fn check(&self, answer: &Answer) -> Option<Finding> {
        let range = self.reference().range();
        let end = range.end().unwrap_or(u64::MAX);
        match answer {
            Err((kind, why)) => Some(self.finding(kind, why.clone())),
            Ok(None) => Some(self.finding("missing", "the object does not exist; restore it from a copy".to_owned())),
            // An object attached with its version is there as long as the version is.
            Ok(Some(Known { etag, .. })) if self.reference().version.is_none() && self.is_other_than_pinned(etag) => {
                let detail = "the object was overwritten after the record was made: its etag is not the pinned one; \
                              restore it from a copy, or attach the new object";
                Some(self.finding("overwritten", detail.to_owned()))
            }
            Ok(Some(Known { size, .. })) if *size < end => {
                let detail = format!(
                    "the object has {size} bytes, the reference needs bytes {}..{end}; restore it from a copy",
                    range.offset
                );
                Some(self.finding("size", detail))
            }
            Ok(Some(_)) => None,
        }
    }
    fn is_other_than_pinned(&self, etag: &Option<String>) -> bool {
        self.reference().etag.is_some() && etag.is_some() && self.reference().etag != *etag
    }
    /// Fetches and hashes the payload by itself.
    async fn fetch(&self) -> Result<u64, FetchError> {
        self.payload.copy_to(&mut tokio::io::sink()).await
    }
    /// Lies in a pack of ours; ranges of attached objects have no checksum of the payload.
    fn is_in_pack(&self) -> bool {
        let reference = self.reference();
        reference.offset.is_some() && reference.etag.is_none() && reference.version.is_none()
    }
}

fn kind_of(error: &FetchError) -> &'static str {
    match error {
        FetchError::Store(store) if store.error.kind == StoreErrorKind::Corrupt => "damaged",
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

/// An object that is there.
struct Stored {
    client: Client,
    store: Arc<dyn BlobStore>,
    key: Key,
    size: u64,
}

impl Stored {
    async fn get(&self, range: ByteRange) -> Result<Bytes, StoreError> {
        let found = self.store.get(&self.key, &GetOptions { range: Some(range), ..GetOptions::default() }).await?;
        let pieces: Vec<Bytes> = found.body.try_collect().await?;
        Ok(pieces.concat().into())
    }
}

/// Reads a run of blobs and hashes each. Whatever fails is read again by itself, which says exactly what is wrong. With `inspect`
/// also what helps readers of the object: its block checksums, or a pack's footer.
async fn read(stored: Stored, span: Vec<Blob>, inspect: bool) -> Outcome {
    let mut outcome: Outcome = (0, Vec::new(), None);
    let together = if span.len() > 1 { read_together(&stored, &span).await } else { None };
    for (at, blob) in span.iter().enumerate() {
        if inspect && at == 0 {
            match inspected(&stored, blob).await {
                Ok(finding) => outcome.1.extend(finding),
                Err(error) => {
                    outcome.2 = Some(error);
                    return outcome;
                }
            }
        }
        let from_run = together.as_ref().and_then(|(start, run)| {
            let range = blob.reference().range();
            let from = (range.offset - start) as usize;
            let stored =
                (from + range.length as usize <= run.len()).then(|| run.slice(from..from + range.length as usize))?;
            blob.payload.verify_stored(stored).ok()
        });
        match from_run {
            Some(content) => outcome.0 += content.len() as u64,
            None => match blob.fetch().await {
                Ok(length) => outcome.0 += length,
                Err(error) if is_about_the_record(&error) => {
                    outcome.1.push(blob.finding(kind_of(&error), error.to_string()));
                }
                Err(error) => {
                    outcome.2 = Some(error);
                    return outcome;
                }
            },
        }
    }
    outcome
}

async fn read_together(stored: &Stored, span: &[Blob]) -> Option<(u64, Bytes)> {
    let offset = span.first()?.reference().range().offset;
    let end = span.iter().filter_map(|blob| blob.reference().range().end()).max()?;
    let run = patiently(&stored.client, || stored.get(ByteRange { offset, length: end - offset })).await.ok()?;
    Some((offset, run))
}

/// Looks at what helps readers of an object, of which `blob` is an example.
async fn inspected(stored: &Stored, blob: &Blob) -> Result<Option<Finding>, FetchError> {
    if blob.is_in_pack() {
        return Ok(match footer(stored, blob).await? {
            Ok(()) => None,
            Err(why) => Some(blob.finding(
                "footer",
                format!(
                    "the footer of this pack is damaged: {why}; its records resolve, but the pack no longer explains \
                     itself without them; restore it from a copy"
                ),
            )),
        });
    }
    Ok(match blob.payload.block_sums().await? {
        BlockSums::NotNeeded | BlockSums::Intact => None,
        BlockSums::Unusable { key, why } => Some(Finding {
            object: stored.store.uri(&key),
            ..blob.finding(
                "block-sums",
                format!(
                    "the block checksums of the object {} cannot be used: {why}; for a range, all of it is read",
                    blob.object
                ),
            )
        }),
    })
}

/// Whether the store was told that the object is a pack.
async fn is_stored_as_pack(stored: &Stored) -> Result<bool, StoreError> {
    let meta = patiently(&stored.client, || stored.store.head(&stored.key)).await?;
    Ok(meta.and_then(|meta| meta.content_type).as_deref() == Some(pack::CONTENT_TYPE))
}

/// Reads a pack's footer; says what is wrong with it. An object that holds several blobs and was not made by us, such as an archive
/// whose members are records, has none.
async fn footer(stored: &Stored, blob: &Blob) -> Result<Result<(), String>, FetchError> {
    let failed = |error| unreadable(&*stored.store, &(blob.reference().store.clone(), stored.key.clone()), error);
    let trailer = TRAILER_BYTES as u64;
    let Some(offset) = stored.size.checked_sub(trailer) else {
        return Ok(Err(format!("the object has {} bytes, too few for a trailer", stored.size)));
    };
    let end = patiently(&stored.client, || stored.get(ByteRange { offset, length: trailer })).await.map_err(failed)?;
    let length = match PackFooter::encoded_len(&end) {
        Err(_) if !is_stored_as_pack(stored).await.map_err(failed)? => return Ok(Ok(())),
        Ok(length) if length <= stored.size => length,
        Ok(length) => return Ok(Err(format!("its trailer says {length} bytes, the object has {}", stored.size))),
        Err(error) => return Ok(Err(error.to_string())),
    };
    let range = ByteRange { offset: stored.size - length, length };
    let bytes = patiently(&stored.client, || stored.get(range)).await.map_err(failed)?;
    let listed = match PackFooter::decode(&bytes, stored.size) {
        Ok(footer) => footer.entries,
        Err(error) => return Ok(Err(error.to_string())),
    };
    let reference = blob.reference();
    // The whole blob, or a part of one: a member of an archive that was stored as a blob.
    let holds = |entry: &&PackEntry| {
        let (range, end) = (reference.range(), entry.offset + entry.size);
        let is_whole = (entry.offset, entry.size) == (range.offset, range.length);
        entry.offset <= range.offset
            && range.end().is_some_and(|range_end| range_end <= end)
            && (!is_whole || Some(entry.content_hash) == reference.content_hash)
    };
    Ok(match listed.iter().find(holds) {
        Some(_) => Ok(()),
        None => Err(format!("it does not list the blob at offset {}", reference.range().offset)),
    })
}
