//! Benchmark of `read_file` and `run` by each way in, beside gRPC.
//!
//! Requests are written by hand and share one HTTP/2 connection for each listener, so that only the
//! daemon's work differs.

use std::{
    fs,
    num::NonZeroUsize,
    time::{Duration, Instant},
};

use bytes::Bytes;
use clap::Args;
use http::{Method, Request};
use http_body_util::{BodyExt as _, Full};
use jig::api::{
    process_v1::{ExecuteRequest, ProcessConfig},
    v1::{ReadFileRequest, RunRequest},
};
use prost::Message as _;
use serde_json::{Value, json};
use tonic::{
    Code, Status,
    body::Body,
    transport::{Channel, Endpoint},
};
use tower::{Service as _, ServiceExt as _};

use super::{daemon::Daemon, machine::Machine, statistics::Samples, table};
use crate::{cli_error::CliError, connection, global::GlobalArgs, output};

/// Name and size of the file that is read.
const TEST_FILE: &str = "ten-kibibytes";
/// Path of the file in the REST API of agent-sandbox.
const TEST_FILE_URL: &str = "/v1/files/ten-kibibytes";
const TEST_FILE_BYTES: usize = 10 * 1024;
/// Calls of a kind, one after the other.
const CALLS_PER_BLOCK: usize = 20;

/// Measure `read_file` and `run` by each way in: gRPC, Connect, REST, MCP and agent-sandbox.
#[derive(Debug, Args)]
pub(crate) struct WaysArgs {
    /// Number of rounds, of 20 calls of each kind.
    #[arg(long, default_value = "50", value_name = "N")]
    count: NonZeroUsize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WayIn {
    Grpc,
    GrpcWeb,
    ConnectProtobuf,
    ConnectJson,
    Batch,
    Mcp,
    /// Over gRPC for commands, and over REST for files.
    AgentSandbox,
}

impl WayIn {
    const ALL: [Self; 7] = [
        Self::Grpc,
        Self::GrpcWeb,
        Self::ConnectProtobuf,
        Self::ConnectJson,
        Self::Batch,
        Self::Mcp,
        Self::AgentSandbox,
    ];

    fn label(self) -> &'static str {
        match self {
            Self::Grpc => "gRPC",
            Self::GrpcWeb => "gRPC-Web",
            Self::ConnectProtobuf => "Connect, protobuf",
            Self::ConnectJson => "Connect, JSON",
            Self::Batch => "REST batch",
            Self::Mcp => "MCP",
            Self::AgentSandbox => "agent-sandbox",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BenchTool {
    ReadFile,
    Run,
}

impl BenchTool {
    fn name(self) -> &'static str {
        match self {
            Self::ReadFile => "read_file",
            Self::Run => "run",
        }
    }

    /// Path of the RPC, and its request.
    fn rpc(self) -> (&'static str, Vec<u8>) {
        match self {
            Self::ReadFile => {
                let path = TEST_FILE.to_owned();
                let request = ReadFileRequest { path, ..ReadFileRequest::default() };
                ("/jig.v1.ToolService/ReadFile", request.encode_to_vec())
            }
            Self::Run => {
                let command = Some("true".to_owned());
                let request = RunRequest { command, ..RunRequest::default() };
                ("/jig.v1.ToolService/Run", request.encode_to_vec())
            }
        }
    }

    fn parameters(self) -> Value {
        match self {
            Self::ReadFile => json!({ "path": TEST_FILE }),
            Self::Run => json!({ "command": "true" }),
        }
    }

    /// Its name in the dialect of batches.
    fn name_in_batch(self) -> &'static str {
        match self {
            Self::ReadFile => "data_file_read",
            Self::Run => "tool_exec",
        }
    }
}

/// A listener of the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BenchListener {
    Main,
    AgentSandboxGrpc,
    AgentSandboxRest,
}

/// A connection to each listener.
#[derive(Debug)]
struct Connections {
    main: Channel,
    agent_sandbox_grpc: Channel,
    agent_sandbox_rest: Channel,
}

impl Connections {
    async fn open(daemon: &Daemon) -> Result<Self, CliError> {
        let [grpc, rest] = daemon.agent_sandbox_addresses();
        Ok(Self {
            main: connect(daemon.address()).await?,
            agent_sandbox_grpc: connect(&grpc).await?,
            agent_sandbox_rest: connect(&rest).await?,
        })
    }

    fn channel(&mut self, listener: BenchListener) -> &mut Channel {
        match listener {
            BenchListener::Main => &mut self.main,
            BenchListener::AgentSandboxGrpc => &mut self.agent_sandbox_grpc,
            BenchListener::AgentSandboxRest => &mut self.agent_sandbox_rest,
        }
    }
}

async fn connect(address: &str) -> Result<Channel, CliError> {
    let endpoint = Endpoint::from_shared(address.to_owned()).map_err(failure)?;
    endpoint.connect().await.map_err(failure)
}

/// A request that is sent many times.
#[derive(Debug, Clone)]
struct PreparedRequest {
    listener: BenchListener,
    method: Method,
    path: &'static str,
    headers: Vec<(&'static str, &'static str)>,
    body: Bytes,
}

impl PreparedRequest {
    fn new(way: WayIn, tool: BenchTool) -> Self {
        let (rpc, message) = tool.rpc();
        let of_type = |path, content_type, body| Self {
            listener: BenchListener::Main,
            method: Method::POST,
            path,
            headers: vec![("content-type", content_type)],
            body,
        };
        match way {
            WayIn::Grpc => {
                let mut request = of_type(rpc, "application/grpc", envelope(&message));
                request.headers.push(("te", "trailers"));
                request
            }
            WayIn::GrpcWeb => of_type(rpc, "application/grpc-web+proto", envelope(&message)),
            WayIn::ConnectProtobuf => of_type(rpc, "application/proto", message.into()),
            WayIn::ConnectJson => {
                of_type(rpc, "application/json", tool.parameters().to_string().into())
            }
            WayIn::Batch => {
                let call = json!({
                    "call_id": "a", "name": tool.name_in_batch(), "arguments": tool.parameters(),
                });
                let body = json!({ "calls": [call], "mode": "sync" }).to_string();
                of_type("/v1/agent-tools/invoke-batch", "application/json", body.into())
            }
            WayIn::Mcp => {
                let meta = json!({
                    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                    "io.modelcontextprotocol/clientCapabilities": {},
                });
                let params = json!({
                    "name": tool.name(), "arguments": tool.parameters(), "_meta": meta,
                });
                let body =
                    json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
                let mut request = of_type("/mcp", "application/json", body.to_string().into());
                request.headers.extend([
                    ("accept", "application/json, text/event-stream"),
                    ("mcp-protocol-version", "2026-07-28"),
                    ("mcp-method", "tools/call"),
                    ("mcp-name", tool.name()),
                ]);
                request
            }
            WayIn::AgentSandbox => Self::of_agent_sandbox(tool),
        }
    }

    fn of_agent_sandbox(tool: BenchTool) -> Self {
        match tool {
            BenchTool::ReadFile => Self {
                listener: BenchListener::AgentSandboxRest,
                method: Method::GET,
                path: TEST_FILE_URL,
                headers: Vec::new(),
                body: Bytes::new(),
            },
            BenchTool::Run => {
                let command = ["sh", "-c", "true"].map(str::to_owned).into();
                let config = ProcessConfig { command, ..ProcessConfig::default() };
                let message = ExecuteRequest { config: Some(config) }.encode_to_vec();
                Self {
                    listener: BenchListener::AgentSandboxGrpc,
                    method: Method::POST,
                    path: "/process.v1.ProcessService/Execute",
                    headers: vec![("content-type", "application/grpc"), ("te", "trailers")],
                    body: envelope(&message),
                }
            }
        }
    }

    /// Sends the request and reads the response. Fails if the call fails.
    async fn send(&self, connections: &mut Connections) -> Result<(), CliError> {
        let channel = connections.channel(self.listener);
        let mut request = Request::builder().method(self.method.clone()).uri(self.path);
        for (name, value) in &self.headers {
            request = request.header(*name, *value);
        }
        let body = Body::new(Full::new(self.body.clone()));
        let request = request.body(body).map_err(failure)?;
        let response = channel.ready().await.map_err(failure)?.call(request).await;
        let response = response.map_err(failure)?;

        let (parts, body) = response.into_parts();
        let body = body.collect().await.map_err(failure)?;
        let trailers = body.trailers().unwrap_or(&parts.headers);
        let code = Status::from_header_map(trailers).map_or(Code::Ok, |status| status.code());
        let text = String::from_utf8_lossy(&body.to_bytes()).into_owned();
        let has_failed = text.contains("\"ok\":false") || text.contains("\"isError\":true");
        if !parts.status.is_success() || code != Code::Ok || has_failed {
            return Err(CliError::System(format!("{}: {} {text}", self.path, parts.status)));
        }
        Ok(())
    }
}

/// A message with the prefix of gRPC: not compressed, and its length.
fn envelope(message: &[u8]) -> Bytes {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes();
    [&[0][..], &length, message].concat().into()
}

fn failure(error: impl std::fmt::Display) -> CliError {
    CliError::System(error.to_string())
}

/// Runs the benchmark and prints the report.
pub(super) fn bench_ways(global: &GlobalArgs, args: &WaysArgs) -> Result<(), CliError> {
    if global.address().is_some() {
        let problem = "this benchmark starts its own daemon: leave --address out";
        return Err(CliError::Usage(problem.to_owned()));
    }
    let daemon = Daemon::start()?;
    let content = "x".repeat(TEST_FILE_BYTES);
    fs::write(daemon.workspace().join(TEST_FILE), content).map_err(CliError::system)?;

    let runtime = connection::runtime()?;
    let measured = runtime.block_on(async {
        let connections = Connections::open(&daemon).await?;
        measure(connections, args.count.get()).await
    })?;
    if global.json {
        output::write_json(&to_json(&measured))
    } else {
        output::write_stdout(to_text(&measured).as_bytes())
    }
}

type Measured = Vec<(BenchTool, WayIn, Samples)>;

/// Measures all kinds in alternating blocks.
async fn measure(mut connections: Connections, count: usize) -> Result<Measured, CliError> {
    let kinds = [BenchTool::ReadFile, BenchTool::Run]
        .into_iter()
        .flat_map(|tool| WayIn::ALL.map(|way| (tool, way)));
    let mut all: Vec<_> = kinds
        .map(|(tool, way)| (tool, way, PreparedRequest::new(way, tool), Vec::<Duration>::new()))
        .collect();
    for (_, _, request, _) in &all {
        request.send(&mut connections).await?;
    }

    for _ in 0..count {
        for (_, _, request, times) in &mut all {
            for _ in 0..CALLS_PER_BLOCK {
                let start = Instant::now();
                request.send(&mut connections).await?;
                times.push(start.elapsed());
            }
        }
    }
    Ok(all.into_iter().map(|(tool, way, _, times)| (tool, way, Samples::new(times))).collect())
}

/// How many times as long as gRPC the way in takes.
fn ratio_to_grpc(measured: &Measured, tool: BenchTool, samples: &Samples) -> f64 {
    let mut rows = measured.iter();
    let grpc = rows.find(|(other, way, _)| *other == tool && *way == WayIn::Grpc);
    grpc.map_or(f64::NAN, |(_, _, grpc)| samples.ratio(grpc))
}

fn to_text(measured: &Measured) -> String {
    let Machine { cores, kernel, cpu } = Machine::detect();
    let mut rows = vec![["", "p50", "p99", "gRPC"].map(String::from)];
    for (tool, way, samples) in measured {
        rows.push([
            format!("{} by {}", tool.name(), way.label()),
            table::format_milliseconds(samples.p50().as_secs_f64()),
            table::format_milliseconds(samples.p99().as_secs_f64()),
            table::format_ratio(ratio_to_grpc(measured, *tool, samples)),
        ]);
    }
    format!("{cores} cores, {cpu}, Linux {kernel}\n\n{}", table::align_numbers(&rows))
}

fn to_json(measured: &Measured) -> Value {
    let Machine { cores, kernel, cpu } = Machine::detect();
    let times = measured.iter().map(|(tool, way, samples)| {
        json!({
            "tool": tool.name(),
            "way": way.label(),
            "p50_ms": samples.p50().as_secs_f64() * 1e3,
            "p99_ms": samples.p99().as_secs_f64() * 1e3,
            "ratio_to_grpc": ratio_to_grpc(measured, *tool, samples),
        })
    });
    json!({
        "machine": { "cores": cores, "kernel": kernel, "cpu": cpu },
        "times": times.collect::<Vec<_>>(),
    })
}
