//! A store inside the process: objects are plain files in plain folders, served to others over S3.
//!
//! [`FileStore`] is the backend and implements [`Filer`](crate::Filer) and [`BlobStore`](crate::BlobStore) directly, so the broker
//! of the same process pays no HTTP; [`S3Server`] serves the same store to everybody else, signed with [`EmbeddedKeys`].
//!
//! # On disk
//! ```text
//! DIR/<bucket>/<key>              an object: the key is the path, so that any tool can glob the folder
//! DIR/.refstream/lock             held while a process has the store open
//! DIR/.refstream/tmp/             bodies on their way in; emptied at start
//! DIR/.refstream/escaped/         objects whose key cannot be a path here (see below)
//! DIR/.refstream/uploads/<id>/    uploads in parts; they survive a restart
//! DIR/credentials.toml            the S3 keys, mode 0600
//! ```
//! A key goes to the escaped area when a part of it is longer than a file name can be, or clashes with another object: `a` and
//! `a/b` can be stored together though a file cannot be a folder. Nothing but objects is ever below `DIR/<bucket>`.
//! Checksum, ETag and content type are in an extended attribute of the file itself, so they appear and vanish with it.
//!
//! # Order of writes, and what a crash leaves
//! 1. The body goes to a file in `tmp/`, its CRC32C is computed on the way and compared. *Crash: a leftover, removed at start.*
//! 2. The attribute is set and the file is fsynced. *Crash: the same.*
//! 3. The key is marked unsettled in memory and the file is renamed into place, for a create with `RENAME_NOREPLACE`: the kernel
//!    picks the one winner. *Crash of the process: the object is there, unacknowledged; start-up syncs the file system before
//!    anything is answered. Crash of the machine: there or not, but never in part, since the bytes were durable before.*
//! 4. The folder is fsynced (once for all who wait for the same folder), as were the parents of new folders. The key is settled,
//!    the call answers.
//!
//! Whoever meets an unsettled key, as a reader, in a listing or as the loser of a create, waits for step 4: nothing that was
//! seen or lost against can be gone after a crash. If the fsync of step 4 fails, the key answers errors until a restart.
//! A delete unlinks, fsyncs the folder, and removes folders that became empty.

mod body;
mod durable;
mod keys;
mod listing;
mod note;
mod objects;
mod paths;
mod server;
mod service;
mod store;
mod uploads;

#[cfg(test)]
mod tests;

pub use keys::{EmbeddedKeys, KeysError};
pub use server::S3Server;
pub use store::{FileStore, FileStoreOptions};
