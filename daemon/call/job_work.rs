//! The work of jobs: each is a call like any other, made when its turn comes.

use std::{
    io,
    sync::Arc,
    time::{Instant, SystemTime},
};

use bytes::Bytes;
use prost::Message;
use serde_json::{Map, Value};
use ulid::Ulid;

use super::{
    Pipeline,
    any_tool::{self, Going},
    context::Incoming,
    drain::Drain,
    envelope::{Call, envelope},
    jobs::Live,
    params,
};
use crate::daemon::{
    config::jobs::is_queue_name,
    error::{Error, Reason, Violation},
    store::{
        jobs::{self, Job, JobState},
        session::SessionId,
    },
    task,
    telemetry::propagation::{read_parent, write_parent},
    tool::JobContext,
};

/// A call that is to be made when its turn comes.
#[derive(Debug)]
pub(crate) struct Submission {
    /// Name of the tool.
    pub(crate) tool: String,
    /// Its parameters.
    pub(crate) params: Map<String, Value>,
    /// How many bytes they were sent as.
    pub(crate) bytes: usize,
    /// The queue to wait in.
    pub(crate) queue: String,
    /// Who comes first: higher before lower.
    pub(crate) priority: i32,
}

/// How the work of a job has ended.
enum End {
    /// So, and with this result, where it was begun.
    Done(JobState, Option<Bytes>),
    /// Nothing was done, as the daemon is shutting down.
    NotBegun,
}

impl Pipeline {
    /// Takes on a job. Once this is answered, the job will be done. `is_unfinished`: whether a daemon
    /// died that was asked the same under this request id.
    pub(crate) async fn submit_job(
        self: &Arc<Self>,
        incoming: &Incoming,
        submission: Submission,
        is_unfinished: bool,
    ) -> Result<Job, Error> {
        let workspace = self.scene(incoming)?.workspace.name().to_owned();
        let request = incoming.request_id.clone();
        if let Some(request) = request.clone().filter(|_| is_unfinished) {
            let principal = incoming.principal.name();
            let submitted = self.jobs.submitted(principal, &workspace, request).await?;
            if let Some(job) = submitted {
                return Ok(job);
            }
        }
        self.drain.refuse_new()?;
        if !is_queue_name(&submission.queue) {
            let text = "must have 1 to 80 lower-case letters, digits, and . _ : -";
            return Err(Error::invalid_field("queue", text));
        }
        let tool = any_tool::find(&submission.tool, &incoming.principal)?;
        tool.is_open(self, &incoming.principal)?;
        let params = {
            let (pipeline, incoming, params) =
                (Arc::clone(self), incoming.clone(), submission.params);
            move || {
                tool.check(&pipeline, incoming, &params)
                    .map_err(of_params)?;
                serde_json::to_vec(&params).map_err(Error::internal)
            }
        };
        let params = params::beside_others(submission.bytes, params).await?;
        let job = Job {
            id: Ulid::generate().to_string(),
            workspace,
            session: incoming.session.as_str().to_owned(),
            principal: incoming.principal.name().to_owned(),
            request,
            tool: submission.tool,
            queue: submission.queue,
            priority: submission.priority,
            state: JobState::Queued,
            trace: write_parent(&incoming.parent),
            submitted: jobs::now(),
            started: None,
            ended: None,
            step: None,
        };
        self.jobs.submit(job.clone(), params).await?;
        self.do_jobs();
        Ok(job)
    }

    /// Starts the jobs whose turn it is.
    pub(crate) fn do_jobs(self: &Arc<Self>) {
        while !self.drain.has_begun()
            && let Some(live) = self.jobs.next()
        {
            let pipeline = Arc::clone(self);
            task::spawn_tracked("job", async move {
                match pipeline.do_job(&live).await {
                    End::Done(state, result) => pipeline.jobs.end(&live, state, result).await,
                    End::NotBegun => pipeline.jobs.requeue(&live).await,
                }
                pipeline.do_jobs();
            });
        }
    }

    async fn do_job(self: &Arc<Self>, live: &Live) -> End {
        let job = live.seen().job;
        let started = SystemTime::now();
        let going = tokio::select! {
            begun = self.begin_job(live, &job) => begun,
            () = live.cancelled().cancelled() => return End::Done(JobState::Cancelled, None),
        };
        let going = match going {
            Ok(going) => going,
            Err(error) if error.reason == Reason::Draining => return End::NotBegun,
            Err(error) => {
                let state = match error.reason == Reason::DaemonLost {
                    true => JobState::Lost,
                    false => JobState::Failed,
                };
                return End::of_error(state, &job, started, &error);
            }
        };
        self.jobs.begin(live, going.step).await;
        let Going {
            abandon,
            mut answer,
            ..
        } = going;
        let result = tokio::select! {
            result = &mut answer => result,
            () = live.cancelled().cancelled() => {
                abandon.cancel();
                answer.await
            }
        };
        let was_cancelled = live.cancelled().is_cancelled();
        match result {
            Ok(data) => {
                let outcome = data.get("outcome").and_then(Value::as_str);
                let state = match outcome {
                    Some("OUTCOME_CANCELLED") => JobState::Cancelled,
                    _ => JobState::Succeeded,
                };
                let envelope = envelope(&call(&job, started), Ok(data));
                End::Done(state, Some(envelope.encode_to_vec().into()))
            }
            Err(error) => {
                let state = match was_cancelled {
                    true => JobState::Cancelled,
                    false => JobState::Failed,
                };
                End::of_error(state, &job, started, &error)
            }
        }
    }

    /// Begins the call of a job, as whoever submitted it. It is known to run before it does, and not before
    /// it may: until then, a daemon that dies has done nothing of it. May be cancelled.
    async fn begin_job(self: &Arc<Self>, live: &Live, job: &Job) -> Result<Going, Error> {
        let draining = self.drain.begun_token();
        let params = self.jobs.params(live).await.map_err(gone)?;
        let incoming = self.incoming_of(live, job)?;
        let principal = Arc::clone(&incoming.principal);
        let tool = any_tool::find(&job.tool, &principal)?;
        // Much may have changed since it was submitted.
        tool.is_open(self, &principal)?;
        let checked = {
            let pipeline = Arc::clone(self);
            let bytes = params.len();
            let check = move || {
                let params = serde_json::from_slice(&params).map_err(|error| gone(error.into()))?;
                tool.check(&pipeline, incoming, &params)
            };
            params::beside_others(bytes, check).await?
        };
        let let_in = checked.let_in(self).await?;
        self.jobs.start(live, &draining).await?;
        let place = loop {
            match tool.admit(self, &principal).await {
                Ok(place) => break place,
                // It has waited for its turn, and waits a little longer.
                Err(error)
                    if error.reason == Reason::ResourceExhausted && error.retry_after.is_some() =>
                {
                    let retry = error.retry_after.map(|wait| Instant::now() + wait);
                    tokio::select! {
                        () = task::until(retry) => {}
                        () = draining.cancelled() => return Err(Drain::refusal()),
                    }
                }
                Err(error) => return Err(error),
            }
        };
        let_in.begin(self, place).await
    }

    /// The call that a job makes.
    fn incoming_of(&self, live: &Live, job: &Job) -> Result<Incoming, Error> {
        let principal = self.access.named(&job.principal).ok_or_else(|| {
            let text = format!(
                "{} has submitted this job, and may not call any more",
                job.principal
            );
            Error::new(Reason::Forbidden, text)
        })?;
        let session = SessionId::parse(&job.session)
            .ok_or_else(|| Error::internal("a job has no session"))?;
        Ok(Incoming {
            call_id: Ulid::generate().to_string(),
            principal,
            deadline: None,
            workspace: Some(job.workspace.clone()),
            session,
            request_id: None,
            job: Some(JobContext {
                id: job.id.clone(),
                written: live.written().clone(),
            }),
            parent: read_parent(&job.trace),
        })
    }
}

impl End {
    /// It failed, or was lost or cancelled, for this reason.
    fn of_error(state: JobState, job: &Job, started: SystemTime, error: &Error) -> Self {
        let envelope = envelope(&call(job, started), Err(error));
        Self::Done(state, Some(envelope.encode_to_vec().into()))
    }
}

fn call(job: &Job, started: SystemTime) -> Call<'_> {
    Call {
        tool: &job.tool,
        started,
        ended: SystemTime::now(),
    }
}

/// What a job is told that cannot know any more what it was to do.
fn gone(error: io::Error) -> Error {
    tracing::error!(%error, "the parameters of a job are gone");
    let text =
        "what this job was to do is not in the daemon's state directory any more: submit it again";
    Error::new(Reason::DaemonLost, text)
}

/// What is wrong with parameters that are themselves a field of the request.
fn of_params(error: Error) -> Error {
    if error.violations.is_empty() {
        return error;
    }
    let violations = error.violations.into_iter();
    let named = violations.map(|Violation { field, description }| Violation {
        field: format!("params.{field}"),
        description,
    });
    Error::invalid(named.collect())
}
