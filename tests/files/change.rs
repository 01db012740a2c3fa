//! Writing, making, moving and deleting: what commands and tools do to the same files.

use std::{
    fs,
    os::unix::{fs::MetadataExt as _, process::ExitStatusExt as _},
    path::Path,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use jig::api::v1::{
    ApplyPatchRequest, CreateDirectoryRequest, DeletePathRequest, Encoding, MovePathRequest,
    ReadFileRequest, WriteFileRequest, WriteMode,
};
use rustix::process::Signal;
use tonic::Status;

use crate::support::{Daemon, Refusal, Setup, shell};

fn file(path: &str, content: &str) -> WriteFileRequest {
    WriteFileRequest {
        path: path.to_owned(),
        content: content.to_owned(),
        ..WriteFileRequest::default()
    }
}

async fn write(daemon: &Daemon, path: &str, content: &str) -> Result<(), Status> {
    daemon
        .tools()
        .write_file(file(path, content))
        .await
        .map(drop)
}

async fn remove(daemon: &Daemon, path: &str) -> Result<u32, Status> {
    let request = DeletePathRequest {
        path: path.to_owned(),
        recursive: Some(true),
    };
    let answer = daemon.tools().delete_path(request).await?;
    Ok(answer.into_inner().deleted_count)
}

async fn rename(daemon: &Daemon, source: &str, destination: &str) -> Result<(), Status> {
    let request = MovePathRequest {
        source: source.to_owned(),
        destination: destination.to_owned(),
        overwrite: None,
    };
    daemon.tools().move_path(request).await.map(drop)
}

async fn make(daemon: &Daemon, path: &str) -> Result<Vec<String>, Status> {
    let request = CreateDirectoryRequest {
        path: path.to_owned(),
    };
    let answer = daemon.tools().create_directory(request).await?;
    Ok(answer.into_inner().created)
}

fn reason<T: std::fmt::Debug>(result: Result<T, Status>) -> String {
    Refusal::of(&result.unwrap_err()).reason
}

#[tokio::test]
async fn commands_and_tools_change_each_others_files() {
    for setup in [
        Setup::new(),
        Setup::new().workspace_owner(12345),
        Setup::new().user(12345),
    ] {
        let owner = setup.owner();
        let daemon = setup.start().await;
        write(&daemon, "a/b/tool", "by the tool\n").await.unwrap();
        for path in ["a", "a/b", "a/b/tool"] {
            let metadata = fs::metadata(daemon.file(path)).unwrap();
            assert_eq!((metadata.uid(), metadata.gid()), (owner, owner), "{path}");
        }
        let script = "echo more >> a/b/tool && mkdir a/c && echo own > a/c/command && chmod 640 a/c/command && cat a/b/tool";
        let output = daemon.output(shell(script)).await;
        assert_eq!(output, "by the tool\nmore\n");

        write(&daemon, "a/c/command", "by the tool\n")
            .await
            .unwrap();
        let metadata = fs::metadata(daemon.file("a/c/command")).unwrap();
        assert_eq!((metadata.uid(), metadata.mode() & 0o7777), (owner, 0o640));
        rename(&daemon, "a/c/command", "a/b/moved").await.unwrap();
        assert_eq!(make(&daemon, "new/dir").await.unwrap(), ["new", "new/dir"]);
        let script = "cat a/b/moved; touch new/dir/x; ls -A a/b new/dir; rm -r new a/b/tool";
        let output = daemon.output(shell(script)).await;
        assert_eq!(output, "by the tool\na/b:\nmoved\ntool\n\nnew/dir:\nx\n");
        assert_eq!(remove(&daemon, "a").await.unwrap(), 4);
        assert_eq!(fs::read_dir(daemon.workspace()).unwrap().count(), 0);
    }
}

#[tokio::test]
async fn requests_that_contradict_themselves_are_refused() {
    let daemon = Daemon::start().await;
    let refused = |request: WriteFileRequest| {
        let mut tools = daemon.tools();
        async move { Refusal::of(&tools.write_file(request).await.unwrap_err()) }
    };
    let refusal = refused(WriteFileRequest {
        path: String::new(),
        mode: Some(WriteMode::CreateNew.into()),
        expected_sha256: Some("abc".to_owned()),
        file_mode: Some(0o1000),
        encoding: Some(7),
        ..file("", "x")
    })
    .await;
    assert_eq!(refusal.reason, "INVALID_PARAMS");
    let mut fields = refusal.fields();
    fields.sort_unstable();
    assert_eq!(fields, ["encoding", "expected_sha256", "file_mode", "path"]);
    let refusal = refused(WriteFileRequest {
        encoding: Some(jig::api::v1::Encoding::Base64.into()),
        ..file("f", "no base64!")
    })
    .await;
    assert_eq!(refusal.fields(), ["content"]);
    assert_eq!(fs::read_dir(daemon.workspace()).unwrap().count(), 0);
}

#[tokio::test]
async fn case_49_protected_paths_are_changed_by_nobody() {
    for setup in [
        Setup::new(),
        Setup::new().workspace_owner(12345),
        Setup::new().user(12345),
    ] {
        let table = "protected = [\".git/hooks\", \"missing/deep\"]";
        are_protected(&setup.workspace_table(table).start().await).await;
    }
}

async fn are_protected(daemon: &Daemon) {
    let at = |name: &str| daemon.file(name);
    assert!(
        at(".git/hooks").is_dir(),
        "it is there so that nobody makes it"
    );
    let tools = [
        reason(write(daemon, ".git/hooks/pre-commit", "x").await),
        reason(write(daemon, ".git/hooks", "x").await),
        reason(rename(daemon, ".git", "git").await),
        reason(rename(daemon, ".git/hooks", "hooks").await),
        reason(remove(daemon, ".git").await),
        reason(remove(daemon, ".git/hooks/pre-commit").await),
        reason(make(daemon, "missing/deep/er").await),
    ];
    assert_eq!(tools, ["POLICY_DENIED"; 7].map(str::to_owned));
    for command in [
        "echo x > .git/hooks/pre-commit",
        "mkdir .git/hooks/x",
        "mv .git git",
        "mv .git/hooks hooks",
        "rmdir .git/hooks",
        "rm -rf .git",
        "ln -s /tmp missing/deep",
        "rm -r missing && mkdir -p missing/deep",
        "mv missing other && mkdir missing && ln -s /tmp missing/deep",
        "chmod 777 .git/hooks",
    ] {
        let response = daemon.run(shell(command)).await;
        assert_ne!(response.exit_code, Some(0), "{command}: {response:?}");
    }
    for (path, is_there) in [(".git/hooks", true), ("missing/deep", true), ("git", false)] {
        assert_eq!(at(path).is_dir(), is_there, "{path}");
    }
    assert_eq!(fs::read_dir(at(".git/hooks")).unwrap().count(), 0);
    // What lies beside them may be changed.
    write(daemon, ".git/config", "x").await.unwrap();
    daemon
        .output(shell("echo y >> .git/config; touch missing/x"))
        .await;
    assert_eq!(fs::read_to_string(at(".git/config")).unwrap(), "xy\n");
}

#[tokio::test]
async fn links_that_stay_in_the_workspace_are_followed_where_the_operator_says_so() {
    let lines = "symlinks = \"beneath\"\nprotected = [\"safe\"]";
    let daemon = Setup::new().workspace_table(lines).start().await;
    daemon
        .output(shell(
            "mkdir d; echo x > d/f; ln -s d link; ln -s /etc out; ln -s ../.. up; ln -s safe unsafe",
        ))
        .await;
    write(&daemon, "link/f", "new").await.unwrap();
    write(&daemon, "link/deep/er/f", "new").await.unwrap();
    assert_eq!(fs::read_to_string(daemon.file("d/f")).unwrap(), "new");
    assert!(daemon.file("d/deep/er/f").is_file());
    assert_eq!(daemon.read_file("link/f").await.unwrap(), "new");
    assert_eq!(reason(write(&daemon, "out/x", "x").await), "PATH_ESCAPE");
    assert_eq!(reason(write(&daemon, "up/x", "x").await), "PATH_ESCAPE");
    assert_eq!(
        reason(write(&daemon, "unsafe/x", "x").await),
        "POLICY_DENIED"
    );
}

/// Everything in a directory: paths and what the files hold.
fn tree(folder: &Path) -> Vec<(String, Option<String>)> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(folder).unwrap().display().to_string();
            if path.is_dir() {
                found.push((name, None));
                folders.push(path);
            } else {
                found.push((name, Some(fs::read_to_string(path).unwrap())));
            }
        }
    }
    found.sort();
    found
}

/// Files of changes that a daemon has begun and not ended.
fn journals(daemon: &Daemon) -> usize {
    let folders = fs::read_dir(daemon.state().join("changes")).unwrap();
    folders
        .map(|folder| fs::read_dir(folder.unwrap().path()).unwrap().count())
        .sum()
}

/// Has the daemon die at each step of a call, on a workspace prepared anew each time, and checks
/// that the next one leaves the old tree or the new one.
async fn dies_at_each_step(
    prepare: impl Fn(&Path),
    call: impl AsyncFn(&Daemon) -> Result<(), Status>,
    fewest_steps: usize,
) {
    let trees = {
        let daemon = Daemon::start().await;
        prepare(&daemon.workspace());
        let old = tree(&daemon.workspace());
        call(&daemon).await.unwrap();
        [old, tree(&daemon.workspace())]
    };
    for step in 1.. {
        let setup = Setup::new().environment("JIG_DIE_AT_STEP", &step.to_string());
        let mut daemon = setup.start().await;
        prepare(&daemon.workspace());
        if call(&daemon).await.is_ok() {
            assert!(step > fewest_steps, "it died only {step} times");
            return;
        }
        let status = daemon.exit().await;
        assert_eq!(status.signal(), Some(Signal::KILL.as_raw()));
        let daemon = daemon.restart().await;
        let found = tree(&daemon.workspace());
        assert!(trees.contains(&found), "step {step}: {found:?}");
        assert_eq!(journals(&daemon), 0, "step {step}");
    }
}

#[tokio::test]
async fn a_daemon_that_dies_while_it_writes_leaves_the_old_or_the_new() {
    let prepare = |workspace: &Path| fs::write(workspace.join("kept"), "old").unwrap();
    dies_at_each_step(
        prepare,
        async |daemon| write(daemon, "kept", "new").await,
        3,
    )
    .await;
    dies_at_each_step(
        prepare,
        async |daemon| write(daemon, "a/b/new", "new").await,
        6,
    )
    .await;
}

#[tokio::test]
async fn a_daemon_that_dies_while_it_patches_ten_files_leaves_all_old_or_all_new() {
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
        let request = ApplyPatchRequest {
            unified_diff: patch.clone(),
            ..ApplyPatchRequest::default()
        };
        let answer = daemon.tools().apply_patch(request).await?;
        assert_eq!(answer.into_inner().changed_files.len(), 10);
        Ok(())
    };
    dies_at_each_step(prepare, call, 30).await;
}

#[tokio::test]
async fn a_tree_that_is_written_is_read_and_listed_as_it_was() {
    let daemon = Daemon::start().await;
    // A sequence that is always the same (Knuth's MMIX generator).
    let mut state = 7_u64;
    let mut random = |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut expected = std::collections::BTreeMap::new();
    for _ in 0..200 {
        // Directories have names of their own, so that none is a file too.
        let depth = random(4);
        let above: String = (0..depth).map(|_| format!("d{}/", random(3))).collect();
        let path = format!("{above}f{}", random(40));
        let content: Vec<u8> = (0..random(3000))
            .map(|_| u8::try_from(random(256)).unwrap())
            .collect();
        let request = WriteFileRequest {
            encoding: Some(Encoding::Base64.into()),
            ..file(&path, &BASE64_STANDARD.encode(&content))
        };
        let written = daemon
            .tools()
            .write_file(request)
            .await
            .unwrap()
            .into_inner();
        let old = expected.insert(path, content);
        assert_eq!(written.created, old.is_none());
    }
    let mut listed = daemon.list_files().await;
    let paths: Vec<_> = expected.keys().cloned().collect();
    assert_eq!(listed, paths, "sorted by their bytes");
    for (path, content) in &expected {
        let request = ReadFileRequest {
            path: path.clone(),
            encoding: Some(Encoding::Base64.into()),
            ..ReadFileRequest::default()
        };
        let read = daemon
            .tools()
            .read_file(request)
            .await
            .unwrap()
            .into_inner();
        assert_eq!(
            &BASE64_STANDARD.decode(read.content).unwrap(),
            content,
            "{path}"
        );
        assert_eq!(&fs::read(daemon.file(path)).unwrap(), content);
    }
    while let Some(path) = listed.pop() {
        assert_eq!(remove(&daemon, &path).await.unwrap(), 1);
    }
    assert_eq!(daemon.list_files().await, Vec::<String>::new());
}
