//! Calls that are repeated while the daemon lives.

use jig::api::v1::{
    CreateDirectoryRequest, Edit, EditFileRequest, ReadFileRequest, RunRequest, WriteFileRequest,
    WriteStdinRequest,
};

use super::{counted, run, runs, under};
use crate::support::{Daemon, Refusal, Setup, eventually, shell, started};

#[tokio::test]
async fn a_repeated_call_gets_the_answer_of_the_first() {
    let daemon = Daemon::start().await;
    let first = run(&daemon, "one").await;
    assert_eq!(first.exit_code, Some(3));
    for _ in 0..3 {
        assert_eq!(run(&daemon, "one").await, first);
    }
    assert_eq!(runs(&daemon), 1);
    let another = run(&daemon, "two").await;
    assert_ne!(another.stdout, first.stdout);
    daemon.run(counted("")).await;
    assert_eq!(runs(&daemon), 3);
}

#[tokio::test]
async fn fifty_clients_with_one_id_get_one_answer() {
    let daemon = Daemon::start().await;
    let calls: Vec<_> = (0..50)
        .map(|_| {
            let mut tools = daemon.tools_on_a_new_connection();
            tokio::spawn(async move {
                let answer = tools.run(under("shared", counted("sleep 0.3"))).await;
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
    assert_eq!(runs(&daemon), 1);
}

#[tokio::test]
async fn what_is_asked_twice_is_alike_whatever_its_order() {
    let daemon = Daemon::start().await;
    let request = |names: &[&str]| RunRequest {
        env: names.iter().map(|name| ((*name).to_owned(), "x".to_owned())).collect(),
        ..counted("")
    };
    let names: Vec<String> = (0..20).map(|number| format!("NAME_{number}")).collect();
    let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
    let first = daemon.run(under("env", request(&names))).await;
    names.reverse();
    assert_eq!(daemon.run(under("env", request(&names))).await, first);
}

#[tokio::test]
async fn another_call_with_the_id_is_refused() {
    let daemon = Daemon::start().await;
    run(&daemon, "used").await;
    let other = daemon.try_run(under("used", shell("true"))).await;
    let refusal = Refusal::of(&other.unwrap_err());
    assert_eq!(refusal.reason, "REQUEST_ID_REUSED");
    assert!(refusal.message.contains("message"), "{}", refusal.message);
    assert_eq!(refusal.metadata["request_id"], "used");
    let mut elsewhere = under("used", counted("exit 3"));
    elsewhere.metadata_mut().insert("jig-session", "another".parse().unwrap());
    let refusal = Refusal::of(&daemon.try_run(elsewhere).await.unwrap_err());
    assert!(refusal.message.contains("session"), "{}", refusal.message);
    let other = CreateDirectoryRequest { path: "made".to_owned() };
    let other = daemon.tools().create_directory(under("used", other)).await;
    let refusal = Refusal::of(&other.unwrap_err());
    assert!(refusal.message.contains("run"), "{}", refusal.message);
    assert!(!daemon.file("made").exists());
    let other = daemon.try_watch(under("used", started(shell("true")))).await;
    assert_eq!(Refusal::of(&other.unwrap_err()).reason, "REQUEST_ID_REUSED");
    assert_eq!(runs(&daemon), 1);
}

#[tokio::test]
async fn another_call_is_refused_while_the_first_goes_on() {
    let daemon = Daemon::start().await;
    let run = daemon.begin(under("used", counted("until [ -e go ]; do sleep 0.01; done")));
    eventually("it runs", async || runs(&daemon) == 1).await;
    let other = daemon.try_run(under("used", shell("true"))).await;
    assert_eq!(Refusal::of(&other.unwrap_err()).reason, "REQUEST_ID_REUSED");
    std::fs::write(daemon.file("go"), "").unwrap();
    assert_eq!(run.await.unwrap().unwrap().exit_code, Some(0));
}

#[tokio::test]
async fn an_error_is_an_answer_too() {
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
    let first = daemon.tools().edit_file(under("edit", edit())).await;
    let first = Refusal::of(&first.unwrap_err());
    assert_eq!(first.reason, "FILE_NOT_FOUND");
    std::fs::write(daemon.file("file"), "old").unwrap();
    let again = daemon.tools().edit_file(under("edit", edit())).await;
    let again = Refusal::of(&again.unwrap_err());
    assert_eq!((again.reason, again.message), (first.reason, first.message));
    assert_eq!(again.metadata, first.metadata);
    let anew = daemon.tools().edit_file(under("anew", edit())).await;
    assert!(anew.is_ok());
}

#[tokio::test]
async fn what_was_refused_as_it_stood_can_be_mended_under_the_same_id() {
    let daemon = Daemon::start().await;
    let refused = daemon.try_run(under("mended", RunRequest::default())).await;
    assert_eq!(Refusal::of(&refused.unwrap_err()).reason, "INVALID_PARAMS");
    assert_eq!(run(&daemon, "mended").await.exit_code, Some(3));
    let write = |eof| WriteStdinRequest {
        process_id: "none".to_owned(),
        eof,
        ..WriteStdinRequest::default()
    };
    let refused = daemon.write_stdin(under("write", write(false))).await;
    assert_eq!(refused.unwrap_err().reason, "INVALID_PARAMS");
    let refused = daemon.write_stdin(under("write", write(true))).await;
    assert_eq!(refused.unwrap_err().reason, "PROCESS_NOT_FOUND");
}

#[tokio::test]
async fn what_nobody_has_decided_about_can_be_asked_again_under_the_same_id() {
    let table = "[policy]\ndangerous = \"ask\"\n[approvals]\nwait = \"200ms\"";
    let daemon = Setup::new().workspace_table(table).start().await;
    let mut asked = Vec::new();
    for _ in 0..2 {
        let refused = daemon.try_run(under("asked", counted(""))).await;
        let refusal = Refusal::of(&refused.unwrap_err());
        assert_eq!(refusal.metadata["state"], "EXPIRED");
        asked.push(refusal.metadata["approval_id"].clone());
    }
    assert_ne!(asked[0], asked[1]);
    assert_eq!(runs(&daemon), 0);
}

#[tokio::test]
async fn what_changes_nothing_is_done_anew() {
    let daemon = Daemon::start().await;
    let read = async || {
        let request = ReadFileRequest { path: "file".to_owned(), ..ReadFileRequest::default() };
        let answer = daemon.tools().read_file(under("read", request)).await;
        answer.unwrap().into_inner().content
    };
    for text in ["first", "second"] {
        std::fs::write(daemon.file("file"), text).unwrap();
        assert_eq!(read().await, text);
    }
}

#[tokio::test]
async fn a_file_is_written_once() {
    let daemon = Daemon::start().await;
    let write = || WriteFileRequest {
        path: "file".to_owned(),
        content: "text".to_owned(),
        ..WriteFileRequest::default()
    };
    let first = daemon.tools().write_file(under("write", write())).await;
    let first = first.unwrap().into_inner();
    assert!(first.created);
    std::fs::write(daemon.file("file"), "changed since").unwrap();
    let again = daemon.tools().write_file(under("write", write())).await;
    assert_eq!(again.unwrap().into_inner(), first);
    let text = std::fs::read_to_string(daemon.file("file")).unwrap();
    assert_eq!(text, "changed since");
}

#[tokio::test]
async fn a_process_is_started_once_and_read_from_its_beginning() {
    let daemon = Daemon::start().await;
    let request = || started(counted("cat; echo end"));
    let mut first = daemon.watch(under("start", request())).await;
    eventually("it writes", async || runs(&daemon) == 1).await;
    let mut second = daemon.watch(under("start", request())).await;
    assert_eq!(second.id, first.id);
    let write = || WriteStdinRequest {
        process_id: first.id.clone(),
        data: b"once\n".to_vec().into(),
        ..WriteStdinRequest::default()
    };
    for _ in 0..3 {
        let written = daemon.write_stdin(under("write", write())).await;
        assert_eq!(written.unwrap(), 5);
    }
    daemon.end_input(&second.id).await.unwrap();
    let exited = first.finish().await;
    assert_eq!(second.finish().await, exited);
    let text = String::from_utf8(first.stdout.clone()).unwrap();
    assert!(text.ends_with("\nonce\nend\n"), "{text}");
    assert_eq!(second.stdout, first.stdout);
    // Also when it has ended.
    let mut third = daemon.watch(under("start", request())).await;
    assert_eq!(third.finish().await, exited);
    assert_eq!(third.stdout, first.stdout);
    assert_eq!(runs(&daemon), 1);
}

#[tokio::test]
async fn a_process_that_was_not_started_is_not_started_by_a_repeat_either() {
    let daemon = Daemon::start().await;
    let request = || started(crate::support::argv(&["./tool"]));
    let refused = daemon.try_watch(under("start", request())).await;
    let first = Refusal::of(&refused.unwrap_err());
    assert_eq!(first.reason, "COMMAND_NOT_FOUND");
    std::fs::write(daemon.file("tool"), "#!/bin/sh\n").unwrap();
    let refused = daemon.try_watch(under("start", request())).await;
    let again = Refusal::of(&refused.unwrap_err());
    assert_eq!((again.reason, again.message), (first.reason, first.message));
}

#[tokio::test]
async fn each_workspace_has_ids_of_its_own() {
    let other = tempfile::tempdir().unwrap();
    let path = format!("other={}", other.path().display());
    let daemon = Setup::new().arguments(&["--workspace", &path]).start().await;
    let first = run(&daemon, "id").await;
    let mut elsewhere = under("id", counted("exit 3"));
    elsewhere.metadata_mut().insert("jig-workspace", "other".parse().unwrap());
    let second = daemon.run(elsewhere).await;
    assert_ne!(second.stdout, first.stdout);
    assert_eq!(run(&daemon, "id").await, first);
}
