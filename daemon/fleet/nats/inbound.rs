//! The connection for what other programs publish: jobs, and requests to this daemon.
//!
//! The client library breaks a connection when the headers of a message are malformed. A value with a
//! carriage return ends the library's task, which never connects again (pull request 1612 of nats.rs).
//! The server checks no headers. So such a message must not meet the connection that keeps claims and
//! the heartbeat: it breaks this one, which is made again.

use tokio::{sync::Mutex, time::timeout};

use super::connection::{CONNECT_TIMEOUT, NatsConnection};
use crate::daemon::{config::fleet::NatsConfig, fleet::work_source::SourceUnavailable};

/// Begins to connect when it is first needed.
#[derive(Debug)]
pub(super) struct InboundConnection {
    config: NatsConfig,
    /// Shows in the server's list of connections.
    name: String,
    current: Mutex<Option<NatsConnection>>,
}

impl InboundConnection {
    pub(super) fn new(config: NatsConfig, name: String) -> Self {
        Self { config, name, current: Mutex::default() }
    }

    /// Returns the connection, once it stands.
    pub(super) async fn get(&self) -> Result<NatsConnection, SourceUnavailable> {
        let mut current = self.current.lock().await;
        let connection = match current.take().filter(|connection| !connection.has_ended()) {
            Some(connection) => connection,
            None => {
                let started = NatsConnection::start(&self.config, &self.name).await;
                started.map_err(SourceUnavailable::new)?
            }
        };
        *current = Some(connection.clone());
        drop(current);

        let mut state = connection.subscribe();
        match timeout(CONNECT_TIMEOUT, state.wait_for(Option::is_some)).await {
            Ok(Ok(_connected)) => {}
            Ok(Err(_)) => return Err(SourceUnavailable::new("the connection has ended")),
            Err(elapsed) => return Err(SourceUnavailable::new(elapsed)),
        }
        Ok(connection)
    }
}
