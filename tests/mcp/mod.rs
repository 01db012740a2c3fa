//! MCP (Model Context Protocol): `jig mcp` in front of a daemon, in both generations.

mod approvals;
mod calls;
mod hostile;
mod http;
mod lists;
mod protocol;
mod tasks;

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    thread,
};

use serde_json::{Map, Value, json};
use tokio::sync::mpsc::{self, UnboundedReceiver};

use crate::support::{Daemon, kill_and_reap, promptly};

/// A revision of the protocol, and how its clients open a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Revision {
    /// 2026-07-28: each request describes its client.
    Stateless,
    /// An older one, with `initialize`.
    WithInitialize(&'static str),
}

const LEGACY: Revision = Revision::WithInitialize("2025-11-25");
const REVISIONS: [Revision; 4] = [
    Revision::Stateless,
    LEGACY,
    Revision::WithInitialize("2025-06-18"),
    Revision::WithInitialize("2025-03-26"),
];

/// An MCP client that has started `jig mcp`.
struct McpClient {
    child: Child,
    stdin: Option<ChildStdin>,
    messages: UnboundedReceiver<Value>,
    revision: Revision,
    capabilities: Value,
    last_id: u64,
}

impl McpClient {
    /// Starts `jig mcp` for a daemon.
    async fn start(daemon: &Daemon, revision: Revision) -> Self {
        Self::start_with(daemon, revision, &[], json!({})).await
    }

    /// As [`Self::start`], with arguments and capabilities of the client.
    async fn start_with(
        daemon: &Daemon,
        revision: Revision,
        arguments: &[&str],
        capabilities: Value,
    ) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_jig"));
        command.env_clear().env("JIG_ADDRESS", format!("unix:{}", daemon.socket().display()));
        Self::open(command, revision, arguments, capabilities).await
    }

    /// Starts `jig mcp` in a directory, without a daemon.
    async fn start_in(directory: &Path, revision: Revision) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_jig"));
        command.current_dir(directory).env("JIG_MINIMUM_LEVEL", "L1").env_remove("JIG_ADDRESS");
        Self::open(command, revision, &[], json!({})).await
    }

    async fn open(
        mut command: Command,
        revision: Revision,
        arguments: &[&str],
        capabilities: Value,
    ) -> Self {
        command.arg("mcp").args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, messages) = mpsc::unbounded_channel();
        thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let message = serde_json::from_str(&line);
                let message = message.unwrap_or_else(|error| panic!("{error}: {line}"));
                if sender.send(message).is_err() {
                    break;
                }
            }
        });

        let stdin = child.stdin.take();
        let mut client = Self { child, stdin, messages, revision, capabilities, last_id: 0 };
        if let Revision::WithInitialize(version) = revision {
            let params = json!({
                "protocolVersion": version,
                "capabilities": client.capabilities,
                "clientInfo": {"name": "test", "version": "1"},
            });
            let result = client.result("initialize", params).await;
            assert_eq!(result["protocolVersion"], version, "{result}");
            client.notify("notifications/initialized", json!({}));
        }
        client
    }

    /// Sends a line as it is.
    fn send_line(&mut self, line: &str) {
        let mut stdin = self.stdin.as_ref().unwrap();
        stdin.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    fn notify(&mut self, method: &str, params: Value) {
        let message = json!({"jsonrpc": "2.0", "method": method, "params": params});
        self.send_line(&message.to_string());
    }

    /// Answers a request of the server.
    fn answer(&mut self, request: &Value, result: Value) {
        let message = json!({"jsonrpc": "2.0", "id": request["id"], "result": result});
        self.send_line(&message.to_string());
    }

    /// Sends a request, and returns its id.
    fn send(&mut self, method: &str, mut params: Value) -> u64 {
        self.last_id += 1;
        if self.revision == Revision::Stateless {
            let params = params.as_object_mut().unwrap();
            let meta = params.entry("_meta").or_insert_with(|| Map::new().into());
            let prefix = "io.modelcontextprotocol";
            meta[format!("{prefix}/protocolVersion")] = "2026-07-28".into();
            meta[format!("{prefix}/clientCapabilities")] = self.capabilities.clone();
            meta[format!("{prefix}/clientInfo")] = json!({"name": "test", "version": "1"});
        }
        let id = self.last_id;
        let message = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        self.send_line(&message.to_string());
        id
    }

    /// Waits for the next message.
    async fn next_message(&mut self) -> Value {
        promptly("a message arrives", self.messages.recv()).await.expect("the server has ended")
    }

    /// Waits for the response to a request. Other messages before it must be notifications.
    async fn response_to(&mut self, id: u64) -> Value {
        loop {
            let message = self.next_message().await;
            if message["id"] == id {
                return message;
            }
            assert!(message.get("id").is_none(), "{message}");
        }
    }

    /// Sends a request, and returns its result.
    async fn result(&mut self, method: &str, params: Value) -> Value {
        let id = self.send(method, params);
        let mut response = self.response_to(id).await;
        assert!(response.get("error").is_none(), "{method}: {response}");
        response["result"].take()
    }

    /// Sends a request, and returns the code of its error.
    async fn error_code(&mut self, method: &str, params: Value) -> i64 {
        let id = self.send(method, params);
        let response = self.response_to(id).await;
        response["error"]["code"].as_i64().unwrap_or_else(|| panic!("{method}: {response}"))
    }

    /// Calls a tool.
    async fn call(&mut self, tool: &str, arguments: Value) -> Value {
        self.result("tools/call", json!({"name": tool, "arguments": arguments})).await
    }

    /// Closes standard input, and waits for the server's end.
    async fn close(&mut self) {
        self.stdin = None;
        while promptly("the server ends", self.messages.recv()).await.is_some() {}
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for McpClient {
    fn drop(&mut self) {
        kill_and_reap(&mut self.child);
    }
}

/// The text of a result of `tools/call`.
fn text_of(result: &Value) -> &str {
    result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{result}"))
}
