//! Names that people choose: topics and stores.

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};
use thiserror::Error;

/// The longest topic name, in bytes; as in Kafka.
pub const MAX_TOPIC_NAME_BYTES: usize = 249;
/// The longest store name, in bytes.
pub const MAX_STORE_NAME_BYTES: usize = 63;

/// A name was refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum InvalidName {
    /// Nothing was given.
    #[error("the {what} name is empty; use 1 to {max} of the characters A-Z a-z 0-9 . _ -")]
    Empty {
        /// `topic` or `store`.
        what: &'static str,
        /// The limit in bytes.
        max: usize,
    },
    /// Longer than the limit.
    #[error("the {what} name {start:?}... has {bytes} bytes, the limit is {max}")]
    TooLong {
        /// `topic` or `store`.
        what: &'static str,
        /// How it starts.
        start: String,
        /// Its length in bytes.
        bytes: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// A character outside the permitted set.
    #[error("the {what} name {name:?} has the character {character:?}; use only A-Z a-z 0-9 . _ -")]
    Character {
        /// `topic` or `store`.
        what: &'static str,
        /// The name.
        name: String,
        /// The first character that is not permitted.
        character: char,
    },
    /// `.` and `..` mean something else to file systems.
    #[error("the {what} name {name:?} is reserved")]
    Reserved {
        /// `topic` or `store`.
        what: &'static str,
        /// The name.
        name: String,
    },
}

fn check(what: &'static str, name: &str, max: usize) -> Result<(), InvalidName> {
    if name.is_empty() {
        return Err(InvalidName::Empty { what, max });
    }
    if name.len() > max {
        return Err(InvalidName::TooLong { what, start: name.chars().take(32).collect(), bytes: name.len(), max });
    }
    if let Some(character) = name.chars().find(|c| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))) {
        return Err(InvalidName::Character { what, name: name.into(), character });
    }
    if name == "." || name == ".." {
        return Err(InvalidName::Reserved { what, name: name.into() });
    }
    Ok(())
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $what:literal, $max:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Box<str>);

        impl $name {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
            /// Checks that a text can be such a name, without making one.
            ///
            /// # Errors
            /// Says what is wrong with it.
            pub fn check(name: &str) -> Result<(), InvalidName> {
                check($what, name, $max)
            }
        }
        impl FromStr for $name {
            type Err = InvalidName;
            fn from_str(name: &str) -> Result<Self, InvalidName> {
                Self::check(name)?;
                Ok(Self(name.into()))
            }
        }
        impl TryFrom<String> for $name {
            type Error = InvalidName;
            fn try_from(name: String) -> Result<Self, InvalidName> {
                name.parse()
            }
        }
        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0.into()
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }
    };
}

name!(
    /// A topic's name: 1 to 249 of `A-Z a-z 0-9 . _ -`, neither `.` nor `..`; as in Kafka.
    TopicName, "topic", MAX_TOPIC_NAME_BYTES
);
name!(
    /// A configured store's name: 1 to 63 of `A-Z a-z 0-9 . _ -`, neither `.` nor `..`.
    StoreName, "store", MAX_STORE_NAME_BYTES
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_kafkas() {
        for good in ["a", "images.raw_v2-eu", &"x".repeat(249), "..."] {
            assert_eq!(good.parse::<TopicName>().unwrap().as_str(), good);
        }
        for bad in ["", ".", "..", "../x", "a/b", "a b", "ü", "a\0", &"x".repeat(250)] {
            assert!(bad.parse::<TopicName>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn errors_say_what_and_what_to_do() {
        let text = "../x".parse::<TopicName>().unwrap_err().to_string();
        assert!(text.contains("'/'") && text.contains("A-Z"), "{text}");
        assert!("x".repeat(300).parse::<TopicName>().unwrap_err().to_string().contains("300 bytes"));
    }
}
