//! The other ends of a wait.

use jig::api::v1::{ApprovalState, Decision};
use rustix::process::Signal;
use tonic::Code;

use super::{
    ASK, approvals, decide, decision, ended_once, file, find, records_of, wait_for, wait_for_end,
    wait_for_one, with_policy, write,
};
use crate::support::{KeyFile, Refusal, Setup, promptly, shell, with};

#[tokio::test]
async fn nobody_decides_in_time() {
    let daemon = with_policy(&format!("{ASK}\n[approvals]\nwait = \"200ms\"")).await;
    let refusal = daemon.refuses(shell("touch ran"), "APPROVAL_DENIED").await;
    assert!(refusal.message.contains("not approved in time"), "{refusal:?}");
    assert_eq!(refusal.metadata["state"], "EXPIRED");
    let id = &refusal.metadata["approval_id"];
    let end = ended_once(&daemon, id);
    assert_eq!((&end["state"], &end["decided_by"]), (&"EXPIRED".into(), &"daemon".into()));
    assert!(!daemon.file("ran").exists());
    let late = decide(&daemon, decision(&find(&daemon, id).await, Decision::Allow)).await;
    let refusal = Refusal::of(&late.unwrap_err());
    assert_eq!(refusal.reason, "APPROVAL_DECIDED");
    assert_eq!(refusal.metadata["state"], "EXPIRED");
}

#[tokio::test]
async fn the_deadline_of_the_call_passes() {
    let daemon = with_policy(ASK).await;
    let refused = daemon.try_run(with("grpc-timeout", "4S", shell("touch ran"))).await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.code(), Code::DeadlineExceeded, "{refused}");
    let refusal = Refusal::of(&refused);
    assert_eq!(refusal.reason, "TIMEOUT");
    // Somebody has to know why nothing came of it, and that nothing has begun.
    assert!(
        refusal.message.contains("not approved before its deadline")
            && refusal.message.contains("was not started"),
        "{refusal:?}"
    );
    assert_eq!(refusal.metadata["state"], "EXPIRED");
    wait_for(&daemon, 0).await;
    let records = super::events(&daemon, "approval_requested");
    let id = records[0]["approval_id"].as_str().unwrap().to_owned();
    let ended = wait_for_end(&daemon, &id).await;
    assert_eq!(refusal.metadata["approval_id"], id);
    assert_eq!(ended.state(), ApprovalState::Expired, "{ended:?}");
    ended_once(&daemon, &id);
    assert!(!daemon.file("ran").exists());
}

#[tokio::test]
async fn a_deadline_that_leaves_no_time_passes() {
    let daemon = with_policy(ASK).await;
    let refused = daemon.try_run(with("grpc-timeout", "300m", shell("touch ran"))).await;
    let refused = refused.unwrap_err();
    // Our own client may be the first to see it.
    assert!([Code::DeadlineExceeded, Code::Cancelled].contains(&refused.code()), "{refused}");
    wait_for(&daemon, 0).await;
    let records = super::events(&daemon, "approval_requested");
    let id = records[0]["approval_id"].as_str().unwrap();
    // Whoever sees it first, the caller or the daemon.
    assert_eq!(wait_for_end(&daemon, id).await.state(), ApprovalState::Expired);
    assert!(!daemon.file("ran").exists());
}

#[tokio::test]
async fn its_caller_disappears() {
    let daemon = with_policy(ASK).await;
    let run = daemon.begin(shell("touch ran"));
    let approval = wait_for_one(&daemon).await;
    run.abort();
    assert!(run.await.is_err());
    let ended = wait_for_end(&daemon, &approval.approval_id).await;
    assert_eq!(ended.state(), ApprovalState::Withdrawn);
    assert_eq!(ended.decided_by, "daemon");
    ended_once(&daemon, &approval.approval_id);
    wait_for(&daemon, 0).await;
    assert!(!daemon.file("ran").exists());
}

#[tokio::test]
async fn all_who_repeat_it_disappear() {
    let daemon = with_policy(&format!("{ASK}\n[requests]\ndetached_timeout = \"100ms\"")).await;
    let run = daemon.begin(with("jig-request-id", "one", shell("touch ran")));
    let approval = wait_for_one(&daemon).await;
    run.abort();
    let ended = wait_for_end(&daemon, &approval.approval_id).await;
    assert_eq!(ended.state(), ApprovalState::Withdrawn);
    // It was not begun: the same id asks anew.
    let run = daemon.begin(with("jig-request-id", "one", shell("touch ran")));
    let approval = wait_for_one(&daemon).await;
    decide(&daemon, decision(&approval, Decision::Allow)).await.unwrap();
    assert_eq!(run.await.unwrap().unwrap().exit_code, Some(0));
    assert!(daemon.file("ran").exists());
}

#[tokio::test]
async fn it_is_decided_twice() {
    let daemon = with_policy(ASK).await;
    let run = daemon.begin(shell("true"));
    let approval = wait_for_one(&daemon).await;
    let once = || with("jig-request-id", "decided", decision(&approval, Decision::Allow));
    let first = decide(&daemon, once()).await.unwrap();
    assert_eq!(run.await.unwrap().unwrap().exit_code, Some(0));
    // The same decision, repeated, is the same.
    assert_eq!(decide(&daemon, once()).await.unwrap(), first);
    for other in [Decision::Deny, Decision::Allow, Decision::Always] {
        let second = decide(&daemon, decision(&approval, other)).await;
        let refusal = Refusal::of(&second.unwrap_err());
        assert_eq!(refusal.reason, "APPROVAL_DECIDED");
        assert_eq!(refusal.metadata["state"], "ALLOWED");
        assert_eq!(refusal.metadata["decided_by"], "uid:0");
    }
    ended_once(&daemon, &approval.approval_id);
    assert_eq!(find(&daemon, &approval.approval_id).await.state(), ApprovalState::Allowed);
    let mut unknown = approval.clone();
    unknown.approval_id = "01ARZ3NDEKTSV4RRFFQ69G5FAV".to_owned();
    let refused = decide(&daemon, decision(&unknown, Decision::Allow)).await;
    assert_eq!(Refusal::of(&refused.unwrap_err()).reason, "APPROVAL_NOT_FOUND");
}

#[tokio::test]
async fn one_of_many_deciders_decides() {
    let daemon = with_policy(ASK).await;
    let run = daemon.begin(shell("true"));
    let approval = wait_for_one(&daemon).await;
    let deciding: Vec<_> = (0..20)
        .map(|number| {
            let wish = [Decision::Allow, Decision::Deny][number % 2];
            let request = decision(&approval, wish);
            let mut client = approvals(&daemon);
            tokio::spawn(async move { (wish, client.decide_approval(request).await) })
        })
        .collect();
    let mut winners = Vec::new();
    for deciding in deciding {
        let (wish, decided) = deciding.await.unwrap();
        match decided {
            Ok(_) => winners.push(wish),
            Err(refused) => assert_eq!(Refusal::of(&refused).reason, "APPROVAL_DECIDED"),
        }
    }
    let [winner] = winners.as_slice() else { panic!("{winners:?}") };
    let ran = run.await.unwrap();
    assert_eq!(ran.is_ok(), *winner == Decision::Allow);
    let end = ended_once(&daemon, &approval.approval_id);
    assert_eq!(end["state"] == "ALLOWED", *winner == Decision::Allow);
}

#[tokio::test]
async fn the_daemon_drains() {
    let mut daemon = with_policy(ASK).await;
    let run = daemon.begin(shell("touch ran"));
    let approval = wait_for_one(&daemon).await;
    daemon.signal(Signal::TERM);
    let refused = promptly("it is told", run).await.unwrap().unwrap_err();
    assert_eq!(Refusal::of(&refused).reason, "DRAINING");
    assert!(promptly("it ends", daemon.exit()).await.success());
    let daemon = daemon.restart().await;
    let ended = find(&daemon, &approval.approval_id).await;
    assert_eq!(ended.state(), ApprovalState::Withdrawn);
    ended_once(&daemon, &approval.approval_id);
    assert!(!daemon.file("ran").exists());
}

#[tokio::test]
async fn the_daemon_dies() {
    let daemon = with_policy(ASK).await;
    let run = daemon.begin(with("jig-session", "other", shell("touch ran")));
    let approval = wait_for_one(&daemon).await;
    let mut daemon = daemon.restart().await;
    assert!(run.await.unwrap().is_err());
    for _ in 0..2 {
        let ended = find(&daemon, &approval.approval_id).await;
        assert_eq!(ended.state(), ApprovalState::Lost);
        assert_eq!(ended.decided_by, "daemon");
        let records = records_of(&daemon.state().join("sessions/other"));
        let decided = records.iter().filter(|record| record["event"] == "approval_decided");
        let decided: Vec<_> = decided.collect();
        assert_eq!(decided.len(), 1, "{records:#?}");
        assert_eq!(decided[0]["state"], "LOST");
        assert_eq!(decided[0]["approval_id"], approval.approval_id.as_str());
        let late = decide(&daemon, decision(&approval, Decision::Allow)).await;
        assert_eq!(Refusal::of(&late.unwrap_err()).reason, "APPROVAL_DECIDED");
        assert!(!daemon.file("ran").exists());
        daemon = daemon.restart().await;
    }
}

#[tokio::test]
async fn a_call_that_is_refused_for_another_reason_is_not_asked_about() {
    let keys = std::sync::Arc::new(KeyFile::new());
    let key = keys.add("stats", "invoke", &["--for-tool", "stat"]);
    let admin = keys.add("admin", "admin", &[]);
    let path = keys.path().display().to_string();
    let setup = Setup::new().workspace_table(ASK).arguments(&["--keys", &path]);
    let daemon = setup.keeping(keys).start().await;
    let refused = daemon.try_run(crate::support::with_key(&key, shell("true"))).await;
    assert_eq!(Refusal::of(&refused.unwrap_err()).reason, "FORBIDDEN");
    let request = crate::support::with_key(&admin, file("", "x"));
    let refused = write(&daemon, request).await.unwrap();
    assert_eq!(Refusal::of(&refused.unwrap_err()).reason, "INVALID_PARAMS");
    assert!(!daemon.state().join("sessions/default").exists());
}

#[tokio::test]
async fn one_that_was_allowed_and_cannot_begin_leaves_a_record_of_that() {
    let lines =
        "[policy]\nsafe_write = \"ask\"\n[limits]\nconcurrent_calls = 1\nqueue_timeout = \"10m\"";
    let mut daemon = with_policy(lines).await;
    let blocker = daemon.begin(shell("until [ -e go ]; do sleep 0.01; done"));
    let call = write(&daemon, file("asked", "text"));
    let asked = wait_for_one(&daemon).await;
    decide(&daemon, decision(&asked, Decision::Allow)).await.unwrap();
    daemon.signal(Signal::TERM);
    let refused = promptly("it is sent away", call).await.unwrap();
    assert_eq!(Refusal::of(&refused.unwrap_err()).reason, "DRAINING");
    let denied = super::events(&daemon, "tool_call_denied");
    assert_eq!(denied.len(), 1, "{denied:?}");
    assert_eq!(denied[0]["denied_by"], "DRAINING");
    assert_eq!(denied[0]["tool"], "write_file");
    std::fs::write(daemon.file("go"), "").unwrap();
    blocker.await.unwrap().unwrap();
    assert!(daemon.exit().await.success());
    assert!(!daemon.file("asked").exists());
}
