//! Approvals that end without approval: expired, withdrawn, lost, and decided twice.

use jig::api::v1::{ApprovalState, Decision};
use rustix::process::Signal;
use tonic::Code;

use super::{
    ASK_POLICY, approval_client, assert_decided_once, decide, decide_request, find_approval,
    session_records, spawn_write, start_with_policy, wait_for_decision, wait_for_pending_approval,
    wait_for_pending_approvals, write_request,
};
use crate::support::{KeyFile, Refusal, Setup, promptly, shell, with_metadata};

#[tokio::test]
async fn approval_expires_without_a_decision() {
    let daemon =
        start_with_policy(&format!("{ASK_POLICY}\n[approvals]\ntimeout = \"200ms\"")).await;
    let refusal = daemon.run_failing(shell("touch ran"), "APPROVAL_DENIED").await;
    assert!(refusal.message.contains("not approved in time"), "{refusal:?}");
    assert_eq!(refusal.metadata["state"], "EXPIRED");

    let id = &refusal.metadata["approval_id"];
    let event = assert_decided_once(&daemon, id);
    assert_eq!((&event["state"], &event["decided_by"]), (&"EXPIRED".into(), &"daemon".into()));
    assert!(!daemon.file("ran").exists());

    let result =
        decide(&daemon, decide_request(&find_approval(&daemon, id).await, Decision::Allow)).await;
    let refusal = Refusal::from_status(&result.unwrap_err());
    assert_eq!(refusal.reason, "APPROVAL_DECIDED");
    assert_eq!(refusal.metadata["state"], "EXPIRED");
}

#[tokio::test]
async fn approval_expires_at_the_call_deadline() {
    let daemon = start_with_policy(ASK_POLICY).await;
    let status = daemon.try_run(with_metadata("grpc-timeout", "4S", shell("touch ran"))).await;
    let status = status.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");

    let refusal = Refusal::from_status(&status);
    assert_eq!(refusal.reason, "TIMEOUT");

    // The message states the reason, and that the command was not started.
    assert!(
        refusal.message.contains("not approved before its deadline")
            && refusal.message.contains("was not started"),
        "{refusal:?}"
    );
    assert_eq!(refusal.metadata["state"], "EXPIRED");

    wait_for_pending_approvals(&daemon, 0).await;
    let records = super::records_of_type(&daemon, "approval_requested");
    let id = records[0]["approval_id"].as_str().unwrap().to_owned();
    let approval = wait_for_decision(&daemon, &id).await;
    assert_eq!(refusal.metadata["approval_id"], id);
    assert_eq!(approval.state(), ApprovalState::Expired, "{approval:?}");
    assert_decided_once(&daemon, &id);
    assert!(!daemon.file("ran").exists());
}

#[tokio::test]
async fn approval_expires_at_a_very_short_deadline() {
    let daemon = start_with_policy(ASK_POLICY).await;
    let status = daemon.try_run(with_metadata("grpc-timeout", "300m", shell("touch ran"))).await;
    let status = status.unwrap_err();

    // The client may notice the deadline before the daemon does.
    assert!([Code::DeadlineExceeded, Code::Cancelled].contains(&status.code()), "{status}");

    wait_for_pending_approvals(&daemon, 0).await;
    let records = super::records_of_type(&daemon, "approval_requested");
    let id = records[0]["approval_id"].as_str().unwrap();

    // The approval expires in either case.
    assert_eq!(wait_for_decision(&daemon, id).await.state(), ApprovalState::Expired);
    assert!(!daemon.file("ran").exists());
}

#[tokio::test]
async fn daemon_withdraws_approval_when_its_caller_disconnects() {
    let daemon = start_with_policy(ASK_POLICY).await;
    let run = daemon.spawn_run(shell("touch ran"));
    let approval = wait_for_pending_approval(&daemon).await;
    run.abort();
    assert!(run.await.is_err());

    let decided = wait_for_decision(&daemon, &approval.approval_id).await;
    assert_eq!(decided.state(), ApprovalState::Withdrawn);
    assert_eq!(decided.decided_by, "daemon");
    assert_decided_once(&daemon, &approval.approval_id);

    wait_for_pending_approvals(&daemon, 0).await;
    assert!(!daemon.file("ran").exists());
}

#[tokio::test]
async fn daemon_withdraws_approval_when_all_repeats_disconnect() {
    let daemon =
        start_with_policy(&format!("{ASK_POLICY}\n[requests]\ndetached_timeout = \"100ms\"")).await;
    let run = daemon.spawn_run(with_metadata("jig-request-id", "one", shell("touch ran")));
    let approval = wait_for_pending_approval(&daemon).await;
    run.abort();
    let decided = wait_for_decision(&daemon, &approval.approval_id).await;
    assert_eq!(decided.state(), ApprovalState::Withdrawn);

    // The call was not started, so the same id requests approval again.
    let run = daemon.spawn_run(with_metadata("jig-request-id", "one", shell("touch ran")));
    let approval = wait_for_pending_approval(&daemon).await;
    decide(&daemon, decide_request(&approval, Decision::Allow)).await.unwrap();
    assert_eq!(run.await.unwrap().unwrap().exit_code, Some(0));
    assert!(daemon.file("ran").exists());
}

#[tokio::test]
async fn second_decision_fails() {
    let daemon = start_with_policy(ASK_POLICY).await;
    let run = daemon.spawn_run(shell("true"));
    let approval = wait_for_pending_approval(&daemon).await;
    let decide_once =
        || with_metadata("jig-request-id", "decided", decide_request(&approval, Decision::Allow));
    let first = decide(&daemon, decide_once()).await.unwrap();
    assert_eq!(run.await.unwrap().unwrap().exit_code, Some(0));

    // A repeat under the same id returns the same response.
    assert_eq!(decide(&daemon, decide_once()).await.unwrap(), first);

    for decision in [Decision::Deny, Decision::Allow, Decision::Always] {
        let result = decide(&daemon, decide_request(&approval, decision)).await;
        let refusal = Refusal::from_status(&result.unwrap_err());
        assert_eq!(refusal.reason, "APPROVAL_DECIDED");
        assert_eq!(refusal.metadata["state"], "ALLOWED");
        assert_eq!(refusal.metadata["decided_by"], "uid:0");
    }

    assert_decided_once(&daemon, &approval.approval_id);
    assert_eq!(find_approval(&daemon, &approval.approval_id).await.state(), ApprovalState::Allowed);

    let mut unknown = approval.clone();
    unknown.approval_id = "01ARZ3NDEKTSV4RRFFQ69G5FAV".to_owned();
    let result = decide(&daemon, decide_request(&unknown, Decision::Allow)).await;
    assert_eq!(Refusal::from_status(&result.unwrap_err()).reason, "APPROVAL_NOT_FOUND");
}

#[tokio::test]
async fn one_of_concurrent_decisions_wins() {
    let daemon = start_with_policy(ASK_POLICY).await;
    let run = daemon.spawn_run(shell("true"));
    let approval = wait_for_pending_approval(&daemon).await;

    let decisions: Vec<_> = (0..20)
        .map(|number| {
            let decision = [Decision::Allow, Decision::Deny][number % 2];
            let request = decide_request(&approval, decision);
            let mut client = approval_client(&daemon);
            tokio::spawn(async move { (decision, client.decide_approval(request).await) })
        })
        .collect();

    let mut winners = Vec::new();
    for call in decisions {
        let (decision, decided) = call.await.unwrap();
        match decided {
            Ok(_) => winners.push(decision),
            Err(status) => assert_eq!(Refusal::from_status(&status).reason, "APPROVAL_DECIDED"),
        }
    }

    let [winner] = winners.as_slice() else { panic!("{winners:?}") };
    let run_result = run.await.unwrap();
    assert_eq!(run_result.is_ok(), *winner == Decision::Allow);

    let event = assert_decided_once(&daemon, &approval.approval_id);
    assert_eq!(event["state"] == "ALLOWED", *winner == Decision::Allow);
}

#[tokio::test]
async fn draining_daemon_withdraws_approvals() {
    let mut daemon = start_with_policy(ASK_POLICY).await;
    let run = daemon.spawn_run(shell("touch ran"));
    let approval = wait_for_pending_approval(&daemon).await;
    daemon.signal(Signal::TERM);
    let status = promptly("the call fails", run).await.unwrap().unwrap_err();
    assert_eq!(Refusal::from_status(&status).reason, "DRAINING");
    assert!(promptly("the daemon ends", daemon.wait_for_exit()).await.success());

    let daemon = daemon.restart().await;
    let decided = find_approval(&daemon, &approval.approval_id).await;
    assert_eq!(decided.state(), ApprovalState::Withdrawn);
    assert_decided_once(&daemon, &approval.approval_id);
    assert!(!daemon.file("ran").exists());
}

#[tokio::test]
async fn restarted_daemon_marks_approvals_lost() {
    let daemon = start_with_policy(ASK_POLICY).await;
    let run = daemon.spawn_run(with_metadata("jig-session", "other", shell("touch ran")));
    let approval = wait_for_pending_approval(&daemon).await;
    let mut daemon = daemon.restart().await;
    assert!(run.await.unwrap().is_err());

    for _ in 0..2 {
        let decided_approval = find_approval(&daemon, &approval.approval_id).await;
        assert_eq!(decided_approval.state(), ApprovalState::Lost);
        assert_eq!(decided_approval.decided_by, "daemon");

        let records = session_records(&daemon.state_dir().join("sessions/other"));
        let decided = records.iter().filter(|record| record["event"] == "approval_decided");
        let decided: Vec<_> = decided.collect();
        assert_eq!(decided.len(), 1, "{records:#?}");
        assert_eq!(decided[0]["state"], "LOST");
        assert_eq!(decided[0]["approval_id"], approval.approval_id.as_str());

        let result = decide(&daemon, decide_request(&approval, Decision::Allow)).await;
        assert_eq!(Refusal::from_status(&result.unwrap_err()).reason, "APPROVAL_DECIDED");
        assert!(!daemon.file("ran").exists());

        daemon = daemon.restart().await;
    }
}

#[tokio::test]
async fn call_that_waited_when_the_daemon_died_asks_again_and_runs_once() {
    let daemon = start_with_policy(ASK_POLICY).await;
    let request = || with_metadata("jig-request-id", "one", shell("echo ran >> runs"));
    let run = daemon.spawn_run(request());
    let lost = wait_for_pending_approval(&daemon).await;
    let daemon = daemon.restart().await;
    assert!(run.await.unwrap().is_err());

    let run = daemon.spawn_run(request());
    let approval = wait_for_pending_approval(&daemon).await;
    assert_ne!(approval.approval_id, lost.approval_id);
    decide(&daemon, decide_request(&approval, Decision::Allow)).await.unwrap();
    let response = promptly("the call returns", run).await.unwrap().unwrap();
    assert_eq!(daemon.run(request()).await, response);
    assert_eq!(std::fs::read_to_string(daemon.file("runs")).unwrap(), "ran\n");
}

#[tokio::test]
async fn rejected_call_requests_no_approval() {
    let keys = std::sync::Arc::new(KeyFile::new());
    let key = keys.add_key("stats", "invoke", &["--for-tool", "stat"]);
    let admin = keys.add_key("admin", "admin", &[]);
    let path = keys.path().display().to_string();
    let setup = Setup::new().workspace_table(ASK_POLICY).arguments(&["--keys", &path]);
    let daemon = setup.with_resource(keys).start().await;

    let result = daemon.try_run(crate::support::with_key(&key, shell("true"))).await;
    assert_eq!(Refusal::from_status(&result.unwrap_err()).reason, "FORBIDDEN");

    let request = crate::support::with_key(&admin, write_request("", "x"));
    let result = spawn_write(&daemon, request).await.unwrap();
    assert_eq!(Refusal::from_status(&result.unwrap_err()).reason, "INVALID_PARAMS");
    assert!(!daemon.state_dir().join("sessions/default").exists());
}

#[tokio::test]
async fn approved_call_that_cannot_start_is_recorded_as_denied() {
    let config =
        "[policy]\nsafe_write = \"ask\"\n[limits]\nconcurrent_calls = 1\nqueue_timeout = \"10m\"";
    let mut daemon = start_with_policy(config).await;
    let blocker = daemon.spawn_run(shell("until [ -e go ]; do sleep 0.01; done"));
    let call = spawn_write(&daemon, write_request("asked", "text"));
    let approval = wait_for_pending_approval(&daemon).await;
    decide(&daemon, decide_request(&approval, Decision::Allow)).await.unwrap();
    daemon.signal(Signal::TERM);
    let result = promptly("the call is rejected", call).await.unwrap();
    assert_eq!(Refusal::from_status(&result.unwrap_err()).reason, "DRAINING");

    let denied = super::records_of_type(&daemon, "tool_call_denied");
    assert_eq!(denied.len(), 1, "{denied:?}");
    assert_eq!(denied[0]["denied_by"], "DRAINING");
    assert_eq!(denied[0]["tool"], "write_file");

    std::fs::write(daemon.file("go"), "").unwrap();
    blocker.await.unwrap().unwrap();
    assert!(daemon.wait_for_exit().await.success());
    assert!(!daemon.file("asked").exists());
}
