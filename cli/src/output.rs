//! How results are printed: tables for people, JSON for programs; progress on stderr only when it is a terminal.

use crate::exit::Failure;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::Value;
use std::io::{IsTerminal as _, Write as _};

/// How results are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// For people.
    Table,
    /// One JSON document.
    Json,
    /// One JSON document a line.
    Jsonl,
}

/// Writes one line to stdout; a closed pipe ends the command quietly, as with other Unix tools.
pub(crate) fn line(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.write_all(b"\n")) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => Err(Failure::failed(format!("cannot write to stdout: {error}"))),
    }
}

/// Writes one line to stderr. That nobody can read it is no reason to stop what the command does.
pub(crate) fn notice(text: std::fmt::Arguments<'_>) {
    let _ = std::io::stderr().lock().write_all(format!("{text}\n").as_bytes());
}

/// Prints rows: as a table of the named columns (keys of the objects), as one array, or one object a line.
pub(crate) fn rows(format: Format, columns: &[&str], rows: &[Value]) -> Result<(), Failure> {
    match format {
        Format::Json => line(&pretty(&Value::Array(rows.to_vec()))),
        Format::Jsonl => rows.iter().try_for_each(|row| line(&row.to_string())),
        Format::Table => {
            let mut table = comfy_table::Table::new();
            table.load_preset(comfy_table::presets::NOTHING).set_header(columns.iter().map(|c| c.to_uppercase()));
            for row in rows {
                table.add_row(columns.iter().map(|column| text(&row[*column])));
            }
            table.lines().try_for_each(|text| line(text.trim_end()))
        }
    }
}

/// Prints one result: as `name  value` lines, or as JSON.
pub(crate) fn one(format: Format, value: &Value) -> Result<(), Failure> {
    match (format, value) {
        (Format::Table, Value::Object(fields)) => {
            let width = fields.keys().map(String::len).max().unwrap_or(0);
            fields
                .iter()
                .filter(|(_, value)| !value.is_null())
                .try_for_each(|(name, value)| line(&format!("{name:width$}  {}", text(value))))
        }
        (Format::Json, value) => line(&pretty(value)),
        (_, value) => line(&value.to_string()),
    }
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_else(|_| value.to_string())
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".into(),
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(text).collect::<Vec<_>>().join(" "),
        other => other.to_string(),
    }
}

/// `1.5 GiB`.
pub(crate) fn bytes(count: u64) -> String {
    indicatif::BinaryBytes(count).to_string()
}

/// A progress line on stderr; silent unless that is a terminal.
pub(crate) fn progress(template: &'static str) -> ProgressBar {
    let bar = ProgressBar::new(0);
    if !std::io::stderr().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.enable_steady_tick(std::time::Duration::from_millis(200));
    bar
}
