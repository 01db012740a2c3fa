//! The API of the Kubernetes agent-sandbox runtime: processes over gRPC, files and probes over REST.

mod access;
mod conditions;
mod files;
mod openapi;
mod probes;
mod processes;
mod records;
mod writes;

use std::{collections::BTreeMap, process::Command};

use jig::api::process_v1::{
    ExecuteRequest, ExecuteResponse, ExitEvent, ProcessConfig, StartRequest, StartResponse,
    process_service_client::ProcessServiceClient, start_response::Event,
};
use tonic::{Request, Status, Streaming, transport::Channel};

use crate::support::{CurlResponse, Daemon, Setup, lazy_channel, parse_curl_response};

/// Serves the runtime on free ports.
pub(crate) const TABLE: &str =
    "[agent_sandbox]\ngrpc_listen = \"127.0.0.1:0\"\nrest_listen = \"127.0.0.1:0\"";

/// Settings of a daemon that serves the runtime.
fn runtime_setup() -> Setup {
    Setup::new().workspace_table(TABLE)
}

async fn start_runtime() -> Daemon {
    runtime_setup().start().await
}

pub(crate) fn grpc_channel(daemon: &Daemon) -> Channel {
    lazy_channel(&format!("http://{}", daemon.agent_sandbox_address("gRPC")))
}

pub(crate) fn rest_channel(daemon: &Daemon) -> Channel {
    lazy_channel(&format!("http://{}", daemon.agent_sandbox_address("REST")))
}

fn processes(daemon: &Daemon) -> ProcessServiceClient<Channel> {
    ProcessServiceClient::new(grpc_channel(daemon)).max_decoding_message_size(usize::MAX)
}

/// curl with arguments, for a path of the REST API.
fn rest_command(daemon: &Daemon, arguments: &[&str], path: &str) -> Command {
    let mut command = Command::new("curl");
    command
        .args(["--silent", "--show-error", "--path-as-is"])
        .args(arguments)
        .arg(format!("http://{}{path}", daemon.agent_sandbox_address("REST")))
        .env_clear();
    command
}

/// Runs curl with arguments for a path of the REST API, and returns the response.
fn rest(daemon: &Daemon, arguments: &[&str], path: &str) -> CurlResponse {
    let output = rest_command(daemon, arguments, path).arg("--include").output().unwrap();
    assert!(output.status.success(), "{arguments:?} {path}: {output:?}");
    parse_curl_response(&String::from_utf8(output.stdout).unwrap())
}

/// Status and code of an error of the REST API, which has no other fields than the standard's.
fn rest_error(daemon: &Daemon, arguments: &[&str], path: &str) -> (u16, String) {
    let response = rest(daemon, arguments, path);
    let json = response.json();
    let fields: BTreeMap<String, String> = serde_json::from_value(json).unwrap();
    assert_eq!(fields.keys().collect::<Vec<_>>(), ["code", "message"], "{response:?}");
    (response.status, fields["code"].clone())
}

fn shell_config(script: &str) -> ProcessConfig {
    let command = ["sh", "-c", script].map(str::to_owned).to_vec();
    ProcessConfig { command, ..ProcessConfig::default() }
}

pub(crate) fn execute_shell(script: &str) -> ExecuteRequest {
    ExecuteRequest { config: Some(shell_config(script)) }
}

fn start_shell(script: &str) -> StartRequest {
    StartRequest { config: Some(shell_config(script)), pty: None }
}

async fn execute(
    daemon: &Daemon,
    request: impl tonic::IntoRequest<ExecuteRequest>,
) -> Result<ExecuteResponse, Status> {
    let response = processes(daemon).execute(request).await;
    response.map(tonic::Response::into_inner)
}

/// A started process: its id, and the rest of its events.
#[derive(Debug)]
struct Started {
    process_id: i32,
    events: Streaming<StartResponse>,
}

impl Started {
    /// Starts a process, and reads its first event.
    async fn new(
        client: &mut ProcessServiceClient<Channel>,
        request: impl tonic::IntoRequest<StartRequest>,
    ) -> Self {
        let mut events = client.start(request).await.unwrap().into_inner();
        match events.message().await.unwrap().and_then(|message| message.event) {
            Some(Event::Init(init)) => Self { process_id: init.process_id, events },
            other => panic!("the first event is {other:?}"),
        }
    }

    /// Reads standard output until it contains `text`.
    async fn wait_for(&mut self, text: &str) {
        let mut stdout = Vec::new();
        while !String::from_utf8_lossy(&stdout).contains(text) {
            match self.events.message().await.unwrap().and_then(|message| message.event) {
                Some(Event::Stdout(data)) => stdout.extend_from_slice(&data),
                other => panic!("{other:?} before {text:?} in {stdout:?}"),
            }
        }
    }

    /// Reads the process to its end. Returns its output, its error output and its exit code.
    async fn finish(mut self) -> (String, String, i32) {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let exit_code = loop {
            match self.events.message().await.unwrap().and_then(|message| message.event) {
                Some(Event::Stdout(data)) => stdout.extend_from_slice(&data),
                Some(Event::Stderr(data)) => stderr.extend_from_slice(&data),
                Some(Event::Exit(ExitEvent { exit_code })) => break exit_code,
                other => panic!("{other:?} after {stdout:?}"),
            }
        };
        assert_eq!(self.events.message().await.unwrap(), None, "exit is the last event");
        let [stdout, stderr] = [stdout, stderr].map(|text| String::from_utf8(text).unwrap());
        (stdout, stderr, exit_code)
    }
}

/// A request with a deadline.
fn with_timeout<T>(message: T, timeout: std::time::Duration) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(timeout);
    request
}
