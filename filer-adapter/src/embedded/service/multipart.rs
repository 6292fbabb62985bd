//! Uploads in parts.

use super::{
    Service, checks,
    checks::Checks,
    condition, etag, extra,
    listing::{Names, limit},
    object::refuse_encoding,
    publish_error, refuse_unsupported, refused, service_error,
};
use crate::embedded::{
    body::Receiver,
    objects::Outcome,
    uploads::{CompleteFailure, MAX_PART_NUMBER, MIN_PART_BYTES, PartFailure, Upload},
};
use s3s::{S3Error, S3Request, S3Response, S3Result, dto::*, s3_error};
use std::sync::Arc;

fn no_such_upload() -> S3Error {
    s3_error!(NoSuchUpload, "there is no such upload of this key: it was completed, given up, or never started")
}

fn part_error(failure: &PartFailure) -> S3Error {
    match failure {
        PartFailure::NoSuchUpload => no_such_upload(),
        PartFailure::InvalidNumber => s3_error!(InvalidArgument, "parts are numbered from 1 to {MAX_PART_NUMBER}"),
        PartFailure::Mismatch { arrived } => {
            s3_error!(BadDigest, "the CRC32C of the bytes that arrived is {}", checks::encode(*arrived))
        }
        PartFailure::Disk(error) => service_error(error),
    }
}

fn complete_error(failure: &CompleteFailure) -> S3Error {
    match failure {
        CompleteFailure::NoSuchUpload => no_such_upload(),
        CompleteFailure::InvalidPart(number) => s3_error!(InvalidPart, "part {number} is not there with that ETag"),
        CompleteFailure::InvalidOrder => {
            s3_error!(InvalidPartOrder, "give at least one part, in ascending order of numbers")
        }
        CompleteFailure::TooSmall(number) => {
            s3_error!(EntityTooSmall, "part {number} is not the last one and has less than {MIN_PART_BYTES} bytes")
        }
        CompleteFailure::Mismatch { arrived } => {
            s3_error!(BadDigest, "the CRC32C of the whole object is {}", checks::encode(*arrived))
        }
        CompleteFailure::Publish(failure) => publish_error(failure),
    }
}

impl Service {
    fn upload(&self, bucket: &str, key: &str, id: &str) -> S3Result<Arc<Upload>> {
        let key = self.key(bucket, key)?;
        self.inner.uploads.find(id).filter(|upload| *upload.key() == key).ok_or_else(no_such_upload)
    }

    pub(super) async fn start_upload(
        &self,
        request: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
        refuse_unsupported(&request.headers, [])?;
        let input = request.input;
        let key = self.key(&input.bucket, &input.key)?;
        refuse_encoding(input.content_encoding.as_deref())?;
        let extra = extra(input.content_type, input.metadata)?;
        let upload = self.run(move |inner| inner.start_upload(&key, extra)).await?;
        Ok(S3Response::new(CreateMultipartUploadOutput {
            bucket: Some(input.bucket),
            key: Some(input.key),
            upload_id: Some(upload.id().to_owned()),
            checksum_algorithm: input.checksum_algorithm,
            checksum_type: input.checksum_type,
            ..CreateMultipartUploadOutput::default()
        }))
    }

    pub(super) async fn put_part(
        &self,
        mut request: S3Request<UploadPartInput>,
    ) -> S3Result<S3Response<UploadPartOutput>> {
        refuse_unsupported(&request.headers, [])?;
        let checks = Checks::new(&request.headers, request.trailing_headers.take())?;
        let input = &mut request.input;
        let upload = self.upload(&input.bucket, &input.key, &input.upload_id)?;
        let number = u32::try_from(input.part_number).unwrap_or_default();
        let size = input.content_length.and_then(|length| u64::try_from(length).ok());
        let claimed = self.inner.try_run(move |inner| inner.claim_part(&upload, number, size)).await;
        let (claim, target) = claimed.unwrap_or_else(|error| Err(error.into())).map_err(|error| part_error(&error))?;
        let mut receiver = Receiver::new(Arc::clone(&self.inner), target);
        let promised = checks.receive(input.body.take(), Some(&mut receiver)).await?;
        let body = receiver.finish().await.map_err(|error| service_error(&error))?;
        let expected = promised.crc32c;
        let recorded = self.inner.try_run(move |inner| inner.record_part(&claim, body, expected)).await;
        let record = recorded.unwrap_or_else(|error| Err(error.into())).map_err(|error| part_error(&error))?;
        let checksum = promised.into_answer();
        Ok(S3Response::new(UploadPartOutput {
            e_tag: Some(etag(&record.etag)),
            checksum_crc32: checksum.checksum_crc32,
            checksum_crc32c: checksum.checksum_crc32c,
            checksum_crc64nvme: checksum.checksum_crc64nvme,
            checksum_sha1: checksum.checksum_sha1,
            checksum_sha256: checksum.checksum_sha256,
            ..UploadPartOutput::default()
        }))
    }

    pub(super) async fn parts(&self, input: ListPartsInput) -> S3Result<S3Response<ListPartsOutput>> {
        let upload = self.upload(&input.bucket, &input.key, &input.upload_id)?;
        let limit = limit(input.max_parts)?;
        let after = input.part_number_marker.unwrap_or_default();
        let parts = self.run(move |_| Ok(upload.parts())).await?;
        let mut parts: Vec<Part> = parts
            .into_iter()
            .filter_map(|(number, record)| {
                Some(Part {
                    part_number: Some(i32::try_from(number).ok().filter(|&number| number > after)?),
                    size: i64::try_from(record.size).ok(),
                    e_tag: Some(etag(&record.etag)),
                    checksum_crc32c: Some(checks::encode(record.checksum)),
                    ..Part::default()
                })
            })
            .collect();
        let limit_parts = usize::try_from(limit).unwrap_or_default();
        let truncated = parts.len() > limit_parts;
        parts.truncate(limit_parts);
        Ok(S3Response::new(ListPartsOutput {
            bucket: Some(input.bucket),
            key: Some(input.key),
            upload_id: Some(input.upload_id),
            max_parts: Some(limit),
            part_number_marker: Some(after),
            is_truncated: Some(truncated),
            next_part_number_marker: parts.last().filter(|_| truncated).and_then(|part| part.part_number),
            parts: Some(parts),
            ..ListPartsOutput::default()
        }))
    }

    pub(super) async fn uploads(
        &self,
        input: ListMultipartUploadsInput,
    ) -> S3Result<S3Response<ListMultipartUploadsOutput>> {
        self.bucket(&input.bucket)?;
        if input.delimiter.as_ref().is_some_and(|delimiter| !delimiter.is_empty()) {
            return Err(s3_error!(NotImplemented, "uploads are listed without a delimiter"));
        }
        let names = Names::new(input.encoding_type.as_ref());
        let limit = limit(input.max_uploads)?;
        let prefix = input.prefix.unwrap_or_default();
        let key_marker = input.key_marker.unwrap_or_default();
        let id_marker = input.upload_id_marker.unwrap_or_default();
        let is_after = |upload: &Upload| {
            let key = upload.key().as_str();
            key > key_marker.as_str()
                || (key == key_marker && !id_marker.is_empty() && upload.id() > id_marker.as_str())
        };
        let mut found: Vec<_> = self.inner.uploads.all();
        found.retain(|upload| upload.key().as_str().starts_with(&prefix) && is_after(upload));
        let limit_uploads = usize::try_from(limit).unwrap_or_default();
        let truncated = found.len() > limit_uploads;
        found.truncate(limit_uploads);
        let last = found.last().filter(|_| truncated);
        let uploads = found.iter().map(|upload| MultipartUpload {
            key: Some(names.encode(upload.key().as_str())),
            upload_id: Some(upload.id().to_owned()),
            initiated: Timestamp::parse(TimestampFormat::DateTime, &upload.started().to_string()).ok(),
            ..MultipartUpload::default()
        });
        Ok(S3Response::new(ListMultipartUploadsOutput {
            bucket: Some(input.bucket),
            prefix: Some(names.encode(&prefix)),
            key_marker: Some(names.encode(&key_marker)),
            upload_id_marker: Some(id_marker.clone()),
            max_uploads: Some(limit),
            is_truncated: Some(truncated),
            next_key_marker: last.map(|upload| names.encode(upload.key().as_str())),
            next_upload_id_marker: last.map(|upload| upload.id().to_owned()),
            uploads: Some(uploads.collect()),
            encoding_type: input.encoding_type,
            ..ListMultipartUploadsOutput::default()
        }))
    }

    pub(super) async fn complete_upload(
        &self,
        input: CompleteMultipartUploadInput,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        let upload = self.upload(&input.bucket, &input.key, &input.upload_id)?;
        let condition = condition(input.if_match.as_ref(), input.if_none_match.as_ref())?;
        let mut parts = Vec::new();
        for part in input.multipart_upload.and_then(|upload| upload.parts).unwrap_or_default() {
            let number = part.part_number.and_then(|number| u32::try_from(number).ok());
            let (Some(number), Some(etag)) = (number, part.e_tag) else {
                return Err(s3_error!(MalformedXML, "each part needs its PartNumber and ETag"));
            };
            parts.push((number, etag.value().to_owned()));
        }
        // With a dash it is S3's checksum of checksums, which says nothing that the parts' own have not said.
        let expected = input.checksum_crc32c.as_deref().filter(|text| !text.contains('-'));
        let expected = expected.map(checks::decode).transpose()?;
        let completed =
            self.inner.try_run(move |inner| inner.complete_upload(&upload, &parts, expected, &condition)).await;
        match completed.map_err(|error| service_error(&error))? {
            Ok(Outcome::Published(properties)) => Ok(S3Response::new(CompleteMultipartUploadOutput {
                location: Some(format!("/{}/{}", input.bucket, input.key)),
                bucket: Some(input.bucket),
                key: Some(input.key),
                e_tag: Some(etag(&properties.etag)),
                ..CompleteMultipartUploadOutput::default()
            })),
            Ok(Outcome::Refused) => Err(refused()),
            Ok(Outcome::Missing) => Err(s3_error!(NoSuchKey)),
            Err(failure) => Err(complete_error(&failure)),
        }
    }

    pub(super) async fn abort_upload(
        &self,
        input: AbortMultipartUploadInput,
    ) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
        let upload = self.upload(&input.bucket, &input.key, &input.upload_id)?;
        if !self.run(move |inner| inner.abort_upload(&upload)).await? {
            return Err(no_such_upload());
        }
        Ok(S3Response::new(AbortMultipartUploadOutput::default()))
    }
}
