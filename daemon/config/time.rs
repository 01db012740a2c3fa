//! Times as they are written: a number with a unit.

use std::time::Duration;

/// Longest time that can be configured.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

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
}
