//! The tools: each file turns one typed request into one typed response, and does nothing else.

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

pub(crate) mod job_waiter;
mod proxied_run;
mod session_artifacts;
mod wire_file;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use prost::Message;
use tokio::{sync::watch, time::timeout_at};
use tokio_util::sync::CancellationToken;

use self::{activity::Activity, job_waiter::JobWaiter};
use crate::daemon::{
    catalog::CanonicalText,
    egress::proxy::EgressProxy,
    error::{Error, Reason, Violation},
    fd_exhaustion::FdRetry,
    fetch::Fetcher,
    process::supervisor::CancelSignals,
    queue::{
        Acquire, DeferredPermit, Limiter, Permit, PrincipalKey, Saturated, SharedPermit, Sharing,
    },
    sandbox::{level::Isolation, limits::RunLimits, plan::NetworkMode, pool::SandboxPool},
    store::session::{Session, StepId},
    task,
    telemetry::{Telemetry, spans::OtelSpan},
    workspace::{
        BlockingPermit, CancelToken as FileStop, RelativePath, Workspace, available_cores,
    },
};

/// Most time that is left before the caller's deadline for an answer to reach it.
const MAX_RESPONSE_MARGIN: Duration = Duration::from_millis(100);

/// How long work may take to notice that its time is up. A search for something complicated in a
/// long line notices it behind that line; the answer does not wait so long.
const CANCEL_NOTICE_GRACE: Duration = Duration::from_millis(20);

/// Searches at once, for each core; others wait for their turn. Each keeps every core busy, and takes some
/// MiB for each of its threads. One caller has half of them.
const MAX_SEARCHES_PER_CORE: usize = 2;
const SEARCH_SHARING: Sharing = Sharing::MultipleOfFree(1);

/// Fetches at once; others wait for their turn. Each takes up to some times 4 MiB, and a thread while a name is
/// looked up. One caller leaves as many as he has.
const MAX_CONCURRENT_FETCHES: usize = 32;
const FETCH_SHARING: Sharing = Sharing::MultipleOfFree(1);

/// How long work with files keeps its turn. It wants a core as long as it lasts; but it may as well wait
/// for a disk, and others must not wait for that.
const FILE_START_PERMIT_HOLD: Duration = Duration::from_millis(100);

/// What it costs to look at a byte of a request with globs, which are compiled then.
const GLOB_VALIDATION_COST_PER_BYTE: usize = 256;

/// A tool.
pub(crate) trait Tool: Send + 'static {
    /// Its name in the contract.
    const NAME: &'static str;
    /// Full name of its request where that is not the one of the tool's own RPC.
    const REQUEST_MESSAGE: Option<&'static str> = None;
    /// Whether it takes place in a sandbox of its own.
    const NEEDS_SANDBOX: bool = false;
    /// Whether its caller waits for its end.
    const CALLER_WAITS: bool = true;
    /// Whether it takes its time limit from the request and enforces it itself.
    const ENFORCES_OWN_TIMEOUT: bool = false;
    /// What it costs to look at a byte of its request, as so many of plain text.
    const VALIDATION_COST_PER_BYTE: usize = 1;
    /// Whether it waits for jobs.
    const WAITS_FOR_JOBS: bool = false;
    /// How long it keeps its turn, if it lasts so long.
    const START_PERMIT_HOLD: Duration = FILE_START_PERMIT_HOLD;
    /// What is asked.
    type Request: Message + Default + Send + 'static;
    /// What is answered.
    type Response: Send + 'static;
    /// The request, checked.
    type Params: Send + 'static;

    /// Checks what cannot be seen from one field alone. `request` has its defaults, and
    /// `violations` the fields that are known to break their rules. Answers nothing when there is a
    /// violation.
    fn validate(
        request: Self::Request,
        workspace_context: &WorkspaceContext,
        violations: &mut Vec<Violation>,
    ) -> Result<Option<Self::Params>, Error>;

    /// The files that a call is about, as far as it names them, relative to the workspace: for who is
    /// asked whether it may be made.
    fn affected_paths(_params: &Self::Params, _scene: &WorkspaceContext) -> Vec<String> {
        Vec::new()
    }

    /// The working directory of the command that a call runs, relative to the workspace.
    fn cwd(_params: &Self::Params) -> Option<&RelativePath> {
        None
    }

    /// A text of the request as it reads once it is understood, where that is not as it is given: for rules.
    fn canonical_text(_params: &Self::Params, _scene: &WorkspaceContext) -> Option<CanonicalText> {
        None
    }

    /// Does the work. It is polled to its end whatever becomes of the caller: `work.stop` tells
    /// when nobody waits any more.
    fn execute(
        params: Self::Params,
        context: ToolContext,
    ) -> impl Future<Output = Result<ToolOutput<Self::Response>, Error>> + Send;

    /// The answer to a repeated call whose first one the daemon died under, as this step of its
    /// session, if it had got so far.
    fn daemon_lost_response(_step: Option<u64>) -> Result<Self::Response, Error> {
        Err(daemon_lost_error(Self::NAME))
    }
}

/// What a repeated call is told whose first one the daemon died under.
pub(crate) fn daemon_lost_error(what: &str) -> Error {
    Error::new(
        Reason::DaemonLost,
        format!(
            "the daemon died while it did {what} for this request id, or has no room for the answer, so that it is not known how far it came: look what there is, then call again with another id"
        ),
    )
}

/// The refusal of an approved call that would use another directory than the one that was approved.
pub(crate) fn replaced_while_pending(path: &str) -> Error {
    let text = format!(
        "this call was approved, but a directory on the way to {path:?} was replaced while it waited; nothing was done: look at what is there now, and call again"
    );
    Error::new(Reason::ApprovalDenied, text).with_metadata("path", path)
}

/// Where a call takes place.
#[derive(Debug, Clone)]
pub(crate) struct WorkspaceContext {
    /// The workspace.
    pub(crate) workspace: Arc<Workspace>,
    /// Its sandboxes.
    pub(crate) sandbox_pool: Arc<SandboxPool>,
    /// Whether and how commands are isolated.
    pub(crate) isolation: Arc<Isolation>,
    /// What every run gets.
    pub(crate) run_settings: Arc<RunSettings>,
    /// Where work with files takes place.
    pub(crate) file_limiters: FileLimiters,
    /// What fetches from the web, where anything may be fetched.
    pub(crate) fetch_limiter: Option<FetchLimiter>,
    /// What goes on there.
    pub(crate) activity: Arc<Activity>,
}

/// Bounds on work with files, in all workspaces.
#[derive(Debug, Clone)]
pub(crate) struct FileLimiters {
    /// For what opens files.
    pub(crate) operations: Arc<Limiter>,
    /// For searches, beside that.
    pub(crate) searches: Arc<Limiter>,
}

impl FileLimiters {
    /// So many of them.
    pub(crate) fn new(operations: usize) -> Self {
        // Who waits has a place among the calls, so that they are bounded.
        Self {
            operations: Limiter::new(operations, Sharing::Unlimited, usize::MAX),
            searches: Limiter::new(
                MAX_SEARCHES_PER_CORE * available_cores(),
                SEARCH_SHARING,
                usize::MAX,
            ),
        }
    }

    /// Leaves some for others from now on: callers are told apart.
    pub(crate) fn keep_headroom(&self) {
        self.operations.set_sharing(Sharing::KeepHeadroom);
    }

    /// Waits for a place among the work with files that is no tool's.
    pub(crate) async fn acquire(&self, caller: &PrincipalKey) -> Result<BlockingPermit, Error> {
        let place = match self.operations.acquire(caller, usize::MAX) {
            Ok(Acquire::Granted(place)) => place,
            Ok(Acquire::Queued(mut waiting)) => waiting.wait().await,
            Err(full) => return Err(files_saturated(full)),
        };
        let (operations, caller) = (Arc::clone(&self.operations), Arc::clone(caller));
        Ok(BlockingPermit::new(operations, caller, place, None))
    }
}

/// What fetches from the web, for all workspaces.
#[derive(Debug, Clone)]
pub(crate) struct FetchLimiter {
    /// What fetches.
    fetcher: Arc<Fetcher>,
    /// Those that go on.
    limiter: Arc<Limiter>,
}

impl FetchLimiter {
    /// Those of `fetcher`.
    pub(crate) fn new(fetcher: Arc<Fetcher>) -> Self {
        Self {
            fetcher,
            // Who waits has a place among the calls, so that they are bounded.
            limiter: Limiter::new(MAX_CONCURRENT_FETCHES, FETCH_SHARING, usize::MAX),
        }
    }
}

/// What every run gets from the configuration.
#[derive(Debug, Clone)]
pub(crate) struct RunSettings {
    /// Directories that programs are looked up in before the usual ones.
    pub(crate) path_directories: Vec<String>,
    /// Bytes of each stream that its artifact keeps.
    pub(crate) max_artifact_bytes: u64,
    /// Bytes that are kept in memory of what a started command wrote.
    pub(crate) max_replay_bytes: usize,
    /// Its limits, as far as its request does not lower them.
    pub(crate) limits: RunLimits,
    /// Its time where the call does not say, and the contract's is not meant.
    pub(crate) default_timeout: Option<Duration>,
    /// Network of its command.
    pub(crate) network: NetworkMode,
    /// What connects it to the world, where that is the network.
    pub(crate) proxy: Option<Arc<EgressProxy>>,
}

/// One call's work.
#[derive(Debug)]
pub(crate) struct ToolContext {
    /// Where it takes place.
    pub(crate) workspace_context: WorkspaceContext,
    /// The session, and the call's step in it.
    pub(crate) session: Arc<Session>,
    /// The call's step.
    pub(crate) step: StepId,
    /// What each of its records says: which call it is about.
    pub(crate) common_record_fields: serde_json::Map<String, serde_json::Value>,
    /// How it may be ended early.
    pub(crate) cancel: CancelSignals,
    /// Whose it is.
    pub(crate) caller: PrincipalKey,
    /// Tools that its key is for; without, all tools.
    pub(crate) allowed_tools: Option<Arc<[String]>>,
    /// Tool that reads artifacts, as the caller's vocabulary names it, where the caller may call it.
    pub(crate) artifact_reader: Option<&'static str>,
    /// Its place among the calls that may go on at once: free again when the last of the work is
    /// done.
    pub(crate) permit: Arc<Permit>,
    /// Its place among those who have sandboxes, where it needs one.
    pub(crate) sandbox_permit: Option<DeferredPermit>,
    /// Its turn, while it costs the daemon the most.
    pub(crate) start_permit: SharedPermit,
    /// How long a call may take that names no limit of its own.
    pub(crate) default_timeout: Duration,
    /// How long this one may take, where its caller has said so beside its request.
    pub(crate) call_timeout: Option<Duration>,
    /// Bytes that its artifacts keep of a stream, where that is not the operator's limit. They exist even if empty.
    pub(crate) max_artifact_bytes: Option<u64>,
    /// Whether its command is for the shell that users log in with.
    pub(crate) uses_default_shell: bool,
    /// Device and inode of the directory that its command was approved to start in.
    pub(crate) approved_cwd: Option<(u64, u64)>,
    /// The job that makes the call, where one does.
    pub(crate) job: Option<JobContext>,
    /// The jobs that the caller may look at, where the tool waits for one.
    pub(crate) job_waiter: Option<Box<dyn JobWaiter>>,
    /// When the caller stops waiting.
    pub(crate) deadline: Option<Instant>,
    /// The tool's span.
    pub(crate) span: Arc<OtelSpan>,
    /// What spans are made with.
    pub(crate) telemetry: Telemetry,
}

/// A job, for the call that it makes.
#[derive(Debug, Clone)]
pub(crate) struct JobContext {
    /// Its id.
    pub(crate) id: String,
    /// Told whenever its command has written something.
    pub(crate) output_written: watch::Sender<()>,
    /// Cancelled when it begins to wait to be approved.
    pub(crate) pending_approval: CancellationToken,
    /// The approval of an earlier attempt: nobody is asked twice.
    pub(crate) approval: Option<CallApproval>,
}

/// An approval of a call.
#[derive(Debug, Clone)]
pub(crate) struct CallApproval {
    /// Who or what gave it.
    pub(crate) approved_by: String,
    /// Device and inode of the directory that the command may start in.
    pub(crate) cwd: Option<(u64, u64)>,
}

/// Work that was done.
#[derive(Debug)]
pub(crate) struct ToolOutput<R> {
    /// The answer.
    pub(crate) response: R,
    /// What the record of the call says beside its status.
    pub(crate) record_fields: serde_json::Map<String, serde_json::Value>,
    /// What has happened by it that is an event of its own; the facts say what.
    pub(crate) record_event: Option<&'static str>,
    /// Why the tool failed although the call did not: a command that ran out of time.
    pub(crate) error_type: Option<&'static str>,
}

impl<R> ToolOutput<R> {
    /// Work about which there is nothing more to say.
    pub(crate) fn new(response: R) -> Self {
        Self {
            response,
            record_fields: serde_json::Map::new(),
            record_event: None,
            error_type: None,
        }
    }

    /// The same, with another answer.
    fn map_response<S>(self, answer: impl FnOnce(R) -> S) -> ToolOutput<S> {
        ToolOutput {
            response: answer(self.response),
            record_fields: self.record_fields,
            record_event: self.record_event,
            error_type: self.error_type,
        }
    }

    /// Work whose time was up: the answer is what it had by then.
    fn timed_out(response: R) -> Self {
        let mut done = Self::new(response);
        done.record_fields.insert("timed_out".to_owned(), true.into());
        done.error_type = Some(Reason::Timeout.name());
        done
    }
}

/// Runs `function` on a thread that may block, and tells it to stop when nobody waits for it any
/// more. Where it fails for want of descriptors, which it has given back then, it is tried again.
async fn run_on_files<R: Send + 'static>(
    context: ToolContext,
    function: impl Fn(&Workspace, &FileStop) -> Result<R, Error> + Send + Sync + 'static,
) -> Result<ToolOutput<R>, Error> {
    let function = Arc::new(function);
    let mut attempts = FdRetry::with_deadline(context.deadline);
    loop {
        let occupied = context.acquire_file_permit(None).await?;
        let (workspace, function) =
            (Arc::clone(&context.workspace_context.workspace), Arc::clone(&function));
        let end = context.cancel.abandoned.cancelled();
        let function = move |stop: &FileStop| function(&workspace, stop);
        match FileStop::run_blocking(occupied, end, function).await? {
            Err(error) if context.should_retry(&mut attempts, &error).await => {}
            answer => return answer.map(ToolOutput::new),
        }
    }
}

impl ToolContext {
    /// When work that ends with what it has when its time is up is to do so, if it begins now.
    fn soft_deadline(&self) -> Instant {
        response_deadline(Instant::now(), self.default_timeout, self.deadline)
    }

    /// Waits for a place among the work with files, until nobody waits for the work any more, or its time
    /// is up. Meanwhile it is others' turn.
    async fn acquire_file_permit(&self, until: Option<Instant>) -> Result<BlockingPermit, Error> {
        let operations = &self.workspace_context.file_limiters.operations;
        let place = self.acquire_permit(operations, until).await?;
        let (operations, caller) = (Arc::clone(operations), Arc::clone(&self.caller));
        let turn = Some(self.start_permit.clone());
        Ok(BlockingPermit::new(operations, caller, place, turn))
    }

    async fn acquire_permit(
        &self,
        queue: &Arc<Limiter>,
        until: Option<Instant>,
    ) -> Result<Permit, Error> {
        match queue.acquire(&self.caller, usize::MAX) {
            Ok(Acquire::Granted(place)) => Ok(place),
            Ok(Acquire::Queued(mut waiting)) => {
                self.start_permit.release();
                tokio::select! {
                    place = waiting.wait() => Ok(place),
                    () = self.cancel.abandoned.cancelled() => Err(FileStop::timeout_error()),
                    () = task::sleep_until(until) => Err(files_saturated(queue.saturation(&self.caller, usize::MAX))),
                }
            }
            Err(full) => Err(files_saturated(full)),
        }
    }

    /// Whether what failed so is to be tried again; then it is time to.
    async fn should_retry(&self, attempts: &mut FdRetry, error: &Error) -> bool {
        tokio::select! {
            again = attempts.should_retry(error) => again,
            () = self.cancel.abandoned.cancelled() => false,
        }
    }
}

fn files_saturated(full: Saturated) -> Error {
    let text = format!(
        "the time for the call has passed while {} other calls of this caller worked with files: retry after the time given, with fewer at a time",
        full.in_use
    );
    Error::new(Reason::ResourceExhausted, text).retry_after(full.retry_after)
}

/// As [`on_files`], for work that ends with what it has when its time is up. Without an answer it
/// has not noticed soon enough: it goes on until it does, and keeps its place among the calls.
async fn run_on_files_until<R: Send + 'static>(
    context: &ToolContext,
    until: Instant,
    function: impl FnOnce(&Workspace, &FileStop) -> R + Send + 'static,
) -> Result<Option<R>, Error> {
    let occupied = context.acquire_file_permit(Some(until)).await?;
    let end = async {
        // Whichever comes first.
        let _either = timeout_at(until.into(), context.cancel.abandoned.cancelled()).await;
    };
    let (workspace, place) =
        (Arc::clone(&context.workspace_context.workspace), Arc::clone(&context.permit));
    FileStop::run_blocking_with_grace(occupied, end, CANCEL_NOTICE_GRACE, move |stop| {
        let _place = place;
        function(&workspace, stop)
    })
    .await
}

/// When work with a time limit of its own is to answer: early enough for whoever waits.
pub(crate) fn response_deadline(
    now: Instant,
    timeout: Duration,
    deadline: Option<Instant>,
) -> Instant {
    let limit = now + timeout;
    match deadline {
        None => limit,
        Some(deadline) => {
            let left = deadline.saturating_duration_since(now);
            limit.min(now + (left - MAX_RESPONSE_MARGIN.min(left / 4)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_has_time_to_reach_who_waits() {
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
