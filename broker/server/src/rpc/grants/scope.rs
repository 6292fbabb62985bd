//! Which keys somebody may be granted.
//!
//! **To write**: payloads of a topic that exists, and the checksums beside them. The client chooses the key, at random; the layout of
//! keys is checked, and the grant's condition sees to it that a key which is taken stays as it is. Where the store names objects, the key that is
//! asked for has the same form, and only says for which topic the object is.
//!
//! **To read**: payloads of a topic that exists, in any store; its files of records and its manifest, in the metadata store; and what the
//! configuration adds, such as objects that were attached in place. Where the store names objects, a name does not tell its topic: it has
//! a random part that is known only to who was told.
//!
//! Cluster log, journals and everything else that brokers coordinate by is never granted.

use crate::errors;
use refstream_format::cluster_log::ClusterState;
use refstream_proto::v1::ErrorDetail;
use refstream_types::{Key, Layout, TopicFolder, TopicObject};
use std::sync::Arc;

/// What is known of a deployment.
pub(super) struct Scope<'a> {
    pub(super) state: Arc<ClusterState>,
    pub(super) layout: &'a Layout,
    /// What may be read besides topics' objects.
    pub(super) read_prefixes: &'a [String],
    /// The store names objects.
    pub(super) names_objects: bool,
    /// The store holds metadata and files.
    pub(super) metadata: bool,
}

impl Scope<'_> {
    fn exists(&self, folder: &TopicFolder) -> bool {
        let topic = folder.topic().and_then(|id| self.state.topics.get(&id));
        topic.is_some_and(|topic| !topic.deleted && TopicFolder::new(&topic.name, topic.id) == *folder)
    }

    /// Whether a key may be written.
    ///
    /// # Errors
    /// When it may not.
    pub(super) fn check_write(&self, key: &Key) -> Result<(), ErrorDetail> {
        match self.layout.topic_object(key) {
            Some((folder, TopicObject::Payload)) if self.exists(&folder) => Ok(()),
            _ => Err(errors::not_authorised(format!(
                "grants to write are for new payloads of existing topics, and {key} is none"
            ))),
        }
    }

    /// Whether an object may be read.
    ///
    /// # Errors
    /// When it may not.
    pub(super) fn check_read(&self, key: &Key) -> Result<(), ErrorDetail> {
        if self.names_objects {
            return Ok(());
        }
        let granted = match self.layout.topic_object(key) {
            Some((folder, TopicObject::Payload)) => self.exists(&folder),
            Some((folder, TopicObject::File | TopicObject::Manifest)) => self.metadata && self.exists(&folder),
            None => self.read_prefixes.iter().any(|prefix| key.as_str().starts_with(prefix.as_str())),
        };
        if granted {
            return Ok(());
        }
        Err(errors::not_authorised(format!(
            "grants to read are for objects of existing topics, and {key} is none; for objects attached in place their prefix \
             belongs into the broker's setting grants.read_prefixes, or use credentials of your own (--store-access own)"
        )))
    }

    /// Whether a prefix may be listed.
    ///
    /// # Errors
    /// When it may not.
    pub(super) fn check_list(&self, prefix: &str) -> Result<(), ErrorDetail> {
        match self.layout.topic_of_prefix(prefix) {
            Some(folder) if self.metadata && self.exists(&folder) => Ok(()),
            _ => Err(errors::not_authorised(format!(
                "grants list files and manifests of existing topics, and {prefix:?} is no prefix of any; use credentials of your \
                 own (--store-access own)"
            ))),
        }
    }
}
