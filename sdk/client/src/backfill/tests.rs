use super::{read::*, walk::*, *};
use std::{
    os::unix::{ffi::OsStrExt, net::UnixListener},
    sync::atomic::{AtomicUsize, Ordering},
};

/// Counts the files that are in memory.
#[derive(Debug)]
pub(super) struct Alive(());

static ALIVE: AtomicUsize = AtomicUsize::new(0);
static MOST_ALIVE: AtomicUsize = AtomicUsize::new(0);

impl Alive {
    pub(super) fn new() -> Self {
        MOST_ALIVE.fetch_max(ALIVE.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        Self(())
    }
}

impl Clone for Alive {
    fn clone(&self) -> Self {
        Self::new()
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        ALIVE.fetch_sub(1, Ordering::Relaxed);
    }
}

const NO_LIMITS: Limits = Limits { files: u64::MAX, bytes: u64::MAX };

fn walked_by(paths: &[PathBuf], patterns: &Patterns, limits: Limits) -> Vec<Walked> {
    let (sender, mut receiver) = mpsc::channel(1_000);
    let mut chunks = Chunks::new(patterns, None, limits, 1_000, &sender);
    let _ = walk(paths, &mut chunks);
    chunks.finish();
    drop(sender);
    std::iter::from_fn(|| receiver.try_recv().ok()).collect()
}

fn walked(paths: &[PathBuf], include: &[&str], exclude: &[&str], limits: Limits) -> Vec<Walked> {
    let strings = |texts: &[&str]| texts.iter().map(ToString::to_string).collect::<Vec<_>>();
    walked_by(paths, &Patterns::new(&strings(include), &strings(exclude)).unwrap(), limits)
}

fn names(chunks: &[Walked]) -> Vec<String> {
    let mut names: Vec<_> = chunks.iter().flat_map(|chunk| &chunk.files).map(|found| found.name.clone()).collect();
    names.sort();
    names
}

fn tree() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::create_dir_all(at("a/b")).unwrap();
    for (name, bytes) in [("one.txt", 3), ("a/two.svg", 5), ("a/b/three.txt", 0), (".hidden", 1), ("a/large", 5_000)] {
        std::fs::write(at(name), vec![b'x'; bytes]).unwrap();
    }
    std::os::unix::fs::symlink(folder.path(), at("a/loop")).unwrap();
    std::os::unix::fs::symlink("one.txt", at("link")).unwrap();
    let odd = folder.path().join(std::ffi::OsStr::from_bytes(b"odd%\xff"));
    std::fs::write(odd, "odd").unwrap();
    let _socket = UnixListener::bind(at("socket")).unwrap();
    folder
}

#[test]
fn regular_files_are_found_once_and_the_rest_is_counted() {
    let folder = tree();
    let chunks = walked(&[folder.path().to_owned()], &[], &[], NO_LIMITS);
    assert_eq!(names(&chunks), [".hidden", "a/b/three.txt", "a/large", "a/two.svg", "odd%25%FF", "one.txt"]);
    assert_eq!(chunks.iter().map(|chunk| chunk.skipped).sum::<u64>(), 3);
    let large: Vec<_> = chunks.iter().filter(|chunk| !chunk.small).map(|chunk| &*chunk.files[0].name).collect();
    assert_eq!(large, ["a/large"]);
    assert!(chunks.last().unwrap().complete);
}

#[test]
fn patterns_and_limits_choose() {
    let folder = tree();
    let root = [folder.path().to_owned()];
    assert_eq!(names(&walked(&root, &["*.txt"], &[], NO_LIMITS)), ["a/b/three.txt", "one.txt"]);
    assert_eq!(names(&walked(&root, &["*.txt"], &["a/**"], NO_LIMITS)), ["one.txt"]);
    assert_eq!(names(&walked(&root, &[], &[], Limits { files: 2, bytes: u64::MAX })).len(), 2);
    let chunks = walked(&root, &[], &[], Limits { files: u64::MAX, bytes: 12 });
    assert!(chunks.iter().flat_map(|chunk| &chunk.files).map(|found| found.size).sum::<u64>() <= 12);
    assert!(Patterns::new(&["a[".to_owned()], &[]).unwrap_err().to_string().contains("a["));
}

#[test]
fn a_file_given_by_itself_has_its_own_name() {
    let folder = tree();
    let paths = [folder.path().join("a/two.svg"), folder.path().join("link")];
    assert_eq!(names(&walked(&paths, &[], &[], NO_LIMITS)), ["link", "two.svg"]);
}

#[test]
fn an_unreadable_folder_is_a_failure_with_its_name() {
    let folder = tree();
    let paths = [folder.path().join("absent"), folder.path().join("a")];
    let chunks = walked(&paths, &[], &[], NO_LIMITS);
    let failures: Vec<_> = chunks.iter().flat_map(|chunk| &chunk.failures).collect();
    assert_eq!(failures.len(), 1);
    assert!(failures[0].1.error.contains("absent"), "{failures:?}");
    assert_eq!(names(&chunks).len(), 3);
}

#[test]
fn chunks_are_read_packed_or_put_into_records() {
    let folder = tree();
    let chunks = walked(&[folder.path().to_owned()], &["*.txt", "*.svg", "a/large"], &[], NO_LIMITS);
    let files: Vec<_> = chunks.into_iter().flat_map(|chunk| chunk.files).collect();
    let how = How { compression: None, below: 1_000, inline_max: 3 };
    let Read { stored, small, grown, failures } = read(files, how, &Phases::default());
    assert!(failures.is_empty());
    assert_eq!(grown.len(), 1);
    assert_eq!(stored, b"xxxxx");
    for file in &small {
        match (&*file.found.name, &file.value) {
            ("one.txt", SmallValue::Inline(bytes)) => assert_eq!(&bytes[..], b"xxx"),
            ("a/b/three.txt", SmallValue::Inline(bytes)) => assert!(bytes.is_empty()),
            ("a/two.svg", SmallValue::Packed(range, entry, tag)) => {
                assert_eq!((range.clone(), entry.size), (0..5, 5));
                assert_eq!(tag.content_type.as_deref(), Some("image/svg+xml"));
            }
            other => panic!("{other:?}"),
        }
        assert!(file.found.modified.is_some());
    }
    assert_eq!(small.len(), 3);
}

#[test]
fn gitignore_files_are_honoured_when_asked_for() {
    let folder = tree();
    std::fs::write(folder.path().join(".gitignore"), "*.txt\n!one.txt\n").unwrap();
    std::fs::write(folder.path().join("a/.gitignore"), "/large\n").unwrap();
    let rules = folder.path().join("rules");
    std::fs::write(&rules, "# ours\n.*\nrules\nodd*\n").unwrap();
    let roots = [folder.path().to_owned()];
    let patterns = Patterns::none().ignoring(std::slice::from_ref(&rules), true).unwrap();
    assert_eq!(names(&walked_by(&roots, &patterns, NO_LIMITS)), ["a/two.svg", "one.txt"]);
    let patterns = Patterns::none().ignoring(&[rules], false).unwrap();
    let all = names(&walked_by(&roots, &patterns, NO_LIMITS));
    assert_eq!(all, ["a/b/three.txt", "a/large", "a/two.svg", "one.txt"]);
    let absent = Patterns::none().ignoring(&[folder.path().join("absent")], false);
    assert!(absent.unwrap_err().to_string().contains("absent"));
}

#[test]
fn overlapping_paths_are_refused() {
    let folder = tree();
    let at = |name: &str| folder.path().join(name);
    let error = absolute(&[at("a/b"), at("a/")]).unwrap_err().to_string();
    assert!(error.contains("overlaps") && error.contains("a/b"), "{error}");
    assert_eq!(absolute(&[at("a/b"), at("./a/b/"), at("one.txt")]).unwrap(), [at("a/b"), at("one.txt")]);
}

/// Ten million files in the long form, which takes a minute without optimisation.
#[tokio::test(flavor = "multi_thread")]
async fn memory_does_not_grow_with_the_number_of_files() {
    let files: u64 = if std::env::var_os("REFSTREAM_TEST_LONG").is_some() { 10_000_000 } else { 300_000 };
    let (sender, walked) = mpsc::channel(CHUNKS_AHEAD);
    let finding = tokio::task::spawn_blocking(move || {
        let patterns = Patterns::none();
        let mut chunks = Chunks::new(&patterns, None, NO_LIMITS, 1_000, &sender);
        for number in 0..files {
            let name = format!("{:03}/{:03}/{number}", number / 1_000_000, number / 1_000 % 1_000);
            // One in a thousand is large.
            let size = if number % 1_000 == 0 { 10_000 } else { 100 };
            assert!(chunks.found(Found::new(PathBuf::from(&name), name, size, None)).is_continue());
        }
        chunks.finish();
    });
    let (reports, mut reported) = mpsc::channel(CHUNKS_AHEAD);
    let rehearsing = tokio::spawn(rehearse(None, walked, reports));
    let mut would = 0;
    while let Some(report) = reported.recv().await {
        would += report.iter().filter(|report| matches!(report, Report::Would(_))).count() as u64;
    }
    finding.await.unwrap();
    rehearsing.await.unwrap().unwrap();
    assert_eq!(would, files);
    // Two queues, a chunk at each end of either, and what other tests hold at the same time.
    let most = MOST_ALIVE.load(Ordering::Relaxed);
    assert!(most <= (2 * CHUNKS_AHEAD + 8) * 64 + 1_000, "{most}");
}
