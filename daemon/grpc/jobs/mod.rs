//! `jig.v1.JobService`: calls that nobody waits for.

mod lookup_limiter;
mod stream;
mod watch_limiter;
mod wire;

use std::{
    mem::take,
    sync::Arc,
    time::{Duration, Instant},
};

use prost::Message as _;
use tonic::{Request, Response, Status};

use self::{
    lookup_limiter::JobLookupLimiter,
    stream::JobStream,
    watch_limiter::JobWatchLimiter,
    wire::{next_page_token, parse_job_query, wire_job, wire_job_summary},
};
use super::{
    handle, parse_dialect,
    response_stream::{ResponseStream, response_channel},
    truncate_page, validate_queue_name,
};
use crate::{
    api::v1::{
        CancelJobRequest, CancelJobResponse, GetJobRequest, GetJobResponse, ListJobsRequest,
        ListJobsResponse, SubmitJobRequest, SubmitJobResponse, WaitJobRequest, WaitJobResponse,
        WatchJobRequest, WatchJobResponse, job_service_server::JobService,
    },
    daemon::{
        error::{Error, Reason, Violation},
        pipeline::{
            Pipeline,
            context::CallContext,
            job_submission::{JobSubmission, job_validation_cost},
            jobs::{JobHandle, JobSnapshot, LiveOrEndedJob},
            params::{self, PARAMS_FIELDS, RawParams},
        },
        store::jobs::JobQuery,
        task,
    },
};

/// Messages that are made ahead of a slow client.
const STREAM_BUFFER_MESSAGES: usize = 4;

/// The service.
#[derive(Debug)]
pub(crate) struct JobServiceHandler {
    pipeline: Arc<Pipeline>,
    watch_limiter: JobWatchLimiter,
    lookup_limiter: JobLookupLimiter,
}

#[tonic::async_trait]
impl JobService for JobServiceHandler {
    type WatchJobStream = ResponseStream<WatchJobResponse>;

    async fn submit_job(
        &self,
        request: Request<SubmitJobRequest>,
    ) -> Result<Response<SubmitJobResponse>, Status> {
        handle(request, async |incoming, request| {
            let pipeline = Arc::clone(&self.pipeline);
            let bytes = request.encoded_len();
            let cost = job_validation_cost(&request.tool, &pipeline.catalog, bytes);
            let held = bytes + request.params.as_ref().map_or(0, params::struct_overhead_bytes);
            let read = {
                let pipeline = Arc::clone(&self.pipeline);
                move |incoming: &CallContext| {
                    let method = "jig.v1.JobService/SubmitJob";
                    let call = pipeline.idempotent_call(incoming, method, &request)?;
                    let submission = parse_submission(&pipeline, request)?;
                    let order = pipeline.validate_submission(incoming, submission);
                    Ok((call, order.map_err(prefix_params_fields)?))
                }
            };
            let looked = self.pipeline.validate_maybe_offloaded(&incoming, (held, cost), read);
            let (call, order) = looked.await?;
            let work = async move |is_unfinished: bool| {
                let submitted = pipeline.submit_job(&incoming, order, is_unfinished).await?;
                Ok(SubmitJobResponse { job: Some(wire_job_summary(&submitted)) })
            };
            // In a task of its own: a caller who goes away does not leave half a job.
            let submitted = self.pipeline.run_once_detached(call, work);
            submitted.await
        })
        .await
    }

    async fn get_job(
        &self,
        request: Request<GetJobRequest>,
    ) -> Result<Response<GetJobResponse>, Status> {
        handle(request, async |incoming, request| {
            let request = self.pipeline.catalog.check("jig.v1.GetJobRequest", request)?;
            let seen = match self.find_job(&incoming, &request.job_id).await? {
                LiveOrEndedJob::Live(live) => live.snapshot(),
                LiveOrEndedJob::Ended(seen) => *seen,
            };
            Ok(GetJobResponse { job: Some(wire_job(seen)?) })
        })
        .await
    }

    async fn list_jobs(
        &self,
        request: Request<ListJobsRequest>,
    ) -> Result<Response<ListJobsResponse>, Status> {
        handle(request, async |incoming, request| {
            let request = self.pipeline.catalog.check("jig.v1.ListJobsRequest", request)?;
            let workspace = self.pipeline.workspace_context(&incoming)?.workspace.name();
            let selection = parse_job_query(request, workspace)?;
            let asked = JobQuery {
                tools: self.pipeline.visible_job_tools(&incoming),
                // One more, to know whether there is one.
                limit: selection.limit + 1,
                ..selection.clone()
            };
            let look = self.lookup_limiter.acquire(&incoming.principal).await?;
            let mut jobs = self.pipeline.jobs.list(asked).await?;
            drop(look);
            let last = truncate_page(&mut jobs, selection.limit as usize);
            Ok(ListJobsResponse {
                next_page_token: last.map(next_page_token).unwrap_or_default(),
                jobs: jobs.iter().map(wire_job_summary).collect(),
            })
        })
        .await
    }

    async fn wait_job(
        &self,
        request: Request<WaitJobRequest>,
    ) -> Result<Response<WaitJobResponse>, Status> {
        handle(request, async |incoming, request| {
            let request = self.pipeline.catalog.check("jig.v1.WaitJobRequest", request)?;
            let seen = match self.find_job(&incoming, &request.job_id).await? {
                LiveOrEndedJob::Ended(seen) => *seen,
                LiveOrEndedJob::Live(live) => {
                    let wait = request.wait_ms.map(u64::from).map(Duration::from_millis);
                    let until = wait.map(|wait| Instant::now() + wait);
                    tokio::select! {
                        biased;
                        seen = wait_until_ended(&self.pipeline, &live) => seen?,
                        () = task::sleep_until(until) => live.snapshot(),
                    }
                }
            };
            Ok(WaitJobResponse { job: Some(wire_job(seen)?) })
        })
        .await
    }

    async fn cancel_job(
        &self,
        request: Request<CancelJobRequest>,
    ) -> Result<Response<CancelJobResponse>, Status> {
        handle(request, async |incoming, request| {
            let call = self.pipeline.idempotent_call(
                &incoming,
                "jig.v1.JobService/CancelJob",
                &request,
            )?;
            let request = self.pipeline.catalog.check("jig.v1.CancelJobRequest", request)?;
            let pipeline = Arc::clone(&self.pipeline);
            // Ended once or twice, it has ended.
            let work = async move |_is_unfinished: bool| {
                let seen = match pipeline.find_job(&incoming, &request.job_id).await? {
                    LiveOrEndedJob::Ended(seen) => *seen,
                    LiveOrEndedJob::Live(live) => {
                        pipeline.jobs.cancel(&live).await;
                        wait_until_ended(&pipeline, &live).await?
                    }
                };
                Ok(CancelJobResponse { job: Some(wire_job(seen)?) })
            };
            self.pipeline.run_once_detached(call, work).await
        })
        .await
    }

    async fn watch_job(
        &self,
        request: Request<WatchJobRequest>,
    ) -> Result<Response<Self::WatchJobStream>, Status> {
        handle(request, async |incoming, request| {
            let request = self.pipeline.catalog.check("jig.v1.WatchJobRequest", request)?;
            let found = self.find_job(&incoming, &request.job_id).await?;
            let place = self.watch_limiter.try_acquire(&incoming.principal)?;
            let (sender, last, answers) =
                response_channel(STREAM_BUFFER_MESSAGES, &incoming.call_id);
            let pipeline = Arc::clone(&self.pipeline);
            let watch = JobStream::new(pipeline, incoming, found, &request, place)?;
            task::spawn_tracked("watch of a job", watch.run(sender, last));
            Ok(answers)
        })
        .await
    }
}

impl JobServiceHandler {
    /// Those of a pipeline.
    pub(crate) fn new(pipeline: Arc<Pipeline>) -> Self {
        Self {
            pipeline,
            watch_limiter: JobWatchLimiter::default(),
            lookup_limiter: JobLookupLimiter::default(),
        }
    }

    async fn find_job(&self, incoming: &CallContext, id: &str) -> Result<LiveOrEndedJob, Error> {
        let _look = self.lookup_limiter.acquire(&incoming.principal).await?;
        self.pipeline.find_job(incoming, id).await
    }
}

/// Waits until a job has ended, or the daemon has drained long enough.
async fn wait_until_ended(pipeline: &Pipeline, live: &JobHandle) -> Result<JobSnapshot, Error> {
    tokio::select! {
        biased;
        seen = live.wait_for_end() => Ok(seen),
        () = pipeline.shutdown.terminate_token().cancelled_owned() => {
            let text = "the daemon is shutting down, and the job has not ended: wait on when it is back";
            Err(Error::new(Reason::Draining, text))
        }
    }
}

/// What is to be done, of a request.
fn parse_submission(
    pipeline: &Pipeline,
    mut request: SubmitJobRequest,
) -> Result<JobSubmission, Error> {
    // The tool looks at them.
    let json = take(&mut request.params_json);
    let params = RawParams::new(request.params.take(), json, PARAMS_FIELDS);
    let checked = pipeline.catalog.validate("jig.v1.SubmitJobRequest", request, false)?;
    let (request, mut violations) = (checked.request, checked.violations);
    let dialect = parse_dialect(&request.dialect, &mut violations);
    violations.extend(params.conflict_violations());
    let queue = request.queue.unwrap_or_default();
    validate_queue_name(&queue, &mut violations);
    match params.parse() {
        Ok(params) if violations.is_empty() => Ok(JobSubmission {
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
fn prefix_params_fields(error: Error) -> Error {
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
