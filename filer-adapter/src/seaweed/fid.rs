//! File ids: volume, needle, cookie; written `3,01637037d6`, the last eight digits being the cookie.

use refstream_types::{Key, Layout};
use std::{fmt, str::FromStr};

/// The digits of a cookie.
const COOKIE_DIGITS: usize = 8;

/// A needle's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Fid {
    pub(super) volume: u32,
    pub(super) needle: u64,
    pub(super) cookie: u32,
}

impl Fid {
    /// The needle `delta` after this one, of the same assignment: it has the same cookie.
    pub(super) fn plus(self, delta: u64) -> Self {
        Self { needle: self.needle.wrapping_add(delta), ..self }
    }

    /// What a key of this store stands for: a fid, or the needle after it for the sums of its blocks.
    pub(super) fn of_key(key: &Key) -> Option<Self> {
        match key.as_str().strip_suffix(".blocks") {
            None => key.as_str().parse().ok(),
            Some(blob) => {
                let fid: Self = blob.parse().ok()?;
                (Layout::blocks(&fid.key()?) == *key).then(|| fid.plus(1))
            }
        }
    }

    /// The fid as a key.
    pub(super) fn key(self) -> Option<Key> {
        self.to_string().parse().ok()
    }
}

impl fmt::Display for Fid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Whole bytes: an even number of digits.
        let digits = format!("{:x}", self.needle);
        let zero = if digits.len() % 2 == 1 { "0" } else { "" };
        write!(f, "{},{zero}{digits}{:08x}", self.volume, self.cookie)
    }
}

impl FromStr for Fid {
    type Err = ();
    fn from_str(text: &str) -> Result<Self, ()> {
        let (volume, rest) = text.split_once(',').ok_or(())?;
        let split = rest.len().checked_sub(COOKIE_DIGITS).filter(|at| (1..=16).contains(at)).ok_or(())?;
        let plain = |text: &str, digit: fn(&u8) -> bool| text.as_bytes().iter().all(digit);
        if !plain(volume, u8::is_ascii_digit) || !plain(rest, u8::is_ascii_hexdigit) {
            return Err(());
        }
        let (needle, cookie) = rest.split_at(split);
        let number = |text| u64::from_str_radix(text, 16).map_err(drop);
        Ok(Self {
            volume: volume.parse().map_err(drop)?,
            needle: number(needle)?,
            cookie: u32::try_from(number(cookie)?).map_err(drop)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fids_are_read_and_written() {
        for text in ["3,01637037d6", "1,211ea8839f", "4294967295,ffffffffffffffff00000000"] {
            let fid: Fid = text.parse().unwrap();
            assert_eq!(fid.to_string(), text);
        }
        let fid: Fid = "3,01637037d6".parse().unwrap();
        assert_eq!((fid.volume, fid.needle, fid.cookie), (3, 1, 0x6370_37d6));
        for bad in [
            "",
            "3",
            "3,",
            "3,637037d6",
            "x,01637037d6",
            "3,01637037dg",
            "3,ü1637037d6",
            "3,+1637037d6",
            "+3,01637037d6",
        ] {
            assert!(bad.parse::<Fid>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_sidecar_is_the_next_needle() {
        let key: Key = "3,01637037d6".parse().unwrap();
        assert_eq!(Fid::of_key(&Layout::blocks(&key)).unwrap().to_string(), "3,02637037d6");
        assert!(Fid::of_key(&"a/3,01637037d6".parse().unwrap()).is_none());
    }
}
