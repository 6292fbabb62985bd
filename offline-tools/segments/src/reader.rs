//! Reads rows of closed files straight from the store: no broker, no listing, and for one partition only the pages concerned.
//!
//! A file's rows are sorted by partition and offset, and the manifest says which runs of offsets it holds; so the position of a
//! row in the file is arithmetic, and the page index turns positions into byte ranges.

use crate::{
    CompactError, Row, decode,
    digest::{RowsDigest, RowsHasher},
    file::{self, OpenFile},
    spans,
    stores::Stores,
    writer::{BATCH_BYTES, metadata},
};
use arrow::array::RecordBatch;
use futures::{StreamExt, TryStreamExt, stream, stream::BoxStream};
use parquet::arrow::{
    arrow_reader::{RowSelection, RowSelector},
    async_reader::ParquetRecordBatchStreamBuilder,
};
use refstream_filer_adapter::BlobStore;
use refstream_format::manifest::DataFile;
use refstream_types::{Key, Offset, PartitionId, StoreName};
use std::{collections::BTreeMap, sync::Arc};

/// Rows decoded at a time at most.
const BATCH_ROWS: usize = 1_024;

/// Reads rows of closed files straight from the store.
#[derive(Clone, Debug)]
pub struct ClosedReader {
    files: Arc<dyn BlobStore>,
    stores: Stores,
}

impl ClosedReader {
    /// A reader of files in `files`; `stores` are those that references may name.
    pub fn new(files: Arc<dyn BlobStore>, stores: BTreeMap<StoreName, Arc<dyn BlobStore>>) -> Self {
        Self { files, stores: Stores::new(stores) }
    }

    /// The absolute address of a file.
    pub fn uri(&self, file: &Key) -> String {
        self.files.uri(file)
    }

    /// The rows of one file in order: all, or those of one partition from an offset on, for which only the pages concerned are
    /// fetched. Reading all of them ends with an error where they are not those that the manifest's digest is of.
    pub fn rows(
        &self,
        file: &DataFile,
        from: Option<(PartitionId, Offset)>,
    ) -> BoxStream<'static, Result<Row, CompactError>> {
        let (reader, file) = (self.clone(), file.clone());
        let (first, count) = match from {
            None => (0, file.rows),
            Some((partition, offset)) => spans::rows_from(&file.segments, partition, offset),
        };
        if count == 0 {
            return stream::empty().boxed();
        }
        let uri = self.files.uri(&file.key);
        let batches = stream::once(async move {
            let opened = open(&reader.files, &file, from.is_some()).await?;
            let batches = columns(&opened, reader.files.uri(&file.key), first, count, BATCH_ROWS)?;
            let check = from.is_none().then(|| Check::new(&file));
            Ok::<_, CompactError>(decoded(batches, reader.stores.clone(), uri, check))
        });
        batches.try_flatten().boxed()
    }
}

/// Opens a file that a manifest names. Where the bytes in the store are others (two versions of this program completed the same
/// plan at once, whose files differ in nothing but the writer's name), those are taken, provided they hold the same rows.
pub(crate) async fn open(files: &Arc<dyn BlobStore>, file: &DataFile, index: bool) -> Result<OpenFile, CompactError> {
    let uri = files.uri(&file.key);
    let opened = match OpenFile::open(Arc::clone(files), file.key.clone(), file.bytes, index).await {
        Ok(opened) => opened,
        Err(error) => {
            let first = file::error(&uri, error);
            if matches!(first, CompactError::Store(_)) {
                return Err(first);
            }
            let size = files.head(&file.key).await?.map_or(file.bytes, |found| found.size);
            if size == file.bytes {
                return Err(first);
            }
            let opened = OpenFile::open(Arc::clone(files), file.key.clone(), size, index).await;
            opened.map_err(|error| file::error(&uri, error))?
        }
    };
    let said = (opened.said(metadata::ROW_COUNT), opened.said(metadata::DIGEST));
    let (rows, digest) = (file.rows.to_string(), hex::encode(file.digest));
    if said != (Some(rows.as_str()), Some(digest.as_str())) {
        let why = format!("it says rows and digest are {said:?}, the manifest says {rows} and {digest}");
        return Err(CompactError::File { uri, why });
    }
    Ok(opened)
}

/// The batches that hold `count` rows from row `first` on.
pub(crate) fn columns(
    opened: &OpenFile,
    uri: String,
    first: u64,
    count: u64,
    at_most: usize,
) -> Result<BoxStream<'static, Result<RecordBatch, CompactError>>, CompactError> {
    let total = opened.metadata.metadata().file_metadata().num_rows().max(0) as u64;
    if first + count > total {
        let why = format!("it has {total} rows, the manifest says at least {}", first + count);
        return Err(CompactError::File { uri, why });
    }
    let mut builder = ParquetRecordBatchStreamBuilder::new_with_metadata(opened.bytes.clone(), opened.metadata.clone())
        .with_batch_size(opened.batch_rows(BATCH_BYTES, at_most));
    if first > 0 || count < total {
        let select = vec![RowSelector::skip(first as usize), RowSelector::select(count as usize)];
        builder = builder.with_row_selection(RowSelection::from(select));
    }
    let batches = builder.build().map_err(|error| file::error(&uri, error))?;
    Ok(batches.map_err(move |error| file::error(&uri, error)).boxed())
}

/// Compares what was read with what the manifest says.
struct Check {
    hasher: RowsHasher,
    rows: u64,
    expected: (RowsDigest, u64),
}

impl Check {
    fn new(file: &DataFile) -> Self {
        let hasher = RowsHasher::new(spans::runs(&file.segments));
        Self { hasher, rows: 0, expected: (RowsDigest::from_bytes(file.digest), file.rows) }
    }

    fn add(&mut self, rows: &[Row]) {
        rows.iter().for_each(|row| self.hasher.add(&row.view(&mut Vec::new())));
        self.rows += rows.len() as u64;
    }

    fn passed(&mut self) -> bool {
        (self.hasher.finish(), self.rows) == self.expected
    }
}

/// Rows of `batches`; with `check` they end with an error where it does not pass.
fn decoded(
    batches: BoxStream<'static, Result<RecordBatch, CompactError>>,
    stores: Stores,
    uri: String,
    check: Option<Check>,
) -> BoxStream<'static, Result<Row, CompactError>> {
    stream::try_unfold((batches, check), move |(mut batches, mut check)| {
        let (stores, uri) = (stores.clone(), uri.clone());
        async move {
            let Some(batch) = batches.try_next().await? else {
                if check.as_mut().is_some_and(|check| !check.passed()) {
                    return Err(CompactError::File { uri, why: "its rows are not those that its digest is of".into() });
                }
                return Ok(None);
            };
            let rows = decode::rows(&batch, &stores).map_err(|why| CompactError::File { uri, why })?;
            if let Some(check) = &mut check {
                check.add(&rows);
            }
            Ok(Some((stream::iter(rows.into_iter().map(Ok)), (batches, check))))
        }
    })
    .try_flatten()
    .boxed()
}
