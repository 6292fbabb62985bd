//! A topic's manifest.

use crate::{Metadata, ReadError, damaged};
use futures::{StreamExt, TryStreamExt, stream, stream::BoxStream};
use refstream_filer_adapter::chain;
use refstream_format::{
    DecodeError,
    cluster_log::TopicState,
    manifest::{DataFile, Manifest},
};
use refstream_types::{Chain, Key, TopicFolder, TopicId, TopicName, Version};

impl Metadata {
    /// The newest version of a topic's manifest; `None` before the first. `hint`: a version known to have existed, or 0.
    ///
    /// # Errors
    /// When the store did not say, or what it holds is damaged.
    pub async fn manifest(&self, topic: &TopicState, hint: u64) -> Result<Option<Manifest>, ReadError> {
        self.manifest_of(&topic.name, topic.id, hint).await
    }

    /// As [`Metadata::manifest`], for those who do not follow the cluster's state.
    ///
    /// # Errors
    /// When the store did not say, or what it holds is damaged.
    pub async fn manifest_of(&self, name: &TopicName, id: TopicId, hint: u64) -> Result<Option<Manifest>, ReadError> {
        let chain = Chain::Manifest(TopicFolder::new(name, id));
        let Some((number, bytes)) = chain::tip(self.filer.as_ref(), &self.layout, &chain, hint).await? else {
            return Ok(None);
        };
        let key = self.layout.link(&chain, number);
        Manifest::decode(&bytes, (id, Version(number))).map_err(damaged(&key)).map(Some)
    }

    /// The files of one history page, as the manifest names it: its key and how many files it lists.
    ///
    /// # Errors
    /// `Gone` when it is not there, `Damaged` also when it lists another number of files.
    pub async fn manifest_page(&self, page: &(Key, u32)) -> Result<Vec<DataFile>, ReadError> {
        let (key, expected) = page;
        let bytes = self.object(key).await?;
        let files = Manifest::decode_page(&bytes).map_err(damaged(key))?;
        if files.len() != *expected as usize {
            let why = format!("{} files, the manifest says {expected}", files.len());
            let error = DecodeError { what: "manifest page", at: 0, why };
            return Err(ReadError::Damaged { key: key.clone(), error });
        }
        Ok(files)
    }

    /// All files of a manifest: those of its pages, oldest first, then its own. A page is read when the stream comes to it.
    pub fn manifest_files<'a>(&'a self, manifest: &'a Manifest) -> BoxStream<'a, Result<DataFile, ReadError>> {
        let pages = stream::iter(&manifest.pages).then(|page| self.manifest_page(page));
        let paged = pages.map_ok(|files| stream::iter(files.into_iter().map(Ok))).try_flatten();
        paged.chain(stream::iter(manifest.files.iter().cloned().map(Ok))).boxed()
    }
}
