//! Bytes of manifests (magic `RFMF`) and of their history pages (magic `RFMP`).

use super::{DataFile, Manifest, PublishPlan, SegmentSpan, Tier};
use crate::{
    DecodeError,
    checked::{begin, finish, open, read_offsets, read_range, write_offsets, write_range},
    wire::{Reader, Writer},
};
use refstream_types::{Key, MAX_KEY_BYTES, MAX_TOPIC_NAME_BYTES, SegmentNumber, Timestamp, Token, TopicId, Version};

const MANIFEST_MAGIC: [u8; 4] = *b"RFMF";
const MANIFEST_VERSION: u16 = 1;
const PAGE_MAGIC: [u8; 4] = *b"RFMP";
const PAGE_VERSION: u16 = 1;

impl Manifest {
    /// The object's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let Self { topic, name, version, token, pages, files, plan, replaced } = self;
        let mut w = begin(MANIFEST_MAGIC, MANIFEST_VERSION);
        w.varint(topic.0);
        w.bytes(name.as_str().as_bytes());
        w.varint(version.0);
        w.raw(&token.0);
        w.list(pages, |w, (key, files)| {
            write_key(w, key);
            w.varint((*files).into());
        });
        w.list(files, write_file);
        w.option(plan.as_ref(), |w, plan| {
            write_key(w, &plan.key);
            w.list(&plan.inputs, write_key);
        });
        w.list(replaced, write_key);
        finish(w)
    }
    /// Reads a version.
    ///
    /// # Errors
    /// When it is damaged, of an unknown version, or not of that topic and number.
    pub fn decode(bytes: &[u8], expected: (TopicId, Version)) -> Result<Self, DecodeError> {
        let (mut r, _) = open(bytes, "manifest", MANIFEST_MAGIC, MANIFEST_VERSION)?;
        let topic = TopicId(r.varint()?);
        let name = r.parsed(MAX_TOPIC_NAME_BYTES)?;
        let version = Version(r.varint()?);
        if (topic, version) != expected {
            let (expected_topic, expected_version) = expected;
            return Err(r.error(format!(
                "version {version} of topic {topic}, expected version {expected_version} of topic {expected_topic}"
            )));
        }
        let token = Token(r.array()?);
        let pages = r.list(usize::MAX, |r| {
            let (key, files) = (read_key(r)?, r.varint()?);
            Ok((key, u32::try_from(files).map_err(|_| r.error(format!("{files} files exceed 32 bits")))?))
        })?;
        let files = r.list(usize::MAX, read_file)?;
        let plan = r.option(|r| Ok(PublishPlan { key: read_key(r)?, inputs: r.list(usize::MAX, read_key)? }))?;
        let replaced = r.list(usize::MAX, read_key)?;
        r.end()?;
        Ok(Self { topic, name, version, token, pages, files, plan, replaced })
    }
    /// The bytes of a history page.
    pub fn encode_page(files: &[DataFile]) -> Vec<u8> {
        let mut w = begin(PAGE_MAGIC, PAGE_VERSION);
        w.list(files, write_file);
        finish(w)
    }
    /// Reads a history page.
    ///
    /// # Errors
    /// When it is damaged.
    pub fn decode_page(bytes: &[u8]) -> Result<Vec<DataFile>, DecodeError> {
        let (mut r, _) = open(bytes, "manifest page", PAGE_MAGIC, PAGE_VERSION)?;
        let files = r.list(usize::MAX, read_file)?;
        r.end()?;
        Ok(files)
    }
}

fn write_key(w: &mut Writer, key: &Key) {
    w.bytes(key.as_str().as_bytes());
}

fn read_key(r: &mut Reader) -> Result<Key, DecodeError> {
    r.parsed(MAX_KEY_BYTES)
}

fn write_file(w: &mut Writer, file: &DataFile) {
    let DataFile { key, tier, segments, rows, bytes, payload_bytes, append_times, digest } = file;
    write_key(w, key);
    w.u8(match tier {
        Tier::Fresh => 1,
        Tier::Data => 2,
    });
    w.list(segments, |w, span| {
        w.varint(span.number.0);
        write_range(w, span.range);
        write_offsets(w, &span.start_offsets);
        write_offsets(w, &span.end_offsets);
    });
    w.varint(*rows);
    w.varint(*bytes);
    w.varint(*payload_bytes);
    w.signed(append_times.0.as_micros());
    w.signed(append_times.1.as_micros());
    w.raw(digest);
}

fn read_file(r: &mut Reader) -> Result<DataFile, DecodeError> {
    let key = read_key(r)?;
    let tier = match r.u8()? {
        1 => Tier::Fresh,
        2 => Tier::Data,
        other => return Err(r.error(format!("tier {other} is unknown"))),
    };
    let segments = r.list(usize::MAX, read_span)?;
    if segments.is_empty() || !segments.is_sorted_by(|a, b| a.number < b.number) {
        return Err(r.error(format!("the segments of {key} do not ascend")));
    }
    let (rows, bytes, payload_bytes) = (r.varint()?, r.varint()?, r.varint()?);
    let append_times = (Timestamp::from_micros(r.signed()?), Timestamp::from_micros(r.signed()?));
    if append_times.0 > append_times.1 {
        return Err(r.error(format!("the append times of {key} are reversed")));
    }
    Ok(DataFile { key, tier, segments, rows, bytes, payload_bytes, append_times, digest: r.array()? })
}

fn read_span(r: &mut Reader) -> Result<SegmentSpan, DecodeError> {
    let number = SegmentNumber(r.varint()?);
    let range = read_range(r)?;
    let start_offsets = read_offsets(r, range.len())?;
    let end_offsets = read_offsets(r, range.len())?;
    if start_offsets.iter().zip(&end_offsets).any(|(start, end)| start > end) {
        return Err(r.error(format!("a partition of segment {number} ends before it starts")));
    }
    Ok(SegmentSpan { number, range, start_offsets, end_offsets })
}
