//! Calls that wait for an approval, and the administrator that decides them.

use std::time::{Duration, Instant};

use jig::{
    api::v1::{
        Action, CreateDirectoryRequest, CreateRuleRequest, DecideApprovalRequest, Decision,
        ListApprovalsRequest, StatPathRequest,
    },
    client::{CallError, Client},
};

use super::{
    agent::{Agent, LoadPlan},
    caller::Caller,
};

const KIND: &str = "create_directory, asked";
/// Beginnings of the names of directories that the administrator allows and denies.
const ALLOWED: &str = "allowed";
const DENIED: &str = "denied";
/// Interval at which the administrator looks for pending approvals.
const DECIDE_INTERVAL: Duration = Duration::from_millis(50);
/// Time for which the administrator decides after the load, for calls that still wait.
const DECIDE_AFTER_END: Duration = Duration::from_secs(300);

/// Creates the rule that asks about directories of this load. Fails if the key is not an
/// administrator's.
pub(super) async fn create_rule(client: &Client, directory: &str) -> Result<(), CallError> {
    let request = CreateRuleRequest {
        name: "load".to_owned(),
        tool: "create_directory".to_owned(),
        pattern: Some(format!(r#""path":"{directory}/[0-9]+/ask/"#)),
        action: Action::Ask.into(),
        lifetime_sec: Some(24 * 3600),
    };
    client.create_rule(request).await.map(drop)
}

/// Makes a call that needs an approval. The name of the directory says the decision.
pub(super) async fn ask(agent: &mut Agent) {
    let decision = if agent.random.below(2) == 0 { ALLOWED } else { DENIED };
    let id = agent.next_id(decision);
    let path = format!("{}/ask/{id}", agent.directory);
    let caller = agent.plan.caller.clone();
    let tally = &caller.tally;
    let answer = caller
        .call(KIND, Some(&path), |client| {
            let request = CreateDirectoryRequest { path: path.clone() };
            async move { client.create_directory(request).await }
        })
        .await;

    let is_there = caller
        .call("stat", None, |client| {
            let request = StatPathRequest { path: path.clone() };
            async move { client.stat_path(request).await }
        })
        .await
        .is_ok();
    match answer {
        Ok(_) => tally.check(is_there && decision == ALLOWED, || {
            format!("{path} was created: {is_there}, without an approval")
        }),
        Err(failure) if failure.reason() == "APPROVAL_DENIED" => {
            tally.check(!is_there && decision == DENIED, || {
                format!("{path} was denied, and exists: {is_there}: {failure:?}")
            });
        }
        Err(failure) => {
            tally.interrupted(KIND, failure.reason());
            tally.check(!is_there || decision == ALLOWED, || {
                format!("{path} exists, never allowed")
            });
        }
    }
}

/// Decides pending calls of this load until it has ended.
pub(super) async fn decide_all(plan: LoadPlan) {
    let stop = plan.end + DECIDE_AFTER_END;
    let caller = &plan.caller;
    while Instant::now() < stop {
        if let Ok(client) = caller.connect(None).await {
            // The next round repeats what failed.
            let _failed = decide_pending(&client, caller, &plan.directory).await;
        }
        tokio::time::sleep(DECIDE_INTERVAL).await;
    }
}

async fn decide_pending(
    client: &Client,
    caller: &Caller,
    directory: &str,
) -> Result<(), CallError> {
    let pending = client.list_approvals(ListApprovalsRequest::default()).await?.approvals;
    for approval in pending {
        let mut parameters = approval.parameters.iter();
        let Some(path) = parameters.find(|parameter| parameter.name == "path") else {
            continue;
        };
        let path = path.value.trim_matches('"');
        if !path.starts_with(directory) {
            continue;
        }

        let name = path.rsplit('/').next().unwrap_or_default();
        let is_allowed = name.starts_with(ALLOWED);
        caller.tally.check(is_allowed || name.starts_with(DENIED), || {
            format!("the approval of {path:?} has no decision")
        });
        let decision = if is_allowed { Decision::Allow } else { Decision::Deny };
        let request = DecideApprovalRequest {
            approval_id: approval.approval_id.clone(),
            decision: decision.into(),
            ..DecideApprovalRequest::default()
        };
        let start = Instant::now();
        match client.decide_approval(request).await {
            Ok(_) => caller.tally.completed("decide_approval", start.elapsed()),
            Err(error) => caller.tally.failed("decide_approval", error.name()),
        }
    }
    Ok(())
}
