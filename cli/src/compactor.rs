//! Joins the broker to the compactor: the broker's crates know nothing of Parquet.

use async_trait::async_trait;
use refstream_format::{
    cluster_log::{SealedSegment, TopicState},
    manifest::Manifest,
};
use refstream_segments::{CompactError, Compactor};
use refstream_server::{Compacted, CompactorError};

/// [`Compactor`] as the broker sees it.
#[derive(Debug)]
pub(crate) struct InProcess(pub(crate) Compactor);

fn failed(topic: &TopicState, error: &CompactError) -> CompactorError {
    CompactorError {
        message: format!("compaction of topic {}: {error}", topic.name),
        retryable: error.is_retryable(),
        damaged: error.is_damage(),
    }
}

#[async_trait]
impl refstream_server::Compactor for InProcess {
    async fn compact(
        &self,
        topic: &TopicState,
        segments: &[SealedSegment],
        publish: bool,
    ) -> Result<Compacted, CompactorError> {
        let done = self.0.compact(topic, segments, publish).await.map_err(|error| failed(topic, &error))?;
        Ok(Compacted { segments: done.segments, files: done.files, rows: done.rows, bytes: done.bytes })
    }

    async fn manifest(&self, topic: &TopicState) -> Result<Option<Manifest>, CompactorError> {
        self.0.manifest(topic).await.map_err(|error| failed(topic, &error))
    }
}
