//! Payloads, files and records to measure with: random, so that nothing compresses, and the same in every run.

use bytes::Bytes;
use rand::{RngCore as _, SeedableRng as _, rngs::StdRng};
use refstream::types::{ContentEncoding, ContentHash, Crc32c, Record, Reference, StoreName, Timestamp, Value};

/// Random bytes; different for every `seed`.
pub(crate) fn payload(bytes: usize, seed: u64) -> Bytes {
    let mut data = vec![0; bytes];
    StdRng::seed_from_u64(seed).fill_bytes(&mut data);
    data.into()
}

/// Where references point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Ranges of packs of 2,000 payloads of about 4 KiB.
    Packed,
    /// Objects of their own, of 1 to 9 MB.
    Whole,
}

/// Payloads of a pack of 8 MiB.
const PACK_PAYLOADS: u64 = 2_000;

/// Makes references as an uploader would, without uploading anything.
#[derive(Debug)]
pub(crate) struct References {
    place: Place,
    store: StoreName,
    random: StdRng,
    count: u64,
    pack: String,
    offset: u64,
    time: i64,
}

impl References {
    pub(crate) fn new(place: Place, store: StoreName, seed: u64) -> Self {
        let random = StdRng::seed_from_u64(seed);
        Self { place, store, random, count: 0, pack: String::new(), offset: 0, time: 1_750_000_000_000_000 }
    }

    /// An object's key with 16 random bytes, as uploaders choose them.
    fn key(&mut self) -> String {
        let mut token = [0; 16];
        self.random.fill_bytes(&mut token);
        let text: String = token.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("topics/bench-0000000000000001/_payloads/{}/{text}", &text[..2])
    }

    /// The next record; with `key` as its key.
    pub(crate) fn record(&mut self, key: Option<Bytes>) -> Record {
        if self.place == Place::Whole || self.count.is_multiple_of(PACK_PAYLOADS) {
            self.pack = self.key();
            self.offset = 0;
        }
        self.count += 1;
        let size = match self.place {
            Place::Packed => 3_600 + u64::from(self.random.next_u32()) % 1_000,
            Place::Whole => 1_000_000 + u64::from(self.random.next_u32()) % 8_000_000,
        };
        let mut hash = [0; 32];
        self.random.fill_bytes(&mut hash);
        let reference = Reference {
            store: self.store.clone(),
            key: self.pack.parse().unwrap_or_else(|error| unreachable!("the key is well-formed: {error}")),
            offset: (self.place == Place::Packed).then_some(self.offset),
            size,
            checksum: Some(Crc32c(self.random.next_u32())),
            content_hash: Some(ContentHash(hash)),
            content_size: size,
            encoding: ContentEncoding::Identity,
            content_type: Some("image/jpeg".into()),
            etag: None,
            version: None,
        };
        self.offset += size;
        self.time += i64::from(self.random.next_u32() % 4_096);
        let mut record = Record::new(Value::Reference(Box::new(reference)));
        record.key = key;
        record.event_time = Some(Timestamp::from_micros(self.time));
        record
    }
}
