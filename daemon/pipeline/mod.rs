//! The request pipeline: steps 2 to 9 of the life of a call (the [crate documentation](crate)), in
//! that order, for every frontend.
//!
//! | step | code |
//! |---|---|
//! | 2 validate | [`Pipeline::validate`] |
//! | 3 claim | [`Pipeline::call_once`], for calls with a request id |
//! | 4 authorize | [`Pipeline::authorize_call`] |
//! | 5 admit | [`Pipeline::admit_authorized`] |
//! | 6 reauthorize | [`Pipeline::start_admitted`] |
//! | 7 record the start | [`Pipeline::record_start`] |
//! | 8 execute, 9 record the end | [`execute`] |
//! | 9 reply | [`Pipeline::call`]; to all duplicates in [`once`] |
//!
//! Without a request id, steps 2 to 7 run in the caller's future: a caller that disconnects there
//! drops them. Steps 8 and 9 run in a task that holds the permits and is polled to its end; a caller
//! that disconnects then only signals the tool to stop.
//!
//! With a request id, steps 4 to 9 run in a task. It is stopped when no caller has waited for
//! `detached_timeout`.

pub(crate) mod access;
pub(crate) mod admission;
mod admit;
pub(crate) mod approval;
mod audit;
pub(crate) mod audited;
mod authorization;
mod await_approval;
mod await_job;
pub(crate) mod command_output;
mod confirmed_job;
mod content;
pub(crate) mod context;
mod dyn_tool;
pub(crate) mod envelope;
mod execute;
pub(crate) mod fleet_access;
pub(crate) mod fleet_jobs;
pub(crate) mod held_jobs;
pub(crate) mod idempotency;
pub(crate) mod invoke;
mod job_params;
mod job_request;
pub(crate) mod job_runner;
pub(crate) mod job_submission;
mod job_tools;
pub(crate) mod jobs;
pub(crate) mod member_policy;
mod named_workspace;
pub(crate) mod observer;
pub(crate) mod once;
pub(crate) mod once_streaming;
pub(crate) mod params;
pub(crate) mod policy;
pub(crate) mod policy_input;
pub(crate) mod process_start;
mod publish;
mod records;
mod rejection;
pub(crate) mod request_fields;
pub(crate) mod results;
mod rpc_authorization;
mod session_query;
pub(crate) mod shutdown;
mod span;
mod state_error;
mod timeout;
pub(crate) mod validation;
mod visible_tools;
mod workspace_deletion;
mod workspace_expiry;
pub(crate) mod workspace_records;
pub(crate) mod workspaces;

use std::{
    sync::{Arc, OnceLock, Weak},
    time::{Duration, Instant},
};

use prost::Message;
use tokio_util::{sync::CancellationToken, task::task_tracker::TaskTrackerToken};

pub(crate) use self::timeout::stream_deadline_error;
use self::{
    access::{AccessControl, principal::Principal},
    admission::{
        Admission, AdmissionControl, AdmissionRequest, WaitDeadline, shell_leases::ShellKey,
    },
    approval::pending::PendingApprovals,
    audit::ToolCallAudit,
    content::{ResponseToJson, capture_arguments},
    context::CallContext,
    fleet_jobs::FleetJobs,
    held_jobs::HeldJobs,
    idempotency::{Checkpoint, Claim, Idempotency},
    jobs::JobRegistry,
    policy::{decision::PolicySnapshot, store::RuleStore},
    policy_input::{Authorization, PolicyInput, ReauthorizationInput},
    results::ResultBroadcaster,
    shutdown::Shutdown,
    timeout::{CallTimeout, await_with_timeout},
    workspace_records::WorkspaceRecords,
    workspaces::{Workspaces, created::WorkspaceCreator},
};
use crate::daemon::{
    catalog::{CanonicalText, Catalog},
    error::Error,
    fd_exhaustion::FdRetry,
    process::{registry::ProcessRegistry, supervisor::CancelSignals},
    queue::{Permit, SharedPermit},
    store::{failure::state_failure, session::Session, state_dir::StateDir},
    task,
    telemetry::{Telemetry, semconv},
    tool::{Tool, ToolContext, WorkspaceContext},
};

/// The state that all calls share.
#[derive(Debug)]
pub(crate) struct Pipeline {
    /// Keys, principals and their rate limits.
    pub(crate) access: AccessControl,
    pub(crate) catalog: Catalog,
    /// The operator's policy and the rules that were added by approvals.
    pub(crate) policy: Arc<RuleStore>,
    /// Calls that wait for a decision.
    pub(crate) approvals: Arc<PendingApprovals>,
    pub(crate) workspaces: Workspaces,
    /// `None` if callers cannot create workspaces.
    pub(crate) workspace_creator: Option<WorkspaceCreator>,
    pub(crate) state_dir: StateDir,
    /// Upload sessions, once the service of uploads has loaded them.
    pub(crate) upload_sessions: OnceLock<Weak<dyn WorkspaceRecords>>,
    /// Request ids and the replies that are stored for them.
    pub(crate) idempotency: Arc<Idempotency>,
    pub(crate) telemetry: Telemetry,
    /// Limits on concurrent and queued calls.
    pub(crate) admission: AdmissionControl,
    pub(crate) shutdown: Shutdown,
    /// Time between SIGTERM and SIGKILL.
    pub(crate) stop_grace: Duration,
    /// Processes that `ProcessService` started.
    pub(crate) processes: Arc<ProcessRegistry>,
    /// Jobs: calls that run without a waiting caller.
    pub(crate) jobs: Arc<JobRegistry>,
    /// Streams that watch results.
    pub(crate) results: Arc<ResultBroadcaster>,
    /// Jobs of the queues that several daemons share, if the daemon belongs to a fleet.
    pub(crate) fleet_jobs: OnceLock<Arc<dyn FleetJobs>>,
    /// Queued jobs of the fleet that must not begin yet.
    pub(crate) held_jobs: HeldJobs,
}

/// A call of the tool `T` that has passed validation.
struct ValidatedCall<T: Tool> {
    workspace_context: WorkspaceContext,
    params: T::Params,
    /// The parameters as a record shows them, redacted.
    record_params: serde_json::Value,
    policy_input: PolicyInput,
    default_timeout: Duration,
    /// Length of the encoded request.
    request_bytes: usize,
}

/// A call of the tool `T` that the policy, and where required a person, has allowed.
struct AuthorizedCall<T: Tool> {
    context: CallContext,
    workspace_context: WorkspaceContext,
    params: T::Params,
    /// The parameters as a record shows them, redacted.
    record_params: serde_json::Value,
    authorization: Authorization,
    reauthorization: ReauthorizationInput,
    default_timeout: Duration,
    /// Bytes that the call holds in memory while it is queued.
    held_bytes: usize,
}

/// The permits of a call.
struct AdmittedCall {
    admission: Admission,
    /// The permit to use the shell of the call, if it names one.
    shell_lease: Option<Permit>,
    /// Delays shutdown until the call runs in a tracked task, which delays it further.
    task_token: TaskTrackerToken,
}

/// A call of the tool `T` that holds its permits and whose start is recorded.
struct StartedCall<T: Tool> {
    context: CallContext,
    params: T::Params,
    tool_context: ToolContext,
    /// The timeout of the call, unless the tool enforces its own.
    timeout: CallTimeout,
    /// Cancels the tool at once.
    abandon_token: CancellationToken,
    task_token: TaskTrackerToken,
    /// The line of the call in the audit log, if there is one.
    audit: Option<ToolCallAudit>,
    /// How the span gets the response, if it has content.
    response_to_json: Option<ResponseToJson<T>>,
    /// Where the call stores its step before its tool runs. `None` without a request id.
    checkpoint: Option<Checkpoint>,
}

impl Pipeline {
    /// Opens the session of a call, and creates it if it is new.
    pub(crate) async fn open_session(
        self: &Arc<Self>,
        context: &CallContext,
    ) -> Result<Arc<Session>, Error> {
        self.open_session_releasing_start_permit(context, None).await
    }

    /// As [`Self::open_session`], but releases `start_permit` before it waits for file descriptors.
    async fn open_session_releasing_start_permit(
        self: &Arc<Self>,
        context: &CallContext,
        start_permit: Option<&SharedPermit>,
    ) -> Result<Arc<Session>, Error> {
        let workspace_context = self.resolve_workspace(context)?;
        let workspace = workspace_context.workspace.name();
        if let Some(session) = self.state_dir.sessions().get_open(workspace, &context.session) {
            return Ok(session);
        }

        let mut attempts = FdRetry::with_deadline(context.deadline);
        loop {
            let (pipeline, workspace) = (Arc::clone(self), workspace.to_owned());
            let id = context.session.clone();
            let opening = task::spawn_blocking(move || {
                pipeline.state_dir.sessions().open_or_create(&workspace, &id)
            });
            let opened =
                opening.await.map_err(Error::internal)?.map_err(|error| state_failure(&error));

            if let (Err(_), Some(permit)) = (&opened, start_permit) {
                permit.release();
            }
            match opened {
                Err(error) if attempts.should_retry(&error).await => {}
                result => return result,
            }
        }
    }

    /// Runs one call of the tool `T` through the whole pipeline.
    pub(crate) async fn call<T: Tool>(
        self: &Arc<Self>,
        context: CallContext,
        request: T::Request,
    ) -> Result<T::Response, Error>
    where
        T::Response: Message + Default,
    {
        let method = self.is_mutating::<T>().then_some(T::NAME);
        let (idempotent_call, validated) = self.validate::<T>(&context, request, method).await?;

        if let Some(call) = idempotent_call {
            return self.call_once::<T>(context, validated, call).await;
        }

        let started = self.start_call::<T>(context, validated, None).await?;
        let timeout = started.timeout;
        let (task, abandon_token) = started.with_result_capture().spawn(self);

        // The guard is dropped with the caller's future, which cancels the tool.
        await_with_timeout::<T>(task, timeout, abandon_token.drop_guard()).await
    }

    /// Whether repeating a call of the tool `T` could change something a second time.
    fn is_mutating<T: Tool>(&self) -> bool {
        self.catalog.tool(T::NAME).is_none_or(|spec| !spec.options.read_only)
    }

    /// Authorizes and admits a call of the tool `T`, and records its start. With a `claim`, all
    /// callers that have its request id wait for the same start.
    async fn start_call<T: Tool>(
        self: &Arc<Self>,
        context: CallContext,
        validated: ValidatedCall<T>,
        claim: Option<&Claim>,
    ) -> Result<StartedCall<T>, Error> {
        let mut authorized = self.authorize_call(context, validated).await?;

        // An approved call keeps its parameters: the approver saw all of them. Such calls are few.
        if authorized.authorization.approval().is_none() {
            authorized.held_bytes += authorized.reauthorization.drop_large_params();
        }

        let request = authorized.admission_request(&authorized.context.principal);
        let (context, authorization) = (&authorized.context, &authorized.authorization);
        let shell = authorized.shell_key();
        let admitted =
            self.admit_authorized::<T>(context, authorization, request, shell, claim).await?;

        self.start_admitted(authorized, admitted).await
    }

    /// Applies the policy to a call of the tool `T`. Waits for a decision where approval is needed.
    async fn authorize_call<T: Tool>(
        self: &Arc<Self>,
        context: CallContext,
        validated: ValidatedCall<T>,
    ) -> Result<AuthorizedCall<T>, Error> {
        let reauthorization = validated.policy_input.reauthorization_input();
        let authorization = self.authorize(&context, validated.policy_input).await?;

        Ok(AuthorizedCall {
            context,
            workspace_context: validated.workspace_context,
            params: validated.params,
            record_params: validated.record_params,
            authorization,
            reauthorization,
            default_timeout: validated.default_timeout,
            held_bytes: validated.request_bytes,
        })
    }

    /// Waits for the permits of an authorized call, first for that of `shell`. With a `claim`, the
    /// deadline of its last waiter ends the wait.
    async fn admit_authorized<T: Tool>(
        self: &Arc<Self>,
        context: &CallContext,
        authorization: &Authorization,
        request: AdmissionRequest<'_>,
        shell: Option<ShellKey>,
        claim: Option<&Claim>,
    ) -> Result<AdmittedCall, Error> {
        let waiters = claim.map(Claim::waiters);
        let request = AdmissionRequest {
            deadline: match &waiters {
                Some(waiters) => WaitDeadline::OfLastWaiter(waiters),
                None => WaitDeadline::At(context.deadline),
            },
            ..request
        };

        let queued_at = Instant::now();
        let admitted = loop {
            match self.admit_in_shell::<T>(shell.clone(), request).await {
                Err(error) if self.await_admission_retry(authorization, &error).await => {}
                admitted => break admitted,
            }
        };

        self.record_admission(context, admitted.as_ref().err(), queued_at);
        if let Err(error) = &admitted
            && authorization.approval().is_some()
        {
            let tool = context.effective_tool(T::NAME);
            self.record_approved_but_rejected(context, tool, error).await;
        }
        admitted
    }

    /// Reauthorizes an admitted call, then records its start.
    async fn start_admitted<T: Tool>(
        self: &Arc<Self>,
        authorized: AuthorizedCall<T>,
        admitted: AdmittedCall,
    ) -> Result<StartedCall<T>, Error> {
        let current = self.policy.snapshot();
        let canonical = authorized.canonical_text_if_changed(&current);
        let is_approved = authorized.authorization.approval().is_some();
        let (context, reauthorization) = (&authorized.context, &authorized.reauthorization);
        self.reauthorize(context, reauthorization, is_approved, current, canonical).await?;

        self.record_start(authorized, admitted).await
    }

    /// Opens the session, appends the start record, and starts the span.
    async fn record_start<T: Tool>(
        self: &Arc<Self>,
        authorized: AuthorizedCall<T>,
        admitted: AdmittedCall,
    ) -> Result<StartedCall<T>, Error> {
        let context = &authorized.context;
        let workspace_context = &authorized.workspace_context;
        let tool = context.effective_tool(T::NAME);
        let workspace = workspace_context.workspace.name();
        let common_record_fields = records::common_record_fields(tool, context, workspace);

        let start_permit = &admitted.admission.start_permit;
        let session = self.open_session_releasing_start_permit(context, Some(start_permit)).await?;
        workspace_context.require_undeleted()?;
        let span = self.start_span(tool, context, workspace_context);
        capture_arguments(self.telemetry.capture(), &span, &authorized.record_params);
        let allowed_by = authorized.authorization.allowed_by.clone();
        let mut audit = ToolCallAudit::begin(
            self.telemetry.audit(),
            context,
            (tool, workspace),
            &authorized.record_params,
            allowed_by.clone(),
        );
        let record = records::started_record(
            &common_record_fields,
            context,
            authorized.record_params,
            allowed_by,
        );
        let step = session.begin_step(record).map_err(|error| state_failure(&error))?;
        if let Some(audit) = &mut audit {
            audit.set_step(step.number());
        }
        if let Some(by) = &authorized.authorization.allowed_by {
            span.set_text(semconv::ALLOWED_BY, by);
        }

        let abandon_token = match &workspace_context.call_end {
            Some(end) => end.child_token(),
            None => self.shutdown.kill_token().child_token(),
        };
        let tool_context = ToolContext {
            session,
            step,
            common_record_fields,
            cancel: self.cancel_signals(&abandon_token),
            principal: Arc::clone(context.principal.shared_name()),
            allowed_tools: context.principal.allowed_tools().map(Iterator::collect),
            artifact_reader: self.artifact_reader(context),
            permit: Arc::new(admitted.admission.permit),
            sandbox_permit: admitted.admission.sandbox_permit,
            shell_lease: admitted.shell_lease,
            start_permit: admitted.admission.start_permit,
            default_timeout: authorized.default_timeout,
            call_timeout: context.timeout,
            max_artifact_bytes: context.max_artifact_bytes,
            in_default_shell: context.in_default_shell,
            is_custom_tool: context.alias.is_some(),
            approved_cwd: authorized.authorization.approved_cwd,
            job: context.job.clone(),
            output_written: context.output_notifier(),
            job_waiter: T::WAITS_FOR_JOBS.then(|| self.caller_jobs(context)),
            deadline: context.deadline,
            span: Arc::new(span),
            telemetry: self.telemetry.clone(),
            workspace_context: authorized.workspace_context,
        };

        Ok(StartedCall {
            timeout: CallTimeout::start(authorized.default_timeout, self.is_mutating::<T>()),
            context: authorized.context,
            params: authorized.params,
            tool_context,
            abandon_token,
            task_token: admitted.task_token,
            audit,
            response_to_json: None,
            checkpoint: None,
        })
    }

    fn cancel_signals(&self, abandon_token: &CancellationToken) -> CancelSignals {
        CancelSignals {
            abandoned: abandon_token.clone(),
            draining: self.shutdown.draining_token(),
            terminate: self.shutdown.terminate_token(),
            grace: self.stop_grace,
        }
    }
}

impl<T: Tool> AuthorizedCall<T> {
    /// Returns what the call asks of admission, without a deadline.
    fn admission_request<'a>(&'a self, principal: &'a Principal) -> AdmissionRequest<'a> {
        AdmissionRequest {
            principal,
            deadline: WaitDeadline::At(None),
            held_bytes: self.held_bytes,
            sandbox_limiter: T::NEEDS_SANDBOX
                .then(|| self.workspace_context.sandbox_pool.limiter()),
        }
    }

    /// Returns the shell that the call runs in, if it names one.
    fn shell_key(&self) -> Option<ShellKey> {
        T::shell(&self.params).map(|name| ShellKey {
            workspace: self.workspace_context.workspace.name().to_owned(),
            session: self.context.session.clone(),
            owner: Arc::clone(self.context.principal.shared_name()),
            name: name.as_str().to_owned(),
        })
    }

    /// Returns the canonical text of the request if the policy has changed since authorization.
    fn canonical_text_if_changed(&self, current: &Arc<PolicySnapshot>) -> Option<CanonicalText> {
        if Arc::ptr_eq(&self.reauthorization.snapshot, current) {
            None
        } else {
            T::canonical_text(&self.params, &self.workspace_context)
        }
    }
}
