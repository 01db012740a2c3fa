//! The `bash` of the dialect `anthropic`, whose commands share a shell.

use jig::api::v1::InvokeRequest;
use serde_json::{Value, json};

use crate::{
    invoke::{call, invoke},
    support::{Daemon, with_metadata},
};

async fn text(daemon: &Daemon, params: Value) -> String {
    invoke(daemon, call("anthropic", "bash", params)).await.text
}

async fn command(daemon: &Daemon, command: &str) -> String {
    text(daemon, json!({ "command": command })).await
}

#[tokio::test]
async fn commands_share_a_shell_until_a_restart() {
    let daemon = Daemon::start().await;
    command(&daemon, "cd /usr; x=1; f() { echo \"f $x\"; }").await;
    assert_eq!(command(&daemon, "pwd; f").await, "/usr\nf 1\n");
    let daemon = daemon.restart().await;
    assert_eq!(command(&daemon, "pwd; f").await, "/usr\nf 1\n");

    assert_eq!(text(&daemon, json!({ "restart": true })).await, "tool has been restarted.");
    assert_eq!(command(&daemon, "pwd; echo ${x-unset}; type -t f").await, "/workspace\nunset\n");
    command(&daemon, "x=2").await;
    let restart = json!({ "command": "echo ${x-unset}; y=1", "restart": true });
    assert_eq!(text(&daemon, restart).await, "unset\n");
    assert_eq!(command(&daemon, "echo $y").await, "1\n");
}

#[tokio::test]
async fn conversations_have_shells_of_their_own() {
    let daemon = Daemon::start().await;
    command(&daemon, "x=1").await;
    let request: InvokeRequest = call("anthropic", "bash", json!({ "command": "echo ${x-unset}" }));
    let response = invoke(&daemon, with_metadata("jig-session", "other", request)).await;
    assert_eq!(response.text, "unset\n");
}
