//! Repeated calls within the lifetime of a daemon.

use jig::api::v1::{
    CreateDirectoryRequest, Edit, EditFileRequest, ReadFileRequest, RunRequest, WriteFileRequest,
    WriteStdinRequest,
};

use super::{WAIT_FOR_GO_FILE, counted_command, run_count, run_counted, with_request_id};
use crate::support::{Daemon, Refusal, Setup, eventually, shell, start_request};

#[tokio::test]
async fn repeated_call_returns_first_answer() {
    let daemon = Daemon::start().await;

    let first = run_counted(&daemon, "one").await;
    assert_eq!(first.exit_code, Some(3));

    for _ in 0..3 {
        assert_eq!(run_counted(&daemon, "one").await, first);
    }
    assert_eq!(run_count(&daemon), 1);

    let another = run_counted(&daemon, "two").await;
    assert_ne!(another.stdout, first.stdout);

    daemon.run(counted_command("")).await;
    assert_eq!(run_count(&daemon), 3);
}

#[tokio::test]
async fn fifty_clients_with_one_id_get_one_answer() {
    let daemon = Daemon::start().await;

    let calls: Vec<_> = (0..50)
        .map(|_| {
            let mut tools = daemon.tools_on_new_connection();
            tokio::spawn(async move {
                let answer =
                    tools.run(with_request_id("shared", counted_command("sleep 0.3"))).await;
                answer.unwrap().into_inner()
            })
        })
        .collect();
    let mut answers = Vec::new();
    for call in calls {
        answers.push(call.await.unwrap());
    }

    answers.dedup();
    assert_eq!(answers.len(), 1, "{answers:?}");
    assert_eq!(run_count(&daemon), 1);
}

#[tokio::test]
async fn map_order_does_not_change_the_request() {
    let daemon = Daemon::start().await;

    let request = |names: &[&str]| RunRequest {
        env: names.iter().map(|name| ((*name).to_owned(), "x".to_owned())).collect(),
        ..counted_command("")
    };
    let names: Vec<String> = (0..20).map(|number| format!("NAME_{number}")).collect();
    let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
    let first = daemon.run(with_request_id("env", request(&names))).await;
    names.reverse();

    assert_eq!(daemon.run(with_request_id("env", request(&names))).await, first);
}

#[tokio::test]
async fn different_request_with_used_id_is_rejected() {
    let daemon = Daemon::start().await;

    run_counted(&daemon, "used").await;
    let result = daemon.try_run(with_request_id("used", shell("true"))).await;
    let refusal = Refusal::from_status(&result.unwrap_err());
    assert_eq!(refusal.reason, "REQUEST_ID_REUSED");
    assert!(refusal.message.contains("message"), "{}", refusal.message);
    assert_eq!(refusal.metadata["request_id"], "used");

    let mut other_session = with_request_id("used", counted_command("exit 3"));
    other_session.metadata_mut().insert("jig-session", "another".parse().unwrap());
    let refusal = Refusal::from_status(&daemon.try_run(other_session).await.unwrap_err());
    assert!(refusal.message.contains("session"), "{}", refusal.message);

    let request = CreateDirectoryRequest { path: "made".to_owned() };
    let result = daemon.tools().create_directory(with_request_id("used", request)).await;
    let refusal = Refusal::from_status(&result.unwrap_err());
    assert!(refusal.message.contains("run"), "{}", refusal.message);
    assert!(!daemon.file("made").exists());

    let result =
        daemon.try_start_process(with_request_id("used", start_request(shell("true")))).await;
    assert_eq!(Refusal::from_status(&result.unwrap_err()).reason, "REQUEST_ID_REUSED");
    assert_eq!(run_count(&daemon), 1);
}

#[tokio::test]
async fn different_request_is_rejected_while_first_runs() {
    let daemon = Daemon::start().await;

    let run = daemon.spawn_run(with_request_id("used", counted_command(WAIT_FOR_GO_FILE)));
    eventually("the command runs", async || run_count(&daemon) == 1).await;

    let result = daemon.try_run(with_request_id("used", shell("true"))).await;
    assert_eq!(Refusal::from_status(&result.unwrap_err()).reason, "REQUEST_ID_REUSED");

    std::fs::write(daemon.file("go"), "").unwrap();
    assert_eq!(run.await.unwrap().unwrap().exit_code, Some(0));
}

#[tokio::test]
async fn repeated_call_returns_first_error() {
    let daemon = Daemon::start().await;

    let edit = || EditFileRequest {
        path: "file".to_owned(),
        edits: vec![Edit {
            old_string: "old".to_owned(),
            new_string: "new".to_owned(),
            ..Edit::default()
        }],
        ..EditFileRequest::default()
    };
    let first = daemon.tools().edit_file(with_request_id("edit", edit())).await;
    let first = Refusal::from_status(&first.unwrap_err());
    assert_eq!(first.reason, "FILE_NOT_FOUND");

    std::fs::write(daemon.file("file"), "old").unwrap();
    let repeated = daemon.tools().edit_file(with_request_id("edit", edit())).await;
    let repeated = Refusal::from_status(&repeated.unwrap_err());
    assert_eq!((repeated.reason, repeated.message), (first.reason, first.message));
    assert_eq!(repeated.metadata, first.metadata);

    let under_new_id = daemon.tools().edit_file(with_request_id("new id", edit())).await;
    assert!(under_new_id.is_ok());
}

#[tokio::test]
async fn rejected_call_can_be_corrected_under_same_id() {
    let daemon = Daemon::start().await;

    let refused = daemon.try_run(with_request_id("corrected", RunRequest::default())).await;
    assert_eq!(Refusal::from_status(&refused.unwrap_err()).reason, "INVALID_PARAMS");
    assert_eq!(run_counted(&daemon, "corrected").await.exit_code, Some(3));

    let write = |eof| WriteStdinRequest {
        process_id: "none".to_owned(),
        eof,
        ..WriteStdinRequest::default()
    };
    let refused = daemon.write_stdin(with_request_id("write", write(false))).await;
    assert_eq!(refused.unwrap_err().reason, "INVALID_PARAMS");

    let refused = daemon.write_stdin(with_request_id("write", write(true))).await;
    assert_eq!(refused.unwrap_err().reason, "PROCESS_NOT_FOUND");
}

#[tokio::test]
async fn expired_approval_can_be_requested_again_under_same_id() {
    let table = "[policy]\ndangerous = \"ask\"\n[approvals]\ntimeout = \"200ms\"";
    let daemon = Setup::new().workspace_table(table).start().await;

    let mut approval_ids = Vec::new();
    for _ in 0..2 {
        let refused = daemon.try_run(with_request_id("asked", counted_command(""))).await;
        let refusal = Refusal::from_status(&refused.unwrap_err());
        assert_eq!(refusal.metadata["state"], "EXPIRED");
        approval_ids.push(refusal.metadata["approval_id"].clone());
    }
    assert_ne!(approval_ids[0], approval_ids[1]);
    assert_eq!(run_count(&daemon), 0);
}

#[tokio::test]
async fn read_only_calls_run_again() {
    let daemon = Daemon::start().await;
    let read = async || {
        let request = ReadFileRequest { path: "file".to_owned(), ..ReadFileRequest::default() };
        let answer = daemon.tools().read_file(with_request_id("read", request)).await;
        answer.unwrap().into_inner().content
    };
    for text in ["first", "second"] {
        std::fs::write(daemon.file("file"), text).unwrap();
        assert_eq!(read().await, text);
    }
}

#[tokio::test]
async fn repeated_write_is_performed_once() {
    let daemon = Daemon::start().await;

    let write = || WriteFileRequest {
        path: "file".to_owned(),
        content: "text".to_owned(),
        ..WriteFileRequest::default()
    };
    let first = daemon.tools().write_file(with_request_id("write", write())).await;
    let first = first.unwrap().into_inner();
    assert!(first.created);

    std::fs::write(daemon.file("file"), "changed since").unwrap();
    let repeated = daemon.tools().write_file(with_request_id("write", write())).await;
    assert_eq!(repeated.unwrap().into_inner(), first);

    let text = std::fs::read_to_string(daemon.file("file")).unwrap();
    assert_eq!(text, "changed since");
}

#[tokio::test]
async fn repeated_start_replays_the_same_process() {
    let daemon = Daemon::start().await;

    let request = || start_request(counted_command("cat; echo end"));
    let mut first = daemon.start_process(with_request_id("start", request())).await;
    eventually("the process runs", async || run_count(&daemon) == 1).await;

    let mut second = daemon.start_process(with_request_id("start", request())).await;
    assert_eq!(second.id, first.id);

    let write = || WriteStdinRequest {
        process_id: first.id.clone(),
        data: b"once\n".to_vec().into(),
        ..WriteStdinRequest::default()
    };
    for _ in 0..3 {
        let written = daemon.write_stdin(with_request_id("write", write())).await;
        assert_eq!(written.unwrap(), 5);
    }

    daemon.close_stdin(&second.id).await.unwrap();
    let exited = first.wait_for_exit().await;
    assert_eq!(second.wait_for_exit().await, exited);

    let text = String::from_utf8(first.stdout.clone()).unwrap();
    assert!(text.ends_with("\nonce\nend\n"), "{text}");
    assert_eq!(second.stdout, first.stdout);

    // After the process has ended, too.
    let mut third = daemon.start_process(with_request_id("start", request())).await;
    assert_eq!(third.wait_for_exit().await, exited);
    assert_eq!(third.stdout, first.stdout);
    assert_eq!(run_count(&daemon), 1);
}

#[tokio::test]
async fn repeated_failed_start_returns_first_error() {
    let daemon = Daemon::start().await;

    let request = || start_request(crate::support::argv(&["./tool"]));
    let refused = daemon.try_start_process(with_request_id("start", request())).await;
    let first = Refusal::from_status(&refused.unwrap_err());
    assert_eq!(first.reason, "COMMAND_NOT_FOUND");

    std::fs::write(daemon.file("tool"), "#!/bin/sh\n").unwrap();
    let refused = daemon.try_start_process(with_request_id("start", request())).await;
    let repeated = Refusal::from_status(&refused.unwrap_err());
    assert_eq!((repeated.reason, repeated.message), (first.reason, first.message));
}

#[tokio::test]
async fn each_workspace_has_its_own_request_ids() {
    let other_directory = tempfile::tempdir().unwrap();
    let path = format!("other={}", other_directory.path().display());
    let daemon = Setup::new().arguments(&["--workspace", &path]).start().await;

    let first = run_counted(&daemon, "id").await;
    let mut in_other_workspace = with_request_id("id", counted_command("exit 3"));
    in_other_workspace.metadata_mut().insert("jig-workspace", "other".parse().unwrap());
    let second = daemon.run(in_other_workspace).await;
    assert_ne!(second.stdout, first.stdout);
    assert_eq!(run_counted(&daemon, "id").await, first);
}
