//! Events of a session: `GET /v1/sessions/{session}/events` as server-sent events, or as a
//! WebSocket if the request asks for an upgrade.
//!
//! Each message is `{"type", "payload"}` with the `sequence` of its record. Calls begin with
//! `agent:tool_use`, and their results are `agent:tool_result`, as document C defines them. Other
//! records have their own type, and the record as payload.

mod message;
mod position;
mod web_socket;

use axum::{
    Router,
    extract::{
        State,
        ws::{WebSocketUpgrade, rejection::WebSocketUpgradeRejection},
    },
    response::Response,
    routing::get,
};
use http::{HeaderMap, header::UPGRADE};
use serde::Deserialize;
use serde_json::Map;
use tokio_stream::StreamExt as _;

pub(super) use self::web_socket::accept_key_of_protocol;
use self::{
    message::{EventMessage, EventMessages},
    position::EventPosition,
};
use super::{
    event_stream::{event_stream, last_event_id},
    grpc_caller::{GrpcCaller, HttpService},
    rest_error::RestError,
    rest_extract::{RestPath, RestQuery, set_metadata, set_workspace},
};
use crate::api::v1::{WatchEventsRequest, event_service_client::EventServiceClient};

pub(super) fn routes() -> Router<HttpService> {
    Router::new().route("/v1/sessions/{session}/events", get(watch))
}

/// The query: the fields of `WatchEventsRequest`. Types are separated by commas.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WatchQuery {
    after_sequence: Option<u64>,
    follow: Option<bool>,
    tail: Option<u32>,
    types: Option<String>,
    with_results: Option<bool>,
    workspace: Option<String>,
}

async fn watch(
    State(grpc): State<HttpService>,
    caller: GrpcCaller,
    RestPath(session): RestPath<String>,
    RestQuery(query): RestQuery<WatchQuery>,
    headers: HeaderMap,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, RestError> {
    let (watch, position) = watch_request(&query, &headers)?;
    let mut request = caller.request(watch);
    set_metadata(&mut request, "jig-session", &session)?;
    set_workspace(&mut request, query.workspace)?;
    // Before the upgrade, so that a rejected watch is a response with its status.
    let upgrade = match upgrade {
        Ok(_) if !web_socket::has_valid_key(&headers) => {
            let text = "'sec-websocket-key' must be 16 bytes in Base64";
            return Err(RestError::invalid(text, Map::new()));
        }
        Ok(upgrade) => Some(upgrade),
        Err(rejection) if headers.contains_key(UPGRADE) => {
            return Err(RestError::new(
                rejection.status(),
                "VALIDATION_ERROR",
                rejection.body_text(),
            ));
        }
        Err(_no_upgrade) => None,
    };
    let mut client = EventServiceClient::with_origin(grpc, caller.origin.clone())
        .max_decoding_message_size(usize::MAX);
    let responses = client.watch_events(request).await?.into_inner();

    let messages = EventMessages::new(responses, position);
    Ok(match upgrade {
        Some(upgrade) => web_socket::send(upgrade, messages),
        None => event_stream(messages.map(EventMessage::into_sse)),
    })
}

/// The request of a watch, and where it begins. A browser that reconnects sends the id of the last
/// event as `Last-Event-ID`.
fn watch_request(
    query: &WatchQuery,
    headers: &HeaderMap,
) -> Result<(WatchEventsRequest, EventPosition), RestError> {
    let resumed: Option<EventPosition> = last_event_id(headers, "4")?;
    // The stream continues after the last event, not before the last records.
    let tail = query.tail.filter(|_| resumed.is_none());
    let with_results = query.with_results.unwrap_or(true);
    let start = || EventPosition::new(query.after_sequence.unwrap_or(0));
    let position = resumed.unwrap_or_else(start).with_results(with_results);

    let types = query.types.iter().flat_map(|types| types.split(','));
    let request = WatchEventsRequest {
        after_sequence: position.after_sequence(),
        follow: query.follow,
        types: types.filter(|name| !name.is_empty()).map(str::to_owned).collect(),
        tail,
        with_results,
        ..WatchEventsRequest::default()
    };
    Ok((request, position))
}
