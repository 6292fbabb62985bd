//! Records in closed files.

use super::reader::{Context, Target};
use crate::ConsumeError;
use refstream_types::{Offset, PartitionId};
use std::collections::BTreeMap;

/// How far files were read.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// The next offset of each partition that goes on at the broker.
    pub(super) reached: BTreeMap<PartitionId, Offset>,
    /// Partitions that could not be read.
    pub(super) failed: Vec<(PartitionId, ConsumeError)>,
}

/// Reads the `wanted` partitions from their positions at least up to the given offsets.
#[cfg(not(feature = "parquet"))]
pub(super) async fn read(context: Context, wanted: BTreeMap<PartitionId, (Target, Offset)>) -> Outcome {
    let in_files = |(partition, (target, until)): (PartitionId, (Target, Offset))| {
        let topic = context.topic.name.clone();
        (partition, crate::RecordsInFiles { topic, partition, from: target.position, until }.into())
    };
    Outcome { reached: BTreeMap::new(), failed: wanted.into_iter().map(in_files).collect() }
}

#[cfg(feature = "parquet")]
pub(super) use closed::read;

#[cfg(feature = "parquet")]
mod closed {
    use super::{
        super::reader::{Chunk, Closed},
        *,
    };
    use crate::{DamagedRecords, ErrorClass, UnreadableFiles, backoff::Backoff, consumer::Delivery, stores::BlobStore};
    use async_trait::async_trait;
    use bytes::Bytes;
    use futures::{FutureExt, StreamExt, TryStreamExt};
    use refstream_filer_adapter::{CreateError, Created, Filer, GetOptions, Listed, StoreError, StoreErrorKind};
    use refstream_format::manifest::DataFile;
    use refstream_journal::{Metadata, ReadError};
    use refstream_segments::{ClosedReader, CompactError};
    use refstream_types::{ByteRange, Key, TopicId, TopicName};
    use std::{collections::HashMap, panic::AssertUnwindSafe, sync::Arc};

    /// Rows that are handed on together.
    const ROWS_AT_ONCE: usize = 1_024;
    /// What a row costs in memory, about.
    const ROW_BYTES: usize = 512;

    /// Reads the `wanted` partitions from their positions at least up to the given offsets, each file once for all partitions that
    /// need it. A file that is gone means that the manifest has moved on; one that the newest version names still, and a damaged
    /// one, are reported and passed over.
    pub(crate) async fn read(context: Context, wanted: BTreeMap<PartitionId, (Target, Offset)>) -> Outcome {
        let mut outcome = Outcome::default();
        let files = match Files::open(&context) {
            Ok(files) => files,
            Err(error) => {
                outcome.failed = wanted.into_keys().map(|partition| (partition, error.clone())).collect();
                return outcome;
            }
        };
        let mut pass = Pass { context, files, wanted };
        let failure = pass.run().await.err();
        for (partition, (target, until)) in pass.wanted {
            match &failure {
                Some(Stopped::Failed(why)) if target.position < until && !target.is_done() => {
                    let error = UnreadableFiles {
                        topic: pass.context.topic.name.clone(),
                        partition,
                        offset: target.position,
                        why: why.text.clone(),
                        class: why.class,
                        retryable: why.retryable,
                    };
                    outcome.failed.push((partition, ConsumeError::Files(Box::new(error))));
                }
                _ => {
                    outcome.reached.insert(partition, target.position);
                }
            }
        }
        outcome
    }

    enum Stopped {
        Closed,
        Failed(Why),
    }

    impl From<Closed> for Stopped {
        fn from(_: Closed) -> Self {
            Self::Closed
        }
    }

    #[derive(Clone, Debug)]
    struct Why {
        text: String,
        class: ErrorClass,
        retryable: bool,
        /// The file itself is at fault.
        damaged: bool,
        /// The file is not there.
        missing: bool,
    }

    impl Why {
        fn of_read(error: &ReadError) -> Self {
            let (class, retryable) = match error {
                ReadError::Store(error) => (crate::error::store_class(error.kind), error.is_retryable()),
                ReadError::Gone(_) => (ErrorClass::VerificationFailed, true),
                _ => (ErrorClass::VerificationFailed, false),
            };
            Self { text: error.to_string(), class, retryable, damaged: false, missing: false }
        }
        fn of_file(error: &CompactError) -> Self {
            match error {
                CompactError::Read(error) => Self::of_read(error),
                CompactError::Store(error) => Self {
                    text: error.to_string(),
                    class: crate::error::store_class(error.kind),
                    retryable: error.is_retryable(),
                    damaged: false,
                    missing: error.is_not_found(),
                },
                error => Self {
                    text: error.to_string(),
                    class: ErrorClass::VerificationFailed,
                    retryable: false,
                    damaged: true,
                    missing: false,
                },
            }
        }
    }

    struct Files {
        metadata: Metadata,
        reader: ClosedReader,
        topic: (TopicName, TopicId),
        pages: HashMap<Key, Vec<DataFile>>,
        version: u64,
    }

    impl Files {
        fn open(context: &Context) -> Result<Self, ConsumeError> {
            let deployment = &context.deployment;
            let store = deployment.store(&deployment.metadata_store)?;
            let filer = Arc::new(ReadOnly(Arc::clone(&store)));
            Ok(Self {
                metadata: Metadata::new(filer, deployment.layout.clone()),
                reader: ClosedReader::new(store, deployment.stores()),
                topic: (context.topic.name.clone(), context.topic.id),
                pages: HashMap::new(),
                version: 0,
            })
        }

        /// All files of the newest manifest, older ones first.
        async fn list(&mut self) -> Result<Vec<DataFile>, ReadError> {
            let Some(manifest) = self.metadata.manifest_of(&self.topic.0, self.topic.1, self.version).await? else {
                return Ok(Vec::new());
            };
            self.version = manifest.version.0;
            let mut files = Vec::new();
            for page in &manifest.pages {
                let key = &page.0;
                if !self.pages.contains_key(key) {
                    self.pages.insert(key.clone(), self.metadata.manifest_page(page).await?);
                }
                files.extend(self.pages.get(key).into_iter().flatten().cloned());
            }
            files.extend(manifest.files);
            Ok(files)
        }
    }

    struct Pass {
        context: Context,
        files: Files,
        wanted: BTreeMap<PartitionId, (Target, Offset)>,
    }

    impl Pass {
        fn next(&self) -> Option<(PartitionId, Offset)> {
            let unread = |(_, (target, until)): &(&PartitionId, &(Target, Offset))| {
                target.position < *until && !target.is_done()
            };
            self.wanted.iter().find(unread).map(|(partition, (target, _))| (*partition, target.position))
        }

        async fn run(&mut self) -> Result<(), Stopped> {
            let mut backoff = Backoff::new();
            let mut last_progress = self.context.runtime.now();
            let mut listed = None;
            while let Some((partition, offset)) = self.next() {
                let outcome = self.step(&mut listed, partition, offset).await;
                let why = match outcome {
                    Ok(()) => {
                        backoff.reset();
                        last_progress = self.context.runtime.now();
                        continue;
                    }
                    Err(Stopped::Failed(why)) => why,
                    Err(closed) => return Err(closed),
                };
                let moved = self.next() != Some((partition, offset));
                if moved {
                    last_progress = self.context.runtime.now();
                }
                let silent = self.context.runtime.now().saturating_sub(last_progress);
                if !why.retryable || silent >= self.context.brokers.timeout() {
                    return Err(Stopped::Failed(why));
                }
                listed = None;
                self.context.runtime.sleep(backoff.next(&*self.context.runtime)).await;
            }
            Ok(())
        }

        /// Reads the file that holds the record.
        async fn step(
            &mut self,
            listed: &mut Option<Vec<DataFile>>,
            partition: PartitionId,
            offset: Offset,
        ) -> Result<(), Stopped> {
            let files = match listed {
                Some(files) => files,
                None => {
                    let files = self.files.list().await;
                    listed.insert(files.map_err(|error| Stopped::Failed(Why::of_read(&error)))?)
                }
            };
            let Some(file) = files.iter().find(|file| file.contains(partition, offset)).cloned() else {
                *listed = None;
                return Err(Stopped::Failed(Why {
                    text: format!("the manifest (version {}) names no file with this offset", self.files.version),
                    class: ErrorClass::VerificationFailed,
                    retryable: true,
                    damaged: false,
                    missing: false,
                }));
            };
            let readers: Vec<_> = self
                .wanted
                .iter()
                .filter(|(partition, (target, _))| !target.is_done() && file.contains(**partition, target.position))
                .map(|(partition, (target, _))| (*partition, target.position))
                .collect();
            // The decoder of Parquet trusts some of what a footer says: one that makes it panic is a damaged file like any other.
            let read = AssertUnwindSafe(self.read_file(&file, &readers)).catch_unwind().await;
            let read = read.unwrap_or_else(|_| {
                let text = format!("the file {} is damaged: its decoder panicked", self.files.reader.uri(&file.key));
                let class = ErrorClass::VerificationFailed;
                Err(Stopped::Failed(Why { text, class, retryable: false, damaged: true, missing: false }))
            });
            let why = match read {
                Err(Stopped::Failed(why)) if why.damaged => why.text,
                Err(Stopped::Failed(why)) if why.missing => {
                    // Files are deleted after the manifest has moved on: only one that the newest version names is lost.
                    let newest = self.files.list().await.map_err(|error| Stopped::Failed(Why::of_read(&error)))?;
                    let named = newest.iter().any(|newer| newer.key == file.key);
                    *listed = Some(newest);
                    if !named {
                        return Ok(());
                    }
                    let (uri, version) = (self.files.reader.uri(&file.key), self.files.version);
                    format!(
                        "the file {uri} does not exist, but the manifest (version {version}) names it; restore it from a copy"
                    )
                }
                other => return other,
            };
            for (partition, _) in readers {
                self.pass_over(&file, partition, &why).await?;
            }
            Ok(())
        }

        async fn read_file(&mut self, file: &DataFile, readers: &[(PartitionId, Offset)]) -> Result<(), Stopped> {
            let from = match readers {
                [one] => Some(*one),
                _ => None,
            };
            let mut rows = self.files.reader.rows(file, from).chunks(ROWS_AT_ONCE);
            while let Some(chunk) = rows.next().await {
                let mut deliveries = Vec::new();
                let mut failure = None;
                for row in chunk {
                    match row {
                        Err(error) => {
                            failure = Some(Why::of_file(&error));
                            break;
                        }
                        Ok(row) => {
                            let Some((target, _)) = self.wanted.get_mut(&row.partition) else { continue };
                            if row.offset < target.position || target.is_done() {
                                continue;
                            }
                            if row.offset > target.position {
                                if !file.contains(row.partition, target.position) {
                                    continue;
                                }
                                self.hand_on(std::mem::take(&mut deliveries)).await?;
                                self.gap(row.partition, row.offset, "the file lacks these rows").await?;
                            }
                            let Some((target, _)) = self.wanted.get_mut(&row.partition) else { continue };
                            target.position = row.offset.next();
                            deliveries.push(Delivery {
                                topic: self.context.topic.name.clone(),
                                partition: row.partition,
                                offset: row.offset,
                                append_time: row.append_time,
                                producer: row.producer,
                                record: row.record,
                            });
                        }
                    }
                }
                self.hand_on(deliveries).await?;
                if let Some(why) = failure {
                    return Err(Stopped::Failed(why));
                }
            }
            for (partition, _) in readers {
                let short = self
                    .wanted
                    .get(partition)
                    .is_some_and(|(target, _)| !target.is_done() && file.contains(*partition, target.position));
                if short {
                    self.pass_over(file, *partition, "the file lacks rows that the manifest says it has").await?;
                }
            }
            Ok(())
        }

        async fn hand_on(&self, rows: Vec<Delivery>) -> Result<(), Closed> {
            if rows.is_empty() {
                return Ok(());
            }
            let room = self.context.outlet.room(rows.len() * ROW_BYTES).await?;
            self.context.outlet.send(Ok(Chunk::Rows { rows, room })).await
        }

        /// Reports what a damaged file should have held, and goes on behind it.
        async fn pass_over(&mut self, file: &DataFile, partition: PartitionId, why: &str) -> Result<(), Closed> {
            let Some((target, _)) = self.wanted.get(&partition) else { return Ok(()) };
            let mut behind = target.position;
            while file.contains(partition, behind) {
                let position = behind;
                let end = file.segments.iter().find_map(|span| {
                    let at = span.range.index_of(partition)?;
                    (span.start_offsets[at] <= position && position < span.end_offsets[at])
                        .then(|| span.end_offsets[at])
                });
                behind = end.unwrap_or(position.next());
            }
            self.gap(partition, behind, why).await
        }

        /// Reports the records from the position up to `until`, and goes on there.
        async fn gap(&mut self, partition: PartitionId, until: Offset, why: &str) -> Result<(), Closed> {
            let Some((target, _)) = self.wanted.get_mut(&partition) else { return Ok(()) };
            let offset = std::mem::replace(&mut target.position, until);
            if until > offset {
                let topic = self.context.topic.name.clone();
                let damaged = DamagedRecords { topic, partition, offset, until: Some(until), why: why.to_owned() };
                self.context.outlet.send(Err(ConsumeError::Damaged(Box::new(damaged)))).await?;
            }
            Ok(())
        }
    }

    /// The metadata store for reading, through the same adapter as payloads.
    #[derive(Debug)]
    struct ReadOnly(Arc<dyn BlobStore>);

    impl ReadOnly {
        async fn get(&self, key: &Key, range: Option<ByteRange>) -> Result<Option<Bytes>, StoreError> {
            match self.0.get(key, &GetOptions { range, ..GetOptions::default() }).await {
                Ok(found) => {
                    let pieces: Vec<Bytes> = found.body.try_collect().await?;
                    Ok(Some(crate::payload::joined(pieces)))
                }
                Err(error) if error.is_not_found() => Ok(None),
                Err(error) => Err(error),
            }
        }
        fn refused(&self, operation: &'static str, key: &Key) -> StoreError {
            StoreError {
                kind: StoreErrorKind::Invalid,
                operation,
                store: self.0.uri(key),
                key: Some(key.clone()),
                message: "clients only read metadata".into(),
            }
        }
    }

    #[async_trait]
    impl Filer for ReadOnly {
        async fn create(&self, key: &Key, _: Bytes) -> Result<Created, CreateError> {
            Err(CreateError::DidNotHappen(self.refused("create", key)))
        }
        async fn read(&self, key: &Key) -> Result<Option<Bytes>, StoreError> {
            self.get(key, None).await
        }
        async fn read_range(&self, key: &Key, range: ByteRange) -> Result<Option<Bytes>, StoreError> {
            self.get(key, Some(range)).await
        }
        async fn remove(&self, key: &Key) -> Result<(), StoreError> {
            Err(self.refused("remove", key))
        }
        async fn list(&self, prefix: &str, after: Option<&Key>, limit: usize) -> Result<Vec<Listed>, StoreError> {
            self.0.list_blobs(prefix, after, limit).await
        }
    }
}
