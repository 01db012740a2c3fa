//! The events of a session over a WebSocket.

use std::{pin::pin, time::Duration};

use axum::{
    extract::ws::{CloseFrame, Message, Utf8Bytes, WebSocket, WebSocketUpgrade, close_code},
    response::Response,
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use http::{
    HeaderMap, HeaderValue,
    header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL, UPGRADE},
};
use tokio::time::{Instant, interval_at, timeout};
use tokio_stream::{Stream, StreamExt as _};

use super::message::EventMessage;

/// The subprotocol that a client may offer.
const PROTOCOL: &str = "jig.events";
/// Prefix of a subprotocol that has the caller's key, in Base64 for URLs without padding.
const KEY_PROTOCOL_PREFIX: &str = "jig.key.";
/// Pings keep a silent socket open through proxies.
const PING_INTERVAL: Duration = Duration::from_secs(15);
/// A client only closes the socket and answers pings.
const MAX_CLIENT_MESSAGE_BYTES: usize = 4 << 10;
/// Frames of a client during one ping interval. More than pongs and a few pings is misuse.
const MAX_CLIENT_FRAMES: u32 = 16;
/// Time for a message to leave, and for a client to answer a ping.
const PEER_TIMEOUT: Duration = Duration::from_secs(60);

/// Takes the key of a WebSocket's subprotocols as the caller's key. A page cannot send headers with a
/// WebSocket, and keys in an address end in logs.
pub(in crate::daemon::http) fn accept_key_of_protocol(headers: &mut HeaderMap) {
    if !headers.contains_key(UPGRADE) {
        return;
    }
    let offered = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter();
    let key = offered
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .find_map(|protocol| protocol.trim().strip_prefix(KEY_PROTOCOL_PREFIX))
        .and_then(|key| URL_SAFE_NO_PAD.decode(key).ok())
        .and_then(|key| HeaderValue::from_bytes(&[b"Bearer ", &*key].concat()).ok());
    if let Some(mut key) = key
        && !headers.contains_key(AUTHORIZATION)
    {
        key.set_sensitive(true);
        headers.insert(AUTHORIZATION, key);
    }
}

/// Accepts the WebSocket, and sends the messages until they end or the client leaves.
pub(super) fn send(
    upgrade: WebSocketUpgrade,
    messages: impl Stream<Item = EventMessage> + Send + 'static,
) -> Response {
    upgrade
        .protocols([PROTOCOL])
        .max_message_size(MAX_CLIENT_MESSAGE_BYTES)
        .max_frame_size(MAX_CLIENT_MESSAGE_BYTES)
        // Each message leaves at once.
        .write_buffer_size(0)
        .on_upgrade(async move |mut socket| {
            if let Some(close) = send_messages(&mut socket, messages).await {
                // The client may be gone.
                let _sent = timeout(PEER_TIMEOUT, socket.send(Message::Close(Some(close)))).await;
            }
        })
}

/// Sends messages. Returns how to close the socket; `None` if the client is gone.
async fn send_messages(
    socket: &mut WebSocket,
    messages: impl Stream<Item = EventMessage>,
) -> Option<CloseFrame> {
    let mut messages = pin!(messages);
    let mut pings = interval_at(Instant::now() + PING_INTERVAL, PING_INTERVAL);
    let mut last_heard = Instant::now();
    let mut frames = 0;
    loop {
        let message = tokio::select! {
            message = messages.next() => match message {
                Some(message) => Message::text(message.into_json().to_string()),
                None => return Some(close(close_code::NORMAL, "the stream has ended")),
            },
            received = socket.recv() => {
                last_heard = Instant::now();
                frames += 1;
                match received {
                    Some(Ok(Message::Ping(_) | Message::Pong(_))) if frames <= MAX_CLIENT_FRAMES => {
                        continue;
                    }
                    Some(Ok(Message::Close(_))) => {
                        // The library sends the reply while it reads.
                        let _replied = timeout(PEER_TIMEOUT, socket.recv()).await;
                        return None;
                    }
                    Some(Err(_)) | None => return None,
                    Some(Ok(_)) => {
                        return Some(close(close_code::POLICY, "this socket takes no messages"));
                    }
                }
            }
            _ = pings.tick() => {
                frames = 0;
                if last_heard.elapsed() > PEER_TIMEOUT {
                    return None;
                }
                Message::Ping(axum::body::Bytes::new())
            }
        };
        timeout(PEER_TIMEOUT, socket.send(message)).await.ok()?.ok()?;
    }
}

fn close(code: u16, reason: &'static str) -> CloseFrame {
    CloseFrame { code, reason: Utf8Bytes::from_static(reason) }
}
