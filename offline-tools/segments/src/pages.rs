//! Page checksums: Parquet's page header has a CRC32 field that arrow-rs (59) reads but does not write.
//!
//! A column chunk's pages pass through a [`ChecksummedPages`] store on their way to the file: each arrives as a header, then its
//! bytes; the header is written again with field 4, `crc`, the CRC32 (as in gzip) of the bytes as stored. Headers grow by that, so
//! [`Recorder::finish`] corrects the sizes and page offsets that the column writer noted.

use bytes::Bytes;
use parquet::{
    arrow::arrow_writer::{PageKey, PageStore, PageStoreArgs, PageStoreFactory},
    column::writer::ColumnCloseResult,
    errors::{ParquetError, Result},
};
use std::sync::{Arc, Mutex, PoisonError};

/// Type of a `PageHeader`'s dictionary page (`PageType.DICTIONARY_PAGE`).
const DICTIONARY_PAGE: u64 = 2;
/// Thrift's compact protocol: a field of type i32 whose id is the one before plus 1.
const NEXT_I32: u8 = 0x15;
/// Thrift's compact protocol: the type of a struct.
const STRUCT: u8 = 12;

/// One finished page.
struct Page {
    dictionary: bool,
    header: Vec<u8>,
    /// How much longer the header is than the column writer thinks.
    grown: usize,
    data: Bytes,
}

/// The pages of one column chunk.
#[derive(Default)]
pub(crate) struct Pages {
    header: Option<Bytes>,
    pages: Vec<Page>,
    resident: usize,
}

type Shared = Arc<Mutex<Pages>>;

fn lock(pages: &Shared) -> std::sync::MutexGuard<'_, Pages> {
    pages.lock().unwrap_or_else(PoisonError::into_inner)
}

struct ChecksummedPages(Shared);

impl PageStore for ChecksummedPages {
    fn put(&mut self, value: Bytes) -> Result<PageKey> {
        let mut pages = lock(&self.0);
        match pages.header.take() {
            None => pages.header = Some(value),
            Some(header) => {
                let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32IsoHdlc, &value) as u32;
                let (dictionary, patched) = with_checksum(&header, crc)?;
                pages.resident += patched.len() + value.len();
                let grown = patched.len() - header.len();
                pages.pages.push(Page { dictionary, header: patched, grown, data: value });
            }
        }
        Ok(PageKey::new(0))
    }

    fn take(&mut self, _: PageKey) -> Result<Bytes> {
        Err(ParquetError::General("pages are taken from the recorder".into()))
    }

    fn memory_size(&self) -> usize {
        lock(&self.0).resident
    }
}

/// Gives every column chunk its store, and the finished chunks back.
#[derive(Default)]
pub(crate) struct Recorder(Mutex<Vec<Shared>>);

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorder").finish_non_exhaustive()
    }
}

impl PageStoreFactory for Recorder {
    fn create(&self, _: &PageStoreArgs<'_>) -> Result<Box<dyn PageStore>> {
        let pages = Shared::default();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&pages));
        Ok(Box::new(ChecksummedPages(pages)))
    }
}

impl Recorder {
    /// The stores made since the last call: those of one row group, in the order of its leaf columns.
    pub(crate) fn take(&self) -> Vec<Shared> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The bytes of a closed column chunk, dictionary page first, and what the file must say of them.
    pub(crate) fn finish(pages: &Shared, mut close: ColumnCloseResult) -> Result<(Bytes, ColumnCloseResult)> {
        let mut pages = lock(pages);
        let pages = std::mem::take(&mut pages.pages);
        let grown: usize = pages.iter().map(|page| page.grown).sum();
        let mut chunk = Vec::with_capacity(pages.iter().map(|page| page.header.len() + page.data.len()).sum());
        let mut dictionary_offset = None;
        for page in pages.iter().filter(|page| page.dictionary) {
            dictionary_offset = Some(0);
            chunk.extend_from_slice(&page.header);
            chunk.extend_from_slice(&page.data);
        }
        let data_offset = chunk.len();
        let mut locations = close.offset_index.as_mut().map(|index| index.page_locations.iter_mut());
        for page in pages.iter().filter(|page| !page.dictionary) {
            if let Some(location) = locations.as_mut().and_then(Iterator::next) {
                location.offset = chunk.len() as i64;
                location.compressed_page_size = (page.header.len() + page.data.len()) as i32;
            }
            chunk.extend_from_slice(&page.header);
            chunk.extend_from_slice(&page.data);
        }
        close.bytes_written += grown as u64;
        let uncompressed = close.metadata.uncompressed_size() + grown as i64;
        close.metadata = close
            .metadata
            .into_builder()
            .set_total_compressed_size(chunk.len() as i64)
            .set_total_uncompressed_size(uncompressed)
            .set_dictionary_page_offset(dictionary_offset)
            .set_data_page_offset(data_offset as i64)
            .build()?;
        Ok((chunk.into(), close))
    }
}

/// A page header with the checksum in it, and whether it is a dictionary page's. The header starts with three i32 fields (type,
/// uncompressed size, compressed size); a struct with a higher id than 4 follows.
fn with_checksum(header: &[u8], crc: u32) -> Result<(bool, Vec<u8>)> {
    let unexpected = || ParquetError::General("a page header is not in the expected form".into());
    let mut at = 0;
    let mut first = None;
    for _ in 0..3 {
        if header.get(at) != Some(&NEXT_I32) {
            return Err(unexpected());
        }
        at += 1;
        let mut value = 0_u64;
        let mut shift = 0;
        loop {
            let byte = *header.get(at).ok_or_else(unexpected)?;
            at += 1;
            value |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                break;
            }
            if shift > 28 {
                return Err(unexpected());
            }
        }
        first.get_or_insert(value >> 1);
    }
    let next = *header.get(at).ok_or_else(unexpected)?;
    if next & 0x0f != STRUCT || next >> 4 < 2 {
        return Err(unexpected());
    }
    let mut patched = Vec::with_capacity(header.len() + 6);
    patched.extend_from_slice(&header[..at]);
    patched.push(NEXT_I32);
    let signed = crc as i32;
    let mut zigzag = ((signed << 1) ^ (signed >> 31)) as u32;
    while zigzag >= 0x80 {
        patched.push(zigzag as u8 | 0x80);
        zigzag >>= 7;
    }
    patched.push(zigzag as u8);
    patched.push(next - 0x10);
    patched.extend_from_slice(&header[at + 1..]);
    Ok((first == Some(DICTIONARY_PAGE), patched))
}
