//! `jig.v1.JobService`: calls that run in the background.

mod fleet;
mod limits;
mod list;
mod stream;
mod wait;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use prost::Message as _;
use tonic::{Request, Response, Status};

use self::{
    fleet::{
        FleetJobStream, cancel_fleet_job, parse_fleet_submission, submit_fleet_job, wait_for_job,
    },
    limits::JobLimits,
    list::{next_page_token, parse_job_query},
    stream::JobStream,
    wait::wait_until_ended,
};
use super::{
    handle, handle_stream,
    response_stream::{WorkspaceStream, response_channel},
    truncate_page,
};
use crate::{
    api::v1::{
        CancelJobRequest, CancelJobResponse, GetJobRequest, GetJobResponse, ListJobsRequest,
        ListJobsResponse, SubmitJobRequest, SubmitJobResponse, WaitJobRequest, WaitJobResponse,
        WatchJobRequest, WatchJobResponse, job_service_server::JobService,
    },
    daemon::{
        error::Error,
        pipeline::{
            Pipeline,
            context::CallContext,
            fleet_jobs::{FleetSubmission, is_fleet_job_id},
            job_submission::{ValidatedSubmission, job_validation_cost},
            jobs::{
                LiveOrEndedJob,
                wire::{wire_job, wire_job_summary},
            },
            params,
        },
        store::jobs::JobQuery,
        task,
    },
};

/// Messages buffered for a slow client.
const STREAM_BUFFER_MESSAGES: usize = 4;

/// A validated submission.
enum Submission {
    Local(ValidatedSubmission),
    Fleet(FleetSubmission),
}

impl Submission {
    fn parse(
        pipeline: &Pipeline,
        context: &CallContext,
        request: SubmitJobRequest,
    ) -> Result<Self, Error> {
        if request.fleet {
            return parse_fleet_submission(pipeline, context, request).map(Self::Fleet);
        }
        if request.retry_if_lost {
            let text = "must not be set without `fleet`: a job of one daemon never runs twice";
            return Err(Error::invalid_field("retry_if_lost", text));
        }
        if request.store_artifacts {
            let text =
                "must not be set without `fleet`: the daemon that runs a job has its artifacts";
            return Err(Error::invalid_field("store_artifacts", text));
        }
        pipeline.validate_job_request(context, request).map(Self::Local)
    }
}

#[derive(Debug)]
pub(crate) struct JobServiceHandler {
    pipeline: Arc<Pipeline>,
    limits: JobLimits,
}

#[tonic::async_trait]
impl JobService for JobServiceHandler {
    type WatchJobStream = WorkspaceStream<WatchJobResponse>;

    async fn submit_job(
        &self,
        request: Request<SubmitJobRequest>,
    ) -> Result<Response<SubmitJobResponse>, Status> {
        handle(request, async |context, request| {
            let pipeline = Arc::clone(&self.pipeline);
            let bytes = request.encoded_len();
            let cost = job_validation_cost(&request.tool, &pipeline.catalog, bytes);
            let memory = bytes + request.params.as_ref().map_or(0, params::struct_overhead_bytes);
            // A request for the fleet is validated as a copy.
            let memory = if request.fleet { 2 * memory } else { memory };
            let validate = {
                let pipeline = Arc::clone(&self.pipeline);
                move |context: &CallContext| {
                    let method = "jig.v1.JobService/SubmitJob";
                    let call = pipeline.identify_call(context, method, &request)?;
                    Ok((call, Submission::parse(&pipeline, context, request)?))
                }
            };
            let (call, submission) =
                self.pipeline.validate_maybe_offloaded(&context, (memory, cost), validate).await?;

            let submission = match submission {
                Submission::Local(submission) => submission,
                Submission::Fleet(submission) => {
                    return submit_fleet_job(pipeline, context, call, submission).await;
                }
            };
            let work = async move |is_unfinished: bool| {
                let submitted = pipeline.submit_job(&context, submission, is_unfinished).await?;
                let id = submitted.id.clone();
                context.access_log_entry.update(|fields| fields.job_id = Some(id));
                let job = wire_job_summary(&submitted, &pipeline.jobs);
                Ok(SubmitJobResponse { job: Some(job), unserved: false })
            };
            // Detached: a client that disconnects must not leave a job half submitted.
            self.pipeline.run_once_detached(call, work).await
        })
        .await
    }

    async fn get_job(
        &self,
        request: Request<GetJobRequest>,
    ) -> Result<Response<GetJobResponse>, Status> {
        handle(request, async |context, request| {
            let request = self.pipeline.catalog.check("jig.v1.GetJobRequest", request)?;
            if is_fleet_job_id(&request.job_id) {
                let (fleet, job) = self.pipeline.find_fleet_job(&context, &request.job_id).await?;
                return Ok(GetJobResponse { job: Some(fleet.load_result(job).await?) });
            }
            let snapshot = match self.find_job(&context, &request.job_id).await? {
                LiveOrEndedJob::Live(job) => job.snapshot(),
                LiveOrEndedJob::Ended(snapshot) => *snapshot,
            };
            Ok(GetJobResponse { job: Some(wire_job(snapshot, &self.pipeline.jobs)?) })
        })
        .await
    }

    async fn list_jobs(
        &self,
        request: Request<ListJobsRequest>,
    ) -> Result<Response<ListJobsResponse>, Status> {
        handle(request, async |context, request| {
            let request = self.pipeline.catalog.check("jig.v1.ListJobsRequest", request)?;
            let workspace_context = self.pipeline.resolve_workspace(&context)?;
            let workspace = workspace_context.workspace.name();
            let query = parse_job_query(request, workspace)?;
            let page_size = query.limit as usize;
            let query = JobQuery {
                tools: self.pipeline.visible_job_tools(&context),
                // One extra entry shows whether another page follows.
                limit: query.limit + 1,
                ..query
            };

            let permit = self.limits.acquire_lookup(&context.principal).await?;
            let mut jobs = self.pipeline.jobs.list(query).await?;
            drop(permit);
            let last = truncate_page(&mut jobs, page_size);
            Ok(ListJobsResponse {
                next_page_token: last.map(next_page_token).unwrap_or_default(),
                jobs: jobs.iter().map(|job| wire_job_summary(job, &self.pipeline.jobs)).collect(),
            })
        })
        .await
    }

    async fn wait_job(
        &self,
        request: Request<WaitJobRequest>,
    ) -> Result<Response<WaitJobResponse>, Status> {
        handle(request, async |context, request| {
            let request = self.pipeline.catalog.check("jig.v1.WaitJobRequest", request)?;
            let wait = request.wait_ms.map(u64::from).map(Duration::from_millis);
            let until = wait.map(|wait| Instant::now() + wait);
            if is_fleet_job_id(&request.job_id) {
                let (_fleet, job) = self.pipeline.find_fleet_job(&context, &request.job_id).await?;
                let job = wait_for_job(&self.pipeline, &context, job, until).await?;
                return Ok(WaitJobResponse { job: Some(job) });
            }
            let snapshot = match self.find_job(&context, &request.job_id).await? {
                LiveOrEndedJob::Ended(snapshot) => *snapshot,
                LiveOrEndedJob::Live(job) => tokio::select! {
                    biased;
                    snapshot = wait_until_ended(&self.pipeline, &job) => snapshot?,
                    () = task::sleep_until(until) => job.snapshot(),
                },
            };
            Ok(WaitJobResponse { job: Some(wire_job(snapshot, &self.pipeline.jobs)?) })
        })
        .await
    }

    async fn cancel_job(
        &self,
        request: Request<CancelJobRequest>,
    ) -> Result<Response<CancelJobResponse>, Status> {
        handle(request, async |context, request| {
            let call =
                self.pipeline.identify_call(&context, "jig.v1.JobService/CancelJob", &request)?;
            let request = self.pipeline.catalog.check("jig.v1.CancelJobRequest", request)?;

            let pipeline = Arc::clone(&self.pipeline);
            // Cancelling twice has the same effect, so a repeat after a crash needs no check.
            let work = async move |_is_unfinished: bool| {
                if is_fleet_job_id(&request.job_id) {
                    let (fleet, job) = pipeline.find_fleet_job(&context, &request.job_id).await?;
                    let job = cancel_fleet_job(&pipeline, &context, fleet, job).await?;
                    return Ok(CancelJobResponse { job: Some(job) });
                }
                let snapshot = match pipeline.find_job(&context, &request.job_id).await? {
                    LiveOrEndedJob::Ended(snapshot) => *snapshot,
                    LiveOrEndedJob::Live(job) => {
                        pipeline.jobs.cancel(&job).await;
                        wait_until_ended(&pipeline, &job).await?
                    }
                };
                Ok(CancelJobResponse { job: Some(wire_job(snapshot, &pipeline.jobs)?) })
            };
            self.pipeline.run_once_detached(call, work).await
        })
        .await
    }

    async fn watch_job(
        &self,
        request: Request<WatchJobRequest>,
    ) -> Result<Response<Self::WatchJobStream>, Status> {
        handle_stream(request, async |context, request| {
            let request = self.pipeline.catalog.check("jig.v1.WatchJobRequest", request)?;
            let (sender, terminator, responses) =
                response_channel(STREAM_BUFFER_MESSAGES, &context.call_id);
            let pipeline = Arc::clone(&self.pipeline);
            if is_fleet_job_id(&request.job_id) {
                let (fleet, job) = self.pipeline.find_fleet_job(&context, &request.job_id).await?;
                let permit = self.limits.acquire_watch(&context.principal)?;
                let stream =
                    FleetJobStream::new(pipeline, context, (fleet, job), &request, permit).await?;
                task::spawn_tracked("watch of a fleet job", stream.run(sender, terminator));
                return Ok(responses);
            }
            let job = self.find_job(&context, &request.job_id).await?;
            let permit = self.limits.acquire_watch(&context.principal)?;
            let stream = JobStream::new(pipeline, context, job, &request, permit)?;
            task::spawn_tracked("watch of a job", stream.run(sender, terminator));
            Ok(responses)
        })
        .await
    }
}

impl JobServiceHandler {
    pub(crate) fn new(pipeline: Arc<Pipeline>) -> Self {
        Self { pipeline, limits: JobLimits::default() }
    }

    async fn find_job(&self, context: &CallContext, id: &str) -> Result<LiveOrEndedJob, Error> {
        let _permit = self.limits.acquire_lookup(&context.principal).await?;
        self.pipeline.find_job(context, id).await
    }
}
