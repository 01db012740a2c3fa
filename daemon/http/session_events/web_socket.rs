//! The events of a session over a WebSocket.

use std::{pin::pin, time::Duration};

use axum::{
    extract::ws::{CloseFrame, Message, Utf8Bytes, WebSocket, WebSocketUpgrade, close_code},
    response::Response,
};
use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use http::{
    HeaderMap, HeaderValue,
    header::{AUTHORIZATION, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, UPGRADE},
};
use tokio::time::{Instant, interval_at, timeout};
use tokio_stream::{Stream, StreamExt as _};
use tokio_tungstenite::tungstenite;
use tonic::Code;

use super::message::EventMessage;

/// The subprotocol that a client may offer.
const PROTOCOL: &str = "jig.events";
/// Prefix of a subprotocol that has the caller's key, in Base64 for URLs without padding.
const KEY_PROTOCOL_PREFIX: &str = "jig.key.";
/// Length of the key of a request.
const WEB_SOCKET_KEY_BYTES: usize = 16;
/// Pings keep a silent socket open through proxies.
const PING_INTERVAL: Duration = Duration::from_secs(15);
/// A client only closes the socket and answers pings.
const MAX_CLIENT_MESSAGE_BYTES: usize = 4 << 10;
/// Frames of a client during one ping interval. More than pongs and a few pings is misuse.
const MAX_CLIENT_FRAMES: u32 = 16;
/// Time for a message to leave, and for a client to answer a ping.
const PEER_TIMEOUT: Duration = Duration::from_secs(60);

/// Time for the client to answer a close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

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

/// Whether the request's key is 16 bytes in Base64, as RFC 6455 requires. HTTP/2 has no key.
pub(super) fn has_valid_key(headers: &HeaderMap) -> bool {
    headers.get(SEC_WEBSOCKET_KEY).is_none_or(|key| {
        STANDARD.decode(key.as_bytes()).is_ok_and(|key| key.len() == WEB_SOCKET_KEY_BYTES)
    })
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
            if let Some(frame) = send_messages(&mut socket, messages).await {
                // The client may be gone.
                let _closed = timeout(CLOSE_TIMEOUT, close(socket, frame)).await;
            }
        })
}

/// Closes the socket, and waits until the client has closed it. Without the wait, the kernel resets
/// the connection if it holds unread frames, and the client loses the reason.
async fn close(mut socket: WebSocket, frame: CloseFrame) -> Result<(), axum::Error> {
    let is_unreadable = frame.code == close_code::SIZE;
    socket.send(Message::Close(Some(frame))).await?;
    // The library would collect the rest of a message that is too large.
    while !is_unreadable && socket.recv().await.transpose()?.is_some() {}
    Ok(())
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
    let mut end = None;
    loop {
        let message = tokio::select! {
            message = messages.next() => match message {
                Some(message) => {
                    end = message.end.or(end);
                    Message::text(message.into_json().to_string())
                }
                None => return Some(end_frame(end)),
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
                    Some(Err(error)) => return unreadable_frame(error),
                    None => return None,
                    Some(Ok(_)) => {
                        return Some(frame(close_code::POLICY, "this socket takes no messages"));
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

/// How the socket closes after the stream, which may have ended with an error.
fn end_frame(error: Option<Code>) -> CloseFrame {
    match error {
        None | Some(Code::Ok) => frame(close_code::NORMAL, "the stream has ended"),
        Some(Code::Unauthenticated | Code::PermissionDenied) => {
            frame(close_code::POLICY, "the key is no longer valid")
        }
        Some(Code::Unavailable) => frame(close_code::AWAY, "the daemon is shutting down"),
        Some(Code::ResourceExhausted) => frame(close_code::AGAIN, "the stream was cut: resume it"),
        Some(_) => frame(close_code::ERROR, "the stream failed"),
    }
}

/// How the socket closes after a client's frame that is not readable; `None` if the client is gone.
fn unreadable_frame(error: axum::Error) -> Option<CloseFrame> {
    let error = error.into_inner().downcast::<tungstenite::Error>().ok()?;
    if matches!(*error, tungstenite::Error::Capacity(_)) {
        return Some(frame(close_code::SIZE, "this socket takes no messages"));
    }
    matches!(*error, tungstenite::Error::Protocol(_))
        .then(|| frame(close_code::PROTOCOL, "no WebSocket frame"))
}

fn frame(code: u16, reason: &'static str) -> CloseFrame {
    CloseFrame { code, reason: Utf8Bytes::from_static(reason) }
}
