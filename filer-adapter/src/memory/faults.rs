//! What can go wrong, how often, and what was drawn.

use std::{collections::BTreeMap, time::Duration};

/// An operation of the store, as far as faults tell them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// [`Filer::create`](crate::Filer::create).
    Create,
    /// Reads of the filer.
    Read,
    /// Removes and deletes.
    Remove,
    /// Listings of either trait.
    List,
    /// [`BlobStore::put`](crate::BlobStore::put).
    Put,
    /// `get` and `head`.
    Get,
    /// Start, resume, parts and abort of an upload in parts.
    Multipart,
    /// [`MultipartUpload::put_part`](crate::MultipartUpload::put_part).
    PutPart,
    /// [`MultipartUpload::complete`](crate::MultipartUpload::complete).
    Complete,
}

impl Operation {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Read => "read",
            Self::Remove => "remove",
            Self::List => "list",
            Self::Put => "put",
            Self::Get => "get",
            Self::Multipart => "multipart",
            Self::PutPart => "put_part",
            Self::Complete => "complete",
        }
    }

    fn writes(self) -> bool {
        matches!(self, Self::Create | Self::Put | Self::Complete)
    }
}

/// One thing that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Applied; the answer is lost.
    Lost,
    /// Applied; the answer is 500.
    Failed,
    /// Not applied; no answer, so that the client cannot know.
    Dropped,
    /// Not applied; the connection is refused.
    Refused,
    /// A write is answered 409 and not applied. Other operations are refused.
    Conflict,
    /// A create overwrites what is there and is answered as new.
    ConditionIgnored,
    /// A write is given up without answer and lands this much later. Other operations are dropped.
    Stall(Duration),
    /// A listing shows what was there this long ago.
    StaleList(Duration),
    /// A bit of the written object is flipped.
    BitRot,
    /// A write finds no space.
    NoSpace,
}

/// How often things go wrong, each a probability per operation that it applies to, and how long requests take.
#[derive(Clone, Debug, PartialEq)]
pub struct Faults {
    /// [`Fault::Lost`], all but listings.
    pub lost: f64,
    /// [`Fault::Failed`], all but listings.
    pub failed: f64,
    /// [`Fault::Dropped`].
    pub dropped: f64,
    /// [`Fault::Refused`].
    pub refused: f64,
    /// [`Fault::Conflict`], creates.
    pub conflict: f64,
    /// [`Fault::ConditionIgnored`], creates. No protocol survives this; the probe finds it.
    pub condition_ignored: f64,
    /// [`Fault::Stall`], creates and puts.
    pub stall: f64,
    /// The longest stall.
    pub stall_up_to: Duration,
    /// [`Fault::StaleList`], listings.
    pub stale_list: f64,
    /// The age of a stale listing.
    pub stale_by: Duration,
    /// [`Fault::BitRot`], creates, puts and completes.
    pub bit_rot: f64,
    /// [`Fault::NoSpace`], creates and puts.
    pub no_space: f64,
    /// The shortest way of a request, and of an answer.
    pub latency_from: Duration,
    /// The longest.
    pub latency_to: Duration,
}

impl Default for Faults {
    /// None, and no latency.
    fn default() -> Self {
        Self {
            lost: 0.0,
            failed: 0.0,
            dropped: 0.0,
            refused: 0.0,
            conflict: 0.0,
            condition_ignored: 0.0,
            stall: 0.0,
            stall_up_to: Duration::from_secs(30),
            stale_list: 0.0,
            stale_by: Duration::from_secs(2),
            bit_rot: 0.0,
            no_space: 0.0,
            latency_from: Duration::ZERO,
            latency_to: Duration::ZERO,
        }
    }
}

impl Faults {
    /// What a store that keeps its contract may do on a bad day, each with probability `p`: everything but ignored
    /// conditions, stale listings and bit rot.
    pub fn within_contract(p: f64) -> Self {
        Self {
            lost: p,
            failed: p,
            dropped: p,
            refused: p,
            conflict: p,
            stall: p,
            no_space: p,
            latency_from: Duration::from_millis(1),
            latency_to: Duration::from_millis(20),
            ..Self::default()
        }
    }
}

/// What becomes of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Fine,
    CutOff,
    Fault(Fault),
}

impl Outcome {
    /// Why it has no effect, for operations that are no conditional writes.
    pub(super) fn never_arrives(self) -> Option<&'static str> {
        match self {
            Self::CutOff | Self::Fault(Fault::Refused | Fault::Conflict) => Some("connection refused"),
            Self::Fault(Fault::Dropped | Fault::Stall(_)) => Some("no answer in time"),
            _ => None,
        }
    }

    pub(super) fn answer_is_lost(self) -> Option<&'static str> {
        match self {
            Self::Fault(Fault::Lost) => Some("the connection was lost"),
            Self::Fault(Fault::Failed) => Some("500 InternalError"),
            _ => None,
        }
    }
}

/// One client's faults and what is left of its scripts.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) faults: Faults,
    pub(super) scripts: Vec<(Operation, String, Fault)>,
    pub(super) cut_off: bool,
    pub(super) counts: BTreeMap<Operation, u64>,
    state: u64,
}

impl Client {
    pub(super) fn new(seed: u64, faults: Faults) -> Self {
        Self { faults, scripts: Vec::new(), cut_off: false, counts: BTreeMap::new(), state: seed }
    }

    /// SplitMix64 (Steele, Lea, Flood 2014).
    pub(super) fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn latency(&mut self) -> Duration {
        let (from, to) = (self.faults.latency_from, self.faults.latency_to);
        let spread = (to.saturating_sub(from).as_nanos() as u64).saturating_add(1);
        if to.is_zero() { from } else { from + Duration::from_nanos(self.random() % spread) }
    }

    /// What becomes of the next operation, and how long it is on its way.
    pub(super) fn draw(&mut self, operation: Operation, key: &str) -> (Outcome, Duration) {
        *self.counts.entry(operation).or_default() += 1;
        let latency = self.latency();
        if self.cut_off {
            return (Outcome::CutOff, latency);
        }
        let scripted = self.scripts.iter().position(|(o, prefix, _)| *o == operation && key.starts_with(prefix));
        if let Some(at) = scripted {
            return (Outcome::Fault(self.scripts.remove(at).2), latency);
        }
        let (roll, extra) = (self.random(), self.random());
        let stall = Fault::Stall(Duration::from_nanos(extra % (self.faults.stall_up_to.as_nanos() as u64).max(1)));
        let f = &self.faults;
        let (writes, creates) = (operation.writes(), operation == Operation::Create);
        let stalls = creates || operation == Operation::Put;
        let lists = operation == Operation::List;
        let applicable = [
            (f.lost, Fault::Lost, !lists),
            (f.failed, Fault::Failed, !lists),
            (f.dropped, Fault::Dropped, true),
            (f.refused, Fault::Refused, true),
            (f.conflict, Fault::Conflict, creates),
            (f.condition_ignored, Fault::ConditionIgnored, creates),
            (f.stall, stall, stalls),
            (f.stale_list, Fault::StaleList(f.stale_by), lists),
            (f.bit_rot, Fault::BitRot, writes),
            (f.no_space, Fault::NoSpace, stalls),
        ];
        // 53 bits: a double holds them exactly.
        let mut left = (roll >> 11) as f64 / (1_u64 << 53) as f64;
        for (probability, fault, applies) in applicable {
            if applies && left < probability {
                return (Outcome::Fault(fault), latency);
            }
            if applies {
                left -= probability;
            }
        }
        (Outcome::Fine, latency)
    }
}
