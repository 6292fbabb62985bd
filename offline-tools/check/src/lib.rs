//! Offline checks of a whole deployment: verify that every reference resolves.

#![warn(missing_docs)]

mod objects;
mod verify;

pub use verify::{Finding, Stopped, Unfinished, Verification, verify};
