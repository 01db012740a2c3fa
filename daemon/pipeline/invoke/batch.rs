//! Batches: several calls in one request, each run as a job. Returns a result or a job id per call,
//! in the order of the calls.

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use serde_json::{Map, Value};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{
    super::{
        Pipeline,
        audit::audit_unstarted,
        context::{CallContext, InvokeOrigin},
        envelope::{self, CallTiming, CommandExitInfo},
        job_submission::{JobSubmission, job_validation_cost},
        jobs::LiveOrEndedJob,
        rejection::DialectRejection,
    },
    Invocation,
};
use crate::{
    api::v1::{InvokeResponse, InvokeStatus, ToolError},
    daemon::{
        dialect::{Dialect, DialectInvocation},
        error::{Error, Reason},
        store::jobs::Job,
        task,
        tool::{Tool as _, await_job::AwaitJob, response_deadline},
    },
};

/// Result of a job that was cancelled, or that was evicted.
const CANCELLED_TEXT: &str = "the job of this call was cancelled before it started";

/// A batch of calls.
#[derive(Debug)]
pub(crate) struct Batch {
    /// The dialect. `None` for the names of the contract.
    pub(crate) dialect: Option<&'static Dialect>,
    pub(crate) calls: Vec<BatchCall>,
    /// How long to wait for the results. `None` returns the ids of the jobs at once.
    pub(crate) wait: Option<Duration>,
    /// The queue of the jobs.
    pub(crate) queue: String,
}

/// One call of a batch.
#[derive(Debug)]
pub(crate) struct BatchCall {
    /// Id that the model gave the call.
    pub(crate) id: String,
    /// Name of the tool.
    pub(crate) name: String,
    /// The parameters, or why they are invalid.
    pub(crate) params: Result<Map<String, Value>, Error>,
}

/// The result of one call of a batch.
#[derive(Debug)]
pub(crate) struct BatchCallResult {
    /// Id that the model gave the call.
    pub(crate) id: String,
    /// Name of the tool.
    pub(crate) name: String,
    pub(crate) state: BatchCallState,
}

/// The state of a call of a batch when the request ends.
#[derive(Debug)]
pub(crate) enum BatchCallState {
    /// The call ended, or was rejected.
    Ended(Box<InvokeResponse>),
    /// A job runs the call; the batch does not wait.
    Submitted {
        /// Id of the job.
        job: String,
        /// The type of the job in the dialect.
        job_type: String,
    },
    /// The job did not end in time.
    Pending {
        /// Id of the job.
        job: String,
    },
}

/// The work that a call of a batch has started.
#[derive(Debug)]
enum BatchCallWork {
    Job(Job),
    /// A call that runs at once, without a job.
    Direct(JoinHandle<InvokeResponse>),
    /// The call was rejected; holds its result.
    Rejected(InvokeResponse),
}

impl Pipeline {
    /// Runs all calls of a batch, and waits for their results as long as it says.
    ///
    /// `is_resumed` says whether an earlier daemon died during the same request. If the batch waits,
    /// `abandoned` cancels the jobs that have not ended: no response names them.
    pub(crate) async fn run_batch(
        self: &Arc<Self>,
        context: CallContext,
        mut batch: Batch,
        is_resumed: bool,
        abandoned: &CancellationToken,
    ) -> Result<Vec<BatchCallResult>, Error> {
        let calls = std::mem::take(&mut batch.calls);
        let mut started: Vec<(String, String, BatchCallWork)> = Vec::new();
        for (index, call) in calls.into_iter().enumerate() {
            let (id, name) = (call.id.clone(), call.name.clone());
            let work = self.start_batch_call(&context, &batch, index, call, is_resumed).await?;
            started.push((id, name, work));
        }

        let until =
            batch.wait.map(|wait| response_deadline(Instant::now(), wait, context.deadline));
        let mut results = Vec::with_capacity(started.len());
        for (id, name, work) in started {
            let state = match (work, until) {
                (BatchCallWork::Rejected(response), _) => BatchCallState::Ended(Box::new(response)),
                (BatchCallWork::Direct(task), _) => {
                    BatchCallState::Ended(Box::new(task.await.map_err(Error::internal)?))
                }
                (BatchCallWork::Job(job), None) => BatchCallState::Submitted {
                    job_type: self
                        .dialect_of_tool(batch.dialect, &name)
                        .map_or_else(|| name.clone(), |dialect| dialect.job_type(&name)),
                    job: job.id,
                },
                (BatchCallWork::Job(job), Some(until)) => {
                    self.await_batch_job(job, until, abandoned).await?
                }
            };
            results.push(BatchCallResult { id, name, state });
        }

        Ok(results)
    }

    /// Starts one call: `await_job` at once if the batch waits, any other call as a job.
    ///
    /// Returns an error only if the whole batch failed, and can be repeated.
    async fn start_batch_call(
        self: &Arc<Self>,
        context: &CallContext,
        batch: &Batch,
        index: usize,
        call: BatchCall,
        is_resumed: bool,
    ) -> Result<BatchCallWork, Error> {
        let BatchCall { id, name, params } = call;
        let dialect = batch.dialect;
        let started_at = SystemTime::now();
        let dialect_invocation = self.dialect_invocation(context, &name, params.as_ref().ok())?;

        let is_await_job = name == AwaitJob::NAME && self.dialect_of_tool(dialect, &name).is_none();
        if let (Some(wait), true) = (batch.wait, is_await_job) {
            let until = response_deadline(Instant::now(), wait, context.deadline);
            let invocation =
                Invocation { id, dialect, tool: name, params, with_result_json: false };
            let task = self.spawn_invocation(context, invocation, dialect_invocation, until);
            return Ok(BatchCallWork::Direct(task));
        }

        let record_params = dialect
            .map(|dialect| dialect.redact_params(&name, params.as_ref().unwrap_or(&Map::new())));
        let origin = InvokeOrigin { model_call_id: id, dialect_call: None, dialect };
        let submitted = match params {
            Ok(params) => {
                let submission = JobSubmission {
                    dialect,
                    tool: name.clone(),
                    params,
                    queue: batch.queue.clone(),
                    priority: 0,
                };
                let origin = InvokeOrigin { dialect: None, ..origin.clone() };
                let context = CallContext {
                    invoke_origin: Some(Arc::new(origin)),
                    ..numbered_context(context, index)
                };
                self.submit_batch_call(context, submission, is_resumed).await
            }
            Err(error) => Err(error),
        };

        match submitted {
            Ok(job) => Ok(BatchCallWork::Job(job)),
            // Nothing was started, so the whole batch can be repeated.
            Err(error) if is_batch_level_error(&error) && index == 0 => Err(error),
            Err(error) => {
                let context =
                    CallContext { invoke_origin: Some(Arc::new(origin)), ..context.clone() };
                let call = (dialect_invocation, record_params);
                let rejected = self.reject_batch_call(&context, call, started_at, error).await;
                Ok(BatchCallWork::Rejected(rejected))
            }
        }
    }

    /// Records and publishes a call that no job runs. Returns its result.
    async fn reject_batch_call(
        self: &Arc<Self>,
        context: &CallContext,
        (invocation, record_params): (DialectInvocation, Option<Value>),
        started: SystemTime,
        error: Error,
    ) -> InvokeResponse {
        let dialect = context.invoke_origin.as_ref().and_then(|origin| origin.dialect);
        let tool = invocation.tool.as_str();
        if let Ok(workspace_context) = self.resolve_workspace(context) {
            let call = (tool, workspace_context.workspace.name());
            audit_unstarted(self.telemetry.audit(), context, call, &error);
        }
        if let Some((dialect, record_params)) = dialect.zip(record_params) {
            let duration = started.elapsed().unwrap_or_default();
            let error = &error;
            let rejection = DialectRejection { dialect, tool, record_params, duration, error };
            self.record_dialect_rejection(context, rejection).await;
        }

        let timing = CallTiming { tool, started, ended: SystemTime::now() };
        let exit_info = CommandExitInfo::default();
        // Custom tools too: all errors of a batch have the codes of its dialect.
        let response = envelope::build(&timing, dialect, &invocation, Err(error), &exit_info);
        self.publish_result(context, dialect, &response);
        response
    }

    /// Runs a call that changes nothing at once, without a job, until `until`.
    fn spawn_invocation(
        self: &Arc<Self>,
        context: &CallContext,
        invocation: Invocation,
        dialect_invocation: DialectInvocation,
        until: Instant,
    ) -> JoinHandle<InvokeResponse> {
        let context = CallContext { deadline: Some(until), request_id: None, ..context.clone() };
        let pipeline = Arc::clone(self);
        task::spawn_tracked("call of a batch", async move {
            let (dialect, started) = (invocation.dialect, SystemTime::now());
            let result = pipeline.invoke(context, invocation, None).await;
            result.unwrap_or_else(|error| {
                let timing = CallTiming {
                    tool: &dialect_invocation.tool,
                    started,
                    ended: SystemTime::now(),
                };
                envelope::build(
                    &timing,
                    dialect,
                    &dialect_invocation,
                    Err(error),
                    &CommandExitInfo::default(),
                )
            })
        })
    }

    async fn submit_batch_call(
        self: &Arc<Self>,
        context: CallContext,
        submission: JobSubmission,
        is_resumed: bool,
    ) -> Result<Job, Error> {
        let bytes = envelope::encoded_size_of_fields(&submission.params);
        let cost = job_validation_cost(&submission.tool, &self.catalog, bytes);
        let pipeline = Arc::clone(self);
        let validate =
            move |context: &CallContext| pipeline.validate_submission(context, submission);
        let validated = self.validate_maybe_offloaded(&context, (bytes, cost), validate).await?;
        self.submit_job(&context, validated, is_resumed).await
    }

    /// Waits for a job until `until`. Cancels it if the batch is abandoned.
    async fn await_batch_job(
        &self,
        job: Job,
        until: Instant,
        abandoned: &CancellationToken,
    ) -> Result<BatchCallState, Error> {
        let pending = BatchCallState::Pending { job: job.id.clone() };
        let snapshot = match self.jobs.find(&job.workspace, &job.id).await? {
            LiveOrEndedJob::Ended(snapshot) => *snapshot,
            LiveOrEndedJob::Live(handle) => tokio::select! {
                biased;
                snapshot = handle.wait_for_end() => snapshot,
                () = abandoned.cancelled() => {
                    self.jobs.cancel(&handle).await;
                    return Ok(pending);
                }
                () = task::sleep_until(Some(until)) => return Ok(pending),
                () = self.shutdown.terminate_token().cancelled_owned() => return Ok(pending),
            },
        };

        let response = snapshot.response()?.unwrap_or_else(cancelled_response);
        Ok(BatchCallState::Ended(Box::new(response)))
    }
}

/// The result of a job that was cancelled before it started.
pub(in crate::daemon::pipeline) fn cancelled_response() -> InvokeResponse {
    InvokeResponse {
        status: InvokeStatus::Error.into(),
        text: CANCELLED_TEXT.to_owned(),
        error: Some(ToolError {
            error_type: "cancelled".to_owned(),
            message: CANCELLED_TEXT.to_owned(),
            ..ToolError::default()
        }),
        ..InvokeResponse::default()
    }
}

/// Returns the context of one call. Its request id cannot collide with one that a caller gives.
fn numbered_context(context: &CallContext, index: usize) -> CallContext {
    let request_id = context.request_id.as_ref().map(|id| format!("{id}\u{1f}{index}"));
    CallContext { request_id, ..context.clone() }
}

/// Whether an error concerns the whole batch, not one of its calls.
fn is_batch_level_error(error: &Error) -> bool {
    matches!(
        error.reason,
        Reason::ResourceExhausted
            | Reason::NoSpace
            | Reason::StateLost
            | Reason::Draining
            | Reason::Internal
    )
}
