//! Numbered chains: the one way in which anything is committed.
//!
//! A chain's number n is created only by a writer that knows that n - 1 exists (a journal's writer: that n - W is committed).
//! The object's name is the fence: whoever creates a number first has decided it. A create whose answer is lost is settled by
//! reading back: the bytes are frozen before the first attempt and hold a random token, so equal bytes mean "it was me".
//!
//! | answer of the create | read back | outcome |
//! |---|---|---|
//! | created | – | `Committed`, once the predecessor is seen (below) |
//! | exists, or may have happened | our bytes | `Committed` |
//! | exists, or may have happened | other bytes | `Taken` |
//! | exists, or may have happened | nothing | `Unknown`: a missing read decides nothing, the create may still land |
//! | certainly did not happen | – | `Unknown`: commit the same bytes again |
//!
//! **Numbers are never reused.** Old ones are freed in strictly ascending order, after the chain's *boundary* was raised above
//! them, and never the newest. A writer that slept through a deletion could therefore create a number that was freed. It finds
//! out by its predecessor: if n had been freed, n - 1 went before it; so a created n is trusted only if n - 1 is still present
//! afterwards. Journals need no such read on their way to an ack: a slot that its own writer creates late is either below the
//! journal's fence, then it held these same bytes before, or it is the fence's, which is never freed.

use crate::{CreateError, Created, Filer, Runtime, StoreError, StoreErrorKind};
use bytes::Bytes;
use refstream_types::{Chain, Key, Layout};
use std::time::Duration;

/// Tries of one commit before it is `Unknown`.
const ATTEMPTS: u32 = 3;
/// The first wait between tries; doubled each time, and up to as much again at random.
const FIRST_WAIT: Duration = Duration::from_millis(10);
/// Keys listed at a time.
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

fn missing(what: &'static str, key: Key) -> StoreError {
    StoreError {
        kind: StoreErrorKind::Unavailable,
        operation: "create",
        store: String::new(),
        key: Some(key),
        message: what.into(),
    }
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
    let key = layout.link(chain, number);
    let mut wait = FIRST_WAIT;
    let mut last = None;
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            let jitter = runtime.random() % (wait.as_micros() as u64 + 1);
            runtime.sleep(wait + Duration::from_micros(jitter)).await;
            wait *= 2;
        }
        match filer.create(&key, bytes.clone()).await {
            Ok(Created::New) => return check_predecessor(filer, layout, chain, number).await,
            Ok(Created::Exists) => {}
            Err(CreateError::DidNotHappen(error)) => {
                let retryable = error.is_retryable();
                last = Some(error);
                if retryable {
                    continue;
                }
                break;
            }
            Err(CreateError::MayHaveHappened(error)) => last = Some(error),
        }
        match filer.read(&key).await {
            Ok(Some(found)) if found == bytes => return check_predecessor(filer, layout, chain, number).await,
            Ok(Some(found)) => return Commit::Taken(found),
            Ok(None) => {}
            Err(error) => last = Some(error),
        }
    }
    Commit::Unknown(last.unwrap_or_else(|| missing("the store says that the object exists and does not show it", key)))
}

async fn check_predecessor(filer: &dyn Filer, layout: &Layout, chain: &Chain, number: u64) -> Commit {
    if matches!(chain, Chain::Journal(_)) || number <= 1 {
        return Commit::Committed;
    }
    match filer.read(&layout.link(chain, number - 1)).await {
        Ok(Some(_)) => Commit::Committed,
        Ok(None) => match boundary(filer, layout, chain).await {
            Ok(lowest) if lowest == number => Commit::Committed,
            Ok(_) => Commit::Freed,
            Err(error) => Commit::Unknown(error),
        },
        Err(error) => Commit::Unknown(error),
    }
}

/// Reads number `number`; `None` when it is not there now, which decides nothing about a commit under way.
///
/// # Errors
/// When the store did not say.
pub async fn read(filer: &dyn Filer, layout: &Layout, chain: &Chain, number: u64) -> Result<Option<Bytes>, StoreError> {
    filer.read(&layout.link(chain, number)).await
}

/// The end of a chain, found by galloping and bisecting from `hint` (a number known to have existed, or 0), without listing where the
/// hint is still there: a number that is present while the next one is not. `None` when the chain is empty.
///
/// Of a chain without gaps it is the highest number. A journal with W creates in flight can have gaps in its last W numbers:
/// there the end of the contiguous run is at most W lower.
///
/// # Errors
/// When the store did not say.
pub async fn tip(
    filer: &dyn Filer,
    layout: &Layout,
    chain: &Chain,
    hint: u64,
) -> Result<Option<(u64, Bytes)>, StoreError> {
    let mut lowest = hint.max(1);
    let mut found = read(filer, layout, chain, lowest).await?;
    if found.is_none() {
        // Freed, or nothing there yet: begin at the boundary, or where the oldest number is.
        lowest = match boundary(filer, layout, chain).await? {
            0 => match oldest(filer, layout, chain).await? {
                Some(oldest) => oldest,
                None => return Ok(None),
            },
            boundary => boundary,
        };
        found = read(filer, layout, chain, lowest).await?;
    }
    let Some(mut bytes) = found else { return Ok(None) };
    let (mut present, mut step) = (lowest, 1);
    let mut absent = loop {
        let probe = present.saturating_add(step);
        match read(filer, layout, chain, probe).await? {
            Some(found) => {
                (present, bytes) = (probe, found);
                step *= 2;
            }
            None => break probe,
        }
    };
    while absent - present > 1 {
        let middle = present + (absent - present) / 2;
        match read(filer, layout, chain, middle).await? {
            Some(found) => (present, bytes) = (middle, found),
            None => absent = middle,
        }
    }
    Ok(Some((present, bytes)))
}

async fn oldest(filer: &dyn Filer, layout: &Layout, chain: &Chain) -> Result<Option<u64>, StoreError> {
    let prefix = layout.chain_prefix(chain);
    let first = filer.list(&prefix, None, 1).await?;
    Ok(first.first().and_then(|listed| number_in(&prefix, &listed.key)))
}

/// The number of a key directly below `prefix`.
fn number_in(prefix: &str, key: &Key) -> Option<u64> {
    let name = key.as_str().strip_prefix(prefix)?;
    if name.contains('/') { None } else { Layout::number_of(key) }
}

/// The lowest number that may still be trusted; 0 when nothing was ever freed.
///
/// # Errors
/// When the store did not say.
pub async fn boundary(filer: &dyn Filer, layout: &Layout, chain: &Chain) -> Result<u64, StoreError> {
    Ok(boundaries(filer, layout, chain).await?.last().copied().unwrap_or(0))
}

async fn boundaries(filer: &dyn Filer, layout: &Layout, chain: &Chain) -> Result<Vec<u64>, StoreError> {
    let prefix = layout.boundary_prefix(chain);
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let page = filer.list(&prefix, after.as_ref(), PAGE).await?;
        all.extend(page.iter().filter_map(|listed| number_in(&prefix, &listed.key)));
        match page.last() {
            Some(last) if page.len() == PAGE => after = Some(last.key.clone()),
            _ => return Ok(all),
        }
    }
}

/// Raises the boundary to `number`, then deletes every lower number, ascending; never the newest one. Returns how many
/// objects went.
///
/// # Errors
/// When the store did not say, or `number` does not exist (it or something newer must stay); calling again goes on.
pub async fn free_below(filer: &dyn Filer, layout: &Layout, chain: &Chain, number: u64) -> Result<u64, StoreError> {
    if number <= 1 {
        return Ok(0);
    }
    let kept = layout.link(chain, number);
    if filer.read(&kept).await?.is_none() {
        return Err(StoreError {
            kind: StoreErrorKind::Invalid,
            operation: "free",
            store: String::new(),
            key: Some(kept),
            message: "the lowest number to keep does not exist".into(),
        });
    }
    let before = boundaries(filer, layout, chain).await?;
    if before.last().is_none_or(|highest| *highest < number) {
        match filer.create(&layout.boundary(chain, number), Bytes::new()).await {
            Ok(_) => {}
            Err(CreateError::DidNotHappen(error) | CreateError::MayHaveHappened(error)) => return Err(error),
        }
    }
    let prefix = layout.chain_prefix(chain);
    let mut freed = 0;
    'pages: loop {
        let page = filer.list(&prefix, None, PAGE).await?;
        let mut progress = false;
        for listed in &page {
            match number_in(&prefix, &listed.key) {
                Some(old) if old < number => {
                    filer.remove(&listed.key).await?;
                    freed += 1;
                    progress = true;
                }
                _ => break 'pages,
            }
        }
        if !progress {
            break;
        }
    }
    for lower in before.into_iter().filter(|lower| *lower < number) {
        filer.remove(&layout.boundary(chain, lower)).await?;
    }
    Ok(freed)
}
