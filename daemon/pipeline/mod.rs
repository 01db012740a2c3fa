//! The one way that every call goes, whichever door it came through.
//!
//! ```text
//! validate ─▶ request id ─▶ permit ─▶ admit ─▶ record that it starts ─▶ execute ─▶ record how it ended ─▶ answer
//!    │           │            │         │           │
//!    ▼           ▼            ▼         ▼           ▼
//! INVALID_   REQUEST_ID_  TOOL_      RESOURCE_   NO_SPACE      nothing was started in any of these cases
//! PARAMS …   REUSED       DISABLED,  EXHAUSTED,
//!                         POLICY_    DRAINING
//!                         DENIED, APPROVAL_DENIED
//! ```
//!
//! Once it has its place, a call that waited for it is looked at again, as *permit* did: meanwhile, its key
//! may have been taken away, or the policy changed.
//!
//! From *admit* on, the work belongs to a task of its own, which holds the permit and is polled to
//! its end: a caller that goes away ends its wait, and the task is told to stop.

pub(crate) mod access;
pub(crate) mod admission;
mod admit;
pub(crate) mod approval;
pub(crate) mod audited;
mod authorization;
mod await_job;
mod call_end;
pub(crate) mod context;
mod dyn_tool;
pub(crate) mod envelope;
pub(crate) mod idempotency;
pub(crate) mod invoke;
pub(crate) mod job_runner;
pub(crate) mod job_submission;
mod job_tools;
pub(crate) mod jobs;
mod once;
mod once_claim;
pub(crate) mod once_streaming;
pub(crate) mod params;
pub(crate) mod policy;
pub(crate) mod policy_input;
pub(crate) mod process_start;
mod publish;
mod records;
mod rejection;
pub(crate) mod results;
mod rpc_authorization;
mod session_query;
pub(crate) mod shutdown;
mod span;
mod state_error;
mod validation;
mod visible_tools;

use std::{
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use prost::Message;
use tokio::{task::JoinHandle, time::timeout};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::task_tracker::TaskTrackerToken,
};
use tracing::Instrument as _;

use self::{
    access::{AccessControl, principal::Principal},
    admission::{Admission, AdmissionControl},
    approval::pending::PendingApprovals,
    call_end::{end_span, log_outcome},
    context::CallContext,
    idempotency::Idempotency,
    jobs::JobRegistry,
    policy::{request::DialectCall, store::RuleStore},
    policy_input::{Authorization, PolicyInput, ReauthorizationInput},
    results::ResultBroadcaster,
    shutdown::Shutdown,
};
use crate::daemon::{
    catalog::Catalog,
    error::{Error, LEADS_OUT, Reason},
    fd_exhaustion::FdRetry,
    process::{registry::ProcessRegistry, supervisor::CancelSignals},
    queue::SharedPermit,
    store::{failure::state_failure, session::Session, state_dir::StateDir},
    task,
    telemetry::{Telemetry, access_log::AccessLogEntry, semconv},
    tool::{Tool, ToolContext, WorkspaceContext},
    workspace::Workspace,
};

/// How long work whose time is up may take to say how it ended.
const TIMEOUT_RESULT_GRACE: Duration = Duration::from_millis(50);

/// Everything that calls need.
#[derive(Debug)]
pub(crate) struct Pipeline {
    /// Who may call.
    pub(crate) access: AccessControl,
    /// The tools.
    pub(crate) catalog: Catalog,
    /// What the operator lets in.
    pub(crate) policy: Arc<RuleStore>,
    /// The calls that wait to be approved.
    pub(crate) approvals: Arc<PendingApprovals>,
    /// The workspaces by name, the default one first.
    pub(crate) workspaces: Vec<WorkspaceContext>,
    /// The state directory.
    pub(crate) state_dir: StateDir,
    /// The request ids.
    pub(crate) idempotency: Arc<Idempotency>,
    /// Spans.
    pub(crate) telemetry: Telemetry,
    /// How much may go on at once.
    pub(crate) admission: AdmissionControl,
    /// Whether the daemon is shutting down.
    pub(crate) shutdown: Shutdown,
    /// Time between SIGTERM and SIGKILL.
    pub(crate) stop_grace: Duration,
    /// The commands that were started and are watched.
    pub(crate) processes: Arc<ProcessRegistry>,
    /// Calls that nobody waits for.
    pub(crate) jobs: Arc<JobRegistry>,
    /// The results that are watched.
    pub(crate) results: Arc<ResultBroadcaster>,
}

/// A call of the tool `T` of which nothing is known to be wrong.
struct ValidatedCall<T: Tool> {
    workspace_context: WorkspaceContext,
    params: T::Params,
    /// What a record shows of them.
    record_params: serde_json::Value,
    /// What is to be decided about.
    policy_input: PolicyInput,
    default_timeout: Duration,
    /// How long its request is.
    request_bytes: usize,
}

/// A call of the tool `T` that may be made.
struct AuthorizedCall<T: Tool> {
    context: CallContext,
    workspace_context: WorkspaceContext,
    params: T::Params,
    /// What a record shows of them.
    record_params: serde_json::Value,
    authorization: Authorization,
    reauthorization: ReauthorizationInput,
    default_timeout: Duration,
    /// How long its request is.
    held_bytes: usize,
}

/// Room for a call.
struct AdmittedCall {
    admission: Admission,
    task_token: TaskTrackerToken,
}

/// A call of the tool `T` that has its place, and whose start is recorded.
struct StartedCall<T: Tool> {
    context: CallContext,
    params: T::Params,
    tool_context: ToolContext,
    /// When its time is up, unless it limits itself.
    timeout_at: Instant,
    /// Tells the work to end at once.
    abandon_token: CancellationToken,
    task_token: TaskTrackerToken,
}

impl<T: Tool> StartedCall<T> {
    /// Starts the work, in a task that goes on whatever becomes of the caller. Answers what tells it
    /// to end.
    fn spawn(
        self,
        pipeline: &Arc<Pipeline>,
    ) -> (JoinHandle<Result<T::Response, Error>>, CancellationToken) {
        let incoming = self.context;
        let log = tracing::info_span!("call", call_id = %incoming.call_id, trace_id = %incoming.trace_id(), span_id = %incoming.span_id(), tool = incoming.effective_tool(T::NAME));
        let work = Arc::clone(pipeline).execute::<T>(
            self.params,
            self.tool_context,
            incoming.dialect_call(),
            incoming.facts,
        );
        let task = task::spawn_tracked(T::NAME, work.instrument(log));
        drop(self.task_token);
        (task, self.abandon_token)
    }
}

impl Pipeline {
    /// The workspaces that are there for `principal`, its default one first.
    pub(crate) fn visible_workspaces(
        &self,
        principal: &Principal,
    ) -> impl Iterator<Item = &WorkspaceContext> {
        self.workspaces.iter().filter(|scene| principal.can_see_workspace(scene.workspace.name()))
    }

    /// The workspace that a call chose.
    pub(crate) fn workspace_context(
        &self,
        context: &CallContext,
    ) -> Result<&WorkspaceContext, Error> {
        let mut seen = self.visible_workspaces(&context.principal);
        let found = match &context.workspace {
            None => seen.next(),
            Some(name) => seen.find(|scene| scene.workspace.name() == name),
        };
        found.ok_or_else(|| {
            let name = context.workspace.clone().unwrap_or_default();
            // Of the others not even their names.
            let known: Vec<_> = self
                .visible_workspaces(&context.principal)
                .map(|scene| scene.workspace.name())
                .collect();
            let text = format!(
                "there is no workspace {name:?}; jig-workspace can be one of: {}",
                known.join(", ")
            );
            Error::new(Reason::UnknownWorkspace, text).with_metadata("workspace", name)
        })
    }

    /// The session that a call belongs to, made where it is new.
    pub(crate) async fn session(
        self: &Arc<Self>,
        context: &CallContext,
    ) -> Result<Arc<Session>, Error> {
        self.session_releasing_start_permit(context, None).await
    }

    /// As [`Self::session`], for a call whose turn it is, until it has to be waited for.
    async fn session_releasing_start_permit(
        self: &Arc<Self>,
        context: &CallContext,
        start_permit: Option<&SharedPermit>,
    ) -> Result<Arc<Session>, Error> {
        let workspace = self.workspace_context(context)?.workspace.name();
        if let Some(session) = self.state_dir.sessions().get_open(workspace, &context.session) {
            return Ok(session);
        }
        let mut attempts = FdRetry::with_deadline(context.deadline);
        loop {
            let (pipeline, workspace) = (Arc::clone(self), workspace.to_owned());
            let id = context.session.clone();
            let opened = task::spawn_blocking(move || {
                pipeline.state_dir.sessions().open_or_create(&workspace, &id)
            });
            let opened = opened.await.map_err(Error::internal)?;
            let opened = opened.map_err(|error| state_failure(&error));
            if let (Err(_), Some(turn)) = (&opened, start_permit) {
                turn.release();
            }
            match opened {
                Err(error) if attempts.should_retry(&error).await => {}
                result => return result,
            }
        }
    }

    /// Makes a call of the tool `T`.
    pub(crate) async fn call<T: Tool>(
        self: &Arc<Self>,
        context: CallContext,
        request: T::Request,
    ) -> Result<T::Response, Error>
    where
        T::Response: Message + Default,
    {
        let method = self.is_mutating::<T>().then_some(T::NAME);
        let (repeatable, checked) = self.validate::<T>(&context, request, method).await?;
        if let Some(call) = repeatable {
            return self.call_once::<T>(context, checked, call).await;
        }
        let begun = self.start_call::<T>(context, checked, None).await?;
        let until = begun.timeout_at;
        let (task, abandon) = begun.spawn(self);
        // Dropped with the caller: then nobody waits for the work any more.
        await_with_timeout::<T>(task, until, abandon.drop_guard()).await
    }

    /// Whether a repeated call of the tool `T` would do something a second time.
    fn is_mutating<T: Tool>(&self) -> bool {
        let spec = self.catalog.tool(T::NAME);
        spec.is_none_or(|spec| !spec.options.read_only)
    }

    /// Looks whether a call of the tool `T` may be made, and waits until somebody has decided, where the
    /// policy says so.
    async fn authorize_call<T: Tool>(
        self: &Arc<Self>,
        context: CallContext,
        checked: ValidatedCall<T>,
    ) -> Result<AuthorizedCall<T>, Error> {
        let judged = checked.policy_input.reauthorization_input();
        let authorization = self.authorize(&context, checked.policy_input).await?;
        Ok(AuthorizedCall {
            context,
            workspace_context: checked.workspace_context,
            params: checked.params,
            record_params: checked.record_params,
            authorization,
            reauthorization: judged,
            default_timeout: checked.default_timeout,
            held_bytes: checked.request_bytes,
        })
    }

    /// Records that a call starts, if it may still be made now that it has its place.
    async fn record_start<T: Tool>(
        self: &Arc<Self>,
        authorized: AuthorizedCall<T>,
        admitted: AdmittedCall,
    ) -> Result<StartedCall<T>, Error> {
        let now = self.policy.snapshot();
        let reading = match Arc::ptr_eq(&authorized.reauthorization.snapshot, &now) {
            true => None,
            false => T::canonical_text(&authorized.params, &authorized.workspace_context),
        };
        let is_approved = authorized.authorization.approval().is_some();
        self.reauthorize(
            &authorized.context,
            &authorized.reauthorization,
            is_approved,
            now,
            reading,
        )
        .await?;
        let AuthorizedCall {
            context: incoming,
            workspace_context: scene,
            params,
            record_params: shown,
            authorization: Authorization { allowed_by: by, approved_cwd: cwd, .. },
            default_timeout,
            ..
        } = authorized;
        let AdmittedCall {
            admission: Admission { permit: place, sandbox_permit: seat, start_permit: turn },
            task_token: waited_for,
        } = admitted;
        let session = self.session_releasing_start_permit(&incoming, Some(&turn)).await?;
        let tool = incoming.effective_tool(T::NAME);
        let about = records::common_record_fields(tool, &incoming, scene.workspace.name());
        let begun = records::started_record(&about, &incoming, shown, by.clone());
        let step = session.begin_step(begun).map_err(|error| state_failure(&error))?;

        let span = self.start_span(tool, &incoming, &scene);
        if let Some(by) = by {
            span.set_text(semconv::ALLOWED_BY, &by);
        }
        let abandon = self.shutdown.kill_token().child_token();
        let work = ToolContext {
            session,
            step,
            common_record_fields: about,
            cancel: CancelSignals {
                abandoned: abandon.clone(),
                draining: self.shutdown.draining_token(),
                terminate: self.shutdown.terminate_token(),
                grace: self.stop_grace,
            },
            caller: Arc::clone(incoming.principal.key()),
            allowed_tools: incoming.principal.allowed_tools().map(Iterator::collect),
            artifact_reader: self.artifact_reader(&incoming),
            permit: Arc::new(place),
            sandbox_permit: seat,
            start_permit: turn,
            default_timeout,
            call_timeout: incoming.timeout,
            max_artifact_bytes: incoming.max_artifact_bytes,
            uses_default_shell: incoming.in_default_shell,
            approved_cwd: cwd,
            job: incoming.job.clone(),
            job_waiter: T::WAITS_FOR_JOBS.then(|| self.caller_jobs(&incoming)),
            deadline: incoming.deadline,
            span: Arc::new(span),
            telemetry: self.telemetry.clone(),
            workspace_context: scene,
        };
        Ok(StartedCall {
            timeout_at: Instant::now() + default_timeout,
            context: incoming,
            params,
            tool_context: work,
            abandon_token: abandon,
            task_token: waited_for,
        })
    }

    /// The work of one call, to its end, with the place that it holds so long.
    async fn execute<T: Tool>(
        self: Arc<Self>,
        params: T::Params,
        work: ToolContext,
        dialect_call: Option<Arc<DialectCall>>,
        facts: AccessLogEntry,
    ) -> Result<T::Response, Error> {
        let about = work.common_record_fields.clone();
        let (session, step, span) = (Arc::clone(&work.session), work.step, Arc::clone(&work.span));
        let (place, turn) = (Arc::clone(&work.permit), work.start_permit.clone());
        let workspace = Arc::clone(&work.workspace_context.workspace);
        let going = work.workspace_context.activity.begin();
        let begun = Instant::now();
        let mut done = pin!(T::execute(params, work));
        let result = match timeout(T::START_PERMIT_HOLD, &mut done).await {
            Ok(result) => result,
            Err(_) => {
                turn.release();
                done.await
            }
        };
        let result = match result {
            Err(error) if error.reason == Reason::SymlinkBlocked => {
                Err(with_leads_out(workspace, error).await)
            }
            result => result,
        };
        let said = dialect_call.as_deref();
        let happened = records::tool_event_record(&about, said, &result);
        let finished = records::finished_record(&about, said, begun.elapsed(), &result);
        facts.update(|facts| facts.outcome = Some(records::outcome_name(&result)));
        for fields in happened.into_iter().chain([finished]) {
            if let Err(error) = session.record(step, fields) {
                tracing::error!(%error, "the end of a call could not be recorded");
            }
        }
        end_span(span, &result);
        log_outcome(&result);
        drop(going);
        turn.release();
        drop(place);
        result.map(|done| done.response)
    }
}

/// Waits for work; where it does not limit itself, until its time is up. `abandoned` tells it to end
/// when nobody waits any more.
async fn await_with_timeout<T: Tool>(
    mut task: JoinHandle<Result<T::Response, Error>>,
    until: Instant,
    abandoned: DropGuard,
) -> Result<T::Response, Error> {
    let result = if T::ENFORCES_OWN_TIMEOUT {
        task.await
    } else {
        match tokio::time::timeout_at(until.into(), &mut task).await {
            Ok(result) => result,
            Err(_) => {
                // Told to end, most do so at once: then it is known whether anything was done.
                drop(abandoned);
                let ended = tokio::time::timeout(TIMEOUT_RESULT_GRACE, task).await;
                let ended = ended.map_err(|_| timeout_error(T::NAME))?;
                return ended.map_err(Error::internal)?;
            }
        }
    };
    drop(abandoned);
    result.map_err(Error::internal)?
}

/// The same error, which says that the links on the path lead out of the workspace, if they do.
async fn with_leads_out(workspace: Arc<Workspace>, error: Error) -> Error {
    let mut metadata = error.metadata.iter();
    let Some((_, path)) = metadata.find(|(name, _)| name == "path") else {
        return error;
    };
    let path = path.clone();
    match task::spawn_blocking(move || workspace.leads_out(&path)).await {
        Ok(true) => error.with_metadata(LEADS_OUT, "true"),
        Ok(false) | Err(_) => error,
    }
}

/// The answer to a call that took longer than it may.
pub(crate) fn timeout_error(tool: &str) -> Error {
    Error::new(
        Reason::Timeout,
        format!(
            "{tool} did not finish in the time that it has: if it changes anything, look whether it did before you repeat it; ask for less, or try again when the machine is less busy"
        ),
    )
}
