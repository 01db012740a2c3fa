//! `jig.v1.JobService`: calls that nobody waits for.

mod looks;
mod watch;
mod watchers;
mod wire;

use std::{
    mem::take,
    sync::Arc,
    time::{Duration, Instant},
};

use prost::Message as _;
use tonic::{Request, Response, Status};

use self::{
    looks::Looks,
    watch::Watch,
    watchers::Watchers,
    wire::{job, lean, selected, token},
};
use super::{
    answered, check_queue, cut_page, dialect_of,
    outlet::{Answers, outlet},
};
use crate::{
    api::v1::{
        CancelJobRequest, CancelJobResponse, GetJobRequest, GetJobResponse, ListJobsRequest,
        ListJobsResponse, SubmitJobRequest, SubmitJobResponse, WaitJobRequest, WaitJobResponse,
        WatchJobRequest, WatchJobResponse, job_service_server::JobService,
    },
    daemon::{
        call::{
            Pipeline,
            context::Incoming,
            jobs::{Found, Live, Seen},
            order::{Submission, cost_of_job},
            params::{self, PARAMS, Raw},
        },
        error::{Error, Reason, Violation},
        store::jobs::Selection,
        task,
    },
};

/// Messages that are made ahead of a slow client.
const AHEAD: usize = 4;

/// The service.
#[derive(Debug)]
pub(crate) struct Jobs {
    pipeline: Arc<Pipeline>,
    watchers: Watchers,
    looks: Looks,
}

#[tonic::async_trait]
impl JobService for Jobs {
    type WatchJobStream = Answers<WatchJobResponse>;

    async fn submit_job(
        &self,
        request: Request<SubmitJobRequest>,
    ) -> Result<Response<SubmitJobResponse>, Status> {
        answered(request, async |incoming, request| {
            let pipeline = Arc::clone(&self.pipeline);
            let bytes = request.encoded_len();
            let cost = cost_of_job(&request.tool, &pipeline.catalog, bytes);
            let held = bytes + request.params.as_ref().map_or(0, params::overhead);
            let read = {
                let pipeline = Arc::clone(&self.pipeline);
                move |incoming: &Incoming| {
                    let method = "jig.v1.JobService/SubmitJob";
                    let call = pipeline.repeatable(incoming, method, &request)?;
                    let submission = submission(&pipeline, request)?;
                    let order = pipeline.order(incoming, submission);
                    Ok((call, order.map_err(of_params)?))
                }
            };
            let looked = self.pipeline.look_into(&incoming, (held, cost), read);
            let (call, order) = looked.await?;
            let work = async move |is_unfinished: bool| {
                let submitted = pipeline.submit_job(&incoming, order, is_unfinished).await?;
                Ok(SubmitJobResponse { job: Some(lean(&submitted)) })
            };
            // In a task of its own: a caller who goes away does not leave half a job.
            let submitted = self.pipeline.once_whole(call, work);
            submitted.await
        })
        .await
    }

    async fn get_job(
        &self,
        request: Request<GetJobRequest>,
    ) -> Result<Response<GetJobResponse>, Status> {
        answered(request, async |incoming, request| {
            let request = self.pipeline.catalog.check("jig.v1.GetJobRequest", request)?;
            let seen = match self.find(&incoming, &request.job_id).await? {
                Found::Live(live) => live.seen(),
                Found::Ended(seen) => *seen,
            };
            Ok(GetJobResponse { job: Some(job(seen)?) })
        })
        .await
    }

    async fn list_jobs(
        &self,
        request: Request<ListJobsRequest>,
    ) -> Result<Response<ListJobsResponse>, Status> {
        answered(request, async |incoming, request| {
            let request = self.pipeline.catalog.check("jig.v1.ListJobsRequest", request)?;
            let workspace = self.pipeline.scene(&incoming)?.workspace.name();
            let selection = selected(request, workspace)?;
            let asked = Selection {
                tools: self.pipeline.tools_of_jobs(&incoming),
                // One more, to know whether there is one.
                number: selection.number + 1,
                ..selection.clone()
            };
            let look = self.looks.enter(&incoming.principal).await?;
            let mut jobs = self.pipeline.jobs.list(asked).await?;
            drop(look);
            let last = cut_page(&mut jobs, selection.number as usize);
            Ok(ListJobsResponse {
                next_page_token: last.map(token).unwrap_or_default(),
                jobs: jobs.iter().map(lean).collect(),
            })
        })
        .await
    }

    async fn wait_job(
        &self,
        request: Request<WaitJobRequest>,
    ) -> Result<Response<WaitJobResponse>, Status> {
        answered(request, async |incoming, request| {
            let request = self.pipeline.catalog.check("jig.v1.WaitJobRequest", request)?;
            let seen = match self.find(&incoming, &request.job_id).await? {
                Found::Ended(seen) => *seen,
                Found::Live(live) => {
                    let wait = request.wait_ms.map(u64::from).map(Duration::from_millis);
                    let until = wait.map(|wait| Instant::now() + wait);
                    tokio::select! {
                        biased;
                        seen = ended(&self.pipeline, &live) => seen?,
                        () = task::until(until) => live.seen(),
                    }
                }
            };
            Ok(WaitJobResponse { job: Some(job(seen)?) })
        })
        .await
    }

    async fn cancel_job(
        &self,
        request: Request<CancelJobRequest>,
    ) -> Result<Response<CancelJobResponse>, Status> {
        answered(request, async |incoming, request| {
            let call =
                self.pipeline.repeatable(&incoming, "jig.v1.JobService/CancelJob", &request)?;
            let request = self.pipeline.catalog.check("jig.v1.CancelJobRequest", request)?;
            let pipeline = Arc::clone(&self.pipeline);
            // Ended once or twice, it has ended.
            let work = async move |_is_unfinished: bool| {
                let seen = match pipeline.find_job(&incoming, &request.job_id).await? {
                    Found::Ended(seen) => *seen,
                    Found::Live(live) => {
                        pipeline.jobs.cancel(&live).await;
                        ended(&pipeline, &live).await?
                    }
                };
                Ok(CancelJobResponse { job: Some(job(seen)?) })
            };
            self.pipeline.once_whole(call, work).await
        })
        .await
    }

    async fn watch_job(
        &self,
        request: Request<WatchJobRequest>,
    ) -> Result<Response<Self::WatchJobStream>, Status> {
        answered(request, async |incoming, request| {
            let request = self.pipeline.catalog.check("jig.v1.WatchJobRequest", request)?;
            let found = self.find(&incoming, &request.job_id).await?;
            let place = self.watchers.enter(&incoming.principal)?;
            let (sender, last, answers) = outlet(AHEAD, &incoming.call_id);
            let pipeline = Arc::clone(&self.pipeline);
            let watch = Watch::new(pipeline, incoming, found, &request, place)?;
            task::spawn_tracked("watch of a job", watch.send(sender, last));
            Ok(answers)
        })
        .await
    }
}

impl Jobs {
    /// Those of a pipeline.
    pub(crate) fn new(pipeline: Arc<Pipeline>) -> Self {
        Self { pipeline, watchers: Watchers::default(), looks: Looks::default() }
    }

    async fn find(&self, incoming: &Incoming, id: &str) -> Result<Found, Error> {
        let _look = self.looks.enter(&incoming.principal).await?;
        self.pipeline.find_job(incoming, id).await
    }
}

/// Waits until a job has ended, or the daemon has drained long enough.
async fn ended(pipeline: &Pipeline, live: &Live) -> Result<Seen, Error> {
    tokio::select! {
        biased;
        seen = live.ended() => Ok(seen),
        () = pipeline.drain.end_token().cancelled_owned() => {
            let text = "the daemon is shutting down, and the job has not ended: wait on when it is back";
            Err(Error::new(Reason::Draining, text))
        }
    }
}

/// What is to be done, of a request.
fn submission(pipeline: &Pipeline, mut request: SubmitJobRequest) -> Result<Submission, Error> {
    // The tool looks at them.
    let json = take(&mut request.params_json);
    let params = Raw::new(request.params.take(), json, PARAMS);
    let checked = pipeline.catalog.look_at("jig.v1.SubmitJobRequest", request, false)?;
    let (request, mut violations) = (checked.request, checked.violations);
    let dialect = dialect_of(&request.dialect, &mut violations);
    violations.extend(params.twice());
    let queue = request.queue.unwrap_or_default();
    check_queue(&queue, &mut violations);
    match params.read() {
        Ok(params) if violations.is_empty() => Ok(Submission {
            dialect,
            tool: request.tool,
            params,
            queue,
            priority: request.priority.unwrap_or_default(),
        }),
        params => {
            violations.extend(params.err().into_iter().flatten());
            Err(Error::invalid(violations))
        }
    }
}

/// What is wrong with parameters, which are a field of the request here.
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
