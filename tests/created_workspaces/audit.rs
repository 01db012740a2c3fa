//! Lines of the audit log about created workspaces.

use std::sync::Arc;

use jig::api::v1::{CreateWorkspaceRequest, UpdateWorkspaceRequest};
use serde_json::{Value, json};

use super::{Creating, named};
use crate::{
    audit::AuditDirectory,
    support::{Setup, eventually},
};

#[tokio::test]
async fn creation_change_deletion_and_expiry_have_lines() {
    let audit = Arc::new(AuditDirectory::new());
    let setup = audit.of(Setup::new()).with_resource(Arc::clone(&audit) as _);
    let creating = Creating::start(setup, "").await;

    let labels = [("sample".to_owned(), "7".to_owned())].into();
    let request = CreateWorkspaceRequest { labels, ttl_sec: Some(5000), ..named("") };
    let chosen = creating.create(request).await.name;
    let update = UpdateWorkspaceRequest {
        name: chosen.clone(),
        idle_timeout_sec: Some(900),
        ..UpdateWorkspaceRequest::default()
    };
    creating.service().update_workspace(update).await.unwrap();
    let clone_of = Some("workspace".to_owned());
    creating.create(CreateWorkspaceRequest { clone_of, ..named("copy") }).await;
    creating.delete(&chosen).await.unwrap();
    assert_eq!(creating.delete("none").await.unwrap_err().reason, "UNKNOWN_WORKSPACE");
    creating.create(CreateWorkspaceRequest { ttl_sec: Some(1), ..named("short") }).await;
    let idle = CreateWorkspaceRequest { idle_timeout_sec: Some(1), ..named("idle") };
    creating.create(idle).await;
    let of_event = |event: &str| -> Vec<Value> {
        let lines = audit.lines().into_iter();
        lines.filter(|line| line["event"] == event).collect()
    };
    eventually("both are removed", async || of_event("workspace_removed").len() == 2).await;

    let owner = format!("uid:{}", rustix::process::getuid().as_raw());
    let calls: Vec<Value> = of_event("call")
        .iter()
        .filter(|line| line["method"].as_str().unwrap().contains("WorkspaceService"))
        .map(|line| {
            assert_eq!(line["principal"], owner);
            let method = line["method"].as_str().unwrap();
            let method = method.rsplit_once('/').unwrap().1;
            json!([method, line["workspace"], line["params"], line["reason"]])
        })
        .collect();
    let expected = [
        json!(["CreateWorkspace", chosen, {"labels": "sample=7", "ttl_sec": "5000"}, null]),
        json!(["UpdateWorkspace", chosen, {"name": chosen, "idle_timeout_sec": "900"}, null]),
        json!(["CreateWorkspace", "copy", {"name": "copy", "clone_of": "workspace"}, null]),
        json!(["DeleteWorkspace", chosen, {"name": chosen}, null]),
        json!(["DeleteWorkspace", null, {"name": "none"}, "UNKNOWN_WORKSPACE"]),
        json!(["CreateWorkspace", "short", {"name": "short", "ttl_sec": "1"}, null]),
        json!(["CreateWorkspace", "idle", {"name": "idle", "idle_timeout_sec": "1"}, null]),
    ];
    assert_eq!(calls, expected);

    let mut removed: Vec<Value> = of_event("workspace_removed")
        .iter()
        .map(|line| json!([line["workspace"], line["owner"], line["cause"], line["reason"]]))
        .collect();
    removed.sort_by_key(Value::to_string);
    let expected =
        [json!(["idle", owner, "idle_timeout", null]), json!(["short", owner, "ttl", null])];
    assert_eq!(removed, expected);
}
