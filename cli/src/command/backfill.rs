//! `refstream backfill`.

mod telling;

pub(crate) use telling::{Told, with_progress};

use crate::{
    Global, config,
    exit::{Exit, Failure},
    output::{self, Format},
};
use refstream::{
    BackfillOptions, BackfillSummary, Client, JobOptions, MAX_CONCURRENCY, MAX_PACK_BELOW, UploadOptions,
    types::{Timestamp, TopicId, TopicName},
};
use serde_json::json;
use std::path::{Path, PathBuf};

/// Upload files in parallel and submit a reference for each; folders are walked; can be ended and run again at any moment
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  find . -newer mark -print0 | refstream backfill images - --null\n  refstream backfill logs bundle.tar --tar\n  refstream backfill images s3://bucket/photos/ --in-place\n  refstream backfill images ./photos --include '*.jpg' --exclude 'tmp/**'\n  refstream backfill images ./photos --dry-run\n  refstream backfill images ./photos --job photos --key '{1}/{stem}'\n\nThe record's source_name is the file's path relative to the folder given, its key the same or what --key makes of it. Symbolic links are not\nfollowed. Each file is remembered in a job: run the same command again, or refstream job resume, and it goes on where it was."
)]
pub(crate) struct Arguments {
    /// The topic
    topic: TopicName,
    /// Files and folders; - reads paths from standard input; with --tar archives, with --in-place prefixes like s3://bucket/prefix
    #[arg(required_unless_present_any = ["from_file", "manifest"])]
    paths: Vec<PathBuf>,
    /// Read paths from this file, one a line; may repeat
    #[arg(long, value_name = "FILE")]
    from_file: Vec<PathBuf>,
    /// Paths that are read end with a zero byte, as those of find -print0
    #[arg(long)]
    null: bool,
    /// The paths are tar archives: each is uploaded whole, and each member becomes a record that refers to its range
    #[arg(long, conflicts_with = "in_place")]
    tar: bool,
    /// The paths are prefixes in a configured store: their objects are attached where they are, no payload byte moves
    #[arg(long)]
    in_place: bool,
    /// Attach the objects of this list: .csv, .jsonl or .parquet with uri, and optionally size, checksum, key, etag, version; may repeat
    #[arg(long, value_name = "FILE")]
    manifest: Vec<PathBuf>,
    /// Only files whose relative path matches; may repeat
    #[arg(long, value_name = "GLOB")]
    include: Vec<String>,
    /// Not files whose relative path matches; may repeat
    #[arg(long, value_name = "GLOB")]
    exclude: Vec<String>,
    /// Not files that this file of .gitignore syntax names, relative to the folders given; may repeat
    #[arg(long, value_name = "FILE")]
    exclude_from: Vec<PathBuf>,
    /// Not files that .gitignore and .ignore files below the folders name
    #[arg(long)]
    gitignore: bool,
    /// What keys are made of: {path} {dir} {name} {stem} {ext} {1} {2} ... {-1} {-2} ...
    #[arg(long, value_name = "TEMPLATE")]
    key: Option<String>,
    /// List what would be done, do nothing
    #[arg(long)]
    dry_run: bool,
    /// The job that remembers what is done [default: made of the topic and the paths]
    #[arg(long, value_name = "NAME")]
    job: Option<String>,
    /// Only files of the job that failed before
    #[arg(long)]
    retry_failed: bool,
    /// Write failures to this file, one JSON document a line [default: NAME.failures.jsonl beside the job]
    #[arg(long, value_name = "FILE")]
    failures: Option<PathBuf>,
    /// Payloads up to this many bytes travel inside their record; at most the topic's inline_max
    #[arg(long, value_name = "BYTES", default_value_t = 0, value_parser = super::put::inline_max())]
    inline_max: u32,
    /// Payloads below this many bytes share packs, at most 1048576; 0: each is an object of its own
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(..=MAX_PACK_BELOW))]
    pack_below: Option<u64>,
    /// Requests to the store at once; auto: as many as bring more bytes
    #[arg(long, value_name = "N|auto", default_value = "8")]
    concurrency: Concurrency,
    /// Bytes a second to the store at most, for example 20M
    #[arg(long, value_name = "RATE", value_parser = rate)]
    bandwidth: Option<u64>,
    /// verify: read every object back once it is stored, and compare its checksum, before any record refers to it
    #[arg(long, value_enum, default_value_t = Checksum::Store)]
    checksum: Checksum,
    /// Store payloads as they are, never compressed
    #[arg(long)]
    no_compression: bool,
    /// An attribute of every record, may repeat
    #[arg(long, value_name = "NAME=VALUE")]
    attribute: Vec<String>,
    #[command(flatten)]
    jobs: JobFolder,
}

/// How many requests at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Concurrency {
    Auto,
    Fixed(usize),
}

impl std::str::FromStr for Concurrency {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.parse()) {
            ("auto", _) => Ok(Self::Auto),
            (_, Ok(requests)) if (1..=MAX_CONCURRENCY).contains(&requests) => Ok(Self::Fixed(requests)),
            _ => Err(format!("it is neither auto nor a number from 1 to {MAX_CONCURRENCY}")),
        }
    }
}

/// Who looks at the bytes that were stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Checksum {
    /// The store, as it takes them
    Store,
    /// This command too, by reading them back
    Verify,
}

/// `500K`, `20M`, `1G`, with or without B, iB or /s behind it: powers of 1024.
fn rate(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = match unit.trim().trim_end_matches("/s").trim_end_matches('B').trim_end_matches('i') {
        "" => 1_u64,
        "K" | "k" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        _ => return Err("it is no rate like 500K, 20M or 1.5G".into()),
    };
    match number.parse::<f64>() {
        Ok(number) if number > 0.0 && number * factor as f64 >= 1.0 => Ok((number * factor as f64) as u64),
        _ => Err("it is no rate like 500K, 20M or 1.5G".into()),
    }
}

/// Where jobs are.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct JobFolder {
    /// The folder of all jobs [default: ~/.local/state/refstream/jobs]
    #[arg(long, value_name = "FOLDER", env = "REFSTREAM_JOB_DIR", hide_env_values = true)]
    job_dir: Option<PathBuf>,
}

impl JobFolder {
    pub(crate) fn path(&self) -> Result<PathBuf, Failure> {
        if let Some(folder) = &self.job_dir {
            return Ok(folder.clone());
        }
        let from = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let state = from("XDG_STATE_HOME").or_else(|| Some(from("HOME")?.join(".local/state")));
        let none = || Failure::usage("there is no home folder to keep jobs in; say where with --job-dir");
        Ok(state.ok_or_else(none)?.join("refstream/jobs"))
    }
}

/// A name that is the same whenever the same paths are backfilled in the same way into the same topic, whichever broker is asked; a topic
/// that is deleted and made again is another one. `made`: the topic's id, and when it was created.
fn default_name(topic: &TopicName, made: Option<(TopicId, Timestamp)>, way: &str, sources: &[PathBuf]) -> String {
    use std::os::unix::ffi::OsStrExt as _;
    let mut hasher = blake3::Hasher::new();
    if let Some((id, at)) = made {
        hasher.update(&id.0.to_le_bytes()).update(&at.as_micros().to_le_bytes());
    }
    hasher.update(b"\0").update(way.as_bytes());
    for source in sources {
        let source = std::path::absolute(source).unwrap_or_else(|_| source.clone());
        hasher.update(b"\0").update(source.components().collect::<PathBuf>().as_os_str().as_bytes());
    }
    let topic: String = topic.as_str().trim_start_matches('.').chars().take(80).collect();
    format!("{topic}-{}", &hasher.finalize().to_hex()[..8])
}

pub(crate) async fn run(global: &Global, arguments: Arguments) -> Result<(), Failure> {
    let files = arguments.paths.iter().filter(|path| !arguments.in_place && path.as_os_str() != "-");
    let read = arguments.from_file.iter().chain(&arguments.manifest).chain(&arguments.exclude_from);
    for path in files.chain(read) {
        if let Err(error) = std::fs::symlink_metadata(path) {
            return Err(Failure::usage(format!("cannot read {}: {error}", path.display())));
        }
    }
    for path in arguments.paths.iter().filter(|path| !arguments.in_place && !arguments.tar && path.as_os_str() != "-") {
        if std::fs::metadata(path).is_ok_and(|meta| !meta.is_file() && !meta.is_dir()) {
            output::notice(format_args!(
                "refstream: {}: skipped: it is a device, FIFO or socket; only files and folders are backfilled",
                path.display()
            ));
        }
    }
    let listed = !arguments.from_file.is_empty() || arguments.paths.iter().any(|path| path.as_os_str() == "-");
    if listed && (arguments.tar || arguments.in_place) {
        return Err(Failure::usage(
            "--tar and --in-place take their archives or prefixes from the command line, not from a list of files",
        ));
    }
    let way = match (arguments.tar, arguments.in_place, !arguments.manifest.is_empty(), listed) {
        (true, ..) => "archives",
        (_, true, ..) => "prefixes",
        (_, _, true, _) => "manifests",
        (.., true) => "lists",
        _ => "paths",
    };
    let given: Vec<_> =
        arguments.paths.iter().chain(&arguments.from_file).chain(&arguments.manifest).cloned().collect();
    let client = config::connect(global).await?;
    let name = match arguments.job {
        Some(name) => name,
        None => {
            let made = match client.topic_settings(&arguments.topic).await {
                Ok(topic) => Some((topic.id, topic.created_at)),
                // What would be done needs no topic; where there is one, its job knows what is done.
                Err(_) if arguments.dry_run => None,
                Err(error) => return Err(error.into()),
            };
            default_name(&arguments.topic, made, way, &given)
        }
    };
    let (stdin, paths): (Vec<_>, Vec<_>) = arguments.paths.into_iter().partition(|path| path.as_os_str() == "-");
    let all_absolute = |paths: Vec<PathBuf>| paths.iter().map(std::path::absolute).collect::<Result<Vec<_>, _>>();
    let mut lists = all_absolute(arguments.from_file)?;
    lists.extend(stdin.into_iter().take(1));
    let (mut folders, mut archives, mut in_place) = (Vec::new(), Vec::new(), Vec::new());
    match (arguments.tar, arguments.in_place) {
        (true, _) => archives = all_absolute(paths)?,
        (_, true) => {
            for path in paths {
                let text = path.into_os_string().into_string();
                in_place.push(text.map_err(|_| Failure::usage("a prefix is no UTF-8"))?);
            }
        }
        _ => folders = all_absolute(paths)?,
    }
    let defaults = UploadOptions::default();
    let options = BackfillOptions {
        paths: folders,
        lists,
        null_separated: arguments.null,
        archives,
        in_place,
        manifests: all_absolute(arguments.manifest)?,
        include: arguments.include,
        exclude: arguments.exclude,
        exclude_from: all_absolute(arguments.exclude_from)?,
        gitignore: arguments.gitignore,
        key: arguments.key,
        dry_run: arguments.dry_run,
        inline_max: arguments.inline_max,
        upload: UploadOptions {
            pack_below: arguments.pack_below.unwrap_or(defaults.pack_below),
            concurrency: match arguments.concurrency {
                Concurrency::Fixed(requests) => requests,
                Concurrency::Auto => defaults.concurrency,
            },
            adaptive: arguments.concurrency == Concurrency::Auto,
            bandwidth: arguments.bandwidth,
            verify: arguments.checksum == Checksum::Verify,
            compression: if arguments.no_compression { None } else { defaults.compression },
            ..defaults
        },
        attributes: super::put::attributes(&arguments.attribute)?,
        job: Some(JobOptions { folder: arguments.jobs.path()?, name }),
        retry_failed: arguments.retry_failed,
        ..BackfillOptions::default()
    };
    perform(global, &client, &arguments.topic, options, arguments.failures.as_deref()).await
}

/// Runs a backfill as a job and says all there is to say.
pub(crate) async fn perform(
    global: &Global,
    client: &Client,
    topic: &TopicName,
    options: BackfillOptions,
    failures: Option<&Path>,
) -> Result<(), Failure> {
    let dry_run = options.dry_run;
    let job = options.job.clone();
    if let Some(failures) = failures {
        telling::check_writable(failures)?;
    }
    let failures = failures.map(Path::to_owned).or_else(|| {
        let job = job.as_ref()?;
        Some(job.folder.join(format!("{}.failures.jsonl", job.name)))
    });
    let mut told = Told::new(global.output, failures);
    let summary = with_progress(client, topic, options, |event| told.tell(event)).await?;
    told.finish()?;
    say(global.output, topic, dry_run, &summary)?;
    if summary.files_failed > 0 {
        let listed = told.failures_file().map_or_else(String::new, |file| format!(" and in {}", file.display()));
        return Err(Failure::new(
            Exit::Failed,
            format!("{} files or folders were not backfilled; each is listed above{listed}", summary.files_failed),
        ));
    }
    Ok(())
}

fn say(format: Format, topic: &TopicName, dry_run: bool, summary: &BackfillSummary) -> Result<(), Failure> {
    if format == Format::Table {
        let rate = |amount: u64| if summary.seconds > 0.0 { amount as f64 / summary.seconds } else { 0.0 };
        let count = |count: u64, what: &str| if count == 0 { String::new() } else { format!("; {count} {what}") };
        return output::line(&format!(
            "{} {} of {} files, {} ({} stored in {} objects) in {:.1} s: {:.0} files/s, {}/s{}{}{}{}",
            if dry_run { "would backfill" } else { "backfilled" },
            summary.files_done,
            summary.files_found,
            output::bytes(summary.bytes_done),
            output::bytes(summary.bytes_stored),
            summary.objects,
            summary.seconds,
            rate(summary.files_done),
            output::bytes(rate(summary.bytes_done) as u64),
            count(summary.files_skipped, "that are no regular files were skipped"),
            count(summary.files_already, "were done before"),
            count(summary.files_changed, "changed since they were done"),
            count(summary.files_failed, "files or folders failed"),
        ));
    }
    let mut value = serde_json::to_value(summary).map_err(Failure::failed)?;
    value["topic"] = json!(topic);
    value["dry_run"] = json!(dry_run);
    if format == Format::Jsonl {
        value["event"] = json!("summary");
    }
    output::one(format, &value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_units() {
        assert_eq!(rate("1000"), Ok(1_000));
        assert_eq!(rate("1.5K"), Ok(1_536));
        assert_eq!(rate("20MiB/s"), Ok(20 << 20));
        assert_eq!(rate("2G"), Ok(2 << 30));
        for wrong in ["", "0", "-1", "M", "5X", "1e3"] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_job_is_named_by_topic_and_paths() {
        let topic: TopicName = "images".parse().unwrap();
        let name = |at: i64, path: &str| {
            let made = Some((TopicId(1), Timestamp::from_micros(at)));
            default_name(&topic, made, "paths", &[PathBuf::from(path)])
        };
        assert_eq!(name(5, "/x/y"), name(5, "/x/./y/"));
        assert_ne!(name(5, "/x/y"), name(5, "/x/z"));
        assert_ne!(name(5, "/x/y"), name(6, "/x/y"));
        assert!(name(5, "/x").starts_with("images-"));
    }
}
