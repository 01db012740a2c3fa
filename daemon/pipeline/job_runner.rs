//! The work of jobs: each is a call like any other, made when its turn comes.

use std::{
    io,
    pin::pin,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use bytes::Bytes;
use prost::Message;
use serde_json::{Map, Value};
use tokio::{sync::watch, time::timeout};
use tokio_util::sync::CancellationToken;
use ulid::Ulid;

use super::{
    AdmittedCall, Pipeline,
    access::principal::Principal,
    approval::quota::is_approval_quota_error,
    context::{CallContext, InvokeOrigin},
    dyn_tool::{self, RunningCall},
    envelope::{self, CallTiming},
    job_submission::ValidatedSubmission,
    job_tools::{InitialCall, JobTools},
    jobs::{JobHandle, STORE_RETRY_INTERVAL},
    shutdown::Shutdown,
    state_error::state_database_error,
};
use crate::daemon::{
    dialect,
    error::{Error, Reason},
    fd_exhaustion::FdRetry,
    store::{
        jobs::{Job, JobState},
        session::SessionId,
    },
    task,
    telemetry::{
        access_log::{AccessLogEntry, AccessLogFields, CallCompletion},
        propagation::{from_traceparent, to_traceparent},
    },
    tool::{CallApproval, JobContext},
};

/// How long a job waits for room on a disk: somebody must make some first.
const NO_SPACE_RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// How long the turn of a job is kept while the log takes that it runs, which is a hundred times what that takes.
const MAX_START_PERMIT_HOLD: Duration = Duration::from_millis(100);

/// How the work of a job has ended.
enum JobRunEnd {
    /// So, and with this result, where it was begun.
    Done(JobState, Option<Bytes>),
    /// Nothing was done, as the daemon is shutting down.
    NotStarted,
}

/// What keeps a job from beginning.
enum StartBlocked {
    /// As many calls as may wait to be approved.
    ApprovalQuota,
    /// Something else, which there may not be any more after this time.
    Transient(Duration),
    /// It will not begin.
    Permanent(Error),
}

/// That somebody was asked, and has allowed a job.
pub(super) struct JobApproval {
    /// Whose call it is, with the rights that he had.
    granted_to: Arc<Principal>,
    approved: CallApproval,
}

impl From<Error> for StartBlocked {
    fn from(error: Error) -> Self {
        match (error.reason, error.retry_after) {
            _ if is_approval_quota_error(&error) => Self::ApprovalQuota,
            (Reason::ResourceExhausted, Some(wait)) => Self::Transient(wait),
            (Reason::NoSpace, _) => {
                tracing::warn!(%error, "a job that cannot begin yet waits");
                Self::Transient(NO_SPACE_RETRY_INTERVAL)
            }
            _ => Self::Permanent(error),
        }
    }
}

impl Pipeline {
    /// Takes on a job. Once this is answered, the job will be done. `is_unfinished`: whether a daemon
    /// died that was asked the same under this request id.
    pub(crate) async fn submit_job(
        self: &Arc<Self>,
        context: &CallContext,
        order: ValidatedSubmission,
        is_unfinished: bool,
    ) -> Result<Job, Error> {
        let workspace = self.workspace_context(context)?.workspace.name().to_owned();
        let request = context.request_id.clone();
        if let Some(request) = request.clone().filter(|_| is_unfinished) {
            let principal = context.principal.name();
            let submitted = self.jobs.find_submitted(principal, &workspace, request).await?;
            if let Some(job) = submitted {
                return Ok(job);
            }
        }
        self.shutdown.check_accepting()?;
        let ValidatedSubmission { dialect, tool, params, queue, priority, tool_access: is_open } =
            order;
        is_open?;
        let id = self.jobs.new_id();
        let job = Job {
            id: id.to_string(),
            workspace,
            session: context.session.as_str().to_owned(),
            principal: context.principal.name().to_owned(),
            request_id: request,
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
        let until = context.deadline;
        self.jobs.submit(job.clone(), params, until).await?;
        self.start_queued_jobs();
        Ok(job)
    }

    /// Starts the jobs whose turn it is.
    pub(crate) fn start_queued_jobs(self: &Arc<Self>) {
        let most = |caller: &str| {
            let principal = self.access.find_principal(caller);
            // One who may not call any more is told so, each of his jobs.
            principal.map_or(usize::MAX, |principal| principal.concurrent_calls())
        };
        while !self.shutdown.is_draining()
            && let Some(live) = self.jobs.start_next(most)
        {
            let pipeline = Arc::clone(self);
            task::spawn_tracked("job", async move {
                match pipeline.run_job(&live).await {
                    JobRunEnd::Done(state, result) => {
                        pipeline.jobs.complete(&live, state, result).await
                    }
                    JobRunEnd::NotStarted => pipeline.jobs.requeue(&live).await,
                }
                pipeline.start_queued_jobs();
            });
        }
    }

    async fn run_job(self: &Arc<Self>, handle: &JobHandle) -> JobRunEnd {
        let job = handle.snapshot().job;
        let mut tools = JobTools::new(self, handle, &job);
        let (result, said) = tools.run().await;
        let JobTools { has_started: has_begun, exit_info: ran, .. } = tools;
        let was_cancelled = handle.cancel_token().is_cancelled();
        let state = match &result {
            Err(error) if !has_begun && error.reason == Reason::Draining => {
                return JobRunEnd::NotStarted;
            }
            _ if !has_begun && was_cancelled => return JobRunEnd::Done(JobState::Cancelled, None),
            Err(error) if !has_begun && error.reason == Reason::DaemonLost => JobState::Lost,
            Err(_) if has_begun && was_cancelled => JobState::Cancelled,
            Ok(_) if ran.was_cancelled() => JobState::Cancelled,
            Ok(answer) if answer.is_success() => JobState::Succeeded,
            Ok(_) | Err(_) => JobState::Failed,
        };
        let call = CallTiming {
            tool: &job.tool,
            started: handle.snapshot().job.started.unwrap_or(job.submitted),
            ended: SystemTime::now(),
        };
        let dialect = dialect::find(&job.dialect).ok();
        if self.telemetry.logs_calls() {
            log_job(&job, dialect.map(|dialect| dialect.name), state, &call);
        }
        let envelope = envelope::build(&call, dialect, &said, result, &ran);
        if self.results.is_watched()
            && let Ok(incoming) = self.job_call_context(handle, &job, &None)
        {
            self.publish_result(&incoming, dialect, &envelope);
        }
        JobRunEnd::Done(state, Some(envelope.encode_to_vec().into()))
    }

    /// Begins the call of a job once nothing is in its way. What is short for now is waited for, and nothing of
    /// the job is done until then: it waits as though its turn had not come. May be cancelled.
    pub(super) async fn start_job_call(
        self: &Arc<Self>,
        handle: &JobHandle,
        job: &Job,
        given: Option<&InitialCall>,
    ) -> Result<RunningCall, Error> {
        let mut approval = None;
        loop {
            // Before it asks: what becomes free from then on is not missed.
            let freed = self.approvals.freed();
            match self.try_start_job_call(handle, job, given, &mut approval).await {
                Ok(going) => return Ok(going),
                Err(StartBlocked::Permanent(error)) => return Err(error),
                Err(StartBlocked::Transient(pause)) => self.retry_job_later(handle, pause).await?,
                Err(StartBlocked::ApprovalQuota) => {
                    self.await_approval_slot(handle, job, freed).await?
                }
            }
        }
    }

    /// Begins the call of a job, as whoever submitted it. It is known to run before it does, and not before
    /// it may: until then, a daemon that dies has done nothing of it. May be cancelled.
    async fn try_start_job_call(
        self: &Arc<Self>,
        handle: &JobHandle,
        job: &Job,
        given: Option<&InitialCall>,
        approval: &mut Option<JobApproval>,
    ) -> Result<RunningCall, StartBlocked> {
        let (name, params) = match given {
            Some(call) => (call.tool, call.params.clone()),
            None => (job.tool.as_str(), self.read_job_params(handle, job).await?),
        };
        let incoming = CallContext {
            timeout: given.and_then(|call| call.timeout),
            max_artifact_bytes: given.and_then(|call| call.max_artifact_bytes),
            in_default_shell: given.is_some_and(|call| call.in_default_shell),
            ..self.job_call_context(handle, job, approval)?
        };
        let incoming = match given.and_then(|call| call.invoke_origin.clone()) {
            Some(by_name) => CallContext { invoke_origin: Some(by_name), ..incoming },
            None => incoming,
        };
        let principal = Arc::clone(&incoming.principal);
        let tool = dyn_tool::find(name, self, &principal)?;
        // Much may have changed since it was submitted.
        let dialect_call = incoming.dialect_call();
        tool.require_access(self, &principal, dialect_call.as_deref().map(|said| said.tool))?;
        let is_asked_about =
            incoming.job.as_ref().map(|job| job.pending_approval.clone()).unwrap_or_default();
        let checked = {
            let (pipeline, id) = (Arc::clone(self), job.id.clone());
            let bytes = params.len();
            let check = move |context: &CallContext| {
                let params = serde_json::from_slice(&params);
                let params = params.map_err(|error| params_lost_error(&id, &error.into()))?;
                tool.validate(&pipeline, context.clone(), &params)
            };
            let cost = bytes.saturating_mul(tool.cost_per_byte());
            self.validate_maybe_offloaded(&incoming, (bytes, cost), check).await?
        };
        let mut let_in = checked.authorize(self);
        let let_in = tokio::select! {
            biased;
            let_in = &mut let_in => let_in?,
            () = is_asked_about.cancelled() => {
                self.yield_job_slot(handle).await;
                let let_in = let_in.await?;
                self.await_job_slot(handle).await?;
                let_in
            }
        };
        if let Some(approved) = let_in.approval() {
            let to = Arc::clone(&principal);
            *approval = Some(JobApproval { granted_to: to, approved });
        }
        // Its caller may have as many calls going on as he may have: others have their turn meanwhile.
        let place = self.admit_job(let_in.admission_request(&principal)).await?;
        // All that may have taken hours.
        if !let_in.still_authorized(self).await? {
            return Err(StartBlocked::Transient(Duration::ZERO));
        }
        self.record_job_start(handle, &place).await?;
        Ok(let_in.start(self, place).await?)
    }

    /// Keeps that a job runs. Its turn is for others where that takes long.
    async fn record_job_start(
        &self,
        handle: &JobHandle,
        admitted: &AdmittedCall,
    ) -> Result<(), StartBlocked> {
        let mut start = pin!(self.jobs.record_start(handle));
        let started = match timeout(MAX_START_PERMIT_HOLD, &mut start).await {
            Ok(started) => started,
            Err(_) => {
                admitted.admission.start_permit.release();
                start.await
            }
        };
        started.map_err(|error| {
            tracing::error!(%error, "that a job starts could not be kept");
            match state_database_error(&error).into() {
                // Its end could be kept as little.
                StartBlocked::Permanent(_) => StartBlocked::Transient(STORE_RETRY_INTERVAL),
                passing @ (StartBlocked::ApprovalQuota | StartBlocked::Transient(_)) => passing,
            }
        })
    }

    /// What a job is to do. As long as it cannot be read, and is not known to be gone, the job waits.
    async fn read_job_params(&self, handle: &JobHandle, job: &Job) -> Result<Bytes, StartBlocked> {
        let mut attempts = FdRetry::with_deadline(None);
        loop {
            match self.jobs.read_params(handle).await {
                Ok(params) => return Ok(params.into()),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Err(params_lost_error(&job.id, &error).into());
                }
                Err(error) if attempts.should_retry_io(&error).await => {}
                Err(error) => {
                    tracing::error!(%error, job_id = job.id, "the parameters of a job cannot be read now");
                    return Err(StartBlocked::Transient(STORE_RETRY_INTERVAL));
                }
            }
        }
    }

    /// What a job is to do, once it can be read.
    pub(super) async fn await_job_params(
        self: &Arc<Self>,
        handle: &JobHandle,
        job: &Job,
    ) -> Result<Map<String, Value>, Error> {
        loop {
            match self.read_job_params(handle, job).await {
                Ok(params) => {
                    let params = serde_json::from_slice(&params);
                    return params.map_err(|error| params_lost_error(&job.id, &error.into()));
                }
                Err(StartBlocked::Permanent(error)) => return Err(error),
                Err(StartBlocked::Transient(pause)) => self.retry_job_later(handle, pause).await?,
                Err(StartBlocked::ApprovalQuota) => {
                    self.retry_job_later(handle, STORE_RETRY_INTERVAL).await?
                }
            }
        }
    }

    /// Lets others have their turn before a job that cannot begin yet.
    async fn yield_job_slot(self: &Arc<Self>, handle: &JobHandle) {
        self.jobs.yield_slot(handle);
        self.start_queued_jobs();
        self.jobs.record_requeue(handle).await;
    }

    /// Waits until it is a job's turn again.
    async fn await_job_slot(self: &Arc<Self>, handle: &JobHandle) -> Result<(), Error> {
        let turn = self.jobs.rejoin_queue(handle);
        self.start_queued_jobs();
        tokio::select! {
            turn = turn => turn.map_err(Error::internal),
            () = self.shutdown.draining_token().cancelled_owned() => Err(Shutdown::draining_error()),
        }
    }

    /// Has a job wait for so long, and then for its turn.
    async fn retry_job_later(
        self: &Arc<Self>,
        handle: &JobHandle,
        pause: Duration,
    ) -> Result<(), Error> {
        self.yield_job_slot(handle).await;
        tokio::select! {
            () = task::sleep_until(Some(Instant::now() + pause)) => self.await_job_slot(handle).await,
            () = self.shutdown.draining_token().cancelled_owned() => Err(Shutdown::draining_error()),
        }
    }

    /// Has a job wait until it may be asked about, and it is its turn: so those that wait for that are asked
    /// about in the order of their queues. There is an end to that, as what waits to be approved has one.
    async fn await_approval_slot(
        self: &Arc<Self>,
        handle: &JobHandle,
        job: &Job,
        mut freed: watch::Receiver<()>,
    ) -> Result<(), Error> {
        let has_room = || self.approvals.has_free_slot(&job.workspace, &job.principal);
        loop {
            self.yield_job_slot(handle).await;
            tokio::select! {
                freed = freed.changed() => freed.map_err(Error::internal)?,
                () = self.shutdown.draining_token().cancelled_owned() => return Err(Shutdown::draining_error()),
            }
            if !has_room() {
                continue;
            }
            self.await_job_slot(handle).await?;
            // Those before it may have taken it.
            if has_room() {
                return Ok(());
            }
        }
    }

    /// The call that a job makes. An `approval` is good for whom it was given to, with the rights that he had.
    pub(super) fn job_call_context(
        &self,
        handle: &JobHandle,
        job: &Job,
        approval: &Option<JobApproval>,
    ) -> Result<CallContext, Error> {
        let principal = self.access.find_principal(&job.principal).ok_or_else(|| {
            let text =
                format!("{} has submitted this job, and may not call any more", job.principal);
            Error::new(Reason::Forbidden, text)
        })?;
        let session = SessionId::parse(&job.session)
            .ok_or_else(|| Error::internal("a job has no session"))?;
        let approval = approval.as_ref();
        let approval = approval.filter(|approval| Arc::ptr_eq(&approval.granted_to, &principal));
        Ok(CallContext {
            call_id: Ulid::generate().to_string(),
            principal,
            deadline: None,
            workspace: Some(job.workspace.clone()),
            session,
            request_id: None,
            job: Some(JobContext {
                id: job.id.clone(),
                output_written: handle.output_notifier().clone(),
                pending_approval: CancellationToken::new(),
                approval: approval.map(|approval| approval.approved.clone()),
            }),
            invoke_origin: (!job.model_call_id.is_empty()).then(|| {
                Arc::new(InvokeOrigin {
                    model_call_id: job.model_call_id.clone(),
                    dialect_call: None,
                    dialect: None,
                })
            }),
            alias: None,
            timeout: None,
            max_artifact_bytes: None,
            in_default_shell: false,
            parent_span: from_traceparent(&job.trace),
            facts: AccessLogEntry::default(),
        })
    }
}

/// Writes the line of a job that has ended.
fn log_job(job: &Job, dialect: Option<&'static str>, state: JobState, call: &CallTiming<'_>) {
    let facts = AccessLogFields {
        caller: Some(job.principal.clone()),
        workspace: Some(job.workspace.clone()),
        session: Some(job.session.clone()),
        request_id: job.request_id.clone(),
        job_id: Some(job.id.clone()),
        model_call_id: Some(job.model_call_id.clone()).filter(|id| !id.is_empty()),
        tool: dialect.is_none().then(|| job.tool.clone()),
        called_name: dialect.is_some().then(|| job.tool.clone()),
        dialect,
        outcome: Some(state.name().to_owned()),
    };
    let duration = call.ended.duration_since(call.started);
    facts.log(CallCompletion {
        method: None,
        call_id: None,
        trace_id: None,
        status: None,
        reason: None,
        duration: duration.unwrap_or_default(),
    });
}

/// What a job is told that cannot know any more what it was to do.
fn params_lost_error(id: &str, error: &io::Error) -> Error {
    tracing::error!(%error, job_id = id, "the parameters of a job are gone");
    let text =
        "what this job was to do is not in the daemon's state directory any more: submit it again";
    Error::new(Reason::DaemonLost, text)
}
