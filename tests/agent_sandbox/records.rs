//! Records of the calls that requests become.

use std::sync::Arc;

use serde_json::Value;

use super::{TABLE, execute, execute_shell, rest, rest_error};
use crate::{
    support::{KeyFile, Setup, with_key},
    ways_in::{POLICY, session_records},
};

#[tokio::test]
async fn requests_are_authorized_and_recorded_as_calls_of_tools() {
    let keys = Arc::new(KeyFile::new());
    let key = keys.add_key("agent", "invoke", &[]);
    let path = keys.path().display().to_string();
    let setup = Setup::new().workspace_table(&format!("{TABLE}\n{POLICY}"));
    let setup = setup.arguments(&["--keys", &path]).with_resource(Arc::clone(&keys) as Arc<_>);
    let daemon = setup.start().await;

    for (script, is_allowed) in [("echo denied", true), ("denied", false)] {
        let mut request = with_key(&key, execute_shell(script));
        request.metadata_mut().insert("jig-session", "agent".parse().unwrap());
        let executed = execute(&daemon, request).await;
        assert_eq!(executed.is_ok(), is_allowed, "{script}: {executed:?}");
    }
    let authorization = format!("authorization: Bearer {key}");
    let headers = ["-H", &*authorization, "-H", "jig-session: agent"];
    let with = |arguments: &[&'static str]| {
        headers.iter().copied().chain(arguments.iter().copied()).collect::<Vec<_>>()
    };
    let put = with(&["-X", "PUT", "--data-binary", "x"]);
    assert_eq!(rest(&daemon, &put, "/v1/files/f").status, 204);
    assert_eq!(rest(&daemon, &headers, "/v1/files/f").body, "x");
    assert_eq!(rest_error(&daemon, &headers, "/v1/files/none").0, 404);
    assert_eq!(rest(&daemon, &with(&["-X", "DELETE"]), "/v1/files/f").status, 204);

    let mut expected = Vec::new();
    for (tool, is_denied) in [
        ("run", false),
        ("run", true),
        // Downloads write no records.
        ("upload", false),
        ("delete_path", false),
    ] {
        let events: &[_] = if is_denied { &["denied"] } else { &["started", "finished"] };
        expected.extend(events.iter().map(|event| format!("tool_call_{event} {tool} key:agent")));
    }
    let records = session_records(&daemon, "agent", &key).await;
    let texts = records.iter().map(|record| {
        let text = |name: &str| record.get(name).and_then(Value::as_str).unwrap_or_default();
        format!("{} {} {}", text("event"), text("tool"), text("principal"))
    });
    assert_eq!(texts.collect::<Vec<_>>(), expected);
}
