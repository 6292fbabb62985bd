//! The `refstream` command.
fn main() {}
