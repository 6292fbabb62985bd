//! Listings of objects.

use super::{Service, etag};
use crate::embedded::listing::{Cursor, Page};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use s3s::{S3Response, S3Result, dto::*, s3_error};

/// The most entries of a page; S3's.
pub(super) const MAX_KEYS: i32 = 1_000;

/// What S3 leaves as it is with `encoding-type=url`.
const URL: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'_').remove(b'.').remove(b'*');

pub(super) fn limit(wanted: Option<i32>) -> S3Result<i32> {
    match wanted.unwrap_or(MAX_KEYS) {
        0.. => Ok(wanted.unwrap_or(MAX_KEYS).min(MAX_KEYS)),
        wanted => Err(s3_error!(InvalidArgument, "{wanted} is no number of entries: give 0 to {MAX_KEYS}")),
    }
}

/// Encodes names as the request asks for.
pub(super) struct Names(bool);

impl Names {
    pub(super) fn new(encoding: Option<&EncodingType>) -> Self {
        Self(encoding.is_some_and(|encoding| encoding.as_str() == EncodingType::URL))
    }

    pub(super) fn encode(&self, name: &str) -> String {
        if self.0 { utf8_percent_encode(name, URL).to_string() } else { name.to_owned() }
    }
}

fn to_token(cursor: &Cursor) -> String {
    URL_SAFE_NO_PAD.encode(match cursor {
        Cursor::After(key) => format!("k{key}"),
        Cursor::Past(prefix) => format!("p{prefix}"),
    })
}

fn from_token(token: &str) -> S3Result<Cursor> {
    let text = URL_SAFE_NO_PAD.decode(token).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    let cursor = text.as_ref().and_then(|text| match text.split_at_checked(1)? {
        ("k", key) => Some(Cursor::After(key.to_owned())),
        ("p", prefix) => Some(Cursor::Past(prefix.to_owned())),
        _ => None,
    });
    cursor.ok_or_else(|| s3_error!(InvalidArgument, "the continuation token is not one of this store"))
}

struct Entries {
    contents: Vec<Object>,
    prefixes: Vec<CommonPrefix>,
    next: Option<Cursor>,
}

impl Service {
    async fn entries(
        &self,
        prefix: &str,
        delimiter: Option<String>,
        from: Option<Cursor>,
        limit: i32,
        names: &Names,
    ) -> S3Result<Entries> {
        let (prefix, delimiter) = (prefix.to_owned(), delimiter.filter(|delimiter| !delimiter.is_empty()));
        let limit = usize::try_from(limit).unwrap_or_default();
        let listed = self.run(move |inner| inner.page(&prefix, delimiter.as_deref(), from.as_ref(), limit));
        let Page { objects, prefixes, next } = listed.await?;
        let contents = objects.into_iter().map(|(key, properties)| Object {
            key: Some(names.encode(key.as_str())),
            size: i64::try_from(properties.size).ok(),
            e_tag: Some(etag(&properties.etag)),
            last_modified: Some(properties.modified.into()),
            storage_class: Some(ObjectStorageClass::from_static(ObjectStorageClass::STANDARD)),
            ..Object::default()
        });
        let prefixes = prefixes.iter().map(|prefix| CommonPrefix { prefix: Some(names.encode(prefix)) });
        Ok(Entries { contents: contents.collect(), prefixes: prefixes.collect(), next })
    }

    pub(super) async fn list_v2(&self, input: ListObjectsV2Input) -> S3Result<S3Response<ListObjectsV2Output>> {
        self.bucket(&input.bucket)?;
        let names = Names::new(input.encoding_type.as_ref());
        let prefix = input.prefix.unwrap_or_default();
        let limit = limit(input.max_keys)?;
        let from = match &input.continuation_token {
            Some(token) => Some(from_token(token)?),
            None => input.start_after.clone().map(Cursor::After),
        };
        let entries = self.entries(&prefix, input.delimiter.clone(), from, limit, &names).await?;
        let count = entries.contents.len() + entries.prefixes.len();
        Ok(S3Response::new(ListObjectsV2Output {
            name: Some(input.bucket),
            prefix: Some(names.encode(&prefix)),
            delimiter: input.delimiter.as_deref().map(|delimiter| names.encode(delimiter)),
            max_keys: Some(limit),
            key_count: i32::try_from(count).ok(),
            continuation_token: input.continuation_token,
            start_after: input.start_after.as_deref().map(|after| names.encode(after)),
            is_truncated: Some(entries.next.is_some()),
            next_continuation_token: entries.next.as_ref().map(to_token),
            contents: Some(entries.contents),
            common_prefixes: Some(entries.prefixes),
            encoding_type: input.encoding_type,
            ..ListObjectsV2Output::default()
        }))
    }

    pub(super) async fn list(&self, input: ListObjectsInput) -> S3Result<S3Response<ListObjectsOutput>> {
        self.bucket(&input.bucket)?;
        let names = Names::new(input.encoding_type.as_ref());
        let prefix = input.prefix.unwrap_or_default();
        let limit = limit(input.max_keys)?;
        // The marker may be a prefix that the page before ended with: its keys are done.
        let from = input.marker.clone().map(|marker| match &input.delimiter {
            Some(delimiter) if !delimiter.is_empty() && marker.ends_with(delimiter.as_str()) => Cursor::Past(marker),
            _ => Cursor::After(marker),
        });
        let entries = self.entries(&prefix, input.delimiter.clone(), from, limit, &names).await?;
        let next = entries.next.map(|cursor| match cursor {
            Cursor::After(text) | Cursor::Past(text) => names.encode(&text),
        });
        Ok(S3Response::new(ListObjectsOutput {
            name: Some(input.bucket),
            prefix: Some(names.encode(&prefix)),
            delimiter: input.delimiter.as_deref().map(|delimiter| names.encode(delimiter)),
            marker: Some(names.encode(&input.marker.unwrap_or_default())),
            max_keys: Some(limit),
            is_truncated: Some(next.is_some()),
            next_marker: next,
            contents: Some(entries.contents),
            common_prefixes: Some(entries.prefixes),
            encoding_type: input.encoding_type,
            ..ListObjectsOutput::default()
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_round_trip_and_foreign_ones_are_refused() {
        for cursor in [Cursor::After("a/é".to_owned()), Cursor::Past("a/".to_owned()), Cursor::After(String::new())] {
            assert_eq!(from_token(&to_token(&cursor)).unwrap(), cursor);
        }
        for bad in ["", "!", "eA", "/w"] {
            assert!(from_token(bad).is_err(), "{bad}");
        }
    }
}
