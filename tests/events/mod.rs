//! What goes on in sessions, for those who watch: from any record on, each once, over restarts and while
//! old ones are removed; the last command; and what is listed.

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
use serde_json::{Value, json};
use tonic::{Request, Status, Streaming};

use crate::support::{Daemon, Refusal, promptly, with_metadata};

/// Somebody who watches.
struct EventWatch(Streaming<WatchEventsResponse>);

impl EventWatch {
    /// Watches the default session.
    async fn from(daemon: &Daemon, after_sequence: u64) -> Self {
        Self::of(daemon, watch_request(after_sequence)).await
    }

    /// Watches as is asked, on a connection of its own.
    async fn of(daemon: &Daemon, request: impl tonic::IntoRequest<WatchEventsRequest>) -> Self {
        Self::try_of(daemon, request).await.unwrap()
    }

    async fn try_of(
        daemon: &Daemon,
        request: impl tonic::IntoRequest<WatchEventsRequest>,
    ) -> Result<Self, Refusal> {
        let mut client = EventServiceClient::new(daemon.new_connection());
        let answer = promptly("it is answered", client.watch_events(request)).await;
        let stream = answer.map_err(|status| Refusal::from_status(&status))?;
        Ok(Self(stream.into_inner()))
    }

    /// What comes next; nothing at the end.
    async fn try_next(&mut self) -> Result<Option<Item>, Status> {
        let next = promptly("something comes", self.0.message()).await?;
        Ok(next.map(|response| response.item.unwrap()))
    }

    async fn next(&mut self) -> Option<Item> {
        self.try_next().await.unwrap()
    }

    /// The next event.
    async fn next_event(&mut self) -> Event {
        match self.next().await {
            Some(Item::Event(event)) => event,
            other => panic!("an event, and not {other:?}"),
        }
    }

    /// All events up to the end of the stream.
    async fn remaining_events(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        while let Some(item) = self.next().await {
            match item {
                Item::Event(event) => events.push(event),
                other => panic!("an event, and not {other:?}"),
            }
        }
        events
    }
}

fn watch_request(after_sequence: u64) -> WatchEventsRequest {
    WatchEventsRequest { after_sequence, ..WatchEventsRequest::default() }
}

/// What is there, without waiting for more.
fn snapshot_request(after_sequence: u64) -> WatchEventsRequest {
    WatchEventsRequest { follow: Some(false), ..watch_request(after_sequence) }
}

fn in_session<T>(session: &str, message: T) -> Request<T> {
    with_metadata("jig-session", session, message)
}

/// Makes a directory: a call with two records.
async fn make_directory(daemon: &Daemon, path: &str) {
    let request = CreateDirectoryRequest { path: path.to_owned() };
    daemon.tools().create_directory(request).await.unwrap();
}

/// The records that a session has.
pub(crate) fn records(daemon: &Daemon, session: &str) -> Vec<Value> {
    let path = format!("sessions/{session}/events.jsonl");
    let text = fs::read_to_string(daemon.state_dir().join(path)).unwrap();
    let lines = text.lines();
    lines.map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The record that an event carries.
fn event_record(event: &Event) -> Value {
    let record = event.record.clone().unwrap();
    let record = json_of(prost_types::value::Kind::StructValue(record));
    assert_eq!(record["sequence"], event.sequence);
    assert_eq!(record["step"], event.step);
    assert_eq!(record["event"], event.r#type);
    assert_eq!(record["tool"], event.tool);
    assert_eq!(record["call_id"], event.call_id);
    assert_eq!(record["request_id"], event.request_id);
    assert_eq!(record["time"], event.time.unwrap().to_string());
    record
}

fn json_of(value: prost_types::value::Kind) -> Value {
    use prost_types::value::Kind;

    let inner = |value: prost_types::Value| json_of(value.kind.unwrap());
    match value {
        Kind::NullValue(_) => Value::Null,
        Kind::NumberValue(number) if number.fract() == 0.0 => {
            #[expect(clippy::cast_possible_truncation, reason = "it has no fraction")]
            let number = number as i64;
            json!(number)
        }
        Kind::NumberValue(number) => json!(number),
        Kind::StringValue(text) => text.into(),
        Kind::BoolValue(flag) => flag.into(),
        Kind::StructValue(object) => {
            let fields = object.fields.into_iter();
            Value::Object(fields.map(|(name, value)| (name, inner(value))).collect())
        }
        Kind::ListValue(list) => list.values.into_iter().map(inner).collect(),
    }
}

/// The numbers of events.
fn sequences(events: &[Event]) -> Vec<u64> {
    events.iter().map(|event| event.sequence).collect()
}
