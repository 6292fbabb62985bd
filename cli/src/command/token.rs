//! `refstream token`.

use crate::{
    Global,
    exit::Failure,
    output::{self, Format},
};
use refstream::stores::{Runtime as _, TokioRuntime};
use refstream_server::Tokens;
use serde_json::json;

/// Make a token: what a client shows to the broker, and the line by which the broker knows it
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  refstream token ana\n\nThe line goes into the broker's configuration file, which holds only a hash. The client gets the token by the variable\nREFSTREAM_TOKEN. It is shown once."
)]
pub(crate) struct Arguments {
    /// What the token is called in the broker's configuration and log
    name: String,
}

pub(crate) fn run(global: &Global, arguments: &Arguments) -> Result<(), Failure> {
    let name = &arguments.name;
    if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)) {
        return Err(Failure::usage(format!("the name {name:?} is refused: use letters, digits, - and _")));
    }
    let runtime = TokioRuntime::new();
    let token = format!("rst-{}{}", runtime.token(), runtime.token());
    let hash = Tokens::hash(&token);
    match global.output {
        Format::Table => {
            output::line(&format!("token, for the client: {token}"))?;
            output::line(&format!("\nfor the broker's configuration file:\n\n[auth.tokens]\n{name} = \"{hash}\""))
        }
        Format::Json | Format::Jsonl => {
            output::line(&json!({ "name": name, "token": token, "hash": hash }).to_string())
        }
    }
}
