//! The flags that every subcommand has, and what calls carry because of them.

use std::time::Duration;

use clap::{
    Args,
    builder::{FalseyValueParser, NonEmptyStringValueParser},
};

use crate::cli_error::CliError;

/// Flags that each subcommand has.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Connection")]
pub(crate) struct GlobalArgs {
    /// Daemon address: `host:port`, `http://host:port` or `unix:/path`.
    #[arg(long, global = true, hide_short_help = true, env = "JIG_ADDRESS", value_name = "ADDR")]
    address: Option<String>,
    /// API key. Prefer JIG_KEY: command-line arguments are visible to other users.
    #[arg(long, global = true, hide_short_help = true, env = "JIG_KEY", hide_env_values = true)]
    key: Option<String>,
    /// Which of the daemon's workspaces; its first one by default.
    #[arg(long, global = true, hide_short_help = true, env = "JIG_WORKSPACE", value_name = "NAME")]
    workspace: Option<String>,
    /// Conversation that the call belongs to: its steps and artifacts are kept together.
    #[arg(long, global = true, hide_short_help = true, env = "JIG_SESSION", value_name = "NAME")]
    session: Option<String>,
    /// Seconds that the call may take; fractions are allowed.
    #[arg(long, global = true, hide_short_help = true, env = "JIG_DEADLINE", value_name = "SEC", value_parser = parse_seconds)]
    deadline: Option<Duration>,
    /// Idempotency key of one call that changes something. Repeating the call with the same id returns the first
    /// result, even after a daemon restart.
    #[arg(long, global = true, hide_short_help = true, value_name = "ID", value_parser = NonEmptyStringValueParser::new())]
    request_id: Option<String>,
    /// Minimum isolation level of commands where the daemon is started for this call: L3 by default, L2 or L1. A
    /// running daemon that is not named is used only if it isolates commands so strongly.
    #[arg(long, global = true, hide_short_help = true, env = "JIG_MINIMUM_LEVEL", value_name = "LEVEL", value_parser = parse_level)]
    minimum_level: Option<String>,
    /// Have the daemon of this call give what belongs to root in the current directory to the user that
    /// commands run as (chown): for root in a container.
    #[arg(long, global = true, hide_short_help = true, env = "JIG_CHOWN_WORKSPACE", value_parser = FalseyValueParser::new())]
    pub(crate) chown_workspace: bool,
    /// Let the daemon of this call have your home directory, or one above it, as its workspace.
    #[arg(long, global = true, hide_short_help = true)]
    pub(crate) allow_home: bool,
    /// Whether the address is one that was found, not named.
    #[arg(skip)]
    pub(crate) is_default: bool,
    /// Whether the daemon of this call runs a command for it, so that its isolation matters.
    #[arg(skip)]
    pub(crate) runs_command: bool,
    /// Print the answer, or the error, as one JSON object.
    #[arg(long, global = true, hide_short_help = true, env = "JIG_JSON", value_parser = FalseyValueParser::new())]
    pub(crate) json: bool,
}

impl GlobalArgs {
    /// The daemon to call. None: one of our own.
    pub(crate) fn address(&self) -> Option<&str> {
        non_empty(self.address.as_ref())
    }

    /// The daemon to call, for commands that need a running one.
    pub(crate) fn require_address(&self) -> Result<&str, CliError> {
        self.address().ok_or_else(no_daemon_error)
    }

    /// The same with a daemon that was found, and its workspace.
    pub(crate) fn with_default_address(&self, address: &str, workspace: Option<String>) -> Self {
        Self {
            address: Some(address.to_owned()),
            is_default: true,
            workspace: workspace.or_else(|| self.workspace.clone()),
            ..self.clone()
        }
    }

    /// The same with calls that take no longer than this.
    pub(crate) fn with_deadline(&self, time: Duration) -> Self {
        Self {
            deadline: Some(self.deadline.map_or(time, |deadline| deadline.min(time))),
            ..self.clone()
        }
    }

    /// The minimum level, where one was given.
    pub(crate) fn minimum_level(&self) -> Option<&str> {
        non_empty(self.minimum_level.as_ref())
    }

    /// The session, where one was named.
    pub(crate) fn session(&self) -> Option<&str> {
        non_empty(self.session.as_ref())
    }

    /// Whether the call may be repeated.
    pub(crate) fn has_request_id(&self) -> bool {
        self.request_id.is_some()
    }

    /// Refuses a request id where it would not do what it is for.
    pub(crate) fn reject_request_id(&self, why: &str) -> Result<(), CliError> {
        match self.request_id {
            None => Ok(()),
            Some(_) => {
                let text = format!("--request-id cannot be given here: {why}");
                Err(CliError::Usage(text))
            }
        }
    }

    /// What the calls carry.
    pub(crate) fn client_options(&self) -> jig::client::Options {
        let owned = |option: Option<&String>| non_empty(option).map(str::to_owned);
        jig::client::Options {
            key: owned(self.key.as_ref()),
            workspace: owned(self.workspace.as_ref()),
            session: owned(self.session.as_ref()),
            deadline: self.deadline,
            // One that is malformed starts a new trace, as W3C Trace Context asks for.
            traceparent: std::env::var("TRACEPARENT").ok().filter(|text| is_traceparent(text)),
            request_id: self.request_id.clone(),
        }
    }
}

/// There is no daemon to call.
pub(crate) fn no_daemon_error() -> CliError {
    CliError::Usage(
        "no daemon given, and none found: use --address or JIG_ADDRESS (start one with `jig serve`)"
            .to_owned(),
    )
}

fn parse_level(text: &str) -> Result<String, String> {
    match text {
        // As for the others, an empty variable is none.
        "" | "L1" | "L2" | "L3" => Ok(text.to_owned()),
        _ => Err("give L3, L2 or L1".to_owned()),
    }
}

/// An empty variable is one that was not set.
fn non_empty(option: Option<&String>) -> Option<&str> {
    option.map(String::as_str).filter(|text| !text.is_empty())
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 =
        text.parse().map_err(|_| "a number of seconds is needed, as `30` or `0.5`".to_owned())?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(time) if !time.is_zero() => Ok(time),
        _ => Err("it must be more than 0 seconds".to_owned()),
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
    fn deadlines() {
        assert_eq!(parse_seconds("0.5"), Ok(Duration::from_millis(500)));
        for text in ["0", "-1", "nan", "inf", "soon", ""] {
            assert!(parse_seconds(text).is_err(), "{text}");
        }
    }

    #[test]
    fn traceparents() {
        assert!(is_traceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"));
        for text in ["", "00-0af7-b7ad-01", "x"] {
            assert!(!is_traceparent(text), "{text}");
        }
    }
}
