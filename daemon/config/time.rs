//! Times as they are written: a number with a unit.

use std::time::{Duration, SystemTime};

/// Longest time that can be configured.
const LONGEST: Duration = Duration::from_secs(24 * 3600);
/// Longest time for what is kept.
const LONGEST_SPAN: Duration = Duration::from_secs(3650 * 24 * 3600);

/// Reads a time with its unit: `500ms`, `25s`, `2m`, `1h`.
pub(super) fn time(text: &str) -> Option<Duration> {
    let digits = text
        .find(|char: char| !char.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().ok()?;
    let time = match unit {
        "ms" => Duration::from_millis(number),
        "s" => Duration::from_secs(number),
        "m" => Duration::from_secs(number.checked_mul(60)?),
        "h" => Duration::from_secs(number.checked_mul(3600)?),
        _ => return None,
    };
    (time <= LONGEST).then_some(time)
}

/// Reads a time that may be longer than a day: `30d` also.
pub(super) fn span(text: &str) -> Option<Duration> {
    let time = match text.strip_suffix('d') {
        None => time(text)?,
        Some(days) if days.bytes().all(|byte| byte.is_ascii_digit()) => {
            let days: u64 = days.parse().ok()?;
            Duration::from_secs(days.checked_mul(24 * 3600)?)
        }
        Some(_) => return None,
    };
    (time <= LONGEST_SPAN).then_some(time)
}

/// Reads a moment: `2027-01-31T00:00:00Z`.
pub(super) fn moment(text: &str) -> Option<SystemTime> {
    let time: prost_types::Timestamp = text.parse().ok()?;
    SystemTime::try_from(time).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        assert_eq!(time("25s"), Some(Duration::from_secs(25)));
        assert_eq!(time("500ms"), Some(Duration::from_millis(500)));
        assert_eq!(time("2m"), Some(Duration::from_secs(120)));
        assert_eq!(time("24h"), Some(Duration::from_secs(86_400)));
        for bad in [
            "",
            "s",
            "25",
            "25h",
            "2d",
            "-1s",
            "1.5s",
            "99999999999999999999s",
            "9999999999999999999s",
            "9999999999999999999h",
        ] {
            assert_eq!(time(bad), None, "{bad}");
        }
    }

    #[test]
    fn what_is_kept_may_be_kept_for_days() {
        assert_eq!(span("30d"), Some(Duration::from_secs(30 * 86_400)));
        assert_eq!(span("12h"), time("12h"));
        for bad in ["d", "+1d", "3651d", "99999999999999999999d", "25h"] {
            assert_eq!(span(bad), None, "{bad}");
        }
    }
}
