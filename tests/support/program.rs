//! C programs that make system calls which no shell command makes: `tests/attack/programs/`,
//! compiled statically on the host.

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

/// A program for the test itself, outside any sandbox.
#[derive(Debug)]
pub(crate) struct HostProgram {
    _folder: TempDir,
    /// Its path.
    pub(crate) path: PathBuf,
}

impl HostProgram {
    /// Compiles a program.
    pub(crate) fn compile(name: &str) -> Self {
        let folder = TempDir::with_prefix("jig-test-program-").unwrap();
        let path = folder.path().join(name);
        compile_to(name, &path);
        Self { _folder: folder, path }
    }
}

/// Compiles a program into the daemon's workspace, where it belongs to the workspace's owner.
/// Answers the path by which a command executes it.
pub(crate) fn compile_in_workspace(daemon: &Daemon, name: &str) -> String {
    let path = daemon.file(name);
    compile_to(name, &path);
    let owner = daemon.workspace().metadata().unwrap();
    chown(&path, Some(owner.uid()), Some(owner.gid())).unwrap();
    format!("./{name}")
}

/// Checks what a program has answered, line by line `what: answer`. `expected` names everything
/// that it tries, with the answers that are right, separated by `|`. All that differs is told at
/// once.
pub(crate) fn check_answers<N: AsRef<str>>(response: &RunResponse, expected: &[(N, &str)]) {
    let answers: BTreeMap<&str, &str> =
        response.stdout.lines().filter_map(|line| line.rsplit_once(": ")).collect();
    let mut wrong = Vec::new();
    for (what, right) in expected {
        let what = what.as_ref();
        match answers.get(what) {
            Some(answer) if right.split('|').any(|right| right == *answer) => {}
            Some(answer) => wrong.push(format!("{what}: {answer} instead of {right}")),
            None => wrong.push(format!("{what}: not tried")),
        }
    }
    for (what, answer) in &answers {
        if !expected.iter().any(|(expected, _)| expected.as_ref() == *what) {
            wrong.push(format!("{what}: {answer}, and nothing was expected"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}\n{response:?}");
    assert_eq!(response.exit_code, Some(0), "{response:?}");
}

/// Checks that the program `carry_over` has found nothing of what it leaves behind.
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
            ("third process", "ESRCH"),
        ],
    );
}

/// Compiles all programs into a folder.
pub(super) fn compile_all(folder: &Path) {
    for entry in fs::read_dir(program_sources()).unwrap() {
        let source = entry.unwrap().path();
        if source.extension().is_some_and(|extension| extension == "c") {
            let name = source.file_stem().unwrap().to_str().unwrap();
            compile_to(name, &folder.join(name));
        }
    }
}

/// Where they are.
pub(super) fn program_sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/attack/programs")
}

/// Compiles a program; where there is no compiler, takes it from where somebody has compiled it.
fn compile_to(name: &str, path: &Path) {
    if let Some(folder) = env::var_os("JIG_TEST_PROGRAMS") {
        copy_program(&PathBuf::from(folder).join(name), path);
        return;
    }
    let source = program_sources().join(name).with_extension("c");
    let output = Command::new("gcc")
        .args(["-std=gnu17", "-O1", "-Wall", "-Werror", "-static", "-pthread", "-o"])
        .args([path, &source])
        .output()
        .expect("gcc is needed to compile what attacks the sandbox");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
