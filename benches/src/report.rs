//! The table and the conditions it was measured under.

use crate::{Outcome, Plan};
use comfy_table::{Table, presets};
use serde::Serialize;
use std::{error::Error, io::Write as _};

/// How to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// For people.
    Table,
    /// For documents.
    Markdown,
    /// For programs.
    Json,
}

/// One line of the table.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    /// What was measured.
    pub(crate) figure: String,
    /// What came out.
    pub(crate) value: String,
    /// What was hoped for; empty where the row only informs.
    pub(crate) target: String,
    /// Whether it was reached.
    pub(crate) met: Option<bool>,
    /// The numbers behind it.
    pub(crate) details: String,
}

impl Row {
    /// A figure with a target that `value` has to reach from below.
    pub(crate) fn at_least(figure: &str, value: f64, target: f64, details: String) -> Self {
        Self {
            figure: figure.into(),
            value: number(value),
            target: format!(">= {}", number(target)),
            met: Some(value >= target),
            details,
        }
    }
    /// A figure with a target that `value` must not exceed.
    pub(crate) fn at_most(figure: &str, value: f64, target: f64, unit: &str, details: String) -> Self {
        Self {
            figure: figure.into(),
            value: format!("{}{unit}", number(value)),
            target: format!("<= {}{unit}", number(target)),
            met: Some(value <= target),
            details,
        }
    }
    /// A figure without a target.
    pub(crate) fn only(figure: &str, value: String, details: String) -> Self {
        Self { figure: figure.into(), value, target: String::new(), met: None, details }
    }
    /// A figure that could not be measured.
    pub(crate) fn failed(figure: &str, error: &(dyn Error + Send + Sync)) -> Self {
        Self {
            figure: figure.into(),
            value: "not measured".into(),
            target: String::new(),
            met: None,
            details: error.to_string(),
        }
    }
    fn verdict(&self) -> &'static str {
        match self.met {
            Some(true) => "met",
            Some(false) => "missed",
            None => "",
        }
    }
    fn cells(&self) -> [&str; 5] {
        [&self.figure, &self.value, &self.target, self.verdict(), &self.details]
    }
}

/// As many digits as matter.
fn number(value: f64) -> String {
    if value.abs() >= 10_000.0 {
        let text = format!("{value:.0}");
        let digits = text.len();
        let mut grouped = String::new();
        for (i, c) in text.chars().enumerate() {
            if i > 0 && (digits - i) % 3 == 0 {
                grouped.push(',');
            }
            grouped.push(c);
        }
        grouped
    } else if value.abs() >= 100.0 {
        format!("{value:.0}")
    } else if value.abs() >= 10.0 {
        format!("{value:.1}")
    } else if value.abs() >= 0.1 {
        format!("{value:.2}")
    } else {
        format!("{value:.4}")
    }
}

/// Where it was measured.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Conditions {
    version: &'static str,
    build: &'static str,
    quick: bool,
    processor: String,
    cores: usize,
    load: String,
    kernel: String,
    file_system: String,
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

impl Conditions {
    pub(crate) fn read(plan: &Plan) -> Self {
        let unknown = || "unknown".to_owned();
        let processor = read("/proc/cpuinfo")
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(':').map(|(_, name)| name.trim().to_owned()))
            .unwrap_or_else(unknown);
        let load = read("/proc/loadavg").split_whitespace().next().map_or_else(unknown, str::to_owned);
        let kernel = read("/proc/sys/kernel/osrelease").trim().to_owned();
        Self {
            version: env!("CARGO_PKG_VERSION"),
            build: if cfg!(debug_assertions) { "debug: figures mean nothing" } else { "release" },
            quick: plan.quick,
            processor,
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            load,
            kernel,
            file_system: file_system(&plan.folder),
        }
    }

    fn lines(&self) -> Vec<String> {
        let quick = if self.quick { ", quick rounds" } else { "" };
        vec![
            format!("Refstream {}, {} build{quick}", self.version, self.build),
            format!("{} cores ({}), load at the start {}", self.cores, self.processor, self.load),
            format!("Linux {}, data on {}", self.kernel, self.file_system),
        ]
    }
}

/// The type of the file system that holds `folder`.
fn file_system(folder: &std::path::Path) -> String {
    let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    read("/proc/mounts")
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ');
            let (_, at, kind) = (fields.next()?, fields.next()?, fields.next()?);
            folder.starts_with(at).then(|| (at.len(), kind.to_owned()))
        })
        .max()
        .map_or_else(|| "an unknown file system".into(), |(_, kind)| kind)
}

const HEADINGS: [&str; 5] = ["figure", "measured", "target", "", "details"];

/// Prints conditions and rows to standard output.
pub(crate) fn print(format: Format, conditions: &Conditions, rows: &[Row]) -> Outcome<()> {
    let text = match format {
        Format::Table => {
            let mut table = Table::new();
            table.load_preset(presets::ASCII_MARKDOWN).set_header(HEADINGS);
            table.add_rows(rows.iter().map(Row::cells));
            format!("{}\n\n{table}\n", conditions.lines().join("\n"))
        }
        Format::Markdown => markdown(conditions, rows),
        Format::Json => {
            format!("{}\n", serde_json::json!({ "conditions": conditions, "figures": rows }))
        }
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(())
}

fn markdown(conditions: &Conditions, rows: &[Row]) -> String {
    let mut text: String = conditions.lines().iter().map(|line| format!("- {line}\n")).collect();
    text.push_str(&format!("\n| {} |\n|---|---|---|---|---|\n", HEADINGS.join(" | ")));
    for row in rows {
        text.push_str(&format!("| {} |\n", row.cells().map(|cell| cell.replace('|', "\\|")).join(" | ")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!(number(1_234_567.8), "1,234,568");
        assert_eq!(number(431.4), "431");
        assert_eq!(number(21.04), "21.0");
        assert_eq!(number(0.914), "0.91");
        assert_eq!(number(0.001_2), "0.0012");
    }

    #[test]
    fn a_row_is_one_line_of_markdown() {
        let row = Row::at_least("a | b", 0.95, 0.9, "x".into());
        let plan = Plan { quick: true, refstream: None, folder: std::env::temp_dir() };
        let text = markdown(&Conditions::read(&plan), &[row]);
        assert!(text.ends_with("| a \\| b | 0.95 | >= 0.90 | met | x |\n"), "{text}");
    }
}
