//! Runs jobs. Each is a call like any other, started when a slot of its queue is free.

use std::{
    io,
    pin::pin,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use bytes::Bytes;
use prost::Message;
use tokio::{sync::watch, time::timeout};
use tokio_util::sync::CancellationToken;
use ulid::Ulid;

use super::{
    AdmittedCall, Pipeline,
    access::principal::Principal,
    approval::quota::is_approval_quota_error,
    context::{CallContext, InvokeOrigin},
    dyn_tool::{self, DynValidatedCall, RunningCall},
    envelope::{self, CallTiming},
    job_submission::ValidatedSubmission,
    job_tools::{InitialCall, JobTools},
    jobs::JobHandle,
    observer::CallObserver,
    shutdown::Shutdown,
    state_error::state_database_error,
};
use crate::daemon::{
    dialect,
    error::{Error, Reason},
    store::{
        failure::STORE_RETRY_INTERVAL,
        jobs::{Job, JobState},
        session::SessionId,
    },
    task,
    telemetry::{
        access_log::{AccessLogEntry, CallRecord},
        audit::AuditEvent,
        propagation::{from_traceparent, to_traceparent},
    },
    tool::{CallApproval, JobContext},
};

/// Delay before a job retries when a disk is full. The operator must free space first.
const NO_SPACE_RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// How long a job holds its start permit while the database stores that it runs: a hundred times
/// the usual time.
const MAX_START_PERMIT_HOLD: Duration = Duration::from_millis(100);

/// How the run of a job ended.
pub(super) enum JobRunEnd {
    /// The job ended, with this result if it was started.
    Done(JobState, Option<Bytes>),
    /// Nothing was done, because the daemon is shutting down.
    NotStarted,
}

/// Why a job cannot start.
pub(super) enum StartBlocked {
    /// The limit on pending approvals is reached.
    ApprovalQuota,
    /// Another limit, which may be free after this time.
    Transient(Duration),
    /// The job fails.
    Permanent(Error),
}

/// The approval of a job by a person.
pub(super) struct JobApproval {
    /// The caller, with the rights that it had.
    granted_to: Arc<Principal>,
    approved: CallApproval,
}

impl From<Error> for StartBlocked {
    fn from(error: Error) -> Self {
        match (error.reason, error.retry_after) {
            _ if is_approval_quota_error(&error) => Self::ApprovalQuota,
            (Reason::ResourceExhausted, Some(wait)) => Self::Transient(wait),
            (Reason::NoSpace, _) => {
                tracing::warn!(%error, "a job waits for disk space");
                Self::Transient(NO_SPACE_RETRY_INTERVAL)
            }
            _ => Self::Permanent(error),
        }
    }
}

impl Pipeline {
    /// Submits a job. Once this returns, the job survives a restart.
    ///
    /// `is_resumed` says whether an earlier daemon died during the same submission.
    pub(crate) async fn submit_job(
        self: &Arc<Self>,
        context: &CallContext,
        submission: ValidatedSubmission,
        is_resumed: bool,
    ) -> Result<Job, Error> {
        let workspace_context = self.resolve_workspace(context)?;
        let workspace = workspace_context.workspace.name().to_owned();
        if let Some(request_id) = context.request_id.clone().filter(|_| is_resumed) {
            let principal = context.principal.name();
            let submitted = self.jobs.find_submitted(principal, &workspace, request_id).await?;
            if let Some(job) = submitted {
                return Ok(job);
            }
        }

        self.shutdown.check_accepting()?;
        let ValidatedSubmission { dialect, tool, params, queue, priority, tool_access } =
            submission;
        tool_access?;

        let id = self.jobs.new_id();
        let job = Job {
            id: id.to_string(),
            workspace,
            session: context.session.as_str().to_owned(),
            principal: context.principal.name().to_owned(),
            request_id: context.request_id.clone(),
            dialect: dialect.map_or("", |dialect| dialect.name).to_owned(),
            model_call_id: context
                .invoke_origin
                .as_ref()
                .map(|call| call.model_call_id.clone())
                .unwrap_or_default(),
            tool,
            queue,
            priority,
            state: JobState::Queued,
            trace: to_traceparent(&context.parent_span),
            submitted: id.datetime(),
            started: None,
            ended: None,
            step: None,
        };

        self.jobs.submit(job.clone(), params, &workspace_context, context.deadline).await?;
        self.start_queued_jobs();

        Ok(job)
    }

    /// Starts queued jobs while there are free slots.
    pub(crate) fn start_queued_jobs(self: &Arc<Self>) {
        let max_concurrent_calls = |principal: &str| {
            let principal = self.access.find_principal(principal);
            // All jobs of a revoked caller start, and fail.
            principal.map_or(usize::MAX, |principal| principal.concurrent_calls())
        };
        while !self.shutdown.is_draining()
            && let Some(handle) = self.jobs.start_next(max_concurrent_calls)
        {
            let pipeline = Arc::clone(self);
            task::spawn_tracked("job", async move {
                match pipeline.run_confirmed_job(&handle).await {
                    JobRunEnd::Done(state, result) => {
                        pipeline.jobs.complete(&handle, state, result).await
                    }
                    JobRunEnd::NotStarted => pipeline.jobs.requeue(&handle).await,
                }
                pipeline.start_queued_jobs();
            });
        }
    }

    pub(super) async fn run_job(self: &Arc<Self>, handle: &JobHandle) -> JobRunEnd {
        let job = handle.snapshot().job;
        let mut tools = JobTools::new(self, handle, &job);
        let (result, invocation) = tools.run().await;
        let JobTools { has_started, exit_info, .. } = tools;

        let was_cancelled = handle.cancel_token().is_cancelled();
        let state = match &result {
            Err(error) if !has_started && error.reason == Reason::Draining => {
                return JobRunEnd::NotStarted;
            }
            _ if !has_started && was_cancelled => {
                return JobRunEnd::Done(JobState::Cancelled, None);
            }
            Err(error) if !has_started && error.reason == Reason::DaemonLost => JobState::Lost,
            Err(_) if has_started && was_cancelled => JobState::Cancelled,
            Ok(_) if exit_info.was_cancelled() => JobState::Cancelled,
            Ok(response) if response.is_success() => JobState::Succeeded,
            Ok(_) | Err(_) => JobState::Failed,
        };

        let timing = CallTiming {
            tool: &job.tool,
            started: handle.snapshot().job.started.unwrap_or(job.submitted),
            ended: SystemTime::now(),
        };
        let dialect = dialect::find(&job.dialect).ok();
        let audit = self.telemetry.audit();
        if self.telemetry.logs_calls() || audit.is_enabled() {
            let record = job_record(&job, dialect.map(|dialect| dialect.name), state, &timing);
            if self.telemetry.logs_calls() {
                record.log();
            }
            audit.record(AuditEvent::JobEnded, || record);
        }

        let envelope = envelope::build(&timing, dialect, &invocation, result, &exit_info);
        if self.results.is_watched()
            && let Ok(context) = self.job_call_context(handle, &job, &None)
        {
            self.publish_result(&context, dialect, &envelope);
        }

        JobRunEnd::Done(state, Some(envelope.encode_to_vec().into()))
    }

    /// Starts the first call of a job. Waits while a limit is reached, as if the job were still
    /// queued. Cancel safe: nothing of the job is done until this returns.
    pub(super) async fn start_job_call(
        self: &Arc<Self>,
        handle: &JobHandle,
        job: &Job,
        initial_call: Option<&InitialCall>,
    ) -> Result<RunningCall, Error> {
        let mut approval = None;
        loop {
            // Subscribed before the attempt, so that no released permit is missed.
            let freed = self.approvals.freed();
            match self.try_start_job_call(handle, job, initial_call, &mut approval).await {
                Ok(running) => return Ok(running),
                Err(StartBlocked::Permanent(error)) => return Err(error),
                Err(StartBlocked::Transient(delay)) => self.retry_job_later(handle, delay).await?,
                Err(StartBlocked::ApprovalQuota) => {
                    self.await_approval_permit(handle, job, freed).await?
                }
            }
        }
    }

    /// Starts the first call of a job, with the rights of its caller now. Cancel safe.
    ///
    /// The job is recorded as running before the call starts, and after the call is admitted. If
    /// the daemon dies before, nothing of the job was done.
    async fn try_start_job_call(
        self: &Arc<Self>,
        handle: &JobHandle,
        job: &Job,
        initial_call: Option<&InitialCall>,
        approval: &mut Option<JobApproval>,
    ) -> Result<RunningCall, StartBlocked> {
        let (name, params) = match initial_call {
            Some(call) => (call.tool, call.params.clone()),
            None => (job.tool.as_str(), self.read_job_params(handle, job).await?),
        };
        let mut context = self.job_call_context(handle, job, approval)?;
        let (observer, progress) = CallObserver::new();
        context.observer = Some(observer);
        if let Some(call) = initial_call {
            context.timeout = call.timeout;
            context.max_artifact_bytes = call.max_artifact_bytes;
            context.in_default_shell = call.in_default_shell;
            if let Some(origin) = &call.invoke_origin {
                context.invoke_origin = Some(Arc::clone(origin));
            }
        }

        let principal = Arc::clone(&context.principal);
        let pending_approval =
            context.job.as_ref().map(|job| job.pending_approval.clone()).unwrap_or_default();
        let validated = self.validate_job_call(job, name, &context, params).await?;

        // While the call is pending approval, other jobs use its slot.
        let mut authorizing = validated.authorize(self);
        let authorized = tokio::select! {
            biased;
            authorized = &mut authorizing => authorized?,
            () = pending_approval.cancelled() => {
                self.yield_job_slot(handle).await;
                let report = |approval_id| handle.set_approval(approval_id);
                let authorized = progress.report_approval(authorizing, report).await?;
                self.await_job_slot(handle).await?;
                authorized
            }
        };
        if let Some(approved) = authorized.approval() {
            *approval = Some(JobApproval { granted_to: Arc::clone(&principal), approved });
        }

        // The caller's limit on concurrent calls applies to its jobs as well.
        let admitted = self.admit_job(authorized.admission_request(&principal)).await?;

        // The waits may have taken hours.
        if !authorized.still_authorized(self).await? {
            return Err(StartBlocked::Transient(Duration::ZERO));
        }
        self.record_job_start(handle, &admitted).await?;

        Ok(authorized.start(self, admitted).await?)
    }

    /// Validates the first call of a job again: much may have changed since the submission.
    async fn validate_job_call(
        self: &Arc<Self>,
        job: &Job,
        name: &str,
        context: &CallContext,
        params: Bytes,
    ) -> Result<Box<dyn DynValidatedCall>, Error> {
        let tool = dyn_tool::find(name, self, &context.principal)?;
        let dialect_call = context.dialect_call();
        let dialect_tool = dialect_call.as_deref().map(|call| call.tool);
        tool.require_access(self, &context.principal, dialect_tool)?;

        let (pipeline, id) = (Arc::clone(self), job.id.clone());
        let bytes = params.len();
        let cost = bytes.saturating_mul(tool.cost_per_byte());
        let validate = move |context: &CallContext| {
            let params = serde_json::from_slice(&params)
                .map_err(|error| params_lost_error(&id, &error.into()))?;
            tool.validate(&pipeline, context.clone(), &params)
        };
        self.validate_maybe_offloaded(context, (bytes, cost), validate).await
    }

    /// Stores that a job runs. Releases its start permit if that takes long.
    async fn record_job_start(
        &self,
        handle: &JobHandle,
        admitted: &AdmittedCall,
    ) -> Result<(), StartBlocked> {
        let mut storing = pin!(self.jobs.record_start(handle));
        let stored = match timeout(MAX_START_PERMIT_HOLD, &mut storing).await {
            Ok(stored) => stored,
            Err(_) => {
                admitted.admission.start_permit.release();
                storing.await
            }
        };

        stored.map_err(|error| {
            tracing::error!(%error, "cannot store the start of a job");
            match state_database_error(&error).into() {
                // The job stays queued: its end could not be stored either.
                StartBlocked::Permanent(_) => StartBlocked::Transient(STORE_RETRY_INTERVAL),
                blocked @ (StartBlocked::ApprovalQuota | StartBlocked::Transient(_)) => blocked,
            }
        })
    }

    /// Gives the slot of a job that cannot start yet to other jobs.
    async fn yield_job_slot(self: &Arc<Self>, handle: &JobHandle) {
        self.jobs.yield_slot(handle);
        self.start_queued_jobs();
        self.jobs.record_requeue(handle).await;
    }

    /// Waits until the job gets a slot again.
    async fn await_job_slot(self: &Arc<Self>, handle: &JobHandle) -> Result<(), Error> {
        let slot = self.jobs.rejoin_queue(handle);
        self.start_queued_jobs();
        tokio::select! {
            slot = slot => slot.map_err(Error::internal),
            () = self.shutdown.draining_token().cancelled_owned() => Err(Shutdown::draining_error()),
        }
    }

    /// Makes a job wait for `delay`, then for a slot.
    pub(super) async fn retry_job_later(
        self: &Arc<Self>,
        handle: &JobHandle,
        delay: Duration,
    ) -> Result<(), Error> {
        self.yield_job_slot(handle).await;
        tokio::select! {
            () = task::sleep_until(Some(Instant::now() + delay)) => self.await_job_slot(handle).await,
            () = self.shutdown.draining_token().cancelled_owned() => Err(Shutdown::draining_error()),
        }
    }

    /// Makes a job wait until it can request approval and has a slot. So jobs request approval in
    /// the order of their queues. The wait ends, because every pending approval ends.
    async fn await_approval_permit(
        self: &Arc<Self>,
        handle: &JobHandle,
        job: &Job,
        mut freed: watch::Receiver<()>,
    ) -> Result<(), Error> {
        let has_free_permit = || self.approvals.has_free_permit(&job.workspace, &job.principal);
        loop {
            self.yield_job_slot(handle).await;
            tokio::select! {
                freed = freed.changed() => freed.map_err(Error::internal)?,
                () = self.shutdown.draining_token().cancelled_owned() => return Err(Shutdown::draining_error()),
            }

            if !has_free_permit() {
                continue;
            }
            self.await_job_slot(handle).await?;

            // An earlier job may have taken the approval permit.
            if has_free_permit() {
                return Ok(());
            }
        }
    }

    /// Returns the context of a job's calls. An `approval` is valid only for the same caller with
    /// the same rights.
    pub(super) fn job_call_context(
        &self,
        handle: &JobHandle,
        job: &Job,
        approval: &Option<JobApproval>,
    ) -> Result<CallContext, Error> {
        let context = self.job_context(job)?;
        let approval = approval
            .as_ref()
            .filter(|approval| Arc::ptr_eq(&approval.granted_to, &context.principal))
            .map(|approval| approval.approved.clone());
        let job_context = JobContext {
            id: job.id.clone(),
            output_written: handle.output_notifier().clone(),
            pending_approval: CancellationToken::new(),
            approval,
        };
        Ok(CallContext { job: Some(job_context), ..context })
    }

    /// Returns the context of a job, with the rights of its principal now.
    pub(crate) fn job_context(&self, job: &Job) -> Result<CallContext, Error> {
        let principal = self.access.find_principal(&job.principal).ok_or_else(|| {
            let text = format!(
                "{}, which submitted this job, is no longer authorized: submit the job again with a valid key",
                job.principal
            );
            Error::new(Reason::Forbidden, text)
        })?;

        let session = SessionId::parse(&job.session)
            .ok_or_else(|| Error::internal("a job has no session"))?;

        Ok(CallContext {
            call_id: Ulid::generate().to_string(),
            principal,
            deadline: None,
            workspace: Some(job.workspace.clone()),
            found_workspace: Arc::default(),
            session,
            request_id: None,
            job: None,
            invoke_origin: (!job.model_call_id.is_empty()).then(|| {
                Arc::new(InvokeOrigin {
                    model_call_id: job.model_call_id.clone(),
                    dialect_call: None,
                    dialect: None,
                })
            }),
            observer: None,
            alias: None,
            timeout: None,
            max_artifact_bytes: None,
            in_default_shell: false,
            parent_span: from_traceparent(&job.trace),
            access_log_entry: AccessLogEntry::default(),
        })
    }
}

/// The record of a job that has ended.
fn job_record(
    job: &Job,
    dialect: Option<&'static str>,
    state: JobState,
    call: &CallTiming<'_>,
) -> CallRecord {
    let mut record = CallRecord {
        principal: Some(job.principal.clone()),
        workspace: Some(job.workspace.clone()),
        session: Some(job.session.clone()),
        request_id: job.request_id.clone(),
        job_id: Some(job.id.clone()),
        model_call_id: Some(job.model_call_id.clone()).filter(|id| !id.is_empty()),
        tool: dialect.is_none().then(|| job.tool.clone()),
        called_name: dialect.is_some().then(|| job.tool.clone()),
        dialect,
        outcome: Some(state.name().to_owned()),
        trace_id: job.trace.split('-').nth(1).map(str::to_owned),
        ..CallRecord::default()
    };
    record.set_duration(call.ended.duration_since(call.started).unwrap_or_default());
    record
}

pub(super) fn params_lost_error(id: &str, error: &io::Error) -> Error {
    tracing::error!(%error, job_id = id, "the parameters of a job are lost");
    let text =
        "the parameters of this job are no longer in the daemon's state directory: submit it again";
    Error::new(Reason::DaemonLost, text)
}
