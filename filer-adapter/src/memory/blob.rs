//! Blobs and uploads in parts.

use super::{MemoryStore, Objects, Operation, slice};
use crate::{
    Attributes, BlobStore, CreateError, Found, GetOptions, Listed, MultipartUpload, ObjectMeta, Part, Sent, StoreError,
    StoreErrorKind, Stored,
};
use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures::{StreamExt, stream};
use refstream_types::{Crc32c, Key};
use std::collections::BTreeMap;

/// Bytes in one piece of a body that is read.
const PIECE: usize = 64 << 10;
/// The smallest part but the last: S3's limit.
const MIN_PART: u64 = 5 << 20;
/// The highest number of a part: S3's limit.
const MAX_PART: u32 = 10_000;

/// An upload in parts that was started.
#[derive(Debug)]
pub(super) struct Upload {
    key: Key,
    attributes: Attributes,
    parts: BTreeMap<u32, (Bytes, Part)>,
}

fn join(body: Vec<Bytes>) -> Bytes {
    if let [one] = body.as_slice() {
        return one.clone();
    }
    let mut whole = BytesMut::with_capacity(body.iter().map(Bytes::len).sum());
    for piece in body {
        whole.extend_from_slice(&piece);
    }
    whole.freeze()
}

impl MemoryStore {
    fn verified(
        &self,
        operation: Operation,
        key: &Key,
        body: Vec<Bytes>,
        checksum: Crc32c,
    ) -> Result<Bytes, StoreError> {
        let body = join(body);
        let actual = crate::crc32c(std::slice::from_ref(&body));
        if actual == checksum {
            return Ok(body);
        }
        let message = format!("the body has checksum {actual}, not {checksum}");
        Err(self.error(StoreErrorKind::Corrupt, operation.name(), Some(key), message))
    }

    fn upload_gone(&self, operation: Operation, key: &Key, id: &str) -> StoreError {
        self.error(StoreErrorKind::NotFound, operation.name(), Some(key), format!("there is no upload {id}"))
    }
}

impl Objects {
    fn meta(&self, key: &Key) -> Option<(ObjectMeta, Bytes)> {
        let object = self.objects.get(key)?;
        let meta = ObjectMeta {
            size: object.bytes.len() as u64,
            etag: Some(object.etag.clone()),
            version: None,
            content_type: object.attributes.content_type.clone(),
            note: object.attributes.note.clone(),
        };
        Some((meta, object.bytes.clone()))
    }
}

#[async_trait]
impl BlobStore for MemoryStore {
    fn uri(&self, key: &Key) -> String {
        format!("memory://{}/{key}", self.name)
    }

    async fn put_telling(
        &self,
        key: &Key,
        body: Vec<Bytes>,
        checksum: Crc32c,
        attributes: &Attributes,
        sent: &Sent,
    ) -> Result<Stored, CreateError> {
        sent.tell();
        let body = self.verified(Operation::Put, key, body, checksum).map_err(CreateError::DidNotHappen)?;
        let size = body.len() as u64;
        let (_, object) = self.write(Operation::Put, key, body, attributes.clone(), false).await?;
        Ok(Stored { key: key.clone(), size, etag: Some(object.etag) })
    }

    async fn start_multipart(
        &self,
        key: &Key,
        attributes: &Attributes,
    ) -> Result<Box<dyn MultipartUpload>, StoreError> {
        let id = self
            .simple(Operation::Multipart, key, |objects, _| {
                objects.counter += 1;
                let id = format!("upload-{:08}", objects.counter);
                let upload = Upload { key: key.clone(), attributes: attributes.clone(), parts: BTreeMap::new() };
                objects.uploads.insert(id.clone(), upload);
                Ok(id)
            })
            .await?;
        Ok(Box::new(MemoryUpload { store: self.clone(), key: key.clone(), id }))
    }

    async fn resume_multipart(&self, key: &Key, upload: &str) -> Result<Box<dyn MultipartUpload>, StoreError> {
        self.simple(Operation::Multipart, key, |objects, _| match objects.uploads.get(upload) {
            Some(found) if found.key == *key => Ok(()),
            _ => Err(self.upload_gone(Operation::Multipart, key, upload)),
        })
        .await?;
        Ok(Box::new(MemoryUpload { store: self.clone(), key: key.clone(), id: upload.into() }))
    }

    async fn get(&self, key: &Key, options: &GetOptions) -> Result<Found, StoreError> {
        let fail = |kind, message: &str| Err(self.error(kind, "get", Some(key), message));
        let (meta, bytes) = self
            .simple(Operation::Get, key, |objects, _| {
                let Some((meta, bytes)) = objects.meta(key) else { return fail(StoreErrorKind::NotFound, "") };
                if options.version.is_some() {
                    return fail(StoreErrorKind::NotFound, "there is no such version");
                }
                if options.etag.is_some() && options.etag != meta.etag {
                    return fail(StoreErrorKind::Changed, "");
                }
                Ok((meta, options.range.map_or(bytes.clone(), |range| slice(&bytes, range))))
            })
            .await?;
        let pieces: Vec<_> =
            (0..bytes.len()).step_by(PIECE).map(|at| Ok(bytes.slice(at..bytes.len().min(at + PIECE)))).collect();
        Ok(Found { meta, body: stream::iter(pieces).boxed() })
    }

    async fn head(&self, key: &Key) -> Result<Option<ObjectMeta>, StoreError> {
        self.simple(Operation::Get, key, |objects, _| Ok(objects.meta(key).map(|(meta, _)| meta))).await
    }

    async fn delete(&self, key: &Key) -> Result<(), StoreError> {
        self.simple(Operation::Remove, key, |objects, now| {
            objects.remove(now, key);
            Ok(())
        })
        .await
    }

    async fn list_blobs(&self, prefix: &str, after: Option<&Key>, limit: usize) -> Result<Vec<Listed>, StoreError> {
        self.list_objects(prefix, after, limit).await
    }
}

#[derive(Debug)]
struct MemoryUpload {
    store: MemoryStore,
    key: Key,
    id: String,
}

#[async_trait]
impl MultipartUpload for MemoryUpload {
    fn id(&self) -> &str {
        &self.id
    }

    async fn put_part(&self, number: u32, body: Vec<Bytes>, checksum: Crc32c) -> Result<Part, StoreError> {
        let (store, key) = (&self.store, &self.key);
        let body = store.verified(Operation::PutPart, key, body, checksum)?;
        if !(1..=MAX_PART).contains(&number) {
            let message = format!("part number {number} is not within 1 to {MAX_PART}");
            return Err(store.error(StoreErrorKind::Invalid, "put_part", Some(key), message));
        }
        store
            .simple(Operation::PutPart, key, |objects, _| {
                if !objects.has_space(body.len()) {
                    return Err(store.error(StoreErrorKind::NoSpace, "put_part", Some(key), "507 the store is full"));
                }
                objects.counter += 1;
                let etag = format!("part-{:08}", objects.counter);
                let upload = objects.uploads.get_mut(&self.id);
                let upload = upload.ok_or_else(|| store.upload_gone(Operation::PutPart, key, &self.id))?;
                let part = Part { number, etag, size: body.len() as u64, checksum: Some(checksum) };
                upload.parts.insert(number, (body, part.clone()));
                Ok(part)
            })
            .await
    }

    async fn parts(&self) -> Result<Vec<Part>, StoreError> {
        self.store
            .simple(Operation::Multipart, &self.key, |objects, _| match objects.uploads.get(&self.id) {
                Some(upload) => Ok(upload.parts.values().map(|(_, part)| part.clone()).collect()),
                None => Err(self.store.upload_gone(Operation::Multipart, &self.key, &self.id)),
            })
            .await
    }

    async fn complete(&self, parts: &[Part]) -> Result<Stored, CreateError> {
        let (store, key) = (&self.store, &self.key);
        let invalid = |message: &str| store.error(StoreErrorKind::Invalid, "complete", Some(key), message);
        let (body, attributes) = {
            let objects = store.objects();
            let upload = objects.uploads.get(&self.id);
            let upload = upload
                .ok_or_else(|| CreateError::DidNotHappen(store.upload_gone(Operation::Complete, key, &self.id)))?;
            let refuse = |message| Err(CreateError::DidNotHappen(invalid(message)));
            if parts.is_empty() {
                return refuse("an upload needs at least one part");
            }
            if parts.windows(2).any(|pair| pair[0].number >= pair[1].number) {
                return refuse("the parts do not ascend");
            }
            if parts[..parts.len() - 1].iter().any(|part| part.size < MIN_PART) {
                return refuse("EntityTooSmall: a part but the last is smaller than 5 MiB");
            }
            let mut body = Vec::with_capacity(parts.len());
            for part in parts {
                match upload.parts.get(&part.number) {
                    Some((bytes, stored)) if stored.etag == part.etag => body.push(bytes.clone()),
                    _ => return refuse("InvalidPart: a part is missing or was replaced"),
                }
            }
            (join(body), upload.attributes.clone())
        };
        let size = body.len() as u64;
        let written = store.write(Operation::Complete, key, body, attributes, false).await;
        // Applied, whether or not the answer arrives: the upload is over once the object is there.
        let over = match &written {
            Ok(_) => true,
            Err(CreateError::MayHaveHappened(error)) => error.message != "no answer in time",
            Err(CreateError::DidNotHappen(_)) => false,
        };
        if over {
            store.objects().uploads.remove(&self.id);
        }
        let (_, object) = written?;
        Ok(Stored { key: key.clone(), size, etag: Some(object.etag) })
    }

    async fn abort(&self) -> Result<(), StoreError> {
        self.store
            .simple(Operation::Multipart, &self.key, |objects, _| {
                objects.uploads.remove(&self.id);
                Ok(())
            })
            .await
    }
}
