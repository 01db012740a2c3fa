//! A stream that sends the events of a session, at the speed of its client.

use std::{convert::Infallible, future, sync::Arc, time::Duration};

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
        tool::{Tool as _, WorkspaceContext, write_file::WriteFile},
    },
};

/// Messages buffered for a slow client.
const STREAM_BUFFER_MESSAGES: usize = 4;

/// How long sending the last events may take at shutdown. Less than the server gives its
/// connections.
const SHUTDOWN_FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Event type of a call that has ended.
pub(super) const CALL_FINISHED: &str = "tool_call_finished";

/// Where the events of a stream come from.
#[derive(Debug)]
pub(super) enum EventSource {
    Session(Follower),
    /// The session does not exist yet. The value changes when any session is opened.
    NotCreated(Receiver<u64>),
}

/// An open stream of events.
pub(super) struct EventStream {
    pub(super) pipeline: Arc<Pipeline>,
    /// The stream starts after the record with this sequence number.
    pub(super) after: u64,
    /// Whether to send `after` first, as a keep-alive.
    pub(super) announce_position: bool,
    pub(super) workspace: Arc<WorkspaceContext>,
    pub(super) session: SessionId,
    /// The watching caller. The stream omits events of tools that its key does not permit.
    pub(super) principal: Arc<Principal>,
    /// Event types to send; all if empty.
    pub(super) types: Vec<String>,
    /// Set if the client requested the results of calls.
    pub(super) results: Option<WatchedResults>,
    /// Whether to wait for future events.
    pub(super) follow: bool,
    /// How long the stream may be silent before it sends a keep-alive.
    pub(super) keep_alive_interval: Duration,
    pub(super) deadline: Option<std::time::Instant>,
    pub(super) call_id: String,
    pub(super) _permit: Arc<EventWatchPermit>,
}

/// Results of calls, for one stream.
pub(super) struct WatchedResults {
    pub(super) subscription: ResultSubscription,
    /// Last sequence number before the stream. Calls that ended up to it have no results here.
    pub(super) past: u64,
}

/// The sending end of a stream.
struct EventSender {
    sender: Sender<StreamItem<WatchEventsResponse>>,
    last_sent: Instant,
}

/// Why a stream ends.
enum EventStreamEnd {
    /// Everything was sent, or the client has disconnected.
    Closed,
    /// The client gets this error.
    Failed(Error),
}

impl EventStreamEnd {
    fn internal(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Failed(Error::internal(error))
    }
}

impl EventStream {
    /// Starts a task that sends the events of `source`.
    pub(super) fn spawn(self, source: EventSource) -> ResponseStream<WatchEventsResponse> {
        let (sender, terminator, responses) =
            response_channel(STREAM_BUFFER_MESSAGES, &self.call_id);
        // Not tracked: the drain waits for calls only, and the stream runs none.
        task::spawn("event stream", self.run(source, sender, terminator));
        responses
    }

    async fn run(
        self,
        source: EventSource,
        sender: Sender<StreamItem<WatchEventsResponse>>,
        terminator: StreamTerminator<WatchEventsResponse>,
    ) {
        let terminate = self.pipeline.shutdown.terminate_token();
        let (deadline, workspace) = (self.deadline, Arc::clone(&self.workspace));
        let client_gone = sender.clone();
        let client = EventSender { sender, last_sent: Instant::now() };
        let flush_timeout = async {
            terminate.cancelled().await;
            sleep(SHUTDOWN_FLUSH_TIMEOUT).await;
        };

        let error = tokio::select! {
            biased;
            () = client_gone.closed() => return,
            // A stream that waits for the session would find that of another workspace.
            () = workspace.wait_for_deletion() => workspace.deleted_error(),
            () = task::sleep_until(deadline) => deadline_error(),
            Err(end) = self.forward_events(source, client, &terminate) => match end {
                EventStreamEnd::Closed => return,
                EventStreamEnd::Failed(error) => error,
            },
            () = flush_timeout => draining_error(),
        };
        terminator.fail(&error);
    }

    /// Sends events until the stream ends. Never returns `Ok`.
    async fn forward_events(
        mut self,
        source: EventSource,
        mut client: EventSender,
        terminate: &CancellationToken,
    ) -> Result<Infallible, EventStreamEnd> {
        if self.announce_position {
            client.send(keep_alive(self.after)).await?;
        }
        let mut follower = match source {
            EventSource::Session(follower) => follower,
            EventSource::NotCreated(opened) => {
                self.wait_until_created(opened, &mut client, terminate).await?
            }
        };

        loop {
            let is_caught_up;
            (follower, is_caught_up) = self.send_available(follower, &mut client).await?;
            if is_caught_up && !self.follow {
                return Err(EventStreamEnd::Closed);
            }

            // Many records in a row may be filtered out: then the keep-alive is due before the end.
            let keep_alive_at = client.last_sent + self.keep_alive_interval;
            if !is_caught_up && keep_alive_at > Instant::now() {
                continue;
            }
            tokio::select! {
                biased;
                () = follower.wait_for_more() => {}
                () = wait_for_result(&mut self.results) => {}
                () = terminate.cancelled() => return Err(EventStreamEnd::Failed(draining_error())),
                () = sleep_until(keep_alive_at) => {
                    client.send(keep_alive(follower.last_sequence())).await?;
                }
            }
        }
    }

    /// Waits until the session is created, and sends keep-alives meanwhile.
    async fn wait_until_created(
        &self,
        mut opened: Receiver<u64>,
        client: &mut EventSender,
        terminate: &CancellationToken,
    ) -> Result<Follower, EventStreamEnd> {
        if !self.follow {
            return Err(EventStreamEnd::Closed);
        }

        loop {
            // Mark the value as seen before the lookup: a session opened later changes it again.
            drop(opened.borrow_and_update());
            if let Some(follower) = self.open_session().await? {
                return Ok(follower);
            }
            tokio::select! {
                biased;
                _opened = opened.changed() => {}
                () = terminate.cancelled() => return Err(EventStreamEnd::Failed(draining_error())),
                () = sleep_until(client.last_sent + self.keep_alive_interval) => {
                    client.send(keep_alive(self.after)).await?;
                }
            }
        }
    }

    /// Opens the session; `None` if it does not exist.
    async fn open_session(&self) -> Result<Option<Follower>, EventStreamEnd> {
        let sessions = Arc::clone(self.pipeline.state_dir.sessions());
        if !sessions.is_indexed(self.workspace.workspace.name(), &self.session) {
            return Ok(None);
        }

        let (workspace, id) = (Arc::clone(&self.workspace), self.session.clone());
        let open = move || sessions.open_existing(workspace.workspace.name(), &id);
        let session = task::spawn_blocking(open)
            .await
            .map_err(EventStreamEnd::internal)?
            .map_err(EventStreamEnd::internal)?;
        self.workspace.require_undeleted().map_err(EventStreamEnd::Failed)?;
        // Not found: it was removed after the index was read.
        let Some(session) = session else { return Ok(None) };
        let follower = Follower::new(session, self.after);
        let past_end = |error| EventStreamEnd::Failed(sequence_past_end_error(self.after, error));
        follower.map(Some).map_err(past_end)
    }

    /// Sends the records and results that are available. Returns whether there was no new record.
    async fn send_available(
        &mut self,
        mut follower: Follower,
        client: &mut EventSender,
    ) -> Result<(Follower, bool), EventStreamEnd> {
        let read = task::spawn_blocking(move || {
            let read = follower.read();
            (follower, read)
        });
        let (follower, read) = read.await.map_err(EventStreamEnd::internal)?;
        let items = read.map_err(EventStreamEnd::internal)?;
        let is_caught_up = items.is_empty();

        let past = self.results.as_ref().map(|results| results.past);
        for item in items {
            if let Some(item) = wire_event(item, &self.types, &self.principal, past) {
                client.send(item).await?;
            }
        }
        let last_sequence = follower.last_sequence();
        while let Some(results) = &mut self.results
            && let Some(item) = results.take_due(&self.pipeline, &self.principal, last_sequence)
        {
            client.send(item).await?;
        }
        Ok((follower, is_caught_up))
    }
}

impl WatchedResults {
    /// Takes the next visible result of a call whose records were sent, up to `last_sequence`.
    fn take_due(
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

/// Waits for a result; forever if the client requested none.
async fn wait_for_result(results: &mut Option<WatchedResults>) {
    match results {
        Some(results) => results.subscription.wait_for_next().await,
        None => future::pending().await,
    }
}

/// Whether a filter includes events of this type. An empty filter includes all.
pub(super) fn includes_type(types: &[String], kind: &str) -> bool {
    types.is_empty() || types.iter().any(|included| included == kind)
}

impl EventSender {
    async fn send(&mut self, item: Item) -> Result<(), EventStreamEnd> {
        let item = WatchEventsResponse { item: Some(item) };
        let sent = send_or_timeout(&self.sender, item, CLIENT_READ_TIMEOUT, RESUME_HINT).await;
        self.last_sent = Instant::now();
        sent.map_err(|error| error.map_or(EventStreamEnd::Closed, EventStreamEnd::Failed))
    }
}

fn keep_alive(last_sequence: u64) -> Item {
    Item::KeepAlive(EventKeepAlive { last_sequence })
}

/// Converts an item, unless the filter excludes it or the key does not permit its tool.
///
/// `past` is set if the client requested results. Calls that ended in records up to it have none.
fn wire_event(
    item: FollowerItem,
    types: &[String],
    principal: &Principal,
    past: Option<u64>,
) -> Option<Item> {
    let (sequence, record) = match item {
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
    if !includes_type(types, &kind) {
        return None;
    }
    let is_by_name = record.get("by_name").is_some_and(|by_name| *by_name == true);
    let result_absence = match past {
        Some(_) if kind == CALL_FINISHED && !is_by_name => ResultAbsence::Typed,
        Some(past) if kind == CALL_FINISHED && sequence <= past => ResultAbsence::Past,
        Some(_) | None => ResultAbsence::Unspecified,
    };
    // An event without a tool needs a key that permits all tools.
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

/// The tool that a key must permit to see records of this tool.
fn required_tool(recorded: &str) -> &str {
    match recorded {
        "upload" | "upload_tree" => WriteFile::NAME,
        tool => tool,
    }
}

fn deadline_error() -> Error {
    let text = "the deadline of this stream has passed: watch again from the last record received";
    Error::new(Reason::Timeout, text)
}

fn draining_error() -> Error {
    let text =
        "the daemon is shutting down: watch again from the last record received when it is back";
    Error::new(Reason::Draining, text)
}

/// The error of a client that wants to start after a sequence number that does not exist yet.
pub(super) fn sequence_past_end_error(after: u64, SequencePastEnd(last): SequencePastEnd) -> Error {
    let text = format!(
        "is {after}, but the last record of this session is {last}: check that it is the right session and was not removed"
    );
    Error::invalid_field("after_sequence", text)
}
