//! Jobs of the fleet: each RPC of a fleet job, as [`super`] has it for jobs of this daemon.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{sync::mpsc::Sender, time::sleep};
use ulid::Ulid;

use super::{
    stream::{JobStreamEnd, run_in_time, send_event},
    wait::shutdown_error,
};
use crate::{
    api::v1::{
        Job, JobKeepAlive, JobState, SubmitJobRequest, SubmitJobResponse, WatchJobRequest,
        WatchJobResponse, watch_job_response::Event,
    },
    daemon::{
        config::fleet::is_subject_token,
        error::{Error, Reason},
        grpc::response_stream::{StreamItem, StreamTerminator, keep_alive_interval},
        pipeline::{
            Pipeline,
            context::CallContext,
            fleet_jobs::{FleetJob, FleetJobEvents, FleetJobs, FleetSubmission},
            job_submission::DEFAULT_QUEUE_NAME,
            once::IdempotentCall,
        },
        queue::Permit,
        telemetry::propagation::to_traceparent,
    },
};

/// How often the daemon asks again for the end of a job that it cancels, whose daemon may have given
/// it back in the meantime.
const CANCEL_INTERVAL: Duration = Duration::from_secs(5);

/// Validates a submission to the fleet, as the daemon that will run the job does.
pub(super) fn parse_fleet_submission(
    pipeline: &Pipeline,
    context: &CallContext,
    request: SubmitJobRequest,
) -> Result<FleetSubmission, Error> {
    pipeline.require_fleet()?;
    let queue = request.queue.clone().unwrap_or_else(|| DEFAULT_QUEUE_NAME.to_owned());
    if queue.contains('.') {
        // Dots separate the parts of the names of queues in the servers of fleets.
        return Err(Error::invalid_field(
            "queue",
            "must have no dots in the name of a queue of the fleet",
        ));
    }

    pipeline.validate_job_request(context, request.clone())?.require_access()?;
    let workspace = pipeline.resolve_workspace(context)?.workspace.name().to_owned();
    if !is_subject_token(&workspace) {
        let text = format!(
            "must have no . * > / or \\ in its name, which is part of a subject: no daemon of the fleet takes jobs of {workspace:?}"
        );
        return Err(Error::invalid_field("jig-workspace", text));
    }

    Ok(FleetSubmission {
        queue,
        workspace,
        request_id: context.request_id.clone().unwrap_or_else(|| Ulid::generate().to_string()),
        principal: context.principal.name().to_owned(),
        session: context.session.as_str().to_owned(),
        traceparent: to_traceparent(&context.parent_span),
        request,
    })
}

/// Publishes a job to its queue.
pub(super) async fn submit_fleet_job(
    pipeline: Arc<Pipeline>,
    context: CallContext,
    call: Option<IdempotentCall>,
    submission: FleetSubmission,
) -> Result<SubmitJobResponse, Error> {
    let work = {
        let pipeline = Arc::clone(&pipeline);
        // A repeat after a crash finds the record of the job, so it needs no check.
        async move |_is_unfinished: bool| {
            pipeline.shutdown.check_accepting()?;
            let fleet = pipeline.require_fleet()?;
            let request_id = submission.request_id.clone();
            let submitted = fleet.submit(submission).await;
            let submitted = submitted.map_err(|error| name_request_id(error, request_id));
            let FleetJob { job, workspace, .. } = submitted?;
            let id = job.job_id.clone();
            context.access_log_entry.update(|fields| fields.job_id = Some(id));
            let unserved =
                job.state() == JobState::Queued && fleet.is_unserved(&job.queue, &workspace).await;
            Ok(SubmitJobResponse { job: Some(Job { result: None, ..job }), unserved })
        }
    };
    pipeline.run_once_detached(call, work).await
}

/// Names the request id with which a submission can be repeated. The caller may not have chosen it.
fn name_request_id(mut error: Error, request_id: String) -> Error {
    if error.reason != Reason::FleetUnavailable {
        return error;
    }
    let cause = error.cause.as_ref().map(ToString::to_string);
    tracing::warn!(cause, request_id, "cannot publish a job of the fleet");
    error.message = format!(
        "the server of the fleet does not answer, so the job may be in its queue: submit again with the request id {request_id:?}, and there is one job"
    )
    .into();
    error.with_metadata("request_id", request_id)
}

/// Waits until a job has ended or `until`. Fails if the drain timeout passes first.
pub(super) async fn wait_for_job(
    pipeline: &Pipeline,
    context: &CallContext,
    job: FleetJob,
    until: Option<Instant>,
) -> Result<Job, Error> {
    tokio::select! {
        biased;
        waited = pipeline.wait_for_fleet_job(context, job, until) => waited,
        () = pipeline.shutdown.terminate_token().cancelled_owned() => Err(shutdown_error()),
    }
}

/// Cancels a job, and waits until it has ended.
pub(super) async fn cancel_fleet_job(
    pipeline: &Pipeline,
    context: &CallContext,
    fleet: &Arc<dyn FleetJobs>,
    mut job: FleetJob,
) -> Result<Job, Error> {
    while job.job.end_time.is_none() {
        fleet.cancel(&job.job.job_id).await?;
        let until = Some(Instant::now() + CANCEL_INTERVAL);
        let waited = tokio::select! {
            biased;
            waited = fleet.wait(&job.job.job_id, until) => waited?,
            () = pipeline.shutdown.terminate_token().cancelled_owned() => return Err(shutdown_error()),
        };
        job = pipeline.check_claim(context, &job, waited).await?.unwrap_or(job);
    }
    fleet.load_result(job).await
}

/// A stream that watches a fleet job.
pub(super) struct FleetJobStream {
    pipeline: Arc<Pipeline>,
    context: CallContext,
    job: FleetJob,
    events: Box<dyn FleetJobEvents>,
    deadline: Option<Instant>,
    keep_alive_interval: Duration,
    _permit: Permit,
}

impl FleetJobStream {
    pub(super) async fn new(
        pipeline: Arc<Pipeline>,
        context: CallContext,
        (fleet, job): (&Arc<dyn FleetJobs>, FleetJob),
        request: &WatchJobRequest,
        permit: Permit,
    ) -> Result<Self, Error> {
        let offsets = [request.stdout_offset, request.stderr_offset];
        Ok(Self {
            pipeline,
            events: fleet.watch(&request.job_id, offsets).await?,
            deadline: context.deadline,
            context,
            job,
            keep_alive_interval: keep_alive_interval(request.keep_alive_sec),
            _permit: permit,
        })
    }

    /// Sends events until the job has ended or the client has disconnected.
    ///
    /// Ends earlier at the client's deadline, or when the drain timeout has passed.
    pub(super) async fn run(
        mut self,
        sender: Sender<StreamItem<WatchJobResponse>>,
        terminator: StreamTerminator<WatchJobResponse>,
    ) {
        let (deadline, terminate) = (self.deadline, self.pipeline.shutdown.terminate_token());
        let events =
            async { JobStreamEnd::from(self.forward_events(&sender).await.err().flatten()) };
        run_in_time(deadline, terminate, terminator, events).await;
    }

    /// Ends the stream if another workspace has the job, as
    /// [`check_claim`](Pipeline::check_claim) does.
    async fn check_claim(&mut self) -> Result<(), Error> {
        if let Some(found) = self.pipeline.check_claim(&self.context, &self.job, None).await? {
            self.job = found;
        }
        Ok(())
    }

    /// Returns the error that the client gets; `None` if the client has gone.
    async fn forward_events(
        &mut self,
        sender: &Sender<StreamItem<WatchJobResponse>>,
    ) -> Result<(), Option<Error>> {
        loop {
            let event = tokio::select! {
                event = self.events.next() => match event? {
                    Some(event) => {
                        self.check_claim().await?;
                        event
                    }
                    None => return Ok(()),
                },
                () = sleep(self.keep_alive_interval) => Event::KeepAlive(JobKeepAlive {}),
                () = sender.closed() => return Err(None),
            };
            send_event(sender, event).await?;
        }
    }
}
