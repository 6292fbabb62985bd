//! How a command ends.

use std::{fmt::Display, process::ExitCode};

/// Exit codes; part of the command's contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Something failed.
    Failed = 1,
    /// The command line or configuration is wrong.
    Usage = 2,
    /// Not permitted.
    NotAuthorised = 3,
    /// No broker or store answers.
    Unreachable = 4,
    /// Something is not what its reference says.
    Verification = 5,
    /// Ctrl-C.
    Interrupted = 130,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Why a command failed: an exit code and a text for people.
#[derive(Debug)]
pub(crate) struct Failure {
    exit: Exit,
    text: String,
}

impl Failure {
    pub(crate) fn new(exit: Exit, text: impl Display) -> Self {
        Self { exit, text: text.to_string() }
    }
    pub(crate) fn failed(text: impl Display) -> Self {
        Self::new(Exit::Failed, text)
    }
    pub(crate) fn usage(text: impl Display) -> Self {
        Self::new(Exit::Usage, text)
    }
    pub(crate) fn interrupted() -> Self {
        Self::new(Exit::Interrupted, "interrupted")
    }
    pub(crate) fn exit(&self) -> Exit {
        self.exit
    }
    pub(crate) fn text(&self) -> &str {
        &self.text
    }
}

impl From<refstream::types::InvalidName> for Failure {
    fn from(error: refstream::types::InvalidName) -> Self {
        Self::usage(error)
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::failed(error)
    }
}

/// Errors of the SDK answer with a class; the exit code follows from it.
macro_rules! from_sdk {
    ($($error:ident),+) => {$(
        impl From<refstream::$error> for Failure {
            fn from(error: refstream::$error) -> Self {
                Self::new(error.class().into(), error)
            }
        }
    )+};
}

from_sdk!(CallError, TopicError, UploadError, ProduceError, ConsumeError, FetchError);

impl From<refstream::ConnectError> for Failure {
    fn from(error: refstream::ConnectError) -> Self {
        match error {
            refstream::ConnectError::Endpoint(error) => Self::usage(error),
            refstream::ConnectError::Token(error) => Self::usage(error),
            refstream::ConnectError::Authorities(error) => Self::usage(error),
            error => Self::new(error.class().into(), error),
        }
    }
}

impl From<refstream::InlineRefused> for Failure {
    fn from(error: refstream::InlineRefused) -> Self {
        Self::usage(error)
    }
}

impl From<refstream::BackfillError> for Failure {
    fn from(error: refstream::BackfillError) -> Self {
        use refstream::BackfillError as Error;
        match error {
            Error::Glob(_) | Error::Template(_) | Error::Inline(_) => Self::usage(error),
            error => Self::new(error.class().into(), error),
        }
    }
}

impl From<Box<refstream_check::Unfinished>> for Failure {
    fn from(error: Box<refstream_check::Unfinished>) -> Self {
        Self::new(error.why.class().into(), error)
    }
}

impl From<refstream::ErrorClass> for Exit {
    fn from(class: refstream::ErrorClass) -> Self {
        use refstream::ErrorClass as Class;
        match class {
            Class::Unreachable => Self::Unreachable,
            Class::NotAuthorised => Self::NotAuthorised,
            Class::VerificationFailed => Self::Verification,
            _ => Self::Failed,
        }
    }
}
