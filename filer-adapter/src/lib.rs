//! The outside world behind two small traits.
//!
//! [`BlobStore`] holds payloads and files, [`Filer`] is the small-object namespace whose atomic create-if-absent is the only
//! coordination there is. [`chain`] turns that one primitive into numbered chains with a definite answer to "was it me?";
//! [`probe`] refuses a store that does not keep the contract; [`grant`] lets clients without credentials in. Time and randomness come from [`Runtime`] alone.

#![warn(missing_docs)]

#[cfg(any(feature = "s3", feature = "seaweedfs"))]
mod attempt;
pub mod chain;
mod checksum;
#[cfg(feature = "conformance")]
pub mod conformance;
#[cfg(any(feature = "s3", feature = "seaweedfs"))]
mod content_range;
#[cfg(feature = "embedded")]
pub mod embedded;
mod error;
pub mod grant;
#[cfg(feature = "memory")]
pub mod memory;
#[cfg(any(feature = "s3", feature = "seaweedfs"))]
mod pieces;
pub mod probe;
mod runtime;
#[cfg(feature = "s3")]
pub mod s3;
#[cfg(feature = "seaweedfs")]
pub mod seaweed;
mod store;
#[cfg(any(feature = "s3", feature = "seaweedfs"))]
mod trust;

pub use checksum::crc32c;
pub use error::{CreateError, StoreError, StoreErrorKind};
pub use runtime::{Runtime, TokioRuntime};
pub use store::{
    Attributes, BlobStore, ByteStream, Created, Filer, Found, GetOptions, Listed, MAX_NOTE_BYTES, MultipartUpload,
    ObjectMeta, Part, Sent, Stored,
};
