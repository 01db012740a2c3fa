//! Values that have a default.

/// Parses `text`. Returns `default` without a text, and after a problem.
pub(super) fn parse_or_default<T>(
    text: Option<&str>,
    default: T,
    problems: &mut Vec<String>,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> T {
    match text.map(parse) {
        None => default,
        Some(Ok(value)) => value,
        Some(Err(problem)) => {
            problems.push(problem);
            default
        }
    }
}
