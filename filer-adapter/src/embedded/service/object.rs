//! Single objects.

use super::{
    Service, checks, checks::Checks, condition, etag, extra, publish_error, refuse_unsupported, refused, service_error,
};
use crate::embedded::{
    body::{Receiver, Temporary, crc32c},
    note::Properties,
    objects::{Condition, Extra, Outcome},
    store::Inner,
};
use futures::{StreamExt, TryStreamExt, stream};
use http_body::Frame;
use http_body_util::StreamBody;
use refstream_types::{Crc32c, Key};
use s3s::{Body, S3Error, S3Request, S3Response, S3Result, dto::*, s3_error};
use std::{fs::File, io, sync::Arc};

/// Deletions of one request that are under way at once.
const PARALLEL_DELETES: usize = 16;

/// What S3 says of objects that were stored without a type.
const DEFAULT_CONTENT_TYPE: &str = "binary/octet-stream";

/// What a read must fulfil.
struct Conditions<'a> {
    if_match: Option<&'a IfMatch>,
    if_none_match: Option<&'a IfNoneMatch>,
    if_modified_since: Option<&'a Timestamp>,
    if_unmodified_since: Option<&'a Timestamp>,
}

impl Conditions<'_> {
    /// In the order of RFC 9110, section 13.2.2.
    fn check(&self, properties: &Properties) -> S3Result<()> {
        let is = |condition: &ETagCondition| match condition {
            ETagCondition::Any => true,
            ETagCondition::ETag(etag) => etag.value() == properties.etag,
        };
        let modified = whole_seconds(&properties.modified.into());
        match (self.if_match, self.if_unmodified_since) {
            (Some(condition), _) if !is(condition) => return Err(refused()),
            (None, Some(since)) if modified > whole_seconds(since) => return Err(refused()),
            _ => {}
        }
        match (self.if_none_match, self.if_modified_since) {
            (Some(condition), _) if is(condition) => Err(s3_error!(NotModified)),
            (None, Some(since)) if modified <= whole_seconds(since) => Err(s3_error!(NotModified)),
            _ => Ok(()),
        }
    }
}

/// A time as HTTP dates have it, since 1970.
fn whole_seconds(time: &Timestamp) -> u64 {
    let mut text = Vec::new();
    // The type gives its instant as text, or as a type of a crate that is not ours.
    let _ = time.format(TimestampFormat::EpochSeconds, &mut text);
    let whole = text.split(|&byte| byte == b'.').next().and_then(|whole| std::str::from_utf8(whole).ok());
    whole.and_then(|whole| whole.parse().ok()).unwrap_or_default()
}

fn refuse_version(version: Option<&str>) -> S3Result<()> {
    match version {
        None | Some("null") => Ok(()),
        Some(_) => Err(s3_error!(NoSuchVersion, "the embedded store keeps no versions")),
    }
}

fn refuse_part(part: Option<i32>) -> S3Result<()> {
    match part {
        None | Some(1) => Ok(()),
        Some(_) => Err(s3_error!(InvalidPart, "objects are not kept as parts; read a range instead")),
    }
}

fn content_length(bytes: u64) -> Option<i64> {
    i64::try_from(bytes).ok()
}

impl Service {
    pub(super) async fn put(&self, mut request: S3Request<PutObjectInput>) -> S3Result<S3Response<PutObjectOutput>> {
        let key = self.key(&request.input.bucket, &request.input.key)?;
        refuse_unsupported(&request.headers, [])?;
        refuse_encoding(request.input.content_encoding.as_deref())?;
        let condition = condition(request.input.if_match.as_ref(), request.input.if_none_match.as_ref())?;
        let extra = extra(request.input.content_type.take(), request.input.metadata.take())?;
        let checks = Checks::new(&request.headers, request.trailing_headers.take())?;
        let body = request.input.body.take();
        if condition == Condition::Absent {
            let wanted = key.clone();
            if self.run(move |inner| inner.exists(&wanted)).await? {
                checks.receive(body, None).await?;
                return Err(refused());
            }
        }
        let mut receiver = Receiver::new(Arc::clone(&self.inner), self.inner.new_target());
        let received = async {
            let promised = checks.receive(body, Some(&mut receiver)).await?;
            let body = receiver.finish().await.map_err(|error| service_error(&error))?;
            Ok::<_, S3Error>((promised, body))
        };
        // A new folder costs a wait for the disk of its own: not after the body, but while it arrives.
        let (received, ()) = futures::join!(received, self.make_folder_of(&key));
        let (promised, body) = received?;
        let expected = promised.crc32c;
        let published = self.inner.try_run(move |inner| inner.publish(&key, body, expected, extra, &condition)).await;
        match published.map_err(|error| service_error(&error))? {
            Ok(Outcome::Published(properties)) => {
                let checksum = promised.into_answer();
                Ok(S3Response::new(PutObjectOutput {
                    e_tag: Some(etag(&properties.etag)),
                    checksum_crc32: checksum.checksum_crc32,
                    checksum_crc32c: checksum.checksum_crc32c,
                    checksum_crc64nvme: checksum.checksum_crc64nvme,
                    checksum_sha1: checksum.checksum_sha1,
                    checksum_sha256: checksum.checksum_sha256,
                    ..PutObjectOutput::default()
                }))
            }
            Ok(Outcome::Refused) => Err(refused()),
            Ok(Outcome::Missing) => Err(s3_error!(NoSuchKey)),
            Err(failure) => Err(publish_error(&failure)),
        }
    }

    /// Makes the folder of an object to be. What fails is said when the object gets its name.
    async fn make_folder_of(&self, key: &Key) {
        if let Some(folder) = self.inner.missing_folder(key) {
            let _ = self.inner.run(move |inner| inner.folders.ensure(&folder)).await;
        }
    }

    async fn open(&self, key: Key) -> S3Result<(File, Properties)> {
        self.run(move |inner| inner.open(&key)).await?.ok_or_else(|| s3_error!(NoSuchKey))
    }

    pub(super) async fn get(&self, input: GetObjectInput) -> S3Result<S3Response<GetObjectOutput>> {
        let key = self.key_to_read(&input.bucket, &input.key)?;
        refuse_version(input.version_id.as_deref())?;
        refuse_part(input.part_number)?;
        let (file, properties) = self.open(key).await?;
        let conditions = Conditions {
            if_match: input.if_match.as_ref(),
            if_none_match: input.if_none_match.as_ref(),
            if_modified_since: input.if_modified_since.as_ref(),
            if_unmodified_since: input.if_unmodified_since.as_ref(),
        };
        conditions.check(&properties)?;
        let size = properties.size;
        let range = input.range.map(|range| range.check(size)).transpose().map_err(S3Error::from)?;
        let content_range = range.as_ref().map(|range| format!("bytes {}-{}/{size}", range.start, range.end - 1));
        let whole = range.is_none();
        let range = range.unwrap_or(0..size);
        let pieces = self.inner.stream(file, range.start, range.end).map_ok(Frame::data);
        let body = Body::http_body_unsync(StreamBody::new(pieces));
        let checksum = properties.checksum.filter(|_| whole && wants_checksum(input.checksum_mode.as_ref()));
        Ok(S3Response::new(GetObjectOutput {
            body: Some(body.into()),
            content_length: content_length(range.end - range.start),
            content_range,
            content_type: properties.content_type.or_else(|| Some(DEFAULT_CONTENT_TYPE.to_owned())),
            checksum_type: checksum.map(|_| ChecksumType::from_static(ChecksumType::FULL_OBJECT)),
            checksum_crc32c: checksum.map(checks::encode),
            e_tag: Some(etag(&properties.etag)),
            last_modified: Some(properties.modified.into()),
            accept_ranges: Some("bytes".to_owned()),
            metadata: (!properties.metadata.is_empty()).then(|| properties.metadata.into_iter().collect()),
            ..GetObjectOutput::default()
        }))
    }

    pub(super) async fn head(&self, input: HeadObjectInput) -> S3Result<S3Response<HeadObjectOutput>> {
        let key = self.key_to_read(&input.bucket, &input.key)?;
        refuse_version(input.version_id.as_deref())?;
        refuse_part(input.part_number)?;
        let (_, properties) = self.open(key).await?;
        let conditions = Conditions {
            if_match: input.if_match.as_ref(),
            if_none_match: input.if_none_match.as_ref(),
            if_modified_since: input.if_modified_since.as_ref(),
            if_unmodified_since: input.if_unmodified_since.as_ref(),
        };
        conditions.check(&properties)?;
        let checksum = properties.checksum.filter(|_| wants_checksum(input.checksum_mode.as_ref()));
        Ok(S3Response::new(HeadObjectOutput {
            content_length: content_length(properties.size),
            content_type: properties.content_type.or_else(|| Some(DEFAULT_CONTENT_TYPE.to_owned())),
            checksum_type: checksum.map(|_| ChecksumType::from_static(ChecksumType::FULL_OBJECT)),
            checksum_crc32c: checksum.map(checks::encode),
            e_tag: Some(etag(&properties.etag)),
            last_modified: Some(properties.modified.into()),
            accept_ranges: Some("bytes".to_owned()),
            metadata: (!properties.metadata.is_empty()).then(|| properties.metadata.into_iter().collect()),
            ..HeadObjectOutput::default()
        }))
    }

    pub(super) async fn delete(&self, input: DeleteObjectInput) -> S3Result<S3Response<DeleteObjectOutput>> {
        self.bucket(&input.bucket)?;
        refuse_version(input.version_id.as_deref())?;
        if input.if_match.is_some() || input.if_match_size.is_some() || input.if_match_last_modified_time.is_some() {
            return Err(s3_error!(NotImplemented, "deletes take no condition"));
        }
        // What cannot be a key is not there either.
        if let Ok(key) = input.key.parse::<Key>() {
            self.run(move |inner| inner.delete(&key)).await?;
        }
        Ok(S3Response::new(DeleteObjectOutput::default()))
    }

    pub(super) async fn delete_many(&self, input: DeleteObjectsInput) -> S3Result<S3Response<DeleteObjectsOutput>> {
        self.bucket(&input.bucket)?;
        let quiet = input.delete.quiet.unwrap_or(false);
        let bucket = &input.bucket;
        let deletions = stream::iter(input.delete.objects).map(|object| async move {
            let request = DeleteObjectInput {
                bucket: bucket.clone(),
                key: object.key.clone(),
                version_id: object.version_id,
                ..DeleteObjectInput::default()
            };
            (object.key, self.delete(request).await)
        });
        let results: Vec<_> = deletions.buffered(PARALLEL_DELETES).collect().await;
        let (mut deleted, mut errors) = (Vec::new(), Vec::new());
        for (key, result) in results {
            match result {
                Ok(_) if quiet => {}
                Ok(_) => deleted.push(DeletedObject { key: Some(key), ..DeletedObject::default() }),
                Err(error) => errors.push(Error {
                    code: Some(error.code().as_str().to_owned()),
                    message: error.message().map(str::to_owned),
                    key: Some(key),
                    ..Error::default()
                }),
            }
        }
        Ok(S3Response::new(DeleteObjectsOutput {
            deleted: Some(deleted),
            errors: Some(errors),
            ..DeleteObjectsOutput::default()
        }))
    }

    pub(super) async fn copy(&self, request: S3Request<CopyObjectInput>) -> S3Result<S3Response<CopyObjectOutput>> {
        refuse_unsupported(
            &request.headers,
            [
                "x-amz-copy-source-if-modified-since",
                "x-amz-copy-source-if-unmodified-since",
                "x-amz-copy-source-if-none-match",
            ],
        )?;
        let input = request.input;
        let key = self.key(&input.bucket, &input.key)?;
        let CopySource::Bucket { bucket, key: source, version_id } = &input.copy_source else {
            return Err(s3_error!(NotImplemented, "copies come from the same bucket"));
        };
        refuse_version(version_id.as_deref())?;
        let source = self.key_to_read(bucket, source)?;
        let (file, properties) = self.open(source).await?;
        if let Some(ETagCondition::ETag(wanted)) = &input.copy_source_if_match
            && wanted.value() != properties.etag
        {
            return Err(refused());
        }
        let replace = input.metadata_directive.as_ref().is_some_and(|it| it.as_str() == MetadataDirective::REPLACE);
        let extra = if replace {
            extra(input.content_type, input.metadata)?
        } else {
            Extra { content_type: properties.content_type, metadata: properties.metadata }
        };
        let checksum = properties.checksum;
        let copied = self.inner.try_run(move |inner| {
            let (temporary, checksum) = copy_file(inner, &file, checksum)?;
            inner.publish_file(&key, temporary, checksum, extra, &Condition::Always)
        });
        match copied.await.map_err(|error| service_error(&error))? {
            Ok(Outcome::Published(properties)) => {
                let result = CopyObjectResult {
                    e_tag: Some(etag(&properties.etag)),
                    last_modified: Some(properties.modified.into()),
                    ..CopyObjectResult::default()
                };
                Ok(S3Response::new(CopyObjectOutput {
                    copy_object_result: Some(result),
                    ..CopyObjectOutput::default()
                }))
            }
            Ok(Outcome::Refused | Outcome::Missing) => Err(refused()),
            Err(failure) => Err(publish_error(&failure)),
        }
    }
}

fn wants_checksum(mode: Option<&ChecksumMode>) -> bool {
    mode.is_some_and(|mode| mode.as_str() == ChecksumMode::ENABLED)
}

pub(super) fn refuse_encoding(encoding: Option<&str>) -> S3Result<()> {
    let lost = encoding.unwrap_or_default().split(',').map(str::trim).find(|name| !matches!(*name, "" | "aws-chunked"));
    match lost {
        Some(encoding) => {
            Err(s3_error!(NotImplemented, "the embedded store does not keep the content encoding {encoding:?}"))
        }
        None => Ok(()),
    }
}

/// Copies a file by the kernel, and computes its checksum where it is not known.
fn copy_file(inner: &Inner, mut from: &File, checksum: Option<Crc32c>) -> io::Result<(Temporary, Crc32c)> {
    let temporary = Temporary::create(inner.temporary())?;
    io::copy(&mut from, &mut temporary.file())?;
    let checksum = match checksum {
        Some(checksum) => checksum,
        None => checksum_of(temporary.file())?,
    };
    Ok((temporary, checksum))
}

fn checksum_of(file: &File) -> io::Result<Crc32c> {
    use crate::embedded::body::combine;
    use std::os::unix::fs::FileExt;
    let mut buffer = vec![0; 256 * 1024];
    let (mut at, mut checksum) = (0, crc32c(b""));
    loop {
        let read = file.read_at(&mut buffer, at)?;
        if read == 0 {
            return Ok(checksum);
        }
        checksum = combine(checksum, crc32c(&buffer[..read]), read as u64);
        at += read as u64;
    }
}
