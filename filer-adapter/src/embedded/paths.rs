//! Where a key's file is.

use refstream_types::{Key, MAX_KEY_COMPONENT_BYTES};
use std::path::{Path, PathBuf};

/// The longest directory that a store can be opened in: the longest escaped key still fits the kernel's path limit.
pub(super) const MAX_DIRECTORY_BYTES: usize = 800;
/// Bytes of an escaped key in one path component; less than a file name may have, room for the mark of a folder included.
const ESCAPED_CHUNK_BYTES: usize = 200;
/// Ends the name of a folder in the escaped area; escaped text never has it, so that no file can clash with a folder.
const FOLDER_MARK: u8 = b'+';

/// The folders of a store.
#[derive(Debug)]
pub(super) struct Paths {
    pub(super) objects: PathBuf,
    pub(super) private: PathBuf,
    pub(super) temporary: PathBuf,
    pub(super) escaped: PathBuf,
    pub(super) uploads: PathBuf,
}

impl Paths {
    pub(super) fn new(dir: &Path, bucket: &str) -> Self {
        let private = dir.join(".refstream");
        Self {
            objects: dir.join(bucket),
            temporary: private.join("tmp"),
            escaped: private.join("escaped"),
            uploads: private.join("uploads"),
            private,
        }
    }

    /// The path that equals the key; `None` when one of its parts is too long to be a file's name.
    pub(super) fn plain(&self, key: &Key) -> Option<PathBuf> {
        let fits = key.as_str().split('/').all(|part| part.len() <= MAX_KEY_COMPONENT_BYTES);
        fits.then(|| self.objects.join(key.as_str()))
    }

    /// The path in the escaped area.
    pub(super) fn escaped(&self, key: &Key) -> PathBuf {
        let mut text = Vec::with_capacity(key.as_str().len() + 8);
        for &byte in key.as_str().as_bytes() {
            match byte {
                b'/' | b'%' | FOLDER_MARK => text.extend_from_slice(format!("%{byte:02X}").as_bytes()),
                _ => text.push(byte),
            }
        }
        let mut path = self.escaped.clone();
        let mut rest = String::from_utf8(text).unwrap_or_default();
        while rest.len() > ESCAPED_CHUNK_BYTES {
            let cut = (1..=ESCAPED_CHUNK_BYTES).rev().find(|&at| rest.is_char_boundary(at)).unwrap_or(1);
            let tail = rest.split_off(cut);
            rest.push(char::from(FOLDER_MARK));
            path.push(&rest);
            rest = tail;
        }
        // A chunk could be `.` or `..` by chance: the mark in front keeps every name harmless.
        path.push(format!("={rest}"));
        path
    }

    /// The key of a file of the escaped area, from its path below it; `None` for what is no object of ours.
    pub(super) fn unescape(relative: &Path) -> Option<Key> {
        let mut text = String::new();
        let mut parts = relative.iter().peekable();
        while let Some(part) = parts.next() {
            let part = part.to_str()?;
            match parts.peek() {
                Some(_) => text.push_str(part.strip_suffix(char::from(FOLDER_MARK))?),
                None => text.push_str(part.strip_prefix('=')?),
            }
        }
        let decoded = percent_encoding::percent_decode_str(&text).decode_utf8().ok()?;
        decoded.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ordinary_keys_are_their_own_paths() {
        let paths = Paths::new(Path::new("/d"), "refstream");
        let key: Key = "topics/t-1/data/ingest_date=2026-11-29/s0.parquet".parse().unwrap();
        assert_eq!(
            paths.plain(&key).unwrap(),
            Path::new("/d/refstream/topics/t-1/data/ingest_date=2026-11-29/s0.parquet")
        );
        assert_eq!(paths.plain(&"x".repeat(256).parse().unwrap()), None);
    }

    proptest! {
        #[test]
        fn escaping_is_reversible_and_stays_inside(text in "[a-z+%./=é-]{1,1000}") {
            if let Ok(key) = text.parse::<Key>() {
                let paths = Paths::new(Path::new("/d"), "bkt");
                let path = paths.escaped(&key);
                let relative = path.strip_prefix("/d/.refstream/escaped").unwrap();
                for part in relative.iter() {
                    prop_assert!(part.len() <= 255);
                    prop_assert!(part != "." && part != "..");
                }
                prop_assert_eq!(Paths::unescape(relative), Some(key));
            }
        }
    }
}
