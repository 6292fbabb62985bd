//! Rules that can be broken on purpose, one at a time, so that the simulator proves that it would notice.

#![cfg_attr(not(feature = "mutations"), allow(dead_code, unreachable_pub))]

/// A rule to break.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mutation {
    /// None: the broker as it is.
    #[default]
    None,
    /// Answers producers when a batch is placed, before it is durable.
    AckBeforeDurable,
    /// Answers producers for a slot while a lower one is open.
    AckAboveGap,
    /// Recovers a journal without fencing it.
    SkipFencing,
    /// Takes a missing read for the end of a journal.
    TrustMissingRead,
    /// Starts a recovered segment's successor at its predecessor's start.
    ReuseOffsets,
    /// Forgets the producers at each new segment.
    ForgetProducers,
    /// Takes every batch for a fresh one.
    NoDeduplication,
    /// Makes new bytes for each attempt to commit a slot that was fenced, at the next slot.
    ClimbOverFence,
    /// Places batches behind a segment's seal entry.
    AppendAfterSeal,
    /// Tells readers of a batch when it is placed.
    ReadBeforeDurable,
}

impl Mutation {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::AckBeforeDurable,
        Self::AckAboveGap,
        Self::SkipFencing,
        Self::TrustMissingRead,
        Self::ReuseOffsets,
        Self::ForgetProducers,
        Self::NoDeduplication,
        Self::ClimbOverFence,
        Self::AppendAfterSeal,
        Self::ReadBeforeDurable,
    ];
}
