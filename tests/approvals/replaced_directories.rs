//! A command in the workspace replaces a directory while a call that uses it is pending approval.
//! The daemon denies the call, because the approver saw another directory (attack N9 of `attack`).

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, chown, symlink},
    path::Path,
    time::Duration,
};

use jig::api::v1::{Decision, DeletePathRequest, RunRequest, StartRequest};
use tokio::task::JoinHandle;
use tonic::Status;

use super::{
    ASK_POLICY, decide, decide_request, records_of_type, spawn_write, start_with_policy,
    wait_for_pending_approval, wait_for_pending_approvals, write_request,
};
use crate::support::{Daemon, Refusal, eventually, promptly, shell, snapshot_tree};

/// The approved command, in directory `a/b`.
fn approved_request() -> RunRequest {
    RunRequest { cwd: Some("a/b".to_owned()), ..shell("touch ran") }
}

/// Starts a daemon whose workspace has directories of the commands' user. One more directory lies
/// outside the workspace.
async fn start_with_directories(policy: &str) -> Daemon {
    let daemon = start_with_policy(policy).await;
    for name in ["a/b", "evil/b"] {
        fs::create_dir_all(daemon.file(name)).unwrap();
        fs::write(daemon.file(name).join("kept"), "kept").unwrap();
    }

    let owner = fs::metadata(daemon.workspace()).unwrap();
    for name in ["a", "a/b", "evil", "evil/b"] {
        chown(daemon.file(name), Some(owner.uid()), Some(owner.gid())).unwrap();
    }

    fs::create_dir_all(daemon.sibling_path("outside/b")).unwrap();
    daemon
}

/// What an attacker does with `a` while the call is pending.
type Swap = fn(&Daemon);

const SWAPS: [Swap; 6] = [
    // Another directory replaces it.
    |daemon| {
        replace_path(&daemon.file("a"), || {
            fs::rename(daemon.file("evil"), daemon.file("a")).unwrap()
        })
    },
    // A link to a directory of the workspace, with a relative and with an absolute path.
    |daemon| replace_path(&daemon.file("a"), || symlink("evil", daemon.file("a")).unwrap()),
    |daemon| {
        replace_path(&daemon.file("a"), || symlink("/workspace/evil", daemon.file("a")).unwrap())
    },
    // A link that leads out of the workspace.
    |daemon| {
        replace_path(&daemon.file("a"), || {
            symlink(daemon.sibling_path("outside"), daemon.file("a")).unwrap()
        })
    },
    // The same for the directory below.
    |daemon| {
        replace_path(&daemon.file("a/b"), || symlink("../evil/b", daemon.file("a/b")).unwrap())
    },
    |daemon| {
        replace_path(&daemon.file("a/b"), || {
            fs::rename(daemon.file("evil/b"), daemon.file("a/b")).unwrap()
        })
    },
];

fn replace_path(path: &Path, create_replacement: impl FnOnce()) {
    fs::rename(path, path.with_extension("taken")).unwrap();
    create_replacement();
}

/// Approves the call after the swap, and checks that it has no effect.
async fn assert_call_is_denied<T: std::fmt::Debug>(
    daemon: &Daemon,
    swap: Swap,
    call: JoinHandle<Result<T, Status>>,
) {
    let approval = wait_for_pending_approval(daemon).await;
    swap(daemon);
    decide(daemon, decide_request(&approval, Decision::Allow)).await.unwrap();
    let status = promptly("the call is denied", call).await.unwrap().unwrap_err();
    let refusal = Refusal::from_status(&status);
    assert_eq!(refusal.reason, "APPROVAL_DENIED", "{refusal:?}");

    let part = "was replaced while it waited";
    assert!(refusal.message.contains(part), "{refusal:?}");

    let denied = records_of_type(daemon, "tool_call_denied");
    assert_eq!(denied[0]["denied_by"], "policy:directory_replaced");
    assert!(records_of_type(daemon, "tool_call_started").is_empty());

    for directory in [daemon.workspace(), daemon.sibling_path("outside")] {
        let mut paths = snapshot_tree(&directory).into_keys();
        assert_eq!(paths.find(|path| path.ends_with("ran")), None);
    }
}

#[tokio::test]
async fn case_n9_approved_command_does_not_run_in_a_replaced_directory() {
    for swap in SWAPS {
        let daemon = start_with_directories(ASK_POLICY).await;
        let call = daemon.spawn_run(approved_request());
        assert_call_is_denied(&daemon, swap, call).await;
    }
}

#[tokio::test]
async fn case_n9_approved_process_does_not_start_in_a_replaced_directory() {
    for swap in SWAPS {
        let daemon = start_with_directories(ASK_POLICY).await;
        let RunRequest { command, cwd, .. } = approved_request();
        let request = StartRequest { command, cwd, ..StartRequest::default() };
        let mut processes = daemon.processes();
        let call = tokio::spawn(async move {
            let mut stream = processes.start(request).await?.into_inner();
            while stream.message().await?.is_some() {}
            Ok(())
        });
        assert_call_is_denied(&daemon, swap, call).await;
    }
}

#[tokio::test]
async fn case_n9_approved_change_does_not_touch_a_replaced_directory() {
    for swap in SWAPS {
        let daemon = start_with_directories(ASK_POLICY).await;
        let call = spawn_write(&daemon, write_request("a/b/ran", "text"));
        assert_call_is_denied(&daemon, swap, call).await;

        let daemon = start_with_directories(ASK_POLICY).await;
        let mut tools = daemon.tools();
        let request = DeletePathRequest { path: "a/b".to_owned(), recursive: Some(true) };
        let call = tokio::spawn(async move { tools.delete_path(request).await.map(drop) });
        assert_call_is_denied(&daemon, swap, call).await;

        let tree = snapshot_tree(&daemon.workspace());
        let remaining = tree.keys().filter(|path| path.ends_with("kept"));
        assert_eq!(remaining.count(), 2, "{tree:?}");
    }
}

#[tokio::test]
async fn approved_changes_can_create_the_same_directory() {
    let daemon = start_with_directories(ASK_POLICY).await;
    let names = ["first", "second", "third"];
    let calls = names.map(|name| {
        let path = format!("a/new/directory/{name}");
        spawn_write(&daemon, write_request(&path, "text"))
    });
    for approval in wait_for_pending_approvals(&daemon, names.len()).await {
        decide(&daemon, decide_request(&approval, Decision::Allow)).await.unwrap();
    }
    for call in calls {
        promptly("the call ends", call).await.unwrap().unwrap();
    }
    for name in names {
        assert!(daemon.file("a/new/directory").join(name).exists(), "{name}");
    }
}

#[tokio::test]
async fn case_n9_approved_change_does_not_touch_a_directory_in_place_of_a_link() {
    let daemon = start_with_directories(ASK_POLICY).await;
    symlink("b", daemon.file("a/link")).unwrap();
    let call = spawn_write(&daemon, write_request("a/link/b/ran", "text"));
    let swap: Swap = |daemon| {
        replace_path(&daemon.file("a/link"), || {
            fs::rename(daemon.file("evil"), daemon.file("a/link")).unwrap()
        })
    };
    assert_call_is_denied(&daemon, swap, call).await;
}

#[tokio::test]
async fn case_n9_approved_deletion_does_not_remove_a_new_directory() {
    let daemon = start_with_directories(ASK_POLICY).await;
    let mut tools = daemon.tools();
    let request = DeletePathRequest { path: "a/new".to_owned(), recursive: Some(true) };
    let call = tokio::spawn(async move { tools.delete_path(request).await.map(drop) });
    let swap: Swap = |daemon| fs::rename(daemon.file("evil"), daemon.file("a/new")).unwrap();
    assert_call_is_denied(&daemon, swap, call).await;
    assert!(daemon.file("a/new/b/kept").exists());
}

#[tokio::test]
async fn case_n9_daemon_rejects_commands_in_linked_directories() {
    let daemon = start_with_directories(ASK_POLICY).await;
    symlink("a", daemon.file("link")).unwrap();
    let request = RunRequest { cwd: Some("link/b".to_owned()), ..shell("touch ran") };
    let refusal = daemon.run_failing(request, "SYMLINK_BLOCKED").await;
    assert!(refusal.message.contains("give the path that it leads to"), "{refusal:?}");
}

#[tokio::test]
async fn approved_command_runs_in_an_unreplaced_directory() {
    let daemon = start_with_directories(ASK_POLICY).await;
    let call = daemon.spawn_run(approved_request());
    let approval = wait_for_pending_approval(&daemon).await;

    // New entries do not make it another directory.
    fs::write(daemon.file("a/b/new"), "").unwrap();
    fs::create_dir(daemon.file("a/other")).unwrap();
    decide(&daemon, decide_request(&approval, Decision::Allow)).await.unwrap();
    let response = promptly("the command runs", call).await.unwrap().unwrap();
    assert_eq!(response.exit_code, Some(0), "{response:?}");
    assert!(daemon.file("a/b/ran").exists());
}

#[tokio::test]
async fn case_n9_command_does_not_enter_a_directory_replaced_after_approval() {
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
        let daemon = start_with_directories(ONE_AT_A_TIME).await;
        let request = RunRequest { cwd: Some("a/b".to_owned()), ..shell("touch asked-ran") };
        let pending_call = daemon.spawn_run(request);
        let approval = wait_for_pending_approval(&daemon).await;
        let blocker = daemon.spawn_run(shell("touch begun; until [ -e go ]; do sleep 0.01; done"));
        eventually("the command runs", async || daemon.file("begun").exists()).await;
        decide(&daemon, decide_request(&approval, Decision::Allow)).await.unwrap();

        // The directories were compared; the call waits for its permit.
        eventually("the call is queued", async || {
            daemon.info().await.counts.unwrap().calls_queued == 1
        })
        .await;
        swap(&daemon);
        fs::write(daemon.file("go"), "").unwrap();
        blocker.await.unwrap().unwrap();
        let status = promptly("the call is denied", pending_call).await.unwrap().unwrap_err();
        let refusal = Refusal::from_status(&status);

        // A link to a directory that does not exist in the sandbox is dangling.
        let reasons = ["APPROVAL_DENIED", "DIRECTORY_NOT_FOUND"];
        assert!(reasons.contains(&refusal.reason.as_str()), "{refusal:?}");

        let mut paths = snapshot_tree(&daemon.workspace()).into_keys();
        assert_eq!(paths.find(|path| path.ends_with("asked-ran")), None);
    }
}

#[tokio::test]
async fn descriptor_shortage_is_not_a_replaced_directory() {
    let daemon = start_with_directories(ASK_POLICY).await;
    for is_brief in [true, false] {
        let call = daemon.spawn_run(approved_request());
        let approval = wait_for_pending_approval(&daemon).await;
        let usual_limit = daemon.set_descriptor_limit(3);
        decide(&daemon, decide_request(&approval, Decision::Allow)).await.unwrap();
        if is_brief {
            // Less than all pauses between the retries.
            tokio::time::sleep(Duration::from_millis(150)).await;
            daemon.set_descriptor_limit(usual_limit);
        }
        let ended = promptly("the call ends", call).await.unwrap();
        daemon.set_descriptor_limit(usual_limit);
        if is_brief {
            assert_eq!(ended.unwrap().exit_code, Some(0));
            fs::remove_file(daemon.file("a/b/ran")).unwrap();
        } else {
            let refusal = Refusal::from_status(&ended.unwrap_err());
            assert_eq!(refusal.reason, "RESOURCE_EXHAUSTED", "{refusal:?}");
            assert!(!daemon.file("a/b/ran").exists());
        }
    }
}
