//! Deterministic simulation of the broker core against a misbehaving store.
