//! Policy for calls in dialects: risks, approvals and rules.

use jig::api::v1::{
    Action, CreateRuleRequest, InvokeStatus, ListToolsRequest,
    approval_service_client::ApprovalServiceClient, catalog_service_client::CatalogServiceClient,
};
use serde_json::json;

use super::{call, invoke};
use crate::{
    approvals::{ASK_POLICY, wait_for_pending_approval},
    events::records,
    support::{Setup, eventually},
};

#[tokio::test]
async fn d1_each_tool_states_risk_and_required_approval() {
    let daemon = Setup::new()
        .workspace_table("[policy]\ndangerous = 'ask'\n[fetch]\nhosts = ['a.test']")
        .start()
        .await;

    let request =
        ListToolsRequest { dialect: "cli_agent".to_owned(), ..ListToolsRequest::default() };
    let mut client = CatalogServiceClient::new(daemon.channel());
    let listed = client.list_tools(request).await.unwrap().into_inner();
    let tools: Vec<serde_json::Value> = serde_json::from_str(&listed.tools_json).unwrap();
    let listed_tools: Vec<_> = tools
        .iter()
        .map(|tool| {
            let text = |name: &str| tool[name].as_str().unwrap();
            assert!(!text("description").is_empty() && tool["input_schema"].is_object());
            let requires_approval = tool["requires_approval"].as_bool().unwrap();
            (text("name"), text("risk"), requires_approval)
        })
        .collect();

    // In the order of the document.
    let expected = [
        ("create_file", "safe_write", false),
        ("read_file", "read_only", false),
        ("replace_string_in_file", "dangerous", true),
        ("list_dir", "read_only", false),
        ("file_search", "read_only", false),
        ("grep_search", "read_only", false),
        ("run_in_terminal", "dangerous", true),
        ("terminal_last_command", "read_only", false),
        ("create_directory", "safe_write", false),
        ("fetch_webpage", "dangerous", true),
    ];
    assert_eq!(listed_tools, expected);
}

#[tokio::test]
async fn d13_approval_shows_the_call_as_the_agent_made_it() {
    let daemon = Setup::new().workspace_table(ASK_POLICY).start().await;
    let channel = daemon.channel();

    let pending_call = tokio::spawn(async move {
        let mut client = jig::api::v1::invoke_service_client::InvokeServiceClient::new(channel);
        let params = json!({"path": "hello.py", "content": "print('hello world')"});
        client.invoke(call("cli_agent", "create_file", params)).await
    });
    let approval = wait_for_pending_approval(&daemon).await;
    assert_eq!(
        (approval.tool.as_str(), approval.called_name.as_str()),
        ("write_file", "cli_agent/create_file")
    );

    let parameters: Vec<_> = approval
        .parameters
        .iter()
        .map(|parameter| (parameter.name.as_str(), parameter.value.as_str()))
        .collect();
    assert_eq!(parameters, [("path", "hello.py"), ("content", "<20 bytes>")]);
    assert_eq!(approval.files_affected, ["hello.py"]);

    // D14: a rule in the document's form, under the agent's own tool name, allows the call.
    let rule = CreateRuleRequest {
        tool: "create_file".to_owned(),
        pattern: Some(r#"^{"content":"[^"]*","path":".*\.py"}$"#.to_owned()),
        action: Action::Allow.into(),
        ..CreateRuleRequest::default()
    };
    let mut approvals = ApprovalServiceClient::new(daemon.channel());
    let rule = approvals.create_rule(rule).await.unwrap().into_inner().rule.unwrap();
    let response = pending_call.await.unwrap().unwrap().into_inner();
    assert_eq!(response.status(), InvokeStatus::Success, "{response:?}");

    let params = json!({"path": "b.py", "content": "2"});
    let response = invoke(&daemon, call("cli_agent", "create_file", params)).await;
    assert_eq!(response.status(), InvokeStatus::Success, "{response:?}");

    let started = records(&daemon, "default");
    let started: Vec<_> =
        started.iter().filter(|record| record["event"] == "tool_call_started").collect();
    for record in &started {
        assert_eq!(record["allowed_by"], format!("rule:{}", rule.rule_id));
        assert_eq!(
            (&record["dialect"], &record["called_name"]),
            (&json!("cli_agent"), &json!("create_file"))
        );
        assert_eq!(record["tool"], "write_file");
    }
    assert_eq!(started.len(), 2);

    eventually("the file exists", async || daemon.file("b.py").exists()).await;
}

#[tokio::test]
async fn rules_match_dialect_and_contract_tool_names() {
    let table = r#"
[[policy.rules]]
name = "secrets"
tool = "Read"
pattern = '"path":"\.env'
action = "deny"
[[policy.rules]]
name = "deletion"
tool = "run"
pattern = 'rm -rf'
action = "deny"
[[policy.rules]]
name = "time"
tool = "run_in_terminal"
pattern = '"timeout_seconds":77}$'
action = "deny"
"#;
    let daemon = Setup::new().workspace_table(table).workspace_file(".env", "KEY=1").start().await;
    for (dialect, tool, params, denied) in [
        ("claude", "Read", json!({"path": ".env"}), true),
        // Every spelling of the path.
        ("claude", "Read", json!({"path": "./.env"}), true),
        ("claude", "Read", json!({"path": "/workspace//.env"}), true),
        ("claude", "Read", json!({"path": "a/../.env"}), true),
        ("cli_agent", "run_in_terminal", json!({"command": "true", "timeout_seconds": 77.0}), true),
        ("cli_agent", "run_in_terminal", json!({"command": "true", "timeout_seconds": "77"}), true),
        ("cli_agent", "run_in_terminal", json!({"command": "true", "timeout_seconds": 78}), false),
        ("dracode", "read_file", json!({"file_path": ".env"}), false),
        ("claude", "Bash", json!({"command": "rm -rf ."}), true),
        ("cli_agent", "run_in_terminal", json!({"command": "rm -rf ."}), true),
        ("claude", "Bash", json!({"command": "true"}), false),
    ] {
        let response = invoke(&daemon, call(dialect, tool, params)).await;
        let error_type = response.error.map(|error| error.error_type);
        let expected = denied.then(|| "policy_denied".to_owned());
        assert_eq!(error_type, expected, "{dialect} {tool}");
    }
}
