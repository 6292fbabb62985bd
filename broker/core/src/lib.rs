//! The broker's state machines: no I/O, no clock, no async.
//!
//! [`Broker`] takes an [`Input`] and the time, changes its state and says which [`Effect`]s must follow; the shell (the server, or
//! the simulator) carries them out and brings their results back as further inputs. Everything that decides about durability,
//! order, fencing and offsets happens here, so that a simulator can run a cluster in one thread.

#![warn(missing_docs)]

mod interface;

pub use interface::{
    AppendError, Appended, Broker, CommitOutcome, Done, Effect, Identity, Input, Now, OpId, OperationError, Phase,
    Reply, Settings, Status, StopReason, Ticket, TopicOperation,
};
