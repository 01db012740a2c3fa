//! Events of sessions: a watch starts after any record and gets each record once, across restarts
//! and the removal of old ones. Also the last command, and lists of sessions and artifacts.

mod client;
mod full_disk;
mod last_command;
mod listing;
mod results;
mod resume;
mod retention;
mod visibility;
mod watchers;

use std::fs;

use jig::api::v1::{
    CreateDirectoryRequest, Event, WatchEventsRequest, WatchEventsResponse,
    event_service_client::EventServiceClient, watch_events_response::Item,
};
use serde_json::Value;
use tonic::{Request, Status, Streaming};

use crate::{
    invoke::json_of,
    support::{Daemon, Refusal, promptly, with_metadata},
};

/// A watch of a session.
struct EventWatch(Streaming<WatchEventsResponse>);

impl EventWatch {
    /// Watches the default session.
    async fn from(daemon: &Daemon, after_sequence: u64) -> Self {
        Self::of(daemon, watch_request(after_sequence)).await
    }

    /// Watches on a connection of its own.
    async fn of(daemon: &Daemon, request: impl tonic::IntoRequest<WatchEventsRequest>) -> Self {
        Self::try_of(daemon, request).await.unwrap()
    }

    async fn try_of(
        daemon: &Daemon,
        request: impl tonic::IntoRequest<WatchEventsRequest>,
    ) -> Result<Self, Refusal> {
        let mut client = EventServiceClient::new(daemon.new_connection());
        let answer = promptly("the daemon opens the watch", client.watch_events(request)).await;
        let stream = answer.map_err(|status| Refusal::from_status(&status))?;
        Ok(Self(stream.into_inner()))
    }

    /// The next item; nothing at the end of the stream.
    async fn try_next(&mut self) -> Result<Option<Item>, Status> {
        let next = promptly("the watch continues or ends", self.0.message()).await?;
        Ok(next.map(|response| response.item.unwrap()))
    }

    async fn next(&mut self) -> Option<Item> {
        self.try_next().await.unwrap()
    }

    async fn next_event(&mut self) -> Event {
        match self.next().await {
            Some(Item::Event(event)) => event,
            item => panic!("expected an event, got {item:?}"),
        }
    }

    /// All events up to the end of the stream.
    async fn remaining_events(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        while let Some(item) = self.next().await {
            match item {
                Item::Event(event) => events.push(event),
                item => panic!("expected an event, got {item:?}"),
            }
        }
        events
    }
}

fn watch_request(after_sequence: u64) -> WatchEventsRequest {
    WatchEventsRequest { after_sequence, ..WatchEventsRequest::default() }
}

/// The existing records, without following new ones.
fn snapshot_request(after_sequence: u64) -> WatchEventsRequest {
    WatchEventsRequest { follow: Some(false), ..watch_request(after_sequence) }
}

pub(crate) fn in_session<T>(session: &str, message: T) -> Request<T> {
    with_metadata("jig-session", session, message)
}

/// Makes a directory: a call with two records.
async fn make_directory(daemon: &Daemon, path: &str) {
    let request = CreateDirectoryRequest { path: path.to_owned() };
    daemon.tools().create_directory(request).await.unwrap();
}

/// The records of a session.
pub(crate) fn records(daemon: &Daemon, session: &str) -> Vec<Value> {
    let path = format!("sessions/{session}/events.jsonl");
    let text = fs::read_to_string(daemon.state_dir().join(path)).unwrap();
    let lines = text.lines();
    lines.map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The record that an event carries.
fn event_record(event: &Event) -> Value {
    let record = json_of(event.record.as_ref().unwrap());
    assert_eq!(record["sequence"], event.sequence);
    assert_eq!(record["step"], event.step);
    assert_eq!(record["event"], event.r#type);
    assert_eq!(record["tool"], event.tool);
    assert_eq!(record["call_id"], event.call_id);
    assert_eq!(record["request_id"], event.request_id);
    assert_eq!(record["time"], event.time.unwrap().to_string());

    record
}

fn sequences(events: &[Event]) -> Vec<u64> {
    events.iter().map(|event| event.sequence).collect()
}
