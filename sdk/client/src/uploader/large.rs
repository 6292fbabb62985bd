//! Large payloads: parts, in parallel, within the memory limit.

use super::{
    Inner, READ_BYTES, Receipt, blocking,
    encode::{Encoder, sample_pays, stored_type},
    source::{OpenFile, read_up_to},
    store::{harmless, put_sidecar, repeat},
};
use crate::{Interrupted, UploadError};
use bytes::Bytes;
use refstream_filer_adapter::{Attributes, MultipartUpload, Part};
use refstream_format::blocks::BLOCK_BYTES;
use refstream_types::{Crc32c, Key, Reference};
use std::sync::Arc;
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

/// Gives an upload up unless it was completed.
struct Started {
    upload: Arc<dyn MultipartUpload>,
    completed: bool,
}

impl Drop for Started {
    fn drop(&mut self) {
        if self.completed {
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

/// Uploads in parts. `first` is content that was read already, with its room.
pub(super) async fn upload(
    inner: &Arc<Inner>,
    mut content: Content,
    size: Option<u64>,
    first: Option<(Vec<Bytes>, OwnedSemaphorePermit)>,
    compression: Option<i32>,
    content_type: Option<String>,
) -> Result<Receipt, UploadError> {
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
    let key = inner.new_key();
    let mut encoder = Encoder::new(level);
    let attributes = Attributes { content_type: stored_type(encoder.encoding(), content_type.as_deref()) };
    let upload = repeat(inner, &key, || async {
        let _turn = inner.requests.acquire().await;
        inner.store.start_multipart(&key, &attributes).await.map_err(harmless)
    })
    .await?;
    let mut started = Started { upload: Arc::from(upload), completed: false };
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
            (encoder, ended) = content.fill(encoder, part_bytes).await?;
        }
        number += 1;
        let (body, checksum) = encoder.take_part(part_bytes);
        if body.is_empty() && number > 1 {
            break;
        }
        tasks.spawn(put_part(
            Arc::clone(inner),
            Arc::clone(&started.upload),
            key.clone(),
            number,
            body,
            checksum,
            mine,
        ));
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
    let completed = repeat(inner, &key, || async {
        let _turn = inner.requests.acquire().await;
        started.upload.complete(&parts).await
    })
    .await;
    let key = match completed {
        Ok(stored) => stored.key,
        Err(error) => {
            // An attempt whose answer was lost may have completed it, after which the store no longer knows the upload. The key is ours
            // alone: an object of the right size is the one that was meant.
            let found = inner.store.head(&key).await.ok().flatten();
            if found.is_none_or(|meta| meta.size != finished.size) {
                return Err(error);
            }
            key
        }
    };
    started.completed = true;
    if named_by_store {
        put_sidecar(inner, &key, finished.size, &finished.blocks).await?;
    }
    inner.note_stored(finished.size);
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

fn joined(done: Result<Result<Part, UploadError>, tokio::task::JoinError>) -> Result<Part, UploadError> {
    done.unwrap_or(Err(UploadError::Interrupted(Interrupted)))
}

async fn put_part(
    inner: Arc<Inner>,
    upload: Arc<dyn MultipartUpload>,
    key: Key,
    number: u32,
    body: Vec<Bytes>,
    checksum: Crc32c,
    room: OwnedSemaphorePermit,
) -> Result<Part, UploadError> {
    let part = repeat(&inner, &key, || async {
        let _turn = inner.requests.acquire().await;
        upload.put_part(number, body.clone(), checksum).await.map_err(harmless)
    })
    .await;
    drop((body, room));
    part
}
