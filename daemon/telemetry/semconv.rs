//! Names of attributes: OpenTelemetry semantic conventions 1.45, and own names with `jig.`.
//!
//! The crate `opentelemetry-semantic-conventions` is generated from 1.42, in which
//! `rpc.status_code` has another name.

/// Schema of the names below.
pub(crate) const SCHEMA_URL: &str = "https://opentelemetry.io/schemas/1.45.0";

// RPC spans (stable).
pub(crate) const RPC_SYSTEM_NAME: &str = "rpc.system.name";
pub(crate) const RPC_METHOD: &str = "rpc.method";
pub(crate) const RPC_METHOD_ORIGINAL: &str = "rpc.method_original";
pub(crate) const RPC_STATUS_CODE: &str = "rpc.status_code";
pub(crate) const ERROR_TYPE: &str = "error.type";
pub(crate) const SERVER_ADDRESS: &str = "server.address";
pub(crate) const SERVER_PORT: &str = "server.port";
pub(crate) const NETWORK_PEER_ADDRESS: &str = "network.peer.address";
pub(crate) const NETWORK_PEER_PORT: &str = "network.peer.port";
pub(crate) const HTTP_REQUEST_METHOD: &str = "http.request.method";

// Tool spans (gen-ai, in development).
pub(crate) const GEN_AI_OPERATION_NAME: &str = "gen_ai.operation.name";
pub(crate) const GEN_AI_TOOL_NAME: &str = "gen_ai.tool.name";
pub(crate) const GEN_AI_TOOL_TYPE: &str = "gen_ai.tool.type";
pub(crate) const GEN_AI_CONVERSATION_ID: &str = "gen_ai.conversation.id";
pub(crate) const GEN_AI_TOOL_CALL_ID: &str = "gen_ai.tool.call.id";
pub(crate) const GEN_AI_TOOL_CALL_ARGUMENTS: &str = "gen_ai.tool.call.arguments";
pub(crate) const GEN_AI_TOOL_CALL_RESULT: &str = "gen_ai.tool.call.result";

// Process spans (release candidate).
pub(crate) const PROCESS_EXECUTABLE_NAME: &str = "process.executable.name";
pub(crate) const PROCESS_COMMAND_ARGS: &str = "process.command_args";
pub(crate) const PROCESS_PID: &str = "process.pid";
pub(crate) const PROCESS_VPID: &str = "process.vpid";
pub(crate) const PROCESS_EXIT_CODE: &str = "process.exit.code";
pub(crate) const PROCESS_WORKING_DIRECTORY: &str = "process.working_directory";
pub(crate) const CPU_MODE: &str = "cpu.mode";

// Own attributes.
pub(crate) const CALL_ID: &str = "jig.call.id";
pub(crate) const PRINCIPAL: &str = "jig.principal";
pub(crate) const DIALECT: &str = "jig.dialect";
pub(crate) const CALLED_NAME: &str = "jig.called_name";
pub(crate) const SESSION_ID: &str = "jig.session.id";
pub(crate) const REQUEST_ID: &str = "jig.request.id";
pub(crate) const WORKSPACE: &str = "jig.workspace";
pub(crate) const ALLOWED_BY: &str = "jig.allowed_by";
pub(crate) const DENIED_BY: &str = "jig.denied_by";
pub(crate) const QUEUE_WAIT_DURATION: &str = "jig.queue.wait_duration";
pub(crate) const APPROVAL_ID: &str = "jig.approval.id";
pub(crate) const PROCESS_SIGNAL: &str = "jig.process.signal";
pub(crate) const PROCESS_TERMINATION_REASON: &str = "jig.process.termination_reason";
pub(crate) const PROCESS_CPU_USER: &str = "jig.process.cpu_user";
pub(crate) const PROCESS_CPU_SYSTEM: &str = "jig.process.cpu_system";
pub(crate) const PROCESS_MAX_RSS: &str = "jig.process.max_rss";
pub(crate) const PROCESS_STDOUT_BYTES: &str = "jig.process.stdout_bytes";
pub(crate) const PROCESS_STDERR_BYTES: &str = "jig.process.stderr_bytes";
pub(crate) const PROCESS_TRUNCATED: &str = "jig.process.truncated";
pub(crate) const SANDBOX_LEVEL: &str = "jig.sandbox.level";
pub(crate) const SANDBOX_NETWORK: &str = "jig.sandbox.network";
pub(crate) const EGRESS_DECISION: &str = "jig.egress.decision";
pub(crate) const EGRESS_SENT_BYTES: &str = "jig.egress.sent_bytes";
pub(crate) const EGRESS_RECEIVED_BYTES: &str = "jig.egress.received_bytes";
pub(crate) const EGRESS_ATTEMPTS: &str = "jig.egress.attempts";
pub(crate) const EGRESS_DENIED: &str = "jig.egress.denied";
pub(crate) const LIMIT_WALL: &str = "jig.limit.wall";
pub(crate) const LIMIT_PIDS: &str = "jig.limit.pids";
pub(crate) const LIMIT_MEMORY: &str = "jig.limit.memory";
pub(crate) const LIMIT_CPU: &str = "jig.limit.cpu";
pub(crate) const LIMIT_OUTPUT: &str = "jig.limit.output";
pub(crate) const LIMIT_EXCEEDED: &str = "jig.limit.exceeded";

// Own attributes that only metrics have.
pub(crate) const LISTENER: &str = "jig.listener";
pub(crate) const OUTCOME: &str = "jig.outcome";
pub(crate) const REASON: &str = "jig.reason";
pub(crate) const STREAM: &str = "jig.stream";
pub(crate) const SANDBOX_STATE: &str = "jig.sandbox.state";
pub(crate) const SANDBOX_SLOT: &str = "jig.sandbox.slot";
pub(crate) const JOB_STATE: &str = "jig.job.state";
pub(crate) const FLEET_QUEUE: &str = "jig.fleet.queue";
pub(crate) const FLEET_EVENT: &str = "jig.fleet.event";
pub(crate) const STORE_PART: &str = "jig.store.part";
pub(crate) const SIGNAL: &str = "jig.telemetry.signal";

/// Values of `error.type` on process spans.
pub(crate) mod process_error {
    /// The process exited with a code other than 0.
    pub(crate) const EXIT_NONZERO: &str = "exit_nonzero";
    /// A signal terminated the process.
    pub(crate) const SIGNAL: &str = "signal";
    /// The process exceeded its timeout.
    pub(crate) const TIMEOUT: &str = "timeout";
    /// The process exceeded its memory limit.
    pub(crate) const OOM_KILLED: &str = "oom_killed";
    /// The process exceeded its output limit.
    pub(crate) const OUTPUT_LIMIT: &str = "output_limit";
    /// The call was cancelled.
    pub(crate) const CANCELLED: &str = "cancelled";
    /// The process could not be started.
    pub(crate) const SPAWN_FAILED: &str = "spawn_failed";
    /// The sandbox died.
    pub(crate) const SANDBOX_LOST: &str = "sandbox_lost";
}
