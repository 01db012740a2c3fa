//! The connection to the NATS servers. It connects by itself, and again after each failure.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use async_nats::{
    Client, ClientError, ConnectErrorKind, ConnectOptions, Event, ServerAddr,
    jetstream::{self, context::ContextBuilder},
};
use tokio::sync::watch;

use super::authentication::{authenticate, check_credentials};
use crate::daemon::config::fleet::{NatsConfig, NatsCredentials};

/// Time limit of one attempt to connect.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit of one request. A server that is well answers in milliseconds.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval of pings. A connection is dead after two without a reply.
const PING_INTERVAL: Duration = Duration::from_secs(5);
/// Prefix of the subjects of replies, which are those of daemons alone. With the usual one, programs
/// could read the signed messages that daemons receive.
const INBOX_PREFIX: &str = "_INBOX_JIG";
/// Delay before the first attempt to connect again. It doubles with each attempt.
const MIN_RECONNECT_DELAY: Duration = Duration::from_millis(50);
const MAX_RECONNECT_DELAY: Duration = Duration::from_secs(5);

/// A connection that lives as long as the daemon.
#[derive(Debug, Clone)]
pub(super) struct NatsConnection {
    client: Client,
    jetstream: jetstream::Context,
    /// Since when the connection stands. `None` while it does not.
    connected_since: watch::Receiver<Option<Instant>>,
    /// Whether a request or a subscription has found the end of the library's task.
    has_ended: Arc<AtomicBool>,
}

/// Why the daemon cannot begin to connect: the configuration is invalid.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NatsSetupError {
    #[error("{0}")]
    Credentials(String),
    #[error("fleet.nats: {0}")]
    Servers(#[source] std::io::Error),
    #[error("fleet: {0}")]
    Connect(#[from] async_nats::ConnectError),
}

impl NatsConnection {
    /// Begins to connect in the background. `name` shows in the server's list of connections.
    pub(super) async fn start(config: &NatsConfig, name: &str) -> Result<Self, NatsSetupError> {
        let servers: Result<Vec<ServerAddr>, _> =
            config.servers.iter().map(|url| url.parse()).collect();
        let servers = servers.map_err(NatsSetupError::Servers)?;

        let options = match &config.credentials {
            NatsCredentials::None => ConnectOptions::new(),
            credentials @ (NatsCredentials::File(_) | NatsCredentials::Nkey(_)) => {
                check_credentials(credentials).map_err(NatsSetupError::Credentials)?;
                let credentials = credentials.clone();
                ConnectOptions::with_auth_callback(move |nonce| {
                    authenticate(credentials.clone(), nonce)
                })
            }
        };
        let options = match &config.ca_file {
            Some(path) => options.add_root_certificates(path.clone()).require_tls(true),
            None => options,
        };

        let (state, connected_since) = watch::channel(None);
        let shown = ShownConnection {
            name: name.to_owned(),
            servers: config.servers.join(" "),
            has_credentials: !matches!(config.credentials, NatsCredentials::None),
        };
        let options = options
            .name(name)
            .custom_inbox_prefix(INBOX_PREFIX)
            .connection_timeout(CONNECT_TIMEOUT)
            .request_timeout(Some(REQUEST_TIMEOUT))
            .ping_interval(PING_INTERVAL)
            .retry_on_initial_connect()
            .max_reconnects(None)
            .reconnect_delay_callback(reconnect_delay)
            .event_callback(move |event| {
                observe_event(&event, &shown, &state);
                std::future::ready(())
            });
        let client = options.connect(servers).await?;
        let jetstream = ContextBuilder::new()
            .timeout(REQUEST_TIMEOUT)
            .ack_timeout(REQUEST_TIMEOUT)
            .build(client.clone());
        Ok(Self { client, jetstream, connected_since, has_ended: Arc::default() })
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    pub(super) fn jetstream(&self) -> &jetstream::Context {
        &self.jetstream
    }

    /// Since when the connection has stood. `None` while it does not.
    pub(super) fn connected_since(&self) -> Option<Instant> {
        *self.connected_since.borrow()
    }

    /// Whether the library's task has ended, by a panic: it never connects again.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed) || self.connected_since.has_changed().is_err()
    }

    /// Notes that the library's task has ended: it drops its subscriptions first, and its state later.
    pub(super) fn note_end(&self) {
        self.has_ended.store(true, Ordering::Relaxed);
    }

    /// How long the connection has stood without a break.
    pub(super) fn connected_for(&self) -> Duration {
        self.connected_since.borrow().map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Watches the state of the connection. The receiver is marked as changed at each break and at
    /// each new connection.
    pub(super) fn subscribe(&self) -> watch::Receiver<Option<Instant>> {
        self.connected_since.clone()
    }
}

/// Whether only a daemon can have chosen this subject for replies. Others may be those of the server.
pub(super) fn is_daemon_inbox(subject: &str) -> bool {
    subject.strip_prefix(INBOX_PREFIX).is_some_and(|rest| rest.starts_with('.'))
}

fn reconnect_delay(attempts: usize) -> Duration {
    let doublings = u32::try_from(attempts).unwrap_or(u32::MAX).min(16);
    (MIN_RECONNECT_DELAY * 2_u32.pow(doublings)).min(MAX_RECONNECT_DELAY)
}

/// A connection, as the log shows it.
struct ShownConnection {
    name: String,
    /// URLs, with blanks between them.
    servers: String,
    has_credentials: bool,
}

/// Logs an event of the connection, and notes whether the connection stands.
fn observe_event(event: &Event, shown: &ShownConnection, state: &watch::Sender<Option<Instant>>) {
    let ShownConnection { name: connection, servers, has_credentials } = shown;
    match event {
        Event::Connected => {
            tracing::info!(connection, "connected to the NATS server of the fleet");
            state.send_replace(Some(Instant::now()));
        }
        Event::Disconnected => {
            tracing::warn!(
                connection,
                "lost the connection to the NATS server of the fleet: connecting again"
            );
            state.send_replace(None);
        }
        Event::ServerError(error) => {
            tracing::warn!(%error, connection, "the NATS server of the fleet reports an error");
        }
        Event::ClientError(ClientError::Other(error))
            if *error == ConnectErrorKind::AuthorizationViolation.to_string() =>
        {
            let remedy = if *has_credentials {
                "replace the file of fleet.credentials_file or fleet.nkey_file: the daemon reads it at each attempt"
            } else {
                "the server requires credentials: set fleet.credentials_file or fleet.nkey_file"
            };
            tracing::warn!(
                connection,
                servers,
                remedy,
                "the NATS server of the fleet rejects the daemon: its credentials are wrong, or have expired"
            );
        }
        Event::ClientError(error) => {
            // The library says no more than "IO error".
            tracing::warn!(
                %error,
                connection,
                servers,
                remedy = "check that the server runs there, that it offers TLS if the URL is tls:// or fleet.ca_file is set, and that its certificate is from the CA of fleet.ca_file, or of the system without it",
                "cannot connect to the NATS server of the fleet"
            );
        }
        Event::SlowConsumer(subscription) => {
            tracing::warn!(subscription, "the daemon reads messages of the fleet too slowly");
        }
        Event::LameDuckMode => {
            tracing::info!("the NATS server of the fleet is shutting down");
        }
        Event::Draining | Event::Closed => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_go_to_daemons_only() {
        assert!(is_daemon_inbox("_INBOX_JIG.a.b"));
        for subject in ["_INBOX.a", "_INBOX_JIG", "_INBOX_JIGX.a", "$JS.API.STREAM.PURGE.JIG_JOBS"]
        {
            assert!(!is_daemon_inbox(subject), "{subject}");
        }
    }

    #[test]
    fn delays_double_up_to_the_maximum() {
        assert_eq!(reconnect_delay(0), MIN_RECONNECT_DELAY);
        assert_eq!(reconnect_delay(1), MIN_RECONNECT_DELAY * 2);
        assert_eq!(reconnect_delay(usize::MAX), MAX_RECONNECT_DELAY);
    }
}
