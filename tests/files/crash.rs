//! Crash recovery: a daemon is killed during a change, and the next daemon recovers the workspace.

use std::{
    fs,
    io::Write as _,
    os::unix::process::ExitStatusExt as _,
    path::Path,
    process::{Command, Stdio},
};

use jig::api::v1::ApplyPatchRequest;
use rustix::process::Signal;
use tonic::Status;

use super::change::write;
use crate::support::{Daemon, Setup, snapshot_tree};

/// Counts the journals of changes that a daemon has not finished.
fn count_journals(daemon: &Daemon) -> usize {
    let directories = fs::read_dir(daemon.state_dir().join("changes")).unwrap();
    directories.map(|directory| fs::read_dir(directory.unwrap().path()).unwrap().count()).sum()
}

/// Crashes the daemon at each step of a call, each time on a fresh workspace. The next daemon must
/// leave the old tree or the new one.
async fn crash_at_each_step(
    prepare: impl Fn(&Path),
    call: impl AsyncFn(&Daemon) -> Result<(), Status>,
    min_steps: usize,
) {
    crash_at_steps(1.., prepare, call, min_steps).await;
}

/// As [`crash_at_each_step`], but at the given steps only.
async fn crash_at_steps(
    steps: impl Iterator<Item = usize>,
    prepare: impl Fn(&Path),
    call: impl AsyncFn(&Daemon) -> Result<(), Status>,
    min_steps: usize,
) {
    let trees = {
        let daemon = Daemon::start().await;
        prepare(&daemon.workspace());
        let old = snapshot_tree(&daemon.workspace());
        call(&daemon).await.unwrap();
        [old, snapshot_tree(&daemon.workspace())]
    };

    for step in steps {
        let setup = Setup::new().environment("JIG_DIE_AT_STEP", &step.to_string());
        let mut daemon = setup.start().await;
        prepare(&daemon.workspace());

        if call(&daemon).await.is_ok() {
            assert!(step > min_steps, "the daemon would crash at {step} steps only");
            return;
        }

        let status = daemon.wait_for_exit().await;
        assert_eq!(status.signal(), Some(Signal::KILL.as_raw()));

        let daemon = daemon.restart().await;
        let found = snapshot_tree(&daemon.workspace());
        assert!(trees.contains(&found), "step {step}: {found:?}");
        assert_eq!(count_journals(&daemon), 0, "step {step}");
    }
}

#[tokio::test]
async fn crash_during_write_leaves_the_old_or_new_file() {
    let prepare = |workspace: &Path| fs::write(workspace.join("kept"), "old").unwrap();
    crash_at_each_step(prepare, async |daemon| write(daemon, "kept", "new").await, 3).await;
    crash_at_each_step(prepare, async |daemon| write(daemon, "a/b/new", "new").await, 6).await;
}

#[tokio::test]
async fn crash_during_patch_leaves_all_old_or_all_new_files() {
    let prepare = |workspace: &Path| {
        fs::create_dir(workspace.join("d")).unwrap();
        for file in 0..8 {
            fs::write(workspace.join(format!("d/{file}")), format!("old {file}\n")).unwrap();
        }
    };
    let mut patch = String::new();
    for file in 0..4 {
        patch += &format!("--- a/d/{file}\n+++ b/d/{file}\n@@ -1 +1 @@\n-old {file}\n+new\n");
    }

    for file in 4..7 {
        patch += &format!("--- a/d/{file}\n+++ /dev/null\n@@ -1 +0,0 @@\n-old {file}\n");
    }

    for file in ["new/deep/x", "new/y"] {
        patch += &format!("--- /dev/null\n+++ b/{file}\n@@ -0,0 +1 @@\n+new\n");
    }

    patch += "diff --git a/d/7 b/moved\nsimilarity index 100%\nrename from d/7\nrename to moved\n";
    let call = async |daemon: &Daemon| {
        let request =
            ApplyPatchRequest { unified_diff: patch.clone(), ..ApplyPatchRequest::default() };
        let response = daemon.tools().apply_patch(request).await?;
        assert_eq!(response.into_inner().changed_files.len(), 10);
        Ok(())
    };

    crash_at_each_step(prepare, call, 30).await;
}

#[tokio::test]
async fn crash_during_parallel_writes_leaves_all_old_or_all_new_files() {
    const FILES: usize = 40;
    let prepare = |workspace: &Path| {
        for file in 0..FILES {
            fs::write(workspace.join(file.to_string()), "old\n").unwrap();
        }
    };

    let patch: String = (0..FILES)
        .map(|file| format!("--- a/{file}\n+++ b/{file}\n@@ -1 +1 @@\n-old\n+new\n"))
        .collect();
    let call = async |daemon: &Daemon| {
        let request =
            ApplyPatchRequest { unified_diff: patch.clone(), ..ApplyPatchRequest::default() };
        daemon.tools().apply_patch(request).await.map(drop)
    };

    // One step for the journal, and three for each file.
    crash_at_steps((1..).step_by(9), prepare, call, 3 * FILES).await;
}

#[tokio::test]
async fn crash_during_file_directory_swap_leaves_the_old_or_new_tree() {
    let prepare = |workspace: &Path| {
        fs::create_dir_all(workspace.join("directory/below")).unwrap();
        for (path, content) in
            [("file", "1\n"), ("directory/a", "2\n"), ("directory/below/b", "3\n")]
        {
            fs::write(workspace.join(path), content).unwrap();
        }
    };

    let patch = "diff --git a/file b/file/deep/er\nrename from file\nrename to file/deep/er\n\
        diff --git a/file/x b/file/x\nnew file mode 100644\n--- /dev/null\n+++ b/file/x\n@@ -0,0 +1 @@\n+x\n\
        --- a/directory/a\n+++ /dev/null\n@@ -1 +0,0 @@\n-2\n\
        diff --git a/directory/below/b b/directory\nrename from directory/below/b\nrename to directory\n";
    let call = async |daemon: &Daemon| {
        let request =
            ApplyPatchRequest { unified_diff: patch.to_owned(), ..ApplyPatchRequest::default() };
        daemon.tools().apply_patch(request).await?;
        let file = |path: &str| fs::read_to_string(daemon.file(path)).unwrap();
        assert_eq!(["file/deep/er", "file/x", "directory"].map(file), ["1\n", "x\n", "3\n"]);
        Ok(())
    };

    crash_at_each_step(prepare, call, 9).await;
}

#[tokio::test]
async fn recovery_keeps_changes_made_after_the_crash() {
    let mut patch = String::new();
    for file in 0..4 {
        patch += &format!("--- a/{file}\n+++ b/{file}\n@@ -1 +1 @@\n-old {file}\n+new\n");
    }

    let mut crashes = 0;
    for step in 1.. {
        let setup = Setup::new().environment("JIG_DIE_AT_STEP", &step.to_string());
        let mut daemon = setup.start().await;
        for file in 0..4 {
            fs::write(daemon.file(&file.to_string()), format!("old {file}\n")).unwrap();
        }

        let request =
            ApplyPatchRequest { unified_diff: patch.clone(), ..ApplyPatchRequest::default() };
        if daemon.tools().apply_patch(request).await.is_ok() {
            break;
        }
        daemon.wait_for_exit().await;

        // Replaces one file and edits another.
        fs::remove_file(daemon.file("0")).unwrap();
        fs::write(daemon.file("0"), "by hand").unwrap();
        let mut edited = fs::OpenOptions::new().append(true).open(daemon.file("1")).unwrap();
        edited.write_all(b"by hand").unwrap();
        let daemon = daemon.restart().await;
        let found = ["0", "1"].map(|file| fs::read_to_string(daemon.file(file)).unwrap());
        assert!(found.iter().all(|text| text.ends_with("by hand")), "step {step}: {found:?}");

        crashes += 1;
    }

    assert!(crashes > 8, "{crashes}");
}

#[test]
fn next_embedded_daemon_undoes_a_partial_patch() {
    let directory = tempfile::tempdir().unwrap();
    let workspace = directory.path().join("workspace");
    fs::create_dir(&workspace).unwrap();

    let mut patch = String::new();
    for file in 0..4 {
        fs::write(workspace.join(file.to_string()), "old\n").unwrap();
        patch += &format!("--- a/{file}\n+++ b/{file}\n@@ -1 +1 @@\n-old\n+new\n");
    }

    let file = directory.path().join("patch");
    fs::write(&file, patch).unwrap();

    let jig = |arguments: &[&str], step: &str| {
        Command::new(env!("CARGO_BIN_EXE_jig"))
            .args(arguments)
            .current_dir(&workspace)
            .env_clear()
            .env("XDG_STATE_HOME", directory.path().join("state"))
            .env("TMPDIR", directory.path())
            .env("JIG_DIE_AT_STEP", step)
            .stdin(Stdio::null())
            .output()
            .unwrap()
    };

    let old = snapshot_tree(&workspace);

    // At step 8, two of the four new files are in place.
    let output = jig(&["patch", file.to_str().unwrap()], "8");
    assert_eq!(output.status.signal(), Some(Signal::KILL.as_raw()));
    assert_ne!(snapshot_tree(&workspace), old);

    let output = jig(&["ls"], "0");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(snapshot_tree(&workspace), old);
}
