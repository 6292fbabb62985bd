//! Instants in time, UTC.

use chrono::{DateTime, NaiveDate, SecondsFormat, Utc};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};
use thiserror::Error;

/// Not a time in RFC 3339, or one outside of the years 1 to 9999 in UTC.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{text:?} is not a time: expected RFC 3339 within the years 0001 to 9999, such as 2026-11-29T08:30:00Z")]
pub struct ParseTimestampError {
    text: String,
}

/// Microseconds since 1970-01-01T00:00:00Z. As text: RFC 3339 in UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Timestamp(i64);

impl Timestamp {
    /// The earliest and latest instants that print as four-digit years.
    const MIN: i64 = -62_135_596_800_000_000;
    const MAX: i64 = 253_402_300_799_999_999;

    /// From microseconds since 1970, clamped to the years 1 to 9999.
    pub const fn from_micros(micros: i64) -> Self {
        Self(if micros < Self::MIN {
            Self::MIN
        } else if micros > Self::MAX {
            Self::MAX
        } else {
            micros
        })
    }
    /// Microseconds since 1970.
    pub const fn as_micros(self) -> i64 {
        self.0
    }
    /// Whole days since 1970: what a UTC day's files have in common.
    pub const fn day(self) -> i64 {
        self.0.div_euclid(86_400_000_000)
    }
    /// The UTC date, `YYYY-MM-DD`.
    pub fn date(self) -> NaiveDate {
        self.datetime().date_naive()
    }
    fn datetime(self) -> DateTime<Utc> {
        DateTime::from_timestamp_micros(self.0).expect("in range by construction")
    }
}

impl From<DateTime<Utc>> for Timestamp {
    fn from(value: DateTime<Utc>) -> Self {
        Self::from_micros(value.timestamp_micros())
    }
}

impl From<std::time::SystemTime> for Timestamp {
    fn from(value: std::time::SystemTime) -> Self {
        match value.duration_since(std::time::UNIX_EPOCH) {
            Ok(after) => Self::from_micros(i64::try_from(after.as_micros()).unwrap_or(i64::MAX)),
            Err(before) => {
                Self::from_micros(i64::try_from(before.duration().as_micros()).map_or(i64::MIN, |micros| -micros))
            }
        }
    }
}

impl From<Timestamp> for std::time::SystemTime {
    fn from(value: Timestamp) -> Self {
        let distance = std::time::Duration::from_micros(value.0.unsigned_abs());
        let moved = if value.0 < 0 {
            std::time::UNIX_EPOCH.checked_sub(distance)
        } else {
            std::time::UNIX_EPOCH.checked_add(distance)
        };
        moved.unwrap_or(std::time::UNIX_EPOCH)
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.datetime().to_rfc3339_opts(SecondsFormat::AutoSi, true))
    }
}

impl FromStr for Timestamp {
    type Err = ParseTimestampError;
    fn from_str(text: &str) -> Result<Self, ParseTimestampError> {
        DateTime::parse_from_rfc3339(text)
            .ok()
            .map(|time| time.timestamp_micros())
            .filter(|micros| (Self::MIN..=Self::MAX).contains(micros))
            .map(Self)
            .ok_or_else(|| ParseTimestampError { text: text.chars().take(80).collect() })
    }
}

impl TryFrom<String> for Timestamp {
    type Error = ParseTimestampError;
    fn try_from(text: String) -> Result<Self, ParseTimestampError> {
        text.parse()
    }
}

impl From<Timestamp> for String {
    fn from(value: Timestamp) -> String {
        value.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_rfc_3339_utc() {
        let t: Timestamp = "2026-11-29T10:30:00.000001+02:00".parse().unwrap();
        assert_eq!(t.to_string(), "2026-11-29T08:30:00.000001Z");
        assert_eq!(t.date().to_string(), "2026-11-29");
        for wrong in ["yesterday", "0000-12-31T23:59:59Z", "9999-12-31T23:59:59-01:00", "12026-11-29T08:30:00Z"] {
            assert!(wrong.parse::<Timestamp>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn extremes_do_not_panic() {
        for micros in [i64::MIN, -1, 0, i64::MAX] {
            let t = Timestamp::from_micros(micros);
            assert_eq!(t.to_string().parse::<Timestamp>().unwrap(), t);
        }
        assert_eq!(Timestamp::from_micros(-1).day(), -1);
    }
}
