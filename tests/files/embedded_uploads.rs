//! `jig cp` without an address: a partial upload outlives the embedded daemon of its call, and
//! concurrent embedded daemons do not touch each other's uploads.

use std::{
    fs::{self, File},
    io::Read as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    slice,
};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use tempfile::TempDir;

use super::transfer::MIB;
use crate::support::eventually;

/// Size of the big file, a hole: its copy uses no disk space and lasts long enough to interrupt.
const BIG_FILE_BYTES: u64 = 256 * MIB;

/// A directory in which `jig` runs, and its state directory.
struct EmbeddedWorkspace {
    directory: TempDir,
    state: PathBuf,
}

impl EmbeddedWorkspace {
    fn create() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("state");
        fs::create_dir(directory.path().join("here")).unwrap();
        let file = File::create(directory.path().join("big")).unwrap();
        file.set_len(BIG_FILE_BYTES).unwrap();
        Self { directory, state }
    }

    fn local_path(&self, name: &str) -> PathBuf {
        self.directory.path().join("here").join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_jig"));
        command
            .args(arguments)
            .current_dir(self.local_path(""))
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("XDG_STATE_HOME", &self.state)
            .stdin(Stdio::null());
        command
    }

    /// Runs `jig`, which must succeed. Returns its standard output.
    fn run_jig(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Starts a copy of the big file. Returns when a partial file that is not in `known` has more
    /// than `bytes`.
    async fn start_copy(&self, known: &[PathBuf], bytes: u64) -> (Child, PathBuf) {
        let mut child = self.command(&["cp", "../big", ":big"]).spawn().unwrap();
        let mut partial_file = None;
        eventually("the copy writes a partial file", async || {
            if let Some(status) = child.try_wait().unwrap() {
                panic!("the copy ended early: {status}");
            }
            let candidates = self.partial_files().into_iter();
            partial_file = candidates
                .filter(|path| !known.contains(path))
                .find(|path| path.metadata().is_ok_and(|data| data.len() > bytes));
            partial_file.is_some()
        })
        .await;
        (child, partial_file.unwrap())
    }

    fn partial_files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.local_path("")).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        paths.filter(|path| path.to_string_lossy().contains("/.jig-")).collect()
    }

    fn upload_records(&self) -> Vec<PathBuf> {
        let directories = fs::read_dir(self.state.join("jig/embedded-uploads")).unwrap();
        let directories = directories.map(|directory| directory.unwrap().path());
        let entries = directories.flat_map(|directory| fs::read_dir(directory).unwrap());
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    fn copy_is_complete(&self) -> bool {
        let mut copy = File::open(self.local_path("big")).unwrap();
        let mut part = vec![1; 1 << 20];

        let mut parts = 0;
        while copy.read_exact(&mut part).is_ok() {
            assert!(part.iter().all(|byte| *byte == 0), "part {parts}");
            parts += 1;
        }

        parts * MIB == BIG_FILE_BYTES && file_size(&self.local_path("big")) == BIG_FILE_BYTES
    }
}

fn send_signal(signal: Signal, child: &Child) {
    let pid = Pid::from_child(child);
    kill_process(pid, signal).unwrap();
    if signal == Signal::STOP {
        waitpid(Some(pid), WaitOptions::UNTRACED).unwrap();
    }
}

fn file_size(path: &Path) -> u64 {
    path.metadata().unwrap().len()
}

#[tokio::test]
async fn later_call_resumes_an_interrupted_upload() {
    let workspace = EmbeddedWorkspace::create();

    // A killed call and an interrupted call both leave a partial file.
    let (mut child, partial_file) = workspace.start_copy(&[], MIB).await;
    send_signal(Signal::KILL, &child);
    child.wait().unwrap();
    let received_bytes = file_size(&partial_file);
    assert_eq!(workspace.run_jig(&["ls"]), "");
    assert_eq!(workspace.partial_files(), slice::from_ref(&partial_file));

    let (mut child, resumed) = workspace.start_copy(&[], received_bytes).await;
    assert_eq!(resumed, partial_file);

    send_signal(Signal::INT, &child);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(file_size(&partial_file) > received_bytes);

    workspace.run_jig(&["cp", "../big", ":big"]);
    assert!(workspace.copy_is_complete());
    assert!(workspace.partial_files().is_empty());
    assert_eq!(workspace.upload_records().len(), 1);

    // A second copy of the same file is resumed too.
    let (mut child, partial_file) = workspace.start_copy(&[], MIB).await;
    send_signal(Signal::KILL, &child);
    child.wait().unwrap();
    workspace.run_jig(&["cp", "../big", ":big"]);
    assert!(!partial_file.exists() && workspace.partial_files().is_empty());
    assert_eq!(workspace.upload_records().len(), 2);
}

#[tokio::test]
async fn concurrent_daemons_keep_each_others_uploads() {
    let workspace = EmbeddedWorkspace::create();
    let (mut child, partial_file) = workspace.start_copy(&[], MIB).await;
    send_signal(Signal::STOP, &child);
    fs::write(workspace.directory.path().join("other"), vec![1; 3_000_000]).unwrap();

    workspace.run_jig(&["cp", "../other", ":other"]);
    assert_eq!(workspace.run_jig(&["run", "cat other | wc -c"]), "3000000\n");
    assert_eq!(workspace.partial_files(), slice::from_ref(&partial_file));

    // The same copy in a second daemon has its own partial file.
    let (mut second, second_file) = workspace.start_copy(slice::from_ref(&partial_file), MIB).await;
    send_signal(Signal::CONT, &child);
    assert!(child.wait().unwrap().success());
    assert!(second.wait().unwrap().success());
    assert!(workspace.copy_is_complete() && !partial_file.exists() && !second_file.exists());
}

#[tokio::test]
async fn later_call_deletes_expired_uploads() {
    let workspace = EmbeddedWorkspace::create();
    let (mut child, partial_file) = workspace.start_copy(&[], MIB).await;
    send_signal(Signal::KILL, &child);
    child.wait().unwrap();
    let [path] = workspace.upload_records().try_into().unwrap();
    let record = fs::read(&path).unwrap();
    let mut record: serde_json::Value = serde_json::from_slice(&record).unwrap();
    let touched = record["touched"].as_u64().unwrap();
    record["touched"] = (touched - 24 * 3600).into();
    fs::write(&path, record.to_string()).unwrap();

    workspace.run_jig(&["ls"]);
    assert!(!partial_file.exists() && !path.exists());
}

#[tokio::test]
async fn daemon_without_upload_state_deletes_its_partial_file() {
    let mut workspace = EmbeddedWorkspace::create();
    // Commands could reach the state in the workspace, so the daemon stores none there.
    workspace.state = workspace.local_path("state");
    let (mut child, partial_file) = workspace.start_copy(&[], MIB).await;
    send_signal(Signal::INT, &child);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(!partial_file.exists());
}
