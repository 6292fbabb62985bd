//! The digest over a file's rows, kept in its metadata (`refstream.digest`) and in the manifest.
//!
//! The digest of a row is the BLAKE3 of its canonical bytes; the digest of a file is the sum of its rows' digests, taken as four
//! little-endian 64-bit words, each word modulo 2^64. A row's bytes include its partition and offset, which also give its place
//! in the file, so the sum covers the order. What the sum gains: the digest of a merged file is the sum of its inputs' digests,
//! so a file that a crashed compactor left behind is proven to hold exactly the planned rows without reading the inputs again.
//!
//! Canonical bytes, integers little-endian, `text` and `bytes` as a u32 length and the bytes, `option` as 0, or 1 and the value:
//!
//! ```text
//! partition u32, offset u64, append_time i64 (us), event_time option i64, source_mtime option i64,
//! producer option (id u64, epoch u32, sequence u64), key option bytes, source_name option text,
//! number of headers u32, each: name text, value bytes,
//! kind u8, then
//!   0 tombstone
//!   1 inline value: content hash (32 bytes), value bytes
//!   2 reference: store text, key text, offset option u64, size u64, checksum option u32, content hash option (32 bytes),
//!     content size u64, encoding u8 (0 as given, 1 zstd), content type, etag, version option text each
//! ```

use crate::{Row, interface::RowView};
use refstream_format::batch::ValueView;
use refstream_types::{ContentEncoding, Timestamp};

/// A digest over rows that grows row by row, or by whole files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowsDigest([u64; 4]);

impl RowsDigest {
    /// Adds one row; `buffer` is scratch space.
    pub fn add_row(&mut self, row: &Row, buffer: &mut Vec<u8>) {
        self.add_view(&row.view(&mut Vec::new()), buffer);
    }

    pub(crate) fn add_view(&mut self, row: &RowView<'_>, buffer: &mut Vec<u8>) {
        buffer.clear();
        canonical(row, buffer);
        self.add(Self::from_bytes(*blake3::hash(buffer).as_bytes()));
    }

    /// Adds the rows of another digest.
    pub fn add(&mut self, other: Self) {
        for (word, other) in self.0.iter_mut().zip(other.0) {
            *word = word.wrapping_add(other);
        }
    }

    /// As it stands in metadata and manifests.
    pub fn to_bytes(self) -> [u8; 32] {
        let mut bytes = [0; 32];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(self.0) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// From metadata or a manifest.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        let mut words = [0; 4];
        for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            let mut le = [0; 8];
            le.copy_from_slice(chunk);
            *word = u64::from_le_bytes(le);
        }
        Self(words)
    }
}

fn bytes(out: &mut Vec<u8>, value: &[u8]) {
    out.extend_from_slice(&(value.len() as u32).to_le_bytes());
    out.extend_from_slice(value);
}

fn option<T>(out: &mut Vec<u8>, value: Option<T>, write: impl FnOnce(&mut Vec<u8>, T)) {
    out.push(u8::from(value.is_some()));
    if let Some(value) = value {
        write(out, value);
    }
}

fn text(out: &mut Vec<u8>, value: &str) {
    bytes(out, value.as_bytes());
}

fn instant(out: &mut Vec<u8>, value: Timestamp) {
    out.extend_from_slice(&value.as_micros().to_le_bytes());
}

fn canonical(row: &RowView<'_>, out: &mut Vec<u8>) {
    let record = &row.record;
    out.extend_from_slice(&row.partition.0.to_le_bytes());
    out.extend_from_slice(&row.offset.0.to_le_bytes());
    instant(out, row.append_time);
    option(out, record.event_time, instant);
    option(out, record.source_mtime, instant);
    option(out, row.producer, |out, producer| {
        out.extend_from_slice(&producer.id.0.to_le_bytes());
        out.extend_from_slice(&producer.epoch.0.to_le_bytes());
        out.extend_from_slice(&producer.first.0.to_le_bytes());
    });
    option(out, record.key, bytes);
    option(out, record.source_name, text);
    out.extend_from_slice(&(record.headers.len() as u32).to_le_bytes());
    for (name, value) in record.headers {
        text(out, name);
        bytes(out, value);
    }
    match &record.value {
        ValueView::Tombstone => out.push(0),
        ValueView::Inline { bytes: value, content_hash } => {
            out.push(1);
            out.extend_from_slice(*content_hash);
            bytes(out, value);
        }
        ValueView::Reference(reference) => {
            out.push(2);
            text(out, reference.store);
            text(out, reference.key);
            option(out, reference.offset, |out, offset| out.extend_from_slice(&offset.to_le_bytes()));
            out.extend_from_slice(&reference.size.to_le_bytes());
            option(out, reference.checksum, |out, checksum| out.extend_from_slice(&checksum.0.to_le_bytes()));
            option(out, reference.content_hash, |out, hash| out.extend_from_slice(hash));
            out.extend_from_slice(&reference.content_size.to_le_bytes());
            out.push(match reference.encoding {
                ContentEncoding::Identity => 0,
                ContentEncoding::Zstd => 1,
            });
            option(out, reference.content_type, text);
            option(out, reference.etag, text);
            option(out, reference.version, text);
        }
    }
}
