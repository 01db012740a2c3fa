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
        context::{ByName, Incoming},
        envelope::{self, Call, Ran},
        jobs::Found,
        order::{Submission, cost_of_job},
    },
    Invocation,
};
use crate::{
    api::v1::{InvokeResponse, InvokeStatus, ToolError},
    daemon::{
        dialect::{Dialect, Said},
        error::{Error, Reason},
        store::jobs::Job,
        task,
        tool::{Tool as _, await_job::AwaitJob, limit},
    },
};

/// What is told of a job that was cancelled, or is not kept any more.
const CANCELLED: &str = "the job of this call was cancelled before it began";

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
pub(crate) struct BatchAnswer {
    /// Id of the call.
    pub(crate) id: String,
    /// Name of the tool.
    pub(crate) name: String,
    /// How far it is.
    pub(crate) state: BatchState,
}

/// How far a call is.
#[derive(Debug)]
pub(crate) enum BatchState {
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
enum Made {
    /// A job makes it.
    Job(Job),
    /// It is made at once.
    Directly(JoinHandle<InvokeResponse>),
    /// It could not be made.
    Refused(InvokeResponse),
}

impl Pipeline {
    /// Has all calls made, and waits for them as long as it is to. `is_unfinished`: whether a daemon died that was
    /// asked the same under this request id.
    pub(crate) async fn batch(
        self: &Arc<Self>,
        incoming: Incoming,
        batch: Batch,
        is_unfinished: bool,
    ) -> Result<Vec<BatchAnswer>, Error> {
        let Batch { dialect, calls, wait, queue } = batch;
        let mut submitted: Vec<(String, String, Made)> = Vec::new();
        for (number, BatchCall { id, name, params }) in calls.into_iter().enumerate() {
            let started = SystemTime::now();
            let said = self.said(&incoming, &name, params.as_ref().ok())?;
            let is_wait = name == AwaitJob::NAME && self.vocabulary(dialect, &name).is_none();
            if let (Some(wait), true) = (wait, is_wait) {
                let until = limit(Instant::now(), wait, incoming.deadline);
                let invocation = Invocation {
                    id: id.clone(),
                    dialect,
                    tool: name.clone(),
                    params,
                    with_result_json: false,
                };
                let made = Made::Directly(self.invoke_until(&incoming, invocation, said, until));
                submitted.push((id, name, made));
                continue;
            }
            let result = match params {
                Ok(params) => {
                    let submission = Submission {
                        dialect,
                        tool: name.clone(),
                        params,
                        queue: queue.clone(),
                        priority: 0,
                    };
                    let by_name = ByName { id: id.clone(), said: None, dialect: None };
                    let incoming = Incoming {
                        by_name: Some(Arc::new(by_name)),
                        ..of_number(&incoming, number)
                    };
                    self.submit_one(incoming, submission, is_unfinished).await
                }
                Err(error) => Err(error),
            };
            let result = match result {
                // Nothing was begun: then all of it can be tried again.
                Err(error) if is_of_batch(&error) && submitted.is_empty() => return Err(error),
                Err(error) => {
                    let call = Call { tool: &name, started, ended: SystemTime::now() };
                    // Also where the tool is of the configuration: a batch has the error codes of its vocabulary.
                    let (result, ran) = (Err(error), Ran::default());
                    Made::Refused(envelope::of(&call, dialect, &said, result, &ran))
                }
                Ok(job) => Made::Job(job),
            };
            submitted.push((id, name, result));
        }
        let until = wait.map(|wait| limit(Instant::now(), wait, incoming.deadline));
        let mut answers = Vec::with_capacity(submitted.len());
        for (id, name, result) in submitted {
            let state = match (result, until) {
                (Made::Refused(response), _) => BatchState::Ended(Box::new(response)),
                (Made::Directly(going), _) => {
                    BatchState::Ended(Box::new(going.await.map_err(Error::internal)?))
                }
                (Made::Job(job), None) => BatchState::Submitted {
                    job_type: self
                        .vocabulary(dialect, &name)
                        .map_or_else(|| name.clone(), |dialect| dialect.job_type(&name)),
                    job: job.id,
                },
                (Made::Job(job), Some(until)) => self.outcome_of(job, until).await?,
            };
            answers.push(BatchAnswer { id, name, state });
        }
        Ok(answers)
    }

    /// Makes a call that changes nothing at once, and not as a job. It has until then.
    fn invoke_until(
        self: &Arc<Self>,
        incoming: &Incoming,
        invocation: Invocation,
        said: Said,
        until: Instant,
    ) -> JoinHandle<InvokeResponse> {
        let incoming = Incoming { deadline: Some(until), request_id: None, ..incoming.clone() };
        let pipeline = Arc::clone(self);
        task::spawn_tracked("call of a batch", async move {
            let (dialect, started) = (invocation.dialect, SystemTime::now());
            let result = pipeline.invoke(incoming, invocation, None).await;
            result.unwrap_or_else(|error| {
                let call = Call { tool: &said.tool, started, ended: SystemTime::now() };
                envelope::of(&call, dialect, &said, Err(error), &Ran::default())
            })
        })
    }

    async fn submit_one(
        self: &Arc<Self>,
        incoming: Incoming,
        submission: Submission,
        is_unfinished: bool,
    ) -> Result<Job, Error> {
        let bytes = envelope::size_of_fields(&submission.params);
        let cost = cost_of_job(&submission.tool, &self.catalog, bytes);
        let pipeline = Arc::clone(self);
        let look = move |incoming: &Incoming| pipeline.order(incoming, submission);
        let order = self.look_into(&incoming, (bytes, cost), look).await?;
        self.submit_job(&incoming, order, is_unfinished).await
    }

    /// What came of a job, if it has ended by then.
    async fn outcome_of(&self, job: Job, until: Instant) -> Result<BatchState, Error> {
        let pending = BatchState::Pending { job: job.id.clone() };
        let seen = match self.jobs.find(&job.workspace, &job.id).await? {
            Found::Ended(seen) => *seen,
            Found::Live(live) => tokio::select! {
                biased;
                seen = live.ended() => seen,
                () = task::until(Some(until)) => return Ok(pending),
                () = self.drain.end_token().cancelled_owned() => return Ok(pending),
            },
        };
        let response = seen.response()?.unwrap_or_else(outcome_of_cancelled);
        Ok(BatchState::Ended(Box::new(response)))
    }
}

/// What came of a job that was cancelled before it began.
pub(in crate::daemon::call) fn outcome_of_cancelled() -> InvokeResponse {
    InvokeResponse {
        status: InvokeStatus::Error.into(),
        text: CANCELLED.to_owned(),
        error: Some(ToolError {
            error_type: "cancelled".to_owned(),
            message: CANCELLED.to_owned(),
            ..ToolError::default()
        }),
        ..InvokeResponse::default()
    }
}

/// One call of a batch: each has an id of its own, which no caller can give.
fn of_number(incoming: &Incoming, number: usize) -> Incoming {
    let id = incoming.request_id.as_ref();
    Incoming { request_id: id.map(|id| format!("{id}\u{1f}{number}")), ..incoming.clone() }
}

/// Whether an error is about the batch, and not about one of its calls.
fn is_of_batch(error: &Error) -> bool {
    matches!(
        error.reason,
        Reason::ResourceExhausted
            | Reason::NoSpace
            | Reason::StateLost
            | Reason::Draining
            | Reason::Internal
    )
}
