//! Where everything is stored. No other file builds the name of an object.
//!
//! ```text
//! <root>/cluster/epochs/<epoch:020>                       who took which epoch                        Chain::Epochs
//! <root>/cluster/log/<version:020>                        what exists: topics, segments, epochs       Chain::ClusterLog
//! <root>/cluster/snapshots/<version:020>                  state of the cluster after that log entry   Layout::snapshot
//! <root>/cluster/probe/<32 hex>-<round>                   short-lived objects of the start-up probe           Layout::probe
//! <root>/journals/<epoch:020>/<slot:020>                  journal objects and fences                  Chain::Journal
//! <root>/topics/<topic>-<id>/manifest/<version:020>       which files hold which closed segments      Chain::Manifest
//! <root>/topics/<topic>-<id>/pages/<version:020>          immutable history pages of the manifest     Layout::manifest_page
//! <root>/topics/<topic>-<id>/_fresh/<file>.parquet        early small files, for manifest readers     Layout::fresh_file
//! <root>/topics/<topic>-<id>/data/ingest_date=<day>/<file>.parquet   files for everybody              Layout::data_file
//! <root>/payloads/<topic>-<id>/<2 hex>/<32 hex>           payloads and packs, random names            Layout::payload
//! <payload>.blocks                                        CRC32C of each stored MiB                   Layout::blocks
//! ```
//!
//! `<topic>` is the first 100 bytes of the topic's name. A chain's lowest number that may still be trusted is the name of
//! the highest object under `<chain>/boundary/`.

use crate::{Epoch, PartitionRange, SegmentNumber, Slot, Timestamp, Token, TopicId, TopicName, Version};
use serde::{Deserialize, Serialize};
use std::{borrow::Borrow, fmt, str::FromStr};
use thiserror::Error;

/// The longest key, in bytes; S3's limit.
pub const MAX_KEY_BYTES: usize = 1_024;
/// The longest part of a key between slashes that we make ourselves, in bytes.
pub const MAX_KEY_COMPONENT_BYTES: usize = 255;

/// The longest name of a topic's folder: 100 bytes of the topic's name, a dash, and a number.
const MAX_FOLDER_BYTES: usize = 121;
/// What the name of a blob's checksums ends with.
const BLOCKS: &str = ".blocks";

/// A text that cannot be an object's key.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the object key {key:?} is refused: {why}")]
pub struct KeyError {
    /// How the key starts.
    pub key: String,
    /// What is wrong with it.
    pub why: &'static str,
}

/// An object's key: 1 to 1,024 bytes of UTF-8 without control characters, whose parts between slashes are neither empty nor
/// `.` nor `..`, so that no two keys name one file.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Key(Box<str>);

impl Key {
    /// The key as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Checks that a text can be a key, without making one.
    ///
    /// # Errors
    /// Says what is wrong with it.
    pub fn check(key: &str) -> Result<(), KeyError> {
        let refuse = |why| Err(KeyError { key: key.chars().take(80).collect(), why });
        if key.is_empty() {
            return refuse("it is empty");
        }
        if key.len() > MAX_KEY_BYTES {
            return refuse("it is longer than 1024 bytes");
        }
        // Nearly all keys are plain ASCII, which is told without decoding characters.
        let plain = key.bytes().all(|byte| (b' '..=b'~').contains(&byte));
        if !plain && key.chars().any(char::is_control) {
            return refuse("it has a control character");
        }
        if key.split('/').any(|part| matches!(part, "" | "." | "..")) {
            return refuse("a part between slashes is empty, . or ..");
        }
        Ok(())
    }

    fn made(text: String) -> Self {
        debug_assert!(text.parse::<Self>().is_ok(), "{text}");
        Self(text.into())
    }
}

impl FromStr for Key {
    type Err = KeyError;
    fn from_str(key: &str) -> Result<Self, KeyError> {
        Self::check(key)?;
        Ok(Self(key.into()))
    }
}

impl TryFrom<String> for Key {
    type Error = KeyError;
    fn try_from(key: String) -> Result<Self, KeyError> {
        key.parse()
    }
}

impl From<Key> for String {
    fn from(key: Key) -> String {
        key.0.into()
    }
}

impl Borrow<str> for Key {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// A numbered chain of immutable objects: number n is created only when n - 1 exists.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Chain {
    /// Epochs that brokers took.
    Epochs,
    /// What exists: topics, open and sealed segments, fenced epochs.
    ClusterLog,
    /// The journal of one epoch.
    Journal(Epoch),
    /// The closed files of one topic; in the topic's [`TopicFolder`].
    Manifest(TopicFolder),
}

/// The folder of a topic: the first 100 bytes of its name, a dash, its id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicFolder(Box<str>);

impl TopicFolder {
    /// The folder of the topic `name` with identity `id`.
    pub fn new(name: &TopicName, id: TopicId) -> Self {
        let name = name.as_str();
        Self(format!("{}-{id}", &name[..name.len().min(100)]).into())
    }

    /// The topic that a folder of this name would be of. Whether it is its folder is told by making that anew.
    pub fn topic(&self) -> Option<TopicId> {
        let id = self.0.rsplit_once('-')?.1;
        id.bytes().all(|byte| byte.is_ascii_digit()).then(|| id.parse().ok().map(TopicId))?
    }
}

/// What an object of a topic is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopicObject {
    /// A payload or pack, or the checksums beside it.
    Payload,
    /// A file of records: under `data/` or `_fresh/`.
    File,
    /// A version or page of the manifest, or its boundary.
    Manifest,
}

impl fmt::Display for TopicFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Builds every key of a deployment below one root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    root: Box<str>,
}

impl Layout {
    /// A deployment below `root`: a key, or the empty text for the top of the bucket.
    ///
    /// # Errors
    /// When `root` is not empty and no valid key, or longer than 256 bytes.
    pub fn new(root: &str) -> Result<Self, KeyError> {
        if root.is_empty() {
            return Ok(Self { root: "".into() });
        }
        let key: Key = root.parse()?;
        if root.len() > 256 {
            return Err(KeyError { key: root.chars().take(80).collect(), why: "a root has at most 256 bytes" });
        }
        Ok(Self { root: format!("{key}/").into() })
    }

    /// The root without a trailing slash; empty at the top of the bucket.
    pub fn root(&self) -> &str {
        self.root.trim_end_matches('/')
    }

    fn key(&self, rest: fmt::Arguments<'_>) -> Key {
        Key::made(format!("{}{rest}", self.root))
    }

    /// The prefix (with trailing slash) below which a chain's numbers are.
    pub fn chain_prefix(&self, chain: &Chain) -> String {
        let root = &self.root;
        match chain {
            Chain::Epochs => format!("{root}cluster/epochs/"),
            Chain::ClusterLog => format!("{root}cluster/log/"),
            Chain::Journal(epoch) => format!("{root}journals/{:020}/", epoch.0),
            Chain::Manifest(folder) => format!("{root}topics/{folder}/manifest/"),
        }
    }

    /// The object with number `number` of a chain.
    pub fn link(&self, chain: &Chain, number: u64) -> Key {
        Key::made(format!("{}{number:020}", self.chain_prefix(chain)))
    }

    /// The journal object at `slot` of `epoch`.
    pub fn journal(&self, epoch: Epoch, slot: Slot) -> Key {
        self.link(&Chain::Journal(epoch), slot.0)
    }

    /// The prefix of the objects whose highest name is the chain's boundary.
    pub fn boundary_prefix(&self, chain: &Chain) -> String {
        format!("{}boundary/", self.chain_prefix(chain))
    }

    /// The object that raises a chain's boundary to `number`.
    pub fn boundary(&self, chain: &Chain, number: u64) -> Key {
        Key::made(format!("{}{number:020}", self.boundary_prefix(chain)))
    }

    /// The number that a key of a chain (or of its boundary) ends with.
    pub fn number_of(key: &Key) -> Option<u64> {
        let name = key.as_str().rsplit('/').next()?;
        (name.len() == 20).then(|| name.parse().ok())?
    }

    /// The prefix of the cluster's snapshots.
    pub fn snapshot_prefix(&self) -> String {
        format!("{}cluster/snapshots/", self.root)
    }

    /// The state of the cluster after log entry `version`.
    pub fn snapshot(&self, version: Version) -> Key {
        self.key(format_args!("cluster/snapshots/{:020}", version.0))
    }

    /// An object by which the start-up probe `token` tries the store in its round `round`.
    pub fn probe(&self, token: Token, round: u32) -> Key {
        self.key(format_args!("cluster/probe/{token}-{round}"))
    }

    /// Page `version` of a topic's closed history.
    pub fn manifest_page(&self, folder: &TopicFolder, version: Version) -> Key {
        self.key(format_args!("topics/{folder}/pages/{:020}", version.0))
    }

    /// Everything of one topic but its payloads.
    pub fn topic_prefix(&self, folder: &TopicFolder) -> String {
        format!("{}topics/{folder}/", self.root)
    }

    /// An early small file. `attempt` keeps two compactors from writing one name.
    pub fn fresh_file(
        &self,
        folder: &TopicFolder,
        segments: (SegmentNumber, SegmentNumber),
        range: PartitionRange,
        day: Timestamp,
        attempt: Token,
    ) -> Key {
        self.key(format_args!("topics/{folder}/_fresh/{}-{}-{attempt}.parquet", day.date(), file_stem(segments, range)))
    }

    /// The folder of the early files.
    pub fn fresh_prefix(&self, folder: &TopicFolder) -> String {
        format!("{}topics/{folder}/_fresh/", self.root)
    }

    /// A published file, below the folder of its UTC day.
    pub fn data_file(
        &self,
        folder: &TopicFolder,
        day: Timestamp,
        segments: (SegmentNumber, SegmentNumber),
        range: PartitionRange,
    ) -> Key {
        self.key(format_args!("topics/{folder}/data/ingest_date={}/{}.parquet", day.date(), file_stem(segments, range)))
    }

    /// The folder that a plain glob reads: everything below it ends with `.parquet`.
    pub fn data_prefix(&self, folder: &TopicFolder) -> String {
        format!("{}topics/{folder}/data/", self.root)
    }

    /// The prefix of a topic's payloads.
    pub fn payload_prefix(&self, folder: &TopicFolder) -> String {
        format!("{}payloads/{folder}/", self.root)
    }

    /// A payload or pack. Names are random, so that nobody can guess or collide.
    pub fn payload(&self, folder: &TopicFolder, name: Token) -> Key {
        self.key(format_args!("payloads/{folder}/{:02x}/{name}", name.0[0]))
    }

    /// Whose object has this key, and what it is; `None` for a key that no topic's object can have. The topic need not exist.
    pub fn topic_object(&self, key: &Key) -> Option<(TopicFolder, TopicObject)> {
        let (area, rest) = key.as_str().strip_prefix(&*self.root)?.split_once('/')?;
        let (folder, rest) = rest.split_once('/').filter(|(folder, _)| folder.len() <= MAX_FOLDER_BYTES)?;
        let folder = TopicFolder(folder.into());
        match area {
            "payloads" => {
                let name = rest.rsplit('/').next()?;
                let token = name.strip_suffix(BLOCKS).unwrap_or(name).parse().ok()?;
                let payload = self.payload(&folder, token);
                (payload == *key || Self::blocks(&payload) == *key).then_some((folder, TopicObject::Payload))
            }
            "topics" => match rest.split_once('/')?.0 {
                "data" | "_fresh" => Some((folder, TopicObject::File)),
                "manifest" | "pages" => Some((folder, TopicObject::Manifest)),
                _ => None,
            },
            _ => None,
        }
    }

    /// The topic of whose objects other than payloads this is a prefix. It need not exist.
    pub fn topic_of_prefix(&self, prefix: &str) -> Option<TopicFolder> {
        let (folder, _) = prefix.strip_prefix(&*self.root)?.strip_prefix("topics/")?.split_once('/')?;
        Some(TopicFolder(folder.into()))
    }

    /// The checksums of each stored MiB of a large blob.
    pub fn blocks(blob: &Key) -> Key {
        Key::made(format!("{blob}{BLOCKS}"))
    }
}

fn file_stem(segments: (SegmentNumber, SegmentNumber), range: PartitionRange) -> String {
    format!("s{:012}-s{:012}-p{:05}-{:05}", segments.0.0, segments.1.0, range.lo().0, range.hi().0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PartitionId;

    #[test]
    fn keys_that_alias_are_refused() {
        for bad in ["", "/a", "a/", "a//b", ".", "a/../b", "a/./b", "a\nb", &"x".repeat(1_025)] {
            assert!(bad.parse::<Key>().is_err(), "{bad:?}");
        }
        for good in ["a", "a/b", "a/.b", "ä/…", "a b"] {
            assert!(good.parse::<Key>().is_ok(), "{good:?}");
        }
    }

    #[test]
    fn data_files_follow_the_published_name() {
        let layout = Layout::new("prod/eu").unwrap();
        let folder = TopicFolder::new(&"images".parse().unwrap(), TopicId(7));
        let day = "2026-11-29T23:59:59Z".parse().unwrap();
        let range = PartitionRange::new(PartitionId(0), PartitionId(16)).unwrap();
        assert_eq!(
            layout.data_file(&folder, day, (SegmentNumber(3), SegmentNumber(12)), range).as_str(),
            "prod/eu/topics/images-7/data/ingest_date=2026-11-29/s000000000003-s000000000012-p00000-00016.parquet"
        );
    }

    #[test]
    fn a_topics_objects_are_told_from_all_others() {
        for root in ["", "prod/eu"] {
            let layout = Layout::new(root).unwrap();
            let folder = TopicFolder::new(&"ima-ges".parse().unwrap(), TopicId(7));
            assert_eq!(folder.topic(), Some(TopicId(7)));
            let payload = layout.payload(&folder, Token([0xab; 16]));
            let kind = |key: &Key| layout.topic_object(key).filter(|(found, _)| *found == folder).map(|(_, kind)| kind);
            assert_eq!(kind(&payload), Some(TopicObject::Payload));
            assert_eq!(kind(&Layout::blocks(&payload)), Some(TopicObject::Payload));
            let manifest = layout.link(&Chain::Manifest(folder.clone()), 3);
            assert_eq!(kind(&manifest), Some(TopicObject::Manifest));
            assert_eq!(kind(&layout.manifest_page(&folder, Version(3))), Some(TopicObject::Manifest));
            assert_eq!(layout.topic_of_prefix(&layout.fresh_prefix(&folder)), Some(folder.clone()));
            let file: Key = format!("{}ingest_date=x/y.parquet", layout.data_prefix(&folder)).parse().unwrap();
            assert_eq!(kind(&file), Some(TopicObject::File));
            let prefix = layout.payload_prefix(&folder);
            for other in [
                "abababababababababababababababab",
                "00/abababababababababababababababab",
                "AB/ABABABABABABABABABABABABABABABAB",
                "ab/abababababababababababababababab.blocks.blocks",
                "ab/abababababababababababababababab.txt",
                "ab/x/abababababababababababababababab",
                "ab/abab",
            ] {
                assert_eq!(layout.topic_object(&format!("{prefix}{other}").parse().unwrap()), None, "{other}");
            }
            for other in [layout.journal(Epoch(1), Slot(1)), layout.link(&Chain::ClusterLog, 1), "x".parse().unwrap()] {
                assert_eq!(layout.topic_object(&other), None, "{other}");
            }
            assert_eq!(layout.topic_of_prefix("topics/"), None);
            assert_eq!(layout.topic_of_prefix(&prefix), None);
        }
        assert_eq!(Layout::new("a").unwrap().topic_object(&"payloads/t-1/ab/x".parse().unwrap()), None);
    }

    #[test]
    fn numbers_are_read_back() {
        let layout = Layout::new("").unwrap();
        let key = layout.journal(Epoch(3), Slot(42));
        assert_eq!(key.as_str(), "journals/00000000000000000003/00000000000000000042");
        assert_eq!(Layout::number_of(&key), Some(42));
        assert_eq!(Layout::number_of(&"a/b".parse().unwrap()), None);
    }

    #[test]
    fn long_topic_names_stay_apart() {
        let long: TopicName = "x".repeat(249).parse().unwrap();
        assert_ne!(TopicFolder::new(&long, TopicId(1)), TopicFolder::new(&long, TopicId(2)));
    }
}
