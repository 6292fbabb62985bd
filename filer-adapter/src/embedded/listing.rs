//! Listing in the order of keys, touching only the folders that can hold an answer.
//!
//! Within a folder the order is that of the names where a folder's name ends with `/`: `a-b` < `a/b` < `a0`. Keys of the escaped
//! area are merged in from an index in memory (they are exceptions). A page costs one reading of each folder on its way.

use super::{durable::lock, note::Properties, store::Inner};
use refstream_types::{Key, MAX_KEY_COMPONENT_BYTES};
use std::{collections::BTreeSet, io, ops::Bound, path::PathBuf, sync::Mutex};

/// The least text that is greater than every text that starts with `prefix`; `None` when there is none.
pub(super) fn past(prefix: &[u8]) -> Option<Vec<u8>> {
    let mut bound = prefix.to_vec();
    while let Some(last) = bound.pop() {
        if last < u8::MAX {
            bound.push(last + 1);
            return Some(bound);
        }
    }
    None
}

#[derive(Debug)]
struct Level {
    folder: PathBuf,
    key: String,
    names: std::vec::IntoIter<(String, bool)>,
}

/// Walks the keys that start with a prefix, from a bound on, ascending.
#[derive(Debug)]
pub(super) struct Walk<'a> {
    escaped: &'a Mutex<BTreeSet<Vec<u8>>>,
    prefix: String,
    from: Vec<u8>,
    levels: Vec<Level>,
    next_plain: Option<String>,
}

impl<'a> Walk<'a> {
    /// `after`: only keys greater than this text, which need not be a key.
    pub(super) fn new(inner: &'a Inner, prefix: &str, after: Option<&str>) -> io::Result<Self> {
        let mut walk = Self {
            escaped: &inner.escaped,
            prefix: prefix.to_owned(),
            // No key has a NUL, so this is the least that is greater.
            from: after.map(|after| [after.as_bytes(), b"\0"].concat()).unwrap_or_default(),
            levels: Vec::new(),
            next_plain: None,
        };
        let (top, _) = prefix.rsplit_once('/').unwrap_or_default();
        let possible = top.is_empty() && !prefix.starts_with('/')
            || top.split('/').all(|part| {
                !matches!(part, "" | "." | "..") && part.len() <= MAX_KEY_COMPONENT_BYTES && !part.contains('\0')
            });
        if possible {
            let key = if top.is_empty() { String::new() } else { format!("{top}/") };
            walk.enter(inner.paths.objects.join(top), key)?;
        }
        Ok(walk)
    }

    /// Goes on behind every key that starts with `prefix`.
    pub(super) fn skip(&mut self, prefix: &str) {
        match past(prefix.as_bytes()) {
            Some(bound) if bound > self.from => self.from = bound,
            Some(_) => {}
            None => {
                self.levels.clear();
                self.from = vec![u8::MAX];
            }
        }
    }

    fn wanted(&self, key: &str, folder: bool) -> bool {
        if folder {
            (key.starts_with(&self.prefix) || self.prefix.starts_with(key))
                && (key.as_bytes() >= self.from.as_slice() || self.from.starts_with(key.as_bytes()))
        } else {
            key.starts_with(&self.prefix) && key.as_bytes() >= self.from.as_slice()
        }
    }

    fn enter(&mut self, folder: PathBuf, key: String) -> io::Result<()> {
        let entries = match std::fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry?;
            // What is no UTF-8 was put there by others and is no key.
            let Ok(mut name) = entry.file_name().into_string() else { continue };
            let kind = match entry.file_type() {
                Ok(kind) => kind,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            if !kind.is_dir() && !kind.is_file() {
                continue;
            }
            if kind.is_dir() {
                name.push('/');
            }
            if self.wanted(&format!("{key}{name}"), kind.is_dir()) {
                names.push((name, kind.is_dir()));
            }
        }
        names.sort_unstable();
        self.levels.push(Level { folder, key, names: names.into_iter() });
        Ok(())
    }

    fn plain(&mut self) -> io::Result<Option<String>> {
        while let Some(level) = self.levels.last_mut() {
            let Some((name, is_folder)) = level.names.next() else {
                self.levels.pop();
                continue;
            };
            let key = format!("{}{name}", level.key);
            let folder = level.folder.join(&name);
            if !self.wanted(&key, is_folder) {
                continue;
            }
            if is_folder {
                self.enter(folder, key)?;
            } else {
                return Ok(Some(key));
            }
        }
        Ok(None)
    }

    /// The next key; `None` at the end.
    pub(super) fn next(&mut self) -> io::Result<Option<Key>> {
        loop {
            if self.next_plain.as_ref().is_none_or(|key| !self.wanted(key, false)) {
                self.next_plain = self.plain()?;
            }
            let start = self.from.as_slice().max(self.prefix.as_bytes());
            let escaped = self.next_escaped(start);
            let key = match (self.next_plain.take(), escaped) {
                (None, None) => return Ok(None),
                (Some(plain), None) => plain,
                (None, Some(escaped)) => escaped,
                (Some(plain), Some(escaped)) if plain.as_str() <= escaped.as_str() => plain,
                (Some(plain), Some(escaped)) => {
                    self.next_plain = Some(plain);
                    escaped
                }
            };
            self.from = [key.as_bytes(), b"\0"].concat();
            // Files that others put there under a name that is no key are not ours to show.
            if let Ok(key) = key.parse() {
                return Ok(Some(key));
            }
        }
    }

    fn next_escaped(&self, start: &[u8]) -> Option<String> {
        let index = lock(self.escaped);
        let key = index.range::<[u8], _>((Bound::Included(start), Bound::Unbounded)).next()?;
        if !key.starts_with(self.prefix.as_bytes()) {
            return None;
        }
        String::from_utf8(key.clone()).ok()
    }
}

/// Where a page of a listing starts: behind this.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Cursor {
    /// Behind this text, which need not be a key.
    After(String),
    /// Behind every key that starts with this.
    Past(String),
}

/// A page of a listing.
#[derive(Debug, Default)]
pub(super) struct Page {
    pub(super) objects: Vec<(Key, Properties)>,
    pub(super) prefixes: Vec<String>,
    /// Where the next page starts; `None` when this is the last.
    pub(super) next: Option<Cursor>,
}

impl Inner {
    /// A page of at most `limit` objects and, where there is a delimiter, prefixes up to its next appearance. Blocks.
    pub(super) fn page(
        &self,
        prefix: &str,
        delimiter: Option<&str>,
        from: Option<&Cursor>,
        limit: usize,
    ) -> io::Result<Page> {
        let mut page = Page::default();
        if limit == 0 {
            return Ok(page);
        }
        let after = match from {
            Some(Cursor::After(text)) => Some(text.as_str()),
            _ => None,
        };
        let mut walk = Walk::new(self, prefix, after)?;
        if let Some(Cursor::Past(past)) = from {
            walk.skip(past);
        }
        let mut last = None;
        while let Some(key) = walk.next()? {
            if page.objects.len() + page.prefixes.len() == limit {
                page.next = last;
                break;
            }
            let rest = &key.as_str()[prefix.len()..];
            let common = delimiter.and_then(|delimiter| {
                rest.find(delimiter).map(|at| key.as_str()[..prefix.len() + at + delimiter.len()].to_owned())
            });
            match common {
                Some(common) => {
                    walk.skip(&common);
                    page.prefixes.push(common.clone());
                    last = Some(Cursor::Past(common));
                }
                None => {
                    if let Some((_, properties)) = self.open(&key)? {
                        last = Some(Cursor::After(key.as_str().to_owned()));
                        page.objects.push((key, properties));
                    }
                }
            }
        }
        Ok(page)
    }
}
