//! Describes how a command ended, if its exit code does not.

use jig::api::v1::Outcome;

/// Note about a command with `kill_pending`.
pub(super) const KILL_PENDING_NOTE: &str = "a process of the command could not be killed yet; the daemon does not reuse its sandbox until the process is gone";

/// Returns a description for people. `None` if the exit code says everything.
pub(super) fn exit_note(outcome: i32, signal: &str, limit: &str) -> Option<String> {
    let is_limited = !limit.is_empty();
    let limit = if is_limited { format!(" (limit: {limit})") } else { String::new() };
    match Outcome::try_from(outcome) {
        Ok(Outcome::Exited) => None,
        Ok(Outcome::Signaled) => is_limited.then(|| format!("ended by {signal}{limit}")),
        Ok(Outcome::TimedOut) => Some(format!("ended: timed out{limit}")),
        Ok(Outcome::Cancelled) => Some(format!("ended: cancelled{limit}")),
        Ok(Outcome::OomKilled) => Some(format!("ended: out of memory{limit}")),
        Ok(Outcome::OutputLimit) => Some(format!("ended: output limit exceeded{limit}")),
        Ok(Outcome::DaemonLost) => Some("ended: the daemon died".to_owned()),
        Ok(outcome @ Outcome::Unspecified) => {
            Some(format!("ended: {}{limit}", outcome.as_str_name()))
        }
        Err(_) => Some(format!("ended: outcome {outcome}{limit}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn note_names_the_cause() {
        for (outcome, limit, expected) in [
            (Outcome::Exited, "", None),
            (Outcome::Signaled, "", None),
            (Outcome::Signaled, "cpu", Some("ended by SIGKILL (limit: cpu)")),
            (Outcome::TimedOut, "", Some("ended: timed out")),
            (Outcome::Cancelled, "", Some("ended: cancelled")),
            (Outcome::OutputLimit, "output", Some("ended: output limit exceeded (limit: output)")),
        ] {
            assert_eq!(exit_note(outcome.into(), "SIGKILL", limit).as_deref(), expected);
        }
    }
}
