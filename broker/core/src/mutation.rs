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
    /// Takes a fence in its slot for its own commit.
    IgnoreFence,
    /// Places batches behind a segment's seal entry.
    AppendAfterSeal,
    /// Tells readers of a batch when it is placed.
    ReadBeforeDurable,
    /// Writes a checkpoint between a segment's end and the log entry that says so.
    HideEnds,
    /// Refuses a batch by what it knows, without proving that it is not fenced.
    StaleRefusal,
    /// Answers for its latest offsets without proving that it is not fenced.
    StaleAnswers,
    /// Frees its journal up to the last committed slot.
    FreeTooMuch,
    /// Tells the log of a segment's end when the seal entry is placed.
    EndBeforeDurable,
    /// Ends other brokers' segments where it leads, instead of asking.
    EndForOthers,
    /// Begins with a segment when it wants it, before the log names it as the owner.
    OwnBeforeNamed,
    /// Takes what a sleeper left at a freed number for an entry of the log.
    TrustSleepers,
    /// Answers for its latest offsets while it may have given partitions away.
    AnswerWhileGiving,
}

impl Mutation {
    /// All of them.
    pub const ALL: [Self; 19] = [
        Self::AckBeforeDurable,
        Self::AckAboveGap,
        Self::SkipFencing,
        Self::TrustMissingRead,
        Self::ReuseOffsets,
        Self::ForgetProducers,
        Self::NoDeduplication,
        Self::IgnoreFence,
        Self::AppendAfterSeal,
        Self::ReadBeforeDurable,
        Self::HideEnds,
        Self::StaleRefusal,
        Self::StaleAnswers,
        Self::FreeTooMuch,
        Self::EndBeforeDurable,
        Self::EndForOthers,
        Self::OwnBeforeNamed,
        Self::TrustSleepers,
        Self::AnswerWhileGiving,
    ];
}
