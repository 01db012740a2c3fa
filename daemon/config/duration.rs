//! Times as they are written: a number with a unit.

use std::time::{Duration, SystemTime};

/// Longest time that can be configured.
const MAX_DURATION: Duration = Duration::from_secs(24 * 3600);
/// Longest time that something can be kept: ten years.
const MAX_AGE: Duration = Duration::from_secs(3650 * 24 * 3600);

/// Reads a time with its unit: `500ms`, `25s`, `2m`, `1h`.
pub(super) fn parse_duration(text: &str) -> Option<Duration> {
    parse_with_unit(text).filter(|time| *time <= MAX_DURATION)
}

/// Reads an age, which may be longer and given in days: `12h`, `7d`.
pub(super) fn parse_age(text: &str) -> Option<Duration> {
    let days = |text: &str| -> Option<Duration> {
        let days: u64 = text.parse().ok()?;
        Some(Duration::from_secs(days.checked_mul(24 * 3600)?))
    };
    let age = match text.strip_suffix('d') {
        Some(number) if number.bytes().all(|byte| byte.is_ascii_digit()) => days(number),
        Some(_) => None,
        None => parse_with_unit(text),
    };
    age.filter(|age| *age <= MAX_AGE)
}

/// The time that is written under `key`, or the `default`.
pub(super) fn duration_or_default(
    default: Duration,
    written: Option<&str>,
    key: &str,
    problems: &mut Vec<String>,
) -> Duration {
    let parsed = written.map(|text| parse_duration(text).ok_or(text));
    parsed.unwrap_or(Ok(default)).unwrap_or_else(|text| {
        problems.push(format!("{key} {text:?}: give a time of at most a day, such as 30s or 12h"));
        default
    })
}

/// The age that is written under `key`, or the `default`.
pub(super) fn age_or_default(
    default: Duration,
    written: Option<&str>,
    key: &str,
    problems: &mut Vec<String>,
) -> Duration {
    let is_one = |age: &Duration| !age.is_zero();
    let parsed = written.map(|text| parse_age(text).filter(is_one).ok_or(text));
    parsed.unwrap_or(Ok(default)).unwrap_or_else(|text| {
        problems
            .push(format!("{key} {text:?}: give a time of at most 3650d, such as 5m, 12h or 7d"));
        default
    })
}

fn parse_with_unit(text: &str) -> Option<Duration> {
    let digits = text.find(|char: char| !char.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().ok()?;
    let time = match unit {
        "ms" => Duration::from_millis(number),
        "s" => Duration::from_secs(number),
        "m" => Duration::from_secs(number.checked_mul(60)?),
        "h" => Duration::from_secs(number.checked_mul(3600)?),
        _ => return None,
    };
    Some(time)
}

/// Reads a moment: `2027-01-31T00:00:00Z`.
pub(super) fn parse_timestamp(text: &str) -> Option<SystemTime> {
    let time: prost_types::Timestamp = text.parse().ok()?;
    SystemTime::try_from(time).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        assert_eq!(parse_duration("25s"), Some(Duration::from_secs(25)));
        assert_eq!(parse_duration("500ms"), Some(Duration::from_millis(500)));
        assert_eq!(parse_duration("2m"), Some(Duration::from_secs(120)));
        assert_eq!(parse_duration("24h"), Some(Duration::from_secs(86_400)));
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
            assert_eq!(parse_duration(bad), None, "{bad}");
        }
    }

    #[test]
    fn ages_have_days_too() {
        for (text, seconds) in
            [("7d", 7 * 86_400), ("3650d", 3650 * 86_400), ("36h", 36 * 3600), ("2s", 2)]
        {
            assert_eq!(parse_age(text), Some(Duration::from_secs(seconds)), "{text}");
        }
        for bad in ["", "d", "7", "+7d", "-1d", "1.5d", "3651d", "99999999999999999d", "1w"] {
            assert_eq!(parse_age(bad), None, "{bad}");
        }
    }
}
