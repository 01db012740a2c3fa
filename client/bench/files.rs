//! The file tools, beside ripgrep and git on the same tree and beside a call that does nothing.

use std::{
    fs,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use clap::Args;
use jig::{
    api::v1::{ListFilesRequest, ReadFileRequest, SearchRequest},
    client::Client,
};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::{
    daemon::Daemon,
    machine::Machine,
    patch::Patched,
    statistics::{Bound, Samples, Target, Unit},
    table,
};
use crate::{connection, failure::Failure, global::Global, output};

/// Directories of the tree, and files in each: more than the 20,000 that the design speaks of.
const DIRECTORIES: usize = 2000;
const FILES: usize = 12;
/// Lines of each file, of about 40 bytes.
const LINES: usize = 100;
const _: () = assert!(DIRECTORIES * FILES >= 20_000, "the design's large tree");
/// One file in so many holds what is searched for.
const RARITY: usize = 500;
/// What is searched for.
const NEEDLE: &str = "needle";
/// The file that is read, and its size.
const READ: &str = "ten-kibibytes";
const READ_BYTES: usize = 10 * 1024;
/// Small calls for each of the large ones.
const SMALL: usize = 20;

/// Times of the file tools, beside those of ripgrep (`rg`) on the same tree.
///
/// Starts a daemon of its own on a tree of 24,000 files that it makes. With --address, that daemon
/// is measured; --tree then says where its workspace is, which should hold a large tree.
#[derive(Debug, Args)]
pub(crate) struct FilesArgs {
    /// Turns of each of the large calls.
    #[arg(long, default_value = "20", value_name = "N")]
    count: NonZeroUsize,
    /// Workspace of the daemon that --address names.
    #[arg(long, value_name = "DIR")]
    tree: Option<PathBuf>,
    /// What to search for.
    #[arg(long, default_value = NEEDLE, value_name = "TEXT")]
    query: String,
}

/// Something of which the time is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Search,
    RipgrepSearch,
    List,
    RipgrepList,
    Patch,
    GitApply,
    Read,
    Check,
}

impl Kind {
    fn label(self) -> &'static str {
        match self {
            Self::Search => "jig search",
            Self::RipgrepSearch => "rg --json --sort path",
            Self::List => "jig list_files",
            Self::RipgrepList => "rg --files --sort path",
            Self::Patch => "jig apply_patch, 100 files",
            Self::GitApply => "git apply",
            Self::Read => "jig read_file, 10 KiB",
            Self::Check => "health check",
        }
    }

    fn is_ripgrep(self) -> bool {
        matches!(self, Self::RipgrepSearch | Self::RipgrepList)
    }
}

/// What is promised: a tool, what it is compared with, and the most times its time.
const PROMISES: [(&str, Kind, Kind, f64); 4] = [
    ("apply_patch / git apply", Kind::Patch, Kind::GitApply, 1.0),
    ("search / rg --json", Kind::Search, Kind::RipgrepSearch, 1.0),
    ("list_files / rg --files", Kind::List, Kind::RipgrepList, 1.0),
    ("read_file / health check", Kind::Read, Kind::Check, 1.5),
];

/// Measures and prints.
pub(super) fn bench_files(global: &Global, args: &FilesArgs) -> Result<(), Failure> {
    let own;
    let (address, tree) = match (global.address(), &args.tree) {
        (Some(address), Some(tree)) => (address, tree.clone()),
        (Some(_), None) => {
            let problem = "--tree must say where the workspace of the daemon at --address is";
            return Err(Failure::Usage(problem.to_owned()));
        }
        (None, _) => {
            own = Daemon::start()?;
            plant(&own.workspace()).map_err(Failure::system)?;
            (own.address(), own.workspace())
        }
    };
    fs::write(tree.join(READ), "x".repeat(READ_BYTES)).map_err(Failure::system)?;
    let runtime = connection::runtime()?;
    let client = runtime.block_on(Client::connect(address, global.options()))?;
    let by_daemon = Patched::plant(&tree, "patched").map_err(Failure::system)?;
    let by_git = Patched::plant(&tree, "patched-by-git").map_err(Failure::system)?;
    let bench =
        Bench { runtime: &runtime, client, tree: &tree, query: &args.query, by_daemon, by_git };
    let mut kinds = vec![
        Kind::Search,
        Kind::RipgrepSearch,
        Kind::List,
        Kind::RipgrepList,
        Kind::Patch,
        Kind::GitApply,
        Kind::Read,
        Kind::Check,
    ];
    if let Err(reason) = bench.once(Kind::GitApply) {
        output::note(&format!("without git: {reason:?}"));
        kinds.retain(|kind| *kind != Kind::GitApply);
    }
    if let Err(reason) = bench.once(Kind::RipgrepList) {
        output::note(&format!("without ripgrep: {reason:?}"));
        kinds.retain(|kind| !kind.is_ripgrep());
    }
    let files = bench.once(Kind::List)?;
    let measured = bench.measure(&kinds, args.count.get())?;
    if global.json {
        output::json(&to_json(files, &measured))
    } else {
        output::stdout(to_text(files, &measured).as_bytes())
    }
}

/// Where and how it is measured.
#[derive(Debug)]
struct Bench<'a> {
    runtime: &'a Runtime,
    client: Client,
    tree: &'a Path,
    query: &'a str,
    by_daemon: Patched,
    by_git: Patched,
}

impl Bench<'_> {
    /// All kinds in turns, so that what else happens on the machine hits all alike.
    fn measure(&self, kinds: &[Kind], count: usize) -> Result<Vec<(Kind, Samples)>, Failure> {
        let mut all: Vec<(Kind, Vec<Duration>)> =
            kinds.iter().map(|&kind| (kind, Vec::new())).collect();
        for (kind, _) in &all {
            self.once(*kind)?;
        }
        for _ in 0..count {
            for (kind, times) in &mut all {
                let small = matches!(kind, Kind::Read | Kind::Check);
                for _ in 0..if small { SMALL } else { 1 } {
                    let start = Instant::now();
                    self.once(*kind)?;
                    times.push(start.elapsed());
                }
            }
        }
        let samples = all.into_iter();
        Ok(samples.map(|(kind, times)| (kind, Samples::new(times))).collect())
    }

    /// Answers how many files there are, where that is what is asked.
    fn once(&self, kind: Kind) -> Result<usize, Failure> {
        match kind {
            Kind::RipgrepSearch => self.ripgrep(&[
                "--json",
                "--fixed-strings",
                "--ignore-case",
                "--context=2",
                "-e",
                self.query,
            ]),
            Kind::RipgrepList => self.ripgrep(&["--files", "--hidden", "--no-ignore"]),
            Kind::Search => self.runtime.block_on(async {
                let request =
                    SearchRequest { query: self.query.to_owned(), ..SearchRequest::default() };
                self.client.search(request).await?;
                Ok(0)
            }),
            Kind::List => self.runtime.block_on(async {
                let mut pages = self.client.list_files_by_page(ListFilesRequest {
                    max_results: Some(10_000),
                    ..ListFilesRequest::default()
                });
                let mut files = 0;
                while let Some(page) = pages.next().await? {
                    files += page.files.len();
                }
                Ok(files)
            }),
            Kind::Patch => {
                self.runtime.block_on(self.by_daemon.by_daemon(&self.client)).map(|()| 0)
            }
            Kind::GitApply => self.by_git.by_git().map(|()| 0),
            Kind::Read => self.runtime.block_on(async {
                let request =
                    ReadFileRequest { path: READ.to_owned(), ..ReadFileRequest::default() };
                self.client.read_file(request).await?;
                Ok(0)
            }),
            Kind::Check => self.runtime.block_on(async {
                self.client.check_health("").await?;
                Ok(0)
            }),
        }
    }

    /// Its output is read, as whoever asked would.
    fn ripgrep(&self, arguments: &[&str]) -> Result<usize, Failure> {
        #[expect(
            clippy::disallowed_methods,
            reason = "a program to compare with, not a command of a caller"
        )]
        let mut command = Command::new("rg");
        command
            .args(["--no-config", "--sort=path"])
            .args(arguments)
            .arg("./")
            .current_dir(self.tree)
            .stdin(Stdio::null());
        let output = command.output().map_err(Failure::system)?;
        // 1: it has found nothing.
        if !matches!(output.status.code(), Some(0 | 1)) {
            return Err(Failure::System(String::from_utf8_lossy(&output.stderr).into_owned()));
        }
        Ok(0)
    }
}

/// Makes the tree: text of words that come again, as in programs.
fn plant(root: &Path) -> std::io::Result<()> {
    const WORDS: [&str; 8] =
        ["return", "value", "request", "the", "need", "Option", "self", "length"];
    let mut state = 1_u64;
    for directory in 0..DIRECTORIES {
        let path = root.join(format!("module-{}/part-{directory}", directory % 50));
        fs::create_dir_all(&path)?;
        for file in 0..FILES {
            let mut text = String::new();
            for _ in 0..LINES {
                for _ in 0..6 {
                    // Knuth's generator: the same text on every machine.
                    state = state
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    let word = WORDS.iter().cycle().nth((state >> 61) as usize);
                    text.push_str(word.copied().unwrap_or_default());
                    text.push(' ');
                }
                text.push('\n');
            }
            if (directory * FILES + file).is_multiple_of(RARITY) {
                text.push_str(NEEDLE);
            }
            fs::write(path.join(format!("file-{file}.txt")), text)?;
        }
    }
    Ok(())
}

fn targets(measured: &[(Kind, Samples)]) -> Vec<Target> {
    let of = |wanted| measured.iter().find(|(kind, _)| *kind == wanted);
    PROMISES
        .into_iter()
        .filter_map(|(promise, one, other, most)| {
            let (Some((_, one)), Some((_, other))) = (of(one), of(other)) else {
                return None;
            };
            Some(Target {
                promise,
                measured: one.ratio(other),
                unit: Unit::Times,
                bound: Bound::AtMost(most),
                stretch: None,
            })
        })
        .collect()
}

fn to_text(files: usize, measured: &[(Kind, Samples)]) -> String {
    let Machine { cores, kernel, cpu } = Machine::here();
    let mut rows = vec![["", "p50", "p99"].map(String::from)];
    for (kind, samples) in measured {
        rows.push([
            kind.label().to_owned(),
            table::milliseconds(samples.p50().as_secs_f64()),
            table::milliseconds(samples.p99().as_secs_f64()),
        ]);
    }
    format!(
        "{cores} cores, {cpu}, Linux {kernel}\na tree of {files} files\n\n{}\n{}",
        table::table(&rows),
        table::targets(&targets(measured))
    )
}

fn to_json(files: usize, measured: &[(Kind, Samples)]) -> Value {
    let Machine { cores, kernel, cpu } = Machine::here();
    let times: Vec<Value> = measured
        .iter()
        .map(|(kind, samples)| {
            json!({
                "kind": kind.label(),
                "p50_ms": samples.p50().as_secs_f64() * 1e3,
                "p99_ms": samples.p99().as_secs_f64() * 1e3,
            })
        })
        .collect();
    let targets: Vec<Value> = targets(measured)
        .iter()
        .map(|target| {
            json!({
                "target": target.promise,
                "measured": target.measured,
                "met": target.is_met(),
            })
        })
        .collect();
    json!({
        "machine": { "cores": cores, "kernel": kernel, "cpu": cpu },
        "files": files,
        "times": times,
        "targets": targets,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_promised_is_told_with_what_was_measured() {
        let samples = |ms| Samples::new(vec![Duration::from_millis(ms)]);
        let mut measured = vec![
            (Kind::Search, samples(9)),
            (Kind::RipgrepSearch, samples(10)),
            (Kind::Read, samples(4)),
            (Kind::Check, samples(2)),
        ];
        let value = to_json(7, &measured);
        assert_eq!(value["files"], 7);
        assert_eq!(value["targets"][0]["met"], true);
        assert_eq!(value["targets"][1]["met"], false);
        let text = to_text(7, &measured);
        assert!(text.contains("search / rg --json") && text.contains("0.90 x"), "{text}");
        measured.retain(|(kind, _)| !kind.is_ripgrep());
        assert_eq!(targets(&measured).len(), 1);
    }
}
