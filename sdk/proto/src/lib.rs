//! The gRPC contract: generated code and its conversions to and from the vocabulary.
//!
//! The only crate that defines prost types. [`v1`] is generated from `proto/refstream/v1/refstream.proto`.

mod convert;
mod status;

pub use convert::InvalidMessage;
pub use status::{error_detail, into_status};

/// Version 1 of the contract.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::unwrap_used, clippy::clone_on_ref_ptr)]
pub mod v1 {
    tonic::include_proto!("refstream.v1");
}
