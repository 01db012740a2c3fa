//! C programs for system calls that no shell command makes: `tests/attack/programs/`, compiled
//! statically on the host.

use std::{
    collections::BTreeMap,
    env, fs,
    os::unix::fs::{MetadataExt as _, chown},
    path::{Path, PathBuf},
    process::Command,
};

use jig::api::v1::RunResponse;
use tempfile::TempDir;

use super::{Daemon, copy_program};

/// Answers to a 32-bit call: the filter kills the process. A kernel without 32-bit calls sends
/// SIGSEGV on x86-64, before it runs any filter, and executes no 32-bit program on arm64.
pub(crate) const FOREIGN_CALL_ANSWERS: &str =
    if cfg!(target_arch = "x86_64") { "SIGSYS|SIGSEGV" } else { "SIGSYS|ENOEXEC" };

/// A program that the test runs outside any sandbox.
#[derive(Debug)]
pub(crate) struct HostProgram {
    _directory: TempDir,
    pub(crate) path: PathBuf,
}

impl HostProgram {
    pub(crate) fn compile(name: &str) -> Self {
        let directory = TempDir::with_prefix("jig-test-program-").unwrap();
        let path = directory.path().join(name);
        compile_to(name, &path);
        Self { _directory: directory, path }
    }
}

/// Compiles a program into the daemon's workspace, with the workspace's owner. Returns the path by
/// which a command executes it.
pub(crate) fn compile_in_workspace(daemon: &Daemon, name: &str) -> String {
    let path = daemon.file(name);
    compile_to(name, &path);
    let owner = daemon.workspace().metadata().unwrap();
    chown(&path, Some(owner.uid()), Some(owner.gid())).unwrap();
    format!("./{name}")
}

/// Checks the output of a program: lines of the form `attempt: answer`. `expected` lists all
/// attempts with the permitted answers, separated by `|`. Reports all differences at once.
pub(crate) fn check_answers<N: AsRef<str>>(response: &RunResponse, expected: &[(N, &str)]) {
    let answers: BTreeMap<&str, &str> =
        response.stdout.lines().filter_map(|line| line.rsplit_once(": ")).collect();

    let mut wrong = Vec::new();
    for (attempt, permitted) in expected {
        let attempt = attempt.as_ref();
        match answers.get(attempt) {
            Some(answer) if permitted.split('|').any(|word| word == *answer) => {}
            Some(answer) => wrong.push(format!("{attempt}: {answer}, expected {permitted}")),
            None => wrong.push(format!("{attempt}: not tried")),
        }
    }

    for (attempt, answer) in &answers {
        if !expected.iter().any(|(expected, _)| expected.as_ref() == *attempt) {
            wrong.push(format!("{attempt}: {answer}, not expected"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}\n{response:?}");
    assert_eq!(response.exit_code, Some(0), "{response:?}");
}

/// Checks that the program `carry_over` finds nothing of what its first run leaves behind.
pub(crate) fn check_no_leftovers(response: &RunResponse) {
    check_answers(
        response,
        &[
            ("/tmp/left", "ENOENT"),
            ("/dev/shm/left", "ENOENT"),
            ("/home/agent/left", "ENOENT"),
            ("shared memory", "ENOENT"),
            ("semaphore", "ENOENT"),
            ("message queue", "ENOENT"),
            ("POSIX message queue", "ENOENT"),
            ("keyring", "EPERM"),
            ("abstract socket", "ECONNREFUSED"),
            ("listener", "ECONNREFUSED"),
            ("port is free", "ok"),
            ("another process", "ESRCH"),
        ],
    );
}

/// Compiles all programs into a directory.
pub(super) fn compile_all(compiler: &str, directory: &Path) {
    for entry in fs::read_dir(program_sources()).unwrap() {
        let source = entry.unwrap().path();
        if source.extension().is_some_and(|extension| extension == "c") {
            compile(compiler, &source, &directory.join(source.file_stem().unwrap()));
        }
    }
}

/// Directory of the programs' sources.
pub(super) fn program_sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/attack/programs")
}

/// Compiles a program. Where there is no compiler, copies it from `$JIG_TEST_PROGRAMS`.
fn compile_to(name: &str, path: &Path) {
    match env::var_os("JIG_TEST_PROGRAMS") {
        Some(directory) => copy_program(&PathBuf::from(directory).join(name), path),
        None => compile("gcc", &program_sources().join(name).with_extension("c"), path),
    }
}

fn compile(compiler: &str, source: &Path, path: &Path) {
    let output = Command::new(compiler)
        .args(["-std=gnu17", "-O1", "-Wall", "-Werror", "-static", "-pthread", "-o"])
        .args([path, source])
        .output()
        .unwrap_or_else(|error| panic!("{compiler} compiles the test programs: {error}"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
