//! A stream that watches a job: its state changes, and the output of its command.
//!
//! The output is read from the job's artifacts, at the speed of the client.

use std::{fs::File, os::unix::fs::FileExt as _, sync::Arc, time::Duration};

use tokio::{
    sync::{mpsc::Sender, watch},
    time::sleep,
};

use super::wire::{wire_job, wire_job_summary};
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
            context::CallContext,
            jobs::{JobSnapshot, LiveOrEndedJob},
        },
        queue::Permit,
        store::{
            jobs::Job,
            session::{OpenedArtifact, SessionId, StepId},
            sessions::SessionStore,
        },
        task,
    },
};

/// Maximum output in one message.
const MAX_OUTPUT_CHUNK_BYTES: usize = 64 * 1024;

pub(super) struct JobStream {
    pipeline: Arc<Pipeline>,
    /// The context of the watching call, with the session of the job.
    context: CallContext,
    updates: watch::Receiver<JobSnapshot>,
    output_written: watch::Receiver<()>,
    /// Standard output and standard error.
    outputs: [JobOutputCursor; 2],
    keep_alive_interval: Duration,
    _permit: Permit,
}

/// The position in one of the two outputs.
struct JobOutputCursor {
    /// Offset of the next byte to send.
    offset: u64,
    /// Set once the artifact exists.
    file: Option<Arc<File>>,
    event: fn(JobOutput) -> Event,
}

/// Why the stream ends.
enum JobStreamEnd {
    /// Everything was sent, or the client has disconnected.
    Closed,
    /// The client gets this error.
    Failed(Error),
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
        let cursor = |offset, event| JobOutputCursor { offset, file: None, event };

        Ok(Self {
            pipeline,
            context: CallContext { session, ..context },
            updates,
            output_written,
            outputs: [
                cursor(request.stdout_offset, Event::Stdout),
                cursor(request.stderr_offset, Event::Stderr),
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
        let deadline = self.context.deadline;
        let terminate = self.pipeline.shutdown.terminate_token();
        let end = tokio::select! {
            biased;
            () = task::sleep_until(deadline) => JobStreamEnd::Failed(pipeline::stream_deadline_error("WatchJob")),
            () = terminate.cancelled() => {
                let text = "the daemon is shutting down: watch again when it is back";
                JobStreamEnd::Failed(Error::new(Reason::Draining, text))
            }
            end = self.forward_updates(&sender) => end,
        };
        if let JobStreamEnd::Failed(error) = end {
            terminator.fail(&error);
        }
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

            if !has_ended && sent_state != Some(snapshot.job.state) {
                let event = Event::Job(wire_job_summary(&snapshot.job));
                if let Err(end) = send_event(sender, event).await {
                    return end;
                }
                sent_state = Some(snapshot.job.state);
            }
            if let Err(end) = self.send_output(&snapshot.job, sender).await {
                return end;
            }
            if has_ended {
                return match wire_job(snapshot) {
                    Ok(job) => match send_event(sender, Event::Job(job)).await {
                        Ok(()) => JobStreamEnd::Closed,
                        Err(end) => end,
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
                    if let Err(end) = send_event(sender, Event::KeepAlive(JobKeepAlive {})).await {
                        return end;
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
        for (cursor, path) in self.outputs.iter_mut().zip(paths) {
            if cursor.file.is_none() {
                cursor.file = open_artifact(&self.pipeline, &self.context, path)
                    .await
                    .map_err(JobStreamEnd::Failed)?;
            }
            let Some(file) = cursor.file.clone() else { continue };

            loop {
                let data = read_chunk(Arc::clone(&file), cursor.offset)
                    .await
                    .map_err(JobStreamEnd::Failed)?;
                if data.is_empty() {
                    break;
                }
                let output = JobOutput { offset: cursor.offset, data: data.into() };
                cursor.offset += output.data.len() as u64;
                send_event(sender, (cursor.event)(output)).await?;
            }
        }
        Ok(())
    }
}

async fn send_event(
    sender: &Sender<StreamItem<WatchJobResponse>>,
    event: Event,
) -> Result<(), JobStreamEnd> {
    let message = WatchJobResponse { event: Some(event) };
    let hint = "watch again from the last offsets when you can";
    response_stream::send_or_timeout(sender, message, CLIENT_READ_TIMEOUT, hint)
        .await
        .map_err(|error| error.map_or(JobStreamEnd::Closed, JobStreamEnd::Failed))
}

/// Opens an artifact of a session. Returns `None` if it is missing or empty.
async fn open_artifact(
    pipeline: &Pipeline,
    context: &CallContext,
    path: String,
) -> Result<Option<Arc<File>>, Error> {
    let open = move |sessions: &SessionStore, workspace: &str, id: &SessionId| {
        let session = sessions.open_existing(workspace, id)?;
        session.map_or(Ok(OpenedArtifact::Missing), |session| session.open_artifact(&path))
    };
    let no_permit = Arc::default() as Arc<()>;
    Ok(match pipeline.query_session(context, &no_permit, open).await? {
        OpenedArtifact::File(file) => Some(Arc::new(file)),
        OpenedArtifact::Empty | OpenedArtifact::Missing => None,
    })
}

async fn read_chunk(file: Arc<File>, offset: u64) -> Result<Vec<u8>, Error> {
    let read = task::spawn_blocking(move || {
        // A client may send an offset beyond what pread(2) accepts.
        if offset >= file.metadata()?.len() {
            return Ok(Vec::new());
        }
        let mut data = vec![0; MAX_OUTPUT_CHUNK_BYTES];
        let length = file.read_at(&mut data, offset)?;
        data.truncate(length);
        Ok::<_, std::io::Error>(data)
    });
    read.await.map_err(Error::internal)?.map_err(Error::internal)
}
