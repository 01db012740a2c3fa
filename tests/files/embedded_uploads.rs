//! `jig cp` without an address: what has come of an upload outlives the daemon of its call, and
//! several such daemons at once leave each other's alone.

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

/// Bytes of the big file, all of them zeros: its copy takes long enough to be broken off, and no room.
const BIG_FILE_BYTES: u64 = 256 * MIB;

/// A directory that `jig` is run in, and where it keeps its state.
struct EmbeddedWorkspace {
    folder: TempDir,
    state: PathBuf,
}

impl EmbeddedWorkspace {
    fn create() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        fs::create_dir(folder.path().join("here")).unwrap();
        let file = File::create(folder.path().join("big")).unwrap();
        file.set_len(BIG_FILE_BYTES).unwrap();
        Self { folder, state }
    }

    fn local_path(&self, name: &str) -> PathBuf {
        self.folder.path().join("here").join(name)
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

    /// Runs `jig`, which must go well.
    fn run_jig(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Begins to copy the big file, and goes on when a draft beside `known` has more than `bytes`.
    async fn start_copy(&self, known: &[PathBuf], bytes: u64) -> (Child, PathBuf) {
        let mut copying = self.command(&["cp", "../big", ":big"]).spawn().unwrap();
        let mut found = None;
        eventually("bytes come", async || {
            if let Some(status) = copying.try_wait().unwrap() {
                panic!("it ended before: {status}");
            }
            let drafts = self.partial_files().into_iter();
            found = drafts
                .filter(|draft| !known.contains(draft))
                .find(|draft| draft.metadata().is_ok_and(|data| data.len() > bytes));
            found.is_some()
        })
        .await;
        (copying, found.unwrap())
    }

    fn partial_files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.local_path("")).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        paths.filter(|path| path.to_string_lossy().contains("/.jig-")).collect()
    }

    fn upload_records(&self) -> Vec<PathBuf> {
        let folders = fs::read_dir(self.state.join("jig/embedded-uploads")).unwrap();
        let folders = folders.map(|folder| folder.unwrap().path());
        let entries = folders.flat_map(|folder| fs::read_dir(folder).unwrap());
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
    // However it ends.
    let (mut child, draft) = workspace.start_copy(&[], MIB).await;
    send_signal(Signal::KILL, &child);
    child.wait().unwrap();
    let received_bytes = file_size(&draft);
    assert_eq!(workspace.run_jig(&["ls"]), "");
    assert_eq!(workspace.partial_files(), slice::from_ref(&draft));

    let (mut child, again) = workspace.start_copy(&[], received_bytes).await;
    assert_eq!(again, draft);
    send_signal(Signal::INT, &child);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(file_size(&draft) > received_bytes);

    workspace.run_jig(&["cp", "../big", ":big"]);
    assert!(workspace.copy_is_complete());
    assert!(workspace.partial_files().is_empty());
    assert_eq!(workspace.upload_records().len(), 1);
    // The next copy of the same, which is resumed as well.
    let (mut child, draft) = workspace.start_copy(&[], MIB).await;
    send_signal(Signal::KILL, &child);
    child.wait().unwrap();
    workspace.run_jig(&["cp", "../big", ":big"]);
    assert!(!draft.exists() && workspace.partial_files().is_empty());
    assert_eq!(workspace.upload_records().len(), 2);
}

#[tokio::test]
async fn concurrent_daemons_keep_each_others_uploads() {
    let workspace = EmbeddedWorkspace::create();
    let (mut child, draft) = workspace.start_copy(&[], MIB).await;
    send_signal(Signal::STOP, &child);
    fs::write(workspace.folder.path().join("other"), vec![1; 3_000_000]).unwrap();
    workspace.run_jig(&["cp", "../other", ":other"]);
    assert_eq!(workspace.run_jig(&["run", "cat other | wc -c"]), "3000000\n");
    assert_eq!(workspace.partial_files(), slice::from_ref(&draft));
    // The same copy has a draft of its own.
    let (mut second, another) = workspace.start_copy(slice::from_ref(&draft), MIB).await;
    send_signal(Signal::CONT, &child);
    assert!(child.wait().unwrap().success());
    assert!(second.wait().unwrap().success());
    assert!(workspace.copy_is_complete() && !draft.exists() && !another.exists());
}

#[tokio::test]
async fn later_call_deletes_expired_uploads() {
    let workspace = EmbeddedWorkspace::create();
    let (mut child, draft) = workspace.start_copy(&[], MIB).await;
    send_signal(Signal::KILL, &child);
    child.wait().unwrap();
    let [path] = workspace.upload_records().try_into().unwrap();
    let record = fs::read(&path).unwrap();
    let mut record: serde_json::Value = serde_json::from_slice(&record).unwrap();
    let touched = record["touched"].as_u64().unwrap();
    record["touched"] = (touched - 24 * 3600).into();
    fs::write(&path, record.to_string()).unwrap();
    workspace.run_jig(&["ls"]);
    assert!(!draft.exists() && !path.exists());
}

#[tokio::test]
async fn daemon_without_upload_state_deletes_its_partial_file() {
    let mut workspace = EmbeddedWorkspace::create();
    // Commands could reach it there.
    workspace.state = workspace.local_path("state");
    let (mut child, draft) = workspace.start_copy(&[], MIB).await;
    send_signal(Signal::INT, &child);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(!draft.exists());
}
