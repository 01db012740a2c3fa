//! `/v1/health` and `/v1/metadata`.

use serde_json::json;

use super::{TABLE, rest, rest_error, runtime_setup, start_runtime};
use crate::support::Setup;

#[tokio::test]
async fn health_reports_whether_commands_can_run() {
    let daemon = start_runtime().await;
    let response = rest(&daemon, &[], "/v1/health");
    assert_eq!((response.status, &response.json()["status"]), (200, &json!("ok")));
    assert!(response.json()["uptime_seconds"].is_u64(), "{response:?}");

    let daemon = runtime_setup().without_namespaces().start().await;
    let (status, code) = rest_error(&daemon, &[], "/v1/health");
    assert_eq!((status, &*code), (503, "UNAVAILABLE"));
}

#[tokio::test]
async fn metadata_has_the_listed_variables_only() {
    let daemon = start_runtime().await;
    assert_eq!(rest(&daemon, &[], "/v1/metadata").json(), json!({ "env": {} }));

    let table = format!("{TABLE}\nmetadata = [\"SANDBOX_ID\", \"SANDBOX_UNSET\"]");
    let setup = Setup::new().workspace_table(&table).environment("SANDBOX_ID", "s-1");
    let daemon = setup.environment("SANDBOX_OTHER", "hidden").start().await;
    let response = rest(&daemon, &[], "/v1/metadata");
    assert_eq!(response.json(), json!({ "env": { "SANDBOX_ID": "s-1" } }));
}

#[tokio::test]
async fn other_paths_and_methods_do_not_exist() {
    let daemon = start_runtime().await;
    for (arguments, path, expected) in [
        (&[][..], "/", (404, "NOT_FOUND")),
        (&[], "/v1/sessions", (404, "NOT_FOUND")),
        (&[], "/mcp", (404, "NOT_FOUND")),
        (&["-d", "{}"], "/jig.v1.ToolService/Run", (404, "NOT_FOUND")),
        (&["-d", ""], "/v1/files/x", (405, "UNIMPLEMENTED")),
        (&["-X", "DELETE"], "/v1/health", (405, "UNIMPLEMENTED")),
    ] {
        let (status, code) = rest_error(&daemon, arguments, path);
        assert_eq!((status, &*code), expected, "{arguments:?} {path}");
    }
}
