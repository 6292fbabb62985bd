//! Grants: permissions for single requests, signed with this broker's own credentials.
//!
//! What is signed is decided here, before any store is asked: keys of existing topics only (`scope`), bodies of which size and checksum are
//! known, nothing that would overwrite. A grant changes nothing by itself, so calls can be repeated at this broker or another one.

pub(super) mod list_objects;
pub(super) mod parts;
pub(super) mod reads;
mod scope;
pub(super) mod uploads;

use crate::{errors, node::Node};
use refstream_filer_adapter::{Attributes, MAX_NOTE_BYTES, Part, StoreError, grant::Grants};
use refstream_proto::v1::{self, ErrorDetail};
use refstream_types::{Crc32c, Key};
use scope::Scope;
use std::sync::Arc;

/// The most asks of one call.
const MAX_ASKS: usize = 1_000;
/// Asks of one call that are under way at once: each may be a call to the store's master.
const ASKS_AT_ONCE: usize = 16;
/// The largest body of one request; S3's limit.
const MAX_BODY_BYTES: u64 = 5 << 30;
/// The highest number of a part; S3's limit.
const MAX_PART_NUMBER: u32 = 10_000;
/// The longest content type that is signed.
const MAX_CONTENT_TYPE_BYTES: usize = 255;
/// The longest name that a store gives to an upload, a part or a version.
const MAX_STORE_NAME_BYTES: usize = 2_048;

/// A store that grants are given for.
struct Granter<'a> {
    grants: &'a Arc<dyn Grants>,
    scope: Scope<'a>,
}

impl<'a> Granter<'a> {
    fn of(node: &'a Node, store: &str) -> Result<Self, ErrorDetail> {
        let state = node.state()?;
        let name = store.parse().map_err(errors::invalid)?;
        node.check_store(Some(&name))?;
        let grants = node.grants.get(&name).ok_or_else(|| {
            errors::unsupported(format!(
                "this broker gives no grants for the store {name}; use credentials of your own"
            ))
        })?;
        let described = node.stores.iter().find(|known| known.name == name);
        let names_objects =
            described.is_some_and(|known| matches!(known.description.kind, Some(v1::store::Kind::Seaweed(_))));
        let scope = Scope {
            state,
            layout: &node.layout,
            read_prefixes: &node.read_prefixes,
            names_objects,
            metadata: name == node.metadata_store,
        };
        Ok(Self { grants, scope })
    }
}

fn key(text: &str) -> Result<Key, ErrorDetail> {
    text.parse().map_err(errors::invalid)
}

/// A name that a store gave, which goes back to it in a signed request.
fn store_name(what: &str, text: &str) -> Result<(), ErrorDetail> {
    if text.is_empty() || text.len() > MAX_STORE_NAME_BYTES || text.chars().any(char::is_control) {
        return Err(errors::invalid(format!("the {what} cannot be one that the store gave")));
    }
    Ok(())
}

fn attributes(given: &v1::ObjectAttributes) -> Result<Attributes, ErrorDetail> {
    if let Some(text) = &given.content_type
        && (text.len() > MAX_CONTENT_TYPE_BYTES || !text.bytes().all(|byte| (b' '..=b'~').contains(&byte)))
    {
        return Err(errors::invalid(format!(
            "the content type is refused: use at most {MAX_CONTENT_TYPE_BYTES} printable ASCII characters"
        )));
    }
    check_note(given.note.as_deref())?;
    Ok(Attributes { content_type: given.content_type.clone(), note: given.note.clone() })
}

fn check_note(note: Option<&str>) -> Result<(), ErrorDetail> {
    match note {
        Some(note) if note.len() > MAX_NOTE_BYTES || !note.bytes().all(|byte| byte.is_ascii_graphic()) => {
            let limit = format!("at most {MAX_NOTE_BYTES} printable ASCII characters without blanks");
            Err(errors::invalid(format!("the note is refused: use {limit}")))
        }
        _ => Ok(()),
    }
}

fn check_count(asks: usize) -> Result<(), ErrorDetail> {
    if asks > MAX_ASKS {
        return Err(errors::invalid(format!("{asks} grants are asked for at once; the limit is {MAX_ASKS}")));
    }
    Ok(())
}

fn micros(life: std::time::Duration) -> u64 {
    u64::try_from(life.as_micros()).unwrap_or(u64::MAX)
}

fn signed(request: refstream_filer_adapter::grant::SignedRequest) -> v1::SignedRequest {
    let header = |(name, value)| v1::Header { name, value };
    v1::SignedRequest { url: request.url, headers: request.headers.into_iter().map(header).collect() }
}

fn place(place: refstream_filer_adapter::grant::NeedlePlace) -> v1::NeedlePlace {
    v1::NeedlePlace { path: place.path, token: place.token }
}

fn part(given: &v1::UploadedPart) -> Result<Part, ErrorDetail> {
    if !(1..=MAX_PART_NUMBER).contains(&given.number) {
        return Err(errors::invalid(format!("parts are numbered from 1 to {MAX_PART_NUMBER}, not {}", given.number)));
    }
    store_name("ETag of a part", &given.etag)?;
    Ok(Part { number: given.number, etag: given.etag.clone(), size: given.size, checksum: given.checksum.map(Crc32c) })
}

/// A store's refusal, as clients are told.
fn refused(error: &StoreError) -> ErrorDetail {
    errors::store(error)
}
