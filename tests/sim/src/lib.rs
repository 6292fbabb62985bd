//! Deterministic simulation of the broker core against a misbehaving store.
//!
//! One thread, simulated time. Real cores ([`refstream_core::Broker`]) run the real chains over a store in memory that loses
//! answers, lets creates land late, refuses, stalls and lists the past; processes crash, pause for longer than the grace of fenced
//! journals, come back as zombies, start beside each other, lose the store, and have clocks that jump. Producers send again what
//! was not acked. In the end everything is calm, one broker drains, and what the store holds is read back by the offline reader
//! and compared with what was promised (`history`).
//!
//! A seed decides everything. `Mutation`s break one rule of the protocol each, to prove that the simulation would notice.

mod executor;
mod history;
mod observer;
mod plan;
mod producer;
mod shell;
mod world;

pub use plan::Coincidence;
pub use refstream_core::Mutation;
pub use world::{Options, Report, run};
