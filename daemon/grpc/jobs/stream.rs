//! One who watches a job: its states, and what its command writes, read from its artifacts at the
//! watcher's own pace.

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
        grpc::response_stream::{self, CLIENT_READ_TIMEOUT, StreamItem, StreamTerminator},
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

/// Most bytes of output in one message.
const CHUNK_BYTES: usize = 64 * 1024;

/// One who watches.
pub(super) struct JobStream {
    pipeline: Arc<Pipeline>,
    /// The call, as one of the session that the job is of.
    incoming: CallContext,
    updates: watch::Receiver<JobSnapshot>,
    output_written: watch::Receiver<()>,
    streams: [JobOutputCursor; 2],
    keep_alive_interval: Duration,
    _permit: Permit,
}

/// One of the two outputs.
struct JobOutputCursor {
    /// Where it goes on.
    offset: u64,
    file: Option<Arc<File>>,
    event: fn(JobOutput) -> Event,
}

/// Why nothing more is sent.
enum JobStreamEnd {
    /// The watcher is gone, or has all.
    Closed,
    /// This is to be told.
    Failed(Error),
}

impl JobStream {
    pub(super) fn new(
        pipeline: Arc<Pipeline>,
        incoming: CallContext,
        found: LiveOrEndedJob,
        request: &WatchJobRequest,
        place: Permit,
    ) -> Result<Self, Error> {
        let (seen, written) = match found {
            LiveOrEndedJob::Live(live) => (live.watch(), live.output_notifier().subscribe()),
            LiveOrEndedJob::Ended(seen) => {
                (watch::Sender::new(*seen).subscribe(), watch::Sender::new(()).subscribe())
            }
        };
        let session = SessionId::parse(&seen.borrow().job.session)
            .ok_or_else(|| Error::internal("a job has no session"))?;
        let stream = |offset, event| JobOutputCursor { offset, file: None, event };
        Ok(Self {
            pipeline,
            incoming: CallContext { session, ..incoming },
            updates: seen,
            output_written: written,
            streams: [
                stream(request.stdout_offset, Event::Stdout),
                stream(request.stderr_offset, Event::Stderr),
            ],
            keep_alive_interval: Duration::from_secs(u64::from(
                request.keep_alive_sec.unwrap_or(30),
            )),
            _permit: place,
        })
    }

    /// Sends what becomes of the job until it has ended, the watcher is gone, its deadline has passed,
    /// or the daemon has drained long enough.
    pub(super) async fn run(
        mut self,
        sender: Sender<StreamItem<WatchJobResponse>>,
        last: StreamTerminator<WatchJobResponse>,
    ) {
        let (deadline, end) = (self.incoming.deadline, self.pipeline.shutdown.terminate_token());
        let over = tokio::select! {
            biased;
            () = task::sleep_until(deadline) => JobStreamEnd::Failed(pipeline::timeout_error("WatchJob")),
            () = end.cancelled() => {
                let text = "the daemon is shutting down: watch on when it is back";
                JobStreamEnd::Failed(Error::new(Reason::Draining, text))
            }
            over = self.forward_updates(&sender) => over,
        };
        if let JobStreamEnd::Failed(error) = over {
            last.fail(&error);
        }
    }

    async fn forward_updates(
        &mut self,
        sender: &Sender<StreamItem<WatchJobResponse>>,
    ) -> JobStreamEnd {
        let mut told = None;
        loop {
            // Before the output is read: what is final has nothing behind what is read then.
            let seen = self.updates.borrow_and_update().clone();
            let ended = seen.job.state.is_final();
            self.output_written.mark_unchanged();
            if !ended && told != Some(seen.job.state) {
                if let Err(over) = send_event(sender, Event::Job(wire_job_summary(&seen.job))).await
                {
                    return over;
                }
                told = Some(seen.job.state);
            }
            if let Err(over) = self.send_output(&seen.job, sender).await {
                return over;
            }
            if ended {
                return match wire_job(seen) {
                    Ok(job) => match send_event(sender, Event::Job(job)).await {
                        Ok(()) => JobStreamEnd::Closed,
                        Err(over) => over,
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
                _either = self.output_written.changed() => {}
                () = sleep(self.keep_alive_interval) => {
                    if let Err(over) = send_event(sender, Event::KeepAlive(JobKeepAlive {})).await {
                        return over;
                    }
                }
                () = sender.closed() => return JobStreamEnd::Closed,
            }
        }
    }

    /// Sends what was written since the last time.
    async fn send_output(
        &mut self,
        job: &Job,
        sender: &Sender<StreamItem<WatchJobResponse>>,
    ) -> Result<(), JobStreamEnd> {
        let Some(step) = job.step else { return Ok(()) };
        let paths = StepId::stream_paths(step);
        for (stream, path) in self.streams.iter_mut().zip(paths) {
            if stream.file.is_none() {
                let opened = open_artifact(&self.pipeline, &self.incoming, path).await;
                stream.file = opened.map_err(JobStreamEnd::Failed)?;
            }
            let Some(file) = stream.file.clone() else {
                continue;
            };
            loop {
                let data = read_chunk(Arc::clone(&file), stream.offset).await;
                let data = data.map_err(JobStreamEnd::Failed)?;
                if data.is_empty() {
                    break;
                }
                let output = JobOutput { offset: stream.offset, data: data.into() };
                stream.offset += output.data.len() as u64;
                send_event(sender, (stream.event)(output)).await?;
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
    let how = "watch on from the last offsets when you can";
    let told = response_stream::send_or_timeout(sender, message, CLIENT_READ_TIMEOUT, how).await;
    told.map_err(|error| error.map_or(JobStreamEnd::Closed, JobStreamEnd::Failed))
}

/// Opens an artifact of a session, if there is something in it.
async fn open_artifact(
    pipeline: &Pipeline,
    incoming: &CallContext,
    path: String,
) -> Result<Option<Arc<File>>, Error> {
    let open = move |sessions: &SessionStore, workspace: &str, id: &SessionId| {
        let session = sessions.open_existing(workspace, id)?;
        session.map_or(Ok(OpenedArtifact::Missing), |session| session.open_artifact(&path))
    };
    let held = Arc::default() as Arc<()>;
    Ok(match pipeline.query_session(incoming, &held, open).await? {
        OpenedArtifact::File(file) => Some(Arc::new(file)),
        OpenedArtifact::Empty | OpenedArtifact::Missing => None,
    })
}

async fn read_chunk(file: Arc<File>, offset: u64) -> Result<Vec<u8>, Error> {
    let read = task::spawn_blocking(move || {
        // The kernel does not know all offsets that there are.
        if offset >= file.metadata()?.len() {
            return Ok(Vec::new());
        }
        let mut data = vec![0; CHUNK_BYTES];
        let length = file.read_at(&mut data, offset)?;
        data.truncate(length);
        Ok::<_, std::io::Error>(data)
    });
    read.await.map_err(Error::internal)?.map_err(Error::internal)
}
