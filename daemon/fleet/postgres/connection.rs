//! One connection to PostgreSQL, which all parts of the fleet share.

use std::{fmt, future::poll_fn, sync::Arc, time::Duration};

use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring::default_provider,
    pki_types::{CertificateDer, pem::PemObject as _},
};
use rustls_platform_verifier::BuilderVerifierExt as _;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::broadcast::{self, error::RecvError},
    task::AbortHandle,
    time::timeout,
};
use tokio_postgres::{
    AsyncMessage, Client, Config, Connection, NoTls, Row, Socket,
    config::{LoadBalanceHosts, SslMode, TargetSessionAttrs},
    error::SqlState,
    tls::MakeTlsConnect,
    types::ToSql,
};
use tokio_postgres_rustls_improved::MakeRustlsConnect;

use crate::daemon::{
    config::{fleet_postgres::PostgresConfig, fleet_secret::FleetSecretFile},
    fleet::work_source::SourceUnavailable,
    task,
};

/// Time limit of the connection to one of several hosts.
const HOST_TIMEOUT: Duration = Duration::from_secs(2);
/// Time limit of one attempt to connect.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit of one statement. All of them are short.
pub(super) const STATEMENT_TIMEOUT: Duration = Duration::from_secs(10);
/// Prepares a connection: waits for locks of other programs are short, the server has stored what it
/// acknowledges, and the daemon hears of changes. Poolers reject most of this as start-up options,
/// which may be those of the URL too.
const BEGIN_SESSION: &str = "
    SET lock_timeout = '2s';
    SELECT set_config('synchronous_commit', 'on', false)
    WHERE current_setting('synchronous_commit') = 'off';
    LISTEN jig_jobs";
/// Time after which a connection is dead whose server does not acknowledge what it was sent.
const TCP_TIMEOUT: Duration = Duration::from_secs(10);
/// Idle time after which the server must show that it is there.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
const PASSWORD_HINT: &str = ": check fleet.password_file";
/// Notifications that a receiver may be late. It looks at the table if there were more.
const MAX_LATE_NOTIFICATIONS: usize = 256;

/// What connects to the database.
pub(super) struct PostgresConnector {
    config: Config,
    /// Read at each connection.
    password: Option<FleetSecretFile>,
    /// `None` for connections that are not encrypted.
    tls: Option<MakeRustlsConnect>,
}

/// An open connection. It closes when this is dropped.
#[derive(Debug)]
pub(super) struct PostgresConnection {
    client: Client,
    notifications: broadcast::WeakSender<Arc<str>>,
    driver: AbortHandle,
}

/// What the server notifies of. Closed with the connection.
#[derive(Debug)]
pub(super) struct Notifications(broadcast::Receiver<Arc<str>>);

/// The new state of a job.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Notification<'a> {
    pub(super) is_queued: bool,
    pub(super) id: &'a str,
    /// `None` from a table of an older version.
    pub(super) queue: Option<&'a str>,
}

/// Why the daemon cannot begin to connect: the configuration is invalid.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PostgresSetupError {
    #[error("fleet.postgres: {0}")]
    Url(#[from] tokio_postgres::Error),
    #[error("fleet.ca_file: {0}")]
    CaFile(#[source] rustls::pki_types::pem::Error),
    #[error("fleet.postgres: {0}")]
    Tls(#[from] rustls::Error),
}

impl PostgresConnector {
    /// `name` shows in the server's list of connections.
    pub(super) fn new(postgres: &PostgresConfig, name: &str) -> Result<Self, PostgresSetupError> {
        let mut config: Config = postgres.url.parse()?;
        config
            .application_name(name)
            .connect_timeout(HOST_TIMEOUT)
            .tcp_user_timeout(TCP_TIMEOUT)
            .keepalives_idle(KEEP_ALIVE)
            // The first host can be a standby, or give no answer.
            .target_session_attrs(TargetSessionAttrs::ReadWrite)
            .load_balance_hosts(LoadBalanceHosts::Random)
            .ssl_mode(if postgres.encrypt { SslMode::Require } else { SslMode::Disable });
        let tls = postgres.encrypt.then(|| tls_config(postgres)).transpose()?;
        let tls = tls.map(MakeRustlsConnect::new);
        Ok(Self { config, password: postgres.password.clone(), tls })
    }

    /// Connects, and listens to the notifications of the table.
    pub(super) async fn connect(&self) -> Result<PostgresConnection, SourceUnavailable> {
        let mut config = self.config.clone();
        if let Some(file) = self.password.clone() {
            let read = task::spawn_blocking(move || file.read()).await;
            let password = read.map_err(SourceUnavailable::new)?.map_err(SourceUnavailable)?;
            config.password(password.bytes());
        }
        match &self.tls {
            Some(tls) => connect_with(&config, tls.clone()).await,
            None => connect_with(&config, NoTls).await,
        }
    }
}

async fn connect_with<T>(config: &Config, tls: T) -> Result<PostgresConnection, SourceUnavailable>
where
    T: MakeTlsConnect<Socket, Stream: Send + 'static>,
{
    let (client, connection) = config.connect(tls).await.map_err(|error| unavailable(&error))?;
    let (sender, _) = broadcast::channel(MAX_LATE_NOTIFICATIONS);
    let connection = PostgresConnection {
        client,
        notifications: sender.downgrade(),
        driver: task::spawn("connection to PostgreSQL", drive(connection, sender)).abort_handle(),
    };
    connection.client.batch_execute(BEGIN_SESSION).await.map_err(|e| unavailable(&e))?;
    Ok(connection)
}

impl PostgresConnection {
    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Receives the notifications from now on.
    pub(super) fn subscribe(&self) -> Result<Notifications, SourceUnavailable> {
        let sender = self.notifications.upgrade();
        let sender = sender.ok_or_else(broken)?;
        Ok(Notifications(sender.subscribe()))
    }

    /// Executes a statement, and returns its rows, or `None` if the connection was cut, as those of idle
    /// sessions are. The server may have executed it.
    pub(super) async fn query(
        &self,
        limit: Duration,
        statement: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Option<Vec<Row>>, SourceUnavailable> {
        match timeout(limit, self.client.query(statement, parameters)).await {
            Ok(Ok(rows)) => Ok(Some(rows)),
            Ok(Err(error)) if error.is_closed() => Ok(None),
            Ok(Err(error)) => Err(unavailable(&error)),
            Err(_elapsed) => {
                // The next statement needs a new connection.
                self.driver.abort();
                Err(SourceUnavailable(format!("no answer within {limit:?}: connecting again")))
            }
        }
    }
}

impl Drop for PostgresConnection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl fmt::Debug for PostgresConnector {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("PostgresConnector").finish_non_exhaustive()
    }
}

impl Notifications {
    /// Waits for a wanted one. Returns false if the connection breaks first.
    pub(super) async fn wait_for(&mut self, is_wanted: impl Fn(&Notification<'_>) -> bool) -> bool {
        loop {
            match self.0.recv().await {
                Ok(text) if !is_wanted(&Notification::parse(&text)) => {}
                // Some were dropped: the table says what they were.
                Ok(_) | Err(RecvError::Lagged(_)) => return true,
                Err(RecvError::Closed) => return false,
            }
        }
    }
}

impl<'a> Notification<'a> {
    /// Parses the text of a notification: state, job and queue.
    fn parse(text: &'a str) -> Self {
        let mut words = text.split(' ');
        let is_queued = words.next() == Some("queued");
        Self { is_queued, id: words.next().unwrap_or_default(), queue: words.next() }
    }
}

/// Reads what the server sends until the connection breaks.
async fn drive<S, T>(mut connection: Connection<S, T>, notifications: broadcast::Sender<Arc<str>>)
where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    tracing::info!("connected to the PostgreSQL server of the fleet");
    loop {
        match poll_fn(|context| connection.poll_message(context)).await {
            Some(Ok(message)) => {
                if let AsyncMessage::Notification(notification) = message {
                    // Without a receiver, no queue and no call waits.
                    let _receivers = notifications.send(notification.payload().into());
                }
            }
            Some(Err(error)) => {
                let error = unavailable(&error);
                tracing::warn!(%error, "lost the connection to the PostgreSQL server of the fleet");
                return;
            }
            None => return,
        }
    }
}

fn tls_config(postgres: &PostgresConfig) -> Result<ClientConfig, PostgresSetupError> {
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()?;
    let roots = match &postgres.ca_file {
        None => return Ok(builder.with_platform_verifier()?.with_no_client_auth()),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            let read = CertificateDer::pem_file_iter(path).map_err(PostgresSetupError::CaFile)?;
            for certificate in read {
                roots.add(certificate.map_err(PostgresSetupError::CaFile)?)?;
            }
            roots
        }
    };
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

/// The error of a connection that was cut.
pub(super) fn broken() -> SourceUnavailable {
    SourceUnavailable::new("the connection broke")
}

/// Describes an error of the server or of the connection.
fn unavailable(error: &tokio_postgres::Error) -> SourceUnavailable {
    let Some(reported) = error.as_db_error() else {
        let cause = std::error::Error::source(error).map(ToString::to_string);
        let cause = cause.map(|cause| format!(": {cause}")).unwrap_or_default();
        let hint = if cause.contains("password missing") { PASSWORD_HINT } else { "" };
        return SourceUnavailable(format!("{error}{cause}{hint}"));
    };
    let hint = match reported.code() {
        &SqlState::UNDEFINED_TABLE | &SqlState::UNDEFINED_COLUMN => {
            ": run deploy/postgres/fleet.sql in the database"
        }
        &SqlState::INSUFFICIENT_PRIVILEGE => {
            ": run deploy/postgres/fleet.sql with --set=daemons=ROLE, the role in fleet.postgres"
        }
        &SqlState::INVALID_PASSWORD => PASSWORD_HINT,
        _ => "",
    };
    SourceUnavailable(format!("{} ({}){hint}", reported.message(), reported.code().code()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notifications_name_state_job_and_queue() {
        let parse = Notification::parse;
        let queued = Notification { is_queued: true, id: "fleet-1", queue: Some("build") };
        assert_eq!(parse("queued fleet-1 build"), queued);
        let ended = Notification { is_queued: false, id: "fleet-1", queue: None };
        assert_eq!(parse("ended fleet-1"), ended);
        assert_eq!(parse(""), Notification { is_queued: false, id: "", queue: None });
    }
}
