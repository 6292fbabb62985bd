//! Reading tar archives: where each member's bytes are.
//!
//! POSIX ustar and pax (IEEE Std 1003.1, `pax`), GNU long names and base-256 numbers. A header that makes no sense ends the archive with an error;
//! nothing is guessed.

use std::{
    collections::HashMap,
    io::{self, Read},
};

const BLOCK: usize = 512;
/// The longest pax header or GNU long name, in bytes.
const MAX_EXTENSION: u64 = 1 << 20;

/// A regular file in an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    /// Its path, as it stands in the archive.
    pub(super) path: Vec<u8>,
    /// Where its bytes start.
    pub(super) offset: u64,
    pub(super) size: u64,
    /// Modification time in microseconds since 1970.
    pub(super) modified: Option<i64>,
}

/// What comes next in an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    File(Member),
    /// A link, folder or device.
    Other,
}

/// Reads an archive from its start. The caller reads each member's bytes from where [`Reader::entry`] leaves it, or not at all.
pub(super) struct Reader<R> {
    source: R,
    at: u64,
    /// Where the next header is.
    next: u64,
}

fn invalid(at: u64, why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("it is no tar archive, or damaged: at byte {at}: {why}"))
}

/// How compressed files begin, what they are called, and what unpacks them.
const COMPRESSED: &[(&[u8], &str, &str)] = &[
    (&[0x1f, 0x8b], "gzip", "gzip -d"),
    (&[0x28, 0xb5, 0x2f, 0xfd], "zstd", "zstd -d"),
    (&[0xfd, b'7', b'z', b'X', b'Z', 0], "xz", "xz -d"),
    (b"BZh", "bzip2", "bzip2 -d"),
    (&[0x04, 0x22, 0x4d, 0x18], "lz4", "lz4 -d"),
    (b"LZIP", "lzip", "lzip -d"),
    (b"PK\x03\x04", "a zip archive", "unzip"),
];

/// What a file that is compressed is, by its first bytes, and what to do about it.
fn compressed(start: &[u8]) -> Option<io::Error> {
    let (_, kind, command) = COMPRESSED.iter().find(|(magic, ..)| start.starts_with(magic))?;
    let why = format!(
        "it is compressed ({kind}), and members of a compressed archive are no ranges of it: decompress it first ({command}) and backfill the \
         plain archive, or unpack it and backfill the folder"
    );
    Some(io::Error::new(io::ErrorKind::InvalidData, why))
}

impl<R: Read> Reader<R> {
    pub(super) fn new(source: R) -> Self {
        Self { source, at: 0, next: 0 }
    }

    /// Reads the current member's next bytes.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        match self.source.read_exact(buffer) {
            Ok(()) => self.at += buffer.len() as u64,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(invalid(self.at, "it ends within a member"));
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn skip_to(&mut self, to: u64) -> io::Result<()> {
        let bytes = to - self.at;
        let skipped = io::copy(&mut (&mut self.source).take(bytes), &mut io::sink())?;
        self.at += skipped;
        if skipped < bytes { Err(invalid(self.at, "it ends within a member")) } else { Ok(()) }
    }

    /// A header block; `None` at the end of the archive.
    fn block(&mut self) -> io::Result<Option<[u8; BLOCK]>> {
        self.skip_to(self.next)?;
        let mut block = Vec::with_capacity(BLOCK);
        (&mut self.source).take(BLOCK as u64).read_to_end(&mut block)?;
        if block.is_empty() {
            // Some writers leave the two empty blocks at the end out.
            return Ok(None);
        }
        if self.at == 0
            && let Some(error) = compressed(&block)
        {
            return Err(error);
        }
        let Ok(block) = <[u8; BLOCK]>::try_from(block) else {
            return Err(invalid(self.at, "it ends within a header: it was cut, or is no tar archive"));
        };
        self.at += BLOCK as u64;
        if block.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let sum: u64 = block
            .iter()
            .enumerate()
            .map(|(at, byte)| match at {
                148..156 => u64::from(b' '),
                _ => u64::from(*byte),
            })
            .sum();
        if number(&block[148..156]) != Some(sum) {
            return Err(invalid(self.next, "the checksum of a header is wrong"));
        }
        Ok(Some(block))
    }

    /// The next entry; `None` at the end.
    pub(super) fn entry(&mut self) -> io::Result<Option<Entry>> {
        let mut long_name: Option<Vec<u8>> = None;
        let mut extended: HashMap<String, Vec<u8>> = HashMap::new();
        loop {
            let header = self.next;
            let Some(block) = self.block()? else { return Ok(None) };
            let size = number(&block[124..136]).ok_or_else(|| invalid(header, "a size is no number"))?;
            let kind = block[156];
            if matches!(kind, b'L' | b'K' | b'x' | b'g') {
                if size > MAX_EXTENSION {
                    return Err(invalid(header, "an extended header is too long"));
                }
                let mut content = vec![0; size as usize];
                self.read(&mut content)?;
                self.next = (header + BLOCK as u64 + size).next_multiple_of(BLOCK as u64);
                match kind {
                    b'L' => {
                        content.truncate(content.iter().position(|byte| *byte == 0).unwrap_or(content.len()));
                        long_name = Some(content);
                    }
                    b'x' => extended = pax(&content).ok_or_else(|| invalid(header, "a pax header is malformed"))?,
                    _ => {}
                }
                continue;
            }
            let text = |field: &str| extended.get(field).and_then(|value| std::str::from_utf8(value).ok());
            let size = match text("size") {
                Some(given) => given.parse().map_err(|_| invalid(header, "a size is no number"))?,
                None => size,
            };
            let sparse = extended.keys().any(|field| field.starts_with("GNU.sparse.")) || kind == b'S';
            let offset = header + BLOCK as u64;
            let holds = matches!(kind, b'0' | 0 | b'7' | b'S');
            let stored = if holds { size } else { 0 };
            self.next = offset
                .checked_add(stored)
                .and_then(|end| end.checked_next_multiple_of(BLOCK as u64))
                .ok_or_else(|| invalid(header, "a size is impossible"))?;
            let path = extended.get("path").cloned().or(long_name.take()).unwrap_or_else(|| path(&block));
            // A name that ends with a slash is a folder in the oldest archives.
            if !holds || sparse || path.ends_with(b"/") {
                return Ok(Some(Entry::Other));
            }
            let seconds = || Some(i64::try_from(number(&block[136..148])?).ok()?.saturating_mul(1_000_000));
            let modified = text("mtime").and_then(micros).or_else(seconds);
            return Ok(Some(Entry::File(Member { path, offset, size, modified })));
        }
    }
}

fn trimmed(field: &[u8]) -> &[u8] {
    &field[..field.iter().position(|byte| *byte == 0).unwrap_or(field.len())]
}

/// Octal, or base 256 when the first bit is set.
fn number(field: &[u8]) -> Option<u64> {
    if field[0] & 0x80 != 0 {
        let mut value = u64::from(field[0] & 0x7f);
        for byte in &field[1..] {
            value = value.checked_mul(256)? + u64::from(*byte);
        }
        return Some(value);
    }
    let text = std::str::from_utf8(trimmed(field)).ok()?.trim();
    if text.is_empty() { Some(0) } else { u64::from_str_radix(text, 8).ok() }
}

fn path(block: &[u8; BLOCK]) -> Vec<u8> {
    let name = trimmed(&block[..100]);
    let prefix = trimmed(&block[345..500]);
    // GNU archives keep times where ustar has the prefix.
    if &block[257..263] == b"ustar\0" && !prefix.is_empty() { [prefix, b"/", name].concat() } else { name.to_vec() }
}

/// `LENGTH KEY=VALUE\n`, repeated.
fn pax(mut content: &[u8]) -> Option<HashMap<String, Vec<u8>>> {
    let mut fields = HashMap::new();
    while !content.is_empty() {
        let space = content.iter().position(|byte| *byte == b' ')?;
        let length: usize = std::str::from_utf8(&content[..space]).ok()?.parse().ok()?;
        let record = content.get(space + 1..length)?.strip_suffix(b"\n")?;
        let equals = record.iter().position(|byte| *byte == b'=')?;
        fields.insert(String::from_utf8(record[..equals].to_vec()).ok()?, record[equals + 1..].to_vec());
        content = &content[length..];
    }
    Some(fields)
}

/// Seconds with decimals, as microseconds.
fn micros(text: &str) -> Option<i64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let digits: String = part.chars().chain("000000".chars()).take(6).collect();
    let (whole, part): (i64, i64) = (whole.parse().ok()?, digits.parse().ok()?);
    let sign = if text.starts_with('-') { -1 } else { 1 };
    whole.checked_mul(1_000_000)?.checked_add(sign * part)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn header(name: &[u8], size: u64, kind: u8) -> [u8; BLOCK] {
        let mut block = [0; BLOCK];
        block[..name.len()].copy_from_slice(name);
        block[124..136].copy_from_slice(format!("{size:011o}\0").as_bytes());
        block[136..148].copy_from_slice(b"00000000012\0");
        block[156] = kind;
        block[257..263].copy_from_slice(b"ustar\0");
        block[148..156].fill(b' ');
        let sum: u64 = block.iter().map(|byte| u64::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        block
    }

    fn add(archive: &mut Vec<u8>, name: &[u8], content: &[u8], kind: u8) {
        archive.extend_from_slice(&header(name, content.len() as u64, kind));
        archive.extend_from_slice(content);
        archive.resize(archive.len().next_multiple_of(BLOCK), 0);
    }

    /// An archive of regular files.
    pub(in super::super) fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
        let mut archive = Vec::new();
        for (name, content) in files {
            add(&mut archive, name.as_bytes(), content, b'0');
        }
        archive.resize(archive.len() + 2 * BLOCK, 0);
        archive
    }

    fn entries(archive: &[u8]) -> io::Result<Vec<Entry>> {
        let mut reader = Reader::new(archive);
        std::iter::from_fn(|| reader.entry().transpose()).collect()
    }

    fn file(path: &str, offset: u64, size: u64, modified: i64) -> Entry {
        Entry::File(Member { path: path.into(), offset, size, modified: Some(modified) })
    }

    #[test]
    fn members_are_found_with_long_names_and_sizes() {
        let mut archive = Vec::new();
        add(&mut archive, b"dir/", b"", b'5');
        add(&mut archive, b"dir/a", b"hello", b'0');
        add(&mut archive, b"link", b"", b'2');
        let long = "x/".repeat(90) + "end";
        add(&mut archive, b"././@LongLink", format!("{long}\0").as_bytes(), b'L');
        add(&mut archive, b"cut", &[7; 600], b'0');
        add(&mut archive, b"pax", b"17 path=\xc3\xa4/pax.x\n20 mtime=-1.2500000\n", b'x');
        add(&mut archive, b"cut", b"", b'0');
        archive.resize(archive.len() + 2 * BLOCK, 0);
        let expected = vec![
            Entry::Other,
            file("dir/a", 1_024, 5, 10_000_000),
            Entry::Other,
            file(&long, 3_584, 600, 10_000_000),
            file("ä/pax.x", 6_144, 0, -1_250_000),
        ];
        assert_eq!(entries(&archive).unwrap(), expected);
        let mut reader = Reader::new(&archive[..]);
        reader.entry().unwrap();
        reader.entry().unwrap();
        let mut content = [0; 5];
        reader.read(&mut content).unwrap();
        assert_eq!(&content, b"hello");
        assert_eq!(reader.entry().unwrap(), Some(Entry::Other), "what was read is not skipped again");
    }

    #[test]
    fn what_is_no_archive_is_refused() {
        assert!(entries(&[b'x'; 2_000]).unwrap_err().to_string().contains("checksum"));
        let whole = archive(&[("a", &[1; 1_000])]);
        assert!(entries(&whole[..900]).unwrap_err().to_string().contains("ends within"));
        assert_eq!(entries(&whole[..1_536]).unwrap().len(), 1, "the end may be missing");
        for (what, cut) in [("a text", &b"no archive"[..]), ("within a header", &whole[..1_536 + 100])] {
            assert!(entries(cut).unwrap_err().to_string().contains("ends within a header"), "{what}");
        }
        assert!(entries(&[]).unwrap().is_empty());
    }

    #[test]
    fn a_compressed_archive_says_what_to_do() {
        let plain = archive(&[("a", &[1; 1_000])]);
        let zstd = zstd::encode_all(&plain[..], 1).unwrap();
        for (packed, kind, command) in [
            (&zstd[..], "zstd", "zstd -d"),
            (&[0x1f, 0x8b, 8, 0, 0], "gzip", "gzip -d"),
            (b"PK\x03\x04rest", "zip", "unzip"),
        ] {
            let said = entries(packed).unwrap_err().to_string();
            assert!(said.contains(kind) && said.contains(command) && !said.contains("damaged"), "{said}");
        }
    }

    #[test]
    fn numbers_are_octal_or_binary() {
        assert_eq!(number(b"0000017\0"), Some(15));
        assert_eq!(number(b"   17 \0\0"), Some(15));
        assert_eq!(number(&[0x80, 0, 0, 0, 2, 0, 0, 1]), Some((2 << 24) + 1));
        assert_eq!(number(b"9zzzzzz\0"), None);
        assert_eq!(micros("12.5"), Some(12_500_000));
    }
}
