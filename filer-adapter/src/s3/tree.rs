//! Listings of stores that keep objects in folders and list them as a tree.
//!
//! S3 lists by the bytes of whole keys. SeaweedFS lists folder by folder: a folder where its *name* sorts, so `l/a/b` comes before `l/a-`,
//! and `start-after=l/a` leaves out all that is below `l/a/`. Here such a store is listed one folder at a time (with a delimiter, where its order
//! within the folder is well defined) and the folders are put where their keys belong: a folder `a` sorts as `a/`, after a file `a.b`.
//!
//! Within a folder names arrive ascending. An entry may be handed out once a name was seen that is not below its sort key: whatever comes later
//! sorts higher. What has to be kept is therefore only a folder and those of its siblings whose names continue its own.

use super::{Listed, S3Store, Shared};
use crate::StoreError;
use aws_sdk_s3::types::Object;
use refstream_types::Key;
use std::{collections::BTreeMap, sync::OnceLock};

/// How the `Server` header of a store that lists as a tree begins.
const TREE_SERVER: &str = "SeaweedFS";
/// Entries asked for beyond those wanted, since a folder waits for its siblings.
const AHEAD: usize = 16;

/// What is known of the store's order; learned from its first answer.
#[derive(Debug, Default)]
pub(super) struct Order(OnceLock<bool>);

impl Order {
    /// Learns from an answer's `Server` header.
    pub(super) fn learn(&self, server: Option<&str>) {
        self.0.get_or_init(|| server.is_some_and(|server| server.starts_with(TREE_SERVER)));
    }
    /// Whether the store lists as a tree; `None` while it has not answered yet.
    pub(super) fn is_tree(&self) -> Option<bool> {
        self.0.get().copied()
    }
}

/// An entry of a folder.
enum Entry {
    Object(Box<Object>),
    Folder,
}

/// A folder that is being listed.
struct Folder {
    /// The beginning of the keys in it: empty, or with a slash at the end.
    path: String,
    /// Only names that start with this.
    names: String,
    /// Only keys greater than `path` and this.
    after: Option<String>,
    token: Option<String>,
    ended: bool,
    /// The greatest name that was seen.
    horizon: String,
    /// The sort key that was handed out last.
    last: Option<String>,
    /// Entries by sort key: that of a folder has a slash at its end.
    waiting: BTreeMap<String, Entry>,
}

impl Folder {
    fn new(path: String, names: String, after: Option<String>) -> Self {
        let (token, ended, horizon, last, waiting) = (None, false, String::new(), None, BTreeMap::new());
        Self { path, names, after, token, ended, horizon, last, waiting }
    }

    /// The key from which the store has to list so that nothing that sorts after `after` is left out.
    fn start_after(&self) -> Option<String> {
        let after = self.after.as_deref().filter(|after| !after.is_empty())?;
        // A folder whose name is followed by at most a slash in `after` has keys beyond it, although its name lies before.
        let first = after.char_indices().skip(1).find(|(_, c)| *c <= '/').map_or(after.len(), |(at, _)| at);
        let name = &after[..first];
        let last = name.chars().next_back()?;
        let before = (0..u32::from(last)).rev().find_map(char::from_u32)?;
        // The greatest key below that name that anybody would use.
        Some(format!("{}{}{before}\u{10FFFF}", self.path, &name[..name.len() - last.len_utf8()]))
    }

    fn add(&mut self, name: &str, entry: Entry) {
        if name > self.horizon.as_str() {
            self.horizon = name.to_owned();
        }
        let sort_key = match entry {
            Entry::Object(_) => name.to_owned(),
            Entry::Folder => format!("{name}/"),
        };
        let wanted = match (&self.after, &entry) {
            (None, _) => true,
            (Some(after), Entry::Object(_)) => sort_key > *after,
            (Some(after), Entry::Folder) => sort_key > *after || after.starts_with(&sort_key),
        };
        if wanted && self.last.as_ref().is_none_or(|last| *last < sort_key) {
            self.waiting.insert(sort_key, entry);
        }
    }

    /// The next entry by sort key, once nothing can come before it.
    fn take(&mut self) -> Option<(String, Entry)> {
        let first = self.waiting.first_entry().filter(|first| self.ended || *first.key() <= self.horizon)?;
        let (sort_key, entry) = first.remove_entry();
        self.last = Some(sort_key.clone());
        Some((sort_key, entry))
    }
}

/// Lists in the order of keys.
pub(super) async fn list(
    store: &S3Store,
    prefix: &str,
    after: Option<&Key>,
    limit: usize,
) -> Result<Vec<Listed>, StoreError> {
    let after = after.map(Key::as_str).filter(|after| *after >= prefix);
    if after.is_some_and(|after| !after.starts_with(prefix)) {
        return Ok(Vec::new());
    }
    let (path, names) = prefix.split_at(prefix.rfind('/').map_or(0, |slash| slash + 1));
    let after = after.map(|after| after[path.len()..].to_owned());
    let mut found = Vec::new();
    let mut folders = vec![Folder::new(path.to_owned(), names.to_owned(), after)];
    while let Some(folder) = folders.last_mut()
        && found.len() < limit
    {
        match folder.take() {
            Some((name, Entry::Object(object))) => {
                // Objects that others put beside ours may have names that no key of ours has.
                if let Ok(key) = format!("{}{name}", folder.path).parse() {
                    found.push(super::listed(key, &object));
                }
            }
            Some((name, Entry::Folder)) => {
                let after = folder.after.as_ref().and_then(|after| after.strip_prefix(&name)).map(str::to_owned);
                let path = format!("{}{name}", folder.path);
                folders.push(Folder::new(path, String::new(), after));
            }
            None if folder.ended => {
                folders.pop();
            }
            None => fill(&store.shared, folder, limit - found.len()).await?,
        }
    }
    Ok(found)
}

/// Asks for the next entries of a folder.
async fn fill(shared: &Shared, folder: &mut Folder, wanted: usize) -> Result<(), StoreError> {
    let start_after = folder.start_after();
    let list = async || {
        let request = shared
            .client
            .list_objects_v2()
            .bucket(&shared.config.bucket)
            .prefix(format!("{}{}", folder.path, folder.names))
            .delimiter("/")
            .set_start_after(start_after.clone().filter(|_| folder.token.is_none()))
            .set_continuation_token(folder.token.clone())
            .max_keys((wanted + AHEAD).min(super::PAGE) as i32)
            .send();
        shared.send("list", None, 0, request).await
    };
    let answer = shared.retried(list).await.map_err(|failed| failed.error)?;
    let path = folder.path.len();
    for object in answer.contents() {
        if let Some(name) = object.key().and_then(|key| key.get(path..)).filter(|name| !name.is_empty()) {
            folder.add(name, Entry::Object(Box::new(object.clone())));
        }
    }
    for prefix in answer.common_prefixes() {
        let name = prefix.prefix().and_then(|prefix| prefix.get(path..)).map(|name| name.trim_end_matches('/'));
        if let Some(name) = name.filter(|name| !name.is_empty()) {
            folder.add(name, Entry::Folder);
        }
    }
    folder.token = answer.next_continuation_token().map(str::to_owned);
    folder.ended = !answer.is_truncated().unwrap_or(false) || folder.token.is_none();
    Ok(())
}
