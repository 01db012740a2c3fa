//! The ways in, and a call of each.

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response};
use http_body_util::{BodyExt as _, Full};
use jig::api::{
    process_v1::ExecuteResponse,
    v1::{
        DeletePathRequest, DownloadRequest, DownloadResponse, ReadFileRequest, ReadFileResponse,
        RunRequest, RunResponse, UploadChunk, UploadRequest, UploadStart, upload_request::Part,
    },
};
use prost::Message;
use prost_reflect::MethodDescriptor;
use serde_json::{Value, json};
use tonic::{Status, body::Body, transport::Channel};
use tower::{Service as _, ServiceExt as _};

use crate::{
    agent_sandbox::{execute_shell, grpc_channel, rest_channel},
    files::transfer::sha256_hex,
    support::{Daemon, Refusal, promptly},
};

/// A way in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Grpc,
    GrpcWeb,
    ConnectJson,
    ConnectProtobuf,
    Batch,
    Mcp,
    /// Over gRPC for commands, and over REST for files.
    AgentSandbox,
}

/// What a caller asks for. The result is the text that it prints or reads, or none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ask {
    Run { command: String },
    ReadFile { path: String },
    Download { path: String },
    Upload { path: String, content: String },
    Delete { path: String },
}

/// A request without the headers of its caller.
struct WayRequest {
    method: Method,
    path: String,
    content_type: &'static str,
    body: Bytes,
}

impl Ask {
    /// Path of the RPC, and the messages of its request.
    fn rpc(&self) -> (&'static str, Vec<Vec<u8>>) {
        match self {
            Self::Run { command } => {
                let command = Some(command.clone());
                let request = RunRequest { command, ..RunRequest::default() };
                ("/jig.v1.ToolService/Run", vec![request.encode_to_vec()])
            }
            Self::ReadFile { path } => {
                let request = ReadFileRequest { path: path.clone(), ..ReadFileRequest::default() };
                ("/jig.v1.ToolService/ReadFile", vec![request.encode_to_vec()])
            }
            Self::Download { path } => {
                let request = DownloadRequest { path: path.clone(), ..DownloadRequest::default() };
                ("/jig.v1.TransferService/Download", vec![request.encode_to_vec()])
            }
            Self::Upload { path, content } => {
                let start = UploadStart {
                    path: path.clone(),
                    size_bytes: content.len() as u64,
                    sha256: sha256_hex(content.as_bytes()),
                    ..UploadStart::default()
                };
                let chunk = UploadChunk { offset: 0, data: content.clone().into() };
                let parts = [Part::Start(start), Part::Chunk(chunk)]
                    .map(|part| UploadRequest { part: Some(part) }.encode_to_vec());
                ("/jig.v1.TransferService/Upload", parts.into())
            }
            Self::Delete { path } => {
                let path = path.clone();
                let request = DeletePathRequest { path, ..DeletePathRequest::default() };
                ("/jig.v1.ToolService/DeletePath", vec![request.encode_to_vec()])
            }
        }
    }

    fn parameters(&self) -> Value {
        match self {
            Self::Run { command } => json!({ "command": command }),
            Self::ReadFile { path } | Self::Delete { path } => json!({ "path": path }),
            Self::Download { .. } | Self::Upload { .. } => panic!("{self:?} is no call of a tool"),
        }
    }

    /// The field of a result in JSON that has the text.
    fn text_field(&self) -> Option<&'static str> {
        match self {
            Self::Run { .. } => Some("stdout"),
            Self::ReadFile { .. } => Some("content"),
            Self::Download { .. } | Self::Upload { .. } | Self::Delete { .. } => None,
        }
    }
}

impl Way {
    pub(super) const ALL: [Self; 7] = [
        Self::Grpc,
        Self::GrpcWeb,
        Self::ConnectJson,
        Self::ConnectProtobuf,
        Self::Batch,
        Self::Mcp,
        Self::AgentSandbox,
    ];

    /// Whether a caller can ask for this.
    pub(super) fn has(self, ask: &Ask) -> bool {
        match ask {
            Ask::Run { .. } => true,
            Ask::ReadFile { .. } => self != Self::AgentSandbox,
            Ask::Download { .. } | Ask::Upload { .. } => {
                matches!(self, Self::Grpc | Self::GrpcWeb | Self::AgentSandbox)
            }
            // The dialect of batches has no tool for it.
            Ask::Delete { .. } => self != Self::Batch,
        }
    }

    fn channel(self, daemon: &Daemon, ask: &Ask) -> Channel {
        match (self, ask) {
            (Self::AgentSandbox, Ask::Run { .. }) => grpc_channel(daemon),
            (Self::AgentSandbox, _) => rest_channel(daemon),
            _ => daemon.channel(),
        }
    }

    /// What a caller sees of the reason of an error.
    pub(super) fn visible_reason(self, ask: &Ask, reason: &str) -> String {
        if self != Self::AgentSandbox || matches!(ask, Ask::Run { .. }) {
            return reason.to_owned();
        }
        // The standard has codes only.
        let code = match reason {
            "FORBIDDEN" | "POLICY_DENIED" => "PERMISSION_DENIED",
            "FILE_NOT_FOUND" => "NOT_FOUND",
            "UNAUTHENTICATED" => "UNAUTHENTICATED",
            _ => panic!("{reason} has no code"),
        };
        code.to_owned()
    }

    /// Makes a call. Returns its text, or the reason of its error.
    pub(super) async fn call(
        self,
        daemon: &Daemon,
        headers: &[(&str, &str)],
        ask: &Ask,
    ) -> Result<String, String> {
        let WayRequest { method, path, content_type, body } = self.request(ask);
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", content_type)
            .header("accept", "application/json, text/event-stream")
            .header("te", "trailers");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(tool) = self.mcp_tool(ask) {
            request = request
                .header("mcp-protocol-version", "2026-07-28")
                .header("mcp-method", "tools/call")
                .header("mcp-name", tool);
        }
        let response =
            send(self.channel(daemon, ask), request.body(Body::new(Full::new(body))).unwrap());
        self.outcome(response.await, ask).await
    }

    fn request(self, ask: &Ask) -> WayRequest {
        let (rpc, messages) = ask.rpc();
        let enveloped = || messages.iter().flat_map(|message| envelope(message)).collect();
        let post = |path: &str, content_type, body| WayRequest {
            method: Method::POST,
            path: path.to_owned(),
            content_type,
            body,
        };
        match self {
            Self::Grpc => post(rpc, "application/grpc", enveloped()),
            Self::AgentSandbox => agent_sandbox_request(ask),
            Self::GrpcWeb => post(rpc, "application/grpc-web+proto", enveloped()),
            Self::ConnectProtobuf => post(rpc, "application/proto", messages[0].clone().into()),
            Self::ConnectJson => post(rpc, "application/json", ask.parameters().to_string().into()),
            Self::Batch => {
                let name = match ask {
                    Ask::Run { .. } => "tool_exec",
                    Ask::ReadFile { .. } => "data_file_read",
                    _ => panic!("{ask:?} by {self:?}"),
                };
                let call = json!({"call_id": "call", "name": name, "arguments": ask.parameters()});
                let body = json!({"calls": [call], "mode": "sync", "wait_ms": 15_000});
                let path = "/v1/agent-tools/invoke-batch";
                post(path, "application/json", body.to_string().into())
            }
            Self::Mcp => {
                let name = self.mcp_tool(ask).unwrap();
                let params = json!({"name": name, "arguments": ask.parameters()});
                post("/mcp", "application/json", mcp_body("tools/call", params))
            }
        }
    }

    fn mcp_tool(self, ask: &Ask) -> Option<&'static str> {
        match (self, ask) {
            (Self::Mcp, Ask::Run { .. }) => Some("run"),
            (Self::Mcp, Ask::ReadFile { .. }) => Some("read_file"),
            (Self::Mcp, Ask::Delete { .. }) => Some("delete_path"),
            _ => None,
        }
    }

    async fn outcome(self, response: Response<Body>, ask: &Ask) -> Result<String, String> {
        let status = response.status();
        let headers = response.headers().clone();
        let collected = response.into_body().collect().await.unwrap();
        let trailers = collected.trailers().cloned().unwrap_or_default();
        let body = collected.to_bytes();

        match self {
            Self::AgentSandbox if !matches!(ask, Ask::Run { .. }) => {
                let text = String::from_utf8(body.to_vec()).unwrap();
                if status.is_success() { Ok(text) } else { Err(error_reason(&text).unwrap()) }
            }
            Self::Grpc | Self::GrpcWeb | Self::AgentSandbox => {
                if let Some(reason) = grpc_reason(&headers).or_else(|| grpc_reason(&trailers)) {
                    return Err(reason);
                }
                let length = u32::from_be_bytes(body[1..5].try_into().unwrap()) as usize;
                let message = &body[5..5 + length];
                if self == Self::AgentSandbox {
                    let response = ExecuteResponse::decode(message).unwrap();
                    return Ok(String::from_utf8(response.stdout.to_vec()).unwrap());
                }
                Ok(message_text(ask, message))
            }
            Self::ConnectProtobuf if status.is_success() => Ok(message_text(ask, &body)),
            _ => self.json_outcome(&parse_json(&body), ask),
        }
    }

    fn json_outcome(self, body: &Value, ask: &Ask) -> Result<String, String> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        // What rejects a request before it reaches a tool.
        let error = &body["error"];
        if let Some(reason) = text(&error["code"]).or_else(|| text(&error["data"]["reason"])) {
            return Err(reason);
        }
        match self {
            Self::Batch => {
                let result = &body["results"][0];
                if let Some(code) = text(&result["error"]["code"]) {
                    return Err(code);
                }
                let output = &result["output"];
                Ok([ask.text_field().unwrap(), "content_text", "output"]
                    .iter()
                    .find_map(|field| text(&output[field]))
                    .unwrap_or_else(|| panic!("{body}")))
            }
            Self::Mcp => {
                let result = &body["result"];
                let structured = &result["structuredContent"];
                if result["isError"] == true {
                    let kind = text(&result["_meta"]["jig-error"]["type"]);
                    return Err(kind.unwrap_or_else(|| panic!("{body}")).to_uppercase());
                }
                let Some(field) = ask.text_field() else { return Ok(String::new()) };
                Ok(text(&structured[field])
                    .or_else(|| text(&result["content"][0]["text"]))
                    .unwrap_or_else(|| panic!("{body}")))
            }
            _ => match text(&body["details"][0]["debug"]["reason"]) {
                Some(reason) => Err(reason),
                None => Ok(ask.text_field().map_or_else(String::new, |field| {
                    text(&body[field]).unwrap_or_else(|| panic!("{body}"))
                })),
            },
        }
    }
}

/// A command by gRPC, or a file by REST.
fn agent_sandbox_request(ask: &Ask) -> WayRequest {
    let (method, path, body) = match ask {
        Ask::Run { command } => {
            let body = envelope(&execute_shell(command).encode_to_vec());
            let path = "/process.v1.ProcessService/Execute".to_owned();
            return WayRequest {
                method: Method::POST,
                path,
                content_type: "application/grpc",
                body,
            };
        }
        Ask::Download { path } => (Method::GET, path, Bytes::new()),
        Ask::Upload { path, content } => (Method::PUT, path, content.clone().into()),
        Ask::Delete { path } => (Method::DELETE, path, Bytes::new()),
        Ask::ReadFile { .. } => panic!("{ask:?} by agent-sandbox"),
    };
    let path = format!("/v1/files/{path}");
    WayRequest { method, path, content_type: "application/octet-stream", body }
}

/// A request of MCP without `initialize`.
pub(super) fn mcp_body(method: &str, mut params: Value) -> Bytes {
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
    body.to_string().into()
}

/// The reason in an error of any way in that is JSON, or the code if it has no reason.
pub(super) fn error_reason(body: &str) -> Option<String> {
    let body = parse_json(body.as_bytes());
    let fields = ["/error/code", "/error/data/reason", "/result/_meta/jig-error/type", "/code"];
    let reason = fields.iter().find_map(|field| body.pointer(field)?.as_str());
    reason.map(str::to_uppercase)
}

/// Calls a method with an empty message, and returns why it is rejected. Waits for the
/// first message of a stream.
pub(super) async fn rejection_reason(
    way: Way,
    daemon: &Daemon,
    method: &MethodDescriptor,
    key: Option<&str>,
) -> Option<String> {
    let is_stream = method.is_client_streaming() || method.is_server_streaming();
    let (content_type, body) = match (way, is_stream) {
        (Way::ConnectJson, true) => ("application/connect+json", envelope(b"{}")),
        (Way::ConnectJson, false) => ("application/json", Bytes::from_static(b"{}")),
        (Way::ConnectProtobuf, true) => ("application/connect+proto", envelope(b"")),
        (Way::ConnectProtobuf, false) => ("application/proto", Bytes::new()),
        _ => ("application/grpc-web+proto", envelope(b"")),
    };
    let path = format!("/{}/{}", method.parent_service().full_name(), method.name());
    let mut request = Request::post(path).header("content-type", content_type);
    if let Some(key) = key {
        request = request.header("x-api-key", key);
    }
    let response = send(daemon.channel(), request.body(Body::new(Full::new(body))).unwrap()).await;
    if let Some(reason) = grpc_reason(response.headers()) {
        return Some(reason);
    }

    let mut body = response.into_body();
    let first = promptly("the response begins", body.frame()).await.transpose().unwrap();
    let first = first.and_then(|frame| frame.into_data().ok()).unwrap_or_default();
    let first = String::from_utf8_lossy(&first);
    let (_, rest) = first.split_once("\"reason\":\"")?;
    rest.split_once('"').map(|(reason, _)| reason.to_owned())
}

/// Sends a request on the daemon's HTTP/2 connection.
pub(super) async fn send(mut channel: Channel, request: Request<Body>) -> Response<Body> {
    channel.ready().await.unwrap().call(request).await.unwrap()
}

/// A message with the prefix of gRPC: not compressed, and its length.
pub(super) fn envelope(message: &[u8]) -> Bytes {
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[0][..], &length, message].concat().into()
}

pub(super) fn grpc_reason(headers: &HeaderMap) -> Option<String> {
    let status = Status::from_header_map(headers)?;
    (status.code() != tonic::Code::Ok).then(|| Refusal::from_status(&status).reason)
}

fn message_text(ask: &Ask, message: &[u8]) -> String {
    match ask {
        Ask::Run { .. } => RunResponse::decode(message).unwrap().stdout,
        Ask::ReadFile { .. } => ReadFileResponse::decode(message).unwrap().content,
        Ask::Download { .. } => {
            let data = DownloadResponse::decode(message).unwrap().data;
            String::from_utf8(data.to_vec()).unwrap()
        }
        Ask::Upload { .. } | Ask::Delete { .. } => String::new(),
    }
}

/// A body of JSON, or the last event of a stream.
fn parse_json(body: &[u8]) -> Value {
    let text = std::str::from_utf8(body).unwrap();
    let mut events = text.lines().filter_map(|line| line.strip_prefix("data:"));
    let last = events.rfind(|data| !data.trim().is_empty());
    serde_json::from_str(last.unwrap_or(text)).unwrap_or_else(|error| panic!("{error}: {text}"))
}
