//! The one table of roles, by every way in.

use http::{Method, Request};
use http_body_util::{BodyExt as _, Full};
use jig::api::process_v1::StartRequest;
use prost::Message as _;
use prost_reflect::DescriptorPool;
use serde_json::{Value, json};
use tonic::{body::Body, transport::Channel};

use super::way::{Way, envelope, error_reason, grpc_reason, mcp_body, rejection_reason, send};
use crate::{
    agent_sandbox::{TABLE, execute_shell, grpc_channel, rest_channel},
    callers::roles::{ROLES, required_levels},
    contract::descriptors::tool_options,
    support::{Daemon, KeyFile, Setup},
};

/// A job that does not exist.
const UNKNOWN_JOB: &str = "/v1/jobs/01ARZ3NDEKTSV4RRFFQ69G5FAV";

fn contract() -> DescriptorPool {
    DescriptorPool::decode(jig::api::FILE_DESCRIPTOR_SET).unwrap()
}

#[tokio::test]
async fn each_rpc_requires_its_role_over_http() {
    let keys = KeyFile::new();
    let path = keys.path();
    let role_keys = ROLES.map(|role| keys.add_key(role, role, &[]));
    let daemon = Setup::new().arguments(&["--keys", path.to_str().unwrap()]).start().await;
    let contract = contract();
    let methods = contract.services().flat_map(|service| service.methods().collect::<Vec<_>>());
    let required_levels = required_levels();
    for method in methods {
        let name = format!("{}/{}", method.parent_service().full_name(), method.name());
        let required_level = required_levels[&name];
        // An accepted watch has nothing to send. `callers::roles` accepts it over gRPC.
        let tested_levels = if method.is_server_streaming() { required_level } else { 3 };
        for way in [Way::ConnectJson, Way::ConnectProtobuf, Way::GrpcWeb] {
            for (level, key) in role_keys.iter().enumerate().take(tested_levels) {
                let reason = rejection_reason(way, &daemon, &method, Some(key)).await;
                let is_forbidden = reason.as_deref() == Some("FORBIDDEN");
                let context = format!("{way:?} {name} for {}: {reason:?}", ROLES[level]);
                assert_eq!(is_forbidden, level < required_level, "{context}");
                assert_ne!(reason.as_deref(), Some("UNAUTHENTICATED"), "{context}");
            }
            let reason = rejection_reason(way, &daemon, &method, None).await;
            assert_eq!(reason.as_deref(), Some("UNAUTHENTICATED"), "{way:?} {name}");
        }
    }
}

/// The listener of a request.
#[derive(Debug, Clone, Copy)]
enum RoleListener {
    Main,
    AgentSandboxGrpc,
    AgentSandboxRest,
}

impl RoleListener {
    fn channel(self, daemon: &Daemon) -> Channel {
        match self {
            Self::Main => daemon.channel(),
            Self::AgentSandboxGrpc => grpc_channel(daemon),
            Self::AgentSandboxRest => rest_channel(daemon),
        }
    }

    /// The error of a key whose role is too low. The standard of agent-sandbox has codes only.
    fn forbidden(self) -> &'static str {
        match self {
            Self::Main | Self::AgentSandboxGrpc => "FORBIDDEN",
            Self::AgentSandboxRest => "PERMISSION_DENIED",
        }
    }
}

/// A request that is translated into a call of an RPC.
#[derive(Debug)]
struct TranslatedRequest {
    listener: RoleListener,
    method: Method,
    path: String,
    headers: Vec<(&'static str, String)>,
    body: bytes::Bytes,
    /// Service and name of the RPC.
    rpc: String,
}

impl TranslatedRequest {
    /// A request of REST on the main port.
    fn rest(method: Method, path: &str, body: Option<Value>, rpc: &str) -> Self {
        let body = body.map(|body| body.to_string().into()).unwrap_or_default();
        Self {
            listener: RoleListener::Main,
            method,
            path: path.to_owned(),
            headers: vec![("content-type", "application/json".to_owned())],
            body,
            rpc: rpc.to_owned(),
        }
    }

    fn mcp(mcp_method: &str, params: Value, rpc: &str) -> Self {
        let mut headers = vec![
            ("content-type", "application/json".to_owned()),
            ("accept", "application/json, text/event-stream".to_owned()),
            ("mcp-protocol-version", "2026-07-28".to_owned()),
            ("mcp-method", mcp_method.to_owned()),
        ];
        headers.extend(params["name"].as_str().map(|name| ("mcp-name", name.to_owned())));
        Self {
            headers,
            body: mcp_body(mcp_method, params),
            ..Self::rest(Method::POST, "/mcp", None, rpc)
        }
    }

    fn process(name: &str, message: &[u8], rpc: &str) -> Self {
        Self {
            listener: RoleListener::AgentSandboxGrpc,
            headers: vec![
                ("content-type", "application/grpc".to_owned()),
                ("te", "trailers".to_owned()),
            ],
            body: envelope(message),
            ..Self::rest(Method::POST, &format!("/process.v1.ProcessService/{name}"), None, rpc)
        }
    }

    fn file(method: Method, path: &str, rpc: &str) -> Self {
        Self {
            listener: RoleListener::AgentSandboxRest,
            headers: Vec::new(),
            ..Self::rest(method, &format!("/v1/files/{path}"), None, rpc)
        }
    }

    /// Sends the request. Returns why it is rejected.
    async fn rejection(&self, daemon: &Daemon, key: Option<&str>) -> Option<String> {
        let mut request = Request::builder().method(self.method.clone()).uri(&self.path);
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        if let Some(key) = key {
            request = request.header("x-api-key", key);
        }
        let request = request.body(Body::new(Full::new(self.body.clone()))).unwrap();
        let response = send(self.listener.channel(daemon), request).await;
        let headers = response.headers().clone();
        let body = response.into_body().collect().await.unwrap();
        let trailers = body.trailers().cloned().unwrap_or_default();
        if let RoleListener::AgentSandboxGrpc = self.listener {
            return grpc_reason(&headers).or_else(|| grpc_reason(&trailers));
        }
        let text = String::from_utf8(body.to_bytes().to_vec()).unwrap();
        let is_json = text.starts_with('{') || text.contains("data:");
        is_json.then(|| error_reason(&text)).flatten()
    }
}

/// Each request of REST, MCP and agent-sandbox that becomes a call, with its RPC.
fn translated_requests() -> Vec<TranslatedRequest> {
    use TranslatedRequest as Translated;
    let call = json!({"call_id": "a", "name": "tool_exec", "arguments": {"command": "true"}});
    let batch = json!({"calls": [call], "mode": "sync", "wait_ms": 15_000});
    let batches = "/v1/agent-tools/invoke-batch";
    let events = "/v1/sessions/default/events?follow=false";
    let stream = format!("{UNKNOWN_JOB}/stream");
    let shell = execute_shell("true");
    let start = StartRequest { config: shell.config.clone(), pty: None };
    let mut requests = vec![
        Translated::rest(Method::GET, "/v1/agent-tools", None, "CatalogService/ListTools"),
        Translated::rest(Method::POST, batches, Some(batch), "InvokeService/InvokeBatch"),
        Translated::rest(Method::GET, UNKNOWN_JOB, None, "JobService/GetJob"),
        Translated::rest(Method::GET, &stream, None, "JobService/WatchJob"),
        Translated::rest(Method::GET, events, None, "EventService/WatchEvents"),
        Translated::mcp("tools/list", json!({}), "CatalogService/ListTools"),
        Translated::process("Execute", &shell.encode_to_vec(), "ProcessService/Start"),
        Translated::process("Start", &start.encode_to_vec(), "ProcessService/Start"),
        Translated::file(Method::PUT, "f", "TransferService/Upload"),
        Translated::file(Method::GET, "f", "TransferService/Download"),
        Translated::file(Method::GET, "", "ToolService/ListDirectory"),
        Translated::file(Method::DELETE, "f", "ToolService/DeletePath"),
    ];
    let tools = contract().get_service_by_name("jig.v1.ToolService").unwrap();
    requests.extend(tools.methods().map(|method| {
        let tool = tool_options(&method).unwrap().name;
        let params = json!({"name": tool, "arguments": {}});
        Translated::mcp("tools/call", params, &format!("ToolService/{}", method.name()))
    }));
    requests
}

#[tokio::test]
async fn each_translated_request_requires_the_role_of_its_rpc() {
    let keys = KeyFile::new();
    let path = keys.path();
    let role_keys = ROLES.map(|role| keys.add_key(role, role, &[]));
    let setup = Setup::new().arguments(&["--keys", path.to_str().unwrap()]);
    let daemon = setup.workspace_table(TABLE).start().await;
    let required_levels = required_levels();
    for request in translated_requests() {
        let required_level = required_levels[&format!("jig.v1.{}", request.rpc)];
        let name = format!("{} {} {:?}", request.method, request.path, request.rpc);
        for (level, key) in role_keys.iter().enumerate() {
            let reason = request.rejection(&daemon, Some(key)).await;
            let is_forbidden = reason.as_deref() == Some(request.listener.forbidden());
            let context = format!("{name} for {}: {reason:?}", ROLES[level]);
            assert_eq!(is_forbidden, level < required_level, "{context}");
            assert_ne!(reason.as_deref(), Some("UNAUTHENTICATED"), "{context}");
        }
        let reason = request.rejection(&daemon, None).await;
        assert_eq!(reason.as_deref(), Some("UNAUTHENTICATED"), "{name}");
    }
}
