use super::*;
use refstream_types::{ContentHash, Crc32c};
use std::collections::HashMap;

/// Commits that a state may still make before it breaks, as by a crash: nothing is written from then on.
static FUSES: Mutex<Option<HashMap<PathBuf, u64>>> = Mutex::new(None);

/// Lets the state in this file make `commits` more commits. `None`: as many as it likes.
pub(in super::super) fn set_fuse(path: &Path, commits: Option<u64>) {
    let mut fuses = FUSES.lock().unwrap();
    let fuses = fuses.get_or_insert_default();
    match commits {
        Some(commits) => fuses.insert(path.to_owned(), commits),
        None => fuses.remove(path),
    };
}

pub(super) fn fuse_blows(path: &Path) -> bool {
    let mut fuses = FUSES.lock().unwrap();
    let Some(left) = fuses.get_or_insert_default().get_mut(path) else { return false };
    let blows = *left == 0;
    *left = left.saturating_sub(1);
    blows
}

fn row(state: State) -> Row {
    Row { size: 10, modified: None, hash: Some(ContentHash([7; 32])), state }
}

fn file(name: &'static str) -> Bytes {
    Bytes::from_static(name.as_bytes())
}

fn begun() -> State {
    let how = BegunHow::Parts { upload: "u".into(), part_bytes: 5 << 20, compressed: false, parts: Vec::new() };
    State::Begun(Begun { key: "k".parse().unwrap(), how })
}

fn part(number: u32) -> Part {
    Part { number, etag: format!("e{number}"), size: 5, checksum: Some(Crc32c(number)) }
}

#[tokio::test]
async fn what_was_written_is_there_when_it_is_opened_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.job");
    let state = StateFile::open(&path, true).unwrap();
    state.change(Change::Row { file: file("a"), row: row(begun()) });
    state.change(Change::Part { file: file("a"), part: part(1) });
    state.change(Change::Part { file: file("a"), part: part(3) });
    state.change(Change::Part { file: file("b"), part: part(2) });
    state.change(Change::Failed { file: file("c"), name: "c".into(), error: "no".into(), row: None });
    state.change(Change::Meta { name: "x", json: b"5".to_vec() });
    let locked = StateFile::open(&path, true).unwrap_err().to_string();
    assert!(locked.contains("in use") && locked.contains("a.job"), "{locked}");
    state.close();
    let state = StateFile::open(&path, false).unwrap();
    let rows = state.rows([&b"a"[..], b"b"].into_iter()).unwrap();
    let State::Begun(Begun { how: BegunHow::Parts { parts, .. }, .. }) = &rows[0].as_ref().unwrap().state else {
        panic!("{rows:?}");
    };
    assert_eq!(*parts, [part(1), part(3)]);
    assert_eq!(rows[1], None);
    assert_eq!(state.begun().unwrap().len(), 1);
    assert_eq!(state.failures(None, 10).unwrap(), [(file("c"), "c".to_owned(), "no".to_owned())]);
    assert_eq!(state.meta::<u32>("x").unwrap(), Some(5));
    assert_eq!(state.totals().unwrap().of(Kind::Uploading), (1, 10));
}

#[tokio::test]
async fn a_placed_batch_makes_its_files_done_for_good() {
    let folder = tempfile::tempdir().unwrap();
    let state = StateFile::open(&folder.path().join("a.job"), true).unwrap();
    for name in ["a", "b"] {
        state.change(Change::Row { file: file(name), row: row(begun()) });
        state.change(Change::Part { file: file(name), part: part(1) });
        state.change(Change::Failed { file: file(name), name: name.into(), error: "late".into(), row: None });
    }
    let partition = PartitionId(3);
    let batch = |number, files: &[&'static str]| Batch {
        number,
        partition,
        floor: Offset(1 << 33),
        bytes: Bytes::from_static(b"batch"),
        files: files.iter().map(|name| file(name)).collect(),
    };
    state.change(Change::Batch(batch(4, &["a", "b"])));
    state.change(Change::Batch(batch(5, &["c"])));
    state.durable(Change::Nothing).await.unwrap();
    assert_eq!(state.batches().unwrap(), [batch(4, &["a", "b"]), batch(5, &["c"])]);
    state.change(Change::Placed { number: 4, partition, base: Offset(70) });
    state.change(Change::Placed { number: 4, partition, base: Offset(99) });
    state.change(Change::NotPlaced { number: 5 });
    state.change(Change::Row { file: file("a"), row: row(State::Inline) });
    state.durable(Change::Nothing).await.unwrap();
    assert!(state.batches().unwrap().is_empty());
    assert!(state.failures(None, 10).unwrap().is_empty());
    let rows = state.rows([&b"a"[..], b"b", b"c"].into_iter()).unwrap();
    let done = |offset| Some(row(State::Done { partition, offset: Offset(offset) }));
    assert_eq!(rows, [done(70), done(71), None]);
    assert_eq!(state.totals().unwrap().of(Kind::Done), (2, 20));
    assert_eq!(state.totals().unwrap().of(Kind::Uploading), (0, 0));
}

#[test]
fn a_file_that_was_being_made_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.job");
    std::fs::write(path.with_extension("job.new"), b"half").unwrap();
    StateFile::open(&path, true).unwrap().close();
    assert!(path.exists() && !path.with_extension("job.new").exists());
    std::fs::write(&path, b"something else").unwrap();
    let error = StateFile::open(&path, true).unwrap_err().to_string();
    assert!(error.contains("a.job"), "{error}");
}

#[tokio::test]
async fn after_a_change_that_was_not_written_none_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.job");
    let state = StateFile::open(&path, true).unwrap();
    state.durable(Change::Row { file: file("a"), row: row(State::Inline) }).await.unwrap();
    set_fuse(&path, Some(0));
    for _ in 0..2 {
        let error = state.durable(Change::Row { file: file("b"), row: row(State::Inline) }).await.unwrap_err();
        assert!(error.to_string().contains("a.job"), "{error}");
    }
    set_fuse(&path, None);
    assert!(state.durable(Change::Nothing).await.is_err());
    assert_eq!(state.rows([&b"b"[..]].into_iter()).unwrap(), [None]);
}

/// Flips a bit of every so many bytes of a job's file, one at a time: the file is refused as damaged, or says what it said before.
#[tokio::test]
async fn a_flipped_bit_is_damage_or_harmless() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.job");
    let names: Vec<String> = (0..300).map(|i| format!("/folder/file-{i:04}")).collect();
    let state = StateFile::open(&path, true).unwrap();
    for name in &names {
        state.change(Change::Row { file: Bytes::from(name.clone()), row: row(State::Inline) });
    }
    state.durable(Change::Nothing).await.unwrap();
    let rows = |state: &StateFile| state.rows(names.iter().map(String::as_bytes));
    let before = rows(&state).unwrap();
    state.close();
    let good = std::fs::read(&path).unwrap();
    let used = good.iter().rposition(|byte| *byte != 0).unwrap();
    let (mut refused, step) = (0, used / 150);
    for at in (0..used).step_by(step).chain(0..64) {
        let mut bad = good.clone();
        bad[at] ^= 1 << (at % 8);
        std::fs::write(&path, &bad).unwrap();
        let state = match StateFile::open(&path, false) {
            Ok(state) => state,
            Err(error) => {
                let said = error.to_string();
                assert!(
                    said.contains("a.job") && (said.contains("damaged") || said.contains("cannot be read")),
                    "{said}"
                );
                refused += 1;
                continue;
            }
        };
        assert_eq!(rows(&state).unwrap(), before, "byte {at}");
        state.close();
    }
    assert!(refused > 10, "{refused}");
}
