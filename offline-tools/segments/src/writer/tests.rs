use super::*;
use crate::{
    ClosedReader,
    testing::{MapStore, record, sorted},
};
use bytes::Bytes;
use futures::TryStreamExt;
use parquet::{
    basic::PageType,
    file::{
        reader::{FileReader, SerializedFileReader},
        serialized_reader::ReadOptionsBuilder,
    },
};
use proptest::prelude::*;
use refstream_format::manifest::{DataFile, Tier};
use refstream_types::{
    ContentEncoding, ContentHash, Crc32c, Header, Offset, PartitionId, PartitionRange, ProducerEpoch, ProducerId,
    ProducerStamp, Record, Reference, SegmentNumber, Sequence, Value,
};

fn topic() -> TopicName {
    "images".parse().unwrap()
}

fn stores(store: &MapStore) -> BTreeMap<StoreName, Arc<dyn BlobStore>> {
    [("main".parse().unwrap(), Arc::new(store.clone()) as Arc<dyn BlobStore>)].into()
}

fn row(partition: u32, offset: u64, record: Record) -> Row {
    Row {
        partition: PartitionId(partition),
        offset: Offset(offset),
        append_time: Timestamp::from_micros(1_800_000_000_000_000 + offset as i64),
        producer: offset.is_multiple_of(2).then_some(ProducerStamp {
            id: ProducerId(u64::from(partition) << 32 | 5),
            epoch: ProducerEpoch(1),
            first: Sequence(offset),
        }),
        record,
    }
}

/// `count` rows of every kind in each of two partitions, and the file that holds them.
fn sample(count: u64) -> (MapStore, DataFile, Vec<Row>) {
    let rows: Vec<Row> = (0..2).flat_map(|p| (0..count).map(move |n| row(p, n, record(n)))).collect();
    let (store, file) = stored(&rows);
    (store, file, rows)
}

fn stored(rows: &[Row]) -> (MapStore, DataFile) {
    let store = MapStore::default();
    let bytes = write_rows(&topic(), rows, &stores(&store), properties()).unwrap();
    let digest = crate::RowsDigest::of(rows);
    let lo = rows.iter().map(|row| row.partition).min().unwrap();
    let hi = rows.iter().map(|row| row.partition).max().unwrap().next();
    let range = PartitionRange::new(lo, hi).unwrap();
    let count = |p| rows.iter().filter(|row| row.partition == p).count() as u64;
    let file = DataFile {
        key: "file.parquet".parse().unwrap(),
        tier: Tier::Data,
        segments: vec![SegmentSpan {
            number: SegmentNumber(1),
            range,
            start_offsets: range.iter().map(|_| Offset(0)).collect(),
            end_offsets: range.iter().map(|p| Offset(count(p))).collect(),
        }],
        rows: rows.len() as u64,
        bytes: bytes.len() as u64,
        payload_bytes: 0,
        append_times: (Timestamp::default(), Timestamp::default()),
        digest: digest.to_bytes(),
    };
    store.overwrite(&file.key, bytes.into());
    (store, file)
}

async fn read(store: &MapStore, file: &DataFile, from: Option<(u32, u64)>) -> Result<Vec<Row>, crate::CompactError> {
    let reader = ClosedReader::new(Arc::new(store.clone()), stores(store));
    reader.rows(file, from.map(|(p, o)| (PartitionId(p), Offset(o)))).try_collect().await
}

fn opened(store: &MapStore, file: &DataFile) -> SerializedFileReader<Bytes> {
    let options = ReadOptionsBuilder::new().with_page_index().build();
    SerializedFileReader::new_with_options(store.bytes(&file.key).unwrap(), options).unwrap()
}

#[tokio::test]
async fn every_kind_of_row_comes_back_equal() {
    let (store, file, rows) = sample(240);
    assert_eq!(read(&store, &file, None).await.unwrap(), rows);
}

#[tokio::test]
async fn one_partition_from_an_offset_on() {
    let (store, file, rows) = sample(100);
    for (partition, offset) in [(0, 0), (0, 99), (1, 0), (1, 57), (1, 100), (2, 0)] {
        let expected: Vec<Row> =
            rows.iter().filter(|row| row.partition.0 == partition && row.offset.0 >= offset).cloned().collect();
        assert_eq!(read(&store, &file, Some((partition, offset))).await.unwrap(), expected, "{partition} {offset}");
    }
}

#[tokio::test]
async fn only_the_pages_concerned_are_fetched() {
    let rows: Vec<Row> = (0..40_000).map(|n| row(0, n, record(n))).collect();
    let (store, file) = stored(&rows);
    store.take_reads();
    let found = read(&store, &file, Some((0, 39_990))).await.unwrap();
    assert_eq!(found, rows[39_990..]);
    let fetched: u64 = store.take_reads().iter().map(|(_, bytes)| bytes).sum();
    assert!(fetched * 2 < file.bytes, "{fetched} of {}", file.bytes);
}

#[tokio::test]
async fn damage_is_noticed_wherever_it_is() {
    let (store, file, _) = sample(300);
    let good = store.bytes(&file.key).unwrap();
    let footer = good.len() - u32::from_le_bytes(good[good.len() - 8..good.len() - 4].try_into().unwrap()) as usize;
    let everywhere = (8..good.len()).step_by(97).map(|at| (at, 0x10));
    // What the footer says of other places is trusted before it is checked.
    for (at, bit) in everywhere.chain((footer..good.len()).step_by(17).map(|at| (at, 0x04))) {
        let mut bad = good.to_vec();
        bad[at] ^= bit;
        store.overwrite(&file.key, bad.into());
        if let Ok(rows) = read(&store, &file, None).await {
            store.overwrite(&file.key, good.clone());
            // Statistics, indexes and bloom filters are not part of the rows.
            assert_eq!(rows, read(&store, &file, None).await.unwrap(), "byte {at}");
        }
    }
}

#[tokio::test]
async fn a_file_with_other_rows_than_the_manifest_says_is_refused() {
    let (store, file, rows) = sample(10);
    let mut other = file.clone();
    other.digest[0] ^= 1;
    let error = read(&store, &other, None).await.unwrap_err().to_string();
    assert!(error.contains("s3://bucket/file.parquet") && error.contains("digest"), "{error}");
    // The same rows by another version of the program: other bytes, accepted.
    let properties =
        properties().into_builder().set_created_by("refstream version 9.9.9-beta.1 (build x)".into()).build();
    let bytes = write_rows(&topic(), &rows, &stores(&store), properties).unwrap();
    assert_ne!(bytes.len() as u64, file.bytes);
    store.overwrite(&file.key, bytes.into());
    assert_eq!(read(&store, &file, None).await.unwrap(), rows);
}

#[test]
fn the_same_rows_give_the_same_bytes() {
    let (first, file, _) = sample(50);
    let (second, _, _) = sample(50);
    assert_eq!(first.bytes(&file.key), second.bytes(&file.key));
}

#[test]
fn the_file_is_as_documented() {
    let (store, file, _) = sample(500);
    let reader = opened(&store, &file);
    let metadata = reader.metadata();
    let said = metadata.file_metadata();
    let created_by = said.created_by().unwrap();
    assert!(created_by.starts_with("refstream version ") && created_by.contains(" (build "), "{created_by}");
    let pairs: BTreeMap<_, _> =
        said.key_value_metadata().unwrap().iter().map(|p| (p.key.as_str(), p.value.clone().unwrap())).collect();
    assert_eq!(pairs[metadata::FORMAT_VERSION], "1");
    assert_eq!(pairs[metadata::TOPIC], "images");
    assert_eq!(pairs[metadata::ROW_COUNT], "1000");
    assert_eq!(pairs[metadata::DIGEST], hex::encode(file.digest));
    assert!(!pairs.contains_key("ARROW:schema"));
    let group = metadata.row_group(0);
    let sorting = group.sorting_columns().unwrap();
    assert_eq!(sorting.iter().map(|s| (s.column_idx, s.descending)).collect::<Vec<_>>(), [(1, false), (2, false)]);
    let dictionary = ["topic", "partition_id", "payload.content_type", "producer_id", "attributes.list.element.key"];
    for (at, column) in group.columns().iter().enumerate() {
        let path = column.column_path().string();
        assert!(matches!(column.compression(), Compression::ZSTD(_)), "{path}");
        assert_eq!(column.dictionary_page_offset().is_some(), dictionary.contains(&path.as_str()), "{path}");
        assert_eq!(column.bloom_filter_offset().is_some(), ["key", "content_hash"].contains(&path.as_str()), "{path}");
        assert!(column.statistics().is_some(), "{path}");
        assert!(column.column_index_offset().is_some() && column.offset_index_offset().is_some(), "{path}");
        let index = &metadata.offset_index().unwrap()[0][at].page_locations;
        let (start, length) = column.byte_range();
        let end = index.last().unwrap().offset as u64 + index.last().unwrap().compressed_page_size as u64;
        assert_eq!(end, start + length, "{path}");
    }
    let encodings = |path: &str| {
        let column = group.columns().iter().find(|c| c.column_path().string() == path).unwrap();
        column.encodings().collect::<Vec<_>>()
    };
    assert!(encodings("log_offset").contains(&Encoding::DELTA_BINARY_PACKED));
    assert!(encodings("content_hash").contains(&Encoding::DELTA_BYTE_ARRAY));
}

/// Every page has a checksum: a page whose bytes are changed is refused by a reader that checks them.
#[test]
fn every_page_has_a_checksum() {
    let (store, file, _) = sample(500);
    let good = store.bytes(&file.key).unwrap();
    let reader = opened(&store, &file);
    let locations: Vec<(usize, usize, i64)> = (0..reader.metadata().row_group(0).num_columns())
        .map(|at| {
            let page = &reader.metadata().offset_index().unwrap()[0][at].page_locations[0];
            (at, page.compressed_page_size as usize, page.offset)
        })
        .collect();
    for (at, size, offset) in locations {
        let mut bad = good.to_vec();
        bad[offset as usize + size - 1] ^= 1;
        let reader = SerializedFileReader::new(Bytes::from(bad)).unwrap();
        let group = reader.get_row_group(0).unwrap();
        let pages: Result<Vec<_>> = group.get_column_page_reader(at).unwrap().collect();
        let error = pages.map(|pages| pages.len()).unwrap_err().to_string();
        assert!(error.contains("CRC"), "column {at}: {error}");
    }
    let group = reader.get_row_group(0).unwrap();
    let pages: Vec<_> = group.get_column_page_reader(0).unwrap().collect::<Result<_>>().unwrap();
    assert_eq!(pages[0].page_type(), PageType::DICTIONARY_PAGE);
}

#[test]
fn row_groups_are_bounded_in_rows_and_bytes() {
    let rows: Vec<Row> = (0..4_000).map(|n| row(0, n, record(n))).collect();
    let batches = record_batches(&topic(), &rows, &stores(&MapStore::default())).unwrap();
    let mut writer = FileWriter::new(properties(), 64 << 10).unwrap();
    for batch in &batches {
        for from in (0..batch.num_rows()).step_by(100) {
            let part = batch.slice(from, 100.min(batch.num_rows() - from));
            writer.write(&part, part.num_rows() * 300).unwrap();
        }
    }
    let description = Description {
        topic: topic(),
        topic_id: TopicId(1),
        segments: Vec::new(),
        rows: 4_000,
        payload_bytes: 0,
        append_times: (Timestamp::default(), Timestamp::default()),
        digest: [0; 32],
    };
    let bytes = writer.finish(&description).unwrap();
    let reader = SerializedFileReader::new(Bytes::from(bytes)).unwrap();
    assert_eq!(reader.num_row_groups(), 4_000_usize.div_ceil(300));
}

/// Packed payloads without names or keys: a hash, a checksum and sizes, little else.
#[test]
fn a_reference_costs_little_more_than_what_cannot_be_compressed() {
    let count = 20_000_u64;
    let mut at = 0;
    let packed = |n: u64, at: &mut u64| {
        let hash = blake3::hash(&n.to_le_bytes());
        let random = u64::from_le_bytes(hash.as_bytes()[..8].try_into().unwrap());
        let size = 500 + random % 4_000;
        let offset = *at % (8 << 20);
        *at += size;
        Record::new(Value::Reference(Box::new(Reference {
            store: "main".parse().unwrap(),
            key: format!("payloads/images-7/aa/{:032x}", *at / (8 << 20)).parse().unwrap(),
            offset: Some(offset),
            size,
            checksum: Some(Crc32c(random as u32)),
            content_hash: Some(ContentHash(*hash.as_bytes())),
            content_size: size,
            encoding: ContentEncoding::Identity,
            content_type: Some("image/svg+xml".into()),
            etag: None,
            version: None,
        })))
    };
    let rows: Vec<Row> = (0..count).map(|n| row(0, n, packed(n, &mut at))).collect();
    let (_, file) = stored(&rows);
    let each = file.bytes as f64 / count as f64;
    assert!(each <= 1.3 * (32.0 + 4.0), "{each} bytes a packed reference");

    let unpacked = |n: u64| {
        let hash = blake3::hash(&n.to_be_bytes());
        let mut record = record(8 * n);
        let Value::Reference(reference) = &mut record.value else { unreachable!() };
        reference.content_hash = Some(ContentHash(*hash.as_bytes()));
        let name = blake3::hash(hash.as_bytes()).to_hex().to_string();
        reference.key = format!("payloads/images-7/{}/{}", &name[..2], &name[..32]).parse().unwrap();
        record.headers.clear();
        record.key = None;
        record.event_time = None;
        record.source_mtime = None;
        record.source_name = None;
        reference.checksum = Some(Crc32c(u32::from_le_bytes(hash.as_bytes()[8..12].try_into().unwrap())));
        record
    };
    let rows: Vec<Row> = (0..count).map(|n| row(0, n, unpacked(n))).collect();
    let (_, file) = stored(&rows);
    let each = file.bytes as f64 / count as f64;
    assert!(each <= 1.3 * (32.0 + 4.0 + 16.0), "{each} bytes a reference");
}

fn any_header() -> impl Strategy<Value = Header> {
    let value = prop_oneof![any::<String>().prop_map(String::into_bytes), any::<Vec<u8>>()];
    ("[a-zé]{0,8}", value).prop_map(|(name, value)| Header { name, value: value.into() })
}

fn any_time() -> impl Strategy<Value = Timestamp> {
    any::<i64>().prop_map(Timestamp::from_micros)
}

fn any_reference() -> impl Strategy<Value = Reference> {
    (
        (prop_oneof!["main", "other"], "[a-z0-9 %+ü]{1,8}(/[a-z0-9]{1,8}){0,3}"),
        (proptest::option::of(0..i64::MAX as u64 / 2), 0..i64::MAX as u64 / 2, 0..i64::MAX as u64, any::<bool>()),
        (proptest::option::of(any::<u32>()), proptest::option::of(any::<[u8; 32]>())),
        (proptest::option::of(".{0,20}"), proptest::option::of(".{0,20}"), proptest::option::of(".{0,20}")),
    )
        .prop_map(|((store, key), (offset, size, content_size, zstd), (crc, hash), (kind, etag, version))| {
            Reference {
                store: store.parse().unwrap(),
                key: key.parse().unwrap(),
                offset,
                size,
                checksum: crc.map(Crc32c),
                content_hash: hash.map(ContentHash),
                content_size,
                encoding: if zstd { ContentEncoding::Zstd } else { ContentEncoding::Identity },
                content_type: kind,
                etag,
                version,
            }
        })
}

fn any_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        4 => any_reference().prop_map(|reference| Value::Reference(Box::new(reference))),
        2 => (any::<Vec<u8>>(), any::<[u8; 32]>())
            .prop_map(|(bytes, hash)| Value::Inline { bytes: bytes.into(), content_hash: ContentHash(hash) }),
        1 => Just(Value::Tombstone),
    ]
}

fn any_row() -> impl Strategy<Value = Row> {
    let key = prop_oneof![any::<String>().prop_map(String::into_bytes), any::<Vec<u8>>()];
    (
        (0..3_u32, any_time(), proptest::option::of((any::<u64>(), any::<u32>(), any::<u64>()))),
        (proptest::option::of(key), proptest::option::of(any_time()), proptest::option::of(any_time())),
        (proptest::collection::vec(any_header(), 0..6), proptest::option::of(any::<String>()), any_value()),
    )
        .prop_map(
            |((partition, append_time, producer), (key, event_time, source_mtime), (headers, name, value))| Row {
                partition: PartitionId(partition),
                offset: Offset(0),
                append_time,
                producer: producer.map(|(id, epoch, first)| ProducerStamp {
                    id: ProducerId(id),
                    epoch: ProducerEpoch(epoch),
                    first: Sequence(first),
                }),
                record: Record {
                    key: key.map(Bytes::from),
                    event_time,
                    headers,
                    source_name: name,
                    source_mtime,
                    value,
                },
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn any_rows_come_back_equal(rows in proptest::collection::vec(any_row(), 1..40)) {
        let mut rows = sorted(rows);
        let mut next = [0; 3];
        for row in &mut rows {
            row.offset = Offset(next[row.partition.0 as usize]);
            next[row.partition.0 as usize] += 1;
        }
        let (store, file) = stored(&rows);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        prop_assert_eq!(runtime.block_on(read(&store, &file, None)).unwrap(), rows);
    }
}

/// The encoding of every leaf column, as docs/SEGMENT_FILE.md states it.
#[test]
fn every_column_has_its_encoding() {
    let (store, file, _) = sample(500);
    let reader = opened(&store, &file);
    let packed = [
        "log_offset",
        "append_time",
        "event_time",
        "payload.offset",
        "payload.size",
        "content_size",
        "source_mtime",
        "producer_seq",
        "producer_epoch",
    ];
    let prefixed = [
        "key",
        "payload.uri",
        "payload.checksum",
        "content_hash",
        "content_encoding",
        "source_name",
        "store",
        "payload_etag",
        "payload_version",
    ];
    for column in reader.metadata().row_group(0).columns() {
        let path = column.column_path().string();
        let has = |encoding| column.encodings().any(|found| found == encoding);
        let expected = match path.as_str() {
            "topic" | "partition_id" | "payload.content_type" | "producer_id" | "attributes.list.element.key" => {
                Encoding::RLE_DICTIONARY
            }
            path if packed.contains(&path) => Encoding::DELTA_BINARY_PACKED,
            path if prefixed.contains(&path) => Encoding::DELTA_BYTE_ARRAY,
            _ => Encoding::PLAIN,
        };
        // What format 1.0 called it.
        let dictionary = expected == Encoding::RLE_DICTIONARY && has(Encoding::PLAIN_DICTIONARY);
        assert!(has(expected) || dictionary, "{path}: {:?}", column.encodings().collect::<Vec<_>>());
    }
    let level = ZstdLevel::try_new(3).unwrap();
    assert_eq!(properties().compression(&path("key")), Compression::ZSTD(level));
}

#[test]
fn statistics_are_truncated_to_64_bytes_and_say_so() {
    let long = |n: u64| {
        let mut record = record(4);
        record.key = Some(format!("{}{n}", "k".repeat(200)).into());
        record
    };
    let (store, file) = stored(&(0..20).map(|n| row(0, n, long(n))).collect::<Vec<_>>());
    let reader = opened(&store, &file);
    let group = reader.metadata().row_group(0);
    let at = group.columns().iter().position(|column| column.column_path().string() == "key").unwrap();
    let statistics = group.column(at).statistics().unwrap();
    assert_eq!(statistics.min_bytes_opt().unwrap().len(), 64);
    assert_eq!(statistics.max_bytes_opt().unwrap().len(), 64);
    assert!(!statistics.min_is_exact() && !statistics.max_is_exact());
    assert!(statistics.max_bytes_opt().unwrap() > "k".repeat(200).as_bytes(), "a bound all the same");
}

#[test]
fn bloom_filters_find_what_is_there_and_little_else() {
    let (store, file, rows) = sample(2_000);
    let properties = parquet::file::properties::ReaderProperties::builder().set_read_bloom_filter(true).build();
    let options = ReadOptionsBuilder::new().with_reader_properties(properties).build();
    let reader = SerializedFileReader::new_with_options(store.bytes(&file.key).unwrap(), options).unwrap();
    let group = reader.get_row_group(0).unwrap();
    let at = |name: &str| group.metadata().columns().iter().position(|c| c.column_path().string() == name).unwrap();
    let filter = group.get_column_bloom_filter(at("key")).unwrap();
    let texts = rows.iter().filter_map(|row| std::str::from_utf8(row.record.key.as_deref()?).ok());
    assert!(texts.clone().all(|key| filter.check(&key)));
    let hashes = group.get_column_bloom_filter(at("content_hash")).unwrap();
    let hash = |n: u64| ContentHash(*blake3::hash(&n.to_le_bytes()).as_bytes()).to_string();
    assert!(hashes.check(&hash(0).as_str()));
    for filter in [filter, hashes] {
        let wrong = (0..10_000).filter(|n| filter.check(&hash(1_000_000 + n).as_str())).count();
        assert!(wrong <= 200, "{wrong} of 10,000 absent values");
    }
}

#[test]
fn a_row_group_has_131072_rows_at_most() {
    let rows: Vec<Row> = (0..4_096).map(|n| row(0, n, Record::new(Value::Tombstone))).collect();
    let batch = &record_batches(&topic(), &rows, &stores(&MapStore::default())).unwrap()[0];
    let mut writer = FileWriter::new(properties(), ROW_GROUP_BYTES).unwrap();
    for _ in 0..33 {
        writer.write(batch, 1).unwrap();
    }
    let description = Description {
        topic: topic(),
        topic_id: TopicId(1),
        segments: Vec::new(),
        rows: 33 * 4_096,
        payload_bytes: 0,
        append_times: (Timestamp::default(), Timestamp::default()),
        digest: [0; 32],
    };
    let reader = SerializedFileReader::new(Bytes::from(writer.finish(&description).unwrap())).unwrap();
    let groups: Vec<i64> = reader.metadata().row_groups().iter().map(|group| group.num_rows()).collect();
    assert_eq!(groups, [131_072, 4_096]);
}

#[test]
fn a_file_says_what_is_in_it() {
    let (store, file, _) = sample(500);
    let reader = opened(&store, &file);
    let said: Vec<&str> =
        reader.metadata().file_metadata().key_value_metadata().unwrap().iter().map(|pair| pair.key.as_str()).collect();
    let documented = include_str!("../../../../docs/SEGMENT_FILE.md");
    for name in &said {
        assert!(documented.contains(&format!("`{name}`")), "{name} is not documented");
    }
    assert_eq!(said.len(), 11);
    let target = refstream_types::TopicConfig::default().file_bytes;
    assert!((64 << 20..=512 << 20).contains(&target), "{target}");
}
