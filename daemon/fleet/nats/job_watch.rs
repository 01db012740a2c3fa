//! Watches a fleet job from any daemon: its states by its record, and its output from the daemon
//! that runs it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use async_nats::{Client, Message, StatusCode, Subscriber};
use prost::Message as _;
use tokio::sync::watch;
use tokio_stream::StreamExt as _;

use super::{
    connection::NatsConnection,
    job_output::{OUTPUT_KEEP_ALIVE_INTERVAL, OUTPUT_WINDOW_BYTES},
    names::watch_subject,
    records::RecordWatch,
    session::NatsSession,
    stored_result::load_result,
};
use crate::{
    api::v1::{
        FleetJobRecord, FleetJobState, FleetWatchRequest, JobOutput, WatchJobResponse,
        watch_job_response::Event,
    },
    daemon::{
        error::{Error, Reason},
        fleet::{record_job::to_fleet_job, work_source::SourceUnavailable},
        pipeline::fleet_jobs::FleetJobEvents,
        task::{self, BoxFuture},
    },
};

/// How often a request is repeated. The other daemon sends nothing more after three times as long.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(15);
/// Time without a message after which the daemon of a running job is asked again.
const SILENCE: Duration = Duration::from_secs(4 * OUTPUT_KEEP_ALIVE_INTERVAL.as_secs());
/// The same for an ended job, whose watcher waits for the rest of its output.
const SILENCE_AFTER_END: Duration = Duration::from_secs(2 * OUTPUT_KEEP_ALIVE_INTERVAL.as_secs());
/// Delay before a daemon that did not respond is asked again.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// The events of one watched job.
pub(super) struct FleetJobWatch {
    session: Arc<NatsSession>,
    id: String,
    records: RecordWatch,
    /// The current record. `None` before the first one.
    record: Option<FleetJobRecord>,
    /// State, daemon and approval of the last job that was sent.
    sent: Option<(FleetJobState, String, String)>,
    /// Next bytes of standard output and standard error.
    offsets: [u64; 2],
    output: OutputSource,
    /// Whether the daemon of the ended job was asked once more, because it did not respond.
    was_asked_again: bool,
    is_finished: bool,
}

/// Where the output comes from.
#[derive(Debug)]
enum OutputSource {
    /// Nowhere until this time.
    Pending(Instant),
    Open(Box<OutputFeed>),
    /// A daemon has sent everything.
    Complete(JobAttempt),
}

/// An attempt to run a job.
#[derive(Debug, Clone, PartialEq, Eq)]
struct JobAttempt {
    daemon_id: String,
    number: u32,
}

/// Output that another daemon sends, or this one.
#[derive(Debug)]
struct OutputFeed {
    client: Client,
    /// Changes when the connection breaks, and when it stands again: messages may be lost.
    connection: watch::Receiver<Option<Instant>>,
    source: JobAttempt,
    id: String,
    reply: String,
    messages: Subscriber,
    last_message: Instant,
    last_request: Instant,
    /// Offsets of the last request.
    requested: [u64; 2],
}

/// What the other daemon has sent.
enum FeedMessage {
    Output(Box<Event>),
    /// All output of the job was sent.
    Complete,
    /// Nothing new.
    Nothing,
    /// It does not run, or messages were lost.
    Broken(Duration),
}

impl FleetJobWatch {
    pub(super) async fn new(
        session: Arc<NatsSession>,
        id: String,
        offsets: [u64; 2],
    ) -> Result<Self, SourceUnavailable> {
        Ok(Self {
            records: session.records().await?.watch(&id),
            session,
            id,
            record: None,
            sent: None,
            offsets,
            output: OutputSource::Pending(Instant::now()),
            was_asked_again: false,
            is_finished: false,
        })
    }

    async fn next_event(&mut self) -> Result<Option<Event>, Error> {
        while !self.is_finished {
            let Some(record) = &self.record else {
                self.record = Some(present(&self.id, self.records.next().await?)?);
                continue;
            };
            let has_ended = record.state() == FleetJobState::Ended;
            let FleetJobRecord { daemon_id, approval_id, .. } = record;
            let state = (record.state(), daemon_id.clone(), approval_id.clone());
            if !has_ended && self.sent.as_ref() != Some(&state) {
                let job =
                    to_fleet_job(&self.id, record.clone(), self.session.result_retention()).job;
                self.sent = Some(state);
                return Ok(Some(Event::Job(job)));
            }

            let attempt = JobAttempt::of(record);
            if has_ended && self.is_output_complete(attempt.as_ref()) {
                let job = to_fleet_job(&self.id, record.clone(), self.session.result_retention());
                let job = load_result(&self.session, job).await?;
                self.is_finished = true;
                return Ok(Some(Event::Job(job)));
            }
            if let Some(event) = self.follow(attempt, has_ended).await? {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    /// Whether no output of an ended job follows.
    fn is_output_complete(&self, attempt: Option<&JobAttempt>) -> bool {
        let Some(attempt) = attempt else { return true };
        match &self.output {
            OutputSource::Complete(source) => source == attempt,
            OutputSource::Pending(_) | OutputSource::Open(_) => false,
        }
    }

    /// Waits for the next change or output.
    async fn follow(
        &mut self,
        attempt: Option<JobAttempt>,
        has_ended: bool,
    ) -> Result<Option<Event>, Error> {
        // Where the job is may have changed.
        match (&self.output, &attempt) {
            (OutputSource::Open(feed), attempt) if Some(&feed.source) != attempt.as_ref() => {
                self.output = OutputSource::Pending(Instant::now());
            }
            (OutputSource::Complete(source), Some(attempt)) if source != attempt => {
                self.output = OutputSource::Pending(Instant::now());
            }
            (OutputSource::Pending(since), Some(attempt)) if *since <= Instant::now() => {
                let connection = self.session.connection();
                let feed = OutputFeed::open(connection, &self.id, attempt.clone(), self.offsets);
                self.output = OutputSource::Open(Box::new(feed.await?));
            }
            _ => {}
        }

        let (retry, feed) = match &mut self.output {
            OutputSource::Pending(time) => (attempt.is_some().then_some(*time), None),
            OutputSource::Open(feed) => (None, Some(&mut **feed)),
            OutputSource::Complete(_) => (None, None),
        };
        let received = tokio::select! {
            record = self.records.next(), if !has_ended => {
                self.record = Some(present(&self.id, record?)?);
                return Ok(None);
            }
            () = task::sleep_until(retry) => return Ok(None),
            received = receive(feed, &mut self.offsets, has_ended) => received?,
        };
        match received {
            FeedMessage::Output(event) => return Ok(Some(*event)),
            FeedMessage::Nothing => {}
            FeedMessage::Broken(delay)
                if !has_ended || delay.is_zero() || !self.was_asked_again =>
            {
                // Silence and gaps may be of an outage, which is over.
                self.was_asked_again |= has_ended && !delay.is_zero();
                self.output = OutputSource::Pending(Instant::now() + delay);
            }
            // The daemon of an ended job may be gone for good.
            FeedMessage::Complete | FeedMessage::Broken(_) => {
                if let Some(attempt) = attempt {
                    self.output = OutputSource::Complete(attempt);
                }
            }
        }
        Ok(None)
    }
}

impl FleetJobEvents for FleetJobWatch {
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Event>, Error>> {
        Box::pin(self.next_event())
    }
}

impl JobAttempt {
    /// Returns the attempt that has output. `None` before a claim, and for a job that has ended
    /// without one.
    fn of(record: &FleetJobRecord) -> Option<Self> {
        let has_output = match record.state() {
            FleetJobState::Claimed => true,
            FleetJobState::Ended => !record.local_job_id.is_empty(),
            FleetJobState::Queued | FleetJobState::Unspecified => false,
        };
        let attempt = Self { daemon_id: record.daemon_id.clone(), number: record.attempts };
        has_output.then_some(attempt)
    }
}

/// Returns the record, unless it has expired.
fn present(id: &str, record: Option<FleetJobRecord>) -> Result<FleetJobRecord, Error> {
    record.ok_or_else(|| {
        let text = "the job is no longer stored: the fleet keeps it for fleet.result_retention";
        Error::new(Reason::JobNotFound, text).with_metadata("job_id", id)
    })
}

/// Receives from a feed; never without one. Cancel safe.
async fn receive(
    feed: Option<&mut OutputFeed>,
    offsets: &mut [u64; 2],
    has_ended: bool,
) -> Result<FeedMessage, SourceUnavailable> {
    match feed {
        Some(feed) => feed.next(offsets, has_ended).await,
        None => std::future::pending().await,
    }
}

impl OutputFeed {
    async fn open(
        connection: &NatsConnection,
        id: &str,
        source: JobAttempt,
        offsets: [u64; 2],
    ) -> Result<Self, SourceUnavailable> {
        let client = connection.client().clone();
        let mut connection = connection.subscribe();
        connection.mark_unchanged();
        let reply = client.new_inbox();
        let messages = client.subscribe(reply.clone()).await.map_err(SourceUnavailable::new)?;
        let now = Instant::now();
        let mut feed = Self {
            client,
            connection,
            source,
            id: id.to_owned(),
            reply,
            messages,
            last_message: now,
            last_request: now,
            requested: offsets,
        };
        feed.request(offsets).await?;
        Ok(feed)
    }

    /// Asks for output from the offsets, or repeats that.
    async fn request(&mut self, offsets: [u64; 2]) -> Result<(), SourceUnavailable> {
        let [stdout_offset, stderr_offset] = offsets;
        let job_id = self.id.clone();
        let request = FleetWatchRequest { job_id, stdout_offset, stderr_offset, end: false };
        let subject = watch_subject(&self.source.daemon_id);
        let reply = self.reply.clone();
        let published =
            self.client.publish_with_reply(subject, reply, request.encode_to_vec().into()).await;
        published.map_err(SourceUnavailable::new)?;
        self.last_request = Instant::now();
        self.requested = offsets;
        Ok(())
    }

    /// Waits for output, and advances the offsets. Cancel safe.
    async fn next(
        &mut self,
        offsets: &mut [u64; 2],
        has_ended: bool,
    ) -> Result<FeedMessage, SourceUnavailable> {
        let received = offsets.iter().zip(self.requested).map(|(now, then)| now - then);
        if received.max().unwrap_or_default() >= OUTPUT_WINDOW_BYTES / 2 {
            self.request(*offsets).await?;
        }

        let silence = if has_ended { SILENCE_AFTER_END } else { SILENCE };
        tokio::select! {
            biased;
            Ok(()) = self.connection.changed() => Ok(FeedMessage::Broken(Duration::ZERO)),
            message = self.messages.next() => {
                let Some(message) = message else { return Ok(FeedMessage::Broken(RETRY_INTERVAL)) };
                self.last_message = Instant::now();
                Ok(read_message(message, offsets))
            }
            () = task::sleep_until(Some(self.last_message + silence)) => {
                Ok(FeedMessage::Broken(RETRY_INTERVAL))
            }
            () = task::sleep_until(Some(self.last_request + RENEWAL_INTERVAL)) => {
                self.request(*offsets).await?;
                Ok(FeedMessage::Nothing)
            }
        }
    }
}

impl Drop for OutputFeed {
    /// Frees the place at the other daemon, which would otherwise wait for another request.
    fn drop(&mut self) {
        let request = FleetWatchRequest {
            job_id: self.id.clone(),
            end: true,
            ..FleetWatchRequest::default()
        };
        let (client, reply) = (self.client.clone(), self.reply.clone());
        let subject = watch_subject(&self.source.daemon_id);
        task::spawn("end of a watch of a fleet job", async move {
            let request = request.encode_to_vec().into();
            if let Err(error) = client.publish_with_reply(subject, reply, request).await {
                tracing::debug!(%error, "another daemon sends output for some time that is not needed");
            }
        });
    }
}

/// Reads a message, and advances the offset of its output.
fn read_message(message: Message, offsets: &mut [u64; 2]) -> FeedMessage {
    if message.status == Some(StatusCode::NO_RESPONDERS) {
        return FeedMessage::Broken(RETRY_INTERVAL);
    }
    let event = match WatchJobResponse::decode(message.payload) {
        Ok(response) => response.event,
        Err(_) => return FeedMessage::Broken(RETRY_INTERVAL),
    };
    let [stdout, stderr] = offsets;
    match event {
        Some(Event::Stdout(output)) => accept_output(output, stdout, Event::Stdout),
        Some(Event::Stderr(output)) => accept_output(output, stderr, Event::Stderr),
        Some(Event::Job(_)) => FeedMessage::Complete,
        Some(Event::KeepAlive(_)) | None => FeedMessage::Nothing,
    }
}

/// Accepts the next bytes. Without the bytes before them, the daemon must be asked again.
fn accept_output(output: JobOutput, next: &mut u64, event: fn(JobOutput) -> Event) -> FeedMessage {
    let end = output.offset.saturating_add(output.data.len() as u64);
    if output.offset > *next {
        return FeedMessage::Broken(Duration::ZERO);
    }
    if end <= *next {
        return FeedMessage::Nothing;
    }
    let known = usize::try_from(*next - output.offset).unwrap_or(usize::MAX);
    let data = output.data.slice(known.min(output.data.len())..);
    let output = JobOutput { offset: *next, data };
    *next = end;
    FeedMessage::Output(Box::new(event(output)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepted(offset: u64, data: &'static [u8], next: &mut u64) -> Option<(u64, Vec<u8>)> {
        let output = JobOutput { offset, data: data.into() };
        let FeedMessage::Output(event) = accept_output(output, next, Event::Stdout) else {
            return None;
        };
        match *event {
            Event::Stdout(output) => Some((output.offset, output.data.to_vec())),
            Event::Job(_) | Event::Stderr(_) | Event::KeepAlive(_) => None,
        }
    }

    #[test]
    fn output_is_accepted_once_and_in_order() {
        let mut next = 2;
        assert_eq!(accepted(0, b"abcd", &mut next), Some((2, b"cd".to_vec())));
        assert_eq!(accepted(0, b"abcd", &mut next), None);
        assert_eq!(next, 4);

        let gap = JobOutput { offset: 5, data: b"f".as_slice().into() };
        let received = accept_output(gap, &mut next, Event::Stdout);
        assert!(matches!(received, FeedMessage::Broken(delay) if delay.is_zero()));
        assert_eq!(next, 4);
        assert_eq!(accepted(4, b"e", &mut next), Some((4, b"e".to_vec())));
    }
}
