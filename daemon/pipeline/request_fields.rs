//! Checks of fields that requests of several services have.

use crate::daemon::{
    config::jobs::is_queue_name,
    dialect::{self, Dialect},
    error::Violation,
};

/// Finds the dialect `name`. Returns `None` for an empty name, and adds a violation for an unknown
/// one.
pub(crate) fn parse_dialect(
    name: &str,
    violations: &mut Vec<Violation>,
) -> Option<&'static Dialect> {
    if name.is_empty() {
        return None;
    }
    match dialect::find(name) {
        Ok(dialect) => Some(dialect),
        Err(error) => {
            violations.extend(error.violations);
            None
        }
    }
}

/// Adds a violation for an invalid queue name, unless the field `queue` has one already.
pub(crate) fn validate_queue_name(name: &str, violations: &mut Vec<Violation>) {
    let is_reported = violations.iter().any(|violation| violation.field == "queue");
    if !is_reported && !is_queue_name(name) {
        let text = "must have 1 to 80 lower-case letters, digits, and . _ : -";
        violations.push(Violation::new("queue", text));
    }
}
