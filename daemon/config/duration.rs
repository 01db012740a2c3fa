//! Durations, ages and timestamps of the configuration: `30s`, `7d`, RFC 3339.

use std::time::{Duration, SystemTime};

const SECS_PER_DAY: u64 = 24 * 3600;
const MAX_DURATION: Duration = Duration::from_secs(SECS_PER_DAY);
/// Ten years.
const MAX_AGE: Duration = Duration::from_secs(3650 * SECS_PER_DAY);

/// Reads a duration of at most 24 hours: `500ms`, `25s`, `2m`, `1h`.
pub(super) fn parse_duration(text: &str) -> Option<Duration> {
    parse_with_unit(text).filter(|duration| *duration <= MAX_DURATION)
}

/// Reads an age of at most 3650 days, which can be in days: `12h`, `7d`.
pub(super) fn parse_age(text: &str) -> Option<Duration> {
    let parse_days = |text: &str| -> Option<Duration> {
        let days: u64 = text.parse().ok()?;
        Some(Duration::from_secs(days.checked_mul(SECS_PER_DAY)?))
    };
    let age = match text.strip_suffix('d') {
        Some(number) if number.bytes().all(|byte| byte.is_ascii_digit()) => parse_days(number),
        Some(_) => None,
        None => parse_with_unit(text),
    };
    age.filter(|age| *age <= MAX_AGE)
}

/// Reads the duration `text` of `key`.
///
/// Returns `default` without a text, and after a problem.
pub(super) fn duration_or_default(
    default: Duration,
    text: Option<&str>,
    key: &str,
    problems: &mut Vec<String>,
) -> Duration {
    let parsed = text.map(|text| (text, parse_duration(text)));
    value_or_default(default, parsed, key, "a day, such as 30s or 12h", problems)
}

/// Reads the age `text` of `key`, which must be above zero.
///
/// Returns `default` without a text, and after a problem.
pub(super) fn age_or_default(
    default: Duration,
    text: Option<&str>,
    key: &str,
    problems: &mut Vec<String>,
) -> Duration {
    let parsed = text.map(|text| (text, parse_age(text).filter(|age| !age.is_zero())));
    value_or_default(default, parsed, key, "3650d, such as 5m, 12h or 7d", problems)
}

/// The value of a text that was parsed. Reports a text without a value, with the largest one.
fn value_or_default(
    default: Duration,
    parsed: Option<(&str, Option<Duration>)>,
    key: &str,
    maximum: &str,
    problems: &mut Vec<String>,
) -> Duration {
    let Some((text, value)) = parsed else {
        return default;
    };
    value.unwrap_or_else(|| {
        problems.push(format!("{key} {text:?}: give a time of at most {maximum}"));
        default
    })
}

fn parse_with_unit(text: &str) -> Option<Duration> {
    let digits = text.find(|char: char| !char.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().ok()?;
    let duration = match unit {
        "ms" => Duration::from_millis(number),
        "s" => Duration::from_secs(number),
        "m" => Duration::from_secs(number.checked_mul(60)?),
        "h" => Duration::from_secs(number.checked_mul(3600)?),
        _ => return None,
    };
    Some(duration)
}

/// Reads a timestamp (RFC 3339): `2027-01-31T00:00:00Z`.
pub(super) fn parse_timestamp(text: &str) -> Option<SystemTime> {
    let time: prost_types::Timestamp = text.parse().ok()?;
    SystemTime::try_from(time).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        assert_eq!(parse_duration("25s"), Some(Duration::from_secs(25)));
        assert_eq!(parse_duration("500ms"), Some(Duration::from_millis(500)));
        assert_eq!(parse_duration("2m"), Some(Duration::from_secs(120)));
        assert_eq!(parse_duration("24h"), Some(Duration::from_secs(86_400)));
        for invalid in [
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
            assert_eq!(parse_duration(invalid), None, "{invalid}");
        }
    }

    #[test]
    fn ages_can_be_in_days() {
        for (text, seconds) in
            [("7d", 7 * 86_400), ("3650d", 3650 * 86_400), ("36h", 36 * 3600), ("2s", 2)]
        {
            assert_eq!(parse_age(text), Some(Duration::from_secs(seconds)), "{text}");
        }
        for invalid in ["", "d", "7", "+7d", "-1d", "1.5d", "3651d", "99999999999999999d", "1w"] {
            assert_eq!(parse_age(invalid), None, "{invalid}");
        }
    }
}
