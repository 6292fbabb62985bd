//! Numbered chains: the one way in which anything is committed.
//!
//! A chain's number n is created only by a writer that knows that n - 1 exists (a journal's writer: that n - W is committed).
//! The object's name is the fence: whoever creates a number first has decided it. A create whose answer is lost is settled by
//! reading back: the bytes are frozen before the first attempt and hold a random token, so equal bytes mean "it was me".
//! A missing read decides nothing, since the create may still land.
//!
//! # Freeing, and why a number is trusted
//!
//! Numbers are never reused. [`free_below`] raises the chain's *boundary* durably, then deletes lower numbers in strictly
//! ascending order. A crash between the steps leaves objects below the boundary: the next call deletes them.
//!
//! A writer that slept through a deletion can still create a freed number: the store sees a free name. It finds out after its
//! create, before it reports success ([`Commit::Freed`]). Its object stays behind, below the boundary, where nobody trusts it.
//! Evidence that number n was not freed before it was created or read, from cheap to dear:
//!
//! - A lower number is present *after* n was. Deletes ascend, so n was not deleted while a lower one stands. This needs a read
//!   only, which is never stale. n - 1 is asked first. In a journal n - 1 may be missing because its create is still in flight,
//!   or because a recoverer fences ahead of the tip: there any of the [`MAX_GAP`] numbers below n will do.
//! - Otherwise the boundary must be at most n, and above the numbers that were found missing: one that is lower comes from a
//!   stale listing, and the outcome is [`Commit::Unknown`].
//!
//! A second sleeper may have created the very predecessor that the first one asks for. In chains with many writers the
//! boundary is therefore always listed as well, for a number that was found taken too.
//!
//! A journal's owner needs none of this: a slot below the fence held its own bytes before, and the fence is never freed. But a
//! recoverer that sleeps while the owner, alive, frees the slot it was about to fence would believe that it has fenced: acked
//! records would be void for it. Hence a journal's commit pays small reads of its predecessors (one or two, on the whole).

use crate::{CreateError, Created, Filer, Runtime, StoreError, StoreErrorKind};
use bytes::Bytes;
use futures::future::{join_all, try_join};
use refstream_types::{ByteRange, Chain, Key, Layout};
use std::time::Duration;

/// The widest run of missing numbers that a journal can have below a number that exists: creates in flight and a fence
/// ahead of the tip. A writer with W creates in flight and a fence at tip + 2 W needs 2 W of it.
pub const MAX_GAP: u64 = 64;
/// Creates that one commit tries before it answers [`Commit::Unknown`].
const ATTEMPTS: u32 = 4;
/// The pause before the second attempt; it doubles, and up to as much again is added at random.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
/// The longest pause that a store may ask for within one commit.
const MAX_PAUSE: Duration = Duration::from_secs(2);
/// How often a search begins anew because the chain was freed under it.
const SEARCHES: u32 = 5;
/// How often a search asks for one number.
const LOOKS: u32 = 3;
/// Names asked for in one listing.
const PAGE: usize = 1_000;

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

/// Commits `bytes` as number `number`: create, and where the answer leaves doubt, read back and compare. Tries a few times with
/// short pauses, then answers [`Commit::Unknown`].
///
/// The bytes of [`Commit::Taken`] are as they were read: their own checksum tells whether they are whole.
pub async fn commit(
    filer: &dyn Filer,
    runtime: &dyn Runtime,
    layout: &Layout,
    chain: &Chain,
    number: u64,
    bytes: Bytes,
) -> Commit {
    let key = layout.link(chain, number);
    let mut attempt = 0;
    loop {
        let undecided = match filer.create(&key, bytes.clone()).await {
            Ok(Created::New) => return trusted(filer, layout, chain, number, Commit::Committed).await,
            Err(CreateError::DidNotHappen(error)) => error,
            doubt @ (Ok(Created::Exists) | Err(CreateError::MayHaveHappened(_))) => {
                match read(filer, layout, chain, number).await {
                    Ok(Some(found)) if found == bytes => {
                        return trusted(filer, layout, chain, number, Commit::Committed).await;
                    }
                    // A single wrong answer must not pass for somebody else's bytes.
                    Ok(Some(found)) => match read(filer, layout, chain, number).await {
                        Ok(Some(again)) if again == found => {
                            return trusted(filer, layout, chain, number, Commit::Taken(found)).await;
                        }
                        Ok(_) => undecided(&key, "two reads of it, one after the other, gave different bytes"),
                        Err(error) => error,
                    },
                    Ok(None) => match doubt {
                        Err(error) => error.error().clone(),
                        Ok(_) => undecided(&key, "the store said that it exists, and then that it does not"),
                    },
                    Err(error) => error,
                }
            }
        };
        attempt += 1;
        if attempt >= ATTEMPTS || !undecided.is_retryable() {
            return Commit::Unknown(undecided);
        }
        runtime.sleep(pause(runtime, attempt, &undecided)).await;
    }
}

fn pause(runtime: &dyn Runtime, attempt: u32, error: &StoreError) -> Duration {
    let base = match error.kind {
        StoreErrorKind::Throttled(Some(asked)) => asked.min(MAX_PAUSE),
        _ => FIRST_PAUSE * (1 << (attempt - 1).min(8)),
    };
    base + Duration::from_nanos(runtime.random() % (base.as_nanos() as u64).max(1))
}

fn undecided(key: &Key, message: &str) -> StoreError {
    StoreError {
        kind: StoreErrorKind::Unavailable,
        operation: "commit",
        store: String::from("(chain)"),
        key: Some(key.clone()),
        message: message.into(),
    }
}

/// `outcome`, if `number` was not freed before: see the module's documentation.
async fn trusted(filer: &dyn Filer, layout: &Layout, chain: &Chain, number: u64, outcome: Commit) -> Commit {
    match was_freed(filer, layout, chain, number).await {
        Ok(false) => outcome,
        Ok(true) => Commit::Freed,
        Err(error) => Commit::Unknown(error),
    }
}

/// Whether `number`, which was seen to exist, lies in the freed part of the chain.
async fn was_freed(filer: &dyn Filer, layout: &Layout, chain: &Chain, number: u64) -> Result<bool, StoreError> {
    // The boundary, and the lowest that it can be when everything looked for below is missing.
    let (boundary, lowest) = if let Chain::Journal(_) = chain {
        let lowest = number.saturating_sub(MAX_GAP);
        // The nearest may be in flight: look back in doubling steps first.
        for step in (0..).map(|power| 1 << power).take_while(|step| *step <= number.min(MAX_GAP)) {
            if present(filer, layout, chain, number - step).await? {
                return Ok(false);
            }
        }
        for found in join_all((lowest..number).map(|n| present(filer, layout, chain, n))).await {
            if found? {
                return Ok(false);
            }
        }
        (boundary(filer, layout, chain).await?, lowest)
    } else {
        let before = async {
            match number.checked_sub(1) {
                Some(before) => present(filer, layout, chain, before).await,
                None => Ok(false),
            }
        };
        let (before, boundary) = try_join(before, boundary(filer, layout, chain)).await?;
        (boundary, if before { 0 } else { number })
    };
    // Chains start at 0 or 1.
    if boundary < lowest && lowest > 1 {
        let key = layout.link(chain, number);
        return Err(undecided(&key, "nothing before it is there, yet the listing shows no boundary: it must be stale"));
    }
    Ok(boundary > number)
}

/// Whether a number is there. A search asks this dozens of times: one lost answer must not make it begin anew.
async fn present(filer: &dyn Filer, layout: &Layout, chain: &Chain, number: u64) -> Result<bool, StoreError> {
    let (key, first) = (layout.link(chain, number), ByteRange { offset: 0, length: 1 });
    let mut attempt = 1;
    loop {
        match filer.read_range(&key, first).await {
            Err(error) if attempt < LOOKS && matches!(error.kind, StoreErrorKind::Unavailable) => attempt += 1,
            found => return Ok(found?.is_some()),
        }
    }
}

/// What a number of a chain holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Link {
    /// Nothing now, which decides nothing about a commit under way.
    Missing,
    /// These bytes, and they have stood there since they were committed.
    Present(Bytes),
    /// The number lies below the chain's boundary: what stands there, if anything, was left by somebody who slept.
    Freed,
}

/// Reads number `number` of a chain that many write and that goes on while it is read.
///
/// A sleeper's create may stand at a freed number until the next [`free_below`]; a reader that is as far behind must not take it for
/// the chain's.
///
/// # Errors
/// When the store did not say, or its listing is stale.
pub async fn link(filer: &dyn Filer, layout: &Layout, chain: &Chain, number: u64) -> Result<Link, StoreError> {
    let Some(bytes) = read(filer, layout, chain, number).await? else { return Ok(Link::Missing) };
    Ok(if was_freed(filer, layout, chain, number).await? { Link::Freed } else { Link::Present(bytes) })
}

/// Reads number `number`; `None` when it is not there now, which decides nothing about a commit under way.
///
/// Trust what is read only if the number before is still there *afterwards*, or [`boundary`] is not above it; [`link`](fn@link) sees to that.
///
/// # Errors
/// When the store did not say; what is empty is no answer, since nothing empty is ever committed.
pub async fn read(filer: &dyn Filer, layout: &Layout, chain: &Chain, number: u64) -> Result<Option<Bytes>, StoreError> {
    let key = layout.link(chain, number);
    match filer.read(&key).await? {
        Some(bytes) if bytes.is_empty() => {
            Err(undecided(&key, "the store says that the object is there, and gives no bytes of it"))
        }
        found => Ok(found),
    }
}

/// The tip: the highest number of the run without gaps that starts at `hint` (a number known to have existed, or 0) or at the
/// boundary, whichever is higher. `None` when the chain is empty. What a journal has above a gap is not part of it.
///
/// One listing finds the boundary; the rest is galloping and bisecting by reads. Since a number exists only where the run
/// reaches to at least [`MAX_GAP`] below it, a number found present bounds the tip from below, one found missing from above.
///
/// # Errors
/// When the store did not say, or its listing is stale.
pub async fn tip(
    filer: &dyn Filer,
    layout: &Layout,
    chain: &Chain,
    hint: u64,
) -> Result<Option<(u64, Bytes)>, StoreError> {
    for _ in 0..SEARCHES {
        let boundary = boundary(filer, layout, chain).await?;
        let mut start = hint.max(boundary);
        if !present(filer, layout, chain, start).await? {
            if start > 1 {
                // Freed since the boundary was listed, or the listing is stale.
                continue;
            }
            if start == 1 || !present(filer, layout, chain, 1).await? {
                return Ok(None);
            }
            start = 1;
        }
        let number = climb(filer, layout, chain, start).await?;
        if let Some(bytes) = read(filer, layout, chain, number).await? {
            return Ok(Some((number, bytes)));
        }
    }
    let key = layout.link(chain, hint);
    Err(undecided(&key, "the chain's lowest number is not where the listing of its boundary says"))
}

/// The end of the run that starts at `start`, which is present.
async fn climb(filer: &dyn Filer, layout: &Layout, chain: &Chain, start: u64) -> Result<u64, StoreError> {
    let (mut low, mut step) = (start, 1);
    let mut high = loop {
        let Some(next) = low.checked_add(step) else { break u64::MAX };
        if !present(filer, layout, chain, next).await? {
            break next;
        }
        low = next;
        step *= 2;
    };
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if present(filer, layout, chain, middle).await? {
            low = middle;
        } else {
            high = middle;
        }
    }
    if let Chain::Journal(_) = chain {
        let first = (start + 1).max(low.saturating_sub(MAX_GAP));
        let run = join_all((first..low).map(|n| present(filer, layout, chain, n))).await;
        for (number, found) in (first..).zip(run) {
            if !found? {
                return Ok(number - 1);
            }
        }
    }
    Ok(low)
}

/// The lowest number that may still be trusted; 0 when nothing was ever freed.
///
/// # Errors
/// When the store did not say.
pub async fn boundary(filer: &dyn Filer, layout: &Layout, chain: &Chain) -> Result<u64, StoreError> {
    Ok(numbers(filer, &layout.boundary_prefix(chain), None).await?.last().copied().unwrap_or(0))
}

/// The numbers of the objects directly below `prefix`, ascending; only those lower than `below`.
async fn numbers(filer: &dyn Filer, prefix: &str, below: Option<u64>) -> Result<Vec<u64>, StoreError> {
    let (mut numbers, mut after) = (Vec::new(), None);
    loop {
        let page = filer.list(prefix, after.as_ref(), PAGE).await?;
        for listed in &page {
            if listed.key.as_str().len() != prefix.len() + 20 {
                continue;
            }
            let Some(number) = Layout::number_of(&listed.key) else { continue };
            if below.is_some_and(|below| number >= below) {
                return Ok(numbers);
            }
            numbers.push(number);
        }
        if page.len() < PAGE {
            return Ok(numbers);
        }
        after = page.into_iter().next_back().map(|listed| listed.key);
    }
}

/// Raises the boundary to `number`, then deletes every lower number, ascending. Returns how many deletes were made.
///
/// A crash after the boundary was raised leaves objects below it, which nobody trusts; calling again deletes them.
///
/// # Errors
/// When the store did not say; calling again goes on. When `number` does not exist: the newest object must stay.
pub async fn free_below(filer: &dyn Filer, layout: &Layout, chain: &Chain, number: u64) -> Result<u64, StoreError> {
    let prefix = layout.boundary_prefix(chain);
    let old = boundary(filer, layout, chain).await?;
    if number > old && !present(filer, layout, chain, number).await? {
        let message = "the lowest number to keep does not exist";
        let kind = StoreErrorKind::Invalid;
        return Err(StoreError { kind, operation: "free", ..undecided(&layout.link(chain, number), message) });
    }
    let now = old.max(number);
    if now > old {
        let name = Bytes::from(now.to_string());
        // Everybody who raises the boundary to this number writes the same bytes: it matters only that it is there.
        if let Err(error) = filer.create(&layout.boundary(chain, now), name).await
            && filer.read(&layout.boundary(chain, now)).await?.is_none()
        {
            return Err(error.error().clone());
        }
    }
    let mut freed = 0;
    // What an earlier call left when it was cut off, and what sleepers created there since.
    for leftover in numbers(filer, &layout.chain_prefix(chain), Some(old)).await? {
        filer.remove(&layout.link(chain, leftover)).await?;
        freed += 1;
    }
    for number in old..now {
        filer.remove(&layout.link(chain, number)).await?;
        freed += 1;
    }
    for older in numbers(filer, &prefix, Some(now)).await? {
        filer.remove(&layout.boundary(chain, older)).await?;
    }
    Ok(freed)
}

#[cfg(test)]
#[cfg(feature = "memory")]
mod tests;
