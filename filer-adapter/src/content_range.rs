//! The header of an answer that holds a part of an object.

/// `bytes FIRST-LAST/SIZE`.
pub(crate) fn content_range(text: &str) -> Option<(u64, u64, u64)> {
    let (range, size) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    Some((first.parse().ok()?, last.parse().ok()?, size.parse().ok()?))
}
