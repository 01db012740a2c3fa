//! Benchmark of the file tools against ripgrep, git and a health check.

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
    patch::PatchFixture,
    statistics::{BenchTarget, Samples, TargetBound, TargetUnit},
    table,
};
use crate::{cli_error::CliError, connection, global::GlobalArgs, output};

/// Size of the tree: more than the 20,000 files that the target of `search` requires.
const DIRECTORY_COUNT: usize = 2000;
const FILES_PER_DIRECTORY: usize = 12;
/// Lines of each file, of about 40 bytes each.
const LINES_PER_FILE: usize = 100;
const _: () = assert!(
    DIRECTORY_COUNT * FILES_PER_DIRECTORY >= 20_000,
    "the target of search is defined for 20,000 files"
);
/// One file in so many contains the text that is searched for.
const FILES_PER_MATCH: usize = 500;
/// Text that is searched for.
const NEEDLE: &str = "needle";
/// Name and size of the file that is read.
const TEST_FILE: &str = "ten-kibibytes";
const TEST_FILE_BYTES: usize = 10 * 1024;
/// Short calls per round, against one long call.
const SMALL_CALLS_PER_ROUND: usize = 20;

/// Measure the file tools against ripgrep (`rg`) and git on the same tree.
///
/// Starts a daemon on a generated tree of 24,000 files. With --address, measures that daemon;
/// --tree must then name its workspace directory, which should contain a large tree.
#[derive(Debug, Args)]
pub(crate) struct FilesArgs {
    /// Number of rounds.
    #[arg(long, default_value = "20", value_name = "N")]
    count: NonZeroUsize,
    /// Workspace directory of the daemon at --address.
    #[arg(long, value_name = "DIR")]
    tree: Option<PathBuf>,
    /// Text to search for.
    #[arg(long, default_value = NEEDLE, value_name = "TEXT")]
    query: String,
}

/// Operation that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FilesBenchCase {
    Search,
    RipgrepSearch,
    List,
    RipgrepList,
    Patch,
    GitApply,
    Read,
    HealthCheck,
}

impl FilesBenchCase {
    fn label(self) -> &'static str {
        match self {
            Self::Search => "jig search",
            Self::RipgrepSearch => "rg --json --sort path",
            Self::List => "jig list_files",
            Self::RipgrepList => "rg --files --sort path",
            Self::Patch => "jig apply_patch, 100 files",
            Self::GitApply => "git apply",
            Self::Read => "jig read_file, 10 KiB",
            Self::HealthCheck => "health check",
        }
    }

    fn is_ripgrep(self) -> bool {
        matches!(self, Self::RipgrepSearch | Self::RipgrepList)
    }
}

/// Targets: label, tool, reference, and maximum ratio of their medians.
const TARGETS: [(&str, FilesBenchCase, FilesBenchCase, f64); 4] = [
    ("apply_patch / git apply", FilesBenchCase::Patch, FilesBenchCase::GitApply, 1.0),
    ("search / rg --json", FilesBenchCase::Search, FilesBenchCase::RipgrepSearch, 1.0),
    ("list_files / rg --files", FilesBenchCase::List, FilesBenchCase::RipgrepList, 1.0),
    ("read_file / health check", FilesBenchCase::Read, FilesBenchCase::HealthCheck, 1.5),
];

/// Runs the benchmark and prints the report.
pub(super) fn bench_files(global: &GlobalArgs, args: &FilesArgs) -> Result<(), CliError> {
    let own;
    let (address, tree) = match (global.address(), &args.tree) {
        (Some(address), Some(tree)) => (address, tree.clone()),
        (Some(_), None) => {
            let problem = "--address needs --tree: the workspace directory of that daemon";
            return Err(CliError::Usage(problem.to_owned()));
        }
        (None, _) => {
            own = Daemon::start()?;
            create_tree(&own.workspace()).map_err(CliError::system)?;
            (own.address(), own.workspace())
        }
    };

    fs::write(tree.join(TEST_FILE), "x".repeat(TEST_FILE_BYTES)).map_err(CliError::system)?;
    let runtime = connection::runtime()?;
    let client = runtime.block_on(Client::connect(address, global.client_options()))?;

    let daemon_patch = PatchFixture::create(&tree, "patched").map_err(CliError::system)?;
    let git_patch = PatchFixture::create(&tree, "patched-by-git").map_err(CliError::system)?;
    let bench = FilesBench {
        runtime: &runtime,
        client,
        tree: &tree,
        query: &args.query,
        daemon_patch,
        git_patch,
    };

    let mut kinds = vec![
        FilesBenchCase::Search,
        FilesBenchCase::RipgrepSearch,
        FilesBenchCase::List,
        FilesBenchCase::RipgrepList,
        FilesBenchCase::Patch,
        FilesBenchCase::GitApply,
        FilesBenchCase::Read,
        FilesBenchCase::HealthCheck,
    ];

    if let Err(reason) = bench.run_once(FilesBenchCase::GitApply) {
        output::note(&format!("git is left out: {}", reason.summary()));
        kinds.retain(|kind| *kind != FilesBenchCase::GitApply);
    }
    if let Err(reason) = bench.run_once(FilesBenchCase::RipgrepList) {
        output::note(&format!("ripgrep is left out: {}", reason.summary()));
        kinds.retain(|kind| !kind.is_ripgrep());
    }

    let files = bench.run_once(FilesBenchCase::List)?;
    let measurements = bench.measure(&kinds, args.count.get())?;
    if global.json {
        output::write_json(&to_json(files, &measurements))
    } else {
        output::write_stdout(to_text(files, &measurements).as_bytes())
    }
}

/// Environment of the measurements.
#[derive(Debug)]
struct FilesBench<'a> {
    runtime: &'a Runtime,
    client: Client,
    tree: &'a Path,
    query: &'a str,
    daemon_patch: PatchFixture,
    git_patch: PatchFixture,
}

impl FilesBench<'_> {
    /// Measures all kinds in alternating rounds.
    ///
    /// Other load on the machine then affects all kinds alike.
    fn measure(
        &self,
        kinds: &[FilesBenchCase],
        count: usize,
    ) -> Result<Vec<(FilesBenchCase, Samples)>, CliError> {
        let mut all: Vec<(FilesBenchCase, Vec<Duration>)> =
            kinds.iter().map(|&kind| (kind, Vec::new())).collect();
        for (kind, _) in &all {
            self.run_once(*kind)?;
        }

        for _ in 0..count {
            for (kind, times) in &mut all {
                let is_short = matches!(kind, FilesBenchCase::Read | FilesBenchCase::HealthCheck);
                for _ in 0..if is_short { SMALL_CALLS_PER_ROUND } else { 1 } {
                    let start = Instant::now();
                    self.run_once(*kind)?;
                    times.push(start.elapsed());
                }
            }
        }

        let samples = all.into_iter();
        Ok(samples.map(|(kind, times)| (kind, Samples::new(times))).collect())
    }

    /// Runs one operation. Returns the number of files if it lists them, otherwise 0.
    fn run_once(&self, kind: FilesBenchCase) -> Result<usize, CliError> {
        match kind {
            FilesBenchCase::RipgrepSearch => self.ripgrep(&[
                "--json",
                "--fixed-strings",
                "--ignore-case",
                "--context=2",
                "-e",
                self.query,
            ]),
            FilesBenchCase::RipgrepList => self.ripgrep(&["--files", "--hidden", "--no-ignore"]),
            FilesBenchCase::Search => {
                let request =
                    SearchRequest { query: self.query.to_owned(), ..SearchRequest::default() };
                self.runtime.block_on(self.client.search(request))?;
                Ok(0)
            }
            FilesBenchCase::List => self.runtime.block_on(self.count_files()),
            FilesBenchCase::Patch => {
                self.runtime.block_on(self.daemon_patch.apply_by_daemon(&self.client)).map(|()| 0)
            }
            FilesBenchCase::GitApply => self.git_patch.apply_by_git().map(|()| 0),
            FilesBenchCase::Read => {
                let request =
                    ReadFileRequest { path: TEST_FILE.to_owned(), ..ReadFileRequest::default() };
                self.runtime.block_on(self.client.read_file(request))?;
                Ok(0)
            }
            FilesBenchCase::HealthCheck => {
                self.runtime.block_on(self.client.check_health(""))?;
                Ok(0)
            }
        }
    }

    /// Lists all files of the workspace, and returns their number.
    async fn count_files(&self) -> Result<usize, CliError> {
        let mut pages = self.client.list_files_by_page(ListFilesRequest {
            max_results: Some(10_000),
            ..ListFilesRequest::default()
        });
        let mut files = 0;
        while let Some(page) = pages.next().await? {
            files += page.files.len();
        }
        Ok(files)
    }

    /// Runs ripgrep and reads its output, as a caller would.
    fn ripgrep(&self, arguments: &[&str]) -> Result<usize, CliError> {
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

        let output = command.output().map_err(CliError::system)?;
        // Exit code 1: no match.
        if !matches!(output.status.code(), Some(0 | 1)) {
            return Err(CliError::System(String::from_utf8_lossy(&output.stderr).into_owned()));
        }
        Ok(0)
    }
}

/// Creates the tree. Its text repeats words, as source code does.
fn create_tree(root: &Path) -> std::io::Result<()> {
    const WORDS: [&str; 8] =
        ["return", "value", "request", "the", "need", "Option", "self", "length"];
    let mut state = 1_u64;
    for directory in 0..DIRECTORY_COUNT {
        let path = root.join(format!("module-{}/part-{directory}", directory % 50));
        fs::create_dir_all(&path)?;
        for file in 0..FILES_PER_DIRECTORY {
            let mut text = String::new();
            for _ in 0..LINES_PER_FILE {
                for _ in 0..6 {
                    // Knuth's linear congruential generator: the same text on every machine.
                    state = state
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    let word = WORDS.iter().cycle().nth((state >> 61) as usize);
                    text.push_str(word.copied().unwrap_or_default());
                    text.push(' ');
                }
                text.push('\n');
            }
            if (directory * FILES_PER_DIRECTORY + file).is_multiple_of(FILES_PER_MATCH) {
                text.push_str(NEEDLE);
            }
            fs::write(path.join(format!("file-{file}.txt")), text)?;
        }
    }
    Ok(())
}

fn targets(measured: &[(FilesBenchCase, Samples)]) -> Vec<BenchTarget> {
    let samples_of = |wanted| measured.iter().find(|(kind, _)| *kind == wanted);
    TARGETS
        .into_iter()
        .filter_map(|(label, tool, reference, max_ratio)| {
            let (Some((_, tool)), Some((_, reference))) = (samples_of(tool), samples_of(reference))
            else {
                return None;
            };
            Some(BenchTarget {
                label,
                measured: tool.ratio(reference),
                unit: TargetUnit::Ratio,
                bound: TargetBound::AtMost(max_ratio),
                stretch: None,
            })
        })
        .collect()
}

fn to_text(files: usize, measured: &[(FilesBenchCase, Samples)]) -> String {
    let Machine { cores, kernel, cpu } = Machine::detect();
    let mut rows = vec![["", "p50", "p99"].map(String::from)];
    for (kind, samples) in measured {
        rows.push([
            kind.label().to_owned(),
            table::format_milliseconds(samples.p50().as_secs_f64()),
            table::format_milliseconds(samples.p99().as_secs_f64()),
        ]);
    }
    format!(
        "{cores} cores, {cpu}, Linux {kernel}\na tree of {files} files\n\n{}\n{}",
        table::align_numbers(&rows),
        table::targets_table(&targets(measured))
    )
}

fn to_json(files: usize, measured: &[(FilesBenchCase, Samples)]) -> Value {
    let Machine { cores, kernel, cpu } = Machine::detect();
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
                "target": target.label,
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
    fn targets_are_reported_with_measurements() {
        let samples = |ms| Samples::new(vec![Duration::from_millis(ms)]);
        let mut measured = vec![
            (FilesBenchCase::Search, samples(9)),
            (FilesBenchCase::RipgrepSearch, samples(10)),
            (FilesBenchCase::Read, samples(4)),
            (FilesBenchCase::HealthCheck, samples(2)),
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
