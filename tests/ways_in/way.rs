//! The ways in, and a call of each.

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt as _, Full};
use jig::api::{
    process_v1::ExecuteResponse,
    v1::{ReadFileRequest, ReadFileResponse, RunRequest, RunResponse},
};
use prost::Message;
use prost_reflect::MethodDescriptor;
use serde_json::{Value, json};
use tonic::{Status, body::Body, transport::Channel};
use tower::{Service as _, ServiceExt as _};

use crate::{
    agent_sandbox::{execute_shell, grpc_channel},
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
    /// It has commands only.
    AgentSandbox,
}

/// What a caller asks for. Both have the text that they print or read as their result.
#[derive(Debug, Clone)]
pub(super) enum Ask {
    Run { command: String },
    ReadFile { path: String },
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
        self != Self::AgentSandbox || matches!(ask, Ask::Run { .. })
    }

    fn channel(self, daemon: &Daemon) -> Channel {
        if self == Self::AgentSandbox { grpc_channel(daemon) } else { daemon.channel() }
    }

    /// Makes a call. Returns its text, or the reason of its error.
    pub(super) async fn call(
        self,
        daemon: &Daemon,
        headers: &[(&str, &str)],
        ask: &Ask,
    ) -> Result<String, String> {
        let (path, content_type, body) = self.request(ask);
        let mut request = Request::post(path)
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
            send(self.channel(daemon), request.body(Body::new(Full::new(body))).unwrap());
        self.outcome(response.await, ask).await
    }

    fn request(self, ask: &Ask) -> (&'static str, &'static str, Bytes) {
        let method = match ask {
            Ask::Run { .. } => "/jig.v1.ToolService/Run",
            Ask::ReadFile { .. } => "/jig.v1.ToolService/ReadFile",
        };
        let message = match ask {
            Ask::Run { command } => {
                RunRequest { command: Some(command.clone()), ..RunRequest::default() }
                    .encode_to_vec()
            }
            Ask::ReadFile { path } => {
                ReadFileRequest { path: path.clone(), ..ReadFileRequest::default() }.encode_to_vec()
            }
        };
        let parameters = match ask {
            Ask::Run { command } => json!({ "command": command }),
            Ask::ReadFile { path } => json!({ "path": path }),
        };
        match self {
            Self::Grpc => (method, "application/grpc", envelope(&message)),
            Self::AgentSandbox => {
                let Ask::Run { command } = ask else { panic!("{ask:?} by {self:?}") };
                let message = execute_shell(command).encode_to_vec();
                let method = "/process.v1.ProcessService/Execute";
                (method, "application/grpc", envelope(&message))
            }
            Self::GrpcWeb => (method, "application/grpc-web+proto", envelope(&message)),
            Self::ConnectProtobuf => (method, "application/proto", message.into()),
            Self::ConnectJson => (method, "application/json", parameters.to_string().into()),
            Self::Batch => {
                let name = match ask {
                    Ask::Run { .. } => "tool_exec",
                    Ask::ReadFile { .. } => "data_file_read",
                };
                let call = json!({"call_id": "call", "name": name, "arguments": parameters});
                let body = json!({"calls": [call], "mode": "sync", "wait_ms": 15_000});
                ("/v1/agent-tools/invoke-batch", "application/json", body.to_string().into())
            }
            Self::Mcp => {
                let params = json!({
                    "name": self.mcp_tool(ask),
                    "arguments": parameters,
                    "_meta": {
                        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                        "io.modelcontextprotocol/clientCapabilities": {},
                    },
                });
                let body =
                    json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
                ("/mcp", "application/json", body.to_string().into())
            }
        }
    }

    fn mcp_tool(self, ask: &Ask) -> Option<&'static str> {
        match (self, ask) {
            (Self::Mcp, Ask::Run { .. }) => Some("run"),
            (Self::Mcp, Ask::ReadFile { .. }) => Some("read_file"),
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
        let field = match ask {
            Ask::Run { .. } => "stdout",
            Ask::ReadFile { .. } => "content",
        };
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
                Ok([field, "content_text", "output"]
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
                Ok(text(&structured[field])
                    .or_else(|| text(&result["content"][0]["text"]))
                    .unwrap_or_else(|| panic!("{body}")))
            }
            _ => match text(&body["details"][0]["debug"]["reason"]) {
                Some(reason) => Err(reason),
                None => Ok(text(&body[field]).unwrap_or_else(|| panic!("{body}"))),
            },
        }
    }
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
fn envelope(message: &[u8]) -> Bytes {
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[0][..], &length, message].concat().into()
}

fn grpc_reason(headers: &HeaderMap) -> Option<String> {
    let status = Status::from_header_map(headers)?;
    (status.code() != tonic::Code::Ok).then(|| Refusal::from_status(&status).reason)
}

fn message_text(ask: &Ask, message: &[u8]) -> String {
    match ask {
        Ask::Run { .. } => RunResponse::decode(message).unwrap().stdout,
        Ask::ReadFile { .. } => ReadFileResponse::decode(message).unwrap().content,
    }
}

/// A body of JSON, or the last event of a stream.
fn parse_json(body: &[u8]) -> Value {
    let text = std::str::from_utf8(body).unwrap();
    let mut events = text.lines().filter_map(|line| line.strip_prefix("data:"));
    let last = events.rfind(|data| !data.trim().is_empty());
    serde_json::from_str(last.unwrap_or(text)).unwrap_or_else(|error| panic!("{error}: {text}"))
}
