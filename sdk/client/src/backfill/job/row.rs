//! One row a file.
//!
//! | bytes | field |
//! |---|---|
//! | 1 | version, 1 |
//! | 1 | state: 1 begun, 2 stored, 3 inline, 4 done, 5 failed |
//! | 8 | bytes of the file |
//! | 1 + 8 | whether its modification time is known, and that in microseconds |
//! | 1 + 32 | whether its hash is known, and that |
//! | 8 | begun, stored: stored bytes of the object; done: the partition |
//! | 8 | done: the offset |
//! | | begun, stored: JSON; failed: the error |

use super::super::ledger::Known;
use crate::uploader::{Begun, BegunHow};
use refstream_filer_adapter::Part;
use refstream_types::{ContentHash, Crc32c, Key, Offset, PartitionId, Reference, Timestamp};
use serde::{Deserialize, Serialize};

const VERSION: u8 = 1;
const FIXED: usize = 1 + 1 + 8 + 9 + 33 + 8 + 8;

/// What is remembered of a file.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    /// Its size when it was read.
    pub(super) size: u64,
    /// When it was modified last, as it was read.
    pub(super) modified: Option<Timestamp>,
    /// BLAKE3 of its content, once that is known.
    pub(super) hash: Option<ContentHash>,
    pub(super) state: State,
}

/// How far a file is.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum State {
    /// Its upload was begun.
    Begun(Begun),
    /// Its bytes have a place in an object of this size, which exists or is on its way.
    Stored { reference: Box<Reference>, object_size: u64 },
    /// It travels in its record.
    Inline,
    /// Its record is durable.
    Done { partition: PartitionId, offset: Offset },
    /// It failed.
    Failed { error: String },
}

/// The states, for counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Uploading = 0,
    Stored = 1,
    Done = 2,
    Failed = 3,
}

/// The number of [`Kind`]s.
pub(super) const KINDS: usize = 4;

#[derive(Serialize, Deserialize)]
struct BegunJson {
    key: Key,
    #[serde(skip_serializing_if = "Option::is_none")]
    whole: Option<(u64, Crc32c)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parts: Option<(String, u64, bool)>,
}

/// A part as the table of parts keeps it.
#[derive(Serialize, Deserialize)]
struct PartJson {
    etag: String,
    size: u64,
    checksum: Option<Crc32c>,
}

pub(super) fn part_to_bytes(part: &Part) -> Vec<u8> {
    let json = PartJson { etag: part.etag.clone(), size: part.size, checksum: part.checksum };
    serde_json::to_vec(&json).unwrap_or_default()
}

pub(super) fn part_from_bytes(number: u32, bytes: &[u8]) -> Option<Part> {
    let PartJson { etag, size, checksum } = serde_json::from_slice(bytes).ok()?;
    Some(Part { number, etag, size, checksum })
}

impl Row {
    pub(super) fn kind(&self) -> Kind {
        match &self.state {
            State::Begun(_) => Kind::Uploading,
            State::Stored { .. } | State::Inline => Kind::Stored,
            State::Done { .. } => Kind::Done,
            State::Failed { .. } => Kind::Failed,
        }
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let (state, a, b, tail) = match &self.state {
            State::Begun(Begun { key, how }) => {
                let (whole, parts) = match how {
                    BegunHow::Whole { size, checksum } => (Some((*size, *checksum)), None),
                    BegunHow::Parts { upload, part_bytes, compressed, parts: _ } => {
                        (None, Some((upload.clone(), *part_bytes, *compressed)))
                    }
                };
                let json = BegunJson { key: key.clone(), whole, parts };
                (1, 0, 0, serde_json::to_vec(&json).unwrap_or_default())
            }
            State::Stored { reference, object_size } => {
                (2, *object_size, 0, serde_json::to_vec(reference).unwrap_or_default())
            }
            State::Inline => (3, 0, 0, Vec::new()),
            State::Done { partition, offset } => (4, u64::from(partition.0), offset.0, Vec::new()),
            State::Failed { error } => (5, 0, 0, error.clone().into_bytes()),
        };
        let mut bytes = Vec::with_capacity(FIXED + tail.len());
        bytes.push(VERSION);
        bytes.push(state);
        bytes.extend_from_slice(&self.size.to_le_bytes());
        bytes.push(self.modified.is_some().into());
        bytes.extend_from_slice(&self.modified.map_or(0, Timestamp::as_micros).to_le_bytes());
        bytes.push(self.hash.is_some().into());
        bytes.extend_from_slice(&self.hash.map_or([0; 32], |hash| hash.0));
        bytes.extend_from_slice(&a.to_le_bytes());
        bytes.extend_from_slice(&b.to_le_bytes());
        bytes.extend_from_slice(&tail);
        bytes
    }

    /// `None` when these are not the bytes of a row.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
            let (now, later) = bytes.split_first_chunk::<N>()?;
            *bytes = later;
            Some(*now)
        }
        let mut rest = bytes;
        let [version, state] = take(&mut rest)?;
        if version != VERSION {
            return None;
        }
        let size = u64::from_le_bytes(take(&mut rest)?);
        let [has_modified] = take(&mut rest)?;
        let modified = i64::from_le_bytes(take(&mut rest)?);
        let [has_hash] = take(&mut rest)?;
        let hash = ContentHash(take(&mut rest)?);
        let a = u64::from_le_bytes(take(&mut rest)?);
        let b = u64::from_le_bytes(take(&mut rest)?);
        let state = match state {
            1 => {
                let BegunJson { key, whole, parts } = serde_json::from_slice(rest).ok()?;
                let how = match (whole, parts) {
                    (Some((size, checksum)), _) => BegunHow::Whole { size, checksum },
                    (None, Some((upload, part_bytes, compressed))) => {
                        BegunHow::Parts { upload, part_bytes, compressed, parts: Vec::new() }
                    }
                    (None, None) => return None,
                };
                State::Begun(Begun { key, how })
            }
            2 => State::Stored { reference: serde_json::from_slice(rest).ok()?, object_size: a },
            3 => State::Inline,
            4 => State::Done { partition: PartitionId(u32::try_from(a).ok()?), offset: Offset(b) },
            5 => State::Failed { error: String::from_utf8_lossy(rest).into_owned() },
            _ => return None,
        };
        Some(Self {
            size,
            modified: (has_modified != 0).then(|| Timestamp::from_micros(modified)),
            hash: (has_hash != 0).then_some(hash),
            state,
        })
    }

    /// What this says of a file that has this size and modification time now.
    pub(super) fn known(self, size: u64, modified: Option<Timestamp>) -> Known {
        let same = self.size == size && self.modified == modified;
        match self.state {
            State::Done { .. } if same => Known::Done,
            State::Done { .. } => Known::Changed,
            State::Stored { reference, object_size } if same => Known::Stored { reference, object_size },
            State::Begun(begun) if same => Known::Begun(begun),
            State::Stored { .. } | State::Begun(_) | State::Inline | State::Failed { .. } => Known::New,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_survive_being_written() {
        let reference = Reference {
            store: "main".parse().unwrap(),
            key: "a/b".parse().unwrap(),
            offset: Some(7),
            size: 3,
            checksum: Some(Crc32c(9)),
            content_hash: Some(ContentHash([4; 32])),
            content_size: 3,
            encoding: refstream_types::ContentEncoding::Identity,
            content_type: Some("image/png".into()),
            etag: None,
            version: None,
        };
        let parts = BegunHow::Parts { upload: "u".into(), part_bytes: 5 << 20, compressed: true, parts: Vec::new() };
        let states = [
            State::Begun(Begun { key: "k".parse().unwrap(), how: BegunHow::Whole { size: 1, checksum: Crc32c(2) } }),
            State::Begun(Begun { key: "k".parse().unwrap(), how: parts }),
            State::Stored { reference: Box::new(reference), object_size: 80 },
            State::Inline,
            State::Done { partition: PartitionId(3), offset: Offset(1 << 40) },
            State::Failed { error: "ä".into() },
        ];
        for state in states {
            let row =
                Row { size: 5, modified: Some(Timestamp::from_micros(-7)), hash: Some(ContentHash([1; 32])), state };
            let bytes = row.to_bytes();
            assert_eq!(Row::from_bytes(&bytes), Some(row.clone()));
            for cut in 0..FIXED {
                assert_eq!(Row::from_bytes(&bytes[..cut]), None);
            }
            let none = Row { modified: None, hash: None, ..row };
            assert_eq!(Row::from_bytes(&none.to_bytes()), Some(none));
        }
    }

    #[test]
    fn a_file_that_changed_is_not_what_was_noted() {
        let row = |state| Row { size: 5, modified: None, hash: None, state };
        let done = row(State::Done { partition: PartitionId(0), offset: Offset(0) });
        assert_eq!(done.clone().known(5, None), Known::Done);
        assert_eq!(done.known(6, None), Known::Changed);
        let begun = Begun { key: "k".parse().unwrap(), how: BegunHow::Whole { size: 1, checksum: Crc32c(2) } };
        assert_eq!(row(State::Begun(begun.clone())).known(5, None), Known::Begun(begun.clone()));
        assert_eq!(row(State::Begun(begun)).known(5, Some(Timestamp::from_micros(1))), Known::New);
    }
}
