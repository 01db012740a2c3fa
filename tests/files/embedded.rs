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
const SIZE: u64 = 256 * MIB;

/// A directory that `jig` is run in, and where it keeps its state.
struct Shop {
    folder: TempDir,
    state: PathBuf,
}

impl Shop {
    fn open() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        fs::create_dir(folder.path().join("here")).unwrap();
        let file = File::create(folder.path().join("big")).unwrap();
        file.set_len(SIZE).unwrap();
        Self { folder, state }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join("here").join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_jig"));
        command
            .args(arguments)
            .current_dir(self.at(""))
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("XDG_STATE_HOME", &self.state)
            .stdin(Stdio::null());
        command
    }

    /// Runs `jig`, which must go well.
    fn jig(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Begins to copy the big file, and goes on when a draft beside `known` has more than `bytes`.
    async fn begin(&self, known: &[PathBuf], bytes: u64) -> (Child, PathBuf) {
        let mut copying = self.command(&["cp", "../big", ":big"]).spawn().unwrap();
        let mut found = None;
        eventually("bytes come", async || {
            if let Some(status) = copying.try_wait().unwrap() {
                panic!("it ended before: {status}");
            }
            let drafts = self.drafts().into_iter();
            found = drafts
                .filter(|draft| !known.contains(draft))
                .find(|draft| draft.metadata().is_ok_and(|data| data.len() > bytes));
            found.is_some()
        })
        .await;
        (copying, found.unwrap())
    }

    fn drafts(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.at("")).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        paths.filter(|path| path.to_string_lossy().contains("/.jig-")).collect()
    }

    fn records(&self) -> Vec<PathBuf> {
        let folders = fs::read_dir(self.state.join("jig/embedded-uploads")).unwrap();
        let folders = folders.map(|folder| folder.unwrap().path());
        let entries = folders.flat_map(|folder| fs::read_dir(folder).unwrap());
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    fn is_copied(&self) -> bool {
        let mut copy = File::open(self.at("big")).unwrap();
        let mut part = vec![1; 1 << 20];
        let mut parts = 0;
        while copy.read_exact(&mut part).is_ok() {
            assert!(part.iter().all(|byte| *byte == 0), "part {parts}");
            parts += 1;
        }
        parts * MIB == SIZE && size(&self.at("big")) == SIZE
    }
}

fn send(signal: Signal, child: &Child) {
    let pid = Pid::from_child(child);
    kill_process(pid, signal).unwrap();
    if signal == Signal::STOP {
        waitpid(Some(pid), WaitOptions::UNTRACED).unwrap();
    }
}

fn size(path: &Path) -> u64 {
    path.metadata().unwrap().len()
}

#[tokio::test]
async fn a_copy_that_was_broken_off_goes_on_with_the_daemon_of_another_call() {
    let shop = Shop::open();
    // However it ends.
    let (mut child, draft) = shop.begin(&[], MIB).await;
    send(Signal::KILL, &child);
    child.wait().unwrap();
    let came = size(&draft);
    assert_eq!(shop.jig(&["ls"]), "");
    assert_eq!(shop.drafts(), slice::from_ref(&draft));

    let (mut child, again) = shop.begin(&[], came).await;
    assert_eq!(again, draft);
    send(Signal::INT, &child);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(size(&draft) > came);

    shop.jig(&["cp", "../big", ":big"]);
    assert!(shop.is_copied());
    assert!(shop.drafts().is_empty());
    assert_eq!(shop.records().len(), 1);
    // The next copy of the same, which is resumed as well.
    let (mut child, draft) = shop.begin(&[], MIB).await;
    send(Signal::KILL, &child);
    child.wait().unwrap();
    shop.jig(&["cp", "../big", ":big"]);
    assert!(!draft.exists() && shop.drafts().is_empty());
    assert_eq!(shop.records().len(), 2);
}

#[tokio::test]
async fn daemons_of_several_calls_leave_each_others_uploads_alone() {
    let shop = Shop::open();
    let (mut child, draft) = shop.begin(&[], MIB).await;
    send(Signal::STOP, &child);
    fs::write(shop.folder.path().join("other"), vec![1; 3_000_000]).unwrap();
    shop.jig(&["cp", "../other", ":other"]);
    assert_eq!(shop.jig(&["run", "cat other | wc -c"]), "3000000\n");
    assert_eq!(shop.drafts(), slice::from_ref(&draft));
    // The same copy has a draft of its own.
    let (mut second, another) = shop.begin(slice::from_ref(&draft), MIB).await;
    send(Signal::CONT, &child);
    assert!(child.wait().unwrap().success());
    assert!(second.wait().unwrap().success());
    assert!(shop.is_copied() && !draft.exists() && !another.exists());
}

#[tokio::test]
async fn what_nobody_goes_on_with_is_deleted_by_a_later_call() {
    let shop = Shop::open();
    let (mut child, draft) = shop.begin(&[], MIB).await;
    send(Signal::KILL, &child);
    child.wait().unwrap();
    let [path] = shop.records().try_into().unwrap();
    let record = fs::read(&path).unwrap();
    let mut record: serde_json::Value = serde_json::from_slice(&record).unwrap();
    let touched = record["touched"].as_u64().unwrap();
    record["touched"] = (touched - 24 * 3600).into();
    fs::write(&path, record.to_string()).unwrap();
    shop.jig(&["ls"]);
    assert!(!draft.exists() && !path.exists());
}

#[tokio::test]
async fn where_nothing_can_be_kept_a_draft_goes_with_its_daemon() {
    let mut shop = Shop::open();
    // Commands could reach it there.
    shop.state = shop.at("state");
    let (mut child, draft) = shop.begin(&[], MIB).await;
    send(Signal::INT, &child);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(!draft.exists());
}
