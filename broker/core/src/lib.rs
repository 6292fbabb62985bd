//! The broker's state machines: no I/O, no clock, no async.
//!
//! [`Broker`] takes an [`Input`] and the time, changes its state and says which [`Effect`]s must follow; the shell (the server, or
//! the simulator) carries them out and brings their results back as further inputs. Everything that decides about durability,
//! order, fencing and offsets happens here, so that a simulator can run a cluster in one thread. The same inputs at the same
//! times give the same effects.
//!
//! | module | concern |
//! |---|---|
//! | `broker` | one broker: dispatch of inputs and answers, its end, its wake-ups |
//! | `operations`, `walk` | what was asked of the store, repeated until it is answered |
//! | `startup` | taking an epoch, reading the log, joining |
//! | `members` | who else is there, who is presumed dead, who leads; following the log |
//! | `leading` | what the leader does: recovering the dead, giving segments to brokers |
//! | `arrivals` | segments that the log gave to us, until we begin with them |
//! | `recovery`, `tails` | where a dead journal ends and what it adds up to |
//! | `journal_writer` | slots of the own journal: window, contiguous commits, proof of not being fenced |
//! | `sequencer`, `lanes`, `requests` | from an append to its place and its answer |
//! | `segment`, `ledger`, `producers` | a segment's state |
//! | `sealing`, `topics`, `drain` | how segments end, how topics change, how a broker leaves |
//! | `confirm` | proof for answers that only a broker which is not fenced may give |
//! | `cluster_writer` | group commit to the cluster log |
//! | `upkeep` | ages, expiry, snapshots, freeing |

#![warn(missing_docs)]

mod arrivals;
mod broker;
mod cluster_writer;
mod confirm;
mod drain;
mod interface;
mod journal_writer;
mod lanes;
mod leading;
mod ledger;
mod members;
mod mutation;
mod operations;
mod producers;
mod recovery;
mod requests;
mod sealing;
mod segment;
mod sequencer;
mod startup;
mod tails;
mod topics;
mod turn;
mod upkeep;
mod walk;

pub use broker::Broker;
pub use interface::{
    AppendError, Appended, CommitOutcome, Done, Effect, Identity, Input, Now, OpId, OperationError, Phase, Reply,
    Settings, Status, StopReason, Ticket, TopicChange, TopicOperation,
};
pub use journal_writer::MAX_SLOTS_IN_FLIGHT;
#[cfg(feature = "mutations")]
pub use mutation::Mutation;
