use super::{walk::*, *};
use std::os::unix::{ffi::OsStrExt, net::UnixListener};

const NO_LIMITS: Limits = Limits { files: u64::MAX, bytes: u64::MAX };

fn walked(paths: &[PathBuf], include: &[&str], exclude: &[&str], limits: Limits) -> Vec<Walked> {
    let strings = |texts: &[&str]| texts.iter().map(ToString::to_string).collect::<Vec<_>>();
    let patterns = Patterns::new(&strings(include), &strings(exclude)).unwrap();
    let (sender, mut receiver) = mpsc::channel(1_000);
    walk(paths, &patterns, limits, 1_000, &sender);
    drop(sender);
    let mut chunks = Vec::new();
    while let Ok(chunk) = receiver.try_recv() {
        chunks.push(chunk);
    }
    chunks
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
    assert!(failures[0].error.contains("absent"), "{failures:?}");
    assert_eq!(names(&chunks).len(), 3);
}

#[test]
fn chunks_are_read_packed_or_put_into_records() {
    let folder = tree();
    let chunks = walked(&[folder.path().to_owned()], &["*.txt", "*.svg", "a/large"], &[], NO_LIMITS);
    let files: Vec<_> = chunks.into_iter().flat_map(|chunk| chunk.files).collect();
    let Read { stored, small, grown, failures } = read::read(files, None, 1_000, 3);
    assert!(failures.is_empty());
    assert_eq!(grown.len(), 1);
    assert_eq!(stored, b"xxxxx");
    for file in &small {
        match (&*file.name, &file.value) {
            ("one.txt", SmallValue::Inline(bytes)) => assert_eq!(&bytes[..], b"xxx"),
            ("a/b/three.txt", SmallValue::Inline(bytes)) => assert!(bytes.is_empty()),
            ("a/two.svg", SmallValue::Packed(range, entry)) => {
                assert_eq!((range.clone(), entry.size), (0..5, 5));
                assert_eq!(file.content_type, Some("image/svg+xml"));
            }
            other => panic!("{other:?}"),
        }
        assert!(file.modified.is_some());
    }
    assert_eq!(small.len(), 3);
}
