//! One stream of events, no faster than its client takes them.

use std::{future, sync::Arc, time::Duration};

use prost_types::Timestamp;
use serde_json::Value as Json;
use tokio::{
    sync::{mpsc::Sender, watch::Receiver},
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::watch_limiter::EventWatchPermit;
use crate::{
    api::{
        json_struct::json_to_struct,
        v1::{
            CallResultGap, Event, EventGap, EventKeepAlive, ResultAbsence, WatchEventsResponse,
            watch_events_response::Item,
        },
    },
    daemon::{
        error::{Error, Reason},
        grpc::response_stream::{
            CLIENT_READ_TIMEOUT, RESUME_HINT, ResponseStream, StreamItem, StreamTerminator,
            response_channel, send_or_timeout,
        },
        pipeline::{Pipeline, access::principal::Principal, results::ResultSubscription},
        store::{
            follower::{Follower, FollowerItem, SequencePastEnd},
            session::SessionId,
        },
        task,
        tool::{Tool as _, write_file::WriteFile},
    },
};

/// Messages that are on their way to a client that does not take them.
const STREAM_BUFFER_MESSAGES: usize = 4;

/// How long the last events may take when the daemon ends: less than it gives its connections.
const SHUTDOWN_FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Type of the event of a call that has ended.
pub(super) const FINISHED: &str = "tool_call_finished";

/// Where events come from.
#[derive(Debug)]
pub(super) enum EventSource {
    /// From a session.
    Session(Follower),
    /// It is not there yet; this changes when it may be.
    NotCreated(Receiver<u64>),
}

/// A stream that goes on.
pub(super) struct EventStream {
    pub(super) pipeline: Arc<Pipeline>,
    pub(super) source: EventSource,
    /// Number of the record behind which it begins.
    pub(super) after: u64,
    /// Whether that is said first.
    pub(super) announce_position: bool,
    pub(super) workspace: String,
    pub(super) session: SessionId,
    /// Who watches: of tools that its key is not for, nothing is sent.
    pub(super) principal: Arc<Principal>,
    /// Of what is sent; all, where there are none.
    pub(super) types: Vec<String>,
    /// Results of calls, if they were asked for.
    pub(super) results: Option<WatchedResults>,
    /// Whether what is yet to come is waited for.
    pub(super) follow: bool,
    /// How long nothing is said before that is said.
    pub(super) keep_alive_interval: Duration,
    pub(super) deadline: Option<std::time::Instant>,
    pub(super) call_id: String,
    pub(super) _permit: Arc<EventWatchPermit>,
}

/// Results of calls, for one stream.
pub(super) struct WatchedResults {
    pub(super) subscription: ResultSubscription,
    /// Number of the last record before the stream: of calls that had ended then, there are no results.
    pub(super) past: u64,
}

/// The side of a stream to which messages go.
struct EventSender {
    sender: Sender<StreamItem<WatchEventsResponse>>,
    /// When something was last sent.
    last_sent: Instant,
}

/// Why a stream ends.
enum EventStreamEnd {
    /// All was said, or nobody listens any more.
    Closed,
    Failed(Error),
}

impl EventStream {
    /// Begins to send.
    pub(super) fn spawn(self) -> ResponseStream<WatchEventsResponse> {
        let (sender, last, answers) = response_channel(STREAM_BUFFER_MESSAGES, &self.call_id);
        // Not waited for when the daemon drains: it has no work of its own to end.
        task::spawn("event stream", self.run(sender, last));
        answers
    }

    async fn run(
        self,
        sender: Sender<StreamItem<WatchEventsResponse>>,
        last: StreamTerminator<WatchEventsResponse>,
    ) {
        let end = self.pipeline.shutdown.terminate_token();
        let deadline = self.deadline;
        let gone = sender.clone();
        let client = EventSender { sender, last_sent: Instant::now() };
        let last_words = async {
            end.cancelled().await;
            sleep(SHUTDOWN_FLUSH_TIMEOUT).await;
        };
        let error = tokio::select! {
            biased;
            () = gone.closed() => return,
            () = task::sleep_until(deadline) => deadline_error(),
            end = self.forward_events(client, &end) => match end {
                EventStreamEnd::Closed => return,
                EventStreamEnd::Failed(error) => error,
            },
            () = last_words => draining_error(),
        };
        last.fail(&error);
    }

    async fn forward_events(
        mut self,
        mut client: EventSender,
        end: &CancellationToken,
    ) -> EventStreamEnd {
        if self.announce_position
            && let Err(end) = client.send(keep_alive(self.after)).await
        {
            return end;
        }
        loop {
            let (source, waits) = match self.source {
                EventSource::Session(follower) => {
                    let read = task::spawn_blocking(move || {
                        let mut follower = follower;
                        let read = follower.read();
                        (follower, read)
                    });
                    let (follower, read) = match read.await {
                        Ok((follower, Ok(read))) => (follower, read),
                        Ok((_, Err(error))) => {
                            return EventStreamEnd::Failed(Error::internal(error));
                        }
                        Err(error) => return EventStreamEnd::Failed(Error::internal(error)),
                    };
                    let waits = read.is_empty();
                    let items = read.into_iter();
                    let past = self.results.as_ref().map(|results| results.past);
                    let wire = |item| wire_event(item, &self.types, &self.principal, past);
                    for item in items.filter_map(wire) {
                        if let Err(end) = client.send(item).await {
                            return end;
                        }
                    }
                    let last = follower.last_sequence();
                    while let Some(results) = &mut self.results
                        && let Some(item) = results.due(&self.pipeline, &self.principal, last)
                    {
                        if let Err(end) = client.send(item).await {
                            return end;
                        }
                    }
                    (EventSource::Session(follower), waits)
                }
                EventSource::NotCreated(more) => (EventSource::NotCreated(more), true),
            };
            self.source = source;
            if waits && !self.follow {
                return EventStreamEnd::Closed;
            }
            let until = client.last_sent + self.keep_alive_interval;
            let last_sequence = match &mut self.source {
                // Records that nobody asked for may go on coming for long.
                EventSource::Session(_) if !waits && until > Instant::now() => continue,
                EventSource::Session(follower) => tokio::select! {
                    biased;
                    () = follower.wait_for_more() => continue,
                    () = more_results(&mut self.results) => continue,
                    () = end.cancelled() => return EventStreamEnd::Failed(draining_error()),
                    () = sleep_until(until) => follower.last_sequence(),
                },
                EventSource::NotCreated(more) => {
                    // What is opened from here on is looked for again.
                    drop(more.borrow_and_update());
                    let sessions = Arc::clone(self.pipeline.state_dir.sessions());
                    if sessions.is_indexed(&self.workspace, &self.session) {
                        let (workspace, id) = (self.workspace.clone(), self.session.clone());
                        let existing = move || sessions.open_existing(&workspace, &id);
                        match task::spawn_blocking(existing).await {
                            Ok(Ok(Some(session))) => match Follower::new(session, self.after) {
                                Ok(follower) => {
                                    self.source = EventSource::Session(follower);
                                    continue;
                                }
                                Err(behind) => {
                                    return EventStreamEnd::Failed(sequence_past_end_error(
                                        self.after,
                                    )(
                                        behind
                                    ));
                                }
                            },
                            // Removed at this moment.
                            Ok(Ok(None)) => {}
                            Ok(Err(error)) => {
                                return EventStreamEnd::Failed(Error::internal(error));
                            }
                            Err(error) => return EventStreamEnd::Failed(Error::internal(error)),
                        }
                    }
                    tokio::select! {
                        biased;
                        _opened = more.changed() => continue,
                        () = end.cancelled() => return EventStreamEnd::Failed(draining_error()),
                        () = sleep_until(until) => self.after,
                    }
                }
            };
            if let Err(end) = client.send(keep_alive(last_sequence)).await {
                return end;
            }
        }
    }
}

impl WatchedResults {
    /// The next result that the watcher may see, once the records up to this number were sent.
    fn due(
        &mut self,
        pipeline: &Pipeline,
        principal: &Principal,
        last_sequence: u64,
    ) -> Option<Item> {
        loop {
            match self.subscription.take_due(last_sequence)? {
                Err(results) => return Some(Item::CallResultGap(CallResultGap { results })),
                Ok(published) => {
                    if let Some(result) = pipeline.result_for(principal, &published) {
                        return Some(Item::CallResult(result));
                    }
                }
            }
        }
    }
}

/// Waits for a result, if they were asked for.
async fn more_results(results: &mut Option<WatchedResults>) {
    match results {
        Some(results) => results.subscription.wait_for_next().await,
        None => future::pending().await,
    }
}

/// Whether events of this type are to be sent.
pub(super) fn asks_for(types: &[String], kind: &str) -> bool {
    types.is_empty() || types.iter().any(|asked| asked == kind)
}

impl EventSender {
    async fn send(&mut self, item: Item) -> Result<(), EventStreamEnd> {
        let item = WatchEventsResponse { item: Some(item) };
        let told = send_or_timeout(&self.sender, item, CLIENT_READ_TIMEOUT, RESUME_HINT).await;
        self.last_sent = Instant::now();
        told.map_err(|error| error.map_or(EventStreamEnd::Closed, EventStreamEnd::Failed))
    }
}

fn keep_alive(last_sequence: u64) -> Item {
    Item::KeepAlive(EventKeepAlive { last_sequence })
}

/// What came next, if it was asked for and may be seen. Of calls that ended in records up to `past`, results are not
/// there, where they were asked for.
fn wire_event(
    followed: FollowerItem,
    types: &[String],
    principal: &Principal,
    past: Option<u64>,
) -> Option<Item> {
    let (sequence, record) = match followed {
        FollowerItem::Gap { first_sequence } => {
            return Some(Item::Gap(EventGap { first_sequence }));
        }
        FollowerItem::Record { sequence, record } => (sequence, record),
    };
    let text = |name: &str| {
        let text = record.get(name).and_then(Json::as_str);
        text.unwrap_or_default().to_owned()
    };
    let kind = text("event");
    if !asks_for(types, &kind) {
        return None;
    }
    let result_absence = match past {
        Some(past) if kind == FINISHED && sequence <= past => ResultAbsence::Past,
        Some(_) | None => ResultAbsence::Unspecified,
    };
    // One without a tool is for keys that are for all.
    let tool = text("tool");
    if principal.require_tool(required_tool(&tool)).is_err() {
        return None;
    }
    Some(Item::Event(Event {
        sequence,
        step: record.get("step").and_then(Json::as_u64).unwrap_or_default(),
        r#type: kind,
        time: text("time").parse::<Timestamp>().ok(),
        tool,
        call_id: text("call_id"),
        request_id: text("request_id"),
        record: Some(json_to_struct(record)),
        result_absence: result_absence.into(),
    }))
}

/// The tool that a key must be for who makes the calls that are recorded so.
fn required_tool(recorded: &str) -> &str {
    match recorded {
        "upload" => WriteFile::NAME,
        tool => tool,
    }
}

fn deadline_error() -> Error {
    let text = "the deadline of this stream has passed: go on behind the last record that came";
    Error::new(Reason::Timeout, text)
}

fn draining_error() -> Error {
    let text =
        "the daemon is shutting down: go on behind the last record that came when it is back";
    Error::new(Reason::Draining, text)
}

/// A number behind the last record.
pub(super) fn sequence_past_end_error(asked: u64) -> impl Fn(SequencePastEnd) -> Error {
    move |SequencePastEnd(written)| {
        let text = format!(
            "is {asked}, but this session has only got to {written}: is it another, or was it removed since?"
        );
        Error::invalid_field("after_sequence", text)
    }
}
