//! One file per command.

pub(crate) mod backfill;
pub(crate) mod broker;
pub(crate) mod compact;
pub(crate) mod config;
pub(crate) mod demo;
pub(crate) mod get;
pub(crate) mod job;
pub(crate) mod put;
pub(crate) mod seal;
pub(crate) mod segments;
pub(crate) mod tail;
pub(crate) mod token;
pub(crate) mod topic;
pub(crate) mod up;
pub(crate) mod verify;
