//! A command in the workspace replaces a directory while a call that uses it waits to be approved. The call
//! is refused: the approver saw another directory (N9).

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, chown, symlink},
    path::Path,
};

use jig::api::v1::{Decision, DeletePathRequest, RunRequest, StartRequest};
use tokio::task::JoinHandle;
use tonic::Status;

use super::{ASK, decide, decision, events, file, wait_for_one, with_policy, write};
use crate::support::{Daemon, Refusal, eventually, promptly, shell, tree};

/// The command that is approved, in `a/b`.
fn run() -> RunRequest {
    RunRequest { cwd: Some("a/b".to_owned()), ..shell("touch ran") }
}

/// A daemon that asks about calls. Its workspace has directories that belong to the commands' user, and one
/// lies beside it.
async fn prepared(policy: &str) -> Daemon {
    let daemon = with_policy(policy).await;
    for name in ["a/b", "evil/b"] {
        fs::create_dir_all(daemon.file(name)).unwrap();
        fs::write(daemon.file(name).join("kept"), "kept").unwrap();
    }
    let owner = fs::metadata(daemon.workspace()).unwrap();
    for name in ["a", "a/b", "evil", "evil/b"] {
        chown(daemon.file(name), Some(owner.uid()), Some(owner.gid())).unwrap();
    }
    fs::create_dir_all(daemon.beside("outside/b")).unwrap();
    daemon
}

/// What an attacker does with `a` while the call waits.
type Swap = fn(&Daemon);

const SWAPS: [Swap; 6] = [
    // Another directory in its place.
    |daemon| {
        replace(&daemon.file("a"), || fs::rename(daemon.file("evil"), daemon.file("a")).unwrap())
    },
    // A link to one in the workspace, by a relative and by an absolute path.
    |daemon| replace(&daemon.file("a"), || symlink("evil", daemon.file("a")).unwrap()),
    |daemon| replace(&daemon.file("a"), || symlink("/workspace/evil", daemon.file("a")).unwrap()),
    // A link that leads out.
    |daemon| {
        replace(&daemon.file("a"), || symlink(daemon.beside("outside"), daemon.file("a")).unwrap())
    },
    // The same one below.
    |daemon| replace(&daemon.file("a/b"), || symlink("../evil/b", daemon.file("a/b")).unwrap()),
    |daemon| {
        replace(&daemon.file("a/b"), || {
            fs::rename(daemon.file("evil/b"), daemon.file("a/b")).unwrap()
        })
    },
];

fn replace(path: &Path, with: impl FnOnce()) {
    fs::rename(path, path.with_extension("taken")).unwrap();
    with();
}

/// Has the call approved after the swap, and checks that nothing of it was made.
async fn is_not_made<T: std::fmt::Debug>(
    daemon: &Daemon,
    swap: Swap,
    call: JoinHandle<Result<T, Status>>,
) {
    let approval = wait_for_one(daemon).await;
    swap(daemon);
    decide(daemon, decision(&approval, Decision::Allow)).await.unwrap();
    let status = promptly("it is told", call).await.unwrap().unwrap_err();
    let refusal = Refusal::of(&status);
    assert_eq!(refusal.reason, "APPROVAL_DENIED", "{refusal:?}");
    let replaced = "was replaced while it waited";
    assert!(refusal.message.contains(replaced), "{refusal:?}");
    let denied = events(daemon, "tool_call_denied");
    assert_eq!(denied[0]["denied_by"], "policy:directory_replaced");
    assert!(events(daemon, "tool_call_started").is_empty());
    for folder in [daemon.workspace(), daemon.beside("outside")] {
        let mut paths = tree(&folder).into_keys();
        assert_eq!(paths.find(|path| path.ends_with("ran")), None);
    }
}

#[tokio::test]
async fn case_n9_an_approved_command_is_not_run_elsewhere() {
    for swap in SWAPS {
        let daemon = prepared(ASK).await;
        let call = daemon.begin(run());
        is_not_made(&daemon, swap, call).await;
    }
}

#[tokio::test]
async fn case_n9_an_approved_process_is_not_started_elsewhere() {
    for swap in SWAPS {
        let daemon = prepared(ASK).await;
        let RunRequest { command, cwd, .. } = run();
        let request = StartRequest { command, cwd, ..StartRequest::default() };
        let mut processes = daemon.processes();
        let call = tokio::spawn(async move {
            let mut stream = processes.start(request).await?.into_inner();
            while stream.message().await?.is_some() {}
            Ok(())
        });
        is_not_made(&daemon, swap, call).await;
    }
}

#[tokio::test]
async fn case_n9_an_approved_change_is_not_made_elsewhere() {
    for swap in SWAPS {
        let daemon = prepared(ASK).await;
        let call = write(&daemon, file("a/b/ran", "text"));
        is_not_made(&daemon, swap, call).await;

        let daemon = prepared(ASK).await;
        let mut tools = daemon.tools();
        let request = DeletePathRequest { path: "a/b".to_owned(), recursive: Some(true) };
        let call = tokio::spawn(async move { tools.delete_path(request).await.map(drop) });
        is_not_made(&daemon, swap, call).await;
        let left = tree(&daemon.workspace());
        let kept = left.keys().filter(|path| path.ends_with("kept"));
        assert_eq!(kept.count(), 2, "{left:?}");
    }
}

#[tokio::test]
async fn case_n9_a_command_behind_a_link_is_not_asked_about() {
    let daemon = prepared(ASK).await;
    symlink("a", daemon.file("link")).unwrap();
    let request = RunRequest { cwd: Some("link/b".to_owned()), ..shell("touch ran") };
    let refusal = daemon.refuses(request, "SYMLINK_BLOCKED").await;
    assert!(refusal.message.contains("give the path that it leads to"), "{refusal:?}");
}

#[tokio::test]
async fn what_is_not_replaced_is_run_where_it_was_approved() {
    let daemon = prepared(ASK).await;
    let call = daemon.begin(run());
    let approval = wait_for_one(&daemon).await;
    // What changes in it is no other directory.
    fs::write(daemon.file("a/b/new"), "").unwrap();
    fs::create_dir(daemon.file("a/other")).unwrap();
    decide(&daemon, decision(&approval, Decision::Allow)).await.unwrap();
    let response = promptly("it runs", call).await.unwrap().unwrap();
    assert_eq!(response.exit_code, Some(0), "{response:?}");
    assert!(daemon.file("a/b/ran").exists());
}

#[tokio::test]
async fn case_n9_a_directory_that_is_replaced_after_the_approval_is_not_entered() {
    const ONE_AT_A_TIME: &str = r#"
        [limits]
        concurrent_calls = 1
        [[policy.rules]]
        name = "ask"
        tool = "run"
        pattern = "asked"
        action = "ask"
    "#;
    for swap in SWAPS {
        let daemon = prepared(ONE_AT_A_TIME).await;
        let request = RunRequest { cwd: Some("a/b".to_owned()), ..shell("touch asked-ran") };
        let asked = daemon.begin(request);
        let approval = wait_for_one(&daemon).await;
        let busy = daemon.begin(shell("touch begun; until [ -e go ]; do sleep 0.01; done"));
        eventually("it runs", async || daemon.file("begun").exists()).await;
        decide(&daemon, decision(&approval, Decision::Allow)).await.unwrap();
        // The directories were compared; the call waits for its place.
        eventually("it waits", async || daemon.info().await.counts.unwrap().calls_waiting == 1)
            .await;
        swap(&daemon);
        fs::write(daemon.file("go"), "").unwrap();
        busy.await.unwrap().unwrap();
        let status = promptly("it is told", asked).await.unwrap().unwrap_err();
        let refusal = Refusal::of(&status);
        // A link to a directory that the sandbox does not have leads nowhere.
        let reasons = ["APPROVAL_DENIED", "DIRECTORY_NOT_FOUND"];
        assert!(reasons.contains(&refusal.reason.as_str()), "{refusal:?}");
        let mut paths = tree(&daemon.workspace()).into_keys();
        assert_eq!(paths.find(|path| path.ends_with("asked-ran")), None);
    }
}
