//! Several calls at once, as jobs: what came of each is told in their order, or which job goes on.

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use serde_json::{Map, Value};
use tokio::task::JoinHandle;

use super::{
    super::{
        Pipeline,
        context::{CallContext, InvokeOrigin},
        envelope::{self, CallTiming, CommandExitInfo},
        job_submission::{JobSubmission, job_validation_cost},
        jobs::LiveOrEndedJob,
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

/// What is told of a job that was cancelled, or is not kept any more.
const CANCELLED_TEXT: &str = "the job of this call was cancelled before it began";

/// What is to be done.
#[derive(Debug)]
pub(crate) struct Batch {
    /// The vocabulary, where it is not that of the contract.
    pub(crate) dialect: Option<&'static Dialect>,
    /// The calls.
    pub(crate) calls: Vec<BatchCall>,
    /// How long to wait for the results; none, where they are not waited for.
    pub(crate) wait: Option<Duration>,
    /// The queue to wait in.
    pub(crate) queue: String,
}

/// One of the calls.
#[derive(Debug)]
pub(crate) struct BatchCall {
    /// Id that its caller gave it.
    pub(crate) id: String,
    /// Name of the tool.
    pub(crate) name: String,
    /// Its parameters, if they could be read.
    pub(crate) params: Result<Map<String, Value>, Error>,
}

/// What came of one of them.
#[derive(Debug)]
pub(crate) struct BatchCallResult {
    /// Id of the call.
    pub(crate) id: String,
    /// Name of the tool.
    pub(crate) name: String,
    /// How far it is.
    pub(crate) state: BatchCallState,
}

/// How far a call is.
#[derive(Debug)]
pub(crate) enum BatchCallState {
    /// It has ended so, or could not be made.
    Ended(Box<InvokeResponse>),
    /// There is a job that makes it, which is called so in the vocabulary.
    Submitted {
        /// Id of the job.
        job: String,
        /// What it is called.
        job_type: String,
    },
    /// The job has not ended in time.
    Pending {
        /// Id of the job.
        job: String,
    },
}

/// A call of a batch that was made.
#[derive(Debug)]
enum BatchCallWork {
    /// A job makes it.
    Job(Job),
    /// It is made at once.
    Direct(JoinHandle<InvokeResponse>),
    /// It could not be made.
    Rejected(InvokeResponse),
}

impl Pipeline {
    /// Has all calls made, and waits for them as long as it is to. `is_unfinished`: whether a daemon died that was
    /// asked the same under this request id.
    pub(crate) async fn run_batch(
        self: &Arc<Self>,
        context: CallContext,
        batch: Batch,
        is_unfinished: bool,
    ) -> Result<Vec<BatchCallResult>, Error> {
        let Batch { dialect, calls, wait, queue } = batch;
        let mut submitted: Vec<(String, String, BatchCallWork)> = Vec::new();
        for (number, BatchCall { id, name, params }) in calls.into_iter().enumerate() {
            let started = SystemTime::now();
            let said = self.dialect_invocation(&context, &name, params.as_ref().ok())?;
            let is_wait = name == AwaitJob::NAME && self.dialect_of_tool(dialect, &name).is_none();
            if let (Some(wait), true) = (wait, is_wait) {
                let until = response_deadline(Instant::now(), wait, context.deadline);
                let invocation = Invocation {
                    id: id.clone(),
                    dialect,
                    tool: name.clone(),
                    params,
                    with_result_json: false,
                };
                let made =
                    BatchCallWork::Direct(self.spawn_invocation(&context, invocation, said, until));
                submitted.push((id, name, made));
                continue;
            }
            let result = match params {
                Ok(params) => {
                    let submission = JobSubmission {
                        dialect,
                        tool: name.clone(),
                        params,
                        queue: queue.clone(),
                        priority: 0,
                    };
                    let by_name = InvokeOrigin {
                        model_call_id: id.clone(),
                        dialect_call: None,
                        dialect: None,
                    };
                    let context = CallContext {
                        invoke_origin: Some(Arc::new(by_name)),
                        ..numbered_context(&context, number)
                    };
                    self.submit_batch_call(context, submission, is_unfinished).await
                }
                Err(error) => Err(error),
            };
            let result = match result {
                // Nothing was begun: then all of it can be tried again.
                Err(error) if is_batch_level_error(&error) && submitted.is_empty() => {
                    return Err(error);
                }
                Err(error) => {
                    let call = CallTiming { tool: &name, started, ended: SystemTime::now() };
                    // Also where the tool is of the configuration: a batch has the error codes of its vocabulary.
                    let (result, ran) = (Err(error), CommandExitInfo::default());
                    BatchCallWork::Rejected(envelope::build(&call, dialect, &said, result, &ran))
                }
                Ok(job) => BatchCallWork::Job(job),
            };
            submitted.push((id, name, result));
        }
        let until = wait.map(|wait| response_deadline(Instant::now(), wait, context.deadline));
        let mut answers = Vec::with_capacity(submitted.len());
        for (id, name, result) in submitted {
            let state = match (result, until) {
                (BatchCallWork::Rejected(response), _) => BatchCallState::Ended(Box::new(response)),
                (BatchCallWork::Direct(going), _) => {
                    BatchCallState::Ended(Box::new(going.await.map_err(Error::internal)?))
                }
                (BatchCallWork::Job(job), None) => BatchCallState::Submitted {
                    job_type: self
                        .dialect_of_tool(dialect, &name)
                        .map_or_else(|| name.clone(), |dialect| dialect.job_type(&name)),
                    job: job.id,
                },
                (BatchCallWork::Job(job), Some(until)) => self.await_batch_job(job, until).await?,
            };
            answers.push(BatchCallResult { id, name, state });
        }
        Ok(answers)
    }

    /// Makes a call that changes nothing at once, and not as a job. It has until then.
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
                let call = CallTiming {
                    tool: &dialect_invocation.tool,
                    started,
                    ended: SystemTime::now(),
                };
                envelope::build(
                    &call,
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
        is_unfinished: bool,
    ) -> Result<Job, Error> {
        let bytes = envelope::encoded_size_of_fields(&submission.params);
        let cost = job_validation_cost(&submission.tool, &self.catalog, bytes);
        let pipeline = Arc::clone(self);
        let look = move |context: &CallContext| pipeline.validate_submission(context, submission);
        let order = self.validate_maybe_offloaded(&context, (bytes, cost), look).await?;
        self.submit_job(&context, order, is_unfinished).await
    }

    /// What came of a job, if it has ended by then.
    async fn await_batch_job(&self, job: Job, until: Instant) -> Result<BatchCallState, Error> {
        let pending = BatchCallState::Pending { job: job.id.clone() };
        let seen = match self.jobs.find(&job.workspace, &job.id).await? {
            LiveOrEndedJob::Ended(seen) => *seen,
            LiveOrEndedJob::Live(live) => tokio::select! {
                biased;
                seen = live.wait_for_end() => seen,
                () = task::sleep_until(Some(until)) => return Ok(pending),
                () = self.shutdown.terminate_token().cancelled_owned() => return Ok(pending),
            },
        };
        let response = seen.response()?.unwrap_or_else(cancelled_response);
        Ok(BatchCallState::Ended(Box::new(response)))
    }
}

/// What came of a job that was cancelled before it began.
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

/// One call of a batch: each has an id of its own, which no caller can give.
fn numbered_context(context: &CallContext, number: usize) -> CallContext {
    let id = context.request_id.as_ref();
    CallContext { request_id: id.map(|id| format!("{id}\u{1f}{number}")), ..context.clone() }
}

/// Whether an error is about the batch, and not about one of its calls.
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
