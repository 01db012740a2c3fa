//! Flags of every subcommand: daemon, credentials, session, deadline and output format.

use std::{path::PathBuf, time::Duration};

use clap::{
    Args,
    builder::{FalseyValueParser, NonEmptyStringValueParser},
};

use crate::cli_error::CliError;

/// Flags of every subcommand.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Connection")]
pub(crate) struct GlobalArgs {
    /// Daemon address: `HOST:PORT`, `http://HOST:PORT`, `https://HOST:PORT` or `unix:/PATH`.
    #[arg(long, global = true, hide_short_help = true, env = "JIG_ADDRESS", value_name = "ADDR")]
    address: Option<String>,
    /// API key. Prefer JIG_KEY: command-line arguments are visible to other users.
    #[arg(long, global = true, hide_short_help = true, env = "JIG_KEY", hide_env_values = true)]
    key: Option<String>,
    /// PEM file with the CA certificates that verify the daemon, for an `https://` address.
    /// Default: those of the system.
    #[arg(long, global = true, hide_short_help = true, env = "JIG_CA", value_name = "FILE")]
    ca: Option<PathBuf>,
    /// PEM file with the client certificate, for an `https://` address.
    #[arg(
        long,
        global = true,
        hide_short_help = true,
        env = "JIG_CLIENT_CERT",
        value_name = "FILE"
    )]
    client_cert: Option<PathBuf>,
    /// PEM file with the private key of the client certificate.
    #[arg(
        long,
        global = true,
        hide_short_help = true,
        env = "JIG_CLIENT_KEY",
        value_name = "FILE"
    )]
    client_key: Option<PathBuf>,
    /// Name of the workspace. Default: the daemon's first workspace.
    #[arg(long, global = true, hide_short_help = true, env = "JIG_WORKSPACE", value_name = "NAME")]
    workspace: Option<String>,
    /// Session (conversation) of the call, which groups its steps and artifacts. Default:
    /// `default`.
    #[arg(long, global = true, hide_short_help = true, env = "JIG_SESSION", value_name = "NAME")]
    session: Option<String>,
    /// Deadline of the call in seconds, for example `30` or `0.5`. Default: none.
    #[arg(long, global = true, hide_short_help = true, env = "JIG_DEADLINE", value_name = "SEC", value_parser = parse_seconds)]
    deadline: Option<Duration>,
    /// Idempotency key of a call that changes something. Repeating the call with the same id
    /// returns the first result, even after a daemon restart.
    #[arg(long, global = true, hide_short_help = true, value_name = "ID", value_parser = NonEmptyStringValueParser::new())]
    request_id: Option<String>,
    /// Minimum isolation level of commands, if jig starts the daemon for this call: L3 (default),
    /// L2 or L1. An unnamed running daemon is used only if it reaches this level.
    #[arg(long, global = true, hide_short_help = true, env = "JIG_MINIMUM_LEVEL", value_name = "LEVEL", value_parser = parse_level)]
    minimum_level: Option<String>,
    /// Let the daemon of this call chown root's files in the current directory to the user that
    /// runs commands. For root in a container.
    #[arg(long, global = true, hide_short_help = true, env = "JIG_CHOWN_WORKSPACE", value_parser = FalseyValueParser::new())]
    pub(crate) chown_workspace: bool,
    /// Let the daemon of this call use your home directory, or a parent of it, as its workspace.
    #[arg(long, global = true, hide_short_help = true)]
    pub(crate) allow_home: bool,
    /// Whether the address was found, not given by the user.
    #[arg(skip)]
    pub(crate) is_default: bool,
    /// Whether the call runs a program, so that isolation matters.
    #[arg(skip)]
    pub(crate) runs_command: bool,
    /// Print the response, or the error, as one JSON object.
    #[arg(long, global = true, hide_short_help = true, env = "JIG_JSON", value_parser = FalseyValueParser::new())]
    pub(crate) json: bool,
}

impl GlobalArgs {
    /// Address of the daemon. Without one, jig starts a daemon for this call.
    pub(crate) fn address(&self) -> Option<&str> {
        non_empty(self.address.as_ref())
    }

    /// Returns the address, for commands that need a running daemon.
    pub(crate) fn require_address(&self) -> Result<&str, CliError> {
        self.address().ok_or_else(no_daemon_error)
    }

    /// Returns a copy with the address of a daemon that was found, and the workspace in it.
    pub(crate) fn with_default_address(&self, address: &str, workspace: Option<String>) -> Self {
        Self {
            address: Some(address.to_owned()),
            is_default: true,
            workspace: workspace.or_else(|| self.workspace.clone()),
            ..self.clone()
        }
    }

    /// Returns a copy whose deadline is at most `time`.
    pub(crate) fn with_deadline(&self, time: Duration) -> Self {
        Self {
            deadline: Some(self.deadline.map_or(time, |deadline| deadline.min(time))),
            ..self.clone()
        }
    }

    /// Minimum isolation level, if given.
    pub(crate) fn minimum_level(&self) -> Option<&str> {
        non_empty(self.minimum_level.as_ref())
    }

    /// Session, if given.
    pub(crate) fn session(&self) -> Option<&str> {
        non_empty(self.session.as_ref())
    }

    /// Returns whether the call has a request id, so that a retry is safe.
    pub(crate) fn has_request_id(&self) -> bool {
        self.request_id.is_some()
    }

    /// Rejects --request-id where it has no effect.
    pub(crate) fn reject_request_id(&self, why: &str) -> Result<(), CliError> {
        if self.request_id.is_none() {
            return Ok(());
        }
        Err(CliError::Usage(format!("--request-id cannot be given here: {why}")))
    }

    /// Converts to the options of the client.
    pub(crate) fn client_options(&self) -> jig::client::Options {
        let owned = |option: Option<&String>| non_empty(option).map(str::to_owned);
        jig::client::Options {
            key: owned(self.key.as_ref()),
            workspace: owned(self.workspace.as_ref()),
            session: owned(self.session.as_ref()),
            deadline: self.deadline,
            // A malformed `traceparent` starts a new trace, as W3C Trace Context requires.
            traceparent: std::env::var("TRACEPARENT").ok().filter(|text| is_traceparent(text)),
            request_id: self.request_id.clone(),
            tls: self.tls_options(),
        }
    }

    /// The files of TLS. A daemon of this machine that was found by jig has no TLS.
    fn tls_options(&self) -> jig::client::TlsOptions {
        if self.is_default || self.address().is_none() {
            return jig::client::TlsOptions::default();
        }
        let owned =
            |path: Option<&PathBuf>| path.filter(|path| !path.as_os_str().is_empty()).cloned();
        jig::client::TlsOptions {
            ca: owned(self.ca.as_ref()),
            client_cert: owned(self.client_cert.as_ref()),
            client_key: owned(self.client_key.as_ref()),
        }
    }
}

/// Error of commands that find no daemon to call.
pub(crate) fn no_daemon_error() -> CliError {
    CliError::Usage(
        "no daemon given, and none found: use --address or JIG_ADDRESS (start one with `jig serve`)"
            .to_owned(),
    )
}

fn parse_level(text: &str) -> Result<String, String> {
    match text {
        // An empty environment variable counts as unset.
        "" | "L1" | "L2" | "L3" => Ok(text.to_owned()),
        _ => Err("must be L3, L2 or L1".to_owned()),
    }
}

/// Treats an empty environment variable as unset.
fn non_empty(option: Option<&String>) -> Option<&str> {
    option.map(String::as_str).filter(|text| !text.is_empty())
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| "must be a number of seconds, such as `30` or `0.5`".to_owned())?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(time) if !time.is_zero() => Ok(time),
        _ => Err("must be more than 0 seconds".to_owned()),
    }
}

fn is_traceparent(text: &str) -> bool {
    let mut fields = text.split('-');
    let mut is_hex = |length| {
        fields.next().is_some_and(|field: &str| {
            field.len() == length && field.bytes().all(|byte| byte.is_ascii_hexdigit())
        })
    };
    is_hex(2) && is_hex(32) && is_hex(16) && is_hex(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_must_be_positive() {
        assert_eq!(parse_seconds("0.5"), Ok(Duration::from_millis(500)));
        for text in ["0", "-1", "nan", "inf", "soon", ""] {
            assert!(parse_seconds(text).is_err(), "{text}");
        }
    }

    #[test]
    fn malformed_traceparent_is_rejected() {
        assert!(is_traceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"));
        for text in ["", "00-0af7-b7ad-01", "x"] {
            assert!(!is_traceparent(text), "{text}");
        }
    }
}
