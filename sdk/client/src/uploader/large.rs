//! Large payloads: parts, in parallel, within the memory limit.

use super::{
    Begun, BegunHow, Inner, READ_BYTES, Receipt, Task, UploadNotes, blocking,
    encode::{Encoder, sample_pays, stored_type},
    source::{OpenFile, read_up_to},
    store::{self, harmless, has, put_sidecar, repeat},
};
use crate::{Interrupted, NotStored, UploadError};
use bytes::Bytes;
use refstream_filer_adapter::{Attributes, MultipartUpload, Part, StoreError, StoreErrorKind};
use refstream_format::blocks::BLOCK_BYTES;
use refstream_types::{Crc32c, Key, Reference};
use std::{collections::BTreeMap, sync::Arc};
use tokio::{io::AsyncRead, sync::OwnedSemaphorePermit, task::JoinSet};

/// The most parts of an upload, as in S3; a few are kept in reserve for what compression may add.
const MAX_PARTS: u64 = 9_900;
/// A payload of unknown length has this many parts of one size; after as many again the size doubles, and so on.
const PARTS_BEFORE_GROWTH: u32 = 2_000;

/// Where a large payload's bytes come from.
pub(super) enum Content {
    Memory(Bytes),
    File(Option<OpenFile>),
    Stream(Box<dyn AsyncRead + Send + Unpin>),
}

impl Content {
    pub(super) fn memory(bytes: Bytes) -> Self {
        Self::Memory(bytes)
    }
    pub(super) fn file(file: OpenFile) -> Self {
        Self::File(Some(file))
    }
    pub(super) fn stream(reader: Box<dyn AsyncRead + Send + Unpin>) -> Self {
        Self::Stream(reader)
    }

    /// The next piece; `None` at the end.
    async fn piece(&mut self) -> Result<Option<Bytes>, UploadError> {
        let piece = match self {
            Self::Memory(bytes) => bytes.split_to(bytes.len().min(READ_BYTES)),
            Self::File(slot) => {
                let Some(mut file) = slot.take() else { return Ok(None) };
                let (file, piece) = blocking(move || {
                    let piece = file.read_some(READ_BYTES);
                    (file, piece)
                })
                .await?;
                *slot = Some(file);
                piece?
            }
            Self::Stream(reader) => {
                let (pieces, _) = read_up_to(reader, READ_BYTES as u64).await?;
                crate::payload::joined(pieces)
            }
        };
        Ok(Some(piece).filter(|piece| !piece.is_empty()))
    }

    /// Feeds the encoder until `bytes` stored bytes wait, or the content has ended (which it says).
    async fn fill(&mut self, encoder: Encoder, bytes: u64) -> Result<(Encoder, bool), UploadError> {
        let mut encoder = encoder;
        match self {
            // File and memory: one visit to a thread that may block for the whole part.
            Self::File(slot) => {
                let Some(mut file) = slot.take() else { return Ok((encoder, true)) };
                let (file, filled) = blocking(move || {
                    let filled = loop {
                        if encoder.queued() >= bytes {
                            break Ok((encoder, false));
                        }
                        match file.read_some(READ_BYTES) {
                            Ok(piece) if piece.is_empty() => {
                                encoder.finish();
                                break Ok((encoder, true));
                            }
                            Ok(piece) => encoder.push(piece),
                            Err(error) => break Err(error),
                        }
                    };
                    (file, filled)
                })
                .await?;
                *slot = Some(file);
                filled
            }
            Self::Memory(content) => {
                let mut mine = std::mem::take(content);
                let (rest, encoder, ended) = blocking(move || {
                    while encoder.queued() < bytes && !mine.is_empty() {
                        let piece = mine.split_to(mine.len().min(READ_BYTES));
                        encoder.push(piece);
                    }
                    let ended = encoder.queued() < bytes;
                    if ended {
                        encoder.finish();
                    }
                    (mine, encoder, ended)
                })
                .await?;
                *content = rest;
                Ok((encoder, ended))
            }
            Self::Stream(reader) => {
                while encoder.queued() < bytes {
                    let (pieces, ended) = read_up_to(reader, READ_BYTES as u64).await?;
                    encoder = blocking(move || {
                        for piece in pieces {
                            encoder.push(piece);
                        }
                        if ended {
                            encoder.finish();
                        }
                        encoder
                    })
                    .await?;
                    if ended {
                        return Ok((encoder, true));
                    }
                }
                Ok((encoder, false))
            }
        }
    }
}

/// Gives an upload up unless it was completed, or somebody may go on with it.
struct Started {
    upload: Arc<dyn MultipartUpload>,
    keep: bool,
}

impl Drop for Started {
    fn drop(&mut self) {
        if self.keep {
            return;
        }
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let upload = Arc::clone(&self.upload);
            runtime.spawn(async move {
                if let Err(error) = upload.abort().await {
                    tracing::warn!(%error, "a failed upload could not be aborted; the store's lifecycle rules must remove it");
                }
            });
        }
    }
}

/// The part size for a payload of this many bytes.
fn part_size(least: u64, size: Option<u64>) -> u64 {
    let needed = size.map_or(0, |size| size.div_ceil(MAX_PARTS));
    needed.max(least).next_multiple_of(BLOCK_BYTES)
}

/// Where the parts go, and which of them are there already.
struct Target {
    key: Key,
    /// `None`: an earlier process has completed the upload.
    upload: Option<Arc<dyn MultipartUpload>>,
    there: BTreeMap<u32, Part>,
}

/// Finds the upload that an earlier process began, or starts one.
async fn target(
    inner: &Inner,
    part_bytes: u64,
    compressed: bool,
    attributes: &Attributes,
    notes: Option<&dyn UploadNotes>,
) -> Result<Target, UploadError> {
    if let Some(Begun { key, how }) = notes.and_then(UploadNotes::earlier)
        && let BegunHow::Parts { upload, part_bytes: earlier, compressed: was_compressed, parts } = how
        && (earlier, was_compressed) == (part_bytes, compressed)
    {
        let listed = resume(inner, &key, &upload).await?;
        if let Some((upload, mut listed)) = listed {
            if inner.store.names_objects() {
                // It lists no parts; each is an object of its own, by its ETag.
                for part in &parts {
                    let Ok(key) = part.etag.parse::<Key>() else { continue };
                    if super::store::has(inner, &key, part.size).await? {
                        listed.push(part.clone());
                    }
                }
            }
            // Stores that do not tell sums are taken at their etag, of which our note has the sum.
            let sum_of =
                |part: &Part| parts.iter().find(|noted| (noted.number, &noted.etag) == (part.number, &part.etag));
            let there = listed
                .into_iter()
                .map(|part| {
                    (
                        part.number,
                        Part { checksum: part.checksum.or(sum_of(&part).and_then(|noted| noted.checksum)), ..part },
                    )
                })
                .collect();
            return Ok(Target { key, upload: Some(upload), there });
        }
        // The store does not know the upload: it was completed, or it expired.
        let found = repeat(inner, &key, || async {
            let _turn = inner.requests.acquire().await;
            inner.store.head(&key).await.map_err(harmless)
        })
        .await?;
        if found.is_some() {
            return Ok(Target { key, upload: None, there: BTreeMap::new() });
        }
    }
    let key = inner.new_key();
    let upload = repeat(inner, &key, || async {
        let _turn = inner.requests.acquire().await;
        inner.store.start_multipart(&key, attributes).await.map_err(harmless)
    })
    .await?;
    if let Some(notes) = notes {
        let how = BegunHow::Parts { upload: upload.id().to_owned(), part_bytes, compressed, parts: Vec::new() };
        notes.begun(&Begun { key: key.clone(), how }).await?;
    }
    Ok(Target { key, upload: Some(Arc::from(upload)), there: BTreeMap::new() })
}

/// An earlier upload with the parts that the store tells of; `None` when the store does not know it.
async fn resume(
    inner: &Inner,
    key: &Key,
    upload: &str,
) -> Result<Option<(Arc<dyn MultipartUpload>, Vec<Part>)>, UploadError> {
    let gone = |error: &StoreError| matches!(error.kind, StoreErrorKind::NotFound | StoreErrorKind::Invalid);
    repeat(inner, key, || async {
        let _turn = inner.requests.acquire().await;
        let found: Arc<dyn MultipartUpload> = match inner.store.resume_multipart(key, upload).await {
            Ok(found) => Arc::from(found),
            Err(error) if gone(&error) => return Ok(None),
            Err(error) => return Err(harmless(error)),
        };
        match found.parts().await {
            Ok(parts) => Ok(Some((found, parts))),
            Err(error) if gone(&error) => Ok(None),
            Err(error) => Err(harmless(error)),
        }
    })
    .await
}

/// Frees what an earlier upload holds at the store.
pub(super) async fn give_up(inner: &Inner, begun: &Begun) -> Result<(), UploadError> {
    let BegunHow::Parts { upload, .. } = &begun.how else { return Ok(()) };
    let Some((upload, _)) = resume(inner, &begun.key, upload).await? else { return Ok(()) };
    repeat(inner, &begun.key, || async { upload.abort().await.map_err(harmless) }).await
}

/// Uploads in parts. `first` is content that was read already, with its room.
pub(super) async fn upload(
    inner: &Arc<Inner>,
    mut content: Content,
    size: Option<u64>,
    first: Option<(Vec<Bytes>, OwnedSemaphorePermit)>,
    task: Task,
) -> Result<Receipt, UploadError> {
    let Task { compression, content_type, notes, .. } = task;
    let mut part_bytes = part_size(inner.options.part_bytes, size);
    let (mut pieces, room) = match first {
        Some((pieces, room)) => (pieces, room),
        None => (Vec::new(), inner.room(part_bytes).await),
    };
    if pieces.is_empty() {
        pieces.extend(content.piece().await?);
    }
    let level = match compression {
        Some(level) => {
            let sample = pieces.clone();
            blocking(move || sample_pays(&sample, level)).await?.then_some(level)
        }
        None => None,
    };
    let mut encoder = Encoder::new(level);
    let attributes =
        Attributes { content_type: stored_type(encoder.encoding(), content_type.as_deref()), ..Attributes::default() };
    let target = target(inner, part_bytes, level.is_some(), &attributes, notes.as_deref()).await?;
    let Target { key, upload, there } = target;
    let mut started = upload.map(|upload| Started { upload, keep: notes.is_some() });
    encoder = blocking(move || {
        for piece in pieces {
            encoder.push(piece);
        }
        encoder
    })
    .await?;

    let mut tasks: JoinSet<Result<Part, UploadError>> = JoinSet::new();
    let mut parts = Vec::new();
    let mut room = Some(room);
    let mut ended = false;
    let mut number = 0;
    while !ended || encoder.queued() > 0 {
        let mine = match room.take() {
            Some(room) => room,
            None => inner.room(part_bytes).await,
        };
        if !ended {
            let filled = content.fill(encoder, part_bytes).await;
            if filled.is_err()
                && let Some(started) = &mut started
            {
                // The bytes are not what they were: nobody will go on with this.
                started.keep = false;
            }
            (encoder, ended) = filled?;
        }
        number += 1;
        let (body, checksum) = encoder.take_part(part_bytes);
        if body.is_empty() && number > 1 {
            break;
        }
        let bytes: u64 = body.iter().map(|piece| piece.len() as u64).sum();
        match (&started, there.get(&number)) {
            (None, _) => {}
            (Some(_), Some(part)) if (part.size, part.checksum) == (bytes, Some(checksum)) => parts.push(part.clone()),
            (Some(started), _) => {
                let upload = Arc::clone(&started.upload);
                let put = put_part(Arc::clone(inner), upload, key.clone(), number, body, checksum, mine, notes.clone());
                tasks.spawn(put);
            }
        }
        while let Some(done) = tasks.try_join_next() {
            parts.push(joined(done)?);
        }
        if size.is_none() && number % PARTS_BEFORE_GROWTH == 0 {
            part_bytes *= 2;
        }
    }
    while let Some(done) = tasks.join_next().await {
        parts.push(joined(done)?);
    }
    parts.sort_by_key(|part| part.number);

    let finished = encoder.finished();
    let named_by_store = inner.store.names_objects();
    if !named_by_store {
        put_sidecar(inner, &key, finished.size, &finished.blocks).await?;
    }
    let key = match &mut started {
        Some(started) => {
            let key = complete(inner, &key, &*started.upload, &parts, finished.size).await?;
            started.keep = true;
            store::verify(inner, &key, finished.size, finished.checksum).await?;
            inner.note_stored(finished.size);
            key
        }
        None if !has(inner, &key, finished.size).await? => {
            return Err(UploadError::NotStored(Box::new(NotStored::of_other_size(&inner.name, &key))));
        }
        None => key,
    };
    if named_by_store {
        put_sidecar(inner, &key, finished.size, &finished.blocks).await?;
    }
    Ok(Receipt {
        reference: Reference {
            store: inner.name.clone(),
            key,
            offset: None,
            size: finished.size,
            checksum: Some(finished.checksum),
            content_hash: Some(finished.hash),
            content_size: finished.content_size,
            encoding: finished.encoding,
            content_type,
            etag: None,
            version: None,
        },
    })
}

async fn complete(
    inner: &Inner,
    key: &Key,
    upload: &dyn MultipartUpload,
    parts: &[Part],
    size: u64,
) -> Result<Key, UploadError> {
    let completed = repeat(inner, key, || async {
        let _turn = inner.requests.acquire().await;
        upload.complete(parts).await
    })
    .await;
    match completed {
        Ok(stored) => Ok(stored.key),
        Err(error) => {
            // An attempt whose answer was lost may have completed it, after which the store no longer knows the upload. The key is ours
            // alone: an object of the right size is the one that was meant.
            let found = inner.store.head(key).await.ok().flatten();
            if found.is_none_or(|meta| meta.size != size) { Err(error) } else { Ok(key.clone()) }
        }
    }
}

fn joined(done: Result<Result<Part, UploadError>, tokio::task::JoinError>) -> Result<Part, UploadError> {
    done.unwrap_or(Err(UploadError::Interrupted(Interrupted)))
}

#[allow(clippy::too_many_arguments)]
async fn put_part(
    inner: Arc<Inner>,
    upload: Arc<dyn MultipartUpload>,
    key: Key,
    number: u32,
    body: Vec<Bytes>,
    checksum: Crc32c,
    room: OwnedSemaphorePermit,
    notes: Option<Arc<dyn UploadNotes>>,
) -> Result<Part, UploadError> {
    let bytes = body.iter().map(|piece| piece.len() as u64).sum();
    let part = repeat(&inner, &key, || async {
        let _turn = inner.turn(bytes).await;
        upload.put_part(number, body.clone(), checksum).await.map_err(harmless)
    })
    .await;
    drop((body, room));
    if let Ok(part) = &part {
        inner.note_taken(part.size);
    }
    if let (Ok(part), Some(notes)) = (&part, notes) {
        notes.part(part);
    }
    part
}
