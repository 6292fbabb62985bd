//! Numbered chains: the one way in which anything is committed.
//!
//! A chain's number n is created only by a writer that knows that n - 1 exists (a journal's writer: that n - W is committed).
//! The object's name is the fence: whoever creates a number first has decided it. A create whose answer is lost is settled by
//! reading back: the bytes are frozen before the first attempt and hold a random token, so equal bytes mean "it was me".
//!
//! Numbers are never reused. Old ones are freed in strictly ascending order, after the chain's *boundary* was raised above
//! them; a number is trusted only if its predecessor is still present after it was read or created (or it is the boundary's
//! own), so a writer that slept through a deletion finds out.

use crate::{Filer, Runtime, StoreError};
use bytes::Bytes;
use refstream_types::{Chain, Layout};

/// What became of a commit.
#[derive(Clone, Debug)]
pub enum Commit {
    /// The number holds our bytes.
    Committed,
    /// The number holds somebody else's bytes: ours never will.
    Taken(Bytes),
    /// The number lies below the chain's boundary: the writer's knowledge is older than the chain's oldest object.
    Freed,
    /// Not known: commit the same bytes again until it is. Never clean up on this.
    Unknown(StoreError),
}

/// Commits `bytes` as number `number`: create, and where the answer leaves doubt, read back.
pub async fn commit(
    filer: &dyn Filer,
    runtime: &dyn Runtime,
    layout: &Layout,
    chain: &Chain,
    number: u64,
    bytes: Bytes,
) -> Commit {
    let _ = (filer, runtime, layout, chain, number, bytes);
    todo!()
}

/// Reads number `number`; `None` when it is not there now, which decides nothing about a commit under way.
///
/// # Errors
/// When the store did not say.
pub async fn read(filer: &dyn Filer, layout: &Layout, chain: &Chain, number: u64) -> Result<Option<Bytes>, StoreError> {
    filer.read(&layout.link(chain, number)).await
}

/// The highest number of a chain, found by galloping and bisecting from `hint` (a number known to have existed, or 0), without
/// listing. `None` when the chain is empty.
///
/// # Errors
/// When the store did not say.
pub async fn tip(
    filer: &dyn Filer,
    layout: &Layout,
    chain: &Chain,
    hint: u64,
) -> Result<Option<(u64, Bytes)>, StoreError> {
    let _ = (filer, layout, chain, hint);
    todo!()
}

/// The lowest number that may still be trusted; 0 when nothing was ever freed.
///
/// # Errors
/// When the store did not say.
pub async fn boundary(filer: &dyn Filer, layout: &Layout, chain: &Chain) -> Result<u64, StoreError> {
    let _ = (filer, layout, chain);
    todo!()
}

/// Raises the boundary to `number`, then deletes every lower number, ascending; never the newest one. Returns how many objects went.
///
/// # Errors
/// When the store did not say; calling again goes on.
pub async fn free_below(filer: &dyn Filer, layout: &Layout, chain: &Chain, number: u64) -> Result<u64, StoreError> {
    let _ = (filer, layout, chain, number);
    todo!()
}
