//! The messages for watchers of a session, from the items of `WatchEvents`.

use std::{
    collections::VecDeque,
    pin::Pin,
    task::{Context, Poll, ready},
};

use axum::response::sse::Event as SseEvent;
use prost_types::value::Kind;
use serde_json::{Value, json};
use tokio_stream::Stream;
use tonic::{Code, Status};

use super::position::{EventPosition, Replay};
use crate::{
    api::{
        json_struct::struct_to_json,
        v1::{CallResult, Event, ResultAbsence, WatchEventsResponse, watch_events_response::Item},
    },
    daemon::http::rest_error::RestError,
};

/// A message for the watcher.
#[derive(Debug)]
pub(super) struct EventMessage {
    name: String,
    payload: Value,
    /// Number of the record, if it is one.
    sequence: Option<u64>,
    /// How far a client has read that has this message.
    id: Option<String>,
    /// Why the stream ends with this message.
    pub(super) end: Option<Code>,
}

impl EventMessage {
    fn new(name: &str, payload: Value) -> Self {
        Self { name: name.to_owned(), payload, sequence: None, id: None, end: None }
    }

    pub(super) fn into_json(self) -> Value {
        let mut message = json!({ "type": self.name, "payload": self.payload });
        if let (Some(sequence), Some(fields)) = (self.sequence, message.as_object_mut()) {
            fields.insert("sequence".to_owned(), sequence.into());
        }
        message
    }

    pub(super) fn into_sse(self) -> SseEvent {
        let event = SseEvent::default().event(&self.name);
        let event = match &self.id {
            Some(id) => event.id(id),
            None => event,
        };
        event.data(self.into_json().to_string())
    }
}

/// The messages of a stream of the contract.
pub(super) struct EventMessages<S> {
    responses: S,
    position: EventPosition,
    /// Messages of the last response that are still to send.
    ready: VecDeque<EventMessage>,
}

impl<S> EventMessages<S> {
    pub(super) fn new(responses: S, position: EventPosition) -> Self {
        Self { responses, position, ready: VecDeque::new() }
    }
}

impl<S> Stream for EventMessages<S>
where
    S: Stream<Item = Result<WatchEventsResponse, Status>> + Unpin,
{
    type Item = EventMessage;

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<EventMessage>> {
        let this = &mut *self;
        loop {
            if let Some(message) = this.ready.pop_front() {
                return Poll::Ready(Some(message));
            }
            let Some(response) = ready!(Pin::new(&mut this.responses).poll_next(context)) else {
                return Poll::Ready(None);
            };
            this.ready.extend(event_messages(response, &mut this.position));
        }
    }
}

/// The messages of an item of the contract, for a client at `position`.
fn event_messages(
    response: Result<WatchEventsResponse, Status>,
    position: &mut EventPosition,
) -> Vec<EventMessage> {
    match response.map(|response| response.item) {
        Ok(Some(Item::Event(event))) => record_messages(event, position),
        Ok(Some(Item::CallResult(result))) => {
            position.result(&result);
            vec![result_message(result_payload(result), position)]
        }
        Ok(Some(Item::Gap(gap))) => {
            let (lost_results, has_lost_records) = position.gap(gap.first_sequence);
            let gap = json!({ "first_sequence": gap.first_sequence });
            let records = has_lost_records.then(|| EventMessage::new("gap", gap));
            let results = (lost_results > 0).then(|| result_gap_message(lost_results as u64));
            results.into_iter().chain(records).collect()
        }
        Ok(Some(Item::CallResultGap(gap))) => vec![result_gap_message(gap.results)],
        Ok(Some(Item::KeepAlive(keep_alive))) => {
            position.advance(keep_alive.last_sequence);
            Vec::new()
        }
        Ok(None) => Vec::new(),
        Err(status) => {
            let end = Some(status.code());
            let error = EventMessage::new("error", RestError::from(status).to_json());
            vec![EventMessage { end, ..error }]
        }
    }
}

/// The message of a record, and the result of its call if no other message has it.
fn record_messages(event: Event, position: &mut EventPosition) -> Vec<EventMessage> {
    let replay = position.record(&event);
    let absence = event.result_absence();
    let result = (absence != ResultAbsence::Unspecified)
        .then(|| result_message(absent_result_payload(&event, absence), position));
    let record = match replay {
        Replay::Skip => return Vec::new(),
        Replay::ResultOnly => None,
        // A client that has the record alone gets it again, with the result.
        Replay::Record => {
            let id = position.to_id().filter(|_| result.is_none());
            Some(EventMessage { id, ..record_message(event) })
        }
    };
    record.into_iter().chain(result).collect()
}

fn result_message(payload: Value, position: &EventPosition) -> EventMessage {
    EventMessage { id: position.to_id(), ..EventMessage::new("agent:tool_result", payload) }
}

fn result_gap_message(results: u64) -> EventMessage {
    EventMessage::new("call_result_gap", json!({ "results": results }))
}

/// The payload of the result that no item of the contract has.
fn absent_result_payload(event: &Event, absence: ResultAbsence) -> Value {
    let status = event.record.as_ref().and_then(|record| record.fields.get("status"));
    let is_error = status.is_some_and(
        |status| matches!(&status.kind, Some(Kind::StringValue(status)) if status == "error"),
    );
    result_payload(CallResult {
        request_id: event.request_id.clone(),
        is_error,
        absence: absence.into(),
        ..CallResult::default()
    })
}

fn record_message(event: Event) -> EventMessage {
    let mut record = event.record.map(struct_to_json).unwrap_or_default();
    let (name, payload) = if event.r#type == "tool_call_started" {
        let called_name = record.remove("called_name");
        let payload = json!({
            "id": event.request_id,
            "name": called_name.unwrap_or(Value::String(event.tool)),
            "input": record.remove("params").unwrap_or_else(|| json!({})),
        });
        ("agent:tool_use".to_owned(), payload)
    } else {
        (event.r#type, Value::Object(record))
    };
    EventMessage { sequence: Some(event.sequence), ..EventMessage::new(&name, payload) }
}

/// The payload of a result. `absence` says why there is no content.
fn result_payload(result: CallResult) -> Value {
    let absence = result.absence();
    let mut payload = json!({
        "tool_use_id": result.request_id,
        "content": result.content,
        "is_error": result.is_error,
    });
    let extra = [
        result.truncated.then_some(("truncated", Value::Bool(true))),
        (absence != ResultAbsence::Unspecified).then(|| ("absence", absence.as_str_name().into())),
    ];
    if let Some(fields) = payload.as_object_mut() {
        fields.extend(extra.into_iter().flatten().map(|(name, value)| (name.to_owned(), value)));
    }
    payload
}
