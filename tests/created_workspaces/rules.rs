//! Policy rules for created workspaces.

use jig::api::v1::{ListRulesRequest, approval_service_client::ApprovalServiceClient};

use super::{Creating, in_workspace, named};
use crate::support::{Refusal, Setup, shell};

const RULES: &str = "
[[policy.rules]]
name = 'samples'
tool = 'run'
pattern = 'forbidden'
action = 'deny'
created_workspaces = ['sample-*', 'scratch']
[[policy.rules]]
name = 'project'
tool = 'run'
pattern = 'other'
action = 'deny'
workspaces = ['workspace']
created_workspaces = ['sample-1']
";

#[tokio::test]
async fn rules_apply_to_created_workspaces_by_patterns() {
    let creating = Creating::start(Setup::new(), RULES).await;
    for name in ["sample-1", "sample-2", "scratch", "free"] {
        creating.create(named(name)).await;
    }
    for (workspace, command, is_denied) in [
        ("sample-1", "forbidden", true),
        ("sample-2", "forbidden", true),
        ("scratch", "forbidden", true),
        ("free", "forbidden", false),
        ("workspace", "forbidden", false),
        ("workspace", "other", true),
        ("sample-1", "other", true),
        ("sample-2", "other", false),
    ] {
        let run = in_workspace(workspace, shell(&format!("echo {command}")));
        let denied = creating.daemon.try_run(run).await.err();
        let reason = denied.map(|status| Refusal::from_status(&status).reason);
        let expected = is_denied.then(|| "POLICY_DENIED".to_owned());
        assert_eq!(reason, expected, "{workspace} {command}");
    }

    // The service reports the workspaces of the call to which a rule applies.
    let mut approvals = ApprovalServiceClient::new(creating.daemon.channel());
    let mut rules = async |workspace: &str| {
        let request = in_workspace(workspace, ListRulesRequest::default());
        let rules = approvals.list_rules(request).await.unwrap().into_inner().rules;
        rules.into_iter().map(|rule| (rule.name, rule.workspaces)).collect::<Vec<_>>()
    };
    let rule = |name: &str, workspace: &str| (name.to_owned(), vec![workspace.to_owned()]);
    assert_eq!(rules("sample-2").await, [rule("samples", "sample-2")]);
    assert_eq!(rules("sample-1").await, [rule("samples", "sample-1"), rule("project", "sample-1")]);
    assert!(rules("free").await.is_empty());
}
