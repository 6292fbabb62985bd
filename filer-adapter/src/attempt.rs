//! Requests that fail, and what is repeated.

use crate::{CreateError, StoreError, StoreErrorKind};
use backon::{ExponentialBuilder, Retryable as _};
use std::{future::Future, time::Duration};

/// The pause before the second try, about; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// The longest pause between tries, unless the store asks for more.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// The longest pause that a store may ask for.
const MAX_PATIENCE: Duration = Duration::from_secs(30);
/// The slowest upload that is not given up, in bytes per second.
const SLOWEST_UPLOAD: u64 = 256 << 10;

/// A failed request.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) error: StoreError,
    /// It may have taken effect.
    pub(crate) happened: bool,
    /// The answer's status, where there was one.
    pub(crate) status: Option<u16>,
}

impl From<Failed> for CreateError {
    fn from(failed: Failed) -> Self {
        if failed.happened { Self::MayHaveHappened(failed.error) } else { Self::DidNotHappen(failed.error) }
    }
}

/// The longest time without an answer for a request that sends `bytes`, where one without a body may take `limit`.
pub(crate) fn time_limit(limit: Duration, bytes: u64) -> Duration {
    limit + Duration::from_secs(bytes / SLOWEST_UPLOAD)
}

/// A store that says how long to wait is believed, within reason.
fn patience(failed: &Failed, wait: Option<Duration>) -> Option<Duration> {
    match failed.error.kind {
        StoreErrorKind::Throttled(Some(asked)) => wait.map(|wait| wait.max(asked.min(MAX_PATIENCE))),
        _ => wait,
    }
}

/// Repeats what may be repeated, `attempts` tries in all. Once a try may have happened, that stays true of the whole.
pub(crate) async fn retried<T, Fut>(attempts: usize, operation: impl FnMut() -> Fut) -> Result<T, Failed>
where
    Fut: Future<Output = Result<T, Failed>>,
{
    let backoff = ExponentialBuilder::default()
        .with_min_delay(FIRST_PAUSE)
        .with_max_delay(LONGEST_PAUSE)
        .with_max_times(attempts.saturating_sub(1))
        .with_jitter();
    let mut happened = false;
    operation
        .retry(backoff)
        .when(|failed| failed.error.is_retryable())
        .adjust(|failed, pause| {
            happened |= failed.happened;
            patience(failed, pause)
        })
        .await
        .map_err(|failed| Failed { happened: happened || failed.happened, ..failed })
}

/// An error with its causes, as one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let more = source.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        next = source.source();
    }
    text
}

/// Whether a connection failed because the other side's certificate is not trusted, or is not for it: as rustls says it. It would be no better next
/// time.
pub(crate) fn is_untrusted(message: &str) -> bool {
    message.contains("invalid peer certificate")
}

/// The cause of the type `E` in an error's chain.
pub(crate) fn cause<'a, E: std::error::Error + 'static>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a E> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        next = error.source();
    }
    None
}
