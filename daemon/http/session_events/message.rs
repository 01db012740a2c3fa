//! The messages for watchers of a session, from the items of `WatchEvents`.

use axum::response::sse::Event as SseEvent;
use serde_json::{Value, json};
use tonic::Status;

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
}

impl EventMessage {
    pub(super) fn into_json(self) -> Value {
        let mut message = json!({ "type": self.name, "payload": self.payload });
        if let (Some(sequence), Some(fields)) = (self.sequence, message.as_object_mut()) {
            fields.insert("sequence".to_owned(), sequence.into());
        }
        message
    }

    pub(super) fn into_sse(self) -> SseEvent {
        let event = SseEvent::default().event(&self.name);
        let event = match self.sequence {
            Some(sequence) => event.id(sequence.to_string()),
            None => event,
        };
        event.data(self.into_json().to_string())
    }
}

/// The message of an item; `None` for a keep-alive of the contract.
pub(super) fn event_message(response: Result<WatchEventsResponse, Status>) -> Option<EventMessage> {
    let message =
        |name: &str, payload| EventMessage { name: name.to_owned(), payload, sequence: None };
    Some(match response.map(|response| response.item) {
        Ok(Some(Item::Event(event))) => record_message(event),
        Ok(Some(Item::CallResult(result))) => message("agent:tool_result", result_payload(result)),
        Ok(Some(Item::Gap(gap))) => message("gap", json!({ "first_sequence": gap.first_sequence })),
        Ok(Some(Item::CallResultGap(gap))) => {
            message("call_result_gap", json!({ "results": gap.results }))
        }
        Ok(Some(Item::KeepAlive(_)) | None) => return None,
        Err(status) => message("error", RestError::from(status).to_json()),
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
    EventMessage { name, payload, sequence: Some(event.sequence) }
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
