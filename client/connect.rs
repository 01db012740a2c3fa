//! Connecting, and the context that each call carries.

use std::{
    error::Error as StdError, fmt, io, iter::successors, path::Path, sync::Arc, time::Duration,
};

use tonic::{
    metadata::{AsciiMetadataKey, AsciiMetadataValue},
    transport::{Channel, Endpoint},
};

use super::{
    address::{DaemonAddress, InvalidAddress},
    connector::Connector,
};

/// Longest wait for a connection: a machine that answers at all does so within a few round trips.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// While a call is open, a ping this often tells a daemon that is busy from one that is gone.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(30);
/// A ping unanswered for so long means that it is gone.
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// Bytes under way on one stream and on one connection, which are not read yet. As many of the latter
/// as 32 streams may leave unread: with the protocol library's own choice, which is little more than
/// two, a few streams that somebody lets wait would hold up every other call of the same client.
const STREAM_WINDOW_BYTES: u32 = 2 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 64 << 20;
/// Longest deadline that is sent; `grpc-timeout` has eight digits, and nothing that runs a year is
/// in a hurry.
const MAX_DEADLINE: Duration = Duration::from_secs(365 * 24 * 3600);

/// The metadata that says which call a call repeats.
const REQUEST_ID_METADATA: &str = "jig-request-id";

/// What each call of a client carries. Everything is optional.
#[derive(Clone, Default)]
pub struct Options {
    /// Key that says who calls.
    pub key: Option<String>,
    /// Which of the daemon's workspaces; without it, its first one.
    pub workspace: Option<String>,
    /// Conversation that the calls belong to; without it, `default`.
    pub session: Option<String>,
    /// Time that each call may take, from its start to its last message.
    pub deadline: Option<Duration>,
    /// Trace that the calls belong to, as a W3C `traceparent`.
    pub traceparent: Option<String>,
    /// Id of the one call that changes something which is made with this client: however often it is
    /// repeated with it, also by another client, it is done once, and answered alike.
    pub request_id: Option<String>,
}

/// Why there is no connection. Display says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The address cannot be understood.
    #[error(transparent)]
    Address(#[from] InvalidAddress),
    /// An option has a value that cannot be sent.
    #[error("the {option} cannot be sent: {problem}")]
    Option {
        /// Which option.
        option: &'static str,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// Nothing listens there.
    #[error(
        "nothing listens at {address}; start a daemon there with `jig serve --listen {address}`"
    )]
    NothingListens {
        /// Where.
        address: DaemonAddress,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The socket belongs to another user.
    #[error(
        "{address} may not be opened by this user; run as the daemon's user, or let the daemon listen on TCP with keys"
    )]
    PermissionDenied {
        /// Where.
        address: DaemonAddress,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Nothing speaks HTTP/2 there, or not in time.
    #[error(
        "{address} does not answer as a daemon does; check the address, what listens there, and whether a firewall is in between"
    )]
    TimedOut {
        /// Where.
        address: DaemonAddress,
    },
    /// Something else went wrong.
    #[error("no connection to {address}: {problem}")]
    Failed {
        /// Where.
        address: DaemonAddress,
        /// What, in the words of the innermost cause.
        problem: String,
    },
}

/// The metadata of each call, checked once.
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
            // Keeps the key out of HPACK's tables and of what `Debug` prints.
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
                problem: "it must be more than nothing",
            });
        }
        Ok(Self {
            metadata: metadata.into(),
            deadline: options.deadline.map(|time| time.min(MAX_DEADLINE)),
        })
    }
}

impl CallMetadata {
    /// The same without a request id.
    pub(super) fn without_request_id(&self) -> Self {
        let metadata = self.metadata.iter();
        let others = metadata.filter(|(key, _)| key.as_str() != REQUEST_ID_METADATA);
        Self { metadata: others.cloned().collect(), deadline: self.deadline }
    }
}

/// Connects at once, so that a wrong address is told apart from a call that fails.
pub(super) async fn connect(
    address: &DaemonAddress,
    deadline: Option<Duration>,
) -> Result<Channel, ConnectError> {
    if let DaemonAddress::Unix(path) = address {
        check_socket_path_length(address, path)?;
    }
    let timeout = deadline.map_or(CONNECT_TIMEOUT, |time| time.min(CONNECT_TIMEOUT));
    let endpoint = Endpoint::from_shared(address.to_endpoint())
        .map_err(|error| to_connect_error(address, &error))?
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT);
    let (connector, mut spoken) = Connector::new(address.clone());
    let connecting = async {
        let connected = endpoint.connect_with_connector(connector).await;
        let channel = connected.map_err(|error| to_connect_error(address, &error))?;
        // An error is that of a connection that is gone, of which the call will tell.
        let _gone = spoken.wait_for(|has_spoken| *has_spoken).await;
        Ok(channel)
    };
    // Not the endpoint's own time-out, which covers the socket alone and not the handshake.
    match tokio::time::timeout(timeout, connecting).await {
        Ok(connected) => connected,
        Err(_) => Err(ConnectError::TimedOut { address: address.clone() }),
    }
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
            .finish()
    }
}

/// A socket's path that the kernel has no room for would otherwise be reported as "invalid
/// argument".
fn check_socket_path_length(address: &DaemonAddress, path: &Path) -> Result<(), ConnectError> {
    /// `sun_path`, less its final NUL.
    const MAX_SOCKET_PATH_BYTES: usize = 107;
    if path.as_os_str().len() <= MAX_SOCKET_PATH_BYTES {
        return Ok(());
    }
    Err(ConnectError::Failed {
        address: address.clone(),
        problem: format!("a socket's path has at most {MAX_SOCKET_PATH_BYTES} bytes"),
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
    // `io::Error` cannot be cloned; its code says the same.
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
    fn context_holds_what_was_given() {
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
        assert_eq!(context.deadline, Some(MAX_DEADLINE));
    }

    #[test]
    fn the_key_is_not_shown() {
        let options = Options { key: Some("geheim".into()), ..Options::default() };
        assert!(!format!("{options:?}").contains("geheim"));
        assert!(!format!("{:?}", CallMetadata::try_from(options).unwrap()).contains("geheim"));
    }

    #[test]
    fn what_cannot_be_sent_is_refused() {
        for options in [
            Options { key: Some("a\nb".into()), ..Options::default() },
            Options { workspace: Some("\u{7f}".into()), ..Options::default() },
            Options { deadline: Some(Duration::ZERO), ..Options::default() },
        ] {
            assert!(CallMetadata::try_from(options).is_err());
        }
    }

    /// What a connection begins with: see RFC 9113, sections 3.4, 4.1, 6.5 and 6.9.
    #[tokio::test]
    async fn unread_streams_leave_room_for_others() {
        const SETTINGS: u8 = 4;
        const WINDOW_UPDATE: u8 = 8;
        const INITIAL_WINDOW_SIZE: u16 = 4;
        const DEFAULT_WINDOW: u32 = 65_535;

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = tokio::net::UnixListener::bind(&path).unwrap();
        let address = format!("unix:{}", path.display()).parse().unwrap();
        let connecting = connect(&address, None);
        let reading = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut preface = [0; 24];
            stream.read_exact(&mut preface).await.unwrap();
            stream.write_all(&[0, 0, 0, SETTINGS, 0, 0, 0, 0, 0]).await.unwrap();
            let (mut of_stream, mut of_connection) = (DEFAULT_WINDOW, DEFAULT_WINDOW);
            while of_connection == DEFAULT_WINDOW {
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
                        of_stream = window.map_or(of_stream, |setting| number(&setting[2..]));
                    }
                    WINDOW_UPDATE => of_connection += number(&payload),
                    _ => {}
                }
            }
            (of_stream, of_connection)
        };
        let (_connected, (of_stream, of_connection)) = tokio::join!(connecting, reading);
        assert!(of_connection / of_stream >= 16, "{of_connection} for streams of {of_stream}");
    }

    #[tokio::test]
    async fn a_listener_that_says_nothing_is_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let _mute = tokio::net::UnixListener::bind(&path).unwrap();
        let address = format!("unix:{}", path.display()).parse().unwrap();
        let error = connect(&address, Some(Duration::from_millis(100))).await;
        let error = error.unwrap_err();
        assert!(matches!(error, ConnectError::TimedOut { .. }), "{error:?}");
    }

    #[tokio::test]
    async fn nothing_listens() {
        let error = connect(&"unix:/nowhere/jig.sock".parse().unwrap(), None).await.unwrap_err();
        assert!(matches!(error, ConnectError::NothingListens { .. }), "{error:?}");
        assert!(error.to_string().contains("jig serve"), "{error}");
    }
}
