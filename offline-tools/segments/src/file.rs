//! A Parquet file in a store, read by ranges.

use crate::CompactError;
use bytes::{Bytes, BytesMut};
use futures::{FutureExt, StreamExt, TryStreamExt, future::BoxFuture, stream};
use parquet::{
    arrow::{
        arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions},
        async_reader::AsyncFileReader,
    },
    errors::{ParquetError, Result},
    file::metadata::{PageIndexPolicy, ParquetMetaData, ParquetMetaDataReader},
};
use refstream_filer_adapter::{BlobStore, GetOptions, StoreError};
use refstream_types::{ByteRange, Key};
use std::{collections::BTreeMap, ops::Range, sync::Arc};

/// The end of a file that is fetched at first: footer and page index of most files.
const TAIL_BYTES: u64 = 256 << 10;
/// Ranges with a smaller gap than this become one request.
const MAX_GAP: u64 = 128 << 10;
/// Bytes of a request at most.
const MAX_REQUEST: u64 = 4 << 20;
/// Requests of one reader at a time.
const REQUESTS: usize = 4;

/// The bytes of a file.
#[derive(Clone, Debug)]
pub(crate) struct StoreFile {
    store: Arc<dyn BlobStore>,
    key: Key,
    size: u64,
}

/// A file whose footer was read.
#[derive(Clone, Debug)]
pub(crate) struct OpenFile {
    pub(crate) bytes: StoreFile,
    pub(crate) metadata: ArrowReaderMetadata,
}

impl StoreFile {
    async fn range(self, range: Range<u64>) -> Result<Bytes> {
        self.check(&range)?;
        let length = range.end.saturating_sub(range.start);
        let options = GetOptions { range: Some(ByteRange { offset: range.start, length }), ..GetOptions::default() };
        let found = self.store.get(&self.key, &options).await.map_err(external)?;
        let mut body = found.body;
        let mut bytes = BytesMut::new();
        while let Some(piece) = body.try_next().await.map_err(external)? {
            if bytes.is_empty() && piece.len() as u64 == length {
                return Ok(piece);
            }
            bytes.extend_from_slice(&piece);
        }
        if bytes.len() as u64 != length {
            return Err(ParquetError::EOF(format!("{length} bytes from {} wanted, {} came", range.start, bytes.len())));
        }
        Ok(bytes.freeze())
    }
}

impl StoreFile {
    /// Ranges come from a footer, which may be damaged.
    fn check(&self, range: &Range<u64>) -> Result<()> {
        if range.start <= range.end && range.end <= self.size {
            return Ok(());
        }
        let (start, end, size) = (range.start, range.end, self.size);
        Err(ParquetError::General(format!("its footer is damaged: it names bytes {start} to {end} of {size}")))
    }
}

fn external(error: StoreError) -> ParquetError {
    ParquetError::External(Box::new(error))
}

/// The store's own error where it was one; otherwise the file is at fault.
pub(crate) fn error(uri: &str, error: ParquetError) -> CompactError {
    match error {
        ParquetError::External(inner) => match inner.downcast::<StoreError>() {
            Ok(error) => CompactError::Store(*error),
            Err(other) => CompactError::File { uri: uri.to_owned(), why: other.to_string() },
        },
        other => CompactError::File { uri: uri.to_owned(), why: other.to_string() },
    }
}

/// Ranges in ascending order that cover `ranges`.
fn coalesce(ranges: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut sorted = ranges.to_vec();
    sorted.sort_unstable_by_key(|range| range.start);
    let mut merged: Vec<Range<u64>> = Vec::new();
    for range in sorted {
        match merged.last_mut() {
            Some(last)
                if range.start <= last.end
                    || (range.start - last.end <= MAX_GAP && range.end.max(last.end) - last.start <= MAX_REQUEST) =>
            {
                last.end = last.end.max(range.end);
            }
            _ => merged.push(range),
        }
    }
    merged
}

impl AsyncFileReader for StoreFile {
    fn get_bytes(&mut self, range: Range<u64>) -> BoxFuture<'_, Result<Bytes>> {
        self.clone().range(range).boxed()
    }

    fn get_byte_ranges(&mut self, ranges: Vec<Range<u64>>) -> BoxFuture<'_, Result<Vec<Bytes>>> {
        let file = self.clone();
        async move {
            ranges.iter().try_for_each(|range| file.check(range))?;
            let fetched: BTreeMap<u64, Bytes> = stream::iter(coalesce(&ranges))
                .map(|range| {
                    let file = file.clone();
                    async move { Ok::<_, ParquetError>((range.start, file.range(range).await?)) }
                })
                .buffer_unordered(REQUESTS)
                .try_collect()
                .await?;
            ranges
                .iter()
                .map(|range| {
                    let covering = fetched.range(..=range.start).next_back();
                    covering
                        .and_then(|(start, bytes)| {
                            let from = (range.start - start) as usize;
                            let to = (range.end - start) as usize;
                            (to <= bytes.len()).then(|| bytes.slice(from..to))
                        })
                        .ok_or_else(|| ParquetError::General("a range was not fetched".into()))
                })
                .collect()
        }
        .boxed()
    }

    fn get_metadata<'a>(
        &'a mut self,
        options: Option<&'a ArrowReaderOptions>,
    ) -> BoxFuture<'a, Result<Arc<ParquetMetaData>>> {
        async move {
            let size = self.size;
            let reader = ParquetMetaDataReader::new()
                .with_arrow_reader_options(options)
                .with_prefetch_hint(Some(TAIL_BYTES.min(size) as usize));
            Ok(Arc::new(reader.load_and_finish(&mut *self, size).await?))
        }
        .boxed()
    }
}

impl OpenFile {
    /// Reads the footer of a file of `size` bytes, and its page index with `index`.
    pub(crate) async fn open(store: Arc<dyn BlobStore>, key: Key, size: u64, index: bool) -> Result<Self> {
        let mut bytes = StoreFile { store, key, size };
        let offsets = if index { PageIndexPolicy::Required } else { PageIndexPolicy::Skip };
        let options = ArrowReaderOptions::new()
            .with_schema(crate::schema::schema())
            .with_offset_index_policy(offsets)
            .with_column_index_policy(PageIndexPolicy::Skip);
        let metadata = ArrowReaderMetadata::load_async(&mut bytes, options).await?;
        Ok(Self { bytes, metadata })
    }

    /// A value of the key-value metadata.
    pub(crate) fn said(&self, key: &str) -> Option<&str> {
        let pairs = self.metadata.metadata().file_metadata().key_value_metadata()?;
        pairs.iter().find(|pair| pair.key == key)?.value.as_deref()
    }

    /// How many rows to decode at a time, so that about `bytes` are in memory.
    pub(crate) fn batch_rows(&self, bytes: usize, at_most: usize) -> usize {
        let largest = self
            .metadata
            .metadata()
            .row_groups()
            .iter()
            .map(|group| group.total_byte_size().max(0) as usize / group.num_rows().max(1) as usize)
            .max()
            .unwrap_or(0);
        (bytes / largest.max(1)).clamp(1, at_most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_ranges_are_one_request() {
        assert_eq!(coalesce(&[0..10, 20..30, (MAX_GAP + 40)..(MAX_GAP + 50)]), [0..30, (MAX_GAP + 40)..(MAX_GAP + 50)]);
        assert_eq!(coalesce(&[5..10, 0..10, 300_000..300_001]), [0..10, 300_000..300_001]);
        assert_eq!(coalesce(&[0..MAX_REQUEST, MAX_REQUEST + 1..MAX_REQUEST + 2]).len(), 2);
    }
}
