//! One who watches a job: its states, and what its command writes, read from its artifacts at the
//! watcher's own pace.

use std::{fs::File, os::unix::fs::FileExt as _, sync::Arc, time::Duration};

use tokio::{
    sync::{mpsc::Sender, watch},
    time::sleep,
};

use super::wire::{job, lean};
use crate::{
    api::v1::{
        JobKeepAlive, JobOutput, WatchJobRequest, WatchJobResponse, watch_job_response::Event,
    },
    daemon::{
        call::{
            self, Pipeline,
            context::Incoming,
            jobs::{Found, Seen},
        },
        door::outlet::{self, Answer, LastWord, SILENCE},
        error::{Error, Reason},
        queue::Place,
        store::{
            jobs::Job,
            session::{Artifact, SessionId, Step},
            sessions::Sessions,
        },
        task,
    },
};

/// Most bytes of output in one message.
const CHUNK_BYTES: usize = 64 * 1024;

/// One who watches.
pub(super) struct Watch {
    pipeline: Arc<Pipeline>,
    /// The call, as one of the session that the job is of.
    incoming: Incoming,
    seen: watch::Receiver<Seen>,
    written: watch::Receiver<()>,
    streams: [Stream; 2],
    keep_alive: Duration,
    _place: Place,
}

/// One of the two outputs.
struct Stream {
    /// Where it goes on.
    offset: u64,
    file: Option<Arc<File>>,
    event: fn(JobOutput) -> Event,
}

/// Why nothing more is sent.
enum Over {
    /// The watcher is gone, or has all.
    Gone,
    /// This is to be told.
    Failed(Error),
}

impl Watch {
    pub(super) fn new(
        pipeline: Arc<Pipeline>,
        incoming: Incoming,
        found: Found,
        request: &WatchJobRequest,
        place: Place,
    ) -> Result<Self, Error> {
        let (seen, written) = match found {
            Found::Live(live) => (live.watch(), live.written().subscribe()),
            Found::Ended(seen) => {
                (watch::Sender::new(*seen).subscribe(), watch::Sender::new(()).subscribe())
            }
        };
        let session = SessionId::parse(&seen.borrow().job.session)
            .ok_or_else(|| Error::internal("a job has no session"))?;
        let stream = |offset, event| Stream { offset, file: None, event };
        Ok(Self {
            pipeline,
            incoming: Incoming { session, ..incoming },
            seen,
            written,
            streams: [
                stream(request.stdout_offset, Event::Stdout),
                stream(request.stderr_offset, Event::Stderr),
            ],
            keep_alive: Duration::from_secs(u64::from(request.keep_alive_sec.unwrap_or(30))),
            _place: place,
        })
    }

    /// Sends what becomes of the job until it has ended, the watcher is gone, its deadline has passed,
    /// or the daemon has drained long enough.
    pub(super) async fn send(
        mut self,
        sender: Sender<Answer<WatchJobResponse>>,
        last: LastWord<WatchJobResponse>,
    ) {
        let (deadline, end) = (self.incoming.deadline, self.pipeline.drain.end_token());
        let over = tokio::select! {
            biased;
            () = task::until(deadline) => Over::Failed(call::timed_out("WatchJob")),
            () = end.cancelled() => {
                let text = "the daemon is shutting down: watch on when it is back";
                Over::Failed(Error::new(Reason::Draining, text))
            }
            over = self.send_all(&sender) => over,
        };
        if let Over::Failed(error) = over {
            last.say(&error);
        }
    }

    async fn send_all(&mut self, sender: &Sender<Answer<WatchJobResponse>>) -> Over {
        let mut told = None;
        loop {
            // Before the output is read: what is final has nothing behind what is read then.
            let seen = self.seen.borrow_and_update().clone();
            let ended = seen.job.state.is_final();
            self.written.mark_unchanged();
            if !ended && told != Some(seen.job.state) {
                if let Err(over) = tell(sender, Event::Job(lean(&seen.job))).await {
                    return over;
                }
                told = Some(seen.job.state);
            }
            if let Err(over) = self.send_output(&seen.job, sender).await {
                return over;
            }
            if ended {
                return match job(seen) {
                    Ok(job) => match tell(sender, Event::Job(job)).await {
                        Ok(()) => Over::Gone,
                        Err(over) => over,
                    },
                    Err(error) => Over::Failed(error),
                };
            }
            tokio::select! {
                changed = self.seen.changed() => {
                    if changed.is_err() {
                        return Over::Failed(Error::internal("a job was dropped before its end"));
                    }
                }
                _either = self.written.changed() => {}
                () = sleep(self.keep_alive) => {
                    if let Err(over) = tell(sender, Event::KeepAlive(JobKeepAlive {})).await {
                        return over;
                    }
                }
                () = sender.closed() => return Over::Gone,
            }
        }
    }

    /// Sends what was written since the last time.
    async fn send_output(
        &mut self,
        job: &Job,
        sender: &Sender<Answer<WatchJobResponse>>,
    ) -> Result<(), Over> {
        let Some(step) = job.step else { return Ok(()) };
        let paths = Step::paths(step);
        for (stream, path) in self.streams.iter_mut().zip(paths) {
            if stream.file.is_none() {
                let opened = open(&self.pipeline, &self.incoming, path).await;
                stream.file = opened.map_err(Over::Failed)?;
            }
            let Some(file) = stream.file.clone() else {
                continue;
            };
            loop {
                let data = read(Arc::clone(&file), stream.offset).await;
                let data = data.map_err(Over::Failed)?;
                if data.is_empty() {
                    break;
                }
                let output = JobOutput { offset: stream.offset, data: data.into() };
                stream.offset += output.data.len() as u64;
                tell(sender, (stream.event)(output)).await?;
            }
        }
        Ok(())
    }
}

async fn tell(sender: &Sender<Answer<WatchJobResponse>>, event: Event) -> Result<(), Over> {
    let message = WatchJobResponse { event: Some(event) };
    let how = "watch on from the last offsets when you can";
    let told = outlet::tell(sender, message, SILENCE, how).await;
    told.map_err(|error| error.map_or(Over::Gone, Over::Failed))
}

/// Opens an artifact of a session, if there is something in it.
async fn open(
    pipeline: &Pipeline,
    incoming: &Incoming,
    path: String,
) -> Result<Option<Arc<File>>, Error> {
    let open = move |sessions: &Sessions, workspace: &str, id: &SessionId| {
        let session = sessions.existing(workspace, id)?;
        session.map_or(Ok(Artifact::Missing), |session| session.artifact(&path))
    };
    let held = Arc::default() as Arc<()>;
    Ok(match pipeline.look(incoming, &held, open).await? {
        Artifact::File(file) => Some(Arc::new(file)),
        Artifact::Empty | Artifact::Missing => None,
    })
}

async fn read(file: Arc<File>, offset: u64) -> Result<Vec<u8>, Error> {
    let read = task::blocking(move || {
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
