use super::*;
use crate::{ErrorClass, Payload, payload::joined};
use refstream_filer_adapter::{
    TokioRuntime,
    memory::{Fault, MemoryStore, Operation},
};
use refstream_format::{
    blocks::Blocks,
    pack::{PackFooter, TRAILER_BYTES},
};
use refstream_types::{ByteRange, ContentEncoding, ContentHash, TopicId};
use std::time::Duration;

pub(crate) struct Fixture {
    pub(crate) store: MemoryStore,
    pub(crate) uploader: Uploader,
    pub(crate) runtime: Arc<dyn Runtime>,
}

pub(crate) fn fixture(options: UploadOptions) -> Fixture {
    let runtime: Arc<dyn Runtime> = Arc::new(TokioRuntime::new());
    let store = MemoryStore::new(Arc::clone(&runtime));
    let folder = TopicFolder::new(&"t".parse().unwrap(), TopicId(1));
    let uploader = Uploader::new(
        "main".parse().unwrap(),
        Arc::new(store.clone()),
        Layout::new("").unwrap(),
        folder,
        Arc::clone(&runtime),
        options,
    );
    Fixture { store, uploader, runtime }
}

impl Fixture {
    pub(crate) fn payload(&self, reference: &Reference) -> Payload {
        Payload::new(reference.clone(), Ok(Arc::new(self.store.clone())), Arc::clone(&self.runtime))
    }
    pub(crate) async fn upload(&self, bytes: impl Into<Bytes>) -> Reference {
        self.uploader.upload(Source::Bytes(bytes.into()), None, None).await.unwrap().into_reference()
    }
}

/// Bytes that do not compress.
pub(crate) fn noise(bytes: usize) -> Bytes {
    let mut reader = blake3::Hasher::new().finalize_xof();
    let mut content = vec![0; bytes];
    reader.fill(&mut content);
    content.into()
}

/// Bytes that compress well.
pub(crate) fn text(bytes: usize) -> Bytes {
    let mut text = String::new();
    let mut line = 0;
    while text.len() < bytes {
        text.push_str(&format!("{line:08} all work and no play makes jack a dull boy\n"));
        line += 1;
    }
    text.truncate(bytes);
    text.into()
}

#[tokio::test]
async fn small_payloads_share_a_pack_that_explains_itself() {
    let fixture = fixture(UploadOptions { pack_linger: Duration::from_secs(600), ..UploadOptions::default() });
    let contents: Vec<_> = (0..20).map(|i| text(i * 37)).collect();
    let upload = |(i, content): (usize, &Bytes)| {
        fixture.uploader.upload(Source::Bytes(content.clone()), None, Some(format!("{i}.txt")))
    };
    let uploads = futures::future::join_all(contents.iter().enumerate().map(upload));
    let flush = async {
        tokio::task::yield_now().await;
        fixture.uploader.flush().await.unwrap();
    };
    let (receipts, ()) = tokio::join!(uploads, flush);
    let keys = fixture.store.keys();
    assert_eq!(keys.len(), 1);
    let object = fixture.store.peek(&keys[0]).unwrap();
    let length = PackFooter::encoded_len(&object[object.len() - TRAILER_BYTES..]).unwrap() as usize;
    let footer = PackFooter::decode(&object[object.len() - length..], object.len() as u64).unwrap();
    assert_eq!(footer.entries.len(), 20);
    for (content, receipt) in contents.iter().zip(receipts) {
        let reference = receipt.unwrap().into_reference();
        reference.validate().unwrap();
        let entry =
            footer.entries.iter().find(|entry| entry.content_hash.0 == *blake3::hash(content).as_bytes()).unwrap();
        assert_eq!((Some(entry.offset), entry.size), (reference.offset, reference.size));
        assert_eq!(fixture.payload(&reference).bytes().await.unwrap(), content);
    }
}

#[tokio::test]
async fn a_pack_is_stored_when_full_and_when_it_lingered() {
    let options =
        UploadOptions { pack_bytes: 10_000, pack_linger: Duration::from_millis(1), ..UploadOptions::default() };
    let fixture = fixture(options);
    let references = futures::future::join_all((0..8).map(|_| fixture.upload(noise(3_000)))).await;
    assert_eq!(fixture.store.keys().len(), 3);
    assert_eq!(references.len(), 8);
}

#[tokio::test]
async fn an_empty_payload_is_a_payload() {
    for pack_below in [0, 1 << 20] {
        let fixture = fixture(UploadOptions { pack_below, pack_linger: Duration::ZERO, ..UploadOptions::default() });
        let reference = fixture.upload(Bytes::new()).await;
        assert_eq!((reference.size, reference.content_size), (0, 0));
        reference.validate().unwrap();
        assert!(fixture.payload(&reference).bytes().await.unwrap().is_empty());
    }
}

#[tokio::test]
async fn empty_files_need_next_to_no_room() {
    for pack_below in [0, 1 << 20] {
        let options = UploadOptions { pack_below, pack_linger: Duration::ZERO, ..UploadOptions::default() };
        let fixture = fixture(options);
        let file = tempfile::NamedTempFile::new().unwrap();
        // Large payloads have all of the memory but this.
        let _others = fixture.uploader.room(fixture.uploader.options().memory as u64 - 100).await;
        let upload = || fixture.uploader.upload(Source::File(file.path().to_owned()), None, None);
        for receipt in futures::future::join_all((0..50).map(|_| upload())).await {
            assert_eq!(receipt.unwrap().reference().content_size, 0);
        }
    }
}

#[tokio::test]
async fn a_file_that_has_more_bytes_than_it_says_is_stored_whole() {
    let fixture = fixture(UploadOptions { pack_linger: Duration::ZERO, ..UploadOptions::default() });
    let path = std::path::Path::new("/proc/version");
    if let Ok(content) = std::fs::read(path) {
        let receipt = fixture.uploader.upload(Source::File(path.to_owned()), None, None).await.unwrap();
        assert_eq!(fixture.payload(receipt.reference()).bytes().await.unwrap(), content);
    }
}

#[tokio::test]
async fn an_object_over_a_mib_has_its_block_sums_in_one_request_with_it() {
    let fixture = fixture(UploadOptions::default());
    let content = noise((5 << 20) + 17);
    let reference = fixture.upload(content.clone()).await;
    assert_eq!(reference.encoding, ContentEncoding::Identity);
    assert_eq!(fixture.store.operations(Operation::PutPart), 0);
    assert_eq!(fixture.store.operations(Operation::Put), 1);
    let note = fixture.store.head(&reference.key).await.unwrap().unwrap().note.unwrap();
    let blocks = Blocks::from_note(&note).unwrap();
    assert_eq!(blocks.size, content.len() as u64);
    let sums: Vec<_> = content.chunks(1 << 20).map(refstream_format::crc32c).collect();
    assert_eq!(blocks.checksums, sums);
}

#[test]
fn sums_go_into_the_note_as_long_as_they_fit() {
    let note_of = |blocks: u64| super::store::note_of(blocks << 20, &vec![Crc32c(u32::MAX); blocks as usize]);
    assert_eq!(note_of(1), None);
    let most = (2..1_000).take_while(|blocks| note_of(*blocks).is_some()).last().unwrap();
    assert!(most >= 32, "objects of one request have up to twice the least size of a part: {most}");
    assert!(note_of(most).unwrap().len() <= refstream_filer_adapter::MAX_NOTE_BYTES);
    assert!((most + 1..most + 1_000).all(|blocks| note_of(blocks).is_none()));
}

async fn round_trip(fixture: &Fixture, source: Source, content: &Bytes) -> Reference {
    let reference = fixture.uploader.upload(source, None, None).await.unwrap().into_reference();
    assert_eq!(reference.content_hash, Some(ContentHash(*blake3::hash(content).as_bytes())));
    let stored = fixture.store.peek(&reference.key).unwrap();
    assert_eq!(reference.checksum, Some(refstream_format::crc32c(&stored)));
    let mut copy = Vec::new();
    let copied = fixture.payload(&reference).copy_to(&mut copy).await.unwrap();
    assert_eq!((copied, &copy[..]), (content.len() as u64, &content[..]));
    reference
}

#[tokio::test]
async fn large_payloads_go_in_parts_within_the_memory_limit_from_any_source() {
    let options = UploadOptions { part_bytes: 5 << 20, memory: 11 << 20, ..UploadOptions::default() };
    let fixture = fixture(options);
    let content = noise((21 << 20) + 5);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large");
    std::fs::write(&path, &content).unwrap();
    let reader = || Box::new(std::io::Cursor::new(content.clone()));
    for source in [Source::Bytes(content.clone()), Source::File(path), Source::Reader(reader())] {
        let before = fixture.store.operations(Operation::PutPart);
        let reference = round_trip(&fixture, source, &content).await;
        assert_eq!(fixture.store.operations(Operation::PutPart) - before, 5);
        assert!(fixture.store.peek(&Layout::blocks(&reference.key)).is_some());
    }
}

#[tokio::test]
async fn large_text_is_compressed_part_by_part_and_ranges_of_it_work() {
    let options = UploadOptions { part_bytes: 5 << 20, ..UploadOptions::default() };
    let fixture = fixture(options);
    let mut content = text(24 << 20).to_vec();
    // Enough noise that the stored bytes need more than one part and a sidecar.
    content.extend_from_slice(&noise(8 << 20));
    let content = Bytes::from(content);
    let reference = round_trip(&fixture, Source::Bytes(content.clone()), &content).await;
    assert_eq!(reference.encoding, ContentEncoding::Zstd);
    assert!(reference.size > 8 << 20 && reference.size < 20 << 20);
    for (offset, length) in [(0, 10), (1_048_570, 20), (3_000_000, 5_000_000), (33_554_430, 100), (40_000_000, 5)] {
        let range = fixture.payload(&reference).range(ByteRange { offset, length }).await.unwrap();
        let end = (offset + length).min(content.len() as u64);
        assert_eq!(range, content[offset.min(end) as usize..end as usize], "{offset}");
    }
}

#[tokio::test]
async fn short_streams_are_whole_objects() {
    let fixture = fixture(UploadOptions { pack_linger: Duration::ZERO, ..UploadOptions::default() });
    for bytes in [0, 10, 3 << 20] {
        let content = noise(bytes);
        let source = Source::Reader(Box::new(std::io::Cursor::new(content.clone())));
        let reference = fixture.uploader.upload(source, None, None).await.unwrap().into_reference();
        assert_eq!(fixture.payload(&reference).bytes().await.unwrap(), content);
    }
    assert_eq!(fixture.store.operations(Operation::PutPart), 0);
}

#[tokio::test]
async fn compressed_types_are_stored_as_given() {
    let fixture = fixture(UploadOptions { pack_linger: Duration::ZERO, ..UploadOptions::default() });
    let source = Source::Bytes(text(10_000));
    let receipt = fixture.uploader.upload(source, Some("image/png".into()), None).await.unwrap();
    assert_eq!(receipt.reference().encoding, ContentEncoding::Identity);
    assert_eq!(receipt.reference().content_type.as_deref(), Some("image/png"));
}

#[tokio::test]
async fn lost_answers_are_settled_by_writing_the_same_bytes_again() {
    let fixture = fixture(UploadOptions { pack_below: 0, part_bytes: 5 << 20, ..UploadOptions::default() });
    for fault in [Fault::Lost, Fault::Failed, Fault::Dropped, Fault::Refused] {
        fixture.store.script(Operation::Put, "", fault);
        let content = noise(1_000);
        let reference = fixture.upload(content.clone()).await;
        assert_eq!(fixture.payload(&reference).bytes().await.unwrap(), content);
    }
    for operation in [Operation::Multipart, Operation::PutPart, Operation::Complete] {
        fixture.store.script(operation, "", Fault::Lost);
        let content = noise(11 << 20);
        let reference = fixture.upload(content.clone()).await;
        assert_eq!(fixture.payload(&reference).bytes().await.unwrap(), content, "{operation:?}");
    }
    assert_eq!(fixture.store.scripts_left(), 0);
}

#[tokio::test]
async fn what_was_stored_wrong_is_found_by_reading_it_back() {
    let fixture =
        fixture(UploadOptions { pack_below: 0, verify: true, part_bytes: 5 << 20, ..UploadOptions::default() });
    for bytes in [100, 3 << 20, 11 << 20] {
        fixture.upload(noise(bytes)).await;
        let operation = if bytes > 10 << 20 { Operation::Complete } else { Operation::Put };
        fixture.store.script(operation, "", Fault::BitRot);
        let error = fixture.uploader.upload(Source::Bytes(noise(bytes)), None, None).await.unwrap_err();
        assert!(error.to_string().contains("read back"), "{error}");
    }
}

#[tokio::test]
async fn a_large_payload_goes_in_parallel_parts_so_that_a_last_one_does_not_drag() {
    let faults = refstream_filer_adapter::memory::Faults {
        latency_from: Duration::from_millis(150),
        latency_to: Duration::from_millis(150),
        ..Default::default()
    };
    let fixture = fixture(UploadOptions { part_bytes: 5 << 20, concurrency: 4, ..UploadOptions::default() });
    fixture.store.set_faults(faults);
    let content = noise(40 << 20);
    let upload = fixture.upload(content);
    tokio::pin!(upload);
    // All turns are taken at some moment although there is one payload only.
    let mut least = 4;
    loop {
        tokio::select! {
            biased;
            _ = &mut upload => break,
            () = tokio::task::yield_now() => least = least.min(fixture.uploader.inner.requests.free()),
        }
    }
    assert_eq!(least, 0);
}

#[tokio::test]
async fn files_that_are_none_are_refused_with_their_path() {
    let fixture = fixture(UploadOptions::default());
    let folder = tempfile::tempdir().unwrap();
    for (path, says) in [(folder.path().join("absent"), "No such file"), (folder.path().to_owned(), "folder")] {
        let error = fixture.uploader.upload(Source::File(path.clone()), None, None).await.unwrap_err();
        let text = error.to_string();
        assert!(text.contains(says) && text.contains(path.to_str().unwrap()), "{text}");
        assert_eq!(error.class(), ErrorClass::Failed);
        assert!(error.has_no_side_effects());
    }
}

#[test]
fn a_file_that_changes_while_it_is_read_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    std::fs::write(&path, "one").unwrap();
    let grown = OpenFile::open(&path).unwrap();
    std::fs::write(&path, "one two").unwrap();
    let error = grown.read_into(&mut Vec::new()).unwrap_err();
    assert!(matches!(error, UploadError::Changed(_)) && error.is_retryable(), "{error}");
    let shrunk = OpenFile::open(&path).unwrap();
    std::fs::write(&path, "").unwrap();
    let error = shrunk.read_whole().unwrap_err();
    assert!(error.to_string().contains("7 bytes"), "{error}");
}

#[tokio::test]
async fn a_pack_that_cannot_be_stored_fails_all_its_uploads() {
    let fixture = fixture(UploadOptions { pack_linger: Duration::ZERO, ..UploadOptions::default() });
    fixture.store.set_capacity(Some(1));
    let mut uploads =
        futures::future::join_all((0..3).map(|_| fixture.uploader.upload(Source::Bytes(noise(500)), None, None)));
    // A full store is asked again for a while; here only that nobody is told otherwise meanwhile.
    let early = tokio::time::timeout(Duration::from_millis(50), &mut uploads).await;
    assert!(early.is_err());
    fixture.store.set_capacity(None);
    assert!(uploads.await.iter().all(Result::is_ok));
}

#[test]
fn joined_pieces_are_in_order() {
    let pieces = vec![Bytes::from_static(b"ab"), Bytes::from_static(b"c")];
    assert_eq!(joined(pieces), Bytes::from_static(b"abc"));
}
