//! Where `get` writes to: files, links, FIFOs, devices, pipes whose reader goes away.

#![allow(clippy::unwrap_used)]

use refstream_integration_tests::{Files, Up, binary};
use std::{
    fs::File,
    io::Read as _,
    os::unix::fs::FileTypeExt as _,
    process::{Command, Stdio},
};

const SIZE: usize = 3 << 20;

fn up_with_one_payload() -> (Up, Files, Vec<u8>) {
    let up = Up::start();
    up.run(&["topic", "create", "t", "--partitions", "1"]).ok();
    let mut files = Files::generate(0, 0, 0);
    files.add("payload", SIZE, 5);
    let path = files.path().join("payload");
    up.run(&["put", "t", path.to_str().unwrap()]).ok();
    let content = std::fs::read(path).unwrap();
    (up, files, content)
}

#[test]
fn what_is_there_stays_what_it_is() {
    let (up, folder, content) = up_with_one_payload();
    let at = |name: &str| folder.path().join(name);
    let get = |name: &str| up.run(&["get", "t", "0", "0", "-o", at(name).to_str().unwrap()]);
    // A file is replaced.
    std::fs::write(at("file"), "before").unwrap();
    get("file").ok();
    assert!(std::fs::read(at("file")).unwrap() == content);
    // A link stays a link; where it leads to gets the bytes, whether it exists or not.
    std::fs::write(at("target"), "before").unwrap();
    for target in ["target", "new"] {
        let link = format!("link-to-{target}");
        std::os::unix::fs::symlink(target, at(&link)).unwrap();
        get(&link).ok();
        assert!(std::fs::symlink_metadata(at(&link)).unwrap().is_symlink());
        assert!(std::fs::read(at(target)).unwrap() == content);
    }
    // A FIFO stays a FIFO and hands the bytes on.
    assert!(Command::new("mkfifo").arg(at("fifo")).status().unwrap().success());
    let fifo = at("fifo");
    let reader = std::thread::spawn(move || std::fs::read(fifo).unwrap());
    get("fifo").ok();
    assert!(reader.join().unwrap() == content);
    assert!(std::fs::symlink_metadata(at("fifo")).unwrap().file_type().is_fifo());
    // So does a device, by its name and through a link.
    std::os::unix::fs::symlink("/dev/null", at("null")).unwrap();
    get("null").ok();
    assert!(std::fs::metadata("/dev/null").unwrap().file_type().is_char_device());
    std::fs::create_dir(at("folder")).unwrap();
    get("folder").fails(2, &["folder"]);
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().contains("partial")), "{left:?}");
}

#[test]
fn a_reader_that_goes_away_ends_it_quietly() {
    let (up, _folder, _) = up_with_one_payload();
    let mut child = up.command(&["get", "t", "0", "0"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = [0];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let said = child.wait_with_output().unwrap();
    assert_eq!((said.status.code(), String::from_utf8_lossy(&said.stderr).as_ref()), (Some(0), ""));
}

#[test]
fn trouble_that_cannot_be_told_keeps_its_exit_code() {
    let said = Command::new(binary())
        .args(["--endpoint", "http://127.0.0.1:9", "--timeout", "1s", "get", "t", "0", "0"])
        .stderr(File::options().write(true).open("/dev/full").unwrap())
        .status()
        .unwrap();
    assert_eq!(said.code(), Some(4));
}

#[test]
fn a_node_that_cannot_say_so_drains_all_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let mut up = Command::new(binary())
        .args([
            "-vv",
            "--output",
            "json",
            "up",
            "--listen",
            "127.0.0.1:0",
            "--http",
            "127.0.0.1:0",
            "--s3",
            "127.0.0.1:0",
        ])
        .arg("--data")
        .arg(folder.path())
        .stdout(Stdio::piped())
        .stderr(File::options().write(true).open("/dev/full").unwrap())
        .spawn()
        .unwrap();
    let mut out = std::io::BufReader::new(up.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut out, &mut String::new()).unwrap();
    assert!(Command::new("kill").arg(up.id().to_string()).status().unwrap().success());
    assert_eq!(up.wait().unwrap().code(), Some(0));
}
