//! The digest over a file's rows, kept in its metadata (`refstream.digest`) and in the manifest.
//!
//! A file's rows are cut into *blocks*: the rows of one run (dense offsets of one partition, within one segment's part of the file),
//! cut at the offsets that [`BLOCK_ROWS`] divides. The digest of a block is the BLAKE3 of its rows' canonical bytes, one after
//! another; the digest of a file is the sum of its blocks' digests, taken as four little-endian 64-bit words, each word modulo
//! 2^64. A row's bytes include its partition and offset, which also give its place in the file, so the sum covers the order. What
//! the sum gains: a merge keeps the runs of its inputs, so its digest is the sum of theirs, and a file that a crashed compactor
//! left behind is proven to hold exactly the planned rows without reading the inputs again. What blocks gain: BLAKE3 is several
//! times faster on long inputs than on rows.
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

use crate::{Row, interface::RowView, spans::Run};
use refstream_format::batch::ValueView;
use refstream_types::{ContentEncoding, Offset, PartitionId, Timestamp};

/// Offsets at whose multiples a block ends.
const BLOCK_ROWS: u64 = 1_024;
/// Canonical bytes that are collected before they are hashed.
const BUFFER_BYTES: usize = 64 << 10;

/// A digest over blocks of rows, or over whole files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowsDigest([u64; 4]);

impl RowsDigest {
    /// The digest of `rows`, which are in the order of a file of one segment: partition, then offset.
    pub fn of(rows: &[Row]) -> Self {
        let dense = |one: &Row, next: &Row| one.partition == next.partition && one.offset.next() == next.offset;
        let runs = rows.chunk_by(dense).map(|run| Run {
            partition: run[0].partition,
            start: run[0].offset,
            end: run[run.len() - 1].offset.next(),
        });
        let mut hasher = RowsHasher::new(runs.collect());
        rows.iter().for_each(|row| hasher.add(&row.view(&mut Vec::new())));
        hasher.finish()
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

/// Takes rows in the order of a file.
pub(crate) struct RowsHasher {
    /// Where the runs that are not over yet end, the next one last.
    ends: Vec<(PartitionId, Offset)>,
    digest: RowsDigest,
    block: blake3::Hasher,
    /// Canonical bytes of the block that `block` has not seen.
    buffer: Vec<u8>,
    /// Whether rows were added since the last block ended.
    open: bool,
}

impl RowsHasher {
    /// For the rows of these runs, which are in the order of the file.
    pub(crate) fn new(runs: Vec<Run>) -> Self {
        let ends = runs.into_iter().rev().map(|run| (run.partition, run.end)).collect();
        let digest = RowsDigest::default();
        Self { ends, digest, block: blake3::Hasher::new(), buffer: Vec::new(), open: false }
    }

    /// Adds the next row. A row that is not of the run that is due is hashed all the same: the digest will be another one.
    pub(crate) fn add(&mut self, row: &RowView<'_>) {
        canonical(row, &mut self.buffer);
        self.open = true;
        if self.buffer.len() >= BUFFER_BYTES {
            self.block.update(&self.buffer);
            self.buffer.clear();
        }
        let next = (row.partition, Offset(row.offset.0.wrapping_add(1)));
        let run_ends = self.ends.last() == Some(&next);
        if run_ends {
            self.ends.pop();
        }
        if run_ends || next.1.0.is_multiple_of(BLOCK_ROWS) {
            self.end_block();
        }
    }

    fn end_block(&mut self) {
        self.block.update(&self.buffer);
        self.buffer.clear();
        self.digest.add(RowsDigest::from_bytes(*self.block.finalize().as_bytes()));
        self.block.reset();
        self.open = false;
    }

    /// The digest of all rows so far.
    pub(crate) fn finish(&mut self) -> RowsDigest {
        if self.open {
            self.end_block();
        }
        self.digest
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::record;

    fn rows(partition: u32, offsets: std::ops::Range<u64>) -> Vec<Row> {
        offsets
            .map(|n| Row {
                partition: PartitionId(partition),
                offset: Offset(n),
                append_time: Timestamp::from_micros(1),
                producer: None,
                record: record(n % 50),
            })
            .collect()
    }

    fn digest(rows: &[Row], ends: &[(u32, u64)]) -> RowsDigest {
        let run = |&(p, end): &(u32, u64)| Run { partition: PartitionId(p), start: Offset(0), end: Offset(end) };
        let mut hasher = RowsHasher::new(ends.iter().map(run).collect());
        rows.iter().for_each(|row| hasher.add(&row.view(&mut Vec::new())));
        hasher.finish()
    }

    #[test]
    fn a_merged_file_has_the_sum_of_its_inputs() {
        let (first, second) = ([rows(0, 5..1_500), rows(1, 0..10)].concat(), rows(0, 1_500..4_000));
        let mut sum = digest(&first, &[(0, 1_500), (1, 10)]);
        sum.add(digest(&second, &[(0, 4_000)]));
        let merged = [rows(0, 5..4_000), rows(1, 0..10)].concat();
        assert_eq!(digest(&merged, &[(0, 1_500), (0, 4_000), (1, 10)]), sum);
        assert_ne!(digest(&merged, &[(0, 4_000), (1, 10)]), sum, "runs are part of what the digest is of");
    }

    #[test]
    fn rows_that_are_missing_or_others_give_another_digest() {
        let all = rows(0, 0..3_000);
        let expected = RowsDigest::of(&all);
        assert_eq!(digest(&all, &[(0, 3_000)]), expected);
        for left_out in [0, 1_023, 1_024, 2_999] {
            let some: Vec<Row> = all.iter().filter(|row| row.offset.0 != left_out).cloned().collect();
            assert_ne!(digest(&some, &[(0, 3_000)]), expected, "{left_out}");
        }
        let mut swapped = all.clone();
        swapped.swap(7, 8);
        assert_ne!(digest(&swapped, &[(0, 3_000)]), expected);
        let mut other = all;
        other[1_500].append_time = Timestamp::from_micros(2);
        assert_ne!(digest(&other, &[(0, 3_000)]), expected);
    }

    /// The definition at the head of this module, byte for byte.
    #[test]
    fn a_block_is_hashed_as_documented() {
        let mut row = rows(3, 7..8).remove(0);
        row.record = refstream_types::Record::new(refstream_types::Value::Tombstone);
        let tombstone = |offset: u64| {
            let mut bytes = Vec::new();
            bytes.extend_from_slice(&3_u32.to_le_bytes());
            bytes.extend_from_slice(&offset.to_le_bytes());
            bytes.extend_from_slice(&1_i64.to_le_bytes());
            bytes.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            bytes
        };
        let next = Row { offset: Offset(8), ..row.clone() };
        let expected = blake3::hash(&[tombstone(7), tombstone(8)].concat());
        assert_eq!(RowsDigest::of(&[row, next]).to_bytes(), *expected.as_bytes());
    }
}
