//! One error type per operation.

use thiserror::Error;

macro_rules! placeholder {
    ($($(#[$doc:meta])* $name:ident),*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Error)]
        #[error("{0}")]
        pub struct $name(String);
        impl $name {
            /// Whether the same call may succeed later.
            pub fn is_retryable(&self) -> bool {
                todo!()
            }
            /// Whether it is certain that nothing happened.
            pub fn has_no_side_effects(&self) -> bool {
                todo!()
            }
        }
    )*};
}

placeholder!(
    /// Connecting failed.
    ConnectError,
    /// An operation on topics or segments failed.
    TopicError,
    /// An upload failed.
    UploadError,
    /// A record was not acked.
    ProduceError,
    /// Consuming failed.
    ConsumeError,
    /// A payload could not be fetched and verified.
    FetchError,
    /// A backfill could not go on.
    BackfillError
);
