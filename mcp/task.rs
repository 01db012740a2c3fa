//! The extension `io.modelcontextprotocol/tasks`: calls that take long become jobs.
//!
//! Clients that declare the extension get a task for a call that has not ended after
//! [`MAX_TASKLESS_WAIT`]. The task is a job: it is on disk before the client hears of it.

use std::time::Duration;

use prost_types::Timestamp;
use rmcp::{
    ErrorData, RoleServer,
    model::{
        CallToolResponse, CreateTaskResult, DetailedTask, GetTaskResult, InputRequests, JsonObject,
        Task, TaskPayload, TaskStatus, UpdateTaskParams,
    },
    service::RequestContext,
};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};
use tonic::{Code, Status, Streaming};

use super::{
    approval::{input_requests, parse_answer},
    backend::GrpcBackend,
    call_error::{to_call_outcome, to_protocol_error},
    progress::ProgressReporter,
    result::{cancelled_outcome, to_tool_result},
    server::McpServer,
    tool_call::ToolCall,
};
use crate::api::v1::{
    CancelJobRequest, GetJobRequest, Job, JobState, SubmitJobRequest, WatchJobRequest,
    WatchJobResponse, watch_job_response::Event,
};

/// Time after which a call becomes a task. Most calls end before, without a second request. The
/// conformance suite calls tools that take a second, and expects a task.
const MAX_TASKLESS_WAIT: Duration = Duration::from_millis(500);
/// Time between two queries of a task that the server suggests.
const POLL_INTERVAL_MS: u64 = 500;

impl McpServer {
    /// Runs a call as a job. Returns its result, or a task if it takes long. `None` if no job can
    /// have these parameters: the tool itself then describes the problem to the model.
    pub(super) async fn call_as_job(
        &self,
        call: &ToolCall,
        context: &RequestContext<RoleServer>,
    ) -> Result<Option<CallToolResponse>, ErrorData> {
        let job = match self.submit_job(call, context).await {
            Ok(job) => job,
            Err(status) if status.code() == Code::InvalidArgument => return Ok(None),
            Err(status) => {
                return to_call_outcome(&status).map(CallToolResponse::Complete).map(Some);
            }
        };
        let mut followed = FollowedJob { server: self, context, job };

        let ended = tokio::select! {
            biased;
            // First: a client that has cancelled would not learn the id of a task.
            () = context.ct.cancelled() => {
                // Without success, the job runs to its end, as that of a lost client does.
                let _cancelled = self.cancel_job(followed.job.job_id, context).await;
                return Ok(Some(cancelled_outcome()));
            }
            ended = followed.wait(Instant::now() + MAX_TASKLESS_WAIT) => ended,
        };
        let response = match ended {
            Ok(Some(Job { result: Some(result), .. })) => {
                CallToolResponse::Complete(to_tool_result(result, self.dialect())?)
            }
            // The client gets the state with its first query.
            Ok(Some(_) | None) | Err(_) => CreateTaskResult::new(to_task(&followed.job)).into(),
        };
        Ok(Some(response))
    }

    /// Returns the state of a task, with its result once it has ended.
    pub(super) async fn task(
        &self,
        task_id: String,
        context: &RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        let job = self.job(task_id, context).await?;
        let task = to_task(&job);
        let payload = match self.job_question(&job, context).await {
            Some(input_requests) => TaskPayload::InputRequired { input_requests },
            None => self.task_payload(job)?,
        };
        Ok(GetTaskResult::new(DetailedTask::new(task, payload)))
    }

    /// Gives the user's answer to the question of a task.
    pub(super) async fn answer_task(
        &self,
        request: UpdateTaskParams,
        context: &RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let job = self.job(request.task_id, context).await?;
        // The extension ignores answers to questions that are not open (any more).
        let name = &job.approval_id;
        if name.is_empty() || !request.input_responses.contains_key(name) {
            return Ok(());
        }
        let answer = parse_answer(name, &request.input_responses)?;
        match self.decide(name, answer, context).await {
            Err(status) if status.code() != Code::FailedPrecondition => {
                Err(to_protocol_error(&status))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Returns a job of the caller.
    ///
    /// Other callers of the workspace can look at it by gRPC. The extension binds a task to the
    /// caller that created it.
    async fn job(
        &self,
        job_id: String,
        context: &RequestContext<RoleServer>,
    ) -> Result<Job, ErrorData> {
        let found = async {
            let message = GetJobRequest { job_id: job_id.clone() };
            let request = self.backend().request(context, message)?;
            self.backend().jobs().get_job(request).await?.into_inner().job.ok_or_else(no_job)
        };
        let job = found.await.map_err(|status| to_protocol_error(&status))?;
        let caller = GrpcBackend::caller_identity(context);
        if caller.is_some_and(|caller| caller != job.principal) {
            let text = format!("this caller has no task {job_id:?}, or has lost it: call again");
            return Err(ErrorData::invalid_params(text, None));
        }
        Ok(job)
    }

    /// Returns the question of a job that waits for approval, under the id of the approval.
    async fn job_question(
        &self,
        job: &Job,
        context: &RequestContext<RoleServer>,
    ) -> Option<InputRequests> {
        if job.approval_id.is_empty() {
            return None;
        }
        let question = self.question(&job.approval_id, context).await?;
        Some(input_requests(&job.approval_id, question))
    }

    /// Cancels a task of the caller, and waits until its command has ended.
    pub(super) async fn cancel_task_of_caller(
        &self,
        task_id: String,
        context: &RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let job = self.job(task_id, context).await?;
        self.cancel_job(job.job_id, context).await
    }

    async fn cancel_job(
        &self,
        task_id: String,
        context: &RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let cancelled = async {
            let request = self.backend().request(context, CancelJobRequest { job_id: task_id })?;
            self.backend().jobs().cancel_job(request).await
        };
        cancelled.await.map(|_| ()).map_err(|status| to_protocol_error(&status))
    }

    async fn submit_job(
        &self,
        call: &ToolCall,
        context: &RequestContext<RoleServer>,
    ) -> Result<Job, Status> {
        let message = SubmitJobRequest {
            tool: call.name.clone(),
            params_json: call.arguments_json.clone(),
            dialect: self.dialect().to_owned(),
            ..SubmitJobRequest::default()
        };
        let request = self.backend().request_once(context, message)?;
        let submitted = self.backend().jobs().submit_job(request).await?.into_inner();
        submitted.job.ok_or_else(no_job)
    }

    fn task_payload(&self, job: Job) -> Result<TaskPayload, ErrorData> {
        Ok(match (job.state(), job.result) {
            (JobState::Queued | JobState::Running | JobState::Unspecified, _) => {
                TaskPayload::Working
            }
            (JobState::Cancelled, _) => TaskPayload::Cancelled,
            (JobState::Succeeded | JobState::Failed, Some(result)) => {
                match to_tool_result(result, self.dialect()) {
                    Ok(result) => TaskPayload::Completed { result: to_object(json!(result)) },
                    Err(error) => TaskPayload::Failed { error: to_object(json!(error)) },
                }
            }
            (JobState::Lost, _) => {
                failed("the daemon died while the call ran: its progress is unknown")
            }
            (JobState::Succeeded | JobState::Failed, None) => {
                failed("the result is no longer stored")
            }
        })
    }
}

/// A job whose client waits for its result.
struct FollowedJob<'a> {
    server: &'a McpServer,
    context: &'a RequestContext<RoleServer>,
    job: Job,
}

impl FollowedJob<'_> {
    /// Waits until the job has ended or `until`. Reports progress to the client.
    async fn wait(&mut self, until: Instant) -> Result<Option<Job>, Status> {
        let mut progress = ProgressReporter::new(self.context);
        let mut events = self.watch().await?;
        loop {
            tokio::select! {
                event = events.message() => match event?.and_then(|message| message.event) {
                    Some(Event::Job(job)) if job.result.is_some() => return Ok(Some(job)),
                    // The client's user may decide: the task asks.
                    Some(Event::Job(job)) if !job.approval_id.is_empty() => {
                        self.job = job;
                        return Ok(None);
                    }
                    Some(Event::Stdout(output) | Event::Stderr(output)) => {
                        progress.add_output(&output.data);
                    }
                    Some(Event::Job(_) | Event::KeepAlive(_)) => {}
                    None => return Ok(None),
                },
                () = progress.due() => progress.send().await,
                () = sleep_until(until) => return Ok(None),
            }
        }
    }

    async fn watch(&self) -> Result<Streaming<WatchJobResponse>, Status> {
        let message =
            WatchJobRequest { job_id: self.job.job_id.clone(), ..WatchJobRequest::default() };
        let backend = self.server.backend();
        let request = backend.request(self.context, message)?;
        Ok(backend.jobs().watch_job(request).await?.into_inner())
    }
}

/// Returns the description of a job as a task.
fn to_task(job: &Job) -> Task {
    let times = [job.end_time, job.start_time, job.submit_time];
    let updated = times.into_iter().flatten().next().unwrap_or_default();
    let created = job.submit_time.unwrap_or_default();
    let text = match job.state() {
        JobState::Queued => "waits in its queue, or for approval",
        JobState::Running => "is running",
        JobState::Unspecified
        | JobState::Succeeded
        | JobState::Failed
        | JobState::Cancelled
        | JobState::Lost => "has ended",
    };
    let task =
        Task::new(&job.job_id, TaskStatus::Working, created.to_string(), updated.to_string())
            .with_status_message(format!("{} {text}", job.tool))
            .with_poll_interval_ms(POLL_INTERVAL_MS);
    match ttl(job) {
        Some(ttl) => task.with_ttl_ms(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)),
        None => task,
    }
}

/// Returns the least time from its submission that a job is stored.
///
/// `None` if a daemon of an earlier version does not report it: the time is then unknown.
fn ttl(job: &Job) -> Option<Duration> {
    let retention = Duration::try_from(job.retention?).ok()?;
    // The end of a job that has not ended is not known: it is stored for longer.
    let seconds = |time: Option<Timestamp>| time.map(|time| time.seconds);
    let ran = seconds(job.end_time).zip(seconds(job.submit_time));
    let ran = ran.map_or(0, |(end, start)| u64::try_from(end - start).unwrap_or_default());
    Some(retention + Duration::from_secs(ran))
}

fn failed(message: &'static str) -> TaskPayload {
    let error = ErrorData::internal_error(message, None);
    TaskPayload::Failed { error: to_object(json!(error)) }
}

/// Returns a result or an error of the protocol as the JSON object that it is.
fn to_object(value: Value) -> JsonObject {
    let Value::Object(object) = value else { return JsonObject::new() };
    object
}

fn no_job() -> Status {
    Status::internal("a job is missing in its response")
}
