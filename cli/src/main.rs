//! The `refstream` command: thin, every command in a file of its own below `command`.

// Both panic where nobody can be told: `output` has what does not.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod children;
mod command;
mod compactor;
mod config;
mod deployment;
mod exit;
mod json;
mod output;
mod stores;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use exit::{Exit, Failure};
use output::Format;
use std::{path::PathBuf, process::ExitCode};

/// Payloads go straight to storage; only references go through the brokers.
#[derive(Debug, Parser)]
#[command(name = "refstream", version, propagate_version = true, max_term_width = 120)]
struct Arguments {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// Flags that every command has.
#[derive(Clone, Debug, clap::Args)]
struct Global {
    /// The broker, for example http://127.0.0.1:7400, or several, separated by commas [env: REFSTREAM_ENDPOINT]
    #[arg(long, global = true, value_name = "URL")]
    endpoint: Option<String>,
    /// How long to try to reach the broker, for example 30s [env: REFSTREAM_TIMEOUT]
    #[arg(long, global = true, value_name = "DURATION")]
    timeout: Option<String>,
    /// The token that the broker asks for; other users of this machine can see flags, so better [env: REFSTREAM_TOKEN]
    #[arg(long, global = true, value_name = "TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// How stores are reached: with credentials of one's own, by grants of the broker, or by grants where there are no credentials
    /// [env: REFSTREAM_STORE_ACCESS] [default: auto]
    #[arg(long, global = true, value_name = "HOW", value_parser = ["auto", "own", "grants"])]
    store_access: Option<String>,
    /// Configuration file (TOML) [env: REFSTREAM_CONFIG] [default: refstream.toml here, then ~/.config/refstream/config.toml]
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// How results are printed
    #[arg(long, global = true, value_enum, default_value_t = Format::Table)]
    output: Format,
    /// Say more on stderr; twice for all that the protocol does
    #[arg(long, short, global = true, action = clap::ArgAction::Count)]
    verbose: u8,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(command::demo::Arguments),
    Up(command::up::Arguments),
    Broker(command::broker::Arguments),
    #[command(subcommand)]
    Topic(command::topic::Arguments),
    Put(command::put::Arguments),
    Backfill(command::backfill::Arguments),
    #[command(subcommand)]
    Job(command::job::Arguments),
    Tail(command::tail::Arguments),
    Get(command::get::Arguments),
    Seal(command::seal::Arguments),
    Compact(command::compact::Arguments),
    Segments(command::segments::Arguments),
    Verify(command::verify::Arguments),
    #[command(subcommand)]
    Config(command::config::Arguments),
    Token(command::token::Arguments),
}

async fn run(arguments: Arguments) -> Result<(), Failure> {
    let global = arguments.global;
    match arguments.command {
        Command::Demo(arguments) => command::demo::run(&global, arguments).await,
        Command::Up(arguments) => Box::pin(command::up::run(&global, arguments)).await,
        Command::Broker(arguments) => command::broker::run(&global, arguments).await,
        Command::Topic(arguments) => command::topic::run(&global, arguments).await,
        Command::Put(arguments) => command::put::run(&global, arguments).await,
        Command::Backfill(arguments) => command::backfill::run(&global, arguments).await,
        Command::Job(arguments) => command::job::run(&global, arguments).await,
        Command::Tail(arguments) => command::tail::run(&global, arguments).await,
        Command::Get(arguments) => command::get::run(&global, arguments).await,
        Command::Seal(arguments) => command::seal::run(&global, arguments).await,
        Command::Compact(arguments) => command::compact::run(&global, arguments).await,
        Command::Segments(arguments) => command::segments::run(&global, arguments).await,
        Command::Verify(arguments) => command::verify::run(&global, arguments).await,
        Command::Config(arguments) => command::config::run(&global, arguments),
        Command::Token(arguments) => command::token::run(&global, &arguments),
    }
}

fn start_log(verbose: u8) {
    let level = match verbose {
        0 => "warn",
        1 => "info",
        _ => "debug",
    };
    // That there are no credentials is no trouble where there are grants; where it is one, the error says so.
    let filter = tracing_subscriber::EnvFilter::try_from_env("REFSTREAM_LOG")
        .unwrap_or_else(|_| format!("{level},h2=warn,hyper=warn,tonic=warn,aws=error,s3s=off").into());
    let colours = std::io::IsTerminal::is_terminal(&std::io::stderr());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(colours)
        .with_writer(std::io::stderr)
        // It would be said on stderr, which is where it could not be written.
        .log_internal_errors(false)
        .init();
}

/// Raises the number of files that the process may open as far as it is allowed to: each connection takes one, and the usual limit of 1,024
/// is meant for programs that wait with `select`.
fn allow_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    // Where it cannot be raised, it stays.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

fn main() -> ExitCode {
    let matches = match Arguments::command().try_get_matches() {
        Ok(matches) => matches,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { Exit::Usage.into() } else { ExitCode::SUCCESS };
        }
    };
    let arguments = match Arguments::from_arg_matches(&matches) {
        Ok(arguments) => arguments,
        Err(error) => error.exit(),
    };
    start_log(arguments.global.verbose);
    allow_open_files();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            output::notice(format_args!("refstream: cannot start threads: {error}"));
            return Exit::Failed.into();
        }
    };
    // Long-running commands listen to signals themselves and shut down in order; for all others this ends the process.
    let handles_signals = matches!(arguments.command, Command::Up(_) | Command::Broker(_) | Command::Demo(_));
    let result = runtime.block_on(async {
        if handles_signals {
            return Box::pin(run(arguments)).await;
        }
        tokio::select! {
            result = Box::pin(run(arguments)) => result,
            _ = tokio::signal::ctrl_c() => Err(Failure::interrupted()),
        }
    });
    runtime.shutdown_background();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::notice(format_args!("refstream: {}", failure.text()));
            failure.exit().into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn every_command_has_an_example() {
        fn check(command: &clap::Command) {
            if command.has_subcommands() {
                command.get_subcommands().filter(|c| c.get_name() != "help").for_each(check);
            } else {
                let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
                assert!(help.contains("refstream "), "{} has no example", command.get_name());
            }
        }
        check(&Arguments::command());
    }
}
