//! Establishes the connection, and builds the metadata that each call carries.

use std::{
    error::Error as StdError, fmt, io, iter::successors, path::Path, sync::Arc, time::Duration,
};

use tonic::{
    metadata::{AsciiMetadataKey, AsciiMetadataValue},
    transport::{Channel, Endpoint},
};

use super::{
    address::{DaemonAddress, InvalidAddress},
    connector::{Connector, FirstRead},
    tls::{self, InvalidTlsOption, TlsOptions, TlsSettings, tls_error},
};

/// Maximum time to connect. A reachable machine answers within a few round trips.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval of HTTP/2 pings while a call is open. They distinguish a busy daemon from a dead one.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(30);
/// Maximum wait for the answer to a ping. After it the connection counts as lost.
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// Flow-control windows: the maximum of unread bytes per stream and per connection. A connection
/// has room for 32 streams with unread data. The protocol library's default is little more than
/// two, so a few unread streams would block every other call of the same client.
const STREAM_WINDOW_BYTES: u32 = 2 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 64 << 20;
/// Longest deadline that is sent. `grpc-timeout` has eight digits; longer deadlines are capped.
const MAX_CALL_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 3600);

/// Metadata key of the request id (idempotency key).
const REQUEST_ID_METADATA: &str = "jig-request-id";

/// Context that each call of a client carries. All fields are optional.
#[derive(Clone, Default)]
pub struct Options {
    /// API key.
    pub key: Option<String>,
    /// Name of the workspace. Default: the daemon's first workspace.
    pub workspace: Option<String>,
    /// Session (conversation) of the calls. Default: `default`.
    pub session: Option<String>,
    /// Maximum time for each call, from its start to its last message.
    pub deadline: Option<Duration>,
    /// Trace context of the calls, as a W3C `traceparent`.
    pub traceparent: Option<String>,
    /// Idempotency key, for a client that makes one call which changes something. The daemon
    /// executes the call once and returns the same result to each repetition, from any client.
    pub request_id: Option<String>,
    /// Files of TLS. Only an `https://` address can have them.
    pub tls: TlsOptions,
}

/// Reason why the client could not connect. `Display` says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The address is malformed.
    #[error(transparent)]
    Address(#[from] InvalidAddress),
    /// An option has a value that cannot be sent as metadata.
    #[error("the {option} cannot be sent: {problem}")]
    Option {
        /// Name of the option.
        option: &'static str,
        /// Rule that the value breaks.
        problem: &'static str,
    },
    /// An option of TLS cannot be used.
    #[error(transparent)]
    TlsOption(#[from] InvalidTlsOption),
    /// The TLS handshake failed, or one of both peers speaks plaintext.
    #[error("cannot connect to {address}: {problem}")]
    Tls {
        /// Address of the daemon.
        address: DaemonAddress,
        /// What happened and what to do.
        problem: String,
    },
    /// No process listens at the address.
    #[error(
        "nothing listens at {address}; check the address, or start a daemon there with `jig serve --listen {}`",
        .address.listen_argument()
    )]
    NothingListens {
        /// Address of the daemon.
        address: DaemonAddress,
        /// Error of the system call.
        #[source]
        source: io::Error,
    },
    /// The user may not open the socket.
    #[error(
        "permission denied for {address}; run as the daemon's user, or let the daemon listen on TCP with keys"
    )]
    PermissionDenied {
        /// Address of the daemon.
        address: DaemonAddress,
        /// Error of the system call.
        #[source]
        source: io::Error,
    },
    /// The peer does not speak HTTP/2, or does not answer in time.
    #[error(
        "{address} does not answer like a daemon; check the address, what listens there, and whether a firewall is in between"
    )]
    TimedOut {
        /// Address of the daemon.
        address: DaemonAddress,
    },
    /// The connection failed for another reason.
    #[error("cannot connect to {address}: {problem}")]
    Failed {
        /// Address of the daemon.
        address: DaemonAddress,
        /// Message of the innermost cause.
        problem: String,
    },
}

/// Metadata and deadline of each call, validated once.
#[derive(Debug, Clone, Default)]
pub(super) struct CallMetadata {
    pub(super) metadata: Arc<[(AsciiMetadataKey, AsciiMetadataValue)]>,
    pub(super) deadline: Option<Duration>,
}

impl TryFrom<Options> for CallMetadata {
    type Error = ConnectError;

    fn try_from(options: Options) -> Result<Self, ConnectError> {
        let mut metadata = Vec::new();
        let mut add = |name: &'static str, option, text: Option<String>| {
            let Some(text) = text else {
                return Ok::<(), ConnectError>(());
            };
            let mut value = AsciiMetadataValue::try_from(text).map_err(|_| {
                ConnectError::Option { option, problem: "it must be printable ASCII" }
            })?;
            // Keeps the key out of HPACK's tables and out of `Debug` output.
            value.set_sensitive(name == "authorization");
            metadata.push((AsciiMetadataKey::from_static(name), value));
            Ok(())
        };

        add("authorization", "key", options.key.map(|key| format!("Bearer {key}")))?;
        add("jig-workspace", "workspace's name", options.workspace)?;
        add("jig-session", "session's name", options.session)?;
        add("traceparent", "traceparent", options.traceparent)?;
        add(REQUEST_ID_METADATA, "request id", options.request_id)?;

        if options.deadline.is_some_and(|deadline| deadline.is_zero()) {
            return Err(ConnectError::Option {
                option: "deadline",
                problem: "it must be longer than 0",
            });
        }

        Ok(Self {
            metadata: metadata.into(),
            deadline: options.deadline.map(|time| time.min(MAX_CALL_TIMEOUT)),
        })
    }
}

impl CallMetadata {
    /// Returns a copy without the request id.
    pub(super) fn without_request_id(&self) -> Self {
        let metadata = self.metadata.iter();
        let others = metadata.filter(|(key, _)| key.as_str() != REQUEST_ID_METADATA);
        Self { metadata: others.cloned().collect(), deadline: self.deadline }
    }
}

/// Connects before the first call, so that a wrong address is not reported as a failed call.
pub(super) async fn connect(
    address: &DaemonAddress,
    tls: &TlsOptions,
    deadline: Option<Duration>,
) -> Result<Channel, ConnectError> {
    let tls = match address {
        DaemonAddress::Tls(authority) => Some(TlsSettings::load(tls, host_of(authority))?),
        // A key that was meant for an encrypted connection must not be sent in plaintext.
        DaemonAddress::Tcp(authority) if !tls.is_empty() => {
            return Err(InvalidTlsOption::without_tls(authority).into());
        }
        DaemonAddress::Tcp(_) => None,
        DaemonAddress::Unix(path) => {
            check_socket_path_length(address, path)?;
            None
        }
    };

    let timeout = deadline.map_or(CONNECT_TIMEOUT, |time| time.min(CONNECT_TIMEOUT));
    let endpoint = to_endpoint(address)?;
    let (connector, mut first_read) = Connector::new(address.clone(), tls);
    let connecting = async {
        let connected = endpoint.connect_with_connector(connector).await;
        let channel = connected.map_err(|error| to_connect_error(address, &error))?;
        // `wait_for` fails if the connection has gone; the first call then reports that.
        match first_read.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(FirstRead::OtherProtocol(problem))) => {
                Err(ConnectError::Tls { address: address.clone(), problem: problem.clone() })
            }
            Ok(_) | Err(_) => Ok(channel),
        }
    };

    // The endpoint's own timeout covers the socket only, not the HTTP/2 handshake.
    match tokio::time::timeout(timeout, connecting).await {
        Ok(connected) => connected,
        Err(_) => Err(ConnectError::TimedOut { address: address.clone() }),
    }
}

fn to_endpoint(address: &DaemonAddress) -> Result<Endpoint, ConnectError> {
    let endpoint = Endpoint::from_shared(address.to_endpoint())
        .map_err(|error| to_connect_error(address, &error))?
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT);
    // Requests carry the scheme that the client speaks.
    let origin = address.to_string().parse().ok();
    Ok(match origin.filter(|_| matches!(address, DaemonAddress::Tls(_))) {
        Some(origin) => endpoint.origin(origin),
        None => endpoint,
    })
}

/// The host of `HOST:PORT`, without the brackets of an IPv6 address.
fn host_of(authority: &str) -> &str {
    let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("key", &self.key.as_ref().map(|_| "…"))
            .field("workspace", &self.workspace)
            .field("session", &self.session)
            .field("deadline", &self.deadline)
            .field("traceparent", &self.traceparent)
            .field("request_id", &self.request_id)
            .field("tls", &self.tls)
            .finish()
    }
}

/// Checks that a socket's path fits. The kernel would report "invalid argument".
fn check_socket_path_length(address: &DaemonAddress, path: &Path) -> Result<(), ConnectError> {
    /// Size of `sun_path` without its final NUL.
    const MAX_SOCKET_PATH_BYTES: usize = 107;

    if path.as_os_str().len() <= MAX_SOCKET_PATH_BYTES {
        return Ok(());
    }

    Err(ConnectError::Failed {
        address: address.clone(),
        problem: format!("the path of a socket is limited to {MAX_SOCKET_PATH_BYTES} bytes"),
    })
}

fn to_connect_error(address: &DaemonAddress, error: &(dyn StdError + 'static)) -> ConnectError {
    let address = address.clone();
    let causes = || successors(Some(error), |&error| error.source());
    let Some(cause) = causes().find_map(|cause| cause.downcast_ref::<io::Error>()) else {
        return ConnectError::Failed {
            address,
            problem: causes().last().map_or_else(String::new, ToString::to_string),
        };
    };

    if let Some(error) = tls_error(cause) {
        return ConnectError::Tls { address, problem: tls::explain(error) };
    }

    // `io::Error` cannot be cloned; its error code carries the same information.
    let source =
        cause.raw_os_error().map_or_else(|| cause.kind().into(), io::Error::from_raw_os_error);

    #[expect(clippy::wildcard_enum_match_arm, reason = "ErrorKind is open")]
    match cause.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            ConnectError::NothingListens { address, source }
        }
        io::ErrorKind::PermissionDenied => ConnectError::PermissionDenied { address, source },
        io::ErrorKind::TimedOut => ConnectError::TimedOut { address },
        _ => ConnectError::Failed { address, problem: cause.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[test]
    fn metadata_holds_the_given_options() {
        let context = CallMetadata::try_from(Options {
            key: Some("k".into()),
            session: Some("s".into()),
            deadline: Some(Duration::MAX),
            ..Options::default()
        })
        .unwrap();
        let metadata: Vec<_> = context
            .metadata
            .iter()
            .map(|(key, value)| (key.as_str(), value.to_str().unwrap()))
            .collect();
        assert_eq!(metadata, [("authorization", "Bearer k"), ("jig-session", "s")]);
        assert_eq!(context.deadline, Some(MAX_CALL_TIMEOUT));
    }

    #[test]
    fn debug_output_hides_the_key() {
        let options = Options { key: Some("geheim".into()), ..Options::default() };
        assert!(!format!("{options:?}").contains("geheim"));
        assert!(!format!("{:?}", CallMetadata::try_from(options).unwrap()).contains("geheim"));
    }

    #[test]
    fn invalid_options_are_rejected() {
        for options in [
            Options { key: Some("a\nb".into()), ..Options::default() },
            Options { workspace: Some("\u{7f}".into()), ..Options::default() },
            Options { deadline: Some(Duration::ZERO), ..Options::default() },
        ] {
            assert!(CallMetadata::try_from(options).is_err());
        }
    }

    /// Parses the client's connection preface: RFC 9113, sections 3.4, 4.1, 6.5 and 6.9.
    #[tokio::test]
    async fn connection_window_exceeds_stream_window() {
        const SETTINGS: u8 = 4;
        const WINDOW_UPDATE: u8 = 8;
        const INITIAL_WINDOW_SIZE: u16 = 4;
        const DEFAULT_WINDOW: u32 = 65_535;

        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = tokio::net::UnixListener::bind(&path).unwrap();
        let address = format!("unix:{}", path.display()).parse().unwrap();
        let tls = TlsOptions::default();
        let connecting = connect(&address, &tls, None);

        let reading = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut preface = [0; 24];
            stream.read_exact(&mut preface).await.unwrap();
            stream.write_all(&[0, 0, 0, SETTINGS, 0, 0, 0, 0, 0]).await.unwrap();
            let (mut stream_window, mut connection_window) = (DEFAULT_WINDOW, DEFAULT_WINDOW);

            while connection_window == DEFAULT_WINDOW {
                let mut head = [0; 9];
                stream.read_exact(&mut head).await.unwrap();
                let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
                let mut payload = vec![0; length as usize];
                stream.read_exact(&mut payload).await.unwrap();
                let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().unwrap());

                match head[3] {
                    SETTINGS => {
                        let mut settings = payload.chunks(6);
                        let window = settings
                            .find(|setting| setting[..2] == INITIAL_WINDOW_SIZE.to_be_bytes());
                        stream_window =
                            window.map_or(stream_window, |setting| number(&setting[2..]));
                    }
                    WINDOW_UPDATE => connection_window += number(&payload),
                    _ => {}
                }
            }
            (stream_window, connection_window)
        };

        let (_connected, (stream_window, connection_window)) = tokio::join!(connecting, reading);
        assert!(
            connection_window / stream_window >= 16,
            "{connection_window} for streams of {stream_window}"
        );
    }

    #[tokio::test]
    async fn tls_options_are_never_ignored() {
        let file = |name: &str| Some(std::path::PathBuf::from(name));
        let address = |text: &str| text.parse::<DaemonAddress>().unwrap();
        for (address, tls, expected) in [
            (
                address("host:1"),
                TlsOptions { ca: file("/nowhere"), ..TlsOptions::default() },
                "https://host:1",
            ),
            (
                address("https://host:1"),
                TlsOptions { ca: file("/nowhere"), ..TlsOptions::default() },
                "/nowhere",
            ),
            (
                address("https://host:1"),
                TlsOptions { client_key: file("/nowhere"), ..TlsOptions::default() },
                "--client-cert",
            ),
            (
                address("https://host:1"),
                TlsOptions { client_cert: file("/nowhere"), ..TlsOptions::default() },
                "--client-key",
            ),
        ] {
            let error = connect(&address, &tls, None).await.unwrap_err();
            assert!(matches!(error, ConnectError::TlsOption(_)), "{error:?}");
            assert!(error.to_string().contains(expected), "{error}");
        }
    }

    #[test]
    fn host_has_no_port_and_no_brackets() {
        for (authority, expected) in
            [("host.example:1", "host.example"), ("[::1]:1", "::1"), ("127.0.0.1:1", "127.0.0.1")]
        {
            assert_eq!(host_of(authority), expected);
        }
    }

    #[tokio::test]
    async fn silent_listener_times_out() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let _silent = tokio::net::UnixListener::bind(&path).unwrap();
        let address = format!("unix:{}", path.display()).parse().unwrap();
        let timeout = Some(Duration::from_millis(100));
        let error = connect(&address, &TlsOptions::default(), timeout).await;
        let error = error.unwrap_err();
        assert!(matches!(error, ConnectError::TimedOut { .. }), "{error:?}");
    }

    #[tokio::test]
    async fn missing_listener_is_reported() {
        let address = "unix:/nowhere/jig.sock".parse().unwrap();
        let error = connect(&address, &TlsOptions::default(), None).await.unwrap_err();
        assert!(matches!(error, ConnectError::NothingListens { .. }), "{error:?}");
        assert!(error.to_string().contains("jig serve"), "{error}");
    }
}
