//! A stream that watches a job: its state changes, and the output of its command.
//!
//! The output is read from the job's artifacts, at the speed of the client.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    sync::{mpsc::Sender, watch},
    time::sleep,
};
use tokio_util::sync::CancellationToken;

use crate::{
    api::v1::{
        JobKeepAlive, JobOutput, WatchJobRequest, WatchJobResponse, watch_job_response::Event,
    },
    daemon::{
        error::{Error, Reason},
        grpc::response_stream::{
            self, CLIENT_READ_TIMEOUT, StreamItem, StreamTerminator, keep_alive_interval,
        },
        pipeline::{
            self, Pipeline,
            command_output::OutputCursor,
            context::CallContext,
            jobs::{
                JobSnapshot, LiveOrEndedJob,
                wire::{wire_job, wire_live_job},
            },
        },
        queue::Permit,
        store::{
            jobs::Job,
            session::{SessionId, StepId},
        },
        task,
    },
};

pub(super) struct JobStream {
    pipeline: Arc<Pipeline>,
    /// The context of the watching call, with the session of the job.
    context: CallContext,
    updates: watch::Receiver<JobSnapshot>,
    output_written: watch::Receiver<()>,
    /// Standard output and standard error.
    outputs: [JobOutputStream; 2],
    keep_alive_interval: Duration,
    _permit: Permit,
}

/// One of the two outputs.
struct JobOutputStream {
    cursor: OutputCursor,
    event: fn(JobOutput) -> Event,
}

/// Why the stream ends.
pub(super) enum JobStreamEnd {
    /// Everything was sent, or the client has disconnected.
    Closed,
    /// The client gets this error.
    Failed(Error),
}

impl From<Option<Error>> for JobStreamEnd {
    fn from(error: Option<Error>) -> Self {
        error.map_or(Self::Closed, Self::Failed)
    }
}

/// Runs a stream that watches a job, at most until the client's deadline or until the drain timeout
/// has passed. The client gets the error of a stream that failed.
pub(super) async fn run_in_time(
    deadline: Option<Instant>,
    terminate: CancellationToken,
    terminator: StreamTerminator<WatchJobResponse>,
    stream: impl Future<Output = JobStreamEnd>,
) {
    let end = tokio::select! {
        biased;
        () = task::sleep_until(deadline) => JobStreamEnd::Failed(pipeline::stream_deadline_error("WatchJob")),
        () = terminate.cancelled() => {
            let text = "the daemon is shutting down: watch again when it is back";
            JobStreamEnd::Failed(Error::new(Reason::Draining, text))
        }
        end = stream => end,
    };
    if let JobStreamEnd::Failed(error) = end {
        terminator.fail(&error);
    }
}

impl JobStream {
    pub(super) fn new(
        pipeline: Arc<Pipeline>,
        context: CallContext,
        job: LiveOrEndedJob,
        request: &WatchJobRequest,
        permit: Permit,
    ) -> Result<Self, Error> {
        let (updates, output_written) = match job {
            LiveOrEndedJob::Live(job) => (job.watch(), job.output_notifier().subscribe()),
            LiveOrEndedJob::Ended(snapshot) => {
                (watch::Sender::new(*snapshot).subscribe(), watch::Sender::new(()).subscribe())
            }
        };
        let session = SessionId::parse(&updates.borrow().job.session)
            .ok_or_else(|| Error::internal("a job has no session"))?;
        let output = |offset, event| JobOutputStream { cursor: OutputCursor::at(offset), event };

        Ok(Self {
            pipeline,
            context: CallContext { session, ..context },
            updates,
            output_written,
            outputs: [
                output(request.stdout_offset, Event::Stdout),
                output(request.stderr_offset, Event::Stderr),
            ],
            keep_alive_interval: keep_alive_interval(request.keep_alive_sec),
            _permit: permit,
        })
    }

    /// Sends updates until the job has ended or the client has disconnected.
    ///
    /// Ends earlier at the client's deadline, or when the drain timeout has passed.
    pub(super) async fn run(
        mut self,
        sender: Sender<StreamItem<WatchJobResponse>>,
        terminator: StreamTerminator<WatchJobResponse>,
    ) {
        let (deadline, terminate) =
            (self.context.deadline, self.pipeline.shutdown.terminate_token());
        run_in_time(deadline, terminate, terminator, self.forward_updates(&sender)).await;
    }

    async fn forward_updates(
        &mut self,
        sender: &Sender<StreamItem<WatchJobResponse>>,
    ) -> JobStreamEnd {
        let mut sent_state = None;
        loop {
            // Take the snapshot before reading the output: if it is final, no output follows later.
            let snapshot = self.updates.borrow_and_update().clone();
            let has_ended = snapshot.job.state.is_final();
            self.output_written.mark_unchanged();

            let state = (snapshot.job.state, snapshot.approval_id.clone());
            if !has_ended && sent_state.as_ref() != Some(&state) {
                let event = Event::Job(wire_live_job(&snapshot, &self.pipeline.jobs));
                if let Err(error) = send_event(sender, event).await {
                    return error.into();
                }
                sent_state = Some(state);
            }
            if let Err(end) = self.send_output(&snapshot.job, sender).await {
                return end;
            }
            if has_ended {
                return match wire_job(snapshot, &self.pipeline.jobs) {
                    Ok(job) => match send_event(sender, Event::Job(job)).await {
                        Ok(()) => JobStreamEnd::Closed,
                        Err(error) => error.into(),
                    },
                    Err(error) => JobStreamEnd::Failed(error),
                };
            }

            tokio::select! {
                changed = self.updates.changed() => {
                    if changed.is_err() {
                        return JobStreamEnd::Failed(Error::internal("a job was dropped before its end"));
                    }
                }
                _changed = self.output_written.changed() => {}
                () = sleep(self.keep_alive_interval) => {
                    if let Err(error) = send_event(sender, Event::KeepAlive(JobKeepAlive {})).await {
                        return error.into();
                    }
                }
                () = sender.closed() => return JobStreamEnd::Closed,
            }
        }
    }

    /// Sends the output written since the last call.
    async fn send_output(
        &mut self,
        job: &Job,
        sender: &Sender<StreamItem<WatchJobResponse>>,
    ) -> Result<(), JobStreamEnd> {
        let Some(step) = job.step else { return Ok(()) };
        let paths = StepId::stream_paths(step);
        for (output, path) in self.outputs.iter_mut().zip(paths) {
            while let Some(chunk) = output
                .cursor
                .read(&self.pipeline, &self.context, &path)
                .await
                .map_err(JobStreamEnd::Failed)?
            {
                let wire = JobOutput { offset: chunk.offset, data: chunk.data.into() };
                send_event(sender, (output.event)(wire)).await?;
            }
        }
        Ok(())
    }
}

/// Sends an event. Returns the error that ends the stream; `None` if the client has gone.
pub(super) async fn send_event(
    sender: &Sender<StreamItem<WatchJobResponse>>,
    event: Event,
) -> Result<(), Option<Error>> {
    let message = WatchJobResponse { event: Some(event) };
    let hint = "watch again from the last offsets when you can";
    response_stream::send_or_timeout(sender, message, CLIENT_READ_TIMEOUT, hint).await
}
