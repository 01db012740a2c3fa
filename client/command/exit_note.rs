//! How a command ended, where its exit code does not tell.

use jig::api::v1::Outcome;

/// In words; none where there is nothing to say.
pub(super) fn exit_note(outcome: i32, signal: &str, limit: &str) -> Option<String> {
    let is_limited = !limit.is_empty();
    let limit = if is_limited { format!(" (limit: {limit})") } else { String::new() };
    match Outcome::try_from(outcome) {
        Ok(Outcome::Exited) => None,
        Ok(Outcome::Signaled) => is_limited.then(|| format!("ended by {signal}{limit}")),
        Ok(Outcome::TimedOut) => Some(format!("ended: its time was up{limit}")),
        Ok(Outcome::Cancelled) => Some(format!("ended: cancelled{limit}")),
        Ok(Outcome::OomKilled) => Some(format!("ended: it took too much memory{limit}")),
        Ok(Outcome::OutputLimit) => Some(format!("ended: it wrote too much{limit}")),
        Ok(Outcome::DaemonLost) => Some("ended: its daemon died".to_owned()),
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
    fn what_ended_it_is_named() {
        for (outcome, limit, expected) in [
            (Outcome::Exited, "", None),
            (Outcome::Signaled, "", None),
            (Outcome::Signaled, "cpu", Some("ended by SIGKILL (limit: cpu)")),
            (Outcome::TimedOut, "", Some("ended: its time was up")),
            (Outcome::Cancelled, "", Some("ended: cancelled")),
            (Outcome::OutputLimit, "output", Some("ended: it wrote too much (limit: output)")),
        ] {
            assert_eq!(exit_note(outcome.into(), "SIGKILL", limit).as_deref(), expected);
        }
    }
}
