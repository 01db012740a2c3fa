//! Server-sent events, and where a client that reconnects continues.

use std::{convert::Infallible, str::FromStr, time::Duration};

use axum::response::{
    IntoResponse as _, Response, Sse,
    sse::{Event, KeepAlive},
};
use http::HeaderMap;
use serde_json::Map;
use tokio_stream::{Stream, StreamExt as _};

use super::rest_error::RestError;

/// Comments keep a silent stream open through proxies.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// The response that sends `events` as they come.
pub(super) fn event_stream(events: impl Stream<Item = Event> + Send + 'static) -> Response {
    let keep_alive = KeepAlive::new().interval(KEEP_ALIVE_INTERVAL);
    Sse::new(events.map(Ok::<_, Infallible>)).keep_alive(keep_alive).into_response()
}

/// The id of the last event that the client has, from the header `Last-Event-ID`. `form` describes
/// such an id.
pub(super) fn last_event_id<T: FromStr>(
    headers: &HeaderMap,
    form: &str,
) -> Result<Option<T>, RestError> {
    let Some(id) = headers.get("last-event-id") else {
        return Ok(None);
    };
    id.to_str().ok().and_then(|id| id.parse().ok()).map(Some).ok_or_else(|| {
        let text =
            format!("'last-event-id' must be the id of an event of this stream, such as {form}");
        RestError::invalid(text, Map::new())
    })
}
