//! `refstream config`.

use crate::{Global, config, exit::Failure, output};
use serde_json::json;

/// Show the configuration
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Arguments {
    /// Every setting, its value and where it came from: flag, environment, file or default
    #[command(after_help = "Example:\n  refstream config show --output json")]
    Show,
}

pub(crate) fn run(global: &Global, arguments: Arguments) -> Result<(), Failure> {
    let Arguments::Show = arguments;
    let rows: Vec<_> = config::load(global, Vec::new())?
        .origins()
        .into_iter()
        .map(|(setting, value, from)| json!({ "setting": setting, "value": value, "from": from }))
        .collect();
    output::rows(global.output, &["setting", "value", "from"], &rows)
}
