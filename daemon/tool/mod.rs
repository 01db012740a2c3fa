//! The tools and the trait that they implement. Each file turns one typed request into one typed
//! response. Queueing, authorization, approval and records are the pipeline's.

pub(crate) mod activity;
pub(crate) mod apply_patch;
pub(crate) mod await_job;
pub(crate) mod create_directory;
pub(crate) mod delete_path;
pub(crate) mod edit_file;
pub(crate) mod edit_notebook;
pub(crate) mod fetch_url;
pub(crate) mod last_command;
pub(crate) mod list_directory;
pub(crate) mod list_files;
pub(crate) mod move_path;
pub(crate) mod page_token;
pub(crate) mod read_file;
pub(crate) mod read_notebook;
pub(crate) mod run;
pub(crate) mod search;
pub(crate) mod start;
pub(crate) mod stat_path;
pub(crate) mod write_file;

mod bounds_watch;
mod file_work;
pub(crate) mod job_waiter;
mod proxied_run;
mod session_artifacts;
pub(crate) mod wire_file;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use prost::Message;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::{activity::Activity, job_waiter::JobWaiter};
use crate::daemon::{
    catalog::CanonicalText,
    egress::proxy::EgressProxy,
    error::{Error, Reason, Violation},
    fetch::Fetcher,
    process::supervisor::CancelSignals,
    queue::{
        Acquire, DeferredPermit, Limiter, Permit, PrincipalName, Saturated, SharedPermit, Sharing,
    },
    sandbox::{level::Isolation, limits::RunLimits, plan::NetworkMode, pool::SandboxPool},
    store::session::{Session, ShellName, StepId},
    task::available_cores,
    telemetry::{Telemetry, spans::OtelSpan},
    workspace::{BlockingPermit, RelativePath, Workspace},
};

/// Most time before the caller's deadline that is left for the response to reach the caller.
const MAX_RESPONSE_MARGIN: Duration = Duration::from_millis(100);

/// Concurrent searches per core. Each keeps every core busy and takes a few MiB per thread. Others
/// queue. One caller may hold as many permits as it leaves free.
const MAX_SEARCHES_PER_CORE: usize = 2;
const SEARCH_SHARING: Sharing = Sharing::MultipleOfFree(1);

/// Concurrent fetches. Each takes up to several times 4 MiB, and a thread during name resolution.
/// Others queue. One caller may hold as many permits as it leaves free.
const MAX_CONCURRENT_FETCHES: usize = 32;
const FETCH_SHARING: Sharing = Sharing::MultipleOfFree(1);

/// How long file work holds its start permit. It needs a core all the time but may block on a disk,
/// and other calls must not wait for that.
const FILE_START_PERMIT_HOLD: Duration = Duration::from_millis(100);

/// What permits of [`FileLimiters::operations`] are for, in errors.
const FILE_WORK: &str = "file work";

/// Cost of validating one byte of a request with globs, which validation compiles. One byte of
/// plain text costs 1.
const GLOB_VALIDATION_COST_PER_BYTE: usize = 256;

/// A tool: validates a typed request, then executes it.
pub(crate) trait Tool: Send + 'static {
    /// Name in the contract.
    const NAME: &'static str;
    /// Full name of the request message, if it differs from that of the tool's own RPC.
    const REQUEST_MESSAGE: Option<&'static str> = None;
    /// Whether a call runs in a sandbox of its own.
    const NEEDS_SANDBOX: bool = false;
    /// False for a started process: the daemon admits it without a queue, and it outlives its call.
    const CALLER_WAITS: bool = true;
    /// Whether the tool reads its time limit from the request and enforces it itself.
    const ENFORCES_OWN_TIMEOUT: bool = false;
    /// Cost of validating one byte of the request. One byte of plain text costs 1.
    const VALIDATION_COST_PER_BYTE: usize = 1;
    /// Whether calls get [`ToolContext::job_waiter`].
    const WAITS_FOR_JOBS: bool = false;
    /// Longest time that a call holds its start permit, which limits the calls that start at once.
    const START_PERMIT_HOLD: Duration = FILE_START_PERMIT_HOLD;
    type Request: Message + Default + Send + 'static;
    type Response: Send + 'static;
    /// The validated request.
    type Params: Send + 'static;

    /// Validates what depends on more than one field.
    ///
    /// `request` has its defaults filled in. `violations` holds the fields already known to be
    /// invalid; validation appends to it. Returns `None` if there is any violation.
    fn validate(
        request: Self::Request,
        workspace_context: &WorkspaceContext,
        violations: &mut Vec<Violation>,
    ) -> Result<Option<Self::Params>, Error>;

    /// The files that the call names, relative to the workspace. Approval requests show them.
    fn affected_paths(
        _params: &Self::Params,
        _workspace_context: &WorkspaceContext,
    ) -> Vec<String> {
        Vec::new()
    }

    /// The working directory of the call's command, relative to the workspace.
    fn cwd(_params: &Self::Params) -> Option<&RelativePath> {
        None
    }

    /// The named shell that the call runs in. Calls in the same shell run one after the other.
    fn shell(_params: &Self::Params) -> Option<&ShellName> {
        None
    }

    /// The canonical form of a field, for policy rules, if it differs from the given form.
    fn canonical_text(
        _params: &Self::Params,
        _workspace_context: &WorkspaceContext,
    ) -> Option<CanonicalText> {
        None
    }

    /// Executes the call. The future is polled to its end even if the caller goes away;
    /// `context.cancel` then reports that the call is abandoned.
    fn execute(
        params: Self::Params,
        context: ToolContext,
    ) -> impl Future<Output = Result<ToolOutput<Self::Response>, Error>> + Send;

    /// The response to a repeated call if the daemon died during the first attempt. `_step` is the
    /// session step of that attempt, if it reached one.
    fn daemon_lost_response(_step: Option<u64>) -> Result<Self::Response, Error> {
        Err(daemon_lost_error(Self::NAME))
    }
}

/// The error for a repeated call if the daemon died during the first attempt.
pub(crate) fn daemon_lost_error(what: &str) -> Error {
    Error::new(
        Reason::DaemonLost,
        format!(
            "the daemon died during {what} with this request id, or had no room to store the response: the progress of the call is unknown. Check the current state, then retry with a new request id"
        ),
    )
}

/// Rejects an approved call that would run in another directory than the approved one.
pub(crate) fn replaced_while_pending_error(path: &str) -> Error {
    let text = format!(
        "this call was approved, but a directory on the way to {path:?} was replaced while it waited; nothing was run: check the directory and retry"
    );
    Error::new(Reason::ApprovalDenied, text).with_metadata("path", path)
}

/// A workspace with everything that calls on it use.
#[derive(Debug, Clone)]
pub(crate) struct WorkspaceContext {
    pub(crate) workspace: Arc<Workspace>,
    pub(crate) sandbox_pool: Arc<SandboxPool>,
    pub(crate) isolation: Arc<Isolation>,
    /// Settings that apply to every command.
    pub(crate) run_settings: Arc<RunSettings>,
    pub(crate) file_limiters: FileLimiters,
    /// Present if the configuration allows fetching from the web.
    pub(crate) fetcher: Option<LimitedFetcher>,
    /// Counts of running and finished calls.
    pub(crate) activity: Arc<Activity>,
    /// Cancelled when a created workspace is deleted. `None` for one of the configuration.
    pub(crate) deletion: Option<CancellationToken>,
    /// Ends the calls of a created workspace: at its deletion, and when the daemon kills its calls.
    pub(crate) call_end: Option<CancellationToken>,
}

impl WorkspaceContext {
    /// Whether the workspace was deleted. Another one may have its name by now.
    pub(crate) fn is_deleted(&self) -> bool {
        self.deletion.as_ref().is_some_and(CancellationToken::is_cancelled)
    }

    /// Waits until the workspace is deleted; forever if it is one of the configuration.
    pub(crate) async fn wait_for_deletion(&self) {
        match &self.deletion {
            Some(deletion) => deletion.cancelled().await,
            None => std::future::pending().await,
        }
    }

    /// Fails if the workspace was deleted. To be called after a lookup by its name as well: the name
    /// may have been used again before the lookup.
    pub(crate) fn require_undeleted(&self) -> Result<(), Error> {
        if self.is_deleted() { Err(self.deleted_error()) } else { Ok(()) }
    }

    /// The error of a call whose workspace was deleted.
    pub(crate) fn deleted_error(&self) -> Error {
        let name = self.workspace.name();
        let text = format!("the workspace {name:?} was deleted");
        Error::new(Reason::UnknownWorkspace, text).with_metadata("workspace", name)
    }
}

/// Limits on concurrent file work, shared by all workspaces.
#[derive(Debug, Clone)]
pub(crate) struct FileLimiters {
    /// Work that opens files.
    pub(crate) operations: Arc<Limiter>,
    /// Searches. They need a permit of `operations` as well.
    pub(crate) searches: Arc<Limiter>,
}

impl FileLimiters {
    /// Allows `operations` file operations at a time.
    pub(crate) fn new(operations: usize) -> Self {
        // A waiting call holds a permit of the call limiter, so the queues are bounded.
        Self {
            operations: Limiter::new(operations, Sharing::Unlimited, usize::MAX),
            searches: Limiter::new(
                MAX_SEARCHES_PER_CORE * available_cores(),
                SEARCH_SHARING,
                usize::MAX,
            ),
        }
    }

    /// Permanently reserves headroom for callers that use little. Called when several have keys.
    pub(crate) fn reserve_headroom(&self) {
        self.operations.set_sharing(Sharing::KeepHeadroom);
    }

    /// Waits for a permit for file work that belongs to no tool.
    pub(crate) async fn acquire(&self, principal: &PrincipalName) -> Result<BlockingPermit, Error> {
        let permit = match self.operations.acquire(principal, usize::MAX) {
            Ok(Acquire::Granted(permit)) => permit,
            Ok(Acquire::Queued(mut pending)) => pending.wait().await,
            Err(saturated) => return Err(no_permit_error(FILE_WORK, saturated)),
        };

        let (operations, principal) = (Arc::clone(&self.operations), Arc::clone(principal));
        Ok(BlockingPermit::new(operations, principal, permit, None))
    }
}

/// The error of a call that got no permit for its `work`.
fn no_permit_error(work: &str, saturated: Saturated) -> Error {
    let text = format!(
        "no permit for {work} was free in time ({} other calls of this caller hold permits): retry after the delay in RetryInfo, with fewer calls at a time",
        saturated.in_use
    );
    Error::new(Reason::ResourceExhausted, text).with_retry_after(saturated.retry_after)
}

/// Fetches from the web, with a limit on concurrency shared by all workspaces.
#[derive(Debug, Clone)]
pub(crate) struct LimitedFetcher {
    inner: Arc<Fetcher>,
    limiter: Arc<Limiter>,
}

impl LimitedFetcher {
    pub(crate) fn new(inner: Arc<Fetcher>) -> Self {
        Self {
            inner,
            // A waiting call holds a permit of the call limiter, so the queue is bounded.
            limiter: Limiter::new(MAX_CONCURRENT_FETCHES, FETCH_SHARING, usize::MAX),
        }
    }
}

/// Settings from the configuration that apply to every command.
#[derive(Debug, Clone)]
pub(crate) struct RunSettings {
    /// Directories searched for programs before the usual ones.
    pub(crate) path_directories: Vec<String>,
    /// Bytes of each output stream that its artifact stores.
    pub(crate) max_artifact_bytes: u64,
    /// Bytes of a started command's output that stay in memory.
    pub(crate) max_replay_bytes: usize,
    /// Limits, unless the request lowers them.
    pub(crate) limits: RunLimits,
    /// Time limit of a call that names none. `None` means the contract's default.
    pub(crate) default_timeout: Option<Duration>,
    pub(crate) network: NetworkMode,
    /// The proxy, if `network` uses one.
    pub(crate) proxy: Option<Arc<EgressProxy>>,
}

/// Everything that the execution of one call needs.
#[derive(Debug)]
pub(crate) struct ToolContext {
    pub(crate) workspace_context: WorkspaceContext,
    pub(crate) session: Arc<Session>,
    pub(crate) step: StepId,
    /// Fields of each of the call's records. They identify the call.
    pub(crate) common_record_fields: serde_json::Map<String, serde_json::Value>,
    /// Signals that end the call early.
    pub(crate) cancel: CancelSignals,
    pub(crate) principal: PrincipalName,
    /// Tools that the caller's key allows; `None` for all tools.
    pub(crate) allowed_tools: Option<Arc<[String]>>,
    /// Tool that reads artifacts, in the caller's dialect, if the caller may call it.
    pub(crate) artifact_reader: Option<&'static str>,
    /// Permit for a concurrent call. Free again when the last of the work has ended.
    pub(crate) permit: Arc<Permit>,
    /// Permit for a sandbox, if the tool needs one.
    pub(crate) sandbox_permit: Option<DeferredPermit>,
    /// Permit to use the shell of the call, if it names one.
    pub(crate) shell_lease: Option<Permit>,
    /// Permit for the start of the call, the most CPU-intensive part.
    pub(crate) start_permit: SharedPermit,
    /// Time limit of a call that names none.
    pub(crate) default_timeout: Duration,
    /// Time limit that the caller gave beside the request.
    pub(crate) call_timeout: Option<Duration>,
    /// Bytes of each stream that artifacts store, up to the operator's limit. With a value,
    /// artifacts exist even if empty.
    pub(crate) max_artifact_bytes: Option<u64>,
    /// Whether the command runs in the default shell: bash, or `/bin/sh` if there is none.
    pub(crate) in_default_shell: bool,
    /// Whether the call is one of a custom tool.
    pub(crate) is_custom_tool: bool,
    /// Device and inode of the directory that the command was approved to start in.
    pub(crate) approved_cwd: Option<(u64, u64)>,
    /// The job that makes the call, if any.
    pub(crate) job: Option<JobContext>,
    /// Notified whenever the command has written output, if a watcher follows it.
    pub(crate) output_written: Option<watch::Sender<()>>,
    /// The jobs that the caller may access, if the tool waits for jobs.
    pub(crate) job_waiter: Option<Box<dyn JobWaiter>>,
    /// Time at which the caller stops waiting.
    pub(crate) deadline: Option<Instant>,
    pub(crate) span: Arc<OtelSpan>,
    pub(crate) telemetry: Telemetry,
}

/// The job that makes a call.
#[derive(Debug, Clone)]
pub(crate) struct JobContext {
    pub(crate) id: String,
    /// Notified whenever the job's command has written output.
    pub(crate) output_written: watch::Sender<()>,
    /// Cancelled when the call starts to wait for approval.
    pub(crate) pending_approval: CancellationToken,
    /// The approval of an earlier attempt. A retry needs no second approval.
    pub(crate) approval: Option<CallApproval>,
}

#[derive(Debug, Clone)]
pub(crate) struct CallApproval {
    /// The approver or the rule that approved the call.
    pub(crate) approved_by: String,
    /// Device and inode of the directory that the command may start in.
    pub(crate) cwd: Option<(u64, u64)>,
}

/// The result of a tool.
#[derive(Debug)]
pub(crate) struct ToolOutput<R> {
    pub(crate) response: R,
    /// Fields of the call's record beside its status.
    pub(crate) record_fields: serde_json::Map<String, serde_json::Value>,
    /// Name of an additional event to record, with the same fields.
    pub(crate) record_event: Option<&'static str>,
    /// Why the tool failed although the call succeeded, such as a command that timed out.
    pub(crate) error_type: Option<&'static str>,
}

impl<R> ToolOutput<R> {
    /// Output with nothing to record.
    pub(crate) fn new(response: R) -> Self {
        Self {
            response,
            record_fields: serde_json::Map::new(),
            record_event: None,
            error_type: None,
        }
    }

    /// Replaces the response.
    fn map_response<S>(self, function: impl FnOnce(R) -> S) -> ToolOutput<S> {
        ToolOutput {
            response: function(self.response),
            record_fields: self.record_fields,
            record_event: self.record_event,
            error_type: self.error_type,
        }
    }

    /// Output of a tool that timed out: the partial response.
    fn timed_out(response: R) -> Self {
        let mut output = Self::new(response);
        output.record_fields.insert("timed_out".to_owned(), true.into());
        output.error_type = Some(Reason::Timeout.name());
        output
    }
}

/// When a tool with a time limit of its own must respond. Leaves the response time to reach the
/// caller before `deadline`: a quarter of the remaining time, at most [`MAX_RESPONSE_MARGIN`].
pub(crate) fn response_deadline(
    now: Instant,
    timeout: Duration,
    deadline: Option<Instant>,
) -> Instant {
    let limit = now + timeout;
    match deadline {
        None => limit,
        Some(deadline) => {
            let remaining = deadline.saturating_duration_since(now);
            limit.min(now + (remaining - MAX_RESPONSE_MARGIN.min(remaining / 4)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn response_is_ready_before_the_deadline() {
        let now = Instant::now();
        let at = |ms| now + Duration::from_millis(ms);

        for (timeout, deadline, expected) in [
            (60_000, None, 60_000),
            (60_000, Some(100_000), 60_000),
            (60_000, Some(60_000), 59_900),
            (60_000, Some(1_000), 900),
            (60_000, Some(100), 75),
            (60_000, Some(0), 0),
        ] {
            let limit = response_deadline(now, Duration::from_millis(timeout), deadline.map(at));
            assert_eq!(limit, at(expected), "{timeout} {deadline:?}");
        }
    }
}
